"""Models of images: a list of relaxed layers with subsampling and rectifiers between them; and ResNet-18 over a group."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rppdyn.images._lie_convolution import LieConvolution
from rppdyn.images._pathways import (
    FREE_SCALE,
    MAPS,
    STATIONARY,
    RelaxedImageLayer,
    Size,
    check_maps,
    circular_pad,
    count_rotations,
)
from rppdyn.images.registry import REGISTRY
from rppdyn.nn._networks import ModuleList


class Subsampling(nn.Module):
    """Maps of a smaller resolution.

    Args:
        stride: number of pixels that become one, along each axis.
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
    r"""Choose, among the ``stride**2`` grids of every stride-th pixel, the one with the largest :math:`l_\infty` norm.

    A circular shift permutes the grids (and shifts them), a rotation by 90 degrees permutes and turns them, so that the same
    pixels are chosen: the output is shifted or turned, too. Each sample has a choice of its own. Among grids with the same
    norm, which raw images of few grey levels often have, the :math:`l_1` norm decides, then the :math:`l_2` norm. If these are
    equal too, as for grids that are each other's images, no choice commutes, and the first is taken.

    Source: Chaman & Dokmanic 2021; van der Ouderaa, Immer & van der Wilk 2023, F.2 (in whose code the norm is over the
    batch, so that a sample's output depends on its neighbours').
    """

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H_out W_out"]:
        s, (height, width) = self.stride, self.out_size((x.shape[2], x.shape[3]))
        grids = x.unflatten(3, (width, s)).unflatten(2, (height, s)).permute(0, 3, 5, 1, 2, 4).flatten(1, 2)
        sizes = grids.detach().abs()
        best = torch.ones_like(sizes[:, :, 0, 0, 0], dtype=torch.bool)
        for norm in (sizes.amax((2, 3, 4)), _sum_grids(sizes), _sum_grids(sizes.square())):
            candidates = norm.masked_fill(~best, -torch.inf)
            best = candidates == candidates.amax(1, keepdim=True)
        index = best.to(torch.uint8).argmax(1)
        return torch.take_along_dim(grids, index[:, None, None, None, None], 1).squeeze(1)


def _sum_grids(values: Float[Tensor, "N grids C H W"]) -> Float[Tensor, "N grids"]:
    """Sums over each grid that do not depend on the order of its pixels: float64's rounding is below float32's."""
    return values.sum((2, 3, 4), dtype=torch.float64).float()


class MaxSubsampling(Subsampling):
    """The largest of ``stride x stride`` pixels; commutes with shifts by multiples of the stride, and with rotations."""

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H_out W_out"]:
        self.out_size((x.shape[2], x.shape[3]))
        return F.max_pool2d(x, self.stride)


class Flatten(nn.Module):
    """Maps of one pixel, with a channel for each pixel and channel of the input. The next layer then depends on positions."""

    def out_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Always one pixel."""
        return 1, 1

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N CHW 1 1"]:
        return x.flatten(1)[:, :, None, None]


class OrientationPooling(nn.Module):
    """The largest of a field's orientations, of channels ``(field, orientation)``; invariant to rotations on one pixel."""

    def __init__(self, orientations: int):
        super().__init__()
        self.orientations = orientations

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N fields H W"]:
        return x.unflatten(1, (-1, self.orientations)).amax(2)

    def extra_repr(self) -> str:
        return f"orientations={self.orientations}"


class FieldNorm(nn.BatchNorm2d):
    """Batch normalisation with one mean and variance (and scale and offset) for all elements of a field.

    Args:
        fields: number of fields.
        elements: number of elements of each; channels are ``(field, element)``.
        affine: whether it has a learned scale and offset.
    """

    def __init__(self, fields: int, elements: int = 1, *, affine: bool = True):
        super().__init__(fields, affine=affine)
        self.elements = elements

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        fields = x.unflatten(1, (-1, self.elements)).flatten(2, 3)  # elements as more rows
        return super().forward(fields).unflatten(2, (self.elements, -1)).flatten(1, 2)


# -- models: lists of relaxed layers with subsampling and rectifiers between them ----------------------------------------------


fx.wrap("check_maps")  # so that tracing does not run the check, which reads values

RECTIFIER_GAIN = math.sqrt(2)
MEAN_SQUARE_EPSILON = 1e-5
"""Added to the mean squares of maps that are normalised."""

SUBSAMPLING: dict[str, type[Subsampling | Flatten]] = {
    "polyphase": PolyphaseSubsampling,
    "max": MaxSubsampling,
    "flatten": Flatten,
}


@dataclass(frozen=True)
class LayerSpec:
    """A hidden layer.

    Attributes:
        channels: number of channels of its output; in a model with rotations, for each orientation.
        kernel_size: kernel size of convolutions.
        subsample: step after it. "polyphase" and "max" halve its maps; "flatten" turns every pixel into a channel, so that
            later layers are fully connected.
        residual: factor of the block's input in its output, added after the rectifier, as in PowerNet.
        span: number of layers that the residual skips: this one and those before it.
        normalised: whether maps are divided, before the rectifier, by the root of their mean square over channels and pixels,
            which commutes with orthogonal maps.
        lifted: whether the first layer of a model with rotations takes an image as features whose orientations are equal, and
            has weights for each. The function is the same, with as many times more weights; published counts include them.
    """

    channels: int
    kernel_size: int = 3
    subsample: Literal["polyphase", "max", "flatten"] | None = None
    lifted: bool = False
    residual: int | float = 0.0
    span: int = 1
    normalised: bool = False

    def __post_init__(self):
        if self.subsample is not None and self.subsample not in SUBSAMPLING:
            raise ValueError(f"subsample={self.subsample!r} is not one of {', '.join(SUBSAMPLING)}, or None")
        if self.span < 1 or not math.isfinite(self.residual):
            raise ValueError(
                f"residual={self.residual} past span={self.span} layers: give a finite factor and one layer or more"
            )


def ten_layers(width: int = 10) -> list[LayerSpec]:
    r"""The ten-layer network of van der Ouderaa, Immer & van der Wilk 2023, Table 6, with its width :math:`\alpha`.

    Several printed sizes contradict their neighbours; these give the parameters that the paper reports with :math:`\alpha = 10`
    (Table 7): 338,770 with convolutions, 1,025,380 with group convolutions and 214,550 with separable ones. Images of 32 x 32
    pixels end as one pixel, so the two 1 x 1 layers are no group convolutions.
    """
    return [
        LayerSpec(width, lifted=True),
        LayerSpec(2 * width, subsample="polyphase"),
        LayerSpec(2 * width),
        LayerSpec(4 * width, subsample="polyphase"),
        LayerSpec(4 * width),
        LayerSpec(8 * width, subsample="polyphase"),
        LayerSpec(8 * width, subsample="polyphase"),
        LayerSpec(16 * width, subsample="polyphase"),
        LayerSpec(64 * width, kernel_size=1),
    ]


def nine_layers(width: int = 16) -> list[LayerSpec]:
    """Nine convolutional layers and a fully connected one: Finzi, Benton & Wilson 2021, CIFAR-10 (Finzi 2023, A.2.3.2)."""
    narrow, wide = LayerSpec(width), LayerSpec(2 * width)
    parts = [narrow, narrow, replace(narrow, subsample="max"), wide, wide, replace(wide, subsample="max"), wide, wide]
    return [*parts, replace(wide, subsample="flatten")]


def three_layers(width: int = 32) -> list[LayerSpec]:
    """Three convolutional layers and a fully connected one, which depends on positions; the same source, on tables."""
    return [LayerSpec(width), LayerSpec(width), LayerSpec(width, subsample="flatten")]


def small(width: int = 10, subsample: Literal["polyphase", "max"] = "polyphase") -> list[LayerSpec]:
    """Four layers for digits on a canvas of 16 x 16 pixels, which train in minutes on two cores.

    Polyphase subsampling keeps the symmetry of all shifts. But its choice of grid depends on the image, so that pathways that
    depend on positions see their maps jump by a pixel: with such pathways the largest of 2 x 2 pixels does better.
    """
    return [
        LayerSpec(width),
        LayerSpec(2 * width, subsample=subsample),
        LayerSpec(2 * width, subsample=subsample),
        LayerSpec(2 * width),
    ]


def one_layer(width: int = 32) -> list[LayerSpec]:
    """One hidden layer and a fully connected one behind it: L-conv's experiments (Dehmamy et al., Figure 2)."""
    return [LayerSpec(width, subsample="flatten")]


def power_blocks(width: int = 16, blocks: int = 4, layers: int = 2, residual: int | float = 1.0) -> list[LayerSpec]:
    """PowerBlocks: blocks of layers on maps of one size with residual connections, and a mean over pixels at the end.

    Source: PowerNet, 4.1 and 4.2 (with a division by the root mean square in place of batch normalisation, so that no sample
    depends on others).
    """
    layer = LayerSpec(width, normalised=True)
    # the first block's residual skips its first layer, whose input, the image, has other channels
    first = [replace(layer, residual=residual, span=layers - 1)] if layers > 1 else [layer]
    specs = [layer] * (layers - len(first)) + first
    return specs + ([layer] * (layers - 1) + [replace(layer, residual=residual, span=layers)]) * (blocks - 1)


ARCHITECTURES: dict[str, Callable[[int], list[LayerSpec]]] = {
    "ten_layers": ten_layers,
    "nine_layers": nine_layers,
    "three_layers": three_layers,
    "one_layer": one_layer,
    "power_blocks": power_blocks,
    "small": small,
    "small_max": functools.partial(small, subsample="max"),
}


class ImageModel(nn.Module):
    r"""Relaxed image layers with rectifiers, and subsampling where a layer's spec has it; outputs are one pixel.

    Every layer has the same pathways, with these names and prior variances (see
    :class:`~rppdyn.images.RelaxedImageLayer`). On maps of one pixel all maps between channels are equivariant to
    shifts, and a layer has its convolutional pathways only (one, named "conv", if the model has none). So the layer after a
    "flatten" is fully connected, with the convolutions' prior variance.

    With a pathway that commutes with rotations, each hidden channel becomes as many as its group has rotations (four for
    "gconv" and its variants), one for each orientation; when maps become one pixel, the largest of them is taken.

    Args:
        layers: the hidden layers.
        in_channels, size: number of channels and size of the images.
        outputs: number of outputs for each image: classes, or targets.
        pathways: names and prior variances.
        bias_variance: prior variance of biases, shared over pixels (and orientations).
        free_scale: initial size of all but the most symmetric pathways of a layer.
        output_scale: initial size of outputs. After several poolings the mean over images makes outputs as large as ten; few
            channels have to undo that, and all rectifiers of a layer may die in the first steps.
        batch_norm: whether the input of each layer but the first is normalised over the batch, each field separately, without
            scale and offset. (Rectified maps have large means, from which layers learn badly.) In training a sample's output
            then depends on the others; after ``model.eval()`` on running means.
        settings: settings of pathways that have any, by the pathway's name.
        generator: generator of the initial weights.
    Raises:
        ValueError: pathways of different groups of rotations, a size that can't be halved as often as the layers require, a
            lifted layer that is not the first; or as the layers.

    >>> model = ImageModel(small(), 1, (16, 16), 10, {"conv": 1.0, "f_fc": 1.0})
    >>> model(torch.zeros(5, 1, 16, 16)).shape
    torch.Size([5, 10])
    """

    blocks: ModuleList[RelaxedImageLayer]
    is_composite = True  # tracing splits it into its layers

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        in_channels: int,
        size: Size,
        outputs: int,
        pathways: Mapping[str, int | float],
        *,
        bias_variance: int | float = 1.0,
        free_scale: int | float = FREE_SCALE,
        output_scale: int | float = 1.0,
        batch_norm: bool = False,
        settings: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.rotations = fields = count_rotations(pathways, settings)
        shared: dict[str, Any] = dict(
            bias_variance=bias_variance, free_scale=free_scale, settings=settings, generator=generator
        )
        self.blocks, self.subsampling = ModuleList(), nn.ModuleList()
        norms: list[nn.Module] = []  # of each hidden layer's output
        if any(spec.lifted for spec in layers[1:]):
            raise ValueError("lifted=True of a layer that is not the first: only images are lifted; leave it out")
        if size == (1, 1):
            fields = 1  # one pixel does not turn
        before = fields if layers and layers[0].lifted else 1
        self.image_shape, self.copies = (in_channels, *size), before
        channels, gain = before * in_channels, 1.0
        shapes, self.specs = [(channels, size)], tuple(layers)
        for spec in layers:
            self.blocks.append(
                RelaxedImageLayer(
                    channels, fields * spec.channels, size, select_pathways(size, pathways), kernel_size=spec.kernel_size,
                    orientations=(before, fields), gain=gain, **shared,
                )
            )  # fmt: skip
            channels, before, gain = fields * spec.channels, fields, RECTIFIER_GAIN
            steps: list[nn.Module] = []
            if spec.subsample is not None:
                subsampling = SUBSAMPLING[spec.subsample]()
                steps.append(subsampling)
                if spec.subsample == "flatten":  # rotations move pixels, too: channels no longer stand for orientations
                    channels, before, fields = channels * math.prod(size), 1, 1
                size = subsampling.out_size(size)
            if size == (1, 1) and fields > 1:
                steps.append(OrientationPooling(fields))
                channels, before, fields = spec.channels, 1, 1
            self.subsampling.append(nn.Sequential(*steps))
            norms.append(FieldNorm(channels // before, before, affine=False))
            shapes.append((channels, size))
            if spec.residual and (len(shapes) <= spec.span or shapes[-1 - spec.span] != shapes[-1]):
                raise ValueError(
                    f"residual={spec.residual} past {spec.span} layers: their input has other channels or another size than "
                    "their output; leave it out"
                )
        self.norms = nn.ModuleList(norms) if batch_norm else None
        self.head = RelaxedImageLayer(
            channels, outputs, size, select_pathways(size, pathways), kernel_size=1, out_size=(1, 1),
            orientations=(before, 1), gain=gain * output_scale, **shared,
        )  # fmt: skip

    def layers(self) -> list[tuple[str, RelaxedImageLayer]]:
        """The layers by name, in the order of a forward pass."""
        return [*((f"blocks.{i}", layer) for i, layer in enumerate(self.blocks)), ("head", self.head)]

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N outputs"]:
        check_maps(x, self.image_shape)
        x = x.repeat_interleave(self.copies, 1)
        inputs = [x]  # of each layer
        for i, (layer, subsample, spec) in enumerate(zip(self.blocks, self.subsampling, self.specs, strict=True)):
            x = subsample(layer(self._normalise(x, i - 1)))
            if spec.normalised:
                x = x * (x.square().mean((1, 2, 3), keepdim=True) + MEAN_SQUARE_EPSILON).rsqrt()
            x = F.relu(x)
            if spec.residual:
                x = x + spec.residual * inputs[-spec.span]
            inputs.append(x)
        return self.head(self._normalise(x, len(self.specs) - 1)).flatten(1)

    def _normalise(self, x: Tensor, index: int) -> Tensor:
        """Normalise the output of hidden layer number `index`, if the model has norms."""
        return x if self.norms is None or index < 0 else self.norms[index](x)


def select_pathways(size: Size, pathways: Mapping[str, int | float]) -> dict[str, int | float]:
    """The pathways of a layer on maps of a size: on one pixel those that commute with shifts, or "conv" if there are none.

    All maps on one pixel commute with shifts. Rotations do not move it, so there is no group convolution.
    """
    if size != (1, 1):
        return dict(pathways)
    maps = {name: pathways[name] for name in MAPS if pathways.get(name, 0) != 0}
    commuting = {
        name: variance for name, variance in maps.items() if name in STATIONARY and REGISTRY[name].orientations() == 1
    }
    if commuting or not maps:
        return commuting
    return {"conv": next(iter(maps.values()))}


RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Fields and stride of each stage."""


class _Convolution(nn.Module):
    """A Lie-group convolution on a torus, with a stride."""

    def __init__(self, fields_in: int, fields_out: int, orientations: tuple[int, int], stride: int, **options: Any):
        super().__init__()
        self.stride = stride
        channels = fields_in * orientations[0], fields_out * orientations[1]
        self.conv = LieConvolution(*channels, orientations=orientations, gain=2**0.5, **options)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(x, self.conv.kernel_size), self.conv.filters(), stride=self.stride)


class _ConvolutionBlock(nn.Module):
    """Two convolutions plus the identity, or plus a 1 x 1 convolution if the shape changes."""

    def __init__(self, fields_in: int, fields_out: int, elements: int, stride: int, **options: Any):
        super().__init__()
        pair = (elements, elements)
        self.conv1 = _Convolution(fields_in, fields_out, pair, stride, kernel_size=3, **options)
        self.norm1 = FieldNorm(fields_out, elements)
        self.conv2 = _Convolution(fields_out, fields_out, pair, 1, kernel_size=3, **options)
        self.norm2 = FieldNorm(fields_out, elements)
        self.shortcut = nn.Sequential()
        if stride > 1 or fields_in != fields_out:
            pointwise = _Convolution(fields_in, fields_out, pair, stride, kernel_size=1, **options)
            self.shortcut = nn.Sequential(pointwise, FieldNorm(fields_out, elements))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class LieResNet18(nn.Module):
    """ResNet-18 with convolutions over a group of the plane; 11,181,642 parameters with ten classes, as the plain network.

    Filters have as many anchors over the group as the plain network's have pixels (for SE(2) in 7 x 7 pixels the 37 in a disc:
    11,179,338 parameters). A field's elements share their norm. The head reads the mean over places, at each field's largest
    element. :func:`~rppdyn.images.draw_elements` draws the elements of a pass. With sides of 33, 65, ... pixels quarter turns
    are exact: they map the pixels that strides take to each other.

    Args:
        classes: number of outputs.
        in_channels: number of channels of images.
        group: name of the group, a key of :data:`~rppdyn.images._lie_convolution.GROUPS`.
        elements: N, by default 4; time and memory of layers grow with its square.
        stages: fields and strides of the four stages.
    Source: van der Ouderaa & van der Wilk 2023, section 7 and Table 3; He et al. 2016.
    """

    def __init__(
        self,
        classes: int = 10,
        in_channels: int = 3,
        *,
        group: str = "se2",
        elements: int = 4,
        stages: tuple[tuple[int, int], ...] = RESNET_STAGES,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        options: dict[str, Any] = dict(group=group, variance=1e3, generator=generator)
        first = stages[0][0]
        self.stem = _Convolution(in_channels, first, (1, elements), 2, kernel_size=7, share=1.0, **options)
        self.norm, blocks, before = FieldNorm(first, elements), [], first
        for fields, stride in stages:
            blocks += [
                _ConvolutionBlock(before, fields, elements, stride, **options),
                _ConvolutionBlock(fields, fields, elements, 1, **options),
            ]
            before = fields
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.head = OrientationPooling(elements), nn.utils.skip_init(nn.Linear, before, classes)
        for parameter in self.head.parameters():
            nn.init.uniform_(parameter, -(before**-0.5), before**-0.5, generator=generator)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        x = F.relu(self.norm(self.stem(x)))
        x = self.blocks(F.max_pool2d(circular_pad(x, 3), 3, 2))
        return self.head(self.pool(x.mean((-2, -1), keepdim=True)).flatten(1))
