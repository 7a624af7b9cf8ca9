"""How the readings of a model's sensors transform under its symmetries.

A sensor's reading is carried to the sensor of the same type at the image of what it is attached to. Sensors that measure
against a reference frame, tendons, contacts and the like have no rule here; an observation's entries that come from them
are fitted (`rppdyn.envs.observation.action`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import mujoco
import numpy as np

from rppdyn.envs.encoding import rotation_matrix
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.observation.fields import Affine, Field, Part, element_field, scalar_joints
from rppdyn.envs.observation.fixtures import Fixtures
from rppdyn.envs.spec import Entry

__all__ = ["sensor_fields"]

Rule = TypeVar("Rule")


def _types(**rules: Rule) -> dict[int, Rule]:
    known = {name: getattr(mujoco.mjtSensor, f"mjSENS_{name}", None) for name in rules}  # energies came with MuJoCo 3.2
    return {int(kind): rules[name] for name, kind in known.items() if kind is not None}


_ATTACHED = _types(
    TOUCH=Part("scalar", "", "N"),
    ACCELEROMETER=Part("own vector", "", "m/s^2"),
    VELOCIMETER=Part("own vector", "", "m/s"),
    GYRO=Part("own axial", "", "rad/s"),
    FORCE=Part("own vector", "", "N"),
    TORQUE=Part("own axial", "", "N m"),
    FRAMEPOS=Part("position", "", "m"),
    FRAMEQUAT=Part("quaternion", "", "1"),
    FRAMELINVEL=Part("vector", "", "m/s"),
    FRAMEANGVEL=Part("axial", "", "rad/s"),
    FRAMELINACC=Part("vector", "", "m/s^2"),
    FRAMEANGACC=Part("axial", "", "rad/s^2"),
    SUBTREECOM=Part("position", "", "m"),
    SUBTREELINVEL=Part("vector", "", "m/s"),
    SUBTREEANGMOM=Part("axial", "", "kg m^2/s"),
    E_POTENTIAL=Part("scalar", "", "J"),
    E_KINETIC=Part("scalar", "", "J"),
    CLOCK=Part("scalar", "", "s"),
)  # fmt: skip

# What acts on readings of joints and actuators, and whether positions are shifted with them.
_DRIVEN = _types(
    JOINTPOS=("joint_matrix", True),
    JOINTVEL=("joint_matrix", False),
    JOINTACTFRC=("joint_matrix", False),
    ACTUATORVEL=("controls", False),
    ACTUATORFRC=("controls", False),
)


def sensor_fields(model: mujoco.MjModel) -> tuple[Field, ...]:
    """Fields of `sensordata`: of sensors that are attached to bodies, geoms and sites, and of joints and actuators."""
    types = model.sensor_type
    attached = [i for i in range(model.nsensor) if types[i] in _ATTACHED and model.sensor_refid[i] < 0]
    driven = [i for i in range(model.nsensor) if types[i] in _DRIVEN]
    return _attached(model, attached), _driven(model, driven)


def _attached(model: mujoco.MjModel, sensors: list[int]) -> Field:
    fixtures = {
        int(getattr(mujoco.mjtObj, f"mjOBJ_{kind}")): Fixtures.of(model, name)
        for kind, name in (("BODY", "body"), ("XBODY", "body"), ("GEOM", "geom"), ("SITE", "site"))
    }
    inertial = int(mujoco.mjtObj.mjOBJ_BODY)  # a sensor of a "body" measures its inertial frame
    axes = rotation_matrix(model.body_iquat).reshape(-1, 3, 3)

    def key(i: int, thing: int) -> tuple[int, ...]:
        return int(model.sensor_type[i]), int(model.sensor_objtype[i]), thing

    def images(symmetry: ModelSymmetry) -> np.ndarray:
        carried = {kind: fixture.images(symmetry) for kind, fixture in fixtures.items()}
        found = {key(i, int(model.sensor_objid[i])): n for n, i in enumerate(sensors)}
        things = (
            int(carried[kind][model.sensor_objid[i]]) if (kind := int(model.sensor_objtype[i])) in carried else -1
            for i in sensors
        )
        return np.array([found.get(key(i, thing), -1) for i, thing in zip(sensors, things, strict=True)], dtype=int)

    def frame(symmetry: ModelSymmetry, a: int, b: int) -> np.ndarray:
        kind, i, j = int(model.sensor_objtype[sensors[a]]), *(int(model.sensor_objid[sensors[n]]) for n in (a, b))
        if kind not in fixtures:  # energies and the clock belong to nothing and are scalars
            return np.eye(3)
        M = fixtures[kind].frame(symmetry, i, j)
        return axes[j].T @ M @ axes[i] if kind == inertial else M

    names = [model.sensor(i).name or f"sensor {i}" for i in sensors]
    parts = [(_ATTACHED[int(model.sensor_type[i])],) for i in sensors]
    places = _places(model, sensors)
    return element_field("sensordata", names, parts, lambda data: data.sensordata[places], images, frame)


def _driven(model: mujoco.MjModel, sensors: list[int]) -> Field:
    scalar = scalar_joints(model)
    rules = [_DRIVEN[int(model.sensor_type[i])] for i in sensors]
    # A sensor's row in the matrix of its rule: its joint's number among scalar joints, or its actuator's.
    things = [int(model.sensor_objid[i]) for i in sensors]
    rows = [scalar.index(t) if rule[0] == "joint_matrix" else t for t, rule in zip(things, rules, strict=True)]

    def act(symmetry: ModelSymmetry) -> Affine:
        n = len(sensors)
        A, a = np.zeros((n, n)), np.zeros(n)
        for i, (matrix, shifted) in enumerate(rules):
            row = getattr(symmetry, matrix)[rows[i]]
            like = [k for k in range(n) if model.sensor_type[sensors[k]] == model.sensor_type[sensors[i]]]
            needed = {rows[k]: k for k in like}
            if set(np.flatnonzero(row)) <= set(needed):
                A[i, [needed[c] for c in needed]] = row[list(needed)]
            else:
                A[i] = np.nan
            a[i] = symmetry.joint_shift[rows[i]] if shifted else 0.0
        return A, a

    entries = tuple(Entry(model.sensor(i).name or f"sensor {i}") for i in sensors)
    places = _places(model, sensors)
    return Field("sensordata of joints and actuators", entries, lambda data: data.sensordata[places], act)


def _places(model: mujoco.MjModel, sensors: Iterable[int]) -> np.ndarray:
    """Where the readings of these sensors stand in `sensordata`."""
    spans = [np.arange(model.sensor_adr[i], model.sensor_adr[i] + model.sensor_dim[i]) for i in sensors]
    return np.concatenate([np.zeros(0, int), *spans])
