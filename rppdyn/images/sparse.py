r"""Sparse pathways: filters and factors given by values at anchor points, and exponential basis functions between them.

.. math:: s(c', c, p) = \sum_j u(c', c, j)\, \phi_j(p), \qquad \phi_j(p) = \exp(-\omega_j^2 |p - z_j|^2)

with anchors :math:`z_j` and inverse lengthscales :math:`\omega_j` that all channels share. There are half as many anchors as
pixels, rounded up: at first the pixels of one colour of a chessboard, with :math:`\omega = 1` per pixel. The prior is on the
anchor values u, or on the lengthscales :math:`\omega`: at variance 0 basis functions are then constant, and a fully connected
pathway has no sense of place. What the prior is not on (anchors always) is learned without one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images.anchors import ExponentialBasis
from rppdyn.images.pathways import (
    Convolution,
    ImagePathway,
    Size,
    check_kernel,
    check_maps,
    circular_pad,
    factored,
    factored_curvature,
    of_ones,
    patch_moments,
    place_moments,
    reduced,
)
from rppdyn.images.registry import Place
from rppdyn.nn.pathways import Kronecker

SparsePrior = Literal["anchors", "lengthscales"]


class SparsePathway(ImagePathway):
    """A pathway of anchor values and bases, with its prior on one of the two."""

    def __init__(self, variance: int | float, prior: SparsePrior):
        super().__init__(variance)
        if prior not in ("anchors", "lengthscales"):
            raise ValueError(f"prior={prior!r} of a sparse pathway: choose 'anchors' or 'lengthscales'")
        self.prior = prior

    def draw_values(self, *shape: int, std: float, generator: torch.Generator | None) -> nn.Parameter:
        """Initial anchor values; lengthscales, which begin at one, are not drawn."""
        return self.draw(*shape, std=std, generator=generator, has_prior=self.prior == "anchors")

    @property
    @abstractmethod
    def bases(self) -> tuple[ExponentialBasis, ...]:
        """One for each tensor of anchor values."""

    @property
    @abstractmethod
    def values(self) -> tuple[Tensor, ...]:
        """The anchor values."""

    def coefficients(self) -> tuple[Tensor, ...]:
        return self.values if self.prior == "anchors" else tuple(basis.omega for basis in self.bases)

    def coefficient_names(self) -> list[str]:
        if self.prior == "anchors":
            return super().coefficient_names()
        return [f"{name}.omega" for name, _ in self.named_children()]


class SparseConvolution(SparsePathway):
    """S-CONV: circular convolution with filters of ``ceil(k^2 / 2)`` anchor values.

    Args:
        prior: parametrisation that the prior is on.
        kernel_size, gain: as of :class:`~rppdyn.images.pathways.Convolution`.
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

    @property
    def bases(self) -> tuple[ExponentialBasis, ...]:
        return (self.basis,)

    @property
    def values(self) -> tuple[Tensor, ...]:
        return (self.u,)

    @classmethod
    def at(cls, place: Place, variance: int | float, *, prior: SparsePrior = "anchors") -> ImagePathway:
        """At a place; of 1 x 1 filters there is no sparse form but a convolution."""
        if place.kernel_size == 1:
            return Convolution.at(place, variance)
        return cls(
            *place[:2], variance, prior=prior, kernel_size=place.kernel_size, gain=place.gain, generator=place.generator
        )

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
        padded, slopes = circular_pad(x, self.kernel_size), self.basis.by_omega()
        changes = [
            F.conv2d(padded, (self.u[..., j, None] * slope).unflatten(2, (self.kernel_size, self.kernel_size)))
            for j, slope in enumerate(slopes)
        ]
        return [of_ones(torch.stack([(g * change).sum((2, 3, 4)) for change in changes], -1))]


class SparseFullyConnected(SparsePathway):
    """S-FC: the factored fully connected pathway with U and V of half as many anchor values as pixels.

    Args:
        prior: parametrisation that the prior is on.
        size, out_size, gain: as of :class:`~rppdyn.images.pathways.FactoredFullyConnected`.
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

    @property
    def bases(self) -> tuple[ExponentialBasis, ...]:
        return self.basis_in, self.basis_out

    @property
    def values(self) -> tuple[Tensor, ...]:
        return self.u, self.v

    @classmethod
    def at(cls, place: Place, variance: int | float, *, prior: SparsePrior = "anchors") -> SparseFullyConnected:
        return cls(
            *place[:3], variance, prior=prior, out_size=place.out_size, gain=place.gain, generator=place.generator
        )

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        # weights go through the bases rather than maps: there are fewer channels than images in a batch
        U, V = (values @ basis() for values, basis in zip(self.values, self.bases, strict=True))
        check_maps(x, self.in_shape)
        return factored(x.flatten(2), U, V).unflatten(2, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        x, g = x.flatten(2), g.flatten(3)
        seen, by_values = x @ self.basis_in().mT, g @ self.basis_out().mT
        if self.prior == "anchors":
            return factored_curvature(seen, by_values, self.u, self.v)
        h = reduced(seen, self.u)
        by_h = torch.einsum("sndj,dcj->sndc", by_values, self.v)
        of_in = torch.einsum("sndc,dcj,ncj->snj", by_h, self.u, x @ self.basis_in.by_omega().mT)
        scale = torch.einsum("dcj,cnd->ndj", self.v, h)
        of_out = torch.einsum("sndj,ndj->snj", g @ self.basis_out.by_omega().mT, scale)
        return [of_ones(of_in), of_ones(of_out)]
