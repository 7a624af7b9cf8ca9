"""How much each pathway is used: prior precision, norm and effective number of parameters, as a table and as a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
    """Draw effective numbers of parameters by layer, and relative ones where pathways compete: means, and a point a member."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(row["pathway"] for row in rows))
    maps = [row for row in rows if row["coefficients"] and row["pathway"] not in BIASES]
    per_layer = Counter(row["layer"] for row in maps)
    competing = [row for row in maps if per_layer[row["layer"]] > 1]
    panels = {"effective number of parameters": ("effective", rows), "relative, per parameter": ("relative", competing)}
    for axes, (title, (key, shown)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        layers = list(dict.fromkeys(row["layer"] for row in shown))
        for k, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
            own = [row for row in shown if row["pathway"] == name and row["coefficients"]]
            width = 0.8 / len(names)
            at = np.array([layers.index(row["layer"]) for row in own]) + (k - (len(names) - 1) / 2) * width
            axes.bar(at, [np.mean(row[key]) for row in own], width, color=colour, alpha=0.75, label=name)
            for x, row in zip(at, own, strict=True):
                axes.plot([x] * len(row[key]), row[key], "k.", ms=3)
        axes.set_xticks(range(len(layers)), layers, rotation=35, ha="right", fontsize="x-small")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_yscale("symlog", linthresh=1)
    figure.axes[0].set_ylim(bottom=0)
    figure.axes[1].set_ylim(-0.03, 1.03)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(names), frameon=False
    )
    return save(figure, path)
