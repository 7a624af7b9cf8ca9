"""Settings: dataclasses with the type, range, default and help of each key, which refuse a wrong value in one line.

`pydantic` validates them. `@settings` makes a class of settings; each key is a field such as

    tau: Positive = setting(0.005, "share of the way from target critics to critics at each update", le=1)

and `__post_init__` raises a `ConfigError` about a combination of keys. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic.fields import FieldInfo

from rppdyn.errors import UserError


class ConfigError(UserError):
    """A configuration can't be used; the message names the key, the value and the remedy."""


LARGEST_NUMBER = 1e38
"""Largest magnitude of a setting; its inverse is still a finite number in float32."""


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _variance(value: float) -> float:
    if value and not 1 / LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError("must be a variance: zero (the pathway is removed) or positive, from 1e-38 to 1e38")
    return value


Integer = Annotated[int, BeforeValidator(_refuse_bool), Field(lt=2**63)]
Natural = Annotated[Integer, Field(ge=0)]
Count = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Nonnegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0, le=LARGEST_NUMBER)]
Variance = Annotated[Number, AfterValidator(_variance)]
Text = Annotated[str, Strict()]
"""A string for a key that also takes numbers; for other keys a number is converted to a string."""

Settings = TypeVar("Settings", bound=type)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field with a default (`...` for none), a line of help, and limits of `pydantic.Field`."""
    return Field(default, description=help, **limits)


@dataclass_transform(kw_only_default=True)
def settings(cls: Settings) -> Settings:
    """Make a class of settings; its constructor raises a ConfigError of one line."""
    validated: Any = dataclass(
        config=ConfigDict(extra="forbid", coerce_numbers_to_str=True), kw_only=True, unsafe_hash=True
    )(cls)
    init = validated.__init__

    @wraps(init)
    def construct(self: Any, **content: Any) -> None:
        with _refusing_in_one_line(type(self)):
            init(self, **{key: _paths_as_text(value) for key, value in content.items()})

    validated.__init__ = construct
    return validated


@contextmanager
def _refusing_in_one_line(schema: type) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ConfigError(explain(error, schema)) from error
    except UnicodeEncodeError as error:  # a refusal that quotes bytes that are not UTF-8, which pydantic can't pass on
        raise ConfigError(error.object) from error


def _paths_as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_paths_as_text, value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read(schema: type, content: Any) -> Any:
    """Read settings from a nested dictionary.

    Raises:
        ConfigError: one line with the key, the value and the remedy.
    """
    with _refusing_in_one_line(schema):
        return TypeAdapter(schema).validate_python(content)


def fields_of(schema: type) -> dict[str, FieldInfo]:
    """The fields of a class of settings."""
    return getattr(schema, "__pydantic_fields__")  # noqa: B009


def section_of(kind: Any) -> type | None:
    """The class of settings in a type or union; None if there is none."""
    return next(
        (each for each in (kind, *get_args(kind)) if isinstance(each, type) and is_pydantic_dataclass(each)), None
    )


@cache
def keys_of(schema: type, prefix: str = "") -> dict[str, FieldInfo]:
    """Fields by dotted key, those of sections included."""
    keys: dict[str, FieldInfo] = {}
    for name, item in fields_of(schema).items():
        section = section_of(item.annotation)
        keys |= {prefix + name: item} if section is None else keys_of(section, f"{prefix}{name}.")
    return keys


def defaults(schema: type) -> dict[str, Any]:
    """Defaults as a nested dictionary, without keys that have no default."""
    values: dict[str, Any] = {}
    for name, item in fields_of(schema).items():
        section = section_of(item.annotation)
        if section is not None and not get_args(item.annotation):
            values[name] = defaults(section)
        elif not item.is_required():
            values[name] = item.get_default(call_default_factory=True)
    return values


PYDANTIC_PHRASES = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "an integer",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid ": "a ",
}
"""Phrases of pydantic, with shorter ones to replace them."""


@contextmanager
def keys_of_sections(**sections: Any) -> Iterator[None]:
    """Add the section to a key that a constructor in the block refuses: `model.free_variance=...`."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        word = (re.match(r"\w+", str(error)) or [""])[0]
        for name, config in sections.items():
            if word in fields_of(type(config)):
                raise ConfigError(f"{name}.{error}") from error
        raise


# -- messages of one line ----------------------------------------------------------------------------------------------


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """` (did you mean 'x'?)`, or an empty string if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_key(key: str, schema: type) -> str:
    """The message for an unknown key, with the closest key of any section."""
    known = [*keys_of(schema), *fields_of(schema)]
    last = {name.rpartition(".")[2]: name for name in known}
    hint = did_you_mean(last.get(key.rpartition(".")[2], key), known, cutoff=0.75)
    if not hint and (near := difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.75)):
        hint = f" (did you mean {last[near[0]]!r}?)"
    verb = getattr(schema, "verb", "")
    return f"unknown key {key!r}{hint}; `rppdyn {verb} --help` lists the keys"


def format_value(value: Any) -> str:
    """Format a value as in an override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{format_value(item)}' for key, item in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def explain(error: ValidationError, schema: type) -> str:
    """Describe the first wrong key in one line: key, value, the requirement, the closest word."""
    errors: list[Any] = error.errors(include_url=False)
    places = [(each, *_place(schema, each["loc"])) for each in errors]  # of each error: itself, its key and its field
    base = places[0][1].partition("[")[0]  # the first key, without the index of a list's entry
    places = [each for each in places if each[1].partition("[")[0] == base]  # one error for each member of a union
    places = [each for each in places if each[1] != base][:1] or places  # prefer the error of a list's entry
    first, key, item = places[0]
    cause = first.get("ctx", {}).get("error")
    if first["type"] == "unexpected_keyword_argument":
        return unknown_key(key, schema)
    if isinstance(cause, ConfigError):
        return str(cause)
    if first["type"] == "missing":
        return f"{key} is missing: give it a value"
    requirements = list(dict.fromkeys(_requirement(each, item) for each, *_ in places))
    if key == base and item is not None and type(None) in get_args(item.annotation):
        requirements.append("be null")
    must = f"must {', or '.join(requirements).replace(', or be ', ', or ')}"
    return f"{_as_typed(key, item, first['input'])}: {cause if cause is not None and len(places) == 1 else must}"


def _as_typed(key: str, item: FieldInfo | None, value: Any) -> str:
    """A key and its value as on the command line."""
    extra = item.json_schema_extra if item is not None else None
    if not isinstance(extra, dict):
        return f"{key}={format_value(value)}"
    name = extra.get("flag") or f"--{key.replace('_', '-')}"
    return f"{name if 'flag' in extra else extra['metavar']} {value}"


def _requirement(error: Mapping[str, Any], item: FieldInfo | None) -> str:
    """The requirement on a value, from pydantic's message, or from the help of a key with a pattern."""
    if error["type"] == "string_pattern_mismatch" and item is not None:
        return f"be {item.description}"
    text = re.sub(r"^(Value error, |\w+ should )?(must )?", "", error["msg"])
    text = re.split(r", (?:unable|got)| after validation", text)[0]
    for words, plain in PYDANTIC_PHRASES.items():
        text = text.replace(words, plain)
    text = re.sub(r"\d{10,}", lambda number: f"{float(number[0]):.4g}", text)
    hint = did_you_mean(str(error["input"]), re.findall(r"'(.*?)'", text)) if error["type"] == "literal_error" else ""
    return text + hint


def _place(schema: type, loc: Iterable[str | int]) -> tuple[str, FieldInfo | None]:
    """The dotted key and the field of an error's place, without pydantic's names for members of a union."""
    key, item = "", None
    kind: Any = schema
    for part in loc:
        section = section_of(kind)
        if isinstance(part, int):
            key += f"[{part}]"
        elif section is not None:
            item = fields_of(section).get(part)
            key, kind = f"{key}.{part}", None if item is None else item.annotation
        elif dict in [get_origin(each) for each in (kind, *get_args(kind))] and not re.match(r"[a-z-]+\[.*\]$", part):
            key, kind = f"{key}.{part}", None
    return key.lstrip("."), item
