"""Statistics of a certificate: support, and the comparison of resets with their images."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from rppdyn.envs.certification._certify import kolmogorov_smirnov, measure_support, rank_places


def sample(n: int, seed: int) -> np.ndarray:
    """A symmetric coordinate, a knee that never straightens, one with heavy tails, and one that never varies."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=n), 0.9 + 0.2 * rng.uniform(-1, 1, n), rng.standard_cauchy(n), np.full(n, 2.0)
    return np.stack(columns, 1)


NAMES = ("body", "knee", "wild", "fixed")


@pytest.mark.parametrize(("signs", "low", "high", "worst"), [
    ((1, 1, 1, 1), 0.95, 0.95, None), ((-1, 1, -1, 1), 0.9, 0.99, None),
    ((1, -1, 1, 1), 0, 0, "knee"), ((1, 1, 1, -1), 0, 0, "fixed"),
])  # fmt: skip
def test_support_of_signs(signs, low, high, worst):
    visited, independent = sample(400, 0), sample(400, 1)
    for rounding in (1, 1 + 1e-15):
        found, near, far = measure_support(visited, visited * signs * rounding, independent, NAMES)
        assert low - 0.01 <= found.share <= high + 0.01 and near.shape == far.shape == (400,)
        assert (found.outside == 1.0 and found.worst == worst) if worst else found.outside < 0.05


def test_places_inside_and_outside():
    among = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert rank_places(np.array([[1.5]]), among)[0, 0] == 0.5
    assert rank_places(np.array([[3.0 + 2 * among.std()]]), among)[0, 0] == pytest.approx(3.0)
    assert rank_places(np.array([[-among.std()]]), among)[0, 0] == pytest.approx(-1.0)


@pytest.mark.parametrize("n", [1, 5, 300])
@pytest.mark.parametrize("shift", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("digits", [None, 0])
def test_distance_of_resets_is_by_definition_and_the_probability_counts_paths(n, shift, digits):
    """With values that are the same, too."""
    g = np.random.RandomState(n)
    x, y = g.randn(n), g.randn(n) + shift
    if digits is not None:
        x, y = x.round(digits), y.round(digits)
    distance, p = kolmogorov_smirnov(x, y)
    assert distance == pytest.approx(max(abs(np.mean(x <= v) - np.mean(y <= v)) for v in [*x, *y]), abs=1e-12)
    h = round(distance * n)
    steps = range(1, n // h + 1) if h else ()
    terms = [(-1) ** (k - 1) * Fraction(comb(2 * n, n - k * h), comb(2 * n, n)) for k in steps]
    assert p == pytest.approx(float(2 * sum(terms)) if h else 1.0, rel=1e-9)
