"""The pure update against plain autograd with torch.optim.Adam, and stacked over seeds."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch.distributions import Independent, Normal
from torch.nn.utils import clip_grad_norm_

from rppdyn.agents.update import functional, update
from rppdyn.priors import negative_log_prior

STEPS = 5


def batches(agent, dtype, seed=0, count=STEPS):
    generator = torch.Generator().manual_seed(seed)
    n, m = agent.spec.feature_dim, len(agent.spec.action_names)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    for _ in range(count):
        batch = {
            "features": draw(32, n),
            "next_features": draw(32, n),
            "actions": draw(32, m).tanh(),
            "rewards": draw(32),
            "dones": (draw(32) > 1).to(dtype),
            "transitions": torch.tensor(500.0, dtype=dtype),
        }
        yield batch, {"current": draw(32, m), "next": draw(32, m)}


def reference(agent, steps, config):
    """The same algorithm as one would write it: modules, `backward`, torch.optim.Adam, in-place targets."""
    actor, critic = copy.deepcopy(agent.actor.net), copy.deepcopy(agent.critic.q_networks)
    target, log_alpha = copy.deepcopy(agent.critic_target.q_networks), agent.log_ent_coef.detach().clone()
    log_alpha = log_alpha.to(next(actor.parameters()).dtype).requires_grad_()
    adam = dict(lr=config.learning_rate, betas=config.betas, eps=config.epsilon)
    optimisers = [torch.optim.Adam(p, **adam) for p in (actor.parameters(), critic.parameters(), [log_alpha])]

    def sample(features, noise):
        mean, log_std = actor(features).chunk(2, -1)
        u = mean + log_std.exp() * noise
        return u.tanh(), Independent(Normal(mean, log_std.exp()), 1).log_prob(u) - (1 - u.tanh() ** 2).log().sum(-1)

    def q(networks, features, actions):
        return [net(torch.cat([features, actions], -1)).squeeze(-1) for net in networks]

    for batch, noise in steps:
        alpha = log_alpha.exp().detach()
        actions, log_prob = sample(batch["features"], noise["current"])
        with torch.no_grad():
            after, after_log_prob = sample(batch["next_features"], noise["next"])
            value = torch.minimum(*q(target, batch["next_features"], after)) - alpha * after_log_prob
            y = batch["rewards"] + (1 - batch["dones"]) * config.gamma * value
        loss = sum(((v - y) ** 2).mean() for v in q(critic, batch["features"], batch["actions"]))
        loss = (
            loss / (2 * config.noise_variance) + sum(negative_log_prior(net) for net in critic) / batch["transitions"]
        )
        optimisers[1].zero_grad()
        loss.backward()
        if config.max_gradient_norm is not None:
            clip_grad_norm_(critic.parameters(), config.max_gradient_norm)
        optimisers[1].step()
        loss = (alpha * log_prob - torch.minimum(*q(critic, batch["features"], actions))).mean()
        loss = loss + (alpha * negative_log_prior(actor) / batch["transitions"]).sum()
        optimisers[0].zero_grad()
        loss.backward()
        if config.max_gradient_norm is not None:
            clip_grad_norm_(actor.parameters(), config.max_gradient_norm)
        optimisers[0].step()
        optimisers[2].zero_grad()
        (-log_alpha * (log_prob.detach() + config.target_entropy)).mean().backward()
        optimisers[2].step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.lerp_(new, config.tau)

    def vector(module):
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    return {"actor": vector(actor), "critic": vector(critic), "target": vector(target), "log_alpha": log_alpha.detach()}


@pytest.mark.parametrize("model", ["rpp", "emlp", "mlp", "rpp_policy_only"])
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"])
def test_agrees_with_autograd_and_torch_adam(make_agent, model, dtype, rtol):
    agent = make_agent(model, policy_kwargs=dict(output_scale=0.1), max_gradient_norm=0.5, noise_variance=0.3)
    agent.policy.to(dtype)
    agent.log_ent_coef.data = agent.log_ent_coef.data.to(dtype)
    config = agent.update_config(0.05)
    expected = reference(agent, batches(agent, dtype), config)
    state = agent.update_state()
    start = {name: value.clone() for name, value in state.items()}
    for batch, noise in batches(agent, dtype):
        state, _ = update(state, batch, noise, config)
    for name, value in expected.items():
        moved = (value - start[name].reshape(-1)).norm()
        assert moved > 0
        assert (state[name].reshape(-1) - value).norm() <= rtol * max(moved, value.norm()), name


def test_changes_none_of_its_arguments(make_agent):
    agent = make_agent("rpp")
    state = agent.update_state()
    before = {name: value.clone() for name, value in state.items()}
    batch, noise = next(batches(agent, torch.float32))
    given = {name: value.clone() for name, value in batch.items()}
    new, _ = update(state, batch, noise, agent.update_config(0.05))
    assert all(torch.equal(before[name], state[name]) for name in before)
    assert all(torch.equal(given[name], batch[name]) for name in given)
    assert set(new) == set(state) and not torch.equal(new["actor"], state["actor"])


def test_stacked_over_seeds_it_is_the_same_update(make_agent):
    agents = [make_agent("rpp", seed=seed) for seed in (0, 1)]
    config = agents[0].update_config(0.05)
    steps = [list(batches(agent, torch.float32, seed)) for seed, agent in enumerate(agents)]
    states = [agent.update_state() for agent in agents]
    stacked = {name: torch.stack([s[name] for s in states]) for name in states[0]}
    over_seeds = torch.func.vmap(lambda s, b, n: update(s, b, n, dataclasses.replace(config, gradient=functional)))
    for (batch0, noise0), (batch1, noise1) in zip(*steps, strict=True):
        states[0], metrics0 = update(states[0], batch0, noise0, config)
        states[1], metrics1 = update(states[1], batch1, noise1, config)
        batch = {name: torch.stack([batch0[name], batch1[name]]) for name in batch0}
        noise = {name: torch.stack([noise0[name], noise1[name]]) for name in noise0}
        stacked, metrics = over_seeds(stacked, batch, noise)
    for name in stacked:
        single = torch.stack([s[name] for s in states])
        torch.testing.assert_close(stacked[name], single, rtol=1e-3, atol=1e-4)
    for name in metrics:
        torch.testing.assert_close(metrics[name], torch.stack([metrics0[name], metrics1[name]]), rtol=1e-3, atol=1e-3)


def test_tau_zero_leaves_targets_and_a_fixed_temperature_stays(make_agent):
    agent = make_agent("rpp", ent_coef=0.1)
    state = agent.update_state()
    batch, noise = next(batches(agent, torch.float32))
    new, metrics = update(state, batch, noise, agent.update_config(0.0))
    assert torch.equal(new["target"], state["target"]) and torch.equal(new["log_alpha"], state["log_alpha"])
    assert metrics["ent_coef"].item() == pytest.approx(0.1) and "ent_coef_loss" not in metrics


def test_the_prior_is_divided_by_the_number_of_transitions(make_agent):
    agent = make_agent("rpp")
    batch, noise = next(batches(agent, torch.float32))
    config = agent.update_config(0.05)
    _, many = update(agent.update_state(), batch, noise, config)
    _, few = update(agent.update_state(), batch | {"transitions": torch.tensor(5.0)}, noise, config)
    assert few["critic_prior"].item() == pytest.approx(100 * many["critic_prior"].item(), rel=1e-5)
    expected = sum(negative_log_prior(net).item() for net in agent.critic.q_networks) / 500
    assert many["critic_prior"].item() == pytest.approx(expected, rel=1e-5)
    assert many["actor_prior"].item() == pytest.approx(negative_log_prior(agent.actor.net).item() / 500, rel=1e-5)
