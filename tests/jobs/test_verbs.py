"""Every verb is a job, has a page, and is in the help."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from rppdyn import jobs
from rppdyn.cli import VERBS

DOCS = Path(__file__).parents[2] / "docs" / "jobs"
NO_VERBS = {"own-data", "own-robot", "own-rows", "sweeps", "trust", "your-environment"}
SHARED = {"plots", "results"}
OF_OTHER_TASKS = {"fit_trajectories"}  # of fit-dynamics, with data=


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_a_job_with_a_page(verb):
    module = importlib.import_module(f"rppdyn.jobs.{verb.replace('-', '_')}")
    assert inspect.signature(module.run).return_annotation not in (None, "None")
    assert (DOCS / f"{verb}.md").read_text().startswith(f"# rppdyn {verb}\n")


def test_a_file_beside_the_rooms_is_a_verb_or_what_verbs_share():
    files = {path.stem for path in Path(jobs.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {verb.replace("-", "_") for verb in VERBS} | OF_OTHER_TASKS | SHARED


def test_every_page_is_of_a_verb():
    assert {path.stem for path in DOCS.glob("*.md")} == {*VERBS, *NO_VERBS}
