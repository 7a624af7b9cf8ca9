r"""How much of a layer's weights a prior leaves to the free pathway, and the variances that say so.

With variances :math:`\sigma_a^2` and :math:`\sigma_b^2` the free pathway has the share
:math:`s = \sigma_b^2 / (\sigma_a^2 + \sigma_b^2)` of the prior. An equivariant prior is usually so wide (1e5) that it says
nothing of the size of weights, and a share of it would say nothing either. So :math:`\sigma_a^2` is here the smaller of that
and :math:`1/n`, the variance of a weight with n inputs that keeps the size of what passes through it.
"""

from __future__ import annotations

__all__ = ["LARGEST_DEFECT", "NARROW_SHARE", "SMALLEST_DEFECT", "free_share", "free_variance", "share_of_defect"]

NARROW_SHARE = 1e-3
"""A share below which a relaxed network is strict in all but name: 3 % of a weight's size."""

SMALLEST_DEFECT = 1e-6
"""The size that a smaller defect counts as, unless the symmetry is exact: single precision rounds by 1e-7 of an output."""

LARGEST_DEFECT = 0.99
"""The size that a larger defect counts as: at 1 a symmetry says no more than that nothing moves, and the share would be all."""


def share_of_defect(defect: float) -> float:
    r"""The share :math:`d^2` of the free pathway where a symmetry is wrong by the share d of a step.

    A map that is equivariant but for a part d of its size has that part from the free pathway, and variances are squares.

    Args:
        defect: 0 for an exact symmetry; others count as `SMALLEST_DEFECT` at least and as `LARGEST_DEFECT` at most.
    Raises:
        ValueError: a defect that is negative, or no number.
    """
    if not defect >= 0:
        raise ValueError(f"defect={defect!r}: give a relative defect, zero or positive")
    return min(max(defect, SMALLEST_DEFECT), LARGEST_DEFECT) ** 2 if defect else 0.0


def free_variance(share: float, equivariant_variance: float, inputs: int) -> float:
    r"""The free pathway's variance :math:`\sigma_b^2 = \sigma_a^2 s / (1 - s)`, with :math:`\sigma_a^2` at most 1 / inputs.

    Args:
        share: share of the free pathway, s, from 0 (which removes it) to below 1.
        equivariant_variance: variance of the other's prior.
        inputs: number of inputs of the layer, n.
    Raises:
        ValueError: a share outside of [0, 1); an equivariant variance that is not positive; no inputs.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share={share!r}: give the free pathway's part of the prior, from 0 to below 1")
    return _usual(equivariant_variance, inputs) * share / (1 - share)


def free_share(free: float, equivariant_variance: float, inputs: int) -> float:
    r"""The share of the free pathway: the inverse of :func:`free_variance`; 1 without an equivariant pathway."""
    return free / (free + _usual(equivariant_variance, inputs)) if equivariant_variance else 1.0


def _usual(equivariant_variance: float, inputs: int) -> float:
    """The variance of an equivariant weight, by its prior or, where that is wider, by its size."""
    if not (equivariant_variance > 0 and inputs >= 1):
        raise ValueError(f"equivariant_variance={equivariant_variance!r} and inputs={inputs!r}: both must be positive")
    return min(equivariant_variance, 1 / inputs)
