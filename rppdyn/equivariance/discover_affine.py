"""Find the affine maps of the plane under which a function of images is invariant."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Shaped
from torch import Tensor

from rppdyn.equivariance.actions import check_finite
from rppdyn.equivariance.discover import GAP, LARGEST, Discovery, judged, rounding
from rppdyn.equivariance.lie import derivative
from rppdyn.equivariance.pixels import Interpolation, affine_generator
from rppdyn.groups import Group

__all__ = ["affine_family", "discover_affine"]


def affine_family() -> Group:
    """All affine maps of the plane, by homogeneous 3 x 3 matrices; coordinates about the centre in half widths of an image."""
    basis = torch.zeros(6, 3, 3, dtype=torch.float64)
    for k, (i, j) in enumerate((i, j) for i in range(2) for j in range(3)):
        basis[k, i, j] = 1
    return Group("affine maps", lie_algebra=basis)


def discover_affine(
    f: Callable[[Tensor], Tensor],
    x: Shaped[Tensor, "batch channels height width"],
    *,
    interpolation: Interpolation = "flow",
    gap: float = GAP,
    largest: float = LARGEST,
) -> Discovery:
    r"""Find the generators of affine maps that leave a function of images alone, exactly or nearly.

    With the generators :math:`G_i` of the six directions on the pixel grid

    .. math:: M_{ij} = E \langle Df(x) G_i x, Df(x) G_j x \rangle, \quad N_{ij} = E \langle G_i x, G_j x \rangle

    and :math:`M a = \lambda N a`: how far f changes for a change of the image. A defect is :math:`\sqrt\lambda` relative to
    the largest, so that there is no gap where f is equally sensitive to all directions. Otherwise as
    :func:`~rppdyn.equivariance.discover`; a generator is a homogeneous matrix.

    Args:
        f: ``(batch, channels, height, width)`` to ``(batch, ...)``, logits of a classifier, say.
        x: images.
        interpolation: how they are differentiated (:mod:`~rppdyn.equivariance.pixels`).
    Raises:
        ValueError: no images, or fewer than 7, or ones that some directions don't change; f is constant, or does not change
            in any direction: then everything is a symmetry; an even size with "shannon_whittaker".
    """
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            f"x of shape {tuple(x.shape)} and {x.dtype}: give images (batch, channels, height, width) of floats"
        )
    family = affine_family()
    if len(x) <= len(family.lie_algebra):
        raise ValueError(
            f"{len(x)} images are too few for {len(family.lie_algebra)} generators of {family}: give 7 or more"
        )
    size = (int(x.shape[2]), int(x.shape[3]))
    half = torch.tensor([[1.0, 1, size[1] / 2], [1, 1, size[0] / 2]], dtype=torch.float64)
    moved, pushed = [], []
    for A in family.lie_algebra:
        G = affine_generator(size, (A[:2] * half).tolist(), interpolation).to(x)
        velocity = (x.flatten(2) @ G.mT).view_as(x)
        values, change = (part.detach() for part in derivative(f, x, velocity))
        check_finite(values, "f(x)")
        moved.append(velocity.flatten())
        pushed.append(change.flatten())
    left, sizes, _ = torch.linalg.svd(torch.stack(moved), full_matrices=False)
    unseen = int((sizes <= rounding(x) * sizes[0]).sum()) if float(sizes[0]) > 0 else len(sizes)
    if unseen:
        raise ValueError(f"{unseen} of the {len(sizes)} directions of {family} change none of the images: give others")
    directions, changes, _ = torch.linalg.svd((left / sizes).mT @ torch.stack(pushed), full_matrices=False)
    variation = float((values - values.mean(0)).norm())
    if (
        variation <= rounding(x) * float(values.norm())
        or float(changes[0]) * float(sizes[0]) <= rounding(x) * variation
    ):
        raise ValueError("f does not change with affine maps of these images, so all of them are symmetries of it")
    coefficients = ((left / sizes) @ directions).flip(1).mT.double()
    return judged(family, (changes / changes[0]).flip(0).double(), coefficients, rounding(x), gap, largest)
