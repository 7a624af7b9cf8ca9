"""Figures of a report, and of measured equivariance errors, which it shows too.

Colours tell groups of runs apart, and the page's own legend is the table beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from rppdyn.jobs.measuring.measure import OUTPUTS, largest_layers, most
from rppdyn.jobs.reporting.data import RunGroup
from rppdyn.runs.figures import (
    COLOURS,
    SMALLEST,
    draw_several,
    dress,
    label_decades,
    label_steps,
    leave_empty,
    save,
)

__all__ = ["curves", "draw_equivariance", "equivariance_figure", "finals", "rollouts"]

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
        label, unit: label and unit of the axes.
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
        _finish(axes, title, log, unit, notes)
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
        final = group.final(metric)
        if final is None:
            continue
        if final.interval is not None:
            axes.plot(final.interval, [k, k], color=group.colour, lw=7, alpha=0.3, solid_capstyle="butt")
        spread = 0.12 * (np.arange(len(final.each)) % 3 - 1) if len(final.each) > 1 else np.zeros(1)
        axes.plot(final.each, k + spread, "o", ms=4.5, color=group.colour, alpha=0.75)
        axes.plot([final.centre], [k], "|", ms=19, mew=2.2, color=group.colour)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    _finish(axes, "", False, label, [])
    return figure


def rollouts(groups: Sequence[RunGroup], panels: Mapping[str, str], unit: str) -> Figure:
    """How errors and drifts, each with its title, grow along the rollouts of fitted models."""
    figure = Figure(figsize=(WIDTHS[3] * len(panels), HEIGHT), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        losses = []
        for group in groups:
            finished = [run.rollouts for run in group.runs if run.rollouts]
            converged = [curves for curves in finished if curves.get(name)]
            if converged:
                values = np.array([curves[name] for curves in converged])
                draw_several(axes, np.array(converged[0]["times"]), values, group.colour, style=group.line)
            if len(converged) < len(finished):
                losses.append(_loss(group, len(converged), len(finished) - len(converged)))
        _finish(axes, title, True, unit, losses)
    return figure


def _loss(group: RunGroup, converged: int, lost: int) -> str:
    return f"{group.label}: " + (
        f"{converged} of {converged + lost} seeds" if converged else f"{lost} of {lost} diverged"
    )


def _at_rounding(groups: Sequence[RunGroup], metric: str) -> dict[str, float]:
    """The largest value of each group that never leaves rounding, where there are others that do; zeros always."""
    largest = {group.label: float(drawn.centre.max()) for group in groups if (drawn := group.curve(metric)) is not None}
    tiny = {label: size for label, size in largest.items() if size < AT_ROUNDING}
    return tiny if len(tiny) < len(largest) else {label: size for label, size in tiny.items() if not size}


def _curve(axes: Axes, group: RunGroup, metric: str, log: bool, each: bool) -> None:
    drawn = group.curve(metric)
    if drawn is None:
        return
    draw_several(axes, drawn.steps, drawn.each, group.colour, style=group.line, each=each, log=log)


def _finish(axes: Axes, title: str, log: bool, unit: str, notes: Sequence[str]) -> None:
    """Title, scales and labels; notes on what is not drawn stand below the axes, or in them where nothing is."""
    dress(axes, title)
    axes.set_xlabel("\n".join([unit, *notes]) if axes.lines else unit)
    if log:
        axes.set_yscale("log")
        label_decades(axes.yaxis)
    if not axes.lines:
        leave_empty(axes, "\n".join(notes))


# -- equivariance errors ----------------------------------------------------------------------------------------------

Result = Mapping[str, Any]
"""The content of `equivariance.json`."""

Panel = tuple[str, Callable[[Axes], None]]
COLUMNS = 3
MOST_PARTS = 10
MOST_LAYERS = 14
EQUIVARIANT_BELOW = 1e-9  # errors below it are of an equivariant function


def draw_equivariance(result: Result, out: Path) -> Path:
    """Write the picture of a result, a dictionary as in `equivariance.json`; the suffix is the format."""
    return save(equivariance_figure(result), out)


def equivariance_figure(result: Result) -> Figure:
    """One set of axes for everything that the result has, in rows of `COLUMNS`."""
    panels = _panels(result)
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.8 * columns, 3.3 * rows + 0.3), layout=ConstrainedLayoutEngine(h_pad=0.1))
    FigureCanvasAgg(figure)
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (title, paint) in zip(every, panels, strict=False):
        paint(axes)
        axes.set_title(title, fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"{result['what']}: {result['symmetry']}", fontsize="medium")
    return figure


def _panels(result: Result) -> list[Panel]:
    """A title and a painter for everything that the result has; functions that are vacuous are left out."""
    functions = {name: m for name, m in result["functions"].items() if not m["vacuous"]}
    members = result.get("members") or {}
    panels: list[Panel] = [("error by generator", lambda axes: _by_generator(axes, functions, members))]
    if rollouts := result.get("rollouts"):
        panels.append(("error along rollouts", lambda axes: _along_rollouts(axes, rollouts)))
    for name, m in functions.items():
        if (outputs := _finite(m["by_output"])) and name != "critics":
            values = most(outputs, OUTPUTS)
            panels.append((f"{name}: error of each output", partial(_bars, values=values, label="error", log=True)))
        if inputs := _finite(m["by_input"]):
            largest = dict(sorted(inputs.items(), key=lambda item: -item[1])[:MOST_PARTS])
            title = f"{name}: share by part of the input"
            panels.append((title, partial(_bars, values=largest, label="share of the error", log=False)))
        if layers := m["layers"]:
            whose = next(iter(layers)) if len(layers) == 1 else name
            panels.append((f"{whose}: contribution of each layer", partial(_by_layer, networks=layers)))
    return panels


def _by_generator(axes: Axes, functions: Mapping[str, Any], members: Mapping[str, list[Any]]) -> None:
    names = list(next(iter(functions.values()))["per_generator"]) if functions else []
    height = 0.8 / max(1, len(functions))
    for k, (name, m) in enumerate(functions.items()):
        places = [i + (k - (len(functions) - 1) / 2) * height for i in range(len(names))]
        errors = [max(m["per_generator"][g]["error"], SMALLEST) for g in names]
        spans = [m["per_generator"][g]["interval"] for g in names]
        around = [
            [max(0.0, e - max(low, SMALLEST)) for e, (low, _) in zip(errors, spans, strict=True)],
            [max(0.0, high - e) for e, (_, high) in zip(errors, spans, strict=True)],
        ]
        axes.barh(
            places,
            errors,
            height * 0.9,
            xerr=around,
            color=COLOURS[k],
            label=name,
            error_kw=dict(lw=1, capsize=2, ecolor=matplotlib.rcParams["axes.edgecolor"]),
        )
        if len(seeds := members.get(name, [])) > 1:
            for i, g in enumerate(names):
                each = [max(member["per_generator"][g]["error"], SMALLEST) for member in seeds]
                across = [places[i] + height * (0.3 - 0.6 * j / (len(seeds) - 1)) for j in range(len(seeds))]
                axes.plot(each, across, "o", ms=4, mew=0.8, color=COLOURS[k], mec="white")  # seen on the bar and off it
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _logarithmic(axes, [m["per_generator"][g]["error"] for m in functions.values() for g in names])
    of_images = any(m.get("lee") for m in functions.values())
    axes.set_xlabel("error, per unit" if of_images else "error (0 equivariant, 1 as far as can be)")
    if len(functions) > 1:
        axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")


def _along_rollouts(axes: Axes, rollouts: Mapping[str, Any]) -> None:
    steps = np.array(rollouts["per_step"], dtype=float)  # (members, times); null where all of a member's diverge
    steps = steps[~np.isnan(steps).any(1)]
    draw_several(axes, np.array(rollouts["times"]), steps, COLOURS[0], each=True)
    axes.set_yscale("log")
    axes.set_xlabel("time, s")
    axes.set_ylabel("error")


def _bars(axes: Axes, values: Mapping[str, float], label: str, log: bool) -> None:
    axes.barh(range(len(values)), [max(v, SMALLEST) if log else v for v in values.values()], 0.7, color=COLOURS[0])
    axes.set_yticks(range(len(values)), [_short(name) for name in values], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if log:
        _logarithmic(axes, list(values.values()))
    else:
        axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], lw=0.8)


def _by_layer(axes: Axes, networks: Mapping[str, Any]) -> None:
    several = len(networks) > 1
    bars = {
        " ".join([network] * several + [generator] * (len(layers["norm"]) > 1)): norms
        for network, layers in networks.items()
        for generator, norms in layers["norm"].items()
    }
    shown = largest_layers(bars, MOST_LAYERS)
    names = [_short(next(iter(networks.values()))["layers"][i]) for i in shown]
    bars = {label: [norms[i] for i in shown] for label, norms in bars.items()}
    height = 0.8 / len(bars)
    for k, (label, norms) in enumerate(bars.items()):
        places = [i + (k - (len(bars) - 1) / 2) * height for i in range(len(names))]
        axes.barh(places, norms, height * 0.9, color=COLOURS[k % len(COLOURS)], label=label or None)
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    _few_digits(axes)
    axes.set_xlabel("mean size at the output")
    if len(bars) > 1:
        axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")


def _logarithmic(axes: Axes, values: list[float]) -> None:
    """Logarithmic where values span more than a factor of 30, which small errors do; else linear, from zero."""
    positive = [max(v, SMALLEST) for v in values]
    if not positive or max(positive) <= EQUIVARIANT_BELOW or max(positive) / min(positive) > 30:
        axes.set_xscale("log")
        axes.set_xlim(left=min([*positive, 1e-3]) / 3, right=max([*positive, 1e-15]) * 3)
    else:
        _few_digits(axes)


def _few_digits(axes: Axes) -> None:
    """Labels of a linear axis that keep apart, however small the numbers."""
    axes.xaxis.set_major_formatter("{x:g}")
    axes.locator_params(axis="x", nbins=5)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: v for name, v in values.items() if v is not None and math.isfinite(v)}


def _short(name: str, longest: int = 30) -> str:
    """A name, or the first of several; parts of the input that the group mixes come joined by commas."""
    first, *others = name.split(", ")
    first = first if len(first) <= longest else f"{first[: longest - 3]}..."
    return f"{first} and {len(others)} more" if others else first
