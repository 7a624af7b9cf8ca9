"""Vectors of the base and its orientation: velocities, gravity, height, angles, a quaternion; and the task's own commands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from rppdyn.envs.model_symmetry import ModelSymmetry, derivable, lift
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing
from rppdyn.envs.terms.term import Affine, Quantity, Term, register

FRAMES = ("body", "yaw", "world")
"""Axes of a vector: the base's own, the base's turned level, the world's."""
SAME = 1e-6  # two directions are one if they differ by less


def frame_of(robot: Robot, symmetry: ModelSymmetry, thing: Thing, title: str) -> np.ndarray:
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
        M = frame_of(robot, symmetry, thing, title)
        return lift(kind if frame == "world" else f"own {kind}", symmetry.rotation, M), np.zeros(3)

    def read(scene: Scene) -> np.ndarray:
        axes = {"world": lambda _: np.eye(3), "yaw": scene.heading, "body": lambda t: scene.pose_of(t)[1]}[frame](thing)
        return axes.T @ world(scene)

    entries = tuple(Entry(f"{title} {axis}", "", unit) for axis in "xyz")
    return Quantity((key, frame, thing), entries, read, derivable(finite))


def _axes(axes: str | Sequence[str], title: str) -> list[int]:
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
    axes: str | Sequence[str] = "xyz"
    at: str = ""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        thing = robot.thing(self.at, ("body", "site")) if self.at else Thing("body", robot.body)
        quantity = _vector(robot, self.title, *self._meaning(robot, thing))
        return quantity, _axes(self.axes, self.title)

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
            M = frame_of(robot, symmetry, thing, self.title)
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
    """The action of the symmetry on random Euler angles: a sign of each, or NaN."""
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
        turns = [(s, frame_of(robot, s, thing, self.title)) for s in symmetries]
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
            M = frame_of(robot, symmetry, thing, self.title)
            return np.kron(symmetry.rotation, M), np.zeros(9)

        if linear:
            rows = [0, 1, 2, 3] if self.order == "wxyz" else [1, 2, 3, 0]
            return Quantity(("quaternion",), entries, read, conjugate), rows
        if self.order != "wxyz" or np.any(np.asarray(self.scale) != 1.0) or np.any(np.asarray(self.offset) != 0.0):
            raise ValueError(
                f"{self.title}: {', '.join(s.name for s in symmetries)} act on its rotation matrix only; "
                "give it in the order wxyz, without scale and offset"
            )
        return Quantity(("quaternion",), entries, read, derivable(matrices), quaternion=True), range(9)


_COMMANDS: Mapping[str, tuple[str, int]] = {
    "forward": ("vector", 0), "lateral": ("vector", 1), "vertical": ("vector", 2),
    "roll": ("axial", 0), "pitch": ("axial", 1), "yaw": ("axial", 2),
    "height": ("scalar", 0), "scalar": ("scalar", 0),
}  # fmt: skip


@register("commands")
@dataclass(frozen=True, kw_only=True)
class Commands(Term):
    """Commands of the task, in the base's axes.

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
            M = frame_of(robot, symmetry, thing, self.title)
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
