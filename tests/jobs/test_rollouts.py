"""Evaluation: the same episodes as one by one, without touching the random states that training uses."""

from __future__ import annotations

import logging

import gymnasium
import numpy as np
import pytest
import torch

from rppdyn.agents import RPPSAC
from rppdyn.jobs.building import Episodes, Evaluator


def policy(observations):
    """A pole's angle and velocity fed back: some episodes end early, some at the time limit."""
    return np.clip(6.0 * observations[:, 1:2] + observations[:, 3:4], -3, 3).astype(np.float32)


def test_episodes_are_those_of_single_environments():
    with_limit = lambda: gymnasium.make("InvertedPendulum-v5", max_episode_steps=60)  # noqa: E731
    evaluator = Evaluator(with_limit, episodes=3, seed=5)
    episodes = evaluator.run(policy)
    again = evaluator.run(policy)
    evaluator.close()
    assert np.array_equal(episodes.returns, again.returns)
    assert len(episodes.observations) == len(episodes.actions) == episodes.lengths.sum()

    env = with_limit()
    start = 0
    for i in range(3):
        observation, total, length, over = env.reset(seed=5 + i)[0], 0.0, 0, False
        while not over:
            assert np.array_equal(episodes.observations[start + length], observation)
            observation, reward, terminated, truncated, _ = env.step(policy(observation[None])[0])
            total, length, over = total + reward, length + 1, terminated or truncated
        assert (episodes.returns[i], episodes.lengths[i]) == (total, length)
        start += length
    env.close()


@pytest.mark.parametrize("limit", [60, -1])
def test_an_environment_without_a_time_limit_is_warned_of(limit, caplog):
    with caplog.at_level(logging.WARNING):
        Evaluator(lambda: gymnasium.make("InvertedPendulum-v5", max_episode_steps=limit), episodes=2, seed=0).close()
    warnings = [record.message for record in caplog.records]
    assert [("InvertedPendulum-v5" in w and "max_episode_steps" in w) for w in warnings] == [True] * (limit < 0)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [0]), (3, [0, 4, 9]), (10, list(range(10))), (99, list(range(10)))]
)
def test_states_are_spread_over_the_episodes(count, expected):
    column = np.arange(10.0)[:, None]
    episodes = Episodes(np.zeros(1), np.full(1, 10), column, -column)
    observations, actions = episodes.spread(count)
    assert observations[:, 0].tolist() == expected
    assert np.array_equal(actions, -observations)


def test_exploring_leaves_the_mirror_image_and_the_random_states_alone():
    """A symmetric policy's deterministic episodes start and stay near states that are their own mirror images."""
    agent = RPPSAC("RPPPolicy", "Walker2d-v5", policy_kwargs=dict(model="emlp", hidden=16), seed=0, buffer_size=10)
    before = agent.actor.generator.get_state()
    evaluator = Evaluator(lambda: gymnasium.make("Walker2d-v5"), 2, seed=3)
    played, explored, again = evaluator.play(agent), evaluator.explore(agent), evaluator.explore(agent)
    evaluator.close()
    assert torch.equal(agent.actor.generator.get_state(), before)
    assert np.array_equal(explored.actions, again.actions)

    def asymmetry(episodes):
        actions = episodes.actions
        image = agent.spec.transform_action(agent.spec.group.discrete_generators[0], actions)
        return np.abs(actions - image).sum() / np.abs(actions).sum()

    assert asymmetry(played) < 0.5 < asymmetry(explored)
