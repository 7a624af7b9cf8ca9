r"""The ranks of tensor powers, with their certificates, beside the published table.

python benchmarks/ranks.py --json docs/results/ranks.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measuring import conditions, write

from rppdyn.basis import solve
from rppdyn.groups import O13, SL, SO, SO13, SU, D, DkeR3, Group, O, O2eR3, RubiksCube, S, SO2eR3, SO13p, Sp, U, Z
from rppdyn.reps import T

PUBLISHED = {
    "Z(4)": [1, 4, 16, 64, 256, 1024, 4096],
    "S(4)": [1, 2, 5, 15, 51, 187, 715],
    "S(5)": [1, 2, 5, 15, 52, 202, 855],
    "SO(3)": [0, 1, 1, 3, 6, 15, 36],
    "O(3)": [0, 1, 0, 3, 0, 15, 0],
    "SO(5)": [0, 1, 0, 3, 1, 15, 15],
    "RubiksCube": [2, 6, 22],
}
GROUPS: list[tuple[Group, int]] = [
    *((G, 7) for G in (Z(4), S(4), S(5), SO(3), O(3), SO(5))), (RubiksCube(), 3), (RubiksCube("puzzle"), 3),
    *((G, 6) for G in (D(4), D(5), SO(2), SO(4), O(4), SL(2), SL(3), Sp(1), Sp(2), SO13p(), SO13(), O13())),
    *((G, 6) for G in (SU(2), SU(3), U(2), SO2eR3(), O2eR3(), DkeR3(3))),
]  # fmt: skip


def run() -> list[dict[str, Any]]:
    """One row per group."""
    rows = []
    for G, powers in GROUPS:
        bases = [solve(T(k)(G), cache=False) for k in range(1, powers + 1)]
        certificates = [b.certificate for b in bases]
        rows.append(
            {
                "group": str(G),
                "ranks": [b.rank for b in bases],
                "published": PUBLISHED.get(str(G)),
                "certificates": [c.to_dict() for c in certificates],
                "residual": max(c.residual for c in certificates),
                "orthonormality": max(c.orthonormality for c in certificates),
                "rank_gap": min(c.rank_gap for c in certificates),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, agreement with the published ranks in the last column."""
    lines = [
        "| group | T1 | T2 | T3 | T4 | T5 | T6 | T7 | residual | orthonormality | rank gap | published |",
        "| --- |" + " ---: |" * 10 + " --- |",
    ]
    for r in rows:
        ranks = [str(x) for x in r["ranks"]] + [""] * (7 - len(r["ranks"]))
        same = "" if r["published"] is None else "the same" if r["published"] == r["ranks"] else str(r["published"])
        numbers = f"{r['residual']:.0e} | {r['orthonormality']:.0e} | {r['rank_gap']:.0e}"
        lines.append(f"| {r['group']} | {' | '.join(ranks)} | {numbers} | {same} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write raw results here")
    args = parser.parse_args()
    where, rows = conditions("scipy"), run()
    print(table(rows))
    write(args.json, where, {"results": rows})


if __name__ == "__main__":
    main()
