"""RPPCrossQ against sb3-contrib's, and its parts: weight normalisation, categorical values, scaled rewards."""

from __future__ import annotations

import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import CrossQ
from sb3_contrib.common.torch_layers import BatchRenorm1d
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stepping import batches, in_dtype, stepped
from torch import nn

from rppdyn.agents import CrossQUpdate, RPPCrossQ, train_many
from rppdyn.agents._networks import RewardScale
from rppdyn.agents.crossq import project_on_atoms
from rppdyn.nn._normalisation import pools


def made(model="mlp", env="InvertedPendulum-v5", seed=0, policy_kwargs=(), **options):
    networks = dict(model=model, hidden=16) | dict(policy_kwargs)
    options = dict(buffer_size=2000, learning_starts=50, batch_size=32) | options
    return RPPCrossQ("RPPPolicy", env, policy_kwargs=networks, seed=seed, device="cpu", **options)


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


def let_draw(peer, steps, monkeypatch):
    """Have sb3-contrib's agent draw these batches, and their noise in the order of its draws."""
    samples = iter([
        ReplayBufferSamples(b["features"], b["actions"], b["next_features"], b["dones"][:, None], b["rewards"][:, None])
        for b in steps
    ])  # fmt: skip
    draws = iter(
        [b[key] for i, b in enumerate(steps) for key in ("next_noise", *(["noise"] if (i + 1) % 3 == 0 else []))]
    )
    monkeypatch.setattr(peer.replay_buffer, "sample", lambda *args, **kwargs: next(samples))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(draws))
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *args, **kwargs: obs)
    peer.actor.action_dist.epsilon = 0.0  # a rounding guard in the log-density
    peer.set_logger(Logger(None, []))


def test_agrees_with_sb3_contrib(monkeypatch):
    """Its own `train`, with the same networks, on the same batches and noise; without priors, which it doesn't have."""
    agent = in_dtype(made("mlp", "Hopper-v5"))
    kwargs = dict(net_arch=[16, 16])
    peer = CrossQ("MlpPolicy", "Hopper-v5", policy_kwargs=kwargs, device="cpu", learning_rate=1e-3)
    in_dtype(peer)
    peer.ent_coef_optimizer = torch.optim.Adam([peer.log_ent_coef], lr=1e-3, betas=(0.5, 0.999))
    actor = nn.ModuleList([*layers_of(peer.actor.latent_pi), nn.ModuleList([peer.actor.mu, peer.actor.log_std])])
    critics = [nn.ModuleList(layers_of(q)) for q in peer.critic.q_networks]
    pairs = [(actor, agent.actor.net), *zip(critics, agent.critic.q_networks, strict=True)]
    for theirs, ours in pairs:
        put_into(theirs, ours)
    start = [values_of(theirs) for theirs, _ in pairs]

    steps = list(batches(agent, count=30, transitions=torch.inf))
    let_draw(peer, steps, monkeypatch)
    peer.train(len(steps), 32)

    update = CrossQUpdate([agent])
    for batch in steps:
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
    ratios = shares(networks[1])
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
    update.normalise_weights_(update.state)
    torch.testing.assert_close(networks[1].on_batch(x)[0], before, rtol=1e-3, atol=1e-3)
    assert shares(networks[1]) == pytest.approx(ratios, rel=1e-3)


@pytest.mark.parametrize("model", ["emlp", "rpp"])
def test_rows_that_the_symmetry_leaves_empty_are_not_scaled(model):
    """Rows that the equivariant pathway leaves empty keep their size, under strict and under relaxed networks."""
    torch.manual_seed(0)
    agent = made(model, "rppdyn/Navigation-v0", weight_norm=True, policy_kwargs=dict(hidden=32))
    agent.learn(120)
    for net in (agent.actor.net, *agent.critic.q_networks):
        weight, bias = (part.detach() for part in net.blocks[0].linear.assemble())
        linear = net.blocks[0].linear
        empty = linear.equivariant.dense(None)[0].norm(dim=1) < 1e-6
        assert empty.any() and weight[empty].norm(dim=1).max() < 1e-2 and bias.abs().max() < 10
        assert weight[~empty].norm(dim=1).square().mean().item() == pytest.approx(1, rel=0.3)
    assert agent.policy.pathway_statistics()["actor_free_share"] < 1e-4


def shares(net):
    return [p.norm().item() / block.linear.assemble()[0].norm().item()
            for block in net.blocks for p in block.linear.linear_pathways]  # fmt: skip


def test_projection_keeps_mean_and_mass():
    atoms = torch.linspace(-2, 2, 9, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5, 9, generator=generator, dtype=torch.float64).softmax(-1)
    values = torch.rand(5, 9, generator=generator, dtype=torch.float64) * 3 - 1.5
    q = project_on_atoms(values, p, atoms)
    assert torch.allclose(q.sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.allclose(q @ atoms, (p * values).sum(-1))
    one = project_on_atoms(torch.full((1, 9), 7.0, dtype=torch.float64), p[:1], atoms)
    assert torch.allclose(one, torch.eye(9, dtype=torch.float64)[-1:])  # beyond the last atom


def test_returns_begin_with_episodes():
    agent = made("emlp", critic_head="categorical", bins=11)
    agent.learn(30)
    agent.learn(1)
    assert agent._discounted_returns.tolist() == [1.0]  # InvertedPendulum pays 1 a step
    assert agent.policy.reward_scale.bound == 5.0


class Ones(gym.Env):
    """Pays 1 a step, and ends after three steps: a goal, or a time limit, where values go on."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))

    def __init__(self, is_limit):
        self.is_limit = is_limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        is_last = self.steps == 3
        return np.zeros(2, np.float32), 1.0, is_last and not self.is_limit, is_last and self.is_limit, {}


def test_returns_go_on_past_time_limits_as_values_do():
    of = {}
    for is_limit in (True, False):
        agent = made(env=Ones(is_limit), critic_head="categorical", bins=11, gamma=0.5)
        agent.learn(5)
        of[is_limit] = agent._discounted_returns.tolist()
    assert of == {True: [1.9375], False: [1.5]}  # sums of five and of two powers of 0.5


def test_a_loaded_agent_goes_on_within_its_episode(tmp_path):
    env = made(critic_head="categorical", bins=11).get_env()
    agent = made(env=env, critic_head="categorical", bins=11)
    agent.learn(3)
    agent.save(tmp_path / "agent")
    loaded = RPPCrossQ.load(tmp_path / "agent", env=env, force_reset=False)
    loaded.learn(1, reset_num_timesteps=False)
    expected = 1.0
    for _ in range(3):
        expected = 1 + 0.99 * expected
    assert loaded._discounted_returns.tolist() == pytest.approx([expected])


def test_networks_without_hidden_layers_have_no_rows_to_scale():
    assert made(weight_norm=True, policy_kwargs=dict(num_layers=0)).learn(60)._n_updates == 10


def test_agents_of_the_package_are_of_another_class():
    with pytest.raises(ValueError, match=r"use RPPSAC\.pretrained"):
        RPPCrossQ.pretrained("Walker2d-v5")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (dict(value_range=(-5, 0)), "value_range=.*below 0 and one above"),
        (dict(value_range=5), "value_range=5: give a number below 0"),
        (dict(value_range=(-1, 2, 3)), "value_range=.*below 0"),
        (dict(bins=2.5), "bins=2.5: give a number from 2 to"),
        (dict(policy_delay=True), "policy_delay=True: give"),
        (dict(weight_norm="false"), "weight_norm='false': give True or False"),
        (dict(policy_kwargs=dict(normalisation=["batch"])), "normalisation=.*choose 'batch' or 'renorm'"),
    ],
)
def test_options_that_are_none(option, words):
    with pytest.raises(ValueError, match=words):
        made(critic_head="categorical", **option)


def test_what_saved_networks_fix_is_refused(tmp_path):
    made().save(tmp_path / "scalar")
    assert RPPCrossQ.load(tmp_path / "scalar", env="InvertedPendulum-v5").learn(3).num_timesteps == 3
    with pytest.raises(ValueError, match="those of the saved networks: leave them out"):
        RPPCrossQ.load(tmp_path / "scalar", critic_head="categorical")
    made(critic_head="categorical", bins=11, value_range=(-2, 7)).save(tmp_path / "classes")
    with pytest.raises(ValueError, match=r"tau=0\.5: RPPCrossQ has no targets"):
        RPPCrossQ.load(tmp_path / "scalar", tau=0.5)
    loaded = RPPCrossQ.load(tmp_path / "classes")
    assert (loaded.bins, loaded.policy.reward_scale.bound) == (11, 2.0)
    with pytest.raises(ValueError, match="those of the saved networks: leave them out"):
        RPPCrossQ.load(tmp_path / "classes", bins=51)


def test_settings_from_arrays_are_as_good_as_plain_ones():
    def with_numbers(kind, value_range):
        numbers = dict(policy_delay=kind(2), bins=kind(11), buffer_size=kind(500), batch_size=kind(32))
        return made(critic_head="categorical", value_range=value_range, policy_kwargs={"hidden": kind(16)}, **numbers)

    agent, plain = with_numbers(np.int64, np.array([-2, 7.0])).learn(60), with_numbers(int, (-2, 7))
    torch.save(agent.capture(), file := io.BytesIO())
    plain.restore(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert all(map(torch.equal, plain.policy.parameters(), agent.policy.parameters()))


def test_a_buffer_whose_rewards_are_not_in_the_scale_is_warned_of(tmp_path):
    agent = made(critic_head="categorical").learn(3)
    agent.save_replay_buffer(tmp_path / "buffer")
    agent.load_replay_buffer(tmp_path / "buffer")
    with pytest.warns(UserWarning, match=r"not scaled until .*reward_scale\.observe"):
        made(critic_head="categorical").load_replay_buffer(tmp_path / "buffer")


def test_rewards_are_scaled_by_deviation_and_bound():
    scale = RewardScale(5.0)
    returns = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    for part in returns.split(100):
        scale.observe(part)
    assert float(scale.scale_exact) == pytest.approx(float(returns.std(correction=0)))
    scale.observe(torch.tensor([100.0]))
    assert float(scale.scale_exact) == pytest.approx(20.0)


def test_settings_that_change_in_training_do_so_for_each_agent():
    """Agents that are trained at once come out as they would alone. Rows are scaled from the next update on."""

    class Delay(BaseCallback):
        def __init__(self, delay):
            super().__init__()
            self.delay = delay

        def _on_step(self):
            self.model.policy_delay = self.delay
            return True

    def build(seed):
        return made(seed=seed, learning_starts=20, train_freq=2, gradient_steps=2, batch_size=8)

    together = train_many([lambda: build(0), lambda: build(1)], 40, callbacks=[Delay(2), Delay(3)])
    for seed, delay in ((0, 2), (1, 3)):
        alone = build(seed).learn(40, callback=Delay(delay)).policy.state_dict()
        for name, value in together[seed].agent.policy.state_dict().items():
            assert torch.allclose(value, alone[name], rtol=1e-4, atol=1e-5), name
    agent = together[0].agent
    agent.weight_norm = True
    agent.learn(4, reset_num_timesteps=False)
    weight = agent.actor.net.blocks[0].linear.assemble()[0]
    assert torch.allclose(weight.norm(dim=1), torch.ones(16))


def test_many_bins_are_projected_in_parts():
    atoms = torch.linspace(-5, 5, 301, dtype=torch.float64)
    p = torch.rand(4, 301, dtype=torch.float64).softmax(-1)
    q = project_on_atoms(atoms.expand(4, -1), p, atoms)
    assert torch.allclose(q, p, atol=1e-12)
    moved = project_on_atoms(atoms.expand(4, -1) * 0.9 + 0.03, p, atoms)
    assert torch.allclose(moved @ atoms, p @ (atoms * 0.9 + 0.03))
