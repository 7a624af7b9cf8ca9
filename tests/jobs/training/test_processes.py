"""Seeds shared out over processes."""

from __future__ import annotations

import pickle
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from rppdyn.errors import by_user
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.results import TrainManyResult
from rppdyn.jobs.training import processes
from rppdyn.runs import RunFolder, StopRequest
from rppdyn.runs.workers import Worker

WORDS = (
    "device=cpu",
    "model.hidden=8",
    "agent.learning_starts=20",
    "agent.batch_size=8",
    "agent.buffer_size=500",
    "evaluation.every=100",
    "evaluation.episodes=1",
    "evaluation.states=16",
    "checkpoint_every=50",
    "total_steps=200",
)


def many(run: Path, *words: str):
    return compose.composed("train_agent", [*WORDS, "seeds=3", f"run_dir={run}", *words])


def test_each_seed_has_its_place_whichever_are_finished(monkeypatch, tmp_path):
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 6)

    def shared(*words: str, without: int | None = None) -> tuple[list[list[int]], int]:
        config = many(tmp_path / "run", *words)
        waiting = [own for own in config.each() if own.seed != without]
        parts, threads = processes.shared_out(config, waiting)
        return [[own.seed for own in part] for part in parts], threads

    assert shared("seed=7", "threads=2") == ([[7, 9], [8]], 1)
    assert shared("threads=2", without=2) == ([[0], [1]], 1)
    assert shared("threads=2", without=1) == ([[0, 2]], 1)
    assert shared("threads=100") == ([[0], [1], [2]], 2)
    assert shared("threads=1") == ([[0, 1, 2]], 1)
    assert shared("threads=2", "workers=true") == ([[0, 1, 2]], 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert shared() == ([[0, 2], [1]], 1)
    assert shared("workers=true") == ([[0, 1, 2]], 1)
    assert shared("seeds=1") == ([[0]], 1)
    monkeypatch.setattr(processes, "device_of", lambda name: torch.device("cuda"))
    assert shared("device=cuda", "workers=true") == ([[0, 1, 2]], 1)
    assert shared("device=cuda", "workers=true", "threads=2") == ([[0, 2], [1]], 1)


@pytest.fixture
def workers(monkeypatch) -> list[Worker]:
    made: list[Worker] = []
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 2)
    monkeypatch.setattr(processes, "Worker", lambda: made.append(Worker()) or made[-1])
    return made


def test_they_are_the_runs_of_one_process_and_survive_a_stop_and_a_kill(tmp_path, monkeypatch, workers, capsys, caplog):
    with monkeypatch.context() as patch:  # the same parts, one after the other in this process
        patch.setattr(processes, "tell", lambda said: None)
        patch.setattr(train_agent, "side_by_side", lambda train, parts, *_: [train(part) for part in parts])
        train_agent.run_many(many(tmp_path / "whole", "threads=2"))
    assert workers == []
    stop, hear = StopRequest(), processes._CommonBar.hear

    def disturbed(self, part: int, said: tuple) -> None:
        hear(self, part, said)
        if part == 1 and said[0] == "begin":
            workers[-1]._process.kill()
        if part == 0 and said[0] == "update":
            stop.signal = signal.SIGINT

    with monkeypatch.context() as patch:
        patch.setattr(processes._CommonBar, "hear", disturbed)
        patch.setattr(train_agent, "stop_on_signals", lambda: nullcontext(stop))
        stopped = train_agent.run_many(many(tmp_path / "stopped", "threads=2"))
    assert len(workers) == 2 and stopped.interrupted and [result.seed for result in stopped.results] == [0, 2]
    for result in stopped.results:
        assert result.steps < 200 and RunFolder.open(result.run).checkpoints.latest().step == result.steps
    assert list(stopped.errors) == [1] and by_user(stopped.errors[1]) and "signal 9" in str(stopped.errors[1])
    assert "seeds 1: a worker process" in caplog.text

    again = train_agent.run_many(many(tmp_path / "stopped", "threads=2"), resume=True, progress=True)
    assert len(workers) == 4 and all(worker._process.poll() is not None for worker in workers)
    assert [(result.seed, result.steps) for result in again.results] == [(0, 200), (1, 200), (2, 200)]
    assert not again.errors
    bar = capsys.readouterr().err
    assert "InvertedPendulum-v5 rpp, 3 seeds 100%, return=" in bar and "200/200" in bar
    for seed in range(3):
        one, other = (tmp_path / name / f"seed{seed}" for name in ("whole", "stopped"))
        assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
        policies = [torch.load(run / "policy.pt", weights_only=True) for run in (one, other)]
        assert all(torch.equal(value, policies[1][name]) for name, value in policies[0].items())


class Particular(ValueError):
    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} of {number}")


def raised(error: Exception | None) -> Exception:
    try:
        if error is not None:
            raise error
        int("no number")
    except Exception as found:
        return found
    raise AssertionError


def test_errors_come_back_with_what_they_tell_a_user(monkeypatch):
    """Whether one is the user's stands in its traceback, which pickling loses."""
    monkeypatch.setitem(globals(), "__package__", "rppdyn")  # this module's errors are the package's
    found = TrainManyResult(
        [],
        {
            0: raised(ConfigError("seed=x: wrong")),
            1: raised(Particular("seeds", 3)),
            2: raised(None),
            3: raised(MemoryError("too large")),
        },
    )
    sent = pickle.loads(pickle.dumps(processes.portable(found))).errors
    back = {seed: processes._here(error) for seed, error in sent.items()}
    assert [by_user(error) for error in back.values()] == [True, True, False, True]
    assert isinstance(back[0], ConfigError) and str(back[0]) == "seed=x: wrong"
    assert type(back[1]) is ValueError and str(back[1]) == "seeds of 3"
    assert "in a worker process: Traceback" in str(back[2]) and 'int("no number")' in str(back[2])
