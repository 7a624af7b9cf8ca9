"""Fits as targets of `rppdyn equivariance`: their members as functions, the task's test inputs, rollouts of models."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from rppdyn.agents.networks import in_precision
from rppdyn.dynamics import DynamicsModel, HamiltonianModel, TransitionModel
from rppdyn.envs import SymmetrySpec
from rppdyn.equivariance import Flow, layerwise_lie_derivative, lie_derivative
from rppdyn.equivariance.error import POOLED_FLOOR
from rppdyn.equivariance.images import TRANSFORMATIONS
from rppdyn.equivariance.lie import standard_error
from rppdyn.errors import reason
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.command import DiscoverConfig, EquivarianceConfig
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig, FitTransitionConfig
from rppdyn.jobs.fit_dynamics import Dynamics, load_models, roll_out
from rppdyn.jobs.fit_image import load_image_models
from rppdyn.jobs.fit_regression import OwnRows, Regressor, load_regressors
from rppdyn.jobs.fit_trajectories import load_recordings
from rppdyn.jobs.fit_transition import Transition, load_transitions
from rppdyn.jobs.fitting.members import StackFit
from rppdyn.jobs.measuring.loading import load_function
from rppdyn.jobs.measuring.measure import Layers, Measured, estimate_of
from rppdyn.jobs.measuring.targets import Function, MeasuredNetwork, accepted, changes, evenly, inputs_of, said_of
from rppdyn.nn import RPPEMLP
from rppdyn.reps import Rep
from rppdyn.runs import RunFolder, RunFolderError
from rppdyn.settings import ConfigError, did_you_mean
from rppdyn.tasks import regression_task
from rppdyn.tasks.images import SOURCES, image_data
from rppdyn.tasks.labelled import read_picture
from rppdyn.tasks.tables import read_arrays

SAME = 0.01  # relative; test errors of one function differ by far less between machines


class Rollout(NamedTuple):
    """Initial states to trajectories, nan from where they diverged, and those that the task's test trajectories have."""

    solve: Callable[[Tensor], Tensor]
    starts: Float[Tensor, "m dim"]


@dataclass(frozen=True)
class Member:
    """One of the networks that a fit has trained.

    Attributes:
        inputs: inputs of the task's test data.
        rollout: None for regression.
    """

    seed: int
    function: Function
    inputs: Float[Tensor, "n dim"]
    rollout: Rollout | None = None


@dataclass(frozen=True)
class Fit:
    """A finished fit.

    Attributes:
        source: kind of its members.
        rep_in, rep_out: under which they are measured.
        times: times of the rollouts, s; None for regression.
    """

    source: str
    rep_in: Rep
    rep_out: Rep
    members: list[Member]
    times: Float[Tensor, " T"] | None = None


def open_fit(folder: RunFolder, group: str | None = None, *, trust: bool = False) -> Fit:
    """The members of a finished run of a fit, in float64.

    Args:
        group: in the place of the one that the networks were given, for example "O(3)".
        trust: whether a module that a dataset names may be imported to make its environment.
    Raises:
        RunFolderError, CheckpointError: the run is unfinished, its files are damaged, or of another version.
        ConfigError, ValueError: the group does not act on the task.
    """
    config = replace(compose.from_run(compose.name_of_run(folder), folder), device="cpu")  # wherever it was trained
    if isinstance(config, FitRegressionConfig):
        return _regression(config, folder, group)
    if isinstance(config, FitTransitionConfig):
        return _transition(config, folder, group, trust)
    if isinstance(config, FitTrajectoriesConfig):
        return _recordings(config, folder, group)
    return _dynamics(config, folder, group)


def inputs_at(config: EquivarianceConfig | DiscoverConfig, member: Member, dim: int) -> tuple[NDArray, str]:
    """Inputs of a member, those of the test data unless others are asked for, and where they are from."""
    if config.states_from in (None, "test"):
        return evenly(member.inputs.numpy(), config.states), "inputs of the test data"
    return inputs_of(config, dim)


def _regression(config: FitRegressionConfig, folder: RunFolder, group: str | None) -> Fit:
    regression, regressors = load_regressors(config, folder)
    _check(regression, folder)
    task = regression.task
    if group is not None:
        under = notation.group(group)
        task = (
            task.under(under)
            if isinstance(task, OwnRows)
            else regression_task(config.task.name, under, config.task.strength)
        )
    members = [
        Member(seed, _regressor(regressor, task.rep_in, task.rep_out, task.parts_in, task.parts_out), x)
        for seed, regressor, (x, _) in zip(config.all_seeds, regressors, regression.tests, strict=True)
    ]
    return Fit(f"{task.name}, {config.model_name}", task.rep_in, task.rep_out, members)


def _check(fit: StackFit, folder: RunFolder) -> None:
    """Refuse members that are not what they were: the same numbers mean another function where a layer has changed since."""
    result = folder.result() or {}
    errors, stored = (np.array(metrics["test/error"], dtype=float) for metrics in (fit.evaluate(), result["metrics"]))
    if not np.allclose(errors, stored, rtol=SAME, atol=0, equal_nan=True):
        commit = str(result.get("provenance", {}).get("commit") or "unknown")[:10]
        raise RunFolderError(
            f"{folder.path}: its members have other test errors than when they were fitted, by another version of this package "
            f"(commit {commit}); use that one, or fit again with another run_dir="
        )


def _regressor(
    regressor: Regressor, rep_in: Rep, rep_out: Rep, parts_in: Mapping[str, int], parts_out: Mapping[str, int]
) -> Function:
    networks = _networks("network", regressor.net, regressor.input, rep_in)
    inputs, outputs = _blocks(parts_in), _blocks(parts_out)
    return Function("regressor", regressor, rep_in, rep_out, inputs, outputs, networks=networks)


def _dynamics(config: FitDynamicsConfig, folder: RunFolder, group: str | None) -> Fit:
    dynamics, models = load_models(config, folder)
    _check(dynamics, folder)
    rep = dynamics.rep if group is None else dynamics.pendulum.rep(notation.group(group))
    parts = dynamics.pendulum.parts
    members = []
    for seed, model, data in zip(config.all_seeds, models, dynamics.data, strict=True):
        rollout = Rollout(_solver(dynamics, model), data.rollouts[: config.rollout.trajectories, 0])
        members.append(Member(seed, _vector_field(model, rep, parts), data.test[:, 0], rollout))
    return Fit(f"{config.task.name}, {config.model_name}", rep, rep, members, dynamics.data[0].times)


def open_transition(
    config: FitTransitionConfig, folder: RunFolder, *, trust: bool = False
) -> tuple[Transition, list[TransitionModel]]:
    """A finished run's dataset and its members, in float64, which are what they were when it was fitted."""
    transition, models = load_transitions(config, folder, trust=trust)
    _check(transition, folder)
    return transition, models


def _recordings(config: FitTrajectoriesConfig, folder: RunFolder, group: str | None) -> Fit:
    """The fields of the members in scaled units, which commute with the group."""
    target, models = load_recordings(config, folder)
    _check(target, folder)
    if group is not None:
        target.measure_under(notation.group(group))
    names, controls = target.recordings.names, target.recordings.control_names
    parts, parts_in, rep_in = dict.fromkeys(names, 1), dict.fromkeys((*names, *controls), 1), target.field_rep
    members = [
        Member(seed, _vector_field(model, target.rep, parts, rep_in, parts_in), target.inputs_of(index))
        for index, (seed, model) in enumerate(zip(config.all_seeds, models, strict=True))
    ]
    return Fit(f"{config.task_name}, {config.model_name}", rep_in, target.rep, members)


def _transition(config: FitTransitionConfig, folder: RunFolder, group: str | None, trust: bool) -> Fit:
    if group is not None:
        raise ConfigError(
            f"--group {group}: a transition model is measured under its environment's symmetry; leave it out, or fit with "
            "another symmetry="
        )
    return transition_fit(config, *open_transition(config, folder, trust=trust))


def transition_fit(config: FitTransitionConfig, transition: Transition, models: list[TransitionModel]) -> Fit:
    """The members of a fit to transitions, each as the change of the state that it has learned."""
    spec, test = transition.spec, transition.data.test
    inputs = torch.cat([test.states[:, :-1], test.actions], -1).flatten(0, 1)
    rep_in, rep_out = TransitionModel.rep_in(spec.obs_rep, spec.action_rep), spec.obs_rep
    members = [
        Member(seed, _change(model, spec, rep_in), inputs) for seed, model in zip(config.all_seeds, models, strict=True)
    ]
    return Fit(f"{config.task_name}, {config.model_name}", rep_in, rep_out, members)


def _change(model: TransitionModel, spec: SymmetrySpec, rep_in: Rep) -> Function:
    """The change of the state by a transition model, as a function of state and action."""
    weights, n = model.assemble(), spec.feature_dim
    inputs = _blocks(dict.fromkeys((*spec.feature_names, *spec.action_names), 1))
    network_inputs = lambda z: torch.cat([model.states(z[..., :n]), model.actions(z[..., n:])], -1)  # noqa: E731
    networks = _networks("network", model.net, network_inputs, rep_in)
    call = lambda z: model.change(z[..., :n], z[..., n:], weights)  # noqa: E731
    return Function("change of the state", call, rep_in, spec.obs_rep, inputs, changes(spec), networks=networks)


def _vector_field(
    model: DynamicsModel,
    rep: Rep,
    parts: Mapping[str, int],
    rep_in: Rep | None = None,
    parts_in: Mapping[str, int] | None = None,
) -> Function:
    """J grad H of a Hamiltonian, whose own value has a constant of no meaning; the network of a neural ODE."""
    weights, rep_in = model.assemble(), rep_in or rep
    inputs = _blocks(parts_in or parts)
    rates = {f"d{name}/dt": index for name, index in _blocks(parts).items()}
    name = "Hamiltonian" if isinstance(model, HamiltonianModel) else "network"
    networks = _networks(name, model.net, lambda z: z, rep_in)
    call = lambda z: model.vector_field(z, weights)  # noqa: E731
    return Function("vector field", call, rep_in, rep, inputs, rates, networks=networks)


def _solver(dynamics: Dynamics, model: DynamicsModel) -> Callable[[Tensor], Tensor]:
    def solve(z0: Tensor) -> Tensor:
        rolled = roll_out(dynamics.config.rollout, model, z0, dynamics.data[0].times)
        return torch.where(rolled.diverged[:, None, None], torch.nan, rolled.states)

    return solve


def _networks(
    name: str, module: nn.Module, inputs: Callable[[Tensor], Tensor], rep_in: Rep
) -> dict[str, MeasuredNetwork]:
    """The network whose layers are told apart, where it was built for this very symmetry."""
    return {name: MeasuredNetwork(module, inputs)} if isinstance(module, RPPEMLP) and module.rep_in == rep_in else {}


def _blocks(parts: Mapping[str, int]) -> dict[str, list[int]]:
    """Indices of the coordinates of each part."""
    blocks, start = {}, 0
    for name, size in parts.items():
        blocks[name] = list(range(start, start + size))
        start += size
    return blocks


# -- models of images --------------------------------------------------------------------------------------------------

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


def image_members(config: EquivarianceConfig, folder: RunFolder) -> tuple[str, list[ImageTarget]]:
    """The kind of model in a run of `fit-image`, and its members, in float64; classifiers give probabilities.

    Raises:
        RunFolderError, CheckpointError: the run is unfinished, or its files are damaged.
    """
    fitted = compose.from_run("fit_image", folder)
    assert isinstance(fitted, FitImageConfig)
    fit, models = load_image_models(replace(fitted, device="cpu"), folder)
    members = []
    for seed, model, data in zip(fitted.all_seeds, models, fit.data, strict=True):
        x, origin = (data.test.x, "images of the test data") if config.image is None else images_of(config)
        parts = [("model", in_precision(model, torch.float64))]
        if not data.regression:
            parts.append(("softmax", nn.Softmax(-1)))
        network = nn.Sequential(OrderedDict(parts)).eval()
        name = "regressor" if data.regression else "classifier"
        members.append(ImageTarget(name, network, network, _some(x, config).double(), origin, seed))
    return f"{fitted.task_name}, {fitted.model_name}", members


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
    x = _some(x, config)
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
    array = _picture(path) if path.suffix not in (".npy", ".npz") else _array(path)
    array = array[:, None] if array.ndim == 3 else array
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
    few = target.images[np.unique(np.linspace(0, len(target.images) - 1, DETAIL_IMAGES).round().astype(int))]
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


def _some(x: Tensor, config: EquivarianceConfig) -> Tensor:
    return torch.as_tensor(evenly(x.numpy(), config.states))


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


def _array(path: Path) -> np.ndarray:
    arrays = read_arrays(path)
    key = "images" if "images" in arrays else next(iter(arrays)) if len(arrays) == 1 else None
    if key is None:
        raise ConfigError(f"--image {path}: holds no array named 'images', but {', '.join(arrays) or 'none'}")
    return arrays[key]


def _picture(path: Path) -> np.ndarray:
    array = read_picture(path, lambda mode: "L" if mode in ("1", "L", "I;16") else "RGB")
    return array[None, None] if array.ndim == 2 else array.transpose(2, 0, 1)[None]
