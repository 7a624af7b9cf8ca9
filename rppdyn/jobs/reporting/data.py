"""The data of a report: runs as their folders hold them, grouped by configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rppdyn.envs import Certificate, SymmetrySpec
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.measuring.measure import FORMAT
from rppdyn.jobs.results import flattened, model_of, setting, value_of
from rppdyn.runs import RunFolder, RunFolderError, bootstrap_interval, differences, iqm, read_metrics
from rppdyn.runs.figures import (
    COLOURS,
    Curve,
    curve,
    draw_several,
    dress,
    label_decades,
    label_steps,
    leave_empty,
    looks_of,
)
from rppdyn.runs.files import plain
from rppdyn.runs.statistics import FEW

PALETTE = tuple(colour for colour in COLOURS if colour != "#000000")  # black can't be seen on a dark page
LONGEST_NAME = 40
TRUTH = {
    "fit-regression": ("task.strength",),
    "fit-dynamics": ("task.k2", "task.wind", "task.masses", "task.time_step", "task.horizon", "task.chunk"),
    "fit-transition": ("task.length", "task.trajectories", "task.held_out", "evaluation.protocol"),
}
"""Keys that say what there is to be learned, or on what that is measured, and not how it is learned."""
NAMED = {"model.kind", "model.system"}
"""Keys that the name of a run has said already."""


@dataclass(frozen=True)
class Run:
    """An agent, or one member of a fit, as a run's folder holds it.

    Attributes:
        verb: the one that made it.
        subject: the environment, or the task.
        length: how long it is to be, in environment steps or epochs.
        config: by dotted key, without what tells no runs apart (the seed, folders, lengths).
        name: name of the model.
        records: metrics by step, those of a fit by epoch and of this member alone.
        result: None while the run is unfinished.
        test: measures of a member of a finished fit at the end; null where it diverged.
        rollouts: errors and drifts of a member of a finished fit to trajectories, over `times`; null where all diverged.
        spec, certificate, equivariance: what `spec.json`, `certificate.json`, `equivariance.json` hold; None where the file is
            absent, or of another version of this package.
        outdated: files of another version.
        speed: training steps per second at the last evaluation of an agent.
    """

    path: Path
    verb: str
    subject: str
    seed: int
    length: int
    config: dict[str, Any]
    name: str
    model: dict[str, Any]
    records: list[dict[str, Any]]
    result: dict[str, Any] | None
    equivariance: dict[str, Any] | None
    outdated: tuple[str, ...]
    test: dict[str, float | None] = field(default_factory=dict)
    rollouts: dict[str, list[float] | None] = field(default_factory=dict)
    spec: SymmetrySpec | None = None
    certificate: Certificate | None = None
    speed: float | None = None

    @property
    def steps(self) -> int:
        """Steps, or epochs, at the last evaluation."""
        return self.records[-1]["step"]

    @property
    def is_agent(self) -> bool:
        """True if it is an agent's run, and not a fit's."""
        return self.verb == TrainAgentConfig.verb


@dataclass(frozen=True)
class Measure:
    """A number of several runs: each run's, and how many diverged."""

    each: list[float]
    lost: int

    @property
    def centre(self) -> float:
        """The interquartile mean, nan where all diverged."""
        return float(iqm(self.each)) if self.each else nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % bootstrap interval over runs; None of `FEW` or fewer."""
        if len(self.each) <= FEW:
            return None
        lower, upper = bootstrap_interval(self.each)
        return float(lower), float(upper)


@dataclass(frozen=True)
class Final(Measure):
    """A metric at the last step that all runs of a group have."""

    step: int


@dataclass(frozen=True)
class RunGroup:
    """Runs whose configurations differ in the seed alone, and the colour and line that they are drawn in."""

    label: str
    colour: str
    line: str
    runs: tuple[Run, ...]

    @property
    def subject(self) -> str:
        return self.runs[0].subject

    @property
    def is_agent(self) -> bool:
        return self.runs[0].is_agent

    @property
    def unfinished(self) -> bool:
        """True if any of the runs is."""
        return any(run.result is None for run in self.runs)

    @property
    def steps(self) -> int:
        """Steps, or epochs, that all runs have come to."""
        return min(run.steps for run in self.runs)

    def curve(self, metric: str) -> Curve | None:
        """A metric over steps; None where not every run has it. Members of fits that diverged are left out."""
        runs = self._with(metric)
        return curve([run.records for run in runs], metric) if runs else None

    def final(self, metric: str) -> Final | None:
        """A metric at the end; None where there is none."""
        drawn, lost = self.curve(metric), self.lost(metric)
        if drawn is None:
            return Final([], lost, self.steps) if lost else None
        return Final(drawn.each[:, -1].tolist(), lost, int(drawn.steps[-1]))

    def _with(self, metric: str) -> list[Run]:
        return [run for run in self.runs if run.is_agent or run.records[-1].get(metric) is not None]

    def lost(self, metric: str) -> int:
        """How many members of fits have diverged: of those that have a metric, it is no number at the end."""
        converged = self._with(metric)
        return sum(metric in run.records[-1] and run not in converged for run in self.runs)

    def test(self, name: str) -> Measure | None:
        """A measure of finished fits; None where none has it."""
        each = [run.test[name] for run in self.runs if name in run.test]
        numbers = [value for value in each if value is not None]
        return Measure(numbers, len(each) - len(numbers)) if each else None

    def best(self, metric: str) -> float:
        """The largest value that the curve reaches."""
        drawn = self.curve(metric)
        return float(np.max(drawn.centre)) if drawn is not None else float("nan")


def read_groups(folders: Sequence[str]) -> list[RunGroup]:
    """The runs in these folders, grouped.

    Raises:
        RunFolderError: a folder is no run, has a seed that another of its configuration has, has no
            metrics yet, or holds a damaged file.
        ConfigError: a stored configuration can't be read.
    """
    runs = _subjects_apart([run for folder in folders for run in _read(RunFolder.open(folder))])
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run, name in zip(runs, _names(runs), strict=True):
        grouped.setdefault((run.subject, name), []).append(run)
    for members in grouped.values():
        paths_of: dict[int, Path] = {}
        for run in members:
            if (other := paths_of.setdefault(run.seed, run.path)) != run.path:
                raise RunFolderError(
                    f"{other} and {run.path} both have seed {run.seed} of one configuration: name one of them"
                )
    models = {name: model_of(members[0].config) for (_, name), members in grouped.items()}
    looks = dict(zip(models, looks_of(list(models.values()), PALETTE), strict=True))
    subjects = list(dict.fromkeys(run.subject for run in runs))
    ordered = sorted(grouped.items(), key=lambda item: subjects.index(item[0][0]))
    return [RunGroup(name, *looks[name], tuple(members)) for (_, name), members in ordered]


def _subjects_apart(runs: Sequence[Run]) -> list[Run]:
    """Tasks of one name that differ in what is true there (a spring, the wind) are different subjects."""
    named = []
    for run in runs:
        peers = [other.config for other in runs if (other.subject, other.verb) == (run.subject, run.verb)]
        varied = [key for key in TRUTH.get(run.verb, ()) if len({repr(config.get(key)) for config in peers}) > 1]
        parts = [setting(key, _written(run.config.get(key))) for key in varied]
        named.append(replace(run, subject=" ".join([run.subject, *parts])))
    return named


def _names(runs: Sequence[Run]) -> list[str]:
    """The name of each run among those on its subject: the model, and whatever else varies there.

    Where that is long it is the model and a letter: the page says elsewhere in what they differ.
    """
    long: dict[str, str] = {}
    names = []
    for run in runs:
        peers = [other.config for other in runs if other.subject == run.subject]
        varied = {key for config in peers for key, _, _ in differences(run.config, config)}
        namesakes = [other.config for other in runs if (other.subject, other.name) == (run.subject, run.name)]
        differing = {key for config in namesakes for key, _, _ in differences(run.config, config)}
        # a model's own layers go without saying
        varied = {key for key in varied if key in differing or not key.startswith("model.")}
        settings = [setting(key, _written(value_of(run.config, key))) for key in sorted(varied - NAMED)]
        name = " ".join(filter(None, [run.name, *settings]))
        if len(name) > LONGEST_NAME:
            name = long.setdefault(name, f"{run.name} {_letters(len(long))}")
        names.append(name)
    return names


def has_letter(name: str) -> bool:
    """Return whether a configuration's settings are too long for its name, and a letter stands for them."""
    return re.fullmatch(".* [A-Z]+", name) is not None


def _letters(i: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    return ("" if i < 26 else _letters(i // 26 - 1)) + chr(ord("A") + i % 26)


def _written(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    return "null" if value is None else str(value).replace(" ", "")


def _read(folder: RunFolder) -> list[Run]:
    """The agent in a folder, or the members of the fit."""
    config = compose.from_run(compose.name_of_run(folder), folder)
    records = read_metrics(folder.metrics.path) if folder.metrics.path.exists() else []
    if not records:
        raise RunFolderError(f"{folder.path} has no metrics yet: leave it out, or let it run first")
    contents: dict[str, Any] = {}
    outdated: list[str] = []
    for name, read in READERS.items():
        content = _json(folder.path / name)
        try:
            contents[Path(name).stem] = None if content is None else read(content)
        except ValueError:  # another version
            contents[Path(name).stem] = None
            outdated.append(name)
    values = plain(asdict(config))
    common: dict[str, Any] = dict(
        path=folder.path,
        verb=config.verb,
        config=flattened(values),
        model=values["model"],
        result=folder.result(),
        outdated=tuple(outdated),
    )
    if isinstance(config, FitConfig):
        common |= dict(
            subject=config.task_name,
            length=config.optimiser.epochs,
            name=config.model_name,
            equivariance=contents["equivariance"],
        )
        return _members(config, folder, records, common)
    speed = folder.timing.last().get("time/steps_per_second")
    return [
        Run(
            subject=config.env.id, seed=config.seed, length=config.total_steps, name=config.model.kind, records=records,
            speed=speed, **common, **contents,
        )
    ]  # fmt: skip


def _members(config: FitConfig, folder: RunFolder, records: list[dict[str, Any]], common: dict[str, Any]) -> list[Run]:
    """The members of a fit, each with its own numbers, by epoch."""
    test = (common["result"] or {}).get("test", {})
    rollouts = _json(folder.path / "rollouts.json") if common["result"] else None
    times = (rollouts or {}).pop("times", [])[1:]  # the initial state, where nothing differs yet, is in no curve
    of_member = lambda values, i: {name: v[i] for name, v in values.items() if isinstance(v, list)}  # noqa: E731
    return [
        Run(
            seed=seed,
            records=[{"step": record["step"] // config.steps_per_epoch} | of_member(record, i) for record in records],
            test=of_member(test, i),
            rollouts={"times": times} | of_member(rollouts, i) if rollouts else {},
            **common,
        )
        for i, seed in enumerate(config.all_seeds)
    ]


def _measured(content: dict[str, Any]) -> dict[str, Any]:
    if content.get("format") != FORMAT:
        raise ValueError(f"format {content.get('format')!r}")
    return content


READERS = {
    "spec.json": SymmetrySpec.from_dict,
    "certificate.json": Certificate.from_dict,
    "equivariance.json": _measured,
}


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: delete it, and make it again if it is needed") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} holds no JSON object: delete it, and make it again if it is needed")
    return content


# -- figures -----------------------------------------------------------------------------------------------------------

HEIGHT = 3.1
WIDTHS = {1: 8.4, 2: 5.6, 3: 4.3}
AT_ROUNDING = 1e-10


def curves(
    panels: Sequence[tuple[str, Sequence[RunGroup], str]],
    label: str,
    log: bool = False,
    unit: str = "environment steps",
    each: bool = False,
) -> Figure:
    """One set of axes per panel: its title, its groups, and the metric that is drawn.

    On a logarithmic axis groups at rounding, far below all others, are named instead: their lines would flatten the others.
    So are groups that have diverged.

    Args:
        label, unit: label and unit of the axes.
        each: draw every run, too, as a thin line.
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTHS[columns] * columns, HEIGHT * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for k, (axes, (title, groups, metric)) in enumerate(zip(every, panels, strict=False)):
        tiny = _at_rounding(groups, metric) if log else {}
        for group in groups:
            if group.label not in tiny:
                _curve(axes, group, metric, log, each)
        notes = [f"far below: {label} {size:.0e}" if size else f"zero: {label}" for label, size in tiny.items()]
        notes += [_loss(group, len(group.runs) - lost, lost) for group in groups if (lost := group.lost(metric))]
        _finish(axes, title, log, unit, notes)
        label_steps(axes.xaxis)
        if k % columns == 0:
            axes.set_ylabel(label)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    return figure


def finals(groups: Sequence[RunGroup], metric: str, label: str) -> Figure:
    """Each seed's last value, and the interquartile mean with its interval, if there is one, one row per group."""
    figure = Figure(figsize=(WIDTHS[1], 0.7 + 0.4 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for k, group in enumerate(groups):
        final = group.final(metric)
        if final is None:
            continue
        if final.interval is not None:
            axes.plot(final.interval, [k, k], color=group.colour, lw=7, alpha=0.3, solid_capstyle="butt")
        spread = 0.12 * (np.arange(len(final.each)) % 3 - 1) if len(final.each) > 1 else np.zeros(1)
        axes.plot(final.each, k + spread, "o", ms=4.5, color=group.colour, alpha=0.75)
        axes.plot([final.centre], [k], "|", ms=19, mew=2.2, color=group.colour)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    _finish(axes, "", False, label, [])
    return figure


def rollouts(groups: Sequence[RunGroup], panels: Mapping[str, str], unit: str) -> Figure:
    """How errors and drifts, each with its title, grow along the rollouts of fitted models."""
    figure = Figure(figsize=(WIDTHS[3] * len(panels), HEIGHT), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        losses = []
        for group in groups:
            finished = [run.rollouts for run in group.runs if run.rollouts]
            converged = [curves for curves in finished if curves.get(name)]
            if converged:
                values = np.array([curves[name] for curves in converged])
                draw_several(axes, np.array(converged[0]["times"]), values, group.colour, style=group.line)
            if len(converged) < len(finished):
                losses.append(_loss(group, len(converged), len(finished) - len(converged)))
        _finish(axes, title, True, unit, losses)
    return figure


def _loss(group: RunGroup, converged: int, lost: int) -> str:
    return f"{group.label}: " + (
        f"{converged} of {converged + lost} seeds" if converged else f"{lost} of {lost} diverged"
    )


def _at_rounding(groups: Sequence[RunGroup], metric: str) -> dict[str, float]:
    """The largest value of each group that never leaves rounding, where there are others that do; zeros always."""
    largest = {group.label: float(drawn.centre.max()) for group in groups if (drawn := group.curve(metric)) is not None}
    tiny = {label: size for label, size in largest.items() if size < AT_ROUNDING}
    return tiny if len(tiny) < len(largest) else {label: size for label, size in tiny.items() if not size}


def _curve(axes: Axes, group: RunGroup, metric: str, log: bool, each: bool) -> None:
    drawn = group.curve(metric)
    if drawn is None:
        return
    draw_several(axes, drawn.steps, drawn.each, group.colour, style=group.line, each=each, log=log)


def _finish(axes: Axes, title: str, log: bool, unit: str, notes: Sequence[str]) -> None:
    """Title, scales and labels; notes on what is not drawn stand below the axes, or in them where nothing is."""
    dress(axes, title)
    axes.set_xlabel("\n".join([unit, *notes]) if axes.lines else unit)
    if log:
        axes.set_yscale("log")
        label_decades(axes.yaxis)
    if not axes.lines:
        leave_empty(axes, "\n".join(notes))
