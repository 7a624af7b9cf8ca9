"""Returns of agents on robots: `python docs/evidence/returns.py RUNS...`; settings are in `protocol.md`, sections 29 and 30.

Reads the folders of single seeds and adds them to `returns.json`, in which they replace arms of the same cell. Then draws
`returns.png` and writes the table of `docs/results/rl.md`. Without RUNS it reads the file and does the rest again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from agent_runs import UNRELAXED, Row, by_cell, draw, rank_tests, read_rows, rows_of
from evidence import write_table

HERE = Path(__file__).parent
DATA, PAGE = HERE / "returns.json", HERE.parent / "results" / "rl.md"
MARK = "<!-- table: made by `docs/evidence/returns.py` -->"


def longest(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """The arms of each task, at the last length that all of them have come to."""
    tasks: dict[str, dict[str, Row]] = {}
    most: dict[str, int] = {}
    for cell, arms in by_cell(rows).items():
        task = cell.rsplit(", ", 1)[0]
        if (len(arms), next(iter(arms.values()))["steps"][-1]) > (len(tasks.get(task, ())), most.get(task, 0)):
            tasks[task], most[task] = arms, next(iter(arms.values()))["steps"][-1]
    return tasks


def table(rows: list[Row]) -> str:
    """The longest runs as Markdown; p-values are of the relaxed arm against each other one, by Holm in a cell."""
    lines = [
        f"| mean return over training | steps | seeds | {' | '.join(UNRELAXED[:3])} | relaxed | p, against each |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for task, arms in longest(rows).items():
        (relaxed,) = (arm for arm in arms if arm not in UNRELAXED)
        others = [arm for arm in UNRELAXED[:3] if arm in arms]
        ps = rank_tests(arms, [(relaxed, arm) for arm in others])
        means = [f"{np.mean(arms[arm]['values']):.4g}" if arm in arms else "–" for arm in (*UNRELAXED[:3], relaxed)]
        row = arms[relaxed]
        cells = (task, f"{row['steps'][-1]:,}", len(row["seeds"]), *means, ", ".join(f"{p:.2g}" for p in ps))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Read the runs, and write the file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    parser.add_argument("--lengths", nargs="+", type=int, help="steps at which runs are taken that have not ended")
    arguments = parser.parse_args()
    rows = read_rows(DATA, rows_of(arguments.runs, lengths=arguments.lengths))
    draw({task: list(arms.values()) for task, arms in longest(rows).items()}, HERE / "returns.png")
    write_table(PAGE, MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
