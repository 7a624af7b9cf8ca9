"""Transition models of six robots: `python docs/evidence/robot_models.py`; with `--tables` nothing is fitted.

Section 28 of `protocol.md` has the question and the settings. Each of five buffers of a robot is fitted by two seeds in every
arm, and counts as one value, the geometric mean of the two. An arm of a buffer is written when it is measured, and one that
is there is passed over, so that a run that was stopped goes on. Writes the table of `robot_models.md`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from agent_runs import by_cell, read_rows
from certified import ARMS as CERTIFIED_ARMS
from certified import ROBOTS, dataset, fit
from evidence import measure, write_rows, write_table

HERE = Path(__file__).parent
DATA = HERE / "robot_models.json"
PAGE = HERE / "robot_models.md"
MARK = "<!-- table: made by `docs/evidence/robot_models.py` -->"
BUFFERS, FITS = range(2100, 2105), 2
Arms = dict[str, list[str]]
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
Row = dict[str, Any]


def run(arms: dict[str, Arms], data: Path = DATA, buffers: Iterable[int] = BUFFERS, fits: int = FITS,
        cell: str = "{}", marks: Mapping[str, Row] | None = None) -> list[Row]:  # fmt: skip
    """Fit the arms of robots, of which the raw data have some, buffer by buffer, so that each is complete before the next.

    Args:
        cell: what a robot's rows are called.
        marks: what the rows of an arm hold besides.
    """
    rows: list[Row] = read_rows(data)
    for buffer in buffers:
        for robot in arms:
            name, certificate = dataset(robot, buffer)
            for arm, words in arms[robot].items():
                own = by_cell(rows).get(cell.format(robot), {}).get(arm)
                if own is None:
                    own = {"cell": cell.format(robot), "arm": arm, "seeds": [], "values": [], "fits": [], "equivariance": [],
                           "defects": [], "variances": []} | (marks or {}).get(arm, {})  # fmt: skip
                    rows.append(own)
                if buffer in own["seeds"]:
                    continue
                found = fit(name, words, [10 * buffer + seed for seed in range(fits)])
                own["seeds"].append(buffer)
                own["values"].append(float(f"{np.exp(np.log(found[METRIC]).mean()):.5g}"))
                own["fits"].append([float(f"{value:.5g}") for value in found[METRIC]])
                own["equivariance"].append([float(f"{value:.3g}") for value in found["equivariance/error"]])
                own["defects"].append(float(f"{certificate['defect']:.3g}"))
                own["variances"].append(found["variance"])
                write_rows(data, rows)
                print(buffer, robot, arm, own["fits"][-1], flush=True)
    return rows


def table(rows: list[Row], arms: Iterable[str] = tuple(ARMS), data: Path = DATA, cells: Iterable[str] = CELLS) -> str:
    """Mean errors of each robot's arms, in per cent, and the best relaxed arm's ratio to the best other, as Markdown."""
    lines = [
        f"| error after 10 steps, % | defect | buffers | {' | '.join(arms)} | best relaxed / best other |",
        f"| --- |{' ---: |' * (len([*arms]) + 2)} --- |",
    ]
    for robot in cells:
        own = by_cell(rows).get(robot, {})
        if any(own.get(arm, {}).get("seeds") != own.get("plain", {}).get("seeds") for arm in arms) or not own:
            continue  # a buffer that is not complete
        errors = {arm: 100 * np.mean(own[arm]["values"]) for arm in arms}
        best = min((arm for arm in arms if arm in RELAXED), key=errors.__getitem__)
        others = [arm for arm in arms if arm not in RELAXED]
        found = measure(
            {"id": robot, "data": data.name, "cell": robot, "arm": best, "against": others, "kind": "error"}
        )
        ratio = f"{best} / {found['best']}: {found['ratio']:.2f}"
        if found["interval"]:
            ratio += " [{:.2f}, {:.2f}]".format(*found["interval"])
        defect = max(own["plain"]["defects"])
        means = " | ".join(f"{errors[arm]:.1f}" for arm in arms)
        buffers = len(own["plain"]["seeds"])
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
        run({robot: ARMS for robot in arguments.robots})
    rows = read_rows(DATA)
    write_table(PAGE, MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
