"""Statistics over seeds: the interquartile mean, ratios of pairs, and their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_RESAMPLED_VALUES = 2**24  # values held at once while resampling
FEW_SEEDS = 3
"""Up to so many seeds, pictures and tables show each one and no interval: resamples of so few say nothing of others."""


def evenly(total: int, count: int) -> NDArray[np.int64]:
    """Numbers of `count` rows (or all, if there are fewer), evenly spaced among `total`."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def iqm(values: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """Interquartile mean: the mean of the middle half, floor(n / 4) values cut from either end.

    Below four values nothing is cut and it is the plain mean. Values that are nan make the result nan.

    >>> float(iqm([0.0, 1.0, 2.0, 100.0]))
    1.5

    Args:
        values: (..., n, ...), n >= 1 along `axis`.
    Returns:
        the shape of `values` without `axis`.
    Source: Agarwal et al. 2021, section 4.3 (the trimmed mean of their library).
    """
    array = np.moveaxis(np.asarray(values, dtype=np.float64), axis, 0)
    if array.shape[0] == 0:
        raise ValueError("the interquartile mean of no values: give at least one run")
    cut = array.shape[0] // 4
    ordered = np.sort(array, axis=0)  # nan sorts last, where the cut would hide it
    mean = ordered[cut : array.shape[0] - cut].mean(axis=0)
    return np.where(np.isnan(array).any(axis=0), np.nan, mean)


def bootstrap_interval(
    strata: ArrayLike | Sequence[ArrayLike],
    *,
    statistic: Callable[..., NDArray] = iqm,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Stratified percentile bootstrap over seeds.

    Seeds are drawn with replacement inside each stratum (a task), the strata are joined, and the statistic is taken
    along the seeds. Trailing axes (points of a learning curve) share one draw, as a seed's curve is one sample.

    Args:
        strata: one array (seeds, ...), or a list of such arrays, one per task, with equal trailing shapes.
        statistic: called with an array (resamples, seeds, ...) and axis=1.
        level: coverage, between 0 and 1.
        seed: seed of the generator that draws; the interval is a function of its arguments.
    Returns:
        lower and upper ends, each of the trailing shape.
    Raises:
        ValueError: an empty stratum, or a level or number of resamples out of range.
    Source: Agarwal et al. 2021, section 4.1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: must lie between 0 and 1, for example 0.95")
    if resamples < 1:
        raise ValueError(f"resamples = {resamples}: must be at least 1")
    arrays = [np.asarray(s, dtype=np.float64) for s in (strata if isinstance(strata, list | tuple) else [strata])]
    if arrays and arrays[0].ndim == 0:  # a plain list of numbers is one stratum
        arrays = [np.asarray(strata, dtype=np.float64)]
    if not arrays or any(len(array) == 0 for array in arrays):
        raise ValueError("a stratum without values: give at least one run per task")
    generator = np.random.default_rng(seed)
    size = max(1, sum(array.size for array in arrays))
    chunk = max(1, MAX_RESAMPLED_VALUES // size)
    draws = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        joined = [array[generator.integers(len(array), size=(count, len(array)))] for array in arrays]
        draws.append(statistic(np.concatenate(joined, axis=1), axis=1))
    tail = (1 - level) / 2
    lower, upper = np.quantile(np.concatenate(draws), [tail, 1 - tail], axis=0)
    return lower, upper


def paired_ratio(a: ArrayLike, b: ArrayLike, **options: Any) -> tuple[float, tuple[float, float]]:
    r"""The typical ratio of two models' errors, paired by seed, with its bootstrap interval.

    .. math:: \exp\Big(\mathrm{IQM}_i \log \frac{a_i}{b_i}\Big)

    Seeds are drawn as pairs, so what both models share of a seed (its data, its difficulty) is in neither the ratio nor the
    interval. An interval without 1 says that the models differ. The interval of a single pair is its ratio and says nothing.

    >>> centre, (low, high) = paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    >>> print(f"{centre:.3f} [{low:.3f}, {high:.3f}]")
    2.000 [2.000, 2.000]

    Args:
        a, b: positive values, one per seed and the same seed at the same place, (n,) each, n >= 1.
        options: options of :func:`bootstrap_interval`.
    Returns:
        the ratio and the ends of its interval.
    Raises:
        ValueError: they are not pairs, or a value is not positive and finite.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise ValueError(f"a paired ratio of shapes {first.shape} and {second.shape}: give one value per seed in both")
    for values in (first, second):
        if not (np.isfinite(values) & (values > 0)).all():
            worst = values[~(np.isfinite(values) & (values > 0))][0]
            raise ValueError(f"a paired ratio with the value {worst:g}: leave out seeds without a positive number")
    logarithms = np.log(first) - np.log(second)
    centre, low, high = (float(np.exp(x)) for x in (iqm(logarithms), *bootstrap_interval(logarithms, **options)))
    return centre, (low, high)
