"""Tasks with a symmetry that one number breaks gradually; at 0 it is exact.

=============================  ===========  ======================================================  =================
environment                    number       what it is                                              symmetry
=============================  ===========  ======================================================  =================
rppdyn/WindyPendulum-v0        ``wind``     a steady wind on a double pendulum                      O(2), D4, D6
rppdyn/TiltedReacher-v0        ``tilt``     rad: a table on which a loaded arm is drawn downhill       O(2)
rppdyn/CurrentSwimmer-v0       ``current``  m/s: the medium flows along y, across the way           left-right
rppdyn/Navigation-v0           ``hill``     J: a hill beside the middle of a point mass's way        O(2), D8, D4
rppdyn/Swarm-v0                ``fault``    the share of its thrust that one mass of four lacks     S(4) x D(4), D(4)
=============================  ===========  ======================================================  =================

The spec is the same for any number; :func:`rppdyn.envs.certify` measures how far the symmetry is off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import mujoco
import numpy as np
from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.utils import EzPickle

from rppdyn.envs._catalogue import symmetry_choices, symmetry_spec
from rppdyn.envs._spec import SymmetrySpec
from rppdyn.envs.planar import NAVIGATION, SWARM, check_range

TILTED_REACHER = "rppdyn/TiltedReacher-v0"
CURRENT_SWIMMER = "rppdyn/CurrentSwimmer-v0"

KNOBS: Mapping[str, str] = {
    "rppdyn/WindyPendulum-v0": "wind",
    TILTED_REACHER: "tilt",
    CURRENT_SWIMMER: "current",
    NAVIGATION: "hill",
    SWARM: "fault",
}
"""The number that breaks the symmetry, by environment."""


PAYLOAD_MASS = 20.0
"""kg; mass at the Reacher's fingertip."""

MAX_TILT = 1.0
"""rad; a steeper table makes the certificate's defect larger than 1."""

TARGET_ARMATURE = 1e6
"""kg; inertia of the Reacher's target, which would otherwise slide downhill."""

BROKEN_CURRENT = 0.55
"""m/s; from this current on a certificate's defect is above 1, so the symmetry is called broken."""


class TiltedReacher(ReacherEnv):
    """Gymnasium's Reacher-v5 with a payload at its fingertip, on a table that is tilted about the x axis.

    Observation, action, reward and episodes are Reacher-v5's. Gravity pulls the payload downhill, along -y, with a torque of
    41 N m at most; the motors have 200 N m each. A turn or reflection of arm and target does not turn the hill, so O(2) is
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
        current: speed of the flow along y, m/s; 0 is Swimmer-v5.
        options: options of Swimmer-v5.
    Raises:
        ValueError: the speed is negative or not finite.

    Version history: v0, the first.
    """

    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = symmetry_choices("Swimmer-v5")
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, current: float = 0.0, **options: Any):
        self.current = check_range(CURRENT_SWIMMER, "current", current, math.inf)
        super().__init__(**options)
        EzPickle.__init__(self, current, **options)
        self.model.opt.wind[:] = np.array([0.0, self.current, 0.0])

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Swimmer-v5's spec; called by `rppdyn.envs.symmetry_spec`."""
        note = f"A current of {self.current:g} m/s along y breaks it." if self.current else ""
        return _stock_spec(CURRENT_SWIMMER, "Swimmer-v5", symmetry, note, self.current >= BROKEN_CURRENT)


def _stock_spec(env_id: str, stock: str, symmetry: str | None, note: str, broken: bool) -> SymmetrySpec:
    """A stock task's spec under another id; if there is a note, all its symmetries are approximate or broken."""
    spec = symmetry_spec(stock, symmetry=symmetry)
    verdict = "broken" if broken else "approximate"
    symmetries = tuple(s._replace(verdict=verdict, note=note) if note else s for s in spec.symmetries)
    return replace(spec, env_id=env_id, symmetries=symmetries)
