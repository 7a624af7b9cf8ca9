"""The configurations of `rppdyn fit-image` and `rppdyn bound`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rppdyn.images.registry import REGISTRY
from rppdyn.jobs.config.base import Shares, refuse_below
from rppdyn.jobs.config.fit import OWN, FitConfig, FitRegressionConfig
from rppdyn.settings import (
    ConfigError,
    Count,
    Integer,
    Natural,
    Nonnegative,
    Positive,
    Text,
    Variance,
    setting,
    settings,
)

PLACEMENT_KEYS = ("canvas", "shift", "folder")
AUGMENTS = ("augment_shift", "augment_flip", "augment_turn")
MAX_PIXELS = 100_000


@settings
class ImageTaskConfig:
    """Images, their placement, and how many are for training and validation; see `rppdyn.tasks.image_data`."""

    name: str = setting(..., "name of the task; written by task=")
    source: str = setting("digits", "source of the images: digits, or a data set of torchvision in task.folder")
    arrangement: str = setting("upright", "how images are placed, and what is predicted: upright, quadrant, ...")
    train: Count = setting(1200, "number of images to train on")
    validation: Natural = setting(237, "number of validation images, to choose by")
    canvas: Natural | None = setting(None, "side of the canvas in pixels; null: the arrangement's own", le=MAX_PIXELS)
    shift: Natural | None = setting(None, "largest random shift in pixels; null: the arrangement's own", le=MAX_PIXELS)
    resize: Count | None = setting(
        None, "side in pixels to which images are resized before they are placed; null: as they are", le=10_000
    )
    folder: str | None = setting(None, "folder in which torchvision has put its datasets")
    augment_shift: Natural = setting(
        0, "largest random shift of training images, in pixels, anew for each batch; 0: none", le=MAX_PIXELS
    )
    augment_flip: bool = setting(False, "mirror training images left to right at random, anew for each batch")
    augment_turn: bool = setting(False, "turn training images by random multiples of 90 degrees, anew for each batch")
    data: str | None = setting(
        None, "your own images, of task=own: an NPZ or HDF5 file, or a folder with a folder of pictures per class"
    )
    images: str | None = setting(None, "array of images in your file; null: images or x")
    labels: str | None = setting(None, "array of classes in your file, whole numbers or words; null: labels or y")
    targets: str | None = setting(None, "array of numbers to predict in your file, in place of labels")
    split: Text | Shares = setting([0.7, 0.15, 0.15], "shares of train, validation, test; or an array with these words")
    split_seed: Natural | None = setting(0, "seed of the split of your images; null: each seed has a split of its own")
    digest: str | None = setting(None, "checksum of the data; written by the run")

    def __post_init__(self) -> None:
        if (self.name == OWN) != (self.data is not None):
            raise ConfigError(
                f"task={self.name} with data={self.data}: name your file, data=FILE, with task=own or no task="
            )
        if self.data is not None and (keys := [key for key in PLACEMENT_KEYS if getattr(self, key) is not None]):
            raise ConfigError(f"task.{keys[0]} with data={self.data}: images stay as they are; leave it out")
        if self.labels is not None and self.targets is not None:
            raise ConfigError(f"labels={self.labels} with targets={self.targets}: give classes or numbers, not both")

    @property
    def augments(self) -> list[str]:
        """The keys of augmentations that are on."""
        return [f"task.{name}" for name in AUGMENTS if getattr(self, name)]


def _settings_of(name: str, keys: dict[str, tuple[Any, Any]]) -> Any:
    """Make a class of settings from the type and the field of each key."""
    types = {"__annotations__": {key: kind for key, (kind, _) in keys.items()}}
    return settings(type(name, (), types | {key: item for key, (_, item) in keys.items()}))


_Variances: Any = _settings_of(
    "_Variances",
    {name: (Variance, setting(0.0, f"prior variance of the pathway {name}; 0 leaves it out")) for name in REGISTRY},
)


@settings
class ImagePathwaysConfig(_Variances):
    """Prior variances of the pathways of every layer; 0 leaves a pathway out. See `rppdyn.images.RelaxedImageLayer`."""

    @property
    def present(self) -> dict[str, float]:
        """The pathways with a variance."""
        return {name: value for name, value in asdict(self).items() if value}


_Settings: Any = _settings_of(
    "_Settings",
    {kind.settings[0]: (kind.settings[1], kind.settings[1]()) for kind in REGISTRY.values() if kind.settings},
)


@settings
class ImageModelConfig(_Settings):
    """Relaxed image layers: which pathways, how many layers, how wide."""

    name: str = setting(..., "name of the model; set it with model=")
    pathways: ImagePathwaysConfig = ImagePathwaysConfig()
    architecture: Literal[
        "small", "small_max", "one_layer", "three_layers", "power_blocks", "nine_layers", "ten_layers"
    ] = setting("small", "layers and pooling: small, small_max, one_layer, three_layers, ten_layers, ...")
    width: Count | None = setting(None, "channels of the first layer; null: the architecture's own")
    bias_variance: Variance = setting(1.0, "prior variance of biases, where they are pathways by themselves")
    free_scale: Positive = setting(0.01, "initial size of less symmetric pathways, relative to a layer with only them")
    output_scale: Positive = setting(1.0, "factor on the initial size of outputs")
    batch_norm: bool = setting(False, "normalise inputs of layers but the first over the batch, each field separately")

    def __post_init__(self) -> None:
        if self.penalises and not any(name.endswith("_relaxed") for name in self.pathways.present):
            raise ConfigError(
                f"model.filters.penalty={self.filters.penalty} of {self.name}, which has no relaxed pathway: leave it out, or "
                "give model.pathways.se2_relaxed or p4_relaxed a variance"
            )
        if not any(REGISTRY[name].is_map for name in self.pathways.present):
            raise ConfigError("model.pathways leave no map: give one a variance, for example model.pathways.conv=1")

    @property
    def kind(self) -> str:
        """The name of the model, as the networks of other fits have a kind."""
        return self.name

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the pathways that have some, by name."""
        return {
            name: getattr(self, kind.settings[0])
            for name, kind in REGISTRY.items()
            if kind.settings is not None and name in self.pathways.present
        }

    @property
    def penalises(self) -> bool:
        """True if omega of relaxed pathways is learned with the weights, and penalised."""
        return any(getattr(settings, "penalty", 0) > 0 for settings in self.settings.values())

    @property
    def redraws(self) -> bool:
        """True if each training step draws elements of continuous groups."""
        return any(getattr(settings, "redraw", False) for settings in self.settings.values())


@settings
class FitImageConfig(FitConfig):
    """`rppdyn fit-image`."""

    task: ImageTaskConfig
    model: ImageModelConfig
    dtype: Literal["float32"] = setting("float32", "number format of the networks and images, always float32")

    verb = "fit-image"
    written = ("task.train", "task.validation", "task.digest")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.penalises and self.objective == "marginal_likelihood":
            raise ConfigError(
                f"model.filters.penalty={self.model.filters.penalty} with objective=marginal_likelihood: each of them learns "
                "how much is relaxed; leave one of them out"
            )
        if self.task.data is None:
            self.check_batches()

    def check_batches(self) -> None:
        """Refuse a batch of one image, which has no variance; called for the user's own images once they are counted."""
        size, rest = self.optimiser.batch_size, self.task.train % self.optimiser.batch_size
        if self.model.batch_norm and (size == 1 or rest == 1):
            raise ConfigError(
                f"model.batch_norm=true with task.train={self.task.train} and optimiser.batch_size={size}: a batch of one "
                "image has no variance; give another size"
            )


# -- bounds ------------------------------------------------------------------------------------------------------------

MAX_SETTINGS = 1000


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _refuse_equal(value: list[int]) -> list[int]:
    if len(set(value)) < len(value):
        raise ValueError("must be different numbers")
    return value


OneOrSeveral = (BeforeValidator(_as_list), AfterValidator(_refuse_equal), Field(min_length=1))


@settings
class SubspaceConfig:
    """A random subspace, a quantiser, and the prior.

    Each pair of a dimension and a number of levels is tried, and paid for in the bound.
    """

    dimension: Annotated[list[Natural], *OneOrSeveral] = setting(
        [25, 50, 100, 200], "dimension of the random subspace, a number or a list to try; 0: the initial network"
    )
    levels: Annotated[list[Annotated[Integer, Field(ge=2)]], *OneOrSeveral] = setting(
        [3, 5], "number of levels of the quantiser, or a list of several to try"
    )
    projector: Literal["kronecker", "film", "film+kronecker"] = setting(
        "kronecker", "random map from subspace to weights: kronecker, film (biases, gates, last layer), film+kronecker"
    )
    start: Literal["uniform", "kmeans"] = setting("uniform", "initial levels of the quantiser: uniform or kmeans")
    quantised_epochs: Count = setting(8, "epochs with learned levels, after optimiser.epochs without")
    quantised_rate: Positive = setting(0.02, "learning rate in the epochs with learned levels")
    objective: Literal["risk", "likelihood"] | None = setting(
        None, "loss of training: risk or likelihood; null: risk of a regression, else likelihood"
    )
    loss: Literal["relative_error", "zero_one"] | None = setting(
        None, "loss that is bounded: relative_error or zero_one; null: the task's, of regressions or of classes"
    )
    delta: Positive = setting(0.05, "probability with which the bound may fail, at most", lt=1)
    prior_share: Nonnegative = setting(
        0.0, "share of the training data to which the initial network is fitted; the bound is on the rest", lt=1
    )
    prior_epochs: Count = setting(50, "epochs in which the initial network is fitted to its prior_share of the data")
    prior_rate: Positive = setting(3e-3, "learning rate when the initial network is fitted to its share of the data")
    prior_run: str | None = setting(None, "finished fit on other data, whose first network is the start; null: none")

    def __post_init__(self) -> None:
        if (count := len(self.settings)) > MAX_SETTINGS:
            raise ConfigError(
                f"subspace.dimension and subspace.levels have {count} pairs: give at most {MAX_SETTINGS} in all"
            )
        if self.prior_run is not None and self.prior_share:
            raise ConfigError(
                f"subspace.prior_run={self.prior_run} with subspace.prior_share={self.prior_share}: there is one prior; leave "
                "out one of the two"
            )

    @property
    def settings(self) -> list[tuple[int, int]]:
        """Pairs of a dimension and a number of levels, in the order of the trials."""
        return [(d, L) for d in self.dimension for L in self.levels]


def _require_map(config: FitConfig) -> None:
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
        _require_map(self)
        if self.task.data is not None:
            raise ConfigError(
                f"task.data={self.task.data}: bounds are of rppdyn's tasks and of images, not of own rows"
            )
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
        _require_map(self)
        refuse_below("task.validation", self.task.validation, 2, "whose statistics standardise images")
        if self.task.augments:
            raise ConfigError(
                f"{self.task.augments[0]}: data of a bound are independent, and moved ones are not; leave it out"
            )
