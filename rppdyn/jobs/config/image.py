"""Configuration of `rppdyn fit-image`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from omegaconf import MISSING

from rppdyn.images.registry import REGISTRY
from rppdyn.jobs.config.base import (
    ConfigError,
    at_least,
    one_of,
    positive,
    require,
    shares,
    variance,
)
from rppdyn.jobs.config.fit import OWN, FitConfig

PLACED = ("canvas", "shift", "folder")
AUGMENTS = ("augment_shift", "augment_flip", "augment_turn")
ARCHITECTURES = ("small", "small_max", "one_layer", "three_layers", "power_blocks", "nine_layers", "ten_layers")


@dataclass
class ImageTaskConfig:
    """Images, where they stand, and how many there are to train on and to choose by; see `rppdyn.tasks.image_data`."""

    name: str = MISSING  # written by task=
    source: str = "digits"  # digits, or a data set of torchvision in folder
    arrangement: str = "upright"  # where images stand and what is asked: upright, quadrant, ...
    train: int = 1200  # images to train on
    validation: int = 237  # images to choose by
    canvas: int | None = None  # pixels; null: the arrangement's own
    shift: int | None = None  # largest, in pixels; null: the arrangement's own
    resize: int | None = None  # side of images before they are placed, in pixels; null: as they are
    folder: str | None = None  # where torchvision has put its datasets
    augment_shift: int = 0  # training images are moved by up to so many pixels, anew for each batch
    augment_flip: bool = False  # ... and mirrored left to right, or not
    augment_turn: bool = False  # ... and turned by a multiple of 90 degrees
    data: str | None = None  # of task=own: an NPZ or HDF5 file, or a folder with a folder of pictures for each class
    images: str | None = None  # the array; null: images or x
    labels: str | None = None  # that of classes, whole numbers or words; null: labels or y
    targets: str | None = None  # in its place that of numbers to predict
    split: Any = field(
        default_factory=lambda: [0.7, 0.15, 0.15]
    )  # training, validation, test; or an array with these words
    split_seed: int | None = 0  # null: each seed has a split of its own
    digest: str | None = None  # of the data; written by the run

    def __post_init__(self) -> None:
        if (self.name == OWN) != (self.data is not None):
            raise ConfigError(
                f"task={self.name} with data={self.data}: name your file, data=FILE, with task=own or no task="
            )
        if self.data is not None and (given := [key for key in PLACED if getattr(self, key) is not None]):
            raise ConfigError(f"task.{given[0]} with data={self.data}: images stay as they are; leave it out")
        if self.labels is not None and self.targets is not None:
            raise ConfigError(f"labels={self.labels} with targets={self.targets}: give classes or numbers, not both")
        shares("task.split", self.split)
        if self.split_seed is not None:
            at_least("task.split_seed", self.split_seed, 0)
        at_least("task.train", self.train, 1)
        at_least("task.validation", self.validation, 0)
        for name in ("canvas", "shift", "augment_shift"):
            if (pixels := getattr(self, name)) is not None:
                require(f"task.{name}", pixels, 0 <= pixels <= 100_000, "a number of pixels, from 0 to 100000")
        if self.resize is not None:
            require("task.resize", self.resize, 1 <= self.resize <= 10_000, "a number of pixels, from 1 to 10000")

    @property
    def augments(self) -> list[str]:
        """The keys of how training images are changed."""
        return [f"task.{name}" for name in AUGMENTS if getattr(self, name)]


def _variance(name: str) -> Any:
    return field(default=0.0, metadata={"help": f"prior variance of the pathway {name}; 0 leaves it out"})


_Variances: Any = make_dataclass("_Variances", [(name, float, _variance(name)) for name in REGISTRY])


@dataclass
class ImagePathwaysConfig(_Variances):
    """Prior variances of the pathways of every layer; 0 leaves a pathway out. See `rppdyn.images.RelaxedImageLayer`."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            variance(f"model.pathways.{name}", value)

    @property
    def present(self) -> dict[str, float]:
        """Those with a variance."""
        return {name: value for name, value in asdict(self).items() if value}


_SECTIONS = {kind.settings[0]: kind.settings[1] for kind in REGISTRY.values() if kind.settings is not None}
_Settings: Any = make_dataclass(
    "_Settings", [(name, schema, field(default_factory=schema)) for name, schema in _SECTIONS.items()], kw_only=True
)


@dataclass
class ImageModelConfig(_Settings):
    """Relaxed image layers: which pathways, how many layers, how wide."""

    name: str = MISSING  # written by model=
    pathways: ImagePathwaysConfig = field(default_factory=ImagePathwaysConfig)
    architecture: str = "small"  # layers and pooling: small, small_max, ten_layers, ...
    width: int | None = None  # channels of the first layer; null: the architecture's own
    bias_variance: float = 1.0  # prior variance of biases that are pathways of their own
    free_scale: float = 0.01  # initial size of all but the most symmetric pathways of a layer
    output_scale: float = 1.0  # initial size of outputs
    batch_norm: bool = False  # what a layer is given is normalised over the batch, each field by itself

    def __post_init__(self) -> None:
        positive("model.free_scale", self.free_scale)
        positive("model.output_scale", self.output_scale)
        one_of("model.architecture", self.architecture, ARCHITECTURES)
        variance("model.bias_variance", self.bias_variance)
        if self.width is not None:
            at_least("model.width", self.width, 1)
        if self.penalises and not any(name.endswith("_relaxed") for name in self.pathways.present):
            raise ConfigError(
                f"model.filters.penalty={self.filters.penalty} of {self.name}, which has no relaxed pathway: leave it out, or "
                "give model.pathways.se2_relaxed or p4_relaxed a variance"
            )
        if not any(REGISTRY[name].is_map for name in self.pathways.present):
            raise ConfigError("model.pathways leave no map: give one a variance, for example model.pathways.conv=1")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by the name of the pathway, of pathways that have some."""
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
        """True if a step of training draws elements of continuous groups."""
        return any(getattr(settings, "redraw", False) for settings in self.settings.values())


@dataclass
class FitImageConfig(FitConfig):
    """`rppdyn fit-image`."""

    task: ImageTaskConfig = MISSING
    model: ImageModelConfig = MISSING

    verb = "fit-image"
    written = ("task.train", "task.validation", "task.digest")

    def __post_init__(self) -> None:
        super().__post_init__()
        require("dtype", self.dtype, self.dtype == "float32", "float32: images are stored so")
        if self.model.penalises and self.objective == "marginal_likelihood":
            raise ConfigError(
                f"model.filters.penalty={self.model.filters.penalty} with objective=marginal_likelihood: each of them learns "
                "how much is relaxed; leave one of them out"
            )
        if self.task.data is None:
            self.check_batches()

    def check_batches(self) -> None:
        """Refuse a batch of one image, whose statistics are none; of the user's own images once they are counted."""
        size, rest = self.optimiser.batch_size, self.task.train % self.optimiser.batch_size
        if self.model.batch_norm and (size == 1 or rest == 1):
            raise ConfigError(
                f"model.batch_norm=true with task.train={self.task.train} and optimiser.batch_size={size}: a batch of one "
                "image has no variance; give another size"
            )

    @property
    def model_name(self) -> str:
        return self.model.name
