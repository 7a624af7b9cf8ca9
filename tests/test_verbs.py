"""Verbs that train: exit statuses, and results of runs that were finished before."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from rppdyn import cli
from rppdyn.cli import main
from rppdyn.errors import DivergedError, is_out_of_space
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.results import TrainAgentResult, TrainManyResult
from rppdyn.runs import RunFolder


def refused() -> ConfigError:
    return ConfigError("agent.tau=-1: must be greater than 0")


OURS = RuntimeError("a fault of ours")


@pytest.mark.parametrize(("errors", "status"), [([], 0), ([refused()], 2), ([OURS], 1), ([refused(), OURS], 1)])
def test_seeds_that_fail_end_with_status_2_if_the_user_can_mend_it(monkeypatch, tmp_path, errors, status):
    monkeypatch.setattr(train_agent, "run_many", lambda *_, **__: TrainManyResult([], dict(enumerate(errors))))
    assert main(["train-agent", "seeds=2", f"run_dir={tmp_path / 'run'}"]) == status


FIT = ["fit-regression", "task=inertia", "task.train=20", "task.test=20", "model=mlp", "model.hidden=4"]


def test_files_of_a_run_without_what_they_should_hold_are_named(tmp_path, capsys):
    run = tmp_path / "run"
    words = [*FIT, "optimiser.epochs=1", f"run_dir={run}", "--resume"]
    assert main(words) == 0
    # a key that is as it was before there was such a key is left out where configurations are compared
    assert main([*words, "optimiser.warm_up=1"]) == 2
    assert "was run with optimiser.warm_up=0, not 1" in capsys.readouterr().err
    result = json.loads((run / "result.json").read_text())
    del result["model"]
    (run / "result.json").write_text(json.dumps(result))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"{run / 'result.json'} is damaged: it has no model; delete it" in error
    (run / "result.json").unlink()
    assert main(words) == 0 and json.loads((run / "result.json").read_text())["model"] == "mlp"
    (run / "config.yaml").write_text("")
    for words in (["fit-regression", "--resume", str(run)], ["figure", str(run), "--out", str(tmp_path / "f.png")]):
        assert main(words) == 2
        assert "config.yaml holds no configuration: put it back" in capsys.readouterr().err


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),  # without a file's name, as writing says it
    OSError(errno.EDQUOT, "Disk quota exceeded", "a.png"),
    OSError(errno.EFBIG, "File too large"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 43200 vs 43092"),  # torch.save's
    RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
]


def test_a_full_disk_is_said_in_one_line(monkeypatch, tmp_path, capsys):
    assert all(map(is_out_of_space, FULL))
    words = [*FIT, "optimiser.epochs=1", f"run_dir={tmp_path / 'run'}", "--resume"]
    draws = Mock(side_effect=FULL[0])
    with monkeypatch.context() as patch:
        patch.setattr("rppdyn.jobs.fit.draw_run", draws)
        assert main(words) == 2 and draws.called
    *_, said = capsys.readouterr().err.splitlines()  # after the progress
    assert said.startswith("rppdyn: error: no room for a file (") and "--resume" in said
    (tmp_path / "run" / "result.json").unlink()
    assert main(words) == 0


def test_the_configuration_is_shown_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["env=Walker2d-v5", "agent.gamma=0.9", "--cfg", "job"]
    assert main(["train-agent", *words]) == 0
    shown = OmegaConf.to_object(OmegaConf.create(capsys.readouterr().out))
    assert shown == asdict(compose.composed("train_agent", words[:2])) and not list(tmp_path.iterdir())
    assert main(["train-agent", *words, "--multirun"]) == main(["train-agent", "--cfg", "job", "seed=x"]) == 2


def test_a_job_of_a_search_returns_its_objective(tmp_path):
    """What a sweeper that searches chooses the next configuration by."""
    words = [*FIT[1:], "optimiser.epochs=1", f"run_dir={tmp_path / 'run'}"]
    config = compose.composed("fit_regression", words)
    task = cli._SweepTask(cli.Training("fit_regression"), False, False, searches=True)
    value = task(OmegaConf.create(asdict(config)))
    assert [value] == RunFolder.open(tmp_path / "run").result()["metrics"]["validation/error"]


def test_a_trial_of_which_a_seed_failed_has_no_objective():
    """Its survivors' mean would speak for settings that end training."""
    survivor = TrainAgentResult("run", "Ant-v5", "rpp", 0, 10, 10, metrics={"eval/return_mean": 900.0})
    job = cli.Training("train_agent")
    assert job.value_of(TrainManyResult([survivor])) == 900
    with pytest.raises(DivergedError, match="seed 1"):
        job.value_of(TrainManyResult([survivor], {1: DivergedError("seed 1")}))
