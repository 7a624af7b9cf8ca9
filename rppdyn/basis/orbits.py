r"""Invariants of signed permutations, by orbits of the coordinates.

If every generator sends e_i to s_i e_{p(i)}, an invariant vector has v_{p(i)} = s_i v_i: it is constant up to sign on
the orbits of the coordinates. On the doubled set {+i, -i} the generators are plain permutations; an orbit that holds
both +i and -i carries no invariant, each other pair of orbits (O, -O) carries exactly one. Everything is integer
arithmetic, so the rank is exact.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from rppdyn.basis.certificate import Certificate
from rppdyn.basis.problem import Array, Problem
from rppdyn.basis.subspace import OrbitSubspace

MAX_BYTES = 2**34


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
    """Invariants by orbits, or None if the problem is not one of signed permutations.

    Raises:
        ValueError: the coordinates alone do not fit in memory.
    """
    parts = [f.permutations for f in problem.factors]
    known = [p for p in parts if p is not None]
    if problem.num_lie or len(known) < len(parts):
        return None
    if (needed := 16 * problem.dim * (problem.num_discrete + 4)) > MAX_BYTES:
        raise ValueError(
            f"the basis of {problem.name} needs about {needed} bytes to count the orbits of its {problem.dim} coordinates, "
            f"more than {MAX_BYTES}; use a lower tensor power"
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
    """Whether every generator maps every orbit to itself with the stored signs, in integers."""
    alive = labels >= 0
    for k, image in enumerate(images):
        if not np.array_equal(labels[image], labels):
            return False
        if sign is not None and signs is not None and ((sign[image] * signs[k] != sign) & alive).any():
            return False
    return True
