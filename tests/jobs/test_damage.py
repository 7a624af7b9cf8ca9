"""A finished run with a damaged file: each verb works, if need be from an older checkpoint, or says why not in one line."""

from __future__ import annotations

import random
import shutil

import pytest
from damage import damaged_file

from rppdyn.cli import main

RUNS = {
    "train-agent": ("device=cpu", "model.hidden=8", "agent.learning_starts=20", "agent.batch_size=8", "agent.buffer_size=100",
                    "evaluation.every=20", "evaluation.episodes=1", "evaluation.states=16", "checkpoint_every=20",
                    "total_steps=40"),
    "fit-regression": ("task=inertia", "model.hidden=8", "model.num_layers=1", "task.train=20", "task.validation=10",
                       "task.test=10", "optimiser.epochs=2", "evaluation.every=1", "evaluation.states=10",
                       "checkpoint_every=1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of each verb."""
    root = tmp_path_factory.mktemp("finished")
    for verb, words in RUNS.items():
        assert main([verb, *words, f"run_dir={root / verb}"]) == 0
        shutil.rmtree(root / verb / "events")
    return root


@pytest.fixture
def copy_of(finished, tmp_path):
    return lambda verb: shutil.copytree(finished / verb, tmp_path / "run")


def ends_in_one_line(words, capsys):
    """Whether a command line ends well, or in one line; its status."""
    capsys.readouterr()
    status = main(list(map(str, words)))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rppdyn: error: ")]
    assert status in (0, 2) and len(said) == (status == 2), said
    return status


@pytest.mark.parametrize("verb", RUNS)
@pytest.mark.parametrize("seed", range(4))
def test_any_damage_ends_well_or_in_one_line(copy_of, tmp_path, capsys, verb, seed):
    """More of these, by thousands, are run by hand when what reads runs is changed."""
    rng, run = random.Random(seed), copy_of(verb)
    commands = {
        "resume": [verb, "--resume", run],
        "report": ["report", run, "--out", tmp_path / "page.html"],
        "figure": ["figure", run, "--out", tmp_path / "figure.png"],
        "evaluate": ["evaluate-agent", run, "--episodes", 1] if verb == "train-agent" else ["equivariance", run],
    }
    if rng.random() < 0.5:
        (run / "result.json").unlink()
    print(damaged_file(run, rng))
    ends_in_one_line(commands[rng.choice(sorted(commands))], capsys)


@pytest.mark.parametrize("verb", RUNS)
def test_a_damaged_end_of_metrics_and_a_damaged_manifest_are_survived(copy_of, tmp_path, capsys, verb):
    run = copy_of(verb)
    (run / "result.json").unlink()
    manifest = max((run / "checkpoints").glob("step-*")) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("sha256", "sha25v", 1))
    records = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(records + b"\xff")
    for words in (["report", run, "--out", tmp_path / "page.html"], ["figure", run, "--out", tmp_path / "figure.png"]):
        assert ends_in_one_line(words, capsys) == 0
    assert ends_in_one_line([verb, "--resume", run], capsys) == 0
    assert (run / "metrics.jsonl").read_bytes() == records
