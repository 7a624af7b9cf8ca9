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

from rppdyn.jobs.fit_figures import save
from rppdyn.priors import Evidence
from rppdyn.runs.figures import COLOURS

__all__ = ["draw_pathways", "pathway_rows"]

Rows = list[dict[str, Any]]
BIASES = ("bias", "pixel_bias")
"""Pathways that are no maps."""


def pathway_rows(members: Sequence[Evidence]) -> Rows:
    r"""A row for each pathway, its numbers lists over members.

    ``precision`` :math:`\delta`, ``norm`` of the coefficients, ``effective`` their effective number :math:`\gamma` out of
    ``coefficients``, :math:`\gamma / P` as ``normalised``, and its share of the sum over the layer's pathways as ``relative``
    (van der Ouderaa, Immer & van der Wilk 2023, Table 4), in which biases that are pathways of their own have no part.
    """
    pathways = members[0].pathways
    effective = np.array([one.effective_parameters().tolist() for one in members])  # (members, pathways)
    coefficients = members[0].counts.numpy()
    normalised = np.divide(effective, coefficients, out=np.zeros_like(effective), where=coefficients > 0)
    layers, maps = np.array([p.layer for p in pathways]), np.array([p.name not in BIASES for p in pathways])
    total = np.stack([normalised[:, (layers == layer) & maps].sum(1) for layer in layers], 1)
    relative = np.divide(normalised, total, out=np.zeros_like(total), where=(total > 0) & maps)
    return [
        {
            "layer": p.layer,
            "pathway": p.name,
            "coefficients": int(coefficients[i]),
            "precision": [float(np.exp(-one.pathways[i].log_variance)) for one in members],
            "norm": [one.pathways[i].squared_norm ** 0.5 for one in members],
            "effective": effective[:, i].tolist(),
            "normalised": normalised[:, i].tolist(),
            "relative": relative[:, i].tolist(),
        }
        for i, p in enumerate(pathways)
    ]


def draw_pathways(rows: Rows, path: Path) -> Path:
    """Draw what the table holds, by layer: means, and a point for each member; relative numbers where pathways compete."""
    figure = Figure(figsize=(9.6, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [row for row in rows if row["coefficients"]]
    colours = dict(zip(dict.fromkeys(row["pathway"] for row in rows), cycle(COLOURS), strict=False))
    maps = [row for row in rows if row["pathway"] not in BIASES]
    per_layer = Counter(row["layer"] for row in maps)
    competing = [row for row in maps if per_layer[row["layer"]] > 1]
    effective, relative, precision, norm = figure.subplots(2, 2).flat
    _draw(effective, "effective number of parameters", "effective", rows, colours)
    _draw(relative, "relative, per parameter", "relative", competing, colours)
    _draw(precision, "prior precision", "precision", rows, colours)
    _draw(norm, "norm of the coefficients", "norm", rows, colours)
    effective.set_yscale("symlog", linthresh=1)
    effective.set_ylim(bottom=0)
    relative.set_ylim(-0.03, 1.03)
    precision.set_yscale("log")
    figure.legend(*effective.get_legend_handles_labels(), loc="outside upper center", ncols=len(colours), frameon=False)
    return save(figure, path)


def _draw(axes: Axes, title: str, key: str, rows: Rows, colours: dict[str, str]) -> None:
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    width = 0.8 / len(colours)
    for k, (name, colour) in enumerate(colours.items()):
        own = [row for row in rows if row["pathway"] == name]
        at = np.array([layers.index(row["layer"]) for row in own]) + (k - (len(colours) - 1) / 2) * width
        axes.bar(at, [np.mean(row[key]) for row in own], width, color=colour, alpha=0.75, label=name)
        for x, row in zip(at, own, strict=True):
            axes.plot([x] * len(row[key]), row[key], "k.", ms=3)
    axes.set_xticks(range(len(layers)), layers, rotation=35, ha="right", fontsize="x-small")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
