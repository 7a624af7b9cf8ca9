"""The quantities of a model: every one of `mjData` that an observation may be made of.

Quantities of bodies, geoms and sites transform by their kind (`rppdyn.envs.model_symmetry`); those of joints and actuators by
the symmetry's action on positions, velocities and controls.

A sensor's reading is carried to the sensor of the same type at the image of what it is attached to. Sensors that measure
against a reference frame, tendons, contacts and the like have no rule here; an observation's entries that come from them
are fitted (`rppdyn.envs.observation.action`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment

from rppdyn.envs.model_symmetry import (
    BALL,
    FREE,
    HINGE,
    SLIDE,
    TRANSMISSION,
    Affine,
    ModelSymmetry,
    Part,
    Quantity,
    derivable,
    element_quantity,
    phrase,
    scalar_joints,
)
from rppdyn.envs.spec import Encoding, Entry, rotation_matrix


def quantities_of(model: mujoco.MjModel) -> tuple[Quantity, ...]:
    """Every quantity of a model, the ones that observations are most often made of first."""
    bodies, geoms, sites = (Fixtures.of(model, kind) for kind in ("body", "geom", "site"))
    quantities = [*_joint_quantities(model), *(_array(bodies, name, *parts) for name, parts in _BODY_ARRAYS)]
    below = subtrees(model, bodies)
    quantities += [_array(bodies, name, *parts, subtrees=below) for name, parts in _SUBTREE_ARRAYS]
    quantities += [_array(geoms, "geom_xpos", Part("position", "", "m"))]
    quantities += [_array(sites, "site_xpos", Part("position", "", "m"))]
    quantities += [_array(sites, "site_xmat", Part("orientation", "orientation", "1"))]
    quantities += [*_relative_quantities(model, bodies)]
    types = model.sensor_type
    quantities.append(
        _attached(model, [i for i in range(model.nsensor) if types[i] in _ATTACHED and model.sensor_refid[i] < 0])
    )
    quantities.append(_driven(model, [i for i in range(model.nsensor) if types[i] in _DRIVEN]))
    return tuple(quantity for quantity in quantities if quantity.entries)


def _array(fixtures: Fixtures, name: str, *parts: Part, subtrees: Any = None) -> Quantity:
    """A quantity that is an array of `mjData` with one row for each thing."""
    still, images = subtrees or (fixtures.still if name in _POSES else (), fixtures.images)
    return element_quantity(
        name, fixtures.names, [parts] * len(fixtures.names), lambda data: getattr(data, name).ravel(),
        images, fixtures.frame, still,
    )  # fmt: skip


# What never changes of a body that no joint moves; forces on it do.
_POSES = frozenset({"xpos", "xquat", "xmat", "xipos", "geom_xpos", "site_xpos", "site_xmat"})
# At the point of the body that coincides with the centre of mass of its tree: not the velocity of the body's own frame.
_TWIST = (Part("axial", "twist angular", "rad/s"), Part("vector", "twist linear", "m/s"))
_ACCELERATION = (Part("axial", "angular acceleration", "rad/s^2"), Part("vector", "acceleration", "m/s^2"))
_INERTIA = (Part("tensor", "inertia", "kg m^2"), Part("vector", "mass moment", "kg m"), Part("scalar", "mass", "kg"))


def _wrench(what: str) -> tuple[Part, Part]:
    return Part("axial", f"{what} torque", "N m"), Part("vector", f"{what} force", "N")


_BODY_ARRAYS: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("xpos", (Part("position", "", "m"),)),
    ("xquat", (Part("quaternion", "orientation", "1"),)),
    ("xmat", (Part("orientation", "orientation", "1"),)),
    ("xipos", (Part("position", "centre of mass", "m"),)),
    ("cinert", _INERTIA),
    ("cvel", _TWIST),
    ("cfrc_ext", _wrench("external")),
    ("cfrc_int", _wrench("internal")),
    ("cacc", _ACCELERATION),
    ("xfrc_applied", _wrench("applied")[::-1]),
)

_SUBTREE_ARRAYS: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("subtree_com", (Part("position", "subtree's centre of mass", "m"),)),
    ("subtree_linvel", (Part("vector", "subtree's velocity", "m/s"),)),
    ("subtree_angmom", (Part("axial", "subtree's angular momentum", "kg m^2/s"),)),
)


def _relative_quantities(model: mujoco.MjModel, bodies: Fixtures) -> list[Quantity]:
    """Quantities that `mjData` has no array for: velocities of the bodies' origins, and quantities in axes of a body."""
    root = model.body_rootid

    def velocity(data):
        """Velocity of each body's origin; `cvel` is that of the point of the body that is at the tree's centre of mass."""
        return data.cvel[:, 3:] + np.cross(data.cvel[:, :3], data.xpos - data.subtree_com[root])

    def own(vectors, data, frames=slice(None)):
        return np.einsum("bij,bi->bj", data.xmat.reshape(-1, 3, 3)[frames], vectors).ravel()

    in_root = lambda symmetry, i, j: symmetry.frames[root[i]]  # noqa: E731
    velocities, spins = lambda data: velocity(data).ravel(), lambda data: own(data.cvel[:, :3], data)
    table = {
        "velocity": (Part("vector", "origin's velocity", "m/s"), velocities, bodies.frame),
        "own velocity": (Part("own vector", "own velocity", "m/s"), lambda d: own(velocity(d), d), bodies.frame),
        "own angular velocity": (Part("own axial", "own angular velocity", "rad/s"), spins, bodies.frame),
        "place": (Part("own vector", "place in the root's frame", "m"), lambda d: own(d.xpos - d.xpos[root], d, root), in_root),
    }  # fmt: skip
    return [
        element_quantity(name, bodies.names, [(part,)] * model.nbody, read, bodies.images, frame, bodies.still)
        for name, (part, read, frame) in table.items()
    ]


# -- what belongs to joints and actuators -----------------------------------------------------------------------------

_POSITION_UNITS = {SLIDE: "m", HINGE: "rad"}


def _joint_quantities(model: mujoco.MjModel) -> list[Quantity]:
    controls = []  # a name for what each actuator exerts, the joint that it drives, and the unit
    for i in range(model.nu):
        j = int(model.actuator_trnid[i, 0])
        if model.actuator_trntype[i] in (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT):
            controls.append(
                (_joint_name(model, j), _joint_name(model, j), "N" if model.jnt_type[j] == SLIDE else "N m")
            )
        else:
            controls.append((model.actuator(i).name or f"actuator {i}", "", ""))
    quantities = [_positions(model), _turns(model)]
    quantities += [_over_dofs(model, name, *label) for name, label in _DOF_ARRAYS.items()]
    for name, what in (("ctrl", ""), ("actuator_force", "force"), ("actuator_velocity", "velocity")):
        entries = tuple(Entry(phrase(actuator, what), joint, unit) for actuator, joint, unit in controls)
        quantities.append(_linear(name, entries, "controls"))
    quantities.append(_linear("act", tuple(Entry(f"activation {i}") for i in range(model.na)), "activations"))
    return quantities


def _linear(name: str, entries: tuple[Entry, ...], matrix: str) -> Quantity:
    def act(symmetry: ModelSymmetry) -> Affine:
        return getattr(symmetry, matrix), np.zeros(len(entries))

    return Quantity(name, entries, lambda data: getattr(data, name), act)


def _positions(model: mujoco.MjModel) -> Quantity:
    """`qpos`: scalar joints by P and c; a free joint like a position and an orientation; a ball joint by its frames."""
    entries, quaternions = [], []
    for j in range(model.njnt):
        joint, body, kind = _joint_name(model, j), _body_name(model, j), int(model.jnt_type[j])
        if kind in _POSITION_UNITS:
            entries.append(Entry(f"{joint} position", joint, _POSITION_UNITS[kind]))
            continue
        if kind == FREE:
            entries += [Entry(f"{body} {axis}", joint, "m") for axis in "xyz"]
        quaternions.append(len(entries))
        what = f"{body} orientation" if kind == FREE else f"{joint} orientation"
        entries += [Entry(f"{what} {c}", joint, "1") for c in "wxyz"]
    encoding = Encoding(len(entries), quaternions=tuple(quaternions))
    places = [encoding.features_of(int(adr)) for adr in model.jnt_qposadr]
    scalar = [places[j][0] for j in scalar_joints(model)]

    def finite(symmetry: ModelSymmetry) -> Affine:
        A, a = np.zeros((encoding.feature_dim,) * 2), np.zeros(encoding.feature_dim)
        A[np.ix_(scalar, scalar)], a[scalar] = symmetry.joint_matrix, symmetry.joint_shift
        for j in np.flatnonzero(model.jnt_type <= BALL):
            body = model.jnt_bodyid[j]
            there = symmetry.bodies[body]
            image = next(k for k in np.flatnonzero(model.jnt_type == model.jnt_type[j]) if model.jnt_bodyid[k] == there)
            M = symmetry.frames[body]
            if model.jnt_type[j] == FREE:
                here, to = int(model.jnt_qposadr[j]), int(model.jnt_qposadr[image])
                here, to = encoding.features_of(here)[0], encoding.features_of(to)[0]
                A[to : to + 3, here : here + 3], a[to : to + 3] = symmetry.rotation, symmetry.translation
                here, to, left = here + 3, to + 3, symmetry.rotation
            else:
                # X_b = X_p Q_b X_joint, and both sides of it transform by their own frames.
                at_rest = rotation_matrix(model.body_quat).reshape(-1, 3, 3)
                left = at_rest[there].T @ symmetry.frames[model.body_parentid[body]] @ at_rest[body]
                here, to = places[j][0], places[image][0]
            A[to : to + 9, here : here + 9] = np.kron(left, M)
        return A, a

    return Quantity("qpos", tuple(entries), lambda data: data.qpos, derivable(finite), tuple(quaternions))


def _turns(model: mujoco.MjModel) -> Quantity:
    """Cosines, then sines, of the hinges' angles; q' = s q + c turns each pair (cos, s sin) by c."""
    scalar = scalar_joints(model)
    hinges = [i for i, j in enumerate(scalar) if model.jnt_type[j] == HINGE]
    names = [_joint_name(model, scalar[i]) for i in hinges]
    n = len(hinges)
    entries = tuple(Entry(f"{name} {part}", name, "1") for part in ("cos", "sin") for name in names)
    places = [int(model.jnt_qposadr[scalar[i]]) for i in hinges]

    def read(data):
        angles = data.qpos[places]
        return np.concatenate([np.cos(angles), np.sin(angles)])

    def act(symmetry: ModelSymmetry) -> Affine:
        P, c = symmetry.joint_matrix[np.ix_(hinges, hinges)], symmetry.joint_shift[hinges]
        if symmetry.is_continuous:
            if P.any():
                raise ValueError(f"{symmetry.name} mixes hinges; angles can only be shifted continuously")
            return np.block([[np.zeros((n, n)), -np.diag(c)], [np.diag(c), np.zeros((n, n))]]), np.zeros(2 * n)
        cos, sin = np.cos(c)[:, None], np.sin(c)[:, None]
        return np.block([[cos * np.abs(P), -sin * P], [sin * np.abs(P), cos * P]]), np.zeros(2 * n)

    return Quantity("cosine and sine", entries, read, act)


# What mjData holds per degree of freedom: a label, and units for slides and hinges.
_SPEED, _ACCEL, _FORCE = ("m/s", "rad/s"), ("m/s^2", "rad/s^2"), ("N", "N m")
_DOF_ARRAYS: dict[str, tuple[str, tuple[str, str]]] = {
    "qvel": ("velocity", _SPEED),
    "qacc": ("acceleration", _ACCEL),
    "qfrc_actuator": ("actuator force", _FORCE),
    "qfrc_constraint": ("constraint force", _FORCE),
    "qfrc_passive": ("passive force", _FORCE),
    "qfrc_bias": ("bias force", _FORCE),
    "qfrc_applied": ("applied force", _FORCE),
    "qfrc_smooth": ("smooth force", _FORCE),
    "qacc_smooth": ("smooth acceleration", _ACCEL),
    "qacc_warmstart": ("last acceleration", _ACCEL),
}


def _over_dofs(model: mujoco.MjModel, name: str, label: str, units: tuple[str, str]) -> Quantity:
    """A quantity per degree of freedom. D is orthogonal, so forces, dual to velocities, transform by it too."""
    entries = []
    for j in range(model.njnt):
        joint, body, kind = _joint_name(model, j), _body_name(model, j), int(model.jnt_type[j])
        if kind == FREE:
            entries += [Entry(f"{body} {label} {axis}", joint, units[0]) for axis in "xyz"]
        if kind in (FREE, BALL):
            what = label.replace("force", "torque") if "force" in label else label.replace(label, f"angular {label}")
            entries += [Entry(f"{body if kind == FREE else joint} {what} {axis}", joint, units[1]) for axis in "xyz"]
        if kind == SLIDE:
            entries.append(Entry(f"{joint} {label}", joint, units[0]))
        if kind == HINGE:
            entries.append(Entry(f"{joint} {label.replace('force', 'torque')}", joint, units[1]))
    return _linear(name, tuple(entries), "dofs")


def _joint_name(model: mujoco.MjModel, joint: int) -> str:
    return model.joint(joint).name or f"joint {joint}"


def _body_name(model: mujoco.MjModel, joint: int) -> str:
    body = int(model.jnt_bodyid[joint])
    return model.body(body).name or f"body {body}"


# -- how the readings of a model's sensors transform under its symmetries ------------------------------------------------------


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


def _attached(model: mujoco.MjModel, sensors: list[int]) -> Quantity:
    """Readings of sensors that are attached to bodies, geoms and sites."""
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
        number_of = {key(i, int(model.sensor_objid[i])): n for n, i in enumerate(sensors)}
        things = (
            int(carried[kind][model.sensor_objid[i]]) if (kind := int(model.sensor_objtype[i])) in carried else -1
            for i in sensors
        )
        return np.array([number_of.get(key(i, thing), -1) for i, thing in zip(sensors, things, strict=True)], dtype=int)

    def frame(symmetry: ModelSymmetry, a: int, b: int) -> np.ndarray:
        kind, i, j = int(model.sensor_objtype[sensors[a]]), *(int(model.sensor_objid[sensors[n]]) for n in (a, b))
        if kind not in fixtures:  # energies and the clock belong to nothing and are scalars
            return np.eye(3)
        M = fixtures[kind].frame(symmetry, i, j)
        return axes[j].T @ M @ axes[i] if kind == inertial else M

    names = [model.sensor(i).name or f"sensor {i}" for i in sensors]
    parts = [(_ATTACHED[int(model.sensor_type[i])],) for i in sensors]
    places = _places(model, sensors)
    return element_quantity("sensordata", names, parts, lambda data: data.sensordata[places], images, frame)


def _driven(model: mujoco.MjModel, sensors: list[int]) -> Quantity:
    """Readings of sensors of joints and actuators."""
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
    return Quantity("sensordata of joints and actuators", entries, lambda data: data.sensordata[places], act)


def _places(model: mujoco.MjModel, sensors: Iterable[int]) -> np.ndarray:
    """Indices of these sensors' readings in `sensordata`."""
    spans = [np.arange(model.sensor_adr[i], model.sensor_adr[i] + model.sensor_dim[i]) for i in sensors]
    return np.concatenate([np.zeros(0, int), *spans])


# -- things that are fixed in the bodies of a model, and which of them a symmetry carries to which -----------------------------


PLACE_TOLERANCE = 1e-3  # two things lie in the same place if they are nearer than this times the model's extent


@dataclass(frozen=True, eq=False)
class Fixtures:
    """Bodies, geoms or sites.

    Args:
        names: name of each.
        bodies: the body that it belongs to.
        places: where it is in that body, (n, 3), and `turns`, its axes there, (n, 3, 3).
        kinds: things of different kinds are not images of each other.
        still: indices of those that no joint moves.
        reach: how far from the place of its image a thing may lie, in metres.
    """

    names: tuple[str, ...]
    bodies: np.ndarray
    places: np.ndarray
    turns: np.ndarray
    kinds: np.ndarray
    still: np.ndarray
    reach: float

    @classmethod
    def of(cls, model: mujoco.MjModel, kind: str) -> Fixtures:
        """All of a model's, `kind` being "body", "geom" or "site"."""
        n = getattr(model, f"n{kind}")
        names = tuple(getattr(model, kind)(i).name or f"{kind} {i}" for i in range(n))
        still, reach = model.body_weldid == 0, PLACE_TOLERANCE * model.stat.extent
        if kind == "body":
            place, turn = np.zeros((n, 3)), np.tile(np.eye(3), (n, 1, 1))
            return cls(names, np.arange(n), place, turn, np.zeros(n), np.flatnonzero(still), reach)
        bodies, places, quaternions, kinds = (
            getattr(model, f"{kind}_{key}") for key in ("bodyid", "pos", "quat", "type")
        )
        turns = rotation_matrix(quaternions).reshape(-1, 3, 3)
        return cls(names, bodies, places, turns, kinds, np.flatnonzero(still[bodies]), reach)

    def images(self, symmetry: ModelSymmetry) -> np.ndarray:
        """Index of the thing that each one is carried to, -1 where there is none."""
        target = np.array(symmetry.bodies)[self.bodies]
        there = np.einsum("nij,nj->ni", symmetry.frames[self.bodies], self.places)
        distance = np.linalg.norm(there[:, None] - self.places[None], axis=-1)
        distance[target[:, None] != self.bodies[None]] = np.inf
        distance[self.kinds[:, None] != self.kinds[None]] = np.inf
        near = distance <= self.reach
        # One may be the nearest to the images of two; the assignment with the least total distance is one to one.
        rows, columns = linear_sum_assignment(np.where(near, distance, 1e9))
        return np.where(near[rows, columns], columns, -1)

    def frame(self, symmetry: ModelSymmetry, i: int, j: int) -> np.ndarray:
        """The map from the axes of thing i to those of its image j: Q_j^T M_b Q_i."""
        return self.turns[j].T @ symmetry.frames[self.bodies[i]] @ self.turns[i]


def subtrees(
    model: mujoco.MjModel, bodies: Fixtures
) -> tuple[np.ndarray, Callable[[ModelSymmetry], np.ndarray]]:  # fmt: skip
    """Bodies below which nothing moves, and a function: the body whose subtree each subtree is carried to, -1 if none.

    A subtree's centre of mass is carried to that of its image unless the masses in it that no joint moves lie elsewhere.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    moving = model.body_weldid != 0
    masses = np.where(moving, 0.0, model.body_mass)  # of each subtree that no joint moves, in kg
    moments = masses[:, None] * data.xipos
    for b in range(model.nbody - 1, 0, -1):
        parent = model.body_parentid[b]
        masses[parent] += masses[b]
        moments[parent] += moments[b]
        moving[parent] |= moving[b]
    centres = moments / np.where(masses > 0, masses, 1.0)[:, None]  # in the world

    def images(symmetry: ModelSymmetry) -> np.ndarray:
        images = bodies.images(symmetry)
        there = centres @ symmetry.rotation.T + symmetry.translation
        near = np.linalg.norm(there - centres[images], axis=1) <= bodies.reach
        return np.where(np.isclose(masses, masses[images]) & (near | (masses == 0)), images, -1)

    return np.flatnonzero(~moving), images
