"""Factors of curvature: matrices, or roots of them where data are fewer than coefficients."""

from __future__ import annotations

import pytest
import torch
from factors import matrix, whole
from registry import generator

from rppdyn.images import FullyConnected
from rppdyn.nn._pathways import Kronecker, Root, gram, linear_curvature
from rppdyn.priors._laplace import KroneckerEvidence, PathwayEvidence


def rows(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("blocks", [(), (3,)])
@pytest.mark.parametrize("counts", [(2, 3), (2, 9), (9, 2), (9, 9), (4, 4)])
def test_sums_and_multiples_are_those_of_matrices(blocks, counts):
    first, second = (rows(*blocks, k, 10, seed=k + i) for i, k in enumerate(counts))
    found = (gram(first) / 3 + gram(second) * 2.0) / 5.0
    expected = (first.mT @ first / 3 + 2 * second.mT @ second) / 5
    torch.testing.assert_close(matrix(found), expected, rtol=1e-12, atol=1e-14)
    assert isinstance(found, Root) == (sum(counts) <= 5)


@pytest.mark.parametrize("blocks", [(), (3,)])
def test_eigenvalues_of_a_root_are_those_of_its_matrix_that_are_not_zero(blocks):
    A, G = gram(rows(*blocks, 3, 10)), gram(rows(*blocks, 2, 7, seed=1))
    assert isinstance(A, Root) and isinstance(G, Root)
    (found, size), (all_of_them, whole_size) = (
        block.eigenvalues() for block in (Kronecker(A, G), whole(Kronecker(A, G)))
    )
    assert size == whole_size == len(all_of_them) == 70 * (blocks or (1,))[0]
    assert len(found) == 6 * (blocks or (1,))[0]
    largest = all_of_them.sort(descending=True).values
    torch.testing.assert_close(found.sort(descending=True).values, largest[: len(found)], rtol=1e-10, atol=1e-12)
    assert largest[len(found) :].max() < 1e-12 * largest[0]


def test_the_evidence_does_not_depend_on_how_factors_are_kept():
    x, g = rows(6, 40), rows(1, 6, 30, seed=1)
    kept = linear_curvature(x, g)
    assert isinstance(kept.A, Root) and isinstance(kept.G, Root)
    found = []
    for block in (kept, whole(kept)):
        eigenvalues, size = block.eigenvalues()
        prior = torch.tensor(-1.0, dtype=torch.float64)
        own = KroneckerEvidence([PathwayEvidence("layer", "fc", 2.0, prior, size)], [eigenvalues])
        s = torch.tensor([-0.7], dtype=torch.float64, requires_grad=True)
        value = own.negative_log(3.0, s, 1.3)
        (slope,) = torch.autograd.grad(value, s)
        found.append(torch.stack([value.detach(), slope[0], own.effective()[0], own.shares()["normalised"][0]]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_a_wide_layer_of_few_images_is_never_a_matrix():
    f = FullyConnected(8, 8, (8, 8), generator=generator())
    x, g = torch.randn(20, 8, 8, 8), torch.randn(1, 20, 8, 8, 8)
    (block,) = f.curvature(x, g)
    assert block.A.rows.shape == block.G.rows.shape == (20, 512)
    assert block.eigenvalues()[1] == f.num_coefficients
