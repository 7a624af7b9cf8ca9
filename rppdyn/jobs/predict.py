"""`rppdyn predict` and `rppdyn.load`: the trained function of a finished run, from raw data to raw predictions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rppdyn.dynamics import FittedDynamics
from rppdyn.jobs.building import agent_of
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import PredictConfig
from rppdyn.jobs.fit_transition import FittedTransitions, load_transition_model
from rppdyn.jobs.loading import load_fit
from rppdyn.runs import RunFolder
from rppdyn.runs.files import replacing, write_measured
from rppdyn.tasks import read_recordings
from rppdyn.tasks._continuity import Log
from rppdyn.tasks._tables import columns_of, flat, read_arrays, read_tables, require_finite, whole_of


def _act(agent: Any, observations: NDArray, *, members: str = "mean") -> NDArray:
    """The deterministic actions of a run's one agent."""
    return agent.predict(np.asarray(observations), deterministic=True)[0]


def load(run: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Load a finished run's trained function, as one object with ``predict``.

    Args:
        trust: whether a module that the run of an agent names may be imported to make its environment.

    Returns:
        of fit-dynamics a `FittedDynamics`, of fit-transition `FittedTransitions`, of fit-regression and fit-image a
        `FittedFunction`, of train-agent the agent itself, whose `predict` is stable-baselines3's.
    """
    folder = RunFolder.open(run)
    name = compose.name_of_run(folder)
    if name == "train_agent":
        with agent_of(str(run), episodes=1, seed=0, trust=trust) as (agent, _, _):
            return agent
    if name == "fit_transition":  # it needs neither the dataset nor the environment
        return FittedTransitions(*load_transition_model(run))
    return load_fit(folder, trust=trust, verify=False).predictor()


@dataclass(frozen=True)
class PredictResult:
    """Predictions and their file."""

    run: str
    inputs: dict[str, list[int]]
    shape: list[int]
    out: str


def run(config: PredictConfig) -> PredictResult:
    """Predict from arrays by name, or from data like those of the fit, and write `prediction` in an NPZ file.

    Raises:
        RunFolderError, CheckpointError: as :func:`load`.
        ConfigError: the file can't be read, or lacks arrays that the model needs.
        UnwrittenError: the predictions can't be written.
    """
    folder = RunFolder.open(config.run)
    name = compose.name_of_run(folder)
    if name == "train_agent" and config.members == "all":
        raise ConfigError("--members all: a run of train-agent is one agent; leave it out")
    model = load(config.run, trust=config.trust)
    if name == "train_agent":
        predict: Any = partial(_act, model)
    else:
        predict = model.rollout if name == "fit_transition" else model.predict
    parameters = inspect.signature(predict).parameters
    fit: Any = compose.from_run(name, folder) if name in ("fit_trajectories", "fit_regression") else None
    is_arrays = config.data.endswith(".npz")
    arrays = read_arrays(config.data) if is_arrays else {}
    positional = {name: p for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    needed = [name for name, p in positional.items() if p.default is p.empty]
    missing = [name for name in needed if name not in arrays]
    columns: Sequence[str] = []  # those of the fit, which come before arrays by the arguments' names
    if fit is not None and fit.task.data is not None:
        columns = fit.task.columns if name == "fit_trajectories" else fit.task.inputs or ["x"]
    has_columns = set(map(whole_of, columns)) <= arrays.keys()
    if name == "fit_trajectories" and (missing or has_columns):
        return _predict_trajectories(config, fit.task, model)
    if columns and (missing or (has_columns and columns != ["x"])):
        arrays, missing = {"x": _read_rows(config.data, columns)}, []
    elif not is_arrays:
        arrays = dict(next(table for _, table in read_tables(config.data)))
        missing = [name for name in needed if name not in arrays]
    if missing:
        raise ConfigError(
            f"--data {config.data}: it has {', '.join(arrays) or 'nothing'}, and {' and '.join(missing)} is missing; the run "
            f"predicts from {', '.join(needed)}"
        )
    arguments = {name: arrays[name] for name in positional if name in arrays}
    try:
        predictions = np.asarray(predict(**arguments, members=config.members))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"--data {config.data}: {str(error).splitlines()[0]}") from error
    return _write(config, {name: list(values.shape) for name, values in arguments.items()}, predictions)


def _read_rows(data: str, inputs: Sequence[str]) -> NDArray:
    rows = []
    for name, arrays in read_tables(data):
        names, x = columns_of(name, flat(arrays), inputs, "inputs")
        require_finite(name, x, names)
        rows.append(x)
    return np.concatenate(rows)


def _predict_trajectories(config: PredictConfig, task: Any, model: FittedDynamics) -> PredictResult:
    """Predict each trajectory in a file from its first state, at its times and under its controls."""
    recordings = read_recordings(
        config.data, task.columns, controls=task.controls or (), time=task.time, trajectory=task.trajectory
    )
    recordings = Log(recordings, pairs=0, unwrap=task.unwrap or []).check(judge=False)
    predictions = [
        np.asarray(model.predict(r.states[:1].numpy(), r.times.numpy(), r.controls[None].numpy() if task.controls else None,
                                 members=config.members))[..., 0, :, :]
        for r in recordings.trajectories
    ]  # fmt: skip
    count = len(recordings.trajectories)
    inputs = {"state": [count, len(recordings.names)], "times": [sum(len(r.times) for r in recordings.trajectories)]}
    return _write(config, inputs, np.concatenate(predictions, axis=-2))


def _write(config: PredictConfig, inputs: dict[str, list[int]], predictions: NDArray) -> PredictResult:
    def write(path: Path) -> None:
        with replacing(path) as temporary:
            np.savez(temporary, prediction=predictions)

    result = PredictResult(config.run, inputs, list(predictions.shape), config.out)
    write_measured(result, {config.out: write})
    return result


def table(result: PredictResult, written: bool = True) -> str:
    """Lines of text about the predictions, and their file, if it was written."""
    inputs = ", ".join(f"{name} {tuple(shape)}" for name, shape in result.inputs.items())
    lines = [f"{result.run}: {inputs} to predictions {tuple(result.shape)}"]
    return "\n".join([*lines, f"written: {result.out}"] if written else lines)
