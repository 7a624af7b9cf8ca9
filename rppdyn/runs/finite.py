"""Numbers that are not finite: found by name before they are kept, since what is trained on them is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["DivergedError", "not_finite"]


class DivergedError(ValueError):
    """What is trained has numbers that are not finite: its weights, its losses, or the state of its optimiser."""


def not_finite(value: Any, name: str = "") -> str | None:
    """The name of the first number in nested data that is nan or infinite; None where all are finite.

    >>> not_finite({"critic": {"loss": [0.5, float("inf")]}})
    'critic.loss.1'

    Args:
        value: mappings and sequences of tensors, arrays and numbers; text and whatever else there is counts as finite.
        name: of the data.
    """
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif isinstance(value, float):
        return None if math.isfinite(value) else name
    elif isinstance(value, np.ndarray):
        return None if value.dtype.kind not in "fc" or np.isfinite(value).all() else name
    elif hasattr(value, "is_floating_point"):  # a tensor; torch takes seconds to import
        return None if not value.is_floating_point() or bool(value.isfinite().all()) else name
    found = (not_finite(item, f"{name}.{key}" if name else str(key)) for key, item in items)
    return next((path for path in found if path is not None), None)
