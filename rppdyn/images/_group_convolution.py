r"""Group convolutions over translations and rotations by 90 degrees (p4), and sparse pathways.

**Group convolutions.** Channels stand for orientations: they are ``(c, r)``, four for each field c, r fastest. A rotation of
the image by 90 degrees turns the maps and moves orientation r to r + 1. Images themselves have one orientation.

**Sparse pathways** have filters and factors with values at anchor points, and exponential basis functions between them.

.. math:: s(c', c, p) = \sum_j u(c', c, j)\, \phi_j(p), \qquad \phi_j(p) = \exp(-\omega_j^2 |p - z_j|^2)

with anchors :math:`z_j` and inverse lengthscales :math:`\omega_j` that all channels share. There are half as many anchors as
pixels, rounded up; they start at the pixels of one colour of a chessboard, with :math:`\omega = 1` per pixel. The prior is on
the anchor values u, or on the inverse lengthscales :math:`\omega`; with variance 0 of these, basis functions are constant, and
a fully connected pathway does not depend on places. The other parameters, anchors always, are learned without a prior.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images._continuous import ExponentialBasis
from rppdyn.images._pathways import (
    Convolution,
    ImagePathway,
    Size,
    apply_factors,
    check_fields,
    check_kernel,
    check_maps,
    circular_pad,
    constant_input_curvature,
    factored_curvature,
    patch_moments,
    place_moments,
    pool,
    reduce_inputs,
)
from rppdyn.images.registry import Place
from rppdyn.nn._pathways import Kronecker

ROTATIONS = 4
"""Number of rotations in p4."""

Orientations = tuple[int, int]
"""Numbers of orientations of input and output: (1, 4) lifts images to features, (4, 1) projects features to images."""

ORIENTATIONS: tuple[Orientations, ...] = ((1, ROTATIONS), (ROTATIONS, ROTATIONS), (ROTATIONS, 1))
"""The orientations that a group convolution may have."""


class P4Convolution(ImagePathway):
    r""":math:`y(c', r') = \sum_{c, r} [R^{r'} w(c', c, r - r')] * x(c, r)`, with filters w of a subclass.

    R turns a filter by 90 degrees: each orientation of the output reads the input with turned filters. Without orientations of
    the input the filters are :math:`R^{r'} w(c', c)`; without orientations of the output, :math:`R^r w(c', c)`.
    """

    def __init__(self, variance: int | float, orientations: Orientations, kernel_size: int, pooled: bool):
        super().__init__(variance)
        if orientations not in ORIENTATIONS:
            raise ValueError(f"orientations={orientations} of input and output: give (1, 4), (4, 4) or (4, 1)")
        self.orientations, self.kernel_size, self.pooled = orientations, check_kernel(kernel_size, pooled), pooled

    @abstractmethod
    def filters(self) -> Float[Tensor, "D B M k k"]:
        """w: fields of output and input, orientations of the input relative to the output's, and pixels."""

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        filters = expand_filters(self.filters(), self.orientations).flatten(0, 1)
        return F.conv2d(circular_pad(pool(x) if self.pooled else x, self.kernel_size), filters)

    def filter_curvature(
        self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]
    ) -> tuple[Float[Tensor, "n n"], Float[Tensor, "D D"]]:
        """A and G of the filters w, which are used at every place and, turned, at every orientation of the output."""
        fields, *frame = self.filters().shape
        count = math.prod(frame)
        numbers = torch.arange(1, count + 1, device=x.device).view(1, *frame)
        # the number of w's entry at each entry of the filters; 0 for entries that are zero
        numbers = expand_filters(numbers, self.orientations)[0].flatten(1)
        A = patch_moments(pool(x) if self.pooled else x, self.kernel_size)
        total = A.new_zeros(count + 1, count + 1)
        for number in numbers:
            rows = A.new_zeros(count + 1, len(A)).index_add(0, number, A)
            total = total.index_add(1, number, rows)
        by_field = g.unflatten(2, (fields, -1)).movedim(3, 1).flatten(0, 1)  # orientations count as further factors
        return total[1:, 1:], place_moments(by_field) / len(numbers)


class GroupConvolution(P4Convolution):
    r"""Convolution over translations and rotations by 90 degrees, with any filters w: GCONV.

    Args:
        in_channels, out_channels: numbers of channels, one for each orientation of a field.
        orientations: numbers of orientations of input and output.
        pointwise: w is zero except for r = r', with a quarter of the coefficients.
        kernel_size, pooled, gain: as of :class:`~rppdyn.images.Convolution`.
    Raises:
        ValueError: channels that are no multiple of four, no orientations, an even kernel.
    Source: Cohen & Welling 2016; van der Ouderaa, Immer & van der Wilk 2023, A and F.3 (whose code does not turn filters,
        and is not equivariant to both translations and rotations).
    """

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *,
                 orientations: Orientations = (ROTATIONS, ROTATIONS), pointwise: bool = False, kernel_size: int = 3,
                 pooled: bool = False, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance, orientations, kernel_size, pooled)
        fields_in, fields_out = check_fields((in_channels, out_channels), orientations)
        regular = orientations == (ROTATIONS, ROTATIONS)
        inputs = (fields_in if regular and pointwise else in_channels) * kernel_size**2
        shape = (fields_out, fields_in, ROTATIONS if regular and not pointwise else 1, kernel_size, kernel_size)
        self.weight = self.draw(*shape, std=gain / math.sqrt(inputs), generator=generator)

    def filters(self) -> Float[Tensor, "D B M k k"]:
        return self.weight

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return [Kronecker(*self.filter_curvature(x, g))]


class SeparableGroupConvolution(P4Convolution):
    r"""Group convolution between features, depthwise in space: filters :math:`w(c', c, m) = b(c', c, m)\, a(c)`.

    Each field of the input is filtered by a(c), which turns with the output's orientation, and shifted by an offset o(c); b
    mixes fields and relative orientations m. The coefficients are a, b and o: ``C k^2 + 4 C C' + C`` for C and C' fields.

    Args:
        in_channels, out_channels: numbers of channels, one for each orientation of a field.
        kernel_size, gain: as of :class:`~rppdyn.images.Convolution`.
    Source: Knigge, Romero & Bekkers 2022; van der Ouderaa, Immer & van der Wilk 2023, F.3 (where a has a filter for each pair
        of fields; the parameters of Table 7, and the code, are those of one filter and offset for each field of the input).
    """

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *, kernel_size: int = 3,
                 gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance, (ROTATIONS, ROTATIONS), kernel_size, pooled=False)
        fields_in, fields_out = check_fields((in_channels, out_channels), self.orientations)
        std = gain / math.sqrt(in_channels * kernel_size**2)
        self.a = self.draw(fields_in, kernel_size, kernel_size, std=std, generator=generator)
        self.b = self.draw(fields_out, fields_in, ROTATIONS, std=1.0, generator=generator)
        self.offset = nn.Parameter(torch.zeros(fields_in))

    @classmethod
    def from_place(cls, place: Place, variance: int | float) -> ImagePathway:  # type: ignore[override]
        """Build the pathway, or a full group convolution for 1 x 1 filters, liftings and projections."""
        if place.kernel_size == 1 or place.orientations != (ROTATIONS, ROTATIONS):
            return GroupConvolution.from_place(place, variance)
        return super().from_place(place, variance)

    def filters(self) -> Float[Tensor, "D B M k k"]:
        return torch.einsum("cij,dcm->dcmij", self.a, self.b)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        offsets = (self.b.sum(2) @ self.offset).repeat_interleave(ROTATIONS)
        return super().forward(x) + offsets[:, None, None]

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """Exact for a and the offsets; for b the factors of the filters, projected with a."""
        A, G = self.filter_curvature(x, g)
        a, offset, fields = self.a.flatten(1).double(), self.offset.double(), len(self.a)
        A = torch.einsum("cmknlj,ck,nj->cmnl", A.view(*(fields, ROTATIONS, a.shape[1]) * 2), a, a)
        totals = x.double().unflatten(1, (fields, ROTATIONS)).sum((0, 2, 3, 4)) * a.sum(1)  # of filtered fields, any m
        crossed, uses = torch.outer(totals, offset), len(x) * ROTATIONS * x[0, 0].numel()
        A = A + (crossed + crossed.mT + uses * torch.outer(offset, offset))[:, None, :, None]  # offsets are inputs of b
        by_offset = torch.einsum("sndrhw,dcm->snc", g.unflatten(2, (-1, ROTATIONS)), self.b)
        by_b = Kronecker(A.flatten(2).flatten(0, 1), G)
        return [constant_input_curvature(self._gradients(x, g)), by_b, constant_input_curvature(by_offset)]

    def _gradients(
        self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]
    ) -> Float[Tensor, "S N n"]:
        """Gradients by a, for every datum and factor."""
        k, reach = self.kernel_size, self.kernel_size // 2
        x, by_field = x.unflatten(1, (-1, ROTATIONS)), g.unflatten(2, (-1, ROTATIONS))
        turned = []
        for r in range(ROTATIONS):
            by_input = torch.einsum("sndhw,dcm->sncmhw", by_field[:, :, :, r], torch.roll(self.b, r, 2))
            taps = [torch.roll(x, (reach - i, reach - j), (-2, -1)) for i in range(k) for j in range(k)]
            by_tap = torch.stack([torch.einsum("sncmhw,ncmhw->snc", by_input, tap) for tap in taps], -1)
            turned.append(torch.rot90(by_tap.unflatten(-1, (k, k)), -r, (-2, -1)))
        return torch.stack(turned).sum(0).flatten(2)


def expand_filters(w: Shaped[Tensor, "D B M k k"], orientations: Orientations) -> Shaped[Tensor, "D R C k k"]:
    """Turn filters w for all orientations R of the output; input channels C are ``(c, r)``."""
    if orientations[1] == 1:
        return torch.stack([torch.rot90(w[:, :, 0], r, (-2, -1)) for r in range(ROTATIONS)], 2).flatten(1, 2)[:, None]
    if orientations[0] > w.shape[2]:  # pointwise
        w = torch.cat([w, w.new_zeros(*w.shape[:2], ROTATIONS - 1, *w.shape[3:])], 2)
    turned = [torch.rot90(torch.roll(w, r, 2), r, (-2, -1)) for r in range(ROTATIONS)]
    return torch.stack(turned, 1).flatten(2, 3)


# -- sparse pathways ---------------------------------------------------------------------------------------------------

SparsePrior = Literal["anchors", "lengthscales"]


class SparsePathway(ImagePathway):
    """A pathway of anchor values and bases, with its prior on one of the two."""

    def __init__(self, variance: int | float, prior: SparsePrior):
        super().__init__(variance)
        if prior not in ("anchors", "lengthscales"):
            raise ValueError(f"prior={prior!r} of a sparse pathway: choose 'anchors' or 'lengthscales'")
        self.prior = prior

    def draw_values(self, *shape: int, std: float, generator: torch.Generator | None) -> nn.Parameter:
        """Draw initial anchor values; lengthscales start at one."""
        return self.draw(*shape, std=std, generator=generator, has_prior=self.prior == "anchors")

    @property
    def bases(self) -> tuple[ExponentialBasis, ...]:
        """One for each tensor of anchor values."""
        return tuple(child for child in self.children() if isinstance(child, ExponentialBasis))

    def coefficient_names(self) -> list[str]:
        if self.prior == "anchors":
            return super().coefficient_names()
        return [f"{name}.omega" for name, _ in self.named_children()]


class SparseConvolution(SparsePathway):
    """S-CONV: circular convolution with filters of ``ceil(k^2 / 2)`` anchor values.

    Args:
        prior: parametrisation that the prior is on.
        kernel_size, gain: as of :class:`~rppdyn.images.Convolution`.
    Source: van der Ouderaa, Immer & van der Wilk 2023, Eq. 6 and 3.2 (in whose code basis functions are multiplied with the
        inverse of their own Gram matrix).
    """

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *,
                 prior: SparsePrior = "anchors", kernel_size: int = 3, gain: int | float = 1.0,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance, prior)
        self.kernel_size = check_kernel(kernel_size, pooled=False)
        self.basis = ExponentialBasis((kernel_size, kernel_size))
        std = self.basis.anchor_std(gain / math.sqrt(in_channels * kernel_size**2))
        self.u = self.draw_values(out_channels, in_channels, len(self.basis.omega), std=std, generator=generator)

    @classmethod
    def from_place(cls, place: Place, variance: int | float, **arguments: Any) -> ImagePathway:
        """Build the pathway, or a convolution for 1 x 1 filters."""
        if place.kernel_size == 1:
            return Convolution.from_place(place, variance)
        return super().from_place(place, variance, **arguments)

    def filters(self, basis: Float[Tensor, "M kk"]) -> Float[Tensor, "C_out C k k"]:
        return (self.u @ basis).unflatten(2, (self.kernel_size, self.kernel_size))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(x, self.kernel_size), self.filters(self.basis()))

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        if self.prior == "anchors":
            A = patch_moments(x, self.kernel_size).view(*(x.shape[1], self.kernel_size**2) * 2)
            basis = self.basis().to(A)
            A = torch.einsum("cpdq,ip,jq->cidj", A, basis, basis)
            return [Kronecker(A.flatten(2).flatten(0, 1), place_moments(g))]
        padded, slopes = circular_pad(x, self.kernel_size), self.basis.omega_derivative()
        changes = [
            F.conv2d(padded, (self.u[..., j, None] * slope).unflatten(2, (self.kernel_size, self.kernel_size)))
            for j, slope in enumerate(slopes)
        ]
        return [constant_input_curvature(torch.stack([(g * change).sum((2, 3, 4)) for change in changes], -1))]


class SparseFullyConnected(SparsePathway):
    """S-FC: the factored fully connected pathway with U and V of half as many anchor values as pixels.

    Args:
        prior: parametrisation that the prior is on.
        size, out_size, gain: as of :class:`~rppdyn.images.FactoredFullyConnected`.
    Source: van der Ouderaa, Immer & van der Wilk 2023, Eq. 7 and 3.2.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, variance: int | float = 1.0, *,
                 prior: SparsePrior = "anchors", out_size: Size | None = None, gain: int | float = 1.0,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance, prior)
        self.in_shape, self.out_size = (in_channels, *size), size if out_size is None else out_size
        self.basis_in, self.basis_out = ExponentialBasis(size), ExponentialBasis(self.out_size)
        stds = math.sqrt(gain / math.prod(size)), math.sqrt(gain / in_channels)
        self.u, self.v = (
            self.draw_values(
                out_channels, in_channels, len(basis.omega), std=basis.anchor_std(std), generator=generator
            )
            for basis, std in zip(self.bases, stds, strict=True)
        )

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        # bases are applied to weights and not to maps, since there are fewer channels than images in a batch
        U, V = self.u @ self.basis_in(), self.v @ self.basis_out()
        check_maps(x, self.in_shape)
        return apply_factors(x.flatten(2), U, V).unflatten(2, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        x, g = x.flatten(2), g.flatten(3)
        inputs, by_values = x @ self.basis_in().mT, g @ self.basis_out().mT
        if self.prior == "anchors":
            return factored_curvature(inputs, by_values, self.u, self.v)
        h = reduce_inputs(inputs, self.u)
        by_h = torch.einsum("sndj,dcj->sndc", by_values, self.v)
        by_omega_in = torch.einsum("sndc,dcj,ncj->snj", by_h, self.u, x @ self.basis_in.omega_derivative().mT)
        scale = torch.einsum("dcj,cnd->ndj", self.v, h)
        by_omega_out = torch.einsum("sndj,ndj->snj", g @ self.basis_out.omega_derivative().mT, scale)
        return [constant_input_curvature(by_omega_in), constant_input_curvature(by_omega_out)]
