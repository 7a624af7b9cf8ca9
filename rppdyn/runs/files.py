"""Files, checkpoints and caches that are complete or absent: written under another name, flushed to the disk, renamed.

A cache keeps arrays between runs, one safetensors file per key. A key is the SHA-256 of all that determines the arrays and of
the format's version, so an entry is never stale. A damaged entry counts as absent, and trouble with the folder causes a
warning, never an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rppdyn.errors import UserError

logger = logging.getLogger(__name__)


def flush_to_disk(path: Path) -> None:
    """Fsync a file or a folder: a later rename then can't reach the disk before the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_folder(kind: str) -> Path:
    """The package's folder of kind "cache" or "config": $RPPDYN_CACHE_DIR, $XDG_CACHE_HOME/rppdyn or ~/.cache/rppdyn."""
    if root := os.environ.get(f"RPPDYN_{kind.upper()}_DIR"):
        return Path(root).expanduser()
    return Path(os.environ.get(f"XDG_{kind.upper()}_HOME") or f"~/.{kind}").expanduser() / "rppdyn"


def cache_folder(name: str) -> Path:
    """A folder of cached files."""
    return user_folder("cache") / name


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` without one, such as errors of writing to an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file in one step: yields a temporary path with the same suffix, renamed at the end of the block.

    A reader sees the old content or the new, never a part. If the block fails, the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with names_file(path):
            yield temporary
            flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def memory_limit() -> float:
    """Bytes of memory of this machine or container; infinite where the system does not tell, as on Windows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    with suppress(OSError, ValueError):  # there is no limit of a container
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def require_memory(name: str, size: float, remedy: str) -> None:
    """Refuse data of a declared size in bytes above half of this process's memory limit.

    Raises:
        UserError: naming the data, both sizes, and the remedy.
    """
    memory = memory_limit()
    if size > memory / 2:
        raise UserError(
            f"{name} takes {size / 1e9:.3g} GB, more than half of the {memory / 1e9:.3g} GB of memory here: {remedy}"
        )


class UnwrittenError(UserError):
    """Measurements could not be written to a file.

    Attributes:
        result: the measurements.
    """

    def __init__(self, result: Any, reasons: list[str]):
        super().__init__(
            f"{'; '.join(reasons)}: what was measured is in no file; make room there, or give another place"
        )
        self.result = result


def write_measured(result: Any, files: Mapping[str, Callable[[Path], object]]) -> None:
    """Write measurements to files, each by its own function. A file that can't be written does not keep the others back.

    Raises:
        UnwrittenError: a file can't be written; the error carries the result.
    """
    reasons = []
    for path, write in files.items():
        try:
            write(Path(path))
        except OSError as error:
            reasons.append(f"{path} can't be written ({error.strerror or error})")
    if reasons:
        raise UnwrittenError(result, reasons)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Replace a file by tensors, as `torch.save` writes them. Equal tensors give equal files."""
    import torch  # takes seconds

    with replacing(path) as temporary, temporary.open("wb") as file:  # given a path, torch would store its name
        torch.save(tensors, file)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step. Nan and infinities become null, and a row of numbers is one line."""
    text = json.dumps(plain(value, finite=True), indent=2, allow_nan=False)
    write_text(path, re.sub(r'\[\n[^"\[\]{}]+\]', lambda row: re.sub(r"\s*\n\s*", " ", row[0]), text) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder in one step: yields a hidden folder to fill, renamed to `path` at the end of the block.

    The hidden folder is locked meanwhile. The operating system releases the lock of a killed process, so hidden folders
    without a lock are leftovers, and are removed.

    Raises:
        ValueError: another process is filling it.
        OSError: `path` exists at the end of the block.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(".new-*"):
        # its process is alive if the lock is held, and may rename it meanwhile
        with suppress(BlockingIOError, FileNotFoundError), _locked(left):
            shutil.rmtree(left)
    temporary = path.with_name(f".new-{path.name}")
    try:
        temporary.mkdir()
    except FileExistsError:
        raise ValueError(f"{path} is being written by another process: wait for it or stop it first") from None
    with _locked(temporary):
        try:
            yield temporary
            for file in [*temporary.rglob("*"), temporary]:
                flush_to_disk(file)
            os.rename(temporary, path)
            flush_to_disk(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder in the block; BlockingIOError if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def plain(value: Any, *, finite: bool = False) -> Any:
    """Convert mappings, sequences, and scalars and arrays of NumPy and torch to dict, list, str, int, float, bool, None.

    Args:
        finite: convert nan and infinities to None.
    Raises:
        TypeError: a value has no such form.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if finite and not math.isfinite(value) else float(value)
    if isinstance(value, dict):
        return {str(key): plain(item, finite=finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, finite=finite) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist(), finite=finite)
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}; convert it to numbers or strings first")


# -- checkpoints -------------------------------------------------------------------------------------------------------

FORMAT = 1
MANIFEST = "manifest.json"


class CheckpointError(UserError):
    """None of a run's checkpoints can be read."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files agree with their checksums."""

    step: int
    path: Path


class Checkpoints:
    """The last `KEEP` checkpoints of a run, one folder per step.

    A checkpoint is written under a hidden name, flushed to the disk, given a manifest of sizes and SHA-256 sums, and renamed.
    A process killed at any moment leaves the whole folder or a hidden one, which the next save removes. The manifest detects
    later damage on the disk.
    """

    KEEP: ClassVar[int] = 2

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def save(self, step: int, write: Callable[[Path], None]) -> Checkpoint:
        """Write a checkpoint: `write` is called with an empty folder to put files into."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        temporary = self.folder / f".writing-{step:012d}"
        temporary.mkdir()
        try:
            write(temporary)
            _write_manifest(temporary, step)
            final = self.folder / f"step-{step:012d}"
            if final.exists():  # the same step written again: the old folder goes once the new one is complete
                os.rename(final, self.folder / f".replaced-{step:012d}")
            os.rename(temporary, final)
            flush_to_disk(self.folder)
        finally:
            self._remove_leftovers()
        for path in self._list_folders()[: -self.KEEP]:
            _remove(path)
        return Checkpoint(step, final)

    def latest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint, or None where none was ever written.

        Damaged ones are passed over with a warning that names the file.

        Raises:
            CheckpointError: there are checkpoints, and every one is damaged.
        """
        problems: list[str] = []
        for path in reversed(self._list_folders()):
            problem = _find_damage(path)
            if problem is None:
                for passed_over in problems:
                    logger.warning("%s: going back to step %d", passed_over, _step(path))
                return Checkpoint(_step(path), path)
            problems.append(problem)
        if problems:
            raise CheckpointError(
                f"{problems[0]} and no earlier checkpoint is intact: delete the run's folder "
                f"{self.folder.parent} to start again, or choose another with run_dir="
            )
        return None

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints after `step`; a run that goes on from there writes them again."""
        for path in self._list_folders():
            if _step(path) > step:
                _remove(path)

    def _list_folders(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir() and path.name[5:].isdecimal())

    def _remove_leftovers(self) -> None:
        for path in [*self.folder.glob(".writing-*"), *self.folder.glob(".replaced-*"), *self.folder.glob(".old-*")]:
            shutil.rmtree(path)


def load_tensors(path: Path) -> Any:
    """Load what `torch.save` wrote, tensors and plain values alone, onto the CPU; checksums are compared, unlike by torch.

    Raises:
        CheckpointError: the file is damaged or absent.
    """
    import torch  # takes seconds

    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"{damaged} is not what was written")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises
        raise CheckpointError(
            f"{path} is damaged: delete the folder {path.parent} to use the checkpoint before it"
        ) from error


def first_non_finite(value: Any, name: str = "") -> str | None:
    """The name of the first nan or infinite number in nested data; None if all are finite.

    >>> first_non_finite({"critic": {"loss": [0.5, float("inf")]}})
    'critic.loss.1'

    Args:
        value: mappings and sequences of tensors, arrays and numbers; all else counts as finite.
        name: name of the data.
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
    elif hasattr(value, "is_floating_point"):  # a tensor; importing torch takes seconds
        return None if not value.is_floating_point() or bool(value.isfinite().all()) else name
    names = (first_non_finite(item, f"{name}.{key}" if name else str(key)) for key, item in items)
    return next((path for path in names if path is not None), None)


def _remove(path: Path) -> None:
    hidden = path.with_name(f".old-{path.name}")  # a half-deleted folder must not look like a checkpoint
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(folder: Path, step: int) -> None:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        flush_to_disk(path)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _checksum(path)}
    if not files:
        raise ValueError(f"the checkpoint of step {step} has no files: nothing was written into {folder}")
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, "step": step, "files": files}, indent=2) + "\n")
    flush_to_disk(manifest)
    flush_to_disk(folder)


def _find_damage(folder: Path) -> str | None:
    """Describe a checkpoint's damage, naming the file; None if it is intact."""
    manifest = folder / MANIFEST
    try:
        content = json.loads(manifest.read_bytes())
        files = {str(name): (int(of["bytes"]), str(of["sha256"])) for name, of in content["files"].items()}
        written_format, step = content["format"], content["step"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"checkpoint file {manifest} is missing or damaged"
    if written_format != FORMAT:
        return f"checkpoint {folder} has format {written_format}, and this version reads format {FORMAT}"
    if step != _step(folder) or not files:
        return f"checkpoint file {manifest} is damaged (it is of step {step}, with {len(files)} files)"
    for name, (expected, checksum) in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != expected:
                return f"checkpoint file {path} is truncated ({size} of {expected} bytes)"
            if _checksum(path) != checksum:
                return f"checkpoint file {path} is damaged (its checksum differs)"
        except (OSError, ValueError) as error:  # a name may be no file's
            return f"checkpoint file {path} is missing ({getattr(error, 'strerror', None) or error})"
    return None


# -- arrays kept on disk between runs ----------------------------------------------------------------------------------

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
    """A folder of cached arrays.

    Args:
        folder: its name in :func:`cache_folder`.
        entry: name of one entry in warnings ("basis").
    """

    folder: str
    entry: str

    @property
    def location(self) -> Path:
        """The folder, which may not exist yet."""
        return cache_folder(self.folder)

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.location / (key + SUFFIX)

    def read(self, key: str, parse: Callable[[dict[str, np.ndarray], dict[str, Any]], T]) -> T | None:
        """Return `parse(arrays, about)` of an entry; None if it is absent or damaged.

        Args:
            parse: raises ValueError, KeyError, IndexError, TypeError or OverflowError for a damaged entry.
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
        """Store an entry; a folder that can't be written to causes a warning.

        Args:
            about: metadata in JSON types.
            name: name of the entry in the warning.
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
                with suppress(OSError):
                    os.unlink(temporary)

    def summary(self) -> CacheSummary:
        """Size of the cache; an absent or unreadable folder counts as empty."""
        count = size = 0
        for path in self._files(SUFFIX):
            with suppress(OSError):
                size += path.stat().st_size
                count += 1
        return CacheSummary(self.location, count, size)

    def clear(self) -> int:
        """Delete all entries and the leftovers of interrupted writes; returns the number of entries."""
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
    """Encode arrays and metadata as a safetensors file with a checksum."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about, sort_keys=True)
    return save(arrays, {"about": text, "checksum": _array_checksum(text, arrays)})


def decode(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Decode what `encode` made.

    Raises:
        ValueError, KeyError, SafetensorError: the data are damaged.
    """
    arrays = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if _array_checksum(header["about"], arrays) != header["checksum"]:
        raise ValueError("its checksum differs")
    return arrays, json.loads(header["about"])


def _array_checksum(text: str, arrays: Arrays) -> str:
    h = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        h.update(f"{name}{a.dtype.str}{a.shape}".encode())
        h.update(a.data if a.size else b"")
    return h.hexdigest()
