r"""Codes for quantised coefficients: an arithmetic coder in exact integer arithmetic, and the message that it is part of.

A message says which of L levels each of d coefficients has. Its three parts are

====================  ==================================================  ===================================
part                  content                                             bits
====================  ==================================================  ===================================
codebook              the levels in half precision                        ``16 L``
counts                how many coefficients have each level, modulo d     ``L ceil(log2 d)``
indices               the coefficients' levels, by arithmetic coding      at most ``ceil(d H(p))``
====================  ==================================================  ===================================

with :math:`H(p)` the entropy in bits of the levels' frequencies :math:`p`. The decoder knows d and L, which are among the
settings that :func:`rppdyn.compression.setting_bits` pays for, and where the message ends, which the prior of
:func:`rppdyn.compression.universal_kl` pays for.

Source: Finzi 2023, 5.4.2, whose length has 2 bits more for the end of the indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

HALF = 16  # bits of a level
LARGEST_HALF = 65504.0


def entropy(counts: ArrayLike) -> float:
    """Entropy in bits of the frequencies that counts are of; 0 of none."""
    counts = np.asarray(counts, dtype=float)
    p = counts[counts > 0] / max(counts.sum(), 1.0)
    return float(-(p * np.log2(p)).sum()) if len(p) else 0.0


def message_bound(counts: ArrayLike) -> int:
    """Bits that a message has at most, ``ceil(d H(p)) + L (16 + ceil(log2 d)) + 2``; 0 where d is 0.

    Args:
        counts: how many coefficients have each of the L levels; d is their sum.
    """
    counts = np.asarray(counts)
    d = int(counts.sum())
    if d == 0:
        return 0
    exact = d * entropy(counts)
    return math.ceil(exact - 1e-9 * max(exact, 1.0)) + len(counts) * (HALF + _width(d)) + 2


def encode_symbols(symbols: Sequence[int], counts: Sequence[int]) -> str:
    r"""Encode symbols by arithmetic coding with the frequencies of ``counts``, as text of zeros and ones.

    The symbols' interval has the width :math:`\prod_i c_{s_i} / C`, ``C`` the sum of counts. The code is the shortest binary
    fraction in it, so it takes at most :math:`\lceil -\sum_i \log_2 (c_{s_i} / C) \rceil` bits. Integers are exact and as long
    as need be: time grows with the square of the number of symbols, a second for some ten thousand.

    Raises:
        ValueError: a symbol that the counts say does not occur.

    >>> encode_symbols([0, 0, 1, 0], [3, 1])
    '100'
    """
    total, starts = sum(counts), [0, *accumulate(counts)]
    low, width, unit = 0, 1, 1  # the interval is [low, low + width) / unit
    for symbol in symbols:
        if not (0 <= symbol < len(counts) and counts[symbol] > 0):
            raise ValueError(f"symbol {symbol} with counts {list(counts)}: give each symbol that occurs a count")
        low, width, unit = low * total + width * starts[symbol], width * counts[symbol], unit * total
    bits = max(0, unit.bit_length() - width.bit_length() - 1)
    while True:
        code = -((-low << bits) // unit)  # the first multiple of 2^-bits that is not below the interval
        if code * unit < (low + width) << bits:
            return f"{code:0{bits}b}" if bits else ""
        bits += 1


def decode_symbols(bits: str, counts: Sequence[int], length: int) -> list[int]:
    """Decode what :func:`encode_symbols` wrote.

    >>> decode_symbols("100", [3, 1], 4)
    [0, 0, 1, 0]
    """
    total, starts = sum(counts), [0, *accumulate(counts)]
    above, below = int(bits or "0", 2), 1 << len(bits)  # the fraction, within the interval that is left
    symbols = []
    for _ in range(length):
        above *= total
        symbol = int(np.searchsorted(starts, above // below, side="right")) - 1
        above, below = above - starts[symbol] * below, below * counts[symbol]
        symbols.append(symbol)
    return symbols


def encode(symbols: ArrayLike, levels: ArrayLike) -> str:
    """Encode quantised coefficients ``levels[symbols]`` as a message.

    Args:
        symbols: ``(d,)``, the index of each coefficient's level.
        levels: ``(L,)``; half precision is what the decoder gets.
    Raises:
        ValueError: a symbol that is no index of a level, or a level that is no number.
    """
    indices, codebook = np.asarray(symbols, dtype=np.int64), _half(levels)
    d, L = len(indices), len(codebook)
    if d == 0:
        return ""
    if not (0 <= indices.min() and indices.max() < L):
        raise ValueError(f"symbols from {indices.min()} to {indices.max()} of {L} levels: give indices below {L}")
    counts = np.bincount(indices, minlength=L)
    if counts.max() == d:  # its count is 0 modulo d, as all are: the first is meant
        order = np.argsort(-counts, kind="stable")
        codebook, counts, indices = codebook[order], counts[order], np.zeros_like(indices)
    head = "".join(f"{int(level):016b}" for level in codebook.view(np.uint16))
    width = _width(d)
    middle = "".join(f"{int(count) % d:0{width}b}" for count in counts) if width else ""
    return head + middle + encode_symbols(indices.tolist(), counts.tolist())


def decode(bits: str, d: int, L: int) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    """Decode a message: the index of each of d coefficients' levels, and the L levels in half precision.

    The coefficients ``levels[symbols]`` are those that were encoded. Where all have one level, it comes first.
    """
    if d == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(L, dtype=np.float16)
    width = _width(d)
    head, middle, tail = bits[: HALF * L], bits[HALF * L : (HALF + width) * L], bits[(HALF + width) * L :]
    if len(head) + len(middle) < (HALF + width) * L:
        raise ValueError(f"a message of {len(bits)} bits for d={d}, L={L}: it is cut off")
    codebook = np.array([int(head[i : i + HALF], 2) for i in range(0, len(head), HALF)], np.uint16).view(np.float16)
    counts = [int(middle[i * width : (i + 1) * width], 2) for i in range(L)] if width else [0] * L
    if not any(counts):
        counts[0] = d
    return np.array(decode_symbols(tail, counts, d), dtype=np.int64), codebook


def _width(d: int) -> int:
    """Bits of a count modulo d, ``ceil(log2 d)``."""
    return (d - 1).bit_length()


def _half(levels: ArrayLike) -> NDArray[np.float16]:
    values = np.asarray(levels, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"levels {values.tolist()}: give finite numbers; the fit has diverged")
    return values.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16)
