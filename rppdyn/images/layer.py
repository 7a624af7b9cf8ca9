"""The relaxed image layer: pathways of different symmetry, summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from rppdyn.images.factored import FactoredFullyConnected
from rppdyn.images.group_convolution import (
    ORIENTATIONS,
    ROTATIONS,
    GroupConvolution,
    Orientations,
    SeparableGroupConvolution,
)
from rppdyn.images.pathways import (
    Convolution,
    FullyConnected,
    ImagePathway,
    PixelBias,
    SharedBias,
    Size,
    check_maps,
    check_reach,
    check_size,
)
from rppdyn.images.sparse import SparseConvolution, SparseFullyConnected, SparsePrior

__all__ = ["FREE_SCALE", "PATHWAYS", "ROTATIONAL", "STATIONARY", "RelaxedImageLayer"]

fx.wrap("check_maps")

ROTATIONAL = ("gconv", "gconv_separable", "gconv_pointwise")
STATIONARY = (*ROTATIONAL, "conv", "s_conv", "s_conv_lengthscales")
MAPS = (*STATIONARY, "s_fc", "s_fc_lengthscales", "f_fc", "fc")
PATHWAYS = (*MAPS, "pixel_bias")
"""Names of pathways, the most symmetric first; those that commute with rotations, with shifts, all but biases."""

WIDER = {"gconv_pointwise": ("gconv", "conv", "fc"), "gconv": ("conv", "fc"), "conv": ("fc",), "bias": ("pixel_bias",)}
"""Of pathways linear in their coefficients those that contain them, the narrowest first."""

FREE_SCALE = 1e-2
"""Initial size of pathways that commute with less than the most symmetric ones of their layer do."""


class _Start(TypedDict):
    """The size of initial weights and their source, as all maps take them."""

    gain: float
    generator: torch.Generator | None


class RelaxedImageLayer(nn.Module):
    r"""``y = sum_k f_k(x) + b``, each pathway with its own Gaussian prior.

    =================== ==========================================================================================
    name                pathway
    =================== ==========================================================================================
    conv                :class:`~rppdyn.images.pathways.Convolution`
    gconv               :class:`~rppdyn.images.group_convolution.GroupConvolution`, of features with ``orientations``
    gconv_pointwise     the same, pointwise in rotations
    gconv_separable     :class:`~rppdyn.images.group_convolution.SeparableGroupConvolution`
    s_conv              :class:`~rppdyn.images.sparse.SparseConvolution`, prior on anchor values
    s_conv_lengthscales the same, prior on lengthscales
    fc                  :class:`~rppdyn.images.pathways.FullyConnected`
    f_fc                :class:`~rppdyn.images.factored.FactoredFullyConnected`
    s_fc                :class:`~rppdyn.images.sparse.SparseFullyConnected`, prior on anchor values
    s_fc_lengthscales   the same, prior on lengthscales
    pixel_bias          :class:`~rppdyn.images.pathways.PixelBias`, where a layer should know absolute positions
    =================== ==========================================================================================

    Where output maps are one pixel, what commutes with shifts is the mean over pixels and a 1 x 1 convolution. Of 1 x 1
    filters there is no sparse form but "conv", and no separable one but "gconv".

    A residual pathway prior on images (RPP-Conv, Finzi 2023, 3.5.3) is ``{"conv": sigma_a**2, "fc": sigma_b**2}``. A
    variance of 0 leaves a pathway out.

    The most symmetric pathways present (those that commute with rotations and shifts, else with shifts) start with equal
    shares of an output of variance ``gain**2``; beside them the others start at ``free_scale`` of that size, so that what they
    become, they become by the data. From equal shares free weights learn the training set by heart before the prior has a say,
    convolutions beside group convolutions keep what they were drawn as, and the marginal likelihood finds it hard to switch
    either off again.

    Args:
        size, out_size: of input and output maps; they differ only where ``out_size`` is (1, 1).
        pathways: names and prior variances.
        bias_variance: prior variance of the bias that pixels share, a pathway of its own ("bias").
        kernel_size: of convolutions; odd.
        orientations: of input and output, (1, 4), (4, 4) or (4, 1) where channels stand for orientations.
        gain: output standard deviation at initialisation for inputs of unit mean square.
        free_scale: initial size of all but the most symmetric pathways, relative to a layer of their own.
    Raises:
        ValueError: an unknown pathway, none at all, a kernel too large for the image, or sizes, channels, orientations or
            scales that no layer has.
    Source: Finzi, Benton & Wilson 2021; van der Ouderaa, Immer & van der Wilk 2023, Eq. 4.
    """

    comes_apart = True  # where its pathways are told apart

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
        orientations: Orientations = (1, 1),
        gain: int | float = 1.0,
        free_scale: int | float = FREE_SCALE,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if unknown := [name for name in pathways if name not in PATHWAYS]:
            raise ValueError(f"no image pathway {unknown[0]!r}; there are {', '.join(PATHWAYS)}")
        for name, count in ("in_channels", in_channels), ("out_channels", out_channels):
            if count < 1:
                raise ValueError(f"{name}={count}: give a positive number")
        for name, scale in ("gain", gain), ("free_scale", free_scale):
            if not 0 < scale < math.inf:
                raise ValueError(f"{name}={scale}: give a positive finite number")
        if orientations not in ((1, 1), *ORIENTATIONS):
            raise ValueError(f"orientations={orientations} of input and output: give a pair of 1 or 4, (1, 1) for none")
        check_size(size)
        present = {name: pathways[name] for name in PATHWAYS if pathways.get(name, 0) != 0}
        maps = [name for name in present if name in MAPS]
        if not maps:
            raise ValueError(f"pathways={dict(pathways)} leave no map: give one of {', '.join(MAPS)} a variance")
        self.in_channels, self.out_channels, self.orientations = in_channels, out_channels, orientations
        self.size, self.out_size = size, size if out_size is None else out_size
        if self.out_size not in (size, (1, 1)):
            raise ValueError(
                f"out_size={out_size}: a layer keeps the size {size} or ends in (1, 1); subsample after it"
            )
        self.pooled = self.out_size != size
        self.kernel_size = 1 if self.pooled else kernel_size
        if any(name in STATIONARY for name in maps):
            check_reach(self.kernel_size, size)
        kinds = [_symmetry(name) for name in maps]
        for name, variance in present.items():
            kind = _symmetry(name)
            scale = free_scale if kind > min(kinds) else 1.0
            start = _Start(gain=gain * scale / math.sqrt(max(1, kinds.count(kind))), generator=generator)
            pathway = self._pathway(name, variance, start)
            pathway.is_free = kind > min(kinds)
            self.add_module(name, pathway)
        if bias_variance != 0:
            shared = orientations[1] if any(name in ROTATIONAL for name in maps) else 1
            self.bias = SharedBias(out_channels, self.out_size, bias_variance, orientations=shared)
        for name, own in self.named_children():
            if isinstance(own, ImagePathway) and name in WIDER:
                own.within = next((wider for wider in WIDER[name] if wider in present), None)
                own.uses = self._uses(name)

    def _pathway(self, name: str, variance: int | float, start: _Start) -> ImagePathway:
        inputs, outputs, kernel, pooled = self.in_channels, self.out_channels, self.kernel_size, self.pooled
        prior: SparsePrior = "lengthscales" if name.endswith("_lengthscales") else "anchors"
        match name.removesuffix("_lengthscales"):
            case "s_conv" if kernel > 1:
                return SparseConvolution(inputs, outputs, variance, prior=prior, kernel_size=kernel, **start)
            case "conv" | "s_conv":
                return Convolution(inputs, outputs, variance, pooled=pooled, kernel_size=kernel, **start)
            case "gconv_separable" if kernel > 1 and self.orientations == (4, 4):
                return SeparableGroupConvolution(inputs, outputs, variance, kernel_size=kernel, **start)
            case "gconv" | "gconv_pointwise" | "gconv_separable":
                return GroupConvolution(
                    inputs, outputs, variance, orientations=self.orientations, pointwise=name == "gconv_pointwise",
                    pooled=pooled, kernel_size=kernel, **start,
                )  # fmt: skip
            case "s_fc":
                return SparseFullyConnected(
                    inputs, outputs, self.size, variance, prior=prior, out_size=self.out_size, **start
                )
            case "f_fc":
                return FactoredFullyConnected(inputs, outputs, self.size, variance, out_size=self.out_size, **start)
            case "fc":
                return FullyConnected(inputs, outputs, self.size, variance, out_size=self.out_size, **start)
            case _:
                return PixelBias(self.out_channels, self.out_size, variance)

    def _uses(self, name: str) -> int | float:
        """At how many places of the dense map a coefficient stands; of means over pixels, with the square of their weight."""
        pixels = check_size(self.size)
        if name == "bias":
            return check_size(self.out_size) * self.bias.orientations
        return (1 / pixels if self.pooled else pixels) * (ROTATIONS if name in ROTATIONAL else 1)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, (self.in_channels, *self.size))
        first, *others = self.children()
        y = first(x)
        for pathway in others:
            y = y + pathway(x)
        return y

    def extra_repr(self) -> str:
        return f"{self.in_channels} -> {self.out_channels} channels, {self.size} -> {self.out_size} pixels"


def _symmetry(name: str) -> int:
    """0 of pathways that commute with rotations and shifts, 1 of those that commute with shifts, 2 of others."""
    return 0 if name in ROTATIONAL else 1 if name in STATIONARY else 2
