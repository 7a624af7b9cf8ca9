"""Configurations of `rppdyn bound`, which compresses networks of images or of a regression."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rppdyn.jobs.config.base import at_least
from rppdyn.jobs.config.fit import FitConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.settings import ConfigError, Count, Integer, Natural, Nonnegative, Positive, setting, settings

MOST_SETTINGS = 1000


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _different(value: list[int]) -> list[int]:
    if len(set(value)) < len(value):
        raise ValueError("must be different numbers")
    return value


OneOrSeveral = (BeforeValidator(_listed), AfterValidator(_different), Field(min_length=1))


@settings
class SubspaceConfig:
    """A random subspace, a quantiser, and the prior; each pair of a dimension and a number of levels is tried and paid for."""

    dimension: Annotated[list[Natural], *OneOrSeveral] = setting(
        [25, 50, 100, 200], "d, a number or a list; 0: the initial network"
    )
    levels: Annotated[list[Annotated[Integer, Field(ge=2)]], *OneOrSeveral] = setting([3, 5], "L, a number or a list")
    projector: Literal["kronecker", "film", "film+kronecker"] = setting("kronecker", "or film, film+kronecker")
    start: Literal["uniform", "kmeans"] = setting("uniform", "of the levels; or kmeans")
    quantised_epochs: Count = setting(8, "with learned levels, after optimiser.epochs without")
    quantised_rate: Positive = setting(0.02, "learning rate then")
    objective: Literal["risk", "likelihood"] | None = setting(
        None, "what is minimised: risk or likelihood; null: risk of a regression, else likelihood"
    )
    loss: Literal["relative_error", "zero_one"] | None = setting(
        None, "what is bounded: relative_error or zero_one; null: what fits the task"
    )
    delta: Positive = setting(0.05, "the bound fails with this probability at most", lt=1)
    prior_share: Nonnegative = setting(
        0.0, "of the training data, that the initial network is fitted to; the bound is on the rest", lt=1
    )
    prior_epochs: Count = setting(50, "epochs in which the prior's network is trained on its share of the data")
    prior_rate: Positive = setting(3e-3, "learning rate of that training")
    prior_run: str | None = setting(None, "a finished fit on other data whose first network is the initial one")

    def __post_init__(self) -> None:
        if (tried := len(self.settings)) > MOST_SETTINGS:
            raise ConfigError(
                f"subspace.dimension and subspace.levels have {tried} pairs: give at most {MOST_SETTINGS} in all"
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


def _check(config: FitConfig) -> None:
    if config.objective != "map":
        raise ConfigError(
            f"objective={config.objective}: a bound's prior is the code's length, and no variance is learned; leave it out"
        )


@settings
class BoundRegressionConfig(FitRegressionConfig):
    """`rppdyn bound` of a regression task."""

    subspace: SubspaceConfig = SubspaceConfig()

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


@settings
class BoundImageConfig(FitImageConfig):
    """`rppdyn bound` of images."""

    subspace: SubspaceConfig = SubspaceConfig()

    verb = "bound"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)
        at_least("task.validation", self.task.validation, 2, "whose statistics standardise images")
        if self.task.augments:
            raise ConfigError(
                f"{self.task.augments[0]}: data of a bound are independent, and moved ones are not; leave it out"
            )
