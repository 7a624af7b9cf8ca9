r"""Actions on the pixel grid as matrices: generators of affine maps, their exponentials, and shifts.

Maps of H x W pixels are vectors of ``P = H W`` numbers, row by row. A generator D is the matrix whose exponential ``exp(tD)``
moves them. Coordinates are as in :mod:`~rppdyn.equivariance.images`: x to the right, y down, in pixels about the centre. There
are three ways to differentiate an image that is known at pixels only:

================== =======================================================================================================
shannon_whittaker  the derivative of its trigonometric interpolation, on a torus. At odd sizes ``exp(D)`` of a translation
                   is the shift by one pixel, exactly. At even sizes it is not, and they are refused.
bilinear           central differences, which are what bilinear interpolation gives on average at its kinks; on a torus
flow               the derivative of :class:`~rppdyn.equivariance.images.AffineFlow` at time 0: one-sided differences,
                   reflected at the edges
================== =======================================================================================================

Rotations and scalings that are made of such derivatives are no exact actions: ``exp(2 pi R)`` is not the identity (its
error is .6 at n = 9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "AFFINE",
    "Interpolation",
    "affine_generator",
    "bilinear",
    "coordinates",
    "derivative",
    "exponential",
    "shift",
]

Interpolation = Literal["shannon_whittaker", "bilinear", "flow"]
Affine = tuple[tuple[int, int, int], tuple[int, int, int]]

AFFINE: Mapping[str, Affine] = {
    "translation_x": ((0, 0, 1), (0, 0, 0)),
    "translation_y": ((0, 0, 0), (0, 0, 1)),
    "rotation": ((0, -1, 0), (1, 0, 0)),
    "scaling": ((1, 0, 0), (0, 1, 0)),
    "stretch_x": ((1, 0, 0), (0, 0, 0)),
    "stretch_y": ((0, 0, 0), (0, 1, 0)),
    "shear_x": ((0, 1, 0), (0, 0, 0)),
    "shear_y": ((0, 0, 0), (1, 0, 0)),
    "hyperbolic_rotation": ((0, 1, 0), (1, 0, 0)),
}
"""Velocities of points: rows are those of x and y, columns multiply x, y and 1. Translations are by pixels."""


def coordinates(
    size: Sequence[int], *, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Float[Tensor, "H W 2"]:
    """x and y of each pixel about the centre."""
    height, width = size
    rows, columns = torch.meshgrid(
        torch.arange(height, dtype=dtype, device=device), torch.arange(width, dtype=dtype, device=device), indexing="ij"
    )
    return torch.stack([columns - (width - 1) / 2, rows - (height - 1) / 2], -1)


def derivative(n: int, interpolation: Interpolation = "shannon_whittaker") -> Float[Tensor, "n n"]:
    r"""d/dp of what is known at n pixels of a circle, ``(D x)_i = x'(p_i)``.

    Of the trigonometric interpolation, n odd, it is :math:`D_{ij} = \frac{\pi}{n} (-1)^{i-j} / \sin(\pi (i - j) / n)` and 0 on
    the diagonal; the printed sum to (n - 3) / 2 loses its top frequency.

    Raises:
        ValueError: an even n with "shannon_whittaker", or an interpolation that has no such derivative.
    Source: Dehmamy et al. 2021, B; Shannon-Whittaker interpolation with the sum to (n - 1) / 2.
    """
    if n < 1:
        raise ValueError(f"n={n} pixels: give a positive number")
    if interpolation == "bilinear":
        one = torch.eye(n, dtype=torch.float64)
        return (one.roll(1, 1) - one.roll(-1, 1)) / 2
    if interpolation != "shannon_whittaker":
        raise ValueError(f"interpolation={interpolation!r} of a circle: choose 'shannon_whittaker' or 'bilinear'")
    if n % 2 == 0:
        raise ValueError(
            f"n={n} pixels: at even sizes exp(D) of Shannon-Whittaker interpolation is no shift; give an odd number, {n - 1} "
            f"or {n + 1}"
        )
    k = torch.arange(n)[:, None] - torch.arange(n)
    sign = 1.0 - 2 * (k % 2).double()
    sine = (math.pi / n * k.double()).sin()
    return torch.where(k == 0, 0.0, math.pi / n * sign / torch.where(k == 0, 1.0, sine))


def affine_generator(
    size: Sequence[int],
    velocity: str | Sequence[Sequence[int | float]],
    interpolation: Interpolation = "shannon_whittaker",
) -> Float[Tensor, "P P"]:
    r"""D of images whose points move with a velocity :math:`v(p) = A p + b`: :math:`(D x)(p) = -v(p) \cdot \nabla x(p)`.

    Args:
        size: height and width.
        velocity: a name of :data:`AFFINE`, or ``(A | b)``, 2 x 3.
        interpolation: how images are differentiated.
    Returns:
        a float64 matrix; the sign is that of :class:`~rppdyn.equivariance.images.AffineFlow`.
    Raises:
        ValueError: an unknown name, or an even size with "shannon_whittaker".
    """
    if isinstance(velocity, str):
        if velocity not in AFFINE:
            raise ValueError(f"velocity={velocity!r}: choose one of {', '.join(AFFINE)}, or give a 2 x 3 matrix")
        velocity = AFFINE[velocity]
    height, width = size
    if interpolation == "flow":
        return _of_flow((height, width), velocity)
    p = torch.nn.functional.pad(coordinates(size).flatten(0, 1), (0, 1), value=1.0)
    v = p @ torch.tensor(velocity, dtype=torch.float64).mT
    along_x = torch.kron(torch.eye(height, dtype=torch.float64), derivative(width, interpolation))
    along_y = torch.kron(derivative(height, interpolation), torch.eye(width, dtype=torch.float64))
    return -(v[:, :1] * along_x + v[:, 1:] * along_y)


def _of_flow(size: tuple[int, int], velocity: Sequence[Sequence[int | float]]) -> Float[Tensor, "P P"]:
    points = coordinates(size)
    centre = torch.tensor([(size[1] - 1) / 2, (size[0] - 1) / 2], dtype=torch.float64)
    matrix = torch.tensor(velocity, dtype=torch.float64)
    images = torch.eye(math.prod(size), dtype=torch.float64).view(-1, 1, *size)

    def moved(t: Tensor) -> Tensor:  # the exponential of the velocity, to first order
        back = torch.linalg.matrix_exp(-t * matrix[:, :2])
        return bilinear(images, points @ back.mT + centre - t * matrix[:, 2])

    zero = torch.zeros((), dtype=torch.float64)
    return torch.func.jvp(moved, (zero,), (torch.ones_like(zero),))[1].flatten(1).mT


def exponential(generator: Float[Tensor, "P P"], t: Tensor | int | float = 1.0) -> Float[Tensor, "P P"]:
    """exp(tD)."""
    return torch.linalg.matrix_exp(t * generator)


def shift(size: Sequence[int], by: Sequence[int]) -> Float[Tensor, "P P"]:
    """The permutation of a torus that moves images by so many rows and columns, as ``torch.roll`` does."""
    images = torch.eye(math.prod(size), dtype=torch.float64).view(-1, *size)
    return images.roll(tuple(by), (-2, -1)).flatten(1).mT.contiguous()


def bilinear(
    x: Float[Tensor, "batch channels height width"], positions: Float[Tensor, "rows columns 2"]
) -> Float[Tensor, "batch channels rows columns"]:
    """Values at positions (x, y) in pixels, reflected at the outer edges; differentiable in both."""
    height, width = x.shape[-2:]
    corner = positions.floor()
    fraction = (positions - corner).to(x.dtype)
    u, v = fraction[..., 0], fraction[..., 1]
    left, top = corner.long().unbind(-1)

    def at(row: Tensor, column: Tensor) -> Tensor:
        return x[..., _reflected(row, height), _reflected(column, width)]

    upper = (1 - u) * at(top, left) + u * at(top, left + 1)
    lower = (1 - u) * at(top + 1, left) + u * at(top + 1, left + 1)
    return (1 - v) * upper + v * lower


def _reflected(index: Tensor, n: int) -> Tensor:
    """Pixel numbers beyond the edges, mirrored: ... 1 0 | 0 1 ... n-1 | n-1 n-2 ..."""
    index = index.remainder(2 * n)
    return torch.minimum(index, 2 * n - 1 - index)
