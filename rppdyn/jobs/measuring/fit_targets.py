"""Fits as targets of `rppdyn equivariance`: their members as functions, the task's test inputs, rollouts of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.dynamics import DynamicsModel, HamiltonianModel, TransitionModel
from rppdyn.envs import SymmetrySpec
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig
from rppdyn.jobs.config.transition import FitTransitionConfig
from rppdyn.jobs.fit_dynamics import Dynamics, load_models, roll_out
from rppdyn.jobs.fit_regression import OwnRows, Regressor, load_regressors
from rppdyn.jobs.fit_trajectories import load_recordings
from rppdyn.jobs.fit_transition import Transition, load_transitions
from rppdyn.jobs.fitting.members import StackFit
from rppdyn.jobs.measuring.targets import Blocks, Function, MeasuredNetwork, changes
from rppdyn.nn import RPPEMLP
from rppdyn.reps import Rep
from rppdyn.runs import RunFolder, RunFolderError
from rppdyn.tasks import regression_task

SAME = 0.01  # relative; test errors of one function differ by far less between machines


class Rollout(NamedTuple):
    """Initial states to trajectories, nan from where they diverged, and those that the task's test trajectories have."""

    solve: Callable[[Tensor], Tensor]
    starts: Float[Tensor, "m dim"]


@dataclass(frozen=True)
class Member:
    """One of the networks that a fit has trained.

    Attributes:
        inputs: inputs of the task's test data.
        rollout: None for regression.
    """

    seed: int
    function: Function
    inputs: Float[Tensor, "n dim"]
    rollout: Rollout | None = None


@dataclass(frozen=True)
class Fit:
    """A finished fit.

    Attributes:
        source: what its members are.
        rep_in, rep_out: under which they are measured.
        times: times of the rollouts, s; None for regression.
    """

    source: str
    rep_in: Rep
    rep_out: Rep
    members: list[Member]
    times: Float[Tensor, " T"] | None = None


def open_fit(folder: RunFolder, group: str | None = None, *, trust: bool = False) -> Fit:
    """The members of a finished run of a fit, in float64.

    Args:
        group: in the place of the one that the networks were given, for example "O(3)".
        trust: whether a module that a dataset names may be imported to make its environment.
    Raises:
        RunFolderError, CheckpointError: the run is unfinished, its files are damaged, or of another version.
        ConfigError, ValueError: the group does not act on the task.
    """
    config = replace(compose.from_run(compose.name_of_run(folder), folder), device="cpu")  # wherever it was trained
    if isinstance(config, FitRegressionConfig):
        return _regression(config, folder, group)
    if isinstance(config, FitTransitionConfig):
        return _transition(config, folder, group, trust)
    if isinstance(config, FitTrajectoriesConfig):
        return _recordings(config, folder, group)
    return _dynamics(config, folder, group)


def _regression(config: FitRegressionConfig, folder: RunFolder, group: str | None) -> Fit:
    regression, regressors = load_regressors(config, folder)
    _check(regression, folder)
    task = regression.task
    if group is not None:
        under = notation.group(group)
        task = (
            task.under(under)
            if isinstance(task, OwnRows)
            else regression_task(config.task.name, under, config.task.strength)
        )
    members = [
        Member(seed, _regressor(regressor, task.rep_in, task.rep_out, task.parts_in, task.parts_out), x)
        for seed, regressor, (x, _) in zip(config.all_seeds, regressors, regression.tests, strict=True)
    ]
    return Fit(f"{task.name}, {config.model_name}", task.rep_in, task.rep_out, members)


def _check(fit: StackFit, folder: RunFolder) -> None:
    """Refuse members that are not what they were: the same numbers mean another function where a layer has changed since."""
    result = folder.result() or {}
    errors, stored = (np.array(metrics["test/error"], dtype=float) for metrics in (fit.evaluate(), result["metrics"]))
    if not np.allclose(errors, stored, rtol=SAME, atol=0, equal_nan=True):
        commit = str(result.get("provenance", {}).get("commit") or "unknown")[:10]
        raise RunFolderError(
            f"{folder.path}: its members have other test errors than when they were fitted, by another version of this package "
            f"(commit {commit}); use that one, or fit again with another run_dir="
        )


def _regressor(
    regressor: Regressor, rep_in: Rep, rep_out: Rep, parts_in: Mapping[str, int], parts_out: Mapping[str, int]
) -> Function:
    networks = _networks("network", regressor.net, regressor.input, rep_in)
    return _function("regressor", regressor, rep_in, rep_out, _blocks(parts_in), _blocks(parts_out), networks)


def _dynamics(config: FitDynamicsConfig, folder: RunFolder, group: str | None) -> Fit:
    dynamics, models = load_models(config, folder)
    _check(dynamics, folder)
    rep = dynamics.rep if group is None else dynamics.pendulum.rep(notation.group(group))
    parts = dynamics.pendulum.parts
    members = []
    for seed, model, data in zip(config.all_seeds, models, dynamics.data, strict=True):
        rollout = Rollout(_solver(dynamics, model), data.rollouts[: config.rollout.trajectories, 0])
        members.append(Member(seed, _vector_field(model, rep, parts), data.test[:, 0], rollout))
    return Fit(f"{config.task.name}, {config.model_name}", rep, rep, members, dynamics.data[0].times)


def open_transition(
    config: FitTransitionConfig, folder: RunFolder, *, trust: bool = False
) -> tuple[Transition, list[TransitionModel]]:
    """A finished run's dataset and its members, in float64, which are what they were when it was fitted."""
    transition, models = load_transitions(config, folder, trust=trust)
    _check(transition, folder)
    return transition, models


def _recordings(config: FitTrajectoriesConfig, folder: RunFolder, group: str | None) -> Fit:
    """The fields of the members in scaled units, which commute with the group."""
    target, models = load_recordings(config, folder)
    _check(target, folder)
    if group is not None:
        target.measure_under(notation.group(group))
    names, controls = target.recordings.names, target.recordings.control_names
    parts, parts_in, rep_in = dict.fromkeys(names, 1), dict.fromkeys((*names, *controls), 1), target.field_rep
    members = [
        Member(seed, _vector_field(model, target.rep, parts, rep_in, parts_in), target.inputs_of(index))
        for index, (seed, model) in enumerate(zip(config.all_seeds, models, strict=True))
    ]
    return Fit(f"{config.task_name}, {config.model_name}", rep_in, target.rep, members)


def _transition(config: FitTransitionConfig, folder: RunFolder, group: str | None, trust: bool) -> Fit:
    if group is not None:
        raise ConfigError(
            f"--group {group}: a transition model is measured under its environment's symmetry; leave it out, or fit with "
            "another symmetry="
        )
    return transition_fit(config, *open_transition(config, folder, trust=trust))


def transition_fit(config: FitTransitionConfig, transition: Transition, models: list[TransitionModel]) -> Fit:
    """The members of a fit to transitions, each as the change of the state that it has learned."""
    spec, test = transition.spec, transition.data.test
    inputs = torch.cat([test.states[:, :-1], test.actions], -1).flatten(0, 1)
    rep_in, rep_out = TransitionModel.rep_in(spec.obs_rep, spec.action_rep), spec.obs_rep
    members = [
        Member(seed, _change(model, spec, rep_in), inputs) for seed, model in zip(config.all_seeds, models, strict=True)
    ]
    return Fit(f"{config.task_name}, {config.model_name}", rep_in, rep_out, members)


def _change(model: TransitionModel, spec: SymmetrySpec, rep_in: Rep) -> Function:
    """The change of the state by a transition model, as a function of state and action."""
    weights, n = model.assemble(), spec.feature_dim
    inputs = _blocks(dict.fromkeys((*spec.feature_names, *spec.action_names), 1))
    network_inputs = lambda z: torch.cat([model.states(z[..., :n]), model.actions(z[..., n:])], -1)  # noqa: E731
    networks = _networks("network", model.net, network_inputs, rep_in)
    call = lambda z: model.change(z[..., :n], z[..., n:], weights)  # noqa: E731
    return _function("change of the state", call, rep_in, spec.obs_rep, inputs, changes(spec), networks)


def _vector_field(
    model: DynamicsModel,
    rep: Rep,
    parts: Mapping[str, int],
    rep_in: Rep | None = None,
    parts_in: Mapping[str, int] | None = None,
) -> Function:
    """J grad H of a Hamiltonian, whose own value has a constant of no meaning; the network of a neural ODE."""
    weights, rep_in = model.assemble(), rep_in or rep
    inputs = _blocks(parts_in or parts)
    rates = {f"d{name}/dt": index for name, index in _blocks(parts).items()}
    name = "Hamiltonian" if isinstance(model, HamiltonianModel) else "network"
    networks = _networks(name, model.net, lambda z: z, rep_in)
    return _function("vector field", lambda z: model.vector_field(z, weights), rep_in, rep, inputs, rates, networks)


def _solver(dynamics: Dynamics, model: DynamicsModel) -> Callable[[Tensor], Tensor]:
    def solve(z0: Tensor) -> Tensor:
        rolled = roll_out(dynamics.config.rollout, model, z0, dynamics.data[0].times)
        return torch.where(rolled.diverged[:, None, None], torch.nan, rolled.states)

    return solve


def _function(
    name: str,
    call: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    inputs: Blocks,
    outputs: Blocks,
    networks: Mapping[str, MeasuredNetwork],
) -> Function:
    return Function(name, call, rep_in, rep_out, inputs, outputs, lambda x, _: x, torch.zeros(1), False, networks)


def _networks(
    name: str, module: nn.Module, inputs: Callable[[Tensor], Tensor], rep_in: Rep
) -> dict[str, MeasuredNetwork]:
    """The network whose layers are told apart, where it was built for this very symmetry."""
    return {name: MeasuredNetwork(module, inputs)} if isinstance(module, RPPEMLP) and module.rep_in == rep_in else {}


def _blocks(parts: Mapping[str, int]) -> dict[str, list[int]]:
    """Indices of the coordinates of each part."""
    blocks, start = {}, 0
    for name, size in parts.items():
        blocks[name] = list(range(start, start + size))
        start += size
    return blocks
