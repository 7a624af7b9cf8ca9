"""`rppdyn figure`: runs in one picture. Of agents, the learning curves; of fits, their members' equivariance errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import FigureConfig, is_agent_file
from rppdyn.jobs.measuring.loading import measure_file
from rppdyn.jobs.plots import compare_equivariance, draw_files, learning_curves
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json
from rppdyn.runs.folder import read_metrics, with_metrics


def run(config: FigureConfig) -> Path:
    """Draw the picture, and write its numbers where they are asked for; the picture's path.

    Raises:
        RunFolderError, ConfigError: a folder is no run, or there are agents and fits among them.
        ValueError: no run has metrics yet.
    """
    files = [run for run in config.runs if is_agent_file(run)]
    played = [measure_file(file, config.env) for file in files]
    runs = with_metrics([run for run in config.runs if run not in files]) if len(files) < len(config.runs) else []
    names = {run: compose.name_of_run(RunFolder.open(run)) for run in runs}
    agents = [run for run, name in names.items() if name == "train_agent"]
    fits = [run for run in names if run not in agents]
    if agents and fits:
        raise ConfigError(
            f"{agents[0]} is an agent's run and {fits[0]} a fit's: draw them apart, or both on a page with rppdyn report"
        )
    if fits and played:
        raise ConfigError(f"{fits[0]} is a fit's run and {files[0]} an agent: draw them apart")
    if fits:
        picture = compare_equivariance(runs, config.out)
    elif runs:
        picture = learning_curves(runs, config.out, played)
    else:
        picture = draw_files(played, config.out)
    if config.json is not None:
        write_json(Path(config.json), [*_raw_data(runs), *map(asdict, played)])
    return picture


def _raw_data(runs: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """The data of the curves: of each run its configuration, its result (once finished) and its metrics.

    Raises:
        ValueError: a folder that is no run.
    """
    folders = [RunFolder.open(run) for run in runs]
    return [
        {
            "run": folder.path.name,
            "config": folder.config(),
            "result": folder.result(),
            "metrics": read_metrics(folder.metrics.path) if folder.metrics.path.exists() else [],
        }
        for folder in folders
    ]
