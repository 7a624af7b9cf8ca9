"""A model as terms see it: its base, its joints by name and order, its feet, and the scene that an observation is read from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

import mujoco
import numpy as np

from rppdyn.envs.model_symmetry import FREE, TRANSMISSION, ModelSymmetry, scalar_joints
from rppdyn.envs.observation.quantities import Fixtures

JOINT_TRANSMISSIONS = (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT)
"""Kinds of actuators that act on one joint."""

Pose = Mapping[str, float] | Sequence[float] | str | None
"""A default pose: angles by joint (names or regular expressions), or in the model's order, or a keyframe's name."""


class Thing(NamedTuple):
    """A body, geom, site or camera, by its number."""

    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class Robot:
    """A MuJoCo model with a base and a default pose.

    Args:
        model: the model.
        base: name of the body that base velocities, gravity and scans belong to; empty means the body with a free joint.
        pose: the default pose of slides and hinges; None is the model's own.
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
            return self.thing(self.base, ("body",)).number
        free = np.flatnonzero(self.model.jnt_type == FREE)
        moving = np.flatnonzero(self.model.body_weldid != 0)
        return int(self.model.jnt_bodyid[free[0]]) if len(free) else int(moving[0])

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Names of slides and hinges, in the model's order."""
        return tuple(self.model.joint(j).name or f"joint {j}" for j in scalar_joints(self.model))

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
        """The default pose: one number per joint."""
        pose, described = self.model.qpos0[self.places].copy(), self.pose
        if isinstance(described, str):
            names = [self.model.key(k).name for k in range(self.model.nkey)]
            return self.model.key_qpos[names.index(choose([described], names, "keyframe")[0])][self.places]
        if described is None:
            return pose
        if not isinstance(described, Mapping | Sequence | np.ndarray):
            raise ValueError(f"default pose {described!r}: give angles by joint, a list of them, or a keyframe's name")
        for angle in described.values() if isinstance(described, Mapping) else described:
            if not isinstance(angle, int | float | np.number) or not np.isfinite(angle):
                raise ValueError(f"default pose: the angle {angle!r} is no finite number")
        if isinstance(described, Mapping):
            for name, angle in described.items():
                pose[self.choose_joints([name])] = angle
            return pose
        if len(described) != len(pose):
            raise ValueError(f"default pose of {len(described)} numbers, the model has {len(pose)} joints")
        return np.array(described, dtype=np.float64)

    @cached_property
    def idle_joints(self) -> set[str]:
        """Joints that none of the model's actuators moves; none where it has no actuators, or some that push bodies."""
        model, moved = self.model, set()
        for kind, (target, _) in zip(model.actuator_trntype, model.actuator_trnid, strict=True):
            if kind in JOINT_TRANSMISSIONS:
                moved.add(target)
            elif kind == TRANSMISSION.TENDON:
                first, count = model.tendon_adr[target], model.tendon_num[target]
                wraps = slice(first, first + count)
                if (model.wrap_type[wraps] != mujoco.mjtWrap.mjWRAP_JOINT).any():
                    return set()  # along sites, whose bodies all joints between may move
                moved |= set(model.wrap_objid[wraps])
            else:
                return set()
        if not moved:
            return set()
        return {name for name, joint in zip(self.joints, scalar_joints(model), strict=True) if joint not in moved}

    def choose_joints(self, names: Sequence[str] | None) -> list[int]:
        """Numbers of joints, by names or regular expressions; None means all."""
        if names is None:
            return list(range(len(self.joints)))
        return [self.joints.index(name) for name in choose(names, self.joints, "joint")]

    def thing(self, name: str, kinds: Sequence[str] = ("body", "site", "geom")) -> Thing:
        """The body, site or geom of this name.

        Raises:
            ValueError: there is none.
        """
        for kind in kinds:
            number = mujoco.mj_name2id(self.model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), name)
            if number >= 0:
                return Thing(kind, number)
        known = [
            self.name_of(Thing(kind, i)) for kind in kinds for i in range(getattr(self.model, f"n{_COUNTS[kind]}"))
        ]
        raise ValueError(f"the model has no {' or '.join(kinds)} {name!r}{did_you_mean(name, known)}")

    def name_of(self, thing: Thing) -> str:
        return getattr(self.model, thing.kind)(thing.number).name

    @cached_property
    def _fixtures(self) -> dict[str, Fixtures]:
        return {kind: Fixtures.from_model(self.model, kind) for kind in ("body", "site", "geom")}

    def image(self, symmetry: ModelSymmetry, thing: Thing) -> Thing:
        """The thing to which a symmetry carries a thing; its index is -1 if there is none."""
        if symmetry.is_continuous:
            return thing
        return Thing(thing.kind, int(self._fixtures[thing.kind].images(symmetry)[thing.number]))

    def frame(self, symmetry: ModelSymmetry, thing: Thing, image: Thing) -> np.ndarray:
        """The map from the axes of a thing to those of its image, (3, 3)."""
        return self._fixtures[thing.kind].frame(symmetry, thing.number, image.number)

    def parent(self, thing: Thing) -> int:
        """The body that a thing belongs to."""
        return int(self._fixtures[thing.kind].bodies[thing.number])


_COUNTS = {"body": "body", "site": "site", "geom": "geom", "camera": "cam"}


@dataclass
class Scene:
    """The source of an observation: the simulator's state, and what the task adds to it.

    Args:
        robot: whose.
        data: the state; `mujoco.mj_forward` was called.
        action: the last action.
        goal: a state whose base moves as the command says, or that of a reference motion; None is `data`.
        phase: the gait's clock, in periods.
        feet: phases of feet by name, where they are free of the clock.
        terrain: height of the ground at points (n, 2) of the world; None is flat ground.
        given: world vectors and scalars by the name of a term.
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
    def reference(self) -> mujoco.MjData:
        """The goal, or the state where there is none."""
        return self.data if self.goal is None else self.goal

    def pose_of(self, thing: Thing) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and axes (3, 3) of a thing in the world."""
        prefix = {"body": "x", "site": "site_x", "geom": "geom_x", "camera": "cam_x"}[thing.kind]
        position, axes = (getattr(self.data, f"{prefix}{key}")[thing.number] for key in ("pos", "mat"))
        return position, axes.reshape(3, 3)

    def velocity_of(self, thing: Thing, data: mujoco.MjData | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Linear and angular velocity of a thing in the world's axes."""
        kind = {"body": "XBODY", "site": "SITE", "geom": "GEOM"}[thing.kind]
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(
            self.robot.model, self.data if data is None else data, getattr(mujoco.mjtObj, f"mjOBJ_{kind}"),
            thing.number, velocity, 0,
        )  # fmt: skip
        return velocity[3:], velocity[:3]

    def heading(self, thing: Thing) -> np.ndarray:
        """The turn about the vertical that a thing's first axis has, (3, 3)."""
        x = self.pose_of(thing)[1][:2, 0]
        c, s = x / max(float(np.linalg.norm(x)), 1e-12)
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    def contact_force(self, thing: Thing) -> np.ndarray:
        """The force in N, in the world's axes, that contacts exert on the geoms of a thing's body (or on the geom)."""
        model = self.robot.model
        mine = (
            {thing.number}
            if thing.kind == "geom"
            else set(np.flatnonzero(model.geom_bodyid == self.robot.parent(thing)))
        )
        total, wrench = np.zeros(3), np.zeros(6)
        for i in range(self.data.ncon):
            contact = self.data.contact[i]
            sign = (int(contact.geom[1]) in mine) - (int(contact.geom[0]) in mine)
            if sign:
                mujoco.mj_contactForce(model, self.data, i, wrench)
                total += sign * contact.frame.reshape(3, 3).T @ wrench[:3]
        return total


def choose(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """The known names that are named, each a name or a regular expression, in the order in which they are.

    Raises:
        ValueError: nothing has such a name, or one is named twice.
    """
    if isinstance(names, str):
        raise ValueError(f"{what}s {names!r}: give a list of names")
    chosen: list[str] = []
    for name in names:
        try:
            more = [name] if name in known else [one for one in known if re.fullmatch(name, one)]
        except re.error:
            more = []
        if not more:
            raise ValueError(f"the model has no {what} {name!r}{did_you_mean(name, known)}")
        if twice := sorted(set(more) & set(chosen)):
            raise ValueError(f"{what} {twice[0]!r} is named twice; leave one out")
        chosen += more
    return chosen


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a message on a name that is none of the known ones: the nearest of these, or some of them."""
    known = [one for one in known if one]
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known[:30]) or 'none'}"
