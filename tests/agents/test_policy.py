"""What the policy promises: equivariance by model, and refusals by name."""

from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from rppdyn.agents import (
    MODELS,
    RPPSAC,
    RPPActorCriticPolicy,
    critic_equivariance_error,
    policy_equivariance_error,
)
from rppdyn.envs import SymmetrySpec, mirror_spec, symmetry_spec
from rppdyn.groups import DkeR3, Group, O2eR3, Z

WALKER, PENDULUM, WINDY = "Walker2d-v5", "InvertedPendulum-v5", "rppdyn/WindyPendulum-v0"


def states(agent: RPPSAC, n: int = 64):
    """Random raw observations and actions."""
    rng = np.random.default_rng(0)
    origin = np.array(agent.spec.obs.origin)
    high = agent.action_space.high
    return origin + rng.normal(size=(n, len(origin))), rng.uniform(-high, high, size=(n, len(high)))


def errors(agent: RPPSAC, dtype: torch.dtype | None = None) -> list[float]:
    observations, actions = states(agent)
    measured = [
        policy_equivariance_error(agent, observations, dtype=dtype),
        critic_equivariance_error(agent, observations, actions, dtype=dtype),
    ]
    assert not any(m.vacuous for m in measured)
    return [m.error for m in measured]


@pytest.mark.parametrize("env", [WALKER, PENDULUM])
@pytest.mark.parametrize(
    "model, kwargs", [("emlp", {}), ("rpp", {"free_variance": 0.0})], ids=["emlp", "rpp without free"]
)
def test_strict_networks_are_equivariant_before_during_and_in_double_precision(make_agent, env, model, kwargs):
    agent = make_agent(model, env, policy_kwargs=kwargs, learning_rate=3e-3)
    assert max(errors(agent)) < 1e-5
    agent.learn(150)
    assert agent._n_updates == 100
    assert max(errors(agent)) < 1e-5
    assert max(errors(agent, torch.float64)) < 1e-12  # of a copy: the agent's own precision stays
    assert next(agent.policy.parameters()).dtype == torch.float32
    agent.policy.double()
    assert max(errors(agent)) < 1e-12


@pytest.mark.parametrize("scale, expected", [(0.02, 0.02), ("prior", 0.3)])
def test_free_pathways_start_at_a_size(make_agent, scale, expected):
    kwargs = dict(hidden=16, free_variance=0.09 / 16, network_kwargs=dict(free_scale=scale))
    agent = make_agent("rpp", WALKER, policy_kwargs=kwargs)
    alone = make_agent("rpp", WALKER, policy_kwargs=kwargs | dict(network_kwargs=dict(free_scale=1.0)))
    norms = [one.policy.pathway_statistics()["critic_free_norm"] for one in (agent, alone)]
    assert norms[0] == pytest.approx(expected * norms[1], rel=1e-5)


@pytest.mark.parametrize("env", [WALKER, PENDULUM])
def test_a_plain_network_is_not_equivariant(make_agent, env):
    agent = make_agent("mlp", env)
    assert min(errors(agent)) > 1e-2
    agent.learn(100)
    assert min(errors(agent)) > 1e-2


def test_a_relaxed_network_starts_close_to_equivariant_and_each_model_has_its_pathways(make_agent):
    shares = {}
    for model in MODELS:
        statistics = make_agent(model, WALKER).policy.pathway_statistics()
        shares[model] = (statistics["actor_free_share"], statistics["critic_free_share"])
    assert shares["mlp"] == (1, 1) and shares["emlp"] == (0, 0)
    assert 0 < shares["rpp"][0] < 0.01 and 0 < shares["rpp"][1] < 0.01
    assert shares["rpp_policy_only"] == (pytest.approx(shares["rpp"][0]), 1)
    assert 0 < max(errors(make_agent("rpp", WALKER))) < 0.1


def test_the_measures_see_a_wrong_representation(make_agent):
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


@pytest.mark.parametrize("unit", [1e3, 1e-3, 1e-9])
def test_the_unit_of_the_reward_does_not_matter(make_agent, monkeypatch, unit):
    agent = make_agent("mlp", PENDULUM)
    observations, actions = states(agent)
    here, q = critic_equivariance_error(agent, observations, actions), agent.policy.value_function
    monkeypatch.setattr(agent.policy, "value_function", lambda dtype: lambda obs, raw: unit * q(dtype)(obs, raw))
    there = critic_equivariance_error(agent, observations, actions)
    assert there.error == pytest.approx(here.error, rel=1e-9) and there.scale == pytest.approx(here.scale, rel=1e-9)
    assert not there.vacuous


def test_a_zero_policy_is_called_vacuous(make_agent):
    agent = make_agent("emlp", PENDULUM)
    observations, actions = states(agent)
    with torch.no_grad():
        for p in [*agent.actor.net.parameters(), *agent.critic.parameters()]:
            p.zero_()
    assert policy_equivariance_error(agent, observations).vacuous
    assert critic_equivariance_error(agent, observations, actions).vacuous


def test_the_standard_deviation_permutes_without_signs(make_agent):
    agent = make_agent("emlp", PENDULUM, policy_kwargs=dict(output_scale=1.0))
    observations, _ = states(agent)
    obs = torch.as_tensor(observations)
    g = agent.spec.group.discrete_generators[0]
    mean, log_std = agent.actor.output(obs).chunk(2, -1)
    other_mean, other_log_std = agent.actor.output(agent.spec.transform_observation(g, obs)).chunk(2, -1)
    torch.testing.assert_close(other_mean, -mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other_log_std, log_std, rtol=1e-4, atol=1e-5)
    assert log_std.std() > 1e-2


def test_normalisation_moves_with_collection_only(make_agent):
    agent = make_agent("rpp", WALKER)
    agent.learn(120)
    normaliser = agent.policy.features_extractor.normaliser
    before = {name: b.clone() for name, b in normaliser.named_buffers()}
    agent.predict(agent._last_obs)
    agent.train(5, 32)
    assert all(torch.equal(before[name], b) for name, b in normaliser.named_buffers())
    agent.learn(1, reset_num_timesteps=False)
    assert any(not torch.equal(before[name], b) for name, b in normaliser.named_buffers())
    assert agent.critic.features_extractor is agent.actor.features_extractor is agent.critic_target.features_extractor


def test_the_critics_differ_and_the_targets_start_as_copies(make_agent):
    agent = make_agent("rpp", WALKER)
    first, second = agent.critic.q_networks
    assert not torch.equal(next(first.parameters()), next(second.parameters()))
    pairs = zip(agent.critic.parameters(), agent.critic_target.parameters(), strict=True)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in pairs)


def test_the_same_seed_draws_the_same_agent(make_agent):
    first, again, other = (make_agent("rpp", WALKER, seed=seed).update_state() for seed in (3, 3, 4))
    assert torch.equal(first["actor"], again["actor"]) and torch.equal(first["critic"], again["critic"])
    assert not torch.equal(first["actor"], other["actor"])


class Bounds(gym.ActionWrapper):
    """The same environment with other action bounds."""

    def __init__(self, env, low, high):
        super().__init__(env)
        self.action_space = gym.spaces.Box(np.array(low, dtype=np.float32), np.array(high, dtype=np.float32))

    def action(self, action):
        return action


def test_refusals_name_the_thing_and_the_remedy(make_agent):
    with pytest.raises(ValueError, match=r"no symmetry spec.*Pendulum-v1.*spec="):
        make_agent("rpp", "Pendulum-v1")
    with pytest.raises(ValueError, match=r"model='rp' is not one of rpp, emlp, mlp, rpp_policy_only"):
        make_agent("rp")
    with pytest.raises(ValueError, match=r"free_variance=-1.0 must be a number of at least 0"):
        make_agent("rpp", policy_kwargs=dict(free_variance=-1.0))
    for value in ("wide", None):
        with pytest.raises(ValueError, match=rf"equivariant_variance={value!r} must be a number of at least 0"):
            make_agent("rpp", policy_kwargs=dict(equivariant_variance=value))
    with pytest.raises(ValueError, match=r"'slider force'.*\[-3, 2\], not symmetric about 0; wrap.*RescaleAction"):
        make_agent("rpp", Bounds(gym.make(PENDULUM), [-3], [2]))
    bounds = [1, 1, 1, 2, 1, 1]
    with pytest.raises(ValueError, match=r"exchanges action .*RescaleAction"):
        make_agent("rpp", Bounds(gym.make(WALKER), [-b for b in bounds], bounds))
    with pytest.raises(ValueError, match=r"observation space has 4 entries and the symmetry spec 17"):
        make_agent("rpp", PENDULUM, spec=symmetry_spec(WALKER))
    with pytest.raises(ValueError, match=r"use_sde"):
        make_agent("rpp", use_sde=True)
    with pytest.raises(ValueError, match=r"noise_variance=0 must be positive"):
        make_agent("rpp", noise_variance=0)
    with pytest.raises(ValueError, match=r"max_gradient_norm=0 must be positive"):
        make_agent("rpp", max_gradient_norm=0)
    with pytest.raises(ValueError, match=r"n_critics=0 must be at least 1"):
        make_agent("rpp", policy_kwargs=dict(n_critics=0))
    with pytest.raises(ValueError, match=r"spec='leg swap' is no SymmetrySpec; .*symmetry_spec"):
        make_agent("rpp", spec="leg swap")
    agent = make_agent("rpp")
    with pytest.raises(ValueError, match=r"5 states and 3 actions; give one action per state"):
        critic_equivariance_error(agent, np.zeros((5, 4)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"optimizer_kwargs has 'amsgrad'"):
        make_agent("rpp", policy_kwargs=dict(optimizer_kwargs=dict(amsgrad=True)))


def mixed_actions(matrix):
    """Walker2d's spec with an action on actions that mixes the first two."""
    data = symmetry_spec(WALKER).to_dict()
    data["action"]["discrete_generators"] = [matrix.tolist()]
    return SymmetrySpec.from_dict(data)


def test_actions_that_are_mixed_form_a_block(make_agent):
    """A reflection in an oblique plane, in which a tanh by entries would break the symmetry; SAC only, in a square box."""
    v = np.array([1, 2, 0, 0, 0, 0]) / np.sqrt(5)
    spec = mixed_actions(np.eye(6) - 2 * np.outer(v, v))
    agent = make_agent("emlp", WALKER, spec=spec)
    assert agent.actor.blocks.tolist() == [[1, 1, 0, 0, 0, 0], *np.eye(6)[2:].tolist()]
    assert agent.actor.net.rep_out.dim == 6 + 5
    agent.learn(80)
    assert max(errors(agent, torch.float64)) < 1e-12
    bounds = np.array([1, 2, 1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"mixes action .*bounded by 1, with .*bounded by 2; .*RescaleAction"):
        make_agent("rpp", Bounds(gym.make(WALKER), -bounds, bounds), spec=spec)
    with pytest.raises(ValueError, match=r"PPO clips every action by itself"):
        PPO(RPPActorCriticPolicy, WALKER, policy_kwargs=dict(spec=spec, hidden=8), device="cpu")


def test_an_action_that_is_stretched_is_refused(make_agent):
    stretched = np.diag([2.0, 1, 1, 1, 1, 1])
    stretched[:2, :2] = [[0, 2.0], [0.5, 0]]
    with pytest.raises(ValueError, match=r"is not orthogonal, .*; rescale the actions"):
        make_agent("rpp", WALKER, spec=mixed_actions(stretched))


def test_the_folder_is_imported_under_its_package(monkeypatch):
    import importlib.util

    import rppdyn.agents

    location = importlib.util.spec_from_file_location("agents", rppdyn.agents.__file__)
    with pytest.raises(ImportError, match=r"import rppdyn\.agents"):
        location.loader.exec_module(importlib.util.module_from_spec(location))


def chain(spec: SymmetrySpec, **kwargs) -> dict:
    mirror = Group("mirror", discrete_generators=spec.group.discrete_generators[1:])
    return dict(groups=[spec.group, mirror], variances=[1e5, 1e-2, 0.0], hidden=16) | kwargs


def test_a_chain_keeps_the_subgroup_through_training_and_saving(tmp_path):
    spec = symmetry_spec(WINDY, symmetry="D4")
    options = dict(seed=0, device="cpu", learning_starts=20, batch_size=16, buffer_size=100, learning_rate=3e-3)
    agent = RPPSAC("RPPPolicy", WINDY, spec=spec, policy_kwargs=chain(spec), **options)
    agent.learn(40)
    agent.save(tmp_path / "agent")
    loaded = RPPSAC.load(tmp_path / "agent", device="cpu")
    assert loaded.actor.net.groups == agent.actor.net.groups and len(agent.actor.net.groups) == 2
    observations, actions = states(loaded)
    for measure in (
        policy_equivariance_error(loaded, observations, dtype=torch.float64),
        critic_equivariance_error(loaded, observations, actions, dtype=torch.float64),
    ):
        assert measure.per_generator["left-right"] < 1e-10 < 1e-4 < measure.per_generator["quarter turn"]


@pytest.mark.parametrize("changed, parts", [
    (dict(model="emlp"), "groups with model='emlp', which has one pathway"),
    (dict(model="mlp"), "groups with model='mlp', which has one pathway"),
    (dict(free_variance=1.0), "free_variance=1.0 with groups"),
    (dict(free_variance="certified"), "free_variance='certified' with groups"),
    (dict(critic_free_variance=1.0), "critic_free_variance=1.0 with groups"),
    (dict(variances=[1.0, 1.0]), "give 3 variances"),
    (dict(groups=None), "groups=None"),
    (dict(groups=[Z(2), Z(2)]), "Z(2) is given twice"),
    (dict(groups=[O2eR3(), DkeR3(4)]), "begins with O2eR3, and the symmetry of rppdyn/WindyPendulum-v0 is DkeR3(4)"),
])  # fmt: skip
def test_chains_that_have_no_meaning_are_refused_in_one_line(changed, parts):
    spec = symmetry_spec(WINDY, symmetry="D4")
    with pytest.raises(ValueError, match=re.escape(parts)) as caught:
        RPPSAC("RPPPolicy", WINDY, spec=spec, policy_kwargs=chain(spec, **changed), device="cpu")
    assert len(str(caught.value).splitlines()) == 1
