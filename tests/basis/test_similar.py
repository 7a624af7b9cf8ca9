"""Groups in coordinates in which they are not self-adjoint: the same ranks, and the same invariants carried along."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from registry import GALILEI, SHEAR, generator

from rppdyn.basis import NotCertified, solve
from rppdyn.basis import _similar as similar
from rppdyn.basis._problem import Problem
from rppdyn.basis._similar import self_adjoint_coordinates
from rppdyn.basis._solver import solve_problem
from rppdyn.groups import O13, SO, SU, D, DkeR3, Group, O, S, SO13p, Sp, Z
from rppdyn.reps import Scalar, T, V

GROUPS = [SO(3), O(3), S(4), D(6), SO13p(), Sp(2)]


def skew(G: Group, seed: int) -> tuple[torch.Tensor, Group]:
    """Random coordinates, of a condition between 2 and 30, and the group in them."""
    P = torch.randn(G.d, G.d, dtype=torch.float64, generator=generator(seed))
    return P, moved(G, P)


def moved(G: Group, P: torch.Tensor) -> Group:
    inverse = torch.linalg.inv(P)
    return Group(
        f"skewed {G}", lie_algebra=P @ G.lie_algebra @ inverse, discrete_generators=P @ G.discrete_generators @ inverse
    )


def power(P: torch.Tensor, k: int) -> torch.Tensor:
    product = torch.ones(1, 1, dtype=P.dtype)
    for _ in range(k):
        product = torch.kron(product, P)
    return product


@pytest.mark.parametrize("G", GROUPS, ids=str)
def test_invariants_are_those_of_the_group_carried_along(G):
    P, H = skew(G, 0)
    for k in (2, 3, 4):
        found, known = solve(T(k)(H), cache=False), solve(T(k)(G), cache=False)
        assert found.rank == known.rank
        carried = torch.linalg.qr(power(P, k) @ known.dense())[0]
        assert (found.project(carried) - carried).norm() < 1e-9
        assert found.certificate.residual <= 1e-10 and found.certificate.orthonormality <= 1e-12
    (factor,) = Problem.from_rep(V(H)).factors
    p = self_adjoint_coordinates((factor,))[factor]
    if G.is_orthogonal:  # in these coordinates, too
        inverse = np.linalg.inv(p)
        a, h = inverse @ factor.lie @ p, inverse @ factor.discrete @ p
        assert np.abs(a + a.transpose(0, 2, 1)).max(initial=0) < 1e-12
        assert np.abs(h @ h.transpose(0, 2, 1) - np.eye(G.d)).max(initial=0) < 1e-12


@pytest.mark.parametrize(
    ("G", "k", "rank"), [(SO(3), 7, 36), (SO13p(), 6, 25), (S(4), 6, 187), (D(6), 10, 171)], ids=str
)
def test_large_powers(G, k, rank):
    _, H = skew(G, 0)
    basis = solve(T(k)(H), cache=False)
    assert basis.rank == rank and basis.certificate.strategy == "isotypic+similar"


def test_a_basis_that_would_not_fit_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(similar, "MAX_ITERATIVE_BYTES", 10_000)
    with pytest.raises(NotCertified, match=r"T6: its dimension 729 and its rank 15 need 349920 bytes"):
        similar.solve_similar(Problem.from_rep(T(6)(skew(SO(3), 0)[1])), solve_problem)


def test_small_blocks_that_singular_values_leave_undecided():
    P = torch.tensor([[1.0, 0.97], [0.97, 1.0]], dtype=torch.float64)
    for k, rank in ((2, 1), (3, 0), (4, 4), (5, 0)):
        basis = solve(T(k)(moved(D(4), P)), cache=False)
        assert basis.rank == rank
    assert basis.certificate.strategy == "dense+similar"


def test_maps_between_sums_duals_and_products_of_groups():
    for G, reps in ((O13(), (T(2, 2), T(1, 3), (V + V**2) >> (V**2 + Scalar))), (SO(3) * Z(4), (V * V, V**3, V >> V))):
        for rep in reps:
            assert solve(rep(skew(G, 0)[1]), cache=False).rank == solve(rep(G), cache=False).rank


def test_unitary_groups_in_complex_coordinates():
    G = DkeR3(3)
    P = torch.complex(*torch.randn(2, 3, 3, dtype=torch.float64, generator=generator(0)))
    H = moved(Group("complex", discrete_generators=G.discrete_generators.to(P)), P)
    basis = solve(T(4)(H), cache=False)
    assert basis.rank == solve(T(4)(G), cache=False).rank and basis.certificate.strategy == "isotypic+similar"


@pytest.mark.parametrize("n", [4, 9, 12])
@pytest.mark.parametrize("kind", [SO, S])
def test_few_steps_lead_there(kind, n, monkeypatch):
    """Newton's, ten or so, each with a value before and one after; rounding grows with n, and must not be followed."""
    counted = Counter()
    for name in ("_improve", "_value"):
        function = getattr(similar, name)
        counting = lambda *args, name=name, function=function: counted.update([name]) or function(*args)  # noqa: E731
        monkeypatch.setattr(similar, name, counting)
    for seed in range(2):
        P, H = skew(kind(n), seed)
        if torch.linalg.cond(P) < 100:
            counted.clear()
            assert self_adjoint_coordinates(Problem.from_rep(V(H)).factors) is not None
            assert counted["_improve"] <= 16 and counted["_value"] <= 3 * counted["_improve"]


def test_units_as_far_apart_as_metres_and_millimetres():
    H = moved(SO(3), torch.diag(torch.tensor([1.0, 30.0, 1000.0], dtype=torch.float64)))
    assert [solve(T(k)(H), cache=False).rank for k in (2, 3, 4, 5)] == [1, 1, 3, 6]


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e7])
def test_further_away_the_answer_is_right_or_refused(condition):
    left, right = (torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator(k)))[0] for k in (0, 1))
    P = left @ torch.diag(torch.tensor([1.0, condition**0.5, condition], dtype=torch.float64)) @ right
    for G, k, rank in ((SO(3), 2, 1), (SO(3), 3, 1), (SO(3), 5, 6), (O(3), 4, 3), (O(3), 5, 0)):
        try:
            assert solve(T(k)(moved(G, P)), cache=False).rank == rank
        except ValueError:  # NotCertified, or a generator that is singular to rounding
            assert condition > 1e2


def test_where_there_are_none_and_where_none_are_needed():
    for G in (SO(3), O13(), SU(2)):
        assert self_adjoint_coordinates(Problem.from_rep(T(1, 1)(G)).factors) is None
    for G in (SHEAR, GALILEI):
        assert self_adjoint_coordinates(Problem.from_rep(V(G)).factors) is None
