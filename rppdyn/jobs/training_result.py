"""What a training run ends with, and what can be said before it begins; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rppdyn.jobs import compose
from rppdyn.jobs.schema import TrainAgentConfig
from rppdyn.runs import RunFolder, RunFolderError, differences
from rppdyn.runs.files import plain


@dataclass
class TrainAgentResult:
    """What a run ends with, and what `result.json` holds."""

    run: str
    env: str
    model: str
    seed: int
    steps: int
    total_steps: int
    metrics: dict[str, Any] = field(default_factory=dict)  # the last record of metrics.jsonl
    seconds: float = 0.0  # of this process; a resumed run's earlier ones are in timing.jsonl
    interrupted: bool = False
    note: str = ""


def preflight(config: TrainAgentConfig, resume: bool) -> TrainAgentResult | None:
    """Refuse a run folder that can't be used, in milliseconds; the result of a run that needs no more steps.

    Raises:
        RunFolderError: the folder exists (without `resume`), is no run's, or holds another configuration.
    """
    folder = RunFolder(config.folder())
    if not resume or folder.is_vacant():
        folder.refuse_existing()
        return None
    return _resumed(config, RunFolder.open(folder.path))


def _resumed(config: TrainAgentConfig, folder: RunFolder) -> TrainAgentResult | None:
    """Refuse a folder that holds another configuration; the result of a run that needs no more steps."""
    stored = compose.from_run("train_agent", folder)
    different = differences(plain(stored.identity()), plain(config.identity()))
    if different:
        key, before, now = different[0]
        raise RunFolderError(
            f"{folder.path} was run with {key}={before}, not {now}: resume it with that, or leave out --resume "
            "and choose another run_dir="
        )
    result = folder.result()
    # Its steps may be a few more than it was asked for: a rollout is collected to its end.
    if result is None or result["total_steps"] < config.total_steps:
        return None
    if result["total_steps"] > config.total_steps:
        raise RunFolderError(
            f"total_steps={config.total_steps}: the run in {folder.path} has {result['steps']} already; "
            "give at least as many, or another run_dir="
        )
    known = {key: result[key] for key in TrainAgentResult.__dataclass_fields__ if key in result}
    return TrainAgentResult(**known | {"run": str(folder.path), "note": "finished before; nothing left to do"})


def summary(result: TrainAgentResult) -> str:
    """A few lines for the end of a run."""
    lines = [f"{result.env}, {result.model}, seed {result.seed}: {result.steps:,} of {result.total_steps:,} steps"]
    if result.note:
        lines[0] += f" ({result.note})"
    m = result.metrics
    if m:
        lines.append(
            f"  mean return         {m['eval/return_mean']:.1f}  "
            f"(standard deviation {m['eval/return_std']:.1f} over {len(m['eval/returns'])} episodes)"
        )
        errors = ", ".join(f"{who} {_error(m[f'equivariance/{who}'])}" for who in ("policy", "critic"))
        lines.append(f"  equivariance error  {errors}  (0 is equivariant, 1 as far from it as can be)")
        shares = ", ".join(f"{who} {_percent(m[f'pathway/{who}_free_share'])}" for who in ("actor", "critic"))
        lines.append(f"  free pathway        {shares} of the squared weights")
    lines.append(f"  run folder          {result.run}")
    if result.interrupted:
        lines.append(f"  go on with          rppdyn train-agent --resume {result.run}")
    else:
        lines.append(f"  learning curve      {Path(result.run) / 'figures' / 'learning_curve.png'}")
        lines.append(f"  TensorBoard         tensorboard --logdir {result.run}")
    return "\n".join(lines)


def _error(value: float | None) -> str:
    return "vacuous (the outputs are all but zero)" if value is None else f"{value:.1e}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
