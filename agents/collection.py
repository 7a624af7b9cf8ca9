"""Episodes of agents: those in a replay buffer, and those that a policy plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rppdyn.envs import Episode


def replay_episodes(agent: OffPolicyAlgorithm) -> list[Episode]:
    """What an agent's replay buffer holds, as episodes in the order in which they began.

    Transitions of one environment follow each other in the buffer; two are of one episode where the first one's next
    observation is the second one's and no episode ended between them. A full buffer has overwritten the beginning of its
    oldest episodes, and the newest ones may not have ended yet. Actions are those that the environment took, rewards are
    kept in single precision.

    Raises:
        ValueError: the buffer has no next observations, or its actions are no vectors.
    """
    buffer = agent.replay_buffer
    if not isinstance(buffer, ReplayBuffer) or buffer.optimize_memory_usage:
        raise ValueError(
            f"the episodes of a {type(buffer).__name__} with these options can't be told apart; use ReplayBuffer, with "
            "optimize_memory_usage=False"
        )
    if not isinstance(agent.action_space, spaces.Box):
        raise ValueError(f"the agent's action space is {agent.action_space}; episodes need vectors of numbers")
    oldest = buffer.pos if buffer.full else 0
    order = (oldest + np.arange(buffer.size())) % buffer.buffer_size
    found = [(start, i, episode) for i in range(buffer.n_envs) for start, episode in _joined(agent, order, i)]
    return [episode for _, _, episode in sorted(found, key=lambda item: item[:2])]


def _joined(agent: OffPolicyAlgorithm, order: NDArray, i: int) -> Iterator[tuple[int, Episode]]:
    """The episodes of environment i, each with the index in `order` where it begins."""
    buffer = agent.replay_buffer
    assert buffer is not None
    rows = {key: getattr(buffer, key)[order, i] for key in ("observations", "next_observations", "rewards")}
    observations, following = rows["observations"], rows["next_observations"]
    actions = agent.policy.unscale_action(buffer.actions[order, i])  # the buffer's are scaled to [-1, 1]
    done, timeout = (getattr(buffer, key)[order, i].astype(bool) for key in ("dones", "timeouts"))
    ends = np.flatnonzero(done[:-1] | (following[:-1] != observations[1:]).any(-1)) + 1
    for start, stop in zip([0, *ends], [*ends, len(order)], strict=True):
        if start == stop:  # an empty buffer
            continue
        last = stop - 1
        yield (
            int(start),
            Episode(
                np.concatenate([observations[start:stop], following[last:stop]]),
                actions[start:stop],
                rows["rewards"][start:stop],
                terminated=bool(done[last] and not timeout[last]),
                truncated=bool(timeout[last]),
            ),
        )


def played_episodes(env: gym.Env, policy: Callable[[NDArray], NDArray], *, steps: int, seed: int) -> Iterator[Episode]:
    """Episodes of a policy until they have at least `steps` steps together; none is longer than that.

    Only the first reset is seeded, so that no two seeds share an episode.

    Args:
        policy: observations (1, n) to actions (1, m).
    """
    played = 0
    while played < steps:
        observations: list[NDArray] = [env.reset(seed=None if played else seed)[0]]
        actions: list[NDArray] = []
        rewards: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < steps:  # an environment may have no time limit
            actions.append(policy(observations[-1][None])[0])
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(float(reward))
        played += len(actions)
        yield Episode(np.stack(observations), np.stack(actions), np.array(rewards), bool(terminated), bool(truncated))


def random_policy(space: gym.Space, seed: int) -> Callable[[NDArray], NDArray]:
    """Actions drawn from an action space, uniformly within its bounds, whatever is observed."""
    space.seed(seed)
    return lambda observations: np.stack([space.sample() for _ in observations])


def spread_episodes(episodes: list[Episode], *, steps: int, seed: int) -> list[Episode]:
    """Episodes drawn uniformly, without replacement and kept in order, until they have at least `steps` steps together.

    Raises:
        ValueError: there are fewer steps than that.
    """
    lengths = np.array([len(episode) for episode in episodes], dtype=int)
    if lengths.sum() < steps:
        raise ValueError(f"{steps} steps are asked for, and there are {lengths.sum()}; ask for at most as many")
    drawn = np.random.default_rng(seed).permutation(len(episodes))
    count = int(np.searchsorted(np.cumsum(lengths[drawn]), steps)) + 1
    return [episodes[i] for i in sorted(drawn[:count])]
