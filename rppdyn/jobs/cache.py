"""`rppdyn cache`: where solved bases and tasks' datasets are kept, how much they take, and clearing them.

A file of its own, as every verb has.
"""

from __future__ import annotations

from dataclasses import dataclass

from rppdyn.basis import cache as bases
from rppdyn.runs.array_cache import CacheSummary
from rppdyn.tasks import TASK_CACHE

UNITS = ("bytes", "KiB", "MiB", "GiB")


@dataclass(frozen=True)
class CacheReport:
    """Contents of the two caches; `cleared` counts the bases and datasets removed, None where none were to be."""

    bases: CacheSummary
    datasets: CacheSummary
    cleared: tuple[int, int] | None = None

    def __str__(self) -> str:
        lines = [] if self.cleared is None else [f"cleared {_bases(self.cleared[0])}, {_datasets(self.cleared[1])}"]
        lines.append(f"{self.bases.location}: {_bases(self.bases.count)}, {_size(self.bases.bytes)}")
        lines.append(f"{self.datasets.location}: {_datasets(self.datasets.count)}, {_size(self.datasets.bytes)}")
        return "\n".join(lines)


def run(clear: bool = False) -> CacheReport:
    """Describe the caches, after clearing them if asked to.

    Raises:
        OSError: an entry could not be removed.
    """
    cleared = (bases.clear(), TASK_CACHE.clear()) if clear else None
    return CacheReport(bases.summary(), TASK_CACHE.summary(), cleared)


def _bases(count: int) -> str:
    return f"{count} {'basis' if count == 1 else 'bases'}"


def _datasets(count: int) -> str:
    return f"{count} dataset{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"
