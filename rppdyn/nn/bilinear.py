"""The bilinear layer: parts of the features contracted with each other, with learned weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.contracting import Contraction, Plan, grouped
from rppdyn.nn.derivatives import PullBack, evaluate, evaluate_vjp, plain_vjp
from rppdyn.nn.linear import bind, check_size
from rppdyn.nn.pathways import Pathway, written
from rppdyn.reps import Rep
from rppdyn.reps.algebra import is_int

__all__ = ["Bilinear", "BilinearPathway", "Contraction", "contractions"]

SCALE = 0.1
"""Factor on the layer's output, as published in most backends (0.03 in the published RPP code)."""


def contractions(rep: Rep, maps: int | None = None) -> list[Contraction]:
    """Every way in which a part of ``rep``, scalars excepted, is a linear map from one part of it to another.

    A part with tensor factors :math:`\\{f\\}` maps ``b`` to ``c`` where they are those of :math:`c \\otimes b^*`, in any
    order: for ``T(p, q)``, :math:`(p_a, q_a) = (p_c + q_b, q_c + p_b)` (Finzi 2023, 2.6). Of its copies at most ``maps`` do;
    None for as many as it has dimensions.
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
                    used = min(len(index_a), rep_a.dim if maps is None else maps)
                    found.append(
                        Contraction(c, a, b, coordinates, used, len(index_c), len(index_b), rep_c.dim, rep_b.dim)
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
        return f"{self.weight.numel()} weights, variance={written(self.log_variance)}"


class Bilinear(nn.Module):
    """The identity plus contractions of pairs of parts, ``rep -> rep`` (Finzi 2023, 2.6).

    Of each part at most ``maps`` copies serve as maps; which, is drawn from ``generator`` at construction and kept in a
    buffer, so that a checkpoint remembers it. Published are as many as it has dimensions, the default. Products of all pairs of
    ``n`` vectors take ``n`` maps: with fewer those of the others have to be put together from several by division, which
    the layers after it learn badly. Weights start with variance one over the number of
    terms summed, so that the layer adds about a tenth (``SCALE``) of its input's size; the published backends start from
    N(0, 1) or 0.01 N(0, 1) whatever the width.

    Each contraction is carried out in the cheaper of its two orders: a product of its weights with the features of all
    samples, and one of small matrices per sample. Features are transposed first, because the small products are done
    with the samples last.

    Raises:
        ValueError: no part of ``rep`` is a map between two others, so there is nothing to contract; ``rep`` is complex, or
            bound to no group; fewer than one map.
    """

    maps: Tensor
    order: Tensor | None
    inverse: Tensor | None

    def __init__(
        self,
        rep: Rep,
        *,
        maps: int | None = None,
        variance: int | float = 1e5,
        generator: torch.Generator | None = None,
    ):
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
        order = torch.cat(
            [index.T.flatten() for _, index in parts]
        )  # part by part, of each all copies of one component together
        contiguous = bool((order == torch.arange(rep.dim)).all())
        self.register_buffer("order", None if contiguous else order)
        inverse = order.argsort()
        self.register_buffer("inverse", None if contiguous else inverse)

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
        self.plan = Plan(groups, shapes, {key: len(index) for key, index in rows.items()})

        terms = [
            sum(k.maps * k.ins * k.dim_in for k in self.contractions if k.out == part) for part in range(len(parts))
        ]
        std = torch.cat([torch.full((k.num_weights,), terms[k.out] ** -0.5) for ks in groups for k in ks])
        self.equivariant = BilinearPathway(std, variance, generator)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """The flat weights, scaled, and the coordinates of the maps' matrices in the features."""
        return SCALE * self.equivariant.weight, self.maps

    def forward(
        self, x: Float[Tensor, "*batch n"], weights: tuple[Tensor, Tensor] | None = None
    ) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep)
        y = self.samples_last(
            x.reshape(-1, x.shape[-1]).mT.contiguous(), self.assemble() if weights is None else weights
        )
        return y.mT.view(x.shape)

    def samples_last(
        self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "*stack n samples"]:
        """The same for features as they lie in memory between layers."""
        weight, index = weights
        x = x if self.order is None else x.index_select(-2, self.order)
        y = evaluate(self.plan, index, x, weight)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def vjp(self, x: Float[Tensor, "*stack n samples"], weights: tuple[Tensor, Tensor]) -> tuple[Tensor, PullBack]:
        """:meth:`samples_last`, and the function from a cotangent of its result to that of ``x``."""
        if self.order is not None:
            return plain_vjp(lambda x: self.samples_last(x, weights), x)
        weight, index = weights
        return evaluate_vjp(self.plan, index, x, weight)

    def extra_repr(self) -> str:
        return f"{self.rep}, {len(self.contractions)} contractions"
