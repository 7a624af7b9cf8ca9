"""Learning curves of both parametrisations: `python docs/results/parametrisations.py RUNS... --cost FILE` (--out, --json).

Fits and agents, a panel for each task over steps, that is at equal data, and one over processor time: steps times the median
processor time of a step (`benchmarks/parametrisations.py`, whose raw times are `--cost`). Lines are means over seeds, thin
ones and points the seeds. Printed are the errors and returns at the end, by seed, and what each model has reached at the time
at which the fastest ends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import figure_arguments, gather, keep, read

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS
from rppdyn.runs.metrics import read_metrics

RATE = 3e-3  # of fits, unless another is given


class Curve(NamedTuple):
    """What a model reached, by seed, at each of its steps."""

    steps: np.ndarray
    values: np.ndarray  # (seeds, steps)


def read_with_metrics(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, with all metrics."""
    return read(folder) | {"metrics": read_metrics(folder.metrics.path)}


def curves(runs: list[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """By task and model; runs of single seeds of one model are put together."""
    found: dict[str, dict[str, list[Curve]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        task, metric = subject(run["config"])
        records = [r for r in run["metrics"] if r.get(metric) is not None]
        values = np.array([np.atleast_1d(r[metric]) for r in records], dtype=float).T
        found[task][model(run["config"])].append(Curve(np.array([r["step"] for r in records]), values))
    return {
        task: {name: Curve(each[0].steps, np.concatenate([c.values for c in each])) for name, each in models.items()}
        for task, models in found.items()
    }


def subject(config: dict[str, Any]) -> tuple[str, str]:
    """The task's name in titles, and what its runs are judged by."""
    if "env" in config:
        return config["env"]["id"], "eval/return_mean"
    group = config["task"].get("group")
    return config["task"]["name"] + (f" for {group}" if group else ""), "test/error"


def model(config: dict[str, Any]) -> str:
    """Kind or parametrisation, free variance, and the learning rate where it is not the usual one."""
    if config["model"]["kind"] == "mlp":
        return "mlp"
    name = f"{config['model'].get('parametrisation', 'pathways')}, {config['model']['free_variance']:g}"
    rate = config.get("optimiser", {}).get("learning_rate", RATE)
    return name if rate == RATE else f"{name}, rate {rate:g}"


def cost(times: dict[str, Any], task: str, name: str) -> float:
    """Processor time of one step in seconds, the median; of a model under whatever variance."""
    title = next((t for t in sorted(times, key=len) if t.startswith(f"{task}, ")), "inertia, step of a fit")
    kind = name if name == "mlp" else f"rpp, {name.partition(',')[0]}"
    return float(np.median(next(t["cpu"] for t in times[title] if t["name"] == kind)))


def looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """A colour for each variance, and for the ordinary network; dense weights are drawn dashed."""
    variances = sorted({name.partition(", ")[2] for name in names})
    return {
        name: dict(
            color=COLOURS[variances.index(name.partition(", ")[2])], ls="--" if name.startswith("dense") else "-"
        )
        for name in names
    }


def draw(axes: Axes, x: np.ndarray, curve: Curve, look: dict[str, Any], label: str) -> None:
    """The mean over seeds, and each seed thinly, with a point at its end."""
    for values in curve.values:
        axes.plot(x, values, lw=0.5, alpha=0.4, **look)
        axes.plot(x[-1:], values[-1:], ".", ms=4, color=look["color"], alpha=0.6)
    axes.plot(x, curve.values.mean(0), lw=1.6, label=label, **look)


def main() -> None:
    """Draw, print and write."""
    arguments = figure_arguments(__doc__, "--cost")
    times = json.loads(Path(arguments.cost).read_text(encoding="utf-8"))["times"]
    runs = gather(arguments.runs, read_with_metrics)
    found = curves(runs)
    figure = Figure(figsize=(3.1 * len(found), 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(found), squeeze=False)
    for (task, models), (above, below) in zip(found.items(), panels.T, strict=True):
        style = looks(list(models))
        spent = {name: curve.steps * cost(times, task, name) for name, curve in models.items()}
        for name, curve in models.items():
            draw(above, curve.steps, curve, style[name], name)
            draw(below, spent[name], curve, style[name], name)
        above.set_title(task, fontsize="small")
        above.set_xlabel("steps")
        below.set_xlabel("processor time of updates, s")
        for axes in (above, below):
            axes.set_yscale("linear" if "-v" in task else "log")
            axes.set_ylabel("return" if "-v" in task else "test error")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        above.legend(fontsize="x-small", frameon=False)
        least = min(t[-1] for t in spent.values())
        print(f"\n| {task} | seeds at the end | mean | at {least:.0f} s |\n| --- | --- | --- | --- |")
        for name, curve in sorted(models.items()):
            reached = curve.values[:, np.searchsorted(spent[name], least * 1.001, side="right") - 1].mean()
            each = ", ".join(f"{v:.3g}" for v in curve.values[:, -1])
            print(f"| {name} | {each} | {curve.values[:, -1].mean():.3g} | {reached:.3g} |")
    keep(arguments, runs, lambda: figure)


if __name__ == "__main__":
    main()
