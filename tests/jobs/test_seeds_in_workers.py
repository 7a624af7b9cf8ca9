"""Seeds shared out over processes."""

from __future__ import annotations

from contextlib import nullcontext
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from rppdyn.cli import main
from rppdyn.errors import is_user_error
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, StopRequest
from rppdyn.runs.workers import Worker

WORDS = ("device=cpu", "model.hidden=8", "agent.learning_starts=20", "agent.batch_size=8", "agent.buffer_size=500",
         "evaluation.every=80", "evaluation.episodes=1", "evaluation.states=16", "checkpoint_every=30", "total_steps=80",
         "env.actuator_scale.slider=0.5")  # fmt: skip


def many(run: Path, *words: str):
    return compose.composed("train_agent", [*WORDS, "seeds=3", f"run_dir={run}", *words])


def test_each_seed_has_its_place_whichever_are_finished(monkeypatch, tmp_path):
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 6)

    def shared(*words: str, without: int | None = None) -> tuple[list[list[int]], int]:
        config = many(tmp_path / "run", *words)
        parts, threads = train_agent.distribute_seeds(config, [each for each in config.runs() if each.seed != without])
        return [[each.seed for each in part] for part in parts], threads

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
    monkeypatch.setattr(train_agent, "device_of", lambda name: torch.device("cuda"))
    assert shared("device=cuda", "workers=true") == ([[0, 1, 2]], 1)
    assert shared("device=cuda", "workers=true", "threads=2") == ([[0, 2], [1]], 1)


@pytest.fixture
def workers(monkeypatch) -> list[Worker]:
    """Collect the workers that are made."""
    workers: list[Worker] = []
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 2)
    monkeypatch.setattr(train_agent, "Worker", lambda preload: workers.append(Worker(preload)) or workers[-1])
    return workers


DISTURB = """
import os, signal, time
from pathlib import Path
from stable_baselines3.common.callbacks import BaseCallback
from rppdyn.runs.workers import worker_stop

class Disturb(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 45 and not Path("undisturbed").exists():
            if self.model.seed == 1:
                Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            while not Path("killed").exists():
                time.sleep(0.01)
            Path("stop").touch()
            while not worker_stop:
                time.sleep(0.01)
        return True
"""


class Stop(StopRequest):
    def __bool__(self) -> bool:
        return Path("stop").exists()


def test_they_are_the_runs_of_one_process_and_survive_a_stop_and_a_kill(tmp_path, monkeypatch, workers, capfd, caplog):
    forkserver._forkserver._stop()  # one that another test started writes where that test's output went
    monkeypatch.chdir(tmp_path)
    Path("disturb.py").write_text(DISTURB)
    Path("undisturbed").touch()
    words = "threads=2", "callbacks=disturb:Disturb"
    with monkeypatch.context() as patch:  # the same parts, one after the other in this process
        train = train_agent._train_seeds_in_worker
        here = lambda parts, threads, *_: [train(part, threads, False, 0) for part in parts]  # noqa: E731
        patch.setattr(train_agent, "_train_in_workers", here)
        train_agent.run_many(many(tmp_path / "whole", *words))
    assert workers == []

    Path("undisturbed").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(train_agent, "stop_on_signals", lambda: nullcontext(Stop()))
        stopped = train_agent.run_many(many(tmp_path / "stopped", *words))
    assert len(workers) == 2 and stopped.interrupted and [result.seed for result in stopped.results] == [0, 2]
    for result in stopped.results:
        assert 45 <= result.steps < 80 and RunFolder.open(result.run).checkpoints.latest().step == result.steps
    assert list(stopped.errors) == [1] and is_user_error(stopped.errors[1]) and "signal 9" in str(stopped.errors[1])
    assert "seeds 1: a worker process" in caplog.text

    Path("undisturbed").touch()
    caplog.clear()
    capfd.readouterr()
    assert main(["train-agent", *WORDS, "seeds=3", "run_dir=stopped", *words, "--resume"]) == 0
    assert len(workers) == 4 and not any(worker.process.is_alive() for worker in workers)
    said = capfd.readouterr()
    assert "\n".join([*said, caplog.text]).count("the spec of InvertedPendulum-v5") == 1  # and not once a process
    for bar in ("seeds 0 2 100%, return=", "seed 1 100%"):
        assert f"InvertedPendulum-v5 rpp, {bar}" in said.err
    for seed in range(3):
        one, other = (tmp_path / name / f"seed{seed}" for name in ("whole", "stopped"))
        assert RunFolder.open(other).result()["steps"] == 80
        assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
        policies = [torch.load(run / "policy.pt", weights_only=True) for run in (one, other)]
        assert all(torch.equal(value, policies[1][name]) for name, value in policies[0].items())
