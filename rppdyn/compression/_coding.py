r"""Messages of quantised coefficients by arithmetic coding, and bounds and criteria from their lengths.

A message encodes which of L levels each of d coefficients has. Its three parts are

====================  ==================================================  ===================================
part                  content                                             bits
====================  ==================================================  ===================================
codebook              the levels in half precision                        ``16 L``
counts                how many coefficients have each level, modulo d     ``L ceil(log2 d)``
indices               the coefficients' levels, by arithmetic coding      at most ``ceil(d H(p))``
====================  ==================================================  ===================================

with :math:`H(p)` the entropy in bits of the levels' frequencies :math:`p`. The decoder knows d and L, whose bits
:func:`rppdyn.compression.setting_bits` counts, and the end of the message, whose price is in
:func:`rppdyn.compression.universal_kl`.

Source: Finzi 2023, 5.4.2, whose length has 2 bits more for the end of the indices.

PAC-Bayes bounds turn a message's length and an empirical risk into a bound of the risk. The prior gives a model coded in ``l``
bits at least the probability :math:`2^{-l} / l^2`; the sum of these over all messages of two bits and more is below one. With a
point mass at the model as posterior, Catoni's bound holds for any loss in [0, 1].

The length is also a criterion for the choice of a model: the bits of the model and of the data given the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

HALF_BITS = 16  # of a level, or of a variance
MAX_HALF = 65504.0  # largest finite number in half precision


def entropy(counts: ArrayLike) -> float:
    """Entropy in bits of the relative frequencies of counts; 0 for no counts."""
    counts = np.asarray(counts, dtype=float)
    p = counts[counts > 0] / max(counts.sum(), 1.0)
    return float(-(p * np.log2(p)).sum()) if len(p) else 0.0


def encode_symbols(symbols: Sequence[int], counts: Sequence[int]) -> str:
    r"""Encode symbols by arithmetic coding with the frequencies of ``counts``, as text of zeros and ones.

    The symbols' interval has the width :math:`\prod_i c_{s_i} / C`, ``C`` the sum of counts. The code is the shortest binary
    fraction in it, so it takes at most :math:`\lceil -\sum_i \log_2 (c_{s_i} / C) \rceil` bits. Integers are exact and as long
    as need be: time grows with the square of the number of symbols, a second for some ten thousand.

    Raises:
        ValueError: a symbol whose count is zero.

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
        levels: ``(L,)``; the decoder gets them in half precision.
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
    if counts.max() == d:  # all counts are then 0 modulo d, and the decoder takes the first level: put this level first
        order = np.argsort(-counts, kind="stable")
        codebook, counts, indices = codebook[order], counts[order], np.zeros_like(indices)
    head = "".join(f"{int(level):016b}" for level in codebook.view(np.uint16))
    width = _width(d)
    middle = "".join(f"{int(count) % d:0{width}b}" for count in counts) if width else ""
    return head + middle + encode_symbols(indices.tolist(), counts.tolist())


def decode(bits: str, d: int, L: int) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    """Decode a message: the index of each of d coefficients' levels, and the L levels in half precision.

    The coefficients ``levels[symbols]`` are those that were encoded. If all have the same level, it comes first.
    """
    if d == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(L, dtype=np.float16)
    width = _width(d)
    first, second = HALF_BITS * L, (HALF_BITS + width) * L
    head, middle, tail = bits[:first], bits[first:second], bits[second:]
    if len(bits) < second:
        raise ValueError(f"a message of {len(bits)} bits for d={d}, L={L}: it is cut off")
    levels = [int(head[i : i + HALF_BITS], 2) for i in range(0, first, HALF_BITS)]
    codebook = np.array(levels, np.uint16).view(np.float16)
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
    return values.clip(-MAX_HALF, MAX_HALF).astype(np.float16)


# -- bounds from code lengths ------------------------------------------------------------------------------------------

MIN_MESSAGE_BITS = 2
"""2^-l / l^2 over all messages of l >= 2 bits sums to .645, and from l = 1 on to 1.645."""
GAMMAS = tuple(2.0 ** (k / 2) for k in range(-16, 12))
"""The grid of gamma, from .004 to 45. It is the same for all data and models."""


class Bound(NamedTuple):
    """A bound of the risk, which holds with probability 1 - delta.

    Attributes:
        value: the bound, at most 1.
        gamma: the point of the grid at which it was taken.
    """

    value: float
    gamma: float


def universal_kl(bits: int | float) -> float:
    r"""Kullback-Leibler divergence in nats from the universal prior of a model that was coded in ``bits``.

    .. math:: \mathrm{KL} \le l \ln 2 + 2 \ln l

    Messages are padded to two bits, so that the prior's sum is at most one. Source: Finzi 2023, 5.3.

    Raises:
        ValueError: a negative length.
    """
    if not bits >= 0:
        raise ValueError(f"bits={bits}: a code's length is zero or more")
    length = max(bits, MIN_MESSAGE_BITS)
    return length * math.log(2) + 2 * math.log(length)


def setting_bits(choices: int) -> int:
    """Bits to choose one of `choices` settings fixed in advance, ``ceil(log2 choices)``.

    Raises:
        ValueError: no choice.
    """
    if choices < 1:
        raise ValueError(f"choices={choices}: give the number of settings that were tried, at least 1")
    return (choices - 1).bit_length()


def catoni_inverse(gamma: int | float, x: int | float) -> float:
    r"""Bound the risk by the right-hand side x of Catoni's bound.

    .. math:: \Phi_\gamma^{-1}(x) = \frac{1 - e^{-\gamma x}}{1 - e^{-\gamma}}

    It is at least x on [0, 1]. Source: Catoni 2007, Theorem 1.2.6. Theorem A.3 of Finzi 2023 prints it with -gamma in place of
    gamma, which is less than x: .061 in place of .151 for gamma = 1 and x = .1.
    """
    return math.expm1(-gamma * x) / math.expm1(-gamma)


def catoni_bound(
    risk: int | float, kl: int | float, n: int, *, delta: int | float = 0.05, gammas: tuple[float, ...] = GAMMAS
) -> Bound:
    r"""Bound a risk by Catoni's inequality, at the best gamma of a grid.

    .. math:: R \le \min_\gamma \Phi_\gamma^{-1}\Big(\hat R + \frac{\mathrm{KL} + \ln (G / \delta)}{\gamma n}\Big)

    with probability :math:`1 - \delta`, for G points of gamma that were fixed in advance: their price is :math:`\ln G` (3.3
    nats), less than that of the infinite grid in Theorem A.3.

    Args:
        risk: the empirical risk on n data, of a loss in [0, 1].
        kl: divergence of posterior and prior, in nats.
        n: number of data, which the prior does not depend on.
    Raises:
        ValueError: a risk outside of [0, 1], a negative divergence, no data, or a delta that is no probability.

    >>> round(catoni_bound(0.04, universal_kl(0.38 * 8192), 60_000).value, 2)
    0.12
    """
    _check_bound(risk, kl, n, delta)
    price = kl + math.log(len(gammas) / delta)
    value, gamma = min((catoni_inverse(gamma, risk + price / (gamma * n)), gamma) for gamma in gammas)
    return Bound(min(value, 1.0), gamma)


def _check_bound(risk: int | float, kl: int | float, n: int, delta: int | float) -> None:
    if not 0 <= risk <= 1:
        raise ValueError(f"risk={risk}: must be in [0, 1]; the bound holds for bounded losses")
    if not (kl >= 0 and n >= 1 and 0 < delta < 1):
        raise ValueError(f"kl={kl}, n={n}, delta={delta}: give kl >= 0, n >= 1 and 0 < delta < 1")


def hoeffding_bound(risk: int | float, n: int, *, delta: int | float = 0.05) -> float:
    r"""Bound the risk of a model that was fixed before n data were seen: :math:`\hat R + \sqrt{\ln(1/\delta) / 2n}`.

    For a data-dependent prior, on data that it has not seen, it shows how much of a PAC-Bayes bound is due to the prior alone.
    Raises what :func:`catoni_bound` raises. Source: Finzi 2023, 5.5.2.
    """
    _check_bound(risk, 0.0, n, delta)
    return min(1.0, risk + math.sqrt(math.log(1 / delta) / (2 * n)))


def zero_one_loss(
    outputs: Float[Tensor, "*batch classes"], labels: Shaped[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Loss 0 if the largest output is that of the label, otherwise 1; also 1 if an output is not finite."""
    wrong = (outputs.argmax(-1) != labels) | ~outputs.isfinite().all(-1)
    return wrong.to(outputs.dtype)


def relative_error(
    outputs: Float[Tensor, "*batch out"], targets: Float[Tensor, "*batch out"]
) -> Float[Tensor, "*batch"]:
    """Loss ``|y - f| / (|y| + |f|)`` in [0, 1]; 0 if both are zero, and 1 for outputs that are not finite."""
    size = torch.linalg.vector_norm(outputs, dim=-1) + torch.linalg.vector_norm(targets, dim=-1)
    difference = torch.linalg.vector_norm(outputs - targets, dim=-1)
    loss = torch.where(size == 0, 0.0, difference / size.clamp_min(torch.finfo(size.dtype).tiny))
    return loss.nan_to_num(nan=1.0).clamp(0.0, 1.0)


def empirical_risk(losses: Float[Tensor, "*any"] | np.ndarray) -> float:
    """Mean of losses.

    Raises:
        ValueError: there are none, or one is outside of [0, 1].
    """
    values = torch.as_tensor(losses).detach().double().flatten()
    outside = values[~((values >= 0) & (values <= 1))]
    if not len(values):
        raise ValueError("the risk of no data: give losses of one datum or more")
    if len(outside):
        raise ValueError(
            f"a loss of {float(outside[0]):.4g}: bounds hold for losses in [0, 1]; give relative_error or zero_one_loss"
        )
    return float(values.mean())


def categorical_bits(logits: Float[Tensor, "N classes"], labels: Shaped[Tensor, " N"]) -> float:
    """Bits of labels given a model's logits, :math:`-\\sum_n \\log_2 p(y_n)`."""
    return float(F.cross_entropy(logits.double(), labels, reduction="sum")) / math.log(2)


def gaussian_bits(outputs: Float[Tensor, "N out"], targets: Float[Tensor, "N out"]) -> float:
    r"""Bits of targets given a model's outputs, under a normal distribution whose variance is fitted and takes 16 bits itself.

    .. math:: \frac{M}{2} \log_2(2 \pi e\, s^2) + 16

    for M numbers of mean squared residual :math:`s^2`. Numbers are coded to a resolution of one. A finer resolution adds the
    same number of bits to every model, so only differences between models matter, and values may be negative.
    """
    variance = float((outputs.double() - targets.double()).square().mean())
    if variance == 0:
        return -math.inf
    return targets.numel() / 2 * math.log2(2 * math.pi * math.e * variance) + HALF_BITS


class Agreement(NamedTuple):
    """Agreement of two criteria's rankings of models.

    Attributes:
        pairs: share of pairs of models, over all seeds, in the same order.
        best: share of seeds in which both put the same model first.
        mean: whether the means over seeds are in the same order.
    """

    pairs: float
    best: float
    mean: bool


def agreement(criterion: Mapping[str, Sequence[int | float]], test: Mapping[str, Sequence[int | float]]) -> Agreement:
    """Compare the order of models by a criterion with that by a test, both the lower the better.

    Args:
        criterion, test: values of each model, one for each seed; of several tasks, one after the other.
    Raises:
        ValueError: fewer than two models, or other models or numbers of seeds in the two.

    >>> agreement({"a": [1.0, 2.0], "b": [2.0, 1.5]}, {"a": [0.1, 0.1], "b": [0.2, 0.3]})
    Agreement(pairs=0.5, best=0.5, mean=True)
    """
    names = list(test)
    counts = {len(values) for values in (*criterion.values(), *test.values())}
    if len(names) < 2 or set(criterion) != set(test) or len(counts) != 1:
        raise ValueError(
            f"models {sorted(criterion)} and {sorted(test)} with {sorted(counts)} values: give the same models, two or more, "
            "with as many values each"
        )
    seeds = range(counts.pop())
    same = [
        (criterion[a][s] < criterion[b][s]) == (test[a][s] < test[b][s])
        for a, b in combinations(names, 2)
        for s in seeds
    ]
    first = lambda of, s: min(names, key=lambda name: of[name][s])  # noqa: E731
    order = lambda of: sorted(names, key=lambda name: sum(of[name]))  # noqa: E731
    return Agreement(
        sum(same) / len(same),
        sum(first(criterion, s) == first(test, s) for s in seeds) / len(seeds),
        order(criterion) == order(test),
    )
