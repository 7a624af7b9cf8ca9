"""Hidden representations: copies of the regular representation, or tensors that share the channels out evenly."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Literal

from rppdyn.groups import Group
from rppdyn.nn.linear import bind
from rppdyn.reps import Rep, RepType, Scalar, T, regular
from rppdyn.reps.algebra import is_int

__all__ = [
    "Architecture",
    "hidden_representation",
    "regular_hidden",
    "tensor_hidden",
    "component_major",
    "gated",
    "is_pointwise",
]

Architecture = Literal["auto", "regular", "tensor"]

MAX_RANK_ON_A_LINE = 3  # every power of a one-dimensional group has one coordinate, so the width sets no bound there


def hidden_representation(width: int | Rep | RepType, group: Group, architecture: Architecture = "auto") -> Rep:
    """The representation of a hidden layer, before gates are added; component-major where a width is shared out.

    Args:
        width: a representation (bound or not), or a number of channels to share out.
        architecture: "regular" (finite groups of order up to 64), "tensor" (any group), or "auto": regular where it
            exists and fits, tensors otherwise.
    Raises:
        ValueError: an unknown architecture, a width below one, or a regular representation that does not exist or fit.
    """
    if architecture not in ("auto", "regular", "tensor"):
        raise ValueError(f"architecture={architecture!r}: choose 'auto', 'regular' or 'tensor'")
    if isinstance(width, (Rep, RepType)):
        return bind(width, group)
    if not is_int(width) or width < 1:
        raise ValueError(
            f"hidden={width!r}: give a number of channels of at least 1, a representation, or a list of these"
        )
    if architecture == "regular" or (architecture == "auto" and group.order is not None and group.order <= width):
        return regular_hidden(width, group)
    return component_major(tensor_hidden(width, group))


def component_major(rep: Rep) -> Rep:
    """The same direct sum with the copies of each term innermost: ``n * R`` becomes ``R * (n * Scalar)``.

    Coordinates run over the components of ``R`` first, and the ``n`` channels of one component lie together. Gates,
    contractions and Fourier transforms then work on whole rows of channels instead of groups of three or nine numbers,
    at half to a third of the time.
    """
    if not rep.terms:
        return rep
    one = Scalar(rep.G)
    return reduce(add, [n * r if r.dim == 1 or n == 1 else r * (n * one) for r, n in rep.terms])


def regular_hidden(width: int, group: Group) -> Rep:
    """As many copies of the regular representation as fit, the remaining channels trivial, component-major."""
    if group.order is None:
        raise ValueError(
            f"{group} has no enumerated regular representation (order up to 64); use architecture='tensor'"
        )
    if group.order > width:
        raise ValueError(
            f"hidden={width} is less than the order {group.order} of {group}: widen it or use architecture='tensor'"
        )
    copies, trivial = divmod(width, group.order)
    return component_major((copies * regular(group)) + trivial * Scalar(group))


def tensor_hidden(width: int, group: Group) -> Rep:
    r"""Channels shared out evenly between tensor ranks (Finzi 2023, 2.6).

    Let :math:`d` be the dimension of the group and :math:`R = \max\{r : (r + 1) d^r \le \text{width}\}`; add
    :math:`d^{R-r}` tensors of every rank :math:`r \le R`, subtract their :math:`(R + 1) d^R` channels, and repeat. For
    ``d = 3`` and 384 channels: 102 scalars, 34 vectors, 11 matrices, 3 tensors of rank 3. For groups that are not
    orthogonal the tensors of one rank are split over ``T(p, q)`` in the proportions of the binomial distribution
    (largest remainders first; the published code draws them at random and forgets the draw).
    """
    d, left = group.d, width
    counts: dict[int, int] = {}
    while left > 0:
        R = 0
        while (R + 2) * d ** (R + 1) <= left and (d > 1 or R < MAX_RANK_ON_A_LINE):
            R += 1
        for r in range(R + 1):
            counts[r] = counts.get(r, 0) + d ** (R - r)
        left -= (R + 1) * d**R
    terms: list[RepType] = []
    for r in sorted(counts):
        if group.is_orthogonal:
            terms.append(counts[r] * T(r))
        else:
            terms += [n * T(r - q, q) for q, n in enumerate(_binomial_split(counts[r], r)) if n]
    return reduce(add, terms)(group)


def _binomial_split(n: int, r: int) -> list[int]:
    shares = [n * math.comb(r, q) / 2**r for q in range(r + 1)]
    split = [int(s) for s in shares]
    by_remainder = sorted(range(r + 1), key=lambda q: (split[q] - shares[q], q))
    for q in by_remainder[: n - sum(split)]:
        split[q] += 1
    return split


def is_pointwise(rep: Rep) -> bool:
    """Whether any function applied to each coordinate is equivariant: the representation only permutes them."""
    return rep.is_trivial or rep.is_permutation


def gated(rep: Rep) -> Rep:
    """One scalar for each part that is neither a scalar nor permutation-like, to gate it; then ``rep``.

    Signs and pseudoscalars are not permutation-like: they are gated.

    Raises:
        ValueError: the representation is complex, or bound to no group.
    """
    rep = bind(rep, None)
    gates = sum(len(index) for part, index in rep.blocks() if not is_pointwise(part))
    return gates * Scalar(rep.G) + rep if gates else rep
