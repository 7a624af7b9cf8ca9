"""Grids: height scans and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing, axes_of
from rppdyn.envs.terms.term import Affine, Quantity, Term, register
from rppdyn.envs.terms.vectors import frame_of

SAME = 1e-6  # two directions are one if they differ by less
MOST = 100_000  # points of a grid
PLACE = 1e-6  # a point of a grid is another one if it is nearer than this times the grid's size


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
    if math.prod(counts) > MOST:
        raise ValueError(
            f"a grid of {' times '.join(map(str, counts))} points is too fine, at most {MOST}; give another resolution"
        )
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
        centre: centre of the grid, in the base's frame.
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
            M, n = frame_of(robot, symmetry, thing, self.title), len(points)
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
            M, n = frame_of(robot, symmetry, thing, self.title), len(pixels) * channels
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
