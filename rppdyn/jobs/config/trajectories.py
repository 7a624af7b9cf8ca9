"""Configurations of fits to recorded trajectories: of a system (`fit-dynamics data=`), of an environment (`fit-transition`)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from rppdyn.jobs.config.agent import VARIANTS
from rppdyn.jobs.config.base import (
    AUTO,
    CERTIFIED,
    LEARNED,
    ConfigError,
    at_least,
    column_names,
    free_variance_number,
    one_of,
    positive,
    require,
    shares,
)
from rppdyn.jobs.config.fit import NETWORKS, DynamicsModelConfig, FitConfig, FitEvaluationConfig, NetworkConfig

SYSTEMS = ("hamiltonian", "separable", "mechanical", "ode")


@dataclass
class RecordingsTaskConfig:
    """Whose trajectories, what their columns are, the symmetry that networks are given, and how they are cut."""

    name: str = MISSING  # written by task=
    data: str = MISSING  # a CSV, NPZ or HDF5 file, a folder with one for each trajectory, or a Minari dataset
    state: Any = None  # names of columns, in order; or in its place positions, with velocities or momenta
    positions: Any = None  # columns of positions, in the place of state
    velocities: Any = None  # columns of velocities, with positions
    momenta: Any = None  # columns of momenta, with positions
    controls: Any = None  # columns that act on the system, held from one time to the next
    time: Any = None  # a column, or the step in seconds; null: a column "time" or "t"
    trajectory: str | None = None  # a column that tells trajectories apart
    unwrap: Any = None  # columns of angles to unwrap; []: none; null: those that wrap as their velocities show
    group: str | None = None  # "O(3)"; auto: discovered, of what rep= says; null: none, a plain network
    rep: str | None = None  # of the state, or of the positions; null: as many vectors of the group as fit
    control_rep: str | None = None  # of the controls; null: likewise
    chunk: int = 5  # time steps of a training trajectory
    most: int = 5000  # chunks that are trained on, drawn once where there are more
    split: Any = field(default_factory=lambda: [0.7, 0.15, 0.15])  # training, validation, test; by trajectory
    split_seed: int | None = 0  # by which data are shared out to the three; null: each seed has a split of its own
    windows: int | None = None  # how many chunks are trained on; written by the run
    digest: str | None = None  # of the data; written by the run
    generators: Any = None  # of a group that was discovered; written by the run

    def __post_init__(self) -> None:
        for key in ("state", "positions", "velocities", "momenta", "controls"):
            setattr(self, key, column_names(f"task.{key}", getattr(self, key)))
        self.unwrap = self.unwrap if self.unwrap == [] else column_names("unwrap", self.unwrap)
        if not self.state and not self.positions:
            raise ConfigError(
                "state= is missing: name the columns that make up a state, state=[x,v]; or positions=[...] with "
                "velocities=[...] or momenta=[...]"
            )
        if self.state and (self.positions or self.velocities or self.momenta):
            raise ConfigError(
                f"state={_list(self.state)} with positions, velocities or momenta: give one or the others"
            )
        others = [key for key in ("velocities", "momenta") if getattr(self, key)]
        if self.positions and len(others) != 1:
            raise ConfigError(
                f"positions={_list(self.positions)} with {' and '.join(others) or 'nothing else'}: give velocities=[...] or "
                "momenta=[...]"
            )
        if isinstance(self.time, bool) or not isinstance(self.time, str | int | float | None):
            raise ConfigError(f"time={self.time}: give a column, or the step in seconds")
        if isinstance(self.time, int | float):
            positive("time", self.time)
        at_least("task.chunk", self.chunk, 1)
        at_least("task.most", self.most, 1)
        if self.split_seed is not None:
            at_least("task.split_seed", self.split_seed, 0)
        shares("task.split", self.split, columns=False)
        if self.rep is not None and self.group is None:
            raise ConfigError(f"rep={self.rep} without group=: name the group that it is a representation of")
        if self.control_rep is not None and not self.controls:
            raise ConfigError(f"control_rep={self.control_rep} without controls=: name the columns")

    @property
    def columns(self) -> list[str]:
        """All that make up a state, in order."""
        return self.state or [*self.positions, *(self.velocities or self.momenta)]


@dataclass
class RecordingsModelConfig(DynamicsModelConfig):
    """The vector field; what is not said follows from the columns and the group."""

    kind: str = MISSING  # rpp, emlp, mlp; or auto: rpp with a group, mlp without; written by model=
    hidden: Any = 64
    num_layers: int = 2
    system: str = AUTO  # hamiltonian with momenta, mechanical with velocities, else ode; or separable

    def __post_init__(self) -> None:
        if self.kind != AUTO:
            self._check()

    def _check(self) -> None:
        one_of("model.kind", self.kind, NETWORKS)
        system, self.system = self.system, "ode"
        super().__post_init__()
        self.system = system
        one_of("model.system", self.system, (*SYSTEMS, AUTO))

    def settle(self, task: RecordingsTaskConfig) -> None:
        """Put what follows from the task in the place of auto.

        Raises:
            ConfigError: a system that the columns are none of.
        """
        if self.kind == AUTO:
            self.kind = "mlp" if task.group is None else "rpp"
            self._check()
        if self.kind != "mlp" and task.group is None:
            raise ConfigError(f"model={self.kind} without group=: name the symmetry, or give model=mlp")
        natural = "hamiltonian" if task.momenta else "mechanical" if task.velocities else "ode"
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


@dataclass
class RecordingsRolloutConfig:
    """How test trajectories are followed."""

    substeps: int = 1  # of rk4 from one time to the next
    trajectories: int = 20  # of the test set, at most
    steps: int = 1000  # of each, at most

    def __post_init__(self) -> None:
        for name in ("substeps", "trajectories", "steps"):
            at_least(f"rollout.{name}", getattr(self, name), 1)


@dataclass
class FitTrajectoriesConfig(FitConfig):
    """`rppdyn fit-dynamics data=...`."""

    task: RecordingsTaskConfig = MISSING
    model: RecordingsModelConfig = MISSING
    rollout: RecordingsRolloutConfig = field(default_factory=RecordingsRolloutConfig)

    verb = "fit-dynamics"
    written = ("task.windows", "task.digest", "task.generators", "task.unwrap")

    def __post_init__(self) -> None:
        self.model.settle(self.task)
        super().__post_init__()

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil((self.task.windows or 1) / self.optimiser.batch_size)

    @property
    def place(self) -> tuple[str, ...]:
        *parents, _, seeds = super().place
        return *parents, self._named(self.model.kind), seeds  # what is found later changes no folder

    @property
    def model_name(self) -> str:
        return self._named("mlp" if self.task.generators == [] else self.model.kind)

    def _named(self, kind: str) -> str:
        return f"{kind}_{self.model.system}"


def _list(names: Sequence[str]) -> str:
    return f"[{','.join(names)}]"


# -- `rppdyn fit-transition` -------------------------------------------------------------------------------------------

PROTOCOLS = ("standard", "published")


@dataclass
class TransitionTaskConfig:
    """How a dataset is cut: chunks to train on, trajectories of other episodes to validate and to test."""

    train: int = 50_000  # transitions, in chunks of task.chunk steps
    chunk: int = 10  # steps of a training chunk
    held_out: float = 0.1  # share of the episodes that go to the test, and as many again to validation
    trajectories: int = 50  # drawn from each of these
    length: int = 100  # their steps
    augment: bool = False  # chunks are moved by random elements of the group, anew in each epoch

    def __post_init__(self) -> None:
        for name in ("train", "chunk", "trajectories", "length"):
            at_least(f"task.{name}", getattr(self, name), 1)
        require("task.train", self.train, self.train >= self.chunk, f"at least one chunk, {self.chunk} transitions")
        require("task.held_out", self.held_out, 0 < self.held_out < 0.5, "between 0 and 0.5")

    @property
    def chunks(self) -> int:
        return self.train // self.chunk


@dataclass
class TransitionModelConfig(NetworkConfig):
    """The change of the state as a network of state and action."""

    hidden: Any = 256
    num_layers: int = 2
    equivariant_variance: float = 1e6
    free_variance: Any = 3.0  # or certified, by how far the symmetry is off in the simulator; or learned, from the data
    certified_variance: float | None = None  # what free_variance=certified came to; written by the run
    reward: bool = False  # learned beside the state, as planning needs it
    gaussian: bool = False  # fitted with a standard deviation per entry, to one step; otherwise to rollouts, in l1 norm

    words = (CERTIFIED, LEARNED)

    @property
    def free(self) -> float:
        return free_variance_number(self.free_variance, self.certified_variance)


@dataclass
class TransitionEvaluationConfig(FitEvaluationConfig):
    """Measurements while fitting, and of the finished members."""

    protocol: str = "standard"  # or published, which counts the initial state, where the error is zero, as 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        require("evaluation.protocol", self.protocol, self.protocol in PROTOCOLS, " or ".join(PROTOCOLS))


@dataclass
class FitTransitionConfig(FitConfig):
    """`rppdyn fit-transition`."""

    dataset: str | None = None  # a Minari dataset: its id, or its folder
    symmetry: str | None = None  # a choice of the task ("D4"), or derived symmetries joined by "+"; null: its default
    variant: str = "derived"  # or published, the representation of the residual-pathway papers, right or wrong
    spec: str | None = (
        None  # a YAML file of the terms that the observation consists of; null: read off the observation itself
    )
    task: TransitionTaskConfig = field(default_factory=TransitionTaskConfig)
    model: TransitionModelConfig = MISSING
    evaluation: TransitionEvaluationConfig = field(default_factory=TransitionEvaluationConfig)

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
        require("variant", self.variant, self.variant in VARIANTS, " or ".join(VARIANTS))
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"variant={self.variant} and spec={self.spec} are two symmetries: leave out one")

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.task.chunks / self.optimiser.batch_size)

    @property
    def task_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.dataset or "").strip("-.")

    @property
    def model_name(self) -> str:
        parts = (
            self.model.kind,
            "published" if self.variant == "published" else "",
            "augmented" if self.task.augment else "",
            "gaussian" if self.model.gaussian else "",
        )
        return "_".join(filter(None, parts))
