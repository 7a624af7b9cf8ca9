r"""Code length as model choice: how many bits a model and the data given the model take, and whether that ranks as tests do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Agreement", "agreement", "categorical_bits", "gaussian_bits"]

HALF = 16  # bits of a variance


def categorical_bits(logits: Float[Tensor, "N classes"], labels: Shaped[Tensor, " N"]) -> float:
    """Bits of labels given a model's logits, :math:`-\\sum_n \\log_2 p(y_n)`."""
    return float(F.cross_entropy(logits.double(), labels, reduction="sum")) / math.log(2)


def gaussian_bits(outputs: Float[Tensor, "N out"], targets: Float[Tensor, "N out"]) -> float:
    r"""Bits of targets given a model's outputs, under a normal distribution whose variance is fitted and takes 16 bits itself.

    .. math:: \frac{M}{2} \log_2(2 \pi e\, s^2) + 16

    for M numbers of mean squared residual :math:`s^2`. Densities are of numbers in units of one: with a finer resolution every
    model takes as many bits more, so differences between models count, and values may be negative.
    """
    variance = float((outputs.double() - targets.double()).square().mean())
    if variance == 0:
        return -math.inf
    return targets.numel() / 2 * math.log2(2 * math.pi * math.e * variance) + HALF


class Agreement(NamedTuple):
    """How far a criterion ranks models as another does.

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
