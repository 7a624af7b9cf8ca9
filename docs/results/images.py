"""Tables and figure of image models: `python docs/results/images.py RUNS... [--out FILE.png] [--json FILE.json]`.

Runs of `rppdyn fit-image`. For each task: interquartile means over seeds with 95 % bootstrap intervals, accuracies in percent
(of a regression root mean squared errors in standard deviations), and how many points a model with learned variances is ahead
of the others, paired by seed. Then the published table of its pathways (van der Ouderaa, Immer & van der Wilk 2023, Table 4)
and mean shares (their Table 3). The figure has the accuracies of tasks for which variances were learned, and the effective
numbers of parameters.
"""

from __future__ import annotations

from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import figure_arguments, gather, keep

from rppdyn.runs import bootstrap_interval, iqm
from rppdyn.runs.figures import COLOURS

Runs = dict[str, dict[str, Any]]  # by label


def main() -> None:
    """Print the tables, as Markdown; draw and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs)
    tasks: dict[str, Runs] = {}
    for run in runs:
        tasks.setdefault(run["config"]["task"]["name"], {})[label(run["config"])] = run
    print_structures(tasks)
    for task, models in tasks.items():
        print_scores(task, models)
    for task, models in tasks.items():
        for name, run in models.items():
            if run["result"]["pathways"]:
                print_pathways(f"{task}, {name}", run["result"]["pathways"])
    keep(arguments, runs, partial(draw, tasks))


def label(config: dict[str, Any]) -> str:
    """The model, how it is subsampled and fitted, of a free pathway beside others variance and size; the rate, a warm-up.

    "Falling" are weights that fall with their variance.
    """
    model = config["model"]
    present = {name: variance for name, variance in model["pathways"].items() if variance}
    free = [f"{present[name]:g}" for name in ("fc", "f_fc") if name in present and len(present) > 1]
    fitted = ", learned from" if learned(config) else ","
    if learned(config) and config["marginal_likelihood"].get("shrink"):  # which older runs have no key for
        fitted = ", learned, falling, from"
    rate = f", rate {config['optimiser']['learning_rate']:g}"
    if epochs := config["optimiser"].get("warm_up"):  # which older runs have no key for
        rate += f" after {epochs} of warm-up"
    grid = ", polyphase" if model["architecture"] == "small" else ""
    return model["name"] + grid + (f"{fitted} variance {free[0]}, size {model['free_scale']:g}" if free else "") + rate


def learned(config: dict[str, Any]) -> bool:
    return config["objective"] == "marginal_likelihood"


def scores(run: dict[str, Any]) -> np.ndarray:
    """Accuracies in percent over seeds; errors of a regression."""
    errors = np.array(run["result"]["test"]["test/error"])
    return errors if regression(run) else 100 * (1 - errors)


def regression(run: dict[str, Any]) -> bool:
    return "test/nll" not in run["result"]["test"]


def interval(values: np.ndarray, digits: int = 1) -> str:
    """Interquartile mean and bootstrap interval."""
    low, high = bootstrap_interval(values)
    return f"{float(iqm(values)):.{digits}f} [{float(low):.{digits}f}, {float(high):.{digits}f}]"


def print_scores(task: str, models: Runs) -> None:
    """Errors and likelihoods, and what the learned ones are ahead by."""
    is_regression = regression(next(iter(models.values())))
    measure = "error" if is_regression else "accuracy, %"
    print(f"\n**{task}**\n\n| model | {measure} | nll | shift error | width, epochs |")
    print("| --- | ---: | ---: | ---: | --- |")
    for name, run in models.items():
        test, config = run["result"]["test"], run["config"]
        nll = "-" if is_regression else interval(np.array(test["test/nll"]), 2)
        broken = interval(np.array(test["equivariance/error"]), 3)
        optimiser = config["optimiser"]
        settings = f"{config['model']['width']}, {optimiser['epochs']}"
        print(f"| {name} | {interval(scores(run), 3 if is_regression else 1)} | {nll} | {broken} | {settings} |")
    ours = {name: run for name, run in models.items() if learned(run["config"])}
    if not ours or len(models) == len(ours):
        return
    print(f"\n| points ahead of | {' | '.join(ours)} |\n| --- |" + " ---: |" * len(ours))
    for name, run in models.items():
        if name not in ours:
            print(f"| {name} | " + " | ".join(interval(scores(one) - scores(run)) for one in ours.values()) + " |")


def print_structures(tasks: dict[str, Runs]) -> None:
    """Published Table 3.1: two fixed structures and their sum with given variances, a line for each task that has the three."""
    lines = []
    for task, models in tasks.items():
        own = {run["config"]["model"]["name"]: scores(run) for run in models.values() if not learned(run["config"])}
        if not own.keys() >= {"fc", "conv", "fc+conv"}:
            continue
        is_error = regression(next(iter(models.values())))
        fc, conv, both = (own[name] for name in ("fc", "conv", "fc+conv"))
        best = max(fc, conv, key=lambda values: float(iqm(values)) * (-1 if is_error else 1))
        behind = interval(100 * (both / best - 1)) + " %" if is_error else interval(best - both) + " points"
        cells = [interval(values, 3 if is_error else 1) for values in (fc, conv, both)]
        lines.append(f"| {task} | {' | '.join(cells)} | {behind} |")
    if lines:
        print("\n| | fc | conv | fc+conv | behind the better |\n| --- | ---: | ---: | ---: | ---: |")
        print("\n".join(lines))


def print_pathways(title: str, rows: list[dict[str, Any]]) -> None:
    """Published Table 4: a line for each layer, medians over seeds, biases left out, and the effective numbers themselves."""
    rows = maps(rows)
    names = list(dict.fromkeys(row["pathway"] for row in rows))
    columns = ("precision", "norm", "effective", "normalised", "relative")
    heads = [f"{column} {name}" for column in columns for name in names]
    print(f"\n**{title}**\n\n| layer | {' | '.join(heads)} |\n| --- |" + " ---: |" * len(heads))
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = {row["pathway"]: row for row in rows if row["layer"] == layer}
        cells = [
            f"{np.median(own[name][column]):.2g}" if column != "effective" else extent(own[name][column])
            for column in columns
            for name in names
        ]
        print(f"| {layer} | {' | '.join(cells)} |")
    for name in names:
        shares = np.array([row["relative"] for row in rows if row["pathway"] == name])  # (layers, seeds)
        print(f"\n{name}: relative, mean over layers {interval(100 * shares.mean(0))} %, of layers "
              f"{100 * shares.min():.0f} to {100 * shares.max():.0f} %")  # fmt: skip


def maps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pathways without biases, which the published shares leave out."""
    rows = [row for row in rows if row["pathway"] != "bias"]
    total = {row["layer"]: 0 for row in rows}
    for row in rows:
        total[row["layer"]] = total[row["layer"]] + np.array(row["normalised"])
    return [
        row | {"relative": np.array(row["normalised"]) / np.where(total[row["layer"]] > 0, total[row["layer"]], 1)}
        for row in rows
    ]


def extent(values: list[float]) -> str:
    """Interquartile mean and range."""
    return f"{float(iqm(values)):.3g} ({min(values):.2g} to {max(values):.2g})"


def draw(tasks: dict[str, Runs]) -> Figure:
    """Accuracies of the tasks with learned variances, and effective numbers of parameters there, by layer."""
    shown = {task: models for task, models in tasks.items() if any(learned(run["config"]) for run in models.values())}
    figure = Figure(figsize=(4.6 * len(shown), 9.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(shown), squeeze=False)
    for (above, below), (task, models) in zip(panels.T, shown.items(), strict=True):
        draw_scores(above, models)
        above.set_title(task, fontsize="medium")
        for name, run in models.items():
            if learned(run["config"]):  # of several the last
                below.clear()
                draw_effective(below, run["result"]["pathways"])
                below.set_title(fill(name, 60), fontsize="x-small")
        above.set_xlabel("accuracy, %")
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    panels[1, 0].set_ylabel("effective number of parameters")
    return figure


def draw_scores(axes: Axes, models: Runs) -> None:
    """A bar a model, a point a seed."""
    for i, run in enumerate(models.values()):
        values = scores(run)
        axes.barh(i, float(iqm(values)), color=COLOURS[1 if learned(run["config"]) else 0], alpha=0.75)
        axes.plot(values, [i] * len(values), "k.", ms=3)
    axes.set_yticks(range(len(models)), [fill(name, 26) for name in models], fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_effective(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """A line a pathway over layers, a point a seed."""
    rows = maps(rows)
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    for name, colour in zip(dict.fromkeys(row["pathway"] for row in rows), COLOURS, strict=False):
        own = [row for row in rows if row["pathway"] == name]
        at = [layers.index(row["layer"]) for row in own]
        axes.plot(at, [float(iqm(row["effective"])) for row in own], "o-", ms=4, color=colour, label=name)
        for x, row in zip(at, own, strict=True):
            axes.plot([x] * len(row["effective"]), row["effective"], ".", color=colour, ms=4, alpha=0.6)
    axes.set_xticks(range(len(layers)), [layer.replace("blocks.", "layer ") for layer in layers], fontsize="x-small")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
