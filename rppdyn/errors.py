"""Errors that a user can fix, and the rules for importing the user's modules.

A run, a dataset or a symmetry spec may name its environment as `module:EnvId`. Making that environment imports the module, and
this may run any code. A module that the user typed or imported needs no trust; one that only a file names needs the user's.
`require_trust` checks this before every environment is made.
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
    """An error that the user can fix; the message is one line with the fault, the place and the remedy."""


class DivergedError(UserError):
    """Weights, losses, outputs, gradients or an optimiser's state are not finite."""


class UserCodeError(RuntimeError):
    """The user's code failed in another process; the message says where."""


def one_line(error: BaseException) -> str:
    """An exception's message in one line, with the place where the user's own code failed, if it did."""
    place = place_in_users_code(error)
    message = " ".join(str(error).split())
    return message if place is None else f"{place}: {type(error).__name__}{': ' * bool(message)}{message[:500]}"


def reason(error: BaseException) -> str:
    """The first line of a library's complaint about a file; for refused pickles without the advice to load them."""
    if "Weights only load failed" in str(error) or "weights_only" in str(error):
        return "it holds pickled objects, which could run code"
    if place_in_users_code(error) is not None:
        return one_line(error)
    message, kind = (str(error).strip().splitlines() or [""])[0][:200], type(error).__name__
    return message if message and isinstance(error, ValueError | OSError) else f"{kind}{': ' * bool(message)}{message}"


@contextmanager
def reading(name: object, remedy: str, form: str = "") -> Iterator[None]:
    """Turn any exception of a library that reads a file or an object in the block into a UserError of one line.

    Only calls of the library belong into the block: a fault of this package there would be blamed on the file.

    Args:
        form: the expected form, "as an HDF5 file".
    Raises:
        UserError: naming the file, the library's complaint and the remedy; a UserError in the block passes unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        cause = error.strerror if isinstance(error, OSError) and error.filename else None
        remedy = "check its path" if isinstance(error, FileNotFoundError) else remedy
        raise UserError(f"{name} can't be read{form and f' {form}'} ({cause or reason(error)}); {remedy}") from error


def place_in_users_code(error: BaseException) -> str | None:
    """`file:line` of the user's code that raised an error or called the code that did.

    None if no code of the user took part, or if a `raise` statement of this package refused something. Code is the user's
    unless it belongs to this package, to Python or to an installed package.
    """
    if _is_raised_here(error):
        return None
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{_display_path(error.filename)}:{error.lineno}"
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame) and _is_users(frame.f_code.co_filename):
            place = f"{_display_path(frame.f_code.co_filename)}:{line}"
    return place


def is_users_class(kind: type) -> bool:
    """Return whether a class is defined in a module of the user."""
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
    # under `python -m rppdyn.cli` the module of the command line is called __main__
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] == "rppdyn" or frame.f_globals.get("__package__") == "rppdyn"


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is the user's to fix: a UserError, or an error in the user's own code.

    So are exhausted memory or disk, a missing drawing library, an OSError with a file name, and a ValueError or TypeError of a
    `raise` statement of this package, by which its mathematics refuse arguments. An error of NumPy or of `int` has none.
    """
    theirs = (is_out_of_memory, is_out_of_space, is_from_drawing, place_in_users_code)
    if isinstance(error, UserError | UserCodeError) or any(is_theirs(error) for is_theirs in theirs):
        return True
    if isinstance(error, OSError):
        return error.filename is not None
    return isinstance(error, ValueError | TypeError) and _is_raised_here(error)


def _is_raised_here(error: BaseException) -> bool:
    """Return whether a `raise` statement of this package made an exception."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not _is_ours(last.tb_frame):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory was exhausted; for the CPU's memory torch raises a RuntimeError."""
    refused = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return refused or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def is_out_of_space(error: BaseException) -> bool:
    """Return whether a disk, a quota or a limit of file size is exhausted; when writing, torch raises a RuntimeError."""
    if isinstance(error, RuntimeError):
        return "PytorchStreamWriter failed" in str(error) or "unexpected pos" in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_from_drawing(error: BaseException) -> bool:
    """Return whether MuJoCo failed to load the drawing library that the environment variable MUJOCO_GL names."""
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_name == "<module>" and "mujoco/rendering" in code.co_filename for code in codes)


# -- modules of the user's own -----------------------------------------------------------------------------------------

_folder: ContextVar[str | None] = ContextVar("folder of the user's modules", default=None)


class UntrustedError(UserError):
    """Only a file names a module, and the user has not trusted it."""


@contextmanager
def modules_of(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let :func:`search_modules` find modules of a folder in the block; without a call nothing there can be imported."""
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
    """The folder of :func:`modules_of` within its block; otherwise None."""
    return _folder.get()


def search_modules() -> None:
    """Append the folder of :func:`modules_of` to the search path, last, so that its files hide no installed module."""
    folder = _folder.get()
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


DATA = (".xml", ".mjcf", ".urdf", ".mjb", ".stl", ".obj", ".msh", ".png", ".jpg", ".ktx", ".hdr", ".npy", ".npz", ".csv",
        ".txt", ".json", ".yaml", ".yml", ".toml", ".h5", ".hdf5")  # fmt: skip
"""Suffixes of files of numbers, text or models; other files, such as pickles, may contain code."""


def code_named_in(options: Any) -> Iterator[str]:
    """Find texts in nested options that an environment may import or load: `module:Class`, `module.Class`, files of code."""
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
    """Refuse an environment that only a file names if making it would import a module named there or in its options.

    Registered environments are allowed: Gymnasium, an installed package, this package or a module imported by the user has
    registered them.

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
    if (code := next(code_named_in(options or {}), None)) is not None:
        raise UntrustedError(
            f"{os.fspath(file)} gives the environment {env_id} the option {code!r}, which may be code that it runs: {advice}"
        )
