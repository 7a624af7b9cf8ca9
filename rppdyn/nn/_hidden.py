"""Hidden layers: their representations, activations by name, and the layers that apply these, point-wise and gated.

A hidden representation is copies of the regular one, or tensors that share the channels out evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add, mul
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.basis import isotypic
from rppdyn.groups import Group
from rppdyn.nn._coefficients import layout_number
from rppdyn.nn._linear import FREE_SCALE, SamplesLastLayer, bind, check_size
from rppdyn.nn._pathways import Kronecker, Pathway, curvature_from_gradients, format_variance, prior_unit
from rppdyn.reps import Rep, RepType, Scalar, T, V, regular
from rppdyn.reps._builtin import LiftedRep
from rppdyn.reps._rep import is_int

Architecture = Literal["auto", "regular", "tensor"]

MAX_RANK_ON_A_LINE = (
    3  # for groups of dimension one: their tensors have one coordinate, so a width does not bound the rank
)
MIN_PRODUCT_CHANNELS = 12  # with three or four a Lorentz network of width 128 had three times the error


def hidden_representation(width: int | Rep | RepType, group: Group, architecture: Architecture = "auto",
                          max_rank: int | None = None, extra_types: tuple[Rep, ...] = ()) -> Rep:  # fmt: skip
    """The representation of a hidden layer, before gates are added; component-major where a width is shared out.

    Args:
        width: a representation (bound or not), or a number of channels to share out.
        architecture: "regular" (finite groups of order up to 64), "tensor" (any group), or "auto": regular where it
            exists and fits, tensors otherwise.
        max_rank: the largest rank of tensors where a width is shared out for channel-wise products
            (:func:`products_hidden`); None for the published share (:func:`tensor_hidden`).
        extra_types: further types of hidden layers with channel-wise products.
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
    return component_major(products_hidden(width, group, max_rank, extra_types))


@lru_cache(maxsize=256)
def products_hidden(width: int, group: Group, max_rank: int, extra_types: tuple[Rep, ...] = ()) -> Rep:
    """The widest tensors up to a rank whose linear layer has ``width`` rows, gates and operands of products included.

    A block with :class:`~rppdyn.nn.ChannelProducts` then costs about as much as a layer of that width without symmetry. In
    narrow layers operands may take more than half of the width: only half is counted, and the layer has more rows. Each extra
    type has as many copies as there are vectors.
    """
    for channels in range(width, 1, -1):
        rep = tensor_hidden(channels, group, max_rank)
        if extra_types:
            vectors = sum(len(index) for part, index in rep.blocks() if part == V(group))
            rep = reduce(add, (vectors * extra for extra in extra_types), rep)
        operands = 2 * product_channels(rep) * sum(t.dim for t in operand_types(rep))
        if gated(rep).dim + min(operands, width // 2) <= width:
            return rep
    return Scalar(group)


def tensor_rank(rep: Rep) -> int:
    """The largest number of tensor factors of a part, scalars aside."""
    return max((len(part.factors) for part, _ in rep.blocks() if not part.is_trivial), default=0)


@lru_cache(maxsize=256)
def missing_types(rep_in: Rep, rep_out: Rep, max_rank: int) -> tuple[Rep, ...] | None:
    """Irreducible types of input and output that tensors up to a rank lack, such as the sign by which a mirror turns a torque.

    Layers of tensors alone would carry nothing of these types. With them come those of the input that scalars and vectors
    lack: products multiply scalars, vectors and extra types, so only as such can a matrix of the input act on a vector.
    None for groups whose irreducible types are not known, those whose matrices are not self-adjoint.
    """
    G, rep = rep_in.G, rep_in + rep_out
    tensors, vectors = (reduce(add, (T(k) for k in range(rank + 1)))(G) for rank in (max_rank, 1))
    try:
        adapted = isotypic([rep, tensors, rep_in, vectors])
    except ValueError:
        return None
    missing = []
    for kind in adapted.types:
        of_all, of_tensors, of_input, of_vectors = kind.multiplicities
        if (of_all and not of_tensors) or (of_input and not of_vectors):
            u = adapted.u[0][:, kind.starts[0] : kind.starts[0] + kind.dim]
            lie, discrete = u.mT @ rep.drho(G.lie_algebra) @ u, u.mT @ rep.rho(G.discrete_generators) @ u
            missing.append(Rep.from_generators(G, lie, discrete, name=f"type of dimension {kind.dim}"))
    return tuple(missing)


def component_major(rep: Rep) -> Rep:
    """The same direct sum with the copies of each term innermost: ``n * R`` becomes ``R * (n * Scalar)``.

    Coordinates run over the components of ``R`` first, and the ``n`` channels of one component lie together. Gates
    and contractions then work on whole rows of channels instead of groups of three or nine numbers, at half to a third of
    the time.
    """
    if not rep.terms:
        return rep
    scalar = Scalar(rep.G)
    return reduce(add, [n * r if r.dim == 1 or n == 1 else r * (n * scalar) for r, n in rep.terms])


@dataclass(frozen=True)
class Points:
    """A hidden layer of a product of groups: features of some factors at each of the points that the others permute.

    Attributes:
        rep: a representation that permutes its coordinates, the points.
        inner: features at one point, a representation of the product of the other factors.
    """

    rep: Rep
    inner: Rep

    @property
    def hidden(self) -> Rep:
        """The representation of the layer, points outermost."""
        return self.rep * self.inner.lift(self.rep.G)


def _points_of(factor: Group) -> Rep | None:
    """The points that a factor permutes: V of permutation matrices, or the regular representation; None if it has neither."""
    if factor.is_permutation:
        points = V(factor)
    elif factor.order is not None:
        points = regular(factor)
    else:
        return None
    return None if points.is_trivial else points


@lru_cache(maxsize=256)
def points_hidden(width: int, rep_in: Rep, rep_out: Rep) -> Points | Rep | None:
    """A hidden layer of points for an input and an output of a product of groups; None where points do not suffice.

    Some factors permute the points (``_points_of``), as in Deep Sets (Zaheer et al. 2017). Activations and products at each
    point commute with them. The other factors act on the features at each point. Without other factors the layer is a
    representation, with a point-wise activation. Points suffice if the layer has all irreducible types of input and output.
    """
    G, both = rep_in.G, rep_in + rep_out
    points, inner_groups = [], []
    inner_slot: list[int] = []  # the other factors' rows of an element
    for place, factor in enumerate(G.factors):
        if (rep := _points_of(factor)) is None:
            inner_groups.append(factor)
            start = sum(f.d for f in G.factors[:place])
            inner_slot += range(start, start + factor.d)
        else:
            points.append(rep.lift(G, factor=place))
    if len(G.factors) < 2 or not points:
        return None
    permuted = reduce(mul, points)
    room, rest = divmod(width, permuted.dim)
    layer: Points | Rep
    if not inner_groups:
        layer = component_major(room * permuted + rest * Scalar(G))
    else:
        H = reduce(mul, inner_groups)

        def at_a_point(rep: Rep) -> Rep:
            """Leave the factors that act on features at a point."""
            parts = [
                [
                    f.of if f.of.G == H else f.of._lift(H, tuple(map(inner_slot.index, f.slot)))
                    for f in part.factors
                    if isinstance(f, LiftedRep) and set(f.slot) <= set(inner_slot)
                ]
                for part, _ in rep.blocks()
            ]
            return reduce(add, [reduce(mul, factors, Scalar(H)) for factors in parts])

        rank = max(1, *(sum(not f.is_permutation for f in part.factors) for part, _ in rep_out.blocks()))
        missing = missing_types(at_a_point(rep_in), at_a_point(rep_out), rank) or ()
        inner = component_major(products_hidden(room, H, rank, missing)) if room else Scalar(H)
        if not tensor_rank(inner):
            return None
        layer = Points(permuted, inner)
    hidden = layer.hidden if isinstance(layer, Points) else layer
    try:
        types = isotypic([both, hidden]).types
    except ValueError:  # types are not known for matrices that are not self-adjoint
        return None
    return None if any(n and not m for n, m in (kind.multiplicities for kind in types)) else layer


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
    (largest remainders first; the published code draws them at random and forgets the draw). ``max_rank`` bounds R; with it,
    groups that turn vectors into covectors have ``T(r)`` alone.
    """
    d, remaining = group.d, width
    highest = math.inf if max_rank is None else max_rank
    counts: dict[int, int] = {}
    while remaining > 0:
        R = 0
        while R < highest and (R + 2) * d ** (R + 1) <= remaining and (d > 1 or R < MAX_RANK_ON_A_LINE):
            R += 1
        for r in range(R + 1):
            counts[r] = counts.get(r, 0) + d ** (R - r)
        remaining -= (R + 1) * d**R
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


def gated(rep: Rep) -> Rep:
    """``rep`` behind its gates: one scalar for each part that is not permutation-like; scalars have none.

    Signs and pseudoscalars are not permutation-like: they are gated.
    """
    rep = bind(rep, None)
    gates = sum(len(index) for part, index in rep.blocks() if not part.is_permutation)
    return gates * Scalar(rep.G) + rep if gates else rep


def operand_types(rep: Rep) -> tuple[Rep, ...]:
    """The types that products multiply: scalars, vectors, and the parts of ``rep`` that are no tensors, such as pseudoscalars.

    Covectors are among them unless the group leaves a metric or a symplectic form invariant, which turns vectors into
    covectors.
    """
    vector = V(rep.G)
    tensors = (vector, vector.T)
    no_tensors = (p for p, _ in rep.blocks() if not p.is_trivial and any(f not in tensors for f in p.factors))
    dual = () if _turns_vectors_into_covectors(rep.G) else (vector.T,)
    return (Scalar(rep.G), vector, *dual, *no_tensors)


@lru_cache(maxsize=256)
def _turns_vectors_into_covectors(group: Group) -> bool:
    return (V(group) >> V(group).T).solve().rank > 0


def product_channels(rep: Rep) -> int:
    """The number of channels whose operands are half as wide as the hidden layer; at least ``MIN_PRODUCT_CHANNELS``."""
    return max(MIN_PRODUCT_CHANNELS, rep.dim // (4 * sum(t.dim for t in operand_types(rep))))


@dataclass(frozen=True)
class Activation:
    r"""A function of each coordinate.

    Attributes:
        gain: :math:`E[f(z)^2]^{-1/2}` for :math:`z \sim N(0, 1)`, which keeps the mean square of hidden features near one.
        is_odd: whether :math:`f(-z) = -f(z)`; such functions commute with changes of sign, all others with permutations alone.
        module: the class of `torch.nn` that is the same function.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    gain: float
    module: type[nn.Module]
    is_odd: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def __reduce__(self) -> tuple:
        """Make a copy or pickle the same object, since layers compare activations by identity."""
        return activation_of, (self.name,)


def _gain(function: Callable[[Tensor], Tensor]) -> float:
    z = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / np.sqrt(2 * np.pi)
    return round(float(torch.trapezoid(density * function(z).square(), z)) ** -0.5, 4)


SWISH = Activation("swish", F.silu, 1.6766, nn.SiLU)
"""The default activation."""

ACTIVATIONS: dict[str, Activation] = {"swish": SWISH} | {
    name: Activation(name, function, _gain(function), module, is_odd=name == "tanh")
    for name, function, module in (
        ("relu", F.relu, nn.ReLU), ("tanh", torch.tanh, nn.Tanh), ("gelu", F.gelu, nn.GELU), ("elu", F.elu, nn.ELU),
        ("leaky_relu", F.leaky_relu, nn.LeakyReLU), ("mish", F.mish, nn.Mish), ("softplus", F.softplus, nn.Softplus),
        ("sigmoid", torch.sigmoid, nn.Sigmoid),
    )
}  # fmt: skip
"""Activations by name."""

ALIASES = {"silu": "swish"}


def activation_of(activation: Any, key: str = "activation") -> Activation:
    """The activation that a name or a class of `torch.nn` stands for.

    Args:
        key: the argument's name in messages.

    >>> activation_of("relu").gain, activation_of(nn.Tanh).name
    (1.4142, 'tanh')
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        name = ALIASES.get(activation.lower(), activation.lower())
    else:
        name = next((a.name for a in ACTIVATIONS.values() if activation is a.module or activation is a.function), "")
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    from rppdyn.settings import did_you_mean  # with pydantic, for a message alone

    hint = did_you_mean(name, [*ACTIVATIONS, *ALIASES])
    modules = ", ".join(a.module.__name__ for a in ACTIVATIONS.values())
    raise ValueError(
        f"{key}={activation!r}: no activation{hint}; choose one of {', '.join(ACTIVATIONS)}, or of torch.nn's classes {modules}"
    )


def _plus(share: Tensor, relaxed: Tensor | None) -> Tensor:
    return share if relaxed is None else share + relaxed


class AtPoints(SamplesLastLayer):
    """A layer of features, the same at each of several points: ``rep_in * points -> rep * points``.

    The layer treats points as further samples.

    Args:
        points: a representation that permutes the points.
        outermost: whether points come first in the output, as they do between blocks.
    """

    def __init__(self, layer: SamplesLastLayer, points: Rep, outermost: bool = False):
        super().__init__()
        self.layer, self.points, self.outermost = layer, points.dim, outermost
        rep_in, rep = (r.lift(points.G) for r in (layer.rep_in, layer.rep))
        self.rep_in, self.rep = rep_in * points, points * rep if outermost else rep * points

    def assemble(self) -> Any:
        return self.layer.assemble()

    def samples_last(self, x: Float[Tensor, "*stack in samples"], weights: Any) -> Float[Tensor, "*stack out samples"]:
        samples = x.shape[-1]
        y = x.unflatten(-2, (self.layer.rep_in.dim, self.points)).flatten(-2)
        y = self.layer.samples_last(y, weights).unflatten(-1, (self.points, samples))
        return (y.transpose(-3, -2) if self.outermost else y).flatten(-3, -2)

    def forward(self, x: Float[Tensor, "*batch in"], weights: Any = None) -> Float[Tensor, "*batch out"]:
        check_size(x, self.rep_in)
        y = self.layer(x.unflatten(-1, (self.layer.rep_in.dim, self.points)).mT, weights)
        return (y if self.outermost else y.mT).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.points} points"


class GatePathway(Pathway):
    r"""The free part of a gate, ``c * f(x)`` with the activation f, :math:`c \sim N(0, \sigma_b^2)`, one per channel."""

    is_free = True

    def __init__(self, channels: int, variance: int | float, *, scale: int | float = FREE_SCALE,
                 activation: Activation = SWISH, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.activation = activation
        unit = prior_unit(variance)
        self.register_unit(unit)
        self.weight = nn.Parameter(scale / unit * torch.randn(channels, generator=generator))

    def curvature(
        self, x: Float[Tensor, "N *places gated"], g: Float[Tensor, "S N *places channels"]
    ) -> list[Kronecker]:
        """One number for each channel, exact; the last channels of the gate's input are its features."""
        gradient = (self.activation(x[..., -g.shape[-1] :]) * g).double()
        squares = gradient.reshape(*g.shape[:2], -1, g.shape[-1]).sum(2).square().sum((0, 1))
        return [Kronecker(torch.full_like(squares, len(x))[:, None, None], squares[:, None, None])]

    def gradient_curvature(self, weight: Float[Tensor, "K channels"], bias: Tensor | None = None) -> list[Kronecker]:
        """One number for each channel, exact; there is no bias."""
        return [curvature_from_gradients(weight.mT[..., None, None])]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()} channels, variance={format_variance(self.log_variance)}"


class Pointwise(nn.Module):
    """An activation of every coordinate, for representations that only permute them; an odd one, for signs, too.

    Args:
        activation: its name, or a class of `torch.nn` (:func:`~rppdyn.nn._hidden.activation_of`).
    Raises:
        ValueError: naming a part that an activation per coordinate would not commute with.
    """

    def __init__(self, rep: Rep, activation: Any = SWISH):
        super().__init__()
        rep = bind(rep, None)
        self.activation = activation_of(activation)
        for part, _ in rep.blocks():
            if not (part.is_permutation or (self.activation.is_odd and part.is_signed_permutation)):
                raise ValueError(
                    f"a point-wise activation breaks the symmetry of {part} in {rep}: its coordinates are not merely "
                    "permuted; use Gate"
                )
        self.rep = rep

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep)
        return self.activation(x)

    def extra_repr(self) -> str:
        return f"{self.rep}" + ("" if self.activation is SWISH else f", {self.activation.name}")


class Gate(SamplesLastLayer):
    r"""``gate(x) = sigmoid(g) x + c swish(x)``: equivariant for ``c = 0``, with a free swish per channel otherwise.

    Scalars and permutation-like parts gate themselves (swish). Each other part, sign representations and pseudoscalars
    included, is multiplied by the sigmoid of a scalar of its own, which the previous layer puts first (``gated(rep)``).
    Another ``activation`` replaces swish, for those parts and in the relaxed term; gates remain sigmoids.

    The relaxed term exists where ``free_variance`` is positive, with prior
    :math:`c \sim N(0, \sigma_b^2)` (Finzi 2023, 3.4, footnote 1).

    Args:
        rep: representation of the output; the input has that of ``gated(rep)``.
        activation: its name, or a class of `torch.nn`.
    """

    gates: Tensor
    free: GatePathway | None

    def __init__(self, rep: Rep, *, free_variance: int | float = 0.0, free_scale: int | float = FREE_SCALE,
                 activation: Any = SWISH, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        self.activation = activation_of(activation)
        self.rep, self.rep_in = rep, gated(rep)
        parts = rep.blocks()
        indices = [index.flatten() for part, index in parts if part.is_permutation]
        gated_indices = [index.T for part, index in parts if not part.is_permutation]  # (components, copies) of each
        pointwise = torch.cat(indices).sort().values if indices else torch.empty(0, dtype=torch.int64)
        self.shapes = tuple(tuple(index.shape) for index in gated_indices)
        self.num_gates = n = sum(copies for _, copies in self.shapes)
        order = torch.cat([pointwise, *(index.flatten() for index in gated_indices)])
        gates = torch.arange(n).split([copies for _, copies in self.shapes])
        gate_places = [gate.repeat(components) for gate, (components, _) in zip(gates, self.shapes, strict=True)]
        self.register_constant("gates", torch.cat([n + torch.arange(len(pointwise)), *gate_places]))
        self.register_order(torch.cat([torch.arange(n), n + order]), order.argsort())
        self.free = None
        if free_variance != 0:
            self.free = GatePathway(
                rep.dim, free_variance, scale=free_scale, activation=self.activation, generator=generator
            )
            self.register_layout(f"gates of {rep} of {rep.G}", [layout_number(self.gates, order)])

    def assemble(self) -> Tensor | None:
        """The free pathway's coefficients, if there is one."""
        return None if self.free is None else self.free.in_units(self.free.weight)

    def samples_last(
        self, x: Float[Tensor, "*stack gated samples"], c: Float[Tensor, "*stack n"] | None
    ) -> Float[Tensor, "*stack n samples"]:
        if self.order is not None:
            x = x.index_select(-2, self.order)
            c = None if c is None else c.index_select(-1, self.order[self.num_gates :] - self.num_gates)
        gates, v = x.split_with_sizes([self.num_gates, self.rep.dim], -2)
        gated_sizes = [components * copies for components, copies in self.shapes]
        sizes = [self.rep.dim - sum(gated_sizes), *gated_sizes]
        pointwise, *parts = v.split_with_sizes(sizes, -2)
        shares = gates.sigmoid().split_with_sizes([copies for _, copies in self.shapes], -2)
        is_swish = self.activation is SWISH
        relaxed: Sequence[Tensor | None] = [None] * len(sizes)  # shares that the relaxed swish adds
        if is_swish and c is not None:
            relaxed = (c.unsqueeze(-1) * v.sigmoid()).split_with_sizes(sizes, -2)
        result = [pointwise * _plus(pointwise.sigmoid(), relaxed[0]) if is_swish else self.activation(pointwise)]
        for part, share, free, shape in zip(parts, shares, relaxed[1:], self.shapes, strict=True):
            share = _plus(share.unsqueeze(-3), None if free is None else free.unflatten(-2, shape))
            result.append((part.unflatten(-2, shape) * share).flatten(-3, -2))
        y = torch.cat(result, -2)
        y = y if is_swish or c is None else y + c.unsqueeze(-1) * self.activation(v)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def extra_repr(self) -> str:
        return f"{self.rep_in} -> {self.rep}" + ("" if self.activation is SWISH else f", {self.activation.name}")
