r"""Strict networks over a finite group, run in the Fourier basis of the group.

An equivariant map between copies of the regular representation of a group of order :math:`k` is a group convolution,
:math:`W_{(g'c')(gc)} = a_{g^{-1}g'}(c', c)`. In a basis adapted to the real irreducible types it is block diagonal:
a type of dimension :math:`d` whose commuting matrices have dimension :math:`u` (1 real, 2 complex, 4 quaternionic)
contributes :math:`d/u` equal blocks of size :math:`d n`, so a layer costs :math:`\sum_t d_t^3/u_t` products of :math:`n^2`
per sample where a dense one costs :math:`k^2`: half for Z_2, 3/8 for Z_4, 3/16 for D_4.

Parameters stay the tied weights of :class:`~rppdyn.nn.pathways.EquivariantPathway`; only the arithmetic changes.
Features are held as ``(group, copies, batch)`` between layers: there the transform is one product with a ``k x k``
matrix, every block's features are adjacent, and no gradient is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rppdyn.basis import isotypic
from rppdyn.groups import Group
from rppdyn.nn.coefficients import ExactBuffers
from rppdyn.nn.hidden import SWISH, Activation
from rppdyn.nn.linear import RelaxedLinear
from rppdyn.reps import Rep, regular

LEAST_WIDTH = 128  # narrower layers are bound by the number of operations, and dense ones have fewer

Features = tuple[Tensor, Tensor | None]  # (k, copies, batch) and, where there are trivial channels, (channels, batch)


@dataclass(frozen=True)
class _Type:
    """An irreducible type inside one regular representation: ``d / u`` equal blocks, each ``d`` rows of the transform."""

    start: int
    d: int
    repeats: int
    offset: int  # of its d * d coefficient rows


def regular_copies(rep: Rep) -> tuple[int, int] | None:
    """``(n, r)`` where ``rep`` is ``R * (n * Scalar) + r * Scalar`` in this order of coordinates, else None."""
    if rep.G.order is None:
        return None
    blocks = rep.blocks()
    R = regular(rep.G)
    if len(blocks) > 2 or blocks[0][0] != R or any(not (b.dim == 1 and b.is_trivial) for b, _ in blocks[1:]):
        return None
    n = len(blocks[0][1])
    r = len(blocks[1][1]) if len(blocks) == 2 else 0
    order = torch.cat([index.T.flatten() for _, index in blocks])
    return (n, r) if R.dim > 1 and (order == torch.arange(rep.dim)).all() else None


def _copies(rep: Rep) -> tuple[int, int]:
    copies = regular_copies(rep)
    if copies is None:
        raise ValueError(
            f"{rep} is not copies of the regular representation and then scalars: run the layers as they are"
        )
    return copies


def _tied(layer: RelaxedLinear) -> tuple[Tensor, Tensor]:
    """The parameters of a strict layer's weight and bias."""
    pathway = layer.equivariant
    weight, bias = (None, None) if pathway is None else (pathway.weight, pathway.bias)
    if weight is None or bias is None:
        raise ValueError(f"the layer {layer} has no equivariant weights and biases: run it as it is")
    return weight, bias


def _places(layer: RelaxedLinear) -> tuple[Tensor, Tensor]:
    """Index of the parameter at each place of a strict layer's dense weight ``(out, in)`` and bias."""
    pathway = layer.equivariant
    if pathway is None or pathway.bias_map is None:
        raise ValueError(f"the layer {layer} has no equivariant weights and biases: run it as it is")
    return pathway.weight_map.index.view(layer.rep_out.dim, layer.rep_in.dim), pathway.bias_map.index


class FourierStack(ExactBuffers):
    """The layers of a strict network whose hidden representations are all regular, with an activation in between.

    It holds no parameters: it reads those of the layers it is given, at assembly.
    """

    transform: Tensor
    back: Tensor
    coefficients: Tensor

    def __init__(self, group: Group, layers: Sequence[RelaxedLinear], activation: Activation = SWISH):
        super().__init__()
        self.activation = activation
        self.order = len(group.elements())
        self.copies = [_copies(layer.rep_out) for layer in layers[:-1]]
        adapted = isotypic([regular(group)])
        columns, self.types = [], []
        start = offset = 0
        for t in sorted(adapted.types, key=lambda t: (t.dim, not _is_constant(adapted.u[0][:, t.starts[0]]))):
            u, d = len(t.units), t.dim
            block = adapted.u[0][:, t.starts[0] : t.starts[0] + t.multiplicities[0] * d]
            # columns (multiplicity, d/u, u) -> (d/u, multiplicity, u): equal blocks behind each other
            columns.append(block.reshape(-1, t.multiplicities[0], d // u, u).transpose(1, 2).flatten(1))
            self.types.append(_Type(start, d, d // u, offset))
            start, offset = start + d * (d // u), offset + d * d
        transform = torch.cat(columns, 1)
        transform[:, 0] = self.order**-0.5
        if self.order == 2:  # sum and difference
            transform[:, 1] = transform[0, 0] * transform.new_tensor([1.0, -1.0])
        self.lines = sum(t.d == 1 for t in self.types)  # one-dimensional types come first, the trivial one before all
        self.register_exact("transform", transform.T)
        self.register_exact("back", transform)
        self.starts: list[int] = []
        tables = [self._convolution(i, layer) for i, layer in enumerate(layers[1:-1])]
        assert all((table == tables[0]).all() for table in tables), "one group has one convolution"
        places = F.one_hot(tables[0], self.order).double()
        blocks = []
        for kind in self.types:
            f = transform[:, kind.start : kind.start + kind.d]
            blocks.append(torch.einsum("xa,xyj,yb->abj", f, places, f).reshape(kind.d**2, self.order))
        self.register_exact("coefficients", torch.cat(blocks))
        for i, layer in enumerate(layers[1:-1]):
            self._register_trivial(i, layer)

    @staticmethod
    def applies(group: Group, layers: Sequence[RelaxedLinear]) -> bool:
        """Check whether every hidden representation is regular and wide enough, and no layer has a free pathway."""
        hidden = [layer.rep_out for layer in layers[:-1]]
        return (
            len(hidden) > 1
            and all(layer.linear_pathways == (layer.equivariant,) for layer in layers)
            and all(rep.dim >= LEAST_WIDTH and regular_copies(rep) is not None for rep in hidden)
        )

    def _convolution(self, i: int, layer: RelaxedLinear) -> Tensor:
        """``table[g', g]``: which of the ``k`` coefficients of a pair of copies is at that place of its block."""
        k, (m, _), (n, _) = self.order, self.copies[i + 1], self.copies[i]
        index, _ = _places(layer)
        index = index[: k * m, : k * n].view(k, m, k, n).permute(1, 3, 0, 2)  # (m, n, k, k)
        first = index[0, 0].min()
        pairs = torch.arange(m * n).view(m, n, 1, 1)
        assert (index == index[0, 0] + pairs).all(), "coefficients run over the copies of a block first"
        self.starts.append(int(first))
        return (index[0, 0] - first) // (m * n)

    def _register_trivial(self, i: int, layer: RelaxedLinear) -> None:
        k, (m, s), (n, r) = self.order, self.copies[i + 1], self.copies[i]
        index, bias = _places(layer)
        assert (torch.cat([bias[:m], bias[k * m :]]) == torch.arange(m + s)).all(), "biases run over the copies first"
        self.register_buffer(f"from_trivial_{i}", index[:m, k * n :].clone() if r else None)  # (m, r)
        self.register_buffer(
            f"to_trivial_{i}", torch.cat([index[k * m :, :n], index[k * m :, k * n :]], 1) if s else None
        )

    def assemble(self, layers: Sequence[RelaxedLinear]) -> list:
        """Per layer: dense weight and bias for the first and the last, Fourier blocks and a bias for the others."""
        return [layers[0].assemble(), *(self._blocks(i, x) for i, x in enumerate(layers[1:-1])), layers[-1].assemble()]

    def _blocks(self, i: int, layer: RelaxedLinear) -> tuple:
        k, (m, s), (n, r) = self.order, self.copies[i + 1], self.copies[i]
        (theta, bias), start = _tied(layer), self.starts[i]
        convolution = theta[start : start + k * m * n] if r or s else theta
        rows = self.coefficients @ convolution.view(k, m * n)  # (sum of d^2, m * n)
        root = k**0.5
        lines, *others = _split(rows, [self.lines, *(t.d**2 for t in self.types[self.lines :])])
        lines = lines.view(self.lines, m, n)
        corner = None
        if r or s:  # trivial channels join the trivial type, whose block then has its own size
            corner = lines[0]
            lines = lines[1:]
            if r:
                corner = torch.cat([corner, root * theta[getattr(self, f"from_trivial_{i}")]], 1)
            if s:
                to = theta[getattr(self, f"to_trivial_{i}")]
                to = torch.cat([root * to[:, :n], to[:, n:]], 1) if r else root * to
                corner = torch.cat([corner, to], 0)
        blocks = [
            part.view(t.d, t.d, m, n).transpose(1, 2).reshape(t.d * m, t.d * n)
            for t, part in zip(self.types[self.lines :], others, strict=True)
        ]
        bias = torch.cat([root * bias[:m], bias[m:]]) if s else root * bias
        return corner, lines, blocks, bias

    def forward(self, x: Float[Tensor, "*batch in"], weights: list) -> Float[Tensor, "*batch out"]:
        """The network, given assembled weights; of several networks, where they and ``x`` have one more leading axis."""
        if weights[0][0].ndim > 2:
            return torch.vmap(self.forward, in_dims=(0, _leading(weights)))(x, weights)
        features = self._enter(x.reshape(-1, x.shape[-1]).T, *weights[0])
        for i, w in enumerate(weights[1:-1]):
            features = self._layer(self.copies[i + 1], features, *w)
        y = self._leave(features, *weights[-1])
        return y.T.reshape(*x.shape[:-1], len(y))

    def _enter(self, x: Tensor, weight: Tensor, bias: Tensor) -> Features:
        y = self.activation(torch.addmm(bias[:, None], weight, x))
        n, r = self.copies[0]
        X, trivial = y.split([self.order * n, r]) if r else (y, None)
        return X.view(self.order, n, x.shape[1]), trivial

    def _layer(self, shape: tuple[int, int], features: Features, corner, lines, blocks, bias) -> Features:
        X, trivial = features
        batch = X.shape[-1]
        m, s = shape
        X = self._turned(self.transform, X)
        X, *others = _split(X, [self.lines, *(t.repeats * t.d for t in self.types[self.lines :])])
        new_trivial = None
        if corner is None:
            offsets = torch.cat([bias[None], bias.new_zeros(self.lines - 1, m)])[..., None]
            out = [torch.baddbmm(offsets, lines, X)]
        else:
            first = X[0] if trivial is None else torch.cat([X[0], trivial])
            first = torch.addmm(bias[:, None], corner, first)
            first, new_trivial = first.split([m, s]) if s else (first, None)
            out = [first[None], lines @ X[1:]]
        for t, w, rows in zip(self.types[self.lines :], blocks, others, strict=True):
            out.append((w @ rows.view(t.repeats, -1, batch)).view(t.repeats * t.d, m, batch))
        Y = torch.cat(out) if len(out) > 1 else out[0]
        Y = self.activation(self._turned(self.back, Y))
        return Y, None if new_trivial is None else self.activation(new_trivial)

    def _rounds_alike(self) -> bool:
        """Check whether features of a group of two elements are turned by sum and difference, which swapped features leave and
        negate exactly. Products round them differently, and where outputs nearly cancel that is what is left of them; but
        they save a sixth of a training step, so sums are for passes without gradients: policies, measures, rollouts."""
        return self.order == 2 and not torch.is_grad_enabled()

    def _turned(self, basis: Tensor, X: Float[Tensor, "order n batch"]) -> Float[Tensor, "order n batch"]:
        """Features in another basis."""
        if not self._rounds_alike():
            return (basis @ X.reshape(self.order, -1)).view(X.shape)
        a, b = X.unbind()
        return torch.stack([a + b, a - b]) * basis[0, 0]

    def _leave(self, features: Features, weight: Tensor, bias: Tensor | None) -> Tensor:
        X, trivial = features
        if self._rounds_alike():
            n = 2 * X.shape[1]
            turned = self._turned(self.transform, weight[:, :n].view(len(weight), 2, -1).transpose(0, 1))
            turned = turned.transpose(0, 1).flatten(1)
            weight = turned if trivial is None else torch.cat([turned, weight[:, n:]], 1)
            X = self._turned(self.transform, X)
        X = X.flatten(0, 1)
        X = X if trivial is None else torch.cat([X, trivial])
        return weight @ X if bias is None else torch.addmm(bias[:, None], weight, X)

    def extra_repr(self) -> str:
        return f"types of dimension {', '.join(str(t.d) for t in self.types)}; (copies, trivial) {self.copies}"


def _split(x: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Parts whose gradients are put together in one pass."""
    return [x] if len(sizes) == 1 else x.split_with_sizes(sizes)


def _leading(weights: Any) -> Any:
    """An axis to map over for every tensor."""
    if isinstance(weights, list | tuple):
        return type(weights)(map(_leading, weights))
    return None if weights is None else 0


def _is_constant(column: Tensor) -> bool:
    return bool((column - column.mean()).abs().max() < 1e-9)
