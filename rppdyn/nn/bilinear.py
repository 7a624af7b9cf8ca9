"""The bilinear layer: parts of the features contracted with each other, with learned weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.coefficients import layout_number
from rppdyn.nn.linear import SamplesLastLayer, bind
from rppdyn.nn.pathways import Pathway, written
from rppdyn.reps import Rep
from rppdyn.reps.rep import is_int

OUTPUT_SCALE = 0.1
"""Factor on the layer's output, as published in most backends (0.03 in the published RPP code)."""


def contractions(rep: Rep, maps: int | None = None) -> list[Contraction]:
    """Every way in which a part of ``rep``, scalars excepted, is a linear map from one part of it to another.

    A part with tensor factors :math:`\\{f\\}` maps ``b`` to ``c`` where they are those of :math:`c \\otimes b^*`, in any
    order: for ``T(p, q)``, :math:`(p_a, q_a) = (p_c + q_b, q_c + p_b)` (Finzi 2023, 2.6). Of its copies at most ``maps`` do;
    None for as many as it has dimensions.
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
    factors, left = _factors(rep), list(range(len(_factors(rep))))
    wanted = _factors(rep_out) + _factors(rep_in_dual)
    if len(wanted) != len(factors):
        return None
    axes = []
    for factor in wanted:
        axis = next((i for i in left if factors[i] == factor), None)
        if axis is None:
            return None
        axes.append(axis)
        left.remove(axis)
    coordinates = torch.arange(rep.dim).reshape([f.dim for f in factors]).permute(axes)
    return tuple(coordinates.flatten().tolist())


class BilinearPathway(Pathway):
    r"""The weights of all contractions, :math:`N(0, \sigma_a^2)` a priori: they are equivariant, so there is no free one."""

    def __init__(self, std: Float[Tensor, " n"], variance: int | float, generator: torch.Generator | None = None):
        super().__init__(variance)
        self.weight = nn.Parameter(torch.randn(len(std), generator=generator) * std)

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()} weights, variance={written(self.log_variance)}"


class Bilinear(SamplesLastLayer):
    """The identity plus contractions of pairs of parts, ``rep -> rep`` (Finzi 2023, 2.6).

    Of each part at most ``maps`` copies serve as maps; which, is drawn from ``generator`` at construction and kept in a
    buffer, so that a checkpoint remembers it. Published are as many as it has dimensions, the default. Products of all pairs of
    ``n`` vectors take ``n`` maps: with fewer those of the others have to be put together from several by division, which
    the layers after it learn badly. Weights start with variance one over the number of
    terms summed, so that the layer adds about a tenth (``OUTPUT_SCALE``) of its input's size; the published backends start from
    N(0, 1) or 0.01 N(0, 1) whatever the width.

    Each contraction is carried out in the cheaper of its two orders: a product of its weights with the features of all
    samples, and one of small matrices per sample. Features are transposed first, because the small products are done
    with the samples last.

    Raises:
        ValueError: no part of ``rep`` is a map between two others, so there is nothing to contract; fewer than one map.
    """

    maps: Tensor
    order: Tensor | None
    inverse: Tensor | None

    def __init__(self, rep: Rep, *, maps: int | None = None, variance: int | float = 1e5,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        if maps is not None and not (is_int(maps) and maps >= 1):
            raise ValueError(
                f"maps={maps!r}: give a number of at least 1, or None for as many as a part has dimensions"
            )
        self.rep = self.rep_in = rep = bind(rep, None)
        self.contractions = contractions(rep, maps)
        if not self.contractions:
            raise ValueError(f"no part of {rep} is a linear map between two others: leave the bilinear layer out")
        parts = rep.blocks()
        # part by part, of each all copies of one component together
        order = torch.cat([index.T.flatten() for _, index in parts])
        contiguous = bool((order == torch.arange(rep.dim)).all())
        self.register_constant("order", None if contiguous else order)
        inverse = order.argsort()
        self.register_constant("inverse", None if contiguous else inverse)

        chosen: dict[int, Tensor] = {}
        rows: dict[tuple, Tensor] = {}  # of the features, part by part, that hold the maps' matrices: (out, in, map)
        for k in self.contractions:
            if k.map not in chosen:
                copies = parts[k.map][1]
                chosen[k.map] = copies[torch.randperm(len(copies), generator=generator)[: k.maps]]
            part, layout = k.matrix
            rows[k.matrix] = inverse[chosen[part][:, list(layout)].T.flatten()]
        self.register_buffer("maps", torch.cat(list(rows.values())))
        shapes = tuple((index.shape[1], index.shape[0]) for _, index in parts)
        groups = grouped(self.contractions)
        self.register_layout(
            f"products of {rep} of {rep.G}", [layout_number(order + 1.0, order), *map(float, sum(shapes, ()))]
        )
        self.plan = Plan(groups, shapes, {key: len(index) for key, index in rows.items()})

        terms = [
            sum(k.maps * k.ins * k.dim_in for k in self.contractions if k.out == part) for part in range(len(parts))
        ]
        std = torch.cat([torch.full((k.num_weights,), terms[k.out] ** -0.5) for ks in groups for k in ks])
        self.equivariant = BilinearPathway(std, variance, generator)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """The flat weights, scaled, and the coordinates of the maps' matrices in the features."""
        return OUTPUT_SCALE * self.equivariant.weight, self.maps

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "*stack n samples"]:
        weight, index = weights
        x = x if self.order is None else x.index_select(-2, self.order)
        y = self.plan(index, x, weight)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def extra_repr(self) -> str:
        return f"{self.rep}, {len(self.contractions)} contractions"


I, K = -4, -3  # axes of a plan's grid


@dataclass(frozen=True)
class Contraction:
    r"""``y_out[i] += sum_{n, j} w[n, j, i] M(x_map[n]) x_in[j]``: parts of one type, read as maps between two others.

    ``out``, ``map`` and ``into`` number the parts of the representation; ``coordinates`` reorder the map's so that it
    is a row-major matrix from ``into`` to ``out``; ``maps`` is how many of its copies take part.

    Paired with a cotangent ``g`` of the output it is a form, linear in each of ``w``, ``M``, ``x_in`` and ``g``, in which the
    last two play the same part. The weights are contracted with one of them, ``p`` of part ``mixed``, and the maps with the
    result and the other, ``r`` of part ``other``: :math:`\sum_{ikj} M_{ik} (w p)_{kj} r_{ij}`.
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

    @cached_property
    def num_weights(self) -> int:
        return self.outs * self.maps * self.ins

    @cached_property
    def weights_first(self) -> bool:
        """Check whether contracting the weights with ``x_in`` before the maps costs fewer products than after them.

        The published order (weights with maps, then with ``x_in``) forms a matrix per sample and is never the
        cheapest: it costs ``dim_in`` or ``dim_out`` times the main term of the other two.
        """
        first = self.num_weights * self.dim_in + self.outs * self.maps * self.dim_in * self.dim_out
        last = self.num_weights * self.dim_out + self.ins * self.maps * self.dim_in * self.dim_out
        return first <= last

    @cached_property
    def mixed(self) -> int:
        """The part that the weights are contracted with: of the input, or of the output's cotangent."""
        return self.into if self.weights_first else self.out

    @cached_property
    def other(self) -> int:
        return self.out if self.weights_first else self.into

    @cached_property
    def matrix(self) -> tuple[int, tuple[int, ...]]:
        """The maps as matrices with a row for each component of ``r``; several contractions may share them."""
        coordinates = torch.tensor(self.coordinates).view(self.dim_out, self.dim_in)
        return self.map, tuple((coordinates if self.weights_first else coordinates.T).flatten().tolist())


class ContractionGroup:
    """Contractions that share one product with weights.

    Their weights have shape ``(maps * copies of r, copies of p)`` each and lie below each other.

    Attributes:
        mixed: the part that the weights are contracted with, of so many ``components`` and ``copies``.
        rows: how many numbers the weights of each contraction make of a component of ``p``.
        grids: sizes ``(k, j)`` of ``w p`` for each contraction.
    """

    def __init__(self, contractions: Sequence[Contraction], shapes: Sequence[tuple[int, int]]):
        self.contractions = tuple(contractions)
        self.weights_first, self.mixed = contractions[0].weights_first, contractions[0].mixed
        self.components, self.copies = shapes[self.mixed]
        self.grids = [(self.components * k.maps, shapes[k.other][1]) for k in contractions]
        self.rows = [k.maps * j for k, (_, j) in zip(contractions, self.grids, strict=True)]

    def grid(self, z: Float[Tensor, "*stack components rows samples"]) -> list[Float[Tensor, "*stack 1 k j samples"]]:
        """Each contraction's share of ``w p``, to be multiplied."""
        pieces = (z,) if len(self.rows) == 1 else z.split_with_sizes(self.rows, -2)
        stack, samples = z.shape[:-3], z.shape[-1]
        return [p.view(*stack, 1, k, j, samples) for p, (k, j) in zip(pieces, self.grids, strict=True)]


class Plan:
    r"""The plan, fixed at construction: the groups of contractions, where the parts lie, which rows hold the maps' matrices.

    Matrices ``M``, the weights' products ``z = w p`` and features ``r`` stand on one grid with axes ``i, k, j, samples``, along
    which each lacks one. Products of two of the three are summed along the axis that both have: :math:`\sum_k M_{ik} z_{kj}` is
    the contraction or, in the other order, :math:`\sum_i M_{ik} r_{ij}` what the weights are applied to.

    Args:
        groups: as :func:`grouped` makes them.
        shapes: numbers of components and copies of each part.
        map_sizes: number of rows of features that each set of matrices takes.
    """

    def __init__(self, groups: Sequence[Sequence[Contraction]], shapes: Sequence[tuple[int, int]],
                 map_sizes: dict[tuple, int]):  # fmt: skip
        self.groups = [ContractionGroup(ks, shapes) for ks in groups]
        self.shapes, self.sizes = list(shapes), [components * copies for components, copies in shapes]
        self.weight_shapes = [(sum(group.rows), group.copies) for group in self.groups]
        self.weight_sizes = [rows * copies for rows, copies in self.weight_shapes]
        self.map_sizes, self.map_rows = map_sizes, list(map_sizes.values())
        numbers = {key: number for number, key in enumerate(map_sizes)}
        self.reads = [  # for each contraction: which set of matrices, and their shape
            [(numbers[k.matrix], shapes[k.other][0], group.grids[n][0]) for n, k in enumerate(group.contractions)]
            for group in self.groups
        ]

    def parts(self, x: Float[Tensor, "*stack n samples"]) -> list[Float[Tensor, "*stack components copies samples"]]:
        """Views of the features, part by part."""
        stack, samples = x.shape[:-2], x.shape[-1]
        pieces = x.split_with_sizes(self.sizes, -2)
        return [p.view(*stack, *shape, samples) for p, shape in zip(pieces, self.shapes, strict=True)]

    def weights(self, weight: Float[Tensor, "*stack w"]) -> list[Float[Tensor, "*stack rows copies"]]:
        """Views of the weights, group by group."""
        pieces = weight.split_with_sizes(self.weight_sizes, -1)
        return [w.view(*weight.shape[:-1], *shape) for w, shape in zip(pieces, self.weight_shapes, strict=True)]

    def matrices(self, rows: Float[Tensor, "*stack rows samples"]) -> list[list[Float[Tensor, "*stack i k 1 samples"]]]:
        """Views of the maps' matrices, group by group."""
        stack, samples = rows.shape[:-2], rows.shape[-1]
        pieces = rows.split_with_sizes(self.map_rows, -2)
        return [[pieces[number].view(*stack, i, k, 1, samples) for number, i, k in of_group] for of_group in self.reads]

    def __call__(
        self, index: Tensor, x: Float[Tensor, "*stack n samples"], weight: Float[Tensor, "*stack w"]
    ) -> Tensor:
        """Features and all contractions of them; ``index`` says which rows hold the maps' matrices."""
        xs = self.parts(x)
        ys = list(xs)
        matrices = self.matrices(x.index_select(-2, index))
        for group, w, Ms in zip(self.groups, self.weights(weight), matrices, strict=True):
            ks, mixed = group.contractions, group.mixed
            if group.weights_first:
                for k, M, z in zip(ks, Ms, group.grid(_mix(w, xs[mixed])), strict=True):
                    ys[k.out] = ys[k.out] + (M * z).sum(K)
            else:
                zs = [(M * xs[k.into].unsqueeze(K)).sum(I) for k, M in zip(ks, Ms, strict=True)]
                z = torch.cat([z.unflatten(-3, (group.components, -1)).flatten(-3, -2) for z in zs], -2)
                ys[mixed] = ys[mixed] + _mix(w.mT, z)
        return torch.cat([y.flatten(-3, -2) for y in ys], -2)


def grouped(contractions: Sequence[Contraction]) -> tuple[tuple[Contraction, ...], ...]:
    """The groups of a :class:`Plan`: contractions whose weights meet the same scalars."""
    groups: dict[object, list[Contraction]] = {}
    for k in contractions:
        scalars = (k.dim_in if k.weights_first else k.dim_out) == 1
        groups.setdefault((k.weights_first, k.mixed) if scalars else k, []).append(k)
    return tuple(map(tuple, groups.values()))


def _mix(weight: Float[Tensor, "*stack rows copies"], x: Float[Tensor, "*stack components copies samples"]) -> Tensor:
    """The weights times each component, ``(*stack, components, rows, samples)``."""
    *stack, components, _, samples = x.shape
    rows = weight.shape[-2]
    weight = weight.unsqueeze(-3).expand(*stack, components, -1, -1)
    return torch.bmm(weight.flatten(0, -3), x.flatten(0, -3)).view(*stack, components, rows, samples)
