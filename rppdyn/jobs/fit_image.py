"""`rppdyn fit-image`: fit relaxed image models, several seeds in one process, each with its own split of the images."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance._error import relative_difference
from rppdyn.images import ImageModel
from rppdyn.images._lie_convolution import draw_elements, implied_omegas, learn_omega, omega_penalty, set_elements
from rppdyn.images._models import ARCHITECTURES
from rppdyn.images._operators import penalty
from rppdyn.images._pathways import STATIONARY
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError, device_of
from rppdyn.jobs.config.compose import overrides
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.jobs.fit import GAUSSIAN, FitLoss, StackFit, run_fit, stack_of
from rppdyn.jobs.own_data import FittedFunction, data_file, splits_of, take_all_steps
from rppdyn.jobs.results import FitResult, numbers
from rppdyn.nn import Ensemble
from rppdyn.priors import Categorical
from rppdyn.runs import RunFolder
from rppdyn.runs.workers import stream
from rppdyn.tasks import image_data
from rppdyn.tasks._images import (
    ARRANGEMENTS,
    TABLES,
    ImageData,
    ImageSet,
    mirror,
    quarter_turn,
    resize_images,
    split_images,
    translate,
)
from rppdyn.tasks._labelled import read_images

EVALUATION_BATCH = 500  # images evaluated at a time


def _cross_entropy(logits: Float[Tensor, "members N classes"], labels: Shaped[Tensor, "members N"]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


CATEGORICAL = FitLoss("nll", _cross_entropy, torch.ones_like, lambda _: Categorical(), noise=False)
"""The likelihood of classes."""


def run(config: FitImageConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured models into their run folder.

    Arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.
    """
    return run_fit(config, partial(ImageFit, config), resume=resume, progress=progress)


class ImageFit(StackFit):
    """The configured images and the models fitted to them; split, placements, weights and batches depend on the seed.

    ``error`` is the share of wrongly classified images, or for a regression the root mean square error in units of the targets'
    standard deviation; nan for a diverged member.
    """

    config: FitImageConfig

    def __init__(self, config: FitImageConfig):
        self.config = config
        if augments := config.task.augments:
            where = f"{', '.join(augments)} with {config.task.name}"
            if config.task.source in TABLES:
                raise ConfigError(f"{where}: pixels of the table {config.task.source} have a fixed place; leave it out")
            if ARRANGEMENTS[config.task.arrangement].quadrant_is_asked:
                raise ConfigError(f"{where}: the quadrant is asked, and would be another one; leave it out")
        self.data = (
            self._read_own_images()
            if config.task.data is not None
            else [self._images(seed) for seed in config.all_seeds]
        )
        if config.task.augment_turn and len(set(self.data[0].size)) > 1:
            raise ConfigError(
                f"task.augment_turn=true: images of {' x '.join(map(str, self.data[0].size))} pixels are no squares; leave it "
                "out, or give task.resize="
            )
        self.device = device_of(config.device)
        super().__init__(
            config,
            stack_of(config, [self._model(seed) for seed in config.all_seeds]),
            torch.stack([data.train.x for data in self.data]).to(self.device),
            torch.stack([data.train.y for data in self.data]).to(self.device),
            likelihood=GAUSSIAN if self.data[0].regression else CATEGORICAL,
        )
        self.stack.eval()  # evidence and errors use running means; only steps of the weights use batches

    def predict(self, inputs: Float[Tensor, "members N C H W"]) -> Float[Tensor, "members N outputs"]:
        return self.stack.per_member(self.predict_one, inputs)

    def predict_one(self, net: nn.Module, inputs: Tensor) -> Tensor:
        return net(inputs)

    def predict_each(self, stack: Ensemble, weights: None, inputs: Tensor) -> Tensor:
        return stack.per_member(self.predict_one, inputs.unsqueeze(1)).squeeze(1)

    def prepare(
        self, inputs: Float[Tensor, "members N C H W"], targets: Tensor, step: int
    ) -> tuple[Float[Tensor, "members N C H W"], Tensor]:
        """Turn, mirror and shift images at random, as configured, by a random stream of each member.

        If configured, elements of continuous groups are drawn here, too, the same for all layers and members.
        """
        if self.config.model.redraws:
            draw_elements(self.stack.net, stream(self.config.all_seeds[0], step))
        if not self.config.task.augments:
            return inputs, targets
        task, moved = self.config.task, []
        for seed, x in zip(self.config.all_seeds, inputs, strict=True):
            generator = stream(seed, step)
            if task.augment_turn:
                x = quarter_turn(x, generator)
            if task.augment_flip:
                x = mirror(x, generator)
            if task.augment_shift:
                x = translate(x, task.augment_shift, generator)
            moved.append(x)
        return torch.stack(moved), targets

    def _backward(self, inputs: Tensor, targets: Tensor) -> Float[Tensor, " members"]:
        self.stack.train()
        errors = super()._backward(inputs, targets)
        self.stack.eval()
        operators = self.config.model.settings.get("operators")
        if operators is not None and (operators.closure or operators.orthogonality):
            self.stack.per_member(penalty).sum().backward()
        if self.config.model.penalises:
            self.stack.per_member(lambda net: omega_penalty(net, self.config.model.filters.penalty)).sum().backward()
        return errors

    def _images(self, seed: int) -> ImageData:
        task = self.config.task
        try:
            data = image_data(
                task.source,
                task.arrangement,
                seed,
                validation=task.validation,
                canvas=task.canvas,
                shift=task.shift,
                resize=task.resize,
                folder=task.folder,
            )
        except ValueError as error:
            raise ConfigError(re.sub(rf"\b({'|'.join(vars(task))})=", r"task.\1=", str(error))) from error
        if len(data.train) < task.train:
            raise ConfigError(
                f"task.train={task.train}: {task.source} has {len(data.train)} images to train on beside {task.validation} to "
                "validate; give fewer"
            )
        x, y = (
            t[: task.train].clone() for t in (data.train.x, data.train.y)
        )  # copies, to free the memory of the others
        return replace(data, train=ImageSet(x, y))

    def _read_own_images(self) -> list[ImageData]:
        """Read the user's images, split for each seed."""
        task = self.config.task
        assert task.data is not None
        part = task.split if isinstance(task.split, str) else None
        labels = task.labels if task.targets is None else task.targets
        images = read_images(task.data, task.images, labels, numbers=task.targets is not None, part=part)
        splits = splits_of(task, images, self.config.all_seeds)
        x = images.x if task.resize is None else resize_images(images.x, task.resize)
        classes = None if images.classes is None else len(images.classes)
        task.train, task.validation = len(splits[0][0]), len(splits[0][1])
        self.config.check_batches()
        distinct = splits if task.split_seed is None else splits[:1]  # seeds may share one split
        data = [split_images(x, images.y, classes, [*map(torch.tensor, s)], names=images.classes) for s in distinct]
        return data * (len(splits) // len(distinct))

    def predictor(self) -> FittedFunction:
        """The models as one function of raw images."""
        if self.config.model.redraws:
            set_elements(self.stack.net)
        members = [self.stack.member(index).cpu() for index in range(self.stack.members)]
        functions = [
            ImageFunction(model, data, self.config.task.resize) for model, data in zip(members, self.data, strict=True)
        ]
        first = self.data[0]
        names = tuple(map(str, range(first.outputs))) if first.classes is None else first.classes
        return FittedFunction(functions, None if first.regression else names)

    def _model(self, seed: int) -> ImageModel:
        model, data = self.config.model, self.data[0]
        width = () if model.width is None else (model.width,)
        layers = ARCHITECTURES[model.architecture](*width)
        shifts_alike = set(model.pathways.present) <= set(STATIONARY) and all(
            spec.subsample != "flatten" for spec in layers
        )
        if self.config.task.source in TABLES and shifts_alike:
            raise ConfigError(
                f"model.architecture={model.architecture} ends in a mean over places, so {model.name} can't tell the columns "
                f"of {self.config.task.source} apart; give model.architecture=three_layers"
            )
        try:
            image_model = ImageModel(
                layers,
                data.channels,
                data.size,
                data.outputs,
                model.pathways.present,
                bias_variance=model.bias_variance,
                free_scale=model.free_scale,
                output_scale=model.output_scale,
                batch_norm=model.batch_norm,
                settings=model.settings,
                generator=torch.Generator().manual_seed(seed),
            )
            if model.penalises:
                learn_omega(image_model, model.filters.omega)
            return image_model
        except ValueError as error:
            if _fits(model.architecture, data.size):  # a pathway is unfit for these images
                raise ConfigError(f"model={model.name} on images of {data.size}: {error}") from error
            fitting = [name for name in ARCHITECTURES if name != model.architecture and _fits(name, data.size)]
            alternatives = f"model.architecture={' or '.join(fitting)}, or " if fitting else ""
            halved = 2 ** sum(spec.subsample in ("polyphase", "max") for spec in layers)
            key = "canvas" if self.config.task.data is None else "resize"
            canvas = f"a task.{key} that is a multiple of {halved}" if halved > 1 else f"a larger task.{key}"
            raise ConfigError(
                f"model.architecture={model.architecture} on images of {data.size}: {error}; give {alternatives}{canvas}"
            ) from error

    @torch.no_grad()
    def _outputs(self, x: Float[Tensor, "members N C H W"]) -> Float[Tensor, "members N outputs"]:
        if self.config.model.redraws:
            set_elements(self.stack.net)
        return torch.cat([self.predict(part.to(self.device)) for part in x.split(EVALUATION_BATCH, 1)], 1).cpu()

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for split in ("validation", "test"):
            metrics |= {f"{split}/{name}": values for name, values in self._errors(split).items()}
        metrics["equivariance/error"] = self._shift_error()
        omegas = [implied_omegas(self.stack.member(index)) for index in range(self.stack.members)]
        metrics |= {f"omega/{layer}": [omega[layer] for omega in omegas] for layer in omegas[0]}
        return metrics

    def _errors(self, split: str) -> dict[str, list[float]]:
        sets = [getattr(data, split) for data in self.data]
        if not len(sets[0]):  # there may be no validation images
            return {}
        outputs, targets = self._outputs(torch.stack([s.x for s in sets])), torch.stack([s.y for s in sets])
        if self.data[0].regression:
            squares = (outputs - targets).square().flatten(1).mean(1)
            return {"error": squares.sqrt().tolist()}
        wrong = torch.where(outputs.isfinite().all(-1), outputs.argmax(-1) != targets, torch.nan).mean(1)
        return {"error": wrong.tolist(), "nll": _cross_entropy(outputs, targets).mean(1).tolist()}

    def _shift_error(self) -> list[float]:
        """Mean relative difference of outputs for test images and for shifted ones, over four shifts on the torus."""
        x = torch.stack([data.test.x[: self.config.evaluation.states] for data in self.data])
        outputs = self._outputs(x)
        errors = []
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            shift = [int(torch.randint(1, max(2, size), (), generator=generator)) for size in x.shape[-2:]]
            errors.append(relative_difference(self._outputs(x.roll(shift, (-2, -1))), outputs).mean(1))
        return torch.stack(errors).mean(0).tolist()

    def test(self) -> dict[str, Any]:
        """Errors of the members on validation and test images, and their equivariance error under shifts."""
        return {name: numbers(values) for name, values in self.metrics().items()}


class ImageFunction(nn.Module):
    """A model of raw images ``(N, H, W)``, ``(N, C, H, W)`` or ``(N, H, W, C)``, with pixels as in the data.

    Args:
        data: data with the units of inputs, and of the targets of a regression.
        resize: side in pixels to which images are resized first.
    """

    def __init__(self, model: nn.Module, data: ImageData, resize: int | None = None):
        super().__init__()
        assert data.pixels is not None
        self.model, self.pixels, self.targets, self.resize = model, data.pixels, data.targets, resize
        self.shape = (data.channels, *data.size)

    def forward(self, x: Float[Tensor, "N ..."]) -> Float[Tensor, "N outputs"]:
        channels, *size = self.shape
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[1] != channels and x.shape[-1] == channels:
            x = x.permute(0, 3, 1, 2)
        if x.ndim == 4 and self.resize is not None and list(x.shape[2:]) != size:
            x = resize_images(x, self.resize)
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"images of shape {tuple(x.shape)}: must be (N, {', '.join(map(str, self.shape))})")
        outputs = self.model(self.pixels.standardise(x))
        return outputs if self.targets is None else self.targets.restore(outputs)


def fit(data: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> FittedFunction:
    """Fit image models and return them, without a run folder.

        model = fit({"images": x, "labels": y}, model="conv", seeds=3)
        model.classify(x[:5])

    Args:
        data: a file, a folder, or arrays by name; see :func:`rppdyn.tasks.read_images`.
        options: keys of ``rppdyn fit-image data=...`` without the section ``task.``, and with ``__`` for a dot.
    """
    with data_file(data) as file:
        subject = ImageFit(compose.composed("fit_image", overrides("fit_image", data=file, **options)))
    return take_all_steps(subject).predictor()


def _fits(architecture: str, size: tuple[int, int]) -> bool:
    try:
        ImageModel(ARCHITECTURES[architecture](1), 1, size, 1, {"conv": 1.0})
    except ValueError:
        return False
    return True


def load_image_models(config: FitImageConfig, folder: RunFolder) -> tuple[ImageFit, list[nn.Module]]:
    """A finished run's images and its members, one per seed."""
    images = ImageFit.load(config, folder)
    return images, [images.stack.member(index) for index in range(images.stack.members)]
