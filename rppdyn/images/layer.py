"""The relaxed image layer: pathways of different symmetry, summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from rppdyn.images.pathways import ImagePathway, SharedBias, Size, check_maps, check_reach, check_size
from rppdyn.images.registry import NOTHING, REGISTRY, ROTATIONS_AND_SHIFTS, Place

fx.wrap("check_maps")

PATHWAYS = tuple(REGISTRY)
MAPS = tuple(name for name, kind in REGISTRY.items() if kind.is_map)
STATIONARY = tuple(name for name, kind in REGISTRY.items() if kind.is_map and kind.symmetry < NOTHING)
ROTATIONAL = tuple(name for name, kind in REGISTRY.items() if kind.is_map and kind.symmetry == ROTATIONS_AND_SHIFTS)
"""Names of pathways, the most symmetric first; all but biases; those that commute with shifts, and with rotations too."""

FREE_SCALE = 1e-2
"""Initial size of pathways that commute with less than the most symmetric ones of their layer do."""


def rotations_of(pathways: Mapping[str, int | float], settings: Mapping[str, Any] | None = None) -> int:
    """Number of rotations in the group of a layer's or a model's pathways; 1 where none of them knows rotations.

    Raises:
        ValueError: pathways of different groups.
    """
    settings = settings or {}
    counts = {
        name: count
        for name, kind in REGISTRY.items()
        if pathways.get(name, 0) != 0 and (count := kind.orientations(settings.get(name))) > 1
    }
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        fixed = {count for name, count in counts.items() if not callable(REGISTRY[name].rotations)}
        remedy = f"give the others filters.elements={fixed.pop()}" if len(fixed) == 1 else "take one of them"
        raise ValueError(
            f"pathways of one model have as many elements of their group, and these differ: {told}; {remedy}, or leave out some"
        )
    return next(iter(counts.values()), 1)


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
    f_fc                :class:`~rppdyn.images.pathways.FactoredFullyConnected`
    s_fc                :class:`~rppdyn.images.sparse.SparseFullyConnected`, prior on anchor values
    s_fc_lengthscales   the same, prior on lengthscales
    p4, se2, scaling    :class:`~rppdyn.images.lie_convolution.LieConvolution`, of features with ``orientations``
    (p4, se2)_relaxed   :class:`~rppdyn.images.lie_convolution.RelaxedLieConvolution`, which knows absolute angles
    anchored            :class:`~rppdyn.images.lie_convolution.LieConvolution` of T(2)
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
        size, out_size: sizes of input and output maps; they differ only where ``out_size`` is (1, 1).
        pathways: names and prior variances.
        bias_variance: prior variance of the bias that pixels share, a pathway of its own ("bias").
        kernel_size: kernel size of convolutions; odd.
        orientations: numbers of orientations of input and output, (1, N), (N, N) or (N, 1) where channels stand for
            orientations; of p4, N is 4.
        settings: settings of pathways that have their own, by the pathway's name.
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
        orientations: tuple[int, int] = (1, 1),
        settings: Mapping[str, Any] | None = None,
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
        self.rotations = rotations_of(pathways, settings)
        turned = self.rotations if self.rotations > 1 else 4
        if any(count not in (1, turned) for count in orientations) or len(orientations) != 2:
            raise ValueError(
                f"orientations={orientations} of input and output: give a pair of 1 or {turned}, (1, 1) for none"
            )
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
        kinds = [REGISTRY[name].symmetry for name in maps]
        for name, variance in present.items():
            kind = REGISTRY[name].symmetry
            scale = free_scale if kind > min(kinds) else 1.0
            place = Place(
                in_channels, out_channels, size, self.out_size, self.kernel_size, orientations, self.pooled,
                gain * scale / math.sqrt(max(1, kinds.count(kind))), generator, (settings or {}).get(name),
            )  # fmt: skip
            pathway = REGISTRY[name].build(place, variance)
            pathway.is_free = kind > min(kinds)
            self.add_module(name, pathway)
        if bias_variance != 0:
            shared = orientations[1] if any(name in ROTATIONAL for name in maps) else 1
            self.bias = SharedBias(out_channels, self.out_size, bias_variance, orientations=shared)
        for name, child in self.named_children():
            within = ("pixel_bias",) if name == "bias" else REGISTRY[name].within
            if isinstance(child, ImagePathway) and within:
                child.within = next((wider for wider in within if wider in present), None)
                child.uses = self._uses(name)

    def _uses(self, name: str) -> int | float:
        """At how many places of the dense map a coefficient stands; of means over pixels, with the square of their weight."""
        pixels = check_size(self.size)
        if name == "bias":
            return check_size(self.out_size) * self.bias.orientations
        return (1 / pixels if self.pooled else pixels) * (self.rotations if name in ROTATIONAL else 1)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, (self.in_channels, *self.size))
        first, *others = self.children()
        y = first(x)
        for pathway in others:
            y = y + pathway(x)
        return y

    def extra_repr(self) -> str:
        return f"{self.in_channels} -> {self.out_channels} channels, {self.size} -> {self.out_size} pixels"
