"""The test by which a certificate compares resets with their images."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from rppdyn.envs.certification._certify import kolmogorov_smirnov


def largest(x: np.ndarray, y: np.ndarray) -> float:
    """Largest difference of the shares of both samples up to a value."""
    return max(abs(float(np.mean(x <= v) - np.mean(y <= v))) for v in [*x, *y])


@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("digits", [None, 0])
def test_the_distance_is_by_definition_and_the_probability_counts_paths(n, shift, digits):
    """With values that are the same, too."""
    g = np.random.RandomState(n)
    x, y = g.randn(n), g.randn(n) + shift
    if digits is not None:
        x, y = x.round(digits), y.round(digits)
    distance, p = kolmogorov_smirnov(x, y)
    assert distance == pytest.approx(largest(x, y), abs=1e-12)
    h = round(distance * n)
    terms = (
        [(-1) ** (k - 1) * Fraction(comb(2 * n, n - k * h), comb(2 * n, n)) for k in range(1, n // h + 1)] if h else []
    )
    assert p == pytest.approx(float(2 * sum(terms)) if h else 1.0, rel=1e-9)


def test_equal_samples_are_no_evidence():
    assert kolmogorov_smirnov(np.arange(4.0), np.arange(4.0)) == (0.0, 1.0)
