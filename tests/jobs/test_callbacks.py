"""Callbacks of the user's own, by name, and loggers that are not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rppdyn.cli import main
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.train_agent import load_callbacks
from rppdyn.runs import RunFolder, session

MODULE = """
from stable_baselines3.common.callbacks import BaseCallback

class Stop(BaseCallback):
    def _on_step(self):
        return self.num_timesteps < 25

class Needs(BaseCallback):
    def __init__(self, path):
        super().__init__()

class Counter: ...

seen = []
def note(locals, globals):
    seen.append(locals["self"].num_timesteps)

number = 3
"""
WORDS = ["train-agent", "env=InvertedPendulum-v5", "device=cpu", "threads=1", "model.hidden=[6,4]", "model.activation=relu",
         "agent.learning_starts=10", "agent.batch_size=4", "agent.buffer_size=60", "evaluation.episodes=1",
         "evaluation.states=4", "evaluation.every=100", "checkpoint_every=20", "total_steps=40"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_callbacks.py").write_text(MODULE)
    return tmp_path


def test_they_are_called_and_may_end_a_run(capsys):
    assert main([*WORDS, "callbacks=[my_callbacks:Stop,my_callbacks:note]", "run_dir=run"]) == 0
    out = capsys.readouterr().out
    assert "25 of 40 steps (ended by my_callbacks:Stop or my_callbacks:note)" in out
    assert sys.modules["my_callbacks"].seen == list(range(1, 26))
    config = RunFolder.open("run").config()
    assert (config["model"]["hidden"], config["model"]["num_layers"], config["model"]["activation"]) == (
        [6, 4],
        2,
        "relu",
    )
    sys.modules.pop("my_callbacks")
    (RunFolder.open("run").result_file).unlink()
    Path("run/signature").unlink()  # as if it came from elsewhere
    assert main(["train-agent", "--resume", "run", "total_steps=41"]) == 2
    assert "names the callback my_callbacks:Stop" in capsys.readouterr().err and "my_callbacks" not in sys.modules
    assert main(["evaluate-agent", "run", "--episodes", "1"]) == 0  # which runs no callback


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_callbacks:Counter", "the class Counter is no callback; give a class derived"),
        ("my_callbacks:Needs", "Needs needs path, and is made without arguments"),
        ("my_callbacks:Stopp", "has no 'Stopp' (did you mean 'Stop'?)"),
        ("my_callbacks:number", "is of type int"),
        ("absent_callbacks:Stop", "give a module that can be imported from here"),
    ],
)
def test_no_callback(name, said):
    with pytest.raises(ConfigError) as error:
        load_callbacks([name])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_device_that_is_not_here_is_refused_in_one_line(capsys, here):
    assert main([*WORDS, "device=mps", "run_dir=run"]) == 2
    err = capsys.readouterr().err
    assert "device=mps: torch finds no Apple GPU here" in err and err.strip().count("\n") == 0
    assert not (here / "run").exists()


def test_a_missing_logger_names_its_extra(monkeypatch, capsys, here):
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    for verb in (WORDS, ["fit-regression"]):
        assert main([*verb, "logger=wandb", "run_dir=run"]) == 2
        assert (
            "logger=wandb: the package wandb is not installed; pip install 'rppdyn[wandb]'" in capsys.readouterr().err
        )
    assert not (here / "run").exists()
