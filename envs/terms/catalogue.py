"""The terms of observations of legged robots and arms, each with the way that it transforms and is read.

    ========================  =========================================================================================
    term                      how it transforms
    ========================  =========================================================================================
    base_linear_velocity      a vector: M of the base in its own axes (`frame="body"` or `"yaw"`), R in the world's
    base_angular_velocity     a pseudovector: det(M) M, or det(R) R
    projected_gravity         a vector in the base's own axes
    base_height               invariant
    euler_angles              signs, where the symmetry only changes signs; otherwise refused
    quaternion                a conjugation under mirrors, as a rotation matrix under other groups
    commands                  by each entry's meaning: parts of a vector, of a pseudovector, or scalars
    joint_positions           the derived map of the joints, relative to the default pose
    joint_velocities          likewise
    joint_torques             likewise
    last_action               the derived map of the action
    gait_phase                sine and cosine of the gait's clock: shifted as the feet are exchanged
    foot_clocks               a clock per foot: permuted with the feet
    foot_contacts             permuted with the feet
    foot_forces               vectors, permuted with the feet
    foot_positions            vectors in the base's own axes, permuted with the feet
    height_scan               the grid's points are permuted
    image                     pixels are permuted: a flip
    vector, pseudovector      of the task's own, in the base's, yaw's or world's axes
    scalars                   of the task's own: invariant
    ========================  =========================================================================================

M is the map of the base's frame and R that of the world (`rppdyn.envs.model_symmetry`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.observation.fields import derivable, lift
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing, axes_of
from rppdyn.envs.terms.term import Affine, Quantity, Term, register

__all__ = ["FRAMES"]

FRAMES = ("body", "yaw", "world")
"""Axes of a vector: the base's own, the base's turned level, the world's."""

SAME = 1e-6  # two directions are one if they differ by less
PLACE = 1e-6  # a point of a grid is another one if it is nearer than this times the grid's size


# -- vectors of the base -----------------------------------------------------------------------------------------------


def _frame_of(robot: Robot, symmetry: ModelSymmetry, thing: Thing, title: str) -> np.ndarray:
    image = robot.image(symmetry, thing)
    if image.number != thing.number:
        raise ValueError(
            f"{title}: {symmetry.name} carries what it is measured at to "
            f"{'another place' if image.number >= 0 else 'nothing in the model'}; use a body or site in the mirror's plane"
        )
    return robot.frame(symmetry, thing, thing)


def _check_frame(frame: str, title: str) -> None:
    if frame not in FRAMES:
        raise ValueError(f"{title}: frame={frame!r} must be {', '.join(FRAMES[:-1])} or {FRAMES[-1]}")


def _vector(
    robot: Robot, title: str, key: object, kind: str, frame: str, thing: Thing,
    world: Callable[[Scene], np.ndarray], unit: str,
) -> Quantity:  # fmt: skip
    """A vector or ("axial") pseudovector that `world` reads in the world's axes."""
    _check_frame(frame, title)

    def finite(symmetry: ModelSymmetry) -> Affine:
        M = _frame_of(robot, symmetry, thing, title)
        return lift(kind if frame == "world" else f"own {kind}", symmetry.rotation, M), np.zeros(3)

    def read(scene: Scene) -> np.ndarray:
        axes = {"world": lambda _: np.eye(3), "yaw": scene.heading, "body": lambda t: scene.pose_of(t)[1]}[frame](thing)
        return axes.T @ world(scene)

    entries = tuple(Entry(f"{title} {axis}", "", unit) for axis in "xyz")
    return Quantity((key, frame, thing), entries, read, derivable(finite))


def _axes(axes: str, title: str) -> list[int]:
    if not axes or not set(axes) <= set("xyz") or len(set(axes)) < len(axes):
        raise ValueError(f"{title}: axes={axes!r} must be some of x, y and z")
    return ["xyz".index(axis) for axis in axes]


@dataclass(frozen=True, kw_only=True)
class _BaseVector(Term):
    """Args:
    frame: "body", "yaw" or "world".
    axes: which components, in order.
    at: the body or site where it is measured; the base if empty.
    """

    frame: str = "body"
    axes: str = "xyz"
    at: str = ""

    def _thing(self, robot: Robot) -> Thing:
        return robot.thing(self.at, ("body", "site")) if self.at else Thing("body", robot.body)

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        thing = self._thing(robot)
        found = _vector(robot, self.title, *self._meaning(robot, thing))
        return found, _axes(self.axes, self.title)

    @abstractmethod
    def _meaning(self, robot: Robot, thing: Thing) -> tuple: ...


@register("base_linear_velocity")
@dataclass(frozen=True, kw_only=True)
class BaseLinearVelocity(_BaseVector):
    """The base's linear velocity in m/s."""

    def _meaning(self, robot: Robot, thing: Thing) -> tuple:
        return "linear velocity", "vector", self.frame, thing, lambda scene: scene.velocity_of(thing)[0], "m/s"


@register("base_angular_velocity")
@dataclass(frozen=True, kw_only=True)
class BaseAngularVelocity(_BaseVector):
    """The base's angular velocity in rad/s."""

    def _meaning(self, robot: Robot, thing: Thing) -> tuple:
        return "angular velocity", "axial", self.frame, thing, lambda scene: scene.velocity_of(thing)[1], "rad/s"


@register("projected_gravity")
@dataclass(frozen=True, kw_only=True)
class ProjectedGravity(_BaseVector):
    """The direction of gravity, a unit vector in the base's axes."""

    def _meaning(self, robot: Robot, thing: Thing) -> tuple:
        gravity = robot.model.opt.gravity
        down = gravity / np.linalg.norm(gravity) if gravity.any() else np.array([0.0, 0.0, -1.0])
        return "gravity", "vector", self.frame, thing, lambda scene: down, "1"


@register("vector")
@dataclass(frozen=True, kw_only=True)
class Vector(_BaseVector):
    """A vector of the task's own, which `Scene.given` holds in the world's axes under the term's label."""

    def _meaning(self, robot: Robot, thing: Thing) -> tuple:
        return self.title, "vector", self.frame, thing, lambda scene: np.asarray(scene.given[self.title]), ""


@register("pseudovector")
@dataclass(frozen=True, kw_only=True)
class Pseudovector(_BaseVector):
    """A pseudovector of the task's own: an angular velocity, a torque, an axis of rotation."""

    def _meaning(self, robot: Robot, thing: Thing) -> tuple:
        return self.title, "axial", self.frame, thing, lambda scene: np.asarray(scene.given[self.title]), ""


@register("base_height")
@dataclass(frozen=True, kw_only=True)
class BaseHeight(Term):
    """The base's height in the world, in m."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        thing = Thing("body", robot.body)

        def act(symmetry: ModelSymmetry) -> Affine:
            level = (
                abs(symmetry.rotation[2, 2] - (not symmetry.is_continuous)) < SAME
                and abs(symmetry.translation[2]) < SAME
            )
            return np.full((1, 1), 0.0 if symmetry.is_continuous else 1.0 if level else np.nan), np.zeros(1)

        entries = (Entry(f"{self.title}", "", "m"),)
        return Quantity(("height",), entries, lambda scene: scene.pose_of(thing)[0][2:], act), [0]


@register("euler_angles")
@dataclass(frozen=True, kw_only=True)
class EulerAngles(Term):
    """Roll, pitch and yaw of the base in rad: X = Rz(yaw) Ry(pitch) Rx(roll).

    Args:
        angles: which, in order.
    """

    angles: Sequence[str] = ("roll", "pitch", "yaw")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        names = ("roll", "pitch", "yaw")
        if not self.angles or not set(self.angles) <= set(names) or len(set(self.angles)) < len(self.angles):
            raise ValueError(f"{self.title}: angles={list(self.angles)!r} must be some of roll, pitch and yaw")
        thing = Thing("body", robot.body)

        def act(symmetry: ModelSymmetry) -> Affine:
            M = _frame_of(robot, symmetry, thing, self.title)
            return _signs_of_angles(symmetry, M)

        entries = tuple(Entry(f"{self.title} {name}", "", "rad") for name in names)
        read = lambda scene: euler_angles(scene.pose_of(thing)[1])  # noqa: E731
        why = "observe projected_gravity, or a quaternion, which transform under every group"
        return Quantity(("Euler angles",), entries, read, act, why), [names.index(angle) for angle in self.angles]


def euler_angles(matrix: np.ndarray) -> np.ndarray:
    """Roll, pitch and yaw (..., 3) of rotation matrices (..., 3, 3)."""
    X = matrix
    roll, yaw = np.arctan2(X[..., 2, 1], X[..., 2, 2]), np.arctan2(X[..., 1, 0], X[..., 0, 0])
    return np.stack([roll, np.arcsin(np.clip(-X[..., 2, 0], -1.0, 1.0)), yaw], -1)


def _signs_of_angles(symmetry: ModelSymmetry, M: np.ndarray) -> Affine:
    """What the symmetry does to random Euler angles: a sign of each, or NaN."""
    if symmetry.is_continuous:
        if (
            M.any()
            or np.abs(symmetry.rotation - symmetry.rotation[1, 0] * np.array([[0, -1, 0], [1, 0, 0], [0, 0, 0]])).max()
        ):
            return np.full((3, 3), np.nan), np.zeros(3)
        return np.diag([0.0, 0.0, np.nan if symmetry.rotation.any() else 0.0]), np.zeros(3)
    rng = np.random.default_rng(0)
    before = rng.uniform(-1.0, 1.0, (20, 3)) * [3.0, 1.4, 3.0]
    X = Rotation.from_euler("ZYX", before[:, ::-1]).as_matrix()
    after = euler_angles(symmetry.rotation @ X @ M.T)
    A = np.zeros((3, 3))
    for i in range(3):
        fits = [s for s in (1.0, -1.0) if np.abs(np.angle(np.exp(1j * (after[:, i] - s * before[:, i])))).max() < SAME]
        A[i, i] = fits[0] if fits else np.nan
    return A, np.zeros(3)


@register("quaternion")
@dataclass(frozen=True, kw_only=True)
class Quaternion(Term):
    """The base's orientation as a unit quaternion.

    Args:
        order: "wxyz", as in MuJoCo and Isaac Lab, or "xyzw", as in Isaac Gym.
    """

    order: str = "wxyz"

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        if self.order not in ("wxyz", "xyzw"):
            raise ValueError(f"{self.title}: order={self.order!r} must be wxyz or xyzw")
        thing = Thing("body", robot.body)
        turns = [(s, _frame_of(robot, s, thing, self.title)) for s in symmetries]
        linear = all(not s.is_continuous and np.abs(s.rotation - M).max() < SAME for s, M in turns)
        entries = tuple(Entry(f"{self.title} {c}", "", "1") for c in "wxyz")

        def read(scene: Scene) -> np.ndarray:
            quaternion = np.zeros(4)
            mujoco.mju_mat2Quat(quaternion, scene.pose_of(thing)[1].ravel())
            return -quaternion if quaternion[0] < 0 else quaternion

        def conjugate(symmetry: ModelSymmetry) -> Affine:
            """q goes to q_R q q_R^-1, with the sign that makes R a turn."""
            Q = np.sign(np.linalg.det(symmetry.rotation)) * symmetry.rotation
            A = np.eye(4)
            A[1:, 1:] = Q
            return A, np.zeros(4)

        def matrices(symmetry: ModelSymmetry) -> Affine:
            M = _frame_of(robot, symmetry, thing, self.title)
            return np.kron(symmetry.rotation, M), np.zeros(9)

        if linear:
            rows = [0, 1, 2, 3] if self.order == "wxyz" else [1, 2, 3, 0]
            return Quantity(("quaternion",), entries, read, conjugate), rows
        if self.order != "wxyz" or np.any(np.not_equal(self.scale, 1.0)) or np.any(np.not_equal(self.offset, 0.0)):
            raise ValueError(
                f"{self.title}: {', '.join(s.name for s in symmetries)} act on its rotation matrix only; "
                "give it in the order wxyz, without scale and offset"
            )
        return Quantity(("quaternion",), entries, read, derivable(matrices), quaternion=True), range(9)


# -- commands ----------------------------------------------------------------------------------------------------------

_COMMANDS: Mapping[str, tuple[str, int]] = {
    "forward": ("vector", 0), "lateral": ("vector", 1), "vertical": ("vector", 2),
    "roll": ("axial", 0), "pitch": ("axial", 1), "yaw": ("axial", 2),
    "height": ("scalar", 0), "scalar": ("scalar", 0),
}  # fmt: skip


@register("commands")
@dataclass(frozen=True, kw_only=True)
class Commands(Term):
    """What the task asks for, in the base's axes.

    Args:
        entries: the meaning of each: "forward", "lateral", "vertical" (along x, y, z), "roll", "pitch", "yaw" (a turn or an
            angle about x, y, z), "height" or "scalar" (invariant).
    """

    entries: Sequence[str] = ("forward", "lateral", "yaw")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        for entry in self.entries:
            if entry not in _COMMANDS:
                raise ValueError(f"{self.title}: unknown entry {entry!r}; use {', '.join(_COMMANDS)}")
        thing, n = Thing("body", robot.body), len(self.entries)
        meanings = [_COMMANDS[entry] for entry in self.entries]
        number = [meanings[:i].count(m) for i, m in enumerate(meanings)]  # the k-th vector of its kind

        def finite(symmetry: ModelSymmetry) -> Affine:
            M = _frame_of(robot, symmetry, thing, self.title)
            lifts = {"vector": M, "axial": lift("own axial", M, M)}
            A = np.zeros((n, n))
            for i, (kind, axis) in enumerate(meanings):
                if kind == "scalar":
                    A[i, i] = 1.0
                    continue
                for column in np.flatnonzero(np.abs(lifts[kind][axis]) > SAME):
                    source = [j for j in range(n) if (*meanings[j], number[j]) == (kind, column, number[i])]
                    if source:
                        A[i, source[0]] = lifts[kind][axis, column]
                    else:
                        A[i] = np.nan
            return A, np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            axes = scene.pose_of(thing)[1] if scene.goal is None else scene.goal.xmat[thing.number].reshape(3, 3)
            v, w = scene.velocity_of(thing, scene.goal)
            data = scene.data if scene.goal is None else scene.goal
            values = {"vector": axes.T @ v, "axial": axes.T @ w, "scalar": data.xpos[thing.number][2:]}
            return np.array([values[kind][axis] * (1 + k) for (kind, axis), k in zip(meanings, number, strict=True)])

        entries = tuple(Entry(f"{self.title} {entry}") for entry in self.entries)
        why = "the symmetry mixes it with another entry: add that to entries"
        return Quantity(("commands", self.title), entries, read, derivable(finite), why), range(n)


# -- joints and actions ------------------------------------------------------------------------------------------------


def _joint_quantity(robot: Robot, what: str, unit: str, read: Callable[[Scene], np.ndarray], shifted: bool) -> Quantity:
    entries = tuple(Entry(f"{joint} {what}", joint, unit) for joint in robot.joints)

    def act(symmetry: ModelSymmetry) -> Affine:
        return symmetry.joint_matrix, symmetry.joint_shift if shifted else np.zeros(len(entries))

    return Quantity((what,), entries, read, act)


@dataclass(frozen=True, kw_only=True)
class _Joints(Term):
    """Args:
    joints: names or regular expressions, in order; None means all, in the model's order.
    """

    joints: Sequence[str] | None = None


@register("joint_positions")
@dataclass(frozen=True, kw_only=True)
class JointPositions(_Joints):
    """Positions of slides and hinges.

    Args:
        relative: whether they are relative to the default pose.
    """

    relative: bool = True

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        found = _joint_quantity(robot, "position", "", lambda scene: scene.data.qpos[robot.places], True)
        return found, robot.choose_joints(self.joints)


@register("joint_velocities")
@dataclass(frozen=True, kw_only=True)
class JointVelocities(_Joints):
    """Velocities of slides and hinges."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        found = _joint_quantity(robot, "velocity", "", lambda scene: scene.data.qvel[robot.dofs], False)
        return found, robot.choose_joints(self.joints)


@register("joint_torques")
@dataclass(frozen=True, kw_only=True)
class JointTorques(_Joints):
    """Torques that actuators and applied forces exert on slides and hinges."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        def read(scene: Scene) -> np.ndarray:
            return (scene.data.qfrc_actuator + scene.data.qfrc_applied)[robot.dofs]

        return _joint_quantity(robot, "torque", "", read, False), robot.choose_joints(self.joints)


@register("controls")
@dataclass(frozen=True, kw_only=True)
class Controls(Term):
    """The model's own controls, in its order: for actions."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        model = robot.model
        entries = tuple(Entry(model.actuator(i).name or f"actuator {i}") for i in range(model.nu))

        def act(symmetry: ModelSymmetry) -> Affine:
            return symmetry.controls, np.zeros(model.nu)

        return Quantity(("controls",), entries, lambda scene: scene.data.ctrl.copy(), act), range(model.nu)


@register("last_action")
@dataclass(frozen=True, kw_only=True)
class LastAction(Term):
    """The action of the step before, as the policy gave it."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        raise AssertionError("the observation's layout binds it to the action")


# -- feet and clocks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Feet(Term):
    """Args:
    feet: names of bodies, sites or geoms, in order.
    """

    feet: Sequence[str]

    def _things(self, robot: Robot) -> list[Thing]:
        if isinstance(self.feet, str) or not self.feet:
            raise ValueError(f"{self.title}: feet={self.feet!r} must be a list of names")
        if len(set(self.feet)) < len(self.feet):
            raise ValueError(f"{self.title}: a foot is named twice in {', '.join(self.feet)}; leave one out")
        return [robot.thing(foot) for foot in self.feet]

    def _images(self, robot: Robot, symmetry: ModelSymmetry) -> list[int]:
        """The foot that each foot is carried to.

        Raises:
            ValueError: it is carried to something that is none of the feet.
        """
        things = self._things(robot)
        found = []
        for foot, thing in zip(self.feet, things, strict=True):
            image = robot.image(symmetry, thing)
            if image not in things:
                name = robot._name(*image) if image.number >= 0 else "nothing in the model"
                raise ValueError(
                    f"{self.title}: {symmetry.name} carries the foot {foot!r} to {name!r}, which is no foot of the term; add it"
                )
            found.append(things.index(image))
        return found

    def _per_foot(
        self, robot: Robot, key: object, kind: str, read: Callable[[Scene, Thing], np.ndarray], parts: Sequence[str],
        frame: str = "body", unit: str = "",
    ) -> tuple[Quantity, Sequence[int]]:  # fmt: skip
        things, n = self._things(robot), len(parts)
        base = Thing("body", robot.body)

        def finite(symmetry: ModelSymmetry) -> Affine:
            A = np.zeros((n * len(things),) * 2)
            for i, j in enumerate(self._images(robot, symmetry)):
                M = np.eye(3)
                if kind != "scalar":
                    own = frame == "foot"
                    M = (
                        robot.frame(symmetry, things[i], things[j])
                        if own
                        else _frame_of(robot, symmetry, base, self.title)
                    )
                part = np.eye(n) if kind == "scalar" else lift(kind, symmetry.rotation, M)
                A[n * j : n * (j + 1), n * i : n * (i + 1)] = part
            return A, np.zeros(len(A))

        entries = tuple(Entry(f"{foot} {self.kind} {part}".strip(), "", unit) for foot in self.feet for part in parts)
        found = Quantity(
            (key, frame, tuple(things)), entries,
            lambda scene: np.concatenate([np.atleast_1d(read(scene, thing)) for thing in things]), derivable(finite),
        )  # fmt: skip
        return found, range(n * len(things))


@register("foot_contacts")
@dataclass(frozen=True, kw_only=True)
class FootContacts(_Feet):
    """Whether each foot touches something: 1 where the contact force exceeds the threshold, else 0.

    Args:
        threshold: in N.
    """

    threshold: float = 1.0

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        def read(scene: Scene, foot: Thing) -> np.ndarray:
            return np.array(float(np.linalg.norm(scene.contact_force(foot)) > self.threshold))

        return self._per_foot(robot, "contact", "scalar", read, ("",), unit="1")


@register("foot_forces")
@dataclass(frozen=True, kw_only=True)
class FootForces(_Feet):
    """The contact force on each foot, in N.

    Args:
        frame: "world", "body" (the base's axes) or "foot" (each foot's own).
        norm: whether only its magnitude is observed.
    """

    frame: str = "world"
    norm: bool = False

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        if self.frame not in ("world", "body", "foot"):
            raise ValueError(f"{self.title}: frame={self.frame!r} must be world, body or foot")
        base = Thing("body", robot.body)

        def read(scene: Scene, foot: Thing) -> np.ndarray:
            force = scene.contact_force(foot)
            axes = {
                "world": lambda: np.eye(3),
                "body": lambda: scene.pose_of(base)[1],
                "foot": lambda: scene.pose_of(foot)[1],
            }
            return axes[self.frame]().T @ force

        if self.norm:
            size = lambda scene, foot: np.array(np.linalg.norm(scene.contact_force(foot)))  # noqa: E731
            return self._per_foot(robot, "force's size", "scalar", size, ("",), unit="N")
        kind = "vector" if self.frame == "world" else "own vector"
        return self._per_foot(robot, "force", kind, read, "xyz", self.frame, "N")


@register("foot_positions")
@dataclass(frozen=True, kw_only=True)
class FootPositions(_Feet):
    """Where each foot is from the base, in m, in the base's axes."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        base = Thing("body", robot.body)

        def read(scene: Scene, foot: Thing) -> np.ndarray:
            (place, axes), there = scene.pose_of(base), scene.pose_of(foot)[0]
            return axes.T @ (there - place)

        return self._per_foot(robot, "foot's place", "own vector", read, "xyz", unit="m")


_WAVES: Mapping[str, Callable[[float], float]] = {
    "sin": lambda t: np.sin(2 * np.pi * t),
    "cos": lambda t: np.cos(2 * np.pi * t),
    "phase": lambda t: t % 1.0,
}


def _waves(functions: Sequence[str], title: str) -> tuple[str, ...]:
    functions = (functions,) if isinstance(functions, str) else tuple(functions)
    if not functions or not set(functions) <= set(_WAVES):
        raise ValueError(f"{title}: functions={functions!r} must be some of {', '.join(_WAVES)}")
    return functions


@register("foot_clocks")
@dataclass(frozen=True, kw_only=True)
class FootClocks(_Feet):
    """A periodic function of each foot's phase.

    Args:
        offsets: by how many periods each foot's phase is ahead of the gait's clock; None where feet's phases are free.
        functions: "sin", "cos" or "phase" (from 0 to 1) of each foot, in order.
    """

    offsets: Sequence[float] | None = None
    functions: Sequence[str] = ("sin",)

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        functions = _waves(self.functions, self.title)
        if self.offsets is not None:
            for symmetry in symmetries:
                clock_shift(self.offsets, self._images(robot, symmetry), symmetry, self.title)
        offsets = dict(zip(self._things(robot), self.offsets or (), strict=False))
        names = dict(zip(self._things(robot), self.feet, strict=True))

        def read(scene: Scene, foot: Thing) -> np.ndarray:
            phase = scene.phase + offsets[foot] if foot in offsets else scene.feet[names[foot]]
            return np.array([_WAVES[function](phase) for function in functions])

        return self._per_foot(robot, ("clock", functions, self.offsets), "scalar", read, functions)


@register("gait_phase")
@dataclass(frozen=True, kw_only=True)
class GaitPhase(_Feet):
    """Sine and cosine of one clock, of which each foot is ahead by a part of the period.

    Args:
        offsets: by how many periods each foot is ahead.
        functions: "sin", "cos" and "phase" (from 0 to 1, which no shift acts on linearly), in order.
    """

    offsets: Sequence[float]
    functions: Sequence[str] = ("sin", "cos")

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        functions = _waves(self.functions, self.title)
        names = tuple(_WAVES)

        def act(symmetry: ModelSymmetry) -> Affine:
            shift = clock_shift(self.offsets, self._images(robot, symmetry), symmetry, self.title)
            one = 0.0 if symmetry.is_continuous else 1.0
            turn = 2 * np.pi * shift
            c, s = np.round(np.cos(turn), 12) * one, np.round(np.sin(turn), 12) * one
            raw = one if shift == 0 else np.nan
            return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, raw]]) + 0.0, np.zeros(3)

        entries = tuple(Entry(f"{self.title} {name}", "", "1") for name in names)
        read = lambda scene: np.array([wave(scene.phase) for wave in _WAVES.values()])  # noqa: E731
        why = "observe its sine and cosine: a shift acts on these linearly"
        key = ("phase", self.feet, self.offsets)
        return Quantity(key, entries, read, act, why), [names.index(function) for function in functions]


def clock_shift(offsets: Sequence[float], images: Sequence[int], symmetry: ModelSymmetry, title: str) -> float:
    """The shift s of the clock with which the image of the gait is the gait again: s + offset[image] = offset.

    Raises:
        ValueError: there is none, or not one offset per foot.
    """
    if len(offsets) != len(images):
        raise ValueError(f"{title}: {len(offsets)} offsets for {len(images)} feet; give one per foot")
    shifts = np.array([offsets[i] - offsets[j] for i, j in enumerate(images)])
    apart = np.abs((shifts - shifts[0] + 0.5) % 1.0 - 0.5)
    if apart.max() > SAME:
        raise ValueError(
            f"{title}: {symmetry.name} makes another gait of the offsets {', '.join(f'{o:g}' for o in offsets)}: no shift of "
            "the clock does; choose a gait that it keeps, or leave out the symmetry"
        )
    shift = float(shifts[0] % 1.0)
    return 0.0 if min(shift, 1 - shift) < SAME else shift


# -- grids -------------------------------------------------------------------------------------------------------------


def _carried(points: np.ndarray, M: np.ndarray, title: str, symmetry: ModelSymmetry, what: str) -> np.ndarray:
    """The permutation matrix of points (n, 2) that M, (2, 2), carries onto one another."""
    there = points @ M.T
    distance = np.linalg.norm(there[:, None] - points[None], axis=-1)
    nearest = distance.argmin(1)
    size = max(float(np.ptp(points, axis=0).max()), 1e-9)
    if (far := distance.min(1) > PLACE * size).any() or len(set(nearest)) < len(points):
        i = int(np.flatnonzero(far)[0]) if far.any() else 0
        place = ", ".join(f"{x:g}" for x in points[i])
        image = ", ".join(f"{x:g}" for x in there[i] + 0.0)
        raise ValueError(
            f"{title}: {symmetry.name} carries its {what} ({place}) to ({image}), where there is none; make the grid "
            "symmetric about that axis, or leave out the symmetry"
        )
    A = np.zeros((len(points),) * 2)
    A[nearest, np.arange(len(points))] = 1.0
    return A


def grid_points(size: Sequence[float], resolution: float, ordering: str, centre: Sequence[float]) -> np.ndarray:
    """Points (n, 2) of a grid; in the order "xy" x varies fastest, in "yx" y does."""
    counts = [round(length / resolution) + 1 for length in size]
    x, y = (np.linspace(-length / 2, length / 2, n) + c for length, n, c in zip(size, counts, centre, strict=True))
    X, Y = np.meshgrid(x, y, indexing="xy" if ordering == "xy" else "ij")
    return np.stack([X.ravel(), Y.ravel()], 1)


@register("height_scan")
@dataclass(frozen=True, kw_only=True)
class HeightScan(Term):
    """Height of the base above the ground at points of a grid about the base.

    Args:
        size: lengths along x and y in m.
        resolution: distance of neighbours in m.
        ordering: "xy" where x varies fastest, as in Isaac Lab, or "yx".
        centre: of the grid, in the base's frame.
        points: any points (x, y) instead, in order.
        frame: "yaw", the base's axes turned level, or "body", its own ones.
    """

    size: Sequence[float] = (1.6, 1.0)
    resolution: float = 0.1
    ordering: str = "xy"
    centre: Sequence[float] = (0.0, 0.0)
    points: Sequence[Sequence[float]] | None = None
    frame: str = "yaw"

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        if self.ordering not in ("xy", "yx"):
            raise ValueError(f"{self.title}: ordering={self.ordering!r} must be xy or yx")
        if self.frame not in ("yaw", "body"):
            raise ValueError(f"{self.title}: frame={self.frame!r} must be yaw or body")
        if self.points is None and (self.resolution <= 0 or min(self.size) < 0 or len(self.size) != 2):
            raise ValueError(f"{self.title}: size={self.size!r} and resolution={self.resolution!r} make no grid")
        points = np.asarray(self.points, dtype=np.float64) if self.points is not None else grid_points(
            self.size, self.resolution, self.ordering, self.centre
        )  # fmt: skip
        if points.ndim != 2 or points.shape[1] != 2:
            raise ValueError(f"{self.title}: points of shape {points.shape} must be (n, 2)")
        thing = Thing("body", robot.body)

        def act(symmetry: ModelSymmetry) -> Affine:
            M, n = _frame_of(robot, symmetry, thing, self.title), len(points)
            if symmetry.is_continuous:
                return np.full((n, n), np.nan) if M.any() else np.zeros((n, n)), np.zeros(n)
            if abs(M[2, 2] - 1) > SAME:
                return np.full((n, n), np.nan), np.zeros(n)
            return _carried(points, M[:2, :2], self.title, symmetry, "point"), np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            place, axes = scene.pose_of(thing)
            axes = axes if self.frame == "body" else scene.heading(thing)
            where = place[:2] + points @ axes[:2, :2].T
            ground = np.zeros(len(points)) if scene.terrain is None else scene.terrain(where)
            return place[2] - ground

        entries = tuple(Entry(f"{self.title} ({x:.3g}, {y:.3g})", "", "m") for x, y in points)
        key = ("height scan", self.frame, points.tobytes())
        return Quantity(key, entries, read, act), range(len(points))


@register("image")
@dataclass(frozen=True, kw_only=True)
class Image(Term):
    """A picture of a camera, flattened.

    Args:
        shape: height, width and, where there are any, channels.
        camera: its name in the model; empty means one at the base that looks forwards.
        layout: "hwc" or "chw".
        field_of_view: vertical, in degrees, for `Scene`'s depth picture only.
    """

    shape: Sequence[int]
    camera: str = ""
    layout: str = "hwc"
    field_of_view: float = 60.0

    FORWARD: ClassVar[np.ndarray] = np.array([[0.0, 0.0, -1.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        if len(self.shape) not in (2, 3) or min(self.shape) < 1 or self.layout not in ("hwc", "chw"):
            raise ValueError(
                f"{self.title}: shape={self.shape!r} and layout={self.layout!r} must be (h, w) or (h, w, c), hwc or chw"
            )
        height, width, channels = (*self.shape, 1)[:3]
        model, thing = robot.model, Thing("body", robot.body)
        place, turn = np.zeros(3), self.FORWARD
        if self.camera:
            camera = robot.thing(self.camera, ("camera",)).number
            thing = Thing("body", int(model.cam_bodyid[camera]))
            place, turn = model.cam_pos[camera].copy(), axes_of(model.cam_quat[camera])
        x, y = np.arange(width) - (width - 1) / 2, (height - 1) / 2 - np.arange(height)
        pixels = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)

        def act(symmetry: ModelSymmetry) -> Affine:
            M, n = _frame_of(robot, symmetry, thing, self.title), len(pixels) * channels
            if symmetry.is_continuous:
                return np.full((n, n), np.nan) if M.any() else np.zeros((n, n)), np.zeros(n)
            F = turn.T @ M @ turn
            if np.abs(M @ place - place).max() > SAME + 1e-3 * np.abs(place).max() or abs(F[2, 2] - 1) > SAME:
                return np.full((n, n), np.nan), np.zeros(n)
            A = _carried(pixels, F[:2, :2], self.title, symmetry, "pixel")
            return np.kron(A, np.eye(channels)) if self.layout == "hwc" else np.kron(np.eye(channels), A), np.zeros(n)

        def read(scene: Scene) -> np.ndarray:
            """Distances to the ground along each pixel's ray; the same in each channel."""
            position, axes = scene.pose_of(thing)
            position, axes = position + axes @ place, axes @ turn
            scale = 2 * np.tan(np.radians(self.field_of_view) / 2) / height
            rays = np.column_stack([pixels * scale, -np.ones(len(pixels))])
            rays = rays / np.linalg.norm(rays, axis=1, keepdims=True) @ axes.T
            far = _to_ground(scene, position, rays)
            return np.repeat(far, channels) if self.layout == "hwc" else np.tile(far, channels)

        names = [f"({r}, {c})" for r in range(height) for c in range(width)]
        order = [(n, k) for n in names for k in range(channels)]
        order = order if self.layout == "hwc" else [(n, k) for k in range(channels) for n in names]
        entries = tuple(Entry(f"{self.title} {n}" + (f" channel {k}" if channels > 1 else "")) for n, k in order)
        why = "the symmetry carries the camera elsewhere: leave out one of them"
        return Quantity(("image", self.title), entries, read, act, why), range(len(entries))


def _to_ground(scene: Scene, position: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Distances along rays (n, 3) to the ground, up to 4 m, between samples by interpolation."""
    far = np.linspace(0.0, 4.0, 101)
    points = position + far[:, None, None] * rays
    ground = np.zeros(points.shape[:2])
    if scene.terrain is not None:
        ground = scene.terrain(points[..., :2].reshape(-1, 2)).reshape(points.shape[:2])
    above = points[..., 2] - ground
    below = above < 0
    k = np.where(below.any(0), below.argmax(0), len(far))
    n, inside = np.arange(len(rays)), (k > 0) & (k < len(far))
    last, first = above[np.maximum(k, 1) - 1, n], above[np.minimum(k, len(far) - 1), n]
    share = np.divide(last, last - first, out=np.zeros(len(rays)), where=inside)
    return np.where(k == 0, 0.0, np.where(inside, far[1] * (np.maximum(k, 1) - 1 + share), far[-1]))


@register("scalars")
@dataclass(frozen=True, kw_only=True)
class Scalars(Term):
    """Numbers that no symmetry changes: mass, friction, a terrain's level.

    Args:
        size: how many.
    """

    size: int = 1

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        n = self.size

        def act(symmetry: ModelSymmetry) -> Affine:
            return np.zeros((n, n)) if symmetry.is_continuous else np.eye(n), np.zeros(n)

        entries = tuple(Entry(f"{self.title} {i}" if n > 1 else self.title) for i in range(n))
        return Quantity(
            ("scalars", self.title), entries, lambda s: np.asarray(s.given[self.title]).ravel(), act
        ), range(n)
