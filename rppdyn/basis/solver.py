r"""One entry point: block decomposition, choice of a strategy per block, memory and disk caches."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rppdyn.basis import cache as disk
from rppdyn.basis.basis import Basis, Block, Subspace
from rppdyn.basis.isotypic import solve_isotypic
from rppdyn.basis.problem import Certificate, NotCertified, Problem
from rppdyn.basis.similar import solve_similar
from rppdyn.basis.strategies import solve_dense, solve_iterative, solve_orbits

if TYPE_CHECKING:
    from rppdyn.reps import Rep

DENSE_FIRST = 48  # up to here a singular value decomposition beats the random draws of the isotypic strategy
DENSE_LIMIT = 1200  # up to here it takes seconds
MAX_STRETCH = 1e10  # of vectors by a discrete generator; beside that, moved by their own length is all but left alone
MAX_UNITS = 1e5  # of coordinates apart: entries are by their square, and below 1e-12 of the largest taken for rounding
WORTH_KEEPING = 5e-3  # seconds; what is solved faster than this is not written to disk

Solution = tuple[Subspace, Certificate]
Strategy = Callable[[Problem], Solution | None]


def solve(rep: Rep, *, cache: bool = True) -> Basis:
    r"""The invariants {v : rho(g) v = v for all g} of a representation, as a lazy, certified, orthonormal basis.

    The representation is split into distinct products of leaves and each is solved once, also across calls: signed
    permutations by orbits, small blocks by singular values, self-adjoint algebras (all compact, classical and Lorentz
    groups) by isotypic decomposition, in other coordinates where the generators need them, the rest by singular values
    or, beyond 1200 dimensions, by conjugate gradients.

    Args:
        rep: a bound representation; for maps use `rep_in >> rep_out`, whose invariants are row-major vec(W).
        cache: whether to use the caches in memory and on disk; without them the answer is the same to rounding.
    Returns:
        `Basis` with `rank`, `blocks`, `matmul`, `rmatmul`, `sparse`, `dense`, `project` and `certificate`.
    Raises:
        NotCertified: the invariants could not be told from near-invariants.
        ValueError: so many coordinates that counting them alone would not fit in memory.
    """
    solved: dict[str, Solution] = {}
    blocks = []
    for part, index in rep.blocks():
        problem = Problem.from_rep(part)
        key = disk.problem_key(problem)
        if key not in solved:
            solved[key] = _cached(problem, key) if cache else solve_problem(problem)
        blocks.append(Block(part, solved[key][0], index))
    certificate = Certificate.worst([c for _, c in solved.values()])
    return Basis(rep, tuple(blocks), certificate)


def solve_problem(problem: Problem) -> Solution:
    """Solve one block with the first strategy that applies and certifies its answer.

    Raises:
        NotCertified: none does; the numbers are those of the strategy that always applies.
    """
    similar = partial(solve_similar, solve=solve_problem)
    others: tuple[Strategy, ...]
    others = (_general, similar) if problem.dim <= DENSE_FIRST else (solve_isotypic, similar, _general)
    refused: dict[Strategy, NotCertified] = {}
    for strategy in (solve_orbits, *others):
        try:
            if (answer := strategy(problem)) is not None:
                return _certified(problem, answer)
        except NotCertified as error:
            refused[strategy] = error
    raise refused[_general]


def _general(problem: Problem) -> Solution:
    """The strategies that always apply."""
    if (stretch := float(problem.scales[problem.num_lie :].max(initial=0.0))) > MAX_STRETCH:
        raise NotCertified(
            f"no certified basis of {problem.name}: discrete generators stretch its vectors {stretch:.0e} times, beside which "
            "rounding hides what they leave alone; give them in less skewed axes"
        )
    if (units := max(f.units for f in problem.factors)) > MAX_UNITS:
        raise NotCertified(
            f"no certified basis of {problem.name}: its coordinates have units {units:.0e} times apart, and small entries of "
            "generators can't be told from rounding; give them in units in which entries are of like size, and zeros as zeros"
        )
    return solve_dense(problem) if problem.dim <= DENSE_LIMIT else solve_iterative(problem)


def _certified(problem: Problem, solution: Solution) -> Solution:
    solution[1].check(problem.name)
    return solution


class _Memory:
    """Solutions of this process, the least recently used dropped first."""

    def __init__(self, max_entries: int = 512, max_bytes: int = 2**28) -> None:
        self._entries: OrderedDict[str, Solution] = OrderedDict()
        self._bytes = 0
        self._limits = max_entries, max_bytes
        self._lock = threading.Lock()

    def get(self, key: str) -> Solution | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: str, solution: Solution) -> None:
        with self._lock:
            if key in self._entries or solution[0].nbytes > self._limits[1]:
                return
            self._entries[key] = solution
            self._bytes += solution[0].nbytes
            while len(self._entries) > self._limits[0] or self._bytes > self._limits[1]:
                _, (old, _) = self._entries.popitem(last=False)
                self._bytes -= old.nbytes

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0


memory = _Memory()


def _cached(problem: Problem, key: str) -> Solution:
    if (answer := memory.get(key)) is None:
        if (answer := disk.read(problem)) is None:
            start = time.perf_counter()
            answer = solve_problem(problem)
            if time.perf_counter() - start > WORTH_KEEPING:
                disk.write(problem, *answer)
        memory.put(key, answer)
    return answer
