"""Hindsight replay (Andrychowicz et al. 2017) for agents that see the dictionaries of goal environments as vectors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rppdyn.envs._catalogue import single_environment
from rppdyn.envs._mirror import env_name
from rppdyn.envs._wrappers import dictionary_of
from rppdyn.errors import UserError

GOALS = ("observation", "achieved_goal", "desired_goal")


class HindsightBuffer(HerReplayBuffer):
    """Stable-baselines3's `HerReplayBuffer` with transitions as vectors outside, and as dictionaries inside.

    A symmetry acts on the whole vector, so that states and goals transform together; `augment` takes images after goals were
    relabelled.

    Args:
        buffer_size, observation_space, action_space, env, kwargs: as in stable-baselines3; environments with
            `gymnasium.wrappers.FlattenObservation`, as RPPSAC wraps its own.
    Raises:
        ValueError: the environment's observations are no dictionaries with goals, or it has no method `compute_reward`.
    """

    def __init__(
        self, buffer_size: int, observation_space: spaces.Box, action_space: spaces.Space, env: VecEnv, **kwargs: Any
    ) -> None:
        with single_environment(env) as single:
            inner, name = dictionary_of(single), env_name(single)
            rewards = hasattr(single.unwrapped, "compute_reward")
        if not (isinstance(inner, spaces.Dict) and set(GOALS) <= set(inner) and rewards):
            raise ValueError(
                f"replay_buffer_class=HerReplayBuffer: {name} is no goal environment, with observations that are dictionaries "
                f"of {', '.join(GOALS)} and a method compute_reward; leave it out"
            )
        if len(inner["achieved_goal"].shape or ()) != 1:
            raise ValueError(f"{name}: achieved_goal is {inner['achieved_goal']}, and vectors are relabelled here")
        super().__init__(buffer_size, inner, action_space, env, **kwargs)

    def add(self, obs: NDArray, next_obs: NDArray, *args: Any) -> None:  # type: ignore[override]
        super().add(self._parts(obs), self._parts(next_obs), *args)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:  # type: ignore[override]
        if not self.ep_length.any():
            raise UserError(
                f"no episode has ended in {self.size()} steps, and goals are those of whole ones: make learning_starts "
                "longer than an episode"
            )
        data = super().sample(batch_size, env)
        observations, next_observations = (
            torch.cat([part.flatten(1) for part in parts.values()], 1)
            for parts in (data.observations, data.next_observations)
        )
        return ReplayBufferSamples(observations, data.actions, next_observations, data.dones, data.rewards)

    def _parts(self, vectors: NDArray) -> dict[str, NDArray]:
        inner: dict[str, Any] = self.observation_space.spaces
        ends = np.cumsum([spaces.flatdim(space) for space in inner.values()])[:-1]
        parts = zip(inner.items(), np.split(vectors, ends, axis=-1), strict=True)
        return {key: part.reshape(-1, *space.shape) for (key, space), part in parts}

    def end_episodes(self) -> None:
        """Truncate running episodes, for an environment that begins new ones."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.truncate_last_trajectory()

    def arrays(self) -> dict[str, NDArray]:
        """All stored arrays by name, (time, environments, ...)."""
        arrays = {
            name: getattr(self, name) for name in ("actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")
        }
        for name in ("observations", "next_observations"):
            arrays |= {f"{name}.{key}": array for key, array in getattr(self, name).items()}
        return arrays
