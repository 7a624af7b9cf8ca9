"""Choices of a free variance: `python docs/results/selection.py RUNS... [--json FILE]`.

Runs of `rppdyn fit-regression` or `rppdyn fit-dynamics` on seeds that are not reported. For each task, group and model: means
over seeds of the validation error by free variance, the best in bold type.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from reading import figure_arguments, gather, keep


def main() -> None:
    """Print the table, as Markdown."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs)
    errors: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for run in sorted(runs, key=order):
        model, error = run["config"]["model"], float(np.mean(run["result"]["test"]["validation/error"]))
        row = errors[task(run["config"]), model["kind"]]
        if model["free_variance"] in row:
            raise ValueError(f"two runs of {task(run['config'])} with a free variance of {model['free_variance']:g}")
        row[model["free_variance"]] = error
    variances = sorted({variance for row in errors.values() for variance in row}, reverse=True)
    print("| task | model | " + " | ".join(f"{variance:g}" for variance in variances) + " |")
    print("| --- " * (2 + len(variances)) + "|")
    for (name, kind), row in errors.items():
        best = min(row, key=row.__getitem__)
        cells = [f"**{row[v]:.3g}**" if v == best else f"{row[v]:.3g}" if v in row else "-" for v in variances]
        print(f"| {name} | `{kind}` | {' | '.join(cells)} |")
    keep(arguments, runs)


def order(run: dict[str, Any]) -> tuple[Any, ...]:
    config = run["config"]
    return config["task"]["name"], config["task"].get("wind", 0), config["task"]["group"] or "", config["model"]["kind"]


def task(config: dict[str, Any]) -> str:
    """Its name, what breaks its symmetry, and the group where it is not the task's own."""
    of = config["task"]
    own = of["group"] in (None, "O2eR3()")
    return (of["name"].replace("windy_", "") + (f", wind {of['wind']:g}" if of.get("wind") else "")
            + ("" if own else f", {of['group']}"))  # fmt: skip


if __name__ == "__main__":
    main()
