"""The pictures of a report; colours tell groups of runs apart, and the page's own legend is the table beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rppdyn.jobs.fitting.figures import draw_members
from rppdyn.jobs.reporting.data import RunGroup
from rppdyn.runs import series
from rppdyn.runs.figures import on_log_axis

HEIGHT = 3.1
WIDTHS = {1: 8.4, 2: 5.6, 3: 4.3}
AT_ROUNDING = 1e-10


def curves(
    panels: Sequence[tuple[str, Sequence[RunGroup], dict[str, str]]],
    label: str,
    log: bool = False,
    unit: str = "environment steps",
    each: bool = False,
) -> Figure:
    """One set of axes per panel: its title, its groups, and by line style ("-", "--") the metric that is drawn so.

    On a logarithmic axis groups at rounding, far below all others, are named instead: their lines would flatten the others.

    Args:
        label, unit: of the axes.
        each: draw every run, too, as a thin line.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTHS[columns] * columns, HEIGHT * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for k, (axes, (title, groups, metrics)) in enumerate(zip(every, panels, strict=False)):
        tiny = _at_rounding(groups, list(metrics.values())) if log else {}
        for group in groups:
            for style, metric in metrics.items() if group.label not in tiny else ():
                _curve(axes, group, metric, style if len(metrics) > 1 else group.line, log, each)
        if tiny:
            words = ", ".join(f"{label} {format(size, '.0e') if size else 0}" for label, size in tiny.items())
            axes.text(0.02, 0.03, f"far below: {words}", transform=axes.transAxes, fontsize="small")
        _dress(axes, title)
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if k % columns == 0:
            axes.set_ylabel(label)
        if log:
            axes.set_yscale("log")
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    return figure


def finals(groups: Sequence[RunGroup], metric: str, label: str) -> Figure:
    """Each seed's last value, and the interquartile mean with its interval, one row per group."""
    figure = Figure(figsize=(WIDTHS[1], 0.7 + 0.4 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for k, group in enumerate(groups):
        found = group.final(metric)
        if found is None:
            continue
        axes.plot([found.lower, found.upper], [k, k], color=group.colour, lw=7, alpha=0.3, solid_capstyle="butt")
        spread = 0.12 * (np.arange(len(found.each)) % 3 - 1) if len(found.each) > 1 else np.zeros(1)
        axes.plot(found.each, k + spread, "o", ms=4.5, color=group.colour, alpha=0.75)
        axes.plot([found.centre], [k], "|", ms=19, mew=2.2, color=group.colour)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(label)
    _dress(axes, "")
    return figure


def rollouts(groups: Sequence[RunGroup], panels: Mapping[str, str], unit: str) -> Figure:
    """How errors and drifts, each with its title, grow along the rollouts of fitted models."""
    figure = Figure(figsize=(WIDTHS[3] * len(panels), HEIGHT), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for group in groups:
            kept = [run.rollouts for run in group.runs if run.rollouts.get(name)]
            if kept:
                values = np.array([own[name] for own in kept])
                draw_members(axes, np.array(kept[0]["times"]), values, group.colour, style=group.line)
        _dress(axes, title)
        axes.set_yscale("log")
        axes.set_xlabel(unit)
    return figure


def _at_rounding(groups: Sequence[RunGroup], metrics: Sequence[str]) -> dict[str, float]:
    """The largest value of each group that never leaves rounding, where there are others that do; zeros always."""
    drawn = {group.label: [found for name in metrics if (found := group.curve(name)) is not None] for group in groups}
    largest = {label: max(float(found.centre.max()) for found in curves) for label, curves in drawn.items() if curves}
    tiny = {label: size for label, size in largest.items() if size < AT_ROUNDING}
    return tiny if len(tiny) < len(largest) else {label: size for label, size in tiny.items() if not size}


def _curve(axes: Axes, group: RunGroup, metric: str, style: str, log: bool, each: bool) -> None:
    drawn = group.curve(metric)
    if drawn is None:
        return
    show = on_log_axis if log else np.asarray
    marker = "." if len(drawn.steps) < 3 else ""
    several = each and len(group.runs) > 1
    for run in group.runs if several else ():
        steps, values = series(run.records, metric)
        axes.plot(steps, show(values), style, color=group.colour, lw=0.6, alpha=0.45)
    width = 2.2 if several else 1.6
    axes.plot(drawn.steps, show(drawn.centre), style, marker=marker, color=group.colour, lw=width)
    if len(group.runs) > 1:
        axes.fill_between(
            drawn.steps, show(drawn.lower), show(drawn.upper), color=group.colour, alpha=0.18, linewidth=0
        )


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
