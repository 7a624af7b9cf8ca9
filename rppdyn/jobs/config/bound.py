"""Configurations of `rppdyn bound`, which compresses networks of images or of a regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rppdyn.jobs.config.base import (
    ConfigError,
    at_least,
    one_of,
    positive,
    require,
)
from rppdyn.jobs.config.fit import FitConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig

PROJECTORS = ("kronecker", "film", "film+kronecker")
STARTS = ("uniform", "kmeans")
OBJECTIVES = ("risk", "likelihood")
LOSSES = ("relative_error", "zero_one")
MOST_SETTINGS = 1000


@dataclass
class SubspaceConfig:
    """A random subspace, a quantiser, and the prior; each pair of a dimension and a number of levels is tried and paid for."""

    dimension: Any = field(default_factory=lambda: [25, 50, 100, 200])  # d, a number or a list; 0: the initial network
    levels: Any = field(default_factory=lambda: [3, 5])  # L, a number or a list
    projector: str = "kronecker"  # or film, film+kronecker
    start: str = "uniform"  # of the levels; or kmeans
    quantised_epochs: int = 8  # with learned levels, after optimiser.epochs without
    quantised_rate: float = 0.02  # learning rate then
    objective: str | None = None  # what is minimised: risk or likelihood; null: risk of a regression, else likelihood
    loss: str | None = None  # what is bounded: relative_error or zero_one; null: what fits the task
    delta: float = 0.05  # the bound fails with this probability at most
    prior_share: float = 0.0  # of the training data, that the initial network is fitted to; the bound is on the rest
    prior_epochs: int = 50  # epochs in which the prior's network is trained on its share of the data
    prior_rate: float = 3e-3  # learning rate of that training
    prior_run: str | None = None  # a finished fit on other data whose first network is the initial one

    def __post_init__(self) -> None:
        self.dimension = _numbers("subspace.dimension", self.dimension, 0)
        self.levels = _numbers("subspace.levels", self.levels, 2)
        tried = len(self.dimension) * len(self.levels)
        require(
            "subspace.dimension", self.dimension, tried <= MOST_SETTINGS, f"at most {MOST_SETTINGS} settings in all"
        )
        one_of("subspace.projector", self.projector, PROJECTORS)
        one_of("subspace.start", self.start, STARTS)
        if self.objective is not None:
            one_of("subspace.objective", self.objective, OBJECTIVES)
        if self.loss is not None and self.loss not in LOSSES:
            raise ConfigError(
                f"subspace.loss={self.loss}: no loss that is known to be bounded; choose one of {', '.join(LOSSES)}"
            )
        at_least("subspace.quantised_epochs", self.quantised_epochs, 1)
        at_least("subspace.prior_epochs", self.prior_epochs, 1)
        positive("subspace.quantised_rate", self.quantised_rate)
        positive("subspace.prior_rate", self.prior_rate)
        require("subspace.delta", self.delta, 0 < self.delta < 1, "a probability between 0 and 1")
        require(
            "subspace.prior_share",
            self.prior_share,
            0 <= self.prior_share < 1,
            "a share of the data, from 0 and below 1",
        )
        if self.prior_run is not None and self.prior_share:
            raise ConfigError(
                f"subspace.prior_run={self.prior_run} with subspace.prior_share={self.prior_share}: there is one prior; leave "
                "out one of the two"
            )

    @property
    def settings(self) -> list[tuple[int, int]]:
        """Pairs of a dimension and a number of levels, in the order in which they are tried."""
        return [(d, L) for d in self.dimension for L in self.levels]


def _numbers(key: str, value: Any, least: int) -> list[int]:
    """One or several different integers, as a list."""
    each = list(value) if isinstance(value, list | tuple) else [value]
    if not each or len(set(map(str, each))) < len(each):
        raise ConfigError(f"{key}={value}: give a number, or a list of different ones")
    for number in each:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigError(f"{key}={value}: must be an integer, or a list of integers such as [3,5]")
        what = "a quantiser has two levels or more" if least == 2 else "a subspace has no fewer than 0 dimensions"
        if number < least:
            raise ConfigError(f"{key}={number}: {what}; give at least {least}")
    return each


def _check(config: FitConfig) -> None:
    if config.objective != "map":
        raise ConfigError(
            f"objective={config.objective}: a bound's prior is the code's length, and no variance is learned; leave it out"
        )


@dataclass
class BoundRegressionConfig(FitRegressionConfig):
    """`rppdyn bound` of a regression task."""

    subspace: SubspaceConfig = field(default_factory=SubspaceConfig)

    verb = "bound"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)
        if self.subspace.loss == "zero_one":
            raise ConfigError(f"subspace.loss=zero_one with task={self.task.name}: of classes only; leave it out")
        if self.task.augment:
            raise ConfigError(
                "task.augment=true: data of a bound are independent, and moved ones are not; leave it out"
            )


@dataclass
class BoundImageConfig(FitImageConfig):
    """`rppdyn bound` of images."""

    subspace: SubspaceConfig = field(default_factory=SubspaceConfig)

    verb = "bound"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)
        at_least("task.validation", self.task.validation, 2)  # whose statistics images are standardised by
        if self.task.augments:
            raise ConfigError(
                f"{self.task.augments[0]}: data of a bound are independent, and moved ones are not; leave it out"
            )
