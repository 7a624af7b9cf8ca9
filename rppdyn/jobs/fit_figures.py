"""Curves of a fit: errors and equivariance errors over epochs, of all its seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rppdyn.runs import RunFolder, read_metrics
from rppdyn.runs.figures import COLOURS, SMALLEST
from rppdyn.runs.statistics import bootstrap_interval, iqm

__all__ = ["draw_rollouts", "fit_curves"]

PANELS: Mapping[str, Sequence[str]] = {
    "error": ("train/error", "validation/error", "test/error"),
    "equivariance error": ("equivariance/error",),
}


def fit_curves(folder: RunFolder) -> Path:
    """Draw `figures/curves.png`: interquartile means over seeds, with their 95 % bootstrap intervals as bands."""
    records = read_metrics(folder.metrics.path)
    figure = Figure(figsize=(4.4 * len(PANELS), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for colour, name in zip(COLOURS, names, strict=False):
            _draw(axes, records, name, colour)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("steps")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(names) > 1:
            axes.legend(frameon=False, fontsize="small")
    return save(figure, folder.figures / "curves.png")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{path.name}")
    figure.savefig(temporary, dpi=150)
    os.replace(temporary, path)
    return path


def _draw(axes: Any, records: Sequence[Mapping[str, Any]], name: str, colour: str) -> None:
    points = [(r["step"], r[name]) for r in records if r.get(name) and None not in r[name]]
    if not points:
        return
    steps = [step for step, _ in points]
    values = np.array([value for _, value in points]).T  # (seeds, points)
    axes.plot(steps, np.maximum(iqm(values), SMALLEST), color=colour, label=name.split("/")[0])
    if len(values) > 1:
        low, high = bootstrap_interval(values)
        axes.fill_between(steps, np.maximum(low, SMALLEST), np.maximum(high, SMALLEST), color=colour, alpha=0.15, lw=0)


def draw_rollouts(curves: Mapping[str, Any], example: Mapping[str, Any], path: Path) -> Path:
    """Draw one trajectory beside the truth, and how errors grow and conserved quantities drift along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error``, ``energy_drift``, ``momentum_drift``, each over the times after
            the first; None for a seed whose rollouts all diverged.
        example: ``times``, and the states ``truth`` and ``found`` of one trajectory, ``(T, 12)``.
    """
    figure = Figure(figsize=(12.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 3, width_ratios=(1, 1.1, 1.1))
    space = figure.add_subplot(grid[0], projection="3d")
    for states, style, name in ((example["truth"], "-", "truth"), (example["found"], "--", "model")):
        for mass, colour in enumerate(COLOURS[:2]):
            x, y, z = states[:, 3 * mass : 3 * mass + 3].T
            space.plot(x, y, z, style, color=colour, linewidth=0.9, label=f"mass {mass + 1}, {name}")
    space.set_title("one test trajectory", fontsize="medium")
    space.legend(frameon=False, fontsize="x-small", loc="upper left")
    times = curves["times"][1:]
    panels = {"relative error of the state": ("error",), "relative drift": ("energy_drift", "momentum_drift")}
    for place, (title, names) in zip((grid[1], grid[2]), panels.items(), strict=True):
        axes = figure.add_subplot(place)
        for colour, name in zip(COLOURS, names, strict=False):
            values = np.array([curve for curve in curves[name] if curve is not None])
            if len(values):
                axes.plot(times, np.maximum(iqm(values), 1e-16), color=colour, label=name.replace("_drift", ""))
                if len(values) > 1:
                    low, high = bootstrap_interval(values)
                    axes.fill_between(times, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("time, s")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(names) > 1:
            axes.legend(frameon=False, fontsize="small")
    return save(figure, path)
