"""Targets of `rppdyn equivariance`: policies, exported programs, functions of the user, and models of images."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.torch import load_file
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import Tensor, nn

from rppdyn.agents._networks import cast_module
from rppdyn.agents.policy import SymmetricPolicy
from rppdyn.envs import Space, SymmetrySpec
from rppdyn.equivariance import Flow, layerwise_lie_derivative, lie_derivative
from rppdyn.equivariance._error import POOLED_FLOOR, Function, MeasuredNetwork
from rppdyn.equivariance._lie import standard_error
from rppdyn.equivariance.images import TRANSFORMATIONS
from rppdyn.errors import one_line, place_in_users_code, reading
from rppdyn.jobs.building import add_noise
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import DiscoverConfig, EquivarianceConfig
from rppdyn.jobs.loading import Loaded, load_function
from rppdyn.jobs.measure import Layers, Measured, estimate_of
from rppdyn.nn import RPPEMLP
from rppdyn.reps import Rep, Scalar
from rppdyn.runs.statistics import evenly
from rppdyn.settings import did_you_mean
from rppdyn.tasks._images import SOURCES, image_data
from rppdyn.tasks._labelled import read_picture
from rppdyn.tasks._tables import read_arrays

if TYPE_CHECKING:
    from rppdyn.jobs.fit_image import ImageFit

# -- functions --------------------------------------------------------------------------------------------------------


def policy_functions(policy: BasePolicy, spec: SymmetrySpec) -> list[Function]:
    """A policy's deterministic action in the environment's units, and its critics or its value function, if it has any."""
    act, high = _action_function(policy), _action_bounds(policy)[1].double()
    actor = getattr(getattr(policy, "actor", None), "net", getattr(policy, "action_net", None))
    functions = [
        Function(
            "policy",
            lambda x: spec.action.encode(act(spec.decode(x))),
            spec.obs_rep,
            spec.action_rep,
            blocks(spec.obs),
            blocks(spec.action),
            encode=lambda obs, actions: spec.encode(obs),
            scale=torch.where(high.isfinite(), high, 1.0),
            networks=_symmetric_networks(policy, spec, {"actor": actor}),
        )
    ]
    if isinstance(policy, ActorCriticPolicy):
        value = _value_function(policy)
        functions.append(
            Function(
                "value",
                lambda x: value(spec.decode(x)),
                spec.obs_rep,
                Scalar(spec.group),
                blocks(spec.obs),
                {"value": [0]},
                encode=lambda obs, actions: spec.encode(obs),
                scale=torch.ones(1),
                centred=True,
                networks=_symmetric_networks(policy, spec, {"value": policy.value_net}),
            )
        )
    elif (critic := getattr(policy, "critic", None)) is not None and hasattr(critic, "q_networks"):
        q, n, split = _critic_function(policy), len(critic.q_networks), spec.feature_dim
        actions = {f"action {name}": [split + i for i in index] for name, index in blocks(spec.action).items()}
        names = [f"critic {i + 1}" for i in range(n)]
        functions.append(
            Function(
                "critics",
                lambda x: q(spec.decode(x[..., :split]), spec.action.decode(x[..., split:])),
                spec.obs_rep + spec.action_rep,
                n * Scalar(spec.group),
                blocks(spec.obs) | actions,
                {name: [i] for i, name in enumerate(names)},
                encode=lambda obs, actions: torch.cat([spec.encode(obs), spec.action.encode(actions)], -1),
                scale=torch.ones(n),
                centred=True,
                networks=_symmetric_networks(policy, spec, dict(zip(names, critic.q_networks, strict=True))),
            )
        )
    return functions


def plain_function(
    call: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, spec: SymmetrySpec | None, sample: Tensor
) -> Function:
    """Wrap a callable in a `Function`: from raw observations to actions under a spec, or between two representations.

    Args:
        sample: a few inputs, on which the callable is tried.
    """
    f = adapt_precision(call, sample, spec.action.dim if spec else rep_out.dim)
    networks = {}
    if isinstance(call, RPPEMLP) and call.rep_in == rep_in and call.rep_out == rep_out:
        networks = {"network": MeasuredNetwork(cast_module(call, torch.float64), lambda x: x)}
    if spec is None:
        inputs, outputs = ({f"[{i}]": [i] for i in range(rep.dim)} for rep in (rep_in, rep_out))
        return Function("function", f, rep_in, rep_out, inputs, outputs, networks=networks)
    return Function(
        "policy",
        lambda x: spec.action.encode(f(spec.decode(x))),
        rep_in,
        rep_out,
        blocks(spec.obs),
        blocks(spec.action),
        lambda obs, _: spec.encode(obs),
        networks=networks if spec.obs.is_linear else {},
    )


def adapt_precision(
    call: Callable[[Tensor], Any], sample: Tensor, outputs: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a function that calls another on copies of its inputs, in double precision if that accepts it, else in single.

    Args:
        outputs: required number of outputs for each input; None allows any.
    Raises:
        ConfigError: the function accepts neither precision, or has other outputs.
    """
    shape = tuple(sample.shape)
    failure: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        try:
            y = call(sample.to(dtype, copy=True))
        except (RuntimeError, ValueError, TypeError, AssertionError, LookupError) as error:
            failure = failure or error
            continue
        is_batch = isinstance(y, Tensor) and y.is_floating_point() and y.ndim > 1 and len(y) == len(sample)
        if not is_batch or (outputs is not None and y.shape[1:] != (outputs,)):
            output = f"{y.dtype} tensor of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            expected = f"({', '.join(['n', *map(str, shape[1:])])}) to (n, {outputs or '...'})"
            raise ConfigError(
                f"the function returns a {output} for inputs {shape}: it must map {expected}, a real tensor, for every n"
            )
        return lambda x: call(x.to(dtype, copy=True))
    assert failure is not None
    message = (str(failure).strip() or type(failure).__name__).splitlines()[0][:160]
    message = one_line(failure) if place_in_users_code(failure) is not None else message
    raise ConfigError(
        f"the function fails on inputs of shape {shape} ({message}): it must take (n, {', '.join(map(str, shape[1:]))}) "
        "tensors, whatever n is; export programs with a dynamic first dimension"
    ) from failure


def _action_function(policy: BasePolicy) -> Callable[[Tensor], Tensor]:
    """Raw observations to the deterministic action in the environment's units; in double precision where the policy can."""
    if isinstance(policy, SymmetricPolicy):
        return policy.action_function(torch.float64)
    low, high = _action_bounds(policy)

    def act(obs: Tensor) -> Tensor:
        action = policy._predict(obs, deterministic=True)
        return low + (action + 1) / 2 * (high - low) if policy.squash_output else action.clamp(low, high)

    return act


def _action_bounds(policy: BasePolicy) -> tuple[Tensor, Tensor]:
    """Lowest and highest action, in the space's own precision."""
    space: Any = policy.action_space
    return torch.as_tensor(space.low), torch.as_tensor(space.high)


def _critic_function(policy: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Raw observations and actions to the critics' values, (n, critics)."""
    if hasattr(policy, "value_function"):
        q = policy.value_function(torch.float64)
        return lambda obs, actions: q(obs, actions).mT
    low, high = _action_bounds(policy)
    return lambda obs, actions: torch.cat(
        policy.critic(obs, ((actions - low) / (high - low) * 2 - 1).to(low.dtype)), dim=-1
    )


def _value_function(policy: Any) -> Callable[[Tensor], Tensor]:
    """Raw observations to the value, (n, 1)."""
    if hasattr(policy, "value_function"):
        value = policy.value_function(torch.float64)
        return lambda obs: value(obs, obs).mT
    return policy.predict_values


def blocks(space: Space) -> dict[str, list[int]]:
    """Indices of the features of each coordinate, by name; the four numbers of a quaternion are one block."""
    features: dict[str, list[int]] = {}
    for kind, raw, _ in space.encoding.blocks:
        indices = [raw.start] if kind == "quaternion" else range(raw.start, raw.stop)
        for i in indices:
            name = space.names[i].removesuffix(" w") if kind == "quaternion" else space.names[i]
            features[name] = list(space.encoding.features_of(i))
    return features


def check_environment(name: str, policy: BasePolicy, env: gymnasium.Env, flag: str) -> None:
    """Refuse an environment whose observations or actions differ in shape from the policy's.

    Args:
        name: name of the policy.
        flag: flag that gave the environment.
    Raises:
        ConfigError: naming both shapes.
    """
    for part in ("observation", "action"):
        env_space, policy_space = (getattr(owner, f"{part}_space") for owner in (env, policy))
        if env_space.shape != policy_space.shape:
            environment = "it" if env.spec is None else env.spec.id
            raise ConfigError(
                f"{name} is for {part}s of shape {policy_space.shape}, and those of {environment} have {env_space.shape}: "
                f"give {flag} of the environment it was trained on"
            )


def check_policy(policy: BasePolicy, spec: SymmetrySpec) -> None:
    """Require a policy from a vector of observations to a vector of actions, both as in the spec.

    Raises:
        ConfigError: the policy is another.
    """
    for name, space, space_spec in (
        ("observation", policy.observation_space, spec.obs),
        ("action", policy.action_space, spec.action),
    ):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"the policy's {name} space is {space}: a symmetry acts on vectors (Box with one axis)")
        if space.shape[0] != space_spec.dim:
            raise ConfigError(
                f"the policy's {name} has {space.shape[0]} entries and that of {spec.env_id} {space_spec.dim}: give the --env "
                "it was trained on"
            )


def _symmetric_networks(policy: Any, spec: SymmetrySpec, modules: Mapping[str, Any]) -> dict[str, MeasuredNetwork]:
    """The networks of an RPP policy that were built for this symmetry; empty if they were built for another."""
    built = getattr(policy, "spec", None)
    if built is None or (built.group, built.obs_rep, built.action_rep) != (spec.group, spec.obs_rep, spec.action_rep):
        return {}
    features, n = cast_module(policy.features_extractor, torch.float64), spec.feature_dim
    high = _action_bounds(policy)[1].double()

    def inputs(x: Tensor) -> Tensor:
        obs = features(spec.decode(x[..., :n]))
        return torch.cat([obs, spec.action.decode(x[..., n:]) / high], -1) if x.shape[-1] > n else obs

    networks = {name: module for name, module in modules.items() if isinstance(module, RPPEMLP)}
    return {name: MeasuredNetwork(cast_module(module, torch.float64), inputs) for name, module in networks.items()}


# -- states and inputs -------------------------------------------------------------------------------------------------

MAX_INPUT_NUMBERS = 2**28  # entries of all inputs together, two gigabytes


def states_of(
    config: EquivarianceConfig | DiscoverConfig, target: Loaded, spec: SymmetrySpec
) -> tuple[NDArray, NDArray | None, str]:
    """Raw observations, actions at them (None if there is no critic), and the source in words.

    Raises:
        ConfigError: there is no environment to take them from, or the file has other observations.
    """
    source = config.states_from or "rollouts"
    if source not in ("rollouts", "reset"):
        observations, origin = inputs_of(config, spec.obs.dim)
        return observations, _draw_actions(target, observations), origin
    if target.evaluator is None:
        raise ConfigError(f"{config.what}: states from {source} need an environment; give --env, or --from FILE")
    with closing(target.evaluator()) as evaluator:
        if target.policy is not None:
            check_environment(config.what, target.policy, evaluator.envs[0], "--env")
        if source == "reset":
            env = evaluator.envs[0]
            observations = np.stack([env.reset(seed=config.seed + i)[0] for i in range(config.states)])
            return observations, _draw_actions(target, observations), "reset distribution"
        if target.call is None:
            episodes, how = evaluator.explore(target.policy), "exploring episodes of its own"
        else:
            f = adapt_precision(target.call, torch.as_tensor(evaluator.envs[0].reset(seed=0)[0])[None], spec.action.dim)
            act = torch.no_grad()(lambda x: np.asarray(f(torch.as_tensor(x)).detach().cpu(), dtype=np.float64))
            policy = add_noise(act, evaluator.envs[0].action_space, config.seed)
            episodes, how = evaluator.run(policy), "episodes of its own with Gaussian noise"
        return *episodes.spread(config.states), f"{config.episodes} {how}"


def _draw_actions(target: Loaded, observations: NDArray) -> NDArray | None:
    """Actions for critics, uniform in half the range around the policy's own; None without a policy."""
    if target.policy is None:
        return None
    space = target.policy.action_space
    actions = target.policy.predict(observations, deterministic=True)[0]
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, actions.shape) * (space.high - space.low) / 2
    return np.clip(actions + spread, space.low, space.high)


def inputs_of(config: EquivarianceConfig | DiscoverConfig, dim: int) -> tuple[NDArray, str]:
    """Inputs from a file, evenly spaced and at most `config.states`, or standard normal ones; and the source in words.

    Raises:
        ConfigError: no source is given, or the file has other inputs.
    """
    source = config.states_from
    if config.states * dim > MAX_INPUT_NUMBERS:
        raise ConfigError(
            f"--states {config.states}: inputs of {dim} numbers each are too many; give fewer, or smaller ones"
        )
    if source == "normal":
        return np.random.default_rng(config.seed).normal(size=(config.states, dim)), "standard normal inputs"
    if source is None or source in ("rollouts", "reset"):
        raise ConfigError(f"{config.what}: inputs from where? give --from FILE (npy or npz), or --from normal")
    if not Path(source).is_file():
        known = "rollouts, reset, normal (of a fit: test, normal)"
        raise ConfigError(f"--from {source}: there is no such file; give a .npy or .npz file, or one of {known}")
    array = array_of(source, "observations")
    if array.ndim != 2 or array.shape[1] != dim or not len(array):
        raise ConfigError(f"{source} holds an array of shape {array.shape}: it must be (n, {dim}), one input a row")
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise ConfigError(f"{source} holds {array.dtype}: it must hold real numbers")
    if not np.isfinite(array).all():
        raise ConfigError(f"{source} holds values that are not finite: remove those rows")
    return array[evenly(len(array), config.states)].astype(np.float64), f"{source}"


def inputs_at(config: EquivarianceConfig | DiscoverConfig, member: Function) -> tuple[NDArray, str]:
    """Inputs of a fit's member, by default those of the test data, and the source in words."""
    if config.states_from in (None, "test"):
        samples = member.samples.numpy().astype(np.float64)
        return samples[evenly(len(samples), config.states)], "inputs of the test data"
    return inputs_of(config, member.rep_in.dim)


def array_of(file: str | Path, name: str) -> NDArray:
    """The array of that name in a file, or its only one."""
    arrays = read_arrays(file)
    key = name if name in arrays or len(arrays) != 1 else next(iter(arrays))
    if key not in arrays:
        raise ConfigError(f"{file} holds no array named {name!r}, but {', '.join(arrays) or 'none'}")
    return arrays[key]


# -- models of images -----------------------------------------------------------------------------------------------------

DEFAULT_TRANSFORMATIONS = (
    "translation_x", "translation_y", "rotation", "scaling", "stretch_x", "shear_x", "brightening",
)  # fmt: skip
DETAIL_IMAGES = 32
"""Largest number of images for the attribution to layers, evenly spaced."""

IMAGE_BATCH = 100  # images measured at a time


class ImageTarget(NamedTuple):
    """A function of images and the images to measure it at.

    Attributes:
        network: module whose layers are measured; None if the function is no module.
        origin: source of the images, in words.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    network: nn.Module | None
    images: Float[Tensor, "N C H W"]
    origin: str
    seed: int = 0


def flows_of(config: EquivarianceConfig) -> dict[str, Flow]:
    """The configured transformations, by name.

    Raises:
        ConfigError: an unknown name, or one that stands twice.
    """
    names = DEFAULT_TRANSFORMATIONS if config.transformations is None else tuple(config.transformations.split(","))
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
        parts = [("model", cast_module(fit.stack.member(index), torch.float64))]
        if not data.regression:
            parts.append(("softmax", nn.Softmax(-1)))
        network = nn.Sequential(OrderedDict(parts)).eval()
        name = "regressor" if data.regression else "classifier"
        members.append(ImageTarget(name, network, network, x[evenly(len(x), config.states)].double(), origin, seed))
    return members


def image_function(config: EquivarianceConfig) -> tuple[str, ImageTarget]:
    """The description and the function of `module:function`; a function without arguments may make a module.

    Raises:
        ConfigError: it can't be called with images, or the weights are those of another module.
    """
    call = load_function(config.what)
    if not isinstance(call, nn.Module) and _makes_a_model(call):
        model = call()  # type: ignore[call-arg]
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{config.what}() is of type {type(model).__name__}: it must make a torch.nn.Module")
        call = model.eval()
    if config.weights is not None:
        _load_weights(config.weights, call)
    x, origin = images_of(config)
    x = x[evenly(len(x), config.states)]
    described = (
        f"{type(call).__name__}, {config.weights or 'its own weights'}" if isinstance(call, nn.Module) else "a function"
    )
    network = cast_module(call, torch.float64) if isinstance(call, nn.Module) else None
    f = adapt_precision(network if network is not None else call, x[:2])
    return described, ImageTarget("function", f, network, x.double(), origin)


def images_of(config: EquivarianceConfig) -> tuple[Float[Tensor, "N C H W"], str]:
    """Images from a file or of a data set, and the source in words.

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
    y = torch.cat([target.call(part) for part in target.images.split(IMAGE_BATCH)])
    if not y.isfinite().all():
        raise ConfigError(f"the {target.name} gives numbers that are not finite; look at its weights and the images")
    size = y.double().flatten(1).abs()
    sums, published, lee = {}, {}, {}
    for name, flow in flows.items():
        parts = [lie_derivative(target.call, flow, flow, part)[0] for part in target.images.split(IMAGE_BATCH)]
        derivative = torch.cat(parts).double().flatten(1).abs()
        sums[name] = torch.stack([derivative.sum(1), 2 * size.sum(1)], 1)
        ratio = derivative.norm(dim=1) / (2 * size.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
        published[name] = float(ratio.mean())
        squared = derivative.square().mean(1)
        lee[name] = (float(squared.mean()), float(standard_error(squared)))
    mean_published = float(np.mean(list(published.values())))
    scale = float(size.square().mean().sqrt())
    overall = estimate_of(torch.stack(list(sums.values())).sum(0), mean_published)
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
    images = target.images[evenly(len(target.images), DETAIL_IMAGES)]
    attributions = {}
    for name, flow in flows.items():
        hidden = {"*": flow, **dict.fromkeys(whole)}
        try:
            attributions[name] = layerwise_lie_derivative(target.network, flow, flow, images, hidden=hidden)
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
    """Return whether a function can be called without arguments."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)


def _load_weights(path: str, network: object) -> None:
    """Load weights into a module from a file of safetensors or of torch.save, without pickles."""
    if not isinstance(network, nn.Module):
        raise ConfigError(f"--weights {path}: a function has no weights; leave it out, or give a torch.nn.Module")
    remedy = "write them with torch.save(model.state_dict(), ...)"
    with reading(f"--weights {path}", remedy, f"as weights of {type(network).__name__}"):
        state = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
        if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
            state = state["state_dict"]
        network.load_state_dict(state)
