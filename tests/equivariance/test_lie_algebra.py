"""What matrices generate and what commutes with them; the symmetries of a linear regression."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.equivariance import _lie as algebra
from rppdyn.groups import SO, Sp


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("matrices", "dimension"),
    [(SO(2).lie_algebra, 2), (SO(3).lie_algebra, 1), (torch.eye(4).double()[None], 16), (randn(1, 5, 5), 5)],
    ids=["so2", "so3", "identity", "one matrix"],
)
def test_the_centraliser_commutes_and_has_the_dimension_that_it_should_have(matrices, dimension):
    found = algebra.centraliser(matrices)
    assert len(found) == dimension
    brackets = found[:, None] @ matrices - matrices @ found[:, None]
    assert brackets.abs().max() < 1e-7
    with pytest.raises(ValueError, match="at most 40 rows"):
        algebra.centraliser(torch.zeros(1, 41, 41).double())


@pytest.mark.parametrize("group", [SO(3), Sp(1)], ids=str)
def test_structure_constants_of_algebras(group):
    A = group.lie_algebra.double()
    f, left = algebra.structure_constants(A)
    torch.testing.assert_close(torch.einsum("ijk,kmn->ijmn", f, A), algebra.commutators(A))
    assert left < 1e-20


def test_penalties_are_zero_of_an_orthogonal_basis_and_of_nothing_else():
    A = SO(3).lie_algebra.double()
    closed, orthogonal = algebra.algebra_penalties(A)
    assert closed < 1e-20 and orthogonal < 1e-20
    mixed = torch.einsum("ij,jmn->imn", torch.tensor([[1.0, 0, 0], [0.9, 1, 0], [0, 0, 1]]).double(), A)
    closed, orthogonal = algebra.algebra_penalties(mixed)
    assert closed < 1e-20 and orthogonal > 0.1
    closed, _ = algebra.algebra_penalties(randn(3, 6, 6))
    assert 0.5 < closed <= 1
    free = randn(3, 3, 3, seed=4).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=0.02)
    first = float(algebra.algebra_penalties(free.detach())[0])
    for _ in range(100):
        optimiser.zero_grad()
        sum(algebra.algebra_penalties(free)).backward()
        optimiser.step()
    assert algebra.algebra_penalties(free.detach())[0] < 0.1 * first


def test_dependent_generators_are_refused_in_a_line():
    A = SO(3).lie_algebra.double()
    with pytest.raises(ValueError, match=r"^4 generators of rank 3 are dependent: leave out 1 of them$"):
        algebra.check_independent(torch.cat([A, A[:1] + 2 * A[1:2]]))


def test_symmetries_of_a_linear_regression():
    x = randn(60, 4) @ randn(4, 4, seed=1)
    H = x.mT @ x / len(x)
    L = algebra.regression_symmetries(x)
    assert L.shape == (6, 4, 4)
    assert (L @ H + H @ L.mT).abs().max() < 1e-10
    assert algebra.algebra_penalties(L)[0] < 1e-20  # they are an algebra
    u = torch.linalg.matrix_exp(0.7 * L[2])
    torch.testing.assert_close(u @ H @ u.mT, H)
    plain = SO(4).lie_algebra.double()  # what keeps lengths does not keep H
    assert (plain @ H + H @ plain.mT).norm(dim=(1, 2)).min() > 0.01 * H.norm()
    with pytest.raises(ValueError, match="second moments of 3 inputs of 4 numbers are singular"):
        algebra.regression_symmetries(x[:3])


def test_symmetries_with_targets_leave_the_regression_equivariant():
    """One target of four inputs: so(3), which fixes it. Two: so(2) of the rest and a turn of the two together."""
    x = randn(60, 4) @ randn(4, 4, seed=1)
    for count, dimension in ((1, 3), (2, 2)):
        y = x @ randn(4, count, seed=2) + randn(60, count, seed=3)
        L, L_c = algebra.regression_symmetries(x, y)
        assert len(L) == dimension == len(L_c)
        A = y.mT @ x @ torch.linalg.inv(x.mT @ x)
        assert (L_c @ A - A @ L).abs().max() < 1e-9
        assert L.norm(dim=(1, 2)).min() > 1e-3
