r"""A symplectic integrator of order 8 for forces that depend on positions only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor

__all__ = ["symplectic_step"]

_HALF = (
    0.13020248308889008, 0.56116298177510839, -0.38947496264484729, 0.15884190655515560,
    -0.39590389413323757, 0.18453964097831571, 0.25837438768632205, 0.29501172360931030,
)  # fmt: skip
KICKS = (*_HALF, 1 - 2 * sum(_HALF), *reversed(_HALF))
"""Lengths of the 17 leapfrog steps as shares of the whole."""

DRIFTS = tuple((a + b) / 2 for a, b in pairwise((0.0, *KICKS, 0.0)))
"""The drifts before, between and after the kicks: half of one leapfrog step and half of the next."""


def symplectic_step(
    force: Callable[[Tensor], Tensor],
    masses: Float[Tensor, " n"],
    x: Float[Tensor, "*batch n"],
    p: Float[Tensor, "*batch n"],
    h: float,
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"]]:
    """Coordinates and momenta after ``h`` seconds, for dx/dt = p / m, dp/dt = force(x), with one mass per coordinate.

    17 leapfrog steps (drift, kick, drift), some of them backwards, composed symmetrically so that the error is of order
    8; 17 evaluations of the force. Time-reversible, and symplectic where the force has a potential.

    Source: Kahan & Li 1997; Hairer, Lubich & Wanner 2006, V.3.2, Eq. 3.11.
    """
    inverse = h / masses
    x = x + DRIFTS[0] * inverse * p
    for kick, drift in zip(KICKS, DRIFTS[1:], strict=True):
        p = p + (kick * h) * force(x)
        x = x + drift * inverse * p
    return x, p
