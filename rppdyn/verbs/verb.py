"""What a verb of the command line is, and how what a user did wrong is said."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import NoReturn, get_args, get_type_hints

from rppdyn.errors import (
    UserCodeError,
    UserError,
    by_user,
    is_out_of_memory,
    is_out_of_space,
    one_line,
    place_in_users_code,
)

USER_ERROR = 2
INTERRUPTED = 130
TRACEBACK = "RPPDYN_TRACEBACK"
"""The variable that says whether tracebacks are printed: not 0, and not empty."""


class UsageError(UserError):
    """The command line can't be understood."""


LONGEST = 2000
"""Characters of a complaint: longer values, which it repeats, are cut in the middle."""


class Parser(argparse.ArgumentParser):
    describe: Callable[[], str] | None = None  # what the help text ends with, made only when it is shown

    def format_help(self) -> str:
        if self.describe is not None:
            self.epilog = self.describe()
        return super().format_help()

    def add_fields(self, schema: type) -> None:
        """Take the words and flags that fields of a dataclass are; a number's default stands behind its help."""
        kinds = get_type_hints(schema)
        for item in fields(schema):
            words = dict(item.metadata)
            if not words:
                continue
            if "flag" not in words:
                self.add_argument(item.name, **words)
                continue
            flag = words.pop("flag") or f"--{item.name.replace('_', '-')}"
            if kinds[item.name] is bool:
                words["action"] = "store_false" if item.default else "store_true"
                del words["metavar"]
            elif item.default is MISSING:
                words["required"] = True
            else:
                words["default"] = item.default
            if int in (kinds[item.name], *get_args(kinds[item.name])):
                words["type"] = int
            if kinds[item.name] is int:
                words["help"] += f" ({item.default})"
            self.add_argument(flag, dest=item.name, **words)

    def parse_intermixed_args(self, args=None, namespace=None):
        """As argparse does it; empty words stand for nothing that a verb asks for, and are refused."""
        found = super().parse_intermixed_args(args, namespace)
        for action in self._actions:
            given = getattr(found, action.dest, None)
            if given == [] and action.option_strings:  # as argparse reads --out=--
                given = ""
            for value in given if isinstance(given, list) else [given]:
                if isinstance(value, str) and not value.strip():
                    name = action.option_strings[0] if action.option_strings else action.metavar
                    self.error(f"{name} is empty: give a value, or leave it out")
        return found

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


HELP = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True)
class Verb:
    """A word after `rppdyn`: what it does, its arguments, and the function that does it."""

    summary: str
    arguments: Callable[[Parser], None]
    execute: Callable[[argparse.Namespace], int]


def _printable(text: str) -> str:
    """A text for one line of a terminal, which control characters of a user's words would change."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def report_error(error: Exception, of: str = "") -> int:
    """Say what a user did wrong, and in which of several runs, in one line; raise again what wasn't the user."""
    if not by_user(error):
        raise error
    said = one_line(error)
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        traceback.print_exception(error)
    elif isinstance(error, UserCodeError) or place_in_users_code(error) is not None:
        said += " (--traceback shows the rest)"
    if is_out_of_memory(error):
        said = f"not enough memory for sizes as they are configured: {said or type(error).__name__}; give smaller ones"
    if is_out_of_space(error):
        said = f"no room for a file ({said}): make room, or raise the limit, and type it again, a run under way with --resume"
    print(f"rppdyn: error: {_printable(of + said)}", file=sys.stderr)
    return USER_ERROR
