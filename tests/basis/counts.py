r"""How many invariants there are, counted without the solver.

Finite groups: the average of a character over enumerated elements, or orbits by union-find. Compact groups, and groups with
the same complexification: Weyl's integral over the maximal torus, exact on a grid because the integrand is a trigonometric
polynomial.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def finite(generators: np.ndarray, p: int, q: int = 0) -> int:
    """Invariants of V^p (x) V*^q of a finite matrix group, by enumerating it."""
    eye = np.eye(generators.shape[-1])
    known = {_rounded(eye): eye}
    frontier = [eye]
    while frontier:
        products = [h @ g for g in frontier for h in generators]
        frontier = []
        for g in products:
            if (key := _rounded(g)) not in known:
                known[key] = g
                frontier.append(g)
        assert len(known) <= 1000
    characters = np.array([np.trace(g) for g in known.values()])
    return _integer(np.mean(characters**p * characters.conj() ** q))


def _rounded(g: np.ndarray) -> tuple:
    return tuple((np.round(g, 6) + 0.0).ravel().tolist())


def _integer(x: complex) -> int:
    assert abs(x - round(x.real)) < 1e-6
    return round(x.real)


def _torus(rank: int, points: int) -> list[np.ndarray]:
    angles = 2 * np.pi * np.arange(points) / points
    return [np.exp(1j * t) for t in np.meshgrid(*[angles] * rank, indexing="ij")]


def _weyl(weights, roots, order: int, rank: int, p: int, q: int) -> complex:
    """(1/|W|) times the mean over the torus of prod (1 - e^alpha) chi^p conj(chi)^q."""
    z = _torus(rank, 2 * (p + q) + 8 * rank + 3)

    def character(w):
        return math.prod((z[i] ** n for i, n in enumerate(w)), start=np.ones_like(z[0]) if z else np.ones(()))

    chi = sum(character(w) for w in weights)
    density = math.prod((1 - character(a) for a in roots), start=1.0)
    return np.mean(density * chi**p * np.conj(chi) ** q) / order


def _unit_vectors(m: int) -> list[np.ndarray]:
    return list(np.eye(m, dtype=int))


def _plus_minus_pairs(e: list[np.ndarray]) -> list[np.ndarray]:
    return [s * a + t * b for a, b in itertools.combinations(e, 2) for s in (1, -1) for t in (1, -1)]


def special_orthogonal(n: int, p: int) -> int:
    """SO(n); also the Lorentz group SO(1, n-1), whose complexification is the same."""
    if n == 1:
        return 1
    m = n // 2
    e = _unit_vectors(m)
    weights = [s * a for a in e for s in (1, -1)] + [np.zeros(m, int)] * (n % 2)
    roots = _plus_minus_pairs(e) + ([s * a for a in e for s in (1, -1)] if n % 2 else [])
    order = math.factorial(m) * (2**m if n % 2 else 2 ** (m - 1))
    return _integer(_weyl(weights, roots, order, m, p, 0))


def orthogonal(n: int, p: int) -> int:
    """O(n): half the average over SO(n), half over the component of determinant -1."""
    if n % 2:
        return special_orthogonal(n, p) if p % 2 == 0 else 0
    m = n // 2 - 1  # eigenvalues 1, -1 and e^(+-i t_j), distributed as on the symplectic group of rank m
    e = _unit_vectors(m)
    weights = [s * a for a in e for s in (1, -1)]
    roots = _plus_minus_pairs(e) + [2 * s * a for a in e for s in (1, -1)]
    other = _weyl(weights, roots, math.factorial(m) * 2**m, m, p, 0) if m else float(p == 0)
    return _integer((special_orthogonal(n, p) + other) / 2)


def symplectic(n: int, p: int, q: int = 0) -> int:
    """Sp(n), 2n by 2n."""
    e = _unit_vectors(n)
    roots = _plus_minus_pairs(e) + [2 * s * a for a in e for s in (1, -1)]
    return _integer(_weyl([s * a for a in e for s in (1, -1)], roots, math.factorial(n) * 2**n, n, p, q))


def unitary(n: int, p: int, q: int = 0) -> int:
    """U(n)."""
    e = _unit_vectors(n)
    return _integer(_weyl(e, [a - b for a, b in itertools.permutations(e, 2)], math.factorial(n), n, p, q))


def special_unitary(n: int, p: int, q: int = 0) -> int:
    """SU(n) and SL(n): the torus of U(n) with the last angle minus the sum of the others."""
    e = [*_unit_vectors(n - 1), -np.ones(n - 1, int)]
    return _integer(_weyl(e, [a - b for a, b in itertools.permutations(e, 2)], math.factorial(n), n - 1, p, q))


def set_partitions(n: int, k: int) -> int:
    """Partitions of k things into at most n parts: the invariants of S_n on T(k)."""
    row = [1]
    for _ in range(k):
        row = [0] + [row[j - 1] + (j * row[j] if j < len(row) else 0) for j in range(1, len(row) + 1)]
    return sum(row[: n + 1])


def orbits(permutations: np.ndarray, k: int) -> int:
    """Orbits of permutations (M, n) on k-tuples, by union-find."""
    n = permutations.shape[1]
    parent = list(range(n**k))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    count = n**k
    for p in permutations:
        image = np.zeros(1, int)
        for _ in range(k):
            image = (image[:, None] * n + p[None, :]).ravel()
        for i, j in enumerate(image.tolist()):
            a, b = find(i), find(j)
            if a != b:
                parent[a] = b
                count -= 1
    return count
