"""Arrays kept on disk between runs: one safetensors file per key, written atomically, checked when read.

A key is a content address, the SHA-256 of all that determines the arrays and of the format's version, so an entry is
never stale. A damaged entry is as good as none, and nothing that happens to the folder makes a job fail: trouble is one
`logging` warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rppdyn.runs.files import cache_folder

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"

Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class CacheSummary:
    """Contents of a cache: its folder, the number of entries, their bytes."""

    location: Path
    count: int
    bytes: int


@dataclass(frozen=True)
class ArrayCache:
    """A folder of entries.

    Args:
        folder: its name in the user's cache folder ($RPPDYN_CACHE_DIR, else $XDG_CACHE_HOME/rppdyn, else ~/.cache/rppdyn).
        entry: name of one entry in warnings ("basis").
    """

    folder: str
    entry: str

    @property
    def location(self) -> Path:
        """The folder, which need not exist yet."""
        return cache_folder(self.folder)

    def path(self, key: str) -> Path:
        """Where the entry of a key is, if it is."""
        return self.location / (key + SUFFIX)

    def read(self, key: str, parse: Callable[[dict[str, np.ndarray], dict[str, Any]], T]) -> T | None:
        """Return `parse(arrays, about)` of an entry, or None if there is no such entry or it is damaged.

        Args:
            parse: raises ValueError, KeyError, IndexError, TypeError or OverflowError where the entry is not what it
                should be.
        """
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            logger.warning("a cached %s cannot be read (%s); it is made again", self.entry, e)
            return None
        try:
            return parse(*decode(data))
        except (ValueError, KeyError, IndexError, TypeError, SafetensorError, OverflowError) as e:
            logger.warning("the cached %s %s is damaged (%s); it is made again", self.entry, path, e)
            return None

    def write(self, key: str, arrays: Arrays, about: Mapping[str, Any], name: str = "") -> None:
        """Store an entry; a folder that cannot be written to costs a warning and nothing else.

        Args:
            about: metadata that JSON can hold.
            name: name of the entry, for that warning.
        """
        temporary = None
        try:
            self.location.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=key[:16], suffix=".tmp", dir=self.location)
            with os.fdopen(handle, "wb") as file:
                file.write(encode(arrays, about))
            os.replace(temporary, self.path(key))
        except OSError as e:
            logger.warning("%s is not cached (%s)", name or f"a {self.entry}", e)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def summary(self) -> CacheSummary:
        """Where the cache is and how much it holds; an absent or unreadable folder holds nothing."""
        count = size = 0
        for path in self._files(SUFFIX):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
                count += 1
        return CacheSummary(self.location, count, size)

    def clear(self) -> int:
        """Delete all entries, and what interrupted writes left behind; returns the number of entries deleted.

        Raises:
            OSError: an entry could not be deleted.
        """
        entries = self._files(SUFFIX)
        for path in [*self._files(".tmp"), *entries]:
            path.unlink(missing_ok=True)
        return len(entries)

    def _files(self, suffix: str) -> list[Path]:
        try:
            return sorted(p for p in self.location.iterdir() if p.name.endswith(suffix) and not p.is_dir())
        except OSError:
            return []


def encode(arrays: Arrays, about: Mapping[str, Any]) -> bytes:
    """Arrays and what is to be known of them as a safetensors file with a checksum."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about, sort_keys=True)
    return save(arrays, {"about": text, "checksum": _checksum(text, arrays)})


def decode(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The inverse of `encode`.

    Raises:
        ValueError, KeyError, SafetensorError: anything is wrong with it.
    """
    arrays = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if _checksum(header["about"], arrays) != header["checksum"]:
        raise ValueError("its checksum differs")
    return arrays, json.loads(header["about"])


def _checksum(text: str, arrays: Arrays) -> str:
    h = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        h.update(f"{name}{a.dtype.str}{a.shape}".encode())
        h.update(a.data if a.size else b"")
    return h.hexdigest()
