"""Processes of one thread that call functions for this one."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

__all__ = ["Worker", "WorkerError", "in_turn"]

START = "from rppdyn.runs.workers import serve; serve()"
LONGEST = 10.0  # seconds that a worker gets to end by itself


class WorkerError(ValueError):
    """A worker's process is gone."""


class Worker:
    """A process that calls functions, one after another; what they keep in their modules stays there.

    It is a new interpreter that imports what its functions are in and nothing else, so that scripts without a main guard and
    notebooks can have one. Ctrl-C in a terminal does not reach it. It ends when this one closes it, or is gone.

    >>> from math import sqrt
    >>> worker = Worker()
    >>> worker.ask(sqrt, 9)
    >>> worker.answer()
    3.0
    >>> worker.close()
    """

    def __init__(self) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._at_exit = weakref.finalize(self, self._process.kill)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a function of some module called; neither it nor the arguments may need this process.

        Raises:
            WorkerError: the process is gone.
        """
        assert self._process.stdin is not None
        try:
            pickle.dump(pickle.dumps((function, arguments)), self._process.stdin)
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def answer(self) -> Any:
        """What the function returned that was asked for first and is not answered.

        Raises:
            RuntimeError: the function raised.
            WorkerError: the process is gone.
        """
        assert self._process.stdout is not None
        try:
            value, failure, records = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._gone() from error
        for record in records:
            logging.getLogger(record.name).handle(record)
        if failure:
            raise RuntimeError(f"in a worker process: {failure}")
        return value

    def _gone(self) -> WorkerError:
        code = self._process.wait(LONGEST)
        how = f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
        return WorkerError(f"a worker process ({self._process.pid}) {how}")

    def close(self) -> None:
        """End the process, at once."""
        self._at_exit()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what was not sent yet
                pass


def in_turn(
    workers: Sequence[Worker], function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
) -> Iterator[Any]:
    """Values of a function, in order, by workers that have one call each at a time."""
    waiting = iter(arguments)
    asked: list[Worker] = []
    for worker, own in zip(workers, islice(waiting, len(workers)), strict=False):
        worker.ask(function, *own)
        asked.append(worker)
    while asked:
        worker = asked.pop(0)
        value = worker.answer()
        for own in islice(waiting, 1):
            worker.ask(function, *own)
            asked.append(worker)
        yield value


def serve() -> None:
    """What a worker does: call what it is asked to until there is nobody left who could ask."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logging.getLogger().addHandler(QueueHandler(records))
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        value, failure = None, ""
        try:
            function, arguments = pickle.loads(request)
            value = function(*arguments)
        except Exception:
            failure = traceback.format_exc()
        try:
            pickle.dump((value, failure, [records.get() for _ in range(records.qsize())]), answers)
            answers.flush()
        except BrokenPipeError:
            return
