"""Transition models of six robots: `python docs/evidence/robot_models.py`; with `--tables` nothing is fitted.

Section 28 of `protocol.md` has the question and the settings. Each of five buffers of a robot is fitted by two seeds in every
arm, and counts as one value, the geometric mean of the two. An arm of a buffer is written when it is measured, and one that
is there is passed over, so that a run that was stopped goes on. Writes the table of `docs/results/transition.md`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from agent_runs import by_cell, read_rows
from certified import ARMS as CERTIFIED_ARMS
from certified import ROBOTS, dataset, fit
from evidence import measure, write_rows, write_table

HERE = Path(__file__).parent
DATA = HERE / "robot_models.json"
PAGE = HERE.parent / "results" / "transition.md"
MARK = "<!-- table: made by `docs/evidence/robot_models.py` -->"
BUFFERS, FITS = range(2100, 2105), 2
ARMS = {
    "plain": CERTIFIED_ARMS["mlp"],
    "plain, mirrored data": ["model=mlp", "task.augment=true"],
    "strict": CERTIFIED_ARMS["strict"],
    "strict, larger": ["model=emlp", "model.hidden=112"],
    "control": CERTIFIED_ARMS["wide"],
    **{arm: CERTIFIED_ARMS[arm] for arm in ("narrow", "certified", "learned")},
}
RELAXED, METRIC = ("narrow", "certified", "learned"), "test/error_10"
CELLS = [robot for robot in ROBOTS if robot != "Walker2d, weak"]
PAIRED = {"better": "lower", "statistic": "paired"}
Row = dict[str, Any]


def run(robots: list[str]) -> None:
    """Fit what the raw data have not yet, buffer by buffer, so that each is complete before the next."""
    rows: list[Row] = read_rows(DATA)
    for buffer in BUFFERS:
        for robot in robots:
            name, certificate = dataset(robot, buffer)
            for arm, words in ARMS.items():
                own = by_cell(rows).get(robot, {}).get(arm)
                if own is None:
                    own = {"cell": robot, "arm": arm, "seeds": [], "values": [], "fits": [], "equivariance": [],
                           "defects": [], "variances": []}  # fmt: skip
                    rows.append(own)
                if buffer in own["seeds"]:
                    continue
                found = fit(name, words, [10 * buffer + seed for seed in range(FITS)])
                own["seeds"].append(buffer)
                own["values"].append(float(f"{np.exp(np.log(found[METRIC]).mean()):.5g}"))
                own["fits"].append([float(f"{value:.5g}") for value in found[METRIC]])
                own["equivariance"].append([float(f"{value:.3g}") for value in found["equivariance/error"]])
                own["defects"].append(float(f"{certificate['defect']:.3g}"))
                own["variances"].append(found["variance"])
                write_rows(DATA, rows)
                print(buffer, robot, arm, own["fits"][-1], flush=True)


def table(rows: list[Row]) -> str:
    """Mean errors of each robot's arms, in per cent, and the best relaxed arm's ratio to the best other, as Markdown."""
    lines = [
        f"| error after 10 steps, % | defect | buffers | {' | '.join(ARMS)} | best relaxed / best other |",
        f"| --- |{' ---: |' * (len(ARMS) + 2)} --- |",
    ]
    for robot, arms in by_cell(rows).items():
        if any(arms.get(arm, {}).get("seeds") != arms["plain"]["seeds"] for arm in ARMS):
            continue  # a buffer that is not complete
        errors = {arm: 100 * np.mean(arms[arm]["values"]) for arm in ARMS}
        best, others = min(RELAXED, key=errors.__getitem__), [arm for arm in ARMS if arm not in RELAXED]
        found = measure({"id": robot, "data": DATA.name, "cell": robot, "arm": best, "against": others} | PAIRED)
        ratio = f"{best} / {found['best']}: {found['ratio']:.2f}"
        if found["interval"]:
            ratio += " [{:.2f}, {:.2f}]".format(*found["interval"])
        defect = max(arms["plain"]["defects"])
        means = " | ".join(f"{errors[arm]:.1f}" for arm in ARMS)
        buffers = len(arms["plain"]["seeds"])
        lines.append(f"| {robot} | {f'{defect:.2g}' if defect else 'exact'} | {buffers} | {means} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not arguments.tables:
        run(arguments.robots)
    rows = read_rows(DATA)
    write_table(PAGE, MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
