r"""The solver's entry point: block decomposition, choice of a strategy per block, caches in memory and on disk.

Strategies for one block are orbits of coordinates, singular values, and block conjugate gradients, here; decomposition by
irreducible types, in :mod:`rppdyn.basis._isotypic`; and any of these in other coordinates, in :mod:`rppdyn.basis._similar`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from rppdyn.basis import cache as disk
from rppdyn.basis._basis import Basis, Block, DenseSubspace, InvariantSubspace, OrbitSubspace
from rppdyn.basis._isotypic import solve_isotypic
from rppdyn.basis._problem import MAX_ITERATIVE_BYTES, ZERO, Array, BasisCertificate, NotCertified, Problem
from rppdyn.basis._similar import solve_similar

if TYPE_CHECKING:
    from rppdyn.reps import Rep

MAX_DENSE_FIRST_DIM = 48  # up to this dimension singular values are faster than the isotypic strategy's random draws
MAX_DENSE_DIM = 1200  # up to this dimension singular values take seconds
MAX_STRETCH = 1e10  # norm of a discrete generator; with more, rounding hides how vectors of usual length move
MAX_UNIT_RATIO = 1e5  # of coordinates; entries differ by its square, and those below 1e-12 of the largest are rounding
MIN_SECONDS_TO_CACHE = 5e-3  # time of a solve from which on it is written to disk

Solution = tuple[InvariantSubspace, BasisCertificate]
Strategy = Callable[[Problem], Solution | None]


def solve(rep: Rep, *, cache: bool = True) -> Basis:
    r"""The invariants {v : rho(g) v = v for all g} of a representation, as a lazy, certified, orthonormal basis.

    The representation is split into distinct products of leaves and each is solved once, also across calls: signed
    permutations by orbits; small blocks by singular values; self-adjoint algebras (all compact, classical and Lorentz
    groups) by isotypic decomposition, if necessary in other coordinates; all others by singular values or, beyond 1200
    dimensions, by conjugate gradients.

    Args:
        rep: a bound representation; for maps use `rep_in >> rep_out`, whose invariants are row-major vec(W).
        cache: whether to use the caches in memory and on disk; the answer is the same to rounding.
    Returns:
        `Basis` with `rank`, `blocks`, `matmul`, `rmatmul`, `sparse`, `dense`, `project` and `certificate`.
    Raises:
        NotCertified: the invariants could not be told from near-invariants.
        ValueError: the coordinates alone would not fit in memory.
    """
    solved: dict[str, Solution] = {}
    blocks = []
    for part, index in rep.blocks():
        problem = Problem.from_rep(part)
        key = disk.problem_key(problem)
        if key not in solved:
            solved[key] = _solve_cached(problem, key) if cache else solve_problem(problem)
        blocks.append(Block(part, solved[key][0], index))
    certificate = BasisCertificate.worst([c for _, c in solved.values()])
    return Basis(rep, tuple(blocks), certificate)


def solve_problem(problem: Problem) -> Solution:
    """Solve one block with the first strategy that applies and certifies its answer.

    Raises:
        NotCertified: no strategy does; the message is that of `_solve_general`, which always applies.
    """
    similar = partial(solve_similar, solve=solve_problem)
    strategies: tuple[Strategy, ...] = (solve_orbits, solve_isotypic, similar, _solve_general)
    if problem.dim <= MAX_DENSE_FIRST_DIM:
        strategies = (solve_orbits, _solve_general, similar)
    errors: dict[Strategy, NotCertified] = {}
    for strategy in strategies:
        try:
            if (answer := strategy(problem)) is not None:
                answer[1].check(problem.name)
                return answer
        except NotCertified as error:
            errors[strategy] = error
    raise errors[_solve_general]


def _solve_general(problem: Problem) -> Solution:
    """Solve by singular values or conjugate gradients, which apply to all groups."""
    if (stretch := float(problem.scales[problem.num_lie :].max(initial=0.0))) > MAX_STRETCH:
        raise NotCertified(
            f"no certified basis of {problem.name}: discrete generators stretch its vectors {stretch:.0e} times, and rounding "
            "then hides which vectors stay as they are; give them in less skewed axes"
        )
    if (units := max(f.units for f in problem.factors)) > MAX_UNIT_RATIO:
        raise NotCertified(
            f"no certified basis of {problem.name}: the units of its coordinates differ by {units:.0e}, and small entries of "
            "generators can't be told from rounding; give them in units in which entries are of like size, and zeros as zeros"
        )
    return solve_dense(problem) if problem.dim <= MAX_DENSE_DIM else solve_iterative(problem)


class _Memory:
    """Solutions of this process, the least recently used dropped first."""

    MAX_ENTRIES, MAX_BYTES = 512, 2**28

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Solution] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Solution | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: str, solution: Solution) -> None:
        with self._lock:
            if key in self._entries or solution[0].nbytes > self.MAX_BYTES:
                return
            self._entries[key] = solution
            self._bytes += solution[0].nbytes
            while len(self._entries) > self.MAX_ENTRIES or self._bytes > self.MAX_BYTES:
                _, (old, _) = self._entries.popitem(last=False)
                self._bytes -= old.nbytes

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0


memory = _Memory()


def _solve_cached(problem: Problem, key: str) -> Solution:
    if (answer := memory.get(key)) is None:
        if (answer := disk.read(problem)) is None:
            start = time.perf_counter()
            answer = solve_problem(problem)
            if time.perf_counter() - start > MIN_SECONDS_TO_CACHE:
                disk.write(problem, *answer)
        memory.put(key, answer)
    return answer


MAX_ORBIT_BYTES = 2**34  # of working memory
MAX_STEPS = 5000  # of conjugate gradients
CONJUGATE_GRADIENT_TOLERANCE = 1e-13  # residual relative to the right-hand side
MIN_RESIDUAL = 1e-16  # residual below which a right-hand side (of unit-length columns) is rounding
MIN_NEW_LENGTH = 1e-5  # length (of 1) from which a projected random vector is a new direction
MAX_ZERO_LENGTH = 1e-9  # length up to which it counts as zero
MAX_ITERATIVE_DIM = 2**23  # conjugate gradients then take seconds for each vector


def solve_dense(problem: Problem) -> tuple[DenseSubspace, BasisCertificate]:
    """Invariants of a block of a few hundred dimensions of any group: the nullspace of the stacked constraints.

    Constraints enter one after another, each reduced to a triangle first, so that memory stays at two matrices of the
    block's size. Singular values up to `ZERO` count as zero, and the smallest other one is the certificate's rank gap, so a
    value between `ZERO` and the gap's limit makes the answer uncertified rather than wrong. They are relative to the largest
    one or, if that is smaller, to 1, the largest norm of a scaled constraint: constraints that cancel leave only rounding.
    """
    n = problem.dim
    count = len(problem.scales)
    if count == 0:
        return DenseSubspace(np.eye(n, dtype=problem.dtype)), BasisCertificate(0.0, 0.0, 1.0, "dense")
    if count * n <= 400:
        stack = problem.stacked()
    else:
        eye = np.eye(n, dtype=problem.dtype)
        stack = problem.apply(0, eye)
        for i in range(1, count):
            stack = scipy.linalg.qr(np.concatenate([stack, problem.apply(i, eye)]), mode="r", check_finite=False)[0][:n]
    # all n right vectors, and no unnecessary left ones
    _, sigma, vh = np.linalg.svd(stack, full_matrices=len(stack) < n)
    sigma = np.concatenate([sigma, np.zeros(n - len(sigma))])
    scale = max(float(sigma.max(initial=0.0)), 1.0)
    null = sigma <= ZERO * scale
    q = vh[null].conj().T
    gap = float(sigma[~null].min(initial=scale) / scale)
    orthonormality = float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).max(initial=0.0))
    return DenseSubspace(q), BasisCertificate(problem.residual(q), orthonormality, gap, "dense")


def product_images(problem: Problem, parts: list[tuple[Array, Array]]) -> tuple[Array, Array | None]:
    """Images (M, dim) and signs (M, dim; None if all are +1) of the product's coordinates, from those of its factors."""
    index_type = np.int32 if problem.dim < 2**30 else np.int64
    images = np.zeros((problem.num_discrete, 1), index_type)
    signs = np.ones((problem.num_discrete, 1), np.int8)
    signed = any((s < 0).any() for _, s in parts)
    for image, sign in parts:
        shape = problem.num_discrete, images.shape[1] * image.shape[1]
        images = (images[:, :, None] * image.shape[1] + image[:, None, :].astype(index_type)).reshape(shape)
        if signed:
            signs = (signs[:, :, None] * sign[:, None, :]).reshape(shape)
    return images, signs if signed else None


def solve_orbits(problem: Problem) -> tuple[OrbitSubspace, BasisCertificate] | None:
    """Invariants by orbits of the coordinates, or None if the problem is not one of signed permutations.

    If every generator sends e_i to s_i e_{p(i)}, an invariant vector has v_{p(i)} = s_i v_i: it is constant up to sign on
    the orbits of the coordinates. On the doubled set {+i, -i} the generators are plain permutations; an orbit with both +i
    and -i has no invariant, each other pair of orbits (O, -O) has exactly one. All arithmetic is in integers, so the rank
    is exact.

    Raises:
        ValueError: the coordinates alone do not fit in memory.
    """
    permutations = [p for f in problem.factors if (p := f.permutations) is not None]
    if problem.num_lie or len(permutations) < len(problem.factors):
        return None
    if (needed := 16 * problem.dim * (problem.num_discrete + 4)) > MAX_ORBIT_BYTES:
        raise ValueError(
            f"the basis of {problem.name} needs about {needed} bytes to count the orbits of its {problem.dim} coordinates, "
            f"more than {MAX_ORBIT_BYTES}; use a lower tensor power"
        )
    images, signs = product_images(problem, permutations)
    n, m = problem.dim, problem.num_discrete
    orbit_sign = None
    if m == 0:
        labels = np.arange(n, dtype=np.int32)
    elif signs is None:
        labels = _label_orbits(images)
    else:
        flip = (signs < 0) * n  # node i is +e_i, node n + i is -e_i
        doubled = np.concatenate([images + flip, images + (n - flip)], axis=1).astype(images.dtype)
        component = _label_orbits(doubled)
        plus, minus = component[:n], component[n:]
        # (O, -O) are one invariant; the orbit with the smaller label has sign +
        labels = np.where(plus != minus, np.minimum(plus, minus), -1)
        orbit_sign = np.where(plus < minus, 1, -1).astype(np.int8)
        used, inverse = np.unique(labels, return_inverse=True)
        labels = (inverse - (used[0] == -1)).astype(np.int32)
    subspace = OrbitSubspace(labels, orbit_sign, problem.dtype)
    residual = 0.0 if _is_consistent(labels, orbit_sign, images, signs) else np.inf
    sizes = subspace.sizes
    orthonormality = float(np.abs(sizes * (1 / np.sqrt(sizes)) ** 2 - 1).max(initial=0.0))
    return subspace, BasisCertificate(residual, orthonormality, 1.0, "orbits")


def _label_orbits(images: Array) -> Array:
    """Orbit label of every point under the permutations images[k]; labels are ordered by their smallest points."""
    m, n = images.shape
    indptr = np.arange(0, m * n + 1, m, dtype=images.dtype)
    graph = csr_array((np.ones(m * n, np.int8), np.ascontiguousarray(images.T).reshape(-1), indptr), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    return labels


def _is_consistent(labels: Array, sign: Array | None, images: Array, signs: Array | None) -> bool:
    """Check whether every generator maps every orbit to itself with the stored signs, in integers."""
    has_invariant = labels >= 0
    for k, image in enumerate(images):
        if not np.array_equal(labels[image], labels):
            return False
        if sign is not None and signs is not None and ((sign[image] * signs[k] != sign) & has_invariant).any():
            return False
    return True


def solve_iterative(problem: Problem) -> tuple[DenseSubspace, BasisCertificate]:
    """Invariants of large blocks of groups that are not self-adjoint, through Kronecker-structured products only.

    A random block Z is projected on the nullspace of C by solving the consistent system C^H C X = C^H C Z: Z - X is the
    orthogonal projection. C^H C has few distinct eigenvalues in practice, so that conjugate gradients end early, and its
    products cost one small matrix product per factor and generator. Blocks of growing width are projected, orthogonally to
    the vectors before them. Once a block has more vectors than the nullspace has remaining dimensions its smallest singular
    values are zero, and the rank is known.

    Raises:
        NotCertified: too many dimensions; conjugate gradients did not converge; a projected vector is neither new nor zero.
    """
    rng = np.random.default_rng(0)
    n = problem.dim
    if n > MAX_ITERATIVE_DIM:
        raise NotCertified(
            f"no certified basis of {problem.name}: its dimension {n} is more than {MAX_ITERATIVE_DIM} (iterative); use a "
            "lower tensor power, or split the representation"
        )
    q = np.zeros((n, 0), problem.dtype)
    width = 8
    while True:
        width = min(width, n - q.shape[1])
        if (needed := 4 * n * (q.shape[1] + width) * q.itemsize) > MAX_ITERATIVE_BYTES:
            raise NotCertified(
                f"no certified basis of {problem.name}: its dimension {n} and a rank above {q.shape[1]} need {needed} bytes of "
                f"work space, more than {MAX_ITERATIVE_BYTES}; use a lower tensor power, or split the representation"
            )
        if width == 0:
            break
        z = _draw_normals(rng, n, width, problem.dtype)
        z = _project(problem, _deflate(z, q) / n**0.5)
        z = _deflate(z, q)
        left, sigma, _ = np.linalg.svd(z, full_matrices=False)
        scale = max(1.0 / n**0.5, float(sigma.max(initial=0.0)))
        is_new = sigma > MIN_NEW_LENGTH * scale
        if (sigma[~is_new] > MAX_ZERO_LENGTH * scale).any():
            raise NotCertified(
                f"no certified basis of {problem.name}: a projected vector is neither new nor zero (iterative); "
                "give the generators in a basis in which compact ones are skew-symmetric, or split the representation"
            )
        if is_new.any():
            # projected again, since scaling to unit length magnified errors
            new = _deflate(_project(problem, left[:, is_new]), q)
            q = np.concatenate([q, np.linalg.qr(new)[0]], axis=1)
        if not is_new.all():
            break
        width *= 2
    q = np.linalg.qr(q)[0] if q.shape[1] else q
    if not (residual := problem.residual(q)) <= ZERO:  # also for nan
        raise NotCertified(
            f"no certified basis of {problem.name}: a generator changes a vector by {residual:.1e}, too much for rounding, too "
            "little to leave it out (iterative); give the generators to full float64 precision, in less skewed axes"
        )
    orthonormality = float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).max(initial=0.0))
    return DenseSubspace(q), BasisCertificate(residual, orthonormality, _gap(problem, q, rng), "iterative")


def _draw_normals(rng: np.random.Generator, n: int, width: int, dtype: np.dtype) -> Array:
    z = rng.standard_normal((n, width))
    return z + 1j * rng.standard_normal((n, width)) if dtype.kind == "c" else z


def _deflate(z: Array, q: Array) -> Array:
    """Remove the components along q from z, twice because of rounding."""
    for _ in range(2):
        z = z - q @ (q.conj().T @ z)
    return z


def _solve_normal(problem: Problem, b: Array) -> Array:
    """Solve C^H C X = b, b in the range, by conjugate gradients on all columns at once.

    Raises:
        NotCertified: no convergence in `MAX_STEPS` steps.
    """
    x, r = np.zeros_like(b), b.copy()
    p = r.copy()
    rho = np.sum(np.abs(r) ** 2, axis=0)
    target = np.maximum(CONJUGATE_GRADIENT_TOLERANCE**2 * rho, MIN_RESIDUAL**2)
    for _ in range(MAX_STEPS):
        active = rho > target
        if not active.any():
            return x
        ap = problem.normal_apply(p)
        curvature = np.sum((p.conj() * ap).real, axis=0)
        alpha = np.where(active, rho / np.where(curvature > 0, curvature, np.inf), 0.0)
        x += alpha * p
        r -= alpha * ap
        new_rho = np.sum(np.abs(r) ** 2, axis=0)
        p = r + np.where(active, new_rho / np.maximum(rho, 1e-300), 0.0) * p
        rho = new_rho
    raise NotCertified(
        f"no certified basis of {problem.name}: conjugate gradients did not converge in {MAX_STEPS} steps, "
        "its constraints are too ill-conditioned; give the generators in a basis in which compact ones are skew-symmetric, or "
        "split the representation"
    )


def _project(problem: Problem, z: Array) -> Array:
    """Project the columns of z orthogonally on the nullspace, with one correction for rounding."""
    for _ in range(2):
        z = z - _solve_normal(problem, problem.normal_apply(z))
    return z


def _gap(problem: Problem, q: Array, rng: np.random.Generator) -> float:
    """Smallest non-zero singular value of the scaled constraints, by inverse iteration."""
    if q.shape[1] == problem.dim:
        return 1.0
    z = _deflate(_draw_normals(rng, problem.dim, min(4, problem.dim - q.shape[1]), problem.dtype), q)
    for _ in range(4):
        z = np.linalg.qr(_deflate(z, q))[0]
        z = _solve_normal(problem, z)
    z = np.linalg.qr(_deflate(z, q))[0]
    values = np.linalg.eigvalsh(z.conj().T @ problem.normal_apply(z))
    return float(np.sqrt(max(values[0], 0.0)))
