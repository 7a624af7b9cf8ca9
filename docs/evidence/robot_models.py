"""Transition models of six robots: `python docs/evidence/robot_models.py --json FILE`; with `--tables` the table alone.

Section 28 of `protocol.md` has the question and the settings. Each of five buffers of a robot is fitted by two seeds in every
arm. An arm of a buffer is written when it is measured, and one that the file holds is passed over, so that a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from certified import ARMS as CERTIFIED_ARMS
from certified import ROBOTS, dataset, fit
from gather import write_rows

BUFFERS, FITS = range(2100, 2105), 2
ARMS = {
    "plain": CERTIFIED_ARMS["mlp"],
    "plain, mirrored data": ["model=mlp", "task.augment=true"],
    "strict": CERTIFIED_ARMS["strict"],
    "strict, larger": ["model=emlp", "model.hidden=112"],
    **{arm: CERTIFIED_ARMS[arm] for arm in ("narrow", "certified", "learned")},
    "control": CERTIFIED_ARMS["wide"],
}
RELAXED, METRIC = ("narrow", "certified", "learned"), "test/error_10"
CELLS = [robot for robot in ROBOTS if robot != "Walker2d, weak"]
Row = dict[str, Any]


def run(file: Path, robots: list[str]) -> None:
    """Fit what the file has not yet, buffer by buffer, so that each is complete before the next."""
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for buffer in BUFFERS:
        for robot in robots:
            name, certificate = dataset(robot, buffer)
            for arm, words in ARMS.items():
                if any((row["cell"], row["arm"], row["buffer"]) == (robot, arm, buffer) for row in rows):
                    continue
                found = fit(name, words, [10 * buffer + seed for seed in range(FITS)])
                rows.append({
                    "cell": robot, "arm": arm, "buffer": buffer, "values": [float(f"{v:.5g}") for v in found[METRIC]],
                    "equivariance": [float(f"{v:.3g}") for v in found["equivariance/error"]],
                    "defect": float(f"{certificate['defect']:.3g}"), "variance": found["variance"],
                })  # fmt: skip
                write_rows(file, rows)
                print(buffer, robot, arm, rows[-1]["values"], flush=True)


def joined(rows: list[Row]) -> list[Row]:
    """A row for each robot and arm, with the values of all buffers, each the geometric mean of its fits."""
    arms: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        arms.setdefault((row["cell"], row["arm"]), []).append(row)
    return [
        {"cell": cell, "arm": arm, "seeds": [row["buffer"] for row in own],
         "values": [float(np.exp(np.log(row["values"]).mean())) for row in own]}
        for (cell, arm), own in arms.items()
    ]  # fmt: skip


def table(rows: list[Row]) -> str:
    """The mean error of each arm in each cell, in per cent, as Markdown."""
    lines = ["| 10-step error, % | defect | " + " | ".join(ARMS) + " |", "| --- | ---: |" + " ---: |" * len(ARMS)]
    for robot in dict.fromkeys(row["cell"] for row in rows):
        here = {row["arm"]: row["values"] for row in joined(rows) if row["cell"] == robot}
        defect = max(row["defect"] for row in rows if row["cell"] == robot)
        means = [f"{100 * np.mean(here[arm]):.1f}" if arm in here else "–" for arm in ARMS]
        lines.append(f"| {robot} | {f'{defect:.2g}' if defect else 'exact'} | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--robots", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not arguments.tables:
        run(arguments.json, arguments.robots)
    print(table(json.loads(arguments.json.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
