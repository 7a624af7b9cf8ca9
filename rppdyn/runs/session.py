"""A run under way: its folder, the continuation from its last checkpoint, its records, loggers and progress bar."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from tqdm import tqdm

from rppdyn.runs.files import plain, write_json
from rppdyn.runs.folder import RunFolder, RunFolderError, RunResult, differences, provenance

logger = logging.getLogger(__name__)


# -- progress bars on standard error -----------------------------------------------------------------------------------

METER_PARTS = ("{desc}", " {percentage:3.0f}%{postfix}", " [{elapsed}<{remaining}]", " {rate_fmt}", " {n_fmt}/{total_fmt}",
         " |{bar}|")  # fmt: skip


class Meter(tqdm):
    """A progress line that drops whole parts at its end if it is too narrow, where tqdm would cut a number."""

    @staticmethod
    def format_meter(*args: Any, ncols: int | None = None, **values: Any) -> str:
        for count in range(len(METER_PARTS), 1, -1):
            values["bar_format"] = "".join(METER_PARTS[:count])
            if ncols is None or len(tqdm.format_meter(*args, **values)) <= ncols:
                break
        return tqdm.format_meter(*args, ncols=ncols, **values)


class Progress:
    """A bar over steps or any count, with speed and a few values.

    It prints a line every ten seconds if standard error is no terminal. Work of less than `delay` seconds shows no bar. Bars of
    several processes have different `position`, in lines.
    """

    def __init__(
        self,
        total: int,
        initial: int = 0,
        description: str = "",
        unit: str = "step",
        enabled: bool = True,
        delay: float = 0.0,
        position: int = 0,
    ):
        terminal = sys.stderr.isatty()
        self._bar = Meter(
            total=total,
            initial=initial,
            desc=description,
            unit=unit,
            file=sys.stderr,
            disable=not enabled,
            position=position,
            delay=delay,
            mininterval=0.2 if terminal else 10.0,
            dynamic_ncols=terminal,
            ncols=None if terminal else 110,
        )
        self._description = description
        self._values: dict[str, str] = {}
        self._pause_start: float | None = None

    def update(self, count: int) -> None:
        """Set the bar to an absolute count."""
        if count > self._bar.n:
            if self._pause_start is not None and not self._bar.disable:
                pause, self._pause_start = time.time() - self._pause_start, None
                self._bar.start_t += pause
                self._bar.last_print_t += pause
            self._bar.desc = self._description
            self._bar.update(count - self._bar.n)

    def advance(self, count: int) -> None:
        """Move the bar on by a count."""
        self.update(self._bar.n + count)

    def say(self, text: str) -> None:
        """Show a text behind the description until the next update; that time does not count for the speed."""
        self._pause_start = self._pause_start or time.time()
        self._bar.desc = f"{self._description}, {text}"
        self._bar.refresh()

    def show(self, **values: float) -> None:
        """Show values behind the bar; earlier values of other names stay."""
        self._values.update({name: f"{value:.4g}" for name, value in values.items()})
        self._bar.set_postfix(self._values, refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()


# -- loggers of scalars; their packages are imported only when they are used -------------------------------------------

WANDB_PROJECT = "rppdyn"
LOGGER_IDS_FILE = "loggers.json"
"""File of a run's folder with the run's identifier at each logger."""


class ScalarLogger(ABC):
    """A logger of numbers by name and step."""

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Flush and close."""


class TensorBoard(ScalarLogger):
    """Events in the run's folder.

    Args:
        after: step from which a resumed run goes on; later events from before the interruption are hidden. None for a new run.
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
    """A run of Weights & Biases, in the project `rppdyn` or $WANDB_PROJECT, with its files in the run's folder."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], after: int | None) -> None:
        import wandb

        file = folder.path / LOGGER_IDS_FILE
        identifiers = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if "wandb" not in identifiers:
            identifiers["wandb"] = secrets.token_hex(4)
            write_json(file, identifiers)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
            name=folder.path.name,
            id=str(identifiers["wandb"]),
            resume="allow",
            dir=str(folder.path),
            config=plain(dict(config)),
            reinit="create_new",  # one for each of several seeds
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


LoggerFactory = Callable[[RunFolder, Mapping[str, Any], int | None], ScalarLogger]

LOGGERS: dict[str, LoggerFactory] = {"tensorboard": TensorBoard, "wandb": Wandb}
"""By their name in `logger=`."""


def missing_package(names: Sequence[str]) -> str | None:
    """The message for the first logger whose package is not installed; None if all are."""
    for name in names:
        if find_spec(name) is None:
            return f"logger={name}: the package {name} is not installed; pip install 'rppdyn[{name}]', or leave it out"
    return None


# -- a run under way ---------------------------------------------------------------------------------------------------

STATE_FILE = "state.json"
"""File of each checkpoint with its step and the step of the last record before it."""


class Settings(Protocol):
    """The part of a configuration that a session reads."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def loggers(self) -> Sequence[str]: ...
    def folder(self) -> Path: ...


class Session:
    """A run from its last checkpoint, or from the beginning, to its result.

        with Session(config) as run:
            run.begin(load, evaluate_every=100, checkpoint_every=1000)
            for step in range(run.saved, steps):
                if run.due(step):
                    run.record(step, measure())
                update(step)
                if run.save_due(step + 1):
                    run.checkpoint(step + 1, save)
            run.finish(result)

    A killed and resumed run leaves the same records and result as an uninterrupted one.

    Attributes:
        folder: folder of the run, locked from :meth:`begin` to the end of the block.
        saved: step of the last checkpoint; 0 before the first.
        measured: step at which the last evaluation began; -1 before the first. A caller who records it later sets this.
        recorded: step of the last record; -1 before the first.
    """

    def __init__(self, config: Settings) -> None:
        self.config, self.folder = config, RunFolder(config.folder())
        self.saved, self.measured, self.recorded = 0, -1, -1
        self._start, self._provenance = time.monotonic(), provenance()  # the checkout may change during the run
        self._resources = ExitStack()
        self._loggers: list[ScalarLogger] = []
        self._logged: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def begin(self, load: Callable[[Path], object], *, evaluate_every: int, checkpoint_every: int) -> None:
        """Make or lock the folder, load the last checkpoint, and drop the records after it.

        Args:
            load: load the state from a checkpoint's folder.
            evaluate_every, checkpoint_every: steps.
        Raises:
            RunFolderError: the folder is in use, or the run is finished and its checkpoints are gone.
            CheckpointError: none of the checkpoints can be read.
        """
        self._evaluate_every, self._checkpoint_every = evaluate_every, checkpoint_every
        folder, config = self.folder, asdict(self.config)
        if folder.is_vacant():
            RunFolder.create(folder.path, config)
        self._resources.enter_context(folder.lock())
        checkpoint, before = folder.checkpoints.latest(), -1
        if checkpoint is not None:
            load(checkpoint.path)
            folder.checkpoints.discard_after(checkpoint.step)
            file, self.saved = checkpoint.path / STATE_FILE, checkpoint.step
            before = int(json.loads(file.read_text())["evaluated"]) if file.exists() else checkpoint.step
        elif folder.result() is not None:
            raise RunFolderError(
                f"{folder.path} was trained to its end and has no checkpoints to go on from: put them back, or choose another "
                "run_dir="
            )
        elif folder.metrics.last():
            logger.warning("%s has records and no checkpoint yet: training begins anew", folder.path)
        if checkpoint is not None:
            changed = differences(folder.config(), plain(config))
            logger.info(
                "%s: goes on from step %d with the settings of its config.yaml%s",
                folder.path,
                self.saved,
                "".join(f", {key}={new} in place of {old}" for key, old, new in changed if key != "run_dir"),
            )
        folder.result_file.unlink(missing_ok=True)  # the result of a shorter run
        folder.replace_config(config)
        for records in (folder.metrics, folder.timing):
            records.rewind(before)
        self.recorded = self.measured = folder.metrics.last().get("step", -1)
        if self.recorded < before:
            logger.warning(
                "%s ends at step %d, and the run was evaluated at step %d: records are lost, and what comes is measured anew",
                folder.metrics.path, self.recorded, before,
            )  # fmt: skip
        is_lost = self.recorded < self.saved  # it is then measured again, and loggers hide what they have of it
        after = self.saved - int(is_lost) if self.saved else None
        for name in self.config.loggers:
            self._loggers.append(LOGGERS[name](folder, config, after))
            self._resources.callback(self._loggers[-1].close)

    def due(self, step: int) -> bool:
        """Return whether an evaluation is due at a step."""
        return _due(step, self.measured, self._evaluate_every)

    def save_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at a step."""
        return _due(step, self.saved, self._checkpoint_every)

    def record(
        self,
        step: int,
        values: Mapping[str, Any],
        timing: Mapping[str, float] | None = None,
        unlogged: tuple[str, ...] = (),
    ) -> None:
        """Record an evaluation, numbers, lists and text by name, in `metrics.jsonl`; log its numbers.

        Args:
            timing: durations, recorded in `timing.jsonl`, since they never repeat.
            unlogged: prefixes of names that are not logged.
        """
        self.folder.metrics.append(step, dict(values))
        if timing is not None:
            self.folder.timing.append(step, dict(timing))
        numbers = {name: v for name, v in {**values, **(timing or {})}.items() if isinstance(v, int | float)}
        self.log({name: value for name, value in numbers.items() if not name.startswith(unlogged)}, step)
        self.recorded, self.measured = step, max(step, self.measured)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers whose names have not been logged at this step yet."""
        new = {name: value for name, value in values.items() if (name, step) not in self._logged}
        self._logged |= {(name, step) for name in new}
        for scalars in self._loggers:
            scalars.write(new, step)

    def checkpoint(self, step: int, save: Callable[[Path], object]) -> None:
        """Write a checkpoint: `save` writes the state into an empty folder."""

        def write(target: Path) -> None:
            save(target)
            (target / STATE_FILE).write_text(json.dumps({"step": step, "evaluated": self.recorded}) + "\n")

        self.folder.checkpoints.save(step, write)
        self.saved = step

    @property
    def seconds(self) -> float:
        """Seconds since the session was made, in this process."""
        return time.monotonic() - self._start

    def finish(self, result: RunResult) -> None:
        """Write `result.json`, which finishes the run: all other files but the figures are complete by then."""
        self.folder.write_result({**asdict(result), "provenance": self._provenance})


def _due(step: int, last: int, every: int) -> bool:
    """Return whether a multiple of `every` lies in (last, step]; always true for a negative `last`."""
    return last < 0 or step // every > last // every
