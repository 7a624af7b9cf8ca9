r"""Time the basis solver, cold and from its disk cache, beside the published library where that is installed.

    python benchmarks/basis.py --json docs/results/basis.json

Cold means a new group and representation and no cache; libraries are loaded and warm (the peer compiles each problem
anew, as it does for a user). Cached means read from disk with the memory cache emptied. Runs of the solvers
alternate; the table gives medians. The peer (`emlp` 1.0.3, with `six` and `jax`) computes in float32, its default;
its progress bar is replaced, because it hands tqdm a float32 that breaks tqdm's time estimate. A case that the peer
cannot hold or finish is left to us alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from rppdyn.basis import cache, solve, solver
from rppdyn.basis.problem import Problem
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
    """Raw times in seconds and what was found."""

    name: str
    in_issue: bool
    dim: int = 0
    rank: int = 0
    strategy: str = ""
    residual: float = 0.0
    orthonormality: float = 0.0
    rank_gap: float = 0.0
    cold: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    cold_cpu: list[float] = field(default_factory=list)  # processor time: what a machine without other work would take
    cached_cpu: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    peer_rank: int | None = None
    peer_residual: float | None = None
    peer_note: str = ""
    ratio: float | None = None


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

    def solve(self, expression: str, power: int) -> tuple[float, np.ndarray, Any]:
        """Seconds, basis and group of one cold solve."""
        self.representation.Rep.solcache.clear()
        group = eval(expression, vars(self.groups))
        rep = self.representation.T(power)(group)
        start = time.perf_counter()
        q = np.asarray(rep.equivariant_basis())
        return time.perf_counter() - start, q, group

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


def run(
    cases: list[Case], repeats: int, peer: Peer | None, limits: tuple[float, int], log: Callable[[str], None]
) -> list[Result]:
    """Measure cases, solvers alternating, `repeats` rounds.

    The peer is not repeated on a case after limits[0] seconds, and interrupted after limits[1].
    """
    results = [Result(c.name, c.in_issue) for c in cases]
    solve(T(4)(SO(2)), cache=False)  # load what is loaded lazily
    if peer is not None:
        peer.solve("SO(2)", 2)
    for round_ in range(repeats):
        for case, result in zip(cases, results, strict=True):
            seconds, cpu, basis = _timed(lambda c=case: solve(T(c.power)(c.make()), cache=False))
            result.cold.append(seconds)
            result.cold_cpu.append(cpu)
            certificate = basis.certificate
            result.dim, result.rank, result.strategy = basis.dim, basis.rank, certificate.strategy
            result.residual = max(result.residual, certificate.residual)
            result.orthonormality = max(result.orthonormality, certificate.orthonormality)
            result.rank_gap = certificate.rank_gap
            if round_ == 0:
                solve(T(case.power)(case.make()))  # fill the cache
            solver.memory.clear()
            seconds, cpu, _ = _timed(lambda c=case: solve(T(c.power)(c.make())))
            result.cached.append(seconds)
            result.cached_cpu.append(cpu)
            if (
                peer is not None
                and case.peer
                and (not result.peer or sum(result.peer) < limits[0])
                and not result.peer_note
            ):
                try:
                    with _limit(limits[1]):
                        seconds, q, group = peer.solve(case.peer, case.power)
                except Exception as e:  # its solver asserts, and raises its own error, where it does not converge
                    result.peer_note = f"{type(e).__name__}: {str(e).splitlines()[0][:120] if str(e) else ''}"
                    continue
                result.peer.append(seconds)
                if result.peer_rank is None:
                    result.peer_rank, result.peer_residual = q.shape[1], peer.residual(q, group, case.power)
            log(f"round {round_ + 1}/{repeats} {case.name}")
    for result in results:
        if result.peer:
            result.ratio = statistics.median(result.peer) / statistics.median(result.cold)
    return results


def _timed(f: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall-clock and processor seconds of a call, and what it returned."""
    start, cpu = time.perf_counter(), time.process_time()
    out = f()
    return time.perf_counter() - start, time.process_time() - cpu, out


def table(results: list[Result], peer: bool) -> str:
    """The results in Markdown."""
    lines = [
        "| case | dim | rank | strategy | cold ms (CPU) | cached ms (CPU) | residual "
        "| peer s | peer rank | peer residual | ratio |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]

    def both(wall: list[float], cpu: list[float]) -> str:
        inside = f" ({1e3 * statistics.median(cpu):.1f})" if cpu else ""
        return f"{1e3 * statistics.median(wall):.1f}{inside}"

    for r in results:
        if r.peer:
            theirs = f"{statistics.median(r.peer):.2f} | {r.peer_rank} | {r.peer_residual:.0e} | {r.ratio:.0f}"
        else:
            theirs = f"{(r.peer_note or 'not run') if peer else 'not installed'} | | |"
        ours = f"{both(r.cold, r.cold_cpu)} | {both(r.cached, r.cached_cpu)} | {r.residual:.0e}"
        name = f"**{r.name}**" if r.in_issue else r.name
        lines.append(f"| {name} | {r.dim} | {r.rank} | {r.strategy} | {ours} | {theirs} |")
    ratios = [r.ratio for r in results if r.ratio is not None]
    if ratios:
        named = [r.ratio for r in results if r.ratio is not None and r.in_issue]
        lines += ["", f"Ratio peer / ours, cold: least {min(ratios):.0f}, median {statistics.median(ratios):.0f}"]
        lines[-1] += f"; on the named cases (bold): least {min(named):.0f}, median {statistics.median(named):.0f}."
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """Versions, threads and the state of the checkout."""
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "torch": torch.__version__,
    }
    from importlib.metadata import PackageNotFoundError, version

    for name in ("safetensors", "emlp", "jax", "jaxlib"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    here = Path(__file__).resolve().parent

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=here, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../rppdyn/basis", "../rppdyn/reps", "../rppdyn/groups")
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "solver_modified": bool(changed),
        "versions": versions,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "machine": platform.machine(),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write raw results here")
    parser.add_argument("--only", default="", help="measure the cases whose name holds this text")
    parser.add_argument("--peer-limit", type=int, default=1800, help="interrupt the peer after this long in one solve")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default 7)")
    parser.add_argument(
        "--peer-seconds", type=float, default=20.0, help="stop repeating the peer on a case after this long"
    )
    args = parser.parse_args()
    try:
        peer = Peer()
    except ImportError:
        peer = None
    before = environment()
    with tempfile.TemporaryDirectory() as folder:
        # everything goes to disk here, so that reading is measured on every case
        os.environ["RPPDYN_CACHE_DIR"], solver.WORTH_KEEPING = folder, -1.0
        cases = [c for c in CASES if args.only in c.name]
        limits = args.peer_seconds, args.peer_limit
        results = run(cases, args.repeats, peer, limits, lambda s: print(s, file=sys.stderr, flush=True))
        assert cache.summary().count > 0
    print(table(results, peer is not None))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps({"environment": before, "results": [asdict(r) for r in results]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
