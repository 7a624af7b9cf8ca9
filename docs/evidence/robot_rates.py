"""Transition models at each arm's own rate: `python docs/evidence/robot_rates.py`; with `--tables` nothing is fitted.

Section 33 of `protocol.md` has the question and the settings. An arm's rate is chosen on a buffer that is not reported, and
each of five others is fitted once at it. A run that was stopped goes on. Writes the second table of
`docs/results/transition.md`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from agent_runs import by_cell, read_rows
from evidence import write_table
from robot_models import ARMS, PAGE, Arms, Row, run, table

DATA = Path(__file__).parent / "robot_rates.json"
MARK = "<!-- table: made by `docs/evidence/robot_rates.py` -->"
ROBOTS = ("Swimmer", "Hopper", "HalfCheetah", "Ant", "Walker2d")
TRIED = {
    arm: ARMS[arm] for arm in ("plain", "plain, mirrored data", "strict, larger", "control", "certified", "learned")
}
RATES = (2e-3, 5e-3, 1.25e-2)
CHOSEN_ON, BUFFERS = [2110], range(2111, 2116)
LONGER = ["optimiser.epochs=150", "evaluation.every=150", "checkpoint_every=150"]


def at_rates() -> Arms:
    """Every arm at every rate."""
    return {
        f"{arm}, rate {rate:g}": [*words, *LONGER, f"optimiser.learning_rate={rate:g}"]
        for arm, words in TRIED.items() for rate in RATES
    }  # fmt: skip


def best_rates(rows: list[Row], robot: str) -> Arms:
    """Each arm at the rate at which its error on the first buffer is least."""
    tried, found = at_rates(), by_cell(rows)[f"{robot}, choice"]
    best = {
        arm: min((name for name in tried if name.rsplit(", ", 1)[0] == arm), key=lambda name: found[name]["values"])
        for arm in TRIED
    }
    return {arm: tried[name] for arm, name in best.items()}


def main() -> None:
    """Choose rates, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=ROBOTS)
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for robot in () if arguments.tables else arguments.robots:
        rows = run({robot: at_rates()}, DATA, CHOSEN_ON, 1, "{}, choice")
        run({robot: best_rates(rows, robot)}, DATA, BUFFERS, 1)
    rows = read_rows(DATA)
    written = table(rows, TRIED, DATA)
    write_table(PAGE, MARK, written)
    print(written)


if __name__ == "__main__":
    main()
