"""How cost grows with one quantity: measured at several values of it, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from measuring import Spread, Step, Timing, interleave, ratio, spread

from rppdyn.runs.figures import COLOURS

PEER_COLOUR = "0.45"

Value = Callable[[Timing, Sequence[Timing]], Spread]
"""Of a timing, and of all that were taken in turns with it: what is printed and drawn."""


@dataclass
class Growth:
    """Times of several candidates at several values of one quantity, taken in turns at each value.

    Attributes:
        title: what is measured.
        quantity: what grows.
        at: its values.
        times: at each value, one timing per candidate.
    """

    title: str
    quantity: str
    at: list[float] = field(default_factory=list)
    times: list[list[Timing]] = field(default_factory=list)

    def add(self, value: float, steps: Mapping[str, Step], peer: str | Mapping[str, str] | None, rounds: int) -> None:
        """Measure the candidates at one more value; ``peer`` is that of all, or the candidates' own by name."""
        peers = peer if isinstance(peer, Mapping) else dict.fromkeys(steps, peer)
        timings = {name: Timing(name, peers.get(name)) for name in steps}
        interleave(steps, timings, rounds)
        self.at.append(value)
        self.times.append(list(timings.values()))

    def names(self) -> list[str]:
        """The candidates, in their order."""
        return list(dict.fromkeys(timing.name for timings in self.times for timing in timings))

    def curve(self, name: str, value: Value) -> tuple[list[float], list[Spread]]:
        """Where a candidate was measured, and what ``value`` makes of its timing and of all that were taken with it."""
        points = [(at, t, ts) for at, ts in zip(self.at, self.times, strict=True) for t in ts if t.name == name]
        return [at for at, _, _ in points], [value(t, ts) for _, t, ts in points]


def milliseconds(timing: Timing, _: Sequence[Timing]) -> Spread:
    """Of processor time."""
    return spread([1e3 * seconds for seconds in timing.cpu])


def to_peer(timing: Timing, timings: Sequence[Timing]) -> Spread:
    """Processor time over the peer's."""
    return ratio(timing, next(t for t in timings if t.name == timing.peer))


def report_growth(growth: Growth, value: Value, unit: str, names: Sequence[str] | None = None) -> None:
    """Print a candidate per row, a value of the quantity per column: medians of processor time."""
    print(f"\n{growth.title}, {unit}\n  {growth.quantity:28}" + "".join(f"{at:9g}" for at in growth.at))
    for name in names or growth.names():
        found = dict(zip(*growth.curve(name, value), strict=True))
        cells = (f"{found[at].median:9.2f}" if at in found else " " * 9 for at in growth.at)
        print(f"  {name:28}" + "".join(cells), flush=True)


def figure(rows: int, columns: int, width: float = 3.6, height: float = 2.9) -> tuple[Figure, list[list[Axes]]]:
    """A figure and its axes, row by row."""
    drawn = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(drawn)
    return drawn, drawn.subplots(rows, columns, squeeze=False).tolist()


def draw(
    axes: Axes,
    growth: Growth,
    value: Value,
    names: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
) -> None:
    """A line per candidate, medians between quartiles; what is its own peer in grey."""
    free = iter(COLOURS)
    for name in names or growth.names():
        at, found = growth.curve(name, value)
        is_peer = any(t.name == t.peer == name for ts in growth.times for t in ts)
        colour = PEER_COLOUR if is_peer else (colours or {}).get(name) or next(free)
        axes.plot(at, [s.median for s in found], marker="o", markersize=3.5, color=colour, label=name)
        axes.fill_between(at, [s.low for s in found], [s.high for s in found], color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(growth.quantity)


def dress(axes: Axes, growth: Growth, ylabel: str, *, logarithmic: tuple[bool, bool]) -> None:
    """Title, scales and grid in the house style; ticks where something was measured, and plain numbers."""
    axes.set_title(growth.title, fontsize="medium")
    axes.set_ylabel(ylabel)
    plain = FuncFormatter(lambda x, _: f"{x:g}")
    for axis, scale in zip("xy", logarithmic, strict=True):
        if scale:
            getattr(axes, f"set_{axis}scale")("log")
    if logarithmic[1]:
        low, high = axes.get_ylim()
        marked = (1, 1.5, 2, 3, 4, 6) if high < 12 * low else (1, 2, 5) if high < 300 * low else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=marked))
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(FixedLocator(growth.at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(drawn: Figure, path: Path) -> None:
    """Write the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=130)
