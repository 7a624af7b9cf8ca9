"""Normalisation of observations that commutes with a symmetry."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from rppdyn.basis import Basis
from rppdyn.groups import is_signed_permutation
from rppdyn.nn._coefficients import ExactBuffers, layout_number
from rppdyn.nn._linear import bind, check_size
from rppdyn.reps import Rep, Scalar

MAX_ABS_ENTRY = 1e150  # largest entry whose square fits into double precision
MAX_DENSE_PROJECTOR_SIZE = 1000  # largest dimension for which the projector onto the invariants is a dense matrix
ZERO_VARIANCE_SHARE = 1e-8  # variance of a component that is always zero, as a share of the largest mean square


class InvariantNormaliser(ExactBuffers):
    r"""``x -> (x - mean) / std`` with running statistics that are invariant under the group, so the map is equivariant.

    The mean is projected onto the invariants of the representation (a vector's mean is zero under rotations, whatever
    the data). The variance about it is pooled over the coordinates that the symmetry mixes: the connected components of
    the generators' non-zero patterns, on each of which ``std`` is one number. Both commute with the group; for an irreducible
    part they are the statistics of the data averaged over the group.

    Statistics change in :meth:`update` only, which data collection calls; one normaliser is shared by actor, critics and
    targets. They are merged by counts (Chan, Golub & LeVeque 1983) in float64 buffers, so that batches of any sizes
    give the statistics of one pass over all data. Before the first update the map is the identity.

    Args:
        rep: the representation of ``x``.
        clip: bound on the result in units of ``std``, or None. Components on which the group acts by signed permutations are
            clipped coordinate by coordinate; others, on which it acts orthogonally, at a root mean square of ``clip``.
        eps: share of the mean square up to which a variance counts as rounding, and the component as constant. The ``std`` of a
            constant component is its root mean square; that of one that is always zero, ``1e-4`` of the largest.
    Raises:
        ValueError: ``clip`` for a representation with a component that is not orthogonal, which no clipping commutes with;
            a ``clip`` that is not positive, or an ``eps`` that is negative; a complex representation, or one bound to no group.
    """

    component: Tensor
    component_size: Tensor
    is_radial: Tensor | None
    count: Tensor
    raw_mean: Tensor
    raw_m2: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, rep: Rep, *, clip: int | float | None = None, eps: int | float = 1e-12):
        super().__init__()
        if clip is not None and not clip > 0:
            raise ValueError(f"clip={clip!r}: give a positive number of standard deviations, or None")
        if not 0 <= eps < math.inf:
            raise ValueError(f"eps={eps!r}: give a share of the mean square, a number of at least 0")
        rep = bind(rep, None)
        self.rep, self.clip, self.eps = rep, clip, eps
        labels = rep.components
        self.register_constant("component", labels)
        self.register_constant("component_size", torch.bincount(labels).double(), working_copy=False)
        rows, cols, values = rep.solve().canonical().sparse()
        numbers = layout_number(labels + 1.0, torch.arange(rep.dim)), layout_number(values, rows, cols)
        self.register_layout(f"statistics of {rep} of {rep.G}", numbers)
        radial = None if clip is None else self._radial(len(self.component_size))
        self.register_constant("is_radial", radial)
        self._any_radial = radial is not None and bool(radial.any())  # a Python bool: reading it waits for no device
        for name in ("count", "raw_mean", "raw_m2", "mean"):
            value = torch.zeros((), dtype=torch.float64) if name == "count" else torch.zeros(rep.dim)
            self.register_exact(name, value, working_copy=False)
        self.register_exact("std", torch.ones(rep.dim), working_copy=False)

    def _radial(self, count: int) -> Tensor:
        lie, discrete = self.rep.unit_lie_generators, self.rep.discrete_generators
        radial = torch.zeros(count, dtype=torch.bool)
        for k in range(count):
            at = (self.component == k).nonzero()[:, 0]
            A, h = lie[:, at[:, None], at], discrete[:, at[:, None], at]
            if not A.any() and is_signed_permutation(h):
                continue
            if not (torch.allclose(A, -A.mT) and torch.allclose(h @ h.mT, torch.eye(len(at), dtype=h.dtype))):
                raise ValueError(
                    f"clip={self.clip} with {self.rep}: coordinates {at.tolist()} do not transform orthogonally, "
                    "so no clipping commutes with the group; leave clip out"
                )
            radial[k] = True
        return radial

    @functools.cached_property
    def _invariants(self) -> Basis:
        return self.rep.solve()

    def update(self, x: Float[Tensor, "*batch n"]) -> None:
        """Add a batch to the statistics.

        An agent calls this at every step with one observation, for which NumPy takes less than half of torch's time.

        Raises:
            ValueError: the last dimension is not the representation's, or a value is not finite.
        """
        x = torch.as_tensor(x)
        if x.shape[-1:] != self.std.shape:
            raise ValueError(
                f"a batch of shape {tuple(x.shape)} for {self.rep}: its last dimension must be {self.rep.dim}"
            )
        rows = x.detach().to("cpu", torch.float64).numpy().reshape(-1, self.rep.dim)
        if not (np.abs(rows) < MAX_ABS_ENTRY).all():  # nan is not
            raise ValueError(
                "a batch with values that are not finite, or whose squares aren't, would spoil the running statistics; leave "
                "it out"
            )
        if not len(rows):
            return
        buffers = self.count, self.raw_mean, self.raw_m2, self.mean, self.std
        on_cpu = [buffer.cpu() for buffer in buffers]  # of a module on the CPU the buffers themselves
        count, raw_mean, raw_m2, mean, std = (tensor.numpy() for tensor in on_cpu)
        if len(rows) == 1:
            (batch_mean,) = rows
        else:
            batch_mean = rows.mean(0)
            raw_m2 += np.square(rows - batch_mean).sum(0)
        delta = batch_mean - raw_mean
        share = len(rows) / (count + len(rows))
        raw_m2 += delta * delta * (count * share)
        raw_mean += delta * share
        count += len(rows)
        if self.rep.dim > MAX_DENSE_PROJECTOR_SIZE:
            mean[:] = self._invariants.project(torch.from_numpy(raw_mean)).numpy()
        else:
            mean[:] = self._projector @ raw_mean
        about_invariant = np.square(raw_mean - mean) + raw_m2 / count
        component, size = self._pools
        pooled = np.bincount(component, about_invariant) / size
        square = pooled + np.bincount(component, np.square(mean)) / size
        scale = np.where(square > 0, square, ZERO_VARIANCE_SHARE * (square.max() or 1.0))
        np.sqrt(np.where(pooled > self.eps * square, pooled, scale)[component], out=std)
        for buffer, tensor in zip(buffers, on_cpu, strict=True):
            if tensor is not buffer:
                buffer.copy_(tensor)

    @functools.cached_property
    def _projector(self) -> NDArray:
        """The projector onto the invariants, dense: through the basis the projection takes five times as long as the rest."""
        return self._invariants.project(torch.eye(self.rep.dim, dtype=torch.float64)).numpy()

    @functools.cached_property
    def _pools(self) -> tuple[NDArray, NDArray]:
        """The component of each coordinate, and the sizes of the components."""
        return self.component.cpu().numpy(), self.component_size.cpu().numpy()

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep)
        x = x if x.is_floating_point() else x.double()
        y = (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)
        if self.clip is None:
            return y
        is_radial = self.is_radial if self._any_radial else None
        if is_radial is None:
            return y.clamp(-self.clip, self.clip)
        squares = y.new_zeros(*y.shape[:-1], len(self.component_size)).index_add(-1, self.component, y**2)
        norm = (squares / self.component_size.to(y.dtype)).sqrt()
        shrunk = y * (self.clip / norm.clamp_min(self.clip)).index_select(-1, self.component)
        return torch.where(is_radial[self.component], shrunk, y.clamp(-self.clip, self.clip))

    def inverse(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The inverse image of ``y`` under :meth:`forward`, where that does not clip."""
        return y * self.std.to(y.dtype) + self.mean.to(y.dtype)

    def extra_repr(self) -> str:
        return f"{self.rep}, {len(self.component_size)} components, clip={self.clip}"


# -- how a Gaussian's standard deviations transform, if its mean transforms under an orthogonal representation -----------------


def mixing_blocks(rep: Rep) -> Tensor | None:
    """Blocks of entries that an orthogonal rep mixes, zeros and ones ``(blocks, dim)``; None for signed permutations."""
    if rep.is_signed_permutation:
        return None
    return F.one_hot(rep.components).mT.float()


def deviation_rep(rep: Rep, blocks: Tensor | None) -> Rep:
    """Representation of logarithms of standard deviations: |rho|, one per entry; or invariant, one per block."""
    return abs(rep) if blocks is None else len(blocks) * Scalar(rep.G)
