"""fit-transition: whole small fits to data of the real simulator, what they claim, and going on after an interruption."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import Episode, certify, make_env, save_certificate, symmetry_spec, write_episodes
from rppdyn.equivariance._error import geometric_mean, relative_difference
from rppdyn.jobs import fit_transition
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, read_metrics

NAME = "test/Swimmer-v5/noise-v0"
WORDS = ("task.train=1000", "task.trajectories=2", "task.length=50", "model.hidden=32", "optimiser.batch_size=25",
         "optimiser.learning_rate=1e-2", "evaluation.every=2", "evaluation.states=40", "device=cpu")  # fmt: skip
CHEETAH = (
    "dataset=test/HalfCheetah-v5/noise-v0",
    "model.reward=true",
    "task.train=10",
    "task.trajectories=1",
    "task.length=10",
)


def play(env: gymnasium.Env, episodes: int, steps: int) -> list[Episode]:
    """Random actions that are correlated over time, so that the swimmer swims."""
    rng, played = np.random.default_rng(0), []
    for seed in range(episodes):
        observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
        action = np.zeros(env.action_space.shape)
        for _ in range(steps):
            action = np.clip(0.8 * action + 0.6 * rng.normal(size=action.shape), -1, 1).astype(np.float32)
            observation, reward, *_ = env.step(action)
            observations.append(observation), actions.append(action), rewards.append(reward)
        played.append(Episode(np.array(observations), np.array(actions), np.array(rewards)))
    return played


@pytest.fixture(scope="module", autouse=True)
def dataset(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        for env_id, name, sizes in (
            ("Swimmer-v5", NAME, (8, 200)),
            ("HalfCheetah-v5", "test/HalfCheetah-v5/noise-v0", (2, 20)),
        ):
            with make_env(env_id, monitor=False) as env:
                write_episodes(name, play(env, *sizes), env=env)
        yield NAME


def configured(tmp_path, *words):
    return compose.composed("fit_transition", [f"dataset={NAME}", *WORDS, f"run_dir={tmp_path}", *words])


def test_a_symmetric_model_of_swimmer_is_better_and_loads_by_itself(tmp_path):
    words = ("optimiser.epochs=80", "seeds=2", "evaluation.every=80", "model.hidden=64", "task.train=500")
    results = {
        kind: fit_transition.run(configured(tmp_path / kind, f"model={kind}", *words)) for kind in ("mlp", "emlp")
    }
    error = {kind: np.mean(result.test["test/error_10"]) for kind, result in results.items()}
    assert error["emlp"] < 0.9 * error["mlp"]
    assert (
        max(results["emlp"].test["equivariance/rollout"])
        < 1e-12
        < 1e-2
        < min(results["mlp"].test["equivariance/rollout"])
    )

    shutil.move(tmp_path / "emlp", tmp_path / "moved")  # neither the dataset nor the environment is asked for
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "nowhere"))
        model, spec = fit_transition.load_transition_model(tmp_path / "moved")
    with make_env("Swimmer-v5", monitor=False) as env:
        episode = play(env, 1, 60)[0]
    x, u = spec.encode(torch.from_numpy(episode.observations)).float(), torch.from_numpy(episode.actions).float()
    members = model.net.members
    found = model.rollout(x[50:51].expand(members, 1, -1), u[50:60].expand(members, 1, -1, -1)).states.mean(0)
    assert geometric_mean(relative_difference(found[0], x[51:61])) < 3 * error["emlp"]


def test_a_resumed_fit_ends_as_if_it_had_not_stopped(tmp_path):
    words = ("model=rpp", "seeds=2", "optimiser.epochs=4", "checkpoint_every=1", "task.augment=true")
    whole = fit_transition.run(configured(tmp_path / "whole", *words))
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    folder = RunFolder(tmp_path / "stopped")
    folder.result_file.unlink()
    shutil.rmtree(sorted((folder.path / "checkpoints").iterdir())[-1])
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    undocumented = {
        name for name in (*whole.test, *whole.metrics) if f"`{name}`" not in page and not name.endswith("_mean")
    }
    assert not undocumented, undocumented
    again = fit_transition.run(configured(folder.path, *words), resume=True)
    assert again.test == whole.test
    assert (folder.path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_certified_variance_is_written_once_and_the_model_loads_without_a_simulator(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    spec = symmetry_spec("Swimmer-v5")
    certificate = certify("Swimmer-v5", spec, n_states=20, n_resets=20)
    (report,) = certificate.generators
    spoilt = replace(
        report, state=report.state._replace(p95=0.3), contact={}, free={}, reward=report.reward._replace(p95=0.9)
    )
    save_certificate(replace(certificate, generators=(spoilt,)))
    words = ("model.free_variance=certified", "optimiser.epochs=2", "checkpoint_every=1")
    whole = fit_transition.run(configured(tmp_path / "run", *words))
    number = 0.09 / 0.91 / 32
    assert RunFolder(tmp_path / "run").config()["model"]["certified_variance"] == pytest.approx(number)
    assert "is approximate (dynamics are off by 0.3" in caplog.text

    def again(*_, **__):
        raise AssertionError("the number stands in the run's folder")

    monkeypatch.setattr("rppdyn.jobs.building.certified_share", again)
    model, _ = fit_transition.load_transition_model(tmp_path / "run")
    assert model.net.member(0).pathway_variances()["head"]["free"] == pytest.approx(number)
    folder = RunFolder(tmp_path / "run")
    folder.result_file.unlink()
    shutil.rmtree(sorted((folder.path / "checkpoints").iterdir())[-1])
    assert fit_transition.run(configured(folder.path, *words), resume=True).test == whole.test


def test_learned_is_the_objective_by_another_name(tmp_path):
    by_word = configured(tmp_path, "model.free_variance=learned")
    spelt = ("objective=marginal_likelihood", "model.equivariant_variance=1", "model.free_variance=1e-4")
    assert by_word == configured(tmp_path, *spelt) and by_word.identity() == configured(tmp_path, *spelt).identity()
    narrower = configured(tmp_path, "model.free_variance=learned", "model.equivariant_variance=0.1")
    assert narrower.model.equivariant_variance == 0.1
    again = compose.from_stored("fit_transition", asdict(by_word), [])
    assert again == by_word


def test_the_loss_is_the_mean_l1_error_of_rollouts_in_standard_deviations(tmp_path):
    config = configured(tmp_path, "model=mlp", "dtype=float64", "optimiser.batch_size=100", "optimiser.epochs=1")
    transition = fit_transition.Transition(config)
    member, std = transition.members()[0], transition.model.states.std
    inputs, targets = transition.inputs[0], transition.targets[0] * transition.units
    x, expected = inputs[:, 0, :8], 0.0
    for t in range(10):
        x = x + member.change(x, inputs[:, t, 8:])
        expected += ((x - targets[:, t]) / std).abs().mean() / 10
    transition.step(0)
    assert float(transition.loss) == pytest.approx(float(expected), rel=1e-12)
    scale = (config.optimiser.noise_variance / 2) ** 0.5 / targets.numel()  # a Laplace distribution's
    assert transition.prior_scale.tolist() == pytest.approx([scale])


def test_mirrored_chunks_are_chunks_of_the_mirrored_simulator(tmp_path):
    transition = fit_transition.Transition(configured(tmp_path, "model=mlp", "dtype=float64", "task.augment=true"))
    spec = transition.spec
    inputs, targets = transition.prepare(transition.inputs, transition.targets, step=0)
    h = spec.group.elements()[1]
    mirrored = [
        (t @ rep.rho(h).T)
        for t, rep in ((transition.targets, spec.obs_rep), (transition.inputs[..., 8:], spec.action_rep))
    ]
    moved = (targets != transition.targets).flatten(2).any(-1)
    assert 0.4 < moved.double().mean() < 0.6
    torch.testing.assert_close(targets[moved], mirrored[0][moved])
    torch.testing.assert_close(inputs[..., 8:][moved], mirrored[1][moved])
    torch.testing.assert_close(targets[~moved], transition.targets[~moved])


def test_a_gaussian_model_knows_how_wrong_it_is(tmp_path):
    words = ("model=emlp", "model.gaussian=true", "optimiser.epochs=60", "dtype=float64", "evaluation.every=60")
    config = configured(tmp_path, *words)
    fit_transition.run(config)
    transition = fit_transition.Transition.load(config, RunFolder(tmp_path))
    (member,) = transition.members()
    test = transition.data.test
    step = member.step(test.states[:, :-1], test.actions)
    z = (test.states[:, 1:] - step.mean) / step.log_std.exp()
    assert 0.5 < z.square().mean().sqrt() < 2  # one, were it calibrated
    first, last = (read_metrics(RunFolder(tmp_path).metrics.path)[k]["test/error_mean"] for k in (0, -1))
    assert last < 0.5 * first


def test_the_published_protocol_counts_the_initial_state(tmp_path):
    words = ("model=mlp", "optimiser.epochs=2")
    ours, published = (
        fit_transition.run(configured(tmp_path / name, *words, f"evaluation.protocol={name}")).test["test/error_10"][0]
        for name in ("standard", "published")
    )
    curve = json.loads((tmp_path / "standard" / "rollouts.json").read_text())["error"][0]
    assert ours == pytest.approx(np.exp(np.mean(np.log(curve[:10]))))
    assert published == pytest.approx(np.exp(np.mean(np.log([1e-7, *curve[:9]]))))


@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning", "ignore:Implicitly cleaning up:ResourceWarning")
def test_a_dataset_of_minaris_own_collector_is_fitted_from_the_command_line(tmp_path, capsys, data_collector):
    env = data_collector(gymnasium.make("Swimmer-v5", max_episode_steps=120))
    env.action_space.seed(0)
    for seed in range(5):
        env.reset(seed=seed)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    env.create_dataset("others/swimmer-v0")
    env.close()
    words = [word for word in WORDS if not word.startswith("task.t")]
    run = f"run_dir={tmp_path / 'run'}"
    words += ["dataset=others/swimmer-v0", "task.train=300", "task.trajectories=1", "optimiser.epochs=1", run]
    assert main(["fit-transition", *words]) == 0
    assert "others-swimmer-v0, rpp" in capsys.readouterr().out
    assert main(["equivariance", str(tmp_path / "run")]) == 0
    assert "change of the state" in capsys.readouterr().out
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert "error over 10 steps" in out.read_text()


@pytest.mark.parametrize(
    "words, message",
    [
        (["dataset=some/nothing-v0"], "there is no dataset 'some/nothing-v0'"),
        (["task.train=100000"], r"have \d+ chunks of 10 steps, not 10000: give task.train="),
        (["task.length=500"], "0 of 8 episodes have 500 steps"),
        (["task.trajectories=40"], "trajectories of 50 steps, not 40: give task.trajectories="),
        (["symmetry=D4"], "D4"),
        (["model=mlp", "model.free_variance=certified"], "one pathway"),
        (["model.free_variance=learned", "model.gaussian=true"], "model.free_variance=learned"),
        ([*CHEETAH, "model=emlp"], "model.reward=true with model=emlp.*change"),
        ([*CHEETAH, "model=mlp", "task.augment=true"], "task.augment=true with model.reward=true.*changes"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, words, message):
    base = [word for word in (f"dataset={NAME}", *WORDS) if word.split("=")[0] not in {w.split("=")[0] for w in words}]
    assert main(["fit-transition", *base, f"run_dir={tmp_path / 'run'}", *words]) == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert re.search(message, captured), captured
    assert not (tmp_path / "run").exists()


def test_only_with_the_data_that_it_was_fitted_to(tmp_path, monkeypatch, capsys):
    run = fit_transition.run(configured(tmp_path / "run", "model=mlp", "optimiser.epochs=2", "checkpoint_every=1")).run
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "others"))
    with make_env("Swimmer-v5", monitor=False) as env:
        write_episodes(NAME, [replace(e, actions=-e.actions) for e in play(env, 8, 200)], env=env)
    message = "is not what this run was fitted to: put that back, or fit again with another run_dir="
    assert main(["equivariance", run]) == 2
    assert message in capsys.readouterr().err
    folder = RunFolder(tmp_path / "run")
    folder.result_file.unlink()
    (folder.path / "members.pt").unlink()
    assert main(["fit-transition", "--resume", run]) == 2
    assert message in capsys.readouterr().err
    assert not (folder.path / "members.pt").exists()


def test_members_that_diverge_have_no_number_and_the_run_ends(tmp_path):
    words = ("model=mlp", "optimiser.epochs=2", "optimiser.learning_rate=1e30", "seeds=2")
    result = fit_transition.run(configured(tmp_path / "wild", *words))
    stored = json.loads((tmp_path / "wild" / "result.json").read_text())["test"]
    assert stored["rollout/diverged"] == [1.0, 1.0] == stored["test/error_10"]  # a trajectory that is lost counts as 1
    assert stored["equivariance/error"] == [None, None]
    assert "2 of 2 diverged" in str(result) and "nan" not in str(result)


def test_variances_of_both_pathways_are_learned_and_the_noise_with_them(tmp_path):
    words = ("model=rpp", "model.equivariant_variance=1", "model.free_variance=1", "model.hidden=16",
             "objective=marginal_likelihood", "marginal_likelihood.burn_in=5", "optimiser.epochs=30")  # fmt: skip
    result = fit_transition.run(configured(tmp_path / "run", *words))
    rows = {(row["layer"], row["pathway"]): row for row in result.pathways}
    layers = {layer for layer, _ in rows}
    assert len(layers) == 3 and len(rows) == 6
    for row in rows.values():
        assert 0 < row["effective"][0] < row["coefficients"]
    for (
        layer
    ) in layers:  # Swimmer's mirror image is exact: from one variance for both, the free weights' becomes the smaller
        assert rows[layer, "free"]["precision"][0] > 2 * rows[layer, "equivariant"]["precision"][0]
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    (noise,), (l1,) = last["log10_variance/noise"], last["train/l1"]
    assert 0.4 < 10**noise / (2 * l1**2) < 2.5  # a Laplace distribution's variance; it began at an eighth of that
    again = fit_transition.run(configured(tmp_path / "run", *words), resume=True)
    assert again.test == result.test and again.pathways == result.pathways


@pytest.fixture(scope="module")
def pendulum():
    name = "test/WindyPendulum/noise-v0"
    env = make_env("rppdyn/WindyPendulum-v0", monitor=False)
    write_episodes(name, play(env, 8, 60), env=env)
    env.close()
    return name


CHAIN = ('model.groups=["DkeR3(4)","left-right"]', "model.variances=[1,1,0]", "symmetry=D4")


def test_a_chain_of_groups_has_the_equivariance_of_the_last(tmp_path, pendulum):
    words = (f"dataset={pendulum}", *CHAIN, "model=rpp", "task.train=200", "optimiser.epochs=20", "task.length=20")
    fit_transition.run(configured(tmp_path / "run", *words, "evaluation.every=20"))
    model, spec = fit_transition.load_transition_model(tmp_path / "run")
    net = model.net.member(0).double()
    assert list(net.pathway_variances()["head"]) == ["equivariant", "equivariant_2"]
    x = torch.randn(30, net.rep_in.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turn, mirror = (
        relative_difference(net(x @ a.mT), net(x) @ b.mT).mean()
        for a, b in zip(net.rep_in.discrete_generators, net.rep_out.discrete_generators, strict=True)
    )
    assert mirror < 1e-9 < 1e-3 < turn
    assert spec.generator_names == ("quarter turn", "left-right")


def test_what_is_no_chain_is_refused_in_one_line(tmp_path, pendulum):
    words = (f"dataset={pendulum}", *CHAIN, "task.train=200", "task.length=20")
    with refused("begins with SO(3), and the task's representations are of DkeR3(4)"):
        fit_transition.run(configured(tmp_path / "run", *words, 'model.groups=["SO(3)","left-right"]'))
    assert not (tmp_path / "run").exists()
