"""Parts that every long job shares, without mathematics: a run's folder, its metrics and checkpoints, statistics over seeds."""

from __future__ import annotations

from rppdyn.runs.files import Checkpoint, CheckpointError, Checkpoints
from rppdyn.runs.folder import (
    MetricsLog,
    RunFolder,
    RunFolderError,
    RunResult,
    differences,
    provenance,
    read_metrics,
    series,
)
from rppdyn.runs.session import Progress, Session
from rppdyn.runs.statistics import bootstrap_interval, iqm, paired_ratio
from rppdyn.runs.workers import StopRequest, stop_on_signals

__all__ = [
    "Checkpoint", "CheckpointError", "Checkpoints", "MetricsLog", "Progress", "RunFolder", "RunFolderError",
    "RunResult", "Session", "StopRequest", "bootstrap_interval", "differences", "iqm", "paired_ratio", "provenance",
    "read_metrics", "series", "stop_on_signals",
]  # fmt: skip
