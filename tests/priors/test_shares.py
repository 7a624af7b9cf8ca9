"""Shares of the prior, and the variances that say so."""

from __future__ import annotations

import math

import pytest
import torch

from rppdyn.groups import Z
from rppdyn.priors import free_share, free_variance, share_of_defect
from rppdyn.reps import V


@pytest.mark.parametrize("wide", [1e5, 1e-3], ids=["wide", "narrow"])
@pytest.mark.parametrize("share", [1e-12, 0.01, 0.5, 0.98])
def test_share_and_variance_are_inverse(wide, share):
    variance = free_variance(share, wide, 64)
    assert variance / (min(wide, 1 / 64) + variance) == pytest.approx(share, rel=1e-9)
    assert free_share(variance, wide, 64) == pytest.approx(share, rel=1e-9)
    assert free_variance(0.0, wide, 64) == 0 == free_share(0.0, wide, 64)
    assert free_share(variance, 0.0, 64) == 1


def test_a_defect_is_a_share_within_bounds():
    assert share_of_defect(0.0) == 0
    assert share_of_defect(0.3) == pytest.approx(0.09)
    assert share_of_defect(1e-9) == pytest.approx(1e-12) and share_of_defect(7.0) == pytest.approx(0.99**2)
    assert share_of_defect(math.inf) == share_of_defect(7.0)


def test_weights_drawn_from_such_a_prior_have_the_share():
    """A linear layer whose weights are drawn from both priors is asymmetric by the defect that the variance was made of."""
    n, d = 512, 0.3
    basis = (V(Z(n)) >> V(Z(n))).equivariant_basis().float()  # of circulant matrices: n of them
    generator = torch.Generator().manual_seed(0)
    free = free_variance(share_of_defect(d), 1e5, n) ** 0.5 * torch.randn(n, n, generator=generator)
    tied = basis @ torch.randn(n, generator=generator)  # entries of variance 1 / n
    squares = float(free.square().sum()), float(tied.square().sum())
    assert squares[0] / sum(squares) == pytest.approx(d**2, rel=0.15)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: share_of_defect(-0.1), "defect=-0.1"),
        (lambda: share_of_defect(math.nan), "defect=nan"),
        (lambda: free_variance(1.0, 1e5, 64), "share=1.0"),
        (lambda: free_variance(-0.1, 1e5, 64), "share=-0.1"),
        (lambda: free_variance(0.5, 0.0, 64), "equivariant_variance=0.0"),
        (lambda: free_variance(0.5, 1.0, 0), "inputs=0"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(ValueError, match=said) as error:
        call()
    assert "\n" not in str(error.value)
