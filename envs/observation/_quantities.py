"""The quantities of a model: arrays of `mjData` that an observation may be made of, and how symmetries act on them.

Quantities of bodies, geoms and sites transform by their kind (`rppdyn.envs._model_symmetry`), those of joints and actuators by
the symmetry's action on positions, velocities and controls.

The image of a sensor's reading is that of a sensor of the same type, attached to the image of the body, geom, site, joint or
actuator. Sensors with a reference frame, tendons and contacts have no rule here: entries that come from them are fitted
(`rppdyn.envs.observation._action`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment

from rppdyn.envs._model_symmetry import (
    BALL,
    FREE,
    HINGE,
    JOINT_TRANSMISSIONS,
    OBJECT,
    SENSOR,
    SLIDE,
    Affine,
    ModelSymmetry,
    Part,
    Quantity,
    control_addresses,
    derivable,
    element_quantity,
    joint_name,
    phrase,
    scalar_joints,
)
from rppdyn.envs._spec import Encoding, Entry, rotation_matrix


def quantities_of(model: mujoco.MjModel) -> tuple[Quantity, ...]:
    """All quantities of a model, those that observations use most first."""
    bodies, geoms, sites = (Fixtures(model, kind) for kind in ("body", "geom", "site"))
    quantities = [*_joint_quantities(model), *(_array_quantity(bodies, name, *parts) for name, parts in _BODY_ARRAYS)]
    trees = subtrees(model, bodies)
    quantities += [_array_quantity(bodies, name, *parts, subtrees=trees) for name, parts in _SUBTREE_ARRAYS]
    quantities += [_array_quantity(geoms, "geom_xpos", Part("position", "", "m"))]
    quantities += [_array_quantity(sites, "site_xpos", Part("position", "", "m"))]
    quantities += [_array_quantity(sites, "site_xmat", Part("orientation", "orientation", "1"))]
    quantities += [*_relative_quantities(model, bodies)]
    types = model.sensor_type
    attached = [i for i in range(model.nsensor) if types[i] in _ATTACHED_SENSORS and model.sensor_refid[i] < 0]
    quantities.append(_attached_sensors(model, attached))
    quantities.append(_joint_sensors(model, [i for i in range(model.nsensor) if types[i] in _JOINT_SENSORS]))
    return tuple(quantity for quantity in quantities if quantity.entries)


def _array_quantity(fixtures: Fixtures, name: str, *parts: Part, subtrees: Any = None) -> Quantity:
    """An array of `mjData` with a row per body, geom or site; `subtrees` as the function of that name returns them."""
    constant, images = subtrees or (fixtures.immobile if name in _POSES else (), fixtures.images)
    return element_quantity(
        name, fixtures.names, [parts] * len(fixtures.names), lambda data: getattr(data, name).ravel(),
        images, fixtures.frame, constant,
    )  # fmt: skip


# Arrays that are constant for a body that no joint moves; forces on it are not.
_POSES = frozenset({"xpos", "xquat", "xmat", "xipos", "geom_xpos", "site_xpos", "site_xmat"})
# Velocity of the point of a body that coincides with the centre of mass of its tree, not of the body's origin.
_TWIST = (Part("axial", "twist angular", "rad/s"), Part("vector", "twist linear", "m/s"))
_ACCELERATION = (Part("axial", "angular acceleration", "rad/s^2"), Part("vector", "acceleration", "m/s^2"))
_INERTIA = (Part("tensor", "inertia", "kg m^2"), Part("vector", "mass moment", "kg m"), Part("scalar", "mass", "kg"))


def _wrench(name: str) -> tuple[Part, Part]:
    return Part("axial", f"{name} torque", "N m"), Part("vector", f"{name} force", "N")


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
    """Quantities without an array in `mjData`: velocities of the bodies' origins, and quantities in a body's axes."""
    root = model.body_rootid

    def velocity(data):
        """Velocity of each body's origin; `cvel` is that of its point at the tree's centre of mass."""
        return data.cvel[:, 3:] + np.cross(data.cvel[:, :3], data.xpos - data.subtree_com[root])

    def in_body(vectors, data, frames=slice(None)):
        return np.einsum("bij,bi->bj", data.xmat.reshape(-1, 3, 3)[frames], vectors).ravel()

    in_root = lambda symmetry, i, j: symmetry.frames[root[i]]  # noqa: E731
    table: dict[str, tuple[Part, Callable[[mujoco.MjData], np.ndarray], Any]] = {
        "velocity": (
            Part("vector", "origin's velocity", "m/s"), lambda d: velocity(d).ravel(), bodies.frame),
        "own velocity": (
            Part("own vector", "own velocity", "m/s"), lambda d: in_body(velocity(d), d), bodies.frame),
        "own angular velocity": (
            Part("own axial", "own angular velocity", "rad/s"), lambda d: in_body(d.cvel[:, :3], d), bodies.frame),
        "place": (
            Part("own vector", "place in the root's frame", "m"), lambda d: in_body(d.xpos - d.xpos[root], d, root), in_root),
    }  # fmt: skip
    return [
        element_quantity(name, bodies.names, [(part,)] * model.nbody, read, bodies.images, frame, bodies.immobile)
        for name, (part, read, frame) in table.items()
    ]


# -- joints and actuators ---------------------------------------------------------------------------------------------

_POSITION_UNITS = {SLIDE: "m", HINGE: "rad"}


def _joint_quantities(model: mujoco.MjModel) -> list[Quantity]:
    controls = []  # (name, driven joint, unit) of the actuator of each control
    _, num = control_addresses(model)
    for i in np.repeat(np.arange(len(num)), num):
        j = int(model.actuator_trnid[i, 0])
        if model.actuator_trntype[i] in JOINT_TRANSMISSIONS:
            joint = joint_name(model, j)
            controls.append((joint, joint, "N" if model.jnt_type[j] == SLIDE else "N m"))
        else:
            controls.append((model.actuator(i).name or f"actuator {i}", "", ""))
    quantities = [_position_quantity(model), _angle_quantity(model)]
    quantities += [_dof_quantity(model, name, *label) for name, label in _DOF_ARRAYS.items()]
    arrays = (("ctrl", ""), ("actuator_force", "force"), ("actuator_velocity", "velocity"))
    for name, label in arrays if (num == 1).all() else arrays[:1]:
        entries = tuple(Entry(phrase(actuator, label), joint, unit) for actuator, joint, unit in controls)
        quantities.append(_linear_quantity(name, entries, "controls"))
    quantities.append(_linear_quantity("act", tuple(Entry(f"activation {i}") for i in range(model.na)), "activations"))
    return quantities


def _linear_quantity(name: str, entries: tuple[Entry, ...], matrix: str) -> Quantity:
    """An array of `mjData` on which one of a symmetry's matrices acts."""

    def act(symmetry: ModelSymmetry) -> Affine:
        return getattr(symmetry, matrix), np.zeros(len(entries))

    return Quantity(name, entries, lambda data: getattr(data, name), act)


def _position_quantity(model: mujoco.MjModel) -> Quantity:
    """`qpos`: P and c act on scalar joints; free joints are positions and orientations, ball joints relative orientations."""
    entries, quaternions = [], []
    for j in range(model.njnt):
        joint, body, kind = joint_name(model, j), _body_name(model, j), int(model.jnt_type[j])
        if kind in _POSITION_UNITS:
            entries.append(Entry(f"{joint} position", joint, _POSITION_UNITS[kind]))
            continue
        if kind == FREE:
            entries += [Entry(f"{body} {axis}", joint, "m") for axis in "xyz"]
        quaternions.append(len(entries))
        owner = body if kind == FREE else joint
        entries += [Entry(f"{owner} orientation {c}", joint, "1") for c in "wxyz"]
    encoding = Encoding(len(entries), quaternions=tuple(quaternions))
    places = [encoding.features_of(int(adr)) for adr in model.jnt_qposadr]
    scalar = [places[j][0] for j in scalar_joints(model)]

    def finite(symmetry: ModelSymmetry) -> Affine:
        A, a = np.zeros((encoding.feature_dim,) * 2), np.zeros(encoding.feature_dim)
        A[np.ix_(scalar, scalar)], a[scalar] = symmetry.joint_matrix, symmetry.joint_shift
        for j in np.flatnonzero(model.jnt_type <= BALL):
            body = model.jnt_bodyid[j]
            partner = symmetry.bodies[body]
            image = next(
                k for k in np.flatnonzero(model.jnt_type == model.jnt_type[j]) if model.jnt_bodyid[k] == partner
            )
            M = symmetry.frames[body]
            if model.jnt_type[j] == FREE:
                column, row = (encoding.features_of(int(model.jnt_qposadr[k]))[0] for k in (j, image))
                A[row : row + 3, column : column + 3], a[row : row + 3] = symmetry.rotation, symmetry.translation
                column, row, left = column + 3, row + 3, symmetry.rotation
            else:
                # X_b = X_p Q_b X_joint, and X_b and X_p transform by M of their bodies.
                rest = rotation_matrix(model.body_quat).reshape(-1, 3, 3)
                left = rest[partner].T @ symmetry.frames[model.body_parentid[body]] @ rest[body]
                column, row = places[j][0], places[image][0]
            A[row : row + 9, column : column + 9] = np.kron(left, M)
        return A, a

    return Quantity("qpos", tuple(entries), lambda data: data.qpos, derivable(finite), tuple(quaternions))


def _angle_quantity(model: mujoco.MjModel) -> Quantity:
    """Cosines, then sines, of the hinges' angles; q' = s q + c turns each pair (cos, s sin) by c."""
    scalar = scalar_joints(model)
    hinges = [i for i, j in enumerate(scalar) if model.jnt_type[j] == HINGE]
    names = [joint_name(model, scalar[i]) for i in hinges]
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


# Arrays of mjData with an entry per degree of freedom: label, and units for slides and hinges.
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


def _dof_quantity(model: mujoco.MjModel, name: str, label: str, units: tuple[str, str]) -> Quantity:
    """An array with an entry per degree of freedom. D acts on velocities, and on their dual forces as it is orthogonal."""
    entries = []
    for j in range(model.njnt):
        joint, body, kind = joint_name(model, j), _body_name(model, j), int(model.jnt_type[j])
        if kind == FREE:
            entries += [Entry(f"{body} {label} {axis}", joint, units[0]) for axis in "xyz"]
        if kind in (FREE, BALL):
            angular = label.replace("force", "torque") if "force" in label else f"angular {label}"
            entries += [Entry(f"{body if kind == FREE else joint} {angular} {axis}", joint, units[1]) for axis in "xyz"]
        if kind == SLIDE:
            entries.append(Entry(f"{joint} {label}", joint, units[0]))
        if kind == HINGE:
            entries.append(Entry(f"{joint} {label.replace('force', 'torque')}", joint, units[1]))
    return _linear_quantity(name, tuple(entries), "dofs")


def _body_name(model: mujoco.MjModel, joint: int) -> str:
    body = int(model.jnt_bodyid[joint])
    return model.body(body).name or f"body {body}"


# -- sensors -------------------------------------------------------------------------------------------------------------------


_ATTACHED_SENSORS = {
    SENSOR.TOUCH: Part("scalar", "", "N"),
    SENSOR.ACCELEROMETER: Part("own vector", "", "m/s^2"),
    SENSOR.VELOCIMETER: Part("own vector", "", "m/s"),
    SENSOR.GYRO: Part("own axial", "", "rad/s"),
    SENSOR.FORCE: Part("own vector", "", "N"),
    SENSOR.TORQUE: Part("own axial", "", "N m"),
    SENSOR.FRAMEPOS: Part("position", "", "m"),
    SENSOR.FRAMEQUAT: Part("quaternion", "", "1"),
    SENSOR.FRAMELINVEL: Part("vector", "", "m/s"),
    SENSOR.FRAMEANGVEL: Part("axial", "", "rad/s"),
    SENSOR.FRAMELINACC: Part("vector", "", "m/s^2"),
    SENSOR.FRAMEANGACC: Part("axial", "", "rad/s^2"),
    SENSOR.SUBTREECOM: Part("position", "", "m"),
    SENSOR.SUBTREELINVEL: Part("vector", "", "m/s"),
    SENSOR.SUBTREEANGMOM: Part("axial", "", "kg m^2/s"),
    SENSOR.E_POTENTIAL: Part("scalar", "", "J"),
    SENSOR.E_KINETIC: Part("scalar", "", "J"),
    SENSOR.CLOCK: Part("scalar", "", "s"),
}

# Sensors of joints and actuators: the matrix that acts on their readings, and whether joint shifts are added.
_JOINT_SENSORS = {
    SENSOR.JOINTPOS: ("joint_matrix", True),
    SENSOR.JOINTVEL: ("joint_matrix", False),
    SENSOR.JOINTACTFRC: ("joint_matrix", False),
    SENSOR.ACTUATORVEL: ("controls", False),
    SENSOR.ACTUATORFRC: ("controls", False),
}


def _attached_sensors(model: mujoco.MjModel, sensors: list[int]) -> Quantity:
    """Readings of sensors that are attached to bodies, geoms or sites, or to nothing."""
    kinds = {OBJECT.BODY: "body", OBJECT.XBODY: "body", OBJECT.GEOM: "geom", OBJECT.SITE: "site"}
    fixtures = {code: Fixtures(model, kind) for code, kind in kinds.items()}
    axes = rotation_matrix(model.body_iquat).reshape(-1, 3, 3)

    def key(i: int, object_id: int) -> tuple[int, ...]:
        return int(model.sensor_type[i]), int(model.sensor_objtype[i]), object_id

    def images(symmetry: ModelSymmetry) -> np.ndarray:
        carried = {kind: fixture.images(symmetry) for kind, fixture in fixtures.items()}
        number_of = {key(i, int(model.sensor_objid[i])): n for n, i in enumerate(sensors)}
        objects = (
            int(carried[kind][model.sensor_objid[i]]) if (kind := int(model.sensor_objtype[i])) in carried else -1
            for i in sensors
        )
        return np.array([number_of.get(key(i, k), -1) for i, k in zip(sensors, objects, strict=True)], dtype=int)

    def frame(symmetry: ModelSymmetry, a: int, b: int) -> np.ndarray:
        kind, i, j = int(model.sensor_objtype[sensors[a]]), *(int(model.sensor_objid[sensors[n]]) for n in (a, b))
        if kind not in fixtures:  # energies and the clock, which are scalars
            return np.eye(3)
        M = fixtures[kind].frame(symmetry, i, j)
        return axes[j].T @ M @ axes[i] if kind == OBJECT.BODY else M  # its inertial frame; XBODY is the body's own

    names = [model.sensor(i).name or f"sensor {i}" for i in sensors]
    parts = [(_ATTACHED_SENSORS[int(model.sensor_type[i])],) for i in sensors]
    places = _sensor_addresses(model, sensors)
    return element_quantity("sensordata", names, parts, lambda data: data.sensordata[places], images, frame)


def _joint_sensors(model: mujoco.MjModel, sensors: list[int]) -> Quantity:
    """Readings of sensors of joints and actuators; of an actuator with several controls the action is unknown."""
    scalar = scalar_joints(model)
    rules = [_JOINT_SENSORS[int(model.sensor_type[i])] for i in sensors]
    # Each sensor's row in the matrix of its rule: the number of its joint among scalar joints, or of its actuator's control.
    adr, num = control_addresses(model)
    objects = [int(model.sensor_objid[i]) for i in sensors]
    rows = [
        scalar.index(k) if rule[0] == "joint_matrix" else int(adr[k]) if num[k] == 1 else -1
        for k, rule in zip(objects, rules, strict=True)
    ]

    def act(symmetry: ModelSymmetry) -> Affine:
        n = len(sensors)
        A, a = np.zeros((n, n)), np.zeros(n)
        for i, (matrix, shifted) in enumerate(rules):
            row = getattr(symmetry, matrix)[rows[i]]
            same_type = [k for k in range(n) if model.sensor_type[sensors[k]] == model.sensor_type[sensors[i]]]
            measured = {rows[k]: k for k in same_type if rows[k] >= 0}
            if rows[i] >= 0 and set(np.flatnonzero(row)) <= set(measured):
                A[i, list(measured.values())] = row[list(measured)]
            else:
                A[i] = np.nan
            a[i] = symmetry.joint_shift[rows[i]] if shifted else 0.0
        return A, a

    entries = tuple(Entry(model.sensor(i).name or f"sensor {i}") for i in sensors)
    places = _sensor_addresses(model, sensors)
    return Quantity("sensordata of joints and actuators", entries, lambda data: data.sensordata[places], act)


def _sensor_addresses(model: mujoco.MjModel, sensors: Iterable[int]) -> np.ndarray:
    """Indices of these sensors' readings in `sensordata`."""
    spans = [np.arange(model.sensor_adr[i], model.sensor_adr[i] + model.sensor_dim[i]) for i in sensors]
    return np.concatenate([np.zeros(0, int), *spans])


# -- bodies, geoms and sites, and their images --------------------------------------------------------------------------------


PLACE_TOLERANCE = 1e-3  # largest distance of an image from its partner, as a share of the model's extent


class Fixtures:
    """All n bodies, geoms or sites of a model.

    Args:
        kind: "body", "geom" or "site".
    Attributes:
        names: name of each.
        bodies: index of the body to which each is fixed.
        places, axes: position, (n, 3), and axes, (n, 3, 3), in that body.
        types: elements of different types are no images of each other.
        immobile: indices of those that no joint moves.
        tolerance: largest distance of an image from its partner, in metres.
    """

    def __init__(self, model: mujoco.MjModel, kind: str):
        n = getattr(model, f"n{kind}")
        self.names = tuple(getattr(model, kind)(i).name or f"{kind} {i}" for i in range(n))
        if kind == "body":
            self.bodies, self.types = np.arange(n), np.zeros(n)
            self.places, self.axes = np.zeros((n, 3)), np.tile(np.eye(3), (n, 1, 1))
        else:
            self.bodies, self.places, self.types = (getattr(model, f"{kind}_{k}") for k in ("bodyid", "pos", "type"))
            self.axes = rotation_matrix(getattr(model, f"{kind}_quat")).reshape(-1, 3, 3)
        self.immobile = np.flatnonzero(model.body_weldid[self.bodies] == 0)
        self.tolerance = PLACE_TOLERANCE * model.stat.extent

    def images(self, symmetry: ModelSymmetry) -> np.ndarray:
        """Index of the element that each is carried to, -1 without one."""
        target = np.array(symmetry.bodies)[self.bodies]
        carried = np.einsum("nij,nj->ni", symmetry.frames[self.bodies], self.places)
        distance = np.linalg.norm(carried[:, None] - self.places[None], axis=-1)
        distance[target[:, None] != self.bodies[None]] = np.inf
        distance[self.types[:, None] != self.types[None]] = np.inf
        near = distance <= self.tolerance
        # The nearest element may be the same for two images; the assignment of least total distance is one to one.
        rows, columns = linear_sum_assignment(np.where(near, distance, 1e9))
        return np.where(near[rows, columns], columns, -1)

    def frame(self, symmetry: ModelSymmetry, i: int, j: int) -> np.ndarray:
        """The map from the axes of element i to those of its image j: Q_j^T M_b Q_i."""
        return self.axes[j].T @ symmetry.frames[self.bodies[i]] @ self.axes[i]


def subtrees(model: mujoco.MjModel, bodies: Fixtures) -> tuple[np.ndarray, Callable[[ModelSymmetry], np.ndarray]]:
    """(bodies whose subtrees don't move, function from a symmetry to the image of each subtree, -1 without one).

    A subtree has no image if its immobile masses differ from its partner's, for its centre of mass is then not carried to the
    partner's.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    moving = model.body_weldid != 0
    masses = np.where(moving, 0.0, model.body_mass)  # mass of each subtree that no joint moves, in kg
    moments = masses[:, None] * data.xipos
    for b in range(model.nbody - 1, 0, -1):
        parent = model.body_parentid[b]
        masses[parent] += masses[b]
        moments[parent] += moments[b]
        moving[parent] |= moving[b]
    centres = moments / np.where(masses > 0, masses, 1.0)[:, None]  # in the world

    def images(symmetry: ModelSymmetry) -> np.ndarray:
        images = bodies.images(symmetry)
        carried = centres @ symmetry.rotation.T + symmetry.translation
        near = np.linalg.norm(carried - centres[images], axis=1) <= bodies.tolerance
        return np.where(np.isclose(masses, masses[images]) & (near | (masses == 0)), images, -1)

    return np.flatnonzero(~moving), images
