"""Statistics over seeds: the interquartile mean and its bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_RESAMPLED_VALUES = 2**24  # values held at once while resampling


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
        seed: of the generator that draws; the interval is a function of its arguments.
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
