"""Transition models at each arm's own rate: `python docs/evidence/robot_rates.py`; with `--tables` nothing is fitted.

Sections 33 and 35 of `protocol.md` have the questions and the settings. An arm's rate is chosen on a buffer that is not
reported, and each of five others is fitted once at it. A run that was stopped goes on. Writes the second table of
`docs/results/transition.md`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from agent_runs import by_cell, read_rows
from evidence import write_rows, write_table
from robot_models import ARMS, PAGE, Arms, Row, run, table

DATA = Path(__file__).parent / "robot_rates.json"
MARK = "<!-- table: made by `docs/evidence/robot_rates.py` -->"
ROBOTS = ("Swimmer", "Hopper", "HalfCheetah", "Ant", "Walker2d")
TRIED = {
    arm: ARMS[arm] for arm in ("plain", "plain, mirrored data", "strict, larger", "control", "certified", "learned")
}
CELLS = (*ROBOTS, "HalfCheetah, again")
RATES, LARGEST = (2e-3, 5e-3, 1.25e-2), 3e-2  # the largest where the largest of the others is the best
CHOSEN_ON, BUFFERS = [2110], range(2111, 2116)
AGAIN, AGAIN_CELL = range(2121, 2131), "{}, again"  # section 35
LONGER = ["optimiser.epochs=150", "evaluation.every=150", "checkpoint_every=150"]


def at_rates(arms: Iterable[str], rates: Iterable[float]) -> Arms:
    """Each arm at each rate."""
    return {
        f"{arm}, rate {rate:g}": [*TRIED[arm], *LONGER, f"optimiser.learning_rate={rate:g}"]
        for arm in arms for rate in rates
    }  # fmt: skip


def best_rates(rows: list[Row], robot: str) -> dict[str, float]:
    """The rate of each arm at which its error on the first buffer is least."""
    found = by_cell(rows)[f"{robot}, choice"]
    best = {}
    for arm in TRIED:
        tried = {name: row["values"] for name, row in found.items() if name.rpartition(", rate ")[0] == arm}
        best[arm] = float(min(tried, key=tried.__getitem__).rpartition(" ")[2])
    return best


def choose(robot: str) -> dict[str, float]:
    """Each arm's rate."""
    best = best_rates(run({robot: at_rates(TRIED, RATES)}, DATA, CHOSEN_ON, 1, "{}, choice"), robot)
    at_edge = [arm for arm, rate in best.items() if rate >= RATES[-1]]
    return best_rates(run({robot: at_rates(at_edge, [LARGEST])}, DATA, CHOSEN_ON, 1, "{}, choice"), robot)


def report(robot: str, buffers: Iterable[int] = BUFFERS, cell: str = "{}") -> None:
    """Fit each arm at its own rate; what was fitted at another is dropped."""
    best = choose(robot)
    rows, name = read_rows(DATA), cell.format(robot)
    write_rows(DATA, [row for row in rows if row["cell"] != name or row.get("rate") == best[row["arm"]]])
    chosen = {arm: next(iter(at_rates([arm], [rate]).values())) for arm, rate in best.items()}
    run({robot: chosen}, DATA, buffers, 1, cell, marks={arm: {"rate": rate} for arm, rate in best.items()})


def main() -> None:
    """Choose rates, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=ROBOTS)
    parser.add_argument("--again", action="store_true", help="fit ten other buffers, at the rates that were chosen")
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for robot in () if arguments.tables else arguments.robots:
        report(robot, *((AGAIN, AGAIN_CELL) if arguments.again else ()))
    rows = read_rows(DATA)
    written = table(rows, TRIED, DATA, CELLS)
    write_table(PAGE, MARK, written)
    print(written)


if __name__ == "__main__":
    main()
