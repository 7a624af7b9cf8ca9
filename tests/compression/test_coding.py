"""The coder against entropy, and messages that are read back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rppdyn.compression import decode, decode_symbols, encode, encode_symbols, entropy

SOURCES = {
    "uniform": [1, 1, 1, 1],
    "skewed": [100, 10, 3, 1],
    "nearly constant": [999, 1],
    "with an unused level": [5, 0, 3],
    "many levels": list(range(1, 31)),
}


def drawn(weights, d, seed=0):
    p = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(p), size=d, p=p)


@pytest.mark.parametrize("d", [1, 3, 64, 1000])
@pytest.mark.parametrize("name", SOURCES)
def test_code_is_within_a_bit_of_its_bound_and_is_read_back(name, d):
    weights = SOURCES[name]
    symbols = drawn(weights, d)
    counts = np.bincount(symbols, minlength=len(weights)).tolist()
    bits = encode_symbols(symbols.tolist(), counts)
    assert decode_symbols(bits, counts, d) == symbols.tolist()
    exact = d * entropy(counts)
    assert len(bits) <= math.ceil(exact - 1e-9 * max(exact, 1))
    # one fraction of any length may lie in an interval by chance, so what is below the entropy is few bits, and rarely so
    assert len(bits) >= exact - 12


def test_codes_are_no_shorter_than_entropy_on_average():
    """A code below the entropy for one sequence is paid for by others: over all sequences with some counts no code can win."""
    lengths, exact = [], None
    for seed in range(100):
        symbols = np.random.default_rng(seed).permutation([0] * 40 + [1] * 15 + [2] * 5)
        lengths.append(len(encode_symbols(symbols.tolist(), [40, 15, 5])))
        exact = 60 * entropy([40, 15, 5])
    assert exact - 2 < np.mean(lengths) <= exact + 1


@pytest.mark.parametrize("d", [0, 1, 2, 33, 1024])
@pytest.mark.parametrize("L", [2, 3, 7])
def test_messages_are_read_back_and_short(d, L):
    rng = np.random.default_rng(d + L)
    symbols, levels = rng.integers(L, size=d), rng.normal(size=L)
    message = encode(symbols, levels)
    found, codebook = decode(message, d, L)
    np.testing.assert_array_equal(codebook[found], levels.astype(np.float16)[symbols])
    indices = math.ceil(d * entropy(np.bincount(symbols, minlength=L)) - 1e-9 * d)
    assert len(message) <= indices + L * (16 + math.ceil(math.log2(d))) if d else not message


@pytest.mark.parametrize(("level", "d"), [(0, 1), (1, 4), (2, 5)])
def test_coefficients_that_are_all_alike(level, d):
    """Their count is d, which is 0 modulo d."""
    levels = np.array([-1.0, 0.25, 3.0])
    found, codebook = decode(encode(np.full(d, level), levels), d, 3)
    np.testing.assert_array_equal(codebook[found], np.full(d, levels[level]))


def test_refusals():
    with pytest.raises(ValueError, match="symbol 2 with counts"):
        encode_symbols([0, 2], [1, 1])
    with pytest.raises(ValueError, match="symbols from 0 to 3 of 2 levels"):
        encode([0, 3], [0.0, 1.0])
    with pytest.raises(ValueError, match="diverged"):
        encode([0, 1], [0.0, math.nan])
    with pytest.raises(ValueError, match="cut off"):
        decode("0101", 4, 2)


def test_levels_beyond_half_precision_are_the_largest():
    found, codebook = decode(encode([0, 1], [-1e9, 1e9]), 2, 2)
    np.testing.assert_array_equal(codebook[found], np.array([-65504, 65504], np.float16))
