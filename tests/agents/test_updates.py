"""Updates against plain autograd and torch.optim.Adam, and stable-baselines3; of several agents, captured, and compiled."""

from __future__ import annotations

import copy
import dataclasses
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_states import update_state
from forked import run_code
from legged import Legged, legged_spec
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stepping import batches, in_dtype, settings_of, stepped, with_own_units
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.distributions import Independent, Normal
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.utils._pytree import tree_leaves

from rppdyn.agents import RPPSAC, SACUpdate, train_many
from rppdyn.agents import _compiling as compiling
from rppdyn.agents._sac import check_compiled
from rppdyn.agents.buffers import RowReplayBuffer
from rppdyn.envs import mirror_spec
from rppdyn.nn._ensemble import Ensemble
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import negative_log_prior
from rppdyn.priors._likelihood import prior_precision
from rppdyn.runs.workers import use_numpy_generator

# -- as one would write it --------------------------------------------------------------------------------------------


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

    def step(which, loss, parameters):
        optimisers[which].zero_grad()
        loss.backward()
        if config.max_gradient_norm is not None and which < 2:
            clip_grad_norm_(parameters, config.max_gradient_norm)
        optimisers[which].step()

    for batch in steps:
        alpha = log_alpha.exp().detach()
        actions, log_prob = sample(batch["features"], batch["noise"])
        with torch.no_grad():
            after, after_log_prob = sample(batch["next_features"], batch["next_noise"])
            value = torch.minimum(*q(target, batch["next_features"], after)) - alpha * after_log_prob
            y = batch["rewards"] + (1 - batch["dones"]) * config.gamma * value
        loss = sum(((v - y) ** 2).mean() for v in q(critic, batch["features"], batch["actions"]))
        prior = sum(negative_log_prior(net) for net in critic) / batch["transitions"]
        step(1, loss / (2 * config.noise_variance) + prior, critic.parameters())
        loss = (alpha * log_prob - torch.minimum(*q(critic, batch["features"], actions))).mean()
        step(0, loss + (alpha * negative_log_prior(actor) / batch["transitions"]).sum(), actor.parameters())
        step(2, (-log_alpha * (log_prob.detach() + config.target_entropy)).mean(), [log_alpha])
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.lerp_(new, config.tau)
    return vectors(actor, critic, target, log_alpha)


def vectors(actor, critic, target, log_alpha):
    found = {"actor": actor, "critic": critic, "target": target}
    flat = {name: parameters_to_vector(net.parameters()).detach().clone() for name, net in found.items()}
    return flat if log_alpha is None else flat | {"log_alpha": log_alpha.detach().clone()}


def vectors_of(agent):
    return vectors(agent.actor.net, agent.critic.q_networks, agent.critic_target.q_networks, agent.log_ent_coef)


def assert_same_course(start, found, expected, rtol):
    for name, value in expected.items():
        assert (value - start[name]).norm() > 1e-5 * value.norm(), name
        assert (found[name] - value).norm() <= rtol * value.norm(), name


RTOL = {torch.float32: 1e-4, torch.float64: 1e-10}


@pytest.mark.parametrize("dtype", RTOL, ids=str)
@pytest.mark.parametrize(
    ("model", "count", "options"),
    [
        ("rpp", 10, dict(policy_kwargs=dict(num_layers=1), noise_variance=0.3)),
        ("emlp", 5, dict(max_gradient_norm=0.5)),
        ("rpp_policy_only", 5, dict(max_gradient_norm=0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_agrees_with_autograd_and_torch_adam(make_agent, model, count, options, dtype):
    options = options | dict(policy_kwargs=dict(output_scale=0.1) | options.get("policy_kwargs", {}))
    agent = in_dtype(make_agent(model, "Hopper-v5", **options), dtype)
    config = settings_of(agent, 0.05)
    start, expected = vectors_of(agent), reference(agent, batches(agent, dtype, count=count), config)
    update = SACUpdate([agent])
    for batch in batches(agent, dtype, count=count):
        stepped(update, [batch], [config])
    assert_same_course(start, vectors_of(agent), expected, RTOL[dtype])


@pytest.mark.parametrize(
    ("model", "options", "dtype"),
    [
        ("mlp", {}, torch.float64),
        ("rpp", {}, torch.float32),
        ("rpp", dict(ent_coef=0.3), torch.float64),
        ("rpp", dict(n_steps=3, gamma=0.97, tau=0.1, target_update_interval=3), torch.float64),
    ],
    ids=str,
)
def test_training_is_that_of_stable_baselines3s_own_train(make_agent, model, options, dtype):
    """`SAC.train` of an agent like it, on its replay buffer; it has no priors, which are divided by 1e30 here."""

    def twin() -> RPPSAC:
        agent = make_agent(model, "Hopper-v5", learning_starts=10**9, **options).learn(60)
        agent.set_logger(Logger(None, []))
        agent.learning_starts = 10**30
        return in_dtype(agent, dtype)

    fast, slow = twin(), twin()
    before = vectors_of(fast)
    slow.actor.generator = getattr(slow.replay_buffer, "generator", slow.sampler.generator)
    fast.train(40, 32)
    with use_numpy_generator(slow.sampler.numpy):
        SAC.train(slow, 40, 32)
    assert_same_course(before, vectors_of(fast), vectors_of(slow), RTOL[dtype])


# -- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env, options",
    [("Hopper-v5", {}), ("Reacher-v5", dict(network_kwargs=dict(bilinear="published")))],
    ids=["one by one product", "pairs that each network drew"],
)
def test_several_agents_at_once_are_each_as_alone(make_agent, env, options):
    """Each with settings, variances and units of its own."""

    def agents():
        make = lambda seed: make_agent("rpp", env, seed=seed, max_gradient_norm=0.5, policy_kwargs=options)  # noqa: E731
        return [with_own_units(in_dtype(make(seed)), seed) for seed in (0, 1, 2)]

    together, alone = agents(), agents()
    steps = [list(batches(agent, seed=seed, count=3)) for seed, agent in enumerate(together)]
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


# -- priors, targets, temperature -------------------------------------------------------------------------------------


def test_the_prior_of_vectors_is_that_of_the_networks(make_agent):
    agent = make_agent("rpp", Legged(), spec=legged_spec("left-right", "yaw"))
    nets = copy.deepcopy(agent.critic.q_networks).double()
    ensemble = Ensemble(nets, own=False)
    precision, constant = prior_precision(ensemble)
    torch.testing.assert_close(
        (0.5 * precision * ensemble.flat**2).sum(1) + constant, torch.stack([negative_log_prior(net) for net in nets])
    )


def test_the_prior_follows_a_variance_that_is_changed_and_is_divided_by_the_number_of_transitions(make_agent):
    agent, other = make_agent("rpp"), make_agent("rpp")
    first = lambda agent: next(batches(agent, torch.float32))  # noqa: E731
    update = SACUpdate([agent])
    update.refresh()
    before = update.state["actor.precision"]
    update.refresh()
    assert update.state["actor.precision"] is before
    expected = [
        sum(negative_log_prior(net).item() for net in nets) / 500
        for nets in (agent.critic.q_networks, [agent.actor.net])
    ]
    many = stepped(update, [first(agent)], [settings_of(agent, 0.05)])
    few = stepped(SACUpdate([other]), [first(other) | {"transitions": torch.tensor(5.0)}], [settings_of(other, 0.05)])
    assert few["critic_prior"].item() == pytest.approx(100 * many["critic_prior"].item(), rel=1e-5)
    assert [many["critic_prior"].item(), many["actor_prior"].item()] == pytest.approx(expected, rel=1e-5)
    for _, _, pathway in named_pathways(agent.actor.net):
        pathway.log_variance.add_(1.0)
    update.refresh()
    torch.testing.assert_close(update.state["actor.precision"], before / torch.e, rtol=1e-5, atol=0)


def test_targets_move_every_so_many_updates_and_a_fixed_temperature_is_what_it_is_now(make_agent):
    agent = make_agent("rpp", target_update_interval=3).learn(60)
    target = update_state(agent)["target"].clone()
    agent._n_updates = 4  # updates 4 and 5 are no multiples of 3
    agent.train(2, 16)
    assert torch.equal(update_state(agent)["target"], target)
    agent.train(1, 16)
    assert not torch.equal(update_state(agent)["target"], target)
    fixed = make_agent("mlp", ent_coef=0.5).learn(60)
    fixed.ent_coef_tensor = torch.tensor(0.01)
    fixed.train(1, 16)
    values = fixed.logger.name_to_value
    assert values["train/ent_coef"] == pytest.approx(0.01) and "train/ent_coef_loss" not in values
    other = make_agent("mlp", ent_coef=0.9).learn(60)
    other.restore(fixed.capture())
    assert other.learn(20, reset_num_timesteps=False).log_alpha.exp() == pytest.approx(0.01)
    with pytest.raises(ValueError, match="a fixed temperature, this one's is learned"):
        make_agent("mlp").restore(fixed.capture())


def test_whole_numbers_as_observations_are_explored_from_as_others_are():
    """Noise had the observations' dtype, so that it was rounded: half of the actions in training were the mean."""

    class Grid(gym.Env):
        observation_space, action_space = gym.spaces.Box(-5, 5, (2,), np.int64), gym.spaces.Box(-1, 1, (1,))

    signs = dict(obs_permutation=[0, 1], obs_signs=[-1, -1], action_permutation=[0], action_signs=[-1])
    own = dict(spec=mirror_spec("Grid-v0", **signs), policy_kwargs=dict(hidden=8), device="cpu", seed=0)
    agent = RPPSAC("RPPPolicy", Grid(), **own)

    def act(dtype):
        agent.actor.generator.manual_seed(0)
        return np.concatenate([agent.own_update.act([np.array([[1, -2]], dtype)])[0] for _ in range(12)])

    assert len(np.unique(act(np.float32))) == 12
    np.testing.assert_allclose(act(np.int64), act(np.float32), rtol=1e-5)


# -- captured ---------------------------------------------------------------------------------------------------------


def record(patch: pytest.MonkeyPatch) -> list:
    """Make updates here what they are on a CUDA device; returns the generators of what is captured, one list each."""
    found = []
    patch.setattr(compiling.FastUpdate, "is_captured", property(lambda self: True))
    patch.setattr(compiling, "cuda_graph", lambda work, device, changes, generators: found.append(generators) or work)
    return found


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "another buffer"])
def test_captured_updates_are_the_same_and_captured_once_and_anew_where_they_are_restored(
    make_agent, monkeypatch, rows
):
    """Rates that fall and targets that move now and then included; a buffer of rows is drawn from in the graph."""
    options = dict(target_update_interval=2, learning_rate=lambda left: 1e-3 * left, train_freq=2, gradient_steps=2)
    options |= {} if rows else dict(n_steps=2)
    train = lambda seed=0: make_agent("rpp", "Hopper-v5", seed=seed, **options).learn(80)  # noqa: E731
    plain = train()
    found = record(monkeypatch)
    agent = train()
    assert all(map(torch.equal, plain.policy.parameters(), agent.policy.parameters()))
    assert found == [[agent.replay_buffer.generator] if rows else []]
    data = agent.capture()
    agent.learn(20, reset_num_timesteps=False)
    other = train(5)
    other.restore(data)
    other.learn(20, reset_num_timesteps=False)
    assert all(map(torch.equal, other.policy.parameters(), agent.policy.parameters()))
    assert len(found) == 3 and agent._n_updates == other._n_updates


@pytest.mark.parametrize("env, model", [("Hopper-v5", "rpp"), ("Ant-v5", "emlp")])
def test_an_update_looks_at_no_value_and_leaves_its_device_nowhere(make_agent, monkeypatch, env, model):
    """On the meta device tensors have no values, and mixing it with the CPU is an error; nor is one made of numbers."""
    meta = torch.device("meta")
    agent = make_agent(model, env, replay_buffer_class=RowReplayBuffer, max_gradient_norm=0.5)
    update = SACUpdate([agent])
    update.refresh()
    settings = agent.settings()
    numbers = torch.tensor([settings.numbers]).T.unsqueeze(-1).to(meta)
    for name in ("rand", "randn"):
        draw = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *shape, generator, _draw=draw, **options: _draw(*shape, **options))
    state = {name: tensor.to(meta) for name, tensor in update.state.items()}
    for module in (agent.policy, *(ensemble.net for ensemble in (update.actors, update.critics, update.targets))):
        module.to(meta)
    buffer = agent.replay_buffer
    buffer._rows = tuple(rows.to(meta) for rows in buffer.rows)
    buffer.count, buffer.device = buffer.count.to(meta), meta
    monkeypatch.setattr(agent.replay_buffer, "generator", type("OnMeta", (), {"device": meta}))

    def waits(*_, **__):
        raise AssertionError("a device is waited for to have a tensor that is made of numbers")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, waits)
    with torch.no_grad():
        metrics = update.update_(state, update.stacked(update.sample(32)), numbers, settings)
    assert metrics.values.is_meta and {"actor_loss", "critic_loss"} <= set(metrics.names)


# -- compiled, in processes of their own, as tests' shape checks can't be ------------------------------------------------

SETUP = """
import functools, io, sys
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from rppdyn.agents import RPPSAC, RPPCrossQ, train_many
from stepping import with_own_units

torch.compile = functools.partial(torch.compile, backend=sys.argv[1])
torch.set_num_threads(1)

def built(model="rpp", seed=0, env="InvertedPendulum-v5", kind=RPPSAC, policy_kwargs=(), **options):
    networks = dict(model=model, hidden=16, num_layers=1) | dict(policy_kwargs)
    options = dict(batch_size=32, learning_starts=50, buffer_size=500) | options
    made = kind("RPPPolicy", env, policy_kwargs=networks, seed=seed, device="cpu", **options)
    made.policy.to(torch.float64)
    if made.log_ent_coef is not None:
        made.log_ent_coef.data = made.log_ent_coef.data.to(torch.float64)
    return made

def filled(*args, compile=False, **options):
    made = built(*args, compile=False, **options).learn(60)  # each agent alone would be traced otherwise
    made.compile = compile
    return made

def course(agents, count):
    update = agents[0].update_class(agents)
    for step in range(count):
        for a in agents:
            a.sampler.generator.manual_seed(step)
            a.sampler.numpy.state = np.random.MT19937(step).state
            getattr(a.replay_buffer, "generator", a.sampler.generator).manual_seed(step)
            for optimiser in a.optimisers.values():
                optimiser.param_groups[0]["lr"] = (1e-3, 3e-4)[step % 2]
            a.gamma, a.tau, a.noise_variance, a.target_entropy = 0.9 + step / 1e3, 0.01 * step, 1.0 + step, -1.0 - step
        metrics = update.step(agents[0].batch_size, [a.settings() for a in agents])
    return [*metrics.values, *(t.clone() for t in update.state.values())]
"""
AGREE = """
for build in (
    lambda **compiled: [filled("mlp", env="Hopper-v5", ent_coef=0.2, n_steps=3, **compiled)],
    lambda **compiled: [
        with_own_units(filled(env="Reacher-v5", seed=s, mirror_loss=0.1, max_gradient_norm=0.5, **compiled), s) for s in (0, 1)
    ],
):
    torch._dynamo.reset()
    for plain, fast in zip(*(course(build(compile=compiled), 6) for compiled in (False, True)), strict=True):
        assert (plain - fast).norm() <= 1e-10 * plain.norm(), (plain, fast)
"""
ACTIONS = """
agents = [filled(env="Hopper-v5", seed=s, policy_kwargs=dict(free_variance=1.0)) for s in (0, 1)]  # units of 1
rng, update = np.random.default_rng(3), agents[0].update_class(agents)
seen = [rng.normal(size=(3, 11)) for _ in agents]

def actions(compile):
    for i, a in enumerate(agents):
        a.actor.generator.manual_seed(i)
        a.compile = compile
    return np.stack(update.act(seen))

plain = actions(False)
np.testing.assert_allclose(actions(True), plain, rtol=1e-10, atol=1e-12)
for a in agents:
    with_own_units(a, -9.0)
    assert float(a.actor.net.head.free.unit) < 0.1
np.testing.assert_allclose(actions(True), plain, rtol=1e-10, atol=1e-12)  # by the units of now
agents[0].policy.features_extractor.observe(torch.from_numpy(10 * rng.normal(size=(4, 11))))
next(agents[0].actor.net.parameters()).data.add_(0.1)
moved = actions(True)  # what changed since is seen
np.testing.assert_allclose(moved, actions(False), rtol=1e-10, atol=1e-12)
assert abs(moved - plain).max() > 1e-3
for i, a in enumerate(agents):  # and they are those of each alone, by stable-baselines3's predict
    a.actor.generator.manual_seed(i)
    np.testing.assert_allclose(a.predict(seen[i])[0], moved[i], rtol=1e-6, atol=1e-9)
import cloudpickle
assert cloudpickle.loads(cloudpickle.dumps(update._fast))._compiled == {}
"""
NORMALISED = """
options = dict(kind=RPPCrossQ, policy_kwargs=dict(hidden=8, num_layers=1), critic_head="categorical", bins=11, weight_norm=True,
               batch_size=16, policy_delay=2)
plain, fast = (built(compile=compiled, **options).learn(54).policy.state_dict() for compiled in (False, True))
for name, value in plain.items():
    assert torch.allclose(value, fast[name], rtol=1e-6, atol=1e-9), name
"""


def test_compiled_updates_and_actions_are_the_plain_ones(tmp_path):
    run_code(SETUP + AGREE + ACTIONS + NORMALISED, "eager", folder=tmp_path)


RESUMED = """
options = dict(batch_size=30)
builds = lambda compile: [lambda s=s: built(seed=s, compile=compile, **options) for s in (0, 1)]
agents = lambda trainers: [t() for t in trainers]
plain = agents(train_many(builds(False), 70))
files = [io.BytesIO(), io.BytesIO()]

class Capture(BaseCallback):
    def __init__(self, file):
        super().__init__()
        self.file = file

    def _on_step(self):
        if self.num_timesteps == 60:
            torch.save(self.model.capture(), self.file)
            self.file.seek(0)
        return True

fast = agents(train_many(builds(True), 70, [Capture(file) for file in files]))

def restored(seed):
    again = built(seed=seed + 5, compile=True, **options)
    again.restore(torch.load(files[seed], weights_only=True))
    return again

resumed = agents(train_many([lambda s=s: restored(s) for s in (0, 1)], 70))
for one, other, third in zip(plain, fast, resumed, strict=True):
    assert other.compiles and one._n_updates == other._n_updates == 20
    for a, b, c in zip(*(agent.policy.state_dict().values() for agent in (one, other, third)), strict=True):
        assert torch.equal(b, c)
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-11)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_by_the_real_compiler_training_is_the_plain_one_and_resumed_agents_are_bit_identical(tmp_path):
    """Two at once, in batches whose size has no inverse that is exact in single precision."""
    run_code(SETUP + RESUMED, "inductor", folder=tmp_path)


GRAPHS = """
from rppdyn.agents import _compiling as compiling

def build(seed, **options):
    fixed = dict(batch_size=32, learning_starts=50, buffer_size=500, device="cuda", learning_rate=2.0**-10)
    return RPPSAC("RPPPolicy", env, policy_kwargs=dict(hidden=16, num_layers=1), seed=seed, **fixed, **options)

def assert_same(one, other):
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert (a - b).norm() <= 1e-3 * a.norm() + 1e-12, (env, options)

ahead = dict(target_update_interval=2, train_freq=3, gradient_steps=-1)
for env, options in ("Hopper-v5", ahead), ("InvertedPendulum-v5", dict(augment=True)):
    plain, fast = (train_many([lambda s=s: build(s, compile=c, **options) for s in (0, 1)], 90) for c in (False, True))
    graph, compiling.cuda_graph = compiling.cuda_graph, lambda work, *_: work
    without = train_many([lambda s=s: build(s, compile=False, **options) for s in (0, 1)], 90)
    compiling.cuda_graph = graph
    for one, other, third in zip(plain, fast, without, strict=True):
        assert one.error is other.error is third.error is None and other.agent.compiles
        assert_same(one.agent, other.agent)
        assert_same(one.agent, third.agent)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_compiled_and_captured_updates_do_what_plain_ones_do(tmp_path):
    run_code(SETUP + GRAPHS, "inductor", folder=tmp_path)


def as_torch_compiles(programs: list):
    """A stand-in for torch.compile without guards: what it is given first it has compiled for, and for nothing else."""

    def signature(function, arguments):
        own = function.args[1].structure if hasattr(function, "args") else None
        shapes = [(t.shape, t.dtype) for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
        return own, shapes, torch.get_num_threads(), torch.get_float32_matmul_precision()

    def compiled(call, **options):
        programs.append(known := [])

        def run(function, *arguments):
            if not known:
                known.append(signature(function, arguments))
            assert known[0] == signature(function, arguments), "compiled for something else"
            return call(function, *arguments)

        return run

    return compiled


def test_what_a_compiled_program_depends_on_is_in_its_key(make_agent, monkeypatch):
    """Settings beside the five that are tensors, and what has other shapes, are compiled for anew; numbers are not."""
    programs: list = []
    monkeypatch.setattr(compiling, "compiled", as_torch_compiles(programs))
    agent = make_agent(target_update_interval=2, compile=False).learn(60)
    agent.compile = True

    def new_programs(steps=3) -> int:
        before = len(programs)
        agent.learn(steps, reset_num_timesteps=False)
        return len(programs) - before

    assert new_programs() == 2  # an update's and the actions'
    for step in range(4):
        agent.gamma, agent.tau, agent.noise_variance, agent.target_entropy = 0.9, 0.01 * step, 1.0 + step, -1.0 - step
        agent.actor.optimizer.param_groups[0]["lr"] = agent.learning_rate = 1e-3 / (step + 1)
        agent._setup_lr_schedule()
        assert new_programs(1) == 0
    agent.max_gradient_norm = 0.01
    assert new_programs() == 1
    agent.augment = True
    assert new_programs() == 1  # features in the place of observations
    agent.augment = False
    for optimiser in agent.optimisers.values():
        optimiser.param_groups[0]["betas"] = (0.9, 0.99)
    assert new_programs() == 1
    agent.critic.q_networks[0].head.free.log_variance.add_(5.0)  # one network's prior is no longer the other's
    assert new_programs() == 1
    agent.batch_size = 16
    assert new_programs() == 1 and new_programs() == 0
    monkeypatch.setattr(compiling, "_signature", lambda tensors: ())
    new_programs()
    agent.batch_size = 8
    with pytest.raises(AssertionError, match="compiled for something else"):  # the control
        new_programs()


def test_what_cannot_be_compiled_is_refused_and_a_saved_agent_is_used_but_not_trained(
    make_agent, monkeypatch, tmp_path
):
    agent = make_agent()
    agent.compile = True
    agent.save(tmp_path / "agent")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="no-such-compiler is not found: install it"):
        make_agent(compile=True)
    loaded = RPPSAC.load(tmp_path / "agent", env=agent.env, device="cpu")
    assert loaded.compile
    loaded.predict(agent.observation_space.sample())
    with pytest.raises(ValueError, match="no-such-compiler is not found"):
        loaded.learn(10)
    assert RPPSAC.load(tmp_path / "agent", env=agent.env, device="cpu", compile=False).learn(60)._n_updates
    agent.device = torch.device("mps")
    with pytest.raises(ValueError, match="compile=true: updates are compiled on a CPU and on CUDA devices, not on mps"):
        check_compiled(agent)
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(ValueError, match="compile is None and True"):
        train_many([lambda seed=seed: make_agent(seed=seed, compile=seed == 1 or None) for seed in (0, 1)], 10)


def without_policy(monkeypatch, space) -> None:
    monkeypatch.setattr(SACUpdate, "act", lambda update, seen: [space.sample()[None] for _ in seen])


def test_trainings_of_many_updates_are_compiled_unless_told_not_to(make_agent, monkeypatch, caplog):
    """Whichever call of learn they are in the middle of."""
    monkeypatch.setattr(compiling, "MIN_UPDATES_TO_COMPILE", 110)
    monkeypatch.setattr(SACUpdate, "train", lambda *arguments: None)
    without_policy(monkeypatch, make_agent().action_space)
    tried = []
    monkeypatch.setattr(compiling, "can_compile", lambda device: tried.append(device) or True)

    def compiles(steps: int, agent: RPPSAC | None = None, **options) -> bool:
        return (agent or make_agent(**options)).learn(steps, reset_num_timesteps=agent is None).compiles

    agent = make_agent(learning_starts=1000)
    assert not compiles(100, agent) and compiles(10, agent)
    assert not compiles(109) and not compiles(110, train_freq=2) and compiles(110, train_freq=2, gradient_steps=2)
    assert compiles(110, train_freq=5, gradient_steps=-1)
    assert not compiles(110, train_freq=(1, "episode"))
    assert len(tried) == 3 and not compiles(110, compile=False) and len(tried) == 3
    monkeypatch.undo()
    monkeypatch.setattr(compiling, "MIN_UPDATES_TO_COMPILE", 60)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert make_agent().learn(60)._n_updates == 10
    assert "without torch.compile, in up to twice the time: torch.compile needs a C++ compiler" in caplog.text


def test_where_torch_fails_to_compile_training_goes_on_as_it_would_have(make_agent, monkeypatch, caplog):
    def failing(*arguments, **options):
        def fail(*_):
            raise TorchDynamoException("g++: internal compiler error\nand so on")

        return fail

    def trained(**options) -> list[RPPSAC]:
        builds = [lambda seed=seed: make_agent(seed=seed, **options) for seed in (0, 1)]
        return [trainer.agent for trainer in train_many(builds, 60)]

    plain = trained()
    monkeypatch.setattr(compiling, "MIN_UPDATES_TO_COMPILE", 60)
    monkeypatch.setattr(compiling, "can_compile", lambda device: True)
    monkeypatch.setattr(compiling, "compiled", failing)
    for one, other in zip(trained(), plain, strict=True):
        assert one._n_updates == 10 and not one.compiles
        assert all(map(torch.equal, one.policy.parameters(), other.policy.parameters()))
    assert [record.message for record in caplog.records] == [
        "Training goes on without torch.compile, in up to twice the time: g++: internal compiler error; mend that, or use "
        "compile=false (of train-agent agent.compile=false)"
    ]
    without_policy(monkeypatch, make_agent().action_space)
    caplog.clear()
    trained()  # and where it fails at an update
    assert len(caplog.records) == 1
    with pytest.raises(TorchDynamoException, match="internal compiler error"):
        make_agent(compile=True).learn(60)
