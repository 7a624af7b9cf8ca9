"""What the task itself says: commands, and scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.observation.fields import derivable, lift
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing
from rppdyn.envs.terms.term import Affine, Quantity, Term, register
from rppdyn.envs.terms.vectors import frame_of

__all__ = ["Commands", "Scalars"]

SAME = 1e-6  # two directions are one if they differ by less


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
