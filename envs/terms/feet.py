"""Feet: contacts, forces, positions, and the clocks of a gait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rppdyn.envs.model_symmetry import ModelSymmetry, derivable, lift
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing
from rppdyn.envs.terms.term import Affine, Quantity, Term, register
from rppdyn.envs.terms.vectors import frame_of

SAME = 1e-6  # two directions are one if they differ by less


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
        images = []
        for foot, thing in zip(self.feet, things, strict=True):
            image = robot.image(symmetry, thing)
            if image not in things:
                name = robot._name(*image) if image.number >= 0 else "nothing in the model"
                raise ValueError(
                    f"{self.title}: {symmetry.name} carries the foot {foot!r} to {name!r}, which is no foot of the term; add it"
                )
            images.append(things.index(image))
        return images

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
                    in_foot = frame == "foot"
                    M = (
                        robot.frame(symmetry, things[i], things[j])
                        if in_foot
                        else frame_of(robot, symmetry, base, self.title)
                    )
                part = np.eye(n) if kind == "scalar" else lift(kind, symmetry.rotation, M)
                A[n * j : n * (j + 1), n * i : n * (i + 1)] = part
            return A, np.zeros(len(A))

        entries = tuple(Entry(f"{foot} {self.kind} {part}".strip(), "", unit) for foot in self.feet for part in parts)
        quantity = Quantity(
            (key, frame, tuple(things)), entries,
            lambda scene: np.concatenate([np.atleast_1d(read(scene, thing)) for thing in things]), derivable(finite),
        )  # fmt: skip
        return quantity, range(n * len(things))


@register("foot_contacts")
@dataclass(frozen=True, kw_only=True)
class FootContacts(_Feet):
    """Contacts of feet: 1 where the contact force exceeds the threshold, else 0.

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
    """Position of each foot from the base, in m, in the base's axes."""

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
