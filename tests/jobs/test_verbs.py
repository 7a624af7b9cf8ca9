"""Every verb is a job, has a page, and is in the help."""

from __future__ import annotations

import importlib
import inspect
import logging
from copy import copy
from pathlib import Path

import pytest

from rppdyn import jobs
from rppdyn.cli import VERBS, main

DOCS = Path(__file__).parents[2] / "docs" / "jobs"
NO_VERBS = {"from-a-log", "own-data", "own-robot", "own-rows", "sweeps", "trust", "your-environment"}
SHARED = {"building", "fit", "loading", "measure", "own_data", "results", "targets"}
TOGETHER = {"evaluate-agent": "playing.evaluate", "collect": "playing.collect", "audit": "certify.audit"}
OF_OTHER_TASKS = {"fit_trajectories"}  # of fit-dynamics, with data=


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_a_job_with_a_page(verb):
    module, _, name = TOGETHER.get(verb, f"{verb.replace('-', '_')}.run").partition(".")
    run = getattr(importlib.import_module(f"rppdyn.jobs.{module}"), name)
    assert inspect.signature(run).return_annotation not in (None, "None")
    assert (DOCS / f"{verb}.md").read_text().startswith(f"# rppdyn {verb}\n")


def test_a_file_beside_the_rooms_is_a_verb_or_what_verbs_share():
    files = {path.stem for path in Path(jobs.__file__).parent.glob("*.py")} - {"__init__"}
    verbs = {verb.replace("-", "_") for verb in VERBS if verb not in TOGETHER}
    assert files == verbs | {name.partition(".")[0] for name in TOGETHER.values()} | OF_OTHER_TASKS | SHARED


def test_names_in_a_verbs_help_keep_their_case(capsys):
    """They read "hamiltonian and neural-ode", "onnx" and "html"."""
    for verb, words in (("fit-dynamics", "Hamiltonian"), ("export", "ONNX"), ("report", "HTML")):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert words in capsys.readouterr().out.split("options:")[0]


def test_every_page_is_of_a_verb():
    assert {path.stem for path in DOCS.glob("*.md")} == {*VERBS, *NO_VERBS}


TINY = ["env=InvertedPendulum-v5", "env.actuator_scale.slider=0.5", "total_steps=4", "model.hidden=8",
        "evaluation.episodes=1", "evaluation.states=4", "device=cpu"]  # fmt: skip


def test_a_flag_that_is_a_fraction_is_read_as_one(capsys):
    assert main(["certify", "InvertedPendulum-v5", "--states", "20", "--control-scale", "0.5"]) == 0
    capsys.readouterr()
    for word in ("0", "nan", "half"):
        assert main(["certify", "InvertedPendulum-v5", "--control-scale", word]) == 2
        assert f"--control-scale {word}: must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "runs"), [(["run_dir=run"], 1), (["seeds=2", "threads=1"], 2), (["seed=0,1", "--multirun"], 2)]
)
def test_a_warning_is_said_once_and_each_run_says_that_it_goes_on(how, runs, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    for name in ("handlers", "level"):  # Hydra's own of a sweep would write to this test's stderr in later tests
        monkeypatch.setattr(logging.root, name, copy(getattr(logging.root, name)))
    assert main(["train-agent", *TINY, *how]) == 0
    assert "\n".join([*capfd.readouterr(), caplog.text]).count("the spec of InvertedPendulum-v5") == 1
    assert main(["train-agent", *TINY, *how, "--resume", "total_steps=6"]) == 0
    words = "goes on from step 4 with the settings of its config.yaml, total_steps=6 in place of 4\n"
    assert capfd.readouterr().err.count(words) == runs
