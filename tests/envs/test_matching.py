"""Finding what the columns of a table are, from values alone."""

from __future__ import annotations

import numpy as np
import pytest

from rppdyn.envs.observation._recognition import Columns, Source, explain

rng = np.random.default_rng(0)
COLUMNS = np.concatenate([rng.normal(size=(40, 6)), np.zeros((40, 2))], axis=1)  # the last two never vary


def found(entries: np.ndarray, scaled: bool = False, columns: np.ndarray = COLUMNS) -> dict[int, Source]:
    starts = np.zeros(columns.shape[1], dtype=bool)
    starts[[0, 3]] = True
    terms = tuple(((j, 1.0),) for j in range(columns.shape[1]))
    open_ = np.ones(entries.shape[1], dtype=bool)
    return explain(entries, Columns(columns, terms, starts, scaled), open_, 1e-9)


@pytest.mark.parametrize("slope, offset", [(1.0, 0.0), (0.05, 0.0), (-1.0, 0.0), (-2.5, 3.0)])
def test_lines(slope, offset):
    entries = slope * COLUMNS[:, 1:3] + offset
    is_column = (slope, offset) == (1.0, 0.0)
    assert len(found(entries)) == 2 * is_column
    assert found(entries, scaled=True) == {i: Source(((i + 1, slope),), offset) for i in (0, 1)}
    assert found(entries + 1e-7 * rng.normal(size=(40, 1))) == found(COLUMNS[:, :1] ** 2, scaled=True) == {}


@pytest.mark.parametrize("scaled", [False, True])
def test_clipping_and_what_only_looks_like_it(scaled):
    """In the last case the largest values are those of a clipped column, but elsewhere."""
    for low, high in ((-1.0, 1.0), (-0.5, np.inf), (-np.inf, 0.3)):
        source = found(np.clip(COLUMNS[:, 3:4], low, high), scaled)[0]
        assert source == Source(((3, 1.0),), 0.0, low, high) and source.is_clipped
    y = np.clip(COLUMNS[:, 3], -np.inf, 0.3)
    y[np.argmin(y)] = 0.3
    assert found(y[:, None], scaled) == {}


def test_neighbours_decide_between_equal_candidates_and_explain_constants():
    """Column 5 equals column 0; beside column 1 it is taken for column 0, beside column 4 for column 5."""
    columns = COLUMNS.copy()
    columns[:, 5] = columns[:, 0]
    assert found(columns[:, [0, 1]], columns=columns)[0].terms == ((0, 1.0),)
    assert found(columns[:, [4, 5]], columns=columns)[1].terms == ((5, 1.0),)
    assert found(np.zeros((40, 1))) == {}
    assert [source.terms[0][0] for source in found(COLUMNS[:, [5, 6, 7]]).values()] == [5, 6, 7]
    columns[:, 3] = 0.0  # which begins another block, so nothing explains it beside column 2
    assert 1 not in found(columns[:, [2, 3]], columns=columns)
