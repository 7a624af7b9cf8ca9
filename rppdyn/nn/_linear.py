r"""The relaxed linear layer: equivariant pathways of one group or more and a free one, summed.

Several groups are a chain, :math:`G_1 > G_2 > \ldots`, and a layer has an equivariant pathway for each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rppdyn.groups import Group
from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.nn._pathways import AffineMap, EquivariantPathway, FreePathway, LinearPathway, prior_unit
from rppdyn.reps import Rep, RepType, V

EQUIVARIANT = "equivariant"
"""The pathway of the largest group."""

NESTING_TOLERANCE = 1e-8  # largest share of a map's squared norm outside of a subspace that contains it


def equivariant_name(place: int) -> str:
    """The pathway of the group at a place of a chain: ``equivariant``, ``equivariant_2``, ..."""
    return EQUIVARIANT if place == 0 else f"{EQUIVARIANT}_{place + 1}"


def chain_text(groups: Sequence[Group]) -> str:
    """``O(3) > O2eR3``."""
    return " > ".join(map(str, groups))


def check_chain(groups: Sequence[Group], variances: Sequence[int | float] | None) -> None:
    """Refuse groups that are no chain of subgroups, the largest first, and variances that are not one for each pathway.

    Elements of infinite groups can't be compared one by one; :func:`check_nested` compares their equivariant maps.
    """
    if isinstance(groups, Group) or not groups or not all(isinstance(G, Group) for G in groups):
        raise ValueError(f"groups={groups!r}: give a list of groups, the largest first, such as [O(3), O2eR3()]")
    if variances is None or len(variances) != len(groups) + 1:
        raise ValueError(
            f"variances={variances} with {len(groups)} groups: give {len(groups) + 1} variances, one for each group and the "
            "free pathway's last"
        )
    if wrong := [v for v in variances if not isinstance(v, Real) or not 0 <= v < math.inf]:
        raise ValueError(f"variances={variances}: {wrong[0]!r} is no variance; give numbers, zero or positive")
    for G, H in pairwise(groups):
        if H.d != G.d:
            raise ValueError(
                f"groups: {H} is given by {H.d} x {H.d} matrices and {G} by {G.d} x {G.d}: give a subgroup by the matrices by "
                f"which it acts in {G}, as Group(name, discrete_generators=...)"
            )
        if H == G:
            raise ValueError(f"groups: {G} is given twice: give each group once, the largest first")
        try:
            V(G).restrict(H)
        except ValueError as error:
            raise ValueError(
                f"groups: {error}; give the largest group first, then subgroups of the one before"
            ) from error


def check_nested(pathways: Sequence[EquivariantPathway]) -> None:
    r"""Refuse pathways that do not contain all maps of the pathway before: :math:`Q_2 Q_2^T Q_1 = Q_1`.

    A map :math:`w = Q_1 \beta` is in the span of :math:`Q_2` if :math:`|Q_2^T w| = |w|`. Testing one random map suffices, with
    probability one.
    """
    generator = torch.Generator().manual_seed(0)
    for narrow, wide in pairwise(pathways):
        for first, second in ((narrow.weight_map, wide.weight_map), (narrow.bias_map, wide.bias_map)):
            if first is None or second is None:
                continue
            rows, cols, values = first.entries()
            theta = torch.randn(first.rank, generator=generator, dtype=torch.float64)
            w = torch.zeros(first.size, dtype=torch.float64).index_add_(0, rows, values * theta[cols])
            squared, inside = float(w.square().sum()), float(second.transpose(w).square().sum())
            if squared - inside > NESTING_TOLERANCE * squared:
                G, H = narrow.rep_in.G, wide.rep_in.G
                raise ValueError(
                    f"groups: {H} is no subgroup of {G}: not all maps {narrow.rep_in} -> {narrow.rep_out} that are "
                    f"equivariant under {G} are so under {H}; give the largest group first, then subgroups of the one before"
                )


FREE_SCALE = 1e-3
"""Initial size of the free pathway relative to a layer of its own, where there is an equivariant one (as published)."""


def check_size(x: Tensor, rep: Rep) -> None:
    """Refuse features of another size than a representation's."""
    if x.shape[-1:] != (rep.dim,):
        raise ValueError(
            f"inputs of shape {tuple(x.shape)}: the last axis must have {rep.dim} entries, which transform as "
            f"{rep} of {rep.G}"
        )


def call_in_float32(layer: Callable[[Tensor, Any], Tensor], x: Tensor, weights: Any) -> Tensor:
    """``layer(x, weights)`` without autocast, since products of products of bf16 features may lose every digit."""
    if x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type):
        return layer(x, weights)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(torch.promote_types(x.dtype, torch.float32)), weights)


class SamplesLastLayer(ExactBuffers, ABC):
    """A layer ``rep_in -> rep`` that computes with the samples last, as features lie in memory between layers."""

    rep_in: Rep
    rep: Rep
    order: Tensor | None
    inverse: Tensor | None

    def register_order(self, order: Tensor, inverse: Tensor) -> None:
        """Register the order in which rows are computed with, and the inverse; None where rows lie in that order."""
        contiguous = torch.equal(order, torch.arange(len(order)))
        self.register_constant("order", None if contiguous else order)
        self.register_constant("inverse", None if contiguous else inverse)

    @abstractmethod
    def assemble(self) -> Any:
        """The weights, for :meth:`samples_last`."""

    @abstractmethod
    def samples_last(
        self, x: Float[Tensor, "*stack in samples"], weights: Any
    ) -> Float[Tensor, "*stack out samples"]: ...

    def forward(self, x: Float[Tensor, "*batch in"], weights: Any = None) -> Float[Tensor, "*batch out"]:
        check_size(x, self.rep_in)
        y = x.reshape(-1, x.shape[-1]).mT.contiguous()
        y = call_in_float32(self.samples_last, y, self.assemble() if weights is None else weights)
        return y.mT.reshape(*x.shape[:-1], self.rep.dim)


def bind(rep: Rep | RepType, group: Group | None) -> Rep:
    """``rep`` as a representation of ``group``: types are bound to it, representations of a factor lifted to it.

    Raises:
        ValueError: a representation of another group or without coordinates, a complex group, or a type without a group.
    """
    if isinstance(rep, RepType):
        if group is None:
            raise ValueError(f"{rep} is not bound to a group: give group=..., or call it with one")
        rep = rep(group)
    if not isinstance(rep, Rep):
        raise ValueError(f"{rep!r} is no representation; build one from V, T, Scalar, Pseudoscalar, Rep or regular(G)")
    group = rep.G if group is None else group
    if group.is_complex or rep.dtype.is_complex:
        raise ValueError(
            f"networks are real and {group} is complex: write it as a real group on twice the dimensions, "
            "[[Re A, -Im A], [Im A, Re A]]"
        )
    if rep.dim == 0:
        raise ValueError(f"{rep} has no coordinates, of which nothing can be a function: leave it out")
    return rep if rep.G == group else rep.lift(group)


def largest_group(group: Group | None, groups: Sequence[Group] | None, variances: Sequence[int | float] | None,
            pair: tuple[int | float, int | float], *reps: Rep | RepType) -> Group:  # fmt: skip
    """The first group of a chain. Refuse a group or a pair of variances beside it, no chain, and reps of a subgroup."""
    if groups is None:
        raise ValueError(f"variances={variances} without groups: they are of a chain; give groups=[...] too")
    if group is not None:
        raise ValueError(f"groups={list(groups)} together with group={group}: give one of the two")
    check_chain(groups, variances)
    if pair != (1e5, 1.0):
        raise ValueError(
            f"equivariant_variance={pair[0]:g} and free_variance={pair[1]:g} together with variances={variances}: give "
            "variances alone, the free pathway's last"
        )
    for rep in reps:
        if isinstance(rep, Rep) and rep.G in groups[1:]:
            raise ValueError(
                f"{rep} is a representation of {rep.G}, a subgroup: give one of the chain's largest group, {groups[0]}"
            )
    return groups[0]


class RelaxedLinear(ExactBuffers):
    r"""``y = (A + B) x + a + b`` with ``A, a`` equivariant and ``B, b`` free, each with its own Gaussian prior.

    :math:`\mathrm{vec}(A) = Q\beta`, :math:`\beta \sim N(0, \sigma_a^2)` and :math:`B \sim N(0, \sigma_b^2)`, so that the
    dense weight has covariance :math:`(\sigma_a^2 + \sigma_b^2) QQ^T + \sigma_b^2 PP^T` (Finzi 2023, Eq. 3.1); biases
    likewise. A variance of 0 removes the pathway: without the free one the layer is exactly equivariant, without the
    equivariant one it is an ordinary linear layer.

    The equivariant pathway starts with outputs of variance ``gain^2`` for inputs of unit mean square; the free one is an
    independent draw of ``free_scale`` times that size (the published code starts one of its backends from the same draw),
    or of full size where it is alone.

    For a chain :math:`G_1 > G_2 > \ldots` of groups the layer has an equivariant pathway for each,

    .. math:: \mathrm{vec}(W) = \sum_i Q_i u_i + v, \qquad u_i \sim N(0, \sigma_i^2),\quad v \sim N(0, \sigma_b^2),

    with :math:`Q_i` a basis of the maps that are equivariant under :math:`G_i`. These spans are nested, since a map that is
    equivariant under a group is equivariant under its subgroups. The pathways are called ``equivariant``,
    ``equivariant_2``, ... The first one that is not removed starts at full size, the others at ``free_scale`` of it.

    Args:
        rep_in, rep_out: representations, or types to bind to ``group``; those of a factor of it are lifted. With a chain they
            belong to its largest group, and are restricted to the others.
        group: needed only where neither representation is bound.
        equivariant_variance, free_variance: :math:`\sigma_a^2` and :math:`\sigma_b^2`.
        groups: a chain in the place of ``group``, the largest first; each a subgroup of the one before, by the same matrices.
        variances: with ``groups``, :math:`\sigma_i^2` of each and :math:`\sigma_b^2` last; the two variances are then left out.
        gain: multiplies the initial weights of both pathways.
        generator: source of the initial weights, the global one if None.
    Raises:
        ValueError: all variances are 0; the representations do not belong to one group; a scale that is not finite; groups
            that are no chain, or given beside a group; a wrong number of variances.
    """

    equivariant: EquivariantPathway | None
    free: FreePathway | None

    def __init__(self, rep_in: Rep | RepType, rep_out: Rep | RepType, group: Group | None = None, *,
                 equivariant_variance: int | float = 1e5, free_variance: int | float = 1.0, bias: bool = True,
                 gain: int | float = 1.0, free_scale: int | float = FREE_SCALE,
                 groups: Sequence[Group] | None = None, variances: Sequence[int | float] | None = None,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        if groups is not None or variances is not None:
            group = largest_group(group, groups, variances, (equivariant_variance, free_variance), rep_in, rep_out)
        elif group is None:
            group = next((rep.G for rep in (rep_in, rep_out) if isinstance(rep, Rep)), None)
        self.rep_in, self.rep_out = bind(rep_in, group), bind(rep_out, group)
        self.groups = (self.rep_in.G,) if groups is None else tuple(groups)
        *equivariant_variances, free_variance = variances or (equivariant_variance, free_variance)
        for name, scale in (("gain", gain), ("free_scale", free_scale)):
            if not math.isfinite(scale):
                raise ValueError(f"{name}={scale!r}: give a number")
        if free_variance == 0 and not any(equivariant_variances):
            zero = "variances are all" if groups is not None else "equivariant_variance and free_variance are both"
            raise ValueError(f"{zero} 0, which leaves no pathway: raise one")
        names = [equivariant_name(place) for place in range(len(self.groups))]
        equivariant: dict[str, EquivariantPathway] = {}
        for place, (name, variance) in enumerate(zip(names, equivariant_variances, strict=True)):
            if variance == 0:
                continue
            H = self.groups[place]
            sub_in, sub_out = (rep.restrict(H) if place else rep for rep in (self.rep_in, self.rep_out))
            is_free = bool(equivariant)
            equivariant[name] = EquivariantPathway(
                sub_in, sub_out, variance, bias=bias, gain=gain * free_scale if is_free else gain, has_unit=is_free,
                generator=generator,
            )  # fmt: skip
            equivariant[name].is_free = is_free
        check_nested([*equivariant.values()])
        free = None
        if free_variance != 0:
            unit = prior_unit(free_variance, self.rep_in.dim) if equivariant else None
            free = FreePathway(
                self.rep_in.dim, self.rep_out.dim, free_variance, bias=bias, gain=gain * free_scale if equivariant else gain,
                unit=unit, generator=generator,
            )  # fmt: skip
            free.is_free = bool(equivariant)
        for name, wider in pairwise([*equivariant, *(["free"] if free is not None else [])]):
            equivariant[name].within = wider
        for name in names:
            setattr(self, name, equivariant.get(name))
        self.free = free
        self.pathway_names = (*names, "free")
        if equivariant:
            maps = (m for pathway in equivariant.values() for m in (pathway.weight_map, pathway.bias_map))
            words = f"{self.rep_in} -> {self.rep_out} of {chain_text(self.groups)}"
            self.register_layout(words, [m.number for m in maps if m is not None])

    @property
    def equivariant_pathways(self) -> tuple[EquivariantPathway, ...]:
        """The equivariant pathways that exist, that of the largest group first."""
        return tuple(p for p in self.linear_pathways if isinstance(p, EquivariantPathway))

    @property
    def linear_pathways(self) -> tuple[LinearPathway, ...]:
        """The pathways that exist, the equivariant ones first."""
        return tuple(p for name in self.pathway_names if (p := getattr(self, name)) is not None)

    def assemble(self) -> AffineMap:
        """The dense weight and bias, summed over the pathways."""
        total: Any = None
        pathways = self.linear_pathways
        # compiled, the free one first, so that loops end in runs (`CoefficientMap`); uncompiled, last, which saves a pass
        for pathway in reversed(pathways) if torch.compiler.is_compiling() else pathways:
            total = pathway.dense(total)
        return total

    def forward(self, x: Float[Tensor, "*batch in"], weights: AffineMap | None = None) -> Float[Tensor, "*batch out"]:
        """``x W^T + b``, with weights assembled here or before."""
        return F.linear(x, *(self.assemble() if weights is None else weights))

    def extra_repr(self) -> str:
        chain = f", {chain_text(self.groups)}" if len(self.groups) > 1 else ""
        return f"{self.rep_in} -> {self.rep_out}{chain}"
