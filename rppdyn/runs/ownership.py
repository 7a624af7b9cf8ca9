"""Which runs this user made on this machine: a keyed digest of what in a run's folder names code.

A run that names a module of the user's asks for no trust when it goes on, as long as its configuration, its spec and that
module's file, by path and content, are what they were when this user's own command wrote them. The key never leaves the user's
folder of settings; a run from elsewhere has no digest that fits.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rppdyn.errors import code_named_in, folder_of_modules
from rppdyn.runs.files import user_folder, write_text

logger = logging.getLogger(__name__)

SIGNATURE = "signature"
"""File of a run's folder."""
NAMING = ("config.yaml", "spec.json")
"""Files of a run's folder that may name code."""
KEY_BYTES = 32


def sign(run: Path) -> None:
    """Write the digest of a run that names code; where no key can be kept, nothing, and the run asks for trust later."""
    try:
        digest = _digest(run, create=True)
        if digest is not None:
            write_text(run / SIGNATURE, digest + "\n")
    except (OSError, RuntimeError) as error:  # no home, or one that can't be written to
        logger.info("%s is not signed (%s): it will ask for --trust", run, error)


def is_own(run: Path) -> bool:
    """Return whether this user's own command wrote what a run's folder names as code, and all of that is unchanged."""
    try:
        written = (run / SIGNATURE).read_text(encoding="ascii").strip()
        digest = _digest(run, create=False)
    except (OSError, RuntimeError, ValueError):
        return False
    return digest is not None and hmac.compare_digest(written, digest)


@contextmanager
def staying_own(run: Path) -> Iterator[None]:
    """Sign a run again after its files have been written in the block, if it was the user's own before."""
    own = is_own(run)
    yield
    if own:
        sign(run)


def _digest(run: Path, *, create: bool) -> str | None:
    """The digest of a run's files and of the code that they name; None where there is none, it is not found, or no key."""
    parts = [(run / name).read_bytes() if (run / name).is_file() else b"" for name in NAMING]
    named = _named(*parts)
    files = {name: _files(name) for name in named}
    if not named or not all(files.values()) or (key := _key(create)) is None:
        return None
    digest = hmac.new(key, digestmod="sha256")
    for name, places in sorted(files.items()):
        parts += [name.encode(), *(part for place in places for part in (place.encode(), Path(place).read_bytes()))]
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _named(config: bytes, spec: bytes) -> list[str]:
    """Modules and files of code that a run's files name."""
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.create(config.decode()))
        ids = [stored["env"]["id"], json.loads(spec)["env_id"] if spec else ""]
        names = [stored.get("callbacks") or [], stored["env"].get("kwargs") or {}]
    except Exception:  # no configuration of an agent
        return []
    found = [str(env_id).rpartition(":")[0] for env_id in ids if ":" in str(env_id)]
    for text in code_named_in(names):
        module = text.partition(":")[0] if ":" in text else text.rpartition(".")[0]
        found.append(text if os.path.exists(text) else module)
    return found


def _files(name: str) -> list[str]:
    """The files that importing a module, or loading a file of code, runs first; none where there is no such thing."""
    if os.path.isfile(name):
        return [os.path.realpath(name)]
    files: list[str] = []
    parts, places = name.split("."), None
    for depth in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:depth]), places)
        if spec is None:
            return []
        places = list(spec.submodule_search_locations or [])
        if spec.has_location and spec.origin:
            files.append(os.path.realpath(spec.origin))
    return files


def _spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Where a module is, found as an import would find it; nothing is imported."""
    for finder in sys.meta_path:
        with suppress(ImportError, ValueError, AttributeError):
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
    folder = folder_of_modules()
    return PathFinder.find_spec(name, [folder]) if places is None and folder is not None else None


def _key(create: bool) -> bytes | None:
    """The user's key, which nobody else may read."""
    path = user_folder("config") / "key"
    if create and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        others = about.st_uid != os.getuid() or about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        key = file.read(KEY_BYTES + 1)
    if others or len(key) != KEY_BYTES:
        logger.warning("%s is no key of yours alone (mode 600): remove it, and a new one is made", path)
        return None
    return key
