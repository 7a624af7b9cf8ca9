"""A line of help for each key: the comment beside its field in the dataclass, or above it."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from dataclasses import fields
from functools import cache
from typing import Any, get_args

from rppdyn.jobs.config.schemas import is_section, kinds_of

__all__ = ["help_of"]


def help_of(schema: type, prefix: str = "") -> dict[str, str]:
    """Lines of help by dotted key; "" for one whose field has no comment."""
    found: dict[str, str] = {}
    own = _comments_of(schema)
    for name, kind in kinds_of(schema).items():
        section = next((part for part in (kind, *get_args(kind)) if is_section(part)), None)
        if section is None:
            found[f"{prefix}{name}"] = own.get(name, "")
        else:
            found |= help_of(section, f"{prefix}{name}.")
    return found


@cache
def _comments_of(schema: type) -> dict[str, str]:
    """Comments of a dataclass's fields and of those that it inherits; of fields that are made, their metadata."""
    found = {item.name: str(item.metadata["help"]) for item in fields(schema) if "help" in item.metadata}
    for kind in reversed(schema.__mro__):
        if (
            "__dataclass_fields__" in vars(kind) and kind.__module__ != "types"
        ):  # made by make_dataclass, without a source
            found |= {name: text for name, text in _own_comments(kind).items() if text or name not in found}
    return found


def _own_comments(kind: Any) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {number for number in comments if source.splitlines()[number - 1].lstrip().startswith("#")}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for item in definition.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            last = item.end_lineno or item.lineno
            lines = [comments[n] for n in range(item.lineno, last + 1) if n in comments]
            above: list[str] = []
            number = item.lineno - 1
            while not lines and number in alone:
                above.insert(0, comments[number])
                number -= 1
            found[item.target.id] = " ".join(lines or above)
    return found
