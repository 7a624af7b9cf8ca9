"""Observations that are dictionaries, as vectors whose entries have the names of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["dictionary_of", "flat_names", "flattened", "unflattening"]

LARGEST = 2
"""Axes of an entry that is no image."""


def flattened(env: gym.Env) -> gym.Env:
    """An environment whose observations are vectors: itself, or with dictionaries flattened by Gymnasium's FlattenObservation.

    Raises:
        ValueError: there are images, texts or graphs among the entries, or lists of any length.
    """
    if not isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
        return env
    flat_names(env.observation_space)
    return gym.wrappers.FlattenObservation(env)


def dictionary_of(env: gym.Env) -> spaces.Dict | spaces.Tuple | None:
    """The space of dictionaries that an environment's observations are flattened from; None where they are none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.FlattenObservation):
            inner = env.env.observation_space
            return inner if isinstance(inner, spaces.Dict | spaces.Tuple) else None
        env = env.env
    return None


def flat_names(space: spaces.Space, prefix: str = "") -> list[str]:
    """A name for each entry of a flattened observation, in its order: ``arm.joint[2]`` for what the keys arm and joint hold.

    One of several values has an entry for each, as Gymnasium flattens it.

    Raises:
        ValueError: naming an entry that is no vector.

    >>> flat_names(spaces.Dict(goal=spaces.Box(-1, 1, (2,)), arm=spaces.Dict(grip=spaces.Discrete(2))))
    ['goal[0]', 'goal[1]', 'arm.grip[0]', 'arm.grip[1]']
    """
    if isinstance(space, spaces.Dict):
        return [
            name
            for key, inner in space.spaces.items()
            for name in flat_names(inner, f"{prefix}.{key}" if prefix else key)
        ]
    if isinstance(space, spaces.Tuple):
        return [
            name
            for i, inner in enumerate(space.spaces)
            for name in flat_names(inner, f"{prefix}.{i}" if prefix else f"{i}")
        ]
    name = prefix or "observation"
    if isinstance(space, spaces.Box) and len(space.shape) <= LARGEST and space.dtype != np.uint8:
        return [f"{name}[{','.join(map(str, index))}]" if index else name for index in np.ndindex(*space.shape)]
    if isinstance(space, spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return [f"{name}[{i}]" for i in range(spaces.flatdim(space))]
    image = " (an image)" if isinstance(space, spaces.Box) else ""
    raise ValueError(
        f"the entry {name!r} of the observation is {_short(space)}{image}, and networks here take vectors: leave it out with "
        "gymnasium.wrappers.FilterObservation, or encode it in the environment"
    )


def unflattening(space: spaces.Space) -> Callable[[Any], Any]:
    """A map from flattened observations (n, entries) to what a policy of dictionaries takes: arrays (n, ...) by key."""

    def stacked(each: list[Any]) -> Any:
        if isinstance(each[0], dict):
            return {key: stacked([one[key] for one in each]) for key in each[0]}
        return np.stack(each)

    return lambda observations: stacked([spaces.unflatten(space, one) for one in observations])


def _short(space: spaces.Space) -> str:
    if isinstance(space, spaces.Box):
        return f"a Box of shape {space.shape} and {space.dtype}"
    return f"a {type(space).__name__}"
