"""Trajectories of the double spring pendulum to learn from: chunks for training, whole ones for rollouts; stored once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from rppdyn.errors import UserError
from rppdyn.runs.array_cache import ArrayCache, decode, encode
from rppdyn.runs.files import write_bytes
from rppdyn.tasks.pendulum import Pendulum

__all__ = ["TASK_CACHE", "OtherParametersError", "TrajectoryData", "load_trajectories"]

FORMAT_VERSION = 1
"""Of the files and of how trajectories are drawn and integrated: another number, and everything is made again."""

SPLITS = ("train", "validation", "test")
ARRAYS = (*SPLITS, "rollouts")

TASK_CACHE = ArrayCache("tasks", entry="dataset")
"""The folder `tasks` in the user's cache folder."""


@dataclass(frozen=True, eq=False)
class TrajectoryData:
    """Trajectories of a pendulum, float64; states are ``(x_1, x_2, p_1, p_2)``, see :class:`Pendulum`.

    Of each trajectory one chunk of a few time steps, at a random time, is kept; those of the test set are kept whole,
    too. Training, validation and test trajectories are drawn from separate seeds, so that the number of one kind does
    not change the others.

    Attributes:
        pendulum: whose trajectories they are.
        parameters: everything that determines the data, by name: the pendulum's parameters, ``n_train``,
            ``n_validation``, ``n_test``, ``dt``, ``horizon``, ``chunk``, ``seed``.
        train, validation, test: the chunks, initial state included.
        rollouts: the test set's whole trajectories, from time 0 to the horizon.
    """

    pendulum: Pendulum
    parameters: Mapping[str, Any]
    train: Float[Tensor, "n_train points 12"]
    validation: Float[Tensor, "n_validation points 12"]
    test: Float[Tensor, "n_test points 12"]
    rollouts: Float[Tensor, "n_test T 12"]

    @property
    def times(self) -> Float[Tensor, " T"]:
        """Of the rollouts' states, s."""
        return _grid(self.parameters["dt"], self.rollouts.shape[1])

    @property
    def chunk_times(self) -> Float[Tensor, " points"]:
        """Of a chunk's states, s, from its first one on."""
        return _grid(self.parameters["dt"], self.train.shape[1])

    def save(self, path: str | Path) -> None:
        """Write the data to one file, for ``load_trajectories(file=path)``."""
        write_bytes(Path(path), encode(self._arrays(), self._about()))

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name).numpy() for name in ARRAYS}

    def _about(self) -> dict[str, Any]:
        return {"format": FORMAT_VERSION, "parameters": dict(self.parameters)}


class OtherParametersError(UserError):
    """A file of trajectories was made with other parameters than are asked for."""

    def __init__(self, path: Path, name: str, stored: Any, wanted: Any) -> None:
        super().__init__(
            f"{path} was made with {name}={stored}, not {name}={wanted}: make them the same, or leave the file out"
        )
        self.path, self.name, self.found, self.wanted = path, name, stored, wanted


def load_trajectories(
    pendulum: Pendulum,
    n_train: int = 500,
    n_validation: int = 500,
    n_test: int = 500,
    dt: int | float = 0.2,
    horizon: int | float = 30.0,
    chunk: int = 5,
    seed: int = 0,
    file: str | Path | None = None,
    cache: bool = True,
) -> TrajectoryData:
    """The pendulum's trajectories with these parameters: read where they have been made before, otherwise made.

    They are kept in the folder `tasks` of the user's cache, addressed by their parameters; a damaged entry is made again.
    1500 trajectories of 30 s take some seconds.

    Args:
        n_train, n_validation, n_test: trajectories of each kind.
        dt: time between two states, s.
        horizon: length of a trajectory, s; a multiple of dt.
        chunk: time steps in a chunk.
        file: a file that :meth:`TrajectoryData.save` wrote, to be read instead; it must hold the same parameters.
        cache: whether to read and write the user's cache.
    Raises:
        ValueError: a parameter that is impossible, or a file that is absent, damaged or made with other parameters.
    Source: Finzi 2023, A.1.10: 500 each, five intervals of 0.2 s out of 30 s. The published code keeps four intervals,
        draws their start among the multiples of 1 s, integrates with a tolerance of 1e-4, and has no validation set.
    """
    parameters = pendulum.parameters() | dict(
        n_train=n_train, n_validation=n_validation, n_test=n_test, dt=float(dt), horizon=float(horizon), chunk=chunk,
        seed=seed,
    )  # fmt: skip
    _check(parameters)
    if file is not None:
        return _read_file(Path(file), pendulum, parameters)
    content = json.dumps({"format": FORMAT_VERSION, "parameters": parameters}, sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()
    if cache:
        cached = TASK_CACHE.read(key, lambda arrays, about: _parse(arrays, about, pendulum, parameters))
        if cached is not None:
            return cached
    data = _generate(pendulum, parameters)
    if cache:
        TASK_CACHE.write(key, data._arrays(), data._about(), name="the pendulum's dataset")
    return data


def _grid(dt: float, states: int) -> Tensor:
    return torch.arange(states, dtype=torch.float64) * dt


def _check(parameters: Mapping[str, Any]) -> None:
    dt, horizon, chunk = (parameters[name] for name in ("dt", "horizon", "chunk"))
    for name in ("n_train", "n_validation", "n_test", "seed"):
        if parameters[name] < 0:
            raise ValueError(f"{name}={parameters[name]}: give 0 or more")
    for name in ("dt", "horizon"):
        if not 0 < parameters[name] < float("inf"):
            raise ValueError(f"{name}={parameters[name]:g} s: give a time above 0")
    if dt > horizon:
        raise ValueError(f"dt={dt:g} s is longer than the horizon of {horizon:g} s; give a shorter one")
    if abs(_steps(parameters) * dt / horizon - 1) > 1e-9:
        raise ValueError(f"horizon={horizon:g} s is no multiple of dt={dt:g} s; make it one")
    if not 1 <= chunk <= _steps(parameters):
        raise ValueError(f"chunk={chunk} steps: give 1 to {_steps(parameters)}, the horizon's number of steps")


def _steps(parameters: Mapping[str, Any]) -> int:
    return round(parameters["horizon"] / parameters["dt"])


def _generate(pendulum: Pendulum, parameters: Mapping[str, Any]) -> TrajectoryData:
    """All trajectories are integrated in one batch, of which none depends on another."""
    initial, starts = [], []
    for i, split in enumerate(SPLITS):
        seed = int(np.random.SeedSequence([parameters["seed"], i]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        n = parameters[f"n_{split}"]
        initial.append(pendulum.initial_state(n, generator))
        starts.append(torch.randint(_steps(parameters) - parameters["chunk"] + 1, (n,), generator=generator))
    z = pendulum.trajectories(torch.cat(initial), _grid(parameters["dt"], _steps(parameters) + 1))
    index = torch.cat(starts)[:, None] + torch.arange(parameters["chunk"] + 1)
    chunks = torch.take_along_dim(z, index[..., None], dim=1).split([len(part) for part in initial])
    train, validation, test = (part.clone() for part in chunks)
    rollouts = z[len(z) - parameters["n_test"] :].clone()
    return TrajectoryData(pendulum, parameters, train, validation, test, rollouts)


def _parse(
    arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], pendulum: Pendulum, parameters: Mapping[str, Any]
) -> TrajectoryData:
    """The data of a file, once its content agrees with the parameters.

    Raises:
        ValueError, KeyError: it does not, or something is missing.
    """
    if about["format"] != FORMAT_VERSION:
        raise ValueError(f"it has format {about['format']}, and this version reads {FORMAT_VERSION}")
    if about["parameters"] != dict(parameters):
        raise ValueError("it was made with other parameters")
    states = dict.fromkeys(SPLITS, parameters["chunk"] + 1) | {"rollouts": _steps(parameters) + 1}
    for name in ARRAYS:
        n = parameters["n_test" if name == "rollouts" else f"n_{name}"]
        if arrays[name].shape != (n, states[name], 12) or arrays[name].dtype != np.float64:
            raise ValueError(f"its {name} are {arrays[name].dtype} of shape {arrays[name].shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} hold values that are not finite")
    return TrajectoryData(pendulum, parameters, *(torch.from_numpy(arrays[name]) for name in ARRAYS))


def _read_file(path: Path, pendulum: Pendulum, parameters: Mapping[str, Any]) -> TrajectoryData:
    remedy = "give a file that TrajectoryData.save wrote"
    try:
        arrays, about = decode(path.read_bytes())
        stored = dict(about["parameters"])
    except OSError as e:
        raise ValueError(f"{path} cannot be read ({e.strerror}); {remedy}") from e
    except (ValueError, KeyError, TypeError, SafetensorError) as e:
        raise ValueError(f"{path} holds no trajectories ({e}); {remedy}") from e
    for name, wanted in parameters.items():
        if (found := stored.get(name)) != wanted:
            raise OtherParametersError(path, name, found, wanted)
    try:
        return _parse(arrays, about, pendulum, parameters)
    except (ValueError, KeyError) as e:
        raise ValueError(f"{path} holds no such trajectories ({e}); {remedy}") from e
