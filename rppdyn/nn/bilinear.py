"""The bilinear layer: parts of the features contracted with each other, with learned weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.linear import bind
from rppdyn.nn.pathways import Pathway
from rppdyn.reps import Rep

__all__ = ["Bilinear", "BilinearPathway", "Contraction", "contractions"]

SCALE = 0.1
"""Factor on the layer's output, as published in most backends (0.03 in the published RPP code)."""

LARGE = 512
"""Intermediate results up to this many numbers per sample are put together for one product; larger ones cost more to copy."""


@dataclass(frozen=True)
class Contraction:
    """``y_out[i] += sum_{n, j} w[n, j, i] M(x_map[n]) x_in[j]``: parts of one type, read as maps between two others.

    ``out``, ``map`` and ``into`` number the parts of the representation; ``coordinates`` reorder the map's so that it
    is a row-major matrix from ``into`` to ``out``; ``maps`` is how many of its copies take part.
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
        """Whether contracting the weights with ``x_in`` before the maps costs fewer products than after them.

        The published order (weights with maps, then with ``x_in``) forms a matrix per sample and is never the
        cheapest: it costs ``dim_in`` or ``dim_out`` times the main term of the other two.
        """
        first = self.num_weights * self.dim_in + self.outs * self.maps * self.dim_in * self.dim_out
        last = self.num_weights * self.dim_out + self.ins * self.maps * self.dim_in * self.dim_out
        return first <= last

    @property
    def intermediate(self) -> int:
        """Numbers per sample between the two products."""
        return self.maps * (self.dim_in * self.outs if self.weights_first else self.dim_out * self.ins)


def contractions(rep: Rep) -> list[Contraction]:
    """Every way in which a part of ``rep``, scalars excepted, is a linear map from one part of it to another.

    A part with tensor factors :math:`\\{f\\}` maps ``b`` to ``c`` where they are those of :math:`c \\otimes b^*`, in any
    order: for ``T(p, q)``, :math:`(p_a, q_a) = (p_c + q_b, q_c + p_b)` (Finzi 2023, 2.6).
    """
    parts = rep.blocks()
    found = []
    for a, (rep_a, index_a) in enumerate(parts):
        if not _factors(rep_a):
            continue
        for c, (rep_c, index_c) in enumerate(parts):
            for b, (rep_b, index_b) in enumerate(parts):
                coordinates = _as_matrix(rep_a, rep_c, rep_b.T)
                if coordinates is not None:
                    maps = min(len(index_a), rep_a.dim)
                    found.append(
                        Contraction(c, a, b, coordinates, maps, len(index_c), len(index_b), rep_c.dim, rep_b.dim)
                    )
    return found


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
        return f"{self.weight.numel()} weights, variance={self.variance.item():.4g}"


class Bilinear(nn.Module):
    """Contractions of pairs of parts, ``rep -> rep``, to be added to the identity (Finzi 2023, 2.6).

    Of each part at most as many copies as it has dimensions serve as maps; which, is drawn from ``generator`` at
    construction and kept in a buffer, so that a checkpoint remembers it. Each contraction is carried out in the cheaper
    of its two orders. Weights start with variance one over the number of terms summed, so that the layer adds about a
    tenth (``SCALE``) of its input's size; the published backends start from N(0, 1) or 0.01 N(0, 1) whatever the width.

    Raises:
        ValueError: no part of ``rep`` is a map between two others, so there is nothing to contract; ``rep`` is complex, or
            bound to no group.
    """

    maps: Tensor
    order: Tensor | None
    inverse: Tensor | None

    def __init__(self, rep: Rep, *, variance: int | float = 1e5, generator: torch.Generator | None = None):
        super().__init__()
        self.rep = rep = bind(rep, None)
        self.contractions = contractions(rep)
        if not self.contractions:
            raise ValueError(f"no part of {rep} is a linear map between two others: leave the bilinear layer out")
        parts = rep.blocks()
        self.shapes = [(index.shape[1], index.shape[0]) for _, index in parts]  # (components, copies)
        self._layout = _Layout([index.T for _, index in parts])
        order = self._layout.order
        self.register_buffer("order", order)
        self.register_buffer("inverse", None if order is None else order.argsort())
        first = [k for k in self.contractions if k.weights_first]
        last = [k for k in self.contractions if not k.weights_first]
        self._first_into, self._first_out = _grouped(first, "into"), _grouped(first, "out")
        self._last_into, self._last_out = _grouped(last, "into"), _grouped(last, "out")

        chosen: dict[int, Tensor] = {}
        for k in self.contractions:
            if k.map not in chosen:
                copies = parts[k.map][1]
                chosen[k.map] = copies[torch.randperm(len(copies), generator=generator)[: k.maps]]
        matrices = {
            k: chosen[k.map][:, list(k.coordinates)].view(k.maps, k.dim_out, k.dim_in) for k in self.contractions
        }
        # coordinates of the maps in x, as products read them: (out, in and map) beside, (out and map, in) below each other
        beside = [torch.cat([matrices[k].permute(1, 2, 0).flatten(1) for k in ks], 1) for _, ks in self._first_out]
        below = [torch.cat([matrices[k].transpose(0, 1).flatten(0, 1) for k in ks]) for _, ks in self._last_into]
        self._map_sizes = [m.numel() for m in beside + below]
        self.register_buffer("maps", torch.cat([m.flatten() for m in beside + below]))

        terms = [
            sum(k.maps * k.ins * k.dim_in for k in self.contractions if k.out == part) for part in range(len(parts))
        ]
        std = [torch.cat([torch.full((k.ins, k.maps * k.outs), terms[k.out] ** -0.5) for k in ks], 1).flatten()
               for _, ks in self._first_into]  # fmt: skip
        std += [torch.full((sum(k.num_weights for k in ks),), terms[out] ** -0.5) for out, ks in self._last_out]
        self._weight_sizes = [len(x) for x in std]
        self.equivariant = BilinearPathway(torch.cat(std), variance, generator)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """The flat weights, scaled, and the coordinates of the maps' matrices in the features."""
        return SCALE * self.equivariant.weight, self.maps

    def forward(
        self, x: Float[Tensor, "*batch n"], weights: tuple[Tensor, Tensor] | None = None
    ) -> Float[Tensor, "*batch n"]:
        weight, index = self.assemble() if weights is None else weights
        flat = x.reshape(-1, x.shape[-1])
        batch = len(flat)
        parts = self._layout.split(flat if self.order is None else flat.index_select(-1, self.order))
        parts = [p.unflatten(-1, shape) for p, shape in zip(parts, self.shapes, strict=True)]
        maps = iter(flat.index_select(-1, index).split(self._map_sizes, -1))
        pieces = iter(weight.split(self._weight_sizes))
        outs: list[Tensor | None] = [None] * len(parts)

        # weights first: one product of weights per input, one product with maps per output
        Z: dict[Contraction, Tensor] = {}
        for part, ks in self._first_into:
            widths = [k.maps * k.outs for k in ks]
            products = _product(parts[part], next(pieces), sum(widths)).split(widths, -1)
            Z |= {k: z.reshape(batch, k.dim_in * k.maps, k.outs) for k, z in zip(ks, products, strict=True)}
        for part, ks in self._first_out:
            M = next(maps).view(batch, ks[0].dim_out, sum(k.dim_in * k.maps for k in ks))
            y = M @ _cat([Z[k] for k in ks], 1)
            outs[part] = y if outs[part] is None else outs[part] + y
        # weights last: one product with maps per input, one product of weights per output
        P: dict[Contraction, Tensor] = {}
        for part, ks in self._last_into:
            heights = [k.dim_out * k.maps for k in ks]
            products = (next(maps).view(batch, sum(heights), ks[0].dim_in) @ parts[part]).split(heights, 1)
            P |= {k: p.reshape(batch, k.dim_out, k.maps * k.ins) for k, p in zip(ks, products, strict=True)}
        for part, ks in self._last_out:
            y = _product(_cat([P[k] for k in ks], -1), next(pieces), ks[0].outs)
            outs[part] = y if outs[part] is None else outs[part] + y

        filled = [torch.zeros_like(p) if y is None else y for y, p in zip(outs, parts, strict=True)]
        out = self._layout.join([y.flatten(1) for y in filled])
        return (out if self.inverse is None else out.index_select(-1, self.inverse)).reshape(x.shape)

    def extra_repr(self) -> str:
        return f"{self.rep}, {len(self.contractions)} contractions"


def _grouped(contractions: list[Contraction], by: str) -> list[tuple[int, list[Contraction]]]:
    groups: dict[tuple, list[Contraction]] = {}
    for k in contractions:
        key = getattr(k, by)
        groups.setdefault((key, k) if k.intermediate > LARGE else (key,), []).append(k)
    return [(key[0], ks) for key, ks in groups.items()]


def _product(x: Tensor, weight: Tensor, width: int) -> Float[Tensor, "batch dim width"]:
    """``x (batch, dim, n)`` times a flat weight ``(n, width)``, as one product: matmul makes 500 of it without gradients."""
    y = x.reshape(-1, x.shape[-1]) @ weight.view(-1, width)
    return y.view(*x.shape[:-1], width)


def _cat(tensors: list[Tensor], dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


class _Layout:
    """How to cut features into parts: contiguous pieces where each part is a few of them, else a permutation first.

    Args:
        index: of each part, the coordinates ``(components, copies)``.
    """

    def __init__(self, index: list[Tensor]):
        runs = [_runs(i.flatten().tolist()) for i in index]
        pieces = sorted((start, stop, part) for part, of_part in enumerate(runs) for start, stop in of_part)
        self.order = None
        if len(pieces) > 4 * len(index) or any(of_part != sorted(of_part) for of_part in runs):
            self.order = torch.cat([i.flatten() for i in index])
            stops = torch.tensor([i.numel() for i in index]).cumsum(0).tolist()
            pieces = [(stop - i.numel(), stop, part) for part, (i, stop) in enumerate(zip(index, stops, strict=True))]
        self.sizes = [stop - start for start, stop, _ in pieces]
        self.owners = [part for _, _, part in pieces]
        self.parts = len(index)

    def split(self, x: Tensor) -> list[Tensor]:
        pieces = x.split(self.sizes, -1)
        of = [[p for p, owner in zip(pieces, self.owners, strict=True) if owner == part] for part in range(self.parts)]
        return [ps[0] if len(ps) == 1 else torch.cat(ps, -1) for ps in of]

    def join(self, parts: list[Tensor]) -> Tensor:
        sizes = [[s for s, o in zip(self.sizes, self.owners, strict=True) if o == part] for part in range(self.parts)]
        pieces = [iter(x.split(s, -1)) for x, s in zip(parts, sizes, strict=True)]
        return torch.cat([next(pieces[owner]) for owner in self.owners], -1)


def _runs(index: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for i in index:
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs
