"""The configurations of `rppdyn fit-regression`, `fit-dynamics` and `fit-transition`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from rppdyn.jobs.config.agent import SYMMETRY_HELP, VARIANT_HELP, Variant
from rppdyn.jobs.config.base import (
    AUTO,
    LEARNED,
    START_VARIANCES,
    Columns,
    NetworkSettings,
    RunConfig,
    Shares,
    file_stem,
    refuse_below,
    without_keys,
)
from rppdyn.settings import ConfigError, Count, Natural, Number, Positive, Text, Variance, setting, settings

Layer = Count | Text
Hidden = Layer | Annotated[list[Layer], Field(min_length=1)]
OWN = "own"
"""The task of the user's own data."""
MAX_SEEDS = 1000
MAX_TIME_STEPS = 1_000_000
"""Largest number of time steps to the horizon."""
MAX_STEPS_BETWEEN_STATES = 1000
"""Largest number of a solver's steps between two states of a training trajectory."""
MAX_TEST_STEPS = 100_000
"""Largest number of rk4's steps to the horizon, whose states are all kept in memory."""


def hidden(channels: int) -> Any:
    """The field of the hidden layers, with a default number of channels."""
    return setting(
        channels, 'channels of a hidden layer, or their representation, "64*T(0)+21*T(1)"; or a list, one per layer'
    )


@settings
class NetworkConfig(NetworkSettings):
    """The network: which pathways, how wide, and their prior variances."""

    kind: Literal["rpp", "emlp", "mlp"] = setting(
        ..., "rpp (both pathways), emlp (strict), mlp (no symmetry); set it with model="
    )
    hidden: Hidden = hidden(384)
    num_layers: Count = setting(3, "number of hidden layers; if hidden is a list, its length")
    free_variance: Literal["learned"] | Variance = setting(
        1.0, "prior variance of the free pathway; learned: as objective=marginal_likelihood, from narrow variances"
    )
    bilinear_maps: Count | None = setting(
        None, "number of tensors or channels by which bilinear layers multiply the others; null: chosen by the layer"
    )

    refused_with_groups = (LEARNED,)

    def learn(self) -> None:
        """Replace `free_variance=learned` by the initial variances of learning."""
        self.equivariant_variance = min(self.equivariant_variance, START_VARIANCES[0])
        self.free_variance = START_VARIANCES[1]


@settings
class DynamicsModelConfig(NetworkConfig):
    """A vector field: the gradient of a network's Hamiltonian, or a network itself."""

    hidden: Hidden = hidden(128)
    system: Literal["hamiltonian", "ode"] = setting(
        ..., "hamiltonian: a field that is a network's symplectic gradient; ode: a network itself; set it with model="
    )


@settings
class OptimiserConfig:
    """Adam on the maximum a posteriori objective."""

    learning_rate: Positive = setting(3e-3, "largest learning rate of Adam")
    schedule: Literal["cosine", "constant"] = setting(
        "cosine", "learning rate over time: cosine, which falls to zero at the end, or constant, as published"
    )
    warm_up: Natural = setting(0, "epochs in which the learning rate rises from zero to that of its schedule")
    epochs: Count = setting(..., "passes over the training data")
    batch_size: Count = setting(500, "training data in a step")
    noise_variance: Positive = setting(
        1e-4,
        "variance of the likelihood, in units of the targets' variance (pendulum: of the task); the smaller, "
        "the less priors weigh",
    )

    def __post_init__(self) -> None:
        refuse_below("optimiser.epochs", self.epochs, self.warm_up, "optimiser.warm_up")


@settings
class MarginalLikelihoodConfig:
    """How prior variances are learned, where objective=marginal_likelihood: a few steps of Adam every few epochs."""

    burn_in: Natural = setting(10, "epochs before the first update of variances")
    every: Count = setting(5, "epochs between updates of variances")
    steps: Count = setting(20, "steps of Adam on the logarithms of the variances, in each update of them")
    # variances are exponentials of what it steps in
    learning_rate: Positive = setting(0.1, "learning rate of Adam on the logarithms of the variances", le=10)
    data: Count = setting(500, "number of each member's training data that the curvature is estimated from")
    curvature: Literal["joint", "kronecker"] = setting(
        "joint", "joint: of all pathways together, exact; kronecker: factored, for more data than a matrix has rows"
    )
    fisher: Literal["exact", "sampled"] = setting(
        "sampled", "targets for the curvature: sampled, some random ones per datum; exact, one backward pass per output"
    )
    draws: Count = setting(2, "random targets for each datum, with curvature=joint and fisher=sampled")
    noise: bool = setting(True, "learn the variance of the likelihood, too")
    shrink: bool = setting(False, "shrink weights of free pathways with their variance, where an update lowers it")


@settings
class RegressionTaskConfig:
    """A regression task, the symmetry of the networks, and the numbers of data."""

    name: str = setting(..., "name of the task; written by task=")
    group: str | None = setting(None, "symmetry group, such as SL(3); null: the task's; auto: discovered (own data)")
    strength: Number | None = setting(
        None, "size of the term that breaks the symmetry of the modified inertias; null: 0.3, as published"
    )
    train: Count = setting(1000, "number of training data for each seed")
    validation: Count = setting(1000, "number of validation data, to choose by")
    test: Count = setting(1000, "number of test data, to measure with")
    augment: bool = setting(False, "move training data by random elements of the group, anew in each epoch")
    data: str | None = setting(None, "your own data, of task=own: a CSV, NPZ or HDF5 file, or a folder of such")
    inputs: Columns = setting(None, "columns or arrays of your data that are inputs, in order; null: x")
    outputs: Columns = setting(None, "columns or arrays of your data that are predicted, in order; null: y")
    rep: str | None = setting(None, "representation of your data's inputs; null: as many vectors of the group as fit")
    rep_out: str | None = setting(None, "representation of your data's outputs; null: vectors, or else invariants")
    split: Text | Shares = setting([0.7, 0.15, 0.15], "shares of train, validation, test; or a column with these words")
    split_seed: Natural | None = setting(0, "seed of the split of your data; null: each seed has a split of its own")
    digest: str | None = setting(None, "checksum of the data; written by the run")
    generators: Any = setting(None, "generators of a discovered group; written by the run")

    def __post_init__(self) -> None:
        if (self.name == OWN) != (self.data is not None):
            raise ConfigError(
                f"task={self.name} with data={self.data}: name your file, data=FILE, with task=own or no task="
            )
        for key in ("rep", "rep_out"):
            if (text := getattr(self, key)) is not None and self.group is None:
                raise ConfigError(f"{key}={text} without group=: name the group that it is a representation of")
        if self.augment and self.data is not None and self.group in (None, AUTO):
            raise ConfigError(f"task.augment=true with group={self.group}: name the group whose elements move the data")


@settings
class PendulumTaskConfig:
    """The double spring pendulum, the symmetry of the networks, and the numbers and lengths of trajectories."""

    name: Literal["pendulum", "windy_pendulum"] = setting(..., "name of the task; written by task=")
    group: str = setting("O2eR3()", "symmetry group of the networks, such as O2eR3() or SO(3)")
    k2: Positive = setting(1.0, "stiffness of the second spring, N/m; 2 is what the published code computes")
    wind: Number = setting(0.0, "wind strength; tilts the symmetry axis if masses are equal, else breaks the symmetry")
    masses: list[Positive] = setting(
        [1.0, 1.0], "masses in kg; unequal ones in wind leave no symmetry axis", min_length=2, max_length=2
    )
    train: Count = setting(500, "number of training chunks for each seed")
    validation: Count = setting(500, "number of validation chunks, to choose by")
    test: Count = setting(500, "number of test chunks, to measure with")
    time_step: Positive = setting(0.2, "seconds between two states")
    horizon: Positive = setting(30.0, "length of the test rollouts in seconds")
    chunk: Count = setting(5, "time steps of a training trajectory")
    file: str | None = setting(None, "file of a dataset with these parameters; null: made once and kept in the cache")

    def __post_init__(self) -> None:
        refuse_below(
            "task.time_step", self.time_step, self.horizon / MAX_TIME_STEPS, f"task.horizon / {MAX_TIME_STEPS}"
        )
        if abs(round(self.horizon / self.time_step) * self.time_step / self.horizon - 1) > 1e-9:
            raise ConfigError(f"task.horizon={self.horizon:g}: must be a multiple of task.time_step={self.time_step:g}")
        minimum = self.chunk * self.time_step * (1 - 1e-9)  # 3 * 0.2 is more than 0.6
        refuse_below("task.horizon", self.horizon, minimum, "task.chunk steps")


@settings
class FitEvaluationConfig:
    """Measurements while fitting."""

    every: Count = setting(10, "epochs between two evaluations")
    states: Count = setting(200, "number of test inputs for equivariance errors")


@settings
class RolloutConfig:
    """How vector fields are solved: with fixed steps while training, with an accurate method afterwards."""

    step: Positive | None = setting(None, "longest step of rk4 in training, in seconds; null: one step per time step")
    method: Literal["dopri5", "rk4"] = setting(
        "rk4", "solver of the test rollouts: rk4; or dopri5, and rk4 where dopri5 finds no steps"
    )
    test_step: Positive = setting(0.05, "step of rk4 in test rollouts, s; 0.05 errs by 1e-5 of the state after 30 s")
    tolerance: Positive = setting(1e-6, "relative and absolute tolerance of dopri5 in test rollouts")
    trajectories: Count = setting(100, "number of test trajectories that are rolled out to the horizon")


@settings
class FitConfig(RunConfig):
    """Settings of all fits: members trained together, one for each seed."""

    optimiser: OptimiserConfig
    evaluation: FitEvaluationConfig = FitEvaluationConfig()
    checkpoint_every: Count = setting(20, "epochs between two checkpoints")
    objective: Literal["map", "marginal_likelihood"] = setting(
        "map", "map: with given prior variances; marginal_likelihood: prior variances are learned, too"
    )
    marginal_likelihood: MarginalLikelihoodConfig = MarginalLikelihoodConfig()
    seeds: Count = setting(1, "number of members: seed, seed + 1, ...; trained together in one process", le=MAX_SEEDS)
    dtype: Literal["float32", "float64"] = setting("float32", "number format of the networks: float32 or float64")
    report: bool | None = setting(None, "write report.html into the run folder; null: only if the data are your own")

    verb = "fit"
    resumable: ClassVar[tuple[str, ...]] = (*RunConfig.resumable, "report")
    # keys about the user's own data that a run writes for its readers
    written: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # each fit defines its own
        task: Any
        model: Any

    def __post_init__(self) -> None:
        if getattr(self.model, "free_variance", None) == LEARNED:  # a short form of the objective
            self.objective = "marginal_likelihood"
            self.model.learn()
        if self.seed + self.seeds > 2**31:
            raise ConfigError(f"seeds={self.seeds}: must be at most {2**31 - self.seed}: the last seed is 2^31 - 1")
        if self.objective == "marginal_likelihood":
            burn_in = self.marginal_likelihood.burn_in
            refuse_below(
                "optimiser.epochs", self.optimiser.epochs, burn_in + 1, f"after marginal_likelihood.burn_in={burn_in}"
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
        return without_keys(super().identity(), () if self._data is None else self.written)

    def take_stored(self, task: Mapping[str, Any]) -> None:
        """Take what a run wrote of its data from its stored task."""
        for key in {"digest", "generators"} & task.keys():
            setattr(self.task, key, task[key])

    @property
    def all_seeds(self) -> list[int]:
        """One per member."""
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def length(self) -> tuple[str, int]:
        return "optimiser.epochs", self.optimiser.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches; the last one of an epoch may be smaller."""
        return math.ceil(self.task.train / self.optimiser.batch_size)

    @property
    def place(self) -> tuple[str, ...]:
        seeds = f"seed{self.seed}" if self.seeds == 1 else f"seeds{self.seed}-{self.seed + self.seeds - 1}"
        return self.task_name, self._name_of(self.model.kind), seeds  # a discovered group does not change the folder

    @property
    def task_name(self) -> str:
        """Name of the task in tables."""
        return self.task.name if self._data is None else file_stem(self._data)

    @property
    def model_name(self) -> str:
        """Name of the model in tables."""
        has_no_symmetry = getattr(self.task, "generators", None) == []  # none was discovered
        return self._name_of("mlp" if has_no_symmetry else self.model.kind)

    def _name_of(self, kind: str) -> str:
        """The model's name if its network is of this kind."""
        return kind


@settings
class FitRegressionConfig(FitConfig):
    """`rppdyn fit-regression`."""

    task: RegressionTaskConfig
    model: NetworkConfig

    verb = "fit-regression"
    written = ("task.train", "task.validation", "task.test", "task.digest", "task.generators")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.data is not None and self.task.group is None and self.model.kind != "mlp":
            raise ConfigError(f"model={self.model.kind} without group=: name the symmetry, or give model=mlp")


@settings
class FitDynamicsConfig(FitConfig):
    """`rppdyn fit-dynamics`."""

    task: PendulumTaskConfig
    model: DynamicsModelConfig
    rollout: RolloutConfig = RolloutConfig()
    compile: bool | None = setting(None, "torch.compile for training; null: on a CPU, in long fits, where it works")

    verb = "fit-dynamics"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollout.step is not None:
            minimum = self.task.time_step / MAX_STEPS_BETWEEN_STATES
            refuse_below(
                "rollout.step", self.rollout.step, minimum, f"task.time_step / {MAX_STEPS_BETWEEN_STATES}, or null"
            )
        minimum = self.task.horizon / MAX_TEST_STEPS
        refuse_below("rollout.test_step", self.rollout.test_step, minimum, f"task.horizon / {MAX_TEST_STEPS}")
        if self.task.file is not None and self.seeds > 1:
            raise ConfigError(
                f"task.file={self.task.file} with seeds={self.seeds}: a file holds the data of one seed; fit one, or leave the "
                "file out, and each seed has its own"
            )

    def _name_of(self, kind: str) -> str:
        return f"{kind}_{'hnn' if self.model.system == 'hamiltonian' else 'ode'}"


# -- trajectories and transitions --------------------------------------------------------------------------------------


@settings
class RecordingsTaskConfig:
    """The user's trajectories, their columns, the symmetry of the networks, and the division into chunks."""

    name: str = setting(..., "name of the task; written by task=")
    data: str = setting(..., "a CSV, NPZ or HDF5 file, a folder with one for each trajectory, or a Minari dataset")
    state: Columns = setting(None, "columns of the state; null: positions, with velocities or momenta")
    positions: Columns = setting(None, "columns of positions, if state is not given")
    velocities: Columns = setting(None, "columns of velocities, one for each of positions")
    momenta: Columns = setting(None, "columns of momenta, one for each of positions")
    controls: Columns = setting(None, "columns of controls, each held from one time to the next; null: none")
    time: Text | Positive | None = setting(None, 'column of times, or step in seconds; null: the column "time" or "t"')
    trajectory: str | None = setting(None, "column that tells trajectories apart; null: none")
    unwrap: Columns | Annotated[list[str], Field(max_length=0)] = setting(
        None, "columns of angles to unwrap; []: none; null: those that wrap by their velocities"
    )
    group: str | None = setting(None, "symmetry group, such as O(3); auto: discovered from data; null: a plain network")
    rep: str | None = setting(None, "representation of the state, or of positions; null: as many vectors as fit")
    control_rep: str | None = setting(None, "representation of the controls; null: as many vectors of the group as fit")
    chunk: Count = setting(5, "time steps of a training trajectory")
    most: Count = setting(5000, "largest number of chunks to train on; if there are more, so many are drawn once")
    split: Shares = setting([0.7, 0.15, 0.15], "shares of training, validation and test; split by trajectory")
    split_seed: Natural | None = setting(0, "seed of the split of trajectories; null: each seed has a split of its own")
    windows: Count | None = setting(None, "number of chunks that are trained on; written by the run")
    digest: str | None = setting(None, "checksum of the data; written by the run")
    generators: Any = setting(None, "generators of a discovered group; written by the run")

    def __post_init__(self) -> None:
        if not self.state and not self.positions:
            raise ConfigError(
                "state= is missing: name the columns that make up a state, state=[x,v]; or positions=[...] with "
                "velocities=[...] or momenta=[...]"
            )
        if self.state and (self.positions or self.velocities or self.momenta):
            raise ConfigError(
                f"state={_list(self.state)} with positions, velocities or momenta: give one or the others"
            )
        rates = [key for key in ("velocities", "momenta") if getattr(self, key)]
        if self.positions and len(rates) != 1:
            raise ConfigError(
                f"positions={_list(self.positions)} with {' and '.join(rates) or 'nothing else'}: give velocities=[...] or "
                "momenta=[...]"
            )
        if self.rep is not None and self.group is None:
            raise ConfigError(f"rep={self.rep} without group=: name the group that it is a representation of")
        if self.control_rep is not None and not self.controls:
            raise ConfigError(f"control_rep={self.control_rep} without controls=: name the columns")

    @property
    def columns(self) -> list[str]:
        """The columns of a state, in order."""
        return self.state or [*(self.positions or []), *(self.velocities or self.momenta or [])]


@settings
class RecordingsModelConfig(DynamicsModelConfig):
    """The vector field; values of auto follow from the columns and the group."""

    kind: Literal["rpp", "emlp", "mlp", "auto"] = setting(  # type: ignore[assignment]
        ..., "rpp, emlp, mlp; or auto: rpp with a group, mlp without one; set it with model="
    )
    hidden: Hidden = hidden(64)
    num_layers: Count = setting(2, "number of hidden layers; if hidden is a list, its length")
    system: Literal["hamiltonian", "separable", "mechanical", "ode", "auto"] = setting(  # type: ignore[assignment]
        AUTO,
        "auto: hamiltonian if there are momenta, mechanical if velocities, else ode; or one of these, or separable",
    )

    def __post_init__(self) -> None:
        if self.kind != AUTO:
            super().__post_init__()

    def complete(self, task: RecordingsTaskConfig) -> None:
        """Replace auto by the values that follow from the task.

        Raises:
            ConfigError: the columns do not fit the system.
        """
        if self.kind == AUTO:
            self.kind = "mlp" if task.group is None else "rpp"
            super().__post_init__()
        if self.kind != "mlp" and task.group is None:
            raise ConfigError(f"model={self.kind} without group=: name the symmetry, or give model=mlp")
        natural: Any = "hamiltonian" if task.momenta else "mechanical" if task.velocities else "ode"
        if task.controls and self.system == AUTO:
            natural = "ode"
        if self.system == AUTO:
            self.system = natural
        if self.system in ("hamiltonian", "separable") and not task.momenta:
            raise ConfigError(
                f"model.system={self.system}: which columns are momenta? Give positions=[...] and momenta=[...], or "
                "velocities=[...] and model.system=mechanical"
            )
        if self.system == "mechanical" and not task.velocities:
            raise ConfigError("model.system=mechanical: give positions=[...] and velocities=[...]")
        if task.controls and self.system != "ode":
            raise ConfigError(
                f"controls={_list(task.controls)} with model.system={self.system}: controls act on model.system=ode"
            )


@settings
class RecordingsRolloutConfig:
    """Rollouts of the test trajectories."""

    substeps: Count = setting(1, "steps of rk4 from one time to the next")
    trajectories: Count = setting(20, "largest number of test trajectories that are rolled out")
    steps: Count = setting(1000, "largest number of time steps of a test rollout")


@settings
class FitTrajectoriesConfig(FitConfig):
    """`rppdyn fit-dynamics data=...`."""

    task: RecordingsTaskConfig
    model: RecordingsModelConfig
    rollout: RecordingsRolloutConfig = RecordingsRolloutConfig()
    compile: bool | None = setting(None, "torch.compile for training; null: on a CPU, in long fits, where it works")

    verb = "fit-dynamics"
    written = ("task.windows", "task.digest", "task.generators", "task.unwrap")

    def __post_init__(self) -> None:
        self.model.complete(self.task)
        super().__post_init__()

    def take_stored(self, task: Mapping[str, Any]) -> None:
        super().take_stored(task)
        unwrap = task.get("unwrap") or []
        if self.task.unwrap not in (None, unwrap):
            raise ConfigError(
                f"unwrap={self.task.unwrap}: the run began with {unwrap}; resume it with that, or begin another"
            )
        self.task.unwrap = unwrap

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil((self.task.windows or 1) / self.optimiser.batch_size)

    def _name_of(self, kind: str) -> str:
        return f"{kind}_{self.model.system}"


def _list(names: Sequence[str]) -> str:
    return f"[{','.join(names)}]"


# -- `rppdyn fit-transition` -------------------------------------------------------------------------------------------


@settings
class TransitionTaskConfig:
    """Division of a dataset: chunks for training, trajectories of other episodes for validation and test."""

    train: Count = setting(50_000, "training transitions for each seed, in chunks of task.chunk steps")
    chunk: Count = setting(10, "time steps of a training chunk")
    held_out: Positive = setting(0.1, "share of episodes for the test set, and again for the validation set", lt=0.5)
    trajectories: Count = setting(50, "number of trajectories in the test set, and in the validation set")
    length: Count = setting(100, "steps of a test or validation trajectory")
    augment: bool = setting(False, "move chunks by random elements of the group, anew in each epoch")

    def __post_init__(self) -> None:
        refuse_below("task.train", self.train, self.chunk, "one chunk")

    @property
    def chunks(self) -> int:
        return self.train // self.chunk


@settings
class TransitionModelConfig(NetworkConfig):
    """The change of the state as a network of state and action."""

    hidden: Hidden = hidden(256)
    num_layers: Count = setting(2, "number of hidden layers; if hidden is a list, its length")
    equivariant_variance: Variance = setting(1e6, "prior variance of the equivariant pathway; 0 removes it")
    free_variance: Literal["certified", "learned"] | Variance = setting(  # type: ignore[assignment]
        3.0,
        "prior variance of the free pathway; certified: from the symmetry's error in the simulator; learned: "
        "from the data",
    )
    certified_variance: Variance | None = setting(None, "value of free_variance=certified; written by the run")
    reward: bool = setting(False, "predict the reward beside the state, as planning needs it")
    gaussian: bool = setting(
        False, "predict a standard deviation per entry, and fit to single steps; false: fit to rollouts, in the l1 norm"
    )


@settings
class TransitionEvaluationConfig(FitEvaluationConfig):
    """Measurements while fitting, and of the finished members."""

    protocol: Literal["standard", "published"] = setting(
        "standard", "standard, or published: the initial state, whose error is zero, counts as an error of 1e-7"
    )


@settings
class FitTransitionConfig(FitConfig):
    """`rppdyn fit-transition`."""

    dataset: str | None = setting(None, "Minari dataset: its id, or its folder")
    symmetry: str | None = setting(None, SYMMETRY_HELP)
    variant: Variant = setting("derived", VARIANT_HELP)
    spec: str | None = setting(
        None, "YAML file with the terms of which the observation consists; null: read off the observation itself"
    )
    task: TransitionTaskConfig = TransitionTaskConfig()
    model: TransitionModelConfig
    evaluation: TransitionEvaluationConfig = TransitionEvaluationConfig()

    verb = "fit-transition"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset:
            raise ConfigError(
                "dataset is missing: give dataset=ID of a Minari dataset, or its folder; rppdyn collect makes one"
            )
        if self.objective == "marginal_likelihood" and self.model.gaussian:
            raise ConfigError(
                "objective=marginal_likelihood (model.free_variance=learned) with model.gaussian=true: leave one of them out"
            )
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"variant={self.variant} and spec={self.spec} are two symmetries: leave out one")

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.task.chunks / self.optimiser.batch_size)

    @property
    def task_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.dataset or "").strip("-.")

    def _name_of(self, kind: str) -> str:
        parts = (
            kind,
            "published" if self.variant == "published" else "",
            "augmented" if self.task.augment else "",
            "gaussian" if self.model.gaussian else "",
        )
        return "_".join(filter(None, parts))
