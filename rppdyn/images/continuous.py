"""Continuous filters in networks of torch's: convolutions that are converted, made sparse, and converted back.

>>> import torch
>>> conv = torch.nn.Conv2d(3, 8, 5, padding=2)
>>> dense = AnchoredConv2d.of(conv)                        # the same function, by 25 anchors
>>> sparse = AnchoredConv2d.of(conv, 13, learned=True)     # the nearest one with 13, which move when it is trained
>>> sparse.to_conv2d().weight.shape
torch.Size([8, 3, 5, 5])
"""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images.anchors import FREE_NOISE, NOISE, AnchorBasis, frequency, pixel_grid, refit, spread
from rppdyn.nn.coefficients import ExactBuffers

Net = TypeVar("Net", bound=nn.Module)


class AnchoredConv2d(ExactBuffers):
    r"""A ``Conv2d`` whose filters are anchor values on basis functions, ``w(c', c, q) = sum_i u(c', c, i) b_i(q)``.

    Filters are sampled at the pixels of the kernel in each pass; :meth:`to_conv2d` samples them once.

    Args:
        conv: whose channels, stride, padding, groups and bias these are.
        anchors: ``(P, 2)``, in pixels about the kernel's centre.
        learned: whether anchors move.
        noise: :math:`s^2`; by default 1e-6, and 1e-2 of anchors that move.
    Source: van der Ouderaa & van der Wilk 2023, section 4.
    """

    values: nn.Parameter

    def __init__(
        self, conv: nn.Conv2d, anchors: Float[Tensor, "P 2"], *, learned: bool = False, noise: float | None = None
    ):
        super().__init__()
        self.options: dict[str, Any] = dict(
            in_channels=conv.in_channels, out_channels=conv.out_channels, kernel_size=conv.kernel_size,
            stride=conv.stride, padding=conv.padding, dilation=conv.dilation, groups=conv.groups,
            padding_mode=conv.padding_mode,
        )  # fmt: skip
        noise = (FREE_NOISE if learned else NOISE) if noise is None else noise
        frequencies = [frequency(len(anchors), math.prod(_sides(conv)))] * 2
        self.basis = AnchorBasis(anchors, frequencies=frequencies, noise=noise, learned=learned).to(conv.weight.device)
        points = pixel_grid(_sides(conv)).double().to(conv.weight.device)
        self.values = nn.Parameter(refit(self.basis, points, conv.weight.flatten(2)))
        self.bias = conv.bias
        self.register_exact("points", points)
        if not learned:
            self.register_exact("rows", self.basis(points))
        self.to(self.values)

    @classmethod
    def of(
        cls, conv: nn.Conv2d | AnchoredConv2d, anchors: int | Float[Tensor, "P 2"] | None = None, *, learned: bool = False,
        noise: float | None = None, generator: torch.Generator | None = None,
    ) -> AnchoredConv2d:  # fmt: skip
        """The anchored convolution that is nearest to a convolution; the same function with an anchor at every pixel.

        Args:
            anchors: places, or how many: pixels spread over the kernel, or with a generator drawn uniformly from its
                square; None for all pixels.
        Raises:
            ValueError: more anchors than pixels, or none.
        """
        conv = conv.to_conv2d() if isinstance(conv, AnchoredConv2d) else conv
        height, width = _sides(conv)
        if anchors is None:
            anchors = height * width
        if isinstance(anchors, int):
            count, grid = anchors, pixel_grid((height, width)).double()
            anchors = spread(grid, count)
            if generator is not None:
                half = torch.tensor([height, width], dtype=torch.float64) / 2
                anchors = (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1) * half
        return cls(conv, anchors, learned=learned, noise=noise)

    @property
    def weight(self) -> Float[Tensor, "C_out C k k2"]:
        """The filters at the kernel's pixels."""
        rows = getattr(self, "rows", None)
        if rows is None:
            rows = self.basis(self.get_buffer("points_exact")).to(self.values)
        return (self.values @ rows.mT).unflatten(2, self.options["kernel_size"])

    def to_conv2d(self) -> nn.Conv2d:
        """The same function, sampled."""
        conv = nn.Conv2d(**self.options, bias=False, device="meta")  # which draws no weights
        conv.weight = nn.Parameter(self.weight.detach().clone())
        conv.bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone())
        return conv

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        o = self.options
        padding = o["padding"]
        if o["padding_mode"] != "zeros":
            x, padding = F.pad(x, _margins(o), mode=o["padding_mode"]), 0
        return F.conv2d(x, self.weight, self.bias, o["stride"], padding, o["dilation"], o["groups"])

    def extra_repr(self) -> str:
        o = self.options
        return f"{o['in_channels']} -> {o['out_channels']} channels, {math.prod(o['kernel_size'])} pixels"


def anchored(
    net: Net, share: int | float = 1.0, *, learned: bool = False, noise: float | None = None,
    generator: torch.Generator | None = None,
) -> Net:  # fmt: skip
    """A copy of a network with anchored convolutions in place of convolutions of more than one pixel.

    Args:
        share: anchors for each pixel of a kernel, rounded up; 1 is the same function.
        learned, noise, generator: as of :meth:`AnchoredConv2d.of`.
    Raises:
        ValueError: a share that is not above 0 and at most 1, or no such convolution.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} of anchors: give a number above 0, at most 1")

    def converted(conv: nn.Conv2d | AnchoredConv2d) -> nn.Module:
        size = math.prod(_sides(conv))
        if size == 1:
            return conv
        return AnchoredConv2d.of(
            conv, math.ceil(share * size - 1e-9), learned=learned, noise=noise, generator=generator
        )

    net = copy.deepcopy(net)
    if not any(isinstance(m, nn.Conv2d | AnchoredConv2d) and math.prod(_sides(m)) > 1 for m in net.modules()):
        raise ValueError(f"{type(net).__name__} has no convolution of more than one pixel: there is nothing to convert")
    return _replaced(net, nn.Conv2d | AnchoredConv2d, converted)


def sampled(net: Net) -> Net:
    """A copy of a network with every anchored convolution sampled: torch's convolutions again."""
    return _replaced(copy.deepcopy(net), AnchoredConv2d, lambda conv: conv.to_conv2d())


def _sides(conv: nn.Conv2d | AnchoredConv2d) -> tuple[int, int]:
    height, width = conv.options["kernel_size"] if isinstance(conv, AnchoredConv2d) else conv.kernel_size
    return height, width


def _margins(options: dict[str, Any]) -> list[int]:
    """Margins by which images are extended: left, right, top and bottom."""
    padding, margins = options["padding"], []
    for axis in (1, 0):
        total = options["dilation"][axis] * (options["kernel_size"][axis] - 1)
        if isinstance(padding, str):
            margins += [total // 2, total - total // 2] if padding == "same" else [0, 0]
        else:
            margins += [padding[axis]] * 2
    return margins


def _replaced(net: Net, kinds: Any, replacement: Any) -> Net:
    """A module whose submodules of these kinds are others; itself, if it is of them."""
    if isinstance(net, kinds):
        return replacement(net)
    for name, child in net.named_children():
        setattr(net, name, _replaced(child, kinds, replacement))
    return net
