"""Where `rppdyn equivariance` measures: states of episodes, of the reset distribution, of a file, or normal ones."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rppdyn.envs import SymmetrySpec
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.command import DiscoverConfig, EquivarianceConfig
from rppdyn.jobs.measuring import targets
from rppdyn.jobs.measuring.targets import Target
from rppdyn.jobs.training.evaluation import noisy

MOST = 2**28  # numbers in all inputs together, which are two gigabytes


def states_of(config: EquivarianceConfig, target: Target, spec: SymmetrySpec) -> tuple[NDArray, NDArray | None, str]:
    """Raw observations, actions that were or could be taken there (None where no critic asks), and where they are from.

    Raises:
        ConfigError: there is no environment to take them from, or the file does not hold such observations.
    """
    source = config.states_from or "rollouts"
    if source not in ("rollouts", "reset"):
        observations, origin = inputs_of(config, spec.obs.dim)
        return observations, _explored_actions(target, observations), origin
    if target.evaluator is None:
        raise ConfigError(f"{config.what}: states from {source} need an environment; give --env, or --from FILE")
    evaluator = target.evaluator()
    try:
        if target.policy is not None:
            targets.check_environment(config.what, target.policy, evaluator.envs[0], "--env")
        if source == "reset":
            env = evaluator.envs[0]
            observations = np.stack([env.reset(seed=config.seed + i)[0] for i in range(config.states)])
            return observations, _explored_actions(target, observations), "reset distribution"
        if target.call is None:
            episodes, how = evaluator.explore(target.policy), "exploring episodes of its own"
        else:
            f = targets.tried(target.call, torch.as_tensor(evaluator.envs[0].reset(seed=0)[0])[None], spec.action.dim)
            policy = noisy(targets.as_policy(f), evaluator.envs[0].action_space, config.seed)
            episodes, how = evaluator.run(policy), "episodes of its own with Gaussian noise"
        return *episodes.spread(config.states), f"{config.episodes} {how}"
    finally:
        evaluator.close()


def _explored_actions(target: Target, observations: NDArray) -> NDArray | None:
    """Actions for critics at states that nobody acted in: half the range around the policy's own, evenly drawn."""
    if target.policy is None:
        return None
    space = target.policy.action_space
    actions = target.policy.predict(observations, deterministic=True)[0]
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, actions.shape) * (space.high - space.low) / 2
    return np.clip(actions + spread, space.low, space.high)


def inputs_of(config: EquivarianceConfig | DiscoverConfig, dim: int) -> tuple[NDArray, str]:
    """Inputs from a file, at most as many as asked for and evenly spaced, or standard normal ones; where they are from.

    Raises:
        ConfigError: neither is asked for, or the file does not hold such inputs.
    """
    source = config.states_from
    if config.states * dim > MOST:
        raise ConfigError(
            f"--states {config.states}: inputs of {dim} numbers each are too many; give fewer, or smaller ones"
        )
    if source == "normal":
        return np.random.default_rng(config.seed).normal(size=(config.states, dim)), "standard normal inputs"
    if source is None or source in ("rollouts", "reset"):
        raise ConfigError(f"{config.what}: inputs from where? give --from FILE (npy or npz), or --from normal")
    array = _array(source)
    if array.ndim != 2 or array.shape[1] != dim or not len(array):
        raise ConfigError(f"{source} holds an array of shape {array.shape}: it must be (n, {dim}), one input a row")
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise ConfigError(f"{source} holds {array.dtype}: it must hold real numbers")
    if not np.isfinite(array).all():
        raise ConfigError(f"{source} holds values that are not finite: remove those rows")
    return evenly(array, config.states), f"{source}"


def evenly(array: NDArray, count: int) -> NDArray:
    """At most so many rows, evenly spaced."""
    chosen = np.unique(np.linspace(0, len(array) - 1, min(count, len(array))).round().astype(int))
    return array[chosen].astype(np.float64)


def _array(source: str) -> NDArray:
    if not Path(source).is_file():
        known = "rollouts, reset, normal (of a fit: test, normal)"
        raise ConfigError(f"--from {source}: there is no such file; give a .npy or .npz file, or one of {known}")
    try:
        loaded = np.load(source)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            key = "observations" if "observations" in loaded.files or len(loaded.files) != 1 else loaded.files[0]
            return loaded[key]
    except KeyError as error:
        raise ConfigError(f"{source} holds no array named 'observations', but {', '.join(loaded.files)}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{source} can't be read as a .npy or .npz file of numbers: write it with numpy.save"
        ) from error
