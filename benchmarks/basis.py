r"""Time the basis solver, cold and from its disk cache, beside the published library where that is installed.

    OMP_NUM_THREADS=1 python benchmarks/basis.py --json docs/results/basis.json --plot docs/results/basis_growth.png

Cold means a new group and representation and no cache; libraries are loaded and warm (the peer compiles each problem
anew, as it does for a user). Cached means read from disk with the memory cache emptied. Runs of the solvers
alternate; the table gives medians. The peer (`emlp` 1.0.3, with `six` and `jax`) computes in float32, its default;
its progress bar is replaced, because it hands tqdm a float32 that breaks tqdm's time estimate. A case that the peer
cannot hold or finish is left to us alone. Then cold times alone, over tensor rank and over the size of the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from growth import Growth, draw, dress, figure, milliseconds, report_growth, save
from measuring import Timing, begin, command_line, installed, spread, timed, write

from rppdyn.basis import _solver as solver
from rppdyn.basis import cache, solve
from rppdyn.basis._problem import Problem
from rppdyn.groups import O13, SO, Group, O, RubiksCube, S, Sp, Z
from rppdyn.reps import T


@dataclass
class Case:
    """One line of the table: a group, a tensor power, and whether the peer takes part."""

    name: str
    make: Callable[[], Group]
    power: int
    peer: str | None = None  # the peer's expression for the group
    in_issue: bool = False  # one of the cases the targets are stated for


CASES = [
    Case("SO(3) T(6)", lambda: SO(3), 6, "SO(3)", True),
    Case("SO(3) T(7)", lambda: SO(3), 7, "SO(3)", True),
    Case("S(5) T(5)", lambda: S(5), 5, "S(5)", True),
    Case("Sp(2) T(6)", lambda: Sp(2), 6, "Sp(2)", True),
    Case("Rubik's cube T(3)", RubiksCube, 3, "RubiksCube()", True),
    Case("O(3) T(6)", lambda: O(3), 6, "O(3)"),
    Case("Z(4) T(5)", lambda: Z(4), 5, "Z(4)"),
    Case("S(4) T(5)", lambda: S(4), 5, "S(4)"),
    Case("SO(5) T(5)", lambda: SO(5), 5, "SO(5)"),
    Case("O13 T(4)", O13, 4, "O13()"),
    Case("Rubik's cube T(2)", RubiksCube, 2, "RubiksCube()"),
    Case("Z(4) T(7)", lambda: Z(4), 7),
    Case("S(5) T(7)", lambda: S(5), 7),
    Case("SO(5) T(7)", lambda: SO(5), 7),
    Case("Sp(2) T(8)", lambda: Sp(2), 8),
    Case("SO(4) T(8)", lambda: SO(4), 8),
    Case("O13 T(8)", O13, 8),
]


@dataclass
class Result:
    """Times and what was found."""

    name: str
    in_issue: bool
    dim: int = 0
    rank: int = 0
    strategy: str = ""
    residual: float = 0.0
    orthonormality: float = 0.0
    rank_gap: float = 0.0
    cold: Timing = field(default_factory=lambda: Timing("cold"))
    cached: Timing = field(default_factory=lambda: Timing("cached"))
    peer: Timing = field(default_factory=lambda: Timing("emlp"))
    peer_rank: int | None = None
    peer_residual: float | None = None
    peer_note: str = ""

    @property
    def ratios(self) -> list[float]:
        """The peer's times over ours, of the rounds that it took part in."""
        return [theirs / ours for theirs, ours in zip(self.peer.wall, self.cold.wall, strict=False)]


class Peer:
    """The published library, if it can be imported."""

    def __init__(self) -> None:
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            import emlp.groups
            import emlp.reps.representation as representation

        class Silent:
            def __init__(self, *args: Any, **kwargs: Any) -> None: ...

            def update(self, n: float = 1) -> None: ...

            def close(self) -> None: ...

        representation.tqdm = Silent
        self.groups, self.representation = emlp.groups, representation

    def solve(self, expression: str, power: int, timing: Timing) -> tuple[np.ndarray, Any]:
        """Basis and group of one cold solve, which is timed."""
        self.representation.Rep.solcache.clear()
        group = eval(expression, vars(self.groups))
        rep = self.representation.T(power)(group)
        return np.asarray(timed(rep.equivariant_basis, timing)), group

    @staticmethod
    def residual(q: np.ndarray, group: Any, power: int) -> float:
        """Its basis against its own generators, on the same relative scale as our certificate."""

        def dense(generators: Any) -> np.ndarray:
            eye = np.eye(group.d)
            return np.stack([np.asarray(g @ eye, dtype=np.float64) for g in generators]).reshape(-1, group.d, group.d)

        none = np.zeros((0, group.d, group.d))
        lie = dense(group.lie_algebra) if len(group.lie_algebra) else none
        discrete = dense(group.discrete_generators) if len(group.discrete_generators) else none
        return Problem.from_generators([(lie, discrete)] * power).residual(q.astype(np.float64)) if q.shape[1] else 0.0


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after `seconds`."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"stopped after {seconds} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run(cases: list[Case], repeats: int, peer: Peer | None, limits: tuple[float, int]) -> list[Result]:
    """Measure cases, solvers alternating, `repeats` rounds.

    The peer is not repeated on a case after limits[0] seconds, and interrupted after limits[1].
    """
    results = [Result(c.name, c.in_issue) for c in cases]
    solve(T(4)(SO(2)), cache=False)  # load what is loaded lazily
    if peer is not None:
        peer.solve("SO(2)", 2, Timing("warm-up"))
    for round_ in range(repeats):
        for case, result in zip(cases, results, strict=True):
            basis = timed(lambda c=case: solve(T(c.power)(c.make()), cache=False), result.cold)
            certificate = basis.certificate
            result.dim, result.rank, result.strategy = basis.dim, basis.rank, certificate.strategy
            result.residual = max(result.residual, certificate.residual)
            result.orthonormality = max(result.orthonormality, certificate.orthonormality)
            result.rank_gap = certificate.rank_gap
            if round_ == 0:
                solve(T(case.power)(case.make()))  # fill the cache
            solver.memory.clear()
            timed(lambda c=case: solve(T(c.power)(c.make())), result.cached)
            if peer is not None and case.peer and not result.peer_note and sum(result.peer.wall) <= limits[0]:
                try:
                    with _limit(limits[1]):
                        q, group = peer.solve(case.peer, case.power, result.peer)
                except Exception as e:  # its solver asserts, and raises its own error, where it does not converge
                    result.peer_note = f"{type(e).__name__}: {str(e).splitlines()[0][:120] if str(e) else ''}"
                    continue
                if result.peer_rank is None:
                    result.peer_rank, result.peer_residual = q.shape[1], peer.residual(q, group, case.power)
            print(f"round {round_ + 1}/{repeats} {case.name}", file=sys.stderr, flush=True)
    return results


def table(results: list[Result], peer: bool) -> str:
    """The results in Markdown."""
    lines = [
        "| case | dim | rank | strategy | cold ms (CPU) | cached ms (CPU) | residual "
        "| peer s | peer rank | peer residual | ratio (quartiles) |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]

    def both(timing: Timing) -> str:
        return f"{1e3 * statistics.median(timing.wall):.1f} ({1e3 * statistics.median(timing.cpu):.1f})"

    for r in results:
        if r.peer.wall:
            low, middle, high = spread(r.ratios)
            ratio = f"{middle:.0f} ({low:.0f}, {high:.0f})" if len(r.ratios) > 1 else f"{middle:.0f}"
            theirs = f"{statistics.median(r.peer.wall):.2f} | {r.peer_rank} | {r.peer_residual:.0e} | {ratio}"
        else:
            theirs = f"{(r.peer_note or 'not run') if peer else 'not installed'} | | |"
        name = f"**{r.name}**" if r.in_issue else r.name
        ours = f"{both(r.cold)} | {both(r.cached)} | {r.residual:.0e}"
        lines.append(f"| {name} | {r.dim} | {r.rank} | {r.strategy} | {ours} | {theirs} |")
    compared = [(r, statistics.median(r.ratios)) for r in results if r.peer.wall]
    for words, ratios in (
        ("Ratio peer / ours, cold", [ratio for _, ratio in compared]),
        ("On the named cases (bold)", [ratio for r, ratio in compared if r.in_issue]),
    ):
        if ratios:
            lines += ["", f"{words}: least {min(ratios):.0f}, median {statistics.median(ratios):.0f}."]
    return "\n".join(lines)


RANKS = {"SO(3)": (lambda: SO(3), 8), "S(5)": (lambda: S(5), 7), "Z(4)": (lambda: Z(4), 8),
         "Sp(2)": (lambda: Sp(2), 8), "O13": (O13, 8)}  # fmt: skip
SIZES = {"SO(n)": SO, "S(n)": S, "Z(n)": Z}
SIZES_AT = (2, 3, 4, 6, 8, 12, 16)
POWER = 4


def growths(repeats: int, quick: bool) -> list[Growth]:
    """Cold times over tensor rank, to the highest of each group, and over the size of the group's matrices."""
    over_rank = Growth("T(k)", "tensor rank k")
    for k in range(1, 9, 2 if quick else 1):
        over_rank.add(
            k, {name: _cold(make, k) for name, (make, highest) in RANKS.items() if k <= highest}, None, repeats
        )
    over_size = Growth(f"T({POWER})", "n")
    for n in SIZES_AT[:: 2 if quick else 1]:
        makers = {name: (lambda family=family, n=n: family(n)) for name, family in SIZES.items()}
        over_size.add(n, {name: _cold(make, POWER) for name, make in makers.items()}, None, repeats)
    for growth in (over_rank, over_size):
        report_growth(growth, milliseconds, "cold, ms of processor time")
    return [over_rank, over_size]


def _cold(make: Callable[[], Group], power: int) -> Callable[[], object]:
    return lambda: solve(T(power)(make()), cache=False)


def plot(found: Sequence[Growth], path: Path) -> None:
    """Cold times over tensor rank and over size."""
    drawn, (row,) = figure(1, len(found), width=4.2, height=3.4)
    for axes, growth in zip(row, found, strict=True):
        draw(axes, growth, milliseconds)
        dress(axes, growth, "cold solve, ms", logarithmic=(growth.quantity == "n", True))
        axes.legend(edgecolor="none", fontsize="small")
    save(drawn, path)


def main() -> None:
    """Command line."""
    parser = command_line(__doc__, rounds=7, quick=3, plot=True)
    parser.add_argument("--only", default="", help="measure the cases whose name holds this text, and no growth")
    parser.add_argument(
        "--peer-limit", type=int, help="interrupt the peer after so long in one solve (1800; 15 with --quick)"
    )
    parser.add_argument("--peer-seconds", type=float, help="stop repeating the peer on a case after so long (20; 0)")
    arguments, where = begin(parser, "scipy", "safetensors", "emlp", "jax", "jaxlib")
    peer = Peer() if installed("emlp", "pip install emlp==1.0.3 jax six, in an environment of its own") else None
    limit = arguments.peer_limit or (15 if arguments.quick else 1800)
    seconds = arguments.peer_seconds if arguments.peer_seconds is not None else (0.0 if arguments.quick else 20.0)
    with tempfile.TemporaryDirectory() as folder:
        # everything goes to disk here, so that reading is measured on every case
        os.environ["RPPDYN_CACHE_DIR"], solver.MIN_SECONDS_TO_CACHE = folder, -1.0
        results = run([c for c in CASES if arguments.only in c.name], arguments.rounds, peer, (seconds, limit))
        assert cache.summary().count > 0
        print(table(results, peer is not None), flush=True)
        found = [] if arguments.only else growths(arguments.rounds, arguments.quick)
    write(arguments.json, where, {"results": results, "growth": found})
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
