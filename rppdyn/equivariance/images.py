r"""Continuous transformations of images, as flows: translation, rotation, scaling, stretch, shear, brightening and others.

Images are tensors ``(batch, channels, height, width)``; a tensor of another number of axes (class probabilities, say) is
left as it is, so that one flow serves the input of a network, its feature maps and its output.

Translations are measured in image widths (heights), as the published text has it, so that a feature map of half the
resolution moves by half as many pixels; the published code runs in half widths. Everything else turns or stretches
about the image's centre, in units of the pixel grid: radians, or logarithms of the stretch. Positive x is to the right and
positive y is down.

Interpolated images are extended by reflection at their outer edge (as ``padding_mode="reflection"`` of torch's
``grid_sample``). Bilinear interpolation has a kink at every pixel, and t = 0 is on it: positions are computed
in float64 from whole pixel numbers, so that every pixel takes the same, right-hand, side (where normalised coordinates
are rounded, a third of the columns may take the other). The Fourier translation has no kink, and shifts a band-limited
periodic image exactly; take it wherever aliasing is the question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.equivariance.actions import Flow
from rppdyn.equivariance.pixels import bilinear, coordinates

__all__ = [
    "TRANSFORMATIONS",
    "AffineFlow",
    "Brightening",
    "FourierTranslation",
    "brightening",
    "hyperbolic_rotation",
    "rotation",
    "scaling",
    "shear",
    "stretch",
    "translation",
]

Matrix = tuple[tuple[float, float], tuple[float, float]]
ZERO: Matrix = ((0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True)
class AffineFlow(Flow):
    r"""Points move by :math:`p \mapsto c + e^{tA}(p - c) + t b`, images with them, by bilinear interpolation.

    Args:
        name: for tables.
        linear: A, on (x, y) in pixels about the centre c.
        shift: b, in image widths and heights. One of the two is zero.
    """

    name: str
    linear: Matrix = ZERO
    shift: tuple[float, float] = (0.0, 0.0)

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        height, width = x.shape[-2:]
        t = torch.as_tensor(t, dtype=torch.float64, device=x.device)
        options: dict[str, Any] = dict(dtype=torch.float64, device=x.device)
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], **options)
        # the value at p comes from where the flow takes to p
        back = torch.linalg.matrix_exp(-t * torch.tensor(self.linear, **options))
        shift = torch.tensor(self.shift, **options) * torch.tensor([width, height], **options)
        return bilinear(x, coordinates((height, width), **options) @ back.mT + centre - t * shift)


@dataclass(frozen=True)
class FourierTranslation(Flow):
    """Periodic translation along one axis by a phase for each frequency; exact for band-limited images.

    At an even size the Nyquist frequency stands for +n/2 and -n/2 alike, so it keeps its amplitude times cos(pi n t).
    """

    name: str
    axis: str

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        dim = -1 if self.axis == "x" else -2
        n = x.shape[dim]
        angle = -2 * torch.pi * torch.as_tensor(t, dtype=torch.float64, device=x.device)
        angle = angle * torch.arange(n // 2 + 1, dtype=torch.float64, device=x.device)
        phase = torch.complex(angle.cos(), angle.sin())
        if n % 2 == 0:
            phase = torch.cat([phase[:-1], torch.complex(angle[-1:].cos(), torch.zeros_like(angle[-1:]))])
        spectrum = torch.fft.rfft(x, dim=dim)
        phase = phase.to(spectrum.dtype)
        return torch.fft.irfft(spectrum * (phase if dim == -1 else phase[:, None]), n=n, dim=dim)


@dataclass(frozen=True)
class Brightening(Flow):
    """Values times ``exp(t)``, of images and feature maps alike: biases and normalisation break it."""

    name: str = "brightening"

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        return x * torch.as_tensor(t, dtype=torch.float64, device=x.device).exp().to(x.dtype)


def translation(axis: str, interpolation: str = "bilinear") -> Flow:
    """Translation along an axis, in image widths (heights) per unit of t."""
    if axis not in ("x", "y"):
        raise ValueError(f"axis={axis!r}: choose 'x' or 'y'")
    if interpolation == "fourier":
        return FourierTranslation(f"translation {axis}", axis)
    if interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r}: choose 'bilinear' or 'fourier'")
    return AffineFlow(f"translation {axis}", shift=(1.0, 0.0) if axis == "x" else (0.0, 1.0))


def rotation() -> AffineFlow:
    """Rotation about the centre, in radians, from x towards y (clockwise on the screen)."""
    return AffineFlow("rotation", ((0.0, -1.0), (1.0, 0.0)))


def scaling() -> AffineFlow:
    """Magnification by ``exp(t)`` about the centre."""
    return AffineFlow("scaling", ((1.0, 0.0), (0.0, 1.0)))


def shear(axis: str) -> AffineFlow:
    """Shear along an axis: x moves by t times y, or y by t times x."""
    if axis not in ("x", "y"):
        raise ValueError(f"axis={axis!r}: choose 'x' or 'y'")
    return AffineFlow(f"shear {axis}", ((0.0, 1.0), (0.0, 0.0)) if axis == "x" else ((0.0, 0.0), (1.0, 0.0)))


def stretch(axis: str) -> AffineFlow:
    """Stretch by ``exp(t)`` along one axis, about the centre."""
    if axis not in ("x", "y"):
        raise ValueError(f"axis={axis!r}: choose 'x' or 'y'")
    return AffineFlow(f"stretch {axis}", ((1.0, 0.0), (0.0, 0.0)) if axis == "x" else ((0.0, 0.0), (0.0, 1.0)))


def brightening() -> Brightening:
    """All values of an image times ``exp(t)``."""
    return Brightening()


def hyperbolic_rotation() -> AffineFlow:
    """Hyperbolic rotation: ``[[cosh t, sinh t], [sinh t, cosh t]]``, stretching one diagonal and shrinking the other."""
    return AffineFlow("hyperbolic rotation", ((0.0, 1.0), (1.0, 0.0)))


TRANSFORMATIONS: dict[str, Callable[[], Flow]] = {
    "translation_x": partial(translation, "x"),
    "translation_y": partial(translation, "y"),
    "fourier_x": partial(translation, "x", "fourier"),
    "fourier_y": partial(translation, "y", "fourier"),
    "rotation": rotation,
    "scaling": scaling,
    "stretch_x": partial(stretch, "x"),
    "stretch_y": partial(stretch, "y"),
    "shear_x": partial(shear, "x"),
    "shear_y": partial(shear, "y"),
    "hyperbolic_rotation": hyperbolic_rotation,
    "brightening": brightening,
}
"""By name, for the command line."""
