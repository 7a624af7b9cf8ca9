"""What the benchmarks share: their command line, steps in turns, ratios between quartiles, and what the numbers depend on.

Every script has ``--quick`` (what `make bench` runs), ``--json FILE`` and, where it measures how cost grows, ``--plot FILE``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rppdyn.nn._compiling import why_not_compiled
from rppdyn.runs.workers import processors

Step = Callable[[], object]
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Timing:
    """Wall and processor times of one step, in seconds, one per round."""

    name: str
    peer: str | None = None  # what its ratio is taken against
    target: float | None = None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Spread(NamedTuple):
    """A median between its quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:7.2f}  ({self.low:.2f}, {self.high:.2f})"


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value that value."""
    return Spread(*statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else Spread(*values * 3)


def ratio(timing: Timing, peer: Timing, clock: str = "cpu") -> Spread:
    """A step's time over its peer's, pair by pair: both were taken in the same round, so under the same load."""
    pairs = zip(getattr(timing, clock), getattr(peer, clock), strict=True)
    return spread([ours / theirs for ours, theirs in pairs])


def timed(step: Step, timing: Timing) -> Any:
    """Run a step, note its times, and hand on what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = step()
    timing.wall.append(time.perf_counter() - wall)
    timing.cpu.append(time.process_time() - cpu)
    return result


def interleave(steps: Mapping[str, Step], timings: Mapping[str, Timing], rounds: int, warm_up: int = 2) -> None:
    """Run every step once per round and note its times."""
    for step in steps.values():
        for _ in range(warm_up):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            timed(step, timings[name])


def report(title: str, timings: Sequence[Timing]) -> None:
    """Print medians, and ratios to the peers between their quartiles, of wall-clock and of processor time."""
    by_name = {timing.name: timing for timing in timings}
    print(f"\n{title}")
    print(f"  {'':28} {'ms':>9} {'ratio':>7}  {'quartiles':14} {'cpu ms':>9} {'ratio':>7}  {'quartiles':14} asked")
    for timing in timings:
        peer = by_name.get(timing.peer or "")
        cells = []
        for clock in ("wall", "cpu"):
            against = "" if peer is None else str(ratio(timing, peer, clock))
            cells.append(f"{1e3 * statistics.median(getattr(timing, clock)):9.2f} {against:23}")
        asked = "" if timing.target is None else f"{timing.target:g}"
        print(f"  {timing.name:28} {' '.join(cells)} {asked}".rstrip(), flush=True)


def can_compile() -> bool:
    """Whether torch.compile finds what it needs; where not, what is missing is said."""
    obstacle = why_not_compiled(torch.device("cpu"))
    if obstacle:
        print(f"missing: whatever is compiled ({obstacle})")
    return not obstacle


def command_line(doc: str, *, rounds: int, quick: int, plot: bool = False) -> argparse.ArgumentParser:
    """The arguments that all benchmarks have, with their numbers of rounds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(rounds_of={False: rounds, True: quick})
    parser.add_argument("--quick", action="store_true", help="what `make bench` runs: fewer rounds, fewer points")
    parser.add_argument("--rounds", type=int, help=f"turns of each candidate ({rounds}; {quick} with --quick)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all times")
    if plot:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw how cost grows")
    return parser


def begin(parser: argparse.ArgumentParser, *packages: str) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Read the command line, set torch's threads, and print and return what the numbers will depend on."""
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = arguments.rounds_of[arguments.quick]
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: give a positive number")
    for name in ("json", "plot"):
        if (path := getattr(arguments, name, None)) is not None:
            try:  # before anything is measured
                path.parent.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path.parent).close()
            except OSError as error:
                parser.error(f"--{name} {path}: {error.strerror} ({path.parent}); choose another place")
    torch.set_num_threads(arguments.threads)
    where = conditions(*packages)
    print("  ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    return arguments, where


def conditions(*packages: str) -> dict[str, Any]:
    """What the numbers depend on; of packages their versions."""
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("describe", "--always", "--dirty"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", *packages)},
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "processor": _processor(),
        "cores": processors(),
        "load": round(os.getloadavg()[0], 1),
    }


def installed(name: str, install: str) -> bool:
    """Whether a peer can be imported; where it can't be, say what is left out and how to have it."""
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"{name} is not installed, so there is no comparison with it: {install}", flush=True)
    return found


def write(path: Path | None, where: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Results and the conditions they were found under as JSON, where a file was named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"conditions": {**where, "load at the end": round(os.getloadavg()[0], 1)}, **results}
        path.write_text(json.dumps(content, indent=1, default=_plain) + "\n")


def write_times(path: Path | None, where: Mapping[str, Any], results: Mapping[str, Sequence[Timing]]) -> None:
    """All times by table, and the conditions they were taken under, as JSON."""
    write(path, where, {"times": results})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    named = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
