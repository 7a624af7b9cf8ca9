"""Plant an asymmetry in every field of a symmetric model, a number at a time, and record what `derive` says of it.

    python benchmarks/asymmetries.py --numbers 1 --out docs/results/asymmetries.json [--seed 0] [--robot puppet ...]

For five robots with an exact mirror symmetry and every array of their `MjModel`: `--numbers` of each array (0: all) are
changed one at a time. A change is named by `derive`, costs the model its symmetry, is refused (the model is
no longer one that MuJoCo can compute the constants of), or is without effect: MuJoCo steps mirrored states to mirrored states
as before. What is none of these is missed, and listed. Addresses and references can't be planted alone: a compiled model in
which one is changed is no model. They are counted as references.

Each verdict is written as it comes; the same command goes on where one was cut off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from rppdyn.runs import provenance
from rppdyn.runs.files import write_json
from rppdyn.runs.session import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from planting import exact, judge, plants, states_of

ROBOTS = ("gymnasium/walker2d_v5", "gymnasium/ant", "gymnasium/humanoid", "dm_control/quadruped", "puppet")
VERDICTS = ("named", "lost", "refused", "without effect", "reference", "MISSED")
EVERY = 15.0  # seconds between checkpoints


def main(arguments: list[str] | None = None) -> int:
    """Plant, print a table, and write what was found; 1 if anything was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", nargs="+", default=ROBOTS, help="models (five)")
    parser.add_argument("--numbers", type=int, default=1, help="of each array; 0 for all of them (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the numbers that are drawn (0)")
    parser.add_argument("--out", type=Path, help="also write the counts of every field, as JSON")
    parsed = parser.parse_args(arguments)
    settings = {"numbers": parsed.numbers, "seed": parsed.seed}
    report: dict[str, dict] = {}
    if parsed.out and parsed.out.exists():
        before = json.loads(parsed.out.read_text(encoding="utf-8"))
        if before["settings"] == settings:
            report = before["robots"]

    def save() -> None:
        if parsed.out:
            write_json(parsed.out, {"settings": settings, "robots": report, "provenance": provenance()})

    print("| robot | " + " | ".join(VERDICTS) + " |\n| --- |" + " --- |" * len(VERDICTS))
    for name in parsed.robot:
        model, symmetry = exact(name)
        states = states_of(model)
        chosen = list(plants(model, parsed.numbers or None, np.random.default_rng(parsed.seed)))
        verdicts = report.setdefault(name, {"symmetry": symmetry, "planned": len(chosen), "plants": {}})["plants"]
        saved = time.monotonic()
        with Progress(len(chosen), description=name, unit="number") as bar:
            for i, plant in enumerate(chosen):
                if str(plant) not in verdicts:
                    verdicts[str(plant)] = judge(plant, model, symmetry, states)
                    if verdicts[str(plant)] == "MISSED":
                        print(f"missed: {name} {plant}", file=sys.stderr, flush=True)
                if time.monotonic() - saved > EVERY:
                    save()
                    saved = time.monotonic()
                bar.update(i + 1)
        save()
        total = Counter(verdicts.values())
        print(f"| {name}, {symmetry} | " + " | ".join(str(total[verdict]) for verdict in VERDICTS) + " |", flush=True)
    missed = [f"{name} {plant}" for name, one in report.items() for plant, v in one["plants"].items() if v == "MISSED"]
    print(f"\nMissed: {', '.join(missed) or 'none'}.")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
