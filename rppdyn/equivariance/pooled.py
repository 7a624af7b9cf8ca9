r"""The equivariance error with sums taken before the ratio, by generator.

.. math:: \frac{\sum |f(g x_i) - g f(x_i)|}{\sum (|f(g x_i)| + |g f(x_i)|)}

is Eq. 3.3 of Finzi 2023 with sums over inputs and entries before the ratio: inputs where a function is all but zero then
count for nothing, where a mean of ratios would give their rounding errors full weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Inexact
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.equivariance.error import differences
from rppdyn.groups import Group

__all__ = ["FLOOR", "TURNS", "elements_by_generator", "pooled_ratio", "pooled_sums"]

FLOOR = 1e-6
"""Root mean square of the output, relative to what counts as something, below which an error says nothing ("vacuous")."""

TURNS = (0.7, 1.9, 3.1, -1.3)
"""Angles, in radians, by which a continuous symmetry is applied; none is a symmetry of a polygon."""


def elements_by_generator(group: Group, names: Sequence[str]) -> dict[str, list[Inexact[Tensor, "d d"]]]:
    """Elements by the names of the generators, discrete ones first: these themselves, and `TURNS` by each continuous one."""
    discrete = [[h] for h in group.discrete_generators]
    continuous = [[torch.linalg.matrix_exp(t * A) for t in TURNS] for A in group.lie_algebra]
    return dict(zip(names, [*discrete, *continuous], strict=True))


def pooled_sums(pairs: Iterable[tuple[Inexact[Tensor, "n k"], Inexact[Tensor, "n k"]]]) -> Float[Tensor, "n 2"]:
    """By input, the sums over entries and pairs ``a, b`` of ``|a - b|`` and of ``|a| + |b|``."""
    return torch.stack([differences(a, b).sum(-1).mT for a, b in pairs]).sum(0)


def pooled_ratio(sums: NDArray, axis: int = 0) -> NDArray:
    """The ratio of sums ``(..., n, ..., 2)`` over one axis, the inputs'; 0 where nothing is compared."""
    difference, size = np.moveaxis(sums.sum(axis), -1, 0)
    return np.divide(difference, size, out=np.zeros_like(size), where=size > 0)
