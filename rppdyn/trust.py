"""Modules of the user's own: where they are searched for, and those that only a file names.

A run, a dataset or a symmetry spec may name its environment as `module:EnvId`, and making that imports the module, which
can run any code. What the user has typed, or imported, is imported; what a file alone names needs the user's trust.
`require_trust` is the one gate: environments are made behind it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rppdyn.errors import UserError

__all__ = ["UntrustedError", "modules_of", "require_trust", "search_modules"]

_folder: ContextVar[str | None] = ContextVar("folder of the user's modules", default=None)


class UntrustedError(UserError):
    """A file alone names a module, and nobody has said that it may be imported."""


@contextmanager
def modules_of(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let :func:`search_modules` find modules of a folder in the block; without that call nothing there is imported."""
    if _folder.get() is not None:
        yield
        return
    path, before = os.path.abspath(folder), list(sys.path)
    token = _folder.set(path)
    try:
        yield
    finally:
        _folder.reset(token)
        if path not in before and path in sys.path:
            sys.path.remove(path)


def search_modules() -> None:
    """From now on search the folder of :func:`modules_of` too, last: nothing installed is hidden by a file that lies there."""
    folder = _folder.get()
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


def require_trust(env_id: str, file: str | os.PathLike[str]) -> None:
    """Refuse an environment that only a file names, unless making it imports no module by that name.

    Those that are registered have been so by Gymnasium, by an installed package, by this one, or by a module that the user has
    imported.

    Raises:
        UntrustedError: naming the file and the module.
    """
    import gymnasium

    module, colon, name = env_id.rpartition(":")
    if colon and not (module in sys.modules and name in gymnasium.registry):
        raise UntrustedError(
            f"{os.fspath(file)} names the environment {env_id}, and making that runs the module {module!r}: add --trust "
            "(in Python trust=True) if you know where it is from"
        )
