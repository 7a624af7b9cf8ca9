r"""Image pathways: linear maps between feature maps, each with its own Gaussian prior and its own curvature.

Images are ``(N, C, H, W)``, on a torus: convolutions pad circularly, so that a circular shift of the input shifts the output.
A pathway maps them to ``(N, C', H', W')`` and has no bias; biases are pathways of their own (:class:`SharedBias`,
:class:`PixelBias`), so that what a prior variance says of a map is not mixed up with what it says of its bias.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images.registry import Place
from rppdyn.nn.pathways import Kronecker, Pathway, Root, gram, of_linear, written

Size = tuple[int, int]
"""Height and width in pixels."""


class ImagePathway(Pathway):
    """A pathway between feature maps, which knows the Kronecker-factored curvature of its coefficients."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        """This pathway's share of the layer's output."""

    @abstractmethod
    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """Blocks for all coefficients, in the order of :meth:`coefficients`.

        Args:
            x: the inputs.
            g: gradients by this pathway's outputs of the S square-root factors of the loss's Hessian.
        """

    def draw(self, *shape: int, std: float, generator: torch.Generator | None, has_prior: bool = True) -> nn.Parameter:
        """Initial weights, normal; never wider than the prior, where they have one."""
        widest = math.sqrt(self.variance) if has_prior else math.inf
        return nn.Parameter(torch.randn(shape, generator=generator) * min(std, widest))

    def extra_repr(self) -> str:
        return f"{self.num_coefficients} coefficients, variance={written(self.log_variance)}"


def circular_pad(x: Float[Tensor, "N C H W"], kernel_size: int) -> Float[Tensor, "N C H_padded W_padded"]:
    """Pad a map as a convolution on a torus reads it; explicit, as tools for curvature pass over a layer's ``padding_mode``."""
    margin = check_reach(kernel_size, x.shape[-2:])
    return F.pad(x, [margin] * 4, mode="circular") if margin else x


def patch_moments(x: Float[Tensor, "N C H W"], kernel_size: int) -> Float[Tensor, "Ckk Ckk"]:
    r"""Sum over images and places of outer products of what a circular convolution reads there, ``(C, k, k)``.

    On a torus it depends on the difference of two taps alone: it is the autocorrelation :math:`\sum_{n,p} x(c, p) x(c', p + d)`
    at :math:`(2k - 1)^2` lags d, of which half follow from the others. No patch is ever formed.
    """
    k, channels = kernel_size, x.shape[1]
    x = x.transpose(0, 1).contiguous()
    rows, at_lag = x.flatten(1), {}
    for i in range(k):
        for j in range(1 - k, k):
            if i > 0 or j >= 0:
                product = (rows @ torch.roll(x, (-i, -j), (-2, -1)).flatten(1).mT).double()
                at_lag[i, j], at_lag[-i, -j] = product, product.mT
    taps = [(i, j) for i in range(k) for j in range(k)]
    blocks = [torch.stack([at_lag[p - i, q - j] for p, q in taps], -1) for i, j in taps]
    return torch.stack(blocks, 1).view(channels * k * k, channels * k * k)


def place_moments(g: Float[Tensor, "S N C_out H_out W_out"]) -> Float[Tensor, "C_out C_out"]:
    """Sum over data and factors, and mean over places, of outer products of gradients."""
    return Root(g.transpose(0, 2).flatten(1).mT).matrix() / g[0, 0, 0].numel()


def of_ones(gradients: Float[Tensor, "*blocks S N m"]) -> Kronecker:
    """Curvature of coefficients with these gradients by S factors of each of N data, as with an input of 1: exact."""
    ones = gradients.new_full((*gradients.shape[:-3], 1, 1), gradients.shape[-2], dtype=torch.float64)
    return Kronecker(ones, gram(gradients.flatten(-3, -2)))


class FullyConnected(ImagePathway):
    r"""All linear maps, :math:`y(c', p') = \sum_{c, p} W(c', p', c, p) x(c, p)`: FC, ``C C' H W H' W'`` weights.

    Args:
        size, out_size: sizes of input and output maps.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, variance: int | float = 1.0, *,
                 out_size: Size | None = None, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        out_size = size if out_size is None else out_size
        self.in_shape, self.out_shape = (in_channels, *size), (out_channels, *out_size)
        inputs = in_channels * check_size(size)
        std = gain / math.sqrt(inputs)
        self.weight = self.draw(out_channels * check_size(out_size), inputs, std=std, generator=generator)

    @classmethod
    def at(cls, place: Place, variance: int | float) -> FullyConnected:
        return cls(*place[:3], variance, out_size=place.out_size, gain=place.gain, generator=place.generator)

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, self.in_shape)
        return F.linear(x.flatten(1), self.weight).unflatten(1, self.out_shape)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return [of_linear(x.flatten(1), g.flatten(2))]


class Convolution(ImagePathway):
    r"""Circular convolution, :math:`y(c', p') = \sum_{c, q} \theta(c', c, q) x(c, p' + q)`: CONV, ``C C' k^2`` weights.

    Args:
        kernel_size: k, odd.
        pooled: take the mean over all pixels first; the invariant maps, with output maps of one pixel.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Raises:
        ValueError: an even kernel, or a pooled one that is not 1 x 1.
    """

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *, kernel_size: int = 3,
                 pooled: bool = False, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.kernel_size, self.pooled = check_kernel(kernel_size, pooled), pooled
        std = gain / math.sqrt(in_channels * kernel_size**2)
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = self.draw(*shape, std=std, generator=generator)

    @classmethod
    def at(cls, place: Place, variance: int | float) -> Convolution:
        return cls(
            *place[:2], variance, kernel_size=place.kernel_size, pooled=place.pooled, gain=place.gain,
            generator=place.generator,
        )  # fmt: skip

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(pool(x) if self.pooled else x, self.kernel_size), self.weight)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """A is a sum over places and G a mean over them (Grosse & Martens 2016, Eq. 21)."""
        return [Kronecker(patch_moments(pool(x) if self.pooled else x, self.kernel_size), place_moments(g))]


class SharedBias(ImagePathway):
    """A bias for each channel, the same at every pixel (and, of channels ``(c, r)``, at every one of r's orientations)."""

    def __init__(self, channels: int, size: Size, variance: int | float = 1.0, *, orientations: int = 1):
        super().__init__(variance)
        self.size, self.orientations = size, orientations
        self.bias = nn.Parameter(torch.zeros(channels // orientations))

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.bias,)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        channels = self.bias.repeat_interleave(self.orientations)
        return channels[:, None, None].expand(len(x), -1, *self.size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """Exact: gradients are summed over the places that share a bias, and the input is 1."""
        total = g.sum((-2, -1)).unflatten(2, (-1, self.orientations)).sum(-1)
        return [of_ones(total)]


class PixelBias(ImagePathway):
    """A bias for each channel and pixel, which knows absolute positions."""

    def __init__(self, channels: int, size: Size, variance: int | float = 1.0):
        super().__init__(variance)
        self.bias = nn.Parameter(torch.zeros(channels, *size))

    @classmethod
    def at(cls, place: Place, variance: int | float) -> PixelBias:
        return cls(place.out_channels, place.out_size, variance)

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.bias,)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return self.bias.expand(len(x), -1, -1, -1)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """One block per channel, exact within it."""
        return [of_ones(g.flatten(3).permute(2, 0, 1, 3))]


def pool(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C 1 1"]:
    """The mean over pixels."""
    return x.mean((-2, -1), keepdim=True)


def check_size(size: Sequence[int]) -> int:
    """Number of pixels, of which there are one or more in each direction."""
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size={tuple(size)} of maps: give a height and a width of one pixel or more")
    return math.prod(size)


def check_maps(x: Float[Tensor, "N C H W"], shape: Sequence[int]) -> None:
    """Refuse maps of other channels or another size."""
    if x.shape[1:] != tuple(shape):
        channels, height, width = shape
        raise ValueError(
            f"maps of shape {tuple(x.shape)}: give (N, {channels}, {height}, {width}), {channels} channels of "
            f"{height} x {width} pixels"
        )


def check_reach(kernel_size: int, size: Sequence[int]) -> int:
    """Check a kernel's reach beyond a pixel: not around the image, back to it, but where it is its own neighbour."""
    if kernel_size // 2 >= max(2, min(size)):
        raise ValueError(
            f"kernel_size={kernel_size} reaches around an image of {tuple(size)} pixels: take a smaller one"
        )
    return kernel_size // 2


def check_kernel(kernel_size: int, pooled: bool) -> int:
    """An odd kernel size, 1 where maps are pooled."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size={kernel_size}: give an odd number, so that the kernel has a centre")
    if pooled and kernel_size != 1:
        raise ValueError(f"kernel_size={kernel_size} on pooled maps of one pixel: give 1")
    return kernel_size


class FactoredFullyConnected(ImagePathway):
    r"""F-FC, ``C C' (H W + H' W')`` weights:

    .. math:: y(c', p') = \sum_c V(c', c, p')\, h(c', c), \qquad h(c', c) = \sum_p U(c', c, p)\, x(c, p).

    The coefficients are U and V; what they have in common, a scale, is no coefficient's own: only products matter.

    Args:
        size, out_size: sizes of input and output maps.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Source: van der Ouderaa, Immer & van der Wilk 2023, Eq. 5.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, variance: int | float = 1.0, *,
                 out_size: Size | None = None, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.in_shape, self.out_size = (in_channels, *size), size if out_size is None else out_size
        pairs, inputs, outputs = (out_channels, in_channels), check_size(size), check_size(self.out_size)
        self.U = self.draw(*pairs, inputs, std=math.sqrt(gain / inputs), generator=generator)
        self.V = self.draw(*pairs, outputs, std=math.sqrt(gain / in_channels), generator=generator)

    @classmethod
    def at(cls, place: Place, variance: int | float) -> FactoredFullyConnected:
        return cls(*place[:3], variance, out_size=place.out_size, gain=place.gain, generator=place.generator)

    def coefficients(self) -> tuple[Tensor, ...]:
        return self.U, self.V

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, self.in_shape)
        return factored(x.flatten(2), self.U, self.V).unflatten(2, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return factored_curvature(x.flatten(2), g.flatten(3), self.U, self.V)


def reduced(x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"]) -> Float[Tensor, "C N C_out"]:
    """h: one product of matrices for each input channel."""
    return torch.bmm(x.transpose(0, 1), U.permute(1, 2, 0))


def factored(
    x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"], V: Float[Tensor, "C_out C P_out"]
) -> Float[Tensor, "N C_out P_out"]:
    """F-FC of flattened maps; then one product for each output channel."""
    return torch.bmm(reduced(x, U).permute(2, 1, 0), V).transpose(0, 1)


def factored_curvature(
    x: Float[Tensor, "N C P"],
    g: Float[Tensor, "S N C_out P_out"],
    U: Float[Tensor, "C_out C P"],
    V: Float[Tensor, "C_out C P_out"],
) -> list[Kronecker]:
    r"""Curvature of U, for each input channel :math:`A_c` (P x P) and :math:`G_c` (C' x C'); of V, for each output channel
    :math:`A_{c'}` (C x C) and :math:`G_{c'}` (P' x P').

    A block is exact for a single datum, whatever its number of gradients. The published approximation sums A and G over
    the blocks; apart they cost the same and are closer to the exact determinant.
    """
    h = reduced(x, U)
    by_output = g.flatten(0, 1).transpose(0, 1)  # (C', S N, P')
    by_h = torch.bmm(by_output, V.mT)  # (C', S N, C): gradients by h
    return [
        Kronecker(gram(x.transpose(0, 1)), gram(by_h.permute(2, 1, 0))),
        Kronecker(gram(h.permute(2, 1, 0)), gram(by_output)),
    ]
