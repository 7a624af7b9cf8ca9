"""The first signal asks, the second insists; handlers are put back."""

from __future__ import annotations

import os
import pty
import signal
import termios
import threading
import time

import pytest

from rppdyn.runs import Progress, stop_on_signals
from rppdyn.runs.workers import Stopped, Worker, worker_stop


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_second_interrupt_is_an_exception(first):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background ignores it
    try:
        with stop_on_signals() as stop, pytest.raises(KeyboardInterrupt):
            assert not stop
            os.kill(os.getpid(), first)
            assert stop and stop.signal == first
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_changed():
    seen = []

    def work():
        with stop_on_signals() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_progress_goes_to_standard_error(capsys):
    with Progress(10, initial=2, description="task") as bar:
        bar.update(5)
        bar.update(4)  # never backwards
        bar.show(**{"return": 12.345})
        bar.update(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "10/10" in captured.err
    assert "return=12.3" in captured.err
    with Progress(10, enabled=False) as bar:
        bar.update(10)
        bar.show(a=1.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("columns", "whole"), [(80, False), (120, True)])
def test_no_number_of_the_progress_is_cut_at_the_end_of_a_terminal(monkeypatch, columns, whole):
    end, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, columns))
    with open(end, "rb") as screen, open(terminal, "w") as shown, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", shown)
        with Progress(100_000, description="InvertedDoublePendulum-v5 rpp_policy_only") as bar:
            bar.show(**{"return": 9359.8})
            bar.update(99_000)
        *_, line = screen.readline().decode().rstrip().split("\r")
    assert line.startswith("InvertedDoublePendulum-v5 rpp_policy_only  99%, return=9360 [")
    assert len(line) < columns and ("step/s 99000/100000 |" in line) == whole


def test_what_the_first_step_takes_longer_for_is_said_and_is_no_part_of_the_time_that_is_left(capsys):
    with Progress(10, description="task") as bar:
        bar.say("compiling")
        bar.update(0)
        time.sleep(0.6)
        bar.update(1)
        assert bar._bar.format_dict["elapsed"] < 0.5
    _, first, *_, last = capsys.readouterr().err.strip().split("\r")
    assert first.startswith("task, compiling   0%") and last.startswith("task  10%")


def _stopped_while_it_waits() -> str:
    try:
        worker_stop.interrupts = True
        if not worker_stop:
            time.sleep(60)
    except Stopped:
        pass
    return "stopped" if worker_stop else "waited"


def test_a_worker_stops_at_once_where_it_may():
    worker = Worker()
    try:
        answer, start = worker.submit(_stopped_while_it_waits), time.monotonic()
        worker.stop()
        assert answer.result() == "stopped" and time.monotonic() - start < 30
    finally:
        worker.close()
