"""Wrappers around an environment: which of them act on its steps, and copies of those that can be stepped from any state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

__all__ = ["acting_wrappers", "observation_function", "step_wrappers", "without_passive"]

PASSIVE = {
    "gymnasium": {
        "Wrapper", "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo", "Autoreset",
        "RenderCollection", "HumanRendering", "AddWhiteNoise", "ObstructView",
    },
    "stable_baselines3": {"Monitor"},
    "rppdyn": {"Resumable"},
}  # fmt: skip
"""By package, classes whose `step` and `reset` count, check, record or render, and leave dynamics and rewards alone."""


def layers(env: gym.Env) -> Iterator[gym.Wrapper]:
    """The wrappers, from the outermost to the innermost."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


def is_passive(wrapper: gym.Wrapper) -> bool:
    """Whether a wrapper's `step` and `reset` are those of a class in `PASSIVE`."""
    methods = (type(wrapper).step, type(wrapper).reset)
    return all(m.__qualname__.partition(".")[0] in PASSIVE.get(m.__module__.partition(".")[0], ()) for m in methods)


def acting_wrappers(env: gym.Env) -> list[gym.Wrapper]:
    """The wrappers that change actions, observations, rewards or resets, from the outermost to the innermost."""
    return [layer for layer in layers(env) if not is_passive(layer)]


def step_wrappers(env: gym.Env) -> list[gym.Wrapper]:
    """The acting wrappers less those that only map observations, which a symmetry spec of the environment accounts for."""

    def maps_observations(layer: gym.Wrapper) -> bool:
        kind, plain = type(layer), gym.ObservationWrapper
        return isinstance(layer, plain) and kind.step is plain.step and kind.reset is plain.reset

    return [layer for layer in acting_wrappers(env) if not maps_observations(layer)]


def without_passive(env: gym.Env) -> gym.Env:
    """Copies of the acting wrappers around the environment itself, which is not copied.

    Stepping them ends no episode by a time limit, writes no file, and leaves the original wrappers' own attributes alone.
    """
    made = base = env.unwrapped
    memo = {id(shared): shared for shared in (base, getattr(base, "model", None), getattr(base, "data", None))}
    for layer in reversed(list(layers(env))):
        if not is_passive(layer):
            clone = object.__new__(type(layer))
            memo[id(layer)] = clone
            for key, value in vars(layer).items():
                vars(clone)[key] = made if key == "env" else _copy(value, memo)
            made = clone
        memo[id(layer)] = made
    return made


def observation_function(env: gym.Env) -> Callable[[], Any]:
    """The observation of the simulator's present state: `_get_obs` of the environment, through its observation wrappers."""
    maps = [layer.observation for layer in layers(env) if isinstance(layer, gym.ObservationWrapper)]
    base: Any = env.unwrapped

    def observe() -> Any:
        observation = base._get_obs()
        for function in reversed(maps):
            observation = function(observation)
        return observation

    return observe


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, or the value itself where there is none (an open file, a lock)."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value
