"""Learning curves of agents, from the metrics of one run or of many."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rppdyn.jobs.config.labels import AGENTS, agent_of, flattened, model_of, setting, value_of
from rppdyn.runs.figures import (
    curve,
    draw_several,
    label_decades,
    label_steps,
    leave_empty,
    legend_below,
    looks_of,
    over_seeds,
    save,
)
from rppdyn.runs.folder import RunFolder, differences, read_metrics

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
"""Of returns; where there are no others it goes without saying."""

PANELS = (
    Panel("mean return", {EVALUATION: "eval/return_mean", "training": "rollout/return_mean"}),
    Panel(
        "equivariance error",
        {"policy": "equivariance/policy", "critics": "equivariance/critic", "dynamics": "equivariance/dynamics"},
        "log",
    ),
    Panel(
        "free pathway's share",
        {
            "actor": "pathway/actor_free_share",
            "critics": "pathway/critic_free_share",
            "dynamics": "pathway/dynamics_free_share",
        },
        "log",
    ),
)


class Played(Protocol):
    """An agent from a file, which has played episodes."""

    @property
    def file(self) -> str: ...
    @property
    def env(self) -> str: ...
    @property
    def returns(self) -> list[float]: ...
    @property
    def errors(self) -> dict[str, float]: ...


def learning_curves(
    runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], played: Sequence[Played] = ()
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
        _dress(axes, panel, drawn)
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


def draw_files(played: Sequence[Played], out: str | os.PathLike[str]) -> Path:
    """Draw agents from files alone: the returns of their episodes, and their equivariance errors by generator."""
    figure = Figure(figsize=(2 * WIDTH, 1.2 + 0.5 * max(len(played), 2)), layout="constrained")
    FigureCanvasAgg(figure)
    returns, errors = figure.subplots(1, 2)
    names = [Path(agent.file).name for agent in played]
    for k, agent in enumerate(played):
        returns.plot(agent.returns, [k] * len(agent.returns), "o", ms=4.5, alpha=0.6, color=f"C{k}")
        returns.plot([fmean(agent.returns)], [k], "|", ms=19, mew=2.2, color=f"C{k}")
        for i, (generator, error) in enumerate(agent.errors.items()):
            errors.plot([max(error, 1e-17)], [k], "osD^v"[i % 5], color=f"C{k}", label=generator if k == 0 else None)
    for axes, title in ((returns, "return of each episode, and their mean"), (errors, "policy's equivariance error")):
        axes.set_title(title, fontsize="medium")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if any(agent.errors for agent in played):
        errors.set_xscale("log")
        errors.legend(frameon=False, fontsize="small")
    figure.suptitle(", ".join(dict.fromkeys(agent.env for agent in played)), fontsize="medium")
    return save(figure, Path(out))


@dataclass(frozen=True)
class Group:
    """Runs whose configurations differ in the seed alone: their model, and the metrics of each."""

    model: str
    env: str
    records: list[list[dict[str, Any]]]


def grouped(runs: Sequence[str | os.PathLike[str]]) -> dict[str, Group]:
    """Runs by a label that says in what their configurations differ, seeds aside."""
    if not runs:
        raise ValueError("no runs to draw: give the folders of one run or more")
    folders = [RunFolder.open(run) for run in runs]
    configs = [flattened(folder.config()) for folder in folders]
    varied = _varied(configs)
    groups: dict[str, Group] = {}
    of_seed: dict[tuple[str, Any], Path] = {}
    for folder, config in zip(folders, configs, strict=True):
        records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
        if not records:
            raise ValueError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
        label, seed = _label(config, varied), folder.config().get("seed")
        if (other := of_seed.setdefault((label, seed), folder.path)) != folder.path:
            raise ValueError(f"{other} and {folder.path} both have seed {seed} of one configuration: name one of them")
        groups.setdefault(label, Group(model_of(config), str(config.get("env.id")), [])).records.append(records)
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
        own = _different([config for config in configs if agent_of(config) == name])
        varied -= {key for key in varied if key == part or (key.startswith(f"{part}.") and key not in own)}
    return varied | {"agent"}


def _different(configs: Sequence[dict[str, Any]]) -> set[str]:
    return {key for config in configs for key, _, _ in differences(configs[0], config)}


def _draw(axes: Axes, panel: Panel, runs: Sequence[Sequence[Mapping[str, Any]]], colour: str, label: str) -> set[str]:
    """Draw what the runs have of a panel; which of its entries that is."""
    found: set[str] = set()
    for style, (part, metric) in zip(STYLES, panel.metrics.items(), strict=False):
        drawn = curve(runs, metric)
        if drawn is None:
            continue
        log, named = panel.scale == "log", label if not found else None
        draw_several(axes, drawn.steps, drawn.each, colour, label=named or None, style=style, log=log)
        found.add(part)
    return found


def _dress(axes: Axes, panel: Panel, drawn: set[str]) -> None:
    parts = [Line2D([], [], ls=style, color="0.35", label=part)
             for style, part in zip(STYLES, panel.metrics, strict=False) if part and part in drawn]  # fmt: skip
    if [part.get_label() for part in parts] not in ([], [EVALUATION]):
        legend_below(axes, len(parts), parts)
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel("environment steps")
    label_steps(axes.xaxis)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
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
