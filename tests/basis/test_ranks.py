"""Ranks: the published tables, and every catalogue group against a count that shares no code with the solver."""

from __future__ import annotations

import math

import pytest
import torch
from basis import counts
from registry import SHEAR

import rppdyn.groups
from rppdyn.basis import solve
from rppdyn.groups import GL, O13, SL, SO, SO13, SU, D, DkeR3, Group, O, RubiksCube, S, SO13p, Sp, Trivial, U, Z
from rppdyn.reps import Pseudoscalar, Scalar, T, V

TABLE = {
    "Z_4": (Z(4), [1, 4, 16, 64, 256, 1024, 4096]),
    "S_4": (S(4), [1, 2, 5, 15, 51, 187, 715]),
    "S_5": (S(5), [1, 2, 5, 15, 52, 202, 855]),
    "SO(3)": (SO(3), [0, 1, 1, 3, 6, 15, 36]),
    "O(3)": (O(3), [0, 1, 0, 3, 0, 15, 0]),
    "SO(5)": (SO(5), [0, 1, 0, 3, 1, 15, 15]),
    "Rubik's cube": (RubiksCube(), [2, 6, 22]),
}


@pytest.mark.parametrize("name", TABLE)
def test_published_table(name):
    G, ranks = TABLE[name]
    assert [solve(T(k)(G), cache=False).rank for k in range(1, len(ranks) + 1)] == ranks


def test_cube_of_the_puzzle():
    """The puzzle's group keeps the facets of a cubie together, so it has more invariants than the published one.

    Pairs: (facet itself, next, previous on the corner, another corner), (itself, its edge's other facet, another
    edge), and corner-edge both ways: 4 + 3 + 2.
    """
    G = RubiksCube("puzzle")
    permutations = G.discrete_generators.argmax(dim=1).numpy()
    ranks = [solve(T(k)(G), cache=False).rank for k in (1, 2, 3)]
    assert ranks == [2, 9, 51] == [counts.orbits(permutations, k) for k in (1, 2, 3)]


def finite(G: Group):
    return G, lambda p, q: counts.finite(G.discrete_generators.numpy(), p, q)


CASES = {
    "Z": [finite(Z(2)), (Z(4), lambda p, q: 4 ** (p + q - 1)), finite(Z(5))],
    "S": [(S(3), lambda p, q: counts.set_partitions(3, p + q)), finite(S(4))],
    "D": [finite(D(1)), finite(D(4)), finite(D(5))],
    "SO": [(SO(n), lambda p, q, n=n: counts.special_orthogonal(n, p + q)) for n in (1, 2, 3, 5)],
    "O": [(O(n), lambda p, q, n=n: counts.orthogonal(n, p + q)) for n in (1, 2, 3, 5)],
    "GL": [(GL(n), lambda p, q, n=n: counts.unitary(n, p, q)) for n in (1, 2, 3)],
    "SL": [(SL(n), lambda p, q, n=n: counts.special_unitary(n, p, q)) for n in (2, 3, 4)],
    "Sp": [(Sp(n), lambda p, q, n=n: counts.symplectic(n, p, q)) for n in (1, 2)],
    "U": [(U(n), lambda p, q, n=n: counts.unitary(n, p, q)) for n in (1, 2, 3)],
    "SU": [(SU(n), lambda p, q, n=n: counts.special_unitary(n, p, q)) for n in (2, 3, 4)],
    "SO13p": [(SO13p(), lambda p, q: counts.special_orthogonal(4, p + q))],
    "SO13": [(SO13(), lambda p, q: counts.special_orthogonal(4, p + q) if (p + q) % 2 == 0 else 0)],
    "O13": [(O13(), lambda p, q: counts.orthogonal(4, p + q))],
    "DkeR3": [finite(DkeR3(3)), finite(DkeR3(4))],
    "RubiksCube": [
        (RubiksCube(), lambda p, q: counts.orbits(RubiksCube().discrete_generators.argmax(dim=1).numpy(), p + q))
    ],
    "Trivial": [(Trivial(3), lambda p, q: 3 ** (p + q))],
}
POWERS = [(1, 0), (0, 1), (2, 0), (1, 1), (3, 0), (2, 1), (2, 2), (4, 0)]


def test_every_catalogue_group_is_counted():
    groups = {n for n in rppdyn.groups.__all__ if n not in ("Group", "MAX_ORDER", "is_signed_permutation")}
    assert groups - {"SO2eR3", "O2eR3"} <= set(
        CASES
    )  # of these the rank is that of the dense constraints, in test_basis


@pytest.mark.parametrize(
    "G, count", [c for cases in CASES.values() for c in cases], ids=lambda c: getattr(c, "name", "")
)
def test_rank_agrees_with_an_independent_count(G, count):
    for p, q in POWERS:
        if G.d ** (p + q) <= 3000:
            assert solve(T(p, q)(G), cache=False).rank == count(p, q), (p, q)


@pytest.mark.parametrize("k", range(1, 9))
def test_shear_has_as_many_invariants_as_sl2_has_irreducible_parts(k):
    assert solve(T(k)(SHEAR), cache=False).rank == math.comb(k, k // 2)


@pytest.mark.parametrize(
    "G, count",
    [
        (Sp(2), lambda k: counts.symplectic(2, k)),
        (SO(4), lambda k: counts.special_orthogonal(4, k)),
        (O13(), lambda k: counts.orthogonal(4, k)),
    ],
    ids=["Sp(2)", "SO(4)", "O13"],
)
def test_large_cases(G, count):
    for k in (6, 8):
        basis = solve(T(k)(G), cache=False)
        assert basis.rank == count(k)
        basis.certificate.check("it")


def test_pseudoscalars_and_sums():
    # O(3): pseudoscalars pair with the volume form, scalars with the metric
    G = O(3)
    assert solve((Pseudoscalar * V**3)(G)).rank == 1
    assert solve((Pseudoscalar * V**2)(G)).rank == 0
    x = (2 * Scalar + 3 * V)(G)
    assert solve(x >> x).rank == 2 * 2 + 3 * 3
    assert solve(x >> (Pseudoscalar + V * V)(G)).rank == 2 * 1


def test_product_group():
    G = SO(3) * Z(4)
    x = V(SO(3)).lift(G) + V(Z(4)).lift(G)
    assert solve(x >> x).rank == 1 + 4
    y = V(SO(3)).lift(G) * V(Z(4)).lift(G)
    assert solve(y >> y).rank == 1 * 4


def test_representation_given_by_generators():
    from rppdyn.reps import Rep

    G = SO(3)
    spin2 = Rep.from_generators(G, lie_algebra=_traceless_symmetric(G))
    assert [solve(spin2**k).rank for k in (1, 2, 3)] == [0, 1, 1]


def _traceless_symmetric(G: Group) -> torch.Tensor:
    """The 5-dimensional representation, as V (x) V restricted to its symmetric traceless part."""
    q = torch.zeros(9, 5, dtype=torch.float64)
    for column, (i, j) in enumerate([(0, 1), (0, 2), (1, 2)]):
        q[3 * i + j, column] = q[3 * j + i, column] = 0.5**0.5
    q[0, 3], q[4, 3] = 0.5**0.5, -(0.5**0.5)
    q[0, 4], q[4, 4], q[8, 4] = 6**-0.5, 6**-0.5, -2 * 6**-0.5
    return q.T @ T(2)(G).lie_generators @ q
