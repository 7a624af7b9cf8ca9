"""The table of all robots' symmetries, of one robot here."""

from __future__ import annotations

import json
from pathlib import Path

from rppdyn import envs
from rppdyn.envs.certification import survey


def test_a_survey_finds_what_the_package_states(tmp_path):
    page, numbers, verdicts = (tmp_path / name for name in ("page.md", "numbers.json", "verdicts.json"))
    files = ["--out", str(page), "--json", str(numbers), "--verdicts", str(verdicts)]
    assert survey.main([*files, "--only", "InvertedPendulum", "--states", "40", "--jobs", "1"]) == 0
    (row,) = json.loads(numbers.read_text())["rows"]
    assert (row["robot"], row["symmetry"], row["verdict"]) == ("InvertedPendulum-v5", "left-right", "exact")
    assert row["state"][1] < 1e-12 and "hinge" in row["spoiled_by"][0]
    assert "| InvertedPendulum-v5 | left-right | **exact** |" in page.read_text()
    stated = json.loads((Path(envs.__file__).parent / "verdicts.json").read_text())
    found = json.loads(verdicts.read_text())
    assert found and found.items() <= stated.items()
