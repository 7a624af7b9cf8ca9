"""Tables and figure of transition models: `python docs/results/transition.py RUNS... --out FILE.png --json FILE.json`.

Runs of `rppdyn fit-transition`. For each dataset: interquartile means over seeds with 95 % bootstrap intervals, in percent,
and paired ratios of each rpp's errors to the others' (`rppdyn.runs.statistics.paired_ratio`); of three seeds, each seed's.
The figure has the relative error over the steps of a rollout, a panel for each dataset.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from reading import figure_arguments, gather, keep, read

from rppdyn.runs import RunFolder, bootstrap_interval, iqm
from rppdyn.runs.figures import MODEL_COLOURS, draw_several, label_decades
from rppdyn.runs.statistics import FEW, paired_ratio

METRICS = {
    "10 steps": "test/error_10",
    "30 steps": "test/error_30",
    "100 steps": "test/error_100",
    "equivariance, rollout": "equivariance/rollout",
    "equivariance, one change": "equivariance/error",
}
MODELS = ("mlp", "mlp, augmented", "emlp", "rpp", "emlp, published", "rpp, published")
"""In the order of tables."""


def main() -> None:
    """Print the tables, as Markdown; draw and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs, read_with_curves)
    datasets: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        datasets.setdefault(dataset(run["config"]), {})[label(run["config"])] = run
    for name, results in datasets.items():
        datasets[name] = dict(sorted(results.items(), key=lambda item: MODELS.index(model(item[1]["config"]))))
        print_tables(name, datasets[name])
    keep(arguments, runs, partial(draw, datasets))


def read_with_curves(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, with its errors over steps."""
    return read(folder) | {"curves": json.loads((folder.path / "rollouts.json").read_text())}


def dataset(config: dict[str, Any]) -> str:
    """The environment that the dataset is named after."""
    return next(part for part in config["dataset"].split("/") if "-v" in part)


def model(config: dict[str, Any]) -> str:
    """Kind of network, augmentation, representation."""
    published = ", published" if config["variant"] == "published" else ""
    return config["model"]["kind"] + published + (", augmented" if config["task"]["augment"] else "")


def label(config: dict[str, Any]) -> str:
    """The model and, of relaxed ones, the variance of the free pathway."""
    variance = f", {config['model']['free_variance']:g}" if config["model"]["kind"] == "rpp" else ""
    return model(config) + variance


def print_tables(name: str, results: dict[str, dict[str, Any]]) -> None:
    """Errors with the settings they were found with, and ratios."""
    print(f"\n**{name}**\n")
    shown = {
        title: metric for title, metric in METRICS.items() if metric in next(iter(results.values()))["result"]["test"]
    }
    print("| model | " + " | ".join(shown) + " | rate, width, steps |")
    print("| --- |" + " ---: |" * len(shown) + " --- |")
    for key, run in results.items():
        config = run["config"]
        chunks = config["task"]["train"] // config["task"]["chunk"]
        steps = config["optimiser"]["epochs"] * -(-chunks // config["optimiser"]["batch_size"])
        settings = f"{config['optimiser']['learning_rate']:g}, {config['model']['hidden']}, {steps:,}"
        cells = [percent(run["result"]["test"][metric]) for metric in shown.values()]
        print(f"| {key} | " + " | ".join(cells) + f" | {settings} |")
    errors = [name for name in shown if name.endswith("steps")]
    print("\n| ratio of errors | " + " | ".join(errors) + " |\n| --- |" + " ---: |" * len(errors))
    for first in [key for key in results if key.startswith("rpp")]:
        for second in [key for key in results if not key.startswith("rpp") or ("published" in key and key != first)]:
            cells = []
            for name in errors:
                pairs = [results[key]["result"]["test"][METRICS[name]] for key in (first, second)]
                centre, (low, high) = paired_ratio(*pairs)
                each = np.divide(*pairs)
                cells.append(f"{centre:.2f}" + spread(each, ".2f", f" [{low:.2f}, {high:.2f}]"))
            print(f"| {first} / {second} | " + " | ".join(cells) + " |")


def percent(values: list[float]) -> str:
    """Interquartile mean and interval; zero to rounding is written so."""
    if max(values) < 1e-8:
        return "0"
    centre, (low, high) = 100 * float(iqm(values)), 100 * np.array(bootstrap_interval(values))
    return f"{centre:.3g}" + spread(100 * np.array(values), ".3g", f" [{low:.3g}, {high:.3g}]")


def spread(each: NDArray, shown: str, interval: str) -> str:
    """The interval; of few seeds each in its place, and of one nothing."""
    if len(each) > FEW:
        return interval
    return f" ({', '.join(format(value, shown) for value in each)})" if len(each) > 1 else ""


def draw(datasets: dict[str, dict[str, dict[str, Any]]]) -> Figure:
    """Relative error over steps, each model of each dataset."""
    columns = min(3, len(datasets))
    rows = -(-len(datasets) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, results) in zip(panels.flat, datasets.items(), strict=False):
        draw_panel(axes, results)
        axes.set_title(name, fontsize="medium")
    for axes in panels.flat[len(datasets) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("relative error, %")
    handles = {
        label: line for axes in panels.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in MODELS if name in handles]
    figure.legend([handles[n] for n in names], names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def draw_panel(axes: Axes, results: dict[str, dict[str, Any]]) -> None:
    """Means with each seed, or of many their intervals, both axes logarithmic; of several variances the best."""
    best: dict[str, dict[str, Any]] = {}
    for run in results.values():
        key = model(run["config"])
        if key not in best or np.mean(run["curves"]["error"]) < np.mean(best[key]["curves"]["error"]):
            best[key] = run
    for key, run in best.items():
        errors, colour = 100 * np.array(run["curves"]["error"]), MODEL_COLOURS[key]
        times = np.arange(1, errors.shape[1] + 1)
        draw_several(axes, times, errors, colour, label=key)
    axes.set(xscale="log", yscale="log", xlabel="steps")
    axes.set_xticks([1, 10, 30, 100], ["1", "10", "30", "100"])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    label_decades(axes.yaxis)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
