"""The test by which a certificate compares resets with their images."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from rppdyn.envs.certification.certify import kolmogorov_smirnov


@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("digits", [None, 0])
def test_distance_and_probability_are_scipys(n, shift, digits):
    """With values that are the same, too."""
    g = np.random.RandomState(n)
    x, y = g.randn(n), g.randn(n) + shift
    if digits is not None:
        x, y = x.round(digits), y.round(digits)
    expected = ks_2samp(x, y, method="exact")
    assert kolmogorov_smirnov(x, y) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-7, abs=1e-12)


def test_equal_samples_are_no_evidence():
    assert kolmogorov_smirnov(np.arange(4.0), np.arange(4.0)) == (0.0, 1.0)
