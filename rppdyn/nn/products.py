"""The channel-wise bilinear layer: each channel multiplies two linear images of the features in every equivariant way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.nn.bilinear import BilinearPathway
from rppdyn.nn.coefficients import LAYOUT_TOLERANCE, ExactBuffers, layout_number
from rppdyn.nn.derivatives import Arithmetic, PullBack, evaluate, evaluate_vjp, plain_vjp
from rppdyn.nn.hidden import SWISH, Gate, Gating, component_major, gated, operand_types
from rppdyn.nn.linear import check_size
from rppdyn.reps import Rep

if TYPE_CHECKING:
    from rppdyn.basis import Basis


def with_operands(rep: Rep, channels: int) -> Rep:
    """The output of a linear layer before products: ``gated(rep)``, and two operands for each channel."""
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

    basis_names = ("products_exact",)

    products: Tensor
    products_exact: Tensor
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
        self.register_constant("products", torch.cat(parts))
        self.arithmetic = Multiplying(self.rep.dim, dim, channels, tuple(targets))
        place = torch.cat(
            [index.T.flatten() for _, index in rep.blocks()]
        )  # part by part, of each all copies of one component
        order = torch.arange(self.rep_in.dim)
        order[self.rep.dim - rep.dim : self.rep.dim] = self.rep.dim - rep.dim + place
        contiguous = bool((place == torch.arange(rep.dim)).all())
        self.register_constant("order", None if contiguous else order)
        self.register_constant("inverse", None if contiguous else order[: self.rep.dim].argsort())
        terms = [t.rank * channels for t in targets]
        std = torch.cat([torch.full((t.copies * n,), SCALE * n**-0.5) for t, n in zip(targets, terms, strict=True)])
        self.equivariant = BilinearPathway(std, variance, generator)
        rows, cols = self.products.nonzero(as_tuple=True)
        numbers = (
            layout_number(self.products_exact[rows, cols], rows, cols),
            layout_number(order + 1.0, torch.arange(len(order))),
        )
        self.register_layout(f"products that end in {rep} of {rep.G}", numbers)

    def takes_constants(self, saved: Mapping[str, Tensor]) -> bool:
        others = {name: t for name, t in saved.items() if name != "products_exact"}
        basis, own = saved.get("products_exact"), self._constants["products_exact"]
        if basis is None or basis.shape != own.shape:
            return basis is None and super().takes_constants(others)
        start = 0
        for t in self.arithmetic.targets:
            both = (
                p[start : start + t.dim * t.rank].unflatten(0, (t.dim, t.rank)) for p in (basis.double().cpu(), own)
            )
            overlap = torch.einsum("dap,dbp->ab", *both).square().sum() / t.dim**2
            start += t.dim * t.rank
            if abs(float(overlap) - t.rank) > LAYOUT_TOLERANCE * t.rank:
                return False
        return super().takes_constants(others)

    def use_basis(self, saved: Mapping[str, Tensor]) -> None:
        own = (self._constants if self._solved is None else self._solved)["products_exact"]
        new = saved.get("products_exact", own).double().cpu()
        self._solved = None if torch.allclose(new, own) else {"products_exact": own}
        self._constants["products_exact"] = own if self._solved is None else new
        self.products_exact = self._constants["products_exact"].to(self.products.device)
        self._derive()

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        if f"{prefix}equivariant.weight" in state_dict and not self.saved_basis(state_dict, prefix):
            self.use_basis({})
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

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
    dense = basis.canonical().dense()
    return dense.view(dim, -1, basis.rank).transpose(1, 2).reshape(dim * basis.rank, -1) * math.sqrt(dim)


# -- the arithmetic of channel-wise products, with derivatives of few passes over memory ---------------------------------------


@dataclass(frozen=True)
class Target:
    """A part of the output: from which row on, its dimension and copies, how many equivariant products end in it."""

    start: int
    dim: int
    copies: int
    rank: int


@dataclass(frozen=True)
class Multiplying(Arithmetic):
    r"""``y = z + w t`` with ``x = (z, u_c, v_c)`` and ``t = P (u_c \otimes v_c)`` for each channel ``c``, the samples last.

    ``index`` is ``P``, the equivariant maps from pairs of operands to all targets, with a row for each component and product.
    The parameter is the weights: for each target a matrix from its products of all channels to its copies.

    Args:
        features: how many rows ``z`` has, and ``y``.
        dim: the dimension of an operand.
        channels: how many pairs.
        targets: in the order of ``P``.
    """

    features: int
    dim: int
    channels: int
    targets: tuple[Target, ...]

    def _operands(self, x: Float[Tensor, "*stack n samples"]) -> tuple[Tensor, Tensor]:
        """Both, ``(*stack, dim, 1, channels, samples)`` and ``(*stack, 1, dim, channels, samples)``, as they are multiplied."""
        *stack, n, samples = x.shape
        pairs = x.narrow(-2, self.features, n - self.features).view(*stack, self.dim, 2, 1, self.channels, samples)
        return pairs.select(-4, 0), pairs.select(-4, 1).transpose(-4, -3)

    def _products(self, index: Tensor, outer: Float[Tensor, "*stack d d channels samples"]) -> Tensor:
        """``P`` times pairs, ``(*stack, rows * channels, samples)``."""
        *stack, _, _, _, samples = outer.shape
        rows, pairs = index.shape
        terms = index @ outer.reshape(*stack, pairs, self.channels * samples)
        return terms.view(*stack, rows * self.channels, samples)

    def _pairs(self, index: Tensor, terms: Float[Tensor, "*stack terms samples"]) -> Tensor:
        """The transpose of :meth:`_products`."""
        *stack, _, samples = terms.shape
        outer = index.mT @ terms.view(*stack, len(index), self.channels * samples)
        return outer.view(*stack, self.dim, self.dim, self.channels, samples)

    def _by_target(self, y: Tensor, terms: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each target: rows ``(*stack, dim, copies, samples)``, products, and weights ``(*stack, copies, products)``."""
        *stack, _, samples = y.shape
        row = first = 0
        for t in self.targets:
            products = t.rank * self.channels
            yield (
                y.narrow(-2, t.start, t.dim * t.copies).view(*stack, t.dim, t.copies, samples),
                terms.narrow(-2, row, t.dim * products).view(*stack, t.dim, products, samples),
                weight.narrow(-1, first, t.copies * products).view(*weight.shape[:-1], t.copies, products),
            )
            row, first = row + t.dim * products, first + t.copies * products

    def _added(self, y: Tensor, terms: Tensor, weight: Tensor) -> Tensor:
        """``y + w t``, in place."""
        for rows, product, w in self._by_target(y, terms, weight):
            if rows.ndim == 3:
                rows.baddbmm_(w.expand(len(rows), -1, -1), product)
            else:
                rows.add_(w.unsqueeze(-3) @ product)
        return y

    def _gradient_of_weights(self, g: Tensor, terms: Tensor, weight: Tensor) -> Tensor:
        grad = torch.empty_like(weight, memory_format=torch.contiguous_format)
        for rows, product, w in self._by_target(g, terms, grad):
            torch.sum(rows @ product.mT, -3, out=w)
        return grad

    def plain(self, index, x, *parameters):
        u, v = self._operands(x)
        terms = self._products(index, u * v)
        parts, row = [], 0
        for t, (rows, product, w) in zip(self.targets, self._by_target(x, terms, parameters[0]), strict=True):
            parts += [x[..., row : t.start, :], (rows + w.unsqueeze(-3) @ product).flatten(-3, -2)]
            row = t.start + t.dim * t.copies
        return torch.cat([*parts, x[..., row : self.features, :]], -2)

    def value(self, index, inputs):
        x, weight = inputs
        u, v = self._operands(x)
        terms = self._products(index, u * v)
        y = x.narrow(-2, 0, self.features).clone(memory_format=torch.contiguous_format)
        return (self._added(y, terms, weight),), (terms,)

    def gradient(self, index, inputs, residuals, every, again):
        x, weight, g = inputs
        (terms,) = residuals
        g = g.contiguous()
        back = torch.empty_like(terms)
        for rows, product, w in self._by_target(g, back, weight):
            if rows.ndim == 3:
                torch.bmm(w.mT.expand(len(rows), -1, -1), rows, out=product)
            else:
                torch.matmul(w.mT.unsqueeze(-3), rows, out=product)
        outer = self._pairs(index, back)
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        grad_x.narrow(-2, 0, self.features).copy_(g)
        (u, v), (grad_u, grad_v) = self._operands(x), self._operands(grad_x)
        torch.sum(outer * v, -3, keepdim=True, out=grad_u)
        torch.sum(outer * u, -4, keepdim=True, out=grad_v)
        return (grad_x, self._gradient_of_weights(g, terms, weight)) if every else (grad_x,), (outer,)

    def second(self, index, inputs, residuals):
        x, weight, g, along = inputs
        _, outer = residuals
        (u, v), (u_along, v_along) = self._operands(x), self._operands(along)
        terms = self._products(index, (u_along * v).addcmul_(u, v_along))
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        grad_x.narrow(-2, 0, self.features).zero_()
        grad_u, grad_v = self._operands(grad_x)
        torch.sum(outer * v_along, -3, keepdim=True, out=grad_u)
        torch.sum(outer * u_along, -4, keepdim=True, out=grad_v)
        grad_g = along.narrow(-2, 0, self.features).clone(memory_format=torch.contiguous_format)
        return grad_x, self._gradient_of_weights(g.contiguous(), terms, weight), self._added(grad_g, terms, weight)


@dataclass(frozen=True)
class GatedProducts(Arithmetic):
    """Products and then the gate as one function: a call from Python takes as long as the arithmetic of many samples.

    Parameters are the weights of :class:`Multiplying` and, where the gate is relaxed, its ``c``.
    """

    multiplying: Multiplying
    gating: Gating

    def plain(self, index, x, *parameters):
        weight, *c = parameters
        return self.gating.plain(None, self.multiplying.plain(index, x, weight), *c)

    def value(self, index, inputs):
        x, weight, *c = inputs
        (y,), (terms,) = self.multiplying.value(index, (x, weight))
        result, (s, h) = self.gating.value(None, (y, *c))
        return result, (y, terms, s, h)

    def gradient(self, index, inputs, residuals, every, again):
        x, weight, *c, g = inputs
        y, terms, s, h = residuals
        (grad_y, *grad_c), back = self.gating.gradient(None, (y, *c, g), (s, h), every, again)
        grads, (outer,) = self.multiplying.gradient(index, (x, weight, grad_y), (terms,), every, again)
        return (*grads, *grad_c), (grad_y, outer, *back) if again else ()

    def second(self, index, inputs, residuals):
        x, weight, *c, g, u = inputs
        y, terms, s, h, grad_y, outer, back = residuals
        grad_x, grad_weight, along = self.multiplying.second(index, (x, weight, grad_y, u), (terms, outer))
        grad_through, *grad_c, grad_g = self.gating.second(None, (y, *c, g, along), (s, h, back))
        more, _ = self.multiplying.gradient(index, (x, weight, grad_through), (terms,), True, False)
        return grad_x.add_(more[0]), grad_weight.add_(more[1]), *grad_c, grad_g
