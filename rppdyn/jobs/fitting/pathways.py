"""How much each pathway is used: prior precision, norm and effective number of parameters, as a table and as a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rppdyn.priors import Evidence
from rppdyn.priors.laplace import BIASES
from rppdyn.runs.figures import COLOURS, label_decades, save

__all__ = ["draw_pathways", "pathway_rows"]

Rows = list[dict[str, Any]]


def pathway_rows(members: Sequence[Evidence | None]) -> Rows:
    """A row for each pathway, its numbers lists over members: ``precision``, ``norm`` of the coefficients, and its shares
    (:meth:`~rppdyn.priors.Evidence.shares`).

    They are None for a member that has no evidence, and there are no rows if none has.
    """
    first = next((one for one in members if one is not None), None)
    if first is None:
        return []
    rows: Rows = [
        {"layer": p.layer, "pathway": p.name, "coefficients": int(count)}
        for p, count in zip(first.pathways, first.counts, strict=True)
    ]
    for one in members:
        values = {} if one is None else _numbers(one)
        for i, row in enumerate(rows):
            for name in ("precision", "norm", "effective", "normalised", "relative"):
                row.setdefault(name, []).append(values[name][i] if values else None)
    return rows


def _numbers(one: Evidence) -> dict[str, list[float]]:
    precision = (-one.log_variances.detach()).exp().tolist()
    return {"precision": precision, "norm": one.squared_norms.sqrt().tolist()} | {
        name: values.tolist() for name, values in one.shares().items()
    }


def draw_pathways(rows: Rows, path: Path) -> Path:
    """Draw what the table holds, by layer: means, and a point for each member; relative numbers where pathways compete."""
    figure = Figure(figsize=(13.2, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [row for row in rows if row["coefficients"]]
    colours = dict(zip(dict.fromkeys(row["pathway"] for row in rows), cycle(COLOURS), strict=False))
    maps = [row for row in rows if row["pathway"] not in BIASES]
    per_layer = Counter(row["layer"] for row in maps)
    competing = [row for row in maps if per_layer[row["layer"]] > 1]
    effective, normalised, relative, precision, norm, empty = figure.subplots(2, 3).flat
    _draw(effective, "effective number of parameters", "effective", rows, colours)
    _draw(normalised, "effective number per parameter", "normalised", rows, colours)
    _draw(relative, "relative to the layer's", "relative", competing, colours)
    _draw(precision, "prior precision", "precision", rows, colours, bars=False)
    _draw(norm, "norm of the coefficients", "norm", rows, colours)
    effective.set_yscale("symlog", linthresh=1)
    effective.set_ylim(bottom=0)
    normalised.set_yscale("symlog", linthresh=1e-3)
    normalised.set_ylim(0, 1.15)
    relative.set_ylim(0, 1.15)
    precision.set_yscale("log")
    label_decades(precision.yaxis)
    empty.set_axis_off()
    empty.legend(*effective.get_legend_handles_labels(), loc="center", frameon=False)
    return save(figure, path)


def _draw(axes: Axes, title: str, key: str, rows: Rows, colours: dict[str, str], bars: bool = True) -> None:
    """Means as bars, or as points where the axis has no zero that bars could begin at."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    width = 0.8 / len(colours)
    for k, (name, colour) in enumerate(colours.items()):
        own = [row for row in rows if row["pathway"] == name]
        at = np.array([layers.index(row["layer"]) for row in own]) + (k - (len(colours) - 1) / 2) * width
        values = [[value for value in row[key] if value is not None] for row in own]
        means = [np.mean(numbers) for numbers in values]
        if bars:
            axes.bar(at, means, width, color=colour, alpha=0.75, label=name)
        else:
            axes.plot(at, means, "o", color=colour, ms=7)
        for x, numbers in zip(at, values, strict=True):
            axes.plot([x] * len(numbers), numbers, "k.", ms=3, zorder=3)
    axes.set_xticks(range(len(layers)), layers, rotation=35, ha="right", fontsize="x-small")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
