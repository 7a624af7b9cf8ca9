"""`rppdyn fit-dynamics`: fit Hamiltonian and neural-ODE models to trajectories, several seeds in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
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
)
from rppdyn.equivariance.discover import discover
from rppdyn.equivariance.error import equivariance_error
from rppdyn.groups import SO, SO2eR3
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.fit import FitDynamicsConfig, PendulumTaskConfig, RolloutConfig
from rppdyn.jobs.config.run import device_of
from rppdyn.jobs.fitting.dynamics import INITIAL_SCALE, DynamicsFit
from rppdyn.jobs.fitting.members import GAUSSIAN, Parts, backward, build_stack, under_group
from rppdyn.jobs.fitting.running import load_members, run_fit
from rppdyn.jobs.plots import draw_rollouts
from rppdyn.jobs.results import FitResult
from rppdyn.nn import Stack
from rppdyn.nn.compiling import can_compile, check_compiler
from rppdyn.reps import Rep, Scalar, V
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.workers import Worker, WorkerError, in_turn
from rppdyn.tasks import OtherParametersError, Pendulum, TrajectoryData, load_trajectories

__all__ = ["Dynamics", "load_models", "roll_out", "run"]

logger = logging.getLogger(__name__)
Item = TypeVar("Item")

BAR_AFTER = 1.0
"""Seconds; data and test rollouts that are sooner there show no bar."""
KEYS = {"dt": "task.time_step", "seed": "seed"}
"""Of the configuration, for parameters of a dataset that have other names there."""
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


class Dynamics(DynamicsFit):
    """The configured pendulum with the models that are fitted to it; each seed has trajectories, weights and batches."""

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
            by_gradients=is_hamiltonian,
        )

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

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if not self.workers:
            return super()._backward(inputs, targets)
        if self.parts is None:
            build = partial(_PartFit, self.config, self.chunk_times, self.compiled)
            self.parts = Parts(self.stack, self.workers, build)
        return self.parts.backward(inputs, targets, self.prior_scale)

    # -- what a fit of vector fields asks -----------------------------------------------------------------------------

    def system(self, net: nn.Module) -> DynamicsModel:
        return _system(self.config, net)

    def solve(self, model: DynamicsModel, weights: Any, inputs: Tensor) -> Trajectories:
        return _solve(self.config, self.chunk_times, model, weights, inputs)

    def held(self, split: str) -> tuple[Tensor, Tensor]:
        chunks = torch.stack([getattr(data, split) for data in self.data]).to(device=self.device, dtype=self.dtype)
        return chunks[:, :, 0], chunks

    def fields_of(self, index: int) -> tuple[Rep, Tensor]:
        return self.rep, self.data[index].test[:, 0]

    def truth(self, index: int) -> Tensor:
        return self.data[index].rollouts[: self.config.rollout.trajectories]

    @property
    def times(self) -> list[float]:
        return self.data[0].times.tolist()

    def rollouts(self, members: Sequence[DynamicsModel]) -> Iterable[Trajectories]:
        jobs = [
            (self.config.rollout, member, self.truth(index)[:, 0].clone(), self.data[0].times)
            for index, member in enumerate(members)
        ]
        return in_turn(self.workers, roll_out, jobs) if self.workers else starmap(roll_out, jobs)

    def errors(self, found: Float[Tensor, "n T d"], truth: Float[Tensor, "n T d"]) -> dict[str, Float[Tensor, "n t"]]:
        """Of the state; ``energy_drift`` is that of the true energy, ``momentum_drift`` that of the angular momentum about the
        vertical, along the model's rollouts."""
        momentum = noether_momenta(2 * V(SO2eR3()), found).squeeze(-1)
        return super().errors(found, truth) | {
            "energy_drift": relative_drift(self.pendulum.energy(found)),
            "momentum_drift": relative_drift(momentum),
        }

    def others(self, index: int, member: DynamicsModel, found: Trajectories) -> dict[str, Any]:
        """The time at which the first trajectory was found to have diverged."""
        lost = found.times[found.diverged_at[found.diverged].min()] if found.diverged.any() else None
        return {"rollout/first_divergence": None if lost is None else float(lost)}

    def draw(self, folder: RunFolder) -> None:
        super().draw(folder)
        draw_rollouts(self.curves, self.example, folder.figures / "rollouts.png")


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
