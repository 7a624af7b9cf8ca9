"""Data of the user's own: the keys that need no section, and what the tasks of such data have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rppdyn.jobs.config.checks import ConfigError

AUTO = "auto"
"""As a group: discovered; as a model: what follows from the group."""

TASKS = {"fit_dynamics": "trajectories", "fit_regression": "own", "fit_image": "own"}
"""The task that `data=` chooses, by the configuration's name."""
KEYS = {
    "fit_dynamics": ("data", "state", "positions", "velocities", "momenta", "controls", "time", "trajectory", "group", "rep",
                     "control_rep", "split"),
    "fit_regression": ("data", "inputs", "outputs", "group", "rep", "rep_out", "split"),
    "fit_image": ("data", "images", "labels", "targets", "split"),
}  # fmt: skip
"""Of the task, that may be given without its name."""


def own_words(name: str, words: Sequence[str], *, begun: bool = False) -> list[str]:
    """Overrides with the task said where `data=` says that it is the user's own, whose keys need no section.

    Args:
        name: of the configuration.
        begun: whether they are for a run that has a task already.
    Raises:
        ConfigError: a key of such data without `data=`, or another task beside it.
    """
    if name not in TASKS:
        return list(words)
    given = any(word.startswith(("data=", "task.data=")) for word in words)
    own = [f"task.{word}" if word.partition("=")[0] in KEYS[name] else word for word in words]
    if not given:
        for word, written in zip(words, own, strict=True):
            if word != written and not word.startswith("group=") and not begun:
                raise ConfigError(f"{word} without data=: it is of data of your own; give data=FILE too")
        return own
    if begun:
        return own
    task = f"task={TASKS[name]}"
    others = [word for word in own if word.startswith("task=") and word != task]
    if others:
        raise ConfigError(f"data= with {others[0]}: that task makes its own data; leave out one of the two")
    has_group = any(word.startswith("task.group=") and word != "task.group=null" for word in own)
    if name == "fit_regression" and not has_group and not any(word.startswith("model=") for word in own):
        own = ["model=mlp", *own]
    return own if task in own else [task, *own]


def column_names(key: str, value: Any) -> list[str] | None:
    """A list of columns; one name is a list of one.

    Raises:
        ConfigError: it is neither, or empty.
    """
    if value is None:
        return None
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(name, str | int) for name in found):
        raise ConfigError(f"{key}={value}: give a list of columns, for example [x,y]")
    return [str(name) for name in found]


def shares(key: str, value: Any, columns: bool = True) -> None:
    """Refuse what is no split: three shares, or a column that says to which part a datum belongs."""
    if columns and isinstance(value, str) and value.strip():
        return
    right = isinstance(value, list) and len(value) == 3 and all(isinstance(share, int | float) for share in value)
    if not (right and min(value) > 0 and math.isclose(sum(value), 1, abs_tol=1e-6)):
        other = "; or a column of the words train, validation and test" if columns else ""
        raise ConfigError(
            f"{key}={value}: give three positive shares whose sum is 1, for example [0.7,0.15,0.15]{other}"
        )


def file_stem(data: str) -> str:
    """What runs on a file, a folder or a dataset are called after."""
    last = re.sub(r"\.(csv|npz|h5|hdf5)$", "", data.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    return re.sub(r"\W+", "_", last) or "own"


def overrides(name: str, **options: Any) -> list[str]:
    """Options of a function as overrides of the command line; ``__`` stands for a dot."""
    return own_words(name, [f"{key.replace('__', '.')}={_written(value)}" for key, value in options.items()])


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    return "null" if value is None else f"'{value}'" if isinstance(value, str) else f"{value}"
