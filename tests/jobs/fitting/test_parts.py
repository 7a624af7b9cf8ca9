"""Members whose gradients several processes take are those of one stack."""

from __future__ import annotations

import shutil

import pytest
import torch

from rppdyn.jobs import fit_dynamics
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, workers
from rppdyn.runs.workers import Worker

WORDS = ("task=pendulum", "task.train=40", "task.validation=4", "task.test=4", "task.horizon=1", "seeds=3",
         "model.hidden=8", "model.num_layers=1", "optimiser.batch_size=20", "optimiser.epochs=2", "evaluation.every=1",
         "evaluation.states=10", "rollout.trajectories=1", "rollout.method=rk4", "checkpoint_every=1", "compile=false",
         "device=cpu")  # fmt: skip


@pytest.fixture
def two_processors(monkeypatch):
    monkeypatch.setattr(workers, "processors", lambda: 2)
    monkeypatch.setattr(fit_dynamics, "PAYS", 4)  # steps, all that these fits have


def fit(folder, *words, resume=False):
    config = compose.composed("fit_dynamics", [*WORDS, f"run_dir={folder}", *words])
    return fit_dynamics.run(config, resume=resume)


def weights(folder):
    return torch.load(folder / "members.pt", weights_only=True)


def test_two_processes_give_what_one_gives_and_go_on_where_it_stopped(tmp_path, monkeypatch, two_processors):
    """Three members by two workers, bit by bit: weights, variances, metrics on the way, and what is measured in the end."""
    made = []
    monkeypatch.setattr(fit_dynamics, "Worker", lambda: made.append(Worker()) or made[-1])
    words = (
        "model=rpp_hnn",
        "objective=marginal_likelihood",
        "marginal_likelihood.burn_in=1",
        "marginal_likelihood.data=2",
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = fit(tmp_path / "alone", *words)
    assert made == []

    shutil.copytree(tmp_path / "alone", tmp_path / "beside")
    folder = RunFolder(tmp_path / "beside")
    folder.result_file.unlink()
    (tmp_path / "beside" / "members.pt").unlink()
    folder.checkpoints.discard_after(2)
    assert folder.checkpoints.latest().step == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    beside = fit(tmp_path / "beside", *words, resume=True)
    assert len(made) == 2 and all(worker._process.returncode is not None for worker in made)
    assert beside.test == alone.test and beside.pathways == alone.pathways and beside.metrics == alone.metrics
    found, expected = weights(tmp_path / "beside"), weights(tmp_path / "alone")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_short_fits_and_single_members_have_no_workers(two_processors, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    count = lambda *words: fit_dynamics._processes(compose.composed("fit_dynamics", [*WORDS, *words]))  # noqa: E731
    assert [count(), count("seeds=1"), count("optimiser.epochs=1"), count("threads=1")] == [2, 0, 0, 0]
