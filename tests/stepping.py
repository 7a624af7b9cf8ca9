"""Single updates of agents on given batches."""

from __future__ import annotations

import dataclasses

import torch

from rppdyn.nn._pathways import named_pathways


def settings_of(agent, tau):
    return dataclasses.replace(agent.settings(), tau=tau)


def stepped(update, batches, settings):
    """Metrics by name, (S,) each, after an update on a batch of each agent."""
    update.refresh()
    like = update.state["actor"]
    numbers = torch.tensor([s.numbers for s in settings], dtype=like.dtype).T.unsqueeze(-1)
    with torch.no_grad():
        metrics = update.update_(update.state, update.stacked(batches), numbers, settings[0])
    return dict(zip(metrics.names, metrics.values, strict=True))


def batches(agent, dtype=torch.float64, seed=0, count=100, transitions=500.0):
    """Batches of random numbers, with features in the place of observations."""
    generator = torch.Generator().manual_seed(seed)
    n, m = agent.spec.feature_dim, len(agent.spec.action_names)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    for _ in range(count):
        yield {
            "features": draw(32, n), "next_features": draw(32, n), "actions": draw(32, m).tanh(), "rewards": draw(32),
            "dones": (draw(32) > 1).to(dtype), "noise": draw(32, m), "next_noise": draw(32, m),
            "transitions": torch.tensor(transitions, dtype=dtype),
        }  # fmt: skip


def in_dtype(agent, dtype=torch.float64):
    agent.policy.to(dtype)
    if agent.log_ent_coef is not None:
        agent.log_ent_coef.data = agent.log_ent_coef.data.to(dtype)
    return agent


def with_own_units(agent, shift):
    """The agent, with its pathways' variances changed, and units that follow them."""
    for net in (agent.actor.net, *agent.critic.q_networks):
        for _, _, pathway in named_pathways(net):
            pathway.log_variance.add_(shift)
            pathway.follow_variance()
    return agent
