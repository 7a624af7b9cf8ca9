r"""Terms of an observation: each shows numbers of a quantity of the robot, with a label, scale, offset and history.

A symmetry acts on a quantity's numbers by v' = A v + a. An entry of an observation is x = (v - offset) scale, so that

.. math:: x'_i = s_i \sum_j A_{ij} (x_j / s_j + o_j) + s_i (a_i - o_i).

Images are looked for in all terms that show the same quantity: left joints may be in one term and right ones in another. A term
of your own is a subclass of `Term` with a `kind`, its options as annotated attributes, and `bind`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

import numpy as np
from pydantic import BeforeValidator, Field, Strict
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from rppdyn.envs._model_symmetry import (
    Affine,
    ModelSymmetry,
    Part,
    Quantity,
    control_addresses,
    derivable,
    element_quantity,
    lift,
)
from rppdyn.envs._spec import Entry, quaternion, rotation_matrix
from rppdyn.envs.terms._robot import ModelElement, Robot, Scene, did_you_mean
from rppdyn.runs.files import plain
from rppdyn.settings import ConfigError, Count, Nonnegative, Number, Positive, Text, fields_of, format_value, settings

MAX_HISTORY = 1000  # steps
MAX_GRID_POINTS = 10_000
DIRECTION_TOLERANCE = 1e-6  # difference of directions, or of phases in periods, that count as equal
GRID_TOLERANCE = 1e-6  # distance of grid points that count as equal, as a share of the grid's size

ShownNumbers = tuple[Quantity, Sequence[int]]
"""(quantity, indices of its numbers that a term shows, in order)."""

TERMS: dict[str, type[Term]] = {}
"""All kinds of terms by name."""


_from_array = BeforeValidator(lambda value: value.tolist() if isinstance(value, np.ndarray) else value)
Flag = Annotated[bool, Strict()]
Names = tuple[Text, ...]
Numbers = Annotated[tuple[Number, ...], _from_array]
Pair = Annotated[tuple[Number, Number], _from_array]
Factors = Number | Numbers | dict[str, Number]
"""One number, one per entry, or numbers by regular expression of joints' or entries' names."""


@dataclass_transform(kw_only_default=True)
@settings
class Term(ABC):
    """One block of an observation: x = (v - offset) scale of a quantity's numbers v.

    Args:
        label: name of the term; by default its kind. Terms of one kind with different labels are different terms.
        scale: factors; 1 for entries that no regular expression matches.
        offset: offsets; 0 for entries that no regular expression matches.
        history: number of time steps that are stacked, the oldest first.
    """

    kind: ClassVar[str] = ""
    shows_goal: ClassVar[bool] = False  # whether it reads `Scene.goal`

    label: Text = ""
    scale: Factors = 1.0
    offset: Factors = 0.0
    history: Annotated[Count, Field(le=MAX_HISTORY)] = 1

    def __init_subclass__(cls, kind: str = "") -> None:
        settings(cls)
        if kind:
            cls.kind, TERMS[kind] = kind, cls

    @property
    def title(self) -> str:
        """Label or kind, for messages."""
        return self.label or self.kind

    @abstractmethod
    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        """The quantity of a robot that the term shows, and the indices of the numbers shown, in order.

        Raises:
            ValueError: the robot lacks an element that the term names.
        """

    def places(self, option: str, known: Sequence[str]) -> list[int]:
        """Indices, among the known values, of those that an option lists; none of them twice."""
        value = getattr(self, option)
        if not value or not set(value) <= set(known) or len(set(value)) < len(value):
            listed = f"{', '.join(known[:-1])} and {known[-1]}"
            raise ValueError(f"{self.title}: {option}={format_value(value)} must be some of {listed}")
        return [known.index(item) for item in value]


def parse_term(content: Term | str | Mapping[str, Any]) -> Term:
    """Make a term from its name, or from a mapping with the name as `term` and its options.

    Raises:
        ValueError: an unknown term or option, or a missing one.
    """
    if isinstance(content, Term):
        return content
    if isinstance(content, str):
        content = {"term": content}
    if not isinstance(content, Mapping) or not isinstance(content.get("term"), str):
        raise ValueError(f"observation term {content!r}: give its name, or a mapping with the name as `term`")
    options = {str(key): value for key, value in content.items() if key != "term"}
    name = content["term"]
    if name not in TERMS:
        raise ValueError(f"unknown observation term {name!r}{did_you_mean(name, list(TERMS))}")
    known = fields_of(TERMS[name])
    if unknown := [key for key in options if key not in known]:
        raise ValueError(f"term {name} has no option {unknown[0]!r}{did_you_mean(unknown[0], list(known))}")
    try:
        return TERMS[name](**options)
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from error


def describe_term(term: Term) -> dict[str, Any]:
    """The name of a term and its options that differ from their defaults, as `parse_term` takes them.

    Raises:
        TypeError: an option of a user's term is no plain data.
    """
    known = fields_of(type(term)).items()
    options = {
        key: getattr(term, key) for key, item in known if item.is_required() or getattr(term, key) != item.default
    }
    return {"term": term.kind} | {key: plain(value) for key, value in options.items()}


# -- joints and actions ------------------------------------------------------------------------------------------------


class JointTerm(Term):
    """Numbers of slides and hinges, one for each.

    Args:
        joints: names or regular expressions, in order; None for all, in the model's order.
    """

    measure: ClassVar[str]
    is_shifted: ClassVar[bool] = False

    joints: Names | None = None

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        entries = tuple(Entry(f"{joint} {self.measure}", joint) for joint in robot.joints)

        def act(symmetry: ModelSymmetry) -> Affine:
            return symmetry.joint_matrix, symmetry.joint_shift if self.is_shifted else np.zeros(len(entries))

        return Quantity(self.measure, entries, self.read, act), robot.choose_joints(self.joints)

    @abstractmethod
    def read(self, scene: Scene) -> np.ndarray: ...


class JointPositions(JointTerm, kind="joint_positions"):
    """Positions of slides and hinges.

    Args:
        relative: subtract the default pose.
    """

    measure, is_shifted = "position", True

    relative: Flag = True

    def read(self, scene: Scene) -> np.ndarray:
        return scene.data.qpos[scene.robot.places]


class JointVelocities(JointTerm, kind="joint_velocities"):
    """Velocities of slides and hinges."""

    measure = "velocity"

    def read(self, scene: Scene) -> np.ndarray:
        return scene.data.qvel[scene.robot.dofs]


class JointTorques(JointTerm, kind="joint_torques"):
    """Torques that actuators and applied forces exert on slides and hinges."""

    measure = "torque"

    def read(self, scene: Scene) -> np.ndarray:
        return (scene.data.qfrc_actuator + scene.data.qfrc_applied)[scene.robot.dofs]


class Controls(Term, kind="controls"):
    """The model's controls, in its order; for actions."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        model = robot.model
        _, num = control_addresses(model)
        owners = np.repeat(np.arange(len(num)), num)  # actuator of each control
        entries = tuple(Entry(model.actuator(i).name or f"actuator {i}") for i in owners)
        act = lambda symmetry: (symmetry.controls, np.zeros(model.nu))  # noqa: E731
        return Quantity("controls", entries, lambda scene: scene.data.ctrl.copy(), act), range(model.nu)


class LastAction(Term, kind="last_action"):
    """The policy's action of the previous step."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        raise AssertionError("the observation's layout binds it to the action")


# -- vectors of the base and its orientation ---------------------------------------------------------------------------


def frame_map(robot: Robot, symmetry: ModelSymmetry, element: ModelElement, title: str) -> np.ndarray:
    """The map M of an element's own axes, (3, 3).

    Raises:
        ValueError: the element is not its own image.
    """
    image = robot.image(symmetry, element)
    if image.number != element.number:
        raise ValueError(
            f"{title}: {symmetry.name} carries what it is measured at to "
            f"{'another place' if image.number >= 0 else 'nothing in the model'}; use a body or site in the mirror's plane"
        )
    return robot.frame(symmetry, element, element)


def image_indices(
    robot: Robot, symmetry: ModelSymmetry, elements: Sequence[ModelElement], title: str, option: str
) -> list[int]:
    """The index of each element's image among the elements.

    Raises:
        ValueError: an image is none of them.
    """
    images = [robot.image(symmetry, element) for element in elements]
    for element, image in zip(elements, images, strict=True):
        if image not in elements:
            target = robot.name_of(image) if image.number >= 0 else "nothing in the model"
            raise ValueError(
                f"{title}: {symmetry.name} carries {robot.name_of(element)!r} to {target!r}; add it to {option}"
            )
    return [elements.index(image) for image in images]


HEADING_REMEDY = "a heading is that of the base's first axis alone: give frame: body, or leave out the symmetry"


class _BaseVector(Term):
    """A vector, or a pseudovector ("axial").

    Args:
        frame: axes of the components: the base's ("body"), the base's turned level ("yaw"), or the world's ("world").
        axes: components, in order.
        at: body or site where it is measured; by default the base.
    """

    parity: ClassVar[str] = "vector"
    unit: ClassVar[str] = ""

    frame: Literal["body", "yaw", "world"] = "body"
    axes: Text | Names = "xyz"
    at: Text = ""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        element = robot.find_element(self.at, ("body", "site")) if self.at else ModelElement("body", robot.body)

        def finite(symmetry: ModelSymmetry) -> Affine:
            M = frame_map(robot, symmetry, element, self.title)
            if self.frame == "yaw":  # of a tilted base, the azimuth of the first axis says nothing of the others'
                if abs(M[0, 0] ** 2 * symmetry.rotation[2, 2] - 1) > DIRECTION_TOLERANCE:
                    return np.full((3, 3), np.nan), np.zeros(3)
                M = np.diag([M[0, 0], M[0, 0] * np.linalg.det(symmetry.rotation), 1.0])
            kind = self.parity if self.frame == "world" else f"own {self.parity}"
            return lift(kind, symmetry.rotation, M), np.zeros(3)

        def read(scene: Scene) -> np.ndarray:
            axes = {"world": lambda _: np.eye(3), "yaw": scene.heading, "body": lambda t: scene.pose_of(t)[1]}
            return axes[self.frame](element).T @ self.world(scene, element)

        entries = tuple(Entry(f"{self.title} {axis}", "", self.unit) for axis in "xyz")
        # Vectors of the task are identified by their label, others by their kind.
        name = self.title if isinstance(self, Vector) else self.kind
        quantity = Quantity((name, self.frame, element), entries, read, derivable(finite), why=HEADING_REMEDY)
        return quantity, self.places("axes", "xyz")

    @abstractmethod
    def world(self, scene: Scene, element: ModelElement) -> np.ndarray:
        """The vector in the world's axes."""


class BaseLinearVelocity(_BaseVector, kind="base_linear_velocity"):
    """The base's linear velocity in m/s."""

    unit = "m/s"

    def world(self, scene: Scene, element: ModelElement) -> np.ndarray:
        return scene.velocity_of(element)[0]


class BaseAngularVelocity(_BaseVector, kind="base_angular_velocity"):
    """The base's angular velocity in rad/s."""

    parity, unit = "axial", "rad/s"

    def world(self, scene: Scene, element: ModelElement) -> np.ndarray:
        return scene.velocity_of(element)[1]


class ProjectedGravity(_BaseVector, kind="projected_gravity"):
    """The direction of gravity, a unit vector in the base's axes."""

    unit = "1"

    def world(self, scene: Scene, element: ModelElement) -> np.ndarray:
        gravity = scene.robot.model.opt.gravity
        return gravity / np.linalg.norm(gravity) if gravity.any() else np.array([0.0, 0.0, -1.0])


class Vector(_BaseVector, kind="vector"):
    """A vector of the task, in `Scene.given` under the term's label, in the world's axes."""

    def world(self, scene: Scene, element: ModelElement) -> np.ndarray:
        return np.asarray(scene.given[self.title])


class Pseudovector(Vector, kind="pseudovector"):
    """A pseudovector of the task: an angular velocity, a torque, an axis of rotation."""

    parity = "axial"


class BaseHeight(Term, kind="base_height"):
    """The base's height in the world, in m."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        element = ModelElement("body", robot.body)

        def act(s: ModelSymmetry) -> Affine:
            gaps = s.rotation[2, 2] - (not s.is_continuous), s.translation[2]
            level = np.abs(gaps).max() < DIRECTION_TOLERANCE
            return np.full((1, 1), 0.0 if s.is_continuous else 1.0 if level else np.nan), np.zeros(1)

        return Quantity("height", (Entry(self.title, "", "m"),), lambda scene: scene.pose_of(element)[0][2:], act), [0]


class EulerAngles(Term, kind="euler_angles"):
    """Roll, pitch and yaw of the base in rad: X = Rz(yaw) Ry(pitch) Rx(roll).

    Args:
        angles: names of the angles, in order.
    """

    angles: Names = ("roll", "pitch", "yaw")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        names, element = ("roll", "pitch", "yaw"), ModelElement("body", robot.body)
        act = lambda symmetry: _signs_of_angles(symmetry, frame_map(robot, symmetry, element, self.title))  # noqa: E731
        entries = tuple(Entry(f"{self.title} {name}", "", "rad") for name in names)
        read = lambda scene: euler_angles(scene.pose_of(element)[1])  # noqa: E731
        why = "observe projected_gravity, or a quaternion, which transform under every group"
        return Quantity("Euler angles", entries, read, act, why=why), self.places("angles", names)


def euler_angles(matrix: np.ndarray) -> np.ndarray:
    """Roll, pitch and yaw (..., 3) of rotation matrices (..., 3, 3)."""
    X = matrix
    roll, yaw = np.arctan2(X[..., 2, 1], X[..., 2, 2]), np.arctan2(X[..., 1, 0], X[..., 0, 0])
    return np.stack([roll, np.arcsin(np.clip(-X[..., 2, 0], -1.0, 1.0)), yaw], -1)


def _signs_of_angles(symmetry: ModelSymmetry, M: np.ndarray) -> Affine:
    """The action of a symmetry on Euler angles, found from random ones: a sign for each, or NaN."""
    R = symmetry.rotation
    if symmetry.is_continuous:
        if M.any() or np.abs(R - R[1, 0] * np.array([[0, -1, 0], [1, 0, 0], [0, 0, 0]])).max():
            return np.full((3, 3), np.nan), np.zeros(3)
        return np.diag([0.0, 0.0, np.nan if R.any() else 0.0]), np.zeros(3)
    before = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 3)) * [3.0, 1.4, 3.0]
    X = Rotation.from_euler("ZYX", before[:, ::-1]).as_matrix()
    after, A = euler_angles(R @ X @ M.T), np.zeros((3, 3))
    for i in range(3):
        gaps = {s: np.abs(np.angle(np.exp(1j * (after[:, i] - s * before[:, i])))).max() for s in (1.0, -1.0)}
        A[i, i] = next((s for s, gap in gaps.items() if gap < DIRECTION_TOLERANCE), np.nan)
    return A, np.zeros(3)


class Quaternion(Term, kind="quaternion"):
    """The base's orientation as a unit quaternion.

    Args:
        order: "wxyz", as in MuJoCo and Isaac Lab, or "xyzw", as in Isaac Gym.
    """

    order: Literal["wxyz", "xyzw"] = "wxyz"

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        element = ModelElement("body", robot.body)
        maps = [(s, frame_map(robot, s, element, self.title)) for s in symmetries]
        is_linear = all(not s.is_continuous and np.abs(s.rotation - M).max() < DIRECTION_TOLERANCE for s, M in maps)
        entries = tuple(Entry(f"{self.title} {c}", "", "1") for c in "wxyz")

        read = lambda scene: quaternion(scene.pose_of(element)[1].ravel())  # noqa: E731

        def conjugate(symmetry: ModelSymmetry) -> Affine:
            """q goes to q_R q q_R^-1, with q_R the quaternion of det(R) R."""
            A = np.eye(4)
            A[1:, 1:] = np.sign(np.linalg.det(symmetry.rotation)) * symmetry.rotation
            return A, np.zeros(4)

        def matrices(symmetry: ModelSymmetry) -> Affine:
            return np.kron(symmetry.rotation, frame_map(robot, symmetry, element, self.title)), np.zeros(9)

        if is_linear:
            return Quantity("quaternion", entries, read, conjugate), ["wxyz".index(c) for c in self.order]
        if self.order != "wxyz" or np.any(np.asarray(self.scale) != 1.0) or np.any(np.asarray(self.offset) != 0.0):
            raise ValueError(
                f"{self.title}: {', '.join(s.name for s in symmetries)} act on its rotation matrix only; "
                "give it in the order wxyz, without scale and offset"
            )
        return Quantity("quaternion", entries, read, derivable(matrices), quaternions=(0,)), range(9)


_COMMANDS: Mapping[str, tuple[str, int]] = {
    "forward": ("vector", 0), "lateral": ("vector", 1), "vertical": ("vector", 2),
    "roll": ("axial", 0), "pitch": ("axial", 1), "yaw": ("axial", 2),
    "height": ("scalar", 0), "scalar": ("scalar", 0),
}  # fmt: skip


class Commands(Term, kind="commands"):
    """Commands of the task, in the base's axes.

    Args:
        entries: meaning of each: "forward", "lateral", "vertical" (along x, y, z), "roll", "pitch", "yaw" (rate or angle about
            x, y, z), "height" or "scalar" (invariant).
    """

    shows_goal = True

    entries: Names = ("forward", "lateral", "yaw")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        for entry in self.entries:
            if entry not in _COMMANDS:
                raise ValueError(f"{self.title}: unknown entry {entry!r}; use {', '.join(_COMMANDS)}")
        element, n = ModelElement("body", robot.body), len(self.entries)
        meanings = [_COMMANDS[entry] for entry in self.entries]
        number = [meanings[:i].count(m) for i, m in enumerate(meanings)]  # k for the k-th command of one meaning

        def finite(symmetry: ModelSymmetry) -> Affine:
            M = frame_map(robot, symmetry, element, self.title)
            lifts = {"vector": M, "axial": lift("own axial", M, M)}
            A = np.zeros((n, n))
            for i, (kind, axis) in enumerate(meanings):
                if kind == "scalar":
                    A[i, i] = 1.0
                    continue
                for column in np.flatnonzero(np.abs(lifts[kind][axis]) > DIRECTION_TOLERANCE):
                    source = [j for j in range(n) if (*meanings[j], number[j]) == (kind, column, number[i])]
                    A[i, source or slice(None)] = lifts[kind][axis, column] if source else np.nan
            return A, np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            goal = scene.reference
            (place, axes), (v, w) = goal.pose_of(element), goal.velocity_of(element)
            values = {"vector": axes.T @ v, "axial": axes.T @ w, "scalar": place[2:]}
            return np.array([values[kind][axis] * (1 + k) for (kind, axis), k in zip(meanings, number, strict=True)])

        entries = tuple(Entry(f"{self.title} {entry}") for entry in self.entries)
        why = "the symmetry mixes it with another entry: add that to entries"
        return Quantity(("commands", self.title), entries, read, derivable(finite), why=why), range(n)


class Scalars(Term, kind="scalars"):
    """Numbers that no symmetry changes: mass, friction, a terrain's level.

    Args:
        size: number of entries.
    """

    size: Count = 1

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        n = self.size
        entries = tuple(Entry(f"{self.title} {i}" if n > 1 else self.title) for i in range(n))
        act = lambda symmetry: (np.eye(n) * (not symmetry.is_continuous), np.zeros(n))  # noqa: E731
        read = lambda scene: np.asarray(scene.given[self.title]).ravel()  # noqa: E731
        return Quantity(("scalars", self.title), entries, read, act), range(n)


# -- feet and the clocks of a gait -------------------------------------------------------------------------------------


class _Feet(Term):
    """Numbers of feet.

    Args:
        feet: names of bodies, sites or geoms, in order.
    """

    feet: Names

    def elements(self, robot: Robot) -> list[ModelElement]:
        if not self.feet or len(set(self.feet)) < len(self.feet):
            raise ValueError(f"{self.title}: feet={format_value(self.feet)} must be some names, none of them twice")
        return [robot.find_element(foot) for foot in self.feet]

    def images(self, robot: Robot, symmetry: ModelSymmetry) -> list[int]:
        """The index of each foot's image."""
        return image_indices(robot, symmetry, self.elements(robot), self.title, "feet")

    def per_foot(
        self, robot: Robot, key: Hashable, parts: Sequence[Part], read: Callable[[Scene, ModelElement], Any],
        frame: str = "body",
    ) -> ShownNumbers:  # fmt: skip
        """A quantity with the same parts for each foot; own vectors are in the axes of the base ("body") or foot."""
        elements, base = self.elements(robot), ModelElement("body", robot.body)
        is_own = any(part.kind.startswith("own") for part in parts)

        def axes(symmetry: ModelSymmetry, i: int, j: int) -> np.ndarray:
            if frame == "foot":
                return robot.frame(symmetry, elements[i], elements[j])
            return frame_map(robot, symmetry, base, self.title) if is_own else np.eye(3)

        def read_all(scene: Scene) -> np.ndarray:
            return np.concatenate([np.atleast_1d(read(scene, element)) for element in elements])

        images = lambda symmetry: np.array(self.images(robot, symmetry))  # noqa: E731
        identity, each = (key, frame, tuple(elements)), [parts] * len(elements)
        quantity = element_quantity(identity, self.feet, each, read_all, images, axes)
        return quantity, range(len(quantity.entries))


class FootContacts(_Feet, kind="foot_contacts"):
    """Contacts of feet: 1 where the contact force exceeds the threshold, else 0.

    Args:
        threshold: in N.
    """

    threshold: Number = 1.0

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        read = lambda scene, foot: float(np.linalg.norm(scene.contact_force(foot)) > self.threshold)  # noqa: E731
        return self.per_foot(robot, "contact", [Part("scalar", self.kind, "1")], read)


class FootForces(_Feet, kind="foot_forces"):
    """The contact force on each foot, in N.

    Args:
        frame: "world", "body" (the base's axes) or "foot" (each foot's own).
        norm: whether only its magnitude is observed.
    """

    frame: Literal["world", "body", "foot"] = "world"
    norm: Flag = False

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        base = ModelElement("body", robot.body)

        def read(scene: Scene, foot: ModelElement) -> np.ndarray:
            element = {"body": base, "foot": foot}.get(self.frame)
            axes = np.eye(3) if element is None else scene.pose_of(element)[1]
            return axes.T @ scene.contact_force(foot)

        if self.norm:
            size = lambda scene, foot: np.linalg.norm(scene.contact_force(foot))  # noqa: E731
            return self.per_foot(robot, "force's size", [Part("scalar", self.kind, "N")], size)
        kind = "vector" if self.frame == "world" else "own vector"
        return self.per_foot(robot, "force", [Part(kind, self.kind, "N")], read, self.frame)


class FootPositions(_Feet, kind="foot_positions"):
    """Position of each foot from the base, in m, in the base's axes."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        def read(scene: Scene, foot: ModelElement) -> np.ndarray:
            place, axes = scene.pose_of(ModelElement("body", robot.body))
            return axes.T @ (scene.pose_of(foot)[0] - place)

        return self.per_foot(robot, "foot's place", [Part("own vector", self.kind, "m")], read)


_WAVES: Mapping[str, Callable[[float], float]] = {
    "sin": lambda t: np.sin(2 * np.pi * t),
    "cos": lambda t: np.cos(2 * np.pi * t),
    "phase": lambda t: t % 1.0,
}


Waves = Annotated[tuple[Literal["sin", "cos", "phase"], ...], Field(min_length=1)]


class FootClocks(_Feet, kind="foot_clocks"):
    """A periodic function of each foot's phase.

    Args:
        offsets: phase of each foot minus the gait's clock, in periods; None if feet don't follow a clock.
        functions: functions of each foot's phase, in order: "sin", "cos" or "phase" (from 0 to 1).
    """

    offsets: Numbers | None = None
    functions: Waves = ("sin",)

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        functions = self.functions
        if self.offsets is not None:
            for symmetry in symmetries:
                clock_shift(self.offsets, self.images(robot, symmetry), symmetry, self.title)
        offsets = dict(zip(self.elements(robot), self.offsets or (), strict=False))
        names = dict(zip(self.elements(robot), self.feet, strict=True))

        def read(scene: Scene, foot: ModelElement) -> np.ndarray:
            phase = scene.phase + offsets[foot] if foot in offsets else scene.feet[names[foot]]
            return np.array([_WAVES[function](phase) for function in functions])

        parts = [Part("scalar", f"{self.kind} {function}", "") for function in functions]
        return self.per_foot(robot, ("clock", functions, self.offsets), parts, read)


class GaitPhase(_Feet, kind="gait_phase"):
    """Sine and cosine of the gait's clock, relative to which each foot has an offset.

    Args:
        offsets: phase of each foot minus the clock, in periods.
        functions: "sin", "cos" and "phase" (from 0 to 1; shifts don't act on it linearly), in order.
    """

    offsets: Numbers
    functions: Waves = ("sin", "cos")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        names = tuple(_WAVES)

        def act(symmetry: ModelSymmetry) -> Affine:
            shift = clock_shift(self.offsets, self.images(robot, symmetry), symmetry, self.title)
            unit = 0.0 if symmetry.is_continuous else 1.0
            c, s = (np.round(wave(2 * np.pi * shift), 12) * unit for wave in (np.cos, np.sin))
            return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, unit if shift == 0 else np.nan]]) + 0.0, np.zeros(3)

        entries = tuple(Entry(f"{self.title} {name}", "", "1") for name in names)
        read = lambda scene: np.array([wave(scene.phase) for wave in _WAVES.values()])  # noqa: E731
        why = "observe its sine and cosine: a shift acts on these linearly"
        quantity = Quantity(("phase", self.feet, self.offsets), entries, read, act, why=why)
        return quantity, [names.index(function) for function in self.functions]


def clock_shift(offsets: Sequence[float], images: Sequence[int], symmetry: ModelSymmetry, title: str) -> float:
    """The shift s of the clock under which the gait is its own image: s + offset[image] = offset.

    Raises:
        ValueError: there is no such shift, or not one offset per foot.
    """
    if len(offsets) != len(images):
        raise ValueError(f"{title}: {len(offsets)} offsets for {len(images)} feet; give one per foot")
    shifts = np.array([offsets[i] - offsets[j] for i, j in enumerate(images)])
    gaps = np.abs((shifts - shifts[0] + 0.5) % 1.0 - 0.5)
    if gaps.max() > DIRECTION_TOLERANCE:
        raise ValueError(
            f"{title}: {symmetry.name} makes another gait of the offsets {', '.join(f'{o:g}' for o in offsets)}, which no "
            "shift of the clock undoes; choose a gait that it keeps, or leave out the symmetry"
        )
    shift = float(shifts[0] % 1.0)
    return 0.0 if min(shift, 1 - shift) < DIRECTION_TOLERANCE else shift


# -- grids: height scans and images ------------------------------------------------------------------------------------


def _permutation(points: np.ndarray, M: np.ndarray, title: str, symmetry: ModelSymmetry, unit: str) -> np.ndarray:
    """The permutation matrix by which M, (2, 2), acts on points (n, 2); a message calls a point `unit`."""
    images = points @ M.T
    distance, nearest = cKDTree(points).query(images)
    size = max(float(np.ptp(points, axis=0).max()), 1e-9)
    if (far := distance > GRID_TOLERANCE * size).any() or len(set(nearest)) < len(points):
        i = int(np.flatnonzero(far)[0]) if far.any() else 0
        place, image = (", ".join(f"{x:g}" for x in point + 0.0) for point in (points[i], images[i]))
        raise ValueError(
            f"{title}: {symmetry.name} carries its {unit} ({place}) to ({image}), where there is none; make the grid "
            "symmetric about that axis, or leave out the symmetry"
        )
    A = np.zeros((len(points),) * 2)
    A[nearest, np.arange(len(points))] = 1.0
    return A


def _grid_generator(M: np.ndarray, n: int) -> Affine:
    """Generator of a continuous symmetry on n grid points: zero, or NaN if it turns the grid."""
    return np.full((n, n), np.nan if M.any() else 0.0), np.zeros(n)


def _require_coarse(counts: Sequence[int], unit: str, remedy: str) -> None:
    if math.prod(counts) > MAX_GRID_POINTS:
        raise ValueError(
            f"a grid of {' times '.join(map(str, counts))} {unit} is too fine, at most {MAX_GRID_POINTS}; give {remedy}"
        )


def grid_points(size: Sequence[float], resolution: float, ordering: str, centre: Sequence[float]) -> np.ndarray:
    """Points (n, 2) of a grid; x varies fastest in the ordering "xy", y in "yx"."""
    counts = [round(length / resolution) + 1 for length in size]
    _require_coarse(counts, "points", "another resolution")
    x, y = (np.linspace(-length / 2, length / 2, n) + c for length, n, c in zip(size, counts, centre, strict=True))
    X, Y = np.meshgrid(x, y, indexing="xy" if ordering == "xy" else "ij")
    return np.stack([X.ravel(), Y.ravel()], 1)


class HeightScan(Term, kind="height_scan"):
    """Height of the base above the ground at points of a grid about the base.

    Args:
        size: lengths along x and y in m.
        resolution: distance between neighbours in m.
        ordering: "xy" if x varies fastest, as in Isaac Lab, or "yx".
        centre: centre of the grid, in the base's frame.
        points: points (x, y) in order, instead of a grid.
        frame: "yaw" for the base's axes turned level, or "body" for the base's axes.
    """

    size: Annotated[tuple[Nonnegative, Nonnegative], _from_array] = (1.6, 1.0)
    resolution: Positive = 0.1
    ordering: Literal["xy", "yx"] = "xy"
    centre: Pair = (0.0, 0.0)
    points: Annotated[tuple[Pair, ...], _from_array, Field(min_length=1)] | None = None
    frame: Literal["yaw", "body"] = "yaw"

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        grid = self.size, self.resolution, self.ordering, self.centre
        points = grid_points(*grid) if self.points is None else np.array(self.points, dtype=np.float64)
        element, n = ModelElement("body", robot.body), len(points)

        def act(symmetry: ModelSymmetry) -> Affine:
            M = frame_map(robot, symmetry, element, self.title)
            if symmetry.is_continuous:
                return _grid_generator(M, n)
            if abs(M[2, 2] - 1) > DIRECTION_TOLERANCE or (
                self.frame == "yaw" and abs(abs(M[0, 0]) - 1) > DIRECTION_TOLERANCE
            ):
                return np.full((n, n), np.nan), np.zeros(n)
            return _permutation(points, M[:2, :2], self.title, symmetry, "point"), np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            place, axes = scene.pose_of(element)
            axes = axes if self.frame == "body" else scene.heading(element)
            where = place[:2] + points @ axes[:2, :2].T
            return place[2] - (np.zeros(n) if scene.terrain is None else scene.terrain(where))

        entries = tuple(Entry(f"{self.title} ({x:.3g}, {y:.3g})", "", "m") for x, y in points)
        return Quantity(("height scan", self.frame, points.tobytes()), entries, read, act, why=HEADING_REMEDY), range(n)


class Image(Term, kind="image"):
    """A picture of a camera, flattened.

    Args:
        shape: height, width and, if there are several, channels.
        camera: name of the camera in the model; by default one at the base that looks forwards.
        layout: "hwc" or "chw".
        field_of_view: vertical angle in degrees, used for the depth picture of a `Scene` only.
    """

    FORWARD: ClassVar[np.ndarray] = np.array([[0.0, 0.0, -1.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    shape: Annotated[tuple[Count, ...], Field(min_length=2, max_length=3)]
    camera: Text = ""
    layout: Literal["hwc", "chw"] = "hwc"
    field_of_view: Positive = 60.0

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        height, width, channels = (*self.shape, 1)[:3]
        _require_coarse((height, width), "pixels", "a smaller shape")
        model, element = robot.model, ModelElement("body", robot.body)
        place, turn = np.zeros(3), self.FORWARD
        if self.camera:
            camera = robot.find_element(self.camera, ("camera",)).number
            element = ModelElement("body", int(model.cam_bodyid[camera]))
            place, turn = model.cam_pos[camera].copy(), rotation_matrix(model.cam_quat[camera]).reshape(3, 3)
        x, y = np.arange(width) - (width - 1) / 2, (height - 1) / 2 - np.arange(height)
        pixels = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
        n = len(pixels) * channels

        def act(symmetry: ModelSymmetry) -> Affine:
            M = frame_map(robot, symmetry, element, self.title)
            if symmetry.is_continuous:
                return _grid_generator(M, n)
            F, tolerance = turn.T @ M @ turn, DIRECTION_TOLERANCE + 1e-3 * np.abs(place).max()
            if np.abs(M @ place - place).max() > tolerance or abs(F[2, 2] - 1) > DIRECTION_TOLERANCE:
                return np.full((n, n), np.nan), np.zeros(n)
            A, identity = _permutation(pixels, F[:2, :2], self.title, symmetry, "pixel"), np.eye(channels)
            return np.kron(A, identity) if self.layout == "hwc" else np.kron(identity, A), np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            """Distance to the ground along each pixel's ray, equal in all channels."""
            position, axes = scene.pose_of(element)
            position, axes = position + axes @ place, axes @ turn
            scale = 2 * np.tan(np.radians(self.field_of_view) / 2) / height
            rays = np.column_stack([pixels * scale, -np.ones(len(pixels))])
            rays = rays / np.linalg.norm(rays, axis=1, keepdims=True) @ axes.T
            depth = _distances_to_ground(scene, position, rays)
            return np.repeat(depth, channels) if self.layout == "hwc" else np.tile(depth, channels)

        names = [f"({r}, {c})" for r in range(height) for c in range(width)]
        order = [(n, k) for n in names for k in range(channels)]
        order = order if self.layout == "hwc" else [(n, k) for k in range(channels) for n in names]
        entries = tuple(Entry(f"{self.title} {n}" + (f" channel {k}" if channels > 1 else "")) for n, k in order)
        why = "the symmetry carries the camera elsewhere: leave out one of them"
        return Quantity(("image", self.title), entries, read, act, why=why), range(n)


def _distances_to_ground(scene: Scene, position: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Distances along rays (n, 3) to the ground, up to 4 m, interpolated between samples."""
    distances = np.linspace(0.0, 4.0, 101)
    points = position + distances[:, None, None] * rays
    ground = np.zeros(points.shape[:2])
    if scene.terrain is not None:
        ground = scene.terrain(points[..., :2].reshape(-1, 2)).reshape(points.shape[:2])
    above = points[..., 2] - ground
    below = above < 0
    k = np.where(below.any(0), below.argmax(0), len(distances))
    n, inside = np.arange(len(rays)), (k > 0) & (k < len(distances))
    last, first = above[np.maximum(k, 1) - 1, n], above[np.minimum(k, len(distances) - 1), n]
    share = np.divide(last, last - first, out=np.zeros(len(rays)), where=inside)
    return np.where(k == 0, 0.0, np.where(inside, distances[1] * (np.maximum(k, 1) - 1 + share), distances[-1]))


# -- motion tracking: a reference motion, in `Scene.goal`, and bodies relative to an anchor such as the torso ------------------
#
# As in Isaac Lab's and mjlab's tracking tasks (Liao et al. 2025, "BeyondMimic"). An orientation is six numbers, the first two
# columns of a rotation matrix, row by row.

TWO_COLUMNS = (0, 1, 3, 4, 6, 7)
"""Indices of the first two columns in a flattened matrix (3, 3)."""


class ReferenceJointPositions(JointTerm, kind="reference_joint_positions"):
    """Positions of slides and hinges in the reference motion."""

    measure, is_shifted, shows_goal = "reference position", True, True

    def read(self, scene: Scene) -> np.ndarray:
        return scene.reference.data.qpos[scene.robot.places]


class ReferenceJointVelocities(JointTerm, kind="reference_joint_velocities"):
    """Velocities of slides and hinges in the reference motion."""

    measure, shows_goal = "reference velocity", True

    def read(self, scene: Scene) -> np.ndarray:
        return scene.reference.data.qvel[scene.robot.dofs]


class _RelativePoses(Term):
    """Poses of bodies in the frame of an anchor.

    Args:
        anchor: name of a body; by default the base.
    """

    is_turn: ClassVar[bool] = False

    anchor: Text = ""

    @abstractmethod
    def names(self, robot: Robot) -> Sequence[str]:
        """Names of the bodies whose poses are shown."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> ShownNumbers:
        anchor = robot.find_element(self.anchor, ("body",)) if self.anchor else ModelElement("body", robot.body)
        names, n = list(self.names(robot)), 9 if self.is_turn else 3
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.title}: bodies={names!r} must be a list of names, none of them twice")
        elements = [robot.find_element(name, ("body",)) for name in names]

        def finite(symmetry: ModelSymmetry) -> Affine:
            M, A = frame_map(robot, symmetry, anchor, self.title), np.zeros((n * len(elements),) * 2)
            for i, j in enumerate(image_indices(robot, symmetry, elements, self.title, "bodies")):
                part = np.kron(M, robot.frame(symmetry, elements[i], elements[j])) if self.is_turn else M
                A[n * j : n * (j + 1), n * i : n * (i + 1)] = part
            return A, np.zeros(len(A))

        def read(scene: Scene) -> np.ndarray:
            source = scene.reference if self.shows_goal else scene
            (place, axes), poses = scene.pose_of(anchor), map(source.pose_of, elements)
            return np.concatenate([(axes.T @ R).ravel() if self.is_turn else axes.T @ (p - place) for p, R in poses])

        parts = [f"R[{i},{j}]" for i in range(3) for j in range(3)] if self.is_turn else "xyz"
        entries = tuple(
            Entry(f"{name} {self.title} {part}", "", "1" if self.is_turn else "m") for name in names for part in parts
        )
        rows = [n * k + row for k in range(len(names)) for row in (TWO_COLUMNS if self.is_turn else range(3))]
        why = "give anchor and bodies whose axes are parallel to the mirror's plane, or across it"
        return Quantity((self.kind, anchor, *elements), entries, read, derivable(finite), why=why), rows


class AnchorPosition(_RelativePoses, kind="anchor_position"):
    """Position of the reference's anchor relative to the robot's, in m."""

    shows_goal = True

    def names(self, robot: Robot) -> Sequence[str]:
        return [self.anchor or robot.model.body(robot.body).name]


class AnchorOrientation(AnchorPosition, kind="anchor_orientation"):
    """Orientation of the reference's anchor relative to the robot's: six numbers."""

    is_turn = True


class BodyPositions(_RelativePoses, kind="body_positions"):
    """Positions of bodies relative to the anchor, in m.

    Args:
        bodies: names of the bodies, in order.
    """

    bodies: Names

    def names(self, robot: Robot) -> Sequence[str]:
        return self.bodies


class BodyOrientations(BodyPositions, kind="body_orientations"):
    """Orientations of bodies relative to the anchor: six numbers each."""

    is_turn = True
