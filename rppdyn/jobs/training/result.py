"""What a run of train-agent ends with; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rppdyn.errors import one_line
from rppdyn.runs.result import RunResult


@dataclass
class TrainAgentResult(RunResult):
    """What a run ends with, and what `result.json` holds."""

    env: str
    model: str
    seed: int
    steps: int
    total_steps: int
    metrics: dict[str, Any] = field(default_factory=dict)  # the last record of metrics.jsonl
    prior: str = ""  # what part of it is the free pathways', in words
    compiled: bool = False  # whether this process trained by torch.compile, and rounded as that does
    fresh_episodes: bool = (
        False  # whether a run that goes on begins a new episode: its environment doesn't say its state
    )
    seconds: float = 0.0  # of this process; a resumed run's earlier ones are in timing.jsonl
    interrupted: bool = False
    note: str = ""

    def __str__(self) -> str:
        return summary(self)


@dataclass
class TrainManyResult:
    """What the runs of several seeds end with.

    Attributes:
        results: of the seeds that came to an end, or were stopped.
        errors: what ended the others, by seed.
    """

    results: list[TrainAgentResult]
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        return any(result.interrupted for result in self.results)

    def __str__(self) -> str:
        lines = [*map(str, self.results), *(f"seed {seed}: {one_line(error)}" for seed, error in self.errors.items())]
        return "\n".join([*lines, *self._together()])

    def _together(self) -> list[str]:
        """What is said of all seeds, where there are several."""
        if len(self.results) < 2:
            return []
        returns = [result.metrics["eval/return_mean"] for result in self.results if result.metrics]
        lines = [f"all {len(self.results)} seeds"]
        if len(returns) > 1:
            low, high = min(returns), max(returns)
            lines.append(f"  mean return         {_return(fmean(returns))}  (from {_return(low)} to {_return(high)})")
        if self.interrupted:
            lines.append("  go on with          the same command and --resume")
        else:
            lines.append(f"  compare             rppdyn report {' '.join(result.run for result in self.results)}")
        return lines


def summary(result: TrainAgentResult) -> str:
    """A few lines for the end of a run."""
    lines = [f"{result.env}, {result.model}, seed {result.seed}: {result.steps:,} of {result.total_steps:,} steps"]
    if result.note:
        lines[0] += f" ({result.note})"
    m = result.metrics
    if m:
        lines.append(
            f"  mean return         {_return(m['eval/return_mean'])}  "
            f"(standard deviation {_return(m['eval/return_std'])} over {len(m['eval/returns'])} episodes"
            f"{'' if m['step'] == result.steps else ', at step ' + format(m['step'], ',')})"
        )
        errors = ", ".join(
            f"{who} {_error(m[f'equivariance/{who}'])}"
            for who in ("policy", "critic", "dynamics")
            if f"equivariance/{who}" in m  # most agents learn no dynamics
        )
        if any(name.startswith("equivariance/policy/") for name in m):
            lines.append(f"  equivariance error  {errors}  (0 is equivariant, 1 as far from it as can be)")
        else:
            lines.append("  equivariance error  none: the environment has no symmetry here")
        shares = ", ".join(
            f"{who} {_percent(m[f'pathway/{who}_free_share'])}"
            for who in ("actor", "critic", "dynamics")
            if f"pathway/{who}_free_share" in m
        )
        lines.append(f"  free pathway        {shares} of the squared weights")
    if result.prior:
        lines.append(f"  of the prior        {result.prior}")
    if result.fresh_episodes:
        lines.append("  when it goes on     from the last checkpoint, with a fresh episode")
    lines.append(f"  run folder          {result.run}")
    if result.interrupted:
        lines.append(f"  go on with          rppdyn train-agent --resume {result.run}")
    else:
        lines.append(f"  learning curve      {Path(result.run) / 'figures' / 'learning_curve.png'}")
        lines.append(f"  TensorBoard         tensorboard --logdir {result.run}")
    return "\n".join(lines)


def _error(value: float | None) -> str:
    return "vacuous (the outputs are all but zero)" if value is None else f"{value:.1e}"


def _return(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 or not value else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
