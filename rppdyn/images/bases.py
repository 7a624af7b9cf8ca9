r"""Basis functions between anchors, of which filters and factors are made: :math:`s(p) = \sum_j u_j\, \phi_j(p)`.

A basis has anchors :math:`z_j` and inverse lengthscales; what :math:`\phi_j` is of them is a basis's own.
:class:`ExponentialBasis` depends on the distance in the plane alone. A product of one function for each dimension, which may be
a circle, is :class:`~rppdyn.images.anchors.AnchorBasis`, which is a regression on anchors' values.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rppdyn.nn.coefficients import ExactBuffers

__all__ = ["Basis", "ExponentialBasis", "chessboard", "pixel_grid"]


class Basis(ExactBuffers):
    """M basis functions at P points, learnable."""

    anchors: nn.Parameter
    omega: nn.Parameter

    @abstractmethod
    def forward(self) -> Float[Tensor, "M P"]:
        """Each function at each point."""

    @torch.no_grad()
    def anchor_std(self, std: float) -> float:
        """Standard deviation of anchor values that gives points this one, on average."""
        return std / math.sqrt(self().square().sum(0).mean())


def pixel_grid(size: tuple[int, int]) -> Float[Tensor, "P 2"]:
    """Rows and columns of pixels, about the centre."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    return torch.stack([rows, columns], -1).flatten(0, 1) - torch.tensor([(n - 1) / 2 for n in size])


def chessboard(size: tuple[int, int]) -> Bool[Tensor, " P"]:
    """Which pixels have the colour of the first one: half of them, rounded up."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    return ((rows + columns) % 2 == 0).flatten()


class ExponentialBasis(Basis):
    r""":math:`\phi_j(p) = \exp(-\omega_j^2 |p - z_j|^2)` on a grid of pixels, centred at the origin.

    At first anchors are the pixels of one colour of a chessboard, and :math:`\omega = 1` per pixel.
    """

    grid: Tensor

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        if min(size) < 1:
            raise ValueError(f"size={tuple(size)} of maps: give a height and a width of one pixel or more")
        grid, black = pixel_grid(size), chessboard(size)
        self.register_exact("grid", grid)
        self.anchors = nn.Parameter(grid[black])
        self.omega = nn.Parameter(torch.ones(int(black.sum())))

    def forward(self) -> Float[Tensor, "M P"]:
        return (-self.omega.square()[:, None] * self.squared_distances()).exp()

    def squared_distances(self) -> Float[Tensor, "M P"]:
        return (self.anchors[:, None] - self.grid).square().sum(-1)

    def by_omega(self) -> Float[Tensor, "M P"]:
        r""":math:`\partial \phi_j / \partial \omega_j`."""
        return -2 * self.omega[:, None] * self.squared_distances() * self()
