"""Hindsight replay on goal environments: what is stored and relabelled, what is learned, and what goes on after a stop."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy

from rppdyn.agents import RPPSAC, replay_episodes
from rppdyn.agents._goals import HindsightBuffer
from rppdyn.envs import make_env, read_episodes, write_episodes
from rppdyn.envs._wrappers import flat_names


@pytest.fixture(autouse=True)
def reach(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "examples")
    return importlib.import_module("reach").Reach


def spec(reward=True):
    found = gym.make("Reach-v0").unwrapped.symmetry_spec()
    return replace(found, symmetries=tuple(s._replace(reward_symmetric=reward) for s in found.symmetries))


def agent(**options):
    options = dict(learning_starts=40, buffer_size=500, batch_size=32, gamma=0.9) | options
    hidden = dict(model="emlp", hidden=16) | options.pop("policy_kwargs", {})
    return RPPSAC("RPPPolicy", gym.make("Reach-v0"), spec=spec(), seed=0, replay_buffer_class=HerReplayBuffer,
                  policy_kwargs=hidden, **options)  # fmt: skip


def space():
    return gym.make("Reach-v0").observation_space


def worth(achieved, desired, info):
    return gym.make("Reach-v0").unwrapped.compute_reward(achieved, desired, info)


def parts(vectors):
    """Vectors by key, in the order of the space."""
    names = flat_names(space())
    keys = [name.partition("[")[0] for name in names]
    return {key: vectors[:, [k == key for k in keys]].numpy() for key in set(keys)}


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_relabelled_and_rewards_belong_to_them(strategy):
    trained = agent(replay_buffer_kwargs=dict(goal_selection_strategy=strategy)).learn(60)
    assert isinstance(trained.replay_buffer, HindsightBuffer) and trained.replay_buffer_class is HerReplayBuffer
    data = trained.replay_buffer.sample(200)
    before, after = parts(data.observations), parts(data.next_observations)
    assert (before["desired_goal"] == after["desired_goal"]).all()
    assert (before["achieved_goal"] == before["observation"][:, :2]).all()
    rewards = worth(after["achieved_goal"], after["desired_goal"], {})
    assert (data.rewards[:, 0].numpy() == rewards).all() and (rewards == 0).mean() > 0.02
    asked = trained.replay_buffer.observations["desired_goal"]
    assert (before["desired_goal"][:, None] != asked[None, :60, 0]).any(-1).all(1).mean() > 0.4  # goals of no episode


def test_augmentation_moves_what_was_relabelled():
    """An image's reward is that of its own goal, and states and goals were moved by the same element."""
    trained = agent(augment=True, policy_kwargs=dict(model="mlp")).learn(60)
    batch = trained.sampler.transitions(200)
    raw = trained.policy.features_extractor.normaliser
    features = batch["next_features"] * raw.std.float() + raw.mean.float()
    after = parts(features)
    rewards = worth(after["achieved_goal"], after["desired_goal"], {})
    assert (batch["rewards"].numpy() == rewards).mean() > 0.98
    assert np.allclose(after["achieved_goal"], after["observation"][:, :2], atol=1e-5)


def test_a_strict_agent_is_equivariant_and_takes_dictionaries():
    trained = agent().learn(60)
    mean, _ = evaluate_policy(trained, gym.make("Reach-v0"), n_eval_episodes=2, warn=False)
    assert -25 <= mean <= 0
    observation = trained.get_env().reset()
    found = trained.equivariance_errors(observation, np.zeros((1, 2)))["policy"]
    assert found.error < 1e-6
    flat = np.concatenate([space()[key].sample() for key in space()])
    one = {key: value[0] for key, value in parts(torch.from_numpy(flat[None])).items()}
    assert np.array_equal(trained.predict(one, deterministic=True)[0], trained.predict(flat, deterministic=True)[0])


@pytest.mark.parametrize("wraps", [False, True])
def test_training_goes_on_exactly(wraps):
    size = 50 if wraps else 500
    begun = agent(buffer_size=size)
    begun.learn(80)
    state = begun.capture()
    again = agent(buffer_size=size)
    again.restore(state)
    again.learn(40, reset_num_timesteps=False)
    begun.learn(40, reset_num_timesteps=False)
    for key, value in begun.policy.state_dict().items():
        assert torch.equal(value, again.policy.state_dict()[key]), key


def test_saved_and_loaded_with_the_environment(tmp_path):
    trained = agent().learn(60)
    trained.save(tmp_path / "reach")
    trained.save_replay_buffer(tmp_path / "buffer")
    loaded = RPPSAC.load(tmp_path / "reach", env=gym.make("Reach-v0"))
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    loaded.learn(30, reset_num_timesteps=False)
    observation = space().sample()
    assert loaded.predict(observation)[0].shape == (2,)


def test_without_hindsight_dictionaries_are_vectors_and_other_environments_have_no_goals():
    plain = RPPSAC(
        "RPPPolicy", gym.make("Reach-v0"), spec=spec(), learning_starts=20, policy_kwargs=dict(hidden=8)
    ).learn(30)
    assert plain.predict(space().sample())[0].shape == (2,)
    with pytest.raises(ValueError, match="InvertedPendulum-v5 is no goal environment"):
        RPPSAC("RPPPolicy", "InvertedPendulum-v5", replay_buffer_class=HerReplayBuffer, policy_kwargs=dict(hidden=8))


def test_an_episode_that_is_not_gone_on_with_ends_where_it_was():
    """An environment whose state can't be captured begins a fresh episode: goals of one are none of the other's."""
    begun, again = agent(), agent()
    begun.fresh_episodes = again.fresh_episodes = True
    begun.learn(60)  # in the third episode
    again.restore(begun.capture())
    buffer = again.replay_buffer
    assert buffer.pos == 60 and buffer._current_ep_start[0] == 60
    assert buffer.ep_start[50:60, 0].tolist() == [50] * 10 and buffer.ep_length[50:60, 0].tolist() == [10] * 10
    assert buffer.timeouts[59, 0] and buffer.dones[59, 0]


def test_what_hindsight_can_t_do_is_said():
    with pytest.raises(ValueError, match="make learning_starts longer than an episode"):
        agent(learning_starts=5).learn(20)


@pytest.mark.parametrize("rows", [500, 60])
def test_episodes_of_its_buffer_are_those_that_were_played(tmp_path, monkeypatch, rows):
    """With the goals that were set, whole or with their beginning overwritten; a dataset has them, and gives them back."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    trained = agent(buffer_size=rows).learn(85)
    found = replay_episodes(trained)
    assert [len(episode) for episode in found] == ([25, 25, 25, 10] if rows == 500 else [25, 25, 10])
    for episode in found:
        seen = parts(torch.from_numpy(episode.observations))
        assert (seen["desired_goal"] == seen["desired_goal"][0]).all()
        assert (episode.rewards == worth(seen["achieved_goal"][1:], seen["desired_goal"][1:], {})).all()
        assert not episode.terminated and episode.truncated == (len(episode) == 25)
    write_episodes("rppdyn/reach/hindsight-v0", found, env=make_env("Reach-v0"))
    again = read_episodes("rppdyn/reach/hindsight-v0", trust=True)
    for a, b in zip(found, again.episodes, strict=True):
        assert all(np.array_equal(getattr(a, key), getattr(b, key)) for key in ("observations", "actions", "rewards"))
    assert make_env(again.env_id).observation_space.shape == (8,)
