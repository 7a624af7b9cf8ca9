"""Files of configurations: each default is written once, in a dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rppdyn.jobs.config import compose
from rppdyn.settings import keys_of

FOLDER = Path(compose.__file__).parents[2] / "configs"
PLACES = {name: FOLDER.joinpath(*module.split(".")[2:]) for name, module in compose.CONFIGS.items()}


def files(name: str) -> dict[Path, str]:
    """The files of a configuration, with the group that each is a choice of; "" of those that set any key."""
    place = PLACES[name]
    found = {place / f"{name}.yaml": ""}
    for group in compose.groups(name):
        for choice in compose.choices(group, name):
            path = place / group / f"{choice}.yaml"
            found[path] = "" if path.read_text().startswith("# @package _global_") else group
    return found


def settings(path: Path, group: str) -> dict[str, Any]:
    """What a file sets, by dotted key."""

    def flat(content: dict[str, Any], prefix: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for key, value in content.items():
            own |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        return own

    content: Any = OmegaConf.to_container(OmegaConf.load(path)) or {}
    skipped = ("hydra",) if group == "" else ()
    return flat({k: v for k, v in content.items() if k not in ("defaults", *skipped)}, f"{group}." if group else "")


def below(path: Path) -> set[str]:
    """The keys that choices in a file's own list of defaults set, which it may set back."""
    keys: set[str] = set()
    for entry in OmegaConf.load(path).get("defaults", []):
        if isinstance(entry, str):
            group, other = path.parent.name, path.with_name(f"{entry}.yaml")
        else:
            (name, choice), *_ = entry.items()
            group = str(name).removeprefix("override ").removeprefix("/")
            other = path.parent.parent / group / f"{choice}.yaml"
        if other.exists():  # and no dataclass, and none of Hydra's own
            keys |= set(settings(other, "" if group == "experiment" else group))
    return keys


CASES = [(name, path) for name in compose.SCHEMAS for path in files(name)]


@pytest.mark.parametrize(("name", "path"), CASES, ids=[f"{name}-{path.stem}" for name, path in CASES])
def test_a_file_holds_what_differs_from_the_dataclass(name, path):
    given, keys = settings(path, files(name)[path]), keys_of(compose.SCHEMAS[name])
    again = [
        key for key, value in given.items() if key in keys and key not in below(path) and value == keys[key].default
    ]
    assert not again, (
        f"{path.relative_to(FOLDER)} repeats defaults of {compose.SCHEMAS[name].__name__}: {', '.join(again)}"
    )
