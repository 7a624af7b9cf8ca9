"""Measures of how equivariant a function is; they work on any callable."""

from __future__ import annotations

from rppdyn.equivariance.error import EquivarianceError, equivariance_error, relative_difference
from rppdyn.equivariance.lie import lie_derivative

__all__ = ["EquivarianceError", "equivariance_error", "lie_derivative", "relative_difference"]
