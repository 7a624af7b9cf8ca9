"""Support: images of visited states among visited states, and far from them."""

from __future__ import annotations

import numpy as np
import pytest

from rppdyn.envs.certification._certify import measure_support, rank_places


def sample(n: int, seed: int) -> np.ndarray:
    """A symmetric coordinate, a knee that never straightens, one with heavy tails, and one that never varies."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=n), 0.9 + 0.2 * rng.uniform(-1, 1, n), rng.standard_cauchy(n), np.full(n, 2.0)
    return np.stack(columns, 1)


NAMES = ("body", "knee", "wild", "fixed")


@pytest.mark.parametrize(
    ("signs", "low", "high", "worst"),
    [
        ((1, 1, 1, 1), 0.95, 0.95, None),
        ((-1, 1, -1, 1), 0.9, 0.99, None),
        ((1, -1, 1, 1), 0, 0, "knee"),
        ((1, 1, 1, -1), 0, 0, "fixed"),
    ],
)
def test_signs(signs, low, high, worst):
    visited, independent = sample(400, 0), sample(400, 1)
    found, near, far = measure_support(visited, visited * signs, independent, NAMES)
    assert low <= found.share <= high and near.shape == far.shape == (400,)
    assert (found.outside == 1.0 and found.worst == worst) if worst else found.outside < 0.05


def test_rounding_is_no_departure():
    visited, independent = sample(400, 0), sample(400, 1)
    found, _, _ = measure_support(visited, visited * (1 + 1e-15), independent, NAMES)
    assert found.share == pytest.approx(0.95, abs=0.01)


def test_places_inside_and_outside():
    among = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert rank_places(np.array([[1.5]]), among)[0, 0] == 0.5
    assert rank_places(np.array([[3.0 + 2 * among.std()]]), among)[0, 0] == pytest.approx(3.0)
    assert rank_places(np.array([[-among.std()]]), among)[0, 0] == pytest.approx(-1.0)
