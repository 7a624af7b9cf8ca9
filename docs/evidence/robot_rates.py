"""Transition models at each arm's own rate: `python docs/evidence/robot_rates.py`; with `--tables` nothing is fitted.

Sections 33, 35 and 36 of `protocol.md` have the questions and the settings. An arm's rate is chosen on a buffer that is not
reported, and each of five others is fitted once at it. A run that was stopped goes on. Writes the table of
`docs/results/transition.md`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from agent_runs import by_cell, read_rows
from evidence import write_rows, write_table
from robot_models import ARMS, Arms, Row, run, table

from rppdyn.envs import SymmetrySpec, symmetry_spec
from rppdyn.jobs import fit_transition

HERE = Path(__file__).parent
DATA = HERE / "robot_rates.json"
PAGE = HERE.parent / "results" / "transition.md"
MARK = "<!-- table: made by `docs/evidence/robot_rates.py` -->"
ROBOTS = ("Swimmer", "Hopper", "HalfCheetah", "Ant", "Walker2d")
TRIED = {
    arm: ARMS[arm] for arm in ("plain", "plain, mirrored data", "strict, larger", "control", "certified", "learned")
}
CELLS = (*ROBOTS, "HalfCheetah, again")
CONTROLS = {"plain, learned": ["model=mlp", "objective=marginal_likelihood"], "learned, wrong mirror": TRIED["learned"]}
"""Arms that tell the symmetry from the learning of variances: without a symmetry, and with one that the robot hasn't."""
PUBLISHED, PUBLISHED_RATE = ("narrow, published", "learned, published"), 2e-3  # section 36: the plain network's rate
WRONG_PAIRS = [("bthigh", "bshin"), ("bfoot", "fthigh"), ("fshin", "ffoot")]
RATES, LARGEST = (2e-3, 5e-3, 1.25e-2), 3e-2  # the largest where the largest of the others is the best
CHOSEN_ON, BUFFERS = [2110], range(2111, 2116)
AGAIN, AGAIN_CELL = range(2121, 2131), "{}, again"  # section 35
LONGER = ["optimiser.epochs=150", "evaluation.every=150", "checkpoint_every=150"]


def at_rates(arms: Iterable[str], rates: Iterable[float]) -> Arms:
    """Each arm at each rate."""
    return {
        f"{arm}, rate {rate:g}": [*(TRIED | CONTROLS)[arm], *LONGER, f"optimiser.learning_rate={rate:g}"]
        for arm in arms for rate in rates
    }  # fmt: skip


def best_rates(rows: list[Row], robot: str, arms: Iterable[str]) -> dict[str, float]:
    """The rate of each arm at which its error on the first buffer is least."""
    found = by_cell(rows)[f"{robot}, choice"]
    best = {}
    for arm in arms:
        tried = {name: row["values"] for name, row in found.items() if name.rpartition(", rate ")[0] == arm}
        best[arm] = float(min(tried, key=tried.__getitem__).rpartition(" ")[2])
    return best


def choose(robot: str, arms: Sequence[str]) -> dict[str, float]:
    """Each arm's rate."""
    best = best_rates(run({robot: at_rates(arms, RATES)}, DATA, CHOSEN_ON, 1, "{}, choice"), robot, arms)
    at_edge = [arm for arm, rate in best.items() if rate >= RATES[-1]]
    return best_rates(run({robot: at_rates(at_edge, [LARGEST])}, DATA, CHOSEN_ON, 1, "{}, choice"), robot, arms)


def report(robot: str, buffers: Iterable[int] = BUFFERS, cell: str = "{}", arms: Sequence[str] = tuple(TRIED)) -> None:
    """Fit each arm at its own rate; what was fitted at another is dropped."""
    best = choose(robot, arms)
    rows, name = read_rows(DATA), cell.format(robot)
    chosen = lambda row: row["arm"] not in best or row["rate"] == best[row["arm"]]  # noqa: E731
    write_rows(DATA, [row for row in rows if row["cell"] != name or chosen(row)])
    at_best = {arm: next(iter(at_rates([arm], [rate]).values())) for arm, rate in best.items()}
    run({robot: at_best}, DATA, buffers, 1, cell, marks={arm: {"rate": rate} for arm, rate in best.items()})


def report_published() -> None:
    """Fit Ant with the published representation, at the plain network's rate."""
    rate = f"optimiser.learning_rate={PUBLISHED_RATE:g}"
    arms = {arm: [*ARMS[arm.partition(",")[0]], "variant=published", *LONGER, rate] for arm in PUBLISHED}
    run({"Ant": arms}, DATA, BUFFERS, 1, marks={arm: {"rate": PUBLISHED_RATE} for arm in arms})


def wrong_mirror(env: gymnasium.Env, **options: Any) -> SymmetrySpec:
    """The robot's spec, with a mirror that exchanges other joints than the robot's: the same group, as many free numbers."""
    described = symmetry_spec(env, **options).to_dict()
    partners = {a: b for pair in WRONG_PAIRS for a, b in (pair, pair[::-1])}
    for part in ("obs", "action"):
        names = [entry[0] for entry in described[part]["entries"]]
        ((*rows,),) = described[part]["discrete_generators"]
        wrong = np.array(rows)
        for index, (name, joint, *_) in enumerate(described[part]["entries"]):
            if joint in partners:
                wrong[index] = 0
                wrong[index, names.index(name.replace(joint, partners[joint]))] = np.sum(rows[index])
        described[part]["discrete_generators"] = [wrong.tolist()]
    return SymmetrySpec.from_dict(described)


def main() -> None:
    """Choose rates, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=ROBOTS)
    parser.add_argument("--again", action="store_true", help="fit ten other buffers, at the rates that were chosen")
    parser.add_argument("--controls", action="store_true", help="fit what the ten other buffers' arms are held against")
    parser.add_argument("--published", action="store_true", help="fit Ant with the published representation")
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.controls:
        report("HalfCheetah", AGAIN, AGAIN_CELL, ["plain, learned"])
        with mock.patch.object(fit_transition, "symmetry_spec", wrong_mirror):
            report("HalfCheetah", AGAIN, AGAIN_CELL, ["learned, wrong mirror"])
    if arguments.published:
        report_published()
    other = arguments.tables or arguments.controls or arguments.published
    for robot in () if other else arguments.robots:
        report(robot, *((AGAIN, AGAIN_CELL) if arguments.again else ()))
    rows = read_rows(DATA)
    written = table(rows, TRIED, DATA, CELLS)
    write_table(PAGE, MARK, written)
    print(written)


if __name__ == "__main__":
    main()
