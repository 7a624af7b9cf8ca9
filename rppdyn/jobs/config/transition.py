"""The configuration of `rppdyn fit-transition`: names, types and ranges."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from rppdyn.jobs.config.agent import VARIANTS
from rppdyn.jobs.config.checks import CERTIFIED, LEARNED, ConfigError, at_least, free_variance_number, require
from rppdyn.jobs.config.fit import FitConfig, FitEvaluationConfig, NetworkConfig

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
    """What is measured while fitting, and of the finished members."""

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
