r"""Chains of groups, :math:`G_1 > G_2 > \ldots`, of which a layer has an equivariant pathway each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real

import torch

from rppdyn.groups import Group
from rppdyn.nn.pathways import EquivariantPathway
from rppdyn.reps import V

__all__ = ["EQUIVARIANT", "check_chain", "check_nested", "equivariant_name", "written_chain"]

EQUIVARIANT = "equivariant"
"""The pathway of the largest group."""

TOLERANCE = 1e-8  # of the share of a map's squared norm that is outside of a subspace


def equivariant_name(place: int) -> str:
    """The pathway of the group at a place of a chain: ``equivariant``, ``equivariant_2``, ..."""
    return EQUIVARIANT if place == 0 else f"{EQUIVARIANT}_{place + 1}"


def written_chain(groups: Sequence[Group]) -> str:
    """``O(3) > O2eR3``."""
    return " > ".join(map(str, groups))


def check_chain(groups: Sequence[Group], variances: Sequence[int | float] | None) -> None:
    """Refuse groups of which one is no subgroup of the one before it, and variances that are not one for each pathway.

    Elements of infinite groups can't be compared one by one; :func:`check_nested` compares what they leave invariant.

    Raises:
        ValueError: naming the first two groups that are no chain, or the number of variances that there should be.
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
    r"""Refuse pathways of which one does not contain all maps of the one before: :math:`Q_2 Q_2^T Q_1 = Q_1`.

    A random map :math:`w = Q_1 \beta` is in the span of :math:`Q_2` where :math:`|Q_2^T w| = |w|`; that all are follows from
    one with probability one.

    Raises:
        ValueError: naming the groups, and the map's representations.
    """
    generator = torch.Generator().manual_seed(0)
    for one, wider in pairwise(pathways):
        for first, second in ((one.weight_map, wider.weight_map), (one.bias_map, wider.bias_map)):
            if first is None or second is None:
                continue
            rows, cols, values = first.entries()
            theta = torch.randn(first.rank, generator=generator, dtype=torch.float64)
            w = torch.zeros(first.size, dtype=torch.float64).index_add_(0, rows, values * theta[cols])
            squared, inside = float(w.square().sum()), float(second.transpose(w).square().sum())
            if squared - inside > TOLERANCE * squared:
                G, H = one.rep_in.G, wider.rep_in.G
                raise ValueError(
                    f"groups: {H} is no subgroup of {G}: not all maps {one.rep_in} -> {one.rep_out} that are equivariant under "
                    f"{G} are so under {H}; give the largest group first, then subgroups of the one before"
                )
