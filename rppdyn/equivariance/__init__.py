"""Measures of how equivariant a function is; they work on any callable."""

from __future__ import annotations

from rppdyn.equivariance import images
from rppdyn.equivariance._discover import (
    Discovery,
    affine_family,
    block_family,
    discover,
    discover_affine,
    index_families,
)
from rppdyn.equivariance._error import (
    EquivarianceError,
    RolloutError,
    Summary,
    equivariance_error,
    error_by_input,
    error_by_output,
    relative_difference,
    rollout_equivariance_error,
    summarise,
    trajectory_equivariance_error,
)
from rppdyn.equivariance._layerwise import Attribution, Layer, layers_of, layerwise_difference, layerwise_lie_derivative
from rppdyn.equivariance._lie import Flow, LocalEquivarianceError, TrivialFlow, lie_derivative, local_equivariance_error
from rppdyn.equivariance._tracing import Placed, tokens
from rppdyn.equivariance.images import (
    TranslationError,
    aliasing_error,
    aliasing_lie_derivative,
    discrete_inconsistency,
    eq_t,
    eq_t_frac,
    expected_group_sample,
)

__all__ = [
    "Attribution", "Discovery", "EquivarianceError", "Flow", "Layer", "LocalEquivarianceError", "Placed",
    "RolloutError", "Summary", "TranslationError", "TrivialFlow", "aliasing_error", "aliasing_lie_derivative",
    "affine_family", "block_family", "discover", "discover_affine", "discrete_inconsistency", "eq_t", "eq_t_frac",
    "equivariance_error", "error_by_input", "error_by_output", "expected_group_sample", "images", "layers_of",
    "layerwise_difference", "index_families", "layerwise_lie_derivative", "lie_derivative",
    "local_equivariance_error", "relative_difference", "rollout_equivariance_error", "summarise", "tokens",
    "trajectory_equivariance_error",
]  # fmt: skip
