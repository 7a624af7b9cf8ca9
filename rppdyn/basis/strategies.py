r"""Strategies that solve one block: singular values, orbits of coordinates, or block conjugate gradients.

A fourth, by irreducible types, is in :mod:`rppdyn.basis.isotypic`; :mod:`rppdyn.basis.solver` chooses among them.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from rppdyn.basis.basis import DenseSubspace, OrbitSubspace
from rppdyn.basis.problem import ZERO, Array, Certificate, NotCertified, Problem

MAX_ORBIT_BYTES = 2**34
MAX_STEPS = 5000
CONVERGED = 1e-13  # residual relative to the right-hand side
FLOOR = 1e-16  # residual below which a right-hand side (of unit-length columns) is rounding
PRESENT = 1e-5  # a projected random vector at least this long (of 1) carries something new
MAX_ITERATIVE_BYTES = 2**33
MAX_DIM = 2**23  # conjugate gradients take seconds for each vector
ABSENT = 1e-9  # one at most this long carries nothing


def solve_dense(problem: Problem) -> tuple[DenseSubspace, Certificate]:
    """Invariants of a block of a few hundred dimensions of any group: the nullspace of the stacked constraints.

    Constraints enter one after another, each reduced to a triangle first, so that memory stays at two matrices of the
    block's size. Singular values up to `ZERO` are taken as zero; the certificate's rank gap is the smallest other one, so a
    value between that and the gap's limit makes the answer uncertified rather than wrong. They are relative to the largest,
    or to 1, the norm that a scaled constraint has at most: where all of them cancel, what is left is rounding.
    """
    n = problem.dim
    count = len(problem.scales)
    if count == 0:
        return DenseSubspace(np.eye(n, dtype=problem.dtype)), Certificate(0.0, 0.0, 1.0, "dense")
    if count * n <= 400:
        stack = problem.stacked()
    else:
        eye = np.eye(n, dtype=problem.dtype)
        stack = problem.apply(0, eye)
        for i in range(1, count):
            stack = scipy.linalg.qr(np.concatenate([stack, problem.apply(i, eye)]), mode="r", check_finite=False)[0][:n]
    _, sigma, vh = np.linalg.svd(stack, full_matrices=len(stack) < n)  # all n right vectors, and no needless left ones
    sigma = np.concatenate([sigma, np.zeros(n - len(sigma))])
    scale = max(float(sigma.max(initial=0.0)), 1.0)
    null = sigma <= ZERO * scale
    q = vh[null].conj().T
    gap = float(sigma[~null].min(initial=scale) / scale)
    orthonormality = float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).max(initial=0.0))
    return DenseSubspace(q), Certificate(problem.residual(q), orthonormality, gap, "dense")


def product_images(problem: Problem, parts: list[tuple[Array, Array]]) -> tuple[Array, Array | None]:
    """Images (M, dim) and signs (M, dim), None where all are +1, of the product's coordinates, from the factors' own."""
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


def solve_orbits(problem: Problem) -> tuple[OrbitSubspace, Certificate] | None:
    """Invariants by orbits of the coordinates, or None if the problem is not one of signed permutations.

    If every generator sends e_i to s_i e_{p(i)}, an invariant vector has v_{p(i)} = s_i v_i: it is constant up to sign on
    the orbits of the coordinates. On the doubled set {+i, -i} the generators are plain permutations; an orbit that holds
    both +i and -i carries no invariant, each other pair of orbits (O, -O) carries exactly one. Everything is integer
    arithmetic, so the rank is exact.

    Raises:
        ValueError: the coordinates alone do not fit in memory.
    """
    parts = [f.permutations for f in problem.factors]
    known = [p for p in parts if p is not None]
    if problem.num_lie or len(known) < len(parts):
        return None
    if (needed := 16 * problem.dim * (problem.num_discrete + 4)) > MAX_ORBIT_BYTES:
        raise ValueError(
            f"the basis of {problem.name} needs about {needed} bytes to count the orbits of its {problem.dim} coordinates, "
            f"more than {MAX_ORBIT_BYTES}; use a lower tensor power"
        )
    images, signs = product_images(problem, known)
    n, m = problem.dim, problem.num_discrete
    orbit_sign = None
    if m == 0:
        labels = np.arange(n, dtype=np.int32)
    elif signs is None:
        labels = _components(images)
    else:
        flip = (signs < 0) * n  # node i is +e_i, node n + i is -e_i
        doubled = np.concatenate([images + flip, images + (n - flip)], axis=1).astype(images.dtype)
        component = _components(doubled)
        plus, minus = component[:n], component[n:]
        # (O, -O) are one invariant; the orbit with the smaller label is taken with sign +
        labels = np.where(plus != minus, np.minimum(plus, minus), -1)
        orbit_sign = np.where(plus < minus, 1, -1).astype(np.int8)
        used, inverse = np.unique(labels, return_inverse=True)
        labels = (inverse - (used[0] == -1)).astype(np.int32)
    subspace = OrbitSubspace(labels, orbit_sign, problem.dtype)
    residual = 0.0 if _consistent(labels, orbit_sign, images, signs) else np.inf
    sizes = subspace.sizes
    orthonormality = float(np.abs(sizes * (1 / np.sqrt(sizes)) ** 2 - 1).max(initial=0.0))
    return subspace, Certificate(residual, orthonormality, 1.0, "orbits")


def _components(images: Array) -> Array:
    """Orbit label of every point under the permutations images[k]; labels are ordered by smallest member."""
    m, n = images.shape
    indptr = np.arange(0, m * n + 1, m, dtype=images.dtype)
    graph = csr_array((np.ones(m * n, np.int8), np.ascontiguousarray(images.T).reshape(-1), indptr), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    return labels


def _consistent(labels: Array, sign: Array | None, images: Array, signs: Array | None) -> bool:
    """Check whether every generator maps every orbit to itself with the stored signs, in integers."""
    alive = labels >= 0
    for k, image in enumerate(images):
        if not np.array_equal(labels[image], labels):
            return False
        if sign is not None and signs is not None and ((sign[image] * signs[k] != sign) & alive).any():
            return False
    return True


def solve_iterative(problem: Problem, seed: int = 0) -> tuple[DenseSubspace, Certificate]:
    """Invariants of large blocks of groups that are not self-adjoint, through Kronecker-structured products only.

    A random block Z is projected on the nullspace of C by solving the consistent system C^H C X = C^H C Z: Z - X is the
    orthogonal projection. C^H C has few distinct eigenvalues in practice, so that conjugate gradients end early, and its
    products cost one small matrix product per factor and generator. Blocks of growing width are projected, orthogonally to
    the vectors before them, until one brings more vectors than the nullspace has room for, that is until its singular
    values end in zeros: that is the rank.

    Raises:
        NotCertified: too many dimensions; conjugate gradients did not converge, or a projected vector is neither new nor zero.
    """
    rng = np.random.default_rng(seed)
    n = problem.dim
    if n > MAX_DIM:
        raise NotCertified(
            f"no certified basis of {problem.name}: its dimension {n} is more than {MAX_DIM} (iterative); use a lower tensor "
            "power, or split the representation"
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
        z = _normals(rng, n, width, problem.dtype)
        z = _project(problem, _deflate(z, q) / n**0.5)
        z = _deflate(z, q)
        left, sigma, _ = np.linalg.svd(z, full_matrices=False)
        scale = max(1.0 / n**0.5, float(sigma.max(initial=0.0)))
        new = sigma > PRESENT * scale
        if (sigma[~new] > ABSENT * scale).any():
            raise NotCertified(
                f"no certified basis of {problem.name}: a projected vector is neither new nor zero (iterative); "
                "give the generators in a basis in which compact ones are skew-symmetric, or split the representation"
            )
        if new.any():
            fresh = _deflate(_project(problem, left[:, new]), q)  # a second pass removes what the scaling magnified
            q = np.concatenate([q, np.linalg.qr(fresh)[0]], axis=1)
        if not new.all():
            break
        width *= 2
    q = np.linalg.qr(q)[0] if q.shape[1] else q
    if not (residual := problem.residual(q)) <= ZERO:  # nan is none
        raise NotCertified(
            f"no certified basis of {problem.name}: a vector is invariant but for {residual:.1e}, which is neither rounding "
            "nor enough to leave it out (iterative); give the generators to full float64 precision, in less skewed axes"
        )
    orthonormality = float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).max(initial=0.0))
    return DenseSubspace(q), Certificate(residual, orthonormality, _gap(problem, q, rng), "iterative")


def _normals(rng: np.random.Generator, n: int, width: int, dtype: np.dtype) -> Array:
    z = rng.standard_normal((n, width))
    return z + 1j * rng.standard_normal((n, width)) if dtype.kind == "c" else z


def _deflate(z: Array, q: Array) -> Array:
    """z without its components along q, twice for rounding's sake."""
    for _ in range(2):
        z = z - q @ (q.conj().T @ z)
    return z


def _solve_normal(problem: Problem, b: Array) -> Array:
    """X with C^H C X = b, b in the range, column by column in one block.

    Raises:
        NotCertified: no convergence in `MAX_STEPS` steps.
    """
    x, r = np.zeros_like(b), b.copy()
    p = r.copy()
    rho = np.sum(np.abs(r) ** 2, axis=0)
    target = np.maximum(CONVERGED**2 * rho, FLOOR**2)
    for _ in range(MAX_STEPS):
        active = rho > target
        if not active.any():
            return x
        ap = problem.normal_apply(p)
        curvature = np.sum((p.conj() * ap).real, axis=0)
        alpha = np.where(active, rho / np.where(curvature > 0, curvature, np.inf), 0.0)
        x += alpha * p
        r -= alpha * ap
        fresh = np.sum(np.abs(r) ** 2, axis=0)
        p = r + np.where(active, fresh / np.maximum(rho, 1e-300), 0.0) * p
        rho = fresh
    raise NotCertified(
        f"no certified basis of {problem.name}: conjugate gradients did not converge in {MAX_STEPS} steps, "
        "its constraints are too ill-conditioned; give the generators in a basis in which compact ones are skew-symmetric, or "
        "split the representation"
    )


def _project(problem: Problem, z: Array) -> Array:
    """Orthogonal projection of z's columns on the nullspace, corrected once for rounding."""
    for _ in range(2):
        z = z - _solve_normal(problem, problem.normal_apply(z))
    return z


def _gap(problem: Problem, q: Array, rng: np.random.Generator) -> float:
    """Smallest non-zero singular value of the scaled constraints, by inverse iteration."""
    if q.shape[1] == problem.dim:
        return 1.0
    z = _deflate(_normals(rng, problem.dim, min(4, problem.dim - q.shape[1]), problem.dtype), q)
    for _ in range(4):
        z = np.linalg.qr(_deflate(z, q))[0]
        z = _solve_normal(problem, z)
    z = np.linalg.qr(_deflate(z, q))[0]
    values = np.linalg.eigvalsh(z.conj().T @ problem.normal_apply(z))
    return float(np.sqrt(max(values[0], 0.0)))
