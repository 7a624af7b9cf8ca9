"""RPPCrossQ: against sb3-contrib's, resumed, many seeds at once, compiled, with each option; and what it refuses."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from forked import run_code
from sb3_contrib import CrossQ
from sb3_contrib.common.torch_layers import BatchRenorm1d
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stepping import stepped
from torch import nn

from rppdyn.agents import (
    RPPSAC,
    CrossQUpdate,
    RPPCrossQ,
    critic_equivariance_error,
    policy_equivariance_error,
    train_many,
)
from rppdyn.agents.crossq import projected
from rppdyn.agents.networks import RewardScale
from rppdyn.nn.normalisation import pools

XQC = dict(critic_head="categorical", bins=21, weight_norm=True)
HEADS = pytest.mark.parametrize("options", [{}, XQC], ids=["CrossQ", "XQC"])


def made(model="mlp", env="InvertedPendulum-v5", seed=0, policy_kwargs=(), **options):
    networks = dict(model=model, hidden=16) | dict(policy_kwargs)
    options = dict(buffer_size=2000, learning_starts=50, batch_size=32) | options
    return RPPCrossQ("RPPPolicy", env, policy_kwargs=networks, seed=seed, device="cpu", **options)


def drawn(agent, count, seed=0, size=32):
    generator = torch.Generator().manual_seed(seed)
    n, m = agent.spec.feature_dim, len(agent.spec.action_names)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    for _ in range(count):
        yield {
            "features": draw(size, n), "next_features": draw(size, n), "actions": draw(size, m).tanh(), "rewards": draw(size),
            "dones": (draw(size) > 1).double(), "noise": draw(size, m), "next_noise": draw(size, m),
            "transitions": torch.tensor(torch.inf, dtype=torch.float64),
        }  # fmt: skip


def in_double(agent):
    agent.policy.to(torch.float64)
    agent.log_ent_coef.data = agent.log_ent_coef.data.to(torch.float64)
    return agent


def layers_of(theirs):
    return [layer for layer in theirs if not isinstance(layer, nn.ReLU | nn.Flatten)]


@torch.no_grad()
def put_into(theirs, net):
    """The parameters and running statistics of a plain network of ours, in the layers of theirs."""
    norms = [layer for layer in theirs if isinstance(layer, BatchRenorm1d)]
    for norm, other in zip(net.norms, norms, strict=True):
        mean, variance, _ = norm.running.split([norm.centred, norm.pools, 1])
        pairs = (other.scale, norm.scale), (other.bias, norm.shift), (other.ra_mean, mean), (other.ra_var, variance)
        for there, here in pairs:
            there.copy_(here)
    linears = [layer for layer in theirs if not isinstance(layer, BatchRenorm1d)]
    for layer, other in zip([*(block.linear for block in net.blocks), net.head], linears, strict=True):
        parts = other if isinstance(other, nn.ModuleList) else [other]
        for name in ("weight", "bias"):
            for piece, part in zip(getattr(layer.free, name).chunk(len(parts)), parts, strict=True):
                getattr(part, name).copy_(piece)


def values_of(theirs):
    return {name: value.clone() for name, value in theirs.state_dict().items() if not name.endswith("steps")}


def test_agrees_with_sb3_contrib(monkeypatch):
    """Its own `train`, with the same networks, on the same batches and noise; without priors, which it doesn't have."""
    agent = in_double(made("mlp", "Hopper-v5"))
    kwargs = dict(net_arch=[16, 16])
    peer = CrossQ("MlpPolicy", "Hopper-v5", policy_kwargs=kwargs, device="cpu", learning_rate=1e-3)
    peer.policy.to(torch.float64)
    peer.log_ent_coef.data = peer.log_ent_coef.data.double()
    peer.ent_coef_optimizer = torch.optim.Adam([peer.log_ent_coef], lr=1e-3, betas=(0.5, 0.999))
    peer.actor.action_dist.epsilon = 0.0  # a rounding guard in the log-density
    actor = nn.ModuleList([*layers_of(peer.actor.latent_pi), nn.ModuleList([peer.actor.mu, peer.actor.log_std])])
    critics = [nn.ModuleList(layers_of(q)) for q in peer.critic.q_networks]
    pairs = [(actor, agent.actor.net), *zip(critics, agent.critic.q_networks, strict=True)]
    for theirs, ours in pairs:
        put_into(theirs, ours)
    start = [values_of(theirs) for theirs, _ in pairs]

    batches = list(drawn(agent, 30))
    samples = iter([
        ReplayBufferSamples(b["features"], b["actions"], b["next_features"], b["dones"][:, None], b["rewards"][:, None])
        for b in batches
    ])  # fmt: skip
    keys = [(b, key) for i, b in enumerate(batches) for key in ("next_noise", *(["noise"] if (i + 1) % 3 == 0 else []))]
    draws = iter([b[key] for b, key in keys])
    monkeypatch.setattr(peer.replay_buffer, "sample", lambda *args, **kwargs: next(samples))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(draws))
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)
    peer.set_logger(Logger(None, []))
    peer.train(len(batches), 32)

    update = CrossQUpdate([agent])
    for batch in batches:
        stepped(update, [batch], [agent.settings()])
        agent._n_updates += 1
    found = []
    expected = [values_of(theirs) for theirs, _ in pairs]
    for theirs, ours in pairs:
        put_into(theirs, ours)
        found.append(values_of(theirs))
    for first, there, here in zip(start, expected, found, strict=True):
        for name, value in there.items():
            assert (value - first[name]).norm() > 1e-5 * value.norm(), name
            assert (here[name] - value).norm() <= 1e-8 * value.norm(), name
    assert torch.allclose(agent.log_ent_coef, peer.log_ent_coef, rtol=1e-10)


@HEADS
@pytest.mark.parametrize("model", ["rpp", "emlp"])
def test_a_captured_agent_goes_on_bit_for_bit(model, options):
    whole = made(model, **options).learn(130)
    first = made(model, **options)
    first.learn(90)
    second = made(model, seed=1, **options)
    second.restore(first.capture())
    second.learn(40, reset_num_timesteps=False)
    assert_same(whole, second)


def assert_same(one, other, exactly=True):
    for name, value in one.policy.state_dict().items():
        there = other.policy.state_dict()[name]
        assert torch.equal(value, there) if exactly else torch.allclose(value, there, rtol=1e-3, atol=1e-5), name
    assert one.num_timesteps == other.num_timesteps


@HEADS
def test_agents_trained_at_once_are_each_as_alone(options):
    builds = [lambda seed=seed: in_double(made("rpp", seed=seed, **options)) for seed in (0, 1)]
    together = train_many(builds, 90)
    for trainer, build in zip(together, builds, strict=True):
        assert trainer.error is None
        assert_same(build().learn(90), trainer.agent, exactly=False)


@HEADS
def test_saved_and_loaded(tmp_path, options):
    agent = made("emlp", **options).learn(80)
    agent.save(tmp_path / "agent")
    loaded = RPPCrossQ.load(tmp_path / "agent", env=gym.make("InvertedPendulum-v5"))
    assert_same(agent, loaded)
    observation = np.array([0.1, 0.05, -0.2, 0.3])
    assert np.array_equal(
        agent.predict(observation, deterministic=True)[0], loaded.predict(observation, deterministic=True)[0]
    )
    loaded.learn(20, reset_num_timesteps=False)


@HEADS
@pytest.mark.parametrize("env", ["InvertedPendulum-v5", "Ant-v5"])
def test_strict_agents_stay_equivariant(env, options):
    agent = made("emlp", env, policy_kwargs=dict(hidden=32, num_layers=1), **options).learn(80)
    observations = agent.replay_buffer.sample(64).observations.double().numpy()
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (64, *agent.action_space.shape))
    assert policy_equivariance_error(agent, observations).error < 1e-9
    assert critic_equivariance_error(agent, observations, actions).error < 1e-9
    plain = made("mlp", env, policy_kwargs=dict(hidden=32, num_layers=1), **options).learn(80)
    assert critic_equivariance_error(plain, observations, actions).error > 1e-2


def test_metrics_are_means_over_the_updates_that_have_them():
    agent = made(gradient_steps=4, train_freq=4)
    agent.learn(60)
    agent.train(4, 32)
    values = agent.logger.name_to_value
    assert np.isfinite(values["train/actor_loss"]) and np.isfinite(values["train/critic_loss"])


@pytest.mark.parametrize("model", ["rpp", "emlp", "mlp"])
def test_weight_normalisation_scales_the_sum_of_pathways(model):
    """Rows of norm 1 on average over those that the symmetry exchanges; the ratio of pathways, and the values, as before."""
    agent = made(model, "Ant-v5", weight_norm=True, policy_kwargs=dict(hidden=32))
    agent.learn(70)
    update, networks = agent.own_update, [agent.actor.net, *agent.critic.q_networks]
    for net in networks:
        for block in net.blocks:
            labels, _ = pools(block.linear.rep_out)
            squares = block.linear.assemble()[0].square().sum(1)
            mean = torch.zeros(int(labels.max()) + 1).index_add(0, labels, squares) / labels.bincount()
            torch.testing.assert_close(mean, torch.ones_like(mean), rtol=1e-4, atol=1e-4)
    x = torch.randn(9, networks[1].rep_in.dim)
    before, ratios = networks[1].on_batch(x)[0], shares(networks[1])
    with torch.no_grad():
        for block in networks[1].blocks:
            for pathway in block.linear.linear_pathways:
                for parameter in (pathway.weight, pathway.bias):
                    if parameter is not None:
                        parameter.mul_(3.0)
    for norm in networks[1].norms:
        norm.eps = 1e-12
    before = networks[1].on_batch(x)[0]
    update.refresh()
    update.normalise_weights_()
    torch.testing.assert_close(networks[1].on_batch(x)[0], before, rtol=1e-3, atol=1e-3)
    assert shares(networks[1]) == pytest.approx(ratios, rel=1e-3)


def shares(net):
    return [p.norm().item() / block.linear.assemble()[0].norm().item()
            for block in net.blocks for p in block.linear.linear_pathways]  # fmt: skip


def test_projection_keeps_mean_and_mass():
    atoms = torch.linspace(-2, 2, 9, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5, 9, generator=generator, dtype=torch.float64).softmax(-1)
    values = torch.rand(5, 9, generator=generator, dtype=torch.float64) * 3 - 1.5
    q = projected(values, p, atoms)
    assert torch.allclose(q.sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.allclose(q @ atoms, (p * values).sum(-1))
    one = projected(torch.full((1, 9), 7.0, dtype=torch.float64), p[:1], atoms)
    assert torch.allclose(one, torch.eye(9, dtype=torch.float64)[-1:])  # beyond the last atom


def test_rewards_are_scaled_by_deviation_and_bound():
    scale = RewardScale(5.0)
    returns = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    for part in returns.split(100):
        scale.observe(part)
    assert float(scale.scale_exact) == pytest.approx(float(returns.std(correction=0)))
    scale.observe(torch.tensor([100.0]))
    assert float(scale.scale_exact) == pytest.approx(20.0)


COMPILED = """
import functools, sys, torch
from rppdyn.agents import RPPCrossQ
torch.compile = functools.partial(torch.compile, backend="aot_eager")
torch.set_num_threads(1)

def trained(compile, **options):
    agent = RPPCrossQ("RPPPolicy", "InvertedPendulum-v5", seed=0, device="cpu", buffer_size=500, learning_starts=50,
                      batch_size=16, policy_kwargs=dict(model="rpp", hidden=8, num_layers=1), compile=False, **options)
    agent.policy.to(torch.float64)
    agent.log_ent_coef.data = agent.log_ent_coef.data.double()
    agent.compile = compile
    return agent.learn(70).policy.state_dict()

options = dict(critic_head="categorical", bins=11, weight_norm=True)
plain, fast = trained(False, **options), trained(True, **options)
for name, value in plain.items():
    assert torch.allclose(value, fast[name], rtol=1e-6, atol=1e-9), name
"""


def test_compiled_training_is_the_same(tmp_path):
    run_code(COMPILED, folder=tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(tau=0.005), r"tau=0.005: RPPCrossQ has no targets"),
        (dict(policy_delay=0), r"policy_delay=0: give a number of at least 1"),
        (dict(critic_head="quantile"), r"critic_head='quantile': choose 'scalar' or 'categorical'"),
        (dict(critic_head="categorical", bins=1), r"bins=1: give a number of at least 2"),
        (dict(value_range=(3.0, -3.0)), r"value_range=\(3.0, -3.0\): give the least"),
        (dict(policy_kwargs=dict(normalisation=None)), r"normalisation=None: RPPCrossQ's networks need one"),
        (dict(policy_kwargs=dict(network_kwargs=dict(normalisation="batch"))), r"network_kwargs has 'normalisation'"),
    ],
)
def test_what_it_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_soft_actor_critic_refuses_normalised_networks():
    with pytest.raises(ValueError, match=r"normalisation='batch': targets don't fit.*use RPPCrossQ"):
        RPPSAC("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=dict(model="mlp", normalisation="batch"))
