"""Every setting of every verb: a value that is none, a number out of range and a misspelt key end in one line.

The cases are drawn from the fields of the settings themselves, so that a new key is tested by being there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from malformed import FIT_NAMES, OPTIONAL, _needed
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rppdyn.cli import VERBS, main
from rppdyn.jobs.config import command, compose
from rppdyn.jobs.config.compose import SCHEMAS
from rppdyn.settings import ConfigError, defaults, fields_of, format_value, keys_of, read

POOL: tuple[Any, ...] = ({"a": 1}, "nonsense", -1, 0, 0.5, -0.5, True, None, 2**64, 1e39, float("nan"), float("inf"),
                         [], [-1], "")  # fmt: skip
NEEDED = {"fit_transition": ["dataset=some/data-v0"], "fit_trajectories": ["task.data=own.csv", "task.state=[x]"],
          "bound_image": ["task=digit"]}  # fmt: skip
FREE = {"task.generators"}
"""Keys that take what they are given."""
PLACES = {"predict": ["a", "--data", "b.npz", "--out", "c.npz"],
          "audit": ["m:f", "--model", "r.xml", "--observation", "o.yaml"]}  # fmt: skip
FLAGS = {f"{verb.title().replace('-', '')}Config": verb for verb in VERBS if verb not in FIT_NAMES}


def wrong_values(item: Any, pool: Sequence[Any] = POOL) -> list[Any]:
    """Values of a pool that a field's own type and limits refuse."""
    adapter: TypeAdapter[Any] = TypeAdapter(
        Annotated[item.annotation, None, *item.metadata], config=ConfigDict(coerce_numbers_to_str=True)
    )
    found = []
    for value in pool:
        try:
            adapter.validate_python(value)
        except (ValidationError, ConfigError):
            found.append(value)
    return found


def message(name: str, words: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        compose.composed(name, [*NEEDED.get(name, []), *words])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_refuses_what_it_is_not(name):
    for key, item in keys_of(SCHEMAS[name]).items():
        values = wrong_values(item)
        assert bool(values) != (key in FREE), key
        assert item.annotation not in (int, float) or any(value != value for value in values), key  # nan
        for value in values:
            content = defaults(SCHEMAS[name])
            *sections, last = key.split(".")
            inner = content
            for section in sections:
                inner[section] = inner.get(section) or {}
                inner = inner[section]
            inner[last] = value
            with pytest.raises(ConfigError) as caught:
                read(SCHEMAS[name], content)
            said = str(caught.value)
            missing = said.endswith("is missing: give it a value")  # of a choice, which no default has
            assert "\n" not in said and (missing or said.startswith((f"{key}=", f"{key}["))), said


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_misspelt_key_is_said_with_its_neighbour(name):
    keys = list(keys_of(SCHEMAS[name]))
    for key in random.Random(0).sample(keys, 4):
        if key not in FREE and not key.startswith(OPTIONAL):
            assert f"unknown key '{key}q' (did you mean '" in message(name, [f"{key}q=1"])


def command_lines() -> list[tuple[str, list[str]]]:
    """Command lines with one wrong value each: a few keys of every verb with overrides, every flag that has limits."""
    rng, lines = random.Random(0), []
    for name, schema in SCHEMAS.items():
        keys = [key for key in keys_of(schema) if key not in FREE and not key.startswith((*OPTIONAL, "env.id"))]
        for key in rng.sample(keys, 2):
            value = rng.choice([v for v in wrong_values(keys_of(schema)[key]) if v not in ("", [])])
            lines.append((f"{key}=", [schema.verb, *NEEDED.get(name, []), f"{key}={format_value(value)}"]))
    for config, verb in FLAGS.items():
        for key, item in fields_of(getattr(command, config)).items():
            extra = item.json_schema_extra
            values = wrong_values(item, ["-2", "many", "1e400"])
            if isinstance(extra, dict) and "flag" in extra and item.annotation is not bool and values:
                flag = extra["flag"] or f"--{key.replace('_', '-')}"
                lines.append((flag, [verb, *PLACES.get(verb, _needed(verb)), f"{flag}={rng.choice(values)}"]))
    return lines


LINES = command_lines()


@pytest.mark.parametrize(("key", "words"), LINES, ids=[" ".join(words)[:60] for _, words in LINES])
def test_a_wrong_value_ends_in_one_line_with_status_2_and_nothing_is_made(key, words, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    status = main(words)
    out, err = capfd.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"rppdyn: error: {key.removesuffix('=')}")
    assert list(tmp_path.iterdir()) == []
