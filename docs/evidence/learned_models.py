"""Agents on learned models: `python docs/evidence/learned_models.py RUNS...`; section 26 of `protocol.md` has the settings.

Reads the folders of single seeds, whose arms differ in the transition model alone, adds them to `learned_models.json` and
prints the table with its tests. Without RUNS it reads the file and does the rest again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from agent_runs import Row, by_cell, cell_of, rank_tests, read_rows, rows_of

DATA = Path(__file__).with_suffix(".json")
NAMES = {"emlp": "strict", "mlp": "plain", "rpp": "relaxed"}
RELAXED, OTHERS = "relaxed", ("strict", "plain")


def model_of(config: dict[str, Any]) -> str:
    """Name an arm by its transition model."""
    return NAMES[config["agent"]["imagination"]["kind"]]


def share_of(config: dict[str, Any]) -> str:
    """Name a cell by its task and by the part of each batch that is real."""
    return f"{cell_of(config)}, real {config['agent']['imagination']['real_ratio']:g}"


def table(rows: list[Row]) -> str:
    """The rows as Markdown; p-values are of exact rank tests of relaxed against the others, two-sided, by Holm in a cell."""
    lines = [
        "| cell | model | mean over training | last | seeds | p, relaxed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for cell, here in by_cell(rows).items():
        others = [arm for arm in OTHERS if arm in here and RELAXED in here]
        corrected = dict(zip(others, rank_tests(here, [(RELAXED, arm) for arm in others]), strict=True))
        for arm, row in sorted(here.items(), key=lambda one: -np.mean(one[1]["values"])):
            values, last = np.array(row["values"]), np.array(row["returns"])[:, -1]
            p = f"{corrected[arm]:.2g}" if arm in corrected else "–"
            spread = f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
            lines.append(f"| {cell} | {arm} | {spread} | {last.mean():.0f} | {len(values)} | {p} |")
    return "\n".join(lines)


def main() -> None:
    """Read the runs, write the file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    print(table(read_rows(DATA, rows_of(parser.parse_args().runs, share_of, model_of))))


if __name__ == "__main__":
    main()
