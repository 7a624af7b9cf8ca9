"""The bilinear layer: parts of the features contracted with each other, with learned weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn._coefficients import layout_number
from rppdyn.nn._linear import SamplesLastLayer, bind
from rppdyn.nn._pathways import Pathway, format_variance
from rppdyn.reps import Rep
from rppdyn.reps._rep import is_int

OUTPUT_SCALE = 0.1
"""Factor on the layer's output, as published in most backends (0.03 in the published RPP code)."""


def contractions(rep: Rep, maps: int | None = None) -> list[Contraction]:
    """Every way in which a part of ``rep``, scalars excepted, is a linear map from one part of it to another.

    A part with tensor factors :math:`\\{f\\}` maps ``b`` to ``c`` where they are those of :math:`c \\otimes b^*`, in any
    order: for ``T(p, q)``, :math:`(p_a, q_a) = (p_c + q_b, q_c + p_b)` (Finzi 2023, 2.6). At most ``maps`` of its copies serve
    as maps, None for as many as it has dimensions.
    """
    parts = rep.blocks()
    contractions = []
    for a, (rep_a, index_a) in enumerate(parts):
        if not _factors(rep_a):
            continue
        for c, (rep_c, index_c) in enumerate(parts):
            for b, (rep_b, index_b) in enumerate(parts):
                coordinates = _as_matrix(rep_a, rep_c, rep_b.T)
                if coordinates is not None:
                    copies = min(len(index_a), rep_a.dim if maps is None else maps)
                    counts = copies, len(index_c), len(index_b)
                    contractions.append(Contraction(c, a, b, coordinates, *counts, rep_c.dim, rep_b.dim))
    return contractions


def _factors(rep: Rep) -> tuple[Rep, ...]:
    return () if rep.dim == 1 and rep.is_trivial else rep.factors


def _as_matrix(rep: Rep, rep_out: Rep, rep_in_dual: Rep) -> tuple[int, ...] | None:
    """The coordinates of ``rep`` as a row-major matrix ``rep_out`` x ``rep_in_dual``; None if their tensor factors differ."""
    factors = _factors(rep)
    free_axes, required = list(range(len(factors))), _factors(rep_out) + _factors(rep_in_dual)
    if len(required) != len(factors):
        return None
    axes = []
    for factor in required:
        axis = next((i for i in free_axes if factors[i] == factor), None)
        if axis is None:
            return None
        axes.append(axis)
        free_axes.remove(axis)
    coordinates = torch.arange(rep.dim).reshape([f.dim for f in factors]).permute(axes)
    return tuple(coordinates.flatten().tolist())


class BilinearPathway(Pathway):
    r"""The weights of all contractions, :math:`N(0, \sigma_a^2)` a priori: they are equivariant, so there is no free one."""

    def __init__(self, std: Float[Tensor, " n"], variance: int | float, generator: torch.Generator | None = None):
        super().__init__(variance)
        self.weight = nn.Parameter(torch.randn(len(std), generator=generator) * std)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()} weights, variance={format_variance(self.log_variance)}"


class Bilinear(SamplesLastLayer):
    """The identity plus contractions of pairs of parts, ``rep -> rep`` (Finzi 2023, 2.6).

    At most ``maps`` copies of each part serve as maps. They are drawn from ``generator`` at construction and kept in a buffer,
    so that a checkpoint remembers them. The default is the published number, the part's dimension. Products of all pairs of
    ``n`` vectors take ``n`` maps: with fewer, later layers have to compute the missing products from several by division, which
    they learn badly. Weights start with variance one over the number of terms summed, so that the layer adds about a tenth
    (``OUTPUT_SCALE``) of its input's size; the published backends start from N(0, 1) or 0.01 N(0, 1) whatever the width.

    A contraction is a product of its weights with the features of all samples, and a product of small matrices for each sample.
    The cheaper of the two orders is chosen. Samples come last, where the small products are fastest.

    Raises:
        ValueError: no part of ``rep`` is a map between two others, so there is nothing to contract; fewer than one map.
    """

    maps: Tensor

    def __init__(self, rep: Rep, *, maps: int | None = None, variance: int | float = 1e5,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        if maps is not None and not (is_int(maps) and maps >= 1):
            raise ValueError(
                f"maps={maps!r}: give a number of at least 1, or None for as many as a part has dimensions"
            )
        self.rep = self.rep_in = rep = bind(rep, None)
        unsorted = contractions(rep, maps)
        self.contractions = sort_contractions(unsorted)
        if not self.contractions:
            raise ValueError(f"no part of {rep} is a linear map between two others: leave the bilinear layer out")
        parts = rep.blocks()
        # part by part; within a part all copies of one component together
        order = torch.cat([index.T.flatten() for _, index in parts])
        inverse = order.argsort()
        self.register_order(order, inverse)
        self.shapes = [(index.shape[1], index.shape[0]) for _, index in parts]  # components and copies
        chosen: dict[int, Tensor] = {}
        rows: dict[tuple, Tensor] = {}  # features, part by part, that hold the maps' matrices: (out, in, map)
        for k in unsorted:
            if k.map not in chosen:
                copies = parts[k.map][1]
                chosen[k.map] = copies[torch.randperm(len(copies), generator=generator)[: k.maps]]
            part, layout = k.matrix
            rows[k.matrix] = inverse[chosen[part][:, list(layout)].T.flatten()]
        self.register_buffer("maps", torch.cat(list(rows.values())))
        self.map_sizes = {matrix: len(index) for matrix, index in rows.items()}
        self.register_layout(
            f"products of {rep} of {rep.G}", [layout_number(order + 1.0, order), *map(float, sum(self.shapes, ()))]
        )
        terms = [
            sum(k.maps * k.ins * k.dim_in for k in self.contractions if k.out == part) for part in range(len(parts))
        ]
        std = torch.cat([torch.full((k.num_weights,), terms[k.out] ** -0.5) for k in self.contractions])
        self.equivariant = BilinearPathway(std, variance, generator)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """The flat weights, scaled, and the coordinates of the maps' matrices in the features."""
        return OUTPUT_SCALE * self.equivariant.weight, self.maps

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "*stack n samples"]:
        weight, index = weights
        x = x if self.order is None else x.index_select(-2, self.order)
        *stack, _, samples = x.shape
        pieces = x.split_with_sizes([components * copies for components, copies in self.shapes], -2)
        xs = [piece.view(*stack, *shape, samples) for piece, shape in zip(pieces, self.shapes, strict=True)]
        ys = list(xs)
        matrices = x.index_select(-2, index).split_with_sizes([*self.map_sizes.values()], -2)
        by_name = dict(zip(self.map_sizes, matrices, strict=True))
        for k, w in zip(self.contractions, self.weights_of_each(weight), strict=True):
            # axes (i, k, j, sample): components i and copies j of r, components of p and maps k; each factor lacks one
            (components, _), (i, j) = self.shapes[k.mixed], self.shapes[k.other]
            M = by_name[k.matrix].view(*stack, i, components * k.maps, 1, samples)
            if k.weights_first:
                z = _mix(w, xs[k.into]).view(*stack, 1, components * k.maps, j, samples)
                ys[k.out] = ys[k.out] + (M * z).sum(-3)
            else:
                z = (M * xs[k.into].unsqueeze(-3)).sum(-4)
                ys[k.out] = ys[k.out] + _mix(w.mT, z.view(*stack, components, k.maps * j, samples))
        y = torch.cat([part.flatten(-3, -2) for part in ys], -2)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def weights_of_each(self, weight: Float[Tensor, "*stack w"]) -> list[Float[Tensor, "*stack rows copies"]]:
        """The weights of each contraction, a row for each map and copy of r, a column for each copy of p."""
        pieces = weight.split_with_sizes([k.num_weights for k in self.contractions], -1)
        sizes = ((k.maps * self.shapes[k.other][1], self.shapes[k.mixed][1]) for k in self.contractions)
        return [w.view(*weight.shape[:-1], *size) for w, size in zip(pieces, sizes, strict=True)]

    def extra_repr(self) -> str:
        return f"{self.rep}, {len(self.contractions)} contractions"


@dataclass(frozen=True)
class Contraction:
    r"""``y_out[i] += sum_{n, j} w[n, j, i] M(x_map[n]) x_in[j]``: parts of one type, read as maps between two others.

    ``out``, ``map`` and ``into`` number the parts of the representation; ``coordinates`` reorder those of ``map`` into a
    row-major matrix from ``into`` to ``out``; ``maps`` is how many copies of ``map`` are used.

    Paired with a cotangent ``g`` of the output, the contraction is linear in each of ``w``, ``M``, ``x_in`` and ``g``, and
    ``x_in`` and ``g`` play the same role. The weights are contracted with one of the two, ``p`` of part ``mixed``, and the maps
    with the result and ``r`` of part ``other``: :math:`\sum_{ikj} M_{ik} (w p)_{kj} r_{ij}`.
    """

    out: int
    map: int
    into: int
    coordinates: tuple[int, ...]
    maps: int
    outs: int
    ins: int
    dim_out: int
    dim_in: int

    @property
    def num_weights(self) -> int:
        return self.outs * self.maps * self.ins

    @property
    def weights_first(self) -> bool:
        """True if contracting the weights with ``x_in`` first, and the result with the maps, costs less than the reverse.

        The published order (weights with maps, then with ``x_in``) forms a matrix per sample and is never the cheapest: it
        costs ``dim_in`` or ``dim_out`` times the main term of the other two.
        """
        first = self.num_weights * self.dim_in + self.outs * self.maps * self.dim_in * self.dim_out
        last = self.num_weights * self.dim_out + self.ins * self.maps * self.dim_in * self.dim_out
        return first <= last

    @property
    def mixed(self) -> int:
        """The part that the weights are contracted with: that of the input, or that of the output's cotangent."""
        return self.into if self.weights_first else self.out

    @property
    def other(self) -> int:
        return self.out if self.weights_first else self.into

    @cached_property
    def matrix(self) -> tuple[int, tuple[int, ...]]:
        """The maps as matrices with a row for each component of ``r``; several contractions may share them."""
        coordinates = torch.tensor(self.coordinates).view(self.dim_out, self.dim_in)
        return self.map, tuple((coordinates if self.weights_first else coordinates.T).flatten().tolist())


def sort_contractions(contractions: Sequence[Contraction]) -> list[Contraction]:
    """Order contractions so that those which contract weights with the same scalars are neighbours."""
    groups: dict[object, list[Contraction]] = {}
    for k in contractions:
        scalars = (k.dim_in if k.weights_first else k.dim_out) == 1
        groups.setdefault((k.weights_first, k.mixed) if scalars else k, []).append(k)
    return [k for group in groups.values() for k in group]


def _mix(weight: Float[Tensor, "*stack rows copies"], x: Float[Tensor, "*stack components copies samples"]) -> Tensor:
    """The weights times each component, ``(*stack, components, rows, samples)``."""
    *stack, components, _, samples = x.shape
    rows = weight.shape[-2]
    weight = weight.unsqueeze(-3).expand(*stack, components, -1, -1)
    return torch.bmm(weight.flatten(0, -3), x.flatten(0, -3)).view(*stack, components, rows, samples)
