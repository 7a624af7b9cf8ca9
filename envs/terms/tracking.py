"""Terms of motion tracking: a reference motion, which `Scene.goal` holds, and bodies, seen from an anchor such as the torso.

They are those of Isaac Lab's and mjlab's tracking tasks (Liao et al. 2025, "BeyondMimic"). An orientation is six numbers, the
first two columns of a rotation matrix, row by row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rppdyn.envs.model_symmetry import Affine, ModelSymmetry, Quantity, derivable
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene, Thing
from rppdyn.envs.terms.terms import JointTerm, Shown, Term, frame_map

TWO_COLUMNS = (0, 1, 3, 4, 6, 7)
"""Places of the first two columns in a matrix (3, 3), row by row."""


class ReferenceJointPositions(JointTerm, kind="reference_joint_positions"):
    """Positions of slides and hinges in the reference motion."""

    measure, is_shifted, shows_goal = "reference position", True, True

    def read(self, scene: Scene) -> np.ndarray:
        return scene.reference.qpos[scene.robot.places]


class ReferenceJointVelocities(JointTerm, kind="reference_joint_velocities"):
    """Velocities of slides and hinges in the reference motion."""

    measure, shows_goal = "reference velocity", True

    def read(self, scene: Scene) -> np.ndarray:
        return scene.reference.qvel[scene.robot.dofs]


class _Seen(Term):
    """Args:
    anchor: the body from whose place, and in whose axes, it is seen; the base if empty.
    """

    is_turn: ClassVar[bool] = False

    anchor: str = ""

    @abstractmethod
    def names(self, robot: Robot) -> Sequence[str]:
        """The bodies that are seen."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> Shown:
        anchor = robot.thing(self.anchor, ("body",)) if self.anchor else Thing("body", robot.body)
        names, n = list(self.names(robot)), 9 if self.is_turn else 3
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.title}: bodies={names!r} must be a list of names, none of them twice")
        things = [robot.thing(name, ("body",)) for name in names]

        def finite(symmetry: ModelSymmetry) -> Affine:
            M, A = frame_map(robot, symmetry, anchor, self.title), np.zeros((n * len(things),) * 2)
            for i, thing in enumerate(things):
                if (image := robot.image(symmetry, thing)) not in things:
                    to = robot.name_of(image) if image.number >= 0 else "nothing in the model"
                    raise ValueError(f"{self.title}: {symmetry.name} carries {names[i]!r} to {to!r}; add it to bodies")
                j = things.index(image)
                part = np.kron(M, robot.frame(symmetry, thing, image)) if self.is_turn else M
                A[n * j : n * (j + 1), n * i : n * (i + 1)] = part
            return A, np.zeros(len(A))

        def read(scene: Scene) -> np.ndarray:
            there = Scene(robot, scene.reference) if self.shows_goal else scene
            (place, axes), seen = scene.pose_of(anchor), map(there.pose_of, things)
            return np.concatenate([(axes.T @ R).ravel() if self.is_turn else axes.T @ (p - place) for p, R in seen])

        parts = [f"R[{i},{j}]" for i in range(3) for j in range(3)] if self.is_turn else "xyz"
        entries = tuple(
            Entry(f"{name} {self.title} {part}", "", "1" if self.is_turn else "m") for name in names for part in parts
        )
        rows = [n * k + row for k in range(len(names)) for row in (TWO_COLUMNS if self.is_turn else range(3))]
        why = "give anchor and bodies whose axes are parallel to the mirror's plane, or across it"
        return Quantity((self.kind, anchor, *things), entries, read, derivable(finite), why=why), rows


class AnchorPosition(_Seen, kind="anchor_position"):
    """The place of the reference's anchor, from the robot's, in m."""

    shows_goal = True

    def names(self, robot: Robot) -> Sequence[str]:
        return [self.anchor or robot.model.body(robot.body).name]


class AnchorOrientation(AnchorPosition, kind="anchor_orientation"):
    """The orientation of the reference's anchor, from the robot's: six numbers."""

    is_turn = True


class BodyPositions(_Seen, kind="body_positions"):
    """Places of bodies from the anchor, in m.

    Args:
        bodies: their names, in order.
    """

    bodies: Sequence[str]

    def names(self, robot: Robot) -> Sequence[str]:
        return self.bodies


class BodyOrientations(BodyPositions, kind="body_orientations"):
    """Orientations of bodies from the anchor: six numbers each."""

    is_turn = True
