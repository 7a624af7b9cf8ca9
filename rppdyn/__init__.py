"""rppdyn: residual pathway priors, approximate symmetry for reinforcement learning and dynamics.

Importing this package costs nothing: what it offers is imported by floor, from `rppdyn.groups`, `rppdyn.reps`,
`rppdyn.nn`, `rppdyn.envs`, `rppdyn.agents` and so on.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from rppdyn._version import __version__

__all__ = ["__version__", "load"]


def load(run: str | PathLike[str], *, trust: bool = False) -> Any:
    """What a finished run has trained, as one object with `predict`; see :func:`rppdyn.jobs.predict.load`."""
    from rppdyn.jobs import predict

    return predict.load(run, trust=trust)
