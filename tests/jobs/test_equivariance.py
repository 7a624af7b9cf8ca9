"""`rppdyn equivariance` on what it can be given: policies of others, programs, functions, each against ground truth."""

from __future__ import annotations

import json
import pickle
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rppdyn.agents import RPPSAC
from rppdyn.envs import symmetry_spec
from rppdyn.errors import UserError
from rppdyn.jobs import equivariance, targets
from rppdyn.jobs.building import Evaluator
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import EquivarianceConfig
from rppdyn.jobs.loading import load_policy
from rppdyn.jobs.measure import measure
from rppdyn.nn import RPPEMLP
from rppdyn.reps import T

SMALL = dict(states=60, episodes=1)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files of stable-baselines3's own algorithms, by name."""
    folder = tmp_path_factory.mktemp("saved")

    def small(algorithm, env, **options):
        return algorithm("MlpPolicy", env, policy_kwargs=dict(net_arch=[16]), device="cpu", seed=0, **options)

    for env in ("Walker2d-v5", "Ant-v5"):
        small(SAC, env, learning_starts=5, batch_size=8, buffer_size=100).learn(12).save(folder / f"sac-{env}")
    small(PPO, "InvertedPendulum-v5", n_steps=8, batch_size=8).save(folder / "ppo")
    small(TD3, "InvertedPendulum-v5", buffer_size=10).save(folder / "td3")
    RPPSAC(
        "RPPPolicy", "Walker2d-v5", seed=0, buffer_size=10, device="cpu", policy_kwargs=dict(model="emlp", hidden=16)
    ).save(folder / "emlp")
    return folder


def module(name, code):
    Path(f"{name}.py").write_text(textwrap.dedent(code))


def measured(what, **options):
    config = EquivarianceConfig(what=str(what), trust=True, **{**SMALL, **options})
    result = equivariance.run(config)
    written = json.loads(Path(result.json).read_text())
    assert written["functions"].keys() == result.functions.keys()
    assert result.what in equivariance.table(result)
    return result


# -- policies ---------------------------------------------------------------------------------------------------------


def test_a_policy_that_this_package_did_not_train(saved, env="Ant-v5"):
    """The errors are those of `predict` at transformed raw observations, one generator after the other."""
    result = measured(saved / f"sac-{env}.zip", env=env)
    policy, critics = result.functions["policy"], result.functions["critics"]
    spec = symmetry_spec(env)
    assert list(policy.per_generator) == list(spec.generator_names) and result.states > 10
    assert 0.1 < policy.overall.error < 1 and 0.01 < critics.overall.error < 1 and not policy.vacuous
    assert list(policy.by_output) == list(spec.action_names) and policy.precision == "float32"

    model = SAC.load(saved / f"sac-{env}.zip", device="cpu")
    states, _ = Evaluator(lambda: model_env(env), 1, 10_000).explore(model).spread(SMALL["states"])
    assert len(states) == result.states
    for name, g in zip(spec.generator_names, spec.group.discrete_generators, strict=True):
        # a quaternion and its negative are one rotation, and a plain network tells them apart: compare on w >= 0
        states = spec.decode(spec.encode(states))
        here = spec.transform_action(g, model.predict(states, deterministic=True)[0])
        there = model.predict(spec.transform_observation(g, states), deterministic=True)[0]
        error = np.abs(here - there).sum() / (np.abs(here) + np.abs(there)).sum()
        assert policy.per_generator[name].error == pytest.approx(error, rel=1e-4)
        low, high = policy.per_generator[name].interval
        assert low < error < high


def model_env(env):
    import gymnasium

    return gymnasium.make(env)


def test_other_algorithms(saved):
    """An untrained PPO policy (tanh, no biases) is odd: equivariant where the symmetry flips every sign, but not its value."""
    ppo = measured(saved / "ppo.zip", env="InvertedPendulum-v5").functions
    assert list(ppo) == ["policy", "value"]
    assert ppo["policy"].overall.error < 0.03 < 0.3 < ppo["value"].overall.error
    result = measured(saved / "td3.zip", env="InvertedPendulum-v5")
    assert list(result.functions) == ["policy", "critics"]
    assert all(0.01 < m.overall.error <= 1 for m in result.functions.values())
    assert "layers: not told apart" in equivariance.table(result)


def test_a_policy_with_a_spec_of_its_own_needs_no_environment(saved):
    states = symmetry_spec("Walker2d-v5").obs.dim
    np.save("states.npy", np.random.default_rng(0).normal(size=(30, states)))
    result = measured(saved / "emlp.zip", states_from="states.npy")
    for m in result.functions.values():
        assert m.overall.error < 1e-12 and m.precision == "float64" and not m.vacuous
    assert result.states_from == "states.npy" and result.states == 30
    assert result.pathways["actor_free_share"] == 0


def test_constant_inputs_are_written_with_norm_and_direction(saved):
    kwargs = dict(model="emlp", hidden=16, network_kwargs=dict(breaking="V"))
    agent = RPPSAC("RPPPolicy", "rppdyn/WindyPendulum-v0", seed=0, buffer_size=10, device="cpu", policy_kwargs=kwargs)
    with torch.no_grad():
        agent.actor.net.breaking.vector.copy_(torch.tensor([-3.0, 4.0, 0.0]))
    agent.save("pushed")
    result = measured("pushed.zip", env="rppdyn/WindyPendulum-v0")
    assert result.breaking == {"actor": [[-3, 4, 0]], "critic": 2 * [[0, 0, 0]]}
    text = equivariance.table(result)
    assert "constant inputs of actor: norm, and direction\n  5  (-0.60, +0.80, +0.00)" in text
    assert json.loads(Path(result.json).read_text())["breaking"] == result.breaking
    assert result.functions["policy"].overall.error > 1e-3 > 1e-5 > result.functions["critics"].overall.error
    assert "breaking" not in json.loads(Path(measured(saved / "emlp.zip").json).read_text())


def test_a_policy_of_another_robot_is_not_measured_by_its_own_symmetry(saved):
    with pytest.raises(ConfigError, match=r"--env HalfCheetah-v5: .* is a policy of Walker2d-v5"):
        measured(saved / "emlp.zip", env="HalfCheetah-v5")
    measured(saved / "emlp.zip", env="Walker2d-v5")


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    """Agents that saw normalised observations, by algorithm, and where their files and statistics are."""
    folder, agents = tmp_path_factory.mktemp("normalised"), {}
    for name, algorithm, options in (
        ("sac", SAC, dict(buffer_size=100, learning_starts=1000)),
        ("ppo", PPO, dict(n_steps=32, batch_size=32, n_epochs=1)),
    ):
        env = VecNormalize(DummyVecEnv([lambda: model_env("InvertedPendulum-v5")]), clip_obs=1.5)
        agent = algorithm("MlpPolicy", env, policy_kwargs=dict(net_arch=[16]), device="cpu", seed=0, **options)
        agents[name] = agent.learn(64)
        agents[name].save(folder / name)
        env.save(folder / f"{name}.pkl")
    return folder, agents


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_a_policy_is_measured_on_what_it_saw(normalised, name):
    folder, agents = normalised
    states = np.random.default_rng(0).normal(size=(40, 4))  # some of them clipped
    policy = load_policy(str(folder / f"{name}.zip"), str(folder / f"{name}.pkl"))
    seen = agents[name].get_vec_normalize_env().normalize_obs(states)
    assert (np.abs(seen) == 1.5).any()
    act = lambda policy, x: policy.predict(x, deterministic=True)[0]  # noqa: E731
    assert np.allclose(act(policy, states), act(agents[name], seen), rtol=0, atol=1e-6)
    assert not np.allclose(act(policy, states), act(agents[name], states), atol=1e-2)
    x, y = torch.as_tensor(states, dtype=torch.float32), torch.as_tensor(seen)
    if name == "sac":
        actions = torch.zeros(40, 1)
        assert torch.allclose(policy.critic(x, actions)[1], agents["sac"].critic(y, actions)[1], atol=1e-5)
    else:
        assert torch.allclose(policy.predict_values(x), agents["ppo"].policy.predict_values(y), atol=1e-5)

    np.save("states.npy", states)
    options = dict(env="InvertedPendulum-v5", states_from="states.npy")
    with_statistics = measured(folder / f"{name}.zip", vecnormalize=str(folder / f"{name}.pkl"), **options)
    spec = symmetry_spec("InvertedPendulum-v5")
    mirrored = spec.transform_observation(spec.group.discrete_generators[0], states)
    a, b = (act(agents[name], agents[name].get_vec_normalize_env().normalize_obs(x)) for x in (states, mirrored))
    error = np.abs(a + b).sum() / (np.abs(a) + np.abs(b)).sum()
    assert with_statistics.functions["policy"].per_generator["left-right"].error == pytest.approx(error, rel=1e-4)
    without = measured(folder / f"{name}.zip", **options)
    assert abs(without.functions["policy"].overall.error - error) > 1e-3


def test_statistics_of_others_are_refused(normalised, saved):
    folder, _ = normalised
    Path("text.pkl").write_text("no pickle")
    Path("list.pkl").write_bytes(pickle.dumps([1, 2]))
    for what, statistics, expected in (
        (folder / "sac.zip", "absent.pkl", "No such file"),
        (folder / "sac.zip", "text.pkl", "can't be read"),
        (folder / "sac.zip", "list.pkl", "holds a list"),
        (saved / "sac-Walker2d-v5.zip", folder / "sac.pkl", r"have shape \(4,\), the policy's \(17,\)"),
        (saved / "emlp.zip", folder / "sac.pkl", "RPPPolicy normalises by itself"),
    ):
        with pytest.raises(UserError, match=expected) as error:
            measured(what, env="InvertedPendulum-v5", vecnormalize=str(statistics))
        assert "\n" not in str(error.value)


def test_the_layer_that_breaks_the_symmetry_is_found():
    agent = RPPSAC(
        "RPPPolicy", "Walker2d-v5", seed=0, buffer_size=10, device="cpu", policy_kwargs=dict(model="rpp", hidden=16)
    )
    with torch.no_grad():  # the free pathway of every layer but the last is gone
        for name, parameter in agent.actor.net.named_parameters():
            if "free" in name and not name.startswith("head"):
                parameter.zero_()
    states = np.random.default_rng(0).normal(size=(50, 17))
    function = targets.policy_functions(agent.policy, agent.spec)[0]
    layers = measure(function, states, None, agent.spec.generator_names).layers["actor"]
    share = dict(zip(layers.layers, layers.share["leg swap"], strict=True))
    assert share["head"] == pytest.approx(1, abs=1e-6) and sum(share.values()) == pytest.approx(1)


def test_an_action_that_is_always_zero_is_vacuous():
    module("still", "import torch\n\ndef policy(obs):\n    return torch.zeros(len(obs), 6)\n")
    try:
        result = measured("still:policy", env="Walker2d-v5", states_from="reset")
    finally:
        sys.modules.pop("still")
    assert result.functions["policy"].vacuous
    assert "vacuous" in equivariance.table(result)


# -- functions and programs -------------------------------------------------------------------------------------------

ALONG_Z = """
    import torch

    def along_z(x):                       # |x| + a x_z: rotations about z keep it, the others don't
        return x.norm(dim=-1, keepdim=True) + 0.3 * x[:, 2:]

    def wrong_size(x):
        return x

    def doubled(x):
        x *= 2
        return x
"""


@pytest.fixture
def function():
    module("along", ALONG_Z)
    yield "along"
    sys.modules.pop("along", None)


def test_the_generator_that_is_broken_is_blamed(function):
    options = dict(group="SO(3)", rep_in="V", rep_out="Scalar", states_from="normal", states=400)
    m = measured(f"{function}:along_z", **options).functions["function"]
    kept = [name for name, e in m.per_generator.items() if e.error < 1e-12]
    assert len(kept) == 1 and sum(e.error > 0.05 for e in m.per_generator.values()) == 2
    # the published measure in closed form: L f = 0.3 times the velocity of z, over 2 |f|
    x = np.random.default_rng(10_000).normal(size=(400, 3))
    f = np.linalg.norm(x, axis=1) + 0.3 * x[:, 2]
    expected = sorted(np.mean(np.abs(0.3 * x[:, k]) / (2 * np.abs(f))) for k in (0, 1))
    found = sorted(e.published for name, e in m.per_generator.items() if name not in kept)
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_function_that_writes_into_its_input_is_given_one_of_its_own(function):
    m = measured(f"{function}:doubled", group="O(3)", rep_in="V", rep_out="V", states_from="normal", states=100)
    assert max(e.error for e in m.functions["function"].per_generator.values()) < 1e-12


def test_an_exported_program(tmp_path):
    linear = torch.nn.Linear(3, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.diag(torch.tensor([1.0, 2.0, 4.0])))
        linear.bias.zero_()
    batch = torch.export.Dim("batch")
    for name, shapes in (("dynamic", ({0: batch},)), ("fixed", None)):
        program = torch.export.export(linear, (torch.randn(4, 3),), dynamic_shapes=shapes)
        torch.export.save(program, f"{name}.pt2")
    options = dict(group="Z(3)", rep_in="V", rep_out="V", states_from="normal", states=300)
    m = measured("dynamic.pt2", **options).functions["function"]
    # W g x - g W x for a cyclic shift: entry k compares weights (1, 2, 4) of neighbours, |a - b| and |a| + |b| times |x|
    x = np.abs(np.random.default_rng(10_000).normal(size=(300, 3)))
    w = np.array([1.0, 2.0, 4.0])
    down = (np.abs(w - np.roll(w, -1)) * x).sum() / ((w + np.roll(w, -1)) * x).sum()
    assert m.per_generator["h0"].error == pytest.approx(down, rel=1e-5)
    with pytest.raises(ConfigError, match="dynamic first dimension"):
        measured("fixed.pt2", **options)


# -- states -----------------------------------------------------------------------------------------------------------


def test_where_states_come_from(saved):
    what = saved / "td3.zip"
    rollouts = measured(what, env="InvertedPendulum-v5")
    reset = measured(what, env="InvertedPendulum-v5", states_from="reset", states=40)
    np.savez("states.npz", observations=np.random.default_rng(0).normal(size=(90, 4)), other=np.zeros(3))
    file = measured(what, env="InvertedPendulum-v5", states_from="states.npz", states=40)
    assert "exploring episodes" in rollouts.states_from and reset.states_from == "reset distribution"
    assert (reset.states, file.states) == (40, 40)
    assert len({r.functions["critics"].overall.error for r in (rollouts, reset, file)}) == 3


# -- bad input --------------------------------------------------------------------------------------------------------


BAD = {
    "absent.zip": (dict(), "no such file"),
    "damaged.zip": (dict(env="Walker2d-v5"), "can't be read as a stable-baselines3 file"),
    "along:alon_z": (dict(env="Walker2d-v5"), "did you mean 'along_z'"),
    "along:along_z": (dict(), "which symmetry"),
    "along:wrong_size": (dict(env="Walker2d-v5", states_from="reset"), r"must map \(n, 17\) to \(n, 6\)"),
    "td3.zip": (dict(env="Walker2d-v5", states_from="reset"), "has 4 entries and that of Walker2d-v5 17"),
    "sac-Walker2d-v5.zip": (dict(env="Ant-v5", states=20), "has 17 entries and that of Ant-v5 105"),
    "td3.zip ": (dict(env="InvertedPendulum-v5", states_from="absent.npy"), "absent.npy.*no such file"),
    "td3.zip   ": (dict(group="SO(3)", rep_in="V", rep_out="V"), "policy.*--env"),
    "td3.zip    ": (dict(env="InvertedPendulum-v5", symmetry="up-down"), "no symmetry 'up-down'"),
    "along:along_z ": (dict(group="SO(3)", rep_in="V"), "--rep-out is missing"),
    "along:along_z   ": (dict(group="SO(3)", rep_in="W", rep_out="V", states_from="normal"), "unknown 'W'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(what, saved, function):
    options, expected = BAD[what]
    Path("damaged.zip").write_text("nothing")
    what = what.strip()
    path = str(saved / what) if what in ("td3.zip", "emlp.zip", "sac-Walker2d-v5.zip") else what
    with pytest.raises(ValueError, match=expected) as error:
        measured(path, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_functions_of_a_network_and_its_symmetric_parts_agree():
    """A network given as a function is measured as the library measures it."""
    from rppdyn.equivariance import equivariance_error
    from rppdyn.groups import SO

    net = RPPEMLP(T(1), T(1), SO(2), hidden=8, num_layers=1, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = measure(targets.plain_function(net, net.rep_in, net.rep_out, None, x[:2]), x.numpy(), None, ["turn"])
    expected = equivariance_error(net, net.rep_in, net.rep_out, x)
    assert found.per_generator["turn"].published == pytest.approx(expected.per_generator["A0"])
    assert found.overall.published == pytest.approx(expected.mean, rel=0.5)  # other random elements
