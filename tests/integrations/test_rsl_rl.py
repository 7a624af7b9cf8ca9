"""Relaxed actors and critics in rsl_rl: exact where strict, recurrent too, trained by its own PPO, merged for deployment."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from refusals import refused

pytest.importorskip("rsl_rl")
pytest.importorskip("tensordict")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

from tensordict import TensorDict  # noqa: E402

from rppdyn.envs import compiled_terms  # noqa: E402
from rppdyn.integrations.augmentation import SpaceImages  # noqa: E402

CRAWLER = Path(__file__).parents[2] / "docs" / "examples" / "crawler.xml"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "crawler_rsl_rl.py"


@pytest.fixture(scope="module")
def example():
    found = importlib.util.spec_from_file_location("crawler_rsl_rl", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    sys.modules["crawler_rsl_rl"] = module
    found.loader.exec_module(module)
    return module


def batch(spec, n, seed=0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    parts = {name: torch.randn(n, size, generator=generator) for name, size in spec.observation_groups}
    return TensorDict(parts, batch_size=[n])


@cache
def images(spec) -> dict[str, SpaceImages]:
    return {name: SpaceImages(spec.observation_group(name).obs, spec.group) for name, _ in spec.observation_groups}


def mirrored(spec, obs) -> TensorDict:
    return TensorDict(
        {name: images(spec)[name].image(value, 1) for name, value in obs.items()}, batch_size=obs.batch_size
    )


def model(example, kind, obs_set="actor", *, free_variance=0.0, **options):
    from rppdyn.integrations import rsl_rl

    spec = example.TERMS.spec
    cfg = example.configuration("relaxed")[obs_set]
    options = {
        "obs_normalization": True,
        "hidden_dims": [32, 32],
        "distribution_cfg": cfg.get("distribution_cfg"),
    } | options
    size = spec.action.dim if obs_set == "actor" else 1
    cls = getattr(rsl_rl, kind)
    found = cls(
        batch(spec, 3), {"actor": ["actor"], "critic": ["critic"]}, obs_set, size, spec=spec, free_variance=free_variance,
        output_scale=1.0, **options,
    )  # fmt: skip
    for seed in range(2):
        found.update_normalization(batch(spec, 50, seed + 10))
    return found.eval()


def relative(a, b) -> float:
    return float((a - b).norm() / (a.norm() + b.norm()))


@pytest.mark.parametrize("kind", ["RelaxedMLPModel", "RelaxedRNNModel"])
def test_strict_models_transform_and_relaxed_ones_do_not(example, kind):
    spec = example.TERMS.spec
    obs, g = batch(spec, 20), spec.group.discrete_generators[0]
    for free_variance, holds in ((0.0, True), (1.0, False)):
        actor = model(example, kind, free_variance=free_variance)
        actor(obs, stochastic_output=True)
        mean, std = actor.output_mean, actor.output_std
        actor.reset()
        actor(mirrored(spec, obs), stochastic_output=True)
        assert (relative(actor.output_mean, spec.transform_action(g, mean)) < 1e-6) is holds
        torch.testing.assert_close(actor.output_std, std)
        actor.reset()
        critic = model(example, kind, "critic", free_variance=free_variance)
        value = critic(obs)
        critic.reset()
        assert (relative(critic(mirrored(spec, obs)), value) < 1e-6) is holds
        assert value.std() > 1e-3


@pytest.mark.unchecked
def test_a_recurrent_model_transforms_over_many_steps(example):
    spec = example.TERMS.spec
    g, acting = spec.group.discrete_generators[0], SpaceImages(spec.action, spec.group)
    own, size = images(spec)["actor"], dict(spec.observation_groups)["actor"]
    generator = torch.Generator().manual_seed(0)
    one, two = model(example, "RelaxedRNNModel"), model(example, "RelaxedRNNModel")
    worst = 0.0
    with torch.no_grad():
        for step in range(100):
            obs = {"actor": torch.randn(4, size, generator=generator)}
            a, b = one(obs), two({"actor": own.image(obs["actor"], 1)})
            worst = max(worst, relative(b, acting.image(a, 1)))
            if step == 50:
                for each in (one, two):
                    each.reset(torch.tensor([0, 1, 0, 0]))
    assert worst < 1e-6
    torch.testing.assert_close(
        two.get_hidden_state(), one.transform_hidden_state(g, one.get_hidden_state()), atol=1e-5, rtol=0
    )


def test_the_standard_deviation_stays_shared_in_training(example):
    actor = model(example, "RelaxedMLPModel").train()
    optimiser = torch.optim.SGD(actor.parameters(), lr=0.1)
    actor(batch(example.TERMS.spec, 5), stochastic_output=True)
    actor.get_output_log_prob(torch.randn(5, 6)).sum().backward()
    optimiser.step()
    std = actor.distribution.std_param
    image = example.TERMS.spec.action_rep.rho(example.TERMS.spec.group.discrete_generators[0]).abs().float() @ std
    torch.testing.assert_close(image, std)
    assert len(set(std.tolist())) == 3 and not torch.allclose(std, torch.full_like(std, 0.5))


def test_the_prior_pulls_by_its_gradient(example):
    from rppdyn.priors import negative_log_prior

    actor = model(example, "RelaxedMLPModel", free_variance=0.5, transitions=40)
    plain = model(example, "RelaxedMLPModel", free_variance=0.5, transitions=0)
    plain.load_state_dict(actor.state_dict())
    obs = batch(example.TERMS.spec, 5)
    actor(obs).square().sum().backward()
    (plain(obs).square().sum() + negative_log_prior(plain.mlp.network) / 40).backward()
    for a, b in zip(actor.mlp.parameters(), plain.mlp.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("kind", ["augmented", "relaxed", "recurrent"])
def test_ppo_trains_every_kind(example, kind, capsys):
    runner = example.train(kind, iterations=1, num_envs=2, hidden=16)
    capsys.readouterr()
    obs = runner.env.get_observations()
    state = runner.alg.actor.state_dict()
    again = example.train(kind, iterations=0, num_envs=2, hidden=16).alg.actor
    again.load_state_dict(state)
    capsys.readouterr()
    runner.alg.actor.reset()
    with torch.no_grad():
        found = runner.alg.actor(obs)
        torch.testing.assert_close(again(obs), found)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("kind", ["RelaxedMLPModel", "RelaxedRNNModel"])
def test_an_exported_actor_does_the_same_over_many_steps(example, kind, tmp_path):
    from rppdyn.integrations.rsl_rl import export_policy

    actor = model(example, kind, free_variance=1.0, **({"rnn_num_layers": 2} if kind == "RelaxedRNNModel" else {}))
    steps = 200 if kind == "RelaxedRNNModel" else 50
    found = export_policy(actor, onnx=tmp_path / "policy.onnx", torch_file=tmp_path / "policy.pt2", steps=steps)
    assert found.keys() == {"onnx", "torch"} and max(found.values()) < 1e-5
    card = json.loads((tmp_path / "policy.json").read_text())
    assert card["check"]["steps"] == steps and len(card["observation"]["entries"]) == actor.obs_dim
    recurrent = {"input": "hidden_state", "output": "next_hidden_state", "layers": 2, "size": 256, "initial": 0.0}
    assert card["hidden_state"] == (recurrent if kind == "RelaxedRNNModel" else None)


@pytest.mark.parametrize("kind", ["RelaxedMLPModel", "RelaxedRNNModel"])
def test_rsl_rls_own_exporters_encode_too(kind, tmp_path):
    """`OnPolicyRunner.export_policy_to_onnx` and `export_policy_to_jit`, of observations with a fixed point other than 0."""
    from rppdyn.integrations import rsl_rl

    names = ["joint_positions", {"term": "base_angular_velocity", "offset": 0.3}]
    spec = compiled_terms(CRAWLER, {"actor": names}, symmetry="left-right").spec
    obs, options = batch(spec, 5), {"rnn_hidden_dim": 16, "rnn_num_layers": 2} if kind == "RelaxedRNNModel" else {}
    actor = getattr(rsl_rl, kind)(
        obs, {"actor": ["actor"]}, "actor", 6, [16], True, "swish", {"class_name": "GaussianDistribution"}, spec=spec,
        output_scale=1.0, **options,
    )  # fmt: skip
    actor.update_normalization(obs)
    actor.eval()
    torch.jit.script(actor.as_jit()).save(tmp_path / "policy.pt")
    script, plain = torch.jit.load(tmp_path / "policy.pt"), actor.as_onnx(verbose=False).eval()
    hidden, inputs = plain.get_dummy_inputs()[1:], obs["actor"]
    torch.onnx.export(plain, plain.get_dummy_inputs(), tmp_path / "policy.onnx", opset_version=18, verbose=False,
                      input_names=plain.input_names, output_names=plain.output_names)  # fmt: skip
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "policy.onnx")
    for row in inputs.split(1):
        expected = actor(TensorDict({"actor": row}, batch_size=[1])).detach()
        torch.testing.assert_close(script(row).detach(), expected)
        numbers = [value.detach().numpy() for value in (row, *hidden)]
        action, *hidden = map(torch.tensor, session.run(None, dict(zip(plain.input_names, numbers, strict=True))))
        torch.testing.assert_close(action, expected, rtol=1e-4, atol=1e-5)
    script.reset()


def test_what_differs_is_not_written_and_a_critic_is_refused(example, tmp_path, monkeypatch):
    from rppdyn.integrations.rsl_rl import RelaxedRNNModel, export_policy

    actor, other = (model(example, "RelaxedRNNModel", free_variance=1.0, seed=seed) for seed in (0, 1))
    merged = other.merged()
    monkeypatch.setattr(RelaxedRNNModel, "merged", lambda self: merged)
    with refused("policy.onnx: over 20 steps the exported policy differs by"):
        export_policy(actor, onnx=tmp_path / "policy.onnx", steps=20)
    assert not list(tmp_path.iterdir())
    with refused("a critic has no actions"):
        export_policy(model(example, "RelaxedRNNModel", "critic"), onnx=tmp_path / "policy.onnx")
    with refused("no file is given"):
        export_policy(actor)


def test_a_recurrent_file_is_played_by_the_command_and_by_numpy_alone(tmp_path, monkeypatch):
    """The same returns from a process without torch and this package."""
    from rppdyn.cli import main
    from rppdyn.integrations.rsl_rl import RelaxedRNNModel, export_policy

    shutil.copy(CRAWLER, tmp_path)
    shutil.copy(CRAWLER.with_name("crawler.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    terms = compiled_terms(CRAWLER, {"actor": [
        "base_height", "quaternion", "joint_positions", "base_linear_velocity", "base_angular_velocity", "joint_velocities",
    ]}, symmetry="left-right")  # fmt: skip
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.5}
    actor = RelaxedRNNModel(
        batch(terms.spec, 2), {"actor": ["actor"]}, "actor", 6, [16], False, "swish", gaussian, "gru", 16, spec=terms.spec,
        output_scale=1.0,
    )  # fmt: skip
    export_policy(actor, onnx="policy.onnx", steps=50)
    assert main(["evaluate-agent", "policy.onnx", "--env", "crawler:Crawler-v0", "--episodes", "2", "--seed", "3"]) == 0
    own = json.loads(Path("policy.evaluation.json").read_text())["returns"]
    code = """
import sys, gymnasium, numpy, onnxruntime
session = onnxruntime.InferenceSession("policy.onnx")
env = gymnasium.make("crawler:Crawler-v0")
for seed in (3, 4):
    observation, _ = env.reset(seed=seed)
    total, done, hidden = 0.0, False, numpy.zeros((1, 1, 16), "float32")
    while not done:
        inputs = {"observation": observation[None].astype("float32"), "hidden_state": hidden}
        action, hidden = session.run(None, inputs)
        observation, reward, terminated, truncated, _ = env.step(action[0])
        total, done = total + reward, terminated or truncated
    print(total)
assert not {"torch", "rppdyn", "stable_baselines3"} & set(sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [float(line) for line in said.stdout.split()] == pytest.approx(own, rel=1e-3)
    assert abs(own[0]) > 1e-3


def test_an_encoder_of_a_height_scan(example):
    """Its latent state transforms by the regular representation, so that the whole is strict, and merges."""
    from rppdyn.integrations.rsl_rl import RelaxedMLPModel

    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity", {"term": "height_scan", "size": [0.4, 0.4]}]})
    encoder = {"entries": "height_scan", "hidden_dims": [16], "latent_dim": 8}
    obs = batch(terms.spec, 20)
    build = lambda encoder: RelaxedMLPModel(  # noqa: E731
        obs,
        {"actor": ["actor"]},
        "actor",
        6,
        [16],
        spec=terms.spec,
        free_variance=0.0,
        output_scale=1.0,
        encoder=encoder,
    )
    actor = build(encoder)
    action = actor(obs)
    image = SpaceImages(terms.spec.action, terms.spec.group).image(action, 1)
    assert relative(actor(mirrored(terms.spec, obs)), image) < 1e-6 and action.std() > 1e-3
    torch.testing.assert_close(actor.merged()(obs["actor"]), action)
    for wrong, message in (({"entries": "image"}, "names 0 of 28 entries"), ({"size": 3}, "no option 'size'")):
        with pytest.raises(ValueError, match=message):
            build(wrong)


MLP, RNN = "RelaxedMLPModel", "RelaxedRNNModel"
REFUSED = {
    # options of a model, by what its message says
    "rnn_type='lstm'": (RNN, dict(rnn_type="lstm")),
    "rnn_num_layers=0 must be": (RNN, dict(rnn_num_layers=0)),
    "rnn_hidden_dim=15 must be a whole number of at least 1, a multiple of 2": (RNN, dict(rnn_hidden_dim=15)),
    "use GaussianDistribution": (MLP, dict(distribution_cfg={"class_name": "HeteroscedasticGaussianDistribution"})),
    "no observation group 'policy'": (MLP, dict(groups={"actor": "policy"})),
    "entries, the spec": (MLP, dict(groups={"actor": "critic"})),
    "transitions=-1 must be a whole number of at least 0": (MLP, dict(transitions=-1)),
    "encoder='height_scan' must be a mapping": (MLP, dict(encoder="height_scan")),
    "distribution_cfg='gaussian' must be a mapping": (MLP, dict(distribution_cfg="gaussian")),
}  # fmt: skip


def test_what_does_not_fit_is_refused(example, tmp_path):
    from rppdyn.integrations.rsl_rl import RelaxedMLPModel, data_augmentation, export_policy

    for message, (kind, options) in REFUSED.items():
        with refused(message):
            model(example, kind, **options)
    actor = model(example, "RelaxedMLPModel", hidden_dims=[8])
    for wrong, options, message in (
        (torch.nn.Linear(2, 2), {"onnx": "x.onnx"}, "a Linear is no relaxed model"),
        (actor, {"onnx": tmp_path}, "is a folder; give a file"),
        (actor, {"onnx": tmp_path / "x.onnx", "steps": 0}, "steps=0: give at least one"),
    ):
        with refused(message):
            export_policy(wrong, **options)
    assert not list(tmp_path.iterdir())
    obs = batch(example.TERMS.spec, 2)
    for spec in (None, "crawler.xml", [1]):
        with refused(f"{type(spec).__name__} describes no symmetry spec; give a SymmetrySpec"):
            data_augmentation(spec)
        with refused(f"{type(spec).__name__} describes no symmetry spec; give a SymmetrySpec"):
            RelaxedMLPModel(obs, {"actor": ["actor"]}, "actor", 6, [8], spec=spec)
    with refused("symmetry spec is damaged"):
        data_augmentation(example.TERMS.spec.to_dict() | {"group": 3})
    with refused("obs is a list; give a TensorDict"):
        data_augmentation(example.TERMS.spec)(obs=[1.0])
