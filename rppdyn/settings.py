"""Settings: dataclasses that hold each key's type, range, default and help, and refuse a value in one line.

`pydantic` validates them. A class of settings is made by `@settings`; a key of it is a field such as

    tau: Positive = setting(0.005, "share of the critics that targets move by at each update", le=1)

and a check of several keys is a `ConfigError` that `__post_init__` raises. Nothing here imports torch.
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
"""Largest magnitude of a number that float32 is to hold; an inverse of less than the smallest would be infinite."""


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _variance(value: float) -> float:
    if value and not 1 / LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError("must be a variance: zero (the pathway is removed) or positive, from 1e-38 to 1e38")
    return value


Integer = Annotated[int, BeforeValidator(_no_flag), Field(lt=2**63)]
Natural = Annotated[Integer, Field(ge=0)]
Count = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_no_flag), Field(allow_inf_nan=False)]
Nonnegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0, le=LARGEST_NUMBER)]
Variance = Annotated[Number, AfterValidator(_variance)]
Text = Annotated[str, Strict()]
"""A string where a number, too, would mean something; elsewhere a number is taken as one."""

Settings = TypeVar("Settings", bound=type)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """Return a field with its default, `...` where it has none, its line of help, and limits as `pydantic.Field` has them."""
    return Field(default, description=help, **limits)


@dataclass_transform(kw_only_default=True)
def settings(cls: Settings) -> Settings:
    """Make a class of settings, whose constructor raises a ConfigError of one line."""
    validated: Any = dataclass(
        config=ConfigDict(extra="forbid", coerce_numbers_to_str=True), kw_only=True, unsafe_hash=True
    )(cls)
    init = validated.__init__

    @wraps(init)
    def construct(self: Any, **content: Any) -> None:
        try:
            init(self, **{key: _paths_as_text(value) for key, value in content.items()})
        except ValidationError as error:
            raise ConfigError(explain(error, type(self))) from error

    validated.__init__ = construct
    return validated


def _paths_as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_paths_as_text, value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def settle(config: Any, **values: Any) -> None:
    """Set keys that follow from others, while a configuration is made."""
    for key, value in values.items():
        object.__setattr__(config, key, value)


def read(schema: type, content: Any) -> Any:
    """Return the settings that a nested dictionary holds.

    Raises:
        ConfigError: one line that names the key, the value and the remedy.
    """
    try:
        return TypeAdapter(schema).validate_python(content)
    except ValidationError as error:
        raise ConfigError(explain(error, schema)) from error


def fields_of(schema: type) -> dict[str, FieldInfo]:
    """The fields of a class of settings; of an older dataclass, none."""
    return getattr(schema, "__pydantic_fields__")  # noqa: B009


def section_of(kind: Any) -> type | None:
    """The class of settings that a type is, or may be; None where it is none."""
    return next(
        (each for each in (kind, *get_args(kind)) if isinstance(each, type) and is_pydantic_dataclass(each)), None
    )


@cache
def keys_of(schema: type, prefix: str = "") -> dict[str, FieldInfo]:
    """Fields by dotted key, sections inside."""
    keys: dict[str, FieldInfo] = {}
    for name, item in fields_of(schema).items():
        section = section_of(item.annotation)
        keys |= {prefix + name: item} if section is None else keys_of(section, f"{prefix}{name}.")
    return keys


def defaults(schema: type) -> dict[str, Any]:
    """Defaults as a nested dictionary, without the keys that have none."""
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
"""Phrases of pydantic, and how they read here."""


@contextmanager
def keys_of_sections(**sections: Any) -> Iterator[None]:
    """Put a section in front of a key of it that a constructor in the block refuses: `model.free_variance=...`."""
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


# -- one line ----------------------------------------------------------------------------------------------------------


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """` (did you mean 'x'?)`, or nothing where no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_key(key: str, schema: type) -> str:
    """Return the message for a key that a class of settings lacks; it names the right one, in another section too."""
    known = [*keys_of(schema), *fields_of(schema)]
    last = {name.rpartition(".")[2]: name for name in known}
    hint = did_you_mean(last.get(key.rpartition(".")[2], key), known, cutoff=0.75)
    if not hint and (near := difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.75)):
        hint = f" (did you mean {last[near[0]]!r}?)"
    verb = getattr(schema, "verb", "")
    return f"unknown key {key!r}{hint}; `rppdyn {verb} --help` lists the keys"


def written(value: Any) -> str:
    """Return a value as an override would have it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{written(each)}' for key, each in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def explain(error: ValidationError, schema: type) -> str:
    """Return what is wrong with the first wrong key in one line: key, value, what it must be, the nearest word."""
    errors: list[Any] = error.errors(include_url=False)
    places = [(each, *_place(schema, each["loc"])) for each in errors]
    base = places[0][1].partition("[")[0]
    places = [each for each in places if each[1].partition("[")[0] == base]  # several of a union, one for each member
    places = [each for each in places if each[1] != base][:1] or places  # an entry of a list says more
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
    """Return a key and its value as they were given, on a command line."""
    extra = item.json_schema_extra if item is not None else None
    if not isinstance(extra, dict):
        return f"{key}={written(value)}"
    name = extra.get("flag") or f"--{key.replace('_', '-')}"
    return f"{name if 'flag' in extra else extra['metavar']} {value}"


def _requirement(error: Mapping[str, Any], item: FieldInfo | None) -> str:
    """Return what a value must be, from pydantic's message, or from its help where that names a pattern."""
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
    """Return the dotted key of an error's place and its field, without the names that pydantic has for a union's members."""
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
