"""Joints and actions: positions, velocities, torques, controls, and the last action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene
from rppdyn.envs.terms.term import Affine, Quantity, Term, register


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
        quantity = _joint_quantity(robot, "position", "", lambda scene: scene.data.qpos[robot.places], True)
        return quantity, robot.choose_joints(self.joints)


@register("joint_velocities")
@dataclass(frozen=True, kw_only=True)
class JointVelocities(_Joints):
    """Velocities of slides and hinges."""

    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        quantity = _joint_quantity(robot, "velocity", "", lambda scene: scene.data.qvel[robot.dofs], False)
        return quantity, robot.choose_joints(self.joints)


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
