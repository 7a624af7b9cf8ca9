"""Killed or stopped at any moment, a run goes on and ends as if nothing had happened."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
import torch

from rppdyn.cli import main

from .conftest import SMALL

STEPS = "total_steps=230"
# Wall-clock times, and where this process began counting steps per second.
CLOCKS = ("t", "elapsed", "episode_times", "time/fps", "time/time_elapsed", "_num_timesteps_at_start")


@pytest.fixture
def uninterrupted(trained):
    """A run of the same settings."""
    return trained[0]


def final_state(run: Path):
    return torch.load(max(run.glob("checkpoints/step-*")) / "agent.pt", weights_only=True)


def assert_identical(a, b, where="checkpoint"):
    """Bit-identical nested data, clocks aside."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a.keys() - set(CLOCKS):
            assert_identical(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_identical(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def assert_same_run(run: Path, reference: Path):
    assert (run / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()
    assert_identical(final_state(run), final_state(reference))
    policies = [torch.load(path / "policy.pt", weights_only=True) for path in (run, reference)]
    assert_identical(*policies, where="policy")


def wait_for(process, condition, seconds=120):
    """Until the condition holds or the process has ended; returns whether it is still running."""
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "the job took too long"
        time.sleep(0.002)
    return process.poll() is None


def test_killed_at_random_moments_it_ends_bit_identical(start, rppdyn, uninterrupted, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the moments: {seed}")
    moments = random.Random(seed)
    run = tmp_path / "run"
    words = ("train-agent", "--resume", *SMALL, STEPS, "run_dir=run")  # starts it, too
    for kill in range(2):
        process = start(*words, cwd=tmp_path)
        known = len(list(run.glob("checkpoints/step-*"))) and max(run.glob("checkpoints/step-*"))
        wait_for(
            process,
            lambda known=known: list(run.glob("checkpoints/step-*")) and max(run.glob("checkpoints/step-*")) != known,
        )
        time.sleep(moments.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert kill or not (run / "result.json").exists(), "the run was over before it was killed; make it longer"
    status, _, err = rppdyn(*words, cwd=tmp_path)
    assert status == 0, err
    assert_same_run(run, uninterrupted)


def test_an_interrupt_writes_a_checkpoint_and_says_how_to_go_on(
    start, rppdyn, uninterrupted, tmp_path, monkeypatch, capfd
):
    run = tmp_path / "run"
    process = start("train-agent", *SMALL, STEPS, "run_dir=run", cwd=tmp_path)
    assert wait_for(process, lambda: (run / "checkpoints").exists())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "rppdyn train-agent --resume run" in out
    assert "Traceback" not in err
    step = int(out.split("seed 0: ")[1].split()[0])
    assert (run / "checkpoints" / f"step-{step:012d}").is_dir()

    # The unfinished run can be looked at, and what differs from it is refused by name.
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate-agent", "run", "--episodes", "1"]) == 0
    out, err = capfd.readouterr()
    assert err == "" and f"checkpoint at step {step}" in out
    assert main(["train-agent", "--resume", "run", "agent.gamma=0.9"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "agent.gamma=0.99, not 0.9" in err

    status, out, err = rppdyn("train-agent", "--resume", "run", cwd=tmp_path)
    assert status == 0, err
    assert_same_run(run, uninterrupted)
