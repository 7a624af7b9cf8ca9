"""Stopping a long job politely: the first Ctrl-C asks, the second insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """True once a stop was asked for; `signal` says by which one."""

    def __init__(self) -> None:
        self.signal: int | None = None

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
        request.signal = number
        put_back()

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
