"""Symmetries of a MuJoCo model, derived from its bodies, joints and actuators with no index or sign typed in.

found = derive(model)                             # symmetries, exact and approximate, and deviations from them
print(found)
chosen = [found["left-right"], found["yaw"]]
symmetry_group(chosen); state_spaces(model, chosen)
"""

from __future__ import annotations

from rppdyn.envs.derivation._search import Derivation, derive
from rppdyn.envs.derivation._symmetrise import state_spaces, symmetrise, symmetry_group

__all__ = ["Derivation", "derive", "state_spaces", "symmetrise", "symmetry_group"]
