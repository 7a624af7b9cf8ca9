"""Environments in a process of their own, so that those of several agents step at the same time."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import gymnasium as gym
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnvStepReturn

from rppdyn.errors import one_line, place_in_users_code
from rppdyn.runs.workers import WorkerError

PRELOADED = ["rppdyn.jobs.training.building"]  # by the process that workers are forked from: saves each of them seconds
LONGEST = 10.0  # seconds that a worker gets to end by itself


class WorkerEnv(VecEnv):
    """Environments that step in a process of their own, one after the other, for agents that are trained together.

        RPPSAC("RPPPolicy", WorkerEnv(partial(make_env, "Ant-v5")), seed=3)

    Steps are those that stable-baselines3's `DummyVecEnv` would have taken in this process, bit by bit. The worker leaves
    Ctrl-C and SIGTERM, which often reach a whole group of processes, to this one, so that a job can still ask it for the
    simulator's state; and it ends when this one closes it, or is gone.

    Args:
        build: makes an environment there; `rppdyn.envs.make_env` makes one whose state can be captured.
        count: how many there are.
    Attributes:
        process: the worker.
    Raises:
        WorkerError: an environment could not be made, or the process is gone; also by every method.
    """

    def __init__(self, build: Callable[[], gym.Env], count: int = 1) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)  # without effect where it runs already
        self._last_words = Path(tempfile.mkdtemp(prefix="rppdyn-worker-"), "error.txt")
        weakref.finalize(self, shutil.rmtree, self._last_words.parent, ignore_errors=True)
        self._pipe, there = context.Pipe()
        arguments = there, CloudpickleWrapper(build), count, self._last_words
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self._is_closed = False
        with _known_start_method():
            self.process.start()
        there.close()
        # before multiprocessing waits for its children at exit: a worker whose pipe is closed ends
        self._at_exit = Finalize(self, self._pipe.close, exitpriority=1)
        try:
            spaces = self._received()
        except WorkerError as error:
            raise WorkerError(f"{error} while it made the environment") from error
        super().__init__(count, *spaces)

    # -- what stable-baselines3 asks of environments ------------------------------------------------------------------

    def reset(self) -> Any:
        observations, self.reset_infos = self._asked("begun", self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray) -> None:
        self._send("step", actions)

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, dones, infos, self.reset_infos = self._received()
        return observations, rewards, dones, infos

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._asked("get_attr", attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._asked("set_attr", attr_name, value, indices)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        return self._asked("env_method", method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        return self._asked("env_is_wrapped", wrapper_class, indices)

    def get_images(self) -> Sequence[NDArray | None]:
        return self._asked("get_images")

    def close(self) -> None:
        """End the process, whatever its state."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(WorkerError):
            self._send("close")
            self.process.join(LONGEST)
        self._at_exit()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    # -- the process --------------------------------------------------------------------------------------------------

    def _asked(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._send(name, *arguments, **named)
        return self._received()

    def _send(self, name: str, *arguments: Any, **named: Any) -> None:
        with self._alive():
            self._pipe.send((name, arguments, named))

    def _received(self) -> Any:
        with self._alive():
            found = self._pipe.recv()
        if isinstance(found, AttributeError):
            raise found
        return found

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """A pipe whose end is said by name."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerError(self._fate()) from error

    def _fate(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        how = (
            "hung up" if code is None else f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        why = f" ({self._last_words.read_text()})" if self._last_words.exists() else ""
        return f"the environment's worker (process {self.process.pid}) {how}{why}"


def _serve(pipe: Connection, build: CloudpickleWrapper, count: int, last_words: Path) -> None:
    """Make environments and do with them what the pipe says; leave word of an error that ends them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        envs = _Served([build.var] * count)
        pipe.send((envs.observation_space, envs.action_space))
        while True:
            name, arguments, named = pipe.recv()
            if name == "close":
                envs.close()
                return
            try:
                found = getattr(envs, name)(*arguments, **named)
            except AttributeError as error:
                if name != "get_attr":
                    raise
                found = error
            pipe.send(found)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the other end is gone
        return
    except Exception as error:
        users = place_in_users_code(error) is not None
        last_words.write_text(one_line(error) if users else f"{type(error).__name__}: {' '.join(str(error).split())}")
        if users:  # which says it all
            sys.exit(1)
        raise


class _Served(DummyVecEnv):
    """Environments that are asked from elsewhere, where what they say is a copy already."""

    def begun(self, seeds: list[int | None], options: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
        """`reset`, and what environments said then."""
        self._seeds, self._options = seeds, options
        return self.reset(), self.reset_infos

    def step(self, actions: NDArray) -> Any:
        """As `DummyVecEnv` does, and also what environments said that were reset meanwhile."""
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            observation, self.buf_rews[i], terminated, truncated, info = env.step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            self.buf_dones[i] = terminated or truncated
            if self.buf_dones[i]:
                info["terminal_observation"] = observation
                observation, self.reset_infos[i] = env.reset()
            self.buf_infos[i] = info
            self._save_obs(i, observation)
        return self._obs_from_buf(), self.buf_rews, self.buf_dones, self.buf_infos, self.reset_infos


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
