"""Refusals of agents, policies and callbacks: one line each, with the thing, the value and the remedy."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from legged import Legged, legged_spec
from refusals import refused
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecMonitor, VecNormalize
from torch import nn

from rppdyn.agents import (
    RPPSAC,
    LearnVariances,
    RelaxedPPO,
    RPPActorCriticPolicy,
    RPPCrossQ,
    WidenVariances,
    critic_equivariance_error,
    train_many,
)
from rppdyn.envs import SymmetrySpec, certify, mirror_spec, symmetry_spec
from rppdyn.groups import DkeR3, Group, O2eR3

WALKER, PENDULUM, WINDY = "Walker2d-v5", "InvertedPendulum-v5", "rppdyn/WindyPendulum-v0"


class Bounds(gym.ActionWrapper):
    """The same environment with other action bounds."""

    def __init__(self, env, low, high):
        super().__init__(env)
        self.action_space = gym.spaces.Box(np.array(low, dtype=np.float32), np.array(high, dtype=np.float32))

    def action(self, action):
        return action


def bounded(*bounds):
    return Bounds(gym.make(WALKER), [-b for b in bounds], bounds)


class Shifted(gym.ObservationWrapper):
    """A wrapper without a spec."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation + 1.0


class LeanLeft(gym.Wrapper):
    """Pays for leaning to one side."""

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + float(obs[1] > 0), *rest


def networks(**arguments):
    return lambda make: make(policy_kwargs=arguments)


def options(**arguments):
    return lambda make: make(**arguments)


def on(env, **arguments):
    return lambda make: make("rpp", env() if callable(env) else env, **arguments)


def mixed_actions(matrix):
    """Walker2d's spec with another action on actions."""
    data = symmetry_spec(WALKER).to_dict()
    data["action"]["discrete_generators"] = [np.asarray(matrix).tolist()]
    return SymmetrySpec.from_dict(data)


def reflected():
    """By a reflection in an oblique plane, which mixes the first two actions."""
    v = np.array([1, 2, 0, 0, 0, 0]) / np.sqrt(5)
    return mixed_actions(np.eye(6) - 2 * np.outer(v, v))


def stretched():
    matrix = np.diag([2.0, 1, 1, 1, 1, 1])
    matrix[:2, :2] = [[0, 2.0], [0.5, 0]]
    return mixed_actions(matrix)


def encoded_actions():
    data = legged_spec("left-right").to_dict()
    data["action"] |= dict(angles=[0], discrete_generators=[np.eye(5).tolist()])
    return SymmetrySpec.from_dict(data)


def walker_spec(reward_symmetric):
    spec = symmetry_spec(WALKER)
    return replace(spec, symmetries=[s._replace(reward_symmetric=reward_symmetric) for s in spec.symmetries])


def pendulum_mirror():
    signs = dict(obs_permutation=range(3), obs_signs=[1, -1, -1], action_permutation=[0], action_signs=[-1])
    return mirror_spec("Pendulum-v1", **signs)


def crossq(**arguments):
    own = dict(model="mlp", hidden=16) | arguments.pop("policy_kwargs", {})
    return lambda make: RPPCrossQ("RPPPolicy", PENDULUM, policy_kwargs=own, device="cpu", **arguments)


def chain(**changed):
    def build(make):
        spec = symmetry_spec(WINDY, symmetry="D4")
        mirror = Group("mirror", discrete_generators=spec.group.discrete_generators[1:])
        own = dict(groups=[spec.group, mirror], variances=[1e5, 1e-2, 0.0], hidden=16) | changed
        RPPSAC("RPPPolicy", WINDY, spec=spec, policy_kwargs=own, device="cpu")

    return build


def together(first=(), second=()):
    """Two agents, built with these options."""
    return lambda make: train_many([lambda: make(seed=0, **dict(first)), lambda: make(seed=1, **dict(second))], 10)


def changed(change):
    """An agent that is to learn after something of it was changed."""

    def learn(make):
        agent = make("rpp", PENDULUM)
        change(agent)
        agent.learn(10)

    return learn


def unbounded():
    return gym.wrappers.TransformAction(gym.make(PENDULUM), lambda a: a, gym.spaces.Box(-np.inf, np.inf, (1,)))


GAMMA = "agents that are trained together have one configuration; gamma is 0.99 and 0.9"

REFUSED = {
    # the environment and its symmetry
    r"no symmetry spec.*Pendulum-v1.*spec=": on("Pendulum-v1"),
    r"spec='leg swap' is no SymmetrySpec; .*symmetry_spec": options(spec="leg swap"),
    r"int describes no symmetry spec; give a SymmetrySpec": networks(spec=3),  # it was: 'int' is not iterable
    r"observation space has 4 entries and the symmetry spec 17": lambda make: make(spec=symmetry_spec(WALKER)),
    r"'slider force'.*\[-3, 2\], not symmetric about 0; wrap.*RescaleAction": on(
        lambda: Bounds(gym.make(PENDULUM), [-3], [2])
    ),
    r"exchanges action .*RescaleAction": on(lambda: bounded(1, 1, 1, 2, 1, 1)),
    r"mixes action .*bounded by 1, with .*bounded by 2; .*RescaleAction": lambda make: make(
        "rpp", bounded(1, 2, 1, 1, 1, 1), spec=reflected()
    ),
    r"PPO clips every action by itself": lambda make: PPO(
        RPPActorCriticPolicy, WALKER, policy_kwargs=dict(spec=reflected(), hidden=8), device="cpu"
    ),
    r"is not orthogonal, .*; rescale the actions": lambda make: make("rpp", WALKER, spec=stretched()),
    r"acts on encoded actions": lambda make: make("rpp", Legged(), spec=encoded_actions()),
    r"wrapper LeanLeft\b": on(lambda: LeanLeft(gym.make(PENDULUM))),
    r"wrapper TransformAction\b": on(
        lambda: gym.wrappers.TransformAction(gym.make(PENDULUM), np.abs, gym.spaces.Box(-3, 3, (1,)))
    ),
    r"wrapper VecFrameStack\b": on(lambda: VecFrameStack(DummyVecEnv([lambda: gym.make(PENDULUM)]), 2)),
    r"VecNormalize scales.*norm_obs=False": on(lambda: VecNormalize(DummyVecEnv([lambda: gym.make(PENDULUM)]))),
    r"the action space is Discrete\(2\), .* a Box with one axis": on("CartPole-v1"),
    r"Box\(-inf, inf, \(1,\).*TransformAction\(env, .*Box\(-1, 1, \(1,\)\)\)$": lambda make: make(
        "rpp", unbounded(), spec=symmetry_spec(PENDULUM)
    ),
    # PPO's environments were not looked at, and stable-baselines3's assertion followed
    r"^the environment's actions, Box\(-inf, inf, \(1,\).* have no bounds": lambda make: RelaxedPPO(
        "RPPPolicy", unbounded(), spec=symmetry_spec(PENDULUM), device="cpu"
    ),
    r"train_freq=0 must be at least 1": lambda make: make(train_freq=0).learn(5),
    # networks
    r"policy='MlpPolicy': choose 'RPPPolicy'": lambda make: RPPSAC("MlpPolicy", PENDULUM),
    r"RPPPolicy has no argument optimizer_class; use Adam": networks(optimizer_class=torch.optim.SGD),
    r"RPPPolicy has no argument hiden; use one of spec, model, hidden": networks(hiden=3),
    r"model='rp' is not one of rpp, emlp, mlp, rpp_policy_only": lambda make: make("rp"),
    r"^free_variance=-1.0 must be a number of at least 0": networks(free_variance=-1.0),
    r"^free_variance='learned'.*LearnVariances": networks(free_variance="learned"),
    r"^critic_free_variance='certified' must be a number": networks(critic_free_variance="certified"),
    r"model='mlp' has one pathway, so": networks(free_variance="certified", model="mlp"),
    r"model='emlp' has one pathway, so": networks(free_variance="certified", model="emlp"),
    r"n_critics=0 must be at least 1": networks(n_critics=0),
    r"optimizer_kwargs has 'amsgrad'": networks(optimizer_kwargs=dict(amsgrad=True)),
    r"network_kwargs has 'width': networks here take architecture, bilinear": networks(network_kwargs=dict(width=4)),
    r"network_kwargs has 'device'": networks(network_kwargs=dict(device="cuda")),
    r"net_arch=64: give numbers of channels": networks(net_arch=64),
    r"net_arch=\[\]: give at least one width": networks(net_arch=[]),
    r"give a list, or a dictionary with the keys pi and qf": networks(net_arch=dict(pi=[8], vf=[8])),
    r"net_arch=\[8\] and critic_hidden=8: give one of them": networks(net_arch=[8], critic_hidden=8),
    r"net_arch=\[8\] and hidden=8: give one of them": networks(net_arch=[8], hidden=8),
    r"hidden=0: give a number of channels": networks(hidden=0),
    r"activation_fn=<class 'torch.nn.*Linear'>: no activation": networks(activation_fn=nn.Linear),
    r"activation_fn=.* and network_kwargs with activation='tanh': give one": networks(
        activation_fn=nn.ReLU, network_kwargs=dict(activation="tanh")
    ),
    r"normalisation='batch': use RPPCrossQ": networks(model="mlp", normalisation="batch"),
    r"atoms=\[-1, 1, 11\]: use RPPCrossQ": networks(atoms=[-1, 1, 11]),
    r"policy_kwargs has atoms: give critic_head='categorical'": crossq(policy_kwargs=dict(atoms=[-1, 1, 11])),
    r"groups with model='emlp', which has one pathway": chain(model="emlp"),
    r"^free_variance=1.0 with groups": chain(free_variance=1.0),
    r"^free_variance=certified with groups: .*leave it out": chain(free_variance="certified"),
    r"begins with O2eR3, and the symmetry of rppdyn/WindyPendulum-v0 is DkeR3\(4\)": chain(groups=[O2eR3(), DkeR3(4)]),
    r"policy_kwargs has no spec.*symmetry_spec": lambda make: PPO(
        RPPActorCriticPolicy, PENDULUM, policy_kwargs=dict(hidden=16), device="cpu"
    ),
    # settings
    r"ent_coef=-0\.1": options(ent_coef=-0.1),
    r"augment=True with 'yaw', which changes the reward": lambda make: make(
        "mlp", Legged(), spec=legged_spec("left-right", "yaw"), augment=True
    ),
    r"needs to know that 'leg swap' keeps the reward.*`rppdyn certify Walker2d-v5`": lambda make: make(
        "mlp", WALKER, spec=walker_spec(None), augment=True
    ),
    r"needs to know that 'mirror' keeps the reward.*state reward_symmetric=True": lambda make: make(
        "mlp", "Pendulum-v1", spec=pendulum_mirror(), augment=True
    ),
    r"tau=0.005: RPPCrossQ has no targets": crossq(tau=0.005),
    r"policy_delay=0: give a number of at least 1": crossq(policy_delay=0),
    r"critic_head='quantile': choose 'scalar' or 'categorical'": crossq(critic_head="quantile"),
    r"bins=1: give a number from 2 to": crossq(critic_head="categorical", bins=1),
    r"bins=100000000: give a number from 2 to 1001": crossq(critic_head="categorical", bins=10**8),
    r"value_range=\(-1e\+39, 1e\+39\): .* up to 1e\+06": crossq(critic_head="categorical", value_range=(-1e39, 1e39)),
    r"target_entropy='low': give a number of nats": options(target_entropy="low"),
    r"learning_rate='1e-3' must be positive": options(learning_rate="1e-3"),
    r"gamma='x': a discount from 0 to 1": options(gamma="x"),
    r"noise_variance=None must be positive": options(noise_variance=None),
    r"batch_size=16.5 must be a whole number, at least 1": options(batch_size=16.5),
    r"use_sde=True: its noise": crossq(use_sde=True),
    r"value_range=\(3.0, -3.0\): give a number below 0": crossq(value_range=(3.0, -3.0)),
    r"normalisation=None: RPPCrossQ's networks need one": crossq(policy_kwargs=dict(normalisation=None)),
    r"network_kwargs has 'normalisation'": crossq(policy_kwargs=dict(network_kwargs=dict(normalisation="batch"))),
    # what updates would pass over
    r"the critic's optimiser has eps=1\.0": changed(lambda a: a.critic.optimizer.param_groups[0].update(eps=1.0)),
    r"the actor's optimiser has weight_decay=0\.1, .* with 0: set it to 0": changed(
        lambda a: a.actor.optimizer.param_groups[0].update(weight_decay=0.1)
    ),
    r"optimiser is SGD": changed(
        lambda a: setattr(a.critic, "optimizer", torch.optim.SGD(a.critic.parameters(), 1e-3))
    ),
    r"parameters of the actor require no gradients": changed(lambda a: a.actor.requires_grad_(False)),
    r"^the temperature is in torch.float32, features in torch.float64: cast": changed(lambda a: a.policy.double()),
    # measures and callbacks
    r"5 states and 3 actions; give one action per state": lambda make: critic_equivariance_error(
        make(), np.zeros((5, 4)), np.zeros((3, 1))
    ),
    r"saved with its policy: agent.policy.save\('actor.pt'\)": lambda make: make().actor.save("actor.pt"),
    r"^every=0": lambda make: LearnVariances(every=0),
    r"^rate=1.5": lambda make: LearnVariances(rate=1.5),
    r"^steps=0": lambda make: WidenVariances(steps=0),
    # several agents
    GAMMA: together(second=dict(gamma=0.9)),
    r"one configuration; learning_rate is 0.0003 and 0.001": together(second=dict(learning_rate=1e-3)),
    r"one configuration; policy_kwargs is": together(second=dict(model="mlp")),
    r"collect steps, not episodes": together(*[dict(train_freq=(1, "episode"))] * 2),
    r"^callbacks has 0 entries for 1 agents: give each one, or None$": lambda make: train_many([make], 20, callbacks=[]),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused_in_one_line(make_agent, message):
    with pytest.raises(ValueError, match=message.split("|")[-1]) as caught:
        REFUSED[message](make_agent)
    assert "\n" not in str(caught.value)


def test_what_is_refused_beside_them_is_taken(make_agent):
    """The controls: the same with one thing changed."""
    spec = symmetry_spec(PENDULUM)
    for wrap in (lambda: LeanLeft(gym.make(PENDULUM)), lambda: VecMonitor(DummyVecEnv([lambda: gym.make(PENDULUM)]))):
        assert make_agent("rpp", wrap(), spec=spec).spec == spec
    single = lambda: gym.wrappers.RescaleAction(gym.make(PENDULUM), np.float32(-1), np.float32(1))  # noqa: E731
    rescaled = VecNormalize(DummyVecEnv([single]), norm_obs=False)
    assert make_agent("rpp", rescaled).learn(60).spec.action == spec.action
    agent = make_agent("rpp")
    with pytest.raises(ValueError, match=r"norm_obs=False"):
        agent.set_env(VecNormalize(DummyVecEnv([lambda: gym.make(PENDULUM)])))
    assert agent._vec_normalize_env is None  # the agent is left as it was
    agent.set_env(VecNormalize(DummyVecEnv([lambda: gym.make(PENDULUM)]), norm_obs=False))
    agent.learn(60)
    bounds = gym.wrappers.TransformAction(unbounded(), lambda a: a, gym.spaces.Box(-1, 1, (1,)))
    assert make_agent("rpp", bounds, spec=spec).learn(60).num_timesteps == 60
    make_agent("mlp", Legged(), spec=legged_spec("left-right", "yaw"), mirror_loss=1.0)


def test_a_wrapper_that_cannot_be_made_again_is_named(make_agent):
    env = SubprocVecEnv([lambda: Shifted(gym.make(PENDULUM))], start_method="forkserver")
    try:
        with pytest.raises(ValueError, match=r"wrapper Shifted can't be made again here.*pass spec="):
            make_agent("rpp", env)
    finally:
        env.close()


LOADED = dict(
    noise_variance=-3.0, batch_size=0, target_update_interval=0, tau=2.0, gamma=-0.1, mirror_loss=-1.0, max_gradient_norm=0.0,
    compile="no", augment=1, use_sde=True, ent_coef=0.2,
)  # fmt: skip


def test_what_a_new_agent_can_t_be_a_loaded_one_can_t_either(make_agent, tmp_path):
    path = tmp_path / "agent.zip"
    make_agent("rpp", PENDULUM).save(path)
    for name, value in LOADED.items():
        with refused(f"{name}={value!r}"):
            RPPSAC.load(path, env=gym.make(PENDULUM), device="cpu", **{name: value})
    with refused("spec= is for new agents", "agent.zip"):
        RPPSAC.load(path, device="cpu", spec=symmetry_spec)
    loaded = RPPSAC.load(path, device="cpu", noise_variance=2.0, mirror_loss=1.0, spec=None)
    assert (loaded.noise_variance, loaded.mirror_loss, loaded.ent_coef) == (2.0, 1.0, "auto")
    make_agent("rpp", PENDULUM, ent_coef=0.2).save(path)
    with pytest.raises(ValueError, match=r"agent.zip can't be loaded with ent_coef='auto': .* leave ent_coef out"):
        RPPSAC.load(path, ent_coef="auto", device="cpu")
    assert RPPSAC.load(path, device="cpu").ent_coef == 0.2
    whole = path.read_bytes()
    for kind in (RPPSAC, RelaxedPPO):
        for fraction in (0.1, 0.5, 0.9, 0.999):
            path.write_bytes(whole[: int(fraction * len(whole))])
            with pytest.raises(ValueError, match=r"agent.zip is truncated or not an agent"):
                kind.load(path)
    with pytest.raises(FileNotFoundError):
        RPPSAC.load(tmp_path / "absent.zip")
    SAC("MlpPolicy", PENDULUM, policy_kwargs=dict(net_arch=[4])).save(path)
    with pytest.raises(ValueError, match=r"SACPolicy is no RPPPolicy.*loaded by that algorithm's class"):
        RPPSAC.load(path)
    RelaxedPPO("RPPPolicy", PENDULUM, n_steps=8, batch_size=8, policy_kwargs=dict(hidden=8)).save(path)
    with pytest.raises(ValueError, match=r"VecNormalize scales.*norm_obs=False"):
        RelaxedPPO.load(path, env=VecNormalize(DummyVecEnv([lambda: gym.make(PENDULUM)])))


def test_weights_of_another_layout_are_named_by_a_loaded_agent(make_agent, tmp_path):
    """Stable-baselines3 takes the error for that of an old file of its own, and would say something else."""
    first, other = make_agent("emlp", WINDY), make_agent("emlp", WINDY, spec=symmetry_spec(WINDY, symmetry="D4"))
    other.policy_kwargs = first.policy_kwargs
    other.save(tmp_path / "agent.zip")
    with pytest.raises(ValueError, match=r"actor\.net.* and the state dict has weights of"):
        RPPSAC.load(tmp_path / "agent.zip", device="cpu")


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Dict(goal=gym.spaces.Box(-1, 1, (2,))), gym.spaces.Discrete(3), gym.spaces.Box(0, 1, (4, 4))],
    ids=str,
)
def test_observations_that_are_no_vectors_are_refused_with_a_spec_given_by_hand(space):
    class Reach(gym.Env):
        observation_space, action_space = space, gym.spaces.Box(-1, 1, (1,))

    signs = dict(obs_permutation=[0, 1], obs_signs=[-1, -1], action_permutation=[0], action_signs=[-1])
    own = dict(spec=mirror_spec("Reach-v0", **signs), policy_kwargs=dict(hidden=16))
    with refused(str(space)[:20], "gymnasium.wrappers.FlattenObservation"):
        RPPSAC("RPPPolicy", DummyVecEnv([Reach]), **own)
    for kind in (RPPSAC, RelaxedPPO) if isinstance(space, gym.spaces.Dict) else ():  # one environment's is flattened
        assert kind("RPPPolicy", Reach(), **own).observation_space.shape == (2,)


def test_gymnasiums_vector_environments_are_refused():
    env = gym.make_vec(PENDULUM, num_envs=2)
    agent = RelaxedPPO("RPPPolicy", PENDULUM)
    for give in (lambda e: RPPSAC("RPPPolicy", e), lambda e: RelaxedPPO("RPPPolicy", e), certify, agent.set_env):
        with refused("is a vector environment of Gymnasium's", f"make_vec_env('{PENDULUM}', n_envs=2)"):
            give(gym.wrappers.vector.RescaleAction(env, -1, 1))
    env.close()


def test_another_robot_with_equal_spaces_is_warned_of(make_agent, tmp_path, recwarn):
    make_agent("rpp", WALKER).save(tmp_path / "agent.zip")
    RPPSAC.load(tmp_path / "agent.zip", env=gym.make(WALKER), device="cpu").set_env(gym.make(WALKER))
    assert not [w for w in recwarn if "symmetry" in str(w.message)]
    other = lambda: gym.make("HalfCheetah-v5")  # noqa: E731
    with pytest.warns(UserWarning, match="symmetry is that of Walker2d-v5, and it is given HalfCheetah-v5"):
        loaded = RPPSAC.load(tmp_path / "agent.zip", env=other(), device="cpu")
    with pytest.warns(UserWarning, match="given HalfCheetah-v5"):
        loaded.set_env(DummyVecEnv([other]))


@pytest.mark.parametrize("algorithm", [RPPSAC, RelaxedPPO])
def test_a_plain_network_needs_no_symmetry(algorithm):
    """A baseline in an environment of which no symmetry is known; others, and what mirrors transitions, need one."""
    own = dict(buffer_size=100) if algorithm is RPPSAC else dict(n_steps=8, batch_size=4)
    build = lambda env, model="mlp", **more: algorithm(  # noqa: E731
        "RPPPolicy", env, policy_kwargs=dict(model=model, hidden=8), device="cpu", **own, **more
    )
    agent = build("Pendulum-v1")
    assert agent.spec.is_trivial
    agent.learn(16)
    assert build(VecFrameStack(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), 2)).spec.feature_dim == 6
    for wrong in (dict(model="rpp"), *([dict(augment=True)] if algorithm is RPPSAC else [])):
        with pytest.raises(ValueError, match="no symmetry spec for Pendulum-v1"):
            build("Pendulum-v1", **wrong)
