"""Agents whose actions a rotation turns: the windy pendulum's torque under O(2)."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rppdyn.agents import RPPSAC, critic_equivariance_error, policy_equivariance_error
from rppdyn.envs import make_env, symmetry_spec

ID = "rppdyn/WindyPendulum-v0"


def errors(agent: RPPSAC) -> list[float]:
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(64, 12)), rng.uniform(-2, 2, size=(64, 3))
    measured = [policy_equivariance_error(agent, observations), critic_equivariance_error(agent, observations, actions)]
    assert not any(m.vacuous for m in measured)
    return [m.error for m in measured]


@pytest.mark.parametrize("model, low, high", [("emlp", 0, 1e-12), ("mlp", 0.4, 1), ("rpp", 1e-12, 0.1)])
def test_equivariance_before_and_after_training(make_agent, model, low, high, tmp_path):
    agent = make_agent(model, gym.make(ID))
    assert agent.spec.group.name == "O2eR3" and agent.actor.blocks.tolist() == [[1, 1, 0], [0, 0, 1]]
    for _ in range(2):
        assert all(low < error < high or error == low for error in errors(agent))
        agent.learn(60)
    agent.save(tmp_path / "agent")
    loaded = RPPSAC.load(tmp_path / "agent")
    obs = np.random.default_rng(1).normal(size=(20, 12))
    actions = agent.predict(obs, deterministic=True)[0]
    assert np.array_equal(loaded.predict(obs, deterministic=True)[0], actions)
    assert (np.hypot(actions[:, 0], actions[:, 1]) < 3).all()  # a disc, in which the environment shortens nothing


def test_resume_is_exact(make_agent):
    options = {"augment": True, "mirror_loss": 1.0}
    whole = make_agent("rpp", make_env(ID), **options).learn(65)
    captured = whole.capture()
    whole.learn(15, reset_num_timesteps=False)
    resumed = make_agent("rpp", make_env(ID), seed=1, **options)
    resumed.restore(captured)
    resumed.learn(15, reset_num_timesteps=False)
    for a, b in zip(resumed.policy.parameters(), whole.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_dihedral_group_of_signed_permutations_needs_no_blocks(make_agent):
    agent = make_agent("emlp", gym.make(ID), spec=symmetry_spec(ID, symmetry="D4"))
    assert agent.actor.blocks is None and max(errors(agent)) < 1e-12
    agent = make_agent("emlp", gym.make(ID), spec=symmetry_spec(ID, symmetry="D6"))
    assert len(agent.actor.blocks) == 2 and max(errors(agent)) < 1e-12
