"""Agents on a task whose symmetry is broken by degrees: `python docs/evidence/approximate.py RUNS...`.

Reads the folders of single seeds and adds them to `approximate.json` (a row for each cell and arm: every seed's mean return
over training, its returns at all evaluations, and free pathways' shares), in which they replace arms of the same cell. Then
writes the figure `approximate.png` and the table of `approximate.md`. Without RUNS it reads the file and does the rest again.
Section 10 of `protocol.md` says how the runs are made and what is tested.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from agent_runs import NOISE, UNRELAXED, Row, by_cell, draw, rank_tests, read_rows, rows_of
from evidence import write_table

HERE = Path(__file__).parent
DATA, PAGE = HERE / "approximate.json", HERE / "approximate.md"
MARK = "<!-- table: made by `approximate.py` -->"
STRICT, PLAIN = "strict", "plain"


def same_as_strict(rows: list[Row]) -> list[Row]:
    """Rows of certified arms where the certificate is exact: they have no free pathway, and are strict to the last bit.

    Not so with another noise, of which the strict arm was not run.
    """
    arms = {row["arm"]: None for row in rows if row["arm"].startswith("certified") and NOISE not in row["arm"]}
    still = [row for row in rows if row["arm"] == STRICT and "wind 0," in row["cell"]]
    return [row | {"arm": arm, "same_as": STRICT} for row in still for arm in arms]


def tested(rows: list[Row]) -> list[Row]:
    """Add to each row its ratio to the cell's best arm, and rank tests against strict and plain.

    p-values are two-sided, exact, and corrected by Holm over the relaxed arms of a cell.
    """
    out: list[Row] = []
    for arms in by_cell(rows).values():
        here = {arm: dict(row) for arm, row in arms.items()}
        best = max(np.mean(row["values"]) for row in here.values())
        relaxed = [arm for arm in here if arm not in UNRELAXED]
        for row in here.values():
            row["to_best"] = float(np.mean(row["values"]) / best)
        for other in (STRICT, PLAIN):
            if other in here:
                for arm, p in zip(relaxed, rank_tests(here, [(arm, other) for arm in relaxed]), strict=True):
                    here[arm][f"p_{other}"] = p
        out += here.values()
    return out


def wind_of(row: Row) -> float:
    """The strength of the wind in a row's cell."""
    return float(row["cell"].split("wind ")[1].split(",")[0])


def table(rows: list[Row]) -> str:
    """The longest runs as Markdown: an arm in each row, a wind in each column: mean, what it is of the best, final return."""
    longest = {wind: max(row["steps"][-1] for row in rows if wind_of(row) == wind) for wind in map(wind_of, rows)}
    here = {
        (row["arm"], wind_of(row)): row for row in rows if row["steps"][-1] == longest[wind_of(row)]
    }  # runs of less than a wind's longest are in the raw data
    winds = sorted(longest)
    ratios = {
        arm: [here[arm, wind]["to_best"] for wind in winds if (arm, wind) in here]
        for arm in dict.fromkeys(arm for arm, _ in here)
    }
    tests = f"p, strict, wind {winds[-1]:g} | p, plain, wind {winds[0]:g}"
    lines = [
        f"| arm | {' | '.join(f'wind {wind:g}' for wind in winds)} | worst | {tests} |",
        f"| --- |{' ---: |' * (len(winds) + 3)}",
    ]
    for arm in sorted(ratios, key=lambda arm: (-len(ratios[arm]), -min(ratios[arm]))):
        cells = []
        for wind in winds:
            row = here.get((arm, wind))
            final = np.mean([curve[-1] for curve in row["returns"]]) if row else None
            cells.append(f"{np.mean(row['values']):.1f} ({row['to_best']:.2f}), {final:.0f}" if row else "–")
        cells.append(f"{min(ratios[arm]):.2f}" if len(ratios[arm]) == len(winds) else "–")
        for wind, key in ((winds[-1], f"p_{STRICT}"), (winds[0], f"p_{PLAIN}")):
            row = here.get((arm, wind), {})
            cells.append(f"{row[key]:.2g}" if key in row else "–")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def panels(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows to draw, by wind: of each arm the longest, without those that are strict itself."""
    longest: dict[tuple[float, str], Row] = {}
    for row in sorted((row for row in rows if "same_as" not in row), key=lambda row: len(row["steps"])):
        longest[wind_of(row), row["arm"]] = row
    return {
        f"wind {wind:g}": [row for (at, _), row in longest.items() if at == wind]
        for wind in sorted({w for w, _ in longest})
    }


def main() -> None:
    """Read the runs, and write the file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    runs = rows_of(parser.parse_args().runs)
    rows = tested(read_rows(DATA, runs + same_as_strict(runs)))
    draw(panels(rows), HERE / "approximate.png", share_axis=True)
    write_table(PAGE, MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
