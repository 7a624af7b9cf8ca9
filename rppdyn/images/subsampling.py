"""Subsampling and normalisation that keep the symmetry: of shifts on a torus, and of rotations by 90 degrees."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FieldNorm", "Flatten", "MaxSubsampling", "OrientationPooling", "PolyphaseSubsampling", "Subsampling"]


class Subsampling(nn.Module):
    """Maps of a smaller resolution.

    Args:
        stride: how many pixels become one, along both axes.
    Raises:
        ValueError: a stride below 1.
    """

    def __init__(self, stride: int = 2):
        super().__init__()
        if stride < 1:
            raise ValueError(f"stride={stride}: must be at least 1")
        self.stride = stride

    def out_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Size of the output maps.

        Raises:
            ValueError: the stride does not divide the size of the input maps.
        """
        if any(side % self.stride for side in size):
            raise ValueError(f"maps of {size} pixels can't be subsampled by {self.stride}: choose a size it divides")
        return size[0] // self.stride, size[1] // self.stride

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class PolyphaseSubsampling(Subsampling):
    r"""Of the ``stride**2`` grids of every stride-th pixel, the one whose features have the largest :math:`l_\infty` norm.

    A circular shift permutes the grids (and shifts them), a rotation by 90 degrees permutes them and turns them, so that
    the same pixels are chosen: the output is that of the image that stood still, shifted or turned. The choice is made for
    each sample by itself. Among grids with the same norm, which raw images of few grey levels often have, the
    :math:`l_1` norm decides, then the :math:`l_2` norm; where these are the same too, as of grids that are each other's images,
    no choice commutes, and the first is taken.

    Source: Chaman & Dokmanic 2021; van der Ouderaa, Immer & van der Wilk 2023, F.2 (in whose code the norm is over the
    batch, so that a sample's output depends on its neighbours').
    """

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H_out W_out"]:
        s, (height, width) = self.stride, self.out_size((x.shape[2], x.shape[3]))
        grids = x.unflatten(3, (width, s)).unflatten(2, (height, s)).permute(0, 3, 5, 1, 2, 4).flatten(1, 2)
        sizes = grids.detach().abs()
        best = torch.ones_like(sizes[:, :, 0, 0, 0], dtype=torch.bool)
        for norm in (sizes.amax((2, 3, 4)), _total(sizes), _total(sizes.square())):
            among = norm.masked_fill(~best, -torch.inf)
            best = among == among.amax(1, keepdim=True)
        chosen = best.to(torch.uint8).argmax(1)
        return torch.take_along_dim(grids, chosen[:, None, None, None, None], 1).squeeze(1)


def _total(values: Float[Tensor, "N grids C H W"]) -> Float[Tensor, "N grids"]:
    """Sums over a grid, the same in whatever order: what rounding leaves of them in float64 is below float32's."""
    return values.sum((2, 3, 4), dtype=torch.float64).float()


class MaxSubsampling(Subsampling):
    """The largest of ``stride x stride`` pixels; commutes with shifts by multiples of the stride, and with rotations."""

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H_out W_out"]:
        self.out_size((x.shape[2], x.shape[3]))
        return F.max_pool2d(x, self.stride)


class Flatten(nn.Module):
    """Maps of one pixel with a channel for each pixel that there was: a layer behind it knows every position."""

    def out_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """One pixel, of whatever maps."""
        return 1, 1

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N CHW 1 1"]:
        return x.flatten(1)[:, :, None, None]


class OrientationPooling(nn.Module):
    """The largest of a field's orientations, r fastest: of maps of one pixel it is invariant to rotations by 90 degrees."""

    def __init__(self, orientations: int):
        super().__init__()
        self.orientations = orientations

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N fields H W"]:
        return x.unflatten(1, (-1, self.orientations)).amax(2)

    def extra_repr(self) -> str:
        return f"orientations={self.orientations}"


class FieldNorm(nn.BatchNorm2d):
    """Batch normalisation with one mean and variance (scale and offset, where it has them) for all elements of a field.

    Args:
        fields: how many.
        elements: of each; channels are ``(field, element)``.
        affine: whether it has a scale and an offset, which are learned.
    """

    def __init__(self, fields: int, elements: int = 1, *, affine: bool = True):
        super().__init__(fields, affine=affine)
        self.elements = elements

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        fields = x.unflatten(1, (-1, self.elements)).flatten(2, 3)  # elements as more rows
        return super().forward(fields).unflatten(2, (self.elements, -1)).flatten(1, 2)
