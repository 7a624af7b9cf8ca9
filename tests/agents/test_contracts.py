"""All agents are equivariant where they are strict, go on exactly, and act the same from their files."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_states import errors, states, update_state
from forked import run_code
from legged import Legged, legged_spec
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from rppdyn.agents import (
    RPPSAC,
    LearnVariances,
    RelaxedPPO,
    RPPActorCriticPolicy,
    RPPCrossQ,
    RPPPolicy,
    WidenVariances,
    critic_equivariance_error,
    policy_equivariance_error,
    train_many,
)
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.groups import Group

PENDULUM, WALKER, WINDY = "InvertedPendulum-v5", "Walker2d-v5", "rppdyn/WindyPendulum-v0"
XQC = dict(critic_head="categorical", bins=21, weight_norm=True)


def built(kind=RPPSAC, env=PENDULUM, model="rpp", *, seed=0, policy_kwargs=(), **options):
    """A small agent."""
    small = dict(n_steps=16, batch_size=16, n_epochs=2) if kind is RelaxedPPO else {}
    small = small or dict(buffer_size=200, learning_starts=20, batch_size=16)
    networks = dict(model=model, **({} if "net_arch" in policy_kwargs else dict(hidden=16))) | dict(policy_kwargs)
    env = env() if callable(env) else make_env(env)
    return kind("RPPPolicy", env, policy_kwargs=networks, seed=seed, device="cpu", **small | options)


def legs(*names) -> dict:
    return dict(env=Legged, spec=legged_spec(*names), policy_kwargs=dict(num_layers=1))


def ant() -> dict:
    return dict(env="Ant-v5", policy_kwargs=dict(hidden=32, num_layers=1))


# -- equivariance -----------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], dict]] = {
    "pendulum": lambda: dict(learning_rate=3e-3),
    "legs and yaw": lambda: legs("quarter turn", "left-right", "yaw"),
    "torques that turn": lambda: dict(env=WINDY),
    "PPO, legs and yaw": lambda: dict(kind=RelaxedPPO, **legs("quarter turn", "left-right", "yaw")),
    "CrossQ, ant": lambda: dict(kind=RPPCrossQ, **ant()),
    "XQC, ant": lambda: dict(kind=RPPCrossQ, **XQC, **ant()),
}


@pytest.mark.parametrize("name", KINDS)
def test_strict_networks_are_equivariant_before_and_after_training_and_plain_ones_are_not(name):
    """In double precision by a copy, in the agent's own, and cast."""
    options = KINDS[name]()
    tolerance = 1e-9 if options.get("kind") is RPPCrossQ else 1e-12
    agent = built(model="emlp", **options)
    assert max(errors(agent)) < tolerance
    agent.learn(32)
    assert agent._n_updates and all(v.isfinite().all() for v in agent.policy.state_dict().values())
    assert max(errors(agent)) < tolerance and max(errors(agent, None)) < 1e-4
    assert next(agent.policy.parameters()).dtype == torch.float32
    agent.policy.double()
    assert max(errors(agent, None)) < tolerance
    plain = built(model="mlp", **options)
    assert min(errors(plain)) > 1e-2
    assert min(errors(plain.learn(32))) > 1e-2


def test_relaxed_networks_are_nearly_equivariant_and_without_a_free_pathway_strict():
    agent = built(env=WALKER)
    for _ in range(2):
        assert 1e-12 < min(errors(agent)) and max(errors(agent)) < 0.2
        agent.learn(32)
    assert max(errors(built(env=WALKER, policy_kwargs=dict(free_variance=0.0)).learn(32))) < 1e-12


# -- exact continuation -----------------------------------------------------------------------------------------------


def chain(env=WINDY) -> dict:
    spec = symmetry_spec(env, symmetry="D4")
    mirror = Group("mirror", discrete_generators=spec.group.discrete_generators[1:])
    return dict(env=env, spec=spec, policy_kwargs=dict(groups=[spec.group, mirror], variances=[1e5, 1e-2, 0.0]))


CONTINUED: dict[str, Callable[[], dict]] = {
    "mirrored": lambda: dict(env=WINDY, augment=True, mirror_loss=1.0, policy_kwargs=dict(num_layers=1)),
    "noise, n-step returns": lambda: dict(n_steps=3, action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))),
    "noise in two environments": lambda: dict(
        env=lambda: make_vec_env(PENDULUM, 2), action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    ),
    "a fixed temperature": lambda: dict(ent_coef=0.3),
    "learned variances": lambda: dict(callback=lambda: LearnVariances(every=12, data=32)),
    "widened variances": lambda: dict(callback=lambda: WidenVariances(steps=50, every=10)),
    "a chain of groups": chain,
    "PPO": lambda: dict(kind=RelaxedPPO, env=WALKER),
    "CrossQ": lambda: dict(kind=RPPCrossQ),
    "XQC, strict": lambda: dict(kind=RPPCrossQ, model="emlp", **XQC),
}


def assert_same(one, other, rtol=0.0, atol=0.0):
    assert (one.num_timesteps, one._n_updates) == (other.num_timesteps, other._n_updates)
    there = other.policy.state_dict()
    for name, value in one.policy.state_dict().items():
        torch.testing.assert_close(value, there[name], rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("name", CONTINUED)
def test_a_captured_agent_goes_on_bit_for_bit(name):
    options = CONTINUED[name]()
    callback = options.pop("callback", lambda: None)
    first, total = (32, 64) if options.get("kind") is RelaxedPPO else (28, 40)
    whole = built(**options).learn(total, callback())
    half = built(**options).learn(first, callback())
    captured = half.capture()
    resumed = built(**options, seed=5)
    resumed.restore(captured)
    if options.get("kind") is not RelaxedPPO:  # which draws from the global generators, as stable-baselines3's does
        np.random.seed(3)  # noqa: NPY002
    resumed.learn(total - resumed.num_timesteps, callback(), reset_num_timesteps=False)
    assert_same(resumed, whole)
    assert not all(map(torch.equal, half.policy.parameters(), whole.policy.parameters()))


def test_normalised_agents_trained_at_once_are_each_as_alone():
    def in_double(seed):
        agent = built(RPPCrossQ, seed=seed, **XQC)
        agent.policy.double()
        agent.log_ent_coef.data = agent.log_ent_coef.data.double()
        return agent

    builds = [lambda seed=seed: in_double(seed) for seed in (0, 1)]
    for trainer, build in zip(train_many(builds, 40), builds, strict=True):
        assert trainer.error is None
        assert_same(build().learn(40), trainer.agent, rtol=1e-3, atol=1e-5)


# -- files ------------------------------------------------------------------------------------------------------------

SAVED: dict[str, Callable[[], dict]] = {
    "walker": lambda: dict(env=WALKER),
    "legs": lambda: legs("quarter turn", "left-right", "yaw"),
    "torques that turn": lambda: dict(env=WINDY, model="emlp", policy_kwargs=dict(num_layers=1)),
    "chain": chain,
    "learned": lambda: dict(env=WALKER, callback=lambda: LearnVariances(every=12, data=32)),
    "net_arch": lambda: dict(policy_kwargs=dict(net_arch=dict(pi=[12, 8], qf=[16]), activation_fn=torch.nn.ReLU)),
    "PPO": lambda: dict(
        kind=RelaxedPPO, policy_kwargs=dict(net_arch=dict(pi=[12, 8], vf=[16]), activation_fn=torch.nn.ReLU)
    ),
    "PPO, legs": lambda: dict(kind=RelaxedPPO, **legs("quarter turn", "left-right", "yaw")),
    "CrossQ": lambda: dict(kind=RPPCrossQ, model="emlp"),
    "XQC": lambda: dict(kind=RPPCrossQ, model="emlp", **XQC),
}
ELSEWHERE = """
import sys
from pathlib import Path
import numpy as np
from rppdyn import agents
for path in Path(".").glob("*.zip"):
    kind, name = path.stem.split(".")
    agent = getattr(agents, kind).load(path, device="cpu")
    assert agent.env is None
    np.save(f"{name}.actions.npy", agent.predict(np.load(f"{name}.npy"), deterministic=True)[0])
assert not {"legged", "gymnasium.envs.mujoco.walker2d_v5"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Trained agents by name, the folder of their files, and what they do in a fresh process that has no environment."""
    folder, agents, seen = tmp_path_factory.mktemp("agents"), {}, {}
    for name, options in SAVED.items():
        options = options()
        callback = options.pop("callback", lambda: None)
        agents[name] = built(**options).learn(32, callback())
        seen[name] = states(agents[name], 10)[0]
        agents[name].save(folder / f"{type(agents[name]).__name__}.{name}.zip")
        np.save(folder / f"{name}.npy", seen[name])
    run_code(ELSEWHERE, folder=folder)
    actions = {name: np.load(folder / f"{name}.actions.npy") for name in SAVED}
    return agents, folder, seen, actions


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_agent_acts_the_same_in_a_fresh_process_and_trains_on(saved, name):
    agent, folder, seen, actions = saved[0][name], saved[1], saved[2][name], saved[3][name]
    assert np.array_equal(agent.predict(seen, deterministic=True)[0], actions) and actions.std() > 1e-6
    fresh = Legged() if "legs" in name else make_env(agent.spec.env_id)
    loaded = type(agent).load(folder / f"{type(agent).__name__}.{name}.zip", env=fresh, device="cpu")
    assert loaded.spec == agent.spec and loaded.num_timesteps == agent.num_timesteps
    assert_same(loaded, agent)
    if isinstance(agent, RPPSAC):
        there, here = update_state(agent), update_state(loaded)
        assert set(there) == set(here) and all(torch.equal(there[key], here[key]) for key in there)
    loaded.learn(16, reset_num_timesteps=False)  # fills its own replay buffer, then trains
    assert not all(map(torch.equal, loaded.policy.parameters(), agent.policy.parameters()))


@pytest.mark.parametrize("name", ["walker", "PPO", "XQC"])
def test_parameters_and_policies_alone_are_enough(saved, name, tmp_path):
    agent, seen, actions = saved[0][name], saved[2][name], saved[3][name]
    other = built(**SAVED[name](), seed=7)
    other.set_parameters(agent.get_parameters())
    agent.policy.save(tmp_path / "policy.pth")
    kind = RPPActorCriticPolicy if isinstance(agent, RelaxedPPO) else RPPPolicy
    for one in (other, kind.load(tmp_path / "policy.pth", device="cpu")):
        assert np.array_equal(one.predict(seen, deterministic=True)[0], actions)


def test_what_a_file_keeps(saved, make_agent, tmp_path):
    chained, arch = saved[0]["chain"], saved[0]["net_arch"]
    assert [len(net.groups) for net in (chained.actor.net, *chained.critic.q_networks)] == [2, 2, 2]
    observations, actions = states(chained)
    for error in (
        policy_equivariance_error(chained, observations), critic_equivariance_error(chained, observations, actions)
    ):  # fmt: skip
        assert error.per_generator["left-right"] < 1e-10 < 1e-4 < error.per_generator["quarter turn"]
    for agent in (arch, saved[0]["PPO"]):
        networks = agent.policy.networks
        assert [rep.dim for rep in networks["actor"][0].hidden] == [12, 8]
        assert all([rep.dim for rep in net.hidden] == [16] for net in networks["critic"])
        assert {net.activation.name for own in networks.values() for net in own} == {"relu"}
    options = dict(augment=True, mirror_loss=2.0, matmul_precision="high", noise_variance=0.5)
    make_agent("mlp", PENDULUM, **options).save(tmp_path / "agent")
    loaded = RPPSAC.load(tmp_path / "agent", env=gym.make(PENDULUM), device="cpu")
    assert {name: getattr(loaded, name) for name in options} == options
    disc = saved[3]["torques that turn"]
    assert (np.hypot(disc[:, 0], disc[:, 1]) < 3).all()  # in which the environment shortens nothing


def test_net_arch_is_hidden():
    long, short = (
        built(policy_kwargs=dict(own)) for own in (dict(hidden=[8] * 3, num_layers=3), dict(net_arch=[8] * 3))
    )
    assert long.policy._arguments == short.policy._arguments
    assert all(map(torch.equal, long.policy.parameters(), short.policy.parameters()))
