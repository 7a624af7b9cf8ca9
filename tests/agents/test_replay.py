"""Replay buffers, and updates that are replayed on a device: on the CPU, where both can run, too."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rppdyn.agents.buffers import TRANSITIONS, RowReplayBuffer

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def filled(kind: type[ReplayBuffer], steps: int, precision: type = np.float64, n_envs: int = 2) -> ReplayBuffer:
    """A buffer for ten steps of its environments, after as many as are asked for; rewards number the transitions."""
    np.random.seed(0)  # noqa: NPY002 (which generators are seeded from)
    observations = spaces.Box(-np.inf, np.inf, (3,), precision)
    buffer = kind(10 * n_envs, observations, ACTIONS, device="cpu", n_envs=n_envs)
    draw = np.random.default_rng(1).normal
    for i in range(steps):
        timeouts = [{"TimeLimit.truncated": i % 4 == 3}, {}]
        reward = np.array([2.0 * i, 2.0 * i + 1])
        done = np.array([i % 4 == 3, i % 5 == 4])
        parts = draw(size=(2, 3)), draw(size=(2, 3)), draw(size=(2, 2)).clip(-1, 1), reward, done
        buffer.add(*(part[:n_envs] for part in parts), timeouts[:n_envs])
    return buffer


@pytest.mark.parametrize("steps, precision, n_envs", [(7, np.float64, 1), (13, np.float32, 1), (13, np.float64, 2)])
def test_the_buffer_holds_what_stable_baselines3s_holds(steps, precision, n_envs):
    ours, theirs = (filled(kind, steps, precision, n_envs) for kind in (RowReplayBuffer, ReplayBuffer))
    size = min(steps, 10)
    assert (ours.size(), ours.pos, ours.full) == (theirs.size(), theirs.pos, theirs.full)
    for name in TRANSITIONS:
        here, there = getattr(ours, name), getattr(theirs, name)[:size]
        assert here.dtype == there.dtype and np.array_equal(here, there), name
    drawn = ours.sample(4000)
    count = size * n_envs
    row = [np.argwhere(theirs.rewards[:size].flatten() == reward).item() for reward in drawn.rewards[:, 0].numpy()]
    counts = np.bincount(row, minlength=count)
    assert (abs(counts - 4000 / count) < 6 * (4000 / count) ** 0.5).all()  # all are drawn, uniformly
    step, env = np.divmod(row, n_envs)
    expected = theirs._get_samples(step, None) if n_envs == 1 else None
    for name in ("observations", "next_observations", "actions"):
        assert np.array_equal(getattr(drawn, name), getattr(theirs, name)[step, env])
    assert np.array_equal(drawn.dones[:, 0], (theirs.dones * (1 - theirs.timeouts))[step, env])
    if expected is not None:
        for here, there in zip(drawn, expected, strict=True):
            assert here is there is None or (here.dtype == there.dtype and torch.equal(here, there))


def test_rewards_are_scaled_as_stable_baselines3_scales_them():
    buffer = filled(RowReplayBuffer, 7)
    scaled = VecNormalize(DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")]), norm_obs=False)
    scaled.ret_rms.var = np.array(7.0)
    unscaled = VecNormalize(scaled.venv, norm_obs=False, norm_reward=False)
    found = []
    for env in (None, scaled, unscaled):
        buffer.generator.manual_seed(5)
        found.append(buffer.sample(50, env).rewards)
    assert torch.equal(found[0], found[2]) and found[1].dtype == torch.float32
    assert np.array_equal(found[1], scaled.normalize_reward(found[0].numpy()).astype(np.float32))


def test_what_is_written_into_a_buffer_of_rows_is_drawn_after_it_was_pickled_too():
    buffer = pickle.loads(pickle.dumps(filled(RowReplayBuffer, 13)))
    buffer.rewards[:] = -1.0
    buffer.add(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 2)), np.ones(2), np.zeros(2), [{}, {}])
    drawn = buffer.sample(200)
    assert drawn.rewards.unique().tolist() == [-1.0, 1.0]
    assert (drawn.observations[drawn.rewards[:, 0] == 1] == 1).all()
    with pytest.raises(ValueError, match="RowReplayBuffer keeps next observations and timeouts"):
        RowReplayBuffer(20, OBSERVATIONS, ACTIONS, handle_timeout_termination=False)


def test_rewards_are_scaled_where_the_environment_does_so_only_later(make_agent):
    agent = make_agent("rpp", "InvertedPendulum-v5").learn(60)
    assert isinstance(agent.sampler.rows, RowReplayBuffer)
    scaled = VecNormalize(DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")]), norm_obs=False)
    scaled.training, scaled.ret_rms.var = False, np.array(100.0)
    agent.set_env(scaled)
    agent.learn(10, reset_num_timesteps=False)
    assert not agent.sampler.is_on_device and agent.sampler.sample(64)["rewards"].max() < 0.11


def test_a_pickled_buffer_goes_on_with_the_same_draws_and_an_empty_one_takes_no_memory():
    buffer = filled(RowReplayBuffer, 13)
    buffer.sample(5)
    again = pickle.loads(pickle.dumps(buffer))
    assert torch.equal(again.sample(50).observations, buffer.sample(50).observations)
    assert all(len(one) == 10 and torch.equal(one, other) for one, other in zip(again.rows, buffer.rows, strict=True))
    empty = filled(RowReplayBuffer, 0)
    again = pickle.loads(pickle.dumps(empty))
    assert empty._rows is None and again._rows is None
    assert again.size() == 0


def test_batches_that_are_drawn_elsewhere_are_no_part_of_a_captured_update(make_agent):
    assert make_agent().sampler.is_on_device
    for options in (dict(augment=True), dict(n_steps=2)):
        assert not make_agent(**options).sampler.is_on_device


class Numbered(gym.Env):
    """Episodes of 20 steps whose rewards are their numbers."""

    observation_space, action_space = spaces.Box(-1e4, 1e4, (2,)), spaces.Box(-1, 1, (1,))

    def __init__(self, first: int):
        self.episode = first - 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.episode, self.t], np.float32), float(self.episode), self.t == 20, False, {}


def test_returns_of_several_steps_end_where_a_restored_agent_begins_a_fresh_episode(make_agent):
    begun, again = (make_agent("mlp", Numbered(k), n_steps=3, gamma=1.0, learning_starts=1000) for k in (1, 100))
    begun.fresh_episodes = again.fresh_episodes = True
    begun.learn(30)
    again.restore(begun.capture())
    again.learn(30, reset_num_timesteps=False)
    drawn = again.replay_buffer._get_samples(np.arange(27, 31))
    assert drawn.rewards.flatten().tolist() == [6, 4, 2, 300]
    assert drawn.next_observations[:3, 0].tolist() == [2, 2, 2] and not drawn.dones.any()
