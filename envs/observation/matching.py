"""Which known quantities the entries of an unknown function's output are, found by comparing values over samples.

An entry is explained by a candidate column if, over all samples, it is slope times the column plus an offset, where not cut
off at the entry's lowest and highest value. Where several columns explain an entry, the one is taken in whose
neighbourhood the entry's neighbours are explained too: observations are made of whole arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Candidates", "Source", "explain"]

FEWEST = 8  # samples, not cut off, that must agree


class Source(NamedTuple):
    """What an entry is: the sum of coefficient times column, plus an offset, clipped; a constant has no terms."""

    terms: tuple[tuple[int, float], ...]
    offset: float = 0.0
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_clipped(self) -> bool:
        """Whether it is cut off on either side."""
        return np.isfinite(self.low) or np.isfinite(self.high)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Columns that may explain entries.

    Args:
        values: over n samples, (n, m).
        terms: of each column, in terms of the columns that sources refer to.
        starts: where a block of consecutive columns begins, (m,) booleans.
        scaled: whether an entry may be a multiple of a column, and shifted against it.
    """

    values: np.ndarray
    terms: tuple[tuple[tuple[int, float], ...], ...]
    starts: np.ndarray
    scaled: bool


def explain(entries: np.ndarray, candidates: Candidates, open_: np.ndarray, tolerance: float) -> dict[int, Source]:
    """Sources of entries (n, d) over n samples, for those of the open ones that a candidate explains.

    Args:
        open_: entries to explain, (d,) booleans. One that never varies is explained by its neighbours only.
        tolerance: relative to the largest value of a column.
    """
    d = entries.shape[1]
    varies = _varies(entries, tolerance)
    explains = np.zeros((d, candidates.values.shape[1]), dtype=bool)
    for i in np.flatnonzero(open_):
        explains[i] = _explaining(entries[:, i], bool(varies[i]), candidates, tolerance)
    score = _neighbourhood(explains, varies, candidates.starts)
    found = {}
    for i in np.flatnonzero(score.max(1, initial=0) > 0):
        j = int(score[i].argmax())  # the first of equals: candidates stand in the order of preference
        found[int(i)] = _source(entries[:, i], bool(varies[i]), candidates, j, tolerance)
    return found


def _varies(values: np.ndarray, tolerance: float) -> np.ndarray:
    return np.ptp(values, axis=0) > tolerance * np.abs(values).max(0)


def _explaining(y: np.ndarray, varies: bool, candidates: Candidates, tolerance: float) -> np.ndarray:
    """Which columns explain y."""
    X = candidates.values
    if not varies:
        constant = ~_varies(X, tolerance)
        return constant if candidates.scaled else constant & (np.abs(X[0] - y[0]) <= tolerance * (1 + np.abs(y[0])))
    free = (y > y.min()) & (y < y.max())
    if free.sum() < FEWEST:
        return np.zeros(X.shape[1], dtype=bool)
    if not candidates.scaled:
        probe = np.flatnonzero(free)[:2]  # nearly every column fails on the first two samples
        possible = np.all(_close(y[probe, None], X[probe], np.abs(X).max(0), tolerance), axis=0)
    else:
        possible = _varies(X[free], tolerance)
    columns = np.flatnonzero(possible)
    slope, offset = _line(y[free], X[np.ix_(free, columns)]) if candidates.scaled else (1.0, 0.0)
    line = slope * X[:, columns] + offset
    scale = np.abs(slope) * np.abs(X[:, columns]).max(0)
    good = _close(y[:, None], line, scale, tolerance)
    beyond = (y[:, None] == y.max()) & (line > y[:, None]) | (y[:, None] == y.min()) & (line < y[:, None])
    possible[columns] = (good | beyond).all(0)
    return possible


def _close(a: np.ndarray, b: np.ndarray, scale: np.ndarray, tolerance: float) -> np.ndarray:
    return np.abs(a - b) <= tolerance * scale


def _line(y: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and offsets of the best lines y = slope x + offset through each column of X."""
    centred = X - X.mean(0)
    slope = (y - y.mean()) @ centred / (centred**2).sum(0)
    return slope, y.mean() - slope * X.mean(0)


def _neighbourhood(explains: np.ndarray, varies: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For every pair of entry i and column j: how many varying entries i + k the columns j + k explain in one run."""
    weight = varies.astype(float)
    forward, backward = np.zeros(explains.shape), np.zeros(explains.shape)
    d = len(explains)
    for i in range(d):
        backward[i] = weight[i]
        if i > 0:
            backward[i, 1:] += np.where(starts[1:], 0.0, backward[i - 1, :-1])
        backward[i] *= explains[i]
    for i in reversed(range(d)):
        if i < d - 1:
            forward[i, :-1] = np.where(starts[1:], 0.0, weight[i + 1] * explains[i + 1, 1:] + forward[i + 1, 1:])
        forward[i] *= explains[i]
    return backward + forward


def _source(y: np.ndarray, varies: bool, candidates: Candidates, j: int, tolerance: float) -> Source:
    x = candidates.values[:, j]
    if not varies:
        slope, offset = 1.0, float(y[0] - x[0]) if candidates.scaled else 0.0
        return Source(candidates.terms[j], offset)
    free = (y > y.min()) & (y < y.max())
    slope, offset = (1.0, 0.0)
    if candidates.scaled:
        digits = 6 if tolerance > 1e-7 else 9  # a slope of 0.05 is meant where 0.0500000000001 was found
        (slope,), (offset,) = (
            np.array([float(f"{v:.{digits}g}") for v in part]) for part in _line(y[free], x[free, None])
        )
        offset = offset if abs(offset) > tolerance * np.abs(y).max() else 0.0
    line, scale = slope * x + offset, tolerance * np.abs(slope * x).max()
    low = float(y.min()) if (line < y.min() - scale).any() else -np.inf
    high = float(y.max()) if (line > y.max() + scale).any() else np.inf
    return Source(tuple((column, c * float(slope)) for column, c in candidates.terms[j]), float(offset), low, high)
