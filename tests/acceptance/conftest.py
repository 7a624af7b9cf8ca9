"""Whole jobs, run through the command line in processes of their own, with settings that take seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import job

SMALL = ("env=InvertedPendulum-v5", "device=cpu", "model.hidden=16", "agent.learning_starts=50", "agent.batch_size=32",
         "agent.buffer_size=1000", "evaluation.every=100", "evaluation.episodes=2", "evaluation.states=64",
         "checkpoint_every=50")  # fmt: skip


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The variables that jobs run with: one thread, and a cache of bases of their own."""
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "OMP_NUM_THREADS": "1", "RPPDYN_CACHE_DIR": str(cache), "PYTHONWARNINGS": "default"}


@pytest.fixture(scope="session")
def start(environment, tmp_path_factory):
    """Start `rppdyn` with some words in a folder; returns the process."""
    return lambda *words, cwd: job(words, cwd, environment, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="session")
def rppdyn(start):
    """Run `rppdyn` to its end; returns exit status, standard output, standard error."""

    def run(*words: str, cwd: Path) -> tuple[int, str, str]:
        process = start(*words, cwd=cwd)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    return run


@pytest.fixture(scope="session")
def fresh(environment):
    """As `rppdyn`, in an interpreter of its own, which is slower."""

    def run(*words: str, cwd: Path) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "rppdyn.cli", *words]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def trained(rppdyn, tmp_path_factory):
    """A finished run, the folder it was started in, and what it printed."""
    cwd = tmp_path_factory.mktemp("trained")
    status, out, err = rppdyn("train-agent", *SMALL, "total_steps=230", cwd=cwd)
    assert status == 0, err
    (config,) = cwd.glob("runs/train-agent/InvertedPendulum-v5/rpp/seed0-*/config.yaml")
    return config.parent, cwd, out, err


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Path:
    """A run of twenty steps."""
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ["device=cpu", "model.hidden=4", "agent.learning_starts=10", "agent.batch_size=4", "agent.buffer_size=20",
             "evaluation.every=100", "evaluation.episodes=1", "evaluation.states=4", "total_steps=20",
             "checkpoint_every=20", f"run_dir={folder}"]  # fmt: skip
    from rppdyn.jobs import train_agent
    from rppdyn.jobs.config import compose

    train_agent.run(compose.composed("train_agent", words))
    return folder
