"""What a run records of evaluations, also of those whose values come later."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from contextlib import nullcontext
from typing import ClassVar

import pytest

from rppdyn.agents import RPPSAC, RPPCrossQ, SACUpdate
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, Session, StopRequest, read_metrics
from rppdyn.runs.workers import WorkerError

WORDS = ("env=InvertedPendulum-v5", "device=cpu", "model.hidden=8", "agent.num_envs=3", "agent.gradient_steps=-1",
         "agent.learning_starts=20", "agent.batch_size=8", "agent.buffer_size=200", "evaluation.every=30",
         "evaluation.episodes=1", "evaluation.states=16", "checkpoint_every=60", "threads=1")  # fmt: skip


def configured(run, *words: str):
    return compose.composed("train_agent", [*WORDS, f"run_dir={run}", *words])


class Answer(Future):
    """One that is ready when it is asked for the third time, or waited for."""

    looks = 3

    def __init__(self, step: int, values, waited: list[int]) -> None:
        super().__init__()
        self.step, self.waited, self.asked = step, waited, 0
        self.set_result(values)

    def done(self) -> bool:
        self.asked += 1
        return self.asked >= self.looks

    def result(self, timeout=None):
        if self.asked < self.looks:
            self.waited.append(self.step)
        return super().result(timeout)


class Late(train_agent.Evaluations):
    """Measures at once, and says so later."""

    waited: ClassVar[list[int]] = []
    answer = Answer

    def begin(self, agent) -> Future:
        return self.answer(agent.num_timesteps, super().begin(agent).result(), self.waited)


def records(run) -> tuple[list, list]:
    folder = RunFolder.open(run)
    return read_metrics(folder.metrics.path), sorted(path.name for path in (folder.path / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Records and checkpoints of a run whose values come at once."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train_agent.run(configured(run, "total_steps=120"))
    return records(run)


@pytest.fixture
def late(monkeypatch) -> type[Late]:
    monkeypatch.setattr(train_agent, "Evaluations", Late)
    monkeypatch.setattr(Late, "waited", [])
    return Late


def test_late_values_are_recorded_at_the_step_they_are_of(tmp_path, whole, late):
    train_agent.run(configured(tmp_path / "late", "total_steps=120"))
    assert late.waited == [120]  # at the end; checkpoints of the steps 60 and 120 did not wait for their evaluations
    assert [row["step"] for row in whole[0]] == [0, 30, 60, 90, 120]
    assert records(tmp_path / "late") == whole


def test_a_checkpoint_taken_while_its_evaluation_is_under_way_begins_it_again(tmp_path, monkeypatch, whole, late):
    """A run is killed after such a checkpoint, and resumed."""
    save = Session.checkpoint

    def kill(run, step, write):
        save(run, step, write)
        if step == 60:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "checkpoint", kill)
        with pytest.raises(KeyboardInterrupt):
            train_agent.run(configured(tmp_path / "run", "total_steps=120"))
    assert [row["step"] for row in records(tmp_path / "run")[0]] == [0, 30]
    monkeypatch.undo()
    train_agent.run(configured(tmp_path / "run", "total_steps=120"), resume=True)
    assert records(tmp_path / "run")[0] == whole[0]


def test_several_environments_in_a_worker_and_evaluations_beside_it_make_the_same_run(tmp_path, monkeypatch, whole):
    """With real processes, stopped in the middle; `workers` may change between the parts."""
    stop = StopRequest()
    update = train_agent.Progress.update

    def stopping(bar, step: int) -> None:
        update(bar, step)
        if step == 75:
            stop.signal = 2

    with monkeypatch.context() as patch:
        patch.setattr(train_agent.Progress, "update", stopping)
        patch.setattr("rppdyn.jobs.train_agent.stop_on_signals", lambda: nullcontext(stop))
        found = train_agent.run(configured(tmp_path / "aside", "total_steps=120", "workers=true"))
    assert found.interrupted and found.steps == 75
    train_agent.run(configured(tmp_path / "aside", "total_steps=120"), resume=True)
    assert records(tmp_path / "aside")[0] == whole[0]


class Broken(Answer):
    looks = 2

    def result(self, timeout=None):
        if self.step == 60:
            raise WorkerError("a worker process (1) was killed by signal 9")
        return super().result(timeout)


def test_an_evaluation_that_fails_costs_no_steps(tmp_path, monkeypatch, late):
    monkeypatch.setattr(Late, "answer", Broken)
    config = configured(tmp_path / "run", "total_steps=90", "checkpoint_every=1000")
    with pytest.raises(WorkerError, match=r"the evaluation at step 60: a worker process \(1\) was killed"):
        train_agent.run(config)
    assert records(tmp_path / "run")[1] == ["step-000000000063"]
    monkeypatch.undo()
    train_agent.run(config, resume=True)
    assert [row["step"] for row in records(tmp_path / "run")[0]][-1] == 90


def interrupted(*args, **kwargs):
    """Ctrl-C while something takes long."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


@pytest.mark.parametrize("seeds", [1, 2])
def test_ctrl_c_stops_a_compilation_at_once_and_loses_nothing(tmp_path, monkeypatch, capsys, seeds):
    """The run ends at a checkpoint from before it, and goes on from there bit by bit."""
    words = "total_steps=36", "evaluation.every=36", f"seeds={seeds}"
    run = train_agent.run if seeds == 1 else train_agent.run_many
    with monkeypatch.context() as patch:
        patch.setattr(RPPSAC, "compiles", True)
        patch.setattr(SACUpdate, "step", interrupted)
        start = time.monotonic()
        stopped = run(configured(tmp_path / "run", *words), progress=True)
    assert stopped.interrupted and time.monotonic() - start < 50
    results = [stopped] if seeds == 1 else stopped.results
    assert [result.steps for result in results] == [18] * seeds  # the last rollout that ends before learning_starts
    assert "stopped; a checkpoint was written" in str(stopped)
    assert ", compiling, up to a minute" in capsys.readouterr().err
    run(configured(tmp_path / "run", *words), resume=True)
    run(configured(tmp_path / "whole", *words))
    for own in ("seed0", "seed1") if seeds > 1 else (".",):
        one, other = (tmp_path / name / own / "metrics.jsonl" for name in ("run", "whole"))
        assert one.read_bytes() == other.read_bytes()


def test_ctrl_c_stops_seeds_at_once_while_their_environments_start(tmp_path, monkeypatch):
    monkeypatch.setattr(train_agent, "build_env", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train_agent.run_many(configured(tmp_path / "run", "seeds=2"))
    assert time.monotonic() - start < 50 and not (tmp_path / "run").exists()


def test_ctrl_c_stops_the_compilation_of_an_actors_first_update_too(tmp_path, monkeypatch):
    """With CrossQ that is the third update, and another function."""
    words = "agent=crossq", "agent.learning_starts=20", "agent.num_envs=1", "agent.gradient_steps=1", "total_steps=40"
    monkeypatch.setattr(RPPSAC, "compiles", True)
    settings = RPPCrossQ.settings

    def interrupted_at_the_actor(agent):
        if (found := settings(agent)).moves_actor:
            interrupted()
        return found

    monkeypatch.setattr(RPPCrossQ, "settings", interrupted_at_the_actor)
    start = time.monotonic()
    stopped = train_agent.run(configured(tmp_path / "run", *words))
    assert stopped.interrupted and time.monotonic() - start < 50
    assert stopped.steps == 22
