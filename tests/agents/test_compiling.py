"""Compiled updates and actions beside plain ones; in processes of their own, as tests' shape checks can't be compiled."""

from __future__ import annotations

import shutil

import pytest
import torch
from forked import run_code
from torch._dynamo.exc import TorchDynamoException

from rppdyn.agents import RPPSAC, compiling, sac, seeds, train_many
from rppdyn.agents.sac import check_compiled

SETUP = """
import functools, sys
import numpy as np
import torch
from rppdyn.agents import RPPSAC
from rppdyn.agents import SACUpdate
from rppdyn.agents.sac import sample_actions
from rppdyn.nn.pathways import named_pathways

backend, *cases = sys.argv[1:]
torch.compile = functools.partial(torch.compile, backend=backend)
torch.set_num_threads(1)

def agent(
    model="rpp", dtype=torch.float64, seed=0, env="InvertedPendulum-v5", policy_kwargs=(), compile=False, **options
):
    networks = dict(model=model, hidden=16, num_layers=1) | dict(policy_kwargs)
    options = dict(batch_size=32, learning_starts=50, buffer_size=500) | options
    made = RPPSAC("RPPPolicy", env, policy_kwargs=networks, seed=seed, device="cpu", **options)
    made.policy.to(dtype)
    if made.log_ent_coef is not None:
        made.log_ent_coef.data = made.log_ent_coef.data.to(dtype)
    made.compile = False
    made.learn(60)  # a few updates by the way, which fill the buffer
    made.compile = compile  # each agent alone would be traced otherwise
    return made

def own_units(agent, shift):
    for net in (agent.actor.net, *agent.critic.q_networks):
        for _, _, pathway in named_pathways(net):
            pathway.log_variance.add_(shift)
            pathway.follow_variance()
    return agent

def course(agents, count, rates):
    update = SACUpdate(agents)
    for step in range(count):
        for a in agents:
            a.sampler.generator.manual_seed(step)
            a.sampler.numpy.state = np.random.MT19937(step).state
            getattr(a.replay_buffer, "generator", a.sampler.generator).manual_seed(step)
            for optimiser in a.optimisers.values():
                optimiser.param_groups[0]["lr"] = rates[step % len(rates)]
        metrics = update.step(agents[0].batch_size, [a.settings() for a in agents])
    return [*metrics.values, *(t.clone() for t in update.state.values())]
"""
AGREE = """
for case in cases:
    torch.set_float32_matmul_precision("medium" if "hidden=256" in case else "highest")  # weights are copied then
    rtol = 1e-10
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        agents = eval(case.replace("COMPILED", f"compile={compiled}"))
        found.append(course(agents, 30, (1e-3, 3e-4)))
    for plain, fast in zip(*found, strict=True):
        assert (plain - fast).norm() <= rtol * plain.norm(), (case, plain, fast)
"""
CASES = [
    "[agent('mlp', env='Hopper-v5', ent_coef=0.2, COMPILED, policy_kwargs=dict(hidden=256, num_layers=2))]",
    "[agent('rpp', seed=s, COMPILED, policy_kwargs=dict(hidden=256)) for s in (0, 1)]",
    "[own_units(agent('rpp', env='Reacher-v5', seed=s, max_gradient_norm=0.5, COMPILED), s) for s in (0, 1)]",
    "[agent('rpp', n_steps=3, COMPILED)]",
]


DYNAMIC_SETTINGS = """
found = []
for compiled in (False, True):
    one = agent(dtype=torch.float32, target_update_interval=2)
    one.compile = compiled
    for step in range(12):  # torch compiles no more than eight times
        one.gamma, one.tau, one.noise_variance, one.target_entropy = 0.9 + step / 1000, 0.01 * step, 1.0 + step, -1.0 - step
        one.learn(1, reset_num_timesteps=False)
    one.max_gradient_norm = 0.01  # what follows is compiled anew
    one.learn(3, reset_num_timesteps=False)
    one.augment = True
    one.learn(3, reset_num_timesteps=False)
    one.augment = False
    for optimiser in (one.actor.optimizer, one.critic.optimizer, one.ent_coef_optimizer):
        optimiser.param_groups[0]["betas"] = (0.9, 0.99)
    one.learn(3, reset_num_timesteps=False)
    one.critic.q_networks[0].head.free.log_variance.add_(5.0)  # one network's prior is no longer the other's
    one.learn(3, reset_num_timesteps=False)
    one.train(1, 16)
    found.append({k: t.double() for k, t in one.policy.state_dict().items()})
for plain, fast in zip(*(f.values() for f in found), strict=True):
    assert (plain - fast).norm() <= 1e-4 * plain.norm()
import cloudpickle
assert cloudpickle.loads(cloudpickle.dumps(one.own_update._fast))._compiled == {}
"""
ACTIONS = """
def actions(agents, seen):
    for i, a in enumerate(agents):
        a.actor.generator.manual_seed(i)
    return np.stack(sample_actions(SACUpdate(agents), seen))

for count, env, model, batches in (1, "Hopper-v5", "emlp", (1, 3)), (2, "InvertedPendulum-v5", "mlp", (1,)):
    agents = [agent(model, env=env, seed=s) for s in range(count)]
    n = agents[0].observation_space.shape[0]
    for batch in batches:
        rng = np.random.default_rng(batch)
        seen = [rng.normal(size=(batch, n)) for _ in agents]
        plain = actions(agents, seen)
        for a in agents:
            a.compile = True
        np.testing.assert_allclose(actions(agents, seen), plain, rtol=1e-10, atol=1e-12)
        agents[0].policy.features_extractor.observe(torch.from_numpy(10 * rng.normal(size=(4, n))))
        next(agents[0].actor.net.parameters()).data.add_(0.1)
        moved = actions(agents, seen)  # what changed since is seen
        for a in agents:
            a.compile = False
        np.testing.assert_allclose(moved, actions(agents, seen), rtol=1e-10, atol=1e-12)
        assert abs(moved - plain).max() > 1e-3
        for i, a in enumerate(agents):  # and they are those of each alone, by stable-baselines3's predict
            a.actor.generator.manual_seed(i)
            np.testing.assert_allclose(a.predict(seen[i])[0], moved[i], rtol=1e-6, atol=1e-9)
"""


def test_compiled_updates_and_actions_are_the_plain_ones(tmp_path):
    run_code(SETUP + AGREE + DYNAMIC_SETTINGS + ACTIONS, "eager", *CASES, folder=tmp_path)


RESUME = """
import io
agent = functools.partial(agent, dtype=torch.float32, target_update_interval=2)  # with a constant tau inductor fails
eager = agent().learn(40, reset_num_timesteps=False)
plain = agent(compile=True).learn(20, reset_num_timesteps=False)
file = io.BytesIO()
torch.save(plain.capture(), file)
file.seek(0)
plain.learn(20, reset_num_timesteps=False)
again = RPPSAC("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=dict(model="rpp", hidden=16, num_layers=1), seed=5,
               device="cpu", batch_size=32, learning_starts=50, buffer_size=500, compile=True, target_update_interval=2)
again.restore(torch.load(file, weights_only=True))
again.learn(20, reset_num_timesteps=False)
for a, b in zip(plain.policy.state_dict().values(), again.policy.state_dict().values(), strict=True):
    assert torch.equal(a, b)
for a, b in zip(plain.policy.parameters(), eager.policy.parameters(), strict=True):
    assert (a - b).norm() <= 1e-4 * b.norm()
again.save("agent")
assert RPPSAC.load("agent", device="cpu").compile
"""


ODD = [
    "[agent('rpp', seed=s, batch_size=30, mirror_loss=0.1, max_gradient_norm=0.5, COMPILED) for s in (0, 1)]",
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_by_the_real_compiler_updates_are_the_plain_ones_and_a_resumed_agent_is_bit_identical(tmp_path):
    """In batches whose size has no inverse that is exact in single precision."""
    run_code(SETUP + AGREE + RESUME, "inductor", *ODD, folder=tmp_path)


REPLAYED = """
from rppdyn.agents import compiling, train_many

device = sys.argv[2]

def build(seed, **options):
    fixed = dict(batch_size=32, learning_starts=50, buffer_size=500, device=device, learning_rate=2.0**-10)
    return RPPSAC("RPPPolicy", env, policy_kwargs=dict(hidden=16, num_layers=1), seed=seed, **fixed, **options)

ahead = dict(target_update_interval=2, train_freq=3, gradient_steps=-1)
for env, options in ("Hopper-v5", ahead), ("InvertedPendulum-v5", dict(augment=True)):
    plain, fast = (train_many([lambda s=s: build(s, compile=c, **options) for s in (0, 1)], 90) for c in (False, True))
    for one, other in zip(plain, fast, strict=True):
        assert one.error is other.error is None and other.agent.compiles
        for a, b in zip(one.agent.policy.parameters(), other.agent.policy.parameters(), strict=True):
            assert (a - b).norm() <= 1e-3 * a.norm() + 1e-12, (env, options)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_compiled_graphs_do_what_plain_ones_do(tmp_path):
    run_code(SETUP + REPLAYED, "inductor", "cuda", folder=tmp_path)


def test_what_cannot_be_compiled_is_refused(make_agent, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="no-such-compiler is not found: install it"):
        make_agent(compile=True)
    agent = make_agent()
    agent.compile, agent.device = True, torch.device("mps")
    with pytest.raises(ValueError, match="compile=true: updates are compiled on a CPU and on CUDA devices, not on mps"):
        check_compiled(agent)


def test_a_saved_agent_is_used_where_there_is_no_compiler_but_not_trained(make_agent, tmp_path, monkeypatch):
    agent = make_agent()
    agent.compile = True
    agent.save(tmp_path / "agent")
    monkeypatch.setenv("CXX", "no-such-compiler")
    loaded = RPPSAC.load(tmp_path / "agent", env=agent.env, device="cpu")
    loaded.predict(agent.observation_space.sample())
    with pytest.raises(ValueError, match="no-such-compiler is not found"):
        loaded.learn(10)
    assert RPPSAC.load(tmp_path / "agent", env=agent.env, device="cpu", compile=False).learn(60)._n_updates


def test_trainings_of_many_updates_are_compiled_unless_told_not_to(make_agent, monkeypatch, caplog):
    """Whichever call of learn they are in the middle of."""
    monkeypatch.setattr(compiling, "MIN_UPDATES_TO_COMPILE", 110)
    monkeypatch.setattr(sac, "train_agents", lambda *arguments: None)
    space = make_agent().action_space
    monkeypatch.setattr(sac, "sample_actions", lambda update, seen: [space.sample()[None] for _ in seen])
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


@pytest.mark.parametrize("count", [1, 2])
def test_where_torch_fails_to_compile_training_goes_on_as_it_would_have(make_agent, monkeypatch, caplog, count):
    def failing(*arguments, **options):
        def fail(*_):
            raise TorchDynamoException("g++: internal compiler error\nand so on")

        return fail

    def trained(**options) -> list[RPPSAC]:
        builds = [lambda seed=seed: make_agent(seed=seed, **options) for seed in range(count)]
        return [trainee.agent for trainee in train_many(builds, 60)] if count > 1 else [builds[0]().learn(60)]

    plain = trained()
    monkeypatch.setattr(compiling, "MIN_UPDATES_TO_COMPILE", 60)
    monkeypatch.setattr(compiling, "can_compile", lambda device: True)
    monkeypatch.setattr(compiling, "compiled", failing)
    for one, other in zip(trained(), plain, strict=True):
        assert one._n_updates == 10 and not one.compiles
        for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
            assert torch.equal(a, b)
    assert [record.message for record in caplog.records] == [
        "Training goes on without torch.compile, in up to twice the time: g++: internal compiler error; mend that, or use "
        "compile=false"
    ]
    space = make_agent().action_space
    for module in (sac, seeds):
        monkeypatch.setattr(module, "sample_actions", lambda update, seen: [space.sample()[None] for _ in seen])
    caplog.clear()
    trained()  # and where it fails at an update
    assert len(caplog.records) == 1
    with pytest.raises(TorchDynamoException, match="internal compiler error"):
        make_agent(compile=True).learn(60)


def test_seeds_trained_at_once_agree_on_it(make_agent, monkeypatch):
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(ValueError, match="compile is None and True"):
        train_many([lambda seed=seed: make_agent(seed=seed, compile=seed == 1 or None) for seed in (0, 1)], 10)
