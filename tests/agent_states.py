"""States of agents' environments, and equivariance errors of agents at them."""

from __future__ import annotations

import numpy as np
import torch
from legged import legged_states

from rppdyn.agents import critic_equivariance_error, policy_equivariance_error


def update_state(agent):
    """The vectors that updates work on, which share their memory with modules and optimisers."""
    agent.own_update.refresh()
    return agent.own_update.state


def states(agent, count=64):
    """Random raw observations and actions."""
    rng, spec, high = np.random.default_rng(0), agent.policy.spec, agent.action_space.high
    origin = np.array(spec.obs.origin)
    obs = legged_states(count, rng) if spec.env_id == "Legged-v0" else origin + rng.normal(size=(count, len(origin)))
    return obs, rng.uniform(-0.8 * high, 0.8 * high, (count, len(high)))


def errors(agent, dtype=torch.float64):
    """Errors of policy and critic, over all generators and of each."""
    observations, actions = states(agent)
    found = [
        policy_equivariance_error(agent, observations, dtype=dtype),
        critic_equivariance_error(agent, observations, actions, dtype=dtype),
    ]
    assert not any(m.vacuous for m in found)
    assert all(set(m.per_generator) == set(agent.policy.spec.generator_names) for m in found)
    return [e for m in found for e in (m.error, *m.per_generator.values())]
