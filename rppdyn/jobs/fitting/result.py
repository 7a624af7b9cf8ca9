"""What a fit ends with; nothing heavy is imported here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rppdyn.runs.result import RunResult
from rppdyn.runs.statistics import FEW, bootstrap_interval, iqm

FIRST_DIVERGENCE = "rollout/first_divergence"  # null where none did, which is no loss of a number


@dataclass
class FitResult(RunResult):
    """What a fit ends with, and what `result.json` holds.

    Attributes:
        metrics: the last record of `metrics.jsonl`; lists have one value per seed.
        test: what was measured of the finished members, lists of one value per seed; null for a member that diverged.
        pathways: where variances were learned, the rows of :func:`rppdyn.jobs.fitting.pathways.pathway_rows`.
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
    compiled: bool = False  # whether this process trained by torch.compile, and rounded as that does
    interrupted: bool = False
    note: str = ""

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        note = f" ({self.note})" if self.note else ""
        lines = [f"{self.task}, {self.model}, {seeds}: {self.epochs:,} epochs{note}"]
        if self.test and len(self.seeds) > 1:
            many = "interquartile mean [95 % bootstrap interval], of three and fewer " * (len(self.seeds) > FEW)
            lines.append(f"  over seeds: {many}mean (each)")
        for name, values in self.test.items():
            if name == FIRST_DIVERGENCE:
                times = [time for time in values if time is not None]
                lines += [f"  {name:34} {min(times):g} s; in {len(times)} of {len(values)}"] if times else []
            elif isinstance(values, list):
                lines.append(f"  {name:34} {_over_seeds(values)}")
        lines += _pathway_table(self.pathways)
        lines.append(f"  {'run folder':34} {self.run}")
        if self.interrupted:
            lines.append(f"  {'go on with':34} rppdyn {self.verb} --resume {self.run}")
        else:
            lines.append(f"  {'figures':34} {Path(self.run) / 'figures'}")
            page = Path(self.run) / "report.html"
            lines += [f"  {'report':34} {page}"] if page.exists() else []
        return "\n".join(lines)


def over_members(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values by name, one for each member; None where a member has none, or what it has is no number."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: numbers([row.get(name) for row in rows]) for name in names}


def numbers(values: Sequence[float | None]) -> list[float | None]:
    """The values, with None for what is no number."""
    return [None if v is None or not math.isfinite(v) else v for v in values]


def _pathway_table(rows: list[dict[str, Any]]) -> list[str]:
    """Means over the seeds that did not diverge, a line for each pathway."""
    if not rows:
        return []
    lines = [f"  {'pathway':34} {'precision':>10} {'norm':>8} {'effective':>17} {'normalised':>10} {'relative':>8}"]
    for row in rows:
        precision, norm, effective, normalised, relative = (
            float(iqm([value for value in row[key] if value is not None]))
            for key in ("precision", "norm", "effective", "normalised", "relative")
        )
        share = f"{effective:.0f} of {row['coefficients']}"
        name = f"{row['layer']}.{row['pathway']}"
        lines.append(f"  {name:34} {precision:10.3g} {norm:8.3g} {share:>17} {normalised:10.2g} {relative:8.2f}")
    return lines


def _over_seeds(values: list[float | None]) -> str:
    """The interquartile mean over seeds and its interval, or each of few; members that diverged are counted apart."""
    kept = [value for value in values if value is not None]
    lost = f", {len(values) - len(kept)} of {len(values)} diverged" if len(kept) < len(values) else ""
    if not kept:
        return lost.removeprefix(", ")
    centre = f"{float(iqm(kept)):.3g}"
    if len(kept) == 1:
        return centre + lost
    if len(kept) <= FEW:
        return f"{centre} ({', '.join(f'{value:.3g}' for value in kept)}){lost}"
    low, high = bootstrap_interval(kept)
    return f"{centre} [{float(low):.3g}, {float(high):.3g}]{lost}"
