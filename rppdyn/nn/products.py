"""The channel-wise bilinear layer: each channel multiplies two linear images of the features in every equivariant way."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.bilinear import BilinearPathway
from rppdyn.nn.buffers import ExactBuffers
from rppdyn.nn.derivatives import PullBack, plain_vjp
from rppdyn.nn.hidden import component_major, gated, operand_types
from rppdyn.nn.linear import check_size
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


def _by_component(dim: int, basis: Basis) -> Float[Tensor, "rows pairs"]:
    """Maps as rows, those of one component together; of variance one for operands of variance one."""
    dense = basis.dense()
    return dense.view(dim, -1, basis.rank).transpose(1, 2).reshape(dim * basis.rank, -1) * math.sqrt(dim)


SCALE = 0.1
"""Initial size of what is added, relative to the features: at 1 products of products have heavy tails and are learned badly."""


class _Target(NamedTuple):
    """A part of the output: its dimension and copies, and how many equivariant products end in it."""

    dim: int
    copies: int
    rank: int


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

    def __init__(
        self, rep: Rep, *, channels: int, variance: int | float = 1e5, generator: torch.Generator | None = None
    ):
        super().__init__()
        types, maps = operand_types(rep), product_maps(rep)
        self.hidden, self.rep, self.channels = rep, gated(rep), channels
        self.rep_in = with_operands(rep, channels)
        self.dims = tuple(t.dim for t in types)

        parts = [(part, index, basis) for (part, index), basis in zip(rep.blocks(), maps, strict=True) if basis.rank]
        if not parts:
            names = ", ".join(str(part) for part, _ in rep.blocks())
            raise ValueError(
                f"{rep.G} has no product of scalars and vectors that ends in {names}: give the hidden layer another "
                "type, or bilinear=False"
            )
        self.targets = tuple(_Target(part.dim, len(index), basis.rank) for part, index, basis in parts)
        self.register_exact("products", torch.cat([_by_component(part.dim, basis) for part, _, basis in parts]))
        filled = torch.cat([index.T.flatten() for _, index, _ in parts])
        self.skipped = rep.dim - len(filled)
        order = torch.full((rep.dim,), -1).scatter_(0, filled, torch.arange(len(filled)))
        order[order < 0] = torch.arange(len(filled), rep.dim)
        contiguous = bool((order == torch.arange(rep.dim)).all())
        self.register_buffer("order", None if contiguous else order)
        terms = [t.rank * channels for t in self.targets]
        std = torch.cat(
            [torch.full((t.copies * n,), SCALE * n**-0.5) for t, n in zip(self.targets, terms, strict=True)]
        )
        self.equivariant = BilinearPathway(std, variance, generator)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """The weights, and the equivariant maps from pairs of operands."""
        return self.equivariant.weight, self.products

    def forward(
        self, x: Float[Tensor, "*batch n"], weights: tuple[Tensor, Tensor] | None = None
    ) -> Float[Tensor, "*batch m"]:
        check_size(x, self.rep_in)
        weights = self.assemble() if weights is None else weights
        return self.samples_last(x.reshape(-1, x.shape[-1]).mT, weights).mT.reshape(*x.shape[:-1], self.rep.dim)

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "*stack m samples"]:
        """The same for features as they lie in memory between layers."""
        weight, products = weights
        stack, samples = x.shape[:-2], x.shape[-1]
        kept, *operands = x.split_with_sizes([self.rep.dim, *(2 * self.channels * d for d in self.dims)], -2)
        both = [z.unflatten(-2, (d, 2, self.channels)) for z, d in zip(operands, self.dims, strict=True)]
        pairs = both[0] if len(both) == 1 else torch.cat(both, -4)  # (*stack, D, 2, channels, samples)
        u, v = pairs.select(-3, 0), pairs.select(-3, 1)
        outer = (u.unsqueeze(-3) * v.unsqueeze(-4)).reshape(*stack, sum(self.dims) ** 2, self.channels * samples)
        terms = (products @ outer).unflatten(-1, (self.channels, samples))
        added, row, start = [], 0, 0
        for t in self.targets:
            size, number = t.rank * t.dim, t.rank * self.channels
            own = terms.narrow(-3, row, size).unflatten(-3, (t.dim, t.rank)).flatten(-3, -2)
            mix = weight.narrow(-1, start, t.copies * number).unflatten(-1, (1, t.copies, number))
            added.append((mix @ own).flatten(-3, -2))
            row, start = row + size, start + t.copies * number
        if self.skipped:
            added.append(x.new_zeros(*stack, self.skipped, samples))
        total = added[0] if len(added) == 1 else torch.cat(added, -2)
        total = total if self.order is None else total.index_select(-2, self.order)
        gates = self.rep.dim - total.shape[-2]
        return kept + nn.functional.pad(total, (0, 0, gates, 0))

    def vjp(self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]) -> tuple[Tensor, PullBack]:
        """:meth:`samples_last`, and the function from a cotangent of its result to that of ``x``."""
        return plain_vjp(lambda x: self.samples_last(x, weights), x)

    def extra_repr(self) -> str:
        into = ", ".join(f"{t.rank} into {t.copies} of dimension {t.dim}" for t in self.targets)
        return f"{self.channels} channels, products: {into}"
