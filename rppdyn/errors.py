"""Which exceptions tell a user something."""

from __future__ import annotations

import dis
import errno


def by_user(error: BaseException) -> bool:
    """Whether an exception says what its reader did wrong: a `raise` statement of this package made it.

    What does not fit in memory or on the disk is the user's, too. A ValueError of NumPy's, or of `int`, has its last Python
    frame in this package, but no `raise` there. An OSError is where it names a file.
    """
    if is_out_of_memory(error) or is_out_of_space(error):
        return True
    if isinstance(error, RuntimeError):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    frame = traceback.tb_frame
    module = str(frame.f_globals.get("__name__", ""))
    # the command line is run by `python -m rppdyn.cli` too
    ours = module.split(".")[0] == "rppdyn" or frame.f_globals.get("__package__") == "rppdyn"
    return ours and frame.f_code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether something did not fit in memory; torch says so of the CPU's by a RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def is_out_of_space(error: BaseException) -> bool:
    """Whether a disk, or what its user or one file may have of it, is full; torch says so, writing, by a RuntimeError."""
    if isinstance(error, RuntimeError):
        return "PytorchStreamWriter failed" in str(error) or "unexpected pos" in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
