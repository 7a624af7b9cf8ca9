"""The figure of a certificate: defects of a step, worst coordinates, growth along rollouts, and support."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rppdyn.envs.certification._certificate import (
    APPROXIMATE_BELOW,
    EXACT_BELOW,
    QUANTILE_LEVELS,
    Certificate,
    GeneratorReport,
)
from rppdyn.runs.figures import COLOURS, save

FLOOR = 1e-18  # value at which a logarithmic axis shows zero
MAX_COMPONENT_ROWS = 10  # worst coordinates over all generators
TITLES = (
    "defect of one step",
    "worst coordinates: median to 95th percentile",
    "defect along a rollout",
    "are the images visited?",
)
ZONES = ((FLOOR, EXACT_BELOW, "exact", "#009E73"), (EXACT_BELOW, APPROXIMATE_BELOW, "approximate", "#E69F00"),
         (APPROXIMATE_BELOW, 1e6, "broken", "#D55E00"))  # fmt: skip


def draw(certificate: Certificate, path: Path) -> Path:
    """Draw a certificate; the file's suffix is the format (png, svg, pdf).

    Raises:
        ValueError: the suffix is no format.
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"figure {str(path)!r} has no suffix of a picture; use .png, .svg or .pdf")
    figure = Figure(figsize=(13, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (steps, components), (rollouts, visits) = figure.subplots(2, 2, width_ratios=(1.15, 1))
    parts = {"state in contact": "-", "state out of contact": "--", "observation": ":", "reward": "-."}
    keys = {"state in contact": "state contact", "state out of contact": "state free"}
    for i, report in enumerate(certificate.reports):
        colour = COLOURS[i % len(COLOURS)]
        for part, style in parts.items():
            if (values := report.quantiles.get(keys.get(part, part))) is not None:
                steps.plot(np.maximum(values, FLOOR), 100 * QUANTILE_LEVELS, style, color=colour)
        after = np.arange(1, len(report.rollout) + 1)
        rollouts.plot(after, np.maximum(report.rollout, FLOOR), color=colour)
        visits.plot(report.quantiles["images"], 100 * QUANTILE_LEVELS, color=colour)
    first = certificate.reports[0].quantiles["visited"]
    visits.plot(first, 100 * QUANTILE_LEVELS, color="0.35", linestyle="--")
    visits.axvline(np.interp(0.95, QUANTILE_LEVELS, first), color="0.6", linewidth=0.8)
    _components(components, certificate.reports)
    for axes, title in zip((steps, components, rollouts, visits), TITLES, strict=True):
        axes.set_title(title, fontsize="medium", pad=16)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    _zones(steps)
    rollouts.set_yscale("log")
    rollouts.axhline(1.0, color="0.6", linewidth=0.8)
    visits.set_xscale("log")
    for axis in (rollouts.yaxis, visits.xaxis):
        low, high = axis.get_view_interval()
        if high < 100 * low:  # label a short logarithmic axis with plain numbers, several in a decade
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    for style, part in zip(parts.values(), parts, strict=True):
        steps.plot([], [], style, color="0.35", label=part)
    steps.set(xlabel="relative to the length of the step (the reward's: to its spread)", ylabel="states below, %")
    rollouts.set(xlabel="steps", ylabel="median, in lengths of a step")
    visits.set(xlabel="distance to independently visited states", ylabel="states below, %")
    visits.plot([], [], color="0.35", linestyle="--", label="visited states themselves")
    for i, report in enumerate(certificate.reports):
        label = f"{report.name}: {report.support.share:.0%} visited"
        visits.plot([], [], color=COLOURS[i % len(COLOURS)], label=label)
    steps.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=len(parts), frameon=False, fontsize="small")
    visits.legend(loc="best", framealpha=0.85, edgecolor="none", fontsize="small")
    verdicts = ", ".join(f"{g.name} {g.dynamics_verdict}" for g in certificate.reports)
    figure.suptitle(f"{certificate.env_id}: {verdicts} ({certificate.n_states} states, {certificate.solver} solver)")
    return save(figure, path)


def _components(axes: Axes, reports: tuple[GeneratorReport, ...]) -> None:
    """Draw the coordinates with the largest p95 under any generator, each as a line from median to p95, a dot."""
    worst: dict[str, float] = {}
    for name, defect in (item for report in reports for item in report.components.items()):
        worst[name] = max(worst.get(name, 0.0), defect.p95)
    names = sorted(worst, key=worst.__getitem__, reverse=True)[:MAX_COMPONENT_ROWS]
    for i, report in enumerate(reports):
        defects, colour = report.components, COLOURS[i % len(COLOURS)]
        for y, name in enumerate(names):
            if name in defects:
                ends = [max(x, FLOOR) for x in defects[name][:2]]
                at = y + 0.6 * ((i + 0.5) / len(reports) - 0.5)
                axes.plot(ends, [at, at], color=colour, linewidth=1, alpha=0.6)
                axes.plot(ends[1], at, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    _zones(axes)
    axes.set_xlabel("relative to its typical change in a step")


def _zones(axes: Axes) -> None:
    """Make the x axis logarithmic, with a coloured band for each verdict."""
    axes.set_xscale("log")
    end = max(30.0, axes.get_xlim()[1])
    for low, high, name, colour in ZONES:
        axes.axvspan(low, min(high, end), color=colour, alpha=0.07, linewidth=0)
        middle = np.sqrt(low * min(high, end))
        axes.text(middle, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", color=colour,
                  fontsize="small")  # fmt: skip
    axes.set_xlim(FLOOR, end)
