"""The fitting loop: steps, evaluations and checkpoints of something that is fitted, and going on after an interruption."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rppdyn.runs.checkpoints import CheckpointError
from rppdyn.runs.files import read_tensors
from rppdyn.runs.folder import RunFolder
from rppdyn.runs.loggers import open_loggers
from rppdyn.runs.progress import Progress
from rppdyn.runs.signals import StopRequest

__all__ = ["Fittable", "fit"]

STATE = "state.pt"


class Fittable(Protocol):
    """What :func:`fit` fits. A step must follow from the state and its number alone, so that a resumed run repeats it."""

    def step(self, step: int) -> None:
        """The update number ``step``, counted from 0."""

    def evaluate(self) -> dict[str, Any]:
        """Metrics by name: numbers, or lists of numbers."""

    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        """The metrics worth a place behind the progress bar."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which :meth:`load_state_dict` goes on exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state."""


def fit(
    subject: Fittable,
    folder: RunFolder,
    *,
    steps: int,
    evaluate_every: int,
    checkpoint_every: int,
    stop: StopRequest,
    progress: Progress,
    loggers: Sequence[str] = ("tensorboard",),
    config: Mapping[str, Any] | None = None,
) -> bool:
    """Fit from the folder's last checkpoint, or from the beginning, to the end; whether it got there.

    Metrics go to `metrics.jsonl` and to loggers, which are told the configuration: before the first step, every
    ``evaluate_every`` steps and at the end. A stop that was asked for ends the loop after a step, with a checkpoint; without
    one where the step can't end.

    Raises:
        CheckpointError: none of the folder's checkpoints can be read.
    """
    begun = _restore(subject, folder)
    folder.metrics.rewind(begun)
    evaluated = folder.metrics.last().get("step", -1)
    progress.update(begun)
    writer = open_loggers(loggers, folder, config or {}, begun or None)

    def evaluate(step: int) -> None:
        metrics = subject.evaluate()
        folder.metrics.append(step, metrics)
        writer.write({name: value for name, value in metrics.items() if isinstance(value, int | float)}, step)
        progress.show(**subject.headline(metrics))

    def save(step: int) -> None:
        folder.checkpoints.save(step, lambda target: torch.save(subject.state_dict(), target / STATE))

    try:
        for step in range(begun, steps):
            if evaluated < step and step % evaluate_every == 0:
                evaluate(step)
            try:
                subject.step(step)
            except Exception:
                if stop:  # ctrl-C ends what the step waits for, too, such as a compiler
                    return False
                raise
            progress.update(step + 1)
            if stop or (step + 1) % checkpoint_every == 0 or step + 1 == steps:
                save(step + 1)
            if stop:
                return False
        if folder.metrics.last().get("step", -1) < steps:
            evaluate(steps)
        return True
    finally:
        writer.close()


def _restore(subject: Fittable, folder: RunFolder) -> int:
    checkpoint = folder.checkpoints.latest()
    if checkpoint is None:
        return 0
    folder.checkpoints.discard_after(checkpoint.step)
    subject.load_state_dict(load_tensors(checkpoint.path / STATE))
    return checkpoint.step


def load_tensors(path: Path) -> Any:
    """What `torch.save` wrote, tensors and plain values alone.

    Raises:
        CheckpointError: the file is damaged or absent.
    """
    try:
        return read_tensors(path)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} is damaged: delete the folder {path.parent} to use what was saved before it"
        ) from error
