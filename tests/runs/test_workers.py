"""Workers: functions called in processes of their own."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import subprocess
import sys
import time
from operator import floordiv
from pathlib import Path

import pytest
import torch

from rppdyn.runs.workers import Worker, WorkerError, asked_to_stop, in_turn, tell

UNGUARDED = """
import math, sys, time
busy = sys.argv[1] == "busy"
from rppdyn.runs.workers import Worker
print("once")
worker = Worker()
worker.ask(math.sqrt, 9)
assert worker.answer() == 3
print(worker._process.pid, flush=True)
busy and worker.ask(time.sleep, 60)
input()
"""


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/rppdyn", "train-agent", "seeds=2", "-c", ""])
    both = [Worker(), Worker()]
    yield both
    for worker in both:
        worker.close()


def command() -> list[str]:
    return sys.argv


def test_values_come_in_order_and_errors_with_what_was_said_there(workers, caplog):
    assert list(in_turn(workers, floordiv, [(n, 2) for n in range(7)])) == [0, 0, 1, 1, 2, 2, 3]
    assert list(in_turn(workers, floordiv, [(9, 2)])) == [4] and list(in_turn(workers, floordiv, [])) == []
    first, second = workers
    first.ask(command)
    assert first.answer() == sys.argv  # the command that it works for
    first.ask(os.getpid), second.ask(torch.get_num_threads)
    assert first.answer() not in (os.getpid(), second._process.pid) and second.answer() == 1

    first.ask(floordiv, 1, 0)
    with pytest.raises(RuntimeError, match=r"in a worker process: (?s:.*)ZeroDivisionError"):
        first.answer()
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        first.ask(lambda: 1)
    first.ask(print, "no answer"), first.ask(logging.warning, "steps of %g", 0.5), first.ask(math.sqrt, 4)
    assert [first.answer() for _ in range(3)] == [None, None, 2.0]
    assert "steps of 0.5" in caplog.messages


def count_until_stopped(most: int) -> int:
    """Called in a worker, by name: it tells each number, and warns of the first."""
    for number in range(most):
        tell(number)
        if number == 0:
            logging.getLogger("there").warning("%s of %d", "counting", most)
        if asked_to_stop:
            return number
        time.sleep(0.01)
    return most


def test_what_a_function_tells_comes_at_once_and_it_can_be_asked_to_stop(caplog):
    worker, heard = Worker(), []

    def hear(number: int) -> None:
        heard.append(number)
        assert number == 0 or caplog.messages  # it came before the answer
        if number == 3:
            os.kill(worker._process.pid, signal.SIGTERM)  # as a scheduler sends to all; it is this process that decides
        if number == 5:
            worker.stop()

    worker.ask(count_until_stopped, 1000)
    last = worker.answer(hear)
    assert 5 <= last < 1000 and heard == list(range(last + 1)) and not asked_to_stop
    assert caplog.messages == ["counting of 1000"]
    worker.close()


def test_one_that_is_gone_is_named_and_closed_all_the_same(workers):
    worker = workers[0]
    worker.ask(os.kill, os.getpid(), 0)
    worker.answer()
    worker.ask(os._exit, 3)
    with pytest.raises(WorkerError, match=rf"a worker process \({worker._process.pid}\) ended with status 3"):
        worker.answer()
    killed = workers[1]
    killed._process.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by signal 9"):
        for _ in range(2):  # what is sent before it is gone is lost
            killed.ask(math.sqrt, 4)
            killed.answer()


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_script_without_a_main_guard_has_one_which_ends_when_the_script_is_killed(tmp_path, state):
    script = Path(tmp_path, "script.py")
    script.write_text(UNGUARDED)
    process = subprocess.Popen(
        [sys.executable, script, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "once\n"
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} is there still")


def test_a_worker_that_nobody_closed_leaves_no_open_pipe():
    worker = Worker()
    process = worker._process
    del worker
    gc.collect()
    assert process.poll() is not None and process.stdin.closed and process.stdout.closed
