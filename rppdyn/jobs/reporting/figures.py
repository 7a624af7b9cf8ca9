"""The pictures of a report; colours tell groups of runs apart, and the page's own legend is the table beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rppdyn.jobs.reporting.data import RunGroup
from rppdyn.runs.figures import draw_several, label_decades, label_steps, leave_empty

HEIGHT = 3.1
WIDTHS = {1: 8.4, 2: 5.6, 3: 4.3}
AT_ROUNDING = 1e-10


def curves(
    panels: Sequence[tuple[str, Sequence[RunGroup], str]],
    label: str,
    log: bool = False,
    unit: str = "environment steps",
    each: bool = False,
) -> Figure:
    """One set of axes per panel: its title, its groups, and the metric that is drawn.

    On a logarithmic axis groups at rounding, far below all others, are named instead: their lines would flatten the others.
    So are groups that have diverged.

    Args:
        label, unit: of the axes.
        each: draw every run, too, as a thin line.
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTHS[columns] * columns, HEIGHT * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for k, (axes, (title, groups, metric)) in enumerate(zip(every, panels, strict=False)):
        tiny = _at_rounding(groups, metric) if log else {}
        for group in groups:
            if group.label not in tiny:
                _curve(axes, group, metric, log, each)
        notes = [f"far below: {label} {size:.0e}" if size else f"zero: {label}" for label, size in tiny.items()]
        notes += [_loss(group, len(group.runs) - lost, lost) for group in groups if (lost := group.lost(metric))]
        _dress(axes, title, log, unit, notes)
        label_steps(axes.xaxis)
        if k % columns == 0:
            axes.set_ylabel(label)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    return figure


def finals(groups: Sequence[RunGroup], metric: str, label: str) -> Figure:
    """Each seed's last value, and the interquartile mean with its interval, if there is one, one row per group."""
    figure = Figure(figsize=(WIDTHS[1], 0.7 + 0.4 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for k, group in enumerate(groups):
        found = group.final(metric)
        if found is None:
            continue
        if found.interval is not None:
            axes.plot(found.interval, [k, k], color=group.colour, lw=7, alpha=0.3, solid_capstyle="butt")
        spread = 0.12 * (np.arange(len(found.each)) % 3 - 1) if len(found.each) > 1 else np.zeros(1)
        axes.plot(found.each, k + spread, "o", ms=4.5, color=group.colour, alpha=0.75)
        axes.plot([found.centre], [k], "|", ms=19, mew=2.2, color=group.colour)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    _dress(axes, "", False, label, [])
    return figure


def rollouts(groups: Sequence[RunGroup], panels: Mapping[str, str], unit: str) -> Figure:
    """How errors and drifts, each with its title, grow along the rollouts of fitted models."""
    figure = Figure(figsize=(WIDTHS[3] * len(panels), HEIGHT), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        losses = []
        for group in groups:
            finished = [run.rollouts for run in group.runs if run.rollouts]
            kept = [own for own in finished if own.get(name)]
            if kept:
                values = np.array([own[name] for own in kept])
                draw_several(axes, np.array(kept[0]["times"]), values, group.colour, style=group.line)
            if len(kept) < len(finished):
                losses.append(_loss(group, len(kept), len(finished) - len(kept)))
        _dress(axes, title, True, unit, losses)
    return figure


def _loss(group: RunGroup, kept: int, lost: int) -> str:
    return f"{group.label}: " + (f"{kept} of {kept + lost} seeds" if kept else f"{lost} of {lost} diverged")


def _at_rounding(groups: Sequence[RunGroup], metric: str) -> dict[str, float]:
    """The largest value of each group that never leaves rounding, where there are others that do; zeros always."""
    largest = {group.label: float(found.centre.max()) for group in groups if (found := group.curve(metric)) is not None}
    tiny = {label: size for label, size in largest.items() if size < AT_ROUNDING}
    return tiny if len(tiny) < len(largest) else {label: size for label, size in tiny.items() if not size}


def _curve(axes: Axes, group: RunGroup, metric: str, log: bool, each: bool) -> None:
    drawn = group.curve(metric)
    if drawn is None:
        return
    draw_several(axes, drawn.steps, drawn.each, group.colour, style=group.line, each=each, log=log)


def _dress(axes: Axes, title: str, log: bool, unit: str, notes: Sequence[str]) -> None:
    """Title, scales and labels; notes on what is not drawn stand below the axes, or in them where nothing is."""
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("\n".join([unit, *notes]) if axes.lines else unit)
    if log:
        axes.set_yscale("log")
        label_decades(axes.yaxis)
    if not axes.lines:
        leave_empty(axes, "\n".join(notes))
