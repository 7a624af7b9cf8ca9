"""Tables of docs/results are those of the raw data beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import run_code

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CODE = """
import runpy, sys
script = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("page", "script", "words"),
    [
        ("dynamics.md", "symmetry_levels.py", ["inertia.json"]),
        ("dynamics.md", "symmetry_levels.py", ["pendulum.json"]),
        ("dynamics.md", "selection.py", ["inertia_selection.json"]),
        ("dynamics.md", "selection.py", ["pendulum_selection.json"]),
        ("dynamics.md", "batches.py", ["pendulum_batches.json"]),
        ("dynamics.md", "hidden_layers.py", ["pendulum_layers.json", "wind.json"]),
        ("dynamics.md", "symmetry_levels.py", ["rollouts.json"]),
        ("dynamics.md", "rollouts.py", ["rollouts.json"]),
        ("dynamics.md", "sweeps.py", ["wind", "wind.json", "--out", "figure.png"]),
        ("dynamics.md", "sweeps.py", ["wind", "wind_fresh_seeds.json", "--out", "figure.png"]),
        ("dynamics.md", "sweeps.py", ["data", "data.json", "--out", "figure.png"]),
        ("dynamics.md", "learned_variances.py", ["learned_variances.json"]),
        ("dynamics.md", "learned_variances.py", ["learned_variances_fresh.json"]),
        ("dynamics.md", "learned_variances.py", ["learned_variances_ode.json"]),
        ("dynamics.md", "learned_variances.py", ["learned_variances_ode_noise.json"]),
        ("dynamics.md", "learned_variances.py", ["learned_variances_ode_noise_11.json"]),
        ("rl.md", "learning_curves.py", ["learning_curves.json"]),
        ("images.md", "images.py", ["images.json"]),
        ("images.md", "images.py", ["images_warm_up.json"]),
        ("images.md", "images.py", ["images_falling.json"]),
        ("images.md", "images.py", ["images_short.json"]),
        ("images.md", "groups.py", ["groups.json"]),
        (
            "../evidence/prior_or_architecture.md",
            "../evidence/prior_or_architecture.py",
            ["../evidence/prior_or_architecture.json"],
        ),
        ("images.md", "tables.py", ["images_tables_selection.json", "images_tables.json"]),
        ("transition.md", "transition.py", ["transition.json"]),
    ],
)
def test_tables_are_those_of_the_raw_data(page, script, words, tmp_path):
    at = [str(RESULTS / word) if word.endswith(".json") else word for word in words]
    run_code(CODE, str(RESULTS / script), *at, folder=tmp_path)
    rows = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("| ") and "---" not in line]
    shown = (RESULTS / page).read_text(encoding="utf-8").splitlines()
    assert len(rows) >= 5
    assert [row for row in rows if row not in shown] == []
