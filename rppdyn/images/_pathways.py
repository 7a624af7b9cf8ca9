r"""Image pathways: linear maps between feature maps, each with its own Gaussian prior and its own curvature.

Images are ``(N, C, H, W)``, on a torus: convolutions pad circularly, so that a circular shift of the input shifts the output.
A pathway maps them to ``(N, C', H', W')`` and has no bias; biases are pathways of their own (:class:`SharedBias`,
:class:`PixelBias`), so that maps and biases have prior variances of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rppdyn.images.registry import NO_SYMMETRY, REGISTRY, ROTATIONS_AND_SHIFTS, Place
from rppdyn.nn._pathways import Kronecker, Pathway, Root, format_variance, gram, linear_curvature

Size = tuple[int, int]
"""Height and width in pixels."""


class ImagePathway(Pathway, ABC):
    """A pathway between feature maps, with the Kronecker-factored curvature of its coefficients."""

    @classmethod
    def from_place(cls, place: Place, variance: int | float, **arguments: Any) -> ImagePathway:
        """Build a pathway for its place in a layer, with the place's fields as arguments where the constructor has them."""
        names = place._asdict().keys() & signature(cls).parameters.keys()
        return cls(variance=variance, **{name: getattr(place, name) for name in names}, **arguments)

    @abstractmethod
    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        """This pathway's share of the layer's output."""

    @abstractmethod
    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """Blocks for all coefficients, in the order of :meth:`coefficients`.

        Args:
            x: the inputs.
            g: S gradients for each datum by this pathway's output, one for each column of a square root of the loss's Hessian.
        """

    def draw(self, *shape: int, std: float, generator: torch.Generator | None, has_prior: bool = True) -> nn.Parameter:
        """Draw normal initial weights, not wider than their prior if they have one."""
        prior_std = math.sqrt(self.variance) if has_prior else math.inf
        return nn.Parameter(torch.randn(shape, generator=generator) * min(std, prior_std))

    def extra_repr(self) -> str:
        return f"{self.num_coefficients} coefficients, variance={format_variance(self.log_variance)}"


def circular_pad(x: Float[Tensor, "N C H W"], kernel_size: int) -> Float[Tensor, "N C H_padded W_padded"]:
    """Pad maps circularly before a convolution. (With ``padding_mode`` curvature would be computed from unpadded inputs.)"""
    margin = check_reach(kernel_size, x.shape[-2:])
    return F.pad(x, [margin] * 4, mode="circular") if margin else x


def patch_moments(x: Float[Tensor, "N C H W"], kernel_size: int) -> Float[Tensor, "Ckk Ckk"]:
    r"""Sum over images and pixels of outer products of the patches ``(C, k, k)`` that a circular convolution reads.

    On a torus an entry depends on the difference of two taps alone: it is the autocorrelation
    :math:`\sum_{n,p} x(c, p) x(c', p + d)` at :math:`(2k - 1)^2` lags d, half of which follow by symmetry. No patch is formed.
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
    """Sum over data and factors, and mean over pixels, of outer products of gradients."""
    return Root(g.transpose(0, 2).flatten(1).mT).matrix() / g[0, 0, 0].numel()


def constant_input_curvature(gradients: Float[Tensor, "*blocks S N m"]) -> Kronecker:
    """Exact curvature of coefficients from gradients, S for each of N data: A = N, as for weights of the constant input 1."""
    A = gradients.new_full((*gradients.shape[:-3], 1, 1), gradients.shape[-2], dtype=torch.float64)
    return Kronecker(A, gram(gradients.flatten(-3, -2)))


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

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, self.in_shape)
        return F.linear(x.flatten(1), self.weight).unflatten(1, self.out_shape)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return [linear_curvature(x.flatten(1), g.flatten(2))]


class Convolution(ImagePathway):
    r"""Circular convolution, :math:`y(c', p') = \sum_{c, q} \theta(c', c, q) x(c, p' + q)`: CONV, ``C C' k^2`` weights.

    Args:
        kernel_size: k, odd.
        pooled: whether to take the mean over all pixels first: invariant maps, with outputs of one pixel.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Raises:
        ValueError: an even kernel, or a kernel on pooled maps that is not 1 x 1.
    """

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *, kernel_size: int = 3,
                 pooled: bool = False, gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.kernel_size, self.pooled = check_kernel(kernel_size, pooled), pooled
        std = gain / math.sqrt(in_channels * kernel_size**2)
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = self.draw(*shape, std=std, generator=generator)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(pool(x) if self.pooled else x, self.kernel_size), self.weight)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """A is a sum over pixels and G a mean over them (Grosse & Martens 2016, Eq. 21)."""
        return [Kronecker(patch_moments(pool(x) if self.pooled else x, self.kernel_size), place_moments(g))]


class SharedBias(ImagePathway):
    """A bias for each channel, the same at every pixel. With orientations, the channels of one field share a bias."""

    def __init__(self, channels: int, size: Size, variance: int | float = 1.0, *, orientations: int = 1):
        super().__init__(variance)
        self.size, self.orientations = size, orientations
        self.bias = nn.Parameter(torch.zeros(channels // orientations))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        channels = self.bias.repeat_interleave(self.orientations)
        return channels[:, None, None].expand(len(x), -1, *self.size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """Exact: gradients are summed over the places that share a bias, and the input is 1."""
        total = g.sum((-2, -1)).unflatten(2, (-1, self.orientations)).sum(-1)
        return [constant_input_curvature(total)]


class PixelBias(ImagePathway):
    """A bias for each channel and pixel, which depends on absolute positions."""

    def __init__(self, channels: int, size: Size, variance: int | float = 1.0):
        super().__init__(variance)
        self.bias = nn.Parameter(torch.zeros(channels, *size))

    @classmethod
    def from_place(cls, place: Place, variance: int | float) -> PixelBias:  # type: ignore[override]
        return cls(place.out_channels, place.out_size, variance)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return self.bias.expand(len(x), -1, -1, -1)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """One block per channel, exact within it."""
        return [constant_input_curvature(g.flatten(3).permute(2, 0, 1, 3))]


def pool(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C 1 1"]:
    """The mean over pixels."""
    return x.mean((-2, -1), keepdim=True)


def check_fields(channels: Sequence[int], orientations: Sequence[int]) -> list[int]:
    """Check and return the numbers of fields of input and output: channels divided by orientations (elements of a group)."""
    for count, o in zip(channels, orientations, strict=True):
        if count % o or count < 1:
            raise ValueError(f"{count} channels don't make fields of {o} orientations: give a multiple of {o}")
    return [count // o for count, o in zip(channels, orientations, strict=True)]


def check_size(size: Sequence[int]) -> int:
    """Check that maps have pixels; returns their number."""
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
    """Check that a kernel's margin is smaller than the image, or one pixel; returns it, in pixels."""
    if kernel_size // 2 >= max(2, min(size)):
        raise ValueError(
            f"kernel_size={kernel_size} reaches around an image of {tuple(size)} pixels: take a smaller one"
        )
    return kernel_size // 2


def check_kernel(kernel_size: int, pooled: bool) -> int:
    """Check and return a kernel size: odd, and 1 on pooled maps."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size={kernel_size}: give an odd number, so that the kernel has a centre")
    if pooled and kernel_size != 1:
        raise ValueError(f"kernel_size={kernel_size} on pooled maps of one pixel: give 1")
    return kernel_size


class FactoredFullyConnected(ImagePathway):
    r"""F-FC, ``C C' (H W + H' W')`` weights:

    .. math:: y(c', p') = \sum_c V(c', c, p')\, h(c', c), \qquad h(c', c) = \sum_p U(c', c, p)\, x(c, p).

    The coefficients are U and V. Only their products matter: a common scale can move from one to the other.

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

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, self.in_shape)
        return apply_factors(x.flatten(2), self.U, self.V).unflatten(2, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        return factored_curvature(x.flatten(2), g.flatten(3), self.U, self.V)


def reduce_inputs(x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"]) -> Float[Tensor, "C N C_out"]:
    """h of F-FC for each image: one matrix product for each input channel."""
    return torch.bmm(x.transpose(0, 1), U.permute(1, 2, 0))


def apply_factors(
    x: Float[Tensor, "N C P"], U: Float[Tensor, "C_out C P"], V: Float[Tensor, "C_out C P_out"]
) -> Float[Tensor, "N C_out P_out"]:
    """Apply F-FC to flattened maps: one product for each input channel, then one for each output channel."""
    return torch.bmm(reduce_inputs(x, U).permute(2, 1, 0), V).transpose(0, 1)


def factored_curvature(
    x: Float[Tensor, "N C P"],
    g: Float[Tensor, "S N C_out P_out"],
    U: Float[Tensor, "C_out C P"],
    V: Float[Tensor, "C_out C P_out"],
) -> list[Kronecker]:
    r"""Curvature of U, in blocks for input channels, and of V, in blocks for output channels.

    Factors are :math:`A_c` (P x P) and :math:`G_c` (C' x C') for U, :math:`A_{c'}` (C x C) and :math:`G_{c'}` (P' x P') for V.
    A block is exact for a single datum with any number of gradients. The published approximation sums A and G over the blocks;
    separate blocks cost the same and are closer to the exact determinant.
    """
    h = reduce_inputs(x, U)
    by_output = g.flatten(0, 1).transpose(0, 1)  # (C', S N, P')
    by_h = torch.bmm(by_output, V.mT)  # (C', S N, C): gradients by h
    return [
        Kronecker(gram(x.transpose(0, 1)), gram(by_h.permute(2, 1, 0))),
        Kronecker(gram(h.permute(2, 1, 0)), gram(by_output)),
    ]


# -- layers: sums of pathways ------------------------------------------------------------------------------------------

fx.wrap("check_maps")

PATHWAYS = tuple(REGISTRY)
MAPS = tuple(name for name, kind in REGISTRY.items() if kind.is_map)
STATIONARY = tuple(name for name, kind in REGISTRY.items() if kind.is_map and kind.symmetry < NO_SYMMETRY)
ROTATIONAL = tuple(name for name, kind in REGISTRY.items() if kind.is_map and kind.symmetry == ROTATIONS_AND_SHIFTS)
"""Names of pathways, the most symmetric first: all; all maps; maps that commute with shifts; those that commute with shifts and
rotations or scalings."""

FREE_SCALE = 1e-2
"""Initial size of all pathways but the most symmetric ones of their layer, relative to a layer that has only these."""


def count_rotations(pathways: Mapping[str, int | float], settings: Mapping[str, Any] | None = None) -> int:
    """Number of group elements, rotations or scalings, that a field's channels stand for; 1 if they stand for none.

    Raises:
        ValueError: pathways with different numbers, or of rotations and of scalings.
    """
    settings = settings or {}
    counts = {
        name: count
        for name, kind in REGISTRY.items()
        if pathways.get(name, 0) != 0 and (count := kind.orientations(settings.get(name))) > 1
    }
    if "scaling" in counts and len(counts) > 1:
        other = next(name for name in counts if name != "scaling")
        raise ValueError(
            f"pathways scaling and {other}: channels stand for scalings of one and for rotations of the other; leave one out"
        )
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
        fixed = {count for name, count in counts.items() if not callable(REGISTRY[name].rotations)}
        remedy = f"give the others filters.elements={fixed.pop()}" if len(fixed) == 1 else "take one of them"
        raise ValueError(
            f"pathways of one model need the same number of group elements, and these differ: {listed}; {remedy}, or leave out "
            "some"
        )
    return next(iter(counts.values()), 1)


class RelaxedImageLayer(nn.Module):
    r"""``y = sum_k f_k(x) + b``, each pathway with its own Gaussian prior.

    =================== ==========================================================================================
    name                pathway
    =================== ==========================================================================================
    conv                :class:`~rppdyn.images.Convolution`
    gconv               :class:`~rppdyn.images.GroupConvolution`, of features with ``orientations``
    gconv_pointwise     the same, pointwise in rotations
    gconv_separable     :class:`~rppdyn.images.SeparableGroupConvolution`
    s_conv              :class:`~rppdyn.images.SparseConvolution`, prior on anchor values
    s_conv_lengthscales the same, prior on lengthscales
    fc                  :class:`~rppdyn.images.FullyConnected`
    f_fc                :class:`~rppdyn.images.FactoredFullyConnected`
    s_fc                :class:`~rppdyn.images.SparseFullyConnected`, prior on anchor values
    s_fc_lengthscales   the same, prior on lengthscales
    p4, se2, scaling    :class:`~rppdyn.images.LieConvolution`, of features with ``orientations``
    p4_relaxed,         :class:`~rppdyn.images.RelaxedLieConvolution`, which depends on absolute angles
    se2_relaxed
    anchored            :class:`~rppdyn.images.LieConvolution` of T(2)
    operators           :class:`~rppdyn.images.OperatorPathway`
    pixel_bias          :class:`~rppdyn.images.PixelBias`, for layers that depend on absolute positions
    =================== ==========================================================================================

    To output maps of one pixel, a map that commutes with shifts is the mean over pixels and a 1 x 1 convolution. With
    ``kernel_size=1`` sparse pathways become "conv", and "gconv_separable" becomes "gconv".

    A residual pathway prior on images (RPP-Conv, Finzi 2023, 3.5.3) is ``{"conv": sigma_a**2, "fc": sigma_b**2}``. A
    variance of 0 removes a pathway.

    The most symmetric pathways of the layer (those that commute with rotations and shifts, else with shifts) start with equal
    shares of an output of variance ``gain**2``. The others start at ``free_scale`` of that size, so that they grow only as the
    data ask. If all started with equal shares, free weights would memorise the training set before the prior acts, and
    convolutions beside group convolutions would keep their initial values. Learned variances would hardly switch either off.

    Args:
        size, out_size: sizes of input and output maps; ``out_size`` may only differ as (1, 1).
        pathways: names and prior variances.
        bias_variance: prior variance of the bias that pixels share, a pathway of its own ("bias").
        kernel_size: kernel size of convolutions; odd.
        orientations: numbers of orientations of input and output, (1, N), (N, N) or (N, 1) if channels stand for
            orientations; for p4, N is 4.
        settings: settings of pathways that have any, by the pathway's name.
        gain: output standard deviation at initialisation for inputs of unit mean square.
        free_scale: initial size of all but the most symmetric pathways, relative to a layer that has only these.
    Raises:
        ValueError: an unknown pathway (of settings, too), no pathway, a kernel too large for the image, or invalid sizes,
            channels, orientations or scales.
    Source: Finzi, Benton & Wilson 2021; van der Ouderaa, Immer & van der Wilk 2023, Eq. 4.
    """

    is_composite = True  # tracing splits it into its pathways

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
        if unknown := [name for name in (*pathways, *(settings or {})) if name not in PATHWAYS]:
            raise ValueError(f"no image pathway {unknown[0]!r}; there are {', '.join(PATHWAYS)}")
        for name, count in ("in_channels", in_channels), ("out_channels", out_channels):
            if count < 1:
                raise ValueError(f"{name}={count}: give a positive number")
        for name, scale in ("gain", gain), ("free_scale", free_scale):
            if not 0 < scale < math.inf:
                raise ValueError(f"{name}={scale}: give a positive finite number")
        self.rotations = count_rotations(pathways, settings)
        elements = self.rotations if self.rotations > 1 else 4
        if any(count not in (1, elements) for count in orientations) or len(orientations) != 2:
            raise ValueError(
                f"orientations={orientations} of input and output: give a pair of 1 or {elements}, (1, 1) for none"
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
        symmetries = [REGISTRY[name].symmetry for name in maps]
        for name, variance in present.items():
            symmetry = REGISTRY[name].symmetry
            is_free = symmetry > min(symmetries)
            share = (free_scale if is_free else 1.0) / math.sqrt(max(1, symmetries.count(symmetry)))
            place = Place(
                in_channels, out_channels, size, self.out_size, self.kernel_size, orientations, self.pooled, gain * share,
                generator, (settings or {}).get(name),
            )  # fmt: skip
            pathway = REGISTRY[name].build(place, variance)
            pathway.is_free = is_free
            self.add_module(name, pathway)
        if bias_variance != 0:
            shared = orientations[1] if any(name in ROTATIONAL for name in maps) else 1
            self.bias = SharedBias(out_channels, self.out_size, bias_variance, orientations=shared)
        for name, child in self.named_children():
            within = ("pixel_bias",) if name == "bias" else REGISTRY[name].within
            if isinstance(child, ImagePathway) and within:
                child.within = next((wider for wider in within if wider in present), None)
                pixels = check_size(self.size)
                # the squared Frobenius norm of one coefficient's dense map; a pooled coefficient is 1 / pixels at each pixel
                uses = (1 / pixels if self.pooled else pixels) * (self.rotations if name in ROTATIONAL else 1)
                child.uses = check_size(self.out_size) * self.bias.orientations if name == "bias" else uses

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        check_maps(x, (self.in_channels, *self.size))
        first, *rest = self.children()
        y = first(x)
        for pathway in rest:
            y = y + pathway(x)
        return y

    def extra_repr(self) -> str:
        return f"{self.in_channels} -> {self.out_channels} channels, {self.size} -> {self.out_size} pixels"
