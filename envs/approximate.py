"""Tasks with a symmetry that one number breaks gradually; at 0 it is exact.

=============================  ===========  ======================================================  =================
environment                    number       what it is                                              symmetry
=============================  ===========  ======================================================  =================
rppdyn/WindyPendulum-v0        ``wind``     a steady wind on a double pendulum                      O(2), D4, D6
rppdyn/TiltedReacher-v0        ``tilt``     rad: a table on which a loaded arm is drawn downhill       O(2), SO(2)
rppdyn/CurrentSwimmer-v0       ``current``  m/s: the medium flows along y, across the way           left-right
rppdyn/HeadingAnt-v0           ``payload``  kg: a load on one side of Ant-v5, which walks where it is told      D4
rppdyn/Navigation-v0           ``hill``     J: a hill beside the middle of a point mass's way        O(2), D8, D4
rppdyn/Swarm-v0                ``fault``    the share of its thrust that one mass of four lacks     S(4) x D(4), D(4)
=============================  ===========  ======================================================  =================

The group is the same for any number; :func:`rppdyn.envs.certify` measures how far the symmetry is off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import mujoco
import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.utils import EzPickle

from rppdyn.envs._catalogue import symmetry_choices, symmetry_spec
from rppdyn.envs._spec import SymmetrySpec
from rppdyn.envs.planar import NAVIGATION, SWARM, check_range

TILTED_REACHER = "rppdyn/TiltedReacher-v0"
CURRENT_SWIMMER = "rppdyn/CurrentSwimmer-v0"
HEADING_ANT = "rppdyn/HeadingAnt-v0"

KNOBS: Mapping[str, str] = {
    "rppdyn/WindyPendulum-v0": "wind",
    TILTED_REACHER: "tilt",
    CURRENT_SWIMMER: "current",
    HEADING_ANT: "payload",
    NAVIGATION: "hill",
    SWARM: "fault",
}
"""The number that breaks the symmetry, by environment."""

PAYLOAD_MASS = 20.0
"""kg; mass at the Reacher's fingertip."""

MAX_TILT = 1.0
"""rad; a vertical table's defect is 1, where a symmetry is called broken."""

TARGET_ARMATURE = 1e6
"""kg; inertia of the Reacher's target, which would otherwise slide downhill."""

MAX_PAYLOAD = 2.0  # kg

MAX_CURRENT = 2.0
"""m/s; largest current."""

BROKEN_CURRENT = 0.55
"""m/s; from this current on a certificate's defect is above 1, so the symmetry is called broken."""


class TiltedReacher(ReacherEnv):
    """Gymnasium's Reacher-v5 with a payload at its fingertip, on a table that is tilted about the x axis.

    Observation, action, reward and episodes are Reacher-v5's. Gravity pulls the payload downhill, along -y, with a torque of
    35 N m at most; the motors have 200 N m each. A turn or reflection of arm and target does not turn the hill, so O(2) is
    broken in proportion to the sine of the tilt. On a level table it is exact. The target stays where it is.

    Args:
        tilt: angle in rad, from 0, level, to 1.
        options: options of Reacher-v5.
    Raises:
        ValueError: the tilt is not between 0 and 1.

    Version history: v0, the first.
    """

    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = symmetry_choices("Reacher-v5")
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, tilt: float = 0.0, **options: Any):
        self.tilt = check_range(TILTED_REACHER, "tilt", tilt, MAX_TILT)
        super().__init__(**options)
        EzPickle.__init__(self, tilt, **options)
        model = self.model
        fingertip = model.body("fingertip").id
        model.body_inertia[fingertip] *= PAYLOAD_MASS / model.body_mass[fingertip]
        model.body_mass[fingertip] = PAYLOAD_MASS
        for name in ("target_x", "target_y"):
            model.dof_armature[model.joint(name).dofadr] = TARGET_ARMATURE
        model.opt.gravity[:] = 9.81 * np.array([0.0, -math.sin(self.tilt), -math.cos(self.tilt)])
        mujoco.mj_setConst(model, self.data)

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Reacher-v5's spec; called by `rppdyn.envs.symmetry_spec`."""
        note = f"A tilt of {self.tilt:g} rad breaks it." if self.tilt else ""
        return _stock_spec(TILTED_REACHER, "Reacher-v5", symmetry, note, broken=False)


class CurrentSwimmer(SwimmerEnv):
    """Gymnasium's Swimmer-v5 in a medium that flows across its way.

    Observation, action, reward and episodes are Swimmer-v5's. The flow drags each link along y, which the mirror image
    y -> -y reverses: left-right and planar rotation are broken by it.

    Args:
        current: speed of the flow along y, m/s, 0 to 2; 0 is Swimmer-v5.
        options: options of Swimmer-v5.
    Raises:
        ValueError: the speed is not between 0 and 2.

    Version history: v0, the first.
    """

    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = symmetry_choices("Swimmer-v5")
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, current: float = 0.0, **options: Any):
        self.current = check_range(CURRENT_SWIMMER, "current", current, MAX_CURRENT)
        super().__init__(**options)
        EzPickle.__init__(self, current, **options)
        self.model.opt.wind[:] = np.array([0.0, self.current, 0.0])

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Swimmer-v5's spec; called by `rppdyn.envs.symmetry_spec`."""
        note = f"A current of {self.current:g} m/s along y breaks it." if self.current else ""
        return _stock_spec(CURRENT_SWIMMER, "Swimmer-v5", symmetry, note, self.current >= BROKEN_CURRENT)


class HeadingAnt(AntEnv):
    """Gymnasium's Ant-v5, which is to walk in a direction drawn for each episode, with a load on one side.

    Observation (31,): Ant-v5's positions and velocities without contact forces, and those of a mark at the heading, a unit
    vector in the plane that stays as it is: entries 13 and 14, and two zeros at the end. Action: Ant-v5's, at half its torque.
    Reward: the speed along the heading, m/s; Ant-v5's other terms, and ends of episodes, are options that are off. Yaw and
    heading are drawn at each reset. A step is 0.1 s, an episode 100 steps, or until the ant lies on its back.

    D4's quarter turn is of the torso's own axes and legs, and leaves the world as it is. "left-right" reflects both, and "yaw",
    of the choice "D4 x SO(2)", turns the world.

    Args:
        payload: kg, 0 to 2, 0.1 m above the torso's centre and 0.25 m to the first leg's side; the ant has 0.91 kg.
        options: options of Ant-v5.
    Raises:
        ValueError: the payload is out of range.

    Version history: v0, the first.
    """

    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "D4": ("quarter turn", "left-right"), "D4 x SO(2)": ("quarter turn", "left-right", "yaw"),
    }  # fmt: skip
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, payload: float = 0.0, **options: Any):
        self.payload = check_range(HEADING_ANT, "payload", payload, MAX_PAYLOAD)
        off = ("healthy_reward", "ctrl_cost_weight", "contact_cost_weight", "terminate_when_unhealthy",
               "include_cfrc_ext_in_observation")  # fmt: skip
        super().__init__(**{"frame_skip": 10, **dict.fromkeys(off, 0), **options})
        EzPickle.__init__(self, payload, **options)

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        spec = mujoco.MjSpec.from_file(self.fullpath)
        mark = spec.worldbody.add_body(name="mark")
        slide = dict(type=mujoco.mjtJoint.mjJNT_SLIDE, armature=TARGET_ARMATURE, limited=False, damping=0)
        mark.add_joint(name="heading_x", axis=[1, 0, 0], **slide)
        mark.add_joint(name="heading_y", axis=[0, 1, 0], **slide)
        drawn_only = dict(type=mujoco.mjtGeom.mjGEOM_SPHERE, contype=0, conaffinity=0)
        mark.add_geom(size=[0.05, 0, 0], rgba=[0.8, 0.4, 0.2, 1], **drawn_only)
        if self.payload:
            ball = dict(mass=self.payload, pos=[0.18, 0.18, 0.1], size=[0.1, 0, 0], rgba=[0.75, 0.2, 0.2, 1])
            spec.body("torso").add_geom(**ball, **drawn_only)
        model = spec.compile()
        model.actuator_gear /= 2
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def reset_model(self) -> np.ndarray:
        super().reset_model()
        yaw, heading = 2 * np.pi * self.np_random.random(2)
        qpos, qvel = self.data.qpos.copy(), self.data.qvel.copy()
        mujoco.mju_mulQuat(qpos[3:7], np.array([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]), self.data.qpos[3:7])
        qpos[-2:], qvel[-2:] = (math.cos(heading), math.sin(heading)), 0.0
        self.set_state(qpos, qvel)
        return self._get_obs()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.float64, bool, bool, dict[str, np.float64]]:
        obs, reward, terminated, truncated, info = super().step(action)
        forward = self._forward_reward_weight * np.dot((info["x_velocity"], info["y_velocity"]), self.data.qpos[-2:])
        terminated = bool(terminated or self.data.body("torso").xmat[8] < 0)
        return obs, reward - info["reward_forward"] + forward, terminated, truncated, info | {"reward_forward": forward}


def _stock_spec(env_id: str, stock: str, symmetry: str | None, note: str, broken: bool) -> SymmetrySpec:
    """A stock task's spec under another id; if there is a note, all its symmetries are approximate or broken."""
    spec = symmetry_spec(stock, symmetry=symmetry)
    verdict = "broken" if broken else "approximate"
    symmetries = tuple(s._replace(verdict=verdict, note=note) if note else s for s in spec.symmetries)
    return replace(spec, env_id=env_id, symmetries=symmetries)
