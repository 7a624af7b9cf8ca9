"""The channel-wise bilinear layer: each channel multiplies two linear images of the features in every equivariant way."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.nn.activations import SWISH
from rppdyn.nn.bilinear import BilinearPathway
from rppdyn.nn.buffers import ExactBuffers
from rppdyn.nn.derivatives import PullBack, evaluate, evaluate_vjp, plain_vjp
from rppdyn.nn.gate import Gate
from rppdyn.nn.hidden import component_major, gated, operand_types
from rppdyn.nn.linear import check_size
from rppdyn.nn.multiplying import GatedProducts, Multiplying, Target
from rppdyn.reps import Rep

if TYPE_CHECKING:
    from rppdyn.basis import Basis

__all__ = ["ChannelProducts", "product_maps", "with_operands"]


def with_operands(rep: Rep, channels: int) -> Rep:
    """What a linear layer makes before products: ``gated(rep)``, and two operands for each channel."""
    return reduce(add, (component_major(2 * channels * t) for t in operand_types(rep)), gated(rep))


def product_maps(rep: Rep) -> list[Basis]:
    """The equivariant maps from pairs of operands to each part of ``rep``, which may be none."""
    operand = reduce(add, operand_types(rep))
    return [(operand * operand >> part).solve() for part, _ in rep.blocks()]


SCALE = 0.1
"""Initial size of what is added, relative to the features: at 1 products of products have heavy tails and are learned badly."""


class ChannelProducts(ExactBuffers):
    r"""The identity plus equivariant products of pairs, channel by channel: ``gated(rep) + operands -> gated(rep)``.

    Channel ``c`` has two operands of its own, :math:`u_c` and :math:`v_c`, each a scalar and a vector, which the linear layer
    before it makes. With a basis :math:`P_{tb}` of the equivariant maps from pairs of operands to the type ``t`` of ``rep``,

    .. math:: y_{tm} \mathrel{+}= \sum_{bc} w_{tmbc} P_{tb} (u_c \otimes v_c).

    The maps come from the solver: metrics, symplectic forms, cross and outer products, whichever the group has. This is the
    published bilinear layer (:class:`~rppdyn.nn.Bilinear`), in which every channel meets every other, with its tensor of
    weights of rank ``channels``; the cost is that of the products of e3nn's ``uuu`` paths and one small matrix for each type.

    Args:
        rep: representation of the hidden layer, gates left out, component-major.
        channels: how many pairs are multiplied.
        variance: :math:`\sigma_a^2` of the weights. They are equivariant, so there is no free pathway.
        generator: source of the initial weights.
    Raises:
        ValueError: the group has no product that ends in a type of ``rep``.
    """

    products: Tensor
    order: Tensor | None
    inverse: Tensor | None

    def __init__(
        self, rep: Rep, *, channels: int, variance: int | float = 1e5, generator: torch.Generator | None = None
    ):
        super().__init__()
        maps, dim = product_maps(rep), sum(t.dim for t in operand_types(rep))
        self.hidden, self.rep, self.channels = rep, gated(rep), channels
        self.rep_in = with_operands(rep, channels)
        parts, targets, start = [], [], self.rep.dim - rep.dim
        for (part, index), basis in zip(rep.blocks(), maps, strict=True):
            if basis.rank:
                targets.append(Target(start, part.dim, len(index), basis.rank))
                parts.append(_by_component(part.dim, basis))
            start += index.numel()
        if not parts:
            names = ", ".join(str(part) for part, _ in rep.blocks())
            raise ValueError(
                f"{rep.G} has no product of scalars and vectors that ends in {names}: give the hidden layer another "
                "type, or bilinear=False"
            )
        self.register_exact("products", torch.cat(parts))
        self.arithmetic = Multiplying(self.rep.dim, dim, channels, tuple(targets))
        own = torch.cat(
            [index.T.flatten() for _, index in rep.blocks()]
        )  # part by part, of each all copies of one component
        order = torch.arange(self.rep_in.dim)
        order[self.rep.dim - rep.dim : self.rep.dim] = self.rep.dim - rep.dim + own
        contiguous = bool((own == torch.arange(rep.dim)).all())
        self.register_buffer("order", None if contiguous else order)
        self.register_buffer("inverse", None if contiguous else order[: self.rep.dim].argsort())
        terms = [t.rank * channels for t in targets]
        std = torch.cat([torch.full((t.copies * n,), SCALE * n**-0.5) for t, n in zip(targets, terms, strict=True)])
        self.equivariant = BilinearPathway(std, variance, generator)

    def assemble(self) -> Float[Tensor, " n"]:
        """The weights."""
        return self.equivariant.weight

    def forward(
        self, x: Float[Tensor, "*batch n"], weights: Float[Tensor, " w"] | None = None
    ) -> Float[Tensor, "*batch m"]:
        check_size(x, self.rep_in)
        weights = self.assemble() if weights is None else weights
        y = self.samples_last(x.reshape(-1, x.shape[-1]).mT.contiguous(), weights)
        return y.mT.reshape(*x.shape[:-1], self.rep.dim)

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: Float[Tensor, "*stack w"]
    ) -> Float[Tensor, "*stack m samples"]:
        """The same for features as they lie in memory between layers."""
        if self.order is not None:
            x = x.index_select(-2, self.order)
        y = evaluate(self.arithmetic, self.products, x, weights)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def vjp(self, x: Float[Tensor, "*stack n samples"], weights: Float[Tensor, "*stack w"]) -> tuple[Tensor, PullBack]:
        """:meth:`samples_last`, and the function from a cotangent of its result to that of ``x``."""
        if self.order is not None:
            return plain_vjp(lambda x: self.samples_last(x, weights), x)
        return evaluate_vjp(self.arithmetic, self.products, x, weights)

    def gated(
        self, gate: Gate, x: Float[Tensor, "*stack n samples"], weights: Float[Tensor, "*stack w"],
        c: Float[Tensor, "*stack k"] | None,
    ) -> Float[Tensor, "*stack k samples"]:  # fmt: skip
        """:meth:`samples_last` and then the gate, in one where both have the features in their own order."""
        if self.order is not None or gate.order is not None or gate.activation is not SWISH:
            return gate.samples_last(self.samples_last(x, weights), c)
        both = GatedProducts(self.arithmetic, gate.gating)
        return evaluate(both, self.products, x, weights, *(() if c is None else (c,)))

    def extra_repr(self) -> str:
        into = ", ".join(f"{t.rank} into {t.copies} of dimension {t.dim}" for t in self.arithmetic.targets)
        return f"{self.channels} channels, products: {into}"


def _by_component(dim: int, basis: Basis) -> Float[Tensor, "rows pairs"]:
    """Maps as rows, those of one component together; of variance one for operands of variance one."""
    dense = basis.dense()
    return dense.view(dim, -1, basis.rank).transpose(1, 2).reshape(dim * basis.rank, -1) * math.sqrt(dim)
