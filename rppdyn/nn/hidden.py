"""Hidden representations: copies of the regular representation, or tensors that share the channels out evenly."""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from operator import add
from typing import Literal

from rppdyn.basis import isotypic
from rppdyn.groups import Group
from rppdyn.nn.linear import bind
from rppdyn.reps import Rep, RepType, Scalar, T, V, regular
from rppdyn.reps.rep import is_int

Architecture = Literal["auto", "regular", "tensor"]

MAX_RANK_ON_A_LINE = 3  # every power of a one-dimensional group has one coordinate, so the width sets no bound there


LEAST_CHANNELS = 12  # with three or four a Lorentz network of width 128 had three times the error


def hidden_representation(
    width: int | Rep | RepType,
    group: Group,
    architecture: Architecture = "auto",
    max_rank: int | None = None,
    others: tuple[Rep, ...] = (),
) -> Rep:
    """The representation of a hidden layer, before gates are added; component-major where a width is shared out.

    Args:
        width: a representation (bound or not), or a number of channels to share out.
        architecture: "regular" (finite groups of order up to 64), "tensor" (any group), or "auto": regular where it
            exists and fits, tensors otherwise.
        max_rank: the largest rank of tensors where a width is shared out for channel-wise products
            (:func:`products_hidden`); None for the published share (:func:`tensor_hidden`).
        others: further types of hidden layers with channel-wise products.
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
    if max_rank is None:
        return component_major(tensor_hidden(width, group))
    return component_major(products_hidden(width, group, max_rank, others))


@lru_cache(maxsize=256)
def products_hidden(width: int, group: Group, max_rank: int, others: tuple[Rep, ...] = ()) -> Rep:
    """The widest tensors of small rank that, with gates and the operands of products, are ``width`` rows of a linear layer.

    Operands are counted as half of the width at most: narrow layers have more rows.
    A block with :class:`~rppdyn.nn.ChannelProducts` then costs about what a layer of that width costs without symmetry. Of each
    of the ``others`` there are as many copies as of vectors.
    """
    for channels in range(width, 1, -1):
        rep = tensor_hidden(channels, group, max_rank)
        if others:
            vectors = sum(len(index) for part, index in rep.blocks() if part == V(group))
            rep = reduce(add, (vectors * other for other in others), rep)
        operands = 2 * product_channels(rep) * sum(t.dim for t in operand_types(rep))
        if gated(rep).dim + min(operands, width // 2) <= width:
            return rep
    return Scalar(group)


def tensor_rank(rep: Rep) -> int:
    """The largest number of tensor factors of a part, scalars aside."""
    return max((len(part.factors) for part, _ in rep.blocks() if not part.is_trivial), default=0)


def missing_types(rep: Rep, max_rank: int) -> tuple[Rep, ...]:
    """The irreducible types of ``rep`` that tensors up to a rank lack, such as the sign of a torque that a reflection turns.

    Layers of those tensors alone would carry nothing of them. There are none where the group's matrices are not self-adjoint,
    which have no such types.
    """
    G = rep.G
    try:
        adapted = isotypic([rep, reduce(add, (T(k) for k in range(max_rank + 1)))(G)])
    except ValueError:
        return ()
    missing = []
    for kind in adapted.types:
        if kind.multiplicities[0] and not kind.multiplicities[1]:
            u = adapted.u[0][:, kind.starts[0] : kind.starts[0] + kind.dim]
            lie, discrete = u.mT @ rep.drho(G.lie_algebra) @ u, u.mT @ rep.rho(G.discrete_generators) @ u
            missing.append(Rep.from_generators(G, lie, discrete, name=f"type of dimension {kind.dim}"))
    return tuple(missing)


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


def tensor_hidden(width: int, group: Group, max_rank: int | None = None) -> Rep:
    r"""Channels shared out evenly between tensor ranks (Finzi 2023, 2.6).

    Let :math:`d` be the dimension of the group and :math:`R = \max\{r : (r + 1) d^r \le \text{width}\}`; add
    :math:`d^{R-r}` tensors of every rank :math:`r \le R`, subtract their :math:`(R + 1) d^R` channels, and repeat. For
    ``d = 3`` and 384 channels: 102 scalars, 34 vectors, 11 matrices, 3 tensors of rank 3. For groups that are not
    orthogonal the tensors of one rank are split over ``T(p, q)`` in the proportions of the binomial distribution
    (largest remainders first; the published code draws them at random and forgets the draw). ``max_rank`` bounds R.
    """
    d, left = group.d, width
    highest = math.inf if max_rank is None else max_rank
    counts: dict[int, int] = {}
    while left > 0:
        R = 0
        while R < highest and (R + 2) * d ** (R + 1) <= left and (d > 1 or R < MAX_RANK_ON_A_LINE):
            R += 1
        for r in range(R + 1):
            counts[r] = counts.get(r, 0) + d ** (R - r)
        left -= (R + 1) * d**R
    terms: list[RepType] = []
    for r in sorted(counts):
        if group.is_orthogonal or (max_rank is not None and len(operand_types(Scalar(group))) == 2):
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
    """Check whether any function applied to each coordinate is equivariant: the representation only permutes them."""
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


def operand_types(rep: Rep) -> tuple[Rep, ...]:
    """The types that are multiplied: scalars, vectors, covectors where the group does not make them the same, and those of the
    parts of ``rep`` that are no tensors, such as pseudoscalars.

    A form that the group leaves invariant, as a metric or a symplectic form, turns vectors into covectors.
    """
    vector = V(rep.G)
    tensors = (vector, vector.T)
    others = (p for p, _ in rep.blocks() if not p.is_trivial and any(f not in tensors for f in p.factors))
    dual = () if _turns_vectors_into_covectors(rep.G) else (vector.T,)
    return (Scalar(rep.G), vector, *dual, *others)


@lru_cache(maxsize=256)
def _turns_vectors_into_covectors(group: Group) -> bool:
    return (V(group) >> V(group).T).solve().rank > 0


def product_channels(rep: Rep) -> int:
    """As many pairs as make the operands half as wide as the hidden representation, and at least ``LEAST_CHANNELS``."""
    return max(LEAST_CHANNELS, rep.dim // (4 * sum(t.dim for t in operand_types(rep))))
