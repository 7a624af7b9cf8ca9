"""What can be said of a training run before it begins, in milliseconds; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

from rppdyn.jobs.config import compose, schemas
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.run import RunConfig
from rppdyn.runs import RunFolder, RunFolderError, differences
from rppdyn.runs.files import plain
from rppdyn.runs.loggers import missing_package


def preflight(config: RunConfig, resume: bool) -> dict[str, Any] | None:
    """Refuse a run folder that can't be used; what `result.json` holds of a run that needs no more steps.

    Raises:
        RunFolderError: the folder exists (without `resume`), is no run's, or holds another configuration.
        ConfigError: a logger's package is not installed.
    """
    if (missing := missing_package(config.loggers)) is not None:
        raise ConfigError(missing)
    folder = RunFolder(config.folder())
    if not resume or folder.is_vacant():
        folder.refuse_existing()
        return None
    return _resumed(config, RunFolder.open(folder.path))


def _resumed(config: RunConfig, folder: RunFolder) -> dict[str, Any] | None:
    stored = compose.from_run(schemas.name_of(config), folder)
    different = differences(plain(stored.identity()), plain(config.identity()))
    if different:
        key, before, now = different[0]
        raise RunFolderError(
            f"{folder.path} was run with {key}={before}, not {now}: resume it with that, or leave out --resume "
            "and choose another run_dir="
        )
    result = folder.result()
    key, length = config.length
    # Its steps may be a few more than it was asked for: a rollout is collected to its end.
    if result is None or stored.length[1] < length:
        return None
    if stored.length[1] > length:
        steps = result.get("steps", stored.length[1])
        raise RunFolderError(
            f"{key}={length}: the run in {folder.path} has {steps} already; give at least as many, or another run_dir="
        )
    return result | {"run": str(folder.path), "note": "finished before; nothing left to do"}
