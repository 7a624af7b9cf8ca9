"""`rppdyn cache`: where solved bases are kept, how much they take, and clearing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rppdyn.basis import cache

UNITS = ("bytes", "KiB", "MiB", "GiB")


@dataclass(frozen=True)
class CacheReport:
    """The cache's folder and what it holds; `cleared` counts the bases removed, None where none were to be."""

    location: Path
    count: int
    bytes: int
    cleared: int | None = None

    def __str__(self) -> str:
        lines = [f"{self.location}: {self.count} {'basis' if self.count == 1 else 'bases'}, {_size(self.bytes)}"]
        if self.cleared is not None:
            lines.insert(0, f"cleared {self.cleared} {'basis' if self.cleared == 1 else 'bases'}")
        return "\n".join(lines)


def run(clear: bool = False) -> CacheReport:
    """Describe the cache, after clearing it if asked to.

    Raises:
        OSError: an entry could not be removed.
    """
    cleared = cache.clear() if clear else None
    found = cache.summary()
    return CacheReport(found.location, found.count, found.bytes, cleared)


def _size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"
