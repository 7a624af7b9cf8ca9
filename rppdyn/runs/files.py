"""Files that are complete or absent: written beside their place, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import math
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rppdyn.errors import UserError


def flush_to_disk(path: Path) -> None:
    """Fsync a file or a folder, so that a rename that follows can't overtake its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder(name: str) -> Path:
    """The user's folder of cached files, and in it `name`: $RPPDYN_CACHE_DIR, $XDG_CACHE_HOME/rppdyn or ~/.cache/rppdyn."""
    if root := os.environ.get("RPPDYN_CACHE_DIR"):
        return Path(root).expanduser() / name
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).expanduser() / "rppdyn" / name
    return Path("~/.cache/rppdyn").expanduser() / name


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Name a file in an error of the operating system that names none: those of a file that is open say what alone."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file in the block, with the same suffix; it takes its place, whole, once the block has ended.

    A reader sees the old content or the new one, never a part; a block that fails leaves the old one.
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


class UnwrittenError(UserError):
    """What was measured is in no file.

    Attributes:
        result: what was measured.
    """

    def __init__(self, result: Any, reasons: list[str]):
        super().__init__(
            f"{'; '.join(reasons)}: what was measured is in no file; make room there, or give another place"
        )
        self.result = result


def write_measured(result: Any, files: Mapping[str, Callable[[Path], object]]) -> None:
    """Write what took long to measure, each file by its function; one that can't be written loses nothing of the others.

    Raises:
        UnwrittenError: a file can't be written; it has the result.
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
    """Replace a file by what `torch.save` makes of tensors, which is the same for equal ones."""
    import torch  # takes seconds

    with replacing(path) as temporary, temporary.open("wb") as file:  # a path's name would be stored, too
        torch.save(tensors, file)


def read_tensors(path: Path) -> Any:
    """Read what :func:`write_tensors` wrote, tensors and plain values alone.

    Raises:
        ValueError: a part of the file is not what was written; torch does not compare its checksums.
    """
    import torch  # takes seconds

    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path}: {damaged} is not what was written")
    return torch.load(path, map_location="cpu", weights_only=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step; numbers that JSON lacks (nan, infinities) become null."""
    write_text(path, json.dumps(plain(value, finite=True), indent=2, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill in the block; it stands at `path`, whole, once the block has ended, or not at all.

    It is filled beside its place under a hidden name, and locked meanwhile, since the operating system lets go of a lock
    when a process dies: folders of this kind that nobody holds are a killed process's, and go.

    Raises:
        ValueError: another process is filling it.
        OSError: something stands at `path` when the block ends.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(".new-*"):
        _remove_unless_held(left)
    temporary = path.with_name(f".new-{path.name}")
    try:
        temporary.mkdir()
    except FileExistsError:
        raise ValueError(f"{path} is being written by another process: wait for it or stop it first") from None
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
        for file in [*temporary.rglob("*"), temporary]:
            flush_to_disk(file)
        os.rename(temporary, path)
        flush_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _remove_unless_held(folder: Path) -> None:
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:
        pass  # its process lives
    finally:
        os.close(descriptor)


def plain(value: Any, *, finite: bool = False) -> Any:
    """Mappings, sequences, numpy and torch scalars and arrays as dict, list, str, int, float, bool, None.

    Args:
        finite: whether numbers that JSON lacks (nan, infinities) become None.
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
