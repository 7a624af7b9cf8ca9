"""The relaxed image layer: pathways of different symmetry, summed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.images.factored import FactoredFullyConnected
from rppdyn.images.pathways import Convolution, FullyConnected, ImagePathway, PixelBias, SharedBias, Size

__all__ = ["RelaxedImageLayer", "KINDS"]

KINDS = ("conv", "f_fc", "fc", "pixel_bias")
"""Names of pathways, the most symmetric first."""


class RelaxedImageLayer(nn.Module):
    r"""``y = sum_k f_k(x) + b``, each pathway with its own Gaussian prior.

    ========== =================================================================================================
    name       pathway
    ========== =================================================================================================
    conv       :class:`~rppdyn.images.pathways.Convolution`; of output maps of one pixel, the mean over pixels and
               a 1 x 1 convolution, that is the invariant maps
    f_fc       :class:`~rppdyn.images.factored.FactoredFullyConnected`
    fc         :class:`~rppdyn.images.pathways.FullyConnected`
    pixel_bias :class:`~rppdyn.images.pathways.PixelBias`, where a layer should know absolute positions
    ========== =================================================================================================

    A residual pathway prior on images (RPP-Conv, Finzi 2023, 3.5.3) is ``{"conv": sigma_a**2, "fc": sigma_b**2}``. A
    variance of 0 leaves a pathway out. Pathways start with equal shares of an output of variance ``gain**2``.

    Args:
        size, out_size: of input and output maps; they differ only where ``out_size`` is (1, 1).
        pathways: names and prior variances.
        bias_variance: prior variance of the bias that pixels share, a pathway of its own ("bias").
        kernel_size: of convolutions; odd.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Raises:
        ValueError: an unknown pathway, none at all, a kernel too large for the image, or an impossible output size.
    Source: Finzi, Benton & Wilson 2021; van der Ouderaa, Immer & van der Wilk 2023, Eq. 4.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: Size,
        pathways: Mapping[str, int | float],
        *,
        bias_variance: int | float = 1.0,
        kernel_size: int = 3,
        out_size: Size | None = None,
        gain: int | float = 1.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if unknown := [name for name in pathways if name not in KINDS]:
            raise ValueError(f"no image pathway {unknown[0]!r}; there are {', '.join(KINDS)}")
        present = {name: pathways[name] for name in KINDS if pathways.get(name, 0) != 0}
        maps = [name for name in present if name != "pixel_bias"]
        if not maps:
            raise ValueError(f"pathways={dict(pathways)} leave no map: give one of {', '.join(KINDS[:-1])} a variance")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.size, self.out_size = size, size if out_size is None else out_size
        if self.out_size not in (size, (1, 1)):
            raise ValueError(
                f"out_size={out_size}: a layer keeps the size {size} or ends in (1, 1); subsample after it"
            )
        self.kernel_size = 1 if self.pooled else kernel_size
        if self.kernel_size // 2 > min(size):
            raise ValueError(f"kernel_size={kernel_size} reaches around an image of {size} pixels: take a smaller one")
        start = dict(gain=gain / math.sqrt(len(maps)), generator=generator)
        for name, variance in present.items():
            self.add_module(name, self._pathway(name, variance, start))
        if bias_variance != 0:
            self.bias = SharedBias(out_channels, self.out_size, bias_variance)

    @property
    def pooled(self) -> bool:
        """Whether maps become one pixel here."""
        return self.out_size != self.size

    def _pathway(self, name: str, variance: int | float, start: dict) -> ImagePathway:
        channels, sizes = (self.in_channels, self.out_channels), dict(size=self.size, out_size=self.out_size)
        match name:
            case "conv":
                return Convolution(*channels, variance, kernel_size=self.kernel_size, pooled=self.pooled, **start)
            case "f_fc":
                return FactoredFullyConnected(*channels, variance=variance, **sizes, **start)
            case "fc":
                return FullyConnected(*channels, variance=variance, **sizes, **start)
            case _:
                return PixelBias(self.out_channels, self.out_size, variance)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        first, *others = self.children()
        y = first(x)
        for pathway in others:
            y = y + pathway(x)
        return y

    def extra_repr(self) -> str:
        return f"{self.in_channels} -> {self.out_channels} channels, {self.size} -> {self.out_size} pixels"
