"""Configurations of fits to recorded trajectories: of a system (`fit-dynamics data=`), of an environment (`fit-transition`)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rppdyn.jobs.config.agent import SYMMETRY_HELP, VARIANT_HELP, Variant
from rppdyn.jobs.config.base import AUTO, Columns, Shares, at_least, free_variance_number
from rppdyn.jobs.config.fit import DynamicsModelConfig, FitConfig, FitEvaluationConfig, Layer, NetworkConfig
from rppdyn.settings import ConfigError, Count, Natural, Positive, Text, Variance, setting, settings, settle


@settings
class RecordingsTaskConfig:
    """Whose trajectories, what their columns are, the symmetry that networks are given, and how they are cut."""

    name: str = setting(..., "written by task=")
    data: str = setting(..., "a CSV, NPZ or HDF5 file, a folder with one for each trajectory, or a Minari dataset")
    state: Columns = setting(None, "names of columns, in order; or in its place positions, with velocities or momenta")
    positions: Columns = setting(None, "columns of positions, in the place of state")
    velocities: Columns = setting(None, "columns of velocities, with positions")
    momenta: Columns = setting(None, "columns of momenta, with positions")
    controls: Columns = setting(None, "columns that act on the system, held from one time to the next")
    time: Text | Positive | None = setting(None, 'a column, or the step in seconds; null: a column "time" or "t"')
    trajectory: str | None = setting(None, "a column that tells trajectories apart")
    unwrap: Columns | Annotated[list[str], Field(max_length=0)] = setting(
        None, "columns of angles to unwrap; []: none; null: those that wrap as their velocities show"
    )
    group: str | None = setting(None, '"O(3)"; auto: discovered, of what rep= says; null: none, a plain network')
    rep: str | None = setting(None, "of the state, or of the positions; null: as many vectors of the group as fit")
    control_rep: str | None = setting(None, "of the controls; null: likewise")
    chunk: Count = setting(5, "time steps of a training trajectory")
    most: Count = setting(5000, "chunks that are trained on, drawn once where there are more")
    split: Shares = setting([0.7, 0.15, 0.15], "training, validation, test; by trajectory")
    split_seed: Natural | None = setting(
        0, "by which data are shared out to the three; null: each seed has a split of its own"
    )
    windows: Count | None = setting(None, "how many chunks are trained on; written by the run")
    digest: str | None = setting(None, "of the data; written by the run")
    generators: Any = setting(None, "of a group that was discovered; written by the run")

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
        others = [key for key in ("velocities", "momenta") if getattr(self, key)]
        if self.positions and len(others) != 1:
            raise ConfigError(
                f"positions={_list(self.positions)} with {' and '.join(others) or 'nothing else'}: give velocities=[...] or "
                "momenta=[...]"
            )
        if self.rep is not None and self.group is None:
            raise ConfigError(f"rep={self.rep} without group=: name the group that it is a representation of")
        if self.control_rep is not None and not self.controls:
            raise ConfigError(f"control_rep={self.control_rep} without controls=: name the columns")

    @property
    def columns(self) -> list[str]:
        """All that make up a state, in order."""
        return self.state or [*(self.positions or []), *(self.velocities or self.momenta or [])]


@settings
class RecordingsModelConfig(DynamicsModelConfig):
    """The vector field; what is not said follows from the columns and the group."""

    kind: Literal["rpp", "emlp", "mlp", "auto"] = setting(  # type: ignore[assignment]
        ..., "rpp, emlp, mlp; or auto: rpp with a group, mlp without; written by model="
    )
    hidden: Layer | list[Layer] = setting(
        64, 'channels of a hidden layer, or their representation, "64*T(0)+21*T(1)"; or a list, one per layer'
    )
    num_layers: Count = setting(2, "as many as hidden lists, where it is a list")
    system: Literal["hamiltonian", "separable", "mechanical", "ode", "auto"] = setting(  # type: ignore[assignment]
        AUTO, "hamiltonian with momenta, mechanical with velocities, else ode; or separable"
    )

    def __post_init__(self) -> None:
        if self.kind != AUTO:
            super().__post_init__()

    def complete(self, task: RecordingsTaskConfig) -> None:
        """Put what follows from the task in the place of auto.

        Raises:
            ConfigError: a system that the columns are none of.
        """
        if self.kind == AUTO:
            settle(self, kind="mlp" if task.group is None else "rpp")
            super().__post_init__()
        if self.kind != "mlp" and task.group is None:
            raise ConfigError(f"model={self.kind} without group=: name the symmetry, or give model=mlp")
        natural = "hamiltonian" if task.momenta else "mechanical" if task.velocities else "ode"
        if task.controls and self.system == AUTO:
            natural = "ode"
        if self.system == AUTO:
            settle(self, system=natural)
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
    """How test trajectories are followed."""

    substeps: Count = setting(1, "of rk4 from one time to the next")
    trajectories: Count = setting(20, "of the test set, at most")
    steps: Count = setting(1000, "of each, at most")


@settings
class FitTrajectoriesConfig(FitConfig):
    """`rppdyn fit-dynamics data=...`."""

    task: RecordingsTaskConfig
    model: RecordingsModelConfig
    rollout: RecordingsRolloutConfig = RecordingsRolloutConfig()

    verb = "fit-dynamics"
    written = ("task.windows", "task.digest", "task.generators", "task.unwrap")

    def __post_init__(self) -> None:
        self.model.complete(self.task)
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


@settings
class TransitionTaskConfig:
    """How a dataset is cut: chunks to train on, trajectories of other episodes to validate and to test."""

    train: Count = setting(50_000, "transitions, in chunks of task.chunk steps")
    chunk: Count = setting(10, "steps of a training chunk")
    held_out: Positive = setting(
        0.1, "share of the episodes that go to the test, and as many again to validation", lt=0.5
    )
    trajectories: Count = setting(50, "drawn from each of these")
    length: Count = setting(100, "their steps")
    augment: bool = setting(False, "chunks are moved by random elements of the group, anew in each epoch")

    def __post_init__(self) -> None:
        at_least("task.train", self.train, self.chunk, "one chunk")

    @property
    def chunks(self) -> int:
        return self.train // self.chunk


@settings
class TransitionModelConfig(NetworkConfig):
    """The change of the state as a network of state and action."""

    hidden: Layer | Annotated[list[Layer], Field(min_length=1)] = setting(
        256, 'channels of a hidden layer, or their representation, "64*T(0)+21*T(1)"; or a list, one per layer'
    )
    num_layers: Count = setting(2, "as many as hidden lists, where it is a list")
    equivariant_variance: Variance = setting(1e6, "prior variance of the equivariant pathway; 0 removes it")
    free_variance: Literal["certified", "learned"] | Variance = setting(  # type: ignore[assignment]
        3.0,
        "prior variance of the free pathway; or certified, by how far the symmetry is off in the simulator; or learned, from "
        "the data",
    )
    certified_variance: Variance | None = setting(None, "what free_variance=certified came to; written by the run")
    reward: bool = setting(False, "learned beside the state, as planning needs it")
    gaussian: bool = setting(
        False,
        "fitted with a standard deviation per entry, to one step; otherwise to rollouts, in l1 norm",
    )

    @property
    def free(self) -> float:
        return free_variance_number(self.free_variance, self.certified_variance)


@settings
class TransitionEvaluationConfig(FitEvaluationConfig):
    """Measurements while fitting, and of the finished members."""

    protocol: Literal["standard", "published"] = setting(
        "standard", "or published, which counts the initial state, where the error is zero, as 1e-7"
    )


@settings
class FitTransitionConfig(FitConfig):
    """`rppdyn fit-transition`."""

    dataset: str | None = setting(None, "a Minari dataset: its id, or its folder")
    symmetry: str | None = setting(None, SYMMETRY_HELP)
    variant: Variant = setting("derived", VARIANT_HELP)
    spec: str | None = setting(
        None,
        "a YAML file of the terms that the observation consists of; null: read off the observation itself",
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

    @property
    def model_name(self) -> str:
        parts = (
            self.model.kind,
            "published" if self.variant == "published" else "",
            "augmented" if self.task.augment else "",
            "gaussian" if self.model.gaussian else "",
        )
        return "_".join(filter(None, parts))
