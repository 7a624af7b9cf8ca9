"""The interquartile mean, paired ratios and their bootstrap intervals, against scipy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from rppdyn.runs import bootstrap_interval, iqm, paired_ratio


@pytest.mark.parametrize("n", [1, 3, 4, 11])
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


def test_strata_are_resampled_apart():
    # Within each task all seeds agree, so there is nothing to resample; pooled, the tasks' difference would show.
    lower, upper = bootstrap_interval([[0.0] * 4, [10.0] * 4], statistic=np.mean)
    assert lower == upper == 5.0
    lower, upper = bootstrap_interval([0.0] * 4 + [10.0] * 4, statistic=np.mean)
    assert lower < 5.0 < upper


def test_a_curve_is_resampled_as_a_whole_and_draws_are_of_the_seed():
    curves = np.stack([np.full(3, float(seed)) for seed in range(6)])
    lower, upper = bootstrap_interval(curves)
    assert len(set(lower)) == len(set(upper)) == 1
    values = np.random.default_rng(2).normal(size=(5, 7))
    first, again, other = (bootstrap_interval(values, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other) and first[0].shape == (7,)


@pytest.mark.parametrize(
    ("values", "kwargs", "match"),
    [
        ([1.0], {"level": 1.0}, "level"),
        ([1.0], {"resamples": 0}, "resamples"),
        ([], {}, "stratum"),
    ],
)
def test_bad_arguments(values, kwargs, match):
    with pytest.raises(ValueError, match=match):
        bootstrap_interval(values, **kwargs)


def test_a_paired_ratio_leaves_out_what_a_pair_shares():
    generator = np.random.default_rng(3)
    difficulty = np.exp(generator.normal(size=12))  # a factor of e between seeds
    noise = np.exp(0.1 * generator.normal(size=12))
    centre, (low, high) = paired_ratio(1.5 * difficulty * noise, difficulty)
    logs = np.sort(np.log(1.5 * noise))
    assert centre == pytest.approx(np.exp(logs[3:9].mean()), rel=1e-12)
    assert low < 1.5 < high
    assert high / low < 1.2
    _, (low, high) = paired_ratio(1.5 * difficulty * noise, np.roll(difficulty, 1))  # the wrong pairs
    assert high / low > 2


def test_a_paired_ratio_turns_over_and_its_interval_covers():
    generator = np.random.default_rng(4)
    a, b = np.exp(generator.normal(size=(2, 10)))
    (there, (low, high)), (back, (low_back, high_back)) = paired_ratio(a, b), paired_ratio(b, a)
    assert there * back == pytest.approx(1)
    assert (low * high_back, high * low_back) == pytest.approx((1, 1), rel=0.02)
    draws = np.exp(np.log(2) + 0.3 * generator.normal(size=(200, 10)))
    covered = [low < 2 < high for _, (low, high) in (paired_ratio(draw, np.ones(10), resamples=300) for draw in draws)]
    assert 0.8 < np.mean(covered) < 0.99  # a percentile interval of ten values covers a little less than it says
    centre, interval = paired_ratio([3.0], [2.0])
    assert (centre, *interval) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        ([1.0, 2.0], [1.0], "shapes"),
        ([], [], "shapes"),
        ([[1.0]], [[1.0]], "shapes"),
        ([1.0, 0.0], [1.0, 1.0], "the value 0"),
        ([1.0, 1.0], [1.0, np.nan], "the value nan"),
        ([1.0, -1.0], [1.0, 1.0], "the value -1"),
    ],
)
def test_a_paired_ratio_of_what_are_no_pairs(a, b, match):
    with pytest.raises(ValueError, match=match):
        paired_ratio(a, b)
