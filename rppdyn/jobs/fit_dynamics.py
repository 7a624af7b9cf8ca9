"""`rppdyn fit-dynamics`: fit Hamiltonian and neural-ODE models to trajectories, several seeds in one process."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.dynamics import (
    DynamicsModel,
    FittedDynamics,
    HamiltonianModel,
    IntegrationError,
    NeuralODEModel,
    Scaling,
    Trajectories,
    integrate,
    noether_momenta,
    relative_drift,
    rollout_error,
)
from rppdyn.equivariance._discover import discover
from rppdyn.equivariance._error import (
    Function,
    MeasuredRollout,
    equivariance_error,
    geometric_mean,
    index_blocks,
    measured_networks,
)
from rppdyn.groups import SO, Group, SO2eR3
from rppdyn.jobs.config.base import ConfigError, device_of
from rppdyn.jobs.config.fit import FitConfig, FitDynamicsConfig, FitTrajectoriesConfig, RolloutConfig
from rppdyn.jobs.fit import StackFit, build_stack, equivariance_metrics, make_with_group, run_fit
from rppdyn.jobs.results import FitResult, values_by_name
from rppdyn.nn import Chained, Ensemble
from rppdyn.nn._compiling import can_compile, check_compiler
from rppdyn.reps import Rep, Scalar, V
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.files import write_json
from rppdyn.tasks import OtherParametersError, Pendulum, TrajectoryData, load_trajectories

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


# -- fits of any system ------------------------------------------------------------------------------------------------

MAX_GRADIENT_RATIO = 10.0
"""Largest length of a gradient relative to its running mean; that of a nearly diverging trajectory can be 1e8 times as long."""
INITIAL_SCALE = 0.1
"""Initial scale of the last layer's weights: at scale 1 the first rollouts of networks cubic in their inputs diverge."""
MIN_STEPS_TO_COMPILE = 500
"""Steps in which ``torch.compile`` saves a relaxed network the time that compiling takes, without a cache."""
SPLITS = ("validation", "test")


class DynamicsFit(StackFit):
    """Trajectories and the vector fields fitted to them, one for each seed.

    A subclass sets ``rep`` and ``device`` before it calls this constructor.

    Attributes:
        model, training_model: vector fields of the stack; ``torch.compile`` may compile the one for training.
        curves: curves of the test rollouts by name of :meth:`errors`, for each seed, over ``times``; set by :meth:`test`.
        example: the first test trajectory, ``truth``, and that of the first member's model, ``found``, each ``(T, n)``.
    """

    config: FitDynamicsConfig | FitTrajectoriesConfig
    rep: Rep
    device: torch.device

    def __init__(self, config: FitConfig, stack: Ensemble, inputs: Tensor, targets: Tensor, *, by_gradients: bool):
        self.model, self.training_model = self.system(stack), self.system(stack)
        super().__init__(
            config, stack, inputs, targets, max_gradient_ratio=MAX_GRADIENT_RATIO, by_gradients=by_gradients
        )
        self.curves: dict[str, Any] = {}
        self.example: dict[str, Any] = {}

    # -- methods of a task --------------------------------------------------------------------------------------------

    @abstractmethod
    def system(self, net: nn.Module) -> DynamicsModel:
        """The vector field of a network."""

    @abstractmethod
    def solve(self, model: DynamicsModel, weights: Any, inputs: Float[Tensor, "*batch d"]) -> Trajectories:
        """Solve for chunks from their inputs, as in training."""

    @abstractmethod
    def held_out_chunks(self, split: str) -> tuple[Float[Tensor, "members N d"], Float[Tensor, "members N T n"]]:
        """Inputs of the chunks of "validation" or "test", and their states."""

    @abstractmethod
    def fields_of(self, index: int) -> tuple[Rep, Float[Tensor, "N d"]] | None:
        """The representation and the test inputs of a member's vector field; None without a group."""

    @abstractmethod
    def rollouts(self, members: Sequence[DynamicsModel]) -> Iterable[Trajectories]:
        """Each member's rollouts from the initial states of the test trajectories."""

    @abstractmethod
    def truth(self, index: int) -> Float[Tensor, "m T n"]:
        """The test trajectories of a member, in the units of its rollouts; nan after their ends."""

    @property
    @abstractmethod
    def times(self) -> list[float]:
        """Times of the rollouts, s."""

    def errors(self, states: Float[Tensor, "m T n"], truth: Float[Tensor, "m T n"]) -> dict[str, Float[Tensor, "m t"]]:
        """Errors by name of rollouts that did not diverge, at each time but the first; nan after a trajectory's end."""
        known = truth.isfinite().all(-1)[:, 1:]
        return {"error": torch.where(known, rollout_error(states, truth), torch.nan)}

    def further_metrics(self, index: int, member: DynamicsModel, rollouts: Trajectories) -> dict[str, Any]:
        """Further metrics of a member by name."""
        return {}

    def example_of(self, rollouts: Trajectories) -> dict[str, Any]:
        """The first member's first test trajectory and the true one."""
        return {"times": self.times, "truth": self.truth(0)[0].tolist(), "found": rollouts.states[0].tolist()}

    def vector_field(
        self, model: DynamicsModel, names: Mapping[str, int], rep_in: Rep, inputs: Mapping[str, int], **fields: Any
    ) -> Function:
        """A model's vector field as a function; a Hamiltonian itself has an arbitrary constant.

        Args:
            names, inputs: names and sizes of the parts of a state, and of the field's arguments.
        """
        weights = model.assemble()
        network = "Hamiltonian" if isinstance(model, HamiltonianModel) else "network"
        rates = {f"d{name}/dt": index for name, index in index_blocks(names).items()}
        call = lambda z: model.vector_field(z, weights)  # noqa: E731
        networks = measured_networks(network, model.net, lambda z: z, rep_in)
        return Function(
            "vector field", call, rep_in, self.rep, index_blocks(inputs), rates, networks=networks, **fields
        )

    # -- methods for all systems --------------------------------------------------------------------------------------

    def compiled_where_it_gains(self) -> Self:
        """Train by ``torch.compile`` if the configuration says so, or leaves it open and that saves time on this CPU.

        A plain neural ODE is little but matrix products, which take as long when compiled. A smaller last batch of an epoch is
        compiled once more.
        """
        compiles, model = self.config.compile, self.config.model
        rows, batch_size = self.inputs.shape[1], self.config.optimiser.batch_size
        batch_sizes = 2 if rows > batch_size and rows % batch_size else 1
        if compiles:
            check_compiler(self.device)
        elif compiles is None and self.device.type == "cpu" and self.steps >= batch_sizes * MIN_STEPS_TO_COMPILE:
            compiles = (model.kind, model.system) != ("mlp", "ode") and can_compile(self.device)
        if compiles:
            self.training_model.compile(dynamic=False)
            self.compiled = True
        return self

    def predict(self, inputs: Tensor) -> Tensor:
        return self.solve(self.training_model, self.training_model.assemble(), inputs).states[..., 1:, :]

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return self.solve(self.system(Chained(net)), None, inputs).states[..., 1:, :]

    def predict_each(self, stack: Ensemble, weights: Any, inputs: Float[Tensor, "N d"]) -> Float[Tensor, "N T n"]:
        return self.solve(self.system(stack), weights, inputs.unsqueeze(1)).states[..., 1:, :].squeeze(1)

    def members(self) -> list[DynamicsModel]:
        """The models in their present state, in float64 on the CPU."""
        return [self.system(self.stack.member(index)).double().cpu() for index in range(self.stack.members)]

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        weights = self.model.assemble()
        for split in SPLITS:
            inputs, states = self.held_out_chunks(split)
            rollouts = self.solve(self.model, weights, inputs)
            errors = zip(rollout_error(rollouts.states, states), ~rollouts.diverged, strict=True)
            metrics[f"{split}/error"] = [mean_error(error[sound]) for error, sound in errors]
            metrics[f"{split}/diverged"] = rollouts.diverged.double().mean(1).tolist()
        equivariance = [self._equivariance(index, member) for index, member in enumerate(self.members())]
        if all(equivariance):
            metrics["equivariance/error"] = [errors["error"] for errors in equivariance]
        return metrics

    def _equivariance(self, index: int, member: DynamicsModel) -> dict[str, float]:
        """The equivariance errors of a member's vector field; empty without a group."""
        fields = self.fields_of(index)
        if fields is None:
            return {}
        rep_in, z = fields
        weights = member.assemble()
        z = z[: self.config.evaluation.states]
        return equivariance_metrics(lambda z: member.vector_field(z, weights), rep_in, self.rep, z)

    def test(self) -> dict[str, Any]:
        """Errors of the members' rollouts, lists with one value per seed.

        ``rollout/error`` is the geometric mean over time and trajectories of the relative error. Diverged trajectories are left
        out and counted in ``rollout/diverged``; if all diverged, there is no number. ``test/error`` and ``test/diverged`` are
        the same for the chunks of the test data.
        """
        metrics, members, measured = self.metrics(), self.members(), []
        self.curves = {"times": self.times}
        for index, rollouts in enumerate(self._over_seeds(self.rollouts(members), "test rollouts")):
            sound = ~rollouts.diverged
            values: dict[str, Any] = {
                f"{split}/{name}": metrics[f"{split}/{name}"][index]
                for split in SPLITS
                for name in ("error", "diverged")
            }
            values["rollout/diverged"] = float(rollouts.diverged.double().mean())
            for name, errors in self.errors(rollouts.states[sound], self.truth(index)[sound]).items():
                values[f"rollout/{name}"] = mean_error(errors)
                over_time = geometric_mean(errors).tolist() if len(errors) else None  # nan where all have ended
                self.curves.setdefault(name, []).append(over_time)
            values |= self.further_metrics(index, members[index], rollouts)
            equivariance = self._equivariance(index, members[index])
            values |= {f"equivariance/{name}": value for name, value in equivariance.items()}
            measured.append(values)
            if index == 0:
                self.example = self.example_of(rollouts)
        return values_by_name(measured)

    def save(self, folder: RunFolder) -> None:
        write_json(folder.path / "rollouts.json", self.curves | {"example": self.example})

    def _over_seeds(self, items: Iterable[Item], description: str) -> Iterator[Item]:
        """Iterate over the items of the seeds."""
        yield from items


def mean_error(errors: Float[Tensor, "*any"]) -> float:
    """The geometric mean without nan entries; nan for no entries."""
    known = errors[~errors.isnan()]
    return float(geometric_mean(known)) if known.numel() else math.nan


# -- the double spring pendulum ----------------------------------------------------------------------------------------

BAR_DELAY_SECONDS = 1.0
"""Data and test rollouts that take less time show no bar."""
DATASET_KEYS = {"dt": "task.time_step", "seed": "seed"}
"""Keys of the configuration for parameters of a dataset with other names."""
MAX_EXACT_DEFECT = 1e-6
"""Relative defect below which a field's symmetry is called exact."""


def run(config: FitDynamicsConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured models into their run folder.

    Arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.
    """

    def build() -> Dynamics:
        dynamics = Dynamics(config, progress)
        if config.task.wind:
            logger.info("%s", dynamics.symmetry())
        return dynamics.compiled_where_it_gains()

    return run_fit(config, build, resume=resume, progress=progress)


class Dynamics(DynamicsFit):
    """The configured pendulum and the models fitted to it; trajectories, weights and batches depend on the seed."""

    config: FitDynamicsConfig

    def __init__(self, config: FitDynamicsConfig, progress: bool = False):
        self.config, self.progress = config, progress
        task = config.task
        self.pendulum = Pendulum(k2=task.k2, wind=task.wind, m1=task.masses[0], m2=task.masses[1])
        self.rep = make_with_group(task.group, self.pendulum.rep)
        self.dtype, self.device = getattr(torch, config.dtype), device_of(config.device)
        self.data = list(self._over_seeds(self._trajectories(), "data"))
        chunks = torch.stack([data.train for data in self.data]).to(device=self.device, dtype=self.dtype)
        self.chunk_times = self.data[0].chunk_times.to(device=self.device, dtype=self.dtype)
        is_hamiltonian = config.model.system == "hamiltonian"
        stack = build_stack(config, self.rep, Scalar(self.rep.G) if is_hamiltonian else self.rep, INITIAL_SCALE)
        super().__init__(config, stack, chunks[:, :, 0], chunks[:, :, 1:], by_gradients=is_hamiltonian)

    def _over_seeds(self, items: Iterable[Item], description: str) -> Iterator[Item]:
        """Iterate over the items of the seeds, with a bar for several seeds that take long."""
        seeds = self.config.seeds
        has_bar = self.progress and seeds > 1
        with Progress(seeds, description=description, unit="seed", enabled=has_bar, delay=BAR_DELAY_SECONDS) as bar:
            for index, item in enumerate(items):
                yield item
                bar.update(index + 1)

    def _trajectories(self) -> Iterator[TrajectoryData]:
        """The trajectories of each seed; errors of the task are raised with the first."""
        task = self.config.task
        try:
            for seed in self.config.all_seeds:
                yield load_trajectories(
                    self.pendulum, task.train, task.validation, task.test, task.time_step, task.horizon, task.chunk, seed,
                    task.file,
                )  # fmt: skip
        except OtherParametersError as error:
            key = DATASET_KEYS.get(error.name, f"task.{error.name.removeprefix('n_')}")
            raise ConfigError(
                f"task.file={task.file} was made with {key}={error.found}, not {error.wanted}: make them the same, or leave "
                "the file out"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{'task' if task.file is None else f'task.file={task.file}'}: {error}") from error

    def symmetry(self) -> str:
        """Describe how far the true field is from symmetry under the group, and under rotations about the best axis."""
        z = self.pendulum.initial_state(200, torch.Generator().manual_seed(0))
        error = equivariance_error(self.pendulum.vector_field, self.rep, self.rep, z).mean
        turns = self.pendulum.rep(SO(3))
        defect = float(discover(self.pendulum.vector_field, turns, turns, z).spectrum[0])
        axis = "exactly" if defect < MAX_EXACT_DEFECT else f"but for {defect:.2g} of it"
        return f"The pendulum's field is off {self.rep.G} by {error:.2g}; about its best axis it is symmetric {axis}."

    # -- methods of a fit of vector fields ----------------------------------------------------------------------------

    def system(self, net: nn.Module) -> DynamicsModel:
        return HamiltonianModel(net) if self.config.model.system == "hamiltonian" else NeuralODEModel(net)

    def solve(self, model: DynamicsModel, weights: Any, inputs: Tensor) -> Trajectories:
        step = self.config.rollout.step
        return integrate(model, inputs, self.chunk_times, method="rk4", step=step, weights=weights)

    def held_out_chunks(self, split: str) -> tuple[Tensor, Tensor]:
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
        times = self.data[0].times
        for index, member in enumerate(members):
            yield roll_out(self.config.rollout, member, self.truth(index)[:, 0], times)

    def errors(self, states: Float[Tensor, "n T d"], truth: Float[Tensor, "n T d"]) -> dict[str, Float[Tensor, "n t"]]:
        """Errors of the state, and drifts of the true energy and of the angular momentum about the vertical."""
        momentum = noether_momenta(2 * V(SO2eR3()), states).squeeze(-1)
        return super().errors(states, truth) | {
            "energy_drift": relative_drift(self.pendulum.energy(states)),
            "momentum_drift": relative_drift(momentum),
        }

    def functions(self, group: Group | None = None) -> list[Function]:
        self.rep = self.rep if group is None else self.pendulum.rep(group)
        parts, times = self.pendulum.parts, self.data[0].times
        functions = []
        for seed, model, data in zip(self.config.all_seeds, self.members(), self.data, strict=True):
            rollout = MeasuredRollout(
                partial(self._solve, model), data.rollouts[: self.config.rollout.trajectories, 0], times
            )
            fields = dict(seed=seed, samples=data.test[:, 0], rollout=rollout)
            functions.append(self.vector_field(model, parts, self.rep, parts, **fields))
        return functions

    def _solve(self, model: DynamicsModel, z0: Tensor) -> Tensor:
        """Trajectories from initial states; nan for diverged ones."""
        rolled = roll_out(self.config.rollout, model, z0, self.data[0].times)
        return torch.where(rolled.diverged[:, None, None], torch.nan, rolled.states)

    def predictor(self) -> FittedDynamics:
        """The models in the pendulum's own units."""
        n = self.rep.dim
        names = [f"{part}[{i}]" for part, size in self.pendulum.parts.items() for i in range(size)]
        unit = Scaling(torch.zeros(n).double(), torch.ones(n).double(), 1.0, torch.zeros(0), torch.ones(0))
        models = self.members()
        return FittedDynamics(
            models, [unit] * len(models), self.rep, names, step=float(self.data[0].times.diff().max())
        )

    def further_metrics(self, index: int, member: DynamicsModel, rollouts: Trajectories) -> dict[str, Any]:
        """The time of the first divergence of a rollout; None without any."""
        if not rollouts.diverged.any():
            return {"rollout/first_divergence": None}
        return {"rollout/first_divergence": float(rollouts.times[rollouts.diverged_at[rollouts.diverged].min()])}


@torch.no_grad()
def roll_out(
    options: RolloutConfig, model: DynamicsModel, z0: Float[Tensor, "n 12"], times: Float[Tensor, " T"]
) -> Trajectories:
    """Solve a model by the configured method of the test rollouts, or by rk4 if dopri5 finds no steps."""
    if options.method == "dopri5":
        try:
            return integrate(model, z0, times, rtol=options.tolerance, atol=options.tolerance)
        except IntegrationError as error:
            logger.warning("%s. Measured by rk4 in steps of %g", error, options.test_step)
    return integrate(model, z0, times, method="rk4", step=options.test_step)
