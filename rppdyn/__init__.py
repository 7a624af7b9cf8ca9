"""rppdyn: residual pathway priors, approximate symmetry for reinforcement learning and dynamics.

Importing this package is cheap. Its parts are imported from `rppdyn.groups`, `rppdyn.reps`, `rppdyn.nn`, `rppdyn.envs`,
`rppdyn.agents` and so on, or at their first use, as `rppdyn.nn`. The names that most users begin with are here, too.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from rppdyn._version import __version__

FLOORS = (
    "agents", "basis", "compression", "dynamics", "envs", "equivariance", "errors", "groups", "images", "integrations",
    "jobs", "nn", "priors", "reps", "runs", "settings", "tasks",
)  # fmt: skip
"""Modules and packages that are imported when they are first asked for."""

NAMES = {
    "EMLP": "nn:EMLP",
    "MLP": "nn:MLP",
    "RPPEMLP": "nn:RPPEMLP",
    "RPPSAC": "agents:RPPSAC",
    "RelaxedPPO": "agents:RelaxedPPO",
    "certify": "envs:certify",
    "equivariance_error": "equivariance:equivariance_error",
    "fit_dynamics": "jobs.fit_trajectories:fit",
    "fit_images": "jobs.fit_image:fit",
    "fit_regression": "jobs.fit_regression:fit",
    "load": "jobs.predict:load",
    "symmetry_spec": "envs:symmetry_spec",
}
"""The module of each name. `fit_*` fit models to the user's own data; `load` loads the model of a finished run."""

__all__ = ["__version__", *NAMES]  # noqa: PLE0604  (they are strings)


def __getattr__(name: str) -> Any:
    if name in FLOORS:
        return importlib.import_module(f"rppdyn.{name}")
    if name in NAMES:
        module, _, attribute = NAMES[name].partition(":")
        return getattr(importlib.import_module(f"rppdyn.{module}"), attribute)
    raise AttributeError(f"module 'rppdyn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FLOORS, *NAMES})


def fit(data: Any, **options: Any) -> Any:
    """Call `fit_dynamics`, `fit_images` or `fit_regression`, chosen by the names of the options. Deprecated: call these."""
    is_dynamics, is_images = {"state", "positions"} & set(options), {"images", "labels", "targets"} & set(options)
    name = "fit_dynamics" if is_dynamics else "fit_images" if is_images else "fit_regression"
    warnings.warn(f"rppdyn.fit is deprecated: call rppdyn.{name}", DeprecationWarning, stacklevel=2)
    return __getattr__(name)(data, **options)
