"""Wrappers of environments: which of them act, flattening of dictionaries, and checks of what environments return."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from rppdyn.errors import UserError, is_users_class, place_in_users_code, place_of_method


class Passive(NamedTuple):
    """A class whose `step` and `reset` only count, check, record or render, and leave dynamics and rewards as they are.

    Args:
        package: package of the class.
        remembers: attributes that belong to a captured state; None for all of them.
        is_transparent: observations, actions and episodes are the same without it, so a dataset does not record it.
    """

    package: str = "gymnasium"
    remembers: tuple[str, ...] | None = None
    is_transparent: bool = False


PASSIVE = {
    "Wrapper": Passive(),
    "TimeLimit": Passive(remembers=("_elapsed_steps",)),
    "OrderEnforcing": Passive(remembers=("_has_reset",)),
    "PassiveEnvChecker": Passive(remembers=("checked_reset", "checked_step", "checked_render", "close_called")),
    "RecordEpisodeStatistics": Passive(is_transparent=True),
    "RecordVideo": Passive(),
    "Autoreset": Passive(),
    "RenderCollection": Passive(),
    "HumanRendering": Passive(),
    "AddWhiteNoise": Passive(),
    "ObstructView": Passive(),
    "Monitor": Passive("stable_baselines3", (
        "rewards", "needs_reset", "episode_returns", "episode_lengths", "episode_times", "total_steps",
        "current_reset_info",
    ), is_transparent=True),
    "Resumable": Passive("rppdyn", (), is_transparent=True),
}  # fmt: skip
"""Passive wrappers by class name; PassiveEnvChecker checks the first steps only."""


def refuse_vector_env(env: Any) -> None:
    """Refuse Gymnasium's vector environments, which step several environments at once.

    Raises:
        ValueError: `env` is one.
    """
    if isinstance(env, gym.vector.VectorEnv):
        name, n = env.spec.id if env.spec is not None else "ID", env.num_envs
        raise ValueError(
            f"{type(env).__name__} is a vector environment of Gymnasium's: give one environment, or for {n} at once a VecEnv "
            f"of stable-baselines3's, make_vec_env({name!r}, n_envs={n}) (agent.num_envs={n} on the command line)"
        )


def layers(env: gym.Env) -> Iterator[gym.Wrapper]:
    """The wrappers, from the outermost to the innermost."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


def is_passive(wrapper: gym.Wrapper) -> bool:
    """Check whether a wrapper's `step` and `reset` are those of a class in `PASSIVE`."""
    return all(
        (known := PASSIVE.get(method.__qualname__.partition(".")[0])) is not None
        and method.__module__.partition(".")[0] == known.package
        for method in (type(wrapper).step, type(wrapper).reset)
    )


def acting_wrappers(env: gym.Env) -> list[gym.Wrapper]:
    """The wrappers that change actions, observations, rewards or resets, from the outermost to the innermost."""
    return [layer for layer in layers(env) if not is_passive(layer)]


def step_wrappers(env: gym.Env) -> list[gym.Wrapper]:
    """The acting wrappers that do more than map observations, which a symmetry spec accounts for."""

    def maps_observations(layer: gym.Wrapper) -> bool:
        kind, mapping = type(layer), gym.ObservationWrapper
        return isinstance(layer, mapping) and kind.step is mapping.step and kind.reset is mapping.reset

    return [layer for layer in acting_wrappers(env) if not maps_observations(layer)]


def without_passive(env: gym.Env) -> gym.Env:
    """Copies of the acting wrappers around the environment itself, which is not copied.

    They end no episode by a time limit, write no file, and leave the original wrappers' attributes as they are.
    """
    copied = base = env.unwrapped
    memo = {id(shared): shared for shared in (base, getattr(base, "model", None), getattr(base, "data", None))}
    for layer in reversed(list(layers(env))):
        if not is_passive(layer):
            clone = object.__new__(type(layer))
            memo[id(layer)] = clone
            for key, value in vars(layer).items():
                vars(clone)[key] = copied if key == "env" else _copy(value, memo)
            copied = clone
        memo[id(layer)] = copied
    return copied


def observation_function(env: gym.Env) -> Callable[[], Any]:
    """A function that returns the observation of the present state: `_get_obs`, through the observation wrappers."""
    maps = [layer.observation for layer in layers(env) if isinstance(layer, gym.ObservationWrapper)]
    base: Any = env.unwrapped

    def observe() -> Any:
        observation = base._get_obs()
        for function in reversed(maps):
            observation = function(observation)
        return observation

    return observe


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, or the value itself if it can't be copied (an open file, a lock)."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


MAX_VECTOR_AXES = 2
"""Most axes of an entry that is no image."""


def flattened(env: gym.Env) -> gym.Env:
    """Wrap an environment so that its observations are vectors: dictionaries go through Gymnasium's FlattenObservation.

    Raises:
        ValueError: an entry is an image, a text, a graph or a sequence.
    """
    if not isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
        return env
    flat_names(env.observation_space)
    return gym.wrappers.FlattenObservation(env)


def dictionary_of(env: gym.Env) -> spaces.Dict | spaces.Tuple | None:
    """The dictionary space from which an environment's observations are flattened; None if they are not."""
    for layer in layers(env):
        if isinstance(layer, gym.wrappers.FlattenObservation):
            inner = layer.env.observation_space
            return inner if isinstance(inner, spaces.Dict | spaces.Tuple) else None
    return None


def flat_names(space: spaces.Space, prefix: str = "") -> list[str]:
    """Names of the entries of a flattened observation, in order: ``arm.joint[2]`` under the keys arm and joint.

    A discrete entry is flattened to one number per value, as Gymnasium does.

    Raises:
        ValueError: an entry is no vector.

    >>> flat_names(spaces.Dict(goal=spaces.Box(-1, 1, (2,)), arm=spaces.Dict(grip=spaces.Discrete(2))))
    ['goal[0]', 'goal[1]', 'arm.grip[0]', 'arm.grip[1]']
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [name for key, part in inner for name in flat_names(part, f"{prefix}.{key}" if prefix else str(key))]
    name = prefix or "observation"
    if isinstance(space, spaces.Box) and len(space.shape) <= MAX_VECTOR_AXES and space.dtype != np.uint8:
        return [f"{name}[{','.join(map(str, index))}]" if index else name for index in np.ndindex(*space.shape)]
    if isinstance(space, spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return [f"{name}[{i}]" for i in range(spaces.flatdim(space))]
    description = f"a {type(space).__name__}"
    if isinstance(space, spaces.Box):
        description += f" of shape {space.shape} and {space.dtype} (an image)"
    raise ValueError(
        f"the entry {name!r} of the observation is {description}, and networks here take vectors: leave it out with "
        "gymnasium.wrappers.FilterObservation, or encode it in the environment"
    )


def flatten_observations(space: spaces.Space, observations: Any) -> NDArray:
    """Flatten one observation, or a batch of them, as Gymnasium's FlattenObservation flattens one."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return np.concatenate([flatten_observations(part, observations[key]) for key, part in inner], axis=-1)
    shape = space.shape or ()
    if isinstance(space, spaces.Box):  # at once, which takes microseconds
        array = np.asarray(observations, space.dtype)
        return array.reshape(*array.shape[: array.ndim - len(shape)], spaces.flatdim(space))
    array = np.asarray(observations)
    rows = [spaces.flatten(space, row) for row in array.reshape(-1, *shape)]
    return np.array(rows).reshape(*array.shape[: array.ndim - len(shape)], spaces.flatdim(space))


def unflattening(space: spaces.Space) -> Callable[[Any], Any]:
    """A function from flattened observations (n, entries) to a dictionary of arrays (n, ...)."""

    def unflatten(observations: Any) -> Any:
        arrays: Any = create_empty_array(space, len(observations))
        return concatenate(space, [spaces.unflatten(space, row) for row in observations], arrays)

    return unflatten


class ReturnedError(UserError):
    """An environment returned something that Gymnasium does not allow."""


def require_reset(env: gym.Env, returned: Any) -> Any:
    """Check the values that `reset` returned, and return them.

    Raises:
        ReturnedError: they are no pair, or the observation does not have the observation space's shape, or (for a user's class)
            lies outside its bounds.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise _returned_error(env, "reset", f"returned {_describe(returned)}, and must return (observation, info)")
    _require_shape(env, "reset", returned[0])
    _require_bounds(env, "reset", returned[0])
    return returned


def require_step(env: gym.Env, returned: Any, check_bounds: bool = False) -> Any:
    """Check the values that `step` returned, and return them.

    Args:
        check_bounds: check the observation's bounds as well.
    Raises:
        ReturnedError: they are not five values, the observation has another shape than its space, or the reward is no number.
    """
    if not (isinstance(returned, tuple) and len(returned) == 5):
        required = "(observation, reward, terminated, truncated, info)"
        raise _returned_error(env, "step", f"returned {_describe(returned)}, and must return {required}")
    observation, reward, *_ = returned
    _require_shape(env, "step", observation)
    if check_bounds:
        _require_bounds(env, "step", observation)
    if not isinstance(reward, float):
        try:
            float(reward)
        except (TypeError, ValueError):
            raise _returned_error(
                env, "step", f"returned the reward {reward!r:.80}, and must return a number"
            ) from None
    return returned


def raise_naming_method(env: gym.Env, method: str, error: BaseException) -> NoReturn:
    """Raise an error again; if a wrapper of Gymnasium's failed on what a user's method returned, name the method."""
    names_method = isinstance(error, ReturnedError) or place_in_users_code(error) is not None
    if names_method or not isinstance(error, Exception) or not is_users_class(type(env.unwrapped)):
        raise error
    fault = f"returned what does not fit ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    raise _returned_error(env, method, fault) from error


@contextmanager
def delay_warnings() -> Iterator[None]:
    """Show the context's warnings after it; drop them if it raises an error, which says it all."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield
    for warning in recorded:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _require_shape(env: gym.Env, method: str, observation: Any) -> None:
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and np.shape(observation) != space.shape:
        shape = np.shape(observation)
        raise _returned_error(
            env, method, f"returned an observation of shape {shape}, and its observation_space has {space.shape}"
        )


def _require_bounds(env: gym.Env, method: str, observation: Any) -> None:
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box) or not is_users_class(type(env.unwrapped)):
        return
    values = np.asarray(observation, dtype=np.float64)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    margin = 1e-5 * (1 + np.abs(values))  # rounding to single precision
    if (outside := np.argwhere((values < low - margin) | (values > high + margin))).size:
        at = tuple(outside[0])
        raise _returned_error(
            env,
            method,
            f"returned an observation outside of its observation_space: entry {', '.join(map(str, at))} is {values[at]:g}, and "
            f"the space has [{low[at]:g}, {high[at]:g}]",
        )


def _returned_error(env: gym.Env, method: str, fault: str) -> ReturnedError:
    kind = type(env.unwrapped)
    place = f"{place_of_method(kind, method)}: " if is_users_class(kind) else ""
    return ReturnedError(f"{place}{kind.__name__}.{method} {fault}")


def _describe(returned: Any) -> str:
    return f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
