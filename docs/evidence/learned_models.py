"""Agents on learned models: `python docs/evidence/learned_models.py RUNS...`; section 26 of `protocol.md` has the settings.

Reads the folders of single seeds, whose arms differ in the transition model alone, and writes `learned_models.json` (each
seed's mean return over training and its returns at all evaluations) and prints the table with its tests. Arms with fewer than
two seeds that have come to the end are left out. Without RUNS it reads the file and does the rest again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from evidence import holm
from gather import write_rows
from scipy import stats

from rppdyn.runs import RunFolder
from rppdyn.runs.folder import read_metrics, series

DATA = Path(__file__).with_suffix(".json")
NAMES = {"emlp": "strict", "mlp": "plain", "rpp": "relaxed"}
RELAXED, OTHERS = "relaxed", ("strict", "plain")
Row = dict[str, Any]


def rows_of(paths: list[Path]) -> list[Row]:
    """A row for each cell and model; a value is a seed's mean return over all evaluations but the first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for path in paths:
        folder = RunFolder.open(path)
        config = folder.config()
        steps, returns = series(read_metrics(folder.metrics.path), "eval/return_mean")
        if steps[-1] < config["total_steps"]:
            print(f"{path}: at step {int(steps[-1])} of {config['total_steps']}; left out")
            continue
        model, wind = config["agent"]["imagination"], config["env"]["kwargs"]["wind"]
        cell = f"{config['env']['id']}, {config['env']['symmetry']}, wind {wind:g}, {config['total_steps']} steps"
        cell += f", real {model['real_ratio']:g}"
        commit = ((folder.result() or {}).get("provenance", {}).get("commit") or "")[:7]
        groups.setdefault((cell, NAMES[model["kind"]]), []).append({
            "seed": config["seed"], "value": float(np.mean(returns[1:])), "steps": [int(step) for step in steps],
            "returns": [round(float(value), 1) for value in returns], "commit": commit,
        })  # fmt: skip
    rows = []
    for (cell, arm), runs in sorted(groups.items()):
        runs.sort(key=lambda run: run["seed"])
        if len(runs) > 1:
            rows.append({
                "cell": cell, "arm": arm, "seeds": [run["seed"] for run in runs],
                "values": [float(f"{run['value']:.5g}") for run in runs], "steps": runs[0]["steps"],
                "returns": [run["returns"] for run in runs], "commit": " ".join(sorted({run["commit"] for run in runs})),
            })  # fmt: skip
    return rows


def table(rows: list[Row]) -> str:
    """The rows as Markdown; p-values are of exact rank tests of relaxed against the others, two-sided, by Holm in a cell."""
    lines = [
        "| cell | model | mean over training | last | seeds | p, relaxed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        here = {row["arm"]: row for row in rows if row["cell"] == cell}
        others = [arm for arm in OTHERS if arm in here and RELAXED in here]
        ps = [
            float(stats.mannwhitneyu(here[RELAXED]["values"], here[arm]["values"], method="exact").pvalue)
            for arm in others
        ]
        corrected = dict(zip(others, holm(ps), strict=True))
        for arm, row in sorted(here.items(), key=lambda one: -np.mean(one[1]["values"])):
            values, last = np.array(row["values"]), np.array(row["returns"])[:, -1]
            p = f"{corrected[arm]:.2g}" if arm in corrected else "–"
            lines.append(
                f"| {cell} | {arm} | {values.mean():.1f} ± {values.std(ddof=1):.1f} | {last.mean():.0f} | {len(values)} | {p} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Read the runs, write the file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    parser.add_argument("--json", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.runs:
        write_rows(arguments.json, rows_of(arguments.runs))
    print(table(json.loads(arguments.json.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
