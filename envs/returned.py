"""Checks of an environment's returned values against what Gymnasium asks for; they name the place in a user's code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from rppdyn.errors import UserError, is_users_class, place_in_users_code, place_of_method

__all__ = ["ReturnedError", "blamed", "held_remarks", "require_reset", "require_step"]


class ReturnedError(UserError):
    """An environment returned something else than Gymnasium asks for."""


def require_reset(env: gym.Env, returned: Any) -> Any:
    """Check the values that `reset` returned, and return them.

    Raises:
        ReturnedError: it is no pair, or its observation is not of the observation space's shape or, of a class of the user's,
            outside of its bounds.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise _wrong(env, "reset", f"returned {_described(returned)}, and must return (observation, info)")
    _require_shape(env, "reset", returned[0])
    _require_within(env, "reset", returned[0])
    return returned


def require_step(env: gym.Env, returned: Any, within: bool = False) -> Any:
    """Check the values that `step` returned, and return them.

    Args:
        within: look at the observation's bounds, too.
    Raises:
        ReturnedError: it is not five values, its observation has not the observation space's shape, or its reward is no number.
    """
    if not (isinstance(returned, tuple) and len(returned) == 5):
        must = "(observation, reward, terminated, truncated, info)"
        raise _wrong(env, "step", f"returned {_described(returned)}, and must return {must}")
    observation, reward, *_ = returned
    _require_shape(env, "step", observation)
    if within:
        _require_within(env, "step", observation)
    if not isinstance(reward, float):
        try:
            float(reward)
        except (TypeError, ValueError):
            raise _wrong(env, "step", f"returned the reward {reward!r:.80}, and must return a number") from None
    return returned


def blamed(env: gym.Env, method: str, error: Exception) -> ReturnedError | None:
    """The error to raise in place of one of Gymnasium's wrappers, into which what the user's code returned did not fit."""
    named = isinstance(error, ReturnedError) or place_in_users_code(error) is not None
    if named or not is_users_class(type(env.unwrapped)):
        return None
    return _wrong(
        env, method, f"returned what does not fit ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    )


@contextmanager
def held_remarks() -> Iterator[None]:
    """Warnings of the block are said after it; where it fails, the error says it all."""
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        yield
    for remark in remarks:
        warnings.warn_explicit(remark.message, remark.category, remark.filename, remark.lineno)


def _require_shape(env: gym.Env, method: str, observation: Any) -> None:
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and np.shape(observation) != space.shape:
        shape = np.shape(observation)
        raise _wrong(
            env, method, f"returned an observation of shape {shape}, and its observation_space has {space.shape}"
        )


def _require_within(env: gym.Env, method: str, observation: Any) -> None:
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box) or not is_users_class(type(env.unwrapped)):
        return
    values = np.asarray(observation, dtype=np.float64)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    margin = 1e-5 * (1 + np.abs(values))  # of rounding to single precision
    if (outside := np.argwhere((values < low - margin) | (values > high + margin))).size:
        at = tuple(outside[0])
        raise _wrong(
            env,
            method,
            f"returned an observation outside of its observation_space: entry {', '.join(map(str, at))} is {values[at]:g}, and "
            f"the space has [{low[at]:g}, {high[at]:g}]",
        )


def _wrong(env: gym.Env, method: str, what: str) -> ReturnedError:
    kind = type(env.unwrapped)
    place = f"{place_of_method(kind, method)}: " if is_users_class(kind) else ""
    return ReturnedError(f"{place}{kind.__name__}.{method} {what}")


def _described(returned: Any) -> str:
    return f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
