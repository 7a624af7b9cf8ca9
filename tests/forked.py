"""Processes forked from a server which has imported the package, as that takes longer than most of what they do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork of a server whose OpenMP has threads waits for them for ever
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "tensorboard.summary.writer.event_file_writer", "matplotlib.figure", "rppdyn.jobs.train_agent",
     "rppdyn.jobs.playing", "rppdyn.jobs.equivariance", "rppdyn.jobs.fit_transition"]
)  # fmt: skip


class Forked:
    """A function with arguments in a folder, in a process of its own: what the tests use of `subprocess.Popen`."""

    def __init__(
        self, target: Callable[..., None], *arguments: Any, cwd: Path, environment: Mapping[str, str], output: Path
    ) -> None:
        self._files = output / "out", output / "err"
        self._process = CONTEXT.Process(target=_enter, args=(target, arguments, cwd, dict(environment), *self._files))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        assert self.returncode is not None, f"the job took more than {timeout} s"
        out, err = (file.read_text() for file in self._files)
        return out, err


def job(words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], output: Path) -> Forked:
    """`rppdyn` with some words."""
    return Forked(_rppdyn, words, cwd=cwd, environment=environment, output=output)


def run_code(code: str, *arguments: str, folder: Path) -> None:
    """Run Python in a folder, with arguments as of a script; its error is the caller's."""
    process = start_code(code, *arguments, folder=folder)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


def start_code(code: str, *arguments: str, folder: Path) -> Forked:
    """Start Python in a folder, which gets its output, with arguments as of a script."""
    return Forked(_code, code, arguments, cwd=folder, environment=os.environ, output=folder)


def _enter(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    cwd: Path,
    environment: dict[str, str],
    out: Path,
    err: Path,
) -> None:
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(cwd)
    os.environ.update(environment)
    warnings.simplefilter("default")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    target(*arguments)


def _rppdyn(words: tuple[str, ...]) -> None:
    """As `python -m rppdyn.cli` begins."""
    sys.argv = ["rppdyn", *words]
    from rppdyn.cli import main

    sys.exit(main())


def _code(code: str, arguments: tuple[str, ...]) -> None:
    """As `python -c` does."""
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
