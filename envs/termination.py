"""When an episode ends, as a function of observations: for rollouts of models, which have no simulator to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rppdyn.envs.making import env_name

Termination = Callable[[Float[Tensor, "*batch n"]], Bool[Tensor, "*batch"]]

POLE_LENGTH = 0.6  # m, of each of InvertedDoublePendulum's


def termination(env: gym.Env) -> Termination:
    """Rule by which an episode ends, not by its time limit, on arriving at raw observations ``(*batch, n)``.

    It follows the environment's own rule and options for Gymnasium's MuJoCo tasks of version 5, and calls
    `terminates(observations)` of environments that have such a method. An observation with an entry that is not finite ends an
    episode in all of them.

    Raises:
        ValueError: another environment, or one whose observation does not show what its rule asks for.
    """
    base = env.unwrapped
    if callable(terminates := getattr(base, "terminates", None)):
        return lambda observations: terminates(observations) | ~observations.isfinite().all(-1)
    task = type(base).__name__.removesuffix("Env")
    rules = {
        "InvertedPendulum": _pendulum,
        "InvertedDoublePendulum": _double_pendulum,
        "Hopper": _planar,
        "Walker2d": _planar,
        "Ant": _floating,
        "Humanoid": _floating,
        **dict.fromkeys(("HalfCheetah", "HumanoidStandup", "Pusher", "Reacher", "Swimmer"), _never),
    }
    if task not in rules or not type(base).__module__.endswith("_v5"):
        raise ValueError(
            f"{env_name(env)}: when its episodes end is not known; give terminates=, a function of observations, or the "
            "environment a method of that name"
        )
    ends = rules[task](base)
    return lambda observations: ends(observations) | ~observations.isfinite().all(-1)


def _never(base: Any) -> Termination:
    return lambda observations: torch.zeros(observations.shape[:-1], dtype=torch.bool, device=observations.device)


def _pendulum(base: Any) -> Termination:
    return lambda observations: observations[..., 1].abs() > 0.2


def _double_pendulum(base: Any) -> Termination:
    """The tip is at 1 m or lower; the observation has sines and cosines of both joints."""

    def ends(observations: Tensor) -> Tensor:
        sin1, sin2, cos1, cos2 = observations[..., 1:5].unbind(-1)
        return POLE_LENGTH * (cos1 + cos1 * cos2 - sin1 * sin2) <= 1

    return ends


def _planar(base: Any) -> Termination:
    """Height and pitch within their ranges; Hopper bounds all other entries of the state too, after clipping speeds at 10."""
    if not base._terminate_when_unhealthy:
        return _never(base)
    first = 0 if base._exclude_current_positions_from_observation else 1
    (low, high), (least, most) = base._healthy_z_range, base._healthy_angle_range
    bounds = getattr(base, "_healthy_state_range", (-torch.inf, torch.inf))

    def ends(observations: Tensor) -> Tensor:
        z, angle, others = observations[..., first], observations[..., first + 1], observations[..., first + 1 :]
        healthy = (low < z) & (z < high) & (least < angle) & (angle < most)
        return ~(healthy & ((bounds[0] < others) & (others < bounds[1])).all(-1))

    return ends


def _floating(base: Any) -> Termination:
    """The torso's height within its range."""
    if not base._terminate_when_unhealthy:
        return _never(base)
    at = 0 if base._exclude_current_positions_from_observation else 2
    low, high = base._healthy_z_range
    strict = type(base).__name__ == "HumanoidEnv"

    def ends(observations: Tensor) -> Tensor:
        z = observations[..., at]
        return ~((low < z) & (z < high)) if strict else ~((low <= z) & (z <= high))

    return ends
