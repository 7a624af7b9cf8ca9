"""This process, its threads, stops and random streams; and workers, processes of one thread that call functions for it."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import mtrand

from rppdyn.errors import UserCodeError, UserError, is_user_error, one_line, place_in_users_code

if TYPE_CHECKING:
    import torch


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

SHUTDOWN_SECONDS = 10.0  # that a process gets to end by itself
STOP_SIGNAL = signal.SIGUSR1  # sent to a worker
worker_stop = StopRequest()
"""In a worker: true once its :meth:`Worker.stop` was called."""


class WorkerError(UserError):
    """A worker's process is gone."""


class Worker:
    """A pool of one process, which calls functions one after another. What they store in their modules stays there.

    It imports what its functions are in and nothing else, so that scripts without a main guard and notebooks can have one.
    It leaves Ctrl-C and SIGTERM, which terminals and schedulers send to all of a job's processes, to this one. It ends when
    this one closes it, or is gone, in the middle of a call too.

    >>> from math import sqrt
    >>> worker = Worker()
    >>> worker.submit(sqrt, 9).result()
    3.0
    >>> worker.close()

    Args:
        preload: modules that take long to import, for the server that the first worker and all later ones are forked from.
    Attributes:
        process: of multiprocessing.
    """

    def __init__(self, preload: Sequence[str] = ("torch",)) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))  # without effect where it runs already
        records, there = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(there, {**os.environ}))
        with _hide_main_module():
            self._pid = self._pool.submit(os.getpid)  # starts the process
        there.close()  # so that the records end with the process
        (self.process,) = self._pool._processes.values()
        self._listener = threading.Thread(target=_listen, args=(records,), daemon=True)
        self._listener.start()
        self._at_exit = weakref.finalize(self, _end, self.process, self._pool)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function of some module called; neither it nor the arguments may need this process.

        Returns:
            Its value; or what it raised, as :func:`portable`; or WorkerError where the process is gone.
        """
        answer: Future[Any] = Future()

        def take(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(self._gone() if isinstance(error, BrokenProcessPool) else error)

        try:
            self._pool.submit(_call, function, arguments).add_done_callback(take)
        except BrokenProcessPool:
            answer.set_exception(self._gone())
        return answer

    def stop(self) -> None:
        """Ask the function that is called there, if it looks at :data:`worker_stop`, to come to an end."""
        with suppress(BrokenProcessPool, ProcessLookupError):  # its caller hears of that
            os.kill(self._pid.result(), STOP_SIGNAL)

    def _gone(self) -> WorkerError:
        self.process.join(SHUTDOWN_SECONDS)
        code = self.process.exitcode
        how = (
            "hung up" if code is None else f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        return WorkerError(f"a worker process ({self.process.pid}) {how}")

    def close(self) -> None:
        """End the process, at once; what it logged before is logged here."""
        self._at_exit()
        self._listener.join()


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Let a new process import neither the script that is running nor joblib's way to start others, unknown there."""
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    unknown = method is not None and method not in multiprocessing.get_all_start_methods()
    sys.modules["__main__"] = ModuleType("__main__")
    if unknown:
        multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if unknown:
            multiprocessing.set_start_method(method, force=True)


def _listen(records: Connection) -> None:
    """Log what is logged in a worker until it is gone."""
    with suppress(EOFError, OSError):
        while True:
            record = records.recv()
            logging.getLogger(record.name).handle(record)
    records.close()


def _end(process: BaseProcess, pool: ProcessPoolExecutor) -> None:
    process.kill()
    pool.shutdown(cancel_futures=True)


# -- in a worker -------------------------------------------------------------------------------------------------------


class _Records(logging.Handler):
    """Log records, sent to the process that the worker works for."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe, self._prepare = pipe, QueueHandler(SimpleQueue()).prepare

    def emit(self, record: logging.LogRecord) -> None:
        before, worker_stop.interrupts = worker_stop.interrupts, False  # a record is sent whole
        self._pipe.send(self._prepare(record))
        worker_stop.interrupts = before


def _begin(pipe: Connection, environment: dict[str, str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(environment)  # the server has that of its start
    import torch  # takes seconds

    signal.signal(STOP_SIGNAL, lambda number, _: worker_stop.ask(number))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    logging.getLogger().addHandler(_Records(pipe))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise portable(error) from None


def portable(error: Exception) -> Exception:
    """The error in a form that another process can read, and where it still is the user's (`is_user_error`) or is not."""
    if not is_user_error(error):
        return RuntimeError(f"in a worker process: {''.join(traceback.format_exception(error))}")
    if place_in_users_code(error) is not None:
        return UserCodeError(f"in a worker process: {one_line(error)}")
    with suppress(Exception):  # its class may want other arguments than it passes on
        copy = pickle.loads(pickle.dumps(error))
        if is_user_error(copy):
            return copy
    return UserError(str(error))


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
def preserve_random_state() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch back on leaving."""
    import torch  # takes seconds

    states = RandomStates.now()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=torch.cuda.is_initialized()):
            yield
    finally:
        states.put()


class RandomStates(NamedTuple):
    """The states of the generators that Python, NumPy and torch draw from where none is named, on the CPU."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]  # of the legacy generator, which is what stable-baselines3 draws from
    torch: torch.Tensor

    @classmethod
    def now(cls) -> RandomStates:
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
def use_numpy_generator(generator: np.random.BitGenerator) -> Iterator[None]:
    """Let NumPy's global functions draw from a generator of one's own inside the block.

    Nothing is copied. Normal numbers are drawn in pairs, of which the second is lost on entering and on leaving.
    """
    outer = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    try:
        yield
    finally:
        mtrand.set_bit_generator(outer)
