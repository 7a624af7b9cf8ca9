"""rppdyn: residual pathway priors, approximate symmetry for reinforcement learning and dynamics.

Importing this package costs nothing: what it offers is imported by floor, from `rppdyn.groups`, `rppdyn.reps`,
`rppdyn.nn`, `rppdyn.envs`, `rppdyn.agents` and so on, or at its first use as `rppdyn.nn`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from os import PathLike
from typing import Any

from rppdyn._version import __version__

__all__ = ["__version__", "fit", "load"]

FLOORS = (
    "agents", "basis", "compression", "dynamics", "envs", "equivariance", "errors", "groups", "images", "integrations",
    "jobs", "nn", "priors", "reps", "runs", "settings", "tasks",
)  # fmt: skip
"""Modules and packages that are imported when they are first asked for."""


def __getattr__(name: str) -> Any:
    if name in FLOORS:
        return importlib.import_module(f"rppdyn.{name}")
    raise AttributeError(f"module 'rppdyn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FLOORS})


def load(run: str | PathLike[str], *, trust: bool = False) -> Any:
    """Load a finished run's trained function, as one object with `predict`; see :func:`rppdyn.jobs.predict.load`."""
    from rppdyn.jobs import predict

    return predict.load(run, trust=trust)


def fit(data: str | PathLike[str] | Mapping[str, Any], **options: Any) -> Any:
    """A model fitted to data of one's own, with `predict`: ``fit(data, group=..., rep=...)``.

    What it is of follows from the names: ``state=`` or ``positions=`` are trajectories, ``images=``, ``labels=`` or
    ``targets=`` images, and rows of inputs and outputs else.

    Args:
        data: a file, a folder, a Minari dataset of trajectories, or arrays by name.
        options: those of :func:`rppdyn.jobs.fit_trajectories.fit`, :func:`rppdyn.jobs.fit_image.fit` or
            :func:`rppdyn.jobs.fit_regression.fit`.
    """
    from rppdyn.jobs import fit_image, fit_regression, fit_trajectories

    if {"state", "positions"} & set(options):
        return fit_trajectories.fit(data, **options)
    if {"images", "labels", "targets"} & set(options):
        return fit_image.fit(data, **options)
    return fit_regression.fit(data, **options)
