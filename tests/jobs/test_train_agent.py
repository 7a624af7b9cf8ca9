"""The job as a function: run(config) -> result."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC
from rppdyn.cli import main
from rppdyn.envs import certify, save_certificate, symmetry_spec
from rppdyn.envs.certification._certificate import share_of
from rppdyn.jobs import building, playing, report, train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import EvaluateAgentConfig, ReportConfig
from rppdyn.jobs.results import TrainManyResult
from rppdyn.priors import free_variance
from rppdyn.runs import RunFolder, RunFolderError, Session, StopRequest, read_metrics

WORDS = ("device=cpu", "model.hidden=8", "agent.learning_starts=20", "agent.batch_size=8", "agent.buffer_size=100",
         "evaluation.every=40", "evaluation.episodes=1", "evaluation.states=16", "checkpoint_every=20",
         "total_steps=50")  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return compose.composed("train_agent", [*WORDS, "env.actuator_scale.slider=0.5", f"run_dir={folder}"])


@pytest.fixture(scope="module")
def result(config):
    states = np.random.get_state()[1].copy(), torch.get_rng_state(), torch.get_num_threads()  # noqa: NPY002
    result = train_agent.run(config)
    assert np.array_equal(states[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(states[1], torch.get_rng_state())
    assert states[2] == torch.get_num_threads()
    return result


def test_the_result_says_what_was_reached(config, result):
    assert (result.steps, result.interrupted, result.run) == (50, False, config.run_dir)
    assert result.metrics["step"] == 50 and "50 of 50 steps" in str(result) and "at step" not in str(result)
    assert "episodes, at step 50)" in str(replace(result, steps=73, interrupted=True))
    for name, value, shown in (("equivariance/policy", None, "policy vacuous"), ("eval/return_mean", 0.03874, " 0.0387 "),
                               ("eval/return_mean", 131.04, " 131.0 "), ("eval/return_mean", -2.5, " -2.5 ")):  # fmt: skip
        assert shown in str(replace(result, metrics=result.metrics | {name: value}))
    each = [
        replace(result, seed=s, metrics=result.metrics | {"eval/return_mean": r}) for s, r in enumerate((12.0, 30.0))
    ]
    lines = str(TrainManyResult(each, {2: ValueError("broke")})).splitlines()
    assert lines[-4:-2] == ["seed 2: broke", "all 2 seeds"] and "21.0  (from 12.0 to 30.0)" in lines[-2]
    assert lines[-1].endswith(f"rppdyn report {result.run} {result.run}")
    stopped = TrainManyResult([replace(one, interrupted=True) for one in each])
    assert str(stopped).endswith("go on with          the same command and --resume")
    assert str(TrainManyResult(each[:1])) == str(each[0])


def test_evaluations_step_the_configured_environment_and_the_zip_is_the_same_agent(config, result):
    env = building.build_env(config)
    stock = building.build_env(compose.composed("train_agent", WORDS))
    assert env.unwrapped.model.actuator_gear[0, 0] == 0.5 * stock.unwrapped.model.actuator_gear[0, 0]
    played = playing.evaluate(EvaluateAgentConfig(run=result.run, episodes=1))
    assert played.returns == result.metrics["eval/returns"]
    folder = RunFolder.open(result.run)
    assert same_weights(RPPSAC.load(folder.model_file, device="cpu").policy.state_dict(), weights_of(folder.path))


def weights_of(run: str | Path) -> dict[str, torch.Tensor]:
    return torch.load(RunFolder.open(run).policy_file, weights_only=True)


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_run_that_can_not_be_played_is_named(config, result, tmp_path):
    def refused(run: str, said: str) -> None:
        with pytest.raises(ValueError, match=said) as error:
            playing.evaluate(EvaluateAgentConfig(run=run, episodes=1))
        assert "\n" not in str(error.value)

    empty = RunFolder.create(tmp_path / "empty", asdict(config))
    refused(str(empty.path), "has no policy yet")
    damaged = RunFolder(shutil.copytree(result.run, tmp_path / "damaged"))
    damaged.policy_file.write_bytes(damaged.policy_file.read_bytes()[:500])
    refused(str(damaged.path), r"policy\.pt is damaged: delete .*result\.json")
    damaged.config_file.write_text(damaged.config_file.read_text().replace("hidden: 8", "hidden: 0"))
    refused(str(damaged.path), r"config\.yaml: model\.hidden=0")


def test_an_evaluation_leaves_training_as_it_was(config, result, tmp_path):
    """The same run with more evaluations ends with the same weights."""
    often = replace(config, run_dir=str(tmp_path / "often"), evaluation=replace(config.evaluation, every=7))
    assert same_weights(weights_of(train_agent.run(often).run), weights_of(result.run))


def test_a_rollout_that_ends_beyond_the_last_step_finishes_the_run(config, tmp_path):
    """Collecting four steps at a time, 50 become 52, and resuming finds nothing left to do."""
    changed = replace(config, run_dir=str(tmp_path / "run"), agent=replace(config.agent, train_freq=4))
    assert train_agent.run(changed).steps == 52
    again = train_agent.run(changed, resume=True)
    assert (again.steps, again.note) == (52, "finished before; nothing left to do")
    (changed.folder() / "result.json").unlink()  # as if killed between the last checkpoint and the result
    assert train_agent.run(changed, resume=True).steps == 52
    with pytest.raises(RunFolderError, match=r"total_steps=48: .* 52 already"):
        train_agent.run(replace(changed, total_steps=48), resume=True)


def test_a_run_of_an_earlier_version_has_the_defaults_of_new_keys(config, result):
    folder = RunFolder.open(result.run)
    stored = folder.config_file.read_text()
    try:
        folder.config_file.write_text("".join(x for x in stored.splitlines(True) if "max_gradient_norm" not in x))
        assert train_agent.run(config, resume=True).steps == 50
        clipped = replace(config, agent=replace(config.agent, max_gradient_norm=0.5))
        with pytest.raises(RunFolderError, match=r"with agent\.max_gradient_norm=None, not 0\.5"):
            train_agent.run(clipped, resume=True)
    finally:
        folder.config_file.write_text(stored)


def test_a_diverged_run_is_named_and_keeps_its_last_good_checkpoint(config, tmp_path):
    agent = replace(config.agent, learning_rate=1e30)
    diverging = replace(config, run_dir=str(tmp_path / "run"), agent=agent)
    with pytest.raises(ValueError, match=r"diverged: .* smaller learning_rate"):
        train_agent.run(diverging)
    folder = RunFolder.open(diverging.run_dir)
    assert folder.checkpoints.latest().step == 20
    assert folder.result() is None


@pytest.mark.parametrize("words, expected", [
    (["agent.target_entropy=auto"], {"target_entropy": -1.0}),
    (["agent.target_entropy=-0.5", "agent.max_gradient_norm=0.5"], {"target_entropy": -0.5, "max_gradient_norm": 0.5}),
    (["agent.matmul_precision=high", "agent.compile=true"], {"matmul_precision": "high", "compile": True}),
    (["agent.compile=false"], {"compile": False}),
])  # fmt: skip
def test_settings_reach_the_agent_and_move_the_folder(words, expected, monkeypatch):
    monkeypatch.setenv("CXX", "true")
    config = compose.composed("train_agent", [*WORDS, *words])
    assert (config.folder() != compose.composed("train_agent", WORDS).folder()) == ("auto" not in words[0])
    env = building.build_env(config)
    agent = building.build_agent(config, env, symmetry_spec(env))
    assert {name: getattr(agent, name) for name in expected} == expected
    assert agent.settings().target_entropy == agent.target_entropy


def test_a_finished_run_that_goes_on_is_unfinished_again(config, result, tmp_path, monkeypatch):
    first = replace(config, run_dir=str(tmp_path / "run"))
    shutil.copytree(result.run, first.run_dir)
    save = Session.checkpoint

    def killed_after_60(run, step, write):
        save(run, step, write)
        if step == 60:
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "checkpoint", killed_after_60)
    with pytest.raises(KeyboardInterrupt):
        train_agent.run(replace(first, total_steps=100), resume=True)
    assert RunFolder.open(first.run_dir).result() is None
    played = playing.evaluate(EvaluateAgentConfig(run=first.run_dir, episodes=1))
    assert played.source == "policy of the checkpoint at step 60"  # and not the earlier end's


def test_a_run_that_was_killed_before_its_first_checkpoint_ends_as_if_it_had_not_been(config, result, tmp_path, caplog):
    first = replace(config, run_dir=str(tmp_path / "run"))
    shutil.copytree(result.run, first.run_dir)
    folder = RunFolder.open(first.run_dir)
    shutil.rmtree(folder.path / "checkpoints")
    folder.result_file.unlink()
    lines = folder.metrics.path.read_text().splitlines(keepends=True)
    folder.metrics.path.write_text(lines[0])
    again = train_agent.run(first, resume=True)
    assert "no checkpoint yet: training begins anew" in caplog.text
    assert folder.metrics.path.read_text() == "".join(lines) and again.metrics == result.metrics
    steps = [[record["step"] for record in read_metrics(of.path)] for of in (folder.timing, folder.metrics)]
    assert steps[0] == steps[1]


def test_a_resumed_run_takes_its_own_words_and_keeps_its_place(config, result, monkeypatch, capsys):
    run = result.run
    assert main(["train-agent", "--resume", run, "env.actuator_scale.slider=0.5"]) == 0
    assert "finished before" in capsys.readouterr().out
    for word, expected in (
        ("env.actuator_scale.slider=0.25", "env.actuator_scale.slider=0.5, not 0.25"),
        ("model=mlp", "model=mlp: a resumed run keeps its model"),
        ("env=Walker2d-v5", "env=Walker2d-v5: a resumed run keeps its env"),
        ("run_dir=elsewhere", "with run_dir=elsewhere: it goes on where it is"),
        ("env.nonsense.x=1", "unknown key 'env.nonsense"),
    ):
        assert main(["train-agent", "--resume", run, word]) == 2
        err = capsys.readouterr().err
        assert expected in err and err.count("\n") == 1, err


def test_a_run_in_a_folder_of_its_own_choice_goes_on_without_a_word_about_it(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run = train_agent.run(compose.composed("train_agent", [*WORDS, "total_steps=24"])).run
    with caplog.at_level("INFO"):
        assert main(["train-agent", "--resume", run, "total_steps=26"]) == 0
    assert f"{run}: goes on from step 24" in caplog.text and "run_dir" not in caplog.text


def test_the_baselines_reach_the_agent_and_a_mirror_loss_is_recorded(tmp_path):
    words = ["model=mlp", "agent.mirror_loss=0.5", "total_steps=24", f"run_dir={tmp_path / 'run'}"]
    result = train_agent.run(compose.composed("train_agent", [*WORDS, *words]))
    assert result.metrics["train/mirror_loss"] > 0
    config = compose.composed("train_agent", [*WORDS, *words, "agent.augment=true"])
    env = building.build_env(config)
    spec = symmetry_spec(env)
    kept = replace(spec, symmetries=[s._replace(reward_symmetric=True) for s in spec.symmetries])
    agent = building.build_agent(config, env, kept)
    assert (agent.augment, agent.mirror_loss) == (True, 0.5)


def test_the_symmetry_is_chosen_by_name_and_kept_with_the_run(tmp_path, monkeypatch):
    words = ["env=Reacher-v5", "env.symmetry=left-right", "total_steps=4", f"run_dir={tmp_path / 'run'}"]
    config = compose.composed("train_agent", [*WORDS, *words])
    train_agent.run(config)
    folder = RunFolder.open(tmp_path / "run")
    spec = building.load_spec(folder)
    assert spec.generator_names == ("left-right",) != symmetry_spec("Reacher-v5").generator_names

    def derived_again(*_, **__):
        raise AssertionError("the run's own symmetry stands in its folder")

    monkeypatch.setattr("rppdyn.jobs.building.symmetry_spec", derived_again)
    playing.evaluate(EvaluateAgentConfig(run=config.run_dir, episodes=1))
    (folder.path / building.SPEC_FILE).write_text("{")
    with pytest.raises(RunFolderError, match=r"spec\.json can't be read"):
        playing.evaluate(EvaluateAgentConfig(run=config.run_dir, episodes=1))


def test_a_certificate_of_this_very_model_is_stored_and_silences_the_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))  # without certificates that other tests have stored

    def begun(name: str, *words: str) -> RunFolder:
        caplog.clear()
        config = compose.composed("train_agent", [*WORDS, *words, "total_steps=4", f"run_dir={tmp_path / name}"])
        train_agent.run(config)
        return RunFolder.open(config.run_dir)

    weak = "env.actuator_scale.slider=0.25"
    begun("before", weak)
    assert "run `rppdyn certify`" in caplog.text
    assert "nothing is learned: give more total_steps than agent.learning_starts=20" in caplog.text
    env = building.build_env(compose.composed("train_agent", [*WORDS, weak]))
    save_certificate(certify(env, symmetry_spec(env), n_states=20, n_resets=20))
    folder = begun("after", weak, "agent.learning_starts=3")
    assert caplog.text == ""
    assert json.loads((folder.path / "certificate.json").read_text())["generators"][0]["name"] == "left-right"
    folder = begun("another model", "env.actuator_scale.slider=0.125")
    assert "was certified for another model" in caplog.text and not (folder.path / "certificate.json").exists()


WALKER = ("env=Walker2d-v5", "env.actuator_scale.leg_joint=0.5")


@pytest.fixture(scope="module")
def weak_walker():
    """The certificate of a walker with one weak joint."""
    with closing(building.build_env(compose.composed("train_agent", [*WORDS, *WALKER]))) as env:
        return certify(env, symmetry_spec(env), n_states=40, n_resets=20)


def stored(folder: Path, name: str) -> dict:
    return RunFolder.open(folder).config()["model"][name]


def test_a_certified_variance_is_written_once_and_neither_resuming_nor_evaluating_certifies(
    weak_walker, tmp_path, caplog, monkeypatch
):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    save_certificate(weak_walker)
    words = [*WORDS, *WALKER, "model.free_variance=certified", "total_steps=22", f"run_dir={tmp_path / 'run'}"]
    result = train_agent.run(compose.composed("train_agent", words))
    number = free_variance(share_of(weak_walker).share, 1e5, 8)
    assert stored(tmp_path / "run", "free_variance") == "certified"
    assert stored(tmp_path / "run", "certified_variance") == pytest.approx(number) and number > 1e-3
    assert "the prior allows the free pathway" in caplog.text and "strict" not in caplog.text
    assert f"free variance {number:.3g} (certified)" in str(result)

    def again(*_, **__):
        raise AssertionError("the number stands in the run's folder")

    monkeypatch.setattr("rppdyn.jobs.building.certified_share", again)
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "another"))
    longer = train_agent.run(compose.composed("train_agent", [*words, "total_steps=24"]), resume=True)  # these words
    assert longer.steps == 24 and stored(tmp_path / "run", "certified_variance") == pytest.approx(number)
    folder = RunFolder.open(tmp_path / "run")
    config = compose.from_run("train_agent", folder, ["total_steps=26"])  # and the run's own
    assert train_agent.run(config, resume=True).steps == 26
    playing.evaluate(EvaluateAgentConfig(run=str(folder.path), episodes=1))
    assert compose.composed("train_agent", words).identity() == config.identity()


def test_an_exact_certificate_makes_a_strict_network_and_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(certify.__kwdefaults__, "n_states", 60)
    monkeypatch.setitem(certify.__kwdefaults__, "n_resets", 100)
    words = [*WORDS, "env=Swimmer-v5", "env.kwargs.max_episode_steps=50", "model.free_variance=certified",
             f"run_dir={tmp_path / 'run'}", "total_steps=25"]  # fmt: skip
    result = train_agent.run(compose.composed("train_agent", words))
    assert "networks are strict" in caplog.text and "takes some seconds" in caplog.text
    assert stored(tmp_path / "run", "certified_variance") == 0 and "without a free pathway" in str(result)
    assert (tmp_path / "run" / "certificate.json").exists()


def test_a_narrow_prior_is_said_to_be_strict_in_all_but_name_and_warned_of_where_the_symmetry_is_refuted(
    result, weak_walker, tmp_path, caplog, monkeypatch
):
    assert "practically a strict network" in str(result)
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    save_certificate(weak_walker)
    for name, word, warned in (
        ("narrow", "model.free_variance=1e-7", True), ("wide", "model.free_variance=0.01", False), ("mlp", "model=mlp", False)
    ):  # fmt: skip
        caplog.clear()
        words = [*WORDS, *WALKER, word, f"run_dir={tmp_path / name}", "total_steps=4"]
        train_agent.run(compose.composed("train_agent", words))
        assert ("model.free_variance=certified" in caplog.text) == warned, (name, caplog.text)


WINDY = ("env=rppdyn/WindyPendulum-v0", "env.symmetry=D4")
CHAIN = (*WINDY, 'model.groups=["DkeR3(4)","left-right"]', "model.variances=[1e5,1e-2,1e-6]")


def test_a_chain_of_groups_is_trained_learned_resumed_and_built_again(tmp_path):
    words = [*WORDS, *CHAIN, "model.free_variance=learned", "model.learn_every=30"]
    config = compose.composed("train_agent", [*words, f"run_dir={tmp_path / 'run'}"])
    parts = [*words, f"run_dir={tmp_path / 'parts'}"]
    result = train_agent.run(config)
    assert "; learned" in str(result)
    train_agent.run(compose.composed("train_agent", [*parts, "total_steps=32"]))
    train_agent.run(compose.composed("train_agent", parts), resume=True)
    weights = weights_of(tmp_path / "run")
    assert same_weights(weights_of(tmp_path / "parts"), weights)
    assert {"pathway/actor_equivariant_2_norm", "pathway/critic_equivariant_2_norm"} <= result.metrics.keys()
    folder = RunFolder.open(tmp_path / "run")
    spec = building.load_spec(folder)
    with closing(building.build_env(config)) as env:
        agent = building.build_agent(config, env, spec)
    building.load_policy(agent, folder)
    for net in (agent.actor.net, *agent.critic.q_networks):
        assert net.groups[0] == spec.group
        assert torch.equal(net.groups[1].discrete_generators, spec.group.discrete_generators[1:])
        assert torch.equal(  # as it acts on observations
            net.rep_in.restrict(net.groups[1]).discrete_generators[0], net.rep_in.discrete_generators[1]
        )
        found = net.pathway_variances()["head"]
        assert list(found) == ["equivariant", "equivariant_2", "free"]
        assert found["equivariant_2"] != pytest.approx(1e-2) and found["free"] != pytest.approx(1e-6)  # learned
    name = "actor.net.head.equivariant_2.log_variance"
    assert torch.equal(agent.policy.state_dict()[name], weights[name])
    report.run(ReportConfig(runs=[str(folder.path)], out=str(tmp_path / "report.html")))
    assert "equivariant_2" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("words, parts", [
    ((*CHAIN, "model=emlp"), "model=emlp, which has one pathway"),
    ((*CHAIN, "model.widen=100"), "model.widen=100 with model.groups"),
    ((*CHAIN, "model.free_variance=certified"), "model.free_variance=certified with model.groups"),
    ((*WINDY, 'model.groups=["left-right","DkeR3(4)"]', CHAIN[3]), "begins with left-right"),
    ((*WINDY, 'model.groups=["DkeR3(4)","O(2)"]', CHAIN[3]), "O(2) is given by 2 x 2 matrices and DkeR3(4) by 3 x 3"),
])  # fmt: skip
def test_what_is_no_chain_is_refused_in_one_line_before_there_is_a_folder(tmp_path, words, parts):
    with pytest.raises(ValueError, match=re.escape(parts)) as caught:
        train_agent.run(compose.composed("train_agent", [*WORDS, *words, f"run_dir={tmp_path / 'run'}"]))
    assert len(str(caught.value).splitlines()) == 1 and not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="agent=ppo has no such setting; use agent=sac or agent=crossq"):
        compose.composed("train_agent", [*CHAIN, "agent=ppo"])


def test_the_first_episode_is_filmed(config, result, tmp_path, monkeypatch):
    """A policy that plays it alone rounds otherwise than in a batch; a robot amplifies that."""
    path, film = tmp_path / "film.gif", playing.film

    def replayed(make, actions, seed, *args, **kwargs):
        with closing(make()) as env:
            env.reset(seed=seed)
            replayed.returns = sum(float(env.step(action)[1]) for action in actions)
        return film(make, actions, seed, *args, **kwargs)

    monkeypatch.setattr(playing, "film", replayed)
    try:
        played = playing.evaluate(EvaluateAgentConfig(run=result.run, episodes=3, video=str(path)))
    except ValueError as error:
        if "nothing can draw here" in str(error):
            pytest.skip(str(error))
        raise
    with Image.open(path) as images:
        assert 1 < images.n_frames <= played.lengths[0] + 1
    assert replayed.returns == played.returns[0]
    assert f"film of the first episode: {path}" in playing.table(played)


def test_several_seeds_at_once_are_the_runs_they_would_be_alone(tmp_path, monkeypatch, caplog):
    words = [*WORDS, f"runs_root={tmp_path / 'many'}", "seeds=2", "workers=true"]
    workers = []
    monkeypatch.setattr(
        "rppdyn.jobs.train_agent.WorkerEnv", lambda build, count: workers.append(build) or DummyVecEnv([build] * count)
    )
    evaluations = train_agent.Evaluations
    here = lambda config, spec: evaluations(replace(config, workers=False), spec)  # noqa: E731
    monkeypatch.setattr(train_agent, "Evaluations", here)
    many = compose.composed("train_agent", words)
    save = Session.checkpoint

    def fails_once(run, step, write):
        save(run, step, write)
        if run.config.seed == 0 and step == 40:
            raise ValueError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "checkpoint", fails_once)
        found = train_agent.run_many(many)
    assert len(workers) == 2
    assert list(found.errors) == [0] and str(found.errors[0]) == "the disk is full"
    assert re.search(r"seed 0: \S+: ValueError: the disk is full", caplog.text)
    alone = train_agent.run(compose.composed("train_agent", [*WORDS, f"runs_root={tmp_path / 'alone'}", "seed=1"]))
    (second,) = found.results
    here, there = RunFolder.open(second.run), RunFolder.open(alone.run)
    assert here.path.relative_to(tmp_path / "many") == there.path.relative_to(tmp_path / "alone")
    assert plain_tree(here) == plain_tree(there)
    assert second.metrics["eval/returns"] == pytest.approx(alone.metrics["eval/returns"], rel=1e-4)
    torch.testing.assert_close(weights_of(second.run), weights_of(alone.run), rtol=1e-4, atol=1e-5)
    assert RPPSAC.load(here.model_file, device="cpu").num_timesteps == 50

    with pytest.raises(RunFolderError, match=r"exists"):
        train_agent.run_many(many)
    again = train_agent.run_many(many, resume=True)
    assert [result.steps for result in again.results] == [50, 50] and not again.errors
    assert again.results[1].note == "finished before; nothing left to do"
    with pytest.raises(ConfigError, match=r"seeds=0"):
        compose.composed("train_agent", [*WORDS, "seeds=0"])


def test_a_seed_whose_configuration_is_damaged_leaves_the_others_going_on(tmp_path, caplog):
    words = [*WORDS, "seeds=2", "total_steps=4", f"run_dir={tmp_path / 'run'}"]
    train_agent.run_many(compose.composed("train_agent", words))
    (tmp_path / "run" / "seed0" / "config.yaml").write_text("{")
    found = train_agent.run_many(compose.composed("train_agent", [*words, "total_steps=6"]), resume=True)
    assert [(result.seed, result.steps) for result in found.results] == [(1, 6)]
    said = str(found.errors[0])
    assert "config.yaml can't be read" in said and "delete the folder to start again" in said
    assert "seed 0: " in caplog.text


def test_a_stop_writes_a_checkpoint_of_every_seed_and_they_go_on_bit_identically(tmp_path, monkeypatch):
    class Stop(StopRequest):
        """Asked for between the looks of two seeds, which stop at the same step all the same: their updates are one."""

        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            return self.looks > 31

    def many(name: str, resume: bool = False):
        words = [*WORDS, "seeds=2", "threads=1", f"run_dir={tmp_path / name}"]
        return train_agent.run_many(compose.composed("train_agent", words), resume=resume)

    many("whole")
    with monkeypatch.context() as patch:
        patch.setattr(train_agent, "stop_on_signals", lambda: nullcontext(Stop()))
        stopped = many("stopped")
    steps = [result.steps for result in stopped.results]
    assert stopped.interrupted and not stopped.errors and max(steps) < 50 and len(set(steps)) == 1
    for result in stopped.results:
        assert RunFolder.open(result.run).checkpoints.latest().step == result.steps
    assert [result.steps for result in many("stopped", resume=True).results] == [50, 50]
    for seed in (0, 1):
        whole, resumed = (tmp_path / name / f"seed{seed}" for name in ("whole", "stopped"))
        assert (whole / "metrics.jsonl").read_bytes() == (resumed / "metrics.jsonl").read_bytes()
        assert same_weights(weights_of(whole), weights_of(resumed))


def plain_tree(folder: RunFolder) -> set[str]:
    """What lies in a run's folder; events have the time in their names."""
    return {str(p.relative_to(folder.path)) for p in folder.path.rglob("*") if "events.out" not in p.name}
