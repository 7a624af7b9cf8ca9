"""A list of terms compiled for a model: the spec, and functions that compute the observation from the simulator's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.linalg import block_diag

from rppdyn.envs.derivation import Derivation, state_spaces, symmetry_group
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.spec import Space, Symmetry, SymmetrySpec
from rppdyn.envs.terms.layout import Layout, action_layout, observation_groups
from rppdyn.envs.terms.robot import Pose, Robot, Scene

__all__ = ["CompiledTerms", "compile_terms", "read_terms"]

KEYS = ("observation", "action", "symmetry", "base", "default_pose")


@dataclass(frozen=True, eq=False)
class CompiledTerms:
    """What a list of terms means for a model.

    Args:
        name: of the model.
        robot: the model with its base and default pose.
        symmetries: the ones that act.
        groups: the layout of each observation group; the name is "" where there is one list of terms.
        action: the layout of the action.
        spec: the symmetry of observation and action, plain data.
    """

    name: str
    robot: Robot
    symmetries: tuple[ModelSymmetry, ...]
    groups: Mapping[str, Layout]
    action: Layout
    spec: SymmetrySpec

    @property
    def history(self) -> int:
        """How many time steps an observation looks back, the newest included."""
        return max(group.history for group in self.groups.values())

    def read(self, scenes: Sequence[Scene]) -> np.ndarray:
        """The raw observation, all groups one after the other, of scenes with the newest last."""
        return np.concatenate([group.read(scenes) for group in self.groups.values()])


def compile_terms(
    model: mujoco.MjModel,
    derivation: Derivation,
    names: Sequence[str],
    observation: Any,
    action: Any = None,
    base: str = "",
    default_pose: Pose = None,
    name: str = "model",
) -> CompiledTerms:
    """The spec of terms and how they are read.

    Args:
        model: the robot.
        derivation: its symmetries.
        names: of those that act.
        observation: a list of terms, or groups of them by name (see `rppdyn.envs.terms`).
        action: terms that the policy moves; None is the model's controls, or targets of all joints where it has none.
        base: the body that base velocities and scans belong to; empty is the one with a free joint.
        default_pose: that positions are relative to (`rppdyn.envs.terms.robot.Robot`).
        name: of the model, for messages.
    Raises:
        ValueError: an unknown term, joint or foot; an entry whose image is not observed, or no linear function.
    """
    chosen = tuple(derivation[one] for one in names)
    robot = Robot(model, base, default_pose)
    _ = robot.default  # a pose that is none is refused, whether or not it is used
    acting = action_layout(robot, action, chosen)
    groups = observation_groups(robot, observation, chosen, acting)
    parts = [group.space for group in groups.values()]
    firsts = np.cumsum([0, *(part.dim for part in parts)])
    obs = parts[0] if len(parts) == 1 else Space(
        [e._replace(name=f"{group}: {e.name}") for group, part in zip(groups, parts, strict=True) for e in part.entries],
        [block_diag(*m) for m in zip(*(part.discrete_generators for part in parts), strict=True)],
        [block_diag(*m) for m in zip(*(part.lie_algebra for part in parts), strict=True)],
        [c for part in parts for c in part.origin],
        quaternions=[int(first) + i for first, part in zip(firsts, parts, strict=False) for i in part.quaternions],
    )  # fmt: skip
    state = {key: space for key, space in state_spaces(model, chosen).items() if key in ("qpos", "qvel")}
    symmetries = tuple(Symmetry(s.name, note=" ".join(f"{d}." for d in s.deviations[:3])) for s in chosen)
    named = tuple((group, part.dim) for group, part in zip(groups, parts, strict=True)) if "" not in groups else ()
    spec = SymmetrySpec(
        name, symmetry_group(chosen), obs, acting.space, symmetries=symmetries, observation_groups=named, **state
    )
    return CompiledTerms(name, robot, chosen, groups, acting, spec)


def read_terms(path: str | Path) -> dict[str, Any]:
    """The content of a YAML file of terms: `observation`, and perhaps `action`, `symmetry`, `base`, `default_pose`.

    Raises:
        ValueError: no such file, no YAML, or an unknown key.
    """
    from omegaconf import OmegaConf  # reads 3e-4 as a number
    from yaml import YAMLError

    try:
        found = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        raise ValueError(f"there is no file of terms {str(path)!r}") from None
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"can't read terms from {path}: {' '.join(str(error).split())}") from None
    if isinstance(found, list):
        found = {"observation": found}
    if not isinstance(found, dict) or "observation" not in found:
        raise ValueError(f"{path} holds no terms; give a list of them, or a mapping with the key observation")
    if unknown := [key for key in found if key not in KEYS]:
        raise ValueError(f"{path} has an unknown key {unknown[0]!r}; known: {', '.join(KEYS)}")
    return {str(key): value for key, value in found.items()}
