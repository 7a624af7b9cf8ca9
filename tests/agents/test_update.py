"""Updates of agents against plain autograd with torch.optim.Adam, against stable-baselines3, and of several at once."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from legged import Legged, legged_spec
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stepping import settings_of, stepped
from torch import nn
from torch.distributions import Independent, Normal
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from rppdyn.agents import SACUpdate
from rppdyn.nn.ensemble import Ensemble
from rppdyn.nn.pathways import named_pathways
from rppdyn.priors import negative_log_prior
from rppdyn.priors.likelihood import prior_precision

STEPS = 100


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
        yield batch | {"noise": draw(32, m), "next_noise": draw(32, m)}


def reference(agent, steps, config):
    """The same algorithm as one would write it: modules, `backward`, torch.optim.Adam, in-place targets."""
    actor, critic = copy.deepcopy(agent.actor.net), copy.deepcopy(agent.critic.q_networks)
    target, log_alpha = copy.deepcopy(agent.critic_target.q_networks), agent.log_ent_coef.detach().clone()
    log_alpha = log_alpha.to(next(actor.parameters()).dtype).requires_grad_()
    adam = dict(lr=config.learning_rate, betas=config.betas, eps=config.epsilon)
    optimisers = [torch.optim.Adam(p, **adam) for p in (actor.parameters(), critic.parameters(), [log_alpha])]

    def run(net, x):
        """The network as linear layers and swish."""
        *blocks, head = net.assemble()
        for (weight, bias), _, _ in blocks:
            x = nn.functional.silu(x @ weight.mT + bias)
        return x @ head[0].mT + head[1]

    def sample(features, noise):
        mean, log_std = run(actor, features).chunk(2, -1)
        u = mean + log_std.exp() * noise
        return u.tanh(), Independent(Normal(mean, log_std.exp()), 1).log_prob(u) - (1 - u.tanh() ** 2).log().sum(-1)

    def q(networks, features, actions):
        return [run(net, torch.cat([features, actions], -1)).squeeze(-1) for net in networks]

    for batch in steps:
        alpha = log_alpha.exp().detach()
        actions, log_prob = sample(batch["features"], batch["noise"])
        with torch.no_grad():
            after, after_log_prob = sample(batch["next_features"], batch["next_noise"])
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

    return vectors(actor, critic, target, log_alpha)


def vectors(actor, critic, target, log_alpha):
    found = {"actor": actor, "critic": critic, "target": target}
    return {name: parameters_to_vector(net.parameters()).detach().clone() for name, net in found.items()} | {
        "log_alpha": log_alpha.detach().clone()
    }


def vectors_of(agent):
    return vectors(agent.actor.net, agent.critic.q_networks, agent.critic_target.q_networks, agent.log_ent_coef)


def advanced(agent, steps, settings):
    """Where updates on these batches take an agent."""
    update = SACUpdate([agent])
    for batch in steps:
        stepped(update, [batch], [settings])
    return vectors_of(agent)


def assert_same_course(start, found, expected, rtol):
    for name, value in expected.items():
        assert (value - start[name]).norm() > 1e-5 * value.norm(), name
        assert (found[name] - value).norm() <= rtol * value.norm(), name


def in_dtype(agent, dtype):
    agent.policy.to(dtype)
    agent.log_ent_coef.data = agent.log_ent_coef.data.to(dtype)
    return agent


PRECISIONS = pytest.mark.parametrize(
    "dtype, rtol", [(torch.float32, 1e-4), (torch.float64, 1e-10)], ids=["float32", "float64"]
)


def assert_agrees_with_reference(agent, dtype, rtol, count):
    in_dtype(agent, dtype)
    config = settings_of(agent, 0.05)
    start, expected = vectors_of(agent), reference(agent, batches(agent, dtype, count=count), config)
    assert_same_course(start, advanced(agent, batches(agent, dtype, count=count), config), expected, rtol)


@PRECISIONS
def test_agrees_with_autograd_and_torch_adam_for_a_hundred_updates(make_agent, dtype, rtol):
    agent = make_agent("rpp", "Hopper-v5", policy_kwargs=dict(num_layers=1, output_scale=0.1), noise_variance=0.3)
    assert_agrees_with_reference(agent, dtype, rtol, STEPS)


@pytest.mark.parametrize("model", ["rpp", "emlp", "mlp", "rpp_policy_only"])
def test_agrees_with_autograd_and_torch_adam(make_agent, model):
    agent = make_agent(model, "Hopper-v5", policy_kwargs=dict(output_scale=0.1), max_gradient_norm=0.5)
    assert_agrees_with_reference(agent, torch.float64, 1e-10, 5)


def drawn_by(peer, steps, monkeypatch):
    """Has an agent of stable-baselines3 draw these batches; they, without priors, and their noise in the order of its draws."""
    steps = [b | {"transitions": torch.full_like(b["transitions"], torch.inf)} for b in steps]
    samples = iter([
        ReplayBufferSamples(b["features"], b["actions"], b["next_features"], b["dones"][:, None], b["rewards"][:, None])
        for b in steps
    ])  # fmt: skip
    monkeypatch.setattr(peer.replay_buffer, "sample", lambda *args, **kwargs: next(samples))
    peer.set_logger(Logger(None, []))
    return steps, iter([b[key] for b in steps for key in ("noise", "next_noise")])


@PRECISIONS
def test_agrees_with_stable_baselines3(make_agent, monkeypatch, dtype, rtol):
    """Its own `train`, with the same networks, on the same batches and noise; without priors, which it doesn't have."""
    adam = dict(betas=(0.9, 0.999), eps=1e-8)
    agent = in_dtype(make_agent("mlp", "Hopper-v5", policy_kwargs=dict(optimizer_kwargs=adam)), dtype)
    kwargs = dict(net_arch=[16, 16], activation_fn=nn.SiLU, optimizer_kwargs=adam)
    peer = in_dtype(SAC("MlpPolicy", "Hopper-v5", policy_kwargs=kwargs, device="cpu"), dtype)
    peer.actor.action_dist.epsilon = 0.0  # a rounding guard in the log-density
    pairs = [
        (agent.actor.net, [*peer.actor.latent_pi, nn.ModuleList([peer.actor.mu, peer.actor.log_std])]),
        *zip(agent.critic.q_networks, peer.critic.q_networks, strict=True),
        *zip(agent.critic_target.q_networks, peer.critic_target.q_networks, strict=True),
    ]
    each_parameter(pairs, lambda ours, theirs: theirs.copy_(ours))
    start = vectors_of(agent)

    steps, draws = drawn_by(peer, batches(agent, dtype), monkeypatch)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(draws))
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)
    peer.train(len(steps), 32)
    found = advanced(agent, steps, settings_of(agent, peer.tau))
    each_parameter(pairs, lambda ours, theirs: ours.copy_(theirs))
    assert_same_course(start, found, vectors_of(agent) | {"log_alpha": peer.log_ent_coef.detach()}, rtol)


@PRECISIONS
@pytest.mark.parametrize("model", ["rpp", "emlp"])
def test_agrees_with_the_training_loop_of_stable_baselines3(make_agent, monkeypatch, model, dtype, rtol):
    """Its `train` of an agent of ours, by autograd through the modules, on the same batches and noise; without priors."""
    adam = dict(betas=(0.9, 0.999), eps=1e-8)
    agent, peer = (
        in_dtype(make_agent(model, "Hopper-v5", policy_kwargs=dict(optimizer_kwargs=adam), seed=3), dtype) for _ in "ab"
    )
    start = vectors_of(agent)
    assert all(torch.equal(value, start[name]) for name, value in vectors_of(peer).items())
    steps, draws = drawn_by(peer, batches(agent, dtype), monkeypatch)
    monkeypatch.setattr(peer.actor, "draw_noise", lambda output: next(draws))
    monkeypatch.setattr(peer.policy.features_extractor, "forward", lambda features: features)
    SAC.train(peer, len(steps), 32)
    assert_same_course(start, advanced(agent, steps, settings_of(agent, peer.tau)), vectors_of(peer), rtol)


@torch.no_grad()
def each_parameter(pairs, function):
    """`function` of each parameter of networks of both packages; a list of layers there is one layer here."""
    for ours, theirs in pairs:
        layers = [layer for layer in theirs if not isinstance(layer, nn.SiLU)]
        for here, there in zip([*(block.linear for block in ours.blocks), ours.head], layers, strict=True):
            parts = there if isinstance(there, nn.ModuleList) else [there]
            for name in ("weight", "bias"):
                for piece, part in zip(getattr(here.free, name).chunk(len(parts)), parts, strict=True):
                    function(piece, getattr(part, name))


def first(agent, dtype=torch.float32):
    return next(batches(agent, dtype))


@pytest.mark.parametrize(
    "env, options",
    [("Hopper-v5", {}), ("Reacher-v5", {}), ("Reacher-v5", dict(network_kwargs=dict(bilinear="published")))],
    ids=["one by one product", "gates and products", "pairs that each network drew"],
)
def test_several_agents_at_once_are_each_as_alone(make_agent, env, options):
    """Each with settings, variances and units of its own."""

    def agents():
        made = [
            in_dtype(make_agent("rpp", env, seed=seed, max_gradient_norm=0.5, policy_kwargs=options), torch.float64)
            for seed in (0, 1, 2)
        ]
        for shift, agent in enumerate(made):
            for net in (agent.actor.net, *agent.critic.q_networks):
                for _, _, pathway in named_pathways(net):
                    pathway.log_variance.add_(shift)
                    pathway.follow_variance()
        return made

    together, alone = agents(), agents()
    steps = [list(batches(agent, torch.float64, seed, 3)) for seed, agent in enumerate(together)]
    settings = [
        dataclasses.replace(agent.settings(), learning_rate=1e-3 / (i + 1), tau=0.05 * i, gamma=0.9 + i / 100)
        for i, agent in enumerate(together)
    ]
    update, each = SACUpdate(together), [SACUpdate([agent]) for agent in alone]
    assert update.actors.as_one != bool(options)
    for parts in zip(*steps, strict=True):
        metrics = stepped(update, parts, settings)
        single = [stepped(u, [b], [s]) for u, b, s in zip(each, parts, settings, strict=True)]
        for name, value in metrics.items():
            torch.testing.assert_close(value, torch.cat([m[name] for m in single]), rtol=1e-10, atol=1e-12)
    for one, other in zip(together, alone, strict=True):
        expected = vectors_of(other)
        for name, value in vectors_of(one).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "env, spec", [("Hopper-v5", None), ("Ant-v5", None), (Legged(), legged_spec("left-right", "yaw"))]
)
def test_the_prior_of_vectors_is_that_of_the_networks(make_agent, env, spec):
    nets = copy.deepcopy(make_agent("rpp", env, spec=spec).critic.q_networks).double()
    ensemble = Ensemble(nets, own=False)
    precision, constant = prior_precision(ensemble)
    torch.testing.assert_close(
        (0.5 * precision * ensemble.flat**2).sum(1) + constant, torch.stack([negative_log_prior(net) for net in nets])
    )


def test_the_prior_follows_a_variance_that_is_changed(make_agent):
    agent = make_agent("rpp")
    update = SACUpdate([agent])
    update.refresh()
    before = update.state["actor.precision"]
    update.refresh()
    assert update.state["actor.precision"] is before
    for _, _, pathway in named_pathways(agent.actor.net):
        pathway.log_variance.add_(1.0)
    update.refresh()
    torch.testing.assert_close(update.state["actor.precision"], before / torch.e, rtol=1e-5, atol=0)


def test_tau_zero_leaves_targets_and_a_fixed_temperature_stays(make_agent):
    agent = make_agent("rpp", ent_coef=0.1)
    update = SACUpdate([agent])
    update.refresh()
    before = {name: update.state[name].clone() for name in ("target", "log_alpha")}
    metrics = stepped(update, [first(agent)], [settings_of(agent, 0.0)])
    assert all(torch.equal(update.state[name], value) for name, value in before.items())
    assert metrics["ent_coef"].item() == pytest.approx(0.1) and "ent_coef_loss" not in metrics


def test_the_prior_is_divided_by_the_number_of_transitions(make_agent):
    agent, other = make_agent("rpp"), make_agent("rpp")
    expected = sum(negative_log_prior(net).item() for net in agent.critic.q_networks) / 500
    actor = negative_log_prior(agent.actor.net).item() / 500
    many = stepped(SACUpdate([agent]), [first(agent)], [settings_of(agent, 0.05)])
    few = stepped(SACUpdate([other]), [first(other) | {"transitions": torch.tensor(5.0)}], [settings_of(other, 0.05)])
    assert few["critic_prior"].item() == pytest.approx(100 * many["critic_prior"].item(), rel=1e-5)
    assert many["critic_prior"].item() == pytest.approx(expected, rel=1e-5)
    assert many["actor_prior"].item() == pytest.approx(actor, rel=1e-5)


def test_a_batch_that_cant_be_drawn_takes_no_other_agent_with_it(make_agent, monkeypatch):
    agents = [make_agent("rpp", seed=seed).learn(60) for seed in (0, 1)]

    def fail(batch_size):
        raise ValueError("no batch")

    update = SACUpdate(agents)
    monkeypatch.setattr(agents[0].sampler, "sample", fail)
    update.step(8, [agent.settings() for agent in agents])
    assert str(update.errors[0]) == "no batch"
    monkeypatch.setattr(agents[1].sampler, "sample", fail)
    with pytest.raises(ValueError, match="no batch"):
        update.step(8, [agent.settings() for agent in agents])
