"""Policies: sizes, distribution, normalisation and measures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agent_states import errors, states, update_state
from legged import Legged, legged_spec, legged_states

from rppdyn.agents import MODELS, RPPSAC, critic_equivariance_error, policy_equivariance_error
from rppdyn.envs import SymmetrySpec, mirror_spec, symmetry_spec

WALKER, PENDULUM, WINDY = "Walker2d-v5", "InvertedPendulum-v5", "rppdyn/WindyPendulum-v0"


@pytest.mark.parametrize(
    "scale, critic_hidden, expected", [(0.02, None, 0.02), ("prior", None, 0.3), ("prior", 64, 0.6)]
)
def test_free_pathways_start_at_a_size(make_agent, scale, critic_hidden, expected):
    kwargs = dict(critic_hidden=critic_hidden, free_variance=0.09 / 16, network_kwargs=dict(free_scale=scale))
    agent = make_agent("rpp", WALKER, policy_kwargs=kwargs)
    alone = make_agent("rpp", WALKER, policy_kwargs=kwargs | dict(network_kwargs=dict(free_scale=1.0)))
    norms = [one.policy.pathway_statistics()["critic_free_norm"] for one in (agent, alone)]
    assert norms[0] == pytest.approx(expected * norms[1], rel=1e-5)


def test_each_model_has_its_pathways(make_agent):
    shares = {}
    for model in MODELS:
        statistics = make_agent(model, WALKER).policy.pathway_statistics()
        shares[model] = (statistics["actor_free_share"], statistics["critic_free_share"])
    assert shares["mlp"] == (1, 1) and shares["emlp"] == (0, 0)
    assert 0 < shares["rpp"][0] < 0.01 and 0 < shares["rpp"][1] < 0.01
    assert shares["rpp_policy_only"] == (pytest.approx(shares["rpp"][0]), 1)


def test_the_measures_see_a_wrong_representation_and_no_unit_and_call_zeros_vacuous(make_agent, monkeypatch):
    """A network that is equivariant under another symmetry than the environment's is not equivariant."""
    right = symmetry_spec(WALKER)
    n, m = right.feature_dim, len(right.action_names)
    wrong = mirror_spec(
        WALKER, obs_permutation=range(n), obs_signs=[-1] * n, action_permutation=range(m), action_signs=[-1] * m
    )
    agent = make_agent("emlp", WALKER, spec=wrong)
    assert max(errors(agent)) < 1e-5
    agent.policy.spec = right
    assert min(errors(agent)) > 1e-2
    observations, actions = states(agent)
    here, q = critic_equivariance_error(agent, observations, actions), agent.policy.value_function
    for unit in (1e3, 1e-9):
        monkeypatch.setattr(
            agent.policy, "value_function", lambda dtype, unit=unit: lambda obs, raw: unit * q(dtype)(obs, raw)
        )
        there = critic_equivariance_error(agent, observations, actions)
        assert (there.error, there.scale) == pytest.approx((here.error, here.scale), rel=1e-9) and not there.vacuous
    monkeypatch.undo()
    with torch.no_grad():
        for p in [*agent.actor.net.parameters(), *agent.critic.parameters()]:
            p.zero_()
    assert policy_equivariance_error(agent, observations).vacuous
    assert critic_equivariance_error(agent, observations, actions).vacuous


def test_constant_inputs_let_a_strict_policy_leave_its_symmetry(make_agent, tmp_path):
    """They move in training, are saved, measured and left out of merged networks; without them nothing moves."""
    kwargs = dict(network_kwargs=dict(breaking="V", breaking_variance=0.5))
    agent = make_agent("emlp", WINDY, policy_kwargs=kwargs)
    assert max(errors(agent)) < 1e-5 and agent.policy.pathway_statistics()["actor_breaking_norm"] == 0
    agent.learn(80)
    statistics = agent.policy.pathway_statistics()
    assert min(errors(agent)) > 1e-5 and min(statistics[f"{who}_breaking_norm"] for who in ("actor", "critic")) > 1e-3
    assert statistics["actor_free_share"] == 0
    agent.save(tmp_path / "agent")
    again = RPPSAC.load(tmp_path / "agent", device="cpu")
    observations, _ = states(agent)
    assert np.array_equal(*(one.predict(observations, deterministic=True)[0] for one in (agent, again)))
    critics = make_agent("rpp_policy_only", WINDY, policy_kwargs=kwargs).critic.q_networks
    assert all(net.breaking is None for net in critics)


def test_the_standard_deviation_permutes_without_signs(make_agent):
    agent = make_agent("emlp", PENDULUM, policy_kwargs=dict(output_scale=1.0))
    obs = torch.as_tensor(states(agent)[0])
    g = agent.spec.group.discrete_generators[0]
    mean, log_std = agent.actor.output(obs).chunk(2, -1)
    other_mean, other_log_std = agent.actor.output(agent.spec.transform_observation(g, obs)).chunk(2, -1)
    torch.testing.assert_close(other_mean, -mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other_log_std, log_std, rtol=1e-4, atol=1e-5)
    assert log_std.std() > 1e-2


def test_actions_that_are_mixed_form_a_block(make_agent):
    """As of a disc of torques, or by a reflection in an oblique plane, in which a tanh by entries would break the symmetry."""
    assert make_agent("emlp", WINDY).actor.blocks.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert make_agent("emlp", WINDY, spec=symmetry_spec(WINDY, symmetry="D4")).actor.blocks is None
    v = np.array([1, 2, 0, 0, 0, 0]) / np.sqrt(5)
    data = symmetry_spec(WALKER).to_dict()
    data["action"]["discrete_generators"] = [(np.eye(6) - 2 * np.outer(v, v)).tolist()]
    agent = make_agent("emlp", WALKER, spec=SymmetrySpec.from_dict(data))
    assert agent.actor.blocks.tolist() == [[1, 1, 0, 0, 0, 0], *np.eye(6)[2:].tolist()]
    assert agent.actor.net.rep_out.dim == 6 + 5
    agent.learn(60)
    assert max(errors(agent)) < 1e-12


def test_normalisation_moves_with_collection_only(make_agent):
    agent = make_agent("rpp", WALKER)
    agent.learn(60)
    normaliser = agent.policy.features_extractor.normaliser
    before = {name: b.clone() for name, b in normaliser.named_buffers()}
    agent.predict(agent._last_obs)
    agent.train(5, 32)
    assert all(torch.equal(before[name], b) for name, b in normaliser.named_buffers())
    agent.learn(1, reset_num_timesteps=False)
    assert any(not torch.equal(before[name], b) for name, b in normaliser.named_buffers())
    assert agent.critic.features_extractor is agent.actor.features_extractor is agent.critic_target.features_extractor


def test_a_seed_draws_an_agent_whose_critics_differ_and_whose_targets_are_copies(make_agent):
    agent, again, other = (make_agent("rpp", WALKER, seed=seed) for seed in (3, 3, 4))
    first, second = agent.critic.q_networks
    assert not torch.equal(next(first.parameters()), next(second.parameters()))
    pairs = zip(agent.critic.parameters(), agent.critic_target.parameters(), strict=True)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in pairs)
    first, again, other = (update_state(one) for one in (agent, again, other))
    assert torch.equal(first["actor"], again["actor"]) and torch.equal(first["critic"], again["critic"])
    assert not torch.equal(first["actor"], other["actor"])


def test_quaternions_of_one_orientation_have_the_same_actions(make_agent):
    spec = legged_spec("quarter turn", "left-right", "yaw")
    agent = make_agent("emlp", Legged(), spec=spec, policy_kwargs=dict(output_scale=1.0))
    obs = legged_states(20, np.random.default_rng(1))
    assert agent.predict(obs, deterministic=True)[0].std() > 1e-3
    both = obs.copy()
    both[:, 1:5] *= -1  # the other quaternion of an orientation
    none, still = obs.copy(), obs.copy()
    none[:, 1:5], still[:, 1:5] = 0, (1, 0, 0, 0)  # what an environment may observe before its first step
    for one, other in ((obs, both), (none, still)):
        np.testing.assert_allclose(*(agent.predict(o, deterministic=True)[0] for o in (one, other)), atol=1e-6)


def test_the_folder_is_imported_under_its_package():
    import importlib.util

    import rppdyn.agents

    location = importlib.util.spec_from_file_location("agents", rppdyn.agents.__file__)
    with pytest.raises(ImportError, match=r"import rppdyn\.agents"):
        location.loader.exec_module(importlib.util.module_from_spec(location))
