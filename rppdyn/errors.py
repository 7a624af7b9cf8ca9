"""Errors that a user can mend, and the gate to modules of the user's own: where they are searched for, and who may name them.

A run, a dataset or a symmetry spec may name its environment as `module:EnvId`, and making that imports the module, which
can run any code. What the user has typed, or imported, is imported; what a file alone names needs the user's trust.
`require_trust` is the one gate: environments are made behind it.
"""

from __future__ import annotations

import dis
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any


class UserError(ValueError):
    """Something that a user did, or can mend; the message says in one line what, where and the remedy."""


class DivergedError(UserError):
    """Weights, losses, outputs, gradients or an optimiser's state that are no finite numbers."""


class UserCodeError(RuntimeError):
    """Code of the user's failed in another process; the message says where."""


def one_line(error: BaseException) -> str:
    """Return an exception's message in one line, and the place where the user's own code failed, if it did."""
    place = place_in_users_code(error)
    message = " ".join(str(error).split())
    return message if place is None else f"{place}: {type(error).__name__}{': ' * bool(message)}{message[:500]}"


def reason(error: BaseException) -> str:
    """Return the first line of what a library says of a file; of pickles that it refuses, not its advice to load them."""
    if "Weights only load failed" in str(error) or "weights_only" in str(error):
        return "it holds pickled objects, which could run code"
    if place_in_users_code(error) is not None:
        return one_line(error)
    message, kind = (str(error).strip().splitlines() or [""])[0][:200], type(error).__name__
    return message if message and isinstance(error, ValueError | OSError) else f"{kind}{': ' * bool(message)}{message}"


@contextmanager
def reading(name: object, remedy: str, form: str = "") -> Iterator[None]:
    """Refuse in one line a file, or an object, of somebody's at which a library raises whatever it likes in the block.

    Args:
        form: what it should be, "as an HDF5 file".
    Keep the block to calls of the library: what this package does wrong there would be taken for the file's fault.

    Raises:
        UserError: naming the thing, what the library says, and the remedy; one that the block raises passes.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        cause = error.strerror if isinstance(error, OSError) and error.filename else None
        raise UserError(f"{name} can't be read{form and f' {form}'} ({cause or reason(error)}); {remedy}") from error


def place_in_users_code(error: BaseException) -> str | None:
    """`file:line` where a module of the user's raised, or called what did; None where none took part, or this package refused.

    A module is the user's unless it is of this package, of Python or installed.
    """
    if _raised_here(error):
        return None
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{_display_path(error.filename)}:{error.lineno}"
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame) and _is_users(frame.f_code.co_filename):
            place = f"{_display_path(frame.f_code.co_filename)}:{line}"
    return place


def is_users_class(kind: type) -> bool:
    """Return whether a class is defined in a module of the user's."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__.split(".")[0] != "rppdyn" and file is not None and _is_users(file)


def place_of_method(kind: type, name: str) -> str:
    """`file:line` where a class defines a method."""
    code = getattr(kind, name).__code__
    return f"{_display_path(code.co_filename)}:{code.co_firstlineno}"


def _is_users(file: str) -> bool:
    path = os.path.realpath(file)
    if not os.path.isfile(path):  # compiled from another place, or from a text
        return False
    python = (os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))
    return not installed and not any(path.startswith(root + os.sep) for root in python)


def _display_path(file: str) -> str:
    """A file's path from the current folder, where it is below it."""
    path, here = os.path.abspath(file), os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    # the command line is run by `python -m rppdyn.cli` too
    return module.split(".")[0] == "rppdyn" or frame.f_globals.get("__package__") == "rppdyn"


def is_user_error(error: BaseException) -> bool:
    """Return whether an exception says what its reader did wrong: a UserError, or one of the user's own code.

    What does not fit in memory or on the disk is the user's, too, and an OSError that names a file. So is a plain ValueError or
    TypeError that a `raise` statement of this package made, as its mathematics refuse arguments; one of NumPy's, or of `int`,
    has its last Python frame in this package, but no `raise` there.
    """
    if is_out_of_memory(error) or is_out_of_space(error) or isinstance(error, UserError | UserCodeError):
        return True
    if place_in_users_code(error) is not None:
        return True
    if isinstance(error, RuntimeError):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    return isinstance(error, ValueError | TypeError) and _raised_here(error)


def _raised_here(error: BaseException) -> bool:
    """Return whether a `raise` statement of this package made an exception."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not _is_ours(last.tb_frame):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether something did not fit in memory; torch says so of the CPU's by a RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def is_out_of_space(error: BaseException) -> bool:
    """Return whether a disk, a quota or a file's limit is full; torch says so, writing, by a RuntimeError."""
    if isinstance(error, RuntimeError):
        return "PytorchStreamWriter failed" in str(error) or "unexpected pos" in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# -- modules of the user's own -----------------------------------------------------------------------------------------

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


def folder_of_modules() -> str | None:
    """The folder of :func:`modules_of`, inside of its block."""
    return _folder.get()


def search_modules() -> None:
    """From now on search the folder of :func:`modules_of` too, last: nothing installed is hidden by a file that lies there."""
    folder = _folder.get()
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


DATA = (".xml", ".mjcf", ".urdf", ".mjb", ".stl", ".obj", ".msh", ".png", ".jpg", ".ktx", ".hdr", ".npy", ".npz", ".csv",
        ".txt", ".json", ".yaml", ".yml", ".toml", ".h5", ".hdf5")  # fmt: skip
"""Ends of names of files that hold numbers, text or a model; others, pickles for one, may hold code."""


def code_named_in(options: Any) -> Iterator[str]:
    """Texts in nested options that an environment may import or load: `module:Class`, `module.Class`, files of code."""
    if isinstance(options, Mapping):
        options = options.values()
    if isinstance(options, str):
        is_name = re.fullmatch(r"[A-Za-z_][\w.]*[.:][A-Za-z_]\w*(\.\w+)*", options.strip())
        is_file = re.search(r"[/\\]|^\.", options) and re.search(r"\.[A-Za-z]\w*$", options.strip())
        if (is_name or is_file) and not options.strip().lower().endswith(DATA):
            yield options.strip()
    elif isinstance(options, Iterable):
        for option in options:
            yield from code_named_in(option)


def require_trust(env_id: str, file: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
    """Refuse an environment that only a file names, unless making it imports no module by that name or by an option's.

    Those that are registered have been so by Gymnasium, by an installed package, by this one, or by a module that the user has
    imported.

    Raises:
        UntrustedError: naming the file and the module.
    """
    import gymnasium

    advice = "add --trust (in Python trust=True) if you know where it is from"
    module, colon, name = env_id.rpartition(":")
    if colon and not (module in sys.modules and name in gymnasium.registry):
        raise UntrustedError(
            f"{os.fspath(file)} names the environment {env_id}, and making that runs the module {module!r}: {advice}"
        )
    for code in code_named_in(options or {}):
        raise UntrustedError(
            f"{os.fspath(file)} gives the environment {env_id} the option {code!r}, which may be code that it runs: {advice}"
        )
