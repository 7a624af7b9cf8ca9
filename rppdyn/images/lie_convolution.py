r"""Convolutions over groups of the plane, with continuous filters of anchor values.

.. math:: y(c', v) = \frac{1}{\sqrt N} \sum_c \sum_{u} |A_u|^{-1} f(c', c, v^{-1} u)\, x(c, u)

over the pixels that a kernel covers and N elements of H (:mod:`rppdyn.images.lie_groups`): a Monte Carlo estimate of the
integral over the group, but for a constant. The filters f are those of :class:`~rppdyn.images.anchors.AnchorBasis`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images.anchors import FREE_NOISE, NOISE, AnchorBasis, Kind, frequency, spread
from rppdyn.images.bases import pixel_grid
from rppdyn.images.filter_settings import FilterSettings
from rppdyn.images.lie_groups import GROUPS, PlaneGroup
from rppdyn.images.pathways import ImagePathway, check_kernel, circular_pad, patch_moments, place_moments, pool
from rppdyn.images.registry import Place
from rppdyn.nn.curvature import Kronecker

__all__ = ["LieConvolution", "draw_elements", "lie_rows", "set_elements"]


class LieConvolution(ImagePathway):
    r"""A convolution over T(2), p4, SE(2) or translations and scalings; coefficients are anchor values, ``C C' P``.

    ============ ======================================= ==========================
    orientations map                                     filter
    ============ ======================================= ==========================
    (1, N)       lifting, of images to functions on G    :math:`f(A_t^{-1} q)`
    (N, N)       between functions on G                  :math:`f(A_t^{-1} q, t' - t)`
    (N, 1)       projection, of functions to images      :math:`f(A_{t'}^{-1} q)`
    (1, 1)       between images, of T(2) alone           :math:`f(q)`
    ============ ======================================= ==========================

    It commutes with shifts, and with those elements of H that take pixels to pixels and the N elements to one another: of p4
    all, of SE(2) quarter turns if 4 divides N. With others it commutes up to the sampling of pixels and of H.

    Args:
        in_channels, out_channels: elements counted apart.
        group: one of :data:`~rppdyn.images.lie_groups.GROUPS`, by name.
        orientations: N of input and output.
        share: anchors P for each pixel of the kernel, rounded up; those of a function on G are spread over it.
        frequencies: :math:`\omega` of rows, columns and H; by default 1, and less of few anchors in the plane.
        learned: whether anchors move.
        kernel_size, pooled, gain: as of :class:`~rppdyn.images.pathways.Convolution`.
    Raises:
        ValueError: an unknown group, orientations or channels that it has not, an even kernel, or a share out of range.
    Source: van der Ouderaa & van der Wilk 2023, Eqs. 1 and 7.
    """

    rows: Tensor
    is_fixed: bool  # whether basis functions are constant, between draws of elements

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        variance: int | float = 1.0,
        *,
        group: str = "se2",
        orientations: tuple[int, int] = (8, 8),
        kernel_size: int = 3,
        pooled: bool = False,
        share: int | float = 1.0,
        frequencies: tuple[int | float, ...] = (1.0, 1.0, 1.0),
        noise: int | float = NOISE,
        learned: bool = False,
        gain: int | float = 1.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__(variance)
        self.group = check_group(group, orientations)
        fields_in, fields_out = check_channels(in_channels, out_channels, orientations)
        self.orientations, self.kernel_size, self.pooled = orientations, check_kernel(kernel_size, pooled), pooled
        regular = min(orientations) > 1
        kinds: list[Kind] = ["rbf", "rbf", *([self.group.kind] if regular and self.group.kind else [])]
        places = anchor_places(self.group, kernel_size, regular)
        if not 0 < share * kernel_size**2 <= len(places) + kernel_size**2:
            raise ValueError(f"share={share} of anchors: give more than 0, at most {len(places) // kernel_size**2}")
        count = min(math.ceil(share * kernel_size**2 - 1e-9), len(places))
        wide = frequency(count, len(places)) if len(kinds) == 2 else 1.0
        own = [wide * omega for omega in frequencies[:2]] + list(frequencies[2 : len(kinds)])
        anchors = spread(places, count, kinds, own)
        self.basis = AnchorBasis(anchors, kinds, frequencies=own, noise=noise, learned=learned)
        self.register_exact("offset", torch.tensor(self.usual_offset), working_copy=False)
        self.is_fixed = not learned
        self._prepare()
        self._sample()
        rows = self.sampled().detach()
        # smooth filters see what is alike at all taps and elements, as of images and rectified maps, more than noise
        powers = rows.square().sum((1, 2, 3)).mean(), rows.sum((1, 2)).square().sum(-1).mean()
        power = max(*map(float, powers), 1e-12)
        shape = (fields_out, fields_in, rows.shape[-1])
        self.u = self.draw(*shape, std=gain / math.sqrt(fields_in * power), generator=generator)

    @classmethod
    def at(cls, place: Place, variance: int | float, *, group: str) -> LieConvolution:
        own = place.settings or FilterSettings()
        orientations = (1, 1) if GROUPS[group].kind is None else place.orientations
        return cls(
            *place[:2], variance, group=group, orientations=orientations, kernel_size=place.kernel_size,
            pooled=place.pooled, share=own.share, learned=own.learned, noise=FREE_NOISE if own.learned else NOISE,
            gain=place.gain, generator=place.generator,
            **cls.own_settings(own),
        )  # fmt: skip

    @property
    def usual_offset(self) -> float:
        """Of rotations 0, so that quarter turns are among them; of scales the middle."""
        return 0.5 if self.group.kind == "rbf" else 0.0

    @staticmethod
    def own_settings(settings: FilterSettings) -> dict[str, Any]:
        """Arguments that only a kind of its own has."""
        return {}

    def _prepare(self) -> None:
        """Make what :meth:`sampled` reads beside anchors and elements."""

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.u,)

    def coefficient_names(self) -> list[str]:
        return ["u"]

    def coordinates(self) -> Float[Tensor, " N"]:
        """t of the elements of H."""
        return self.group.coordinates(max(self.orientations), self.get_buffer("offset"))

    @torch.no_grad()
    def _sample(self) -> None:
        """Sample the basis functions at the elements as they are now; they are constant until the next elements."""
        if not self.is_fixed:
            return
        if "rows_exact" not in self._buffers:
            self.register_exact("rows", self.sampled())
        self.get_buffer("rows_exact").copy_(self.sampled())
        self._derive()

    def sampled(self) -> Float[Tensor, "H J Q P"]:
        """The basis functions of filters: at elements of output and input and at the kernel's pixels, in float64."""
        return lie_rows(self.basis, self.group, self.orientations, self.kernel_size, self.coordinates())

    def filters(self) -> Float[Tensor, "C_out C k k"]:
        """Those of the convolution between channels."""
        rows = self.rows if self.is_fixed else self.sampled().to(self.u)
        filters = torch.einsum("dbp,hjqp->dhbjq", self.u, rows)
        return filters.flatten(2, 3).flatten(0, 1).unflatten(2, (self.kernel_size, self.kernel_size))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(pool(x) if self.pooled else x, self.kernel_size), self.filters())

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        """A is a sum over places and elements of the output, G a mean over them, as of any weight that is used at several."""
        rows, (fields_out, fields_in, _) = self.sampled().detach(), self.u.shape
        A = patch_moments(pool(x) if self.pooled else x, self.kernel_size)
        A = A.view(*(fields_in, rows.shape[1] * rows.shape[2]) * 2)
        flat = rows.flatten(1, 2).to(A)
        A = torch.stack([torch.einsum("bncm,np,mq->bpcq", A, own, own) for own in flat]).sum(0).flatten(2).flatten(0, 1)
        by_field = g.unflatten(2, (fields_out, -1)).movedim(3, 1).flatten(0, 1)  # elements are as many more factors
        return [Kronecker(A, place_moments(by_field) / len(rows))]

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.orientations} elements, {super().extra_repr()}"


def lie_rows(
    basis: AnchorBasis, group: PlaneGroup, orientations: tuple[int, int], kernel_size: int, t: Float[Tensor, " N"]
) -> Float[Tensor, "H J Q P"]:
    r"""Anchor functions at :math:`v^{-1} u`, with the measure and :math:`1/\sqrt N`; no pixel outside a disc, if it turns."""
    still = t.new_zeros(1)
    before, after = t if orientations[0] > 1 else still, t if orientations[1] > 1 else still
    pixels = pixel_grid((kernel_size, kernel_size)).double().to(t.device)
    frame = after if orientations[1] > 1 else before
    turned = torch.einsum("hij,qj->hqi", torch.linalg.inv(group.matrices(frame)), pixels)
    shape = (len(after), len(before), len(pixels))
    place = turned[:, None] if orientations[1] > 1 else turned[None]
    points = [place.expand(*shape, 2)]
    if len(basis.kinds) > 2:
        points.append((before - after[:, None])[..., None, None].expand(*shape, 1))
    rows = basis(torch.cat(points, -1).flatten(0, 2)).unflatten(0, shape)
    measured = before if orientations[0] > 1 else after
    volumes = group.volumes(measured)
    volumes = volumes[None, :, None, None] if orientations[0] > 1 else volumes[:, None, None, None]
    return rows * volumes * in_support(group, pixels, kernel_size)[:, None] / math.sqrt(len(before))


def in_support(group: PlaneGroup, pixels: Float[Tensor, "Q 2"], kernel_size: int) -> Float[Tensor, " Q"]:
    """1 of a kernel's pixels that a filter has: all, or those in a disc where it is turned by any angle."""
    if group.kind == "periodic" and group.elements is None:
        return (pixels.norm(dim=-1) <= kernel_size / 2).to(pixels)
    return torch.ones_like(pixels[:, 0])


def anchor_places(group: PlaneGroup, kernel_size: int, regular: bool) -> Float[Tensor, "Q D"]:
    """Where anchors may be: pixels that a filter has; of functions on G, at four angles or three scales each."""
    pixels = pixel_grid((kernel_size, kernel_size)).double()
    pixels = pixels[in_support(group, pixels, kernel_size) > 0]
    if not regular or group.kind is None:
        return pixels
    t = torch.linspace(-group.span, group.span, 3) if group.kind == "rbf" else torch.arange(4) / 2
    return torch.cat([pixels.repeat_interleave(len(t), 0), t.to(pixels).repeat(len(pixels))[:, None]], -1)


def check_group(name: str, orientations: tuple[int, int]) -> PlaneGroup:
    """The group of a name, which has so many elements."""
    if name not in GROUPS:
        raise ValueError(f"group={name!r}: choose one of {', '.join(GROUPS)}")
    group, count = GROUPS[name], max(orientations)
    if not set(orientations) <= {1, count} or (count == 1) != (group.kind is None):
        allowed = "(1, 1)" if group.kind is None else "(1, N), (N, N) or (N, 1)"
        raise ValueError(f"orientations={orientations} of {group.name}: give {allowed}")
    group.check_elements(count)
    return group


def check_channels(in_channels: int, out_channels: int, orientations: tuple[int, int]) -> tuple[int, int]:
    """Numbers of fields: channels over elements."""
    for count, o in zip((in_channels, out_channels), orientations, strict=True):
        if count % o or count < 1:
            raise ValueError(f"{count} channels don't make fields of {o} elements: give a multiple of {o}")
    return in_channels // orientations[0], out_channels // orientations[1]


def set_elements(net: nn.Module, offset: int | float | None = None) -> None:
    """Let all Lie-group convolutions of a network have the elements that begin at an offset, in [0, 1); None, the usual one."""
    for module in net.modules():
        if isinstance(module, LieConvolution):
            module.get_buffer("offset").fill_(module.usual_offset if offset is None else offset)
            module._sample()


def draw_elements(net: nn.Module, generator: torch.Generator | None = None) -> float:
    """Draw the elements of one pass, shared by all layers; returns their offset."""
    offset = float(torch.rand((), generator=generator, dtype=torch.float64))
    set_elements(net, offset)
    return offset
