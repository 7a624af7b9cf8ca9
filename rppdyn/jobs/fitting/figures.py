"""Curves of a fit: errors and equivariance errors over steps, of all its seeds; runs side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rppdyn.jobs.config import compose
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.config.labels import flattened, model_of, setting, value_of
from rppdyn.runs import RunFolder, differences, read_metrics
from rppdyn.runs.figures import (
    COLOURS,
    draw_several,
    label_decades,
    leave_empty,
    legend_below,
    looks_of,
    over_seeds,
    save,
)
from rppdyn.runs.files import plain

__all__ = ["compare_equivariance", "draw_horizons", "draw_rollouts", "draw_trajectory", "fit_curves"]

PANELS: Mapping[str, Sequence[str]] = {
    "error": ("validation/error", "test/error"),
    "equivariance error": ("equivariance/error",),
}


def fit_curves(folder: RunFolder) -> Path:
    """Draw `figures/curves.png`: interquartile means over seeds, with their 95 % bootstrap intervals as bands; of few, each."""
    config, records = _read(folder)
    kept = _kept(records)
    panels = {title: [name for name in names if name in records[-1]] for title, names in PANELS.items()}
    panels = {title: names for title, names in panels.items() if names}
    figure = Figure(figsize=(4.4 * len(panels), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for colour, name in zip(COLOURS, names, strict=False):
            epochs, values = _over_epochs(records, name, kept, config)
            draw_several(axes, epochs, values, colour, label=name.split("/")[0])
        axes.set_xlabel("epochs")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        _dress(axes, title, legend=len(names) > 1, kept=int(kept.sum()), seeds=len(kept))
    above = [f"{config.task_name}, {config.model_name}", *over_seeds([int(kept.sum())])]
    figure.suptitle("\n".join(above), fontsize="medium")
    return save(figure, folder.figures / "curves.png")


def compare_equivariance(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Draw the equivariance errors of fits through training: every member a thin line, their interquartile mean a thick one.

    Members that diverged are left out, and counted in the legend.

    Args:
        runs: folders of fits; one colour each, and after seven of them another style of line.
        out: the picture; its suffix is the format (png, svg, pdf).
    Raises:
        ValueError: no runs, or a folder that is no fit's run or has no metrics yet.
    """
    if not runs:
        raise ConfigError("no runs to compare: give the folders of one fit or more")
    read = [_read(RunFolder.open(run)) for run in runs]
    configs = [config for config, _ in read]
    names = _names(configs)
    width = max(6.6, 1.8 + 0.07 * max(map(len, names)))  # of the longest entry of the legend
    figure = Figure(figsize=(width, 4.0 + 0.2 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    looks = looks_of([model_of(flattened(plain(asdict(config)))) for config in configs])
    for (config, records), name, (colour, style) in zip(read, names, looks, strict=True):
        kept = _kept(records)
        some = "" if kept.all() else f"{kept.sum()} of "
        label = f"{name} ({some}{_members(len(kept))})"
        epochs, values = _over_epochs(records, "equivariance/error", kept, config)
        draw_several(axes, epochs, values, colour, label=label, style=style, each=True)
        if not kept.any():
            axes.plot([], [], style, color=colour, label=label)
    axes.set_xlabel("epochs")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_ylabel("equivariance error")
    _dress(axes, "", legend=False)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return save(figure, Path(out))


def _read(folder: RunFolder) -> tuple[FitConfig, list[dict[str, Any]]]:
    """The configuration and the metrics of a fit."""
    config = compose.from_run(compose.name_of_run(folder), folder)
    if not isinstance(config, FitConfig):
        raise ConfigError(f"{folder.path} is a run of {config.verb}: give runs of fits")
    if config.verb == "bound":
        raise ConfigError(
            f"{folder.path} is a run of bound: it has its own figure, figures/bound.png; give runs of fits"
        )
    records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
    if not records:
        raise ConfigError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
    return config, records


def _names(configs: Sequence[FitConfig]) -> list[str]:
    """Task and model of each, and where both are the same for several, the settings in which these differ."""
    names = [f"{config.task_name}, {config.model_name}" for config in configs]
    settings = [flattened(plain(asdict(config))) | {"seed": config.seed} for config in configs]
    for i, name in enumerate(names):
        namesakes = [other for config, other in zip(configs, settings, strict=True)
                     if f"{config.task_name}, {config.model_name}" == name]  # fmt: skip
        varied = {key for other in namesakes for key, _, _ in differences(settings[i], other)}
        parts = [setting(key, value_of(settings[i], key)) for key in sorted(varied)]
        names[i] = " ".join(filter(None, [name, *parts]))
    return names


def _members(count: int) -> str:
    return f"{count} member" + "s" * (count != 1)


def _kept(records: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """Which members have not diverged: those whose errors are numbers at the end."""
    last = [records[-1][name] for names in PANELS.values() for name in names if records[-1].get(name)]
    return ~np.isnan(np.array(last, dtype=float)).any(0)  # null becomes nan


def _over_epochs(
    records: Sequence[Mapping[str, Any]], name: str, kept: NDArray[np.bool_], config: FitConfig
) -> tuple[NDArray, NDArray]:
    """Epochs, and the values of these members ``(members, points)`` at those where all of them have a number."""
    points = [(record["step"], record[name]) for record in records if record.get(name)]
    steps, values = np.array([step for step, _ in points]), np.array([own for _, own in points], dtype=float)
    values = values.reshape(len(points), len(kept))[:, kept].T
    known = ~np.isnan(values).any(0)
    return steps[known] / config.steps_per_epoch, values[:, known]


def _dress(axes: Axes, title: str, *, legend: bool, kept: int = 1, seeds: int = 1) -> None:
    """Scale, title and legend of a panel that shows so many of the seeds."""
    axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title + (f" ({kept} of {seeds} seeds)" if 0 < kept < seeds else ""), fontsize="medium")
    if not kept:
        leave_empty(axes, f"{seeds} of {seeds} diverged")
    else:
        label_decades(axes.yaxis)
        if legend:
            legend_below(axes, 2)


QUANTITIES = {
    "relative error of the state": {"error": ""},
    "relative drift": {"energy_drift": "energy", "momentum_drift": "angular momentum about the vertical"},
}


def draw_rollouts(curves: Mapping[str, Any], example: Mapping[str, Any], path: Path) -> Path:
    """Draw one trajectory beside the truth, and how errors grow and conserved quantities drift along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error``, ``energy_drift``, ``momentum_drift``, each over the times after
            the first; None for a seed whose rollouts all diverged.
        example: the states ``truth`` and, of the first seed's model, ``found`` of one trajectory, ``(T, 12)``.
    """
    figure = Figure(figsize=(13.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 3, width_ratios=(1.1, 1, 1))
    _draw_space(figure.add_subplot(grid[0], projection="3d"), example)
    times = np.array(curves["times"][1:])
    for place, (title, names) in zip((grid[1], grid[2]), QUANTITIES.items(), strict=True):
        axes = figure.add_subplot(place)
        for colour, (name, called) in zip(COLOURS, names.items(), strict=False):
            values = np.array([curve for curve in curves[name] if curve is not None])
            draw_several(axes, times, values, colour, label=called)
        axes.set_xlabel("time, s")
        _dress(axes, title, legend=len(names) > 1, kept=len(values), seeds=len(curves["error"]))
    return save(figure, path)


def _draw_space(axes: Any, example: Mapping[str, Any]) -> None:
    """Both masses in space, the true ones and the model's as long as it stays near them."""
    truth, found = (np.array(example[name], dtype=float)[:, :6].reshape(-1, 2, 3) for name in ("truth", "found"))
    low, high = truth.min((0, 1)), truth.max((0, 1))
    margin = 0.25 * (high - low).max()
    low, high = low - margin, high + margin
    found[~((low <= found) & (found <= high)).all(-1)] = np.nan
    for states, style, name in ((truth, "-", "truth"), (found, "--", "model")):
        for mass, colour in enumerate(COLOURS[:2]):
            axes.plot(*states[:, mass].T, style, color=colour, linewidth=0.9, label=f"mass {mass + 1}, {name}")
    axes.set(xlabel="x, m", ylabel="y, m", zlabel="z, m")
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    axes.set_title("a test trajectory, and the first seed's model", fontsize="medium")
    axes.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=2)


COORDINATES = 6
"""In a figure of a trajectory, the first ones."""


def draw_trajectory(curves: Mapping[str, Any], example: Mapping[str, Any], names: Sequence[str], path: Path) -> Path:
    """Draw one trajectory beside the truth, coordinate by coordinate, and how errors grow along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error`` over the times after the first; None for a seed that diverged.
        example: ``times``, and the states ``truth`` and, of the first seed's model, ``found`` of one trajectory.
    """
    shown = names[:COORDINATES]
    columns = 2 if len(shown) > 1 else 1
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(4.4 + 3.8 * columns, 1.2 + 1.7 * max(2, rows)), layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(1, 2, width_ratios=(3.8 * columns, 4.4))
    left, right = parts
    truth, found = np.array(example["truth"], dtype=float), np.array(example["found"], dtype=float)
    lost = (np.abs(found - truth) > 2 * np.ptp(truth, axis=0)).any(1)
    found[np.maximum.accumulate(lost)] = np.nan  # once it has left the picture it has no meaning
    grid = left.subplots(rows, columns, squeeze=False, sharex=True)
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.axis("off")
            continue
        margin = 0.3 * np.ptp(truth[:, place]) or 1.0
        axes.plot(example["times"], truth[:, place], color=COLOURS[0], label="truth")
        axes.plot(example["times"], found[:, place], "--", color=COLOURS[1], label="model")
        axes.set_ylim(truth[:, place].min() - margin, truth[:, place].max() + margin)
        axes.set_title(shown[place], fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    for axes in grid[-1]:
        axes.set_xlabel("time, s")
    grid[0, 0].legend(frameon=False, fontsize="x-small")
    left.suptitle("a test trajectory, and the first seed's model", fontsize="medium")
    growth = right.subplots()
    values = np.array([curve for curve in curves["error"] if curve is not None])
    draw_several(growth, np.array(curves["times"][1:]), values, COLOURS[0])
    growth.set_xlabel("time, s")
    _dress(growth, "relative error of the state", legend=False, kept=len(values), seeds=len(curves["error"]))
    return save(figure, path)


SHOWN = 16
"""Components in a figure, those with the largest errors."""


def draw_horizons(curves: Mapping[str, Any], path: Path) -> Path:
    """Draw how the relative error of transition models grows along rollouts, and which components it is made of.

    Args:
        curves: ``error``, over steps 1, 2, ... of each seed; ``components``, median absolute ``errors`` of the features called
            ``names`` in units of their standard deviation, one row for each of the ``horizons``.
    """
    names, horizons = curves["components"]["names"], curves["components"]["horizons"]
    components = np.array(curves["components"]["errors"])
    shown = np.argsort(components[-1])[-SHOWN:] if len(components) else np.zeros(0, dtype=int)
    widths = (4.4, 5.2) if len(shown) else (4.4,)
    figure = Figure(figsize=(sum(widths), 1.6 + 0.2 * max(10, len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    growth, *others = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    errors = np.array(curves["error"])
    draw_several(growth, np.arange(1, errors.shape[1] + 1), errors, COLOURS[0])
    growth.set_xlabel("steps")
    growth.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _dress(growth, "relative error of the state", legend=False)
    for parts in others:
        for colour, horizon, row in zip(COLOURS, horizons, components, strict=False):
            parts.plot(row[shown], range(len(shown)), "o", color=colour, ms=4, label=f"step {horizon}")
        parts.set_yticks(range(len(shown)), [names[i] for i in shown], fontsize="x-small")
        parts.set_title("median error, standard deviations", fontsize="medium")
        parts.set_xlim(left=0)
        parts.grid(alpha=0.25)
        parts.spines[["top", "right"]].set_visible(False)
        parts.legend(frameon=False, fontsize="small", loc="lower right")
    return save(figure, path)
