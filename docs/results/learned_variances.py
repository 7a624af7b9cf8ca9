"""Learned variances against a grid: `python docs/results/learned_variances.py RUNS... --out FILE.png --json FILE.json`.

Runs of `rppdyn fit-regression task=modified_inertia_code` at several `task.strength`, or of `rppdyn fit-dynamics` at several
`task.wind`: those with objective=marginal_likelihood, and those with a free variance of a grid. For each strength,
the effective number of parameters of all free pathways, the test error, and the best of the grid on the test data themselves,
which is more than a user could choose.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import figure_arguments, gather, keep
from scipy.stats import spearmanr

from rppdyn.runs.figures import COLOURS


def main() -> None:
    """Print the table, as Markdown; draw and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs)
    learned: dict[float, dict[str, Any]] = {}
    grid: dict[float, dict[float, float]] = {}
    for run in runs:
        task, error = run["config"]["task"], float(np.mean(run["result"]["test"]["test/error"]))
        strength = task["strength"] if "strength" in task else task["wind"]
        if run["config"]["objective"] == "marginal_likelihood":
            rows = [row for row in run["result"]["pathways"] if row["pathway"] == "free"]
            effective = np.sum([row["effective"] for row in rows], 0).mean()
            learned[strength] = {
                "error": error,
                "effective": float(effective),
                "equivariance": float(np.mean(run["result"]["test"]["equivariance/error"])),
            }
        else:
            grid.setdefault(strength, {})[run["config"]["model"]["free_variance"]] = error
    strengths = sorted(learned)
    variances = sorted({v for own in grid.values() for v in own})
    print("| strength | effective free parameters | equivariance error | learned | best of the grid | ratio | "
          + " | ".join(f"{v:g}" for v in variances) + " |")  # fmt: skip
    print("| ---: |" * 1 + " ---: |" * (5 + len(variances)))
    for s in strengths:
        own, at = learned[s], grid.get(s, {})
        best = min(at.values(), default=float("nan"))
        cells = [f"{at[v]:.4f}" if v in at else "" for v in variances]
        print(f"| {s:g} | {own['effective']:.0f} | {own['equivariance']:.3f} | {own['error']:.4f} | {best:.4f} | "
              f"{own['error'] / best:.2f} | " + " | ".join(cells) + " |")  # fmt: skip
    for name in ("effective", "equivariance"):
        correlation = spearmanr(strengths, [learned[s][name] for s in strengths])
        print(f"rank correlation of {name} with the strength: {correlation.statistic:.2f}")
    keep(arguments, runs, partial(draw, strengths, learned, grid, variances))


def draw(strengths: list[float], learned: dict[float, Any], grid: dict[float, Any], variances: list[float]) -> Figure:
    """Effective numbers of free parameters, and errors beside those of the grid."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(strengths, [learned[s]["effective"] for s in strengths], "o-", color=COLOURS[0])
    left.set_ylabel("effective free parameters")
    for v, colour in zip(variances, COLOURS[1:], strict=False):
        at = [s for s in strengths if v in grid.get(s, {})]
        right.plot(at, [grid[s][v] for s in at], ".-", color=colour, lw=1, label=f"{v:g}")
    right.plot(strengths, [learned[s]["error"] for s in strengths], "o-", color=COLOURS[0], label="learned")
    right.set_ylabel("test error")
    right.legend(frameon=False, fontsize="small", title="free variance", title_fontsize="small")
    for axes in (left, right):
        axes.set_xlabel("strength of what breaks the symmetry")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
