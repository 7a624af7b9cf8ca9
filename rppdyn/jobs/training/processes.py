"""Seeds of an agent that several processes train side by side.

Two threads of one process share out every product of four networks, and wait for each other after each; two processes with two
networks each never do, and take steps of the simulator at the same time.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

from rppdyn.errors import UserCodeError, by_user, one_line, place_in_users_code
from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.base import device_of
from rppdyn.jobs.results import TrainManyResult
from rppdyn.runs import Progress, StopRequest
from rppdyn.runs.workers import Worker, WorkerError, processes, tell

logger = logging.getLogger(__name__)

EVERY = 0.1  # seconds between two words of a process's progress, and two looks at whether a stop was asked for

Seeds = Sequence[TrainAgentConfig]
"""Configurations of one seed each."""


def shared_out(config: TrainAgentConfig, waiting: Seeds) -> tuple[list[Seeds], int]:
    """The seeds of each process, and torch's threads there.

    A seed has its place among all seeds of the configuration, finished ones included: those that go on do so beside the same
    others, and round as before. On a CPU there is one where environments have processes of their own (`workers`), which want
    processors too; on a GPU there are as many as threads were asked for: while one updates its seeds, others collect.
    """
    on_cpu = device_of(config.device).type == "cpu"
    threads = processes(config.threads if on_cpu else config.threads or 1)
    count = 1 if on_cpu and config.workers else min(threads, config.seeds)
    if count == 1:
        return [waiting], config.threads or 1
    parts = [[own for own in waiting if (own.seed - config.seed) % count == part] for part in range(count)]
    return [part for part in parts if part], threads // count


def side_by_side(
    train: Callable[[Seeds], TrainManyResult],
    parts: Sequence[Seeds],
    stop: StopRequest,
    bar_from: Callable[[int], Progress],
) -> list[TrainManyResult]:
    """Train each part in a process of its own.

    Args:
        train: called there, by name; it shows its progress by `RemoteProgress`, and ends with what is `portable`.
        bar_from: makes the bar for all of them, once it is known at which step the last one begins.
    Returns:
        Of each part; the seeds of a process that is gone have that for their error.
    """
    bar = _CommonBar(len(parts), bar_from)
    workers = [Worker() for _ in parts]
    # the pool waits for its threads when it is left, and they for workers, which are therefore closed before
    with closing(bar), ThreadPoolExecutor(len(parts)) as pool, ExitStack() as stack:
        for worker, part in zip(workers, parts, strict=True):
            stack.callback(worker.close)
            worker.ask(train, part)
        followed = [
            pool.submit(_follow, worker, part, partial(bar.hear, i))
            for i, (worker, part) in enumerate(zip(workers, parts, strict=True))
        ]
        asked = False
        while wait(followed, timeout=EVERY).not_done:
            if stop and not asked:
                asked = True
                for worker in workers:
                    with suppress(WorkerError):  # which is found out where it is followed
                        worker.stop()
        return [future.result() for future in followed]


def _follow(worker: Worker, part: Seeds, hear: Callable[[tuple[str, Any]], None]) -> TrainManyResult:
    try:
        found = worker.answer(hear)
    except (WorkerError, RuntimeError) as error:
        logger.warning("seeds %s: %s", ", ".join(str(own.seed) for own in part), error)
        return TrainManyResult([], {own.seed: error for own in part})
    finally:
        hear(("end", None))
    return TrainManyResult(found.results, {seed: _here(error) for seed, error in found.errors.items()})


def portable(result: TrainManyResult) -> TrainManyResult:
    """A result that another process can read, where it still says which errors tell a user something (`by_user`)."""
    return TrainManyResult(result.results, {seed: _portable(error) for seed, error in result.errors.items()})


def _portable(error: Exception) -> Exception:
    if not by_user(error):
        return RuntimeError(f"in a worker process: {''.join(traceback.format_exception(error))}")
    if place_in_users_code(error) is not None:
        return UserCodeError(one_line(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class may want other arguments than it passes on
        return ValueError(str(error))
    return error


def _here(error: Exception) -> Exception:
    """The error as raised by this package, which it was: pickling loses by whom."""
    try:
        raise error
    except Exception as raised:
        return raised


class RemoteProgress:
    """The `Progress` of a process, told to the one that shows it.

    Args:
        initial: the step at which the last of its seeds begins.
    """

    def __init__(self, initial: int) -> None:
        self._count, self._time = initial, time.monotonic()
        tell(("begin", initial))

    def update(self, count: int) -> None:
        """Steps done; told now and then."""
        if count > self._count:
            self._count = count
            if time.monotonic() - self._time > EVERY:
                self._time = time.monotonic()
                tell(("update", count))

    def say(self, what: str) -> None:
        """As a bar says it."""
        tell(("say", what))

    def show(self, **values: float) -> None:
        """As a bar shows them."""
        tell(("show", values))

    def __enter__(self) -> RemoteProgress:
        return self

    def __exit__(self, *error: object) -> None:
        tell(("update", self._count))


class _CommonBar:
    """One bar for several processes, at the step of the one that is behind."""

    def __init__(self, parts: int, bar_from: Callable[[int], Progress]) -> None:
        self._bar_from = bar_from
        self._bar: Progress | None = None
        self._waiting = set(range(parts))  # for these to begin
        self._steps: dict[int, int] = {}
        self._turns = threading.Lock()

    def hear(self, part: int, said: tuple[str, Any]) -> None:
        kind, content = said
        with self._turns:
            if kind in ("begin", "update"):
                self._steps[part] = content
            if kind in ("begin", "end"):
                self._waiting.discard(part)
            if kind == "end" and len(self._steps) > 1:
                self._steps.pop(part, None)  # one that failed holds back none
            if self._bar is None and self._steps and not self._waiting:
                self._bar = self._bar_from(min(self._steps.values()))
            elif self._bar is not None and kind == "say":
                self._bar.say(content)
            elif self._bar is not None and kind == "show":
                self._bar.show(**content)
            elif self._bar is not None:
                self._bar.update(min(self._steps.values()))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
