"""Layers between an environment and an agent: wrappers, dictionaries flattened to vectors, checks of what is returned."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rppdyn.errors import UserError, is_users_class, place_in_users_code, place_of_method


class Passive(NamedTuple):
    """A class whose `step` and `reset` count, check, record or render, and leave dynamics and rewards alone.

    Args:
        package: of the class.
        remembers: what it holds between steps beside files, clocks and checks; None where every attribute is taken.
        is_transparent: whether what is seen and done is the same without it, so that data say nothing of it.
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
"""Wrappers that are passed over, by class; PassiveEnvChecker looks at the first steps only."""


def refuse_vector_env(env: Any) -> None:
    """Refuse Gymnasium's vector environments, which step several environments at once.

    Raises:
        ValueError: it is one.
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


MAX_VECTOR_AXES = 2
"""Axes of an entry that is no image."""


def flattened(env: gym.Env) -> gym.Env:
    """Return an environment whose observations are vectors, with dictionaries flattened by Gymnasium's FlattenObservation.

    Raises:
        ValueError: there are images, texts or graphs among the entries, or lists of any length.
    """
    if not isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
        return env
    flat_names(env.observation_space)
    return gym.wrappers.FlattenObservation(env)


def dictionary_of(env: gym.Env) -> spaces.Dict | spaces.Tuple | None:
    """The space of dictionaries that an environment's observations are flattened from; None where they are none."""
    for layer in layers(env):
        if isinstance(layer, gym.wrappers.FlattenObservation):
            inner = layer.env.observation_space
            return inner if isinstance(inner, spaces.Dict | spaces.Tuple) else None
    return None


def flat_names(space: spaces.Space, prefix: str = "") -> list[str]:
    """A name for each entry of a flattened observation, in its order: ``arm.joint[2]`` for what the keys arm and joint hold.

    One of several values has an entry for each, as Gymnasium flattens it.

    Raises:
        ValueError: naming an entry that is no vector.

    >>> flat_names(spaces.Dict(goal=spaces.Box(-1, 1, (2,)), arm=spaces.Dict(grip=spaces.Discrete(2))))
    ['goal[0]', 'goal[1]', 'arm.grip[0]', 'arm.grip[1]']
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [name for key, one in inner for name in flat_names(one, f"{prefix}.{key}" if prefix else str(key))]
    name = prefix or "observation"
    if isinstance(space, spaces.Box) and len(space.shape) <= MAX_VECTOR_AXES and space.dtype != np.uint8:
        return [f"{name}[{','.join(map(str, index))}]" if index else name for index in np.ndindex(*space.shape)]
    if isinstance(space, spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return [f"{name}[{i}]" for i in range(spaces.flatdim(space))]
    what = f"a {type(space).__name__}"
    if isinstance(space, spaces.Box):
        what += f" of shape {space.shape} and {space.dtype} (an image)"
    raise ValueError(
        f"the entry {name!r} of the observation is {what}, and networks here take vectors: leave it out with "
        "gymnasium.wrappers.FilterObservation, or encode it in the environment"
    )


def unflattening(space: spaces.Space) -> Callable[[Any], Any]:
    """A map from flattened observations (n, entries) to what a policy of dictionaries takes: arrays (n, ...) by key."""

    def stacked(each: list[Any]) -> Any:
        if isinstance(each[0], dict):
            return {key: stacked([one[key] for one in each]) for key in each[0]}
        return np.stack(each)

    return lambda observations: stacked([spaces.unflatten(space, one) for one in observations])


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


def raise_naming_method(env: gym.Env, method: str, error: BaseException) -> NoReturn:
    """Raise an error again; where one of Gymnasium's wrappers failed on what the user's method returned, name the method."""
    named = isinstance(error, ReturnedError) or place_in_users_code(error) is not None
    if named or not isinstance(error, Exception) or not is_users_class(type(env.unwrapped)):
        raise error
    what = f"returned what does not fit ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    raise _wrong(env, method, what) from error


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
