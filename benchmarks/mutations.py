"""Flip every sign and swap every pair of every exact symmetry spec, and count what `certify` says.

    python benchmarks/mutations.py --out docs/results/mutations.json [--env Ant-v5 ...]

For each of Gymnasium's MuJoCo tasks and each of its symmetries whose dynamics the simulator finds exact: the number of
mutations found broken or approximate, those that change no image of a visited state (their entries never vary, or
always agree), and those that are symmetries themselves, each listed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from mutation import refute_mutations

from rppdyn.envs import certify, symmetry_spec
from rppdyn.envs._catalogue import KNOWN_ENVIRONMENTS, symmetry_choices
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.runs import provenance
from rppdyn.runs.files import write_json
from rppdyn.runs.session import Progress

STATES = 400


def count(env_id: str, symmetry: str) -> dict | None:
    """What became of the mutations of one spec, or None where it is not exact."""
    spec = symmetry_spec(env_id, symmetry=symmetry)
    start = time.perf_counter()
    if certify(env_id, spec, n_states=STATES, n_resets=20).dynamics_verdict != "exact":
        return None
    with open_simulator(env_id) as simulator:
        found = refute_mutations(simulator, spec, n_states=STATES)
    return {
        "env": env_id,
        "symmetry": symmetry,
        "mutations": found.refuted + len(found.unseen) + len(found.symmetries),
        **{verdict: found.verdicts.get(verdict, 0) for verdict in ("broken", "approximate")},
        "unseen": list(found.unseen),
        "symmetries": list(found.symmetries),
        "seconds": time.perf_counter() - start,
    }


def main(arguments: list[str] | None = None) -> int:
    """Count, print a table, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", default=KNOWN_ENVIRONMENTS, help="tasks (all of Gymnasium's)")
    parser.add_argument("--out", type=Path, help="also write the counts, and every mutation left out, as JSON")
    parsed = parser.parse_args(arguments)
    work = [(env_id, symmetry) for env_id in parsed.env for symmetry in symmetry_choices(env_id)]
    rows, inexact = [], []
    with Progress(len(work), description="mutations", unit="spec") as bar:
        for i, (env_id, symmetry) in enumerate(work):
            row = count(env_id, symmetry)
            rows += [row] if row else []
            inexact += [] if row else [f"{env_id} {symmetry}"]
            bar.update(i + 1)
    print("| spec | mutations | broken | approximate | never vary | symmetries themselves |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = row["mutations"], row["broken"], row["approximate"], len(row["unseen"]), len(row["symmetries"])
        print(f"| {row['env']} {row['symmetry']} | " + " | ".join(map(str, cells)) + " |")
    print(f"\nNot exact, so left out: {', '.join(inexact) or 'none'}.")
    if parsed.out:
        write_json(parsed.out, {"states": STATES, "specs": rows, "inexact": inexact, "provenance": provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
