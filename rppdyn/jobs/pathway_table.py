"""How much each pathway is used: prior precision, norm and effective number of parameters, as a table and as a figure."""

from __future__ import annotations

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


def pathway_rows(members: Sequence[Evidence]) -> Rows:
    r"""A row for each pathway, its numbers lists over members.

    ``precision`` :math:`\delta`, ``norm`` of the coefficients, ``effective`` their effective number :math:`\gamma` out of
    ``coefficients``, :math:`\gamma / P` as ``normalised``, and its share of the sum over the layer's pathways as ``relative``
    (van der Ouderaa, Immer & van der Wilk 2023, Table 4).
    """
    pathways = members[0].pathways
    effective = np.array([one.effective_parameters().tolist() for one in members])  # (members, pathways)
    coefficients = members[0].counts.numpy()
    normalised = np.divide(effective, coefficients, out=np.zeros_like(effective), where=coefficients > 0)
    layers = np.array([p.layer for p in pathways])
    total = np.stack([normalised[:, layers == layer].sum(1) for layer in layers], 1)
    relative = np.divide(normalised, total, out=np.zeros_like(total), where=total > 0)
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
    """Draw effective numbers of parameters and relative ones, layer by layer: a point for each member, a line for means."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(row["pathway"] for row in rows))
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    panels = {"effective number of parameters": "effective", "relative, per parameter": "relative"}
    for axes, (title, key) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            own = [row for row in rows if row["pathway"] == name and row["coefficients"]]
            at = [layers.index(row["layer"]) for row in own]
            for x, row in zip(at, own, strict=True):
                axes.plot([x] * len(row[key]), row[key], ".", color=colour, ms=4, alpha=0.5)
            axes.plot(at, [np.mean(row[key]) for row in own], "-", color=colour, lw=1.4, label=name)
        axes.set_xticks(range(len(layers)), layers, rotation=35, ha="right", fontsize="x-small")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_yscale("symlog", linthresh=1)
    figure.axes[0].set_ylim(bottom=0)
    figure.axes[1].set_ylim(-0.03, 1.03)
    figure.axes[0].legend(frameon=False, fontsize="small")
    return save(figure, path)
