"""The table of all robots' symmetries, of one robot here."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import survey
from rppdyn import envs


def test_a_survey_finds_what_the_package_states(tmp_path):
    page, numbers, verdicts = (tmp_path / name for name in ("page.md", "numbers.json", "verdicts.json"))
    files = ["--out", str(page), "--json", str(numbers), "--verdicts", str(verdicts)]
    swept = tmp_path / "asymmetries.json"
    plants = {
        "jnt_axis[0, 1]": "named",
        "jnt_axis[1, 1]": "lost",
        "vis[0]": "without effect",
        "jnt_type[0]": "reference",
    }
    swept.write_text(json.dumps({"settings": {"numbers": 2}, "robots": {"mite": {"planned": 9, "plants": plants}}}))
    files += ["--asymmetries", str(swept)]
    assert survey.main([*files, "--only", "InvertedPendulum", "--states", "20", "--jobs", "1"]) == 0
    (row,) = json.loads(numbers.read_text())["rows"]
    assert (row["robot"], row["symmetry"], row["verdict"]) == ("InvertedPendulum-v5", "left-right", "exact")
    assert row["state"][1] < 1e-12 and "hinge" in row["spoiled_by"][0]
    text = " ".join(page.read_text().split())
    assert "| InvertedPendulum-v5 | left-right | **exact** |" in text
    assert "2 random numbers of each array" in text and "so far: mite 4 of 9" in text and "Of the other 3" in text
    assert "named 1; in 1 it found no such symmetry any more, 0 it refused, and 1 are without" in text
    assert "Missed: none." in text
    stated = json.loads((Path(envs.__file__).parent / "verdicts.json").read_text())
    found = json.loads(verdicts.read_text())
    assert found and found.items() <= stated.items()
