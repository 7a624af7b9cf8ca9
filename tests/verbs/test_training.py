"""Verbs that train: exit statuses, and results of runs that were finished before."""

from __future__ import annotations

import json

import pytest

from rppdyn.cli import main
from rppdyn.jobs import train_agent
from rppdyn.jobs.config.checks import ConfigError, positive
from rppdyn.jobs.training.result import TrainManyResult


def refused() -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        positive("agent.tau", -1.0)
    return caught.value


OURS = RuntimeError("a fault of ours")


@pytest.mark.parametrize(("errors", "status"), [([], 0), ([refused()], 2), ([OURS], 1), ([refused(), OURS], 1)])
def test_seeds_that_fail_end_with_status_2_if_the_user_can_mend_it(monkeypatch, tmp_path, errors, status):
    monkeypatch.setattr(train_agent, "run_many", lambda *_, **__: TrainManyResult([], dict(enumerate(errors))))
    assert main(["train-agent", "seeds=2", f"run_dir={tmp_path / 'run'}"]) == status


def test_a_result_without_what_it_should_have_is_named(tmp_path, capsys):
    run = tmp_path / "run"
    words = [
        "fit-regression", "task=inertia", "task.train=20", "task.test=20", "model=mlp", "model.hidden=4",
        "optimiser.epochs=1", f"run_dir={run}", "--resume",
    ]  # fmt: skip
    assert main(words) == 0
    result = json.loads((run / "result.json").read_text())
    del result["model"]
    (run / "result.json").write_text(json.dumps(result))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"{run / 'result.json'} is damaged: it has no model; delete it" in error
    (run / "result.json").unlink()
    assert main(words) == 0 and json.loads((run / "result.json").read_text())["model"] == "mlp"
