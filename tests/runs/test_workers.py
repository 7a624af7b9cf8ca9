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

from rppdyn.errors import UserCodeError, is_user_error
from rppdyn.runs.workers import Worker, WorkerError, portable, worker_stop
from rppdyn.settings import ConfigError

UNGUARDED = """
import math, time
from rppdyn.runs.workers import Worker
print("once")
worker = Worker()
assert worker.submit(math.sqrt, 9).result() == 3
print(worker.process.pid, flush=True)
worker.submit(time.sleep, 60)
input()
"""


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.close()


def count_until_stopped(most: int) -> int:
    """Called in a worker, by name."""
    for number in range(most):
        logging.getLogger("there").warning("%d of %d", number, most)
        if worker_stop:
            return number
        time.sleep(0.01)
    return most


def test_values_come_in_order_with_what_was_logged_and_a_call_can_be_asked_to_stop(worker, caplog):
    answers = [worker.submit(floordiv, n, 2) for n in range(4)]
    assert [answer.result() for answer in answers] == [0, 0, 1, 1]
    assert worker.submit(torch.get_num_threads).result() == 1
    assert worker.submit(os.getpid).result() == worker.process.pid != os.getpid()
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        worker.submit(lambda: 1).result()

    counting = worker.submit(count_until_stopped, 1000)
    os.kill(
        worker.process.pid, signal.SIGINT
    )  # as a terminal and a scheduler send to all; it is this process that decides
    os.kill(worker.process.pid, signal.SIGTERM)
    while "3 of 1000" not in caplog.messages:  # it is heard before there is an answer
        time.sleep(0.01)
    worker.stop()
    last = counting.result()
    worker.close()
    assert 3 <= last < 1000 and not worker_stop
    assert caplog.messages == [f"{number} of 1000" for number in range(last + 1)]


@pytest.mark.parametrize("how, said", [(3, "ended with status 3"), (signal.SIGKILL, "was killed by signal 9")])
def test_one_that_is_gone_is_named_and_closed_all_the_same(worker, how, said):
    pid = worker.submit(os.getpid).result()
    answer = worker.submit(os._exit, 3) if how == 3 else worker.submit(time.sleep, 60)
    if how != 3:
        os.kill(pid, how)
    for lost in (answer, worker.submit(math.sqrt, 4)):
        with pytest.raises(WorkerError, match=rf"a worker process \({pid}\) {said}"):
            lost.result()
    worker.stop()


def test_a_script_without_a_main_guard_has_one_which_ends_when_the_script_is_killed(tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(UNGUARDED)
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "once\n"
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} is there still")


def test_a_worker_that_nobody_closed_ends():
    worker = Worker()
    process, listener = worker.process, worker._listener
    del worker
    gc.collect()
    listener.join(10)
    assert not listener.is_alive() and not process.is_alive()


class Particular(ValueError):
    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} of {number}")


def test_errors_come_back_with_what_they_tell_a_user(monkeypatch, worker):
    """Whether one is the user's stands in its traceback, which pickling loses."""

    def sent(error: Exception) -> Exception:
        try:
            raise error
        except Exception as raised:
            return portable(raised)

    users = sent(KeyError("x"))
    assert isinstance(users, UserCodeError) and "test_workers.py:" in str(users) and "KeyError" in str(users)
    monkeypatch.setitem(globals(), "__package__", "rppdyn")  # this module's errors are the package's
    for error in (ConfigError("seed=x: wrong"), Particular("seeds", 3), MemoryError("too large")):
        assert is_user_error(sent(error)) and str(sent(error)) == str(error)
    assert type(sent(ConfigError("seed=x"))) is ConfigError
    assert not is_user_error(sent(KeyError("x"))) and "Traceback" in str(sent(KeyError("x")))
    failed = worker.submit(int, "no number").exception()
    assert not is_user_error(failed) and "in a worker process: Traceback" in str(failed) and "no number" in str(failed)
