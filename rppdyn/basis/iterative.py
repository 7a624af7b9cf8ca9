r"""Invariants of large blocks of groups that are not self-adjoint, by block conjugate gradients.

A random block Z is projected on the nullspace of C by solving the consistent system C^H C X = C^H C Z: Z - X is the
orthogonal projection. C^H C has few distinct eigenvalues in practice, so that conjugate gradients end early, and its
products cost one small matrix product per factor and generator. The rank is found: blocks of growing width are
projected, orthogonally to what was found before, until a block brings more vectors than the nullspace has room for,
that is until its singular values end in zeros.
"""

from __future__ import annotations

import numpy as np

from rppdyn.basis.certificate import ZERO, Certificate, NotCertified
from rppdyn.basis.problem import Array, Problem
from rppdyn.basis.subspace import DenseSubspace

MAX_STEPS = 5000
CONVERGED = 1e-13  # residual relative to the right-hand side
FLOOR = 1e-16  # residual below which a right-hand side (of unit-length columns) is rounding
PRESENT = 1e-5  # a projected random vector at least this long (of 1) carries something new
MAX_BYTES = 2**33
MAX_DIM = 2**23  # conjugate gradients take seconds for each vector
ABSENT = 1e-9  # one at most this long carries nothing


def solve_iterative(problem: Problem, seed: int = 0) -> tuple[DenseSubspace, Certificate]:
    """Invariants through Kronecker-structured products only.

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
        if (needed := 4 * n * (q.shape[1] + width) * q.itemsize) > MAX_BYTES:
            raise NotCertified(
                f"no certified basis of {problem.name}: its dimension {n} and a rank above {q.shape[1]} need {needed} bytes of "
                f"work space, more than {MAX_BYTES}; use a lower tensor power, or split the representation"
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
