"""Trajectories of one's own, read from CSV, NPZ and HDF5 files, folders of these, and Minari datasets.

A file holds *columns* by name: of a CSV file numbers, of the others arrays whose first axis is time. Which of them make up the
state, the controls, the time, and which column tells trajectories apart, is said by name; `name[0:3]` is a part of an array.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Recording", "Recordings", "read_recordings"]

SUFFIXES = (".csv", ".npz", ".h5", ".hdf5")
TIMES = ("time", "t")
"""Names of a column of times that need not be said."""
SHOWN = 12
"""Names in a message."""

Table = tuple[str, Mapping[str, NDArray]]
"""A name, for messages, and columns ``(T, d)``."""


@dataclass(frozen=True, eq=False)
class Recording:
    """One trajectory, float64.

    Attributes:
        times: increasing, s.
        states: at these times.
        controls: held from each time to the next.
    """

    name: str
    times: Float[Tensor, " T"]
    states: Float[Tensor, "T n"]
    controls: Float[Tensor, "T-1 m"]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Trajectories and what their numbers are called.

    Attributes:
        names, control_names: of the states' and the controls' coordinates.
    """

    source: str
    names: tuple[str, ...]
    control_names: tuple[str, ...]
    trajectories: tuple[Recording, ...]

    @property
    def digest(self) -> str:
        """A checksum of all numbers."""
        digest = hashlib.sha256()
        for recording in self.trajectories:
            for values in (recording.times, recording.states, recording.controls):
                digest.update(np.ascontiguousarray(values.numpy()).tobytes())
        return digest.hexdigest()[:16]


def read_recordings(
    source: str | Path,
    state: Sequence[str],
    *,
    controls: Sequence[str] = (),
    time: str | float | None = None,
    trajectory: str | None = None,
) -> Recordings:
    """Trajectories from a file, a folder with a file for each, or a Minari dataset (its id, or its folder).

    Arrays of NPZ and HDF5 files are ``(time, numbers)`` or ``(time,)``; of several trajectories ``(trajectories, time,
    numbers)``, shorter ones filled up with nan at the end. An HDF5 file may also have a group for each trajectory. Episodes of
    a Minari dataset have ``observations``, ``actions`` and ``rewards``.

    Args:
        state: names of the columns that make up a state, in order; ``name[2]`` and ``name[0:3]`` are parts of an array.
        controls: likewise of what acts on the system; the value at a time is held until the next. None of the last state is
            needed.
        time: the column of times, or the step between two states as a number; None: a column ``time`` or ``t``.
        trajectory: a column that says to which trajectory a row belongs.
    Raises:
        ValueError: no such file or column, an empty one, a number that is not finite (with its row and column), times that do
            not increase, columns of other lengths, or a trajectory of one state.
    """
    if not state:
        raise ValueError("state=[]: name the columns that make up a state")
    columns: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    recordings = []
    for name, table in _split(_tables(Path(source), str(source)), trajectory):
        here, states = _columns(name, table, state, "state")
        theirs, forces = _columns(name, table, controls, "controls")
        if columns[0] and (here, theirs) != columns:
            raise ValueError(f"{name}: its columns are {_listed((*here, *theirs))}, and those before had others")
        columns = (here, theirs)
        length = min(len(states), len(forces) + 1) if controls else len(states)
        if controls and len(forces) not in (len(states), len(states) - 1):
            raise ValueError(f"{name}: {len(forces)} controls for {len(states)} states: give as many, or one less")
        times = _times(name, table, time, length)
        if length < 2:
            raise ValueError(f"{name}: one state is no trajectory; leave it out")
        _require_finite(name, states[:length], here)
        _require_finite(name, forces[: length - 1], theirs)
        control = torch.from_numpy(forces[: length - 1]) if controls else torch.zeros(length - 1, 0).double()
        recordings.append(Recording(name, torch.from_numpy(times), torch.from_numpy(states[:length]), control))
    return Recordings(str(source), *columns, tuple(recordings))


# -- files to tables --------------------------------------------------------------------------------------------------


def _tables(path: Path, source: str) -> Iterator[Table]:
    if path.is_dir() and not (path / "data").is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(f"{path}: there is no file in it that ends in {', '.join(SUFFIXES)}")
        for file in files:
            yield from _file(file)
    elif path.is_file():
        yield from _file(path)
    elif path.suffix.lower() in SUFFIXES or not (path.is_dir() or re.search(r"-v\d+$", source)):
        raise ValueError(f"{path}: there is no such file, folder or Minari dataset")
    else:
        yield from _minari(source)


def _file(path: Path) -> Iterator[Table]:
    readers: Mapping[str, Callable[[Path], Iterator[Table]]] = {
        ".csv": _csv, ".npz": _npz, ".h5": _hdf5, ".hdf5": _hdf5,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: must end in {', '.join(SUFFIXES)}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    return reader(path)


def _csv(path: Path) -> Iterator[Table]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no table of text ({error})") from error
    if len(rows) < 2:
        raise ValueError(f"{path} is empty: a line of names and lines of numbers are needed")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names) or any(map(_is_number, names)):
        raise ValueError(f"{path}: its first line must be the names of the columns, each once; it is {_listed(names)}")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise ValueError(f"{path}, row {number}: {len(row)} values for {len(names)} columns")
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    yield str(path), {name: _numbers(values)[:, None] for name, values in columns.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(values: Sequence[str]) -> NDArray:
    """Text as numbers; as text where some of it, such as a trajectory's name, is none."""
    try:
        return np.array([float(value) if value.strip() else np.nan for value in values])
    except ValueError:
        return np.array(values)


def _npz(path: Path) -> Iterator[Table]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read as an NPZ file of numbers ({error})") from error
    yield from _of_arrays(str(path), arrays)


def _hdf5(path: Path) -> Iterator[Table]:
    try:
        import h5py
    except ImportError as error:
        raise ValueError(f"{path}: HDF5 needs h5py, pip install h5py") from error
    try:
        with h5py.File(path) as file:
            groups = [name for name in file if isinstance(file[name], h5py.Group)]
            if groups:
                natural = sorted(
                    groups, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]
                )
                tables = [(f"{path}, {name}", _datasets(file[name])) for name in natural]
            else:
                tables = [(str(path), _datasets(file))]
    except OSError as error:
        raise ValueError(f"{path} can't be read as an HDF5 file ({error})") from error
    for name, arrays in tables:
        yield from _of_arrays(name, arrays)


def _datasets(group: Any) -> dict[str, NDArray]:
    return {name: np.asarray(item) for name, item in group.items() if hasattr(item, "shape") and item.shape}


def _of_arrays(name: str, arrays: Mapping[str, NDArray]) -> Iterator[Table]:
    """Arrays of one trajectory, or of several along the first axis."""
    arrays = {key: value for key, value in arrays.items() if value.ndim}
    if not arrays:
        raise ValueError(f"{name} holds no arrays")
    deepest = max(value.ndim for value in arrays.values())
    if deepest > 3:
        raise ValueError(f"{name}: an array of {deepest} axes; give (trajectories, time, numbers), or fewer")
    several = deepest == 3 or any(arrays[key].ndim == 2 for key in TIMES if key in arrays)
    if not several:
        yield name, {key: value.reshape(len(value), -1) for key, value in arrays.items()}
        return
    count = max(
        len(value) for value in arrays.values() if value.ndim == 3 or not any(v.ndim == 3 for v in arrays.values())
    )
    for index in range(count):
        table = {
            key: value if value.ndim == 1 and len(value) != count else value[index]
            for key, value in arrays.items()
            if value.ndim == 1 or len(value) == count
        }
        table = {key: value.reshape(len(value), -1) for key, value in table.items() if value.ndim}
        yield f"{name}, trajectory {index}", _trimmed(table)


def _trimmed(table: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Without rows at the end that are all nan: what fills up shorter trajectories."""
    trimmed = {}
    for key, values in table.items():
        known = ~np.isnan(values).all(1) if np.issubdtype(values.dtype, np.floating) else np.ones(len(values), bool)
        trimmed[key] = values[: int(known.nonzero()[0].max(initial=-1)) + 1]
    length = min(map(len, trimmed.values()))
    return {key: values[:length] if len(values) - length > 1 else values for key, values in trimmed.items()}


def _minari(source: str) -> Iterator[Table]:
    from rppdyn.envs.episodes import open_dataset

    dataset = open_dataset(source)
    for episode in dataset.iterate_episodes():
        table: dict[str, NDArray] = {}
        for name in ("observations", "actions"):
            values = getattr(episode, name)
            parts = (
                {f"{name}.{key}": part for key, part in values.items()} if isinstance(values, dict) else {name: values}
            )
            table |= {key: np.asarray(part, dtype=float).reshape(len(part), -1) for key, part in parts.items()}
        yield f"{source}, episode {episode.id}", table


def _split(tables: Iterator[Table], column: str | None) -> Iterator[Table]:
    """The rows of each trajectory, where a column tells them apart."""
    for name, table in tables:
        if column is None:
            yield name, table
            continue
        labels = _column(name, table, column, "trajectory")[:, 0]
        for label in dict.fromkeys(labels.tolist()):
            shown = f"{label:g}" if isinstance(label, float) else str(label)
            rows = labels == label
            yield (
                f"{name}, {column} {shown}",
                {key: values[rows] for key, values in table.items() if len(values) == len(rows)},
            )


# -- tables to numbers ------------------------------------------------------------------------------------------------


def _column(name: str, table: Mapping[str, NDArray], text: str, what: str) -> NDArray:
    """A column, or a part of an array."""
    key, part = re.fullmatch(r"(.*?)(?:\[(\d*:?\d*)\])?", text).groups()  # type: ignore[union-attr]
    if text in table:
        key, part = text, None
    if key not in table:
        close = difflib.get_close_matches(key, list(table), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{what}={text}: {name} has no such column{hint}; it has {_listed(list(table))}")
    values = table[key]
    if part is None:
        return values
    first, colon, last = part.partition(":")
    stop = (int(last) if last else values.shape[1]) if colon else int(first or 0) + 1
    start = int(first) if first else 0
    if not 0 <= start < stop <= values.shape[1]:
        raise ValueError(
            f"{what}={text}: {name} has {values.shape[1]} numbers in {key}: give a part of 0:{values.shape[1]}"
        )
    return values[:, start:stop]


def _columns(
    name: str, table: Mapping[str, NDArray], wanted: Sequence[str], what: str
) -> tuple[tuple[str, ...], NDArray]:
    """Columns side by side, and a name for each number."""
    names: list[str] = []
    found: list[NDArray] = []
    for text in wanted:
        values = _column(name, table, text, what)
        if not np.issubdtype(values.dtype, np.number):
            row = next(i for i, value in enumerate(values[:, 0]) if not _is_number(str(value)))
            raise ValueError(f"{what}={text}: {name}, row {row + 1}: {str(values[row, 0])!r} is no number")
        found.append(values.astype(np.float64))
        names += [text] if values.shape[1] == 1 else [f"{text}[{i}]" for i in range(values.shape[1])]
    if len({len(values) for values in found}) > 1:
        rows = ", ".join(f"{text} has {len(values)}" for text, values in zip(wanted, found, strict=True))
        raise ValueError(f"{name}: columns of different lengths, {rows}; give as many of each")
    if len(set(names)) < len(names):
        raise ValueError(f"{what}={_listed(wanted)}: a column stands there twice")
    return tuple(names), np.concatenate(found, 1) if found else np.zeros((0, 0))


def _times(name: str, table: Mapping[str, NDArray], time: str | float | None, length: int) -> NDArray:
    if isinstance(time, int | float):
        return np.arange(length, dtype=np.float64) * time
    if time is None:
        known = next((key for key in TIMES if key in table), None)
        if known is None:
            raise ValueError(f"{name} has no column time or t; give the step in seconds, time=0.02, or a column's name")
        time = known
    _, values = _columns(name, table, [time], "time")
    if values.shape[1] != 1 or len(values) < length:
        raise ValueError(f"time={time}: {name} has {values.shape} of it for {length} states; give one for each")
    values = values[:length, 0]
    _require_finite(name, values[:, None], [time])
    back = (np.diff(values) <= 0).nonzero()[0]
    if len(back):
        row = int(back[0]) + 1
        raise ValueError(
            f"{name}: time goes back in row {row + 1} ({values[row]:g} after {values[row - 1]:g}); sort the rows, or name the "
            "column that tells trajectories apart, trajectory=NAME"
        )
    return values


def _require_finite(name: str, values: NDArray, names: Sequence[str]) -> None:
    bad = (~np.isfinite(values)).nonzero()
    if len(bad[0]):
        row, column = int(bad[0][0]), int(bad[1][0])
        raise ValueError(
            f"{name}: {values[row, column]} in row {row + 1}, column {names[column]}; leave the row out, or cut there"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
