"""Factored fully connected pathways: every output pixel sees every input pixel, at the price of two images per channel pair."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.images.pathways import ImagePathway, Size, check_maps, check_size
from rppdyn.images.registry import Place
from rppdyn.nn.curvature import Kronecker, gram

__all__ = ["FactoredFullyConnected"]


class FactoredFullyConnected(ImagePathway):
    r"""F-FC, ``C C' (H W + H' W')`` weights:

    .. math:: y(c', p') = \sum_c V(c', c, p')\, h(c', c), \qquad h(c', c) = \sum_p U(c', c, p)\, x(c, p).

    The coefficients are U and V; what they have in common, a scale, is no coefficient's own: only products matter.

    Args:
        size, out_size: of input and output maps.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Source: van der Ouderaa, Immer & van der Wilk 2023, Eq. 5.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, variance: int | float = 1.0, *,
                 out_size: Size | None = None, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.in_shape, self.out_size = (in_channels, *size), size if out_size is None else out_size
        pairs, inputs, outputs = (out_channels, in_channels), check_size(size), check_size(self.out_size)
        self.U = self.draw(*pairs, inputs, std=math.sqrt(gain / inputs), generator=generator)
        self.V = self.draw(*pairs, outputs, std=math.sqrt(gain / in_channels), generator=generator)

    @classmethod
    def at(cls, place: Place, variance: int | float) -> FactoredFullyConnected:
        return cls(*place[:3], variance, out_size=place.out_size, gain=place.gain, generator=place.generator)

    def coefficients(self) -> tuple[Tensor, ...]:
        return self.U, self.V

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, self.in_shape)
        return factored(x.flatten(2), self.U, self.V).unflatten(2, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return factored_curvature(x.flatten(2), g.flatten(3), self.U, self.V)


def reduced(x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"]) -> Float[Tensor, "C N C_out"]:
    """h: one product of matrices for each input channel."""
    return torch.bmm(x.transpose(0, 1), U.permute(1, 2, 0))


def factored(
    x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"], V: Float[Tensor, "C_out C P_out"]
) -> Float[Tensor, "N C_out P_out"]:
    """F-FC of flattened maps; then one product for each output channel."""
    return torch.bmm(reduced(x, U).permute(2, 1, 0), V).transpose(0, 1)


def factored_curvature(
    x: Float[Tensor, "N C P"],
    g: Float[Tensor, "S N C_out P_out"],
    U: Float[Tensor, "C_out C P"],
    V: Float[Tensor, "C_out C P_out"],
) -> list[Kronecker]:
    r"""Of U, for each input channel :math:`A_c` (P x P) and :math:`G_c` (C' x C'); of V, for each output channel
    :math:`A_{c'}` (C x C) and :math:`G_{c'}` (P' x P').

    A block is exact for a single datum, whatever its number of gradients. The published approximation sums A and G over
    the blocks; apart they cost the same and are closer to the exact determinant.
    """
    h = reduced(x, U)
    by_output = g.flatten(0, 1).transpose(0, 1)  # (C', S N, P')
    by_h = torch.bmm(by_output, V.mT)  # (C', S N, C): gradients by h
    return [
        Kronecker(gram(x.transpose(0, 1)), gram(by_h.permute(2, 1, 0))),
        Kronecker(gram(h.permute(2, 1, 0)), gram(by_output)),
    ]
