"""The interquartile mean and its bootstrap interval, against scipy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from rppdyn.runs import bootstrap_interval, iqm


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11])
def test_iqm_is_the_mean_with_a_quarter_trimmed_from_each_end(n):
    values = np.random.default_rng(0).normal(size=(n, 3))
    assert np.allclose(iqm(values), scipy.stats.trim_mean(values, 0.25, axis=0))
    assert np.allclose(iqm(values.T, axis=1), iqm(values))


def test_iqm_ignores_outliers_but_not_nan():
    assert iqm([0.0, 1.0, 2.0, 1e9]) == 1.5
    assert np.isnan(iqm([0.0, 1.0, 2.0, np.nan]))
    with pytest.raises(ValueError, match="no values"):
        iqm([])


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation():
    values = np.random.default_rng(1).normal(size=400)
    lower, upper = bootstrap_interval(values, statistic=np.mean, resamples=5000)
    half = 1.96 * values.std() / 20
    assert lower == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert upper == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_the_interval_is_a_function_of_its_arguments():
    values = np.random.default_rng(2).normal(size=(5, 7))
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (bootstrap_interval(values, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first[0].shape == (7,)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_strata_are_resampled_apart():
    # Within each task all seeds agree, so there is nothing to resample; pooled, the tasks' difference would show.
    lower, upper = bootstrap_interval([[0.0] * 4, [10.0] * 4], statistic=np.mean)
    assert lower == upper == 5.0
    lower, upper = bootstrap_interval([0.0] * 4 + [10.0] * 4, statistic=np.mean)
    assert lower < 5.0 < upper


def test_a_curve_is_resampled_as_a_whole():
    curves = np.stack([np.full(3, float(seed)) for seed in range(6)])
    lower, upper = bootstrap_interval(curves)
    assert len(set(lower)) == len(set(upper)) == 1


@pytest.mark.parametrize(
    ("values", "kwargs", "match"),
    [
        ([1.0], {"level": 1.0}, "level"),
        ([1.0], {"resamples": 0}, "resamples"),
        ([], {}, "stratum"),
        ([[1.0], []], {}, "stratum"),
    ],
)
def test_bad_arguments(values, kwargs, match):
    with pytest.raises(ValueError, match=match):
        bootstrap_interval(values, **kwargs)
