"""A model with a base and a default pose, and the scene from which the terms of an observation are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import mujoco
import numpy as np

from rppdyn import settings
from rppdyn.envs._model_symmetry import (
    FREE,
    JOINT_TRANSMISSIONS,
    TRANSMISSION,
    ModelSymmetry,
    joint_name,
    scalar_joints,
)
from rppdyn.envs.observation._quantities import Fixtures

Pose = Mapping[str, float] | Sequence[float] | str | None
"""A default pose: angles by joint (names or regular expressions) or in the model's order, or a keyframe's name."""


class ModelElement(NamedTuple):
    """A body, geom, site or camera, by its number in the model."""

    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class Robot:
    """A MuJoCo model with a base and a default pose.

    Args:
        model: the model.
        base: name of the body of base velocities, gravity and scans; by default the body with a free joint.
        pose: default pose of slides and hinges; None for the model's `qpos0`.
    Raises:
        ValueError: no such body, joint or keyframe.
    """

    model: mujoco.MjModel
    base: str = ""
    pose: Pose = None

    @cached_property
    def body(self) -> int:
        """Number of the base."""
        if self.base:
            return self.find_element(self.base, ("body",)).number
        free = np.flatnonzero(self.model.jnt_type == FREE)
        moving = np.flatnonzero(self.model.body_weldid != 0)
        return int(self.model.jnt_bodyid[free[0]]) if len(free) else int(moving[0])

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Names of slides and hinges, in the model's order."""
        return tuple(joint_name(self.model, j) for j in scalar_joints(self.model))

    @cached_property
    def places(self) -> np.ndarray:
        """Indices of the joints' positions in `qpos`."""
        return self.model.jnt_qposadr[scalar_joints(self.model)]

    @cached_property
    def dofs(self) -> np.ndarray:
        """Indices of the joints' velocities in `qvel`."""
        return self.model.jnt_dofadr[scalar_joints(self.model)]

    @cached_property
    def default(self) -> np.ndarray:
        """The default pose, one number per joint."""
        angles, pose = self.model.qpos0[self.places].copy(), self.pose
        if isinstance(pose, str):
            names = [self.model.key(k).name for k in range(self.model.nkey)]
            return self.model.key_qpos[names.index(choose([pose], names, "keyframe")[0])][self.places]
        if pose is None:
            return angles
        if not isinstance(pose, Mapping | Sequence | np.ndarray):
            raise ValueError(f"default pose {pose!r}: give angles by joint, a list of them, or a keyframe's name")
        for angle in pose.values() if isinstance(pose, Mapping) else pose:
            if not isinstance(angle, int | float | np.number) or not np.isfinite(angle):
                raise ValueError(f"default pose: the angle {angle!r} is no finite number")
        if isinstance(pose, Mapping):
            for name, angle in pose.items():
                angles[self.choose_joints([name])] = angle
            return angles
        if len(pose) != len(angles):
            raise ValueError(f"default pose of {len(pose)} numbers, the model has {len(angles)} joints")
        return np.array(pose, dtype=np.float64)

    @cached_property
    def idle_joints(self) -> set[str]:
        """Joints that no actuator moves; none if there are no actuators, or some on bodies, sites or spatial tendons."""
        model, moved = self.model, set()
        for kind, (target, _) in zip(model.actuator_trntype, model.actuator_trnid, strict=True):
            if kind in JOINT_TRANSMISSIONS:
                moved.add(target)
            elif kind == TRANSMISSION.TENDON:
                first, count = model.tendon_adr[target], model.tendon_num[target]
                wraps = slice(first, first + count)
                if (model.wrap_type[wraps] != mujoco.mjtWrap.mjWRAP_JOINT).any():
                    return set()  # a spatial tendon may move all joints between its sites
                moved |= set(model.wrap_objid[wraps])
            else:
                return set()
        if not moved:
            return set()
        return {name for name, joint in zip(self.joints, scalar_joints(model), strict=True) if joint not in moved}

    def choose_joints(self, names: Sequence[str] | None) -> list[int]:
        """Numbers of the joints with these names or regular expressions; None for all."""
        if names is None:
            return list(range(len(self.joints)))
        return [self.joints.index(name) for name in choose(names, self.joints, "joint")]

    def find_element(self, name: str, kinds: Sequence[str] = ("body", "site", "geom")) -> ModelElement:
        """The body, site or geom of this name.

        Raises:
            ValueError: there is none.
        """
        for kind in kinds:
            number = mujoco.mj_name2id(self.model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), name)
            if number >= 0:
                return ModelElement(kind, number)
        known = [
            self.name_of(ModelElement(kind, i))
            for kind in kinds
            for i in range(getattr(self.model, f"n{'cam' if kind == 'camera' else kind}"))
        ]
        raise ValueError(f"the model has no {' or '.join(kinds)} {name!r}{did_you_mean(name, known)}")

    def name_of(self, element: ModelElement) -> str:
        return getattr(self.model, element.kind)(element.number).name

    @cached_property
    def _fixtures(self) -> dict[str, Fixtures]:
        return {kind: Fixtures(self.model, kind) for kind in ("body", "site", "geom")}

    def image(self, symmetry: ModelSymmetry, element: ModelElement) -> ModelElement:
        """The element to which a symmetry carries an element; its number is -1 without one."""
        if symmetry.is_continuous:
            return element
        return ModelElement(element.kind, int(self._fixtures[element.kind].images(symmetry)[element.number]))

    def frame(self, symmetry: ModelSymmetry, element: ModelElement, image: ModelElement) -> np.ndarray:
        """The map from the axes of an element to those of its image, (3, 3)."""
        return self._fixtures[element.kind].frame(symmetry, element.number, image.number)

    def parent(self, element: ModelElement) -> int:
        """The body to which an element is fixed."""
        return int(self._fixtures[element.kind].bodies[element.number])


@dataclass
class Scene:
    """The source of an observation: the simulator's state, and what the task adds to it.

    Args:
        robot: the robot.
        data: the state, after `mujoco.mj_forward`.
        action: the last action.
        goal: a state whose base moves as commanded, or a state of a reference motion; None for `data`.
        phase: the gait's clock, in periods.
        feet: phases of feet by name, if they don't follow the clock.
        terrain: function from points (n, 2) of the world to the height of the ground; None for flat ground.
        given: vectors in the world's axes and scalars, by the label of their term.
    """

    robot: Robot
    data: mujoco.MjData
    action: np.ndarray | None = None
    goal: mujoco.MjData | None = None
    phase: float = 0.0
    feet: Mapping[str, float] = field(default_factory=dict)
    terrain: Callable[[np.ndarray], np.ndarray] | None = None
    given: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def reference(self) -> Scene:
        """The scene of the goal, or this one without a goal."""
        return self if self.goal is None else Scene(self.robot, self.goal)

    def pose_of(self, element: ModelElement) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and axes (3, 3) of an element in the world."""
        view = getattr(self.data, element.kind)(element.number)
        return view.xpos, view.xmat.reshape(3, 3)

    def velocity_of(self, element: ModelElement) -> tuple[np.ndarray, np.ndarray]:
        """Linear and angular velocity of an element in the world's axes."""
        kind = {"body": "XBODY", "site": "SITE", "geom": "GEOM"}[element.kind]
        velocity = np.zeros(6)
        object_type = getattr(mujoco.mjtObj, f"mjOBJ_{kind}")
        mujoco.mj_objectVelocity(self.robot.model, self.data, object_type, element.number, velocity, 0)
        return velocity[3:], velocity[:3]

    def heading(self, element: ModelElement) -> np.ndarray:
        """The rotation about the vertical by the azimuth of an element's first axis, (3, 3)."""
        x = self.pose_of(element)[1][:2, 0]
        c, s = x / max(float(np.linalg.norm(x)), 1e-12)
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    def contact_force(self, element: ModelElement) -> np.ndarray:
        """The force of contacts on an element's body, or on the geom, in N and in the world's axes."""
        model = self.robot.model
        geoms = {element.number}
        if element.kind != "geom":
            geoms = set(np.flatnonzero(model.geom_bodyid == self.robot.parent(element)))
        total, wrench = np.zeros(3), np.zeros(6)
        for i in range(self.data.ncon):
            contact = self.data.contact[i]
            sign = (int(contact.geom[1]) in geoms) - (int(contact.geom[0]) in geoms)
            if sign:
                mujoco.mj_contactForce(model, self.data, i, wrench)
                total += sign * contact.frame.reshape(3, 3).T @ wrench[:3]
        return total


def choose(names: Sequence[str], known: Sequence[str], kind: str) -> list[str]:
    """Choose known names by names or regular expressions, in the order of these.

    Raises:
        ValueError: nothing matches, or a name is chosen twice.
    """
    if isinstance(names, str):
        raise ValueError(f"{kind}s {names!r}: give a list of names")
    chosen: list[str] = []
    for name in names:
        try:
            matches = [name] if name in known else [key for key in known if re.fullmatch(name, key)]
        except re.error:
            matches = []
        if not matches:
            raise ValueError(f"the model has no {kind} {name!r}{did_you_mean(name, known)}")
        if duplicates := sorted(set(matches) & set(chosen)):
            raise ValueError(f"{kind} {duplicates[0]!r} is named twice; leave one out")
        chosen += matches
    return chosen


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """End of a message about an unknown name: the nearest known one, or a list of known ones."""
    known = [key for key in known if key]
    return settings.did_you_mean(name, known) or f"; known: {', '.join(known[:30]) or 'none'}"
