"""Where scalars are written beside `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow.

    logger=wandb                    # or mlflow, or [tensorboard,wandb]
    WANDB_MODE=offline              # what these packages read themselves stays theirs to read

Each is an optional package of its own, imported when it is asked for. A resumed run goes on with the record that it has there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rppdyn.runs.files import plain, write_json
from rppdyn.runs.folder import RunFolder

__all__ = ["LOGGERS", "ScalarLogger", "missing_package", "open_loggers"]

PROJECT = "rppdyn"
RECORDS = "loggers.json"
"""Of a run's folder: by logger, the identifier of the run's record there."""


class ScalarLogger(ABC):
    """Takes numbers by name, at a step."""

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write them."""

    @abstractmethod
    def close(self) -> None:
        """Write what waits, and end."""


class TensorBoard(ScalarLogger):
    """Events in the run's folder.

    Args:
        after: a resumed run goes on after this step, and what was written later before the interruption is hidden; None for a
            new one.
    """

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=os.fspath(folder.events), purge_step=None if after is None else after + 1)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb(ScalarLogger):
    """A run of Weights & Biases, in the project `rppdyn` or that of WANDB_PROJECT; its files are in the run's folder."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], after: int | None) -> None:
        import wandb

        identifier = _record(folder, "wandb", lambda: secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.path.name,
            id=identifier,
            resume="allow",
            dir=str(folder.path),
            config=plain(dict(config)),
            reinit="create_new",  # seeds that are trained together have one each
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow(ScalarLogger):
    """A run of MLflow, in the experiment `rppdyn` or that of MLFLOW_EXPERIMENT_NAME.

    It is where MLFLOW_TRACKING_URI says, or in the folder `mlruns` of the working folder.
    """

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], after: int | None) -> None:
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()
        with _files_allowed():
            self._client = client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)  # opens what it is kept in
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)

        def create() -> str:
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            run = client.create_run(experiment, run_name=folder.path.name)
            for key, value in _leaves(plain(dict(config))):
                client.log_param(run.info.run_id, key, value)
            return run.info.run_id

        self._id = _record(folder, "mlflow", create)
        client.update_run(self._id, status="RUNNING")

    def write(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        names = {_of_mlflow(name): value for name, value in values.items()}
        self._client.log_batch(self._id, [Metric(name, float(value), now, step) for name, value in names.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


Opened = Callable[[RunFolder, Mapping[str, Any], int | None], ScalarLogger]


def _of_mlflow(name: str) -> str:
    """A metric's name with the signs that MLflow takes, and one slash: in folders a name can't be the beginning of another."""
    group, slash, rest = name.partition("/")
    return re.sub(r"[^\w\-. :/]", "_", group + slash + rest.replace("/", "."))


@contextmanager
def _files_allowed() -> Iterator[None]:
    """Let MLflow keep runs in a folder, which it asks for by a variable since its third version."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ.setdefault(name, "true")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


LOGGERS: dict[str, Opened] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}
"""By the name that `logger=` has for them."""


def missing_package(names: Sequence[str]) -> str | None:
    """What to say of the first logger whose package is not installed; None where all are there."""
    for name in names:
        if find_spec(name) is None:
            return f"logger={name}: the package {name} is not installed; pip install 'rppdyn[{name}]', or leave it out"
    return None


class _Several(ScalarLogger):
    def __init__(self, loggers: Sequence[ScalarLogger]) -> None:
        self._loggers = loggers

    def write(self, values: Mapping[str, float], step: int) -> None:
        for logger in self._loggers:
            logger.write(values, step)

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


def open_loggers(
    names: Sequence[str], folder: RunFolder, config: Mapping[str, Any], after: int | None = None
) -> ScalarLogger:
    """The loggers of a run.

    Args:
        after: a resumed run goes on after this step; None for a new one.
    """
    return _Several([LOGGERS[name](folder, config, after) for name in names])


def _record(folder: RunFolder, name: str, create: Callable[[], str]) -> str:
    """The identifier of a run's record, made at the first call."""
    file = folder.path / RECORDS
    records = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if name not in records:
        write_json(file, records | {name: create()})
        return _record(folder, name, create)
    return str(records[name])


def _leaves(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found
