"""Curves of a fit: errors and equivariance errors over steps, of all its seeds; runs side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rppdyn.jobs.config import compose
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.runs import RunFolder, read_metrics
from rppdyn.runs.figures import COLOURS, on_log_axis, save
from rppdyn.runs.statistics import bootstrap_interval, iqm

__all__ = ["compare_equivariance", "draw_horizons", "draw_members", "draw_rollouts", "fit_curves"]

PANELS: Mapping[str, Sequence[str]] = {
    "error": ("validation/error", "test/error"),
    "equivariance error": ("equivariance/error",),
}


def fit_curves(folder: RunFolder) -> Path:
    """Draw `figures/curves.png`: interquartile means over seeds, with their 95 % bootstrap intervals as bands."""
    records = read_metrics(folder.metrics.path)
    figure = Figure(figsize=(4.4 * len(PANELS), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        names = [name for name in names if name in records[-1]]
        for colour, name in zip(COLOURS, names, strict=False):
            steps, values = _over_steps(records, name)
            draw_members(axes, steps, values, colour, label=name.split("/")[0])
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("steps")
        _dress(axes, legend=len(names) > 1)
    return save(figure, folder.figures / "curves.png")


def compare_equivariance(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Draw the equivariance errors of fits through training: every member a thin line, their interquartile mean a thick one.

    Args:
        runs: folders of fits; one colour each.
        out: the picture; its suffix is the format (png, svg, pdf).
    Raises:
        ValueError: no runs, or a folder that is no fit's run or has no metrics yet.
    """
    if not runs:
        raise ConfigError("no runs to compare: give the folders of one fit or more")
    figure = Figure(figsize=(6.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for k, run in enumerate(runs):
        folder = RunFolder.open(run)
        config = compose.from_run(compose.name_of_run(folder), folder)
        if not isinstance(config, FitConfig):
            raise ConfigError(f"{run} is a run of {config.verb}: give runs of fits")
        records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
        if not records:
            raise ConfigError(f"{run} has no metrics yet: leave it out, or let it run first")
        steps, values = _over_steps(records, "equivariance/error")
        members = (
            f"{len(values)} members" if len(values) == config.seeds else f"{len(values)} of {config.seeds} members"
        )
        label = f"{config.task_name}, {config.model_name} ({members})"
        draw_members(axes, steps / config.steps_per_epoch, values, COLOURS[k % len(COLOURS)], label=label, each=True)
    axes.set_xlabel("epochs")
    axes.set_ylabel("equivariance error")
    _dress(axes, legend=True)
    return save(figure, Path(out))


def draw_members(
    axes: Axes,
    x: NDArray,
    values: Float[np.ndarray, "members points"],
    colour: str,
    *,
    label: str | None = None,
    style: str = "-",
    each: bool = False,
) -> None:
    """Draw the interquartile mean of some curves with its 95 % bootstrap interval as a band; `each` adds them as thin lines.

    The axis is logarithmic: what is zero is not drawn.
    """
    if not values.size:
        return
    if each and len(values) > 1:
        axes.plot(x, on_log_axis(values).T, style, color=colour, lw=0.6, alpha=0.45)
    marker = "." if len(x) < 3 else ""
    axes.plot(x, on_log_axis(iqm(values)), style, marker=marker, color=colour, lw=2.2 if each else 1.6, label=label)
    if len(values) > 1:
        axes.fill_between(x, *on_log_axis(bootstrap_interval(values)), color=colour, alpha=0.18, lw=0)


def _over_steps(records: Sequence[Mapping[str, Any]], name: str) -> tuple[NDArray, NDArray]:
    """Steps, and the values of the members that have a number at each of them, ``(members, points)``."""
    points = [(record["step"], record[name]) for record in records if record.get(name)]
    values = np.array([value for _, value in points], dtype=float).T  # null becomes nan
    return np.array([step for step, _ in points]), values[~np.isnan(values).any(-1)] if len(values) else values


def _dress(axes: Axes, legend: bool) -> None:
    axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.lines:
        axes.legend(frameon=False, fontsize="small")


def draw_rollouts(curves: Mapping[str, Any], example: Mapping[str, Any], path: Path) -> Path:
    """Draw one trajectory beside the truth, and how errors grow and conserved quantities drift along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error``, ``energy_drift``, ``momentum_drift``, each over the times after
            the first; None for a seed whose rollouts all diverged.
        example: the states ``truth`` and ``found`` of one trajectory, ``(T, 12)``.
    """
    figure = Figure(figsize=(12.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 3, width_ratios=(1, 1.1, 1.1))
    space = figure.add_subplot(grid[0], projection="3d")
    for states, style, name in ((example["truth"], "-", "truth"), (example["found"], "--", "model")):
        for mass, colour in enumerate(COLOURS[:2]):
            x, y, z = np.array(states)[:, 3 * mass : 3 * mass + 3].T
            space.plot(x, y, z, style, color=colour, linewidth=0.9, label=f"mass {mass + 1}, {name}")
    space.set_title("one test trajectory", fontsize="medium")
    space.legend(frameon=False, fontsize="x-small", loc="upper left")
    times = np.array(curves["times"][1:])
    panels = {"relative error of the state": ("error",), "relative drift": ("energy_drift", "momentum_drift")}
    for place, (title, names) in zip((grid[1], grid[2]), panels.items(), strict=True):
        axes = figure.add_subplot(place)
        for colour, name in zip(COLOURS, names, strict=False):
            values = np.array([curve for curve in curves[name] if curve is not None])
            draw_members(axes, times, values, colour, label=name.replace("_drift", ""))
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("time, s")
        _dress(axes, legend=len(names) > 1)
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
    figure = Figure(figsize=(9.6, 1.6 + 0.2 * max(10, len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    growth, parts = figure.subplots(1, 2, width_ratios=(1, 1.2))
    errors = np.array(curves["error"])
    draw_members(growth, np.arange(1, errors.shape[1] + 1), errors, COLOURS[0])
    growth.set_title("relative error of the state", fontsize="medium")
    growth.set_xlabel("steps")
    _dress(growth, legend=False)
    for colour, horizon, row in zip(COLOURS, horizons, components, strict=False):
        parts.plot(row[shown], range(len(shown)), "o", color=colour, ms=4, label=f"step {horizon}")
    parts.set_yticks(range(len(shown)), [names[i] for i in shown], fontsize="x-small")
    parts.set_title("median error, standard deviations", fontsize="medium")
    parts.set_xlim(left=0)
    parts.grid(alpha=0.25)
    parts.spines[["top", "right"]].set_visible(False)
    if len(shown):
        parts.legend(frameon=False, fontsize="small", loc="lower right")
    return save(figure, path)
