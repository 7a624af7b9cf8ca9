"""Stable-baselines3's own PPO with relaxed equivariant networks."""

from __future__ import annotations

import numpy as np
import torch
from forked import run_code
from stable_baselines3 import PPO

from rppdyn.agents import RPPPPO, RPPActorCriticPolicy
from rppdyn.envs import symmetry_spec
from rppdyn.priors import negative_log_prior

WALKER, PENDULUM = "Walker2d-v5", "InvertedPendulum-v5"


def make(model="rpp", env=WALKER, spec=None, policy_kwargs=None, **kwargs) -> PPO:
    spec = symmetry_spec(env) if spec is None else spec
    small = dict(spec=spec, model=model, hidden=16) | dict(policy_kwargs or {})
    options = dict(n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu") | kwargs
    return PPO(RPPActorCriticPolicy, env, policy_kwargs=small, **options)


def test_exploration_of_exchanged_joints_is_alike_where_the_network_is_strict():
    """Walker2d's legs are exchanged: joints 0, 1, 2 with 3, 4, 5."""
    deviations = {m: make(m, learning_rate=1e-2).learn(128).policy.log_std.detach() for m in ("emlp", "mlp", "rpp")}
    torch.testing.assert_close(deviations["emlp"][:3], deviations["emlp"][3:], rtol=0, atol=1e-7)
    assert deviations["emlp"].abs().min() > 1e-3  # it has moved from log_std_init=0
    assert (deviations["mlp"][:3] - deviations["mlp"][3:]).abs().max() > 1e-3
    assert 0 < (deviations["rpp"][:3] - deviations["rpp"][3:]).abs().max() < 1e-2


def test_the_ratio_starts_at_one_and_statistics_move_between_updates_and_rollouts():
    agent = make()
    policy, normaliser = agent.policy, agent.policy.features_extractor.normaliser
    counts = []

    def record(*_):
        data = next(agent.rollout_buffer.get())
        _, log_prob, _ = policy.evaluate_actions(data.observations, data.actions)
        ratios.append((log_prob - data.old_log_prob).abs().max().item())
        counts.append((len(policy.trained_on), normaliser.count.item()))

    ratios: list[float] = []
    handle = policy.optimizer.register_step_pre_hook(
        lambda *a: record() if len(ratios) % 4 == 0 else ratios.append(1.0)
    )
    agent.learn(192)
    handle.remove()
    assert max(ratios[::4]) < 1e-4
    assert counts == [(64, 0.0), (64, 64.0), (64, 128.0)]
    agent.predict(np.zeros(17))
    assert normaliser.count == 128  # the networks have not met features of the last rollout's statistics yet


def test_the_prior_is_part_of_what_each_step_minimises():
    """One step of plain gradient descent moves by -lr times the loss's gradient and the prior's over N."""
    agent = make("rpp", policy_kwargs=dict(free_variance=1e-2, optimizer_class=torch.optim.SGD))
    agent.learn(64)
    policy = agent.policy
    assert len(policy.trained_on) == 64
    for p in policy.parameters():
        p.grad = torch.full_like(p, 0.25)
    before = [p.detach().clone() for p in policy.parameters()]
    nets = (policy.action_net, policy.value_net, policy.log_std_layer)
    expected = torch.autograd.grad(sum(map(negative_log_prior, nets)) / 64, list(policy.parameters()))
    policy.optimizer.param_groups[0]["lr"] = 0.1
    policy.optimizer.step()
    assert max(g.abs().max() for g in expected) > 1e-6
    for p, b, g in zip(policy.parameters(), before, expected, strict=True):
        torch.testing.assert_close(p.detach(), b - 0.1 * (g + 0.25))


def test_predictions_see_observations_as_training_does():
    """In double precision: sums that cancel where stable-baselines3 rounds observations."""
    policy = make("emlp", PENDULUM).learn(64).policy.double()
    x = 1e-3 * torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    action, value, _ = policy(x, deterministic=True)
    assert torch.equal(policy.get_distribution(x).mode(), action) and torch.equal(policy.predict_values(x), value)
    assert not torch.equal(policy.predict_values(x.float()), value)


def test_a_narrow_prior_keeps_the_free_pathway_small():
    shares = [
        make(policy_kwargs=dict(free_variance=v), learning_rate=1e-2).learn(320).policy.pathway_statistics()
        for v in (1e-8, 1e-2)
    ]
    assert shares[0]["actor_free_share"] < 0.1 * shares[1]["actor_free_share"]


BALANCE = """
import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from rppdyn.agents import RPPActorCriticPolicy
from rppdyn.envs import symmetry_spec

name = "InvertedPendulum-v5"
agent = PPO(
    RPPActorCriticPolicy, DummyVecEnv([lambda: gym.make(name)] * 4), learning_rate=3e-3, n_steps=128, batch_size=128,
    policy_kwargs=dict(spec=symmetry_spec(name), model="rpp", hidden=32), seed=0, device="cpu",
).learn(6_000)  # on this and three other seeds; after 4,000 one of the four balances
mean, _ = evaluate_policy(agent, gym.wrappers.TimeLimit(gym.make(name), 1000), n_eval_episodes=1, warn=False)
assert mean >= 950, mean
"""


def test_it_balances_the_pendulum(tmp_path):
    """In a process of its own: the shape checks that tests put around functions take most of the time."""
    run_code(BALANCE, folder=tmp_path)


def test_a_saved_agent_is_loaded_with_an_environments_id(tmp_path):
    made = RPPPPO("RPPPolicy", "InvertedPendulum-v5", n_steps=16, batch_size=16, seed=0, device="cpu")
    made.save(tmp_path / "agent")
    assert RPPPPO.load(tmp_path / "agent", env="InvertedPendulum-v5", device="cpu").learn(16).num_timesteps == 16
