"""The picture of a measured subject: errors by generator, by output, by input and by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from rppdyn.jobs.measuring.measured import OUTPUTS, largest_layers, most
from rppdyn.runs.figures import COLOURS, SMALLEST, draw_several, save

Result = Mapping[str, Any]
"""What `equivariance.json` holds."""

Panel = tuple[str, Callable[[Axes], None]]
COLUMNS = 3
MOST_PARTS = 10
MOST_LAYERS = 14
AT_ROUNDING = 1e-9  # errors below it are of an equivariant subject


def draw(result: Result, out: Path) -> Path:
    """Write the picture of a result, a dictionary as in `equivariance.json`; the suffix is the format."""
    return save(figure_of(result), out)


def figure_of(result: Result) -> Figure:
    """One set of axes for everything that the result has, in rows of `COLUMNS`."""
    panels = panels_of(result)
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


def panels_of(result: Result) -> list[Panel]:
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
        if len(own := members.get(name, [])) > 1:
            for i, g in enumerate(names):
                each = [max(member["per_generator"][g]["error"], SMALLEST) for member in own]
                across = [places[i] + height * (0.3 - 0.6 * j / (len(own) - 1)) for j in range(len(own))]
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
    if not positive or max(positive) <= AT_ROUNDING or max(positive) / min(positive) > 30:
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
