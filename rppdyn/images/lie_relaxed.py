r"""Relaxed rotations: filters that depend on the absolute angle as well, ``f(v^-1 u, u)``, as a pair of pathways.

Filters of anchors in the product of G and the angles have the basis function :math:`\phi_G(v^{-1} u)\, \psi(t)` with

.. math:: \psi(t) = \exp(-2 \omega^2 \sin^2(\pi t / 2)) = \sum_{m \ge 0} c_m \cos(m \pi t), \qquad
          c_0 = e^{-\omega^2} I_0(\omega^2), \quad c_m = 2 e^{-\omega^2} I_m(\omega^2).

So a filter with such a prior is a sum of independent ones. One of variance :math:`c_0` does not know the angle: the strict
pathway, :class:`~rppdyn.images.lie_convolution.LieConvolution`. For each m two of variance :math:`c_m`, times
:math:`\cos(m \pi t)` and :math:`\sin(m \pi t)`, make the free one, :class:`RelaxedLieConvolution`. :math:`\omega` says how
much of it to believe. It is given, penalised (:func:`learn_omega`, :func:`omega_penalty`), or follows from learned variances
(:func:`implied_omega`).

Source: van der Ouderaa & van der Wilk 2023, Eqs. 8 to 12, where anchors are points of the product. There
:math:`\omega` enters by its square alone, without a gradient at 0; in :math:`\sqrt{c_1} \approx \omega` it has one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.images.filter_settings import FilterSettings
from rppdyn.images.lie_convolution import LieConvolution
from rppdyn.nn.pathways import named_pathways

__all__ = [
    "RelaxedLieConvolution",
    "amplitudes",
    "implied_omega",
    "implied_omegas",
    "learn_omega",
    "omega_penalty",
    "set_omega",
]

TERMS = 60
"""Of the series of Bessel functions: enough for omega up to 4, beyond which a filter is another one at every angle."""

LARGEST_OMEGA = 4.0


def amplitudes(omega: Float[Tensor, ""], harmonics: int) -> Float[Tensor, " M"]:
    r""":math:`\sqrt{c_m / c_0}` for m = 1, ..., M, differentiable everywhere: :math:`\omega` itself in the first order.

    With :math:`z = \omega^2`, :math:`I_m(z) = (z/2)^m \sum_k (z/2)^{2k} / (k! (k + m)!)`; the first factor's root is
    :math:`(\omega / \sqrt 2)^m`.
    """
    omega = omega.double()
    k = torch.arange(TERMS, dtype=torch.float64, device=omega.device)
    quarter = (omega**4 / 4).unsqueeze(-1)  # (z/2)^2

    def rest(m: int) -> Tensor:
        return (quarter**k / torch.exp(torch.lgamma(k + 1) + torch.lgamma(k + m + 1))).sum(-1)

    own = [(omega / math.sqrt(2)) ** m * (2 * rest(m) / rest(0)).sqrt() for m in range(1, harmonics + 1)]
    return torch.stack(own, -1)


class RelaxedLieConvolution(LieConvolution):
    r"""What a strict convolution leaves out: filters :math:`\sum_m \sqrt{c_m / c_0} (f_m \cos m \pi t + g_m \sin m \pi t)`.

    t is the angle of the input's element u; where images are lifted, that of the output's. Coefficients are anchor values of
    f_m and g_m, of the prior variance that the strict pathway has.

    Args:
        omega: how much is relaxed; 0 is nothing.
        harmonics: M; by default half the elements.
        others: as of :class:`~rppdyn.images.lie_convolution.LieConvolution`.
    Raises:
        ValueError: a group without rotations, a negative or too large omega, or more harmonics than elements tell apart.
    """

    omega: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        variance: int | float = 1.0,
        *,
        omega: int | float = 1.0,
        harmonics: int | None = None,
        orientations: tuple[int, int] = (8, 8),
        **options,
    ):
        check_omega(omega)
        self.harmonics = max(orientations) // 2 if harmonics is None else harmonics
        if not 1 <= self.harmonics <= max(orientations) // 2:
            raise ValueError(
                f"harmonics={self.harmonics} of {max(orientations)} elements: give 1 to {max(orientations) // 2}, half of them"
            )
        self._start = omega
        super().__init__(in_channels, out_channels, variance, orientations=orientations, **options)

    def _prepare(self) -> None:
        if self.group.kind != "periodic":
            raise ValueError(f"{self.group.name} has no rotations to relax: choose p4 or se2")
        self.register_exact("omega", torch.tensor(self._start, dtype=torch.float64), working_copy=False)

    @staticmethod
    def own_settings(settings: FilterSettings) -> dict[str, Any]:
        return {"omega": settings.omega}

    def features(self) -> Float[Tensor, "N F"]:
        r"""Cosines and sines of m times the elements' angles, times :math:`\sqrt{c_m / c_0}`."""
        angles = torch.pi * self.coordinates()[:, None] * torch.arange(1, self.harmonics + 1, device=self.omega.device)
        weights = amplitudes(self.omega, self.harmonics)
        waves = torch.cat([weights * angles.cos(), weights * angles.sin()], -1)
        vanish = self.group.elements is not None and 2 * self.harmonics == self.group.elements
        return waves[:, :-1] if vanish else waves  # the last sine is 0 at every element of p4

    def sampled(self) -> Float[Tensor, "H J Q P"]:
        rows, features = super().sampled(), self.features()
        features = features[None, :, None, None] if self.orientations[0] > 1 else features[:, None, None, None]
        return (rows.unsqueeze(-1) * features).flatten(-2)


def set_omega(net: nn.Module, omega: int | float) -> None:
    """Relax all pathways of a network that relax rotations as much as this."""
    check_omega(omega)
    for module in relaxed(net):
        module.omega.data.fill_(omega)
        module._sample()


def learn_omega(net: nn.Module, start: int | float = 0.1) -> list[nn.Parameter]:
    """Make omega of every relaxed pathway a parameter, which an optimiser of weights moves too; returns them."""
    check_omega(start)
    own = []
    for module in relaxed(net):
        if not isinstance(module.omega, nn.Parameter):
            module.omega = nn.Parameter(module.drop_exact("omega"))
            module.is_fixed = False
        own.append(module.omega)
    set_omega(net, start)
    return own


def omega_penalty(net: nn.Module, strength: int | float) -> Float[Tensor, ""]:
    r""":math:`\lambda \sum \omega^2` over the relaxed pathways of a network, to add to a loss.

    Source: van der Ouderaa & van der Wilk 2023, section 7.
    """
    return strength * torch.stack([module.omega.square() for module in relaxed(net)]).sum()


def implied_omega(ratio: int | float) -> float:
    r"""The omega whose first harmonic has this variance beside the strict pathway, :math:`c_1 / c_0 = 2 I_1 / I_0`.

    A relaxed pathway of amplitude :math:`a_1` and learned variance :math:`\sigma^2`, beside a strict one of :math:`\tau^2`, has
    the ratio :math:`a_1^2 \sigma^2 / \tau^2`. It is below 2, to which it tends; of more the largest omega is returned.
    """
    if not ratio >= 0:
        raise ValueError(f"ratio={ratio} of variances: give a number from 0 to 2")
    low, high = 0.0, LARGEST_OMEGA
    for _ in range(60):
        middle = (low + high) / 2
        below = float(amplitudes(torch.tensor(middle, dtype=torch.float64), 1)[0]) ** 2 < ratio
        low, high = (middle, high) if below else (low, middle)
    return low


def implied_omegas(net: nn.Module) -> dict[str, float]:
    """By :func:`implied_omega`, of every layer that has a strict pathway beside the relaxed one: by the layer's name."""
    own = {(layer, name): p for layer, name, p in named_pathways(net)}
    found = {}
    for (layer, name), p in own.items():
        strict = own.get((layer, name.removesuffix("_relaxed")))
        if isinstance(p, RelaxedLieConvolution) and strict is not None:
            first = float(amplitudes(p.omega.detach(), 1)[0]) ** 2
            found[layer] = implied_omega(first * float(p.variance) / float(strict.variance))
    return found


def relaxed(net: nn.Module) -> list[RelaxedLieConvolution]:
    """The relaxed pathways of a network.

    Raises:
        ValueError: it has none.
    """
    own = [module for module in net.modules() if isinstance(module, RelaxedLieConvolution)]
    if not own:
        raise ValueError(
            f"{type(net).__name__} has no relaxed pathway: give one, se2_relaxed or p4_relaxed, a variance"
        )
    return own


def check_omega(omega: int | float) -> None:
    """Refuse a negative or too large omega."""
    if not 0 <= omega <= LARGEST_OMEGA:
        raise ValueError(
            f"omega={omega}: give a number from 0 (strict) to {LARGEST_OMEGA:g} (another filter at every angle)"
        )
