"""An equivariant ResNet-18, with the parameters of the plain one: as many anchor values as a filter has pixels."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images.lie_convolution import LieConvolution
from rppdyn.images.models import FieldNorm, OrientationPooling
from rppdyn.images.pathways import circular_pad

__all__ = ["LieResNet18"]

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Fields and stride."""


class _Convolution(nn.Module):
    """A Lie-group convolution on a torus, with a stride."""

    def __init__(self, fields_in: int, fields_out: int, orientations: tuple[int, int], stride: int, **options: Any):
        super().__init__()
        self.stride = stride
        channels = fields_in * orientations[0], fields_out * orientations[1]
        self.conv = LieConvolution(*channels, orientations=orientations, gain=2**0.5, **options)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(x, self.conv.kernel_size), self.conv.filters(), stride=self.stride)


class _Block(nn.Module):
    """Two convolutions beside the identity, or beside one of 1 x 1 pixels where the shape changes."""

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
    """ResNet-18 whose convolutions are over a group of the plane: 11,181,642 parameters with ten classes, as the plain one.

    Filters have as many anchors as the plain network's have pixels, over the group (SE(2) in 7 x 7 pixels 37, those in a disc:
    11,179,338 together); norms are one for each field. In the end comes the largest of a field's elements, of the mean over
    places. :func:`~rppdyn.images.lie_convolution.draw_elements` draws the elements of a pass. Every second pixel of an odd
    number is still the same when an image turns: with sides of 33, 65, ... pixels quarter turns are exact.

    Args:
        classes: number of outputs.
        in_channels: number of channels of images.
        group: by name.
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
        stages: tuple[tuple[int, int], ...] = STAGES,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        options: dict[str, Any] = dict(group=group, variance=1e3, generator=generator)
        first = stages[0][0]
        self.stem = _Convolution(in_channels, first, (1, elements), 2, kernel_size=7, share=1.0, **options)
        self.norm, blocks, before = FieldNorm(first, elements), [], first
        for fields, stride in stages:
            blocks += [
                _Block(before, fields, elements, stride, **options),
                _Block(fields, fields, elements, 1, **options),
            ]
            before = fields
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.head = OrientationPooling(elements), nn.Linear(before, classes)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        x = F.relu(self.norm(self.stem(x)))
        x = self.blocks(F.max_pool2d(circular_pad(x, 3), 3, 2))
        return self.head(self.pool(x.mean((-2, -1), keepdim=True)).flatten(1))
