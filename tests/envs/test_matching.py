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


def test_equal_columns_are_found():
    sources = found(COLUMNS[:, [4, 0, 2]])
    assert {i: source.terms for i, source in sources.items()} == {0: ((4, 1.0),), 1: ((0, 1.0),), 2: ((2, 1.0),)}


def test_nearly_equal_columns_are_not():
    assert found(COLUMNS[:, :1] + 1e-7 * rng.normal(size=(40, 1))) == {}
    assert found(COLUMNS[:, :1] ** 2) == {} and found(COLUMNS[:, :1] ** 2, scaled=True) == {}


@pytest.mark.parametrize("slope, offset", [(0.05, 0.0), (-1.0, 0.0), (1.0, -0.7), (-2.5, 3.0)])
def test_lines(slope, offset):
    entries = slope * COLUMNS[:, 1:3] + offset
    assert found(entries) == {}
    sources = found(entries, scaled=True)
    assert sources == {0: Source(((1, slope),), offset), 1: Source(((2, slope),), offset)}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("low, high", [(-1.0, 1.0), (-0.5, np.inf), (-np.inf, 0.3)])
def test_clipping(scaled, low, high):
    source = found(np.clip(COLUMNS[:, 3:4], low, high), scaled)[0]
    assert source == Source(((3, 1.0),), 0.0, low, high) and source.is_clipped


def test_what_only_looks_like_clipping_is_refused():
    """The largest values are those of a clipped column, but elsewhere."""
    y = np.clip(COLUMNS[:, 3], -np.inf, 0.3)
    y[np.argmin(y)] = 0.3
    assert found(y[:, None]) == {}


def test_equal_candidates_go_with_their_neighbours():
    """Column 5 equals column 0; beside column 1 it is taken for column 0, beside column 4 for column 5."""
    columns = COLUMNS.copy()
    columns[:, 5] = columns[:, 0]
    assert found(columns[:, [0, 1]], columns=columns)[0].terms == ((0, 1.0),)
    assert found(columns[:, [4, 5]], columns=columns)[1].terms == ((5, 1.0),)


def test_constants_are_explained_by_neighbours_only():
    assert found(np.zeros((40, 1))) == {}
    sources = found(COLUMNS[:, [5, 6, 7]])
    assert [sources[i].terms[0][0] for i in range(3)] == [5, 6, 7]


def test_runs_stop_where_a_block_ends():
    """The constant behind column 2 belongs to the next block, so nothing explains it there."""
    columns = COLUMNS.copy()
    columns[:, 3] = 0.0
    assert 1 not in found(columns[:, [2, 3]], columns=columns)
