r"""Convolutions over groups of the plane, with continuous filters of anchor values.

.. math:: y(c', v) = \frac{1}{\sqrt N} \sum_c \sum_{u} |A_u|^{-1} f(c', c, v^{-1} u)\, x(c, u)

for elements v and u of a group, the semidirect product of translations and a group H of rotations or scalings. The sum is over
the pixels that a kernel covers and over N elements of H. Up to a constant it is a Monte Carlo estimate of the integral over the
group. For images (no sum over H) the weight is that of the output's element, :math:`|A_v|^{-1}`. The filters f are those of
:class:`~rppdyn.images._continuous.AnchorBasis`.

Feature maps are functions on the group, ``x(p, h)`` at pixels p and N elements h of H: channels are ``(c, j)``, N for each
field c, j fastest. Coordinates t of H are angles in half turns, or logarithms of scales in octaves. Elements are evenly
spaced from an offset, which all layers of a network share and which may be drawn for each pass.

A relaxed filter ``f(v^-1 u, u)`` also depends on the absolute angle. It is the sum of a strict and a free pathway. Filters
with anchors in the product of G and the angles have the basis function :math:`\phi_G(v^{-1} u)\, \psi(t)` with

.. math:: \psi(t) = \exp(-2 \omega^2 \sin^2(\pi t / 2)) = \sum_{m \ge 0} c_m \cos(m \pi t), \qquad
          c_0 = e^{-\omega^2} I_0(\omega^2), \quad c_m = 2 e^{-\omega^2} I_m(\omega^2).

So a filter with such a prior is a sum of independent filters. One, of variance :math:`c_0`, does not depend on the angle: the
strict pathway, :class:`~rppdyn.images.LieConvolution`. For each m there are two of variance :math:`c_m`, multiplied by
:math:`\cos(m \pi t)` and :math:`\sin(m \pi t)`. Together they are the free pathway, :class:`RelaxedLieConvolution`, and
:math:`\omega` is its size. It is given, learned with a penalty (:func:`learn_omega`, :func:`omega_penalty`), or follows from
learned variances (:func:`implied_omega`).

Source: van der Ouderaa & van der Wilk 2023, Eqs. 8 to 12, where anchors are points of the product. The paper uses only
:math:`\omega^2`, whose gradient is 0 at :math:`\omega = 0`. The amplitude :math:`\sqrt{c_1}`, about omega, has one there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images._continuous import AnchorBasis, Kind, frequency, pixel_grid, spread
from rppdyn.images._pathways import (
    ImagePathway,
    check_fields,
    check_kernel,
    circular_pad,
    patch_moments,
    place_moments,
    pool,
)
from rppdyn.images.registry import FilterSettings, Place
from rppdyn.nn._pathways import Kronecker, named_pathways


@dataclass(frozen=True)
class PlaneGroup:
    r"""Translations T(2), semidirect with H: elements ``(p, t)`` act as :math:`q \mapsto p + A_t q`.

    Attributes:
        name: its name in print.
        kind: kind of the basis function on H; None if H is trivial.
        span: length of the interval of coordinates t from which elements are taken.
        elements: number of elements of H; None if it is continuous.
    """

    name: str
    kind: Kind | None
    span: float = 0.0
    elements: int | None = None

    def coordinates(self, count: int, offset: Tensor) -> Float[Tensor, " N"]:
        """Coordinates t of evenly spaced elements: element k is at the offset (0 to 1) in the k-th of N equal intervals."""
        if self.elements is not None:  # a finite H: all its elements, whatever the offset
            offset = torch.zeros_like(offset)
        steps = torch.arange(count, dtype=torch.float64, device=offset.device)
        start = -self.span / 2 if self.kind == "rbf" else 0.0
        return start + self.span * (steps + offset) / count

    def matrices(self, t: Float[Tensor, " N"]) -> Float[Tensor, "N 2 2"]:
        """A_t, on ``(row, column)``; rotations are positive in the direction of :func:`torch.rot90`."""
        if self.kind == "rbf":
            return torch.exp2(t)[:, None, None] * torch.eye(2, dtype=t.dtype, device=t.device)
        cos, sin = (math.pi * t).cos(), (math.pi * t).sin()
        return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)

    def volumes(self, t: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        r"""The Haar measure's density, :math:`|\det A_t|^{-1}`."""
        return torch.exp2(-2 * t) if self.kind == "rbf" else torch.ones_like(t)


GROUPS: dict[str, PlaneGroup] = {
    "t2": PlaneGroup("T(2)", None, elements=1),
    "p4": PlaneGroup("p4", "periodic", span=2.0, elements=4),
    "se2": PlaneGroup("SE(2)", "periodic", span=2.0),
    "scale": PlaneGroup("T(2) x R+", "rbf", span=1.0),
}
"""Groups by name."""


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

    It commutes with shifts, and with those elements of H that permute the pixels and the N elements: all of p4, quarter turns
    of SE(2) if 4 divides N. With other elements it commutes up to the sampling of pixels and of H.

    Args:
        in_channels, out_channels: numbers of channels: fields times elements of H.
        group: one of :data:`~rppdyn.images._lie_convolution.GROUPS`, by name.
        orientations: N of input and output, the number of angles or scales.
        share: ratio of the number of anchors, P, to that of the kernel's pixels; for functions on G they are spread over G.
            P is at most the number of places, which in a disc are fewer than the kernel's pixels.
        learned: as of :class:`~rppdyn.images._continuous.AnchorBasis`.
        kernel_size, pooled, gain: as of :class:`~rppdyn.images.Convolution`.
    Raises:
        ValueError: an unknown group, orientations or channels that do not fit it, an even kernel, or a share out of range.
    Source: van der Ouderaa & van der Wilk 2023, Eqs. 1 and 7.
    """

    rows: Tensor
    is_fixed: bool  # whether basis functions are constant between draws of elements

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *, group: str = "se2",
                 orientations: tuple[int, int] = (8, 8), kernel_size: int = 3, pooled: bool = False,
                 share: int | float = 1.0, learned: bool = False, gain: int | float = 1.0,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.group = check_group(group, orientations)
        fields_in, fields_out = check_fields((in_channels, out_channels), orientations)
        self.orientations, self.kernel_size, self.pooled = orientations, check_kernel(kernel_size, pooled), pooled
        regular = min(orientations) > 1
        kinds: list[Kind] = ["rbf", "rbf", *([self.group.kind] if regular and self.group.kind else [])]
        places = anchor_places(self.group, kernel_size, regular)
        limit = max(1.0, len(places) / kernel_size**2)
        if not 0 < share <= limit:
            raise ValueError(f"share={share} of anchors: give more than 0, at most {limit}")
        count = min(math.ceil(share * kernel_size**2 - 1e-9), len(places))
        factor = frequency(count, len(places)) if len(kinds) == 2 else 1.0
        frequencies = [factor, factor, 1.0][: len(kinds)]
        anchors = spread(places, count, kinds, frequencies)
        self.basis = AnchorBasis(anchors, kinds, frequencies=frequencies, learned=learned)
        self.register_exact("offset", torch.tensor(self.default_offset), working_copy=False)
        self.is_fixed = not learned
        self._register_tensors()
        self._sample()
        sampled = self.sample_basis().detach()
        # The mean square of an output for u ~ N(0, 1), if inputs are noise, and if they are equal at all pixels and elements.
        # The second is larger for smooth filters, and closer to images.
        powers = sampled.square().sum((1, 2, 3)).mean(), sampled.sum((1, 2)).square().sum(-1).mean()
        power = max(*map(float, powers), 1e-12)
        shape = (fields_out, fields_in, sampled.shape[-1])
        self.u = self.draw(*shape, std=gain / math.sqrt(fields_in * power), generator=generator)

    @classmethod
    def from_place(  # type: ignore[override]
        cls, place: Place, variance: int | float, *, group: str, **options: Any
    ) -> LieConvolution:
        settings = place.settings or FilterSettings()
        orientations = (1, 1) if GROUPS[group].kind is None else place.orientations
        return cls(
            *place[:2], variance, group=group, orientations=orientations, kernel_size=place.kernel_size,
            pooled=place.pooled, share=settings.share, learned=settings.learned, gain=place.gain,
            generator=place.generator, **options,
        )  # fmt: skip

    @property
    def default_offset(self) -> float:
        """0 for rotations, so that quarter turns are among them; for scales the middle, 0.5."""
        return 0.5 if self.group.kind == "rbf" else 0.0

    def _register_tensors(self) -> None:
        """Hook: subclasses register tensors that :meth:`sample_basis` reads; does nothing here."""

    def coefficient_names(self) -> list[str]:
        return ["u"]

    def coordinates(self) -> Float[Tensor, " N"]:
        """Coordinates t of the elements of H."""
        return self.group.coordinates(max(self.orientations), self.get_buffer("offset"))

    @torch.no_grad()
    def _sample(self, _: Any = None) -> None:
        """Sample the basis functions at the current elements, and keep them if anchors are fixed."""
        if not self.is_fixed or any(b.is_meta for b in self.buffers()):  # what is on meta comes with a state dict
            return
        sampled = self.sample_basis()
        if "rows_exact" not in self._buffers:
            self.register_exact("rows", sampled)
        self.get_buffer("rows_exact").copy_(sampled)
        self._derive()

    def sample_basis(self) -> Float[Tensor, "H J Q P"]:
        """The P basis functions at H elements of the output, J of the input and the kernel's Q pixels, in float64."""
        return sample_anchors(self.basis, self.group, self.orientations, self.kernel_size, self.coordinates())

    def filters(self) -> Float[Tensor, "C_out C k k"]:
        """The filters of the convolution between channels."""
        sampled = self.rows if self.is_fixed else self.sample_basis().to(self.u)
        filters = torch.einsum("dbp,hjqp->dhbjq", self.u, sampled)
        return filters.flatten(2, 3).flatten(0, 1).unflatten(2, (self.kernel_size, self.kernel_size))

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return F.conv2d(circular_pad(pool(x) if self.pooled else x, self.kernel_size), self.filters())

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        r"""A is a sum over places and elements of the output, G a mean over them.

        With the moments M of patches (fields, elements and pixels) and the basis :math:`B_h` at an element h of the output,
        :math:`A = \sum_h (1 \otimes B_h)^T M (1 \otimes B_h)`.
        """
        M = patch_moments(pool(x) if self.pooled else x, self.kernel_size)
        B = self.sample_basis().detach().flatten(1, 2).to(M)
        M = M.view(*(self.u.shape[1], B.shape[1]) * 2)
        terms = [torch.einsum("bncm,np,mq->bpcq", M, B_h, B_h) for B_h in B]
        A = torch.stack(terms).sum(0).flatten(2).flatten(0, 1)
        by_field = g.unflatten(2, (len(self.u), -1)).movedim(3, 1).flatten(0, 1)  # elements count as further factors
        return [Kronecker(A, place_moments(by_field) / len(B))]

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.orientations} elements, {super().extra_repr()}"


def sample_anchors(
    basis: AnchorBasis, group: PlaneGroup, orientations: tuple[int, int], kernel_size: int, t: Float[Tensor, " N"]
) -> Float[Tensor, "H J Q P"]:
    r"""Anchor functions at :math:`v^{-1} u`, times the measure and :math:`1/\sqrt N`; zero outside of :func:`support_mask`."""
    in_group, out_group = orientations[0] > 1, orientations[1] > 1
    identity = t.new_zeros(1)
    t_in, t_out = (t if in_group else identity)[None, :], (t if out_group else identity)[:, None]  # (1, J) and (H, 1)
    pixels = pixel_grid((kernel_size, kernel_size)).double().to(t.device)
    shape = (len(t_out), t_in.shape[1], len(pixels))
    frame = t_out if out_group else t_in  # pixels turn with the output's element; in a projection, the input's
    inverse = torch.linalg.inv(group.matrices(frame.flatten()))
    place = torch.einsum("hij,qj->hqi", inverse, pixels).unflatten(0, frame.shape)
    points = [place.expand(*shape, 2)]
    if len(basis.kinds) > 2:
        points.append((t_in - t_out)[..., None, None].expand(*shape, 1))
    sampled = basis(torch.cat(points, -1).flatten(0, 2)).unflatten(0, shape)
    volumes = group.volumes(t_in if in_group else t_out)[..., None, None]
    return sampled * volumes * support_mask(group, pixels, kernel_size)[:, None] / math.sqrt(t_in.shape[1])


def support_mask(group: PlaneGroup, pixels: Float[Tensor, "Q 2"], kernel_size: int) -> Float[Tensor, " Q"]:
    """1 for a kernel's pixels inside the filter: all pixels, or those in a disc if the filter turns by any angle."""
    if group.kind == "periodic" and group.elements is None:
        return (pixels.norm(dim=-1) <= kernel_size / 2).to(pixels)
    return torch.ones_like(pixels[:, 0])


def anchor_places(group: PlaneGroup, kernel_size: int, regular: bool) -> Float[Tensor, "Q D"]:
    """Possible places of anchors: a filter's pixels; for functions on G, at four angles or three scales each."""
    pixels = pixel_grid((kernel_size, kernel_size)).double()
    pixels = pixels[support_mask(group, pixels, kernel_size) > 0]
    if not regular or group.kind is None:
        return pixels
    t = torch.linspace(-group.span, group.span, 3) if group.kind == "rbf" else torch.arange(4) / 2
    # every pixel with every t, t fastest
    return torch.cat([pixels.repeat_interleave(len(t), 0), t.to(pixels).repeat(len(pixels))[:, None]], -1)


def check_group(name: str, orientations: tuple[int, int]) -> PlaneGroup:
    """The group of a name; refuses orientations that it does not have."""
    if name not in GROUPS:
        raise ValueError(f"group={name!r}: choose one of {', '.join(GROUPS)}")
    group, count = GROUPS[name], max(orientations)
    if not set(orientations) <= {1, count} or (count == 1) != (group.kind is None):
        allowed = "(1, 1)" if group.kind is None else "(1, N), (N, N) or (N, 1)"
        raise ValueError(f"orientations={orientations} of {group.name}: give {allowed}")
    if count < 1 or group.elements not in (None, count):
        allowed = "one or more" if group.elements is None else str(group.elements)
        raise ValueError(f"elements={count} of {group.name}: give {allowed}")
    return group


def set_elements(net: nn.Module, offset: int | float | None = None) -> None:
    """Set the offset of elements, in units of their distance, in all Lie-group convolutions; None for the default."""
    for module in net.modules():
        if isinstance(module, LieConvolution):
            module.get_buffer("offset").fill_(module.default_offset if offset is None else offset)
            module._sample()


def draw_elements(net: nn.Module, generator: torch.Generator | None = None) -> float:
    """Draw the elements of one pass, shared by all layers; returns their offset."""
    offset = float(torch.rand((), generator=generator, dtype=torch.float64))
    set_elements(net, offset)
    return offset


# -- relaxed -------------------------------------------------------------------------------------------------------------


NUM_SERIES_TERMS = 60
"""Number of terms in the series of Bessel functions, enough for `MAX_OMEGA`."""

MAX_OMEGA = 4.0
"""Largest omega allowed; there, filters 45 degrees apart are nearly independent."""


def amplitudes(omega: Float[Tensor, ""], harmonics: int) -> Float[Tensor, " M"]:
    r""":math:`\sqrt{c_m / c_0}` for m = 1, ..., M, differentiable everywhere: :math:`\omega` itself in the first order.

    With :math:`z = \omega^2`, :math:`I_m(z) = (z/2)^m \sum_k (z/2)^{2k} / (k! (k + m)!)`; the first factor's root is
    :math:`(\omega / \sqrt 2)^m`.
    """
    omega = omega.double()
    k = torch.arange(NUM_SERIES_TERMS, dtype=torch.float64, device=omega.device)
    quarter = (omega**4 / 4).unsqueeze(-1)  # (z/2)^2

    def rest(m: int) -> Tensor:
        return (quarter**k / torch.exp(torch.lgamma(k + 1) + torch.lgamma(k + m + 1))).sum(-1)

    terms = [(omega / math.sqrt(2)) ** m * (2 * rest(m) / rest(0)).sqrt() for m in range(1, harmonics + 1)]
    return torch.stack(terms, -1)


class RelaxedLieConvolution(LieConvolution):
    r"""The part of filters that depends on angles, :math:`\sum_m \sqrt{c_m / c_0} (f_m \cos m\pi t + g_m \sin m\pi t)`.

    There are half as many harmonics m as elements. t is the angle of the input's element u; in a lifting layer, of the output's
    v. Coefficients are anchor values of f_m and g_m, with the prior variance ``variance``.

    Args:
        omega: size of the relaxation; 0 for none.
        **options: as for :class:`~rppdyn.images.LieConvolution`.
    Raises:
        ValueError: a group without rotations, or a negative or too large omega.
    """

    omega: Tensor

    def __init__(self, in_channels: int, out_channels: int, variance: int | float = 1.0, *, omega: int | float = 1.0,
                 orientations: tuple[int, int] = (8, 8), **options):  # fmt: skip
        check_omega(omega)
        self.harmonics = max(orientations) // 2
        self._start = omega
        super().__init__(in_channels, out_channels, variance, orientations=orientations, **options)

    def _register_tensors(self) -> None:
        if self.group.kind != "periodic":
            raise ValueError(f"{self.group.name} has no rotations to relax: choose p4 or se2")
        self.register_exact("omega", torch.tensor(self._start, dtype=torch.float64), working_copy=False)
        self.register_load_state_dict_post_hook(type(self)._sample)  # rows in files are those before omega was learned

    @classmethod
    def from_place(cls, place: Place, variance: int | float, **options: Any) -> LieConvolution:
        return super().from_place(place, variance, omega=(place.settings or FilterSettings()).omega, **options)

    def features(self) -> Float[Tensor, "N F"]:
        r"""Cosines and sines of m times the elements' angles, times :math:`\sqrt{c_m / c_0}`."""
        angles = torch.pi * self.coordinates()[:, None] * torch.arange(1, self.harmonics + 1, device=self.omega.device)
        weights = amplitudes(self.omega, self.harmonics)
        waves = torch.cat([weights * angles.cos(), weights * angles.sin()], -1)
        return waves if self.group.elements is None else waves[:, :-1]  # the last sine is 0 at every element of p4

    def sample_basis(self) -> Float[Tensor, "H J Q P"]:
        strict, features = super().sample_basis(), self.features()  # (H, J, Q, anchors) and (J or H, features)
        features = features[None, :, None, None] if self.orientations[0] > 1 else features[:, None, None, None]
        return (strict.unsqueeze(-1) * features).flatten(-2)


def set_omega(net: nn.Module, omega: int | float) -> None:
    """Set omega of all relaxed pathways of a network."""
    check_omega(omega)
    for module in relaxed_pathways(net):
        module.omega.data.fill_(omega)
        module._sample()


def learn_omega(net: nn.Module, start: int | float = 0.1) -> list[nn.Parameter]:
    """Make omega of every relaxed pathway a parameter, trained with the weights; returns these parameters."""
    check_omega(start)
    omegas = []
    for module in relaxed_pathways(net):
        if not isinstance(module.omega, nn.Parameter):
            module.omega = nn.Parameter(module.drop_exact("omega"))
            module.is_fixed = False
        omegas.append(module.omega)
    set_omega(net, start)
    return omegas


def omega_penalty(net: nn.Module, strength: int | float) -> Float[Tensor, ""]:
    r""":math:`\lambda \sum \omega^2` over the relaxed pathways of a network, to add to a loss.

    Source: van der Ouderaa & van der Wilk 2023, section 7.
    """
    return strength * torch.stack([module.omega.square() for module in relaxed_pathways(net)]).sum()


def implied_omega(ratio: int | float) -> float:
    r"""The omega whose first harmonic has a given variance relative to the strict pathway, :math:`c_1 / c_0 = 2 I_1 / I_0`.

    For a relaxed pathway of amplitude :math:`a_1` and learned variance :math:`\sigma^2` beside a strict pathway of variance
    :math:`\tau^2`, the ratio is :math:`a_1^2 \sigma^2 / \tau^2`. For ratios above 1.94, that of `MAX_OMEGA`, the result is
    `MAX_OMEGA`. (No omega has a ratio of 2.)
    """
    if not ratio >= 0:
        raise ValueError(f"ratio={ratio} of variances: give a number of at least 0")
    excess = lambda omega: float(amplitudes(torch.tensor(omega, dtype=torch.float64), 1)[0]) ** 2 - ratio  # noqa: E731
    return MAX_OMEGA if excess(MAX_OMEGA) <= 0 else brentq(excess, 0.0, MAX_OMEGA)


def implied_omegas(net: nn.Module) -> dict[str, float]:
    """:func:`implied_omega` of relaxed pathways beside strict ones, by the layer's name; a layer's second: "layer.pathway"."""
    pathways = {(layer, name): p for layer, name, p in named_pathways(net)}
    omegas: dict[str, float] = {}
    for (layer, name), p in pathways.items():
        strict = pathways.get((layer, name.removesuffix("_relaxed")))
        if isinstance(p, RelaxedLieConvolution) and strict is not None:
            first = float(amplitudes(p.omega.detach(), 1)[0]) ** 2
            key = f"{layer}.{name}" if layer in omegas else layer
            omegas[key] = implied_omega(first * float(p.variance) / float(strict.variance))
    return omegas


def relaxed_pathways(net: nn.Module) -> list[RelaxedLieConvolution]:
    """The relaxed pathways of a network.

    Raises:
        ValueError: it has none.
    """
    pathways = [module for module in net.modules() if isinstance(module, RelaxedLieConvolution)]
    if not pathways:
        name = type(net).__name__
        raise ValueError(f"{name} has no relaxed pathway: give se2_relaxed or p4_relaxed a positive variance")
    return pathways


def check_omega(omega: int | float) -> None:
    """Refuse a negative or too large omega."""
    if not 0 <= omega <= MAX_OMEGA:
        raise ValueError(
            f"omega={omega}: give a number from 0 (strict) to {MAX_OMEGA:g} (nearly independent filters at 45 degrees)"
        )
