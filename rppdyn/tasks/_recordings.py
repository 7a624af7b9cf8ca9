"""Trajectories of the user, read from files, folders of files, LeRobot and Minari datasets.

A file has columns by name: numbers in a CSV file, otherwise arrays with time along the first axis. The columns of the state,
the controls, the time, and the label of the trajectory are given by name; `name[0:3]` is a part of an array.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.tasks._tables import (
    Table,
    checksum,
    column_of,
    columns_of,
    flat,
    list_names,
    read_tables,
    require_finite,
    whole_of,
)  # fmt: skip

logger = logging.getLogger(__name__)

TIMES = ("time", "t")
"""Default names of the column of times."""
ENDS = ("terminals", "timeouts", "terminations", "truncations", "terminated", "truncated", "dones", "done")
"""Names of columns that are true in the last row of an episode."""
LEROBOT = ("episode_index", "frame_index", "timestamp")
"""Columns of every file of a LeRobot dataset."""


@dataclass(frozen=True, eq=False)
class Recording:
    """One trajectory, float64.

    Attributes:
        times: increasing, s.
        states: states at these times.
        controls: controls, constant from each time to the next.
        rows: numbers of the rows in the file, from 1.
    """

    name: str
    times: Float[Tensor, " T"]
    states: Float[Tensor, "T n"]
    controls: Float[Tensor, "T-1 m"]
    rows: NDArray


@dataclass(frozen=True, eq=False)
class Recordings:
    """Trajectories and the names of their numbers.

    Attributes:
        source: the file, folder or dataset.
        names, control_names: names of the coordinates of states and controls.
    """

    source: str
    names: tuple[str, ...]
    control_names: tuple[str, ...]
    trajectories: tuple[Recording, ...]

    @property
    def digest(self) -> str:
        """A checksum of all numbers."""
        return checksum(values for r in self.trajectories for values in (r.times, r.states, r.controls))


def read_recordings(
    source: str | Path,
    state: Sequence[str],
    *,
    controls: Sequence[str] = (),
    time: str | float | None = None,
    trajectory: str | None = None,
) -> Recordings:
    """Read trajectories from a file, a folder with a file for each, or a Minari dataset (its id or folder).

    Arrays of NPZ and HDF5 files are ``(time, numbers)`` or ``(time,)``; of several trajectories ``(trajectories, time,
    numbers)``, shorter ones filled up with nan at the end. An HDF5 file may also have a group for each trajectory. Where
    episodes stand one after the other, columns such as ``terminals`` and ``timeouts`` say where one ends. Episodes of a Minari
    dataset have ``observations`` and ``actions``.

    Args:
        state: names of the columns of a state, in order; ``name[2]`` and ``name[0:3]`` are parts of an array.
        controls: names of the columns of the controls, each value constant until the next time; the last state needs none.
        time: the column of times, or the step between two states in seconds; None for a column ``time`` or ``t``.
        trajectory: a column that labels the trajectory of each row.
    Raises:
        ValueError: a file or column is missing or empty, a number is not finite, times do not increase, columns differ in
            length, a trajectory has one state, or the step is not positive.
    """
    if not state:
        raise ValueError("state=[]: name the columns that make up a state")
    columns: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    recordings = []
    state_keys, control_keys = (list(map(whole_of, texts)) for texts in (state, controls))
    time_keys = (*TIMES, time) if isinstance(time, str) else TIMES
    tables = (
        recording
        for file, arrays in read_tables(source)
        for recording in _trajectories_in(file, arrays, state_keys, control_keys, time_keys)
    )
    for name, table, rows in _split(tables, trajectory, state_keys):
        state_names, states = columns_of(name, table, state, "state")
        control_names, forces = columns_of(name, table, controls, "controls")
        if columns[0] and (state_names, control_names) != columns:
            raise ValueError(
                f"{name}: its columns are {list_names((*state_names, *control_names))}, and those before had others"
            )
        columns = (state_names, control_names)
        length = min(len(states), len(forces) + 1) if controls else len(states)
        if controls and len(forces) not in (len(states), len(states) - 1):
            raise ValueError(f"{name}: {len(forces)} controls for {len(states)} states: give as many, or one less")
        times = _times(name, table, time, length, rows)
        if length < 2:
            raise ValueError(f"{name}: one state is no trajectory; leave it out")
        require_finite(name, states[:length], state_names, rows)
        require_finite(name, forces[: length - 1], control_names, rows)
        control = torch.from_numpy(forces[: length - 1]) if controls else torch.zeros(length - 1, 0).double()
        recordings.append(Recording(name, torch.from_numpy(times), torch.from_numpy(states[:length]), control, rows))
    return Recordings(str(source), *columns, tuple(recordings))


def _trajectories_in(
    name: str, arrays: Mapping[str, NDArray], state: Sequence[str], controls: Sequence[str], times: Sequence[str]
) -> Iterator[Table]:
    """The trajectories in arrays: one, or several along the first axis if states or controls have three axes."""
    arrays = {key: value for key, value in arrays.items() if value.ndim}
    if not arrays:
        raise ValueError(f"{name} holds no arrays")
    for key in times:
        if key in arrays and arrays[key].ndim == 2 and arrays[key].shape[1] == 1:
            arrays[key] = arrays[key][:, 0]
    asked = {key: value for key, value in arrays.items() if key in (*state, *controls)}
    deepest = max((value.ndim for value in asked.values()), default=1)
    if deepest > 3:
        raise ValueError(f"{name}: an array of {deepest} axes; give (trajectories, time, numbers), or fewer")
    if not asked or (deepest < 3 and not any(arrays[key].ndim == 2 for key in times if key in arrays)):
        yield name, flat(arrays)
        return
    count = max(len(value) for value in asked.values() if value.ndim == deepest)
    for key, value in asked.items():
        if value.ndim > 1 and len(value) != count:
            raise ValueError(
                f"{name}: {key} has {len(value)} trajectories, and others have {count}; give as many of each"
            )
    for index in range(count):
        table = {  # arrays with one axis are shared (times, say), unless they have a number for each trajectory
            key: value if value.ndim == 1 and (len(value) != count or key in times) else value[index]
            for key, value in arrays.items()
            if value.ndim == 1 or len(value) == count
        }
        yield f"{name}, trajectory {index}", _trim(flat(table), state, controls)


def _trim(table: Mapping[str, NDArray], state: Sequence[str], controls: Sequence[str]) -> dict[str, NDArray]:
    """Remove the rows after the last one that has a number of a state, the padding of shorter trajectories."""
    known = {}
    for key, values in table.items():
        is_known = ~np.isnan(values).all(1) if np.issubdtype(values.dtype, np.floating) else np.ones(len(values), bool)
        known[key] = int(is_known.nonzero()[0].max(initial=-1)) + 1
    length = max((known[key] for key in state if key in table), default=max(known.values(), default=0))
    padded = max((len(table[key]) for key in state if key in table), default=length)
    stops = {key: min(length, known[key]) if key in controls else length for key in table}
    return {  # times and ends of more rows than the states are left, to be refused
        key: values if len(values) > padded and key not in controls else values[: stops[key]]
        for key, values in table.items()
    }


def _split(
    tables: Iterator[Table], column: str | None, state: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, NDArray], NDArray]]:
    """Split tables into trajectories with the numbers of their rows, by a column of labels and by the ends of episodes."""
    for name, table in tables:
        count = next((len(table[key]) for key in state if key in table), max(map(len, table.values())))
        is_demonstration = name.split(", ")[-2:-1] == ["data"]  # one trajectory, whose `dones` may mark each success
        ends = {key: table[key][:, 0] for key in ENDS if key in table and not is_demonstration}
        for key, at in ends.items():
            if at.dtype.kind not in "biuf":
                row = next((i for i, value in enumerate(at) if str(value).lower() not in ("true", "false")), 0)
                raise ValueError(
                    f"{name}, row {row + 1}: {str(at[row])!r} in {key} says not whether an episode ends; write true or false"
                )
            if len(at) != count and at[:-1].any():
                raise ValueError(f"{name}: {key} has {len(at)} rows for {count} states; give one for each")
        label_column = LEROBOT[0] if column is None and table.keys() >= set(LEROBOT) else column
        labels = np.zeros(count, int)
        if label_column is not None:
            labels = column_of(name, table, label_column, "trajectory")[:, 0]
            if len(empty := np.isin(labels.astype(str), ("", "nan")).nonzero()[0]):
                raise ValueError(
                    f"trajectory={label_column}: {name}, row {empty[0] + 1} has none; label it, or leave it out"
                )
        whole = [at for at in ends.values() if len(at) == len(labels)]
        is_last = np.any(whole, 0) if whole else np.zeros(len(labels), bool)
        distinct = dict.fromkeys(labels.tolist())
        if column is None and len(distinct) < 2 and not is_last[:-1].any():
            yield name, table, np.arange(count) + 1
            continue
        for label in distinct:
            label_text = f"{label:g}" if isinstance(label, float) else str(label)
            part = name if label_column is None else f"{name}, {label_column} {label_text}"
            rows = (labels == label).nonzero()[0]
            episodes = np.split(rows, is_last[rows[:-1]].nonzero()[0] + 1)
            for number, episode in enumerate(episodes):
                where = f"{part}, episode {number}" if len(episodes) > 1 else part
                if len(episode) == 1 and (column is None or len(episodes) > 1):
                    logger.warning("%s has one row, and is left out", where)
                    continue
                columns = {key: values[episode] for key, values in table.items() if len(values) == len(labels)}
                yield where, columns, episode + 1


def _times(name: str, table: Mapping[str, NDArray], time: str | float | None, length: int, rows: NDArray) -> NDArray:
    if isinstance(time, int | float):
        if not 0 < time < math.inf:
            raise ValueError(f"time={time:g}: give the step between two states in seconds, above 0")
        return np.arange(length, dtype=np.float64) * time
    if time is None:
        candidates = [key for key in TIMES if key in table] or [LEROBOT[2]] * (table.keys() >= set(LEROBOT))
        if len(candidates) != 1:
            has = f"has columns {' and '.join(candidates)}" if candidates else "has no column time or t"
            raise ValueError(f"{name} {has}; give the step in seconds, time=0.02, or a column's name")
        time = candidates[0]
    _, values = columns_of(name, table, [time], "time")
    if values.shape != (length, 1):
        raise ValueError(
            f"time={time}: {name} has {values.shape} of it for {length} states; give one for each. Arrays are (time, "
            "numbers) or (trajectories, time, numbers), with a last axis of 1 where there is one number"
        )
    values = values[:, 0]
    require_finite(name, values[:, None], [time], rows)
    back = (np.diff(values) <= 0).nonzero()[0]
    if len(back):
        row = int(back[0]) + 1
        raise ValueError(
            f"{name}: {time} goes back in row {rows[row]} ({values[row]:g} after {values[row - 1]:g}); sort the rows, or name "
            "the column that tells trajectories apart, trajectory=NAME"
        )
    return values
