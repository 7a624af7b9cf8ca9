"""Numbers without the last bits, in which one machine's arithmetic differs from another's, for content that is hashed."""

from __future__ import annotations

import numpy as np

__all__ = ["rounded"]

SIGNIFICANT = 31  # bits of every number, 5e-10 of it: far above rounding errors, below what a certificate calls exact
CANCELLED = 39  # bits below the largest number of an array, 2e-12 of it: where parts cancel, rounding errors are left


def rounded(values) -> np.ndarray:
    """The values in float64 to nine digits each and to 2e-12 of the largest of them; rounding errors leave no trace.

    In which order a product of matrices is summed depends on the processor and moves results by some 1e-16, so that a
    digest of the plain numbers is another one elsewhere. Units are powers of two: a number typed as a decimal may lie
    halfway between two decimals, where rounding errors decide, and hardly ever halfway between two of these.
    """
    values = np.asarray(values, dtype=np.float64)
    _, exponent = np.frexp(values)
    digits = _to_unit(values, exponent - SIGNIFICANT)
    _, largest = np.frexp(np.abs(digits).max(initial=0.0))  # of the rounded: 1 - 1e-16 and 1 differ in their exponent
    return _to_unit(digits, np.maximum(exponent - SIGNIFICANT, largest - CANCELLED))


def _to_unit(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Whole multiples of 2^exponent, with one zero."""
    return np.ldexp(np.round(np.ldexp(values, -exponent)), exponent) + 0.0
