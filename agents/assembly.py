r"""How the dense weights of relaxed layers are put together from their parameters, and gradients taken apart.

Of N networks, vectors (N, n) hold the equivariant pathways' parameters :math:`\theta` of all layers first, then the free
pathways' :math:`\phi`, the latter in the order of the dense tensors :math:`D = (W_1, b_1, W_2, \dots)`. A dense weight is a
multiple of one tied parameter plus one of a free one, :math:`D_i = f_i \theta_{\pi(i)} + u_i \phi_i`. Networks whose variances
are learned have units :math:`u` of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from rppdyn.nn.compiling import materialised

MOST_TIES = 16
"""Weights tied to one parameter up to which a compiled gradient gathers them; scattered, threads wait for each other."""


@dataclass(frozen=True)
class Entries:
    r"""The map: :math:`\pi`, :math:`f` and :math:`u`, a number for each dense weight, and how many parameters are tied.

    Units are (m,), or (N, m) of networks that differ in them.
    """

    index: Tensor
    factor: Tensor
    unit: Tensor
    tied: int


class Assembly:
    """The map, in the dtype and on the device of a vector.

    Args:
        entries: of the networks, which differ in their units at most.
        shapes: (out, in) of the layers, each of which has a weight and a bias.
        size: n, the length of a vector.
        like: has the dtype and the device.
    """

    def __init__(self, entries: Entries, shapes: Sequence[tuple[int, int]], size: int, like: Tensor) -> None:
        self.shapes = [shape for m, n in shapes for shape in ((m, n), (m,))]
        self.tied, self.has_free = entries.tied, size > entries.tied
        ends = list(accumulate(math.prod(shape) for shape in self.shapes))
        self.places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        # None for what there is not, or is 1 throughout
        self.index = entries.index.to(like.device) if self.tied else None
        self.factor = entries.factor.to(like) if self.tied and (entries.factor != 1).any() else None
        self.unit = entries.unit.to(like) if self.has_free and (entries.unit != 1).any() else None
        self._ties = _ties(entries, self.places, like) if self.tied else None

    @property
    def ties(self) -> list[_Tie | None] | None:
        """What ties each dense tensor by itself, where that pays: torch.compile makes a loop of it, over runs of neighbours."""
        return self._ties if torch.compiler.is_compiling() else None

    def dense(self, vectors: Tensor) -> list[Tensor]:
        """The dense tensors (N, *shape) of all layers: weight, bias, weight, ..."""
        if self.ties is None:
            flat = self._whole(vectors)
            parts = [flat[:, place] for place in self.places]
        else:
            parts = [self._part(vectors, place, tie) for place, tie in zip(self.places, self.ties, strict=True)]
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _whole(self, vectors: Tensor) -> Tensor:
        free = vectors[:, self.tied :]
        if self.index is None:
            return free if self.unit is None else free * self.unit
        shared = vectors[:, : self.tied].index_select(1, self.index)
        shared = shared if self.factor is None else shared.mul_(self.factor)
        if not self.has_free:
            return shared
        return shared.add_(free) if self.unit is None else shared.addcmul_(free, self.unit)

    def _part(self, vectors: Tensor, place: slice, tie: _Tie | None) -> Tensor:
        free = _times(vectors[:, self.tied :][:, place], self.unit, place) if self.has_free else None
        if tie is None:
            return vectors.new_zeros(len(vectors), place.stop - place.start) if free is None else free
        # in runs until the end, so that a compiled loop's inner one is a run, and contiguous
        shared = tie.gather(vectors[:, : self.tied])
        if self.factor is not None:
            shared = shared * tie.in_runs(self.factor[place])
        return (shared if free is None else shared + tie.in_runs(free)).flatten(1)

    def gradient(self, dense: Sequence[Tensor]) -> Tensor:
        """The gradient by the vectors from those by the dense tensors, each flattened, (N, m): the map transposed."""
        if self.ties is None:
            return self._whole_gradient(torch.cat(list(dense), 1))
        both = zip(self.ties, dense, self.places, strict=True)
        tied = [(tie.tied.start, tie.sum(_times(g, self.factor, place))) for tie, g, place in both if tie is not None]
        parts = [part for _, part in sorted(tied, key=itemgetter(0))]
        if self.has_free:
            parts += [_times(g, self.unit, place) for g, place in zip(dense, self.places, strict=True)]
        return torch.cat(parts, 1)

    def _whole_gradient(self, dense: Tensor) -> Tensor:
        free = dense if self.unit is None else dense * self.unit
        if self.index is None:
            return free
        scaled = dense if self.factor is None else dense * self.factor
        tied = dense.new_zeros(len(dense), self.tied).index_add_(1, self.index, scaled)
        return torch.cat([tied, free], 1) if self.has_free else tied


def _times(part: Tensor, numbers: Tensor | None, place: slice) -> Tensor:
    return part if numbers is None else part * numbers[..., place]


class _Tie(NamedTuple):
    """What ties the weights of one dense tensor to a stretch of the parameters, in runs of neighbours.

    Attributes:
        tied: the stretch.
        run: the length of a run.
        runs: of each run of weights its run of parameters.
        back: of each run of parameters the first of weights; then the second, with 1, or any, with 0, where there is none; and
            so on.
    """

    tied: slice
    run: int
    runs: Tensor
    back: list[tuple[Tensor, Tensor | None]]

    def gather(self, tied: Tensor) -> Tensor:
        """The weights that are tied to parameters, in runs: (N, m / run, run)."""
        return self.in_runs(tied[:, self.tied]).index_select(1, self.runs)

    def in_runs(self, entries: Tensor) -> Tensor:
        """Entries (..., m) as (..., m / run, run)."""
        return entries.unflatten(-1, (-1, self.run))

    def sum(self, part: Tensor) -> Tensor:
        """Over all weights that are tied to a parameter, for each of the stretch."""
        runs = self.in_runs(part)
        first, *others = (runs.index_select(1, index) for index, _ in self.back)
        for (_, mask), other in zip(self.back[1:], others, strict=True):
            first = first + (other if mask is None else other * mask)
        return materialised(first).flatten(1)


def _ties(entries: Entries, places: Sequence[slice], like: Tensor) -> list[_Tie | None] | None:
    """One per dense tensor, or None where nothing ties it; None where they are not such, or too many are tied to one."""
    try:
        found = [_tie(entries.index[place], entries.factor[place] != 0, like) for place in places]
    except _Scattered:
        return None
    stretches = sorted((tie.tied.start, tie.tied.stop) for tie in found if tie is not None)
    whole = [start for start, _ in stretches] + [entries.tied] == [0] + [stop for _, stop in stretches]
    return found if whole else None


class _Scattered(Exception):
    """A stretch of parameters of which some have no weight, or too many."""


def _tie(index: Tensor, used: Tensor, like: Tensor) -> _Tie | None:
    if not used.any():
        return None
    first, last = int(index[used].min()), int(index[used].max())
    own, count = torch.where(used, index - first, 0), last - first + 1
    run = _run(own, count)
    runs, used = own[::run] // run, used.view(-1, run).any(1)  # where a run is not used throughout, its factor is 0
    counts = runs[used].bincount(minlength=count // run)
    if not 0 < counts.min() <= counts.max() <= MOST_TIES:
        raise _Scattered
    order = torch.where(used, runs, count).argsort(stable=True)
    begins = counts.cumsum(0) - counts
    back: list[tuple[Tensor, Tensor | None]] = []
    for k in range(int(counts.max())):
        there = counts > k
        index = order[torch.where(there, begins + k, begins)].to(like.device)
        back.append((index, None if there.all() else there.unsqueeze(1).to(like)))
    return _Tie(slice(first, last + 1), run, runs.to(like.device), back)


def _run(index: Tensor, count: int) -> int:
    """The greatest number of neighbours that are everywhere tied to neighbours, from a multiple of that number on."""
    for run in range(min(len(index), count), 1, -1):
        if len(index) % run == 0 and count % run == 0:
            heads = index[::run]
            if (heads % run == 0).all() and (index.view(-1, run) == heads.unsqueeze(1) + torch.arange(run)).all():
                return run
    return 1
