"""Figures of runs in one style: curves, bars and dots, laid out as panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from rppdyn.runs.files import replacing
from rppdyn.runs.statistics import FEW_SEEDS, bootstrap_interval, iqm

if TYPE_CHECKING:
    from rppdyn.runs.table import RunGroup

LOG_AXIS_FLOOR = 1e-17  # lower end of a logarithmic axis, below rounding errors
ROUNDING = 1e-10
"""Values below this are rounding errors. Beside larger curves such a curve is only named, not drawn."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe & Ito
LINES = ("-", "--", "-.", ":")  # for metrics in one panel, and for more runs than colours
MODEL_COLOURS = dict(
    zip(("rpp", "emlp", "mlp", "emlp, published", "mlp, augmented", "rpp, published"), COLOURS, strict=False)
)
"""The colour of a model in figures with one such run."""

Panel = tuple[str, Callable[[Axes], None]]
"""A title, and a function that draws into axes."""
PANEL_SIZE = (4.4, 3.5)  # inches
MAX_NAME = 30  # characters of a bar's label


# -- layout ------------------------------------------------------------------------------------------------------------


def draw_panels(
    panels: Sequence[Panel | None],
    columns: int,
    *,
    title: str = "",
    size: tuple[float, float] = PANEL_SIZE,
    legend: Sequence[Artist] = (),
) -> Figure:
    """Draw panels in rows of `columns`, with a legend below them all; None leaves a place empty."""
    rows = math.ceil(len(panels) / columns)
    height = size[1] * rows + 0.25 * len(title.splitlines())
    figure = Figure(figsize=(size[0] * columns, height), layout=ConstrainedLayoutEngine(h_pad=0.06))
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, panels, strict=False):
        if panel is None:
            axes.set_axis_off()
            continue
        panel[1](axes)
        axes.set_title(panel[0], fontsize="medium")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize="medium")
    if legend:
        longest = max(len(str(handle.get_label())) for handle in legend)
        fitting = max(1, int(size[0] * columns / (0.6 + 0.08 * longest)))
        figure.legend(
            handles=legend, loc="outside lower center", ncols=min(len(legend), fitting), frameon=False, fontsize="small"
        )
    return figure


def legend_of(groups: Sequence[RunGroup]) -> list[Artist]:
    """Handles of a legend, one for each label of the groups."""
    looks = {group.label: (group.colour, group.line) for group in groups}
    return [Line2D([], [], color=colour, ls=line, lw=1.8, label=label) for label, (colour, line) in looks.items()]


# -- curves ------------------------------------------------------------------------------------------------------------


def paint_curves(
    axes: Axes,
    groups: Sequence[RunGroup],
    metrics: Mapping[str, str],
    *,
    log: bool = False,
    unit: str = "environment steps",
    axis_label: str = "",
    each: bool = False,
) -> None:
    """Draw metrics of groups over steps, with a colour for each group and a line style for each metric.

    If there is one group, colours distinguish the metrics. Notes below the axes name groups with diverged runs. On a
    logarithmic axis they also name the curves at rounding level.

    Args:
        metrics: metrics by their name in the legend.
        unit, axis_label: labels of the horizontal and of the vertical axis.
        each: draw every run, too, as a thin line.
    """
    drawn_metrics = {name: metric for name, metric in metrics.items() if any(group.curve(metric) for group in groups)}
    alone = len({group.label for group in groups}) == 1
    notes: dict[str, None] = {}
    handles: list[Artist] = []
    for k, (name, metric) in enumerate(metrics.items()):
        tiny = _rounding_values(groups, metric) if log else {}
        notes |= dict.fromkeys(
            f"far below: {name} {size:.0e}" if size else f"zero: {name}" for name, size in tiny.items()
        )
        for group in groups:
            colour = COLOURS[k % len(COLOURS)] if alone and len(drawn_metrics) > 1 else group.colour
            line = group.line if len(drawn_metrics) < 2 or alone else LINES[k % len(LINES)]
            if lost := group.lost(metric):
                finite = len(group.runs) - lost  # diverged runs are not drawn
                count = f"{finite} of {len(group.runs)} seeds" if finite else f"{lost} of {lost} diverged"
                notes[f"{group.label}: {count}"] = None
            curve = group.curve(metric)
            if curve is None or group.label in tiny:
                continue
            if len(curve.steps) == 1 and group.verb == "file":
                axes.axhline(float(curve.centre[0]), color=colour, ls=":", lw=1.6)
            else:
                draw_several(axes, curve.steps, curve.each, colour, style=line, each=each, log=log)
        if name in drawn_metrics:
            colour, line = (COLOURS[k % len(COLOURS)], "-") if alone else ("0.35", LINES[k % len(LINES)])
            handles.append(Line2D([], [], label=name, color=colour, linestyle=line))  # type: ignore[arg-type]
    axes.set_xlabel("\n".join([unit, *notes]) if axes.lines else unit)
    axes.set_ylabel(axis_label)
    if not unit.startswith("time"):
        label_steps(axes.xaxis)
    if not axes.lines:
        leave_empty(axes, "\n".join(notes) or "nothing measured")
        return
    if len(handles) > 1:
        legend_below(axes, len(handles), handles, lines=len(notes))
    if log:
        axes.set_yscale("log")
        label_decades(axes.yaxis)


def _rounding_values(groups: Sequence[RunGroup], metric: str) -> dict[str, float]:
    """Largest values of the groups at rounding level, by label; if all groups are there, of the groups at zero."""
    largest = {group.label: float(curve.centre.max()) for group in groups if (curve := group.curve(metric)) is not None}
    tiny = {label: size for label, size in largest.items() if size < ROUNDING}
    return tiny if len(tiny) < len(largest) else {label: size for label, size in tiny.items() if not size}


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
    """Draw the interquartile mean of curves, with its 95 % bootstrap interval as a band.

    With `each`, or for at most `FEW_SEEDS` curves, every curve is drawn as a thin line. So few curves have no band. Zeros are
    left out on a logarithmic axis.
    """
    if not values.size:
        return
    show = log_axis_values if log else np.asarray
    marker, is_few = "." if len(x) < 3 else "", len(values) <= FEW_SEEDS
    if len(values) > 1 and (each or is_few):
        axes.plot(x, show(values).T, style, marker=marker, color=colour, lw=0.6, alpha=0.45)
    axes.plot(x, show(iqm(values)), style, marker=marker, color=colour, lw=2.2 if each else 1.6, label=label)
    if not is_few:
        lower, upper = bootstrap_interval(values)
        if np.isfinite(show(upper)).any():  # an empty band would set limits without a logarithm
            axes.fill_between(x, show(lower), show(upper), color=colour, alpha=0.18, lw=0)


def over_seeds(counts: Sequence[int]) -> list[str]:
    """Lines of text that explain the curves, for numbers of seeds."""
    many = [count for count in counts if count > FEW_SEEDS]
    few = [count for count in counts if 1 < count <= FEW_SEEDS]
    kinds = [(many, "interquartile mean and 95 % bootstrap interval over"), (few, "mean (thick) and each (thin) of")]
    return [f"{kind} {' or '.join(map(str, numbers))} seeds" for numbers, kind in kinds if numbers]


# -- bars and dots -----------------------------------------------------------------------------------------------------


def paint_dots(axes: Axes, groups: Sequence[RunGroup], metric: str, axis_label: str) -> None:
    """Draw a row for each group: the last value of each run, and their interquartile mean with its interval."""
    for k, group in enumerate(groups):
        final = group.final(metric)
        if final is None or not final.each:
            continue
        if final.interval is not None:
            axes.plot(final.interval, [k, k], color=group.colour, lw=7, alpha=0.3, solid_capstyle="butt")
        spread = 0.12 * (np.arange(len(final.each)) % 3 - 1) if len(final.each) > 1 else np.zeros(1)
        axes.plot(final.each, k + spread, "o", ms=4.5, color=group.colour, alpha=0.75)
        axes.plot([final.centre], [k], "|", ms=19, mew=2.2, color=group.colour)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(axis_label)


def paint_bars(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    axis_label: str,
    *,
    log: bool | None = None,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    each: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> None:
    """Draw horizontal bars from the top down: for each name one bar of each series.

    Args:
        series: values for all names, by the entry of the legend.
        axis_label: label of the axis of the values.
        log: use a logarithmic axis; None for one if values span more than a factor of 30 or are all at rounding level.
        intervals: ends of the intervals of each series.
        each: the numbers whose mean is a bar, for each name of a series.
    """
    values = [max(value, LOG_AXIS_FLOOR) for several in series.values() for value in several if np.isfinite(value)]
    log = log if log is not None else bool(values) and (max(values) < ROUNDING or max(values) / min(values) > 30)
    show = (lambda numbers: np.maximum(numbers, LOG_AXIS_FLOOR)) if log else np.asarray
    height = 0.8 / max(1, len(series))
    for k, (name, several) in enumerate(series.items()):
        bars, colour = show(several), COLOURS[k % len(COLOURS)]
        places = np.arange(len(names)) + (k - (len(series) - 1) / 2) * height
        around = None
        if intervals is not None:
            low, high = show(np.reshape(intervals[name], (-1, 2)).T)
            around = np.maximum([bars - low, high - bars], 0)
        error = dict(lw=1, capsize=2, ecolor=matplotlib.rcParams["axes.edgecolor"])
        axes.barh(places, bars, height * 0.9, xerr=around, color=colour, label=name or None, error_kw=error)
        for place, numbers in zip(places, (each or {}).get(name, ()), strict=False):
            across = place + height * np.linspace(0.3, -0.3, len(numbers))
            # a white edge makes dots visible on the bar, too
            axes.plot(show(numbers), across, "o", ms=4, mew=0.8, color=colour, mec="white")
    axes.set_yticks(range(len(names)), [_shorten(name) for name in names], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(axis_label)
    axes.set_axisbelow(True)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(left=min([*values, 1e-3]) / 3, right=max([*values, 1e-15]) * 3)
    else:
        axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], lw=0.8)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.locator_params(axis="x", nbins=5)
    if len(series) > 1:
        axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")


def paint_trajectory(axes: Axes, example: Mapping[str, Any]) -> None:
    """Draw the first coordinates of a true trajectory, and dashed the model's until it leaves the picture.

    Args:
        example: states ``truth`` and ``found``, the model's, ``(T, n)``, and optionally ``times`` and ``names``.
    """
    truth, model = (np.array(example[name], dtype=float)[:, : len(COLOURS) - 1] for name in ("truth", "found"))
    lost = (np.abs(model - truth) > 2 * np.ptp(truth, axis=0).max()).any(1)
    model[np.maximum.accumulate(lost)] = np.nan
    times = example.get("times", range(len(truth)))
    names = example.get("names", [f"[{i}]" for i in range(truth.shape[1])])
    for colour, name, true, predicted in zip(COLOURS, names, truth.T, model.T, strict=False):
        axes.plot(times, true, color=colour, lw=1.2, label=name)
        axes.plot(times, predicted, "--", color=colour, lw=1.2)
    margin = 0.3 * np.ptp(truth) or 1.0
    axes.set(ylim=(truth.min() - margin, truth.max() + margin), xlabel="time, s" if "times" in example else "time")
    axes.legend(framealpha=0.8, edgecolor="none", fontsize="x-small", ncols=3)


def _shorten(name: str) -> str:
    """Shorten a label; of several names joined by commas, as of mixed parts of the input, the first is given."""
    first, *rest = name.split(", ")
    first = first if len(first) <= MAX_NAME else f"{first[: MAX_NAME - 3]}..."
    return f"{first} and {len(rest)} more" if rest else first


# -- axes ---------------------------------------------------------------------------------------------------------------


def log_axis_values(values: ArrayLike) -> NDArray[np.float64]:
    """Values for a logarithmic axis: nan for zeros and negative numbers, and at least `LOG_AXIS_FLOOR`."""
    values = np.asarray(values, dtype=float)
    return np.where(values > 0, np.maximum(values, LOG_AXIS_FLOOR), np.nan)


def label_decades(axis: Axis) -> None:
    """Add ticks between the powers of ten to a logarithmic axis of less than two decades."""
    low, high = axis.get_view_interval()
    if 0 < low < high < low * 10**2:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < low * 10**1.5 else (1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def label_steps(axis: Axis) -> None:
    """Set ticks at whole steps, written 500, 10k and 1M."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=(1, 2, 2.5, 5, 10)))
    axis.set_major_formatter(EngFormatter(sep=""))


def legend_below(axes: Axes, columns: int, handles: Sequence[Artist] | None = None, lines: int = 0) -> None:
    """Draw the legend of a panel below its axes.

    Args:
        handles: entries of the legend; None for all labelled ones.
        lines: number of lines of text between axis label and legend.
    """
    handles = axes.get_legend_handles_labels()[0] if handles is None else handles
    place = (0.5, -0.17 - 0.075 * lines)
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=place, ncols=columns, frameon=False, fontsize="small"
    )


def leave_empty(axes: Axes, text: str) -> None:
    """Write a text in place of data, without a scale."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    axes.grid(visible=False)


def looks_of(models: Sequence[str], colours: Sequence[str] = COLOURS) -> list[tuple[str, str]]:
    """Colour and line style of each run: the colour of its model if it is the only such run, else an unused one."""
    fixed = [(MODEL_COLOURS[m], LINES[0]) if m in MODEL_COLOURS and models.count(m) == 1 else None for m in models]
    free_looks = cycle(look for look in ((colour, line) for line in LINES for colour in colours) if look not in fixed)
    return [look or next(free_looks) for look in fixed]


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in one step; the suffix is the format (png, svg, pdf)."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path
