"""Where a number comes from: versions, commit, command, machine."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

PACKAGES = ("rppdyn", "torch", "numpy", "gymnasium", "mujoco", "stable-baselines3", "hydra-core")


def provenance() -> dict[str, object]:
    """Versions of the packages that decide a run's numbers, the commit where the package is a checkout, the command."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str | None:
    """The commit of the checkout this package is imported from, with "+changes" where files differ; None in a wheel."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
