"""`rppdyn figure`, a figure of several runs, and the figure at the end of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import UNUSED_KEYS, TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import FigureConfig, is_agent_file
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.results import FileAgent
from rppdyn.runs import RunFolder, RunFolderError, read_metrics
from rppdyn.runs.figures import (
    COLOURS,
    Panel,
    draw_panels,
    legend_of,
    over_seeds,
    paint_bars,
    paint_curves,
    paint_dots,
    paint_trajectory,
    save,
)
from rppdyn.runs.files import plain, write_json
from rppdyn.runs.folder import read_json, runs_with_metrics
from rppdyn.runs.table import (
    AT_END,
    AT_STEPS,
    FILE_VERB,
    Run,
    RunGroup,
    flatten,
    group_by_subject,
    group_runs,
    split_subjects,
)

_FILES = ("task.data", "task.split", "task.split_seed")
TRUTH_KEYS = {
    "fit-regression": ("task.strength", *_FILES),
    "fit-dynamics": ("task.k2", "task.wind", "task.masses", "task.time_step", "task.horizon", "task.chunk", *_FILES),
    "fit-image": ("task.arrangement", "task.canvas", "task.shift", "task.resize", *_FILES),
    "fit-transition": ("task.length", "task.trajectories", "task.held_out", "evaluation.protocol"),
}
"""Keys of the task and its evaluation, as opposed to the method."""

AGENT_PANELS: dict[str, Mapping[str, str]] = {
    "mean return": {"evaluation": "eval/return_mean", "training": "rollout/return_mean"},
    "equivariance error": {"policy": "equivariance/policy", "critics": "equivariance/critic"},
    "free pathway's share": {"actor": "pathway/actor_free_share", "critics": "pathway/critic_free_share"},
}
"""The metrics of each panel by their name in its legend, by the panel's title."""
FIT_PANELS: dict[str, Mapping[str, str]] = {
    "error": {"validation": "validation/error", "test": "test/error"},
    "equivariance error": {"": "equivariance/error"},
}
ROLLOUT_PANELS: dict[str, Mapping[str, str]] = {
    "relative error along rollouts": {"": f"{AT_STEPS}error"},
    "drift along rollouts": {"energy": f"{AT_STEPS}energy_drift", "angular momentum": f"{AT_STEPS}momentum_drift"},
}
MAX_COMPONENTS = 16  # of a state in a figure, those with the largest errors


def run(config: FigureConfig) -> Path:
    """Draw the figure and return its path; its numbers are written if the configuration names a file.

    Raises:
        RunFolderError, ConfigError: a folder is no run, or there are both agents and fits.
        ValueError: no run has metrics yet.
    """
    from rppdyn.jobs.loading import measure_file  # stable-baselines3 takes seconds

    files = [run for run in config.runs if is_agent_file(run)]
    file_agents = [measure_file(file, config.env) for file in files]
    folders = (
        runs_with_metrics([run for run in config.runs if run not in files]) if len(files) < len(config.runs) else []
    )
    runs = read_runs(folders)
    agents = [run.path for run in runs if run.verb == TrainAgentConfig.verb]
    fits = [run.path for run in runs if run.path not in agents]
    if fits and (agents or files):
        kind = f"{agents[0]} is an agent's run" if agents else f"{files[0]} is an agent"
        raise ConfigError(f"{kind} and {fits[0]} a fit's: draw them apart, or both on a page with rppdyn report")
    if bounds := [run for run in runs if run.verb == "bound"]:
        raise ConfigError(f"{bounds[0].path} is a run of bound: it has its own figure, figures/bound.png")
    groups = group_runs([*runs, *(run for agent in file_agents for run in file_runs(agent))])
    figure = draw_curves(groups) if runs else draw_files(groups)
    picture = save(figure, Path(config.out))
    if config.json is not None:
        opened = map(RunFolder.open, folders)
        numbers = [
            {"run": f.path.name, "config": f.config(), "result": f.result(), "metrics": read_metrics(f.metrics.path)}
            for f in opened
        ]
        write_json(Path(config.json), [*numbers, *map(asdict, file_agents)])
    return picture


# -- from folders to the table -----------------------------------------------------------------------------------------


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Read the agents and the members of fits in these folders."""
    runs = [run for folder in folders for run in _read_folder(RunFolder.open(folder))]
    return split_subjects(runs, TRUTH_KEYS)


def _read_folder(folder: RunFolder) -> list[Run]:
    config = compose.from_run(None, folder)
    records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
    if not records:
        raise RunFolderError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
    values = plain(asdict(config))
    common: dict[str, Any] = dict(
        path=folder.path, verb=config.verb, config=flatten(values), model=values["model"], result=folder.result()
    )
    if isinstance(config, FitConfig):
        return _read_members(config, folder, records, common)
    agent = config.agent.name
    for key in UNUSED_KEYS.get(agent, ()):  # what an agent does not use makes no difference
        common["config"].pop(f"agent.{key}", None)
    common["config"]["agent"] = agent
    metrics: dict[str, dict[float, float]] = {}
    for record in records:
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                metrics.setdefault(name, {})[record["step"]] = value
    return [
        Run(
            subject=config.env.id, name=config.model.kind, seed=config.seed, length=config.total_steps,
            steps=records[-1]["step"], values=metrics, speed=folder.timing.last().get("time/steps_per_second"), **common,
        )
    ]  # fmt: skip


def _read_members(
    config: FitConfig, folder: RunFolder, records: list[dict[str, Any]], common: dict[str, Any]
) -> list[Run]:
    """Read the members of a fit with their metrics by epoch; a member without an error at its end has diverged."""
    last, result = records[-1]["step"] // config.steps_per_epoch, common["result"] or {}
    rollouts = (read_json(folder.path / "rollouts.json") or {}) if common["result"] else {}
    times = rollouts.pop("times", [])[1:]  # without the initial state, where errors are zero
    members = []
    for i, seed in enumerate(config.all_seeds):
        values: dict[str, dict[float, float]] = {}
        for record in records:
            for name, each in record.items():
                if isinstance(each, list):
                    epoch = record["step"] // config.steps_per_epoch
                    values.setdefault(name, {})[epoch] = nan if each[i] is None else each[i]
        ends = [each[max(each)] for name, each in values.items() if name.endswith("/error")]
        if not np.isfinite(ends).all():
            values = {name: each | {max(each): nan} for name, each in values.items()}
        for name, each in result.get("test", {}).items():
            if isinstance(each, list):
                values[AT_END + name] = {last: nan if each[i] is None else each[i]}
        for name, each in rollouts.items():
            if isinstance(each, list):
                curve = each[i] or [nan] * len(times)  # a time that no trajectory reached has None
                values[AT_STEPS + name] = {t: v for t, v in zip(times, curve, strict=False) if v is not None}
        members.append(
            Run(
                subject=config.task_name, name=config.model_name, seed=seed, length=config.optimiser.epochs, steps=last,
                values=values, **common,
            )
        )  # fmt: skip
    return members


def file_runs(agent: FileAgent) -> list[Run]:
    """Represent an agent from a file by runs of one step, one for each of its episodes."""
    errors = {f"equivariance/policy/{name}": {0.0: error} for name, error in agent.errors.items()}
    if agent.error is not None:
        errors["equivariance/policy"] = {0.0: agent.error}
    config = {"model.file": agent.file}
    return [
        Run(Path(agent.file), FILE_VERB, agent.env, Path(agent.file).name, seed, 0, 0, config,
            {"eval/return_mean": {0.0: value}} | errors, result={})
        for seed, value in enumerate(agent.returns)
    ]  # fmt: skip


# -- figures -----------------------------------------------------------------------------------------------------------


def draw_run(folder: RunFolder, name: str) -> Path:
    """Draw `figures/NAME.png`, the figure at the end of a run: its metrics, and its models on test data."""
    groups, extra = group_runs(read_runs([folder.path])), []
    rollouts, result = read_json(folder.path / "rollouts.json") or {}, folder.result() or {}
    if example := rollouts.get("example"):
        extra.append(("a test trajectory, dashed the first seed's model", partial(paint_trajectory, example=example)))
    if (components := rollouts.get("components")) and components["errors"]:
        extra.append(("median error, standard deviations", partial(_paint_components, components=components)))
    if rows := [row for row in result.get("pathways") or [] if row["coefficients"]]:
        extra.append(("effective number per parameter", partial(_paint_pathways, rows=rows)))
    return save(draw_curves(groups, extra), folder.figures / f"{name}.png")


def draw_curves(groups: Sequence[RunGroup], extra: Sequence[Panel] = ()) -> Figure:
    """Draw metrics over training, with a row of panels for each environment or task."""
    is_agent = groups[0].verb in (TrainAgentConfig.verb, FILE_VERB)
    titles = AGENT_PANELS if is_agent else FIT_PANELS | ROLLOUT_PANELS
    measured = {metric for group in groups for metric in group.metrics}
    titles = {title: metrics for title, metrics in titles.items() if is_agent or measured & set(metrics.values())}
    subjects = group_by_subject(groups)
    panels: list[Panel | None] = []
    for subject, members in subjects:
        for title, metrics in titles.items():
            is_rollout = title in ROLLOUT_PANELS
            if is_rollout and not any(metric in group.metrics for group in members for metric in metrics.values()):
                panels.append(None)
                continue
            unit = "environment steps" if is_agent else "epochs"
            if is_rollout:
                unit = "steps" if members[0].verb == "fit-transition" else "time, s"
            log = title != "mean return"
            each = not is_agent and not is_rollout and len(groups) > 1
            paint = partial(paint_curves, groups=members, metrics=metrics, log=log, unit=unit, each=each)
            panels.append((f"{subject}: {title}" if len(subjects) > 1 else title, paint))
    panels += extra
    columns = len(titles) if len(subjects) > 1 else 2 if len(panels) == 4 else min(3, len(panels))
    seeds = sorted({len(group.runs) for group in groups if group.verb != FILE_VERB})
    label = groups[0].label if len({group.label for group in groups}) == 1 else ""
    heading = ", ".join(filter(None, [subjects[0][0] if len(subjects) == 1 else "", label]))
    legend = [] if label else legend_of(groups)
    return draw_panels(panels, columns, title="\n".join(filter(None, [heading, *over_seeds(seeds)])), legend=legend)


def draw_files(groups: Sequence[RunGroup]) -> Figure:
    """Draw agents from files: the returns of their episodes, and their equivariance errors by generator."""
    panels: list[Panel] = []
    for subject, members in group_by_subject(groups):
        metrics = dict.fromkeys(metric for group in members for metric in group.metrics if metric.count("/") > 1)
        for metric in ("eval/return_mean", *metrics):
            title = f"{subject}: " + ("return of each episode" if metric in AGENT_PANELS["mean return"].values() else
                                      f"policy's error, {metric.rpartition('/')[2]}")  # fmt: skip
            panels.append((title, partial(paint_dots, groups=members, metric=metric, axis_label="")))
    return draw_panels(panels, min(3, len(panels)), size=(4.4, 1.2 + 0.5 * max(len(groups), 2)))


def _paint_components(axes: Axes, components: Mapping[str, Any]) -> None:
    """Draw the errors of the components of the state, those with the largest at the longest horizon."""
    names, errors = components["names"], np.array(components["errors"], float)  # nan is not drawn
    indices = np.argsort(errors[-1])[-MAX_COMPONENTS:]
    for colour, horizon, row in zip(COLOURS, components["horizons"], errors, strict=False):
        axes.plot(row[indices], range(len(indices)), "o", color=colour, ms=4, label=f"step {horizon}")
    axes.set_yticks(range(len(indices)), [names[i] for i in indices], fontsize="x-small")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize="small", loc="lower right")


def _paint_pathways(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of each pathway that the data determine, by layer: means over seeds."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    series: dict[str, list[float]] = {}
    each: dict[str, list[list[float]]] = {}
    for name in dict.fromkeys(row["pathway"] for row in rows):
        shares = {
            row["layer"]: [v for v in row["normalised"] if v is not None] for row in rows if row["pathway"] == name
        }
        each[name] = [shares.get(layer, []) for layer in layers]
        series[name] = [float(np.mean(numbers)) if numbers else nan for numbers in each[name]]
    paint_bars(
        axes, layers, series, "", log=False, each={k: [v if len(v) > 1 else [] for v in vs] for k, vs in each.items()}
    )
