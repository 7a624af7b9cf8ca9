"""`rppdyn fit-dynamics`: fit Hamiltonian and neural-ODE models to trajectories, several seeds in one process."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.dynamics import (
    DynamicsModel,
    HamiltonianModel,
    IntegrationError,
    NeuralODEModel,
    Trajectories,
    integrate,
    noether_momenta,
    relative_drift,
    rollout_error,
)
from rppdyn.envs.tasks import OtherParametersError, Pendulum, TrajectoryData, load_trajectories
from rppdyn.equivariance.discover import discover
from rppdyn.equivariance.error import equivariance_error, geometric_mean
from rppdyn.groups import SO, SO2eR3
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.config.fit import FitDynamicsConfig, PendulumTaskConfig, RolloutConfig
from rppdyn.jobs.fitting.figures import draw_rollouts
from rppdyn.jobs.fitting.members import GAUSSIAN, StackFit, backward, equivariance_metrics
from rppdyn.jobs.fitting.networks import build_stack, under_group
from rppdyn.jobs.fitting.parts import Parts
from rppdyn.jobs.fitting.result import FitResult, over_members
from rppdyn.jobs.fitting.running import load_members, run_fit
from rppdyn.nn import Chained, Stack
from rppdyn.nn.compiling import can_compile, check_compiler
from rppdyn.reps import Scalar, V
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.files import write_json
from rppdyn.runs.workers import Worker, WorkerError, in_turn

__all__ = ["Dynamics", "load_models", "roll_out", "run"]

logger = logging.getLogger(__name__)
Item = TypeVar("Item")

BAR_AFTER = 1.0
"""Seconds; data and test rollouts that are sooner there show no bar."""
KEYS = {"dt": "task.time_step", "seed": "seed"}
"""Of the configuration, for parameters of a dataset that have other names there."""
LONGEST = 10.0
"""Times its running mean that a gradient may be long: one trajectory that all but diverges has one 1e8 times as long."""
INITIAL_SCALE = 0.1
"""Of the last layer's weights: at full size some networks, cubic in their inputs, throw first rollouts out of all bounds."""
EXACT = 1e-6
"""Relative defect below which a field's symmetry is called exact."""
PAYS = 500
"""Steps from which on ``torch.compile`` saves a relaxed network's fit as much time as it takes where nothing is cached."""


def run(config: FitDynamicsConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured models into their run folder.

    Args:
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show bars on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: the task, its group or the models can't be made as configured; no folder has been made
            then.
        CheckpointError: the folder's checkpoints are all damaged.
    """

    def build() -> Dynamics:
        dynamics = Dynamics(config, progress, workers=True)
        if config.task.wind:
            logger.info("%s", dynamics.symmetry())
        if config.compile or (config.compile is None and dynamics.gains_by_compiling()):
            dynamics.compile()
        return dynamics

    return run_fit(config, build, resume=resume, progress=progress)


class Dynamics(StackFit):
    """The configured pendulum with the models that are fitted to it; each seed has trajectories, weights and batches.

    Attributes:
        curves: of the test rollouts, per seed: ``error``, ``energy`` and ``momentum`` drift over time, filled by :meth:`test`.
        example: states of the first test trajectory, ``truth``, and of the first member's, ``found``, each ``(T, 12)``.
    """

    config: FitDynamicsConfig

    def __init__(self, config: FitDynamicsConfig, progress: bool = False, workers: bool = False):
        self.config, self.progress = config, progress
        self.workers = [Worker() for _ in range(_processes(config))] if workers else []
        self.parts: Parts | None = None
        task = config.task
        self.pendulum = _pendulum(task)
        self.rep = under_group(task.group, self.pendulum.rep)
        self.dtype, self.device = getattr(torch, config.dtype), device_of(config.device)
        self.data = list(self._in_turn(self._trajectories(), "data"))
        chunks = torch.stack([data.train for data in self.data]).to(device=self.device, dtype=self.dtype)
        self.chunk_times = self.data[0].chunk_times.to(device=self.device, dtype=self.dtype)
        is_hamiltonian = config.model.system == "hamiltonian"
        stack = build_stack(config, self.rep, Scalar(self.rep.G) if is_hamiltonian else self.rep, INITIAL_SCALE)
        self.model, self.trained = _system(config, stack), _system(config, stack)
        super().__init__(
            config,
            stack,
            chunks[:, :, 0],
            chunks[:, :, 1:],
            longest=LONGEST,
            by_gradients=is_hamiltonian,
        )
        self.curves: dict[str, Any] = {}
        self.example: dict[str, Any] = {}

    def gains_by_compiling(self) -> bool:
        """Whether the fit is on a CPU where ``torch.compile`` works, and long enough for it to save the time that it takes.

        A plain neural ODE is matrix products and little else: its steps take as long compiled.
        """
        config = self.config
        is_plain_ode = config.model.kind == "mlp" and config.model.system != "hamiltonian"
        steps = config.optimiser.epochs * self.steps_per_epoch
        return self.device.type == "cpu" and not is_plain_ode and steps >= PAYS and can_compile(self.device)

    def compile(self) -> None:
        """Train by ``torch.compile``; batches of another size, as the last of an epoch, are compiled by themselves.

        Raises:
            ValueError: it would need a C++ compiler, and there is none.
        """
        check_compiler(self.device)
        self.trained.compile(dynamic=False)
        self.compiled = True

    def _in_turn(self, items: Iterable[Item], description: str) -> Iterator[Item]:
        """One item per seed, with a bar of its own where there are several and they take long."""
        seeds = self.config.seeds
        shown = self.progress and seeds > 1
        with Progress(seeds, description=description, unit="seed", enabled=shown, delay=BAR_AFTER) as bar:
            for index, item in enumerate(items):
                yield item
                bar.update(index + 1)

    def _trajectories(self) -> Iterator[TrajectoryData]:
        """Each seed's; what is wrong with the task is found with the first."""
        task, (first, *others) = self.config.task, self.config.all_seeds
        try:
            yield _load(task, first)
            if self.workers and task.file is None:
                yield from in_turn(self.workers, _load, ((task, seed) for seed in others))
            else:
                yield from (_load(task, seed) for seed in others)
        except OtherParametersError as error:
            key = KEYS.get(error.name, f"task.{error.name.removeprefix('n_')}")
            raise ConfigError(
                f"task.file={task.file} was made with {key}={error.found}, not {error.wanted}: make them the same, or leave "
                "the file out"
            ) from error
        except WorkerError:
            raise
        except ValueError as error:
            raise ConfigError(f"{'task' if task.file is None else f'task.file={task.file}'}: {error}") from error

    def symmetry(self) -> str:
        """Say how far the true field is from its symmetry under the group, and under turns about any axis."""
        z = self.pendulum.initial_state(200, torch.Generator().manual_seed(0))
        error = equivariance_error(self.pendulum.vector_field, self.rep, self.rep, z).mean
        turns = self.pendulum.rep(SO(3))
        defect = float(discover(self.pendulum.vector_field, turns, turns, z).spectrum[0])
        axis = "exactly" if defect < EXACT else f"but for {defect:.2g} of it"
        return f"The pendulum's field is off {self.rep.G} by {error:.2g}; about its best axis it is symmetric {axis}."

    def predict(self, inputs: Tensor) -> Tensor:
        return _rollout(self.config, self.chunk_times, self.trained, self.trained.assemble(), inputs)

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if not self.workers:
            return super()._backward(inputs, targets)
        if self.parts is None:
            build = partial(_PartFit, self.config, self.chunk_times, self.compiled)
            self.parts = Parts(self.stack, self.workers, build)
        return self.parts.backward(inputs, targets, self.prior_scale)

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return _rollout(self.config, self.chunk_times, _system(self.config, Chained(net)), None, inputs)

    def predict_each(self, stack: Stack, weights: Any, inputs: Float[Tensor, "N n"]) -> Float[Tensor, "N T n"]:
        one_each = inputs.unsqueeze(1)
        return _rollout(self.config, self.chunk_times, _system(self.config, stack), weights, one_each).squeeze(1)

    def members(self) -> list[DynamicsModel]:
        """The models as they stand, in float64 on the CPU, where errors are measured."""
        members = range(self.stack.members)
        return [_system(self.config, self.stack.member(index)).double().cpu() for index in members]

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        weights = self.model.assemble()
        for split in ("validation", "test"):
            chunks = torch.stack([getattr(data, split) for data in self.data]).to(device=self.device, dtype=self.dtype)
            found = _solve(self.config, self.chunk_times, self.model, weights, chunks[:, :, 0])
            errors = zip(rollout_error(found.states, chunks), ~found.diverged, strict=True)
            metrics[f"{split}/error"] = [_mean(of[kept]) for of, kept in errors]
            metrics[f"{split}/diverged"] = found.diverged.double().mean(1).tolist()
        members = zip(self.members(), self.data, strict=True)
        metrics["equivariance/error"] = [self._equivariance(m, data)["error"] for m, data in members]
        return metrics

    def _equivariance(self, member: DynamicsModel, data: TrajectoryData) -> dict[str, float]:
        """The vector field's error under the group: that of the model, since a Hamiltonian has a constant of no meaning."""
        z = data.test[: self.config.evaluation.states, 0]
        weights = member.assemble()
        return equivariance_metrics(lambda z: member.vector_field(z, weights), self.rep, self.rep, z)

    def test(self) -> dict[str, Any]:
        """What the members' rollouts to the horizon are worth, lists with one value per seed.

        ``rollout/error`` is the geometric mean over time and trajectories of the relative error; ``rollout/energy_drift``
        that of the true energy, ``rollout/momentum_drift`` that of the angular momentum about the vertical, along the
        model's rollouts. Trajectories that diverged are left out of these and counted in ``rollout/diverged``; where all
        did, there is no number. So it is with ``test/error`` and ``test/diverged``, of the test data's chunks.
        """
        measured: list[dict[str, Any]] = []
        metrics = self.metrics()
        self.curves = {"times": self.data[0].times.tolist(), "error": [], "energy_drift": [], "momentum_drift": []}
        members, truths = self.members(), [data.rollouts[: self.config.rollout.trajectories] for data in self.data]
        jobs = [
            (self.config.rollout, member, truth[:, 0].clone(), self.data[0].times)
            for member, truth in zip(members, truths, strict=True)
        ]
        rollouts = in_turn(self.workers, roll_out, jobs) if self.workers else starmap(roll_out, jobs)
        for index, found in enumerate(self._in_turn(rollouts, "test rollouts")):
            member, data, truth = members[index], self.data[index], truths[index]
            kept = ~found.diverged
            values: dict[str, Any] = {
                f"{split}/{name}": metrics[f"{split}/{name}"][index]
                for split in ("validation", "test")
                for name in ("error", "diverged")
            }
            values["rollout/diverged"] = float(found.diverged.double().mean())
            values["rollout/first_divergence"] = _first_divergence(found)
            for name, errors in self._errors(found.states[kept], truth[kept]).items():
                values[f"rollout/{name}"] = _mean(errors)
                self.curves[name].append(geometric_mean(errors).tolist() if kept.any() else None)
            values |= {f"equivariance/{name}": value for name, value in self._equivariance(member, data).items()}
            measured.append(values)
            if index == 0:
                self.example = {"truth": truth[0].tolist(), "found": found.states[0].tolist()}
        return over_members(measured)

    def save(self, folder: RunFolder) -> None:
        write_json(folder.path / "rollouts.json", self.curves | {"example": self.example})

    def draw(self, folder: RunFolder) -> None:
        super().draw(folder)
        draw_rollouts(self.curves, self.example, folder.figures / "rollouts.png")

    def _errors(self, found: Float[Tensor, "n T d"], truth: Float[Tensor, "n T d"]) -> dict[str, Float[Tensor, "n t"]]:
        """Relative errors and drifts at each time but the first."""
        momentum = noether_momenta(2 * V(SO2eR3()), found).squeeze(-1)
        return {
            "error": rollout_error(found, truth),
            "energy_drift": relative_drift(self.pendulum.energy(found)),
            "momentum_drift": relative_drift(momentum),
        }


@torch.no_grad()
def roll_out(
    options: RolloutConfig, model: DynamicsModel, z0: Float[Tensor, "n 12"], times: Float[Tensor, " T"]
) -> Trajectories:
    """Solutions of a model by the configured method of the test rollouts; by rk4 where dopri5 finds no steps."""
    if options.method == "dopri5":
        try:
            return integrate(model, z0, times, rtol=options.tolerance, atol=options.tolerance)
        except IntegrationError as error:
            logger.warning("%s. Measured by rk4 in steps of %g", error, options.test_step)
    return integrate(model, z0, times, method="rk4", step=options.test_step)


def load_models(config: FitDynamicsConfig, folder: RunFolder) -> tuple[Dynamics, list[DynamicsModel]]:
    """A finished run's task and its members, one per seed, in float64.

    Raises:
        RunFolderError: the run is unfinished, or its file is damaged.
    """
    dynamics = Dynamics(config)
    load_members(dynamics.module, folder)
    return dynamics, dynamics.members()


class _PartFit:
    """What a worker has of a fit: a stack of some of the members, to take their gradients."""

    def __init__(self, config: FitDynamicsConfig, times: Float[Tensor, " T"], compiled: bool, stack: Stack):
        self.config, self.times, self.stack, self.model = config, times, stack, _system(config, stack)
        if compiled:
            self.model.compile(dynamic=False)

    def __call__(self, inputs: Tensor, targets: Tensor, prior_scale: Tensor) -> Tensor:
        prediction = _rollout(self.config, self.times, self.model, self.model.assemble(), inputs)
        return backward(self.stack, prediction, targets, GAUSSIAN, prior_scale)


def _pendulum(task: PendulumTaskConfig) -> Pendulum:
    first, second = task.masses
    return Pendulum(k2=task.k2, wind=task.wind, m1=first, m2=second)


def _load(task: PendulumTaskConfig, seed: int) -> TrajectoryData:
    return load_trajectories(
        _pendulum(task),
        n_train=task.train,
        n_validation=task.validation,
        n_test=task.test,
        dt=task.time_step,
        horizon=task.horizon,
        chunk=task.chunk,
        seed=seed,
        file=task.file,
    )


def _solve(
    config: FitDynamicsConfig, times: Float[Tensor, " T"], model: DynamicsModel, weights: Any, z0: Tensor
) -> Trajectories:
    """As in training."""
    return integrate(model, z0, times, method="rk4", step=config.rollout.step, weights=weights)


def _rollout(
    config: FitDynamicsConfig, times: Float[Tensor, " T"], model: DynamicsModel, weights: Any, z0: Tensor
) -> Tensor:
    """States after the first, for the likelihood."""
    return _solve(config, times, model, weights, z0).states[..., 1:, :]


def _processes(config: FitDynamicsConfig) -> int:
    """How many workers a fit has: one for each thread, where it has several members and is long enough for them to pay."""
    threads = min(torch.get_num_threads(), config.seeds)
    is_long = config.optimiser.epochs * config.steps_per_epoch >= PAYS
    return threads if threads > 1 and is_long and device_of(config.device).type == "cpu" else 0


def _system(config: FitDynamicsConfig, net: nn.Module) -> DynamicsModel:
    return HamiltonianModel(net) if config.model.system == "hamiltonian" else NeuralODEModel(net)


def _mean(errors: Tensor) -> float:
    """The geometric mean; nan of none."""
    return float(geometric_mean(errors.flatten())) if errors.numel() else math.nan


def _first_divergence(found: Trajectories) -> float | None:
    """The time at which the first trajectory was found to have diverged."""
    return float(found.times[found.diverged_at[found.diverged].min()]) if found.diverged.any() else None
