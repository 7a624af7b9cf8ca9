"""Jobs in processes that are forked from a server which has imported the package, as that takes longer than most of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "tensorboard.summary.writer.event_file_writer", "matplotlib.figure", "rppdyn.jobs.train_agent",
     "rppdyn.jobs.collect", "rppdyn.jobs.equivariance", "rppdyn.jobs.fit_transition"]
)  # fmt: skip


class Job:
    """`rppdyn` with some words in a folder, in a process of its own: what the tests use of `subprocess.Popen`."""

    def __init__(self, words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], output: Path) -> None:
        self._files = output / "out", output / "err"
        self._process = CONTEXT.Process(target=_run, args=(words, cwd, dict(environment), *self._files))
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


def _run(words: tuple[str, ...], cwd: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    """As `python -m rppdyn.cli` begins."""
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.argv = ["rppdyn", *words]
    warnings.simplefilter("default")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    from rppdyn.cli import main

    sys.exit(main())
