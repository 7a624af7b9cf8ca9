"""Results of fits and of train-agent. Nothing heavy is imported here, so that a finished run is shown at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rppdyn.errors import one_line
from rppdyn.runs import RunResult
from rppdyn.runs.statistics import FEW_SEEDS, bootstrap_interval, iqm

FIRST_DIVERGENCE = "rollout/first_divergence"  # null if no rollout diverged


@dataclass
class FitResult(RunResult):
    """The result of a fit, as in `result.json`.

    Attributes:
        metrics: the last record of `metrics.jsonl`; lists have one value per seed.
        test: metrics of the finished members, lists of one value per seed; null for a diverged member.
        pathways: rows of :func:`rppdyn.jobs.fit.pathway_rows`, if variances were learned.
    """

    verb: str
    task: str
    model: str
    seeds: list[int]
    epochs: int
    metrics: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    pathways: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0  # of this process
    compiled: bool = False  # whether torch.compile was used in this process, which affects rounding
    interrupted: bool = False
    note: str = ""

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        head = f"{self.task}, {self.model}, {seeds}: {self.epochs:,} epochs" + (f" ({self.note})" if self.note else "")
        lines = [head]
        if self.test and len(self.seeds) > 1:
            summary = "interquartile mean [95 % bootstrap interval], of three and fewer " * (
                len(self.seeds) > FEW_SEEDS
            )
            lines.append(f"  over seeds: {summary}mean (each)")
        rows: dict[str, str] = {}
        for name, values in self.test.items():
            if name == FIRST_DIVERGENCE:
                times = [time for time in values if time is not None]
                rows |= {name: f"{min(times):g} s; in {len(times)} of {len(values)}"} if times else {}
            elif isinstance(values, list):
                rows[name] = _summarise(values)
        page = Path(self.run) / "report.html"
        ends: dict[str, Any] = {"run folder": self.run}
        if self.interrupted:
            ends["go on with"] = f"rppdyn {self.verb} --resume {self.run}"
        else:
            ends |= {"figures": Path(self.run) / "figures"} | ({"report": page} if page.exists() else {})
        return "\n".join([*lines, *pairs(rows, 34), *_pathway_table(self.pathways), *pairs(ends, 34)])


def pairs(rows: Mapping[str, Any], width: int) -> list[str]:
    """Lines of text with a name and its value each, in two columns."""
    return [f"  {name:{width}} {value}" for name, value in rows.items()]


def values_by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Transpose rows, one for each member, to lists by name; a missing or infinite value or nan becomes None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: numbers([row.get(name) for row in rows]) for name in names}


def numbers(values: Sequence[float | None]) -> list[float | None]:
    """Replace values that are not finite by None."""
    return [None if v is None or not math.isfinite(v) else v for v in values]


def _pathway_table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of text with interquartile means over seeds without diverged ones, one line for each pathway."""
    if not rows:
        return []
    lines = [f"  {'pathway':34} {'precision':>10} {'norm':>8} {'effective':>17} {'normalised':>10} {'relative':>8}"]
    for row in rows:
        precision, norm, effective, normalised, relative = (
            float(iqm([value for value in row[key] if value is not None]))
            for key in ("precision", "norm", "effective", "normalised", "relative")
        )
        share = f"{effective:.0f} of {row['coefficients']}"
        name = f"{row['layer']}.{row['pathway']}".lstrip(".")
        lines.append(f"  {name:34} {precision:10.3g} {norm:8.3g} {share:>17} {normalised:10.2g} {relative:8.2f}")
    return lines


def _summarise(values: list[float | None]) -> str:
    """The interquartile mean over seeds with its interval, or with each of few values, and the number of diverged seeds."""
    finite = [value for value in values if value is not None]
    lost = f", {len(values) - len(finite)} of {len(values)} diverged" if len(finite) < len(values) else ""
    if not finite:
        return lost.removeprefix(", ")
    centre = f"{float(iqm(finite)):.3g}"
    if len(finite) == 1:
        return centre + lost
    if len(finite) <= FEW_SEEDS:
        return f"{centre} ({', '.join(f'{value:.3g}' for value in finite)}){lost}"
    low, high = bootstrap_interval(finite)
    return f"{centre} [{float(low):.3g}, {float(high):.3g}]{lost}"


@dataclass
class TrainAgentResult(RunResult):
    """The result of an agent's training, as in `result.json`."""

    env: str
    model: str
    seed: int
    steps: int
    total_steps: int
    metrics: dict[str, Any] = field(default_factory=dict)  # the last record of metrics.jsonl
    prior: str = ""  # the free pathways' share of the prior, in words
    compiled: bool = False  # whether torch.compile was used in this process, which affects rounding
    fresh_episodes: bool = False  # whether resuming begins a new episode: the environment's state can't be read
    seconds: float = 0.0  # of this process; those of earlier ones are in timing.jsonl
    interrupted: bool = False
    note: str = ""

    def __str__(self) -> str:
        note, m = f" ({self.note})" if self.note else "", self.metrics
        head = f"{self.env}, {self.model}, seed {self.seed}: {self.steps:,} of {self.total_steps:,} steps{note}"
        rows: dict[str, str] = {}
        if m:
            step = "" if m["step"] == self.steps else f", at step {m['step']:,}"
            spread = f"standard deviation {_return(m['eval/return_std'])} over {len(m['eval/returns'])} episodes{step}"
            rows["mean return"] = f"{_return(m['eval/return_mean'])}  ({spread})"
            rows["equivariance error"] = "none: the environment has no symmetry here"
            if any(name.startswith("equivariance/policy/") for name in m):
                sizes = {name: m[f"equivariance/{name}"] for name in ("policy", "critic")}
                vacuous = "vacuous (the outputs are all but zero)"
                errors = ", ".join(f"{name} {vacuous if x is None else f'{x:.1e}'}" for name, x in sizes.items())
                rows["equivariance error"] = f"{errors}  (0 is equivariant, 1 as far from it as can be)"
            names = {network: f"pathway/{network}_free_share" for network in ("actor", "critic")}
            shares = ", ".join(f"{network} {100 * m[name]:.3g}%" for network, name in names.items() if name in m)
            rows["free pathway"] = f"{shares} of the squared weights"
            norms = {name: m.get(f"pathway/{name}_breaking_norm") for name in ("actor", "critic")}
            if constants := ", ".join(f"{name} {norm:.2g}" for name, norm in norms.items() if norm is not None):
                rows["constant inputs"] = f"{constants}  (norms of what the group moves; 0 breaks nothing)"
        rows |= {"its prior allows": self.prior} if self.prior else {}
        if self.fresh_episodes:
            rows["when it goes on"] = "from the last checkpoint, with a fresh episode"
        rows["run folder"] = self.run
        if self.interrupted:
            rows["go on with"] = f"rppdyn train-agent --resume {self.run}"
        else:
            rows["learning curve"] = str(Path(self.run) / "figures" / "learning_curve.png")
            rows["TensorBoard"] = f"tensorboard --logdir {self.run}"
        return "\n".join([head, *pairs(rows, 19)])


@dataclass
class TrainManyResult:
    """The results of several seeds.

    Attributes:
        results: results of the seeds that were finished or stopped.
        errors: exceptions that ended the other seeds, by seed.
    """

    results: list[TrainAgentResult]
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        return any(result.interrupted for result in self.results)

    def __str__(self) -> str:
        lines = [*map(str, self.results), *(f"seed {seed}: {one_line(error)}" for seed, error in self.errors.items())]
        returns = [result.metrics["eval/return_mean"] for result in self.results if result.metrics]
        rows: dict[str, str] = {}
        if len(returns) > 1:
            spread = f"(from {_return(min(returns))} to {_return(max(returns))})"
            rows["mean return"] = f"{_return(fmean(returns))}  {spread}"
        if self.interrupted:
            rows["go on with"] = "the same command and --resume"
        else:
            rows["compare"] = f"rppdyn report {' '.join(result.run for result in self.results)}"
        several = [f"all {len(self.results)} seeds", *pairs(rows, 19)] if len(self.results) > 1 else []
        return "\n".join([*lines, *several])


def final_policy(result: Mapping[str, Any]) -> str:
    """The description of the policy at the end of a run, which may have gone on since."""
    return f"final policy, after {result['steps']} steps"


def _return(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 or not value else f"{value:.3g}"


@dataclass(frozen=True)
class FileAgent:
    """Episodes of the deterministic policy in a file, and its equivariance error at states of exploring ones.

    Attributes:
        errors: equivariance errors by generator; empty if the environment has no symmetry.
        error: equivariance error of all generators together, as runs record it; None without one.
        note: the reason if there are no errors.
    """

    file: str
    env: str
    policy: str
    returns: list[float]
    lengths: list[int]
    errors: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    note: str = ""
