"""Plant an asymmetry in every field of a symmetric model, a number at a time, and count what `derive` says of it.

    python benchmarks/asymmetries.py --out docs/results/asymmetries.json [--rows 2] [--seed 0] [--robot puppet ...]

For five robots with an exact mirror symmetry and every array of their `MjModel`: numbers of `--rows` rows of each array
(0: of all) are changed one at a time. A change is named by `derive`, or costs the model its symmetry, or is without effect:
MuJoCo steps mirrored states to mirrored states as before. What is none of these is missed, and listed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from rppdyn.runs import provenance
from rppdyn.runs.files import write_json
from rppdyn.runs.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from planting import exact, judge, plants

ROBOTS = ("gymnasium/walker2d_v5", "gymnasium/ant", "gymnasium/humanoid", "dm_control/quadruped", "puppet")
VERDICTS = ("named", "lost", "without effect", "reference", "MISSED")


def main(arguments: list[str] | None = None) -> int:
    """Plant, print a table, and write what was found; 1 if anything was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", nargs="+", default=ROBOTS, help="models (five)")
    parser.add_argument("--rows", type=int, default=2, help="rows of each array; 0 for all of them (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the rows that are drawn (0)")
    parser.add_argument("--out", type=Path, help="also write the counts of every field, as JSON")
    parsed = parser.parse_args(arguments)
    report, missed = {}, []
    print("| robot | " + " | ".join(VERDICTS) + " |\n| --- |" + " --- |" * len(VERDICTS))
    for name in parsed.robot:
        model, symmetry = exact(name)
        chosen = list(plants(model, parsed.rows or None, np.random.default_rng(parsed.seed)))
        fields: dict[str, Counter] = {}
        with Progress(len(chosen), description=name, unit="number") as bar:
            for i, plant in enumerate(chosen):
                verdict = judge(plant, model, symmetry)
                fields.setdefault(plant.field, Counter())[verdict] += 1
                missed += [f"{name} {plant}"] if verdict == "MISSED" else []
                bar.update(i + 1)
        total = sum(fields.values(), Counter())
        print(f"| {name}, {symmetry} | " + " | ".join(str(total[verdict]) for verdict in VERDICTS) + " |", flush=True)
        report[name] = {"symmetry": symmetry, "total": total, "fields": fields}
    print(f"\nMissed: {', '.join(missed) or 'none'}.")
    if parsed.out:
        write_json(
            parsed.out,
            {"rows": parsed.rows, "seed": parsed.seed, "robots": report, "missed": missed, "provenance": provenance()},
        )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
