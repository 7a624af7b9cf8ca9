r"""Nullspace of the stacked constraints by singular value decomposition, for small blocks of any group."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from rppdyn.basis.certificate import ZERO, Certificate
from rppdyn.basis.problem import Problem
from rppdyn.basis.subspace import DenseSubspace


def solve_dense(problem: Problem) -> tuple[DenseSubspace, Certificate]:
    """Invariants of a block of a few hundred dimensions, singular values and all.

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
