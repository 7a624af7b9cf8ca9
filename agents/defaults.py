"""The numbers that the paper leaves open, in one place; `configs/` overrides them per experiment."""

from __future__ import annotations

HIDDEN = 256
"""Width of hidden layers."""

EQUIVARIANT_VARIANCE = 1e5
"""Prior variance of an equivariant pathway's weights: wide, so that symmetric functions are all but free."""

FREE_VARIANCE = 1e-7
"""Prior variance of a free pathway's weights: narrow, so that a departure from the symmetry must earn its keep."""

NOISE_VARIANCE = 1.0
"""Variance s^2 of the critics' Gaussian likelihood; 1 gives the usual half squared error."""

ADAM_BETAS = (0.5, 0.999)
"""Adam's betas for actor, critics and temperature (Finzi et al. 2021, appendix A.2.3.3)."""

OUTPUT_SCALE = 0.01
"""Scale of the actor's last layer at the start (Andrychowicz et al. 2020)."""
