"""The channel-wise bilinear layer: each channel multiplies two linear images of the features in every equivariant way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.nn._bilinear import BilinearPathway
from rppdyn.nn._coefficients import LAYOUT_TOLERANCE, layout_number
from rppdyn.nn._hidden import component_major, gated, operand_types
from rppdyn.nn._linear import SamplesLastLayer
from rppdyn.reps import Rep

if TYPE_CHECKING:
    from rppdyn.basis import Basis


def with_operands(rep: Rep, channels: int) -> Rep:
    """The output of a linear layer before products: ``gated(rep)``, and two operands for each channel."""
    return reduce(add, (component_major(2 * channels * t) for t in operand_types(rep)), gated(rep))


def product_maps(rep: Rep) -> list[Basis]:
    """Bases of the equivariant maps from pairs of operands to each part of ``rep``; their ranks may be 0."""
    operand = reduce(add, operand_types(rep))
    return [(operand * operand >> part).solve() for part, _ in rep.blocks()]


INITIAL_PRODUCT_SCALE = 0.1
"""Initial size of the products relative to the features; at 1, products of products have heavy tails and train badly."""


@dataclass(frozen=True)
class Target:
    """A part of the output: its first row, dimension, number of copies, and the number of equivariant products into it."""

    start: int
    dim: int
    copies: int
    rank: int


class ChannelProducts(SamplesLastLayer):
    r"""The identity plus equivariant products of pairs, channel by channel: ``gated(rep) + operands -> gated(rep)``.

    Channel ``c`` has two operands of its own, :math:`u_c` and :math:`v_c`, which the linear layer before makes. An operand is a
    scalar, a vector and one of each further type together. With a basis :math:`P_{tb}` of the equivariant maps from pairs of
    operands to a type ``t``,

    .. math:: y_{tm} \mathrel{+}= \sum_{bc} w_{tmbc} P_{tb} (u_c \otimes v_c).

    The maps come from the solver: metrics, symplectic forms, cross and outer products, whichever the group has. The layer
    equals the published bilinear one (:class:`~rppdyn.nn.Bilinear`), which multiplies every channel with every other, with a
    tensor of weights of rank ``channels``. It costs as much as the products of e3nn's ``uuu`` paths and one small matrix for
    each type.

    Args:
        rep: representation of the hidden layer, gates left out, component-major.
        channels: how many pairs are multiplied.
        variance: :math:`\sigma_a^2` of the weights. They are equivariant, so there is no free pathway.
        generator: source of the initial weights.
    Raises:
        ValueError: the group has no product that ends in a type of ``rep``.
    """

    basis_names = ("products_exact",)

    products: Tensor
    products_exact: Tensor
    rows: Tensor
    weights: Tensor
    sources: Tensor

    def __init__(self, rep: Rep, *, channels: int, variance: int | float = 1e5,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        maps, dim = product_maps(rep), sum(t.dim for t in operand_types(rep))
        self.hidden, self.rep, self.channels = rep, gated(rep), channels
        self.rep_in = with_operands(rep, channels)
        parts, targets, start = [], [], self.rep.dim - rep.dim
        for (part, index), basis in zip(rep.blocks(), maps, strict=True):
            if basis.rank:
                targets.append(Target(start, part.dim, len(index), basis.rank))
                dense = basis.canonical().dense().view(part.dim, -1, basis.rank) * math.sqrt(part.dim)
                parts.append(dense.transpose(1, 2).flatten(0, 1))  # of variance one for operands of variance one
            start += index.numel()
        if not parts:
            names = ", ".join(str(part) for part, _ in rep.blocks())
            raise ValueError(
                f"{rep.G} has no product of scalars and vectors that ends in {names}: give the hidden layer another "
                "type, or bilinear=False"
            )
        self.register_constant("products", torch.cat(parts))
        self.targets, self.operand_dim = tuple(targets), dim
        # part by part; within a part all copies of one component together
        place = torch.cat([index.T.flatten() for _, index in rep.blocks()])
        order = torch.arange(self.rep_in.dim)
        order[self.rep.dim - rep.dim : self.rep.dim] = self.rep.dim - rep.dim + place
        self.register_order(order, order[: self.rep.dim].argsort())
        self._place()
        sizes = [(t.copies, t.rank * channels) for t in targets]  # copies, and how many products each of them sums
        std = torch.cat([torch.full((copies * n,), INITIAL_PRODUCT_SCALE * n**-0.5) for copies, n in sizes])
        self.equivariant = BilinearPathway(std, variance, generator)
        rows, cols = self.products.nonzero(as_tuple=True)
        number = layout_number(self.products_exact[rows, cols], rows, cols)
        numbers = number, layout_number(order + 1.0, torch.arange(len(order)))
        self.register_layout(f"products that end in {rep} of {rep.G}", numbers)

    def _overlaps(self, basis: Tensor) -> list[Float[Tensor, "rank rank"]]:
        """Inner products of each target's saved maps with this layer's: orthogonal where both are bases of one space."""
        sizes = [t.dim * t.rank for t in self.targets]
        pairs = (p.split(sizes) for p in (basis.double().cpu(), self._constants["products_exact"]))
        shapes = [(t.dim, t.rank, -1) for t in self.targets]
        parts = zip(*pairs, shapes, strict=True)
        return [torch.einsum("dap,dbp->ab", old.view(s), new.view(s)) / s[0] for old, new, s in parts]

    def takes_constants(self, saved: Mapping[str, Tensor]) -> bool:
        if (basis := saved.get("products_exact")) is not None:
            if basis.shape != self._constants["products_exact"].shape:
                return False
            for t, overlap in zip(self.targets, self._overlaps(basis), strict=True):
                if abs(float(overlap.square().sum()) - t.rank) > LAYOUT_TOLERANCE * t.rank:
                    return False
        return super().takes_constants({name: t for name, t in saved.items() if name != "products_exact"})

    def _place(self) -> None:
        """Register the place of each entry of :meth:`matrix`, and the weight and the entry of the maps whose product it is."""
        pairs, row, first = self.operand_dim**2, 0, 0
        places = []
        for t in self.targets:
            P = self._constants["products_exact"][row : row + t.dim * t.rank].view(t.dim, t.rank, pairs)
            d, r, pair = P.nonzero().T.unsqueeze(-1)  # (entries, 1) each, which broadcast with the copies
            copy = torch.arange(t.copies)
            rows, weights = t.start + d * t.copies + copy, first + copy * t.rank + r
            sources = ((row + d * t.rank + r) * pairs + pair).expand_as(rows)
            places.append(torch.stack([rows * pairs + pair, weights, sources]).flatten(1))
            row, first = row + t.dim * t.rank, first + t.copies * t.rank
        rows, weights, sources = torch.cat(places, 1).unsqueeze(-1)
        channel = torch.arange(self.channels)
        self.register_constant("rows", (rows * self.channels + channel).flatten())
        self.register_constant("weights", (weights * self.channels + channel).flatten())
        self.register_constant("sources", sources.expand(-1, self.channels).flatten())

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        saved, name = self.saved_basis(state_dict, prefix), f"{prefix}equivariant.weight"
        maps = self._constants["products_exact"]
        if saved and name in state_dict and not torch.allclose(saved["products_exact"].double().cpu(), maps):
            weights, parts = state_dict[name], []
            sizes = [t.copies * t.rank * self.channels for t in self.targets]
            overlaps = self._overlaps(saved["products_exact"])
            for t, w, overlap in zip(self.targets, weights.split(sizes, -1), overlaps, strict=True):
                w = w.reshape(*w.shape[:-1], t.copies, t.rank, self.channels)
                parts.append(torch.einsum("...mac,ab->...mbc", w.double(), overlap.to(w.device)).flatten(-3))
            state_dict[name] = torch.cat(parts, -1).to(weights)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def assemble(self) -> Float[Tensor, "*members m products"]:
        return self.matrix(self.equivariant.weight)

    def matrix(self, weight: Float[Tensor, "*members w"]) -> Float[Tensor, "*members m products"]:
        """The matrix from products of operands, all pairs of all channels, to the output: weights times equivariant maps.

        It is as large as the linear layer's. With it no product of a pair with a single map is computed: there may be more of
        those than copies of a part.
        """
        values = self.products.flatten().index_select(0, self.sources)
        entries = weight.index_select(-1, self.weights) * values
        members, shape = entries.shape[:-1], (self.rep.dim, self.operand_dim**2 * self.channels)
        return entries.new_zeros(*members, math.prod(shape)).index_add(-1, self.rows, entries).view(*members, *shape)

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: Float[Tensor, "*stack m products"]
    ) -> Float[Tensor, "*stack m samples"]:
        """``y = z + M (u_c x v_c)`` with ``x = (z, u_c, v_c)`` and the pairs of all channels in one vector."""
        x = x if self.order is None else x.index_select(-2, self.order)
        *stack, _, samples = x.shape
        z, operands = x.split_with_sizes([self.rep.dim, self.rep_in.dim - self.rep.dim], -2)
        u, v = operands.reshape(*stack, self.operand_dim, 2, self.channels, samples).unbind(-3)
        outer = (u.unsqueeze(-3) * v.unsqueeze(-4)).flatten(-4, -2)
        y = (torch.addmm if weights.ndim == 2 else torch.baddbmm)(z, weights, outer)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def extra_repr(self) -> str:
        into = ", ".join(f"{t.rank} into {t.copies} of dimension {t.dim}" for t in self.targets)
        return f"{self.channels} channels, products: {into}"
