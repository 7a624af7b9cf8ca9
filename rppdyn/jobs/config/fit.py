"""The configuration of `rppdyn fit-regression` and `rppdyn fit-dynamics`: names, types and ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import MISSING

from rppdyn.jobs.config.agent import ARCHITECTURES
from rppdyn.jobs.config.base import (
    AUTO,
    LEARNED,
    LEARNED_FROM,
    ConfigError,
    RunConfig,
    activation,
    at_least,
    bilinear,
    chain,
    column_names,
    file_stem,
    free_variance,
    free_variance_number,
    number,
    one_of,
    positive,
    require,
    shares,
    variance,
    without,
)

NETWORKS = ("rpp", "emlp", "mlp")
SYSTEMS = ("hamiltonian", "ode")
PENDULUMS = ("pendulum", "windy_pendulum")
SCHEDULES = ("cosine", "constant")
DTYPES = ("float32", "float64")
CURVATURES = ("joint", "kronecker")
OBJECTIVES = ("map", "marginal_likelihood")
FISHER = ("exact", "sampled")
ROLLOUT_METHODS = ("dopri5", "rk4")
OWN = "own"
"""The task of the user's own data."""
MOST_SEEDS = 1000
MOST_STEPS = 1_000_000
"""Time steps to the horizon."""
MOST_STEPS_BETWEEN = 1000
"""Limit of a solver's steps from one state of a training trajectory to the next."""
MOST_TEST_STEPS = 100_000
"""Limit of rk4's steps to the horizon, each of whose states is held in memory."""


@dataclass
class NetworkConfig:
    """The network: which pathways, how wide, how much each is believed."""

    kind: str = MISSING  # rpp (both pathways), emlp (strict), mlp (no symmetry); written by model=
    hidden: Any = (
        384  # channels of a hidden layer, or their representation, "64*T(0)+21*T(1)"; or a list, one per layer
    )
    num_layers: int = 3  # as many as hidden lists, where it is a list
    equivariant_variance: float = 1e5  # prior variance of the equivariant pathway; 0 removes it
    free_variance: Any = (
        1.0  # prior variance of the free pathway; or learned: objective=marginal_likelihood, from narrow variances
    )
    architecture: str = "auto"  # hidden representation: of the group's regular one, of tensors, or what fits the group
    activation: str | None = None  # swish, relu, tanh, ..., as rppdyn.nn.ACTIVATIONS has them; null: swish
    bilinear: Any = "auto"  # channelwise for infinite groups; published (true), channelwise, false; null: published
    bilinear_maps: int | None = None  # copies of a tensor that multiply others; null: as many as it has dimensions
    groups: Any = (
        None  # of model rpp, a chain in the place of the task's group, which it begins with: ["O(3)","O2eR3()"]
    )
    variances: Any = (
        None  # with groups, in the place of both variances: one for each group, and the free pathway's last
    )

    words: ClassVar[tuple[str, ...]] = (LEARNED,)  # that free_variance may be

    def __post_init__(self) -> None:
        one_of("model.kind", self.kind, NETWORKS)
        one_of("model.architecture", self.architecture, ARCHITECTURES)
        activation("model.activation", self.activation)
        bilinear("model.bilinear", self.bilinear)
        if self.bilinear_maps is not None:
            at_least("model.bilinear_maps", self.bilinear_maps, 1)
        self._check_hidden()
        variance("model.equivariant_variance", self.equivariant_variance)
        self.free_variance = free_variance(
            "model.free_variance", self.free_variance, self.kind, self.words, self.equivariant_variance
        )
        used = {"rpp": ("equivariant", "free"), "emlp": ("equivariant",), "mlp": ("free",)}[self.kind]
        if not any(getattr(self, f"{name}_variance") for name in used):
            raise ConfigError(f"model.{used[0]}_variance=0: no pathway is left of model {self.kind}; make it positive")
        chain(self.groups, self.variances, self.kind, self.free_variance, words=())

    @property
    def free(self) -> float:
        """The prior variance of the free pathway that networks are built with."""
        return free_variance_number(self.free_variance, None)

    def learn(self) -> None:
        """Put the variances where learning begins in the place of the word."""
        self.equivariant_variance = min(self.equivariant_variance, LEARNED_FROM[0])
        self.free_variance = LEARNED_FROM[1]

    def _check_hidden(self) -> None:
        layers = self.hidden if isinstance(self.hidden, list) else [self.hidden]
        for layer in layers:  # text is read when there is a group
            if not isinstance(layer, int | str) or isinstance(layer, bool):
                raise ConfigError(
                    f"model.hidden={self.hidden}: give a number of channels, a representation such as "
                    '"64*T(0)+21*T(1)", or a list of these'
                )
            if isinstance(layer, int):
                at_least("model.hidden", layer, 1)
        if isinstance(self.hidden, list):
            require("model.hidden", self.hidden, len(layers) > 0, "at least one layer")
            self.num_layers = len(layers)
        else:
            at_least("model.num_layers", self.num_layers, 1)


@dataclass
class DynamicsModelConfig(NetworkConfig):
    """A vector field: the gradient of a network's Hamiltonian, or a network itself."""

    hidden: Any = 128
    system: str = MISSING  # hamiltonian, whose field is a gradient, or ode; written by model=

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("model.system", self.system, SYSTEMS)


@dataclass
class OptimiserConfig:
    """Adam on the maximum a posteriori objective."""

    learning_rate: float = 3e-3  # of Adam, at its highest
    schedule: str = "cosine"  # of the learning rate: to zero at the end; or constant, as published
    warm_up: int = 0  # epochs in which the learning rate rises from zero to that of its schedule
    epochs: int = MISSING  # passes over the training data
    batch_size: int = 500  # data in a step
    # of the Gaussian likelihood, in units of the targets' variance, of a pendulum in those of the task; the smaller, the less
    # the priors weigh
    noise_variance: float = 1e-4

    def __post_init__(self) -> None:
        positive("optimiser.learning_rate", self.learning_rate)
        one_of("optimiser.schedule", self.schedule, SCHEDULES)
        at_least("optimiser.epochs", self.epochs, 1)
        require(
            "optimiser.warm_up",
            self.warm_up,
            0 <= self.warm_up <= self.epochs,
            f"a number of epochs, from 0 to optimiser.epochs={self.epochs}",
        )
        at_least("optimiser.batch_size", self.batch_size, 1)
        positive("optimiser.noise_variance", self.noise_variance)


@dataclass
class MarginalLikelihoodConfig:
    """How prior variances are learned, where objective=marginal_likelihood: a few steps of Adam every few epochs."""

    burn_in: int = 10  # epochs before the first
    every: int = 5  # epochs
    steps: int = 20  # of Adam on the logarithms of the variances
    learning_rate: float = 0.1  # of Adam on the logarithms of the variances
    data: int = 500  # of each member's, for the curvature
    curvature: str = "joint"  # of all pathways together, exact; or kronecker, for more data than a matrix has rows
    fisher: str = "sampled"  # random targets for each datum; or exact, one backward pass for each output
    draws: int = 2  # random targets for each datum, where curvature is joint
    noise: bool = True  # the variance of the likelihood is learned, too
    shrink: bool = False  # weights of free pathways fall with their variance

    def __post_init__(self) -> None:
        for name in ("every", "steps", "data", "draws"):
            at_least(f"marginal_likelihood.{name}", getattr(self, name), 1)
        at_least("marginal_likelihood.burn_in", self.burn_in, 0)
        # variances are exponentials of what it steps in
        positive("marginal_likelihood.learning_rate", self.learning_rate, 10)
        one_of("marginal_likelihood.curvature", self.curvature, CURVATURES)
        one_of("marginal_likelihood.fisher", self.fisher, FISHER)


@dataclass
class RegressionTaskConfig:
    """A regression task, the symmetry that networks are given, and how much data there is."""

    name: str = MISSING  # written by task=
    group: str | None = None  # for example "SL(3)"; null: the task's own
    strength: float | None = None  # of what breaks the symmetry of the modified inertias; null: 0.3, as published
    train: int = 1000  # training data of each seed
    validation: int = 1000  # data to choose by
    test: int = 1000  # data to measure with
    augment: bool = False  # training data are moved by random elements of the group, anew in each epoch
    data: str | None = None  # of task=own: a CSV, NPZ or HDF5 file, or a folder of such
    inputs: Any = None  # of the user's data, names of columns or arrays, in order; null: x
    outputs: Any = None  # those of what is predicted; null: y
    rep: str | None = None  # of the inputs; null: as many vectors of the group as fit
    rep_out: str | None = None  # of the outputs; null: likewise, or invariants where there are fewer
    split: Any = field(
        default_factory=lambda: [0.7, 0.15, 0.15]
    )  # shares of train, validation, test; or a column of these
    split_seed: int | None = 0  # by which data are shared out to the three; null: each seed has a split of its own
    digest: str | None = None  # of the data; written by the run
    generators: Any = None  # of a group that was discovered; written by the run

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            at_least(f"task.{name}", getattr(self, name), 1)
        if (self.name == OWN) != (self.data is not None):
            raise ConfigError(
                f"task={self.name} with data={self.data}: name your file, data=FILE, with task=own or no task="
            )
        self.inputs, self.outputs = (column_names(f"task.{key}", getattr(self, key)) for key in ("inputs", "outputs"))
        shares("task.split", self.split)
        if self.split_seed is not None:
            at_least("task.split_seed", self.split_seed, 0)
        for key in ("rep", "rep_out"):
            if (text := getattr(self, key)) is not None and self.group is None:
                raise ConfigError(f"{key}={text} without group=: name the group that it is a representation of")
        if self.augment and self.data is not None and self.group in (None, AUTO):
            raise ConfigError(f"task.augment=true with group={self.group}: name the group whose elements move the data")
        if self.strength is not None:
            number("task.strength", self.strength, "a number, or null for the published one")


@dataclass
class PendulumTaskConfig:
    """The double spring pendulum, the symmetry that networks are given, and how much of it is seen."""

    name: str = MISSING  # written by task=
    group: str = "O2eR3()"  # symmetry that networks are given, such as O2eR3() or SO(3)
    k2: float = 1.0  # of the second spring; 2 is what the published code computes
    wind: float = (
        0.0  # eps, the wind's strength; with equal masses it tilts the axis of the symmetry and breaks nothing
    )
    masses: list[float] = field(default_factory=lambda: [1.0, 1.0])  # kg; unequal ones in wind leave no axis
    train: int = 500  # training chunks of each seed
    validation: int = 500  # chunks to choose by
    test: int = 500  # chunks to measure with
    time_step: float = 0.2  # seconds between two states
    horizon: float = 30.0  # of the test rollouts
    chunk: int = 5  # time steps of a training trajectory
    file: str | None = None  # a stored dataset with these parameters; null: made once and kept in the cache

    def __post_init__(self) -> None:
        one_of("task.name", self.name, PENDULUMS)
        positive("task.k2", self.k2)
        require("task.wind", self.wind, math.isfinite(self.wind), "a number")
        proper = len(self.masses) == 2 and all(0 < mass < math.inf for mass in self.masses)
        require("task.masses", self.masses, proper, "two numbers above 0, such as [1,2]")
        for name in ("train", "validation", "test", "chunk"):
            at_least(f"task.{name}", getattr(self, name), 1)
        positive("task.time_step", self.time_step)
        positive("task.horizon", self.horizon)
        few = self.horizon / self.time_step <= MOST_STEPS
        require(
            "task.time_step",
            self.time_step,
            few,
            f"at least task.horizon / {MOST_STEPS}, {self.horizon / MOST_STEPS:g}",
        )
        require(
            "task.horizon",
            self.horizon,
            abs(round(self.horizon / self.time_step) * self.time_step / self.horizon - 1) <= 1e-9,
            f"a multiple of task.time_step={self.time_step:g}",
        )
        longest = self.chunk * self.time_step
        enough = self.horizon >= longest * (1 - 1e-9)  # 3 * 0.2 is more than 0.6
        require("task.horizon", self.horizon, enough, f"at least task.chunk steps, {longest:g}")


@dataclass
class FitEvaluationConfig:
    """Measurements while fitting."""

    every: int = 10  # epochs
    states: int = 200  # test inputs for the equivariance errors

    def __post_init__(self) -> None:
        at_least("evaluation.every", self.every, 1)
        at_least("evaluation.states", self.states, 1)


@dataclass
class RolloutConfig:
    """How vector fields are solved: with fixed steps while training, with an accurate method afterwards."""

    step: float | None = None  # longest step of rk4 while training; null: one per time step
    method: str = "rk4"  # of the test rollouts; or dopri5, and rk4 where it finds no steps
    test_step: float = 0.05  # of rk4: about 1e-5 of the state after 30 s
    tolerance: float = 1e-6  # of dopri5, relative and absolute
    trajectories: int = 100  # how many test trajectories are rolled out to the horizon

    def __post_init__(self) -> None:
        if self.step is not None:
            positive("rollout.step", self.step)
        one_of("rollout.method", self.method, ROLLOUT_METHODS)
        positive("rollout.tolerance", self.tolerance)
        positive("rollout.test_step", self.test_step)
        at_least("rollout.trajectories", self.trajectories, 1)


@dataclass
class FitConfig(RunConfig):
    """Settings that fits have in common: members trained together, each from a seed of its own."""

    optimiser: OptimiserConfig = MISSING
    evaluation: FitEvaluationConfig = field(default_factory=FitEvaluationConfig)
    checkpoint_every: int = 20  # epochs between two checkpoints
    objective: str = "map"  # with the variances that are given; or marginal_likelihood, which learns them
    marginal_likelihood: MarginalLikelihoodConfig = field(default_factory=MarginalLikelihoodConfig)
    seeds: int = 1  # members: seed, seed + 1, ..., trained together in this process
    dtype: str = "float32"  # of the networks, float32 or float64
    report: bool | None = None  # report.html in the run folder, of this run; null: where data are the user's own

    verb = "fit"
    resumable: ClassVar[tuple[str, ...]] = (*RunConfig.resumable, "report")
    # of the user's own data, which a run writes down for those who read it
    written: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # each fit has its own, behind these
        task: Any = MISSING
        model: Any = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.model, "free_variance", None) == LEARNED:  # another way to say it
            self.objective = "marginal_likelihood"
            self.model.learn()
        require("seeds", self.seeds, 1 <= self.seeds <= MOST_SEEDS, f"from 1 to {MOST_SEEDS}; more by another seed=")
        enough = self.seed + self.seeds <= 2**31
        require("seeds", self.seeds, enough, f"at most {2**31 - self.seed}: the last seed is 2^31 - 1")
        one_of("dtype", self.dtype, DTYPES)
        one_of("objective", self.objective, OBJECTIVES)
        burn_in, epochs = self.marginal_likelihood.burn_in, self.optimiser.epochs
        if self.objective == "marginal_likelihood" and burn_in >= epochs:
            raise ConfigError(
                f"marginal_likelihood.burn_in={burn_in} with optimiser.epochs={epochs}: no variance would be learned; give "
                "fewer epochs before the first update"
            )

    @property
    def reports(self) -> bool:
        """True if the run folder gets a report."""
        return self._data is not None if self.report is None else self.report

    @property
    def _data(self) -> str | None:
        """The user's own data."""
        return getattr(self.task, "data", None)

    def identity(self) -> dict[str, Any]:
        return without(super().identity(), () if self._data is None else self.written)

    @property
    def all_seeds(self) -> list[int]:
        """One per member."""
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def length(self) -> tuple[str, int]:
        return "optimiser.epochs", self.optimiser.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Batches; the last one of an epoch may be smaller."""
        return math.ceil(self.task.train / self.optimiser.batch_size)

    @property
    def place(self) -> tuple[str, ...]:
        seeds = f"seed{self.seed}" if self.seeds == 1 else f"seeds{self.seed}-{self.seed + self.seeds - 1}"
        return self.task_name, self.model_name, seeds

    @property
    def task_name(self) -> str:
        """Name of the task in tables."""
        return self.task.name if self._data is None else file_stem(self._data)

    @property
    def model_name(self) -> str:
        """Name of the model in tables."""
        return self.model.kind


@dataclass
class FitRegressionConfig(FitConfig):
    """`rppdyn fit-regression`."""

    task: RegressionTaskConfig = MISSING
    model: NetworkConfig = MISSING

    verb = "fit-regression"
    written = ("task.train", "task.validation", "task.test", "task.digest", "task.generators")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.data is not None and self.task.group is None and self.model.kind != "mlp":
            raise ConfigError(f"model={self.model.kind} without group=: name the symmetry, or give model=mlp")

    @property
    def model_name(self) -> str:
        return "mlp" if self.task.generators == [] else self.model.kind

    @property
    def place(self) -> tuple[str, ...]:
        *parents, _, seeds = super().place
        return *parents, self.model.kind, seeds  # what is found later changes no folder


@dataclass
class FitDynamicsConfig(FitConfig):
    """`rppdyn fit-dynamics`."""

    task: PendulumTaskConfig = MISSING
    model: DynamicsModelConfig = MISSING
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    compile: bool | None = None  # train by torch.compile; null: on a CPU, in long fits, where it works

    verb = "fit-dynamics"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollout.step is not None:
            least = self.task.time_step / MOST_STEPS_BETWEEN
            require(
                "rollout.step",
                self.rollout.step,
                self.rollout.step >= least,
                f"at least {least:g}, or null for one per step",
            )
        require(
            "rollout.test_step",
            self.rollout.test_step,
            self.task.horizon / self.rollout.test_step <= MOST_TEST_STEPS,
            f"at least task.horizon / {MOST_TEST_STEPS}, {self.task.horizon / MOST_TEST_STEPS:g}",
        )
        if self.task.file is not None and self.seeds > 1:
            raise ConfigError(
                f"task.file={self.task.file} with seeds={self.seeds}: a file holds the data of one seed; fit one, or leave the "
                "file out, and each seed has its own"
            )

    @property
    def model_name(self) -> str:
        return f"{self.model.kind}_{'hnn' if self.model.system == 'hamiltonian' else 'ode'}"
