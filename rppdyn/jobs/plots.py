"""Figures of runs: learning curves of agents, errors of fits through training and along rollouts; runs side by side."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.results import AGENTS, FileAgent, agent_of, flattened, model_of, setting, value_of
from rppdyn.runs.figures import (
    COLOURS,
    SMALLEST,
    curve,
    draw_several,
    dress,
    label_decades,
    label_steps,
    leave_empty,
    legend_below,
    looks_of,
    over_seeds,
    save,
)
from rppdyn.runs.files import plain
from rppdyn.runs.folder import RunFolder, differences, read_metrics

# -- agents -----------------------------------------------------------------------------------------------------------

STYLES = ("-", "--", ":")
WIDTH = 4.4  # of a panel, in inches


@dataclass(frozen=True)
class Panel:
    """One set of axes: a title and, by legend entry, the metrics that are drawn where runs have them, each in its line style.

    Colours tell runs apart, by the legend of the whole figure, and styles metrics, by that of the panel.
    """

    title: str
    metrics: Mapping[str, str]
    scale: str = "linear"  # or "log"


EVALUATION = "evaluation"
"""Name of evaluated returns, left out where there are no others."""

PANELS = (
    Panel("mean return", {EVALUATION: "eval/return_mean", "training": "rollout/return_mean"}),
    Panel(
        "equivariance error",
        {"policy": "equivariance/policy", "critics": "equivariance/critic"},
        "log",
    ),
    Panel(
        "free pathway's share",
        {
            "actor": "pathway/actor_free_share",
            "critics": "pathway/critic_free_share",
        },
        "log",
    ),
)


def learning_curves(
    runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], played: Sequence[FileAgent] = ()
) -> Path:
    """Draw return, equivariance errors and the free pathways' shares over environment steps.

    Runs whose configurations differ in the seed alone are one curve: the interquartile mean over seeds, with its 95 %
    bootstrap interval as a band, or of three seeds and fewer with each of them. Others are told apart by what differs between
    them.

    Args:
        runs: run folders.
        out: the picture; its suffix is the format (png, svg, pdf).
        played: agents from files, each a level line: their mean return, and the policy's mean equivariance error.
    Raises:
        ValueError: no runs, a folder that is no run, or one without metrics.
    """
    out = Path(out)
    groups = grouped(runs)
    looks = looks_of([group.model for group in groups.values()])
    figure = Figure(figsize=(WIDTH * len(PANELS), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes: Sequence[Axes] = figure.subplots(1, len(PANELS))
    for axes, panel in zip(all_axes, PANELS, strict=True):
        drawn: set[str] = set()
        for (label, group), (colour, _) in zip(groups.items(), looks, strict=True):
            drawn |= _draw(axes, panel, group.records, colour, label if len(groups) > 1 else "")
        for k, agent in enumerate(played):
            level = {"eval/return_mean": agent.returns, "equivariance/policy": list(agent.errors.values())}
            values = next((level[metric] for metric in panel.metrics.values() if metric in level), [])
            if values and (panel.scale != "log" or fmean(values) > 0):
                axes.axhline(fmean(values), color="0.3", ls=(0, (1 + 2 * k, 2)), lw=1.4, label=Path(agent.file).name)
        _finish_panel(axes, panel, drawn)
    seeds = sorted({len(group.records) for group in groups.values()})
    envs = {group.env for group in groups.values()}
    above = [*groups] if len(groups) == 1 else [*envs] if len(envs) == 1 else []
    above += over_seeds(seeds)
    figure.suptitle("\n".join(above), fontsize="medium")
    if len(groups) > 1 or played:
        lines, labels = all_axes[0].get_legend_handles_labels()
        columns = int(WIDTH * len(PANELS) / (0.6 + 0.08 * max(map(len, labels))))
        figure.legend(lines, labels, loc="outside lower center", ncols=max(1, columns), frameon=False, fontsize="small")
    return save(figure, out)


def draw_files(played: Sequence[FileAgent], out: str | os.PathLike[str]) -> Path:
    """Draw agents from files alone: the returns of their episodes, and their equivariance errors by generator."""
    figure = Figure(figsize=(2 * WIDTH, 1.2 + 0.5 * max(len(played), 2)), layout="constrained")
    FigureCanvasAgg(figure)
    returns, errors = figure.subplots(1, 2)
    names = [Path(agent.file).name for agent in played]
    for k, agent in enumerate(played):
        returns.plot(agent.returns, [k] * len(agent.returns), "o", ms=4.5, alpha=0.6, color=f"C{k}")
        returns.plot([fmean(agent.returns)], [k], "|", ms=19, mew=2.2, color=f"C{k}")
        for i, (generator, error) in enumerate(agent.errors.items()):
            errors.plot([max(error, SMALLEST)], [k], "osD^v"[i % 5], color=f"C{k}", label=generator if k == 0 else None)
    for axes, title in ((returns, "return of each episode, and their mean"), (errors, "policy's equivariance error")):
        dress(axes, title)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
    if any(agent.errors for agent in played):
        errors.set_xscale("log")
        errors.legend(frameon=False, fontsize="small")
    figure.suptitle(", ".join(dict.fromkeys(agent.env for agent in played)), fontsize="medium")
    return save(figure, Path(out))


@dataclass(frozen=True)
class SeedRuns:
    """Runs whose configurations differ in the seed alone: their model, and the metrics of each."""

    model: str
    env: str
    records: list[list[dict[str, Any]]]


def grouped(runs: Sequence[str | os.PathLike[str]]) -> dict[str, SeedRuns]:
    """Runs by a label that says in what their configurations differ, seeds aside."""
    if not runs:
        raise ValueError("no runs to draw: give the folders of one run or more")
    folders = [RunFolder.open(run) for run in runs]
    configs = [flattened(folder.config()) for folder in folders]
    varied = _varied(configs)
    groups: dict[str, SeedRuns] = {}
    of_seed: dict[tuple[str, Any], Path] = {}
    for folder, config in zip(folders, configs, strict=True):
        records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
        if not records:
            raise ValueError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
        label, seed = _label(config, varied), folder.config().get("seed")
        if (other := of_seed.setdefault((label, seed), folder.path)) != folder.path:
            raise ValueError(f"{other} and {folder.path} both have seed {seed} of one configuration: name one of them")
        groups.setdefault(label, SeedRuns(model_of(config), str(config.get("env.id")), [])).records.append(records)
    return groups


def _varied(configs: Sequence[dict[str, Any]]) -> set[str]:
    """The keys in which configurations differ.

    Where there are several agents, that is one key, "agent", beside what differs between those of each.
    """
    varied = _different(configs)
    agents = {agent_of(config) for config in configs}
    if len(agents) == 1:
        return varied
    for name, part in AGENTS.items():
        within = _different([config for config in configs if agent_of(config) == name])
        varied -= {key for key in varied if key == part or (key.startswith(f"{part}.") and key not in within)}
    return varied | {"agent"}


def _different(configs: Sequence[dict[str, Any]]) -> set[str]:
    return {key for config in configs for key, _, _ in differences(configs[0], config)}


def _draw(axes: Axes, panel: Panel, runs: Sequence[Sequence[Mapping[str, Any]]], colour: str, label: str) -> set[str]:
    """Draw the entries of a panel that the runs have, and return them."""
    entries: set[str] = set()
    for style, (part, metric) in zip(STYLES, panel.metrics.items(), strict=False):
        drawn = curve(runs, metric)
        if drawn is None:
            continue
        log, named = panel.scale == "log", label if not entries else None
        draw_several(axes, drawn.steps, drawn.each, colour, label=named or None, style=style, log=log)
        entries.add(part)
    return entries


def _finish_panel(axes: Axes, panel: Panel, drawn: set[str]) -> None:
    parts = [Line2D([], [], ls=style, color="0.35", label=part)
             for style, part in zip(STYLES, panel.metrics, strict=False) if part and part in drawn]  # fmt: skip
    if [part.get_label() for part in parts] not in ([], [EVALUATION]):
        legend_below(axes, len(parts), parts)
    dress(axes, panel.title)
    axes.set_xlabel("environment steps")
    label_steps(axes.xaxis)
    if not axes.lines:
        leave_empty(axes, "nothing measured")
    elif panel.scale == "log":
        axes.set_yscale("log")
        label_decades(axes.yaxis)


def _label(config: Mapping[str, Any], varied: set[str]) -> str:
    """Environment (where it varies) and model, the agent where there are several, and whatever else varies between the runs."""
    agent = agent_of(config)
    others = tuple(f"{part}." for name, part in AGENTS.items() if name != agent)
    varied = {key for key in varied if not key.startswith(others)}
    parts = [str(config.get("env.id"))] if "env.id" in varied or not varied else []
    switches = all(isinstance(config.get(key), bool) for key in varied)
    if "model.kind" in varied or switches:
        parts.append(str(config.get("model.kind")))
    if "agent" in varied:
        parts.append(agent)
    parts += [setting(key, value_of(config, key)) for key in sorted(varied - {"env.id", "model.kind", "agent"})]
    return " ".join(filter(None, parts))


# -- fits -------------------------------------------------------------------------------------------------------------

FIT_PANELS: Mapping[str, Sequence[str]] = {
    "error": ("validation/error", "test/error"),
    "equivariance error": ("equivariance/error",),
}


def fit_curves(folder: RunFolder) -> Path:
    """Draw `figures/curves.png`: interquartile means over seeds, with their 95 % bootstrap intervals as bands; of few, each."""
    config, records = _read(folder)
    converged = _converged(records)
    panels = {title: [name for name in names if name in records[-1]] for title, names in FIT_PANELS.items()}
    panels = {title: names for title, names in panels.items() if names}
    figure = Figure(figsize=(4.4 * len(panels), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for colour, name in zip(COLOURS, names, strict=False):
            epochs, values = _over_epochs(records, name, converged, config)
            draw_several(axes, epochs, values, colour, label=name.split("/")[0])
        axes.set_xlabel("epochs")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        _finish_errors(axes, title, legend=len(names) > 1, converged=int(converged.sum()), seeds=len(converged))
    above = [f"{config.task_name}, {config.model_name}", *over_seeds([int(converged.sum())])]
    figure.suptitle("\n".join(above), fontsize="medium")
    return save(figure, folder.figures / "curves.png")


def compare_equivariance(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Draw the equivariance errors of fits through training: every member a thin line, their interquartile mean a thick one.

    Members that diverged are left out, and counted in the legend.

    Args:
        runs: folders of fits; one colour each, and after seven of them another style of line.
        out: the picture; its suffix is the format (png, svg, pdf).
    Raises:
        ValueError: no runs, or a folder that is no fit's run or has no metrics yet.
    """
    if not runs:
        raise ConfigError("no runs to compare: give the folders of one fit or more")
    read = [_read(RunFolder.open(run)) for run in runs]
    configs = [config for config, _ in read]
    names = _names(configs)
    width = max(6.6, 1.8 + 0.07 * max(map(len, names)))  # of the longest entry of the legend
    figure = Figure(figsize=(width, 4.0 + 0.2 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    looks = looks_of([model_of(flattened(plain(asdict(config)))) for config in configs])
    for (config, records), name, (colour, style) in zip(read, names, looks, strict=True):
        converged = _converged(records)
        some = "" if converged.all() else f"{converged.sum()} of "
        label = f"{name} ({some}{_members(len(converged))})"
        epochs, values = _over_epochs(records, "equivariance/error", converged, config)
        draw_several(axes, epochs, values, colour, label=label, style=style, each=True)
        if not converged.any():
            axes.plot([], [], style, color=colour, label=label)
    axes.set_xlabel("epochs")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_ylabel("equivariance error")
    _finish_errors(axes, "", legend=False)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return save(figure, Path(out))


def _read(folder: RunFolder) -> tuple[FitConfig, list[dict[str, Any]]]:
    """The configuration and the metrics of a fit."""
    config = compose.from_run(compose.name_of_run(folder), folder)
    if not isinstance(config, FitConfig):
        raise ConfigError(f"{folder.path} is a run of {config.verb}: give runs of fits")
    if config.verb == "bound":
        raise ConfigError(
            f"{folder.path} is a run of bound: it has its own figure, figures/bound.png; give runs of fits"
        )
    records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
    if not records:
        raise ConfigError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
    return config, records


def _names(configs: Sequence[FitConfig]) -> list[str]:
    """Task and model of each, and where both are the same for several, the settings in which these differ."""
    names = [f"{config.task_name}, {config.model_name}" for config in configs]
    settings = [flattened(plain(asdict(config))) | {"seed": config.seed} for config in configs]
    for i, name in enumerate(names):
        namesakes = [other for config, other in zip(configs, settings, strict=True)
                     if f"{config.task_name}, {config.model_name}" == name]  # fmt: skip
        varied = {key for other in namesakes for key, _, _ in differences(settings[i], other)}
        parts = [setting(key, value_of(settings[i], key)) for key in sorted(varied)]
        names[i] = " ".join(filter(None, [name, *parts]))
    return names


def _members(count: int) -> str:
    return f"{count} member" + "s" * (count != 1)


def _converged(records: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """Mask of the members that have not diverged: those whose errors are numbers at the end."""
    last = [records[-1][name] for names in FIT_PANELS.values() for name in names if records[-1].get(name)]
    return ~np.isnan(np.array(last, dtype=float)).any(0)  # null becomes nan


def _over_epochs(
    records: Sequence[Mapping[str, Any]], name: str, converged: NDArray[np.bool_], config: FitConfig
) -> tuple[NDArray, NDArray]:
    """Epochs, and the values of these members ``(members, points)`` at those where all of them have a number."""
    points = [(record["step"], record[name]) for record in records if record.get(name)]
    steps, values = np.array([step for step, _ in points]), np.array([errors for _, errors in points], dtype=float)
    values = values.reshape(len(points), len(converged))[:, converged].T
    known = ~np.isnan(values).any(0)
    return steps[known] / config.steps_per_epoch, values[:, known]


def _finish_errors(axes: Axes, title: str, *, legend: bool, converged: int = 1, seeds: int = 1) -> None:
    """Scale, title and legend of a panel that shows so many of the seeds."""
    axes.set_yscale("log")
    dress(axes, title + (f" ({converged} of {seeds} seeds)" if 0 < converged < seeds else ""))
    if not converged:
        leave_empty(axes, f"{seeds} of {seeds} diverged")
    else:
        label_decades(axes.yaxis)
        if legend:
            legend_below(axes, 2)


QUANTITIES = {
    "relative error of the state": {"error": ""},
    "relative drift": {"energy_drift": "energy", "momentum_drift": "angular momentum about the vertical"},
}


def draw_rollouts(curves: Mapping[str, Any], example: Mapping[str, Any], path: Path) -> Path:
    """Draw one trajectory beside the truth, and how errors grow and conserved quantities drift along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error``, ``energy_drift``, ``momentum_drift``, each over the times after
            the first; None for a seed whose rollouts all diverged.
        example: the states ``truth`` and, of the first seed's model, ``found`` of one trajectory, ``(T, 12)``.
    """
    figure = Figure(figsize=(13.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 3, width_ratios=(1.1, 1, 1))
    _draw_space(figure.add_subplot(grid[0], projection="3d"), example)
    times = np.array(curves["times"][1:])
    for place, (title, names) in zip((grid[1], grid[2]), QUANTITIES.items(), strict=True):
        axes = figure.add_subplot(place)
        for colour, (name, called) in zip(COLOURS, names.items(), strict=False):
            values = np.array([curve for curve in curves[name] if curve is not None])
            draw_several(axes, times, values, colour, label=called)
        axes.set_xlabel("time, s")
        _finish_errors(axes, title, legend=len(names) > 1, converged=len(values), seeds=len(curves["error"]))
    return save(figure, path)


def _draw_space(axes: Any, example: Mapping[str, Any]) -> None:
    """Both masses in space, the true ones and the model's as long as it stays near them."""
    truth, model = (np.array(example[name], dtype=float)[:, :6].reshape(-1, 2, 3) for name in ("truth", "found"))
    low, high = truth.min((0, 1)), truth.max((0, 1))
    margin = 0.25 * (high - low).max()
    low, high = low - margin, high + margin
    model[~((low <= model) & (model <= high)).all(-1)] = np.nan
    for states, style, name in ((truth, "-", "truth"), (model, "--", "model")):
        for mass, colour in enumerate(COLOURS[:2]):
            axes.plot(*states[:, mass].T, style, color=colour, linewidth=0.9, label=f"mass {mass + 1}, {name}")
    axes.set(xlabel="x, m", ylabel="y, m", zlabel="z, m")
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    axes.set_title("a test trajectory, and the first seed's model", fontsize="medium")
    axes.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=2)


COORDINATES = 6
"""In a figure of a trajectory, the first ones."""


def draw_trajectory(curves: Mapping[str, Any], example: Mapping[str, Any], names: Sequence[str], path: Path) -> Path:
    """Draw one trajectory beside the truth, coordinate by coordinate, and how errors grow along all rollouts.

    Args:
        curves: ``times``, and lists over seeds of ``error`` over the times after the first; None for a seed that diverged.
        example: ``times``, and the states ``truth`` and, of the first seed's model, ``found`` of one trajectory.
    """
    shown = names[:COORDINATES]
    columns = 2 if len(shown) > 1 else 1
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(4.4 + 3.8 * columns, 1.2 + 1.7 * max(2, rows)), layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(1, 2, width_ratios=(3.8 * columns, 4.4))
    left, right = parts
    truth, model = np.array(example["truth"], dtype=float), np.array(example["found"], dtype=float)
    lost = (np.abs(model - truth) > 2 * np.ptp(truth, axis=0)).any(1)
    model[np.maximum.accumulate(lost)] = np.nan  # once it has left the picture it has no meaning
    grid = left.subplots(rows, columns, squeeze=False, sharex=True)
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.axis("off")
            continue
        margin = 0.3 * np.ptp(truth[:, place]) or 1.0
        axes.plot(example["times"], truth[:, place], color=COLOURS[0], label="truth")
        axes.plot(example["times"], model[:, place], "--", color=COLOURS[1], label="model")
        axes.set_ylim(truth[:, place].min() - margin, truth[:, place].max() + margin)
        dress(axes, shown[place], fontsize="small")
    for axes in grid[-1]:
        axes.set_xlabel("time, s")
    grid[0, 0].legend(frameon=False, fontsize="x-small")
    left.suptitle("a test trajectory, and the first seed's model", fontsize="medium")
    growth = right.subplots()
    values = np.array([curve for curve in curves["error"] if curve is not None])
    draw_several(growth, np.array(curves["times"][1:]), values, COLOURS[0])
    growth.set_xlabel("time, s")
    _finish_errors(
        growth, "relative error of the state", legend=False, converged=len(values), seeds=len(curves["error"])
    )
    return save(figure, path)


SHOWN = 16
"""Components in a figure, those with the largest errors."""


def draw_horizons(curves: Mapping[str, Any], path: Path) -> Path:
    """Draw how the relative error of transition models grows along rollouts, and which components it is made of.

    Args:
        curves: ``error``, over steps 1, 2, ... of each seed; ``components``, median absolute ``errors`` of the features called
            ``names`` in units of their standard deviation, one row for each of the ``horizons``.
    """
    names, horizons = curves["components"]["names"], curves["components"]["horizons"]
    components = np.array(curves["components"]["errors"])
    shown = np.argsort(components[-1])[-SHOWN:] if len(components) else np.zeros(0, dtype=int)
    widths = (4.4, 5.2) if len(shown) else (4.4,)
    figure = Figure(figsize=(sum(widths), 1.6 + 0.2 * max(10, len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    growth, *others = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    errors = np.array(curves["error"])
    draw_several(growth, np.arange(1, errors.shape[1] + 1), errors, COLOURS[0])
    growth.set_xlabel("steps")
    growth.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _finish_errors(growth, "relative error of the state", legend=False)
    for parts in others:
        for colour, horizon, row in zip(COLOURS, horizons, components, strict=False):
            parts.plot(row[shown], range(len(shown)), "o", color=colour, ms=4, label=f"step {horizon}")
        parts.set_yticks(range(len(shown)), [names[i] for i in shown], fontsize="x-small")
        dress(parts, "median error, standard deviations")
        parts.set_xlim(left=0)
        parts.legend(frameon=False, fontsize="small", loc="lower right")
    return save(figure, path)


def draw_pathways(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the table of pathways, by layer: means, and a point for each member; relative numbers where pathways compete."""
    from rppdyn.priors.laplace import BIASES  # with torch, which takes seconds

    figure = Figure(figsize=(13.2, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [row for row in rows if row["coefficients"]]
    colours = dict(zip(dict.fromkeys(row["pathway"] for row in rows), cycle(COLOURS), strict=False))
    maps = [row for row in rows if row["pathway"] not in BIASES]
    per_layer = Counter(row["layer"] for row in maps)
    competing = [row for row in maps if per_layer[row["layer"]] > 1]
    effective, normalised, relative, precision, norm, empty = figure.subplots(2, 3).flat
    _draw_pathway_numbers(effective, "effective number of parameters", "effective", rows, colours)
    _draw_pathway_numbers(normalised, "effective number per parameter", "normalised", rows, colours)
    _draw_pathway_numbers(relative, "relative to the layer's", "relative", competing, colours)
    _draw_pathway_numbers(precision, "prior precision", "precision", rows, colours, bars=False)
    _draw_pathway_numbers(norm, "norm of the coefficients", "norm", rows, colours)
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


def _draw_pathway_numbers(
    axes: Axes,
    title: str,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    colours: dict[str, str],
    bars: bool = True,
) -> None:
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
