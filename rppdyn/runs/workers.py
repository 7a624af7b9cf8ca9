"""Stop requests, threads, worker processes and random streams."""

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
    """A stop request while the work under way can be thrown away."""


class StopRequest:
    """A request to stop, true once it was made.

    Attributes:
        signal: number of the signal that made it; None before.
        interrupts: whether a request raises `Stopped` at once, because the work under way can be thrown away.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.interrupts = False
        self._asked: tuple[int, bool] = (-1, False)  # the last step of which `at` was asked, and the answer

    def ask(self, number: int) -> None:
        """Request a stop, in the main thread.

        Raises:
            Stopped: the work under way can be thrown away.
        """
        self.signal = number
        if self.interrupts:
            raise Stopped

    def at(self, step: int) -> bool:
        """Check for a request, with one answer for all that ask at this step: seeds trained at once stop together."""
        if step != self._asked[0]:
            self._asked = step, bool(self)
        return self._asked[1]

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM in the block into a request that the job checks between two steps.

    An exception raised by a signal may come in the middle of an optimiser's step, where no checkpoint can be taken. After the
    first signal SIGINT raises KeyboardInterrupt again and SIGTERM ends the process. Handlers are restored after the block.
    Outside the main thread, where Python allows no handlers, the block changes nothing.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, _frame: object) -> None:
        restore_handlers()
        request.ask(number)

    def restore_handlers() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        restore_handlers()


CGROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """Number of processors that this process may use, by its affinity and the quota of its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup v2, then v1
        with suppress(OSError, ValueError):  # there is no such file, or the quota is "max"
            quota, period = map(int, " ".join((CGROUPS / file).read_text() for file in files).split())
            if quota > 0:
                count = min(count, math.ceil(quota / period))
    return count


def processes(threads: int | None) -> int:
    """Number of processes for a job's members: `threads`, else `OMP_NUM_THREADS`, and at most one per processor."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads or (int(set_by_user) if set_by_user.isdigit() else sys.maxsize) or 1, processors())


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's thread count in the block, at most to the number of processors.

    Threads wait for each other at every operation. With more threads than free processors a step takes ten times as long.

    Args:
        threads: number of threads; None for one.
    """
    import torch  # takes seconds

    before = torch.get_num_threads()
    torch.set_num_threads(min(threads or 1, processors()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- workers -----------------------------------------------------------------------------------------------------------

SHUTDOWN_SECONDS = 10.0  # for a process to end by itself
STOP_SIGNAL = signal.SIGUSR1  # to a worker
worker_stop = StopRequest()
"""The request of :meth:`Worker.stop`, in the worker."""


class WorkerError(UserError):
    """A worker's process is gone."""


class Worker:
    """A process that calls functions one after another. State that they store in their modules stays there.

    The worker imports the modules of its functions and nothing else, so that scripts without a main guard and notebooks can
    have one. It ignores Ctrl-C and SIGTERM, which terminals and schedulers send to all processes of a job. It ends, even during
    a call, when its parent closes it or dies.

    >>> from math import sqrt
    >>> worker = Worker()
    >>> worker.submit(sqrt, 9).result()
    3.0
    >>> worker.close()

    Args:
        preload: modules that take long to import, for the server from which all workers are forked.
    Attributes:
        process: the process, of multiprocessing.
    """

    def __init__(self, preload: Sequence[str] = ("torch",)) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))  # no effect if the server runs already
        records, sender = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(sender, {**os.environ}))
        with _hide_main_module():
            self._pid = self._pool.submit(os.getpid)  # starts the process
        sender.close()  # the records then end with the process
        (self.process,) = self._pool._processes.values()
        self._listener = threading.Thread(target=_listen, args=(records,), daemon=True)
        self._listener.start()
        self._at_exit = weakref.finalize(self, _end, self.process, self._pool)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function of some module in the worker; function and arguments are pickled.

        Returns:
            its value, its error as :func:`portable`, or WorkerError if the process is gone.
        """
        answer: Future[Any] = Future()

        def take(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(self._gone() if isinstance(error, BrokenProcessPool) else error)

        try:
            self._pool.submit(_call, function, arguments).add_done_callback(take)
        except BrokenProcessPool:
            answer.set_exception(self._gone())
        return answer

    def stop(self) -> None:
        """Request a stop of the function under way, which sees it in :data:`worker_stop`."""
        with suppress(BrokenProcessPool, ProcessLookupError):  # the future of the call reports it
            os.kill(self._pid.result(), STOP_SIGNAL)

    def _gone(self) -> WorkerError:
        self.process.join(SHUTDOWN_SECONDS)
        code = self.process.exitcode
        how = (
            "hung up" if code is None else f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        return WorkerError(f"a worker process ({self.process.pid}) {how}")

    def close(self) -> None:
        """End the process at once, after handling the records that it has logged."""
        self._at_exit()
        self._listener.join()


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep a new process from importing the running script, and from joblib's start method, which it does not know."""
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
    """Handle a worker's log records until it is gone."""
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
    """Handler that sends log records to the parent process."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe, self._prepare = pipe, QueueHandler(SimpleQueue()).prepare

    def emit(self, record: logging.LogRecord) -> None:
        before, worker_stop.interrupts = worker_stop.interrupts, False  # no interruption within a record
        self._pipe.send(self._prepare(record))
        worker_stop.interrupts = before


def _begin(pipe: Connection, environment: dict[str, str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(environment)  # the server keeps the environment of its start
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
    """Make an error picklable. An error of the user stays one (`is_user_error`), and so does an error of the package."""
    if not is_user_error(error):
        return RuntimeError(f"in a worker process: {''.join(traceback.format_exception(error))}")
    if place_in_users_code(error) is not None:
        return UserCodeError(f"in a worker process: {one_line(error)}")
    with suppress(Exception):  # the class may not unpickle
        copy = pickle.loads(pickle.dumps(error))
        if is_user_error(copy):
            return copy
    return UserError(str(error))


# -- random streams by seed, and the global random states of the process -----------------------------------------------


def stream(seed: int, n: int) -> torch.Generator:
    """The ``n``-th stream of a seed, for example of an epoch's batches; a resumed run draws the same numbers."""
    import torch  # takes seconds

    return torch.Generator().manual_seed(seed * 1_000_003 + n)


def data_stream(seed: int) -> torch.Generator:
    """The stream of a seed's training data.

    It differs from ``torch.Generator().manual_seed(seed)``, which draws initial weights: normal inputs would equal the weights
    of the first layer.
    """
    import torch  # takes seconds

    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch after the block."""
    import torch  # takes seconds

    states = RandomStates.capture()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=torch.cuda.is_initialized()):
            yield
    finally:
        states.restore()


class RandomStates(NamedTuple):
    """The states of the global generators of Python, NumPy and torch, on the CPU."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]  # of the legacy generator, which stable-baselines3 uses
    torch: torch.Tensor

    @classmethod
    def capture(cls) -> RandomStates:
        """The present states."""
        import torch  # takes seconds

        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())  # noqa: NPY002

    def restore(self) -> None:
        """Set the global generators to these states."""
        import torch  # takes seconds

        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)


@contextmanager
def use_numpy_generator(generator: np.random.BitGenerator) -> Iterator[None]:
    """Let NumPy's global functions draw from a given generator in the block.

    No state is copied. Normal numbers are drawn in pairs, and the second of a pair is lost on entering and on leaving.
    """
    outer = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    try:
        yield
    finally:
        mtrand.set_bit_generator(outer)
