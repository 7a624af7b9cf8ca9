"""Which exceptions tell a user something."""

from __future__ import annotations

import dis


def by_user(error: BaseException) -> bool:
    """Whether an exception says what its reader did wrong: a `raise` statement of this package made it.

    A ValueError of NumPy's, or of `int`, has its last Python frame in this package too, but no `raise` there. An OSError
    does where it names a file.
    """
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
