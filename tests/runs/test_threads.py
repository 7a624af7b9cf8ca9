"""Threads of torch while a job runs."""

from __future__ import annotations

import pytest
import torch

from rppdyn.cli import main
from rppdyn.runs import workers
from rppdyn.runs.workers import processors, torch_threads


def test_a_job_has_the_threads_it_asks_for_and_no_more_than_there_are_processors(monkeypatch):
    before = torch.get_num_threads()
    with torch_threads(1000):
        assert torch.get_num_threads() == processors()
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 3)
    for asked, given in ((1, 1), (2, 2), (3, 3), (1000, 3)):
        with torch_threads(asked):
            assert torch.get_num_threads() == given
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"cpu.max": "max 100000\n"}, 6),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "900000 100000\n"}, 6),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({}, 6),
    ],
)
def test_processors_are_those_of_a_container(files, count, monkeypatch, tmp_path):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(6))
    monkeypatch.setattr(workers, "CGROUPS", tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processors() == count


@pytest.mark.parametrize(
    ("variable", "asked", "count"),
    [("", None, 6), ("2", None, 2), ("99", None, 6), ("0", None, 1), ("1", 4, 4), ("", 9, 6)],
)
def test_processes_are_as_many_as_processors_or_as_asked_for(variable, asked, count, monkeypatch):
    monkeypatch.setattr(workers, "processors", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert workers.processes(asked) == count


AGENT = ["env=InvertedPendulum-v5", "total_steps=24", "agent.learning_starts=20", "agent.batch_size=8", "model.hidden=8",
         "evaluation.episodes=1", "evaluation.states=4", "device=cpu", "run_dir=run"]  # fmt: skip
FIT = ["task=inertia", "model.hidden=8", "task.train=40", "task.validation=20", "task.test=20", "optimiser.epochs=1",
       "evaluation.states=4", "device=cpu", "run_dir=fit"]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("train-agent", *AGENT, "seeds=2"),
        ("fit-regression", *FIT, "seeds=3"),
        ("evaluate-agent", "pretrained:Reacher-v5", "--episodes", "2"),
    ],
    ids=["seeds", "fit", "evaluation"],
)
def test_jobs_have_one_thread_unless_they_are_told_otherwise(words, monkeypatch, tmp_path):
    """Two threads of one process wait for each other, on a busy machine ten times as long as one computes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "processors", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # seeds in this process
    threads, call = set(), torch.nn.Module.__call__

    def watched(self, *args, **kwargs):
        threads.add(torch.get_num_threads())
        return call(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", watched)
    with torch_threads(2):
        assert main(list(words)) == 0
        assert threads == {1} and torch.get_num_threads() == 2
