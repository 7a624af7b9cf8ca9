"""Episodes of a policy, apart from any training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.td3.policies import TD3Policy

from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.training.agent_files import kept_random_state

logger = logging.getLogger(__name__)

Policy = Callable[[NDArray], NDArray]
"""Observations (n, observation) to actions (n, action)."""

NOISE = 0.1
"""Of half the actions' range: how far a deterministic policy explores, as TD3 does in training."""


@dataclass(frozen=True)
class Episodes:
    """Finished episodes: undiscounted returns and lengths, and what was seen and done, in order of the episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    observations: NDArray[np.float64]
    actions: NDArray[np.float64]

    def spread(self, count: int) -> tuple[NDArray, NDArray]:
        """`count` pairs of observation and action (or all, if there are fewer), evenly spaced over the episodes."""
        total = len(self.observations)
        chosen = np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))
        return self.observations[chosen], self.actions[chosen]


class Evaluator:
    """Episodes of a policy in environments of its own, the same initial states every time.

    Episode i starts from a reset with seed `seed + i`. The episodes advance together, so that the policy is called
    once per time step; its batch keeps one shape, whichever episodes have ended. An environment without a time limit is
    warned of: what it does not end itself goes on for ever.
    """

    def __init__(self, make: Callable[..., gymnasium.Env], episodes: int, seed: int):
        self.make = make
        self.envs = [make() for _ in range(episodes)]
        self.seed = seed
        spec = self.envs[0].spec
        if spec is None or spec.max_episode_steps is None:
            name = type(self.envs[0].unwrapped).__name__ if spec is None else spec.id
            logger.warning(
                "%s has no time limit, and episodes that it does not end itself never end: register it with "
                "max_episode_steps=, or wrap it in gymnasium.wrappers.TimeLimit",
                name,
            )

    def run(self, policy: Policy) -> Episodes:
        """Play every episode to its end, by termination or by the environment's time limit."""
        begin(policy)
        observations = np.stack([env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)])
        seen: list[list[NDArray]] = [[] for _ in self.envs]
        done: list[list[NDArray]] = [[] for _ in self.envs]
        rewards: list[list[float]] = [[] for _ in self.envs]
        running = set(range(len(self.envs)))
        while running:
            actions = policy(observations)
            for i in sorted(running):
                seen[i].append(observations[i].copy())
                done[i].append(np.asarray(actions[i]).copy())
                observations[i], reward, terminated, truncated, _ = self.envs[i].step(actions[i])
                rewards[i].append(float(reward))
                if terminated or truncated:
                    running.remove(i)
        return Episodes(
            returns=np.array([sum(episode) for episode in rewards]),
            lengths=np.array([len(episode) for episode in rewards]),
            observations=_joined(seen),
            actions=_joined(done),
        )

    def play(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """As `run`, with an agent's deterministic policy."""
        return self.run(policy_of(agent))

    def explore(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """As `run`, with actions drawn from the policy by noise of its own; a policy without any gets Gaussian noise.

        The deterministic episodes of a symmetric policy stay close to states that are their own mirror images, where
        every function looks equivariant; exploring leaves them.
        """
        with exploring(agent, self.seed) as policy:
            return self.run(policy)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def begin(policy: Policy) -> None:
    """Begin episodes, with a policy that has a memory."""
    if hasattr(policy, "reset"):
        policy.reset()


def policy_of(agent: BaseAlgorithm | BasePolicy) -> Policy:
    """An agent's deterministic policy."""
    return lambda observations: agent.predict(observations, deterministic=True)[0]


@contextmanager
def exploring(agent: BaseAlgorithm | BasePolicy, seed: int) -> Iterator[Policy]:
    """An agent's exploring policy: actions drawn from it by noise of its own; a policy without any gets Gaussian noise."""
    policy: Any = getattr(agent, "policy", agent)
    if isinstance(policy, TD3Policy):
        yield noisy(policy_of(policy), policy.action_space, seed)
        return
    with _own_noise(policy, seed):
        yield lambda observations: policy.predict(observations, deterministic=False)[0]


def noisy(policy: Policy, space: gymnasium.Space, seed: int) -> Policy:
    """A policy with Gaussian noise of `NOISE` of half the actions' range, within their bounds.

    Raises:
        ConfigError: actions are no numbers with bounds.
    """
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"the action space is {space}, and there is no noise for it: actions must be of a Box")
    generator = np.random.default_rng(seed)

    def act(observations: NDArray) -> NDArray:
        actions = policy(observations)
        noise = generator.normal(size=actions.shape) * (NOISE / 2) * (space.high - space.low)
        return np.clip(actions + noise, space.low, space.high)

    return act


@contextmanager
def _own_noise(policy: BasePolicy, seed: int) -> Iterator[None]:
    """What a policy draws from, its actor's generator or torch's global one, begins at a seed and is put back."""
    actor: Any = getattr(policy, "actor", None)
    kept = getattr(actor, "generator", None)
    with kept_random_state():
        torch.manual_seed(seed)
        if kept is not None:
            actor.generator = torch.Generator().manual_seed(seed)
        try:
            yield
        finally:
            if kept is not None:
                actor.generator = kept


def _joined(episodes: Sequence[Sequence[NDArray]]) -> NDArray[np.float64]:
    return np.concatenate([np.stack(episode) for episode in episodes])
