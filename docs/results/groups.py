"""Which group's pathways are used: `python docs/results/groups.py RUNS... [--out FILE.png] [--json FILE.json]`.

Runs of `rppdyn fit-image model=f_fc+conv+gconv objective=marginal_likelihood` on digits that stand in different ways; those
of other seeds are put together. Shares are relative effective numbers of parameters (van der Ouderaa, Immer & van der Wilk
2023, Table 3), of each layer, and their mean over layers; the table has interquartile means over seeds with 95 % bootstrap
intervals, differences are paired by seed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import figure_arguments, gather, keep

from rppdyn.runs import bootstrap_interval, iqm
from rppdyn.runs.figures import COLOURS

TASKS = {
    "upright": "upright",
    "translated": "translated",
    "quarter_turned": "quarter turns",
    "rotated": "rotated by any angle",
}
PATHWAYS = ("gconv", "conv", "f_fc")


def main() -> None:
    """Print the table, as Markdown; draw and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs)
    tasks = {name: [run for run in runs if run["config"]["task"]["name"] == name] for name in TASKS}
    tasks = {name: sorted(own, key=lambda run: run["config"]["seed"]) for name, own in tasks.items() if own}
    heads = (
        "accuracy, %",
        "gconv, %",
        "more than upright",
        "conv, %",
        "f_fc, %",
        "gconv of all, %",
        "more than upright",
    )
    print(f"| digits | {' | '.join(heads)} | -log p(D) |\n| --- |" + " ---: |" * (len(heads) + 1))
    upright = relative_and_absolute(tasks["upright"])
    for name, own in tasks.items():
        accuracy = 100 * (1 - np.concatenate([run["result"]["test"]["test/error"] for run in own]))
        evidence = np.concatenate([run["result"]["metrics"]["marginal_likelihood/negative_log"] for run in own])
        found = relative_and_absolute(own)
        more = ["" if name == "upright" else interval(a[0] - b[0]) for a, b in zip(found, upright, strict=True)]
        gconv, conv, f_fc = map(interval, found[0])
        cells = [TASKS[name], interval(accuracy), gconv, more[0], conv, f_fc, interval(found[1][0]), more[1]]
        print(f"| {' | '.join(cells)} | {float(iqm(evidence)):.2f} |")
    keep(arguments, runs, partial(draw, tasks))


def relative_and_absolute(runs: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """In percent, (pathways, seeds): relative numbers, means over layers; and shares of all effective parameters."""
    effective = shares(runs, "effective").sum(1)
    return 100 * shares(runs, "relative").mean(1), 100 * effective / effective.sum(0)


def shares(runs: list[dict[str, Any]], key: str) -> np.ndarray:
    """Of each pathway, layer and seed, (pathways, layers, seeds)."""
    each = []
    for run in runs:
        rows = run["result"]["pathways"]
        each.append([[row[key] for row in rows if row["pathway"] == name] for name in PATHWAYS])
    return np.concatenate(each, -1)


def interval(values: np.ndarray) -> str:
    """Interquartile mean and bootstrap interval."""
    centre, low, high = (f"{float(value):.1f}" for value in (iqm(values), *bootstrap_interval(values)))
    return centre if low == high else f"{centre} [{low}, {high}]"


def draw(tasks: dict[str, list[dict[str, Any]]]) -> Figure:
    """Shares of group convolutions, and effective numbers of parameters of convolutions, by layer."""
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for colour, (name, own) in zip(COLOURS, tasks.items(), strict=False):
        rows = own[0]["result"]["pathways"]
        layers = list(dict.fromkeys(row["layer"] for row in rows))
        for axes, values in zip(panels, (shares(own, "relative")[0], shares(own, "effective")[1]), strict=True):
            low, high = np.array([bootstrap_interval(layer) for layer in values]).T
            axes.plot(layers, [float(iqm(layer)) for layer in values], "o-", ms=4, color=colour, label=TASKS[name])
            axes.fill_between(layers, low, high, color=colour, alpha=0.15, lw=0)
    panels[0].set_title("relative share of group convolutions", fontsize="medium")
    panels[1].set_title("effective parameters of convolutions", fontsize="medium")
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(tasks), frameon=False)
    return figure


if __name__ == "__main__":
    main()
