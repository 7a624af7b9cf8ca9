"""This process, its threads, stops and random streams; and workers: processes of one thread that call functions for it."""

from __future__ import annotations

import logging
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.random import mtrand

from rppdyn.errors import UserCodeError, UserError, one_line, place_in_users_code

if TYPE_CHECKING:
    import torch

START = "from rppdyn.runs.workers import serve; serve()"
LONGEST = 10.0  # seconds that a worker gets to end by itself
RECORD, TOLD, ANSWER = range(3)  # what a worker sends


# -- this process ------------------------------------------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    """A stop was asked for while nothing was half done."""


class StopRequest:
    """True once a stop was asked for; `signal` says by which one.

    Attributes:
        interrupts: whether a request raises `Stopped` at once, as long as what is under way can be thrown away.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.interrupts = False

    def ask(self, number: int) -> None:
        """Ask for a stop, in the main thread.

        Raises:
            Stopped: what is under way can be thrown away.
        """
        self.signal = number
        if self.interrupts:
            raise Stopped

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM inside the block into a request that the job looks at between two steps.

    An exception raised by a signal lands anywhere, half-way through an optimiser's step for instance, where no
    checkpoint can be taken. After the first, whichever it was, SIGINT raises KeyboardInterrupt again and SIGTERM ends the
    process. Handlers are put back on leaving; outside the main thread, where Python allows none, the block changes nothing.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, _frame: object) -> None:
        put_back()
        request.ask(number)

    def put_back() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        put_back()


CGROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """How many processors this process may use: those it is bound to, and no more than its container's share of time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup v2, then v1
        with suppress(OSError, ValueError):  # no such file, or the quota is "max"
            quota, period = map(int, " ".join((CGROUPS / file).read_text() for file in files).split())
            if quota > 0:
                count = min(count, math.ceil(quota / period))
    return count


def processes(threads: int | None) -> int:
    """How many processes of one thread share a job's members: as asked for, or as there are processors (`OMP_NUM_THREADS`)."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads or (int(set_by_user) if set_by_user.isdigit() else sys.maxsize) or 1, processors())


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Torch's thread count inside the block, put back afterwards; at most as many as this process has processors.

    Threads wait for each other at every operation. Beside another busy process one of them is often without a processor, and
    a step takes ten times as long.

    Args:
        threads: how many; None for one.
    """
    import torch  # takes seconds

    before = torch.get_num_threads()
    torch.set_num_threads(min(threads or 1, processors()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- workers -----------------------------------------------------------------------------------------------------------

STOP = signal.SIGUSR1  # in a worker, from its thread that listens
asked_to_stop = StopRequest()
"""In a worker: true once its :meth:`Worker.stop` was called."""


class WorkerError(UserError):
    """A worker's process is gone."""


class Worker:
    """A process that calls functions, one after another; what they keep in their modules stays there.

    It is a new interpreter that imports what its functions are in and nothing else, so that scripts without a main guard and
    notebooks can have one. Ctrl-C in a terminal does not reach it, and it leaves SIGTERM, which schedulers send to all of a
    job's processes, to this one. It ends when this one closes it, or is gone, in the middle of a call too.

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
            [sys.executable, "-P", "-c", START, *sys.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._at_exit = weakref.finalize(self, _end, self._process)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a function of some module called; neither it nor the arguments may need this process.

        Raises:
            WorkerError: the process is gone.
        """
        self._send(pickle.dumps((function, arguments)))

    def stop(self) -> None:
        """Ask the function that is called there, if it looks at :data:`asked_to_stop`, to come to an end.

        Raises:
            WorkerError: the process is gone.
        """
        self._send(None)

    def _send(self, request: bytes | None) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def answer(self, told: Callable[[Any], None] | None = None) -> Any:
        """The value of the function that was asked for first and is not answered.

        Args:
            told: called with each value that the function tells (:func:`tell`), when it comes.
        Raises:
            RuntimeError: the function raised; a UserCodeError where code of the user's did.
            WorkerError: the process is gone.
        """
        assert self._process.stdout is not None
        while True:
            try:
                kind, content = pickle.load(self._process.stdout)
            except (EOFError, pickle.UnpicklingError) as error:
                raise self._gone() from error
            if kind == RECORD:
                logging.getLogger(content.name).handle(content)
            elif kind == TOLD:
                if told is not None:
                    told(content)
            else:
                value, failure, users = content
                if users:
                    raise UserCodeError(f"in a worker process: {failure}")
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # what was not sent yet
            pipe.close()


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


class _Answers(logging.Handler):
    """The messages of a worker, log records included."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._turns = file, threading.RLock()
        self._picklable = QueueHandler(SimpleQueue()).prepare

    def send(self, kind: int, content: Any) -> None:
        message = pickle.dumps((kind, content))
        with self._turns:
            before, asked_to_stop.interrupts = asked_to_stop.interrupts, False  # a message is whole
            self._file.write(message)
            self._file.flush()
            asked_to_stop.interrupts = before

    def emit(self, record: logging.LogRecord) -> None:
        self.send(RECORD, self._picklable(record))


_answers: _Answers | None = None


def tell(value: Any) -> None:
    """In a worker: send a value before the answer."""
    assert _answers is not None
    _answers.send(TOLD, value)


def serve() -> None:
    """Call, in a worker, what it is asked to until there is nobody left who could ask."""
    global _answers
    del sys.argv[0]  # what is left is the command of the process that asks
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(STOP, lambda number, _: asked_to_stop.ask(number))
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    _answers = _Answers(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what is printed is no answer
    logging.getLogger().addHandler(_answers)
    while True:
        value, failure, users = None, "", False
        try:
            function, arguments = pickle.loads(requests.get())
            value = function(*arguments)
        except Exception as error:
            if users := place_in_users_code(error) is not None:
                failure = one_line(error)
            else:
                failure = traceback.format_exc()
        try:
            _answers.send(ANSWER, (value, failure, users))
        except BrokenPipeError:
            return


def _listen(file: BinaryIO, requests: SimpleQueue[bytes]) -> None:
    """Take in requests also while a function is called; nobody is left who could hear of it when they end."""
    while True:
        try:
            request = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            os._exit(0)
        if request is None:
            os.kill(os.getpid(), STOP)
        else:
            requests.put(request)


# -- random streams that follow from a seed, and the global ones of the process ----------------------------------------


def stream(seed: int, n: int) -> torch.Generator:
    """The ``n``-th stream of a seed: of an epoch's batches, say, so that a resumed run draws the same."""
    import torch  # takes seconds

    return torch.Generator().manual_seed(seed * 1_000_003 + n)


def data_stream(seed: int) -> torch.Generator:
    """The stream of a seed's training data.

    Initial weights are drawn from ``torch.Generator().manual_seed(seed)``. From that one, normal inputs would be the very
    numbers that the first layer's weights are.
    """
    import torch  # takes seconds

    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch back on leaving."""
    import torch  # takes seconds

    states = GlobalStates.now()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=torch.cuda.is_initialized()):
            yield
    finally:
        states.put()


class GlobalStates(NamedTuple):
    """The states of the generators that Python, NumPy and torch draw from where none is named, on the CPU."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]  # of the legacy generator, which is what stable-baselines3 draws from
    torch: torch.Tensor

    @classmethod
    def now(cls) -> GlobalStates:
        """As they stand."""
        import torch  # takes seconds

        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())  # noqa: NPY002

    def put(self) -> None:
        """Put these in place."""
        import torch  # takes seconds

        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)


@contextmanager
def numpy_draws_from(generator: np.random.BitGenerator) -> Iterator[None]:
    """Let NumPy's global functions draw from a generator of one's own inside the block.

    Nothing is copied. Normal numbers are drawn in pairs, of which the second is lost on entering and on leaving.
    """
    outer = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    try:
        yield
    finally:
        mtrand.set_bit_generator(outer)
