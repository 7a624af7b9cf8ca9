"""Runs as a table with a value for each run, metric and step, and their grouping by configuration.

A run is one seed here: an agent, or one member of a fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rppdyn.runs.figures import COLOURS, looks_of
from rppdyn.runs.folder import RunFolderError
from rppdyn.runs.statistics import FEW_SEEDS, bootstrap_interval, iqm

AT_END = "final/"
"""Prefix of the measures of a finished fit; their only step is the last epoch."""
AT_STEPS = "along/"
"""Prefix of the measures along rollouts of a finished fit, over the times of the rollouts."""
FILE_VERB = "file"
"""Verb of an agent from a file, which has one step and no training."""


@dataclass(frozen=True)
class Run:
    """One seed of a configuration.

    Attributes:
        path: the run's folder, or the agent's file.
        subject: the environment or the task.
        name: name of the model.
        length: number of environment steps or epochs of the whole run.
        steps: number of steps or epochs at the last record of any metric.
        config: settings by dotted key, without `NEUTRAL_KEYS`.
        values: values of each metric by step; nan if a member of a fit has diverged.
        result: content of `result.json`; None while the run is unfinished.
        speed: training steps per second of an agent at its last evaluation.
    """

    path: Path
    verb: str
    subject: str
    name: str
    seed: int
    length: int
    steps: int
    config: Mapping[str, Any]
    values: Mapping[str, Mapping[float, float]]
    result: dict[str, Any] | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    speed: float | None = None

    def last(self, metric: str) -> float | None:
        """The last value of a metric; None without any."""
        values = self.values.get(metric)
        return values[max(values)] if values else None

    def has(self, metric: str) -> bool:
        """Return whether the last value of a metric is finite."""
        return isfinite(nan if (value := self.last(metric)) is None else value)


@dataclass(frozen=True)
class Curve:
    """A metric of several runs, ``(runs, steps)``, over steps."""

    steps: NDArray[np.float64]
    each: NDArray[np.float64]

    @property
    def centre(self) -> NDArray[np.float64]:
        """The interquartile mean over runs, ``(steps,)``."""
        return iqm(self.each)


@dataclass(frozen=True)
class Measure:
    """The values of a metric at the last common step of several runs, and the number of diverged runs."""

    each: list[float]
    lost: int = 0
    step: float = 0

    @property
    def centre(self) -> float:
        """The interquartile mean; nan if all diverged."""
        return float(iqm(self.each)) if self.each else nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % bootstrap interval over runs; None for `FEW_SEEDS` or fewer."""
        if len(self.each) <= FEW_SEEDS:
            return None
        lower, upper = bootstrap_interval(self.each)
        return float(lower), float(upper)


@dataclass(frozen=True)
class RunGroup:
    """Runs whose configurations differ only in `NEUTRAL_KEYS`.

    Attributes:
        label: name of the group in tables and legends: the model, and settings that tell it from the other groups.
        colour, line: colour and line style of the group in figures.
    """

    label: str
    colour: str
    line: str
    runs: tuple[Run, ...]

    @property
    def subject(self) -> str:
        return self.runs[0].subject

    @property
    def verb(self) -> str:
        return self.runs[0].verb

    @property
    def unfinished(self) -> bool:
        """True if any of the runs is unfinished."""
        return any(run.result is None for run in self.runs)

    @property
    def steps(self) -> int:
        """Steps or epochs that all runs have reached."""
        return min(run.steps for run in self.runs)

    @property
    def metrics(self) -> list[str]:
        """Metrics of any of the runs."""
        return list(dict.fromkeys(metric for run in self.runs for metric in run.values))

    def curve(self, metric: str) -> Curve | None:
        """A metric at the steps where all runs but diverged ones have a number; None without such steps.

        None also if a run has not logged the metric yet, unless it is a metric of finished models.
        """
        runs = [run.values[metric] for run in self.runs if run.has(metric)]
        complete = len(runs) + self.lost(metric) == len(self.runs) or metric.startswith((AT_END, AT_STEPS))
        if not runs or not complete:
            return None
        steps = sorted(set.intersection(*({s for s, value in run.items() if isfinite(value)} for run in runs)))
        return Curve(np.array(steps), np.array([[run[step] for step in steps] for run in runs])) if steps else None

    def lost(self, metric: str) -> int:
        """Number of diverged runs: the last value of their metric is not finite."""
        return sum(metric in run.values and not run.has(metric) for run in self.runs)

    def final(self, metric: str) -> Measure | None:
        """A measure of the finished models, else the last value of training; None without either."""
        for name in (AT_END + metric, metric):
            curve, lost = self.curve(name), self.lost(name)
            if curve is not None:
                return Measure(curve.each[:, -1].tolist(), lost, float(curve.steps[-1]))
            if lost == len(self.runs):
                return Measure([], lost, self.steps)
        return None


# -- configurations ----------------------------------------------------------------------------------------------------

NEUTRAL_KEYS = (
    "seed", "seeds", "total_steps", "checkpoint_every", "run_dir", "runs_root", "threads", "device", "logger", "workers",
    "task.generators", "task.windows",
)  # fmt: skip
"""Keys that do not distinguish configurations: seeds, an agent's length, folders, how a run is executed, what it finds."""
NAMED_KEYS = {"model.kind", "model.system"}
"""Keys whose values are in the name of a model."""
STOCK_KEYS = ("env.actuator_scale.", "env.kwargs.")
"""Prefixes of keys that mean the stock environment where they are absent."""
MAX_LABEL = 40  # characters on a page; a longer label keeps what tells configurations apart


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration's values by dotted key, without `NEUTRAL_KEYS`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        elif name not in NEUTRAL_KEYS and value != {}:
            flat[name] = value
    return flat


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """A value of a flattened configuration; "stock" for an absent key with a prefix of `STOCK_KEYS`."""
    return config.get(key, "stock" if key.startswith(STOCK_KEYS) else None)


def different_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys with different values among the configurations that have them."""
    values: dict[str, set[str]] = {}
    for key in sorted({key for config in configs for key in config}):
        having = [config for config in configs if key in config or key.startswith(STOCK_KEYS)]
        values[key] = {repr(value_of(config, key)) for config in having}
    return [key for key, several in values.items() if len(several) > 1]


def colour_name(config: Mapping[str, Any]) -> str:
    """The model of a flattened configuration, as :data:`rppdyn.runs.figures.MODEL_COLOURS` calls it."""
    published = ", published" if "published" in (config.get("variant"), config.get("env.variant")) else ""
    augmented = ", augmented" if config.get("agent.augment") or config.get("task.augment") else ""
    return f"{config.get('model.kind')}{published}{augmented}"


def format_setting(config: Mapping[str, Any], key: str) -> str:
    """Format one setting for a label: `leg_joint=0.5`. A flag gives its key if it is on, else an empty string."""
    name, value = key.rpartition(".")[2], value_of(config, key)
    if isinstance(value, bool):
        return name if value else ""
    return f"{name}={'null' if value is None else str(value).replace(' ', '')}"


# -- grouping ----------------------------------------------------------------------------------------------------------


def split_subjects(runs: Sequence[Run], keys: Mapping[str, Sequence[str]]) -> list[Run]:
    """Add settings of the task to the subjects of runs, if tasks of one name differ.

    Args:
        keys: keys of the task, as opposed to the method, by verb.
    """
    split = []
    for run in runs:
        peers = [peer.config for peer in runs if (peer.subject, peer.verb) == (run.subject, run.verb)]
        parts = [format_setting(run.config, key) for key in keys.get(run.verb, ()) if key in different_keys(peers)]
        split.append(replace(run, subject=" ".join([run.subject, *parts])))
    return split


def label_runs(runs: Sequence[Run], max_length: int | None = None) -> list[str]:
    """A label for each run: its model, and the settings that differ among the runs on its subject.

    Args:
        max_length: a longer label keeps what tells the model's own configurations apart, and files lose their folders.
    """
    labels: list[str] = []
    for run in runs:
        peers = [peer for peer in runs if peer.subject == run.subject]
        namesakes = different_keys([peer.config for peer in peers if peer.name == run.name])
        keys = [  # a setting of the model counts if it differs among runs of that model
            key
            for key in different_keys([peer.config for peer in peers])
            if key in run.config or key.startswith(STOCK_KEYS)
            if key not in NAMED_KEYS and (key in namesakes or not key.startswith("model."))
        ]
        label = " ".join(filter(None, [run.name, *(format_setting(run.config, key) for key in keys)]))
        if max_length is not None and len(label) > max_length:
            label = _brief_label(run, runs, sorted(keys, key=lambda key: key.startswith("model.")))
        labels.append(label)
    return labels


def _brief_label(run: Run, runs: Sequence[Run], keys: Sequence[str]) -> str:
    """The label with only settings without which the model's configurations, on all subjects, can't be told apart."""
    configs = {repr(peer.config): peer.config for peer in runs if peer.name == run.name}.values()

    def describe(config: Mapping[str, Any], settings: Sequence[str]) -> str:
        words = (format_setting(config, key) for key in settings if value_of(config, key) is not None)
        return " ".join(filter(None, words))

    kept = list(keys)
    for key in keys:
        fewer = [other for other in kept if other != key]
        if len({describe(config, fewer) for config in configs}) == len({describe(config, kept) for config in configs}):
            kept = fewer
    texts = {describe(config, kept) for config in configs}
    text = describe(run.config, kept)
    without_folders = {re.sub(r"=\S*/", "=", each) for each in texts}
    text = re.sub(r"=\S*/", "=", text) if len(without_folders) == len(texts) else text
    return f"{run.name} {text}".strip()


def group_runs(
    runs: Sequence[Run], *, colours: Sequence[str] = COLOURS, max_length: int | None = None
) -> list[RunGroup]:
    """Group runs by subject and label; a label has the same colour and line on all subjects.

    Raises:
        RunFolderError: two runs have one seed of one configuration.
    """
    members: dict[tuple[str, str], list[Run]] = {}
    for run, label in zip(runs, label_runs(runs, max_length), strict=True):
        members.setdefault((run.subject, label), []).append(run)
    for runs_of_group in members.values():
        paths: dict[int, Path] = {}
        for run in runs_of_group:
            if run.verb != FILE_VERB and (path := paths.setdefault(run.seed, run.path)) != run.path:
                raise RunFolderError(
                    f"{path} and {run.path} both have seed {run.seed} of one configuration: name one of them"
                )
    models = {label: colour_name(runs_of_group[0].config) for (_, label), runs_of_group in members.items()}
    looks = dict(zip(models, looks_of(list(models.values()), colours), strict=True))
    return [
        RunGroup(label, *looks[label], tuple(runs_of_group))
        for subject in dict.fromkeys(run.subject for run in runs)
        for (group_subject, label), runs_of_group in members.items()
        if group_subject == subject
    ]


def group_by_subject(groups: Sequence[RunGroup]) -> list[tuple[str, list[RunGroup]]]:
    """The groups on each environment or task."""
    subjects = dict.fromkeys(group.subject for group in groups)
    return [(subject, [group for group in groups if group.subject == subject]) for subject in subjects]
