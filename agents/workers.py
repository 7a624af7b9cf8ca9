"""An environment in a process of its own, so that those of several agents step at the same time."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv

from rppdyn.runs.workers import WorkerError

PRELOADED = "rppdyn.agents.workers"  # by the process that workers are forked from, which saves each of them seconds
LONGEST = 10.0  # seconds that a worker gets to end by itself


class WorkerEnv(SubprocVecEnv):
    """Stable-baselines3's `SubprocVecEnv` of one environment, for agents that are trained together.

        RPPSAC("RPPPolicy", WorkerEnv(partial(make_env, "Ant-v5")), seed=3)

    Steps are those that the environment would have taken in this process, bit by bit. The worker leaves Ctrl-C and SIGTERM,
    which often reach a whole group of processes, to this one, so that a job can still ask it for the simulator's state; and it
    ends when this one closes it, or is gone.

    Args:
        build: makes the environment there; `rppdyn.envs.make_env` makes one whose state can be captured.
    Raises:
        WorkerError: the environment could not be made, or the process is gone; also by every method.
    """

    def __init__(self, build: Callable[[], gym.Env]) -> None:
        get_context("forkserver").set_forkserver_preload([PRELOADED])  # without effect where it runs already
        self._last_words = Path(tempfile.mkdtemp(prefix="rppdyn-worker-"), "error.txt")
        weakref.finalize(self, shutil.rmtree, self._last_words.parent, ignore_errors=True)
        try:
            with _known_start_method():
                super().__init__([_Deaf(build, self._last_words)], start_method="forkserver")
        except (EOFError, OSError) as error:
            self.processes[0].join(LONGEST)
            raise WorkerError(f"{self._fate()} while it made the environment") from error
        self.remotes = tuple(_Remote(remote, self._fate) for remote in self.remotes)
        # before multiprocessing waits for its children at exit: a worker whose pipe is closed ends
        self._at_exit = Finalize(self, self.remotes[0].pipe.close, exitpriority=1)

    def _fate(self) -> str:
        process = self.processes[0]
        process.join(1.0)
        code = process.exitcode
        how = (
            "hung up" if code is None else f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        why = f" ({self._last_words.read_text()})" if self._last_words.exists() else ""
        return f"the environment's worker (process {process.pid}) {how}{why}"

    def close(self) -> None:
        """End the process, whatever its state."""
        if self.closed:
            return
        self.closed = True
        process = self.processes[0]
        try:
            self.remotes[0].send(("close", None))
            process.join(LONGEST)
        except WorkerError:
            pass
        finally:
            self._at_exit()
            if process.is_alive():
                process.kill()
            process.join()


class _Deaf:
    """Makes an environment in a process that then takes no notice of requests to stop, and leaves word of what ends it."""

    def __init__(self, build: Callable[[], gym.Env], last_words: Path) -> None:
        self.build, self.last_words = build, last_words

    def __call__(self) -> gym.Env:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        env = self._told(self.build)()
        env.reset, env.step = self._told(env.reset), self._told(env.step)  # a wrapper would be seen
        return env

    def _told(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                self.last_words.write_text(f"{type(error).__name__}: {' '.join(str(error).split())}")
                raise

        return told


@contextmanager
def _known_start_method() -> Iterator[None]:
    """A new process takes over how this one starts others, and joblib's way is not known there."""
    method = multiprocessing.get_start_method(allow_none=True)
    if method is None or method in multiprocessing.get_all_start_methods():
        yield
        return
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(method, force=True)


class _Remote:
    """A pipe to a worker whose end is said by name."""

    def __init__(self, pipe: Any, fate: Callable[[], str]) -> None:
        self.pipe, self.fate = pipe, fate

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerError(self.fate()) from error

    def send(self, message: Any) -> None:
        with self._named():
            self.pipe.send(message)

    def recv(self) -> Any:
        with self._named():
            return self.pipe.recv()
