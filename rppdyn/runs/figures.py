"""Parts that figures of runs share: colours, curves over steps and seeds, and files that are whole or not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from rppdyn.runs.files import replacing
from rppdyn.runs.folder import series
from rppdyn.runs.statistics import FEW, bootstrap_interval, iqm

SMALLEST = 1e-17  # what a logarithmic axis reaches down to; rounding is above it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe & Ito
LINES = ("-", "--", "-.", ":")  # where there are more runs than colours
MODEL_COLOURS = dict(
    zip(("rpp", "emlp", "mlp", "emlp, published", "mlp, augmented", "rpp, published"), COLOURS, strict=False)
)
"""The colour of a model in all figures that show it once."""


@dataclass(frozen=True)
class Curve:
    """A metric of several runs, ``(runs, steps)``, over steps."""

    steps: NDArray[np.int64]
    each: NDArray[np.float64]

    @property
    def centre(self) -> NDArray[np.float64]:
        """The interquartile mean over runs, ``(steps,)``."""
        return iqm(self.each)


def curve(runs: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> Curve | None:
    """One metric of several runs, on the steps that all of them have; None where there are none."""
    by_run = [dict(zip(*series(records, metric), strict=True)) for records in runs]
    steps = sorted(set.intersection(*(set(values) for values in by_run)))
    if not steps:
        return None
    return Curve(np.array(steps), np.array([[run[step] for step in steps] for run in by_run]))


def draw_several(
    axes: Axes,
    x: NDArray,
    values: Float[np.ndarray, "runs points"],
    colour: str,
    *,
    label: str | None = None,
    style: str = "-",
    each: bool = False,
    log: bool = True,
) -> None:
    """Draw the interquartile mean of some curves, with its 95 % bootstrap interval as a band.

    Of `FEW` or fewer, and with `each`, every one is there as a thin line, and of so few there is no band. On a logarithmic axis
    what is zero is not drawn.
    """
    if not values.size:
        return
    show = on_log_axis if log else np.asarray
    marker, is_few = "." if len(x) < 3 else "", len(values) <= FEW
    if len(values) > 1 and (each or is_few):
        axes.plot(x, show(values).T, style, marker=marker, color=colour, lw=0.6, alpha=0.45)
    axes.plot(x, show(iqm(values)), style, marker=marker, color=colour, lw=2.2 if each else 1.6, label=label)
    if not is_few:
        lower, upper = bootstrap_interval(values)
        if np.isfinite(show(upper)).any():  # an empty band would give the axis limits that no logarithm has
            axes.fill_between(x, show(lower), show(upper), color=colour, alpha=0.18, lw=0)


def over_seeds(counts: Sequence[int]) -> list[str]:
    """Say what a curve is of so many seeds: an interquartile mean with an interval, or a mean with each."""
    many, few = ([count for count in counts if count > 1 and (count <= FEW) == is_few] for is_few in (False, True))
    kinds = [(many, "interquartile mean and 95 % bootstrap interval over"), (few, "mean (thick) and each (thin) of")]
    return [f"{kind} {' or '.join(map(str, some))} seeds" for some, kind in kinds if some]


def on_log_axis(values: ArrayLike) -> NDArray[np.float64]:
    """Values as a logarithmic axis shows them: nothing (nan) for a zero, and none below `SMALLEST`."""
    values = np.asarray(values, dtype=float)
    return np.where(values > 0, np.maximum(values, SMALLEST), np.nan)


def label_decades(axis: Axis) -> None:
    """Give a logarithmic axis that shows less than one and a half decades ticks between the powers of ten, plainly written.

    Where all is zero there is nothing on it, and its limits are no decades.
    """
    low, high = axis.get_view_interval()
    if 0 < low < high < low * 10**1.5:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def label_steps(axis: Axis) -> None:
    """Give an axis ticks at whole steps, written 500, 10k and 1M."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=(1, 2, 2.5, 5, 10)))
    axis.set_major_formatter(EngFormatter(sep=""))


def legend_below(axes: Axes, columns: int, handles: Sequence[Artist] | None = None) -> None:
    """The legend of a panel where it hides nothing; without `handles` of all that has a label."""
    handles = axes.get_legend_handles_labels()[0] if handles is None else handles
    place = (0.5, -0.17)
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=place, ncols=columns, frameon=False, fontsize="small"
    )


def dress(axes: Axes, title: str, fontsize: str = "medium") -> None:
    """Give axes their title, a pale grid, and no frame above and to the right."""
    axes.set_title(title, fontsize=fontsize)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def leave_empty(axes: Axes, text: str) -> None:
    """Write a text in the place of data, without a scale."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    axes.grid(visible=False)


def looks_of(models: Sequence[str], colours: Sequence[str] = COLOURS) -> list[tuple[str, str]]:
    """Colour and line of each run: the colour of its model, or of several of one model any that no other run has."""
    fixed = [(MODEL_COLOURS[m], LINES[0]) if m in MODEL_COLOURS and models.count(m) == 1 else None for m in models]
    others = cycle(look for look in ((colour, line) for line in LINES for colour in colours) if look not in fixed)
    return [look or next(others) for look in fixed]


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in one step; the suffix is the format (png, svg, pdf)."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path
