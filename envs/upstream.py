"""Packages of environments that break on another MuJoCo than theirs: which versions go together."""

from __future__ import annotations

import traceback
from importlib.metadata import PackageNotFoundError, version

__all__ = ["TOGETHER", "versions_that_go_together"]

TOGETHER = {
    "gymnasium_robotics": "gymnasium-robotics 1.4.2 runs on mujoco 3.3.7 and 3.8.0, and only its mazes and Adroit on 4.0.0",
    "dm_control": "dm_control 1.0.50 runs on mujoco 3.17.0, through shimmy 2.0.1",
}
"""By package, what was tried; docs/jobs/your-environment.md has the table."""


def versions_that_go_together(error: BaseException) -> str:
    """What to say of an error that one of these packages raised, in one line; "" of any other."""
    files = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for package, said in TOGETHER.items():
        if files and any(f"/{package}/" in file for file in files[-3:]):
            name = package.replace("gymnasium_robotics", "gymnasium-robotics")
            reason = " ".join(str(error).split())[:160] or "an assertion of its own"
            return (
                f"{name} {_version(name)} fails on mujoco {_version('mujoco')} ({type(error).__name__}: {reason}); {said}: "
                "install versions that go together"
            )
    return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"
