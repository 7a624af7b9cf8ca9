"""Figures of fits over a range: `python docs/results/sweeps.py (wind | data) RUNS... --out FILE.png --json FILE.json`.

`wind`: errors and equivariance errors of Hamiltonian networks over the wind's strength, the rank correlation of the relaxed
network's equivariance error with the wind, and its error beside that of the better of the other two at each strength. `data`:
errors over the number of training data, with the smallest and the largest of few seeds in the table. Interquartile means over
seeds with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import gather
from scipy.stats import spearmanr

from rppdyn.envs.tasks import Pendulum, load_trajectories
from rppdyn.equivariance import equivariance_error
from rppdyn.groups import O2eR3
from rppdyn.runs import bootstrap_interval, iqm
from rppdyn.runs.figures import MODEL_COLOURS, label_decades
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio

Curves = dict[str, dict[float, list[float]]]  # values over seeds, by model and by what varies


def main() -> None:
    """Draw, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("wind", "data"))
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", required=True)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    runs = gather(arguments.runs)
    figure = wind(runs) if arguments.what == "wind" else data(runs)
    figure.savefig(arguments.out, dpi=150)
    if arguments.json:
        write_json(Path(arguments.json), runs)


def curves(runs: list[dict[str, Any]], metric: str, key: str) -> Curves:
    """A metric of each model over `task.KEY`; runs of other seeds are put together."""
    found: dict[str, dict[float, list[float]]] = defaultdict(partial(defaultdict, list))
    for run in sorted(runs, key=lambda run: run["config"]["seed"]):
        name = run["config"]["model"]["kind"] + (", augmented" if run["config"]["task"].get("augment") else "")
        found[name][run["config"]["task"][key]] += run["result"]["test"][metric]
    return {name: dict(sorted(points.items())) for name, points in sorted(found.items())}


def draw(axes: Axes, found: Curves, title: str, xlabel: str) -> None:
    """Interquartile means with intervals, on a logarithmic scale."""
    for name, points in found.items():
        x, colour = np.array(list(points)), MODEL_COLOURS[name]
        low, high = np.array([bootstrap_interval(values) for values in points.values()]).T
        axes.plot(x, [float(iqm(values)) for values in points.values()], "o-", ms=3.5, color=colour, label=name)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    axes.set(xlabel=xlabel, yscale="log")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def wind(runs: list[dict[str, Any]]) -> Figure:
    """Two panels over the wind's strength."""
    errors, broken = (curves(runs, name, "wind") for name in ("test/error", "equivariance/error"))
    broken.pop("emlp")  # zero to rounding
    truth = true_errors(runs)
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    draw(left, errors, "test error", "wind, eps")
    draw(right, broken, "equivariance error of the vector field", "wind, eps")
    right.plot(list(truth), list(truth.values()), "k:", lw=1.2)
    right.annotate("truth", list(truth.items())[-1], xytext=(0, 4), textcoords="offset points", ha="right")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    for axes in (left, right):
        axes.set_xticks(list(errors["rpp"]), [f"{eps:g}" * (eps != 0.01) for eps in errors["rpp"]], fontsize="x-small")
    label_decades(left.yaxis)
    right.set_yscale("linear")
    learned = {eps: float(iqm(values)) for eps, values in broken["rpp"].items()}
    print(
        f"rank correlation of wind and equivariance error: {spearmanr(list(learned), list(learned.values())).statistic:.3f}"
    )
    print("| eps | rpp | mlp | emlp | rpp / better of the two | equivariance error: rpp | truth |\n|" + " --- |" * 7)
    for eps, values in errors["rpp"].items():
        others = {name: errors[name][eps] for name in ("mlp", "emlp")}
        best = min(others.values(), key=lambda v: float(iqm(v)))
        ratio, (low, high) = paired_ratio(*zip(*zip(values, best, strict=False), strict=True))
        cells = [f"{float(iqm(v)):.3g}" for v in (values, others["mlp"], others["emlp"])]
        broken_by = f"{learned[eps]:.3g} | {truth[eps]:.3g}"
        print(f"| {eps:g} | {' | '.join(cells)} | {ratio:.2f} [{low:.2f}, {high:.2f}] | {broken_by} |")
    return figure


def true_errors(runs: list[dict[str, Any]]) -> dict[float, float]:
    """:func:`true_error` by the wind's strength, kept with the runs: it takes some seconds for each."""
    found = {run["config"]["task"]["wind"]: run["true_error"] for run in runs if "true_error" in run}
    for run in runs:
        eps = run["config"]["task"]["wind"]
        if eps not in found:
            found[eps] = true_error(eps)
        run["true_error"] = found[eps]
    return dict(sorted(found.items()))


def true_error(eps: float) -> float:
    """The equivariance error of the pendulum's own vector field, measured as that of the models is, on seed 0's test data."""
    pendulum = Pendulum(k2=2.0, wind=eps)
    z, rep = load_trajectories(pendulum, n_train=0, n_validation=0).test[:200, 0], pendulum.rep(O2eR3())
    return equivariance_error(pendulum.vector_field, rep, rep, z, n_samples=4).mean


def best_by_validation(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of runs that differ in the free variance alone, the one with the smallest mean validation error."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: -np.mean(run["result"]["test"]["validation/error"])):
        task = run["config"]["task"]
        found[task["name"], task["group"], task["train"], task["augment"], run["config"]["model"]["kind"]] = run
    return list(found.values())


def data(runs: list[dict[str, Any]]) -> Figure:
    """A panel over the number of data for each task; those under another group than their own are in the table alone."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in best_by_validation(runs):
        task = run["config"]["task"]
        by_task[task["name"] + (f", {task['group']}" if task["group"] else "")].append(run)
    found = {}
    for task, own in sorted(by_task.items()):
        found[task] = curves(own, "test/error", "train")
        print(f"\n| {task} | " + " | ".join(found[task]) + " |\n| --- |" + " --- |" * len(found[task]))
        for n in sorted({n for points in found[task].values() for n in points}):
            cells = [
                f"{float(iqm(p[n])):.3g} ({min(p[n]):.3g}, {max(p[n]):.3g})" if n in p else "-"
                for p in found[task].values()
            ]
            print(f"| {n:,} | " + " | ".join(cells) + " |")
    found = {task: models for task, models in found.items() if "," not in task}
    sizes = sorted({run["config"]["task"]["train"] for run in runs})
    figure = new_figure()
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (task, models) in zip(panels, found.items(), strict=True):
        draw(axes, models, f"{task}: test error", "training data")
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.set_xlim(0.7 * sizes[0], 1.4 * sizes[-1])
        axes.xaxis.minorticks_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def new_figure() -> Figure:
    """An empty one."""
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


if __name__ == "__main__":
    main()
