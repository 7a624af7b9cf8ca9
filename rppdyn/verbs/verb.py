"""What a verb of the command line is, and how what a user did wrong is said."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from rppdyn.errors import by_user, is_out_of_memory, is_out_of_space

USER_ERROR = 2
INTERRUPTED = 130


class UsageError(ValueError):
    """The command line can't be understood."""


class Parser(argparse.ArgumentParser):
    describe: Callable[[], str] | None = None  # what the help text ends with, made only when it is shown

    def format_help(self) -> str:
        if self.describe is not None:
            self.epilog = self.describe()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


HELP = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True)
class Verb:
    """A word after `rppdyn`: what it does, its arguments, and the function that does it."""

    summary: str
    arguments: Callable[[Parser], None]
    execute: Callable[[argparse.Namespace], int]


def report_error(error: Exception, of: str = "") -> int:
    """Say what a user did wrong, and in which of several runs, in one line; raise again what wasn't the user."""
    if not by_user(error):
        raise error
    said = " ".join(str(error).split())
    if is_out_of_memory(error):
        said = f"not enough memory for sizes as they are configured: {said or type(error).__name__}; give smaller ones"
    if is_out_of_space(error):
        said = f"no room for a file ({said}): make room, or raise the limit, and type it again, a run under way with --resume"
    print(f"rppdyn: error: {of}{said}", file=sys.stderr)
    return USER_ERROR
