"""A run under way: its folder is held, it goes on from its last checkpoint, and what is measured of it is recorded."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from rppdyn.runs.folder import RunFolder, RunFolderError, RunResult, provenance
from rppdyn.runs.loggers import ScalarLogger, open_loggers

__all__ = ["Session"]

logger = logging.getLogger(__name__)

STATE = "state.json"
"""In each checkpoint: its step, and the step of the last record before it."""


class Settings(Protocol):
    """The part of a configuration, a dataclass, that a session reads."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def loggers(self) -> Sequence[str]: ...
    def folder(self) -> Path: ...


class Session:
    """A run under way, from its folder's last checkpoint, or from the beginning, to its result.

        with Session(config) as run:
            run.begin(load, evaluate_every=100, checkpoint_every=1000)
            for step in range(run.saved, steps):
                if run.due(step):
                    run.record(step, measure())
                update(step)
                if run.save_due(step + 1):
                    run.checkpoint(step + 1, save)
            run.finish(result)

    A run that is killed anywhere and goes on leaves the records and the result of one that was not.

    Attributes:
        folder: the run's; held by this process from :meth:`begin` to the end of the block.
        saved: step of the last checkpoint; 0 before the first.
        measured: step of the last evaluation that was begun; -1 before the first. It is set by a caller that records an
            evaluation later than it begins it.
        recorded: step of the last record; -1 before the first.
    """

    def __init__(self, config: Settings) -> None:
        self.config, self.folder = config, RunFolder(config.folder())
        self.saved, self.measured, self.recorded = 0, -1, -1
        self._start, self._provenance = time.monotonic(), provenance()  # a checkout may have moved on when the run ends
        self._held = ExitStack()
        self._loggers: ScalarLogger
        self._logged: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    def begin(self, load: Callable[[Path], object], *, evaluate_every: int, checkpoint_every: int) -> None:
        """Hold the folder, made where there is none, and take up the last checkpoint; records after it are dropped.

        Args:
            load: takes up the state in a checkpoint's folder.
            evaluate_every, checkpoint_every: steps.
        Raises:
            RunFolderError: the folder is in use, or it was finished and has no checkpoints any more.
            CheckpointError: none of the folder's checkpoints can be read.
        """
        self._evaluate_every, self._checkpoint_every = evaluate_every, checkpoint_every
        folder, config = self.folder, asdict(self.config)
        if folder.is_vacant():
            RunFolder.create(folder.path, config)
        self._held.enter_context(folder.lock())
        checkpoint, before = folder.checkpoints.latest(), -1
        if checkpoint is not None:
            load(checkpoint.path)
            folder.checkpoints.discard_after(checkpoint.step)
            file, self.saved = checkpoint.path / STATE, checkpoint.step
            before = int(json.loads(file.read_text())["evaluated"]) if file.exists() else checkpoint.step
        elif folder.result() is not None:
            raise RunFolderError(
                f"{folder.path} was trained to its end and has no checkpoints to go on from: put them back, or choose another "
                "run_dir="
            )
        elif folder.metrics.last():
            logger.warning("%s has records and no checkpoint yet: training begins anew", folder.path)
        folder.result_file.unlink(missing_ok=True)  # of a shorter run: this one is unfinished
        folder.replace_config(config)
        for records in (folder.metrics, folder.timing):
            records.rewind(before)
        self.recorded = self.measured = folder.metrics.last().get("step", -1)
        if self.recorded < before:
            logger.warning(
                "%s ends at step %d, and the run was evaluated at step %d: records are lost, and what comes is measured anew",
                folder.metrics.path, self.recorded, before,
            )  # fmt: skip
        after = self.saved - (self.recorded < self.saved) if self.saved else None  # what is measured again is hidden
        self._loggers = open_loggers(self.config.loggers, folder, config, after)
        self._held.callback(self._loggers.close)

    def due(self, step: int) -> bool:
        """Whether an evaluation is due at a step."""
        return _due(step, self.measured, self._evaluate_every)

    def save_due(self, step: int) -> bool:
        """Whether a checkpoint is due at a step."""
        return _due(step, self.saved, self._checkpoint_every)

    def record(
        self,
        step: int,
        values: Mapping[str, Any],
        timing: Mapping[str, float] | None = None,
        unlogged: tuple[str, ...] = (),
    ) -> None:
        """Record an evaluation: numbers, lists of them or text by name, in `metrics.jsonl`; numbers also with the loggers.

        Args:
            timing: what never repeats, in `timing.jsonl`.
            unlogged: beginnings of names that loggers are not told.
        """
        self.folder.metrics.append(step, dict(values))
        if timing is not None:
            self.folder.timing.append(step, dict(timing))
        numbers = {name: v for name, v in {**values, **(timing or {})}.items() if isinstance(v, int | float)}
        self.log({name: value for name, value in numbers.items() if not name.startswith(unlogged)}, step)
        self.recorded, self.measured = step, max(step, self.measured)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Tell the loggers numbers that they have not been told at this step."""
        new = {name: value for name, value in values.items() if (name, step) not in self._logged}
        self._logged |= {(name, step) for name in new}
        self._loggers.write(new, step)

    def checkpoint(self, step: int, save: Callable[[Path], object]) -> None:
        """Write a checkpoint: `save` is called with an empty folder to put the state into."""

        def write(target: Path) -> None:
            save(target)
            (target / STATE).write_text(json.dumps({"step": step, "evaluated": self.recorded}) + "\n")

        self.folder.checkpoints.save(step, write)
        self.saved = step

    @property
    def seconds(self) -> float:
        """Since the session was made, in this process."""
        return time.monotonic() - self._start

    def finish(self, result: RunResult) -> None:
        """Write `result.json`, with which the run is finished: all else of it is there by then, figures excepted."""
        self.folder.write_result({**asdict(result), "provenance": self._provenance})


def _due(step: int, last: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (last, step]; always, where there was no last time."""
    return last < 0 or step // every > last // every
