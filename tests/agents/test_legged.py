"""Agents on specs with a quaternion, with a dihedral group of limbs, and with continuous symmetries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from legged import Legged, legged_spec, legged_states

from rppdyn.agents import RPPSAC, critic_equivariance_error, policy_equivariance_error

GROUPS = [("quarter turn", "left-right"), ("quarter turn", "left-right", "yaw")]


def agent_of(make_agent, names, model="emlp", **kwargs) -> RPPSAC:
    return make_agent(model, Legged(), spec=legged_spec(*names), **kwargs)


def errors(agent: RPPSAC, dtype=torch.float64):
    rng = np.random.default_rng(0)
    observations, actions = legged_states(64, rng), rng.uniform(-0.4, 0.4, (64, 4))
    measured = [
        policy_equivariance_error(agent, observations, dtype=dtype),
        critic_equivariance_error(agent, observations, actions, dtype=dtype),
    ]
    assert not any(m.vacuous for m in measured)
    assert all(set(m.per_generator) == set(agent.spec.generator_names) for m in measured)
    return measured


@pytest.mark.parametrize("names", GROUPS, ids=" + ".join)
def test_strict_networks_are_equivariant_and_plain_ones_are_not(make_agent, names):
    agent = agent_of(make_agent, names).learn(60)
    assert agent._n_updates == 10
    assert all(v.isfinite().all() for v in agent.policy.state_dict().values())
    assert max(e for m in errors(agent) for e in m.per_generator.values()) < 1e-12
    assert max(m.error for m in errors(agent, None)) < 1e-4
    plain = agent_of(make_agent, names, "mlp").learn(60)
    assert min(e for m in errors(plain) for e in m.per_generator.values()) > 1e-2


def test_actions_are_the_same_in_every_direction_and_follow_the_legs(make_agent):
    agent = agent_of(make_agent, ("quarter turn", "left-right", "yaw"), policy_kwargs=dict(output_scale=1.0))
    spec, obs = agent.spec, legged_states(20, np.random.default_rng(1))
    act = agent.policy.action_function(torch.float64)
    quarter, mirror = spec.group.discrete_generators
    turned = torch.linalg.matrix_exp(2.0 * spec.group.lie_algebra[0])
    here = act(torch.as_tensor(obs))
    assert here.std() > 1e-3
    torch.testing.assert_close(act(spec.transform_observation(turned, torch.as_tensor(obs))), here, rtol=0, atol=1e-13)
    for g, order in ((quarter, [3, 0, 1, 2]), (mirror, [3, 2, 1, 0])):
        there = act(spec.transform_observation(g, torch.as_tensor(obs)))
        torch.testing.assert_close(there, here[:, order], rtol=0, atol=1e-13)


def test_both_quaternions_of_an_orientation_are_one_state_and_none_is_no_rotation(make_agent):
    agent = agent_of(make_agent, ("left-right", "yaw"))
    obs = legged_states(5, np.random.default_rng(2))
    other = obs.copy()
    other[:, 1:5] *= -1
    np.testing.assert_allclose(*(agent.predict(o, deterministic=True)[0] for o in (obs, other)), atol=1e-6)
    other[:, 1:5] = 0  # what an environment may observe before its first step
    obs[:, 1:5] = (1, 0, 0, 0)
    np.testing.assert_allclose(*(agent.predict(o, deterministic=True)[0] for o in (obs, other)), atol=1e-6)


def test_saved_and_loaded_in_another_process(make_agent, actions_elsewhere, tmp_path):
    agent = agent_of(make_agent, ("quarter turn", "left-right", "yaw"), "rpp").learn(55)
    observations = legged_states(10, np.random.default_rng(3))
    expected, _ = agent.predict(observations, deterministic=True)
    np.testing.assert_array_equal(actions_elsewhere(agent, observations, without="legged"), expected)
    assert RPPSAC.load(tmp_path / "agent.zip", device="cpu").spec == agent.spec


def test_a_spec_for_encoded_actions_is_refused(make_agent):
    data = legged_spec("left-right").to_dict()
    data["action"]["angles"] = [0]
    data["action"]["discrete_generators"] = [np.eye(5).tolist()]
    spec = type(legged_spec("left-right")).from_dict(data)
    with pytest.raises(ValueError, match=r"acts on encoded actions"):
        make_agent("rpp", Legged(), spec=spec)
