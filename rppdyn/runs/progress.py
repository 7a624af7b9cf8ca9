"""One progress bar per run, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

PARTS = (
    "{desc}",
    " {percentage:3.0f}%{postfix}",
    " [{elapsed}<{remaining}]",
    " {rate_fmt}",
    " {n_fmt}/{total_fmt}",
    " |{bar}|",
)


class ProgressBar(Protocol):
    """The bar of a job, or the way to one in another process; a context manager."""

    def update(self, count: int) -> None: ...
    def say(self, what: str) -> None: ...
    def show(self, **values: float) -> None: ...
    def __enter__(self) -> ProgressBar: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class _Meter(tqdm):
    """A line without the last parts that don't fit it: tqdm itself cuts it at its end, in the middle of a number."""

    @staticmethod
    def format_meter(*args: Any, ncols: int | None = None, **values: Any) -> str:
        for kept in range(len(PARTS), 1, -1):
            values["bar_format"] = "".join(PARTS[:kept])
            if ncols is None or len(tqdm.format_meter(*args, **values)) <= ncols:
                break
        return tqdm.format_meter(*args, ncols=ncols, **values)


class Progress:
    """A bar over environment steps (or any count) with a few last values and speed.

    Where standard error is no terminal it prints a line every ten seconds instead of redrawing ten times a second. Work
    that is done within `delay` seconds shows no bar.
    """

    def __init__(
        self,
        total: int,
        initial: int = 0,
        description: str = "",
        unit: str = "step",
        enabled: bool = True,
        delay: float = 0.0,
    ):
        terminal = sys.stderr.isatty()
        self._bar = _Meter(
            total=total,
            initial=initial,
            desc=description,
            unit=unit,
            file=sys.stderr,
            disable=not enabled,
            delay=delay,
            mininterval=0.2 if terminal else 10.0,
            dynamic_ncols=terminal,
            ncols=None if terminal else 110,
        )
        self._description = description
        self._values: dict[str, str] = {}

    def update(self, count: int) -> None:
        """Set the bar to an absolute count."""
        if count > self._bar.n:
            self._bar.desc = self._description
            self._bar.update(count - self._bar.n)

    def end(self, count: int) -> None:
        """Set the bar to its end, which may come before the total."""
        self.update(count)
        self._bar.total = self._bar.n
        self._bar.refresh()

    def say(self, what: str) -> None:
        """Stand behind the description, until the next update, what takes longer than the other steps."""
        self._bar.desc = f"{self._description}, {what}"
        self._bar.refresh()

    def show(self, **values: float) -> None:
        """Put values behind the bar; earlier ones of other names stay."""
        self._values.update({name: f"{value:.4g}" for name, value in values.items()})
        self._bar.set_postfix(self._values, refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
