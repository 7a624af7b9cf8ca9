"""Returns of agents: `python docs/evidence/returns.py RUNS...`; settings are in `protocol.md`, sections 29 to 34.

Reads the folders of single seeds and adds them to `returns.json`, in which they replace arms of the same cell. Then draws the
learning curves and writes the tables of `docs/results/rl.md` (robots as they are) and of `docs/concepts/approximate-tasks.md`
(tasks whose symmetry is broken by degrees). Without RUNS it reads the file and does the rest again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from agent_runs import UNRELAXED, Row, by_cell, draw, rank_tests, read_rows, rows_of, with_final_returns
from evidence import write_table

HERE = Path(__file__).parent
DATA = HERE / "returns.json"
MARK = "<!-- table: made by `docs/evidence/returns.py` -->"
PAGES = {"returns": HERE.parent / "results" / "rl.md", "suite": HERE.parent / "concepts" / "approximate-tasks.md"}
Tasks = dict[str, dict[str, Row]]


def longest(rows: list[Row]) -> Tasks:
    """The arms of each task, at the last length that most of them have come to."""
    tasks: Tasks = {}
    size = lambda arms: (len(arms), max((row["steps"][-1] for row in arms.values()), default=0))  # noqa: E731
    for cell, arms in by_cell(rows).items():
        task = cell.rsplit(", ", 1)[0]
        tasks[task] = max(tasks.get(task, {}), arms, key=size)
    return {task: arms for task, arms in tasks.items() if len(arms) > 1}


def table(tasks: Tasks) -> str:
    """Means over seeds as Markdown, over training and at the end.

    P-values are of the relaxed arm against the others, in their order, by Holm in a cell and metric.
    """
    there = [arm for arm in UNRELAXED if any(arm in arms for arms in tasks.values())]
    heads = ["mean return over training; at the end", "steps", "seeds", *there, "relaxed", "p against each; at the end"]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(there) + 3)} --- |"]
    for task, arms in tasks.items():
        (relaxed,) = (arm for arm in arms if arm not in UNRELAXED)
        means, ps = [], []
        for metric in (arms, with_final_returns(arms)):
            means.append([f"{np.mean(metric[arm]['values']):.4g}" if arm in arms else "–" for arm in (*there, relaxed)])
            tests = rank_tests(metric, [(relaxed, arm) for arm in there if arm in arms])
            ps.append(", ".join(f"{p:.2g}" for p in tests))
        pairs = ["; ".join(pair) if pair[0] != "–" else "–" for pair in zip(*means, strict=True)]
        cells = (task, f"{arms[relaxed]['steps'][-1]:,}", len(arms[relaxed]["seeds"]), *pairs, "; ".join(ps))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def pages(rows: list[Row]) -> dict[str, Tasks]:
    """The tasks of each page."""
    tasks = longest(rows)
    by_robot = sorted(sorted(tasks), key=lambda task: task.partition(",")[0], reverse=True)
    suite = {task: tasks[task] for task in by_robot if task.startswith("rppdyn/")}
    return {"suite": suite, "returns": {task: arms for task, arms in tasks.items() if task not in suite}}


def main() -> None:
    """Read the runs, and write the file, the figures and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    parser.add_argument("--lengths", nargs="+", type=int, help="steps at which runs are taken that have not ended")
    arguments = parser.parse_args()
    rows = read_rows(DATA, rows_of(arguments.runs, lengths=arguments.lengths))
    for name, tasks in pages(rows).items():
        if tasks:
            draw(
                {task.removeprefix("rppdyn/"): list(arms.values()) for task, arms in tasks.items()},
                HERE / f"{name}.png",
            )
            write_table(PAGES[name], MARK, table(tasks))
            print(table(tasks))


if __name__ == "__main__":
    main()
