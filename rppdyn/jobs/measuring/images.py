"""Models of images as targets of `rppdyn equivariance`: how they change under transformations of their images."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from rppdyn.agents.networks import in_precision
from rppdyn.equivariance import Flow, layerwise_lie_derivative, lie_derivative
from rppdyn.equivariance.error import POOLED_FLOOR
from rppdyn.equivariance.images import TRANSFORMATIONS
from rppdyn.equivariance.lie import standard_error
from rppdyn.errors import reason
from rppdyn.jobs.config.command import EquivarianceConfig
from rppdyn.jobs.loading import load_function
from rppdyn.jobs.measuring.measure import Layers, Measured, estimate_of
from rppdyn.jobs.measuring.targets import accepted, array_of, said_of
from rppdyn.runs.statistics import evenly
from rppdyn.settings import ConfigError, did_you_mean
from rppdyn.tasks.images import SOURCES, image_data
from rppdyn.tasks.labelled import read_picture

if TYPE_CHECKING:
    from rppdyn.jobs.fit_image import ImageFit

DEFAULT = ("translation_x", "translation_y", "rotation", "scaling", "stretch_x", "shear_x", "brightening")
DETAIL_IMAGES = 32
"""At most so many images, evenly spaced, are used for layers."""

CHUNK = 100  # images that are measured at a time


class ImageTarget(NamedTuple):
    """Something that maps images to numbers.

    Attributes:
        network: whose layers are told apart; None where it is no module.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    network: nn.Module | None
    images: Float[Tensor, "N C H W"]
    origin: str
    seed: int = 0


def flows_of(config: EquivarianceConfig) -> dict[str, Flow]:
    """The transformations that were asked for, by name.

    Raises:
        ConfigError: one has no such name, or stands twice.
    """
    names = DEFAULT if config.transformations is None else tuple(config.transformations.split(","))
    for name in names:
        if name not in TRANSFORMATIONS:
            raise ConfigError(f"--transformations {name}: there are {', '.join(TRANSFORMATIONS)}"
                              f"{did_you_mean(name, list(TRANSFORMATIONS))}")  # fmt: skip
        if names.count(name) > 1:
            raise ConfigError(f"--transformations: {name} stands twice; leave one out")
    return {name: TRANSFORMATIONS[name]() for name in names}


def image_members(config: EquivarianceConfig, fit: ImageFit) -> list[ImageTarget]:
    """The members of a fit to images, in float64; classifiers give probabilities."""
    members = []
    for index, (seed, data) in enumerate(zip(fit.config.all_seeds, fit.data, strict=True)):
        x, origin = (data.test.x, "images of the test data") if config.image is None else images_of(config)
        parts = [("model", in_precision(fit.stack.member(index), torch.float64))]
        if not data.regression:
            parts.append(("softmax", nn.Softmax(-1)))
        network = nn.Sequential(OrderedDict(parts)).eval()
        name = "regressor" if data.regression else "classifier"
        members.append(ImageTarget(name, network, network, x[evenly(len(x), config.states)].double(), origin, seed))
    return members


def image_function(config: EquivarianceConfig) -> tuple[str, ImageTarget]:
    """The name and the function of `module:function`: a module, or one made by a function without arguments, with its weights.

    Raises:
        ConfigError: it can't be called with images, or the weights are not its own.
    """
    call = load_function(config.what)
    if not isinstance(call, nn.Module) and _makes_a_model(call):
        made = call()  # type: ignore[call-arg]
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{config.what}() is of type {type(made).__name__}: it must make a torch.nn.Module")
        call = made.eval()
    if config.weights is not None:
        _load_weights(config.weights, call)
    x, origin = images_of(config)
    x = x[evenly(len(x), config.states)]
    what = (
        f"{type(call).__name__}, {config.weights or 'its own weights'}" if isinstance(call, nn.Module) else "a function"
    )
    network = in_precision(call, torch.float64) if isinstance(call, nn.Module) else None
    f = _tried(network if network is not None else call, x)
    return what, ImageTarget("function", f, network, x.double(), origin)


def images_of(config: EquivarianceConfig) -> tuple[Float[Tensor, "N C H W"], str]:
    """Images from a file or of a data set, and where they are from.

    Raises:
        ConfigError: there is no such file or data set, or it holds no images.
    """
    source = str(config.image)
    if source in SOURCES:
        return image_data(source, "upright").test.x, f"test images of {source}"
    path = Path(source)
    if not path.is_file():
        raise ConfigError(
            f"--image {source}: no such file; give a .npy, .npz or picture, or one of {', '.join(SOURCES)}"
        )
    if path.suffix in (".npy", ".npz"):
        array = array_of(path, "images")
        array = array[:, None] if array.ndim == 3 else array
    else:
        pixels = read_picture(path, lambda mode: "L" if mode in ("1", "L", "I;16") else "RGB")
        array = pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]
    if array.ndim != 4 or array.dtype.kind not in "uif" or not array.size:
        raise ConfigError(
            f"--image {source}: holds {array.dtype} of shape {array.shape}; it must be (n, channels, height, width) or "
            "(n, height, width), numbers"
        )
    values = array.astype(np.float64) / (255 if array.dtype == np.uint8 else 1)
    if not np.isfinite(values).all():
        raise ConfigError(f"--image {source}: holds values that are not finite; remove those images")
    return torch.as_tensor(values), source


@torch.no_grad()
def measure_images(target: ImageTarget, flows: Mapping[str, Flow], whole: tuple[str, ...] = ()) -> Measured:
    r"""The errors of an image model, by transformation.

    ``error`` is :math:`\sum |L f| / 2 \sum |f|` over images and entries, per unit of the transformation (an image's width, a
    radian, a factor e), and ``published`` the mean over images of the same ratio of norms; ``lee`` is that of Eq. 4.4.

    Args:
        whole: paths of modules that are taken as one layer.
    Raises:
        ConfigError: a network can't be traced, or its output is not finite.
    """
    with torch.no_grad():
        y = torch.cat([target.call(part) for part in target.images.split(CHUNK)])
    if not y.isfinite().all():
        raise ConfigError(f"the {target.name} gives numbers that are not finite; look at its weights and the images")
    size = y.double().flatten(1).abs()
    sums, published, lee = {}, {}, {}
    for name, flow in flows.items():
        parts = [lie_derivative(target.call, flow, flow, part)[0] for part in target.images.split(CHUNK)]
        derivative = torch.cat(parts).double().flatten(1).abs()
        sums[name] = torch.stack([derivative.sum(1), 2 * size.sum(1)], 1)
        ratio = derivative.norm(dim=1) / (2 * size.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
        published[name] = float(ratio.mean())
        squared = derivative.square().mean(1)
        lee[name] = (float(squared.mean()), float(standard_error(squared)))
    every = float(np.mean(list(published.values())))
    scale = float(size.square().mean().sqrt())
    overall = estimate_of(torch.stack(list(sums.values())).sum(0), every)
    return Measured(
        overall=overall,
        published_interval=overall.interval,
        per_generator={name: estimate_of(sums[name], published[name]) for name in flows},
        scale=scale,
        vacuous=scale < POOLED_FLOOR,
        by_output={},
        by_input={},
        layers={} if target.network is None else {"network": _layers(target, flows, whole)},
        precision=str(y.dtype).removeprefix("torch."),
        lee=lee,
    )


def _layers(target: ImageTarget, flows: Mapping[str, Flow], whole: tuple[str, ...]) -> Layers:
    assert target.network is not None
    few = target.images[evenly(len(target.images), DETAIL_IMAGES)]
    attributions = {}
    for name, flow in flows.items():
        hidden = {"*": flow, **dict.fromkeys(whole)}
        try:
            attributions[name] = layerwise_lie_derivative(target.network, flow, flow, few, hidden=hidden)
        except ValueError as error:
            message = re.sub(r"hidden=\{'([^']*)': None, \.\.\.\}", r"--whole \1", str(error))
            raise ConfigError(message.replace("hidden names", "--whole names")) from error
    first = next(iter(attributions.values()))
    return Layers(
        first.layers,
        {name: a.norm[0].tolist() for name, a in attributions.items()},
        {name: a.share[0].tolist() for name, a in attributions.items()},
        first.kinds,
        {name: a.residual for name, a in attributions.items()},
    )


def _makes_a_model(call: Callable[..., object]) -> bool:
    """Return whether a function has no argument that must be given."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)


@torch.no_grad()
def _tried(call: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[Tensor], Tensor]:
    """The function in double precision where it accepts that, else in single.

    Raises:
        ConfigError: it accepts neither, or its output is no tensor of numbers with a first axis for images.
    """
    dtype, y, failure = accepted(call, x[:2])
    of = f"images of shape {tuple(x[:2].shape)}"
    if dtype is None:
        raise ConfigError(f"the function fails on {of}: {said_of(failure)}; give others with --image") from failure
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.ndim < 2 or len(y) != len(x[:2]):
        raise ConfigError(f"the function returns {said_of(y)} for {of}: it must be (n, ...), real numbers")
    return lambda x: call(x.to(dtype))


def _load_weights(path: str, network: object) -> None:
    """Give a module the weights of a file, of safetensors or of torch.save, without pickles."""
    if not isinstance(network, nn.Module):
        raise ConfigError(f"--weights {path}: a function has no weights; leave it out, or give a torch.nn.Module")
    if not Path(path).is_file():
        raise ConfigError(f"--weights {path}: there is no such file")
    try:
        state = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
        if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
            state = state["state_dict"]
        network.load_state_dict(state)
    except Exception as error:  # whatever the readers raise
        raise ConfigError(
            f"--weights {path}: no weights of {type(network).__name__} ({reason(error)}); write them with "
            "torch.save(model.state_dict(), ...)"
        ) from error
