"""Export of policies to modules and files that run without this package; and trained agents that come with the package.

The file of a trained agent holds tensors (safetensors) and, as JSON in the header, its card: how it was trained, and its
returns. Nothing in it is a pickle. `manifest.json` beside the files has the SHA-256 of each; other files are refused.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import Tensor, nn

from rppdyn.agents._networks import mode_action, require_vectors
from rppdyn.agents.policy import RPPPolicy, SymmetricPolicy
from rppdyn.agents.ppo import RPPActorCriticPolicy
from rppdyn.envs import Entry, SymmetrySpec, make_env
from rppdyn.errors import UserError, reading
from rppdyn.nn import freeze

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import GymEnv

    from rppdyn.agents._sac import RPPSAC

TOLERANCE = 1e-5
"""Largest accepted difference between an exported policy and its original, as a share of half the action's range."""

INPUT, OUTPUT, HIDDEN = "observation", "action", "hidden_state"


class DeployedPolicy(nn.Module):
    r"""Module from raw observations ``(batch, n)`` to deterministic actions ``(batch, m)`` in the environment's units.

    It has normaliser, network, squash and scale. It is a copy: later training doesn't change it. Networks of this package are
    frozen (:func:`rppdyn.nn.freeze`): the pathways of a layer are one matrix. Other policies are copied whole.

    Args:
        policy: the policy of `RPPSAC` or of PPO with `RPPActorCriticPolicy`, or any policy of stable-baselines3 with vectors as
            observations and actions.
    Raises:
        ValueError: the observation or action space is not a Box with one axis.
    """

    low: Tensor
    high: Tensor

    def __init__(self, policy: BasePolicy):
        super().__init__()
        observations = require_vectors(INPUT, policy.observation_space)
        actions = require_vectors(OUTPUT, policy.action_space)
        self.register_buffer("low", torch.as_tensor(actions.low))
        self.register_buffer("high", torch.as_tensor(actions.high))
        self.dtype = torch.float32
        if isinstance(policy, SymmetricPolicy):  # features are taken in the observation's own precision
            self.dtype = torch.float64 if observations.dtype == np.float64 else torch.float32
        self.act, self.squashed = _action_module(policy).cpu().eval(), policy.squash_output
        self._apply(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))  # views can't be saved

    def forward(self, observation: Tensor) -> Tensor:
        action = self.act(observation)
        if self.squashed:
            return self.low + 0.5 * (action + 1.0) * (self.high - self.low)
        return action.clamp(self.low, self.high)


def _action_module(policy: BasePolicy) -> nn.Module:
    if isinstance(policy, RPPPolicy):
        features, net = policy.features_extractor, policy.actor.net
        return nn.Sequential(copy.deepcopy(features), freeze(net), _Mode(policy.actor.blocks))
    if isinstance(policy, RPPActorCriticPolicy):
        return nn.Sequential(copy.deepcopy(policy.features_extractor), freeze(policy.action_net))
    unused = [module.action_dist for module in policy.modules() if hasattr(module, "action_dist")]
    return _BaselineAction(copy.deepcopy(policy, {id(d): d for d in unused}))  # gSDE's distribution can't be copied


class _Mode(nn.Module):
    """The squashed mean from the output of an actor's network."""

    blocks: Tensor | None

    def __init__(self, blocks: Tensor | None):
        super().__init__()
        self.register_buffer("blocks", blocks)

    def forward(self, output: Tensor) -> Tensor:
        return mode_action(output, self.blocks)


class _BaselineAction(nn.Module):
    """Deterministic action of a stable-baselines3 policy, without distributions, whose argument checks can't be exported."""

    def __init__(self, policy: BasePolicy):
        super().__init__()
        self.policy = policy

    def forward(self, observation: Tensor) -> Tensor:
        policy = self.policy
        if isinstance(policy, ActorCriticPolicy):
            features = policy.extract_features(observation, policy.pi_features_extractor)
            mean = policy.action_net(policy.mlp_extractor.forward_actor(features))  # type: ignore[arg-type]  # one extractor
            return torch.tanh(mean) if policy.squash_output else mean
        actor: Any = getattr(policy, "actor", None)
        if hasattr(actor, "get_action_dist_params"):  # of SAC, TQC, CrossQ
            mean, *_ = actor.get_action_dist_params(observation)
            return torch.tanh(mean)
        return policy._predict(observation, deterministic=True)


def list_entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """List the entries of a space for the card beside an exported policy."""
    return [{"index": i, "name": e.name, "joint": e.joint, "unit": e.unit} for i, e in enumerate(entries)]


def contract_beside(card: str | Path, spec: SymmetrySpec) -> Path:
    """Return the path of `symmetry.json` beside a policy's card (:meth:`~rppdyn.envs.SymmetrySpec.contract`).

    Raises:
        UserError: that is the card's own path; the file there can't be read, or describes another symmetry.
    """
    path = Path(card).with_name("symmetry.json")
    if path == Path(card):
        raise UserError(f"{path} is the name of the contract: call the policy something else")
    if path.exists():
        with reading(path, "move it, or export to another folder"):
            digest = json.loads(path.read_text(encoding="utf-8"))["digest"]
        if digest != spec.digest:
            raise UserError(f"{path} describes another symmetry: move it, or export to another folder")
    return path


HiddenShape = tuple[int, int] | None
"""Layers and size of a hidden state; None for a policy without one."""


def _program(module: nn.Module, size: int, dtype: torch.dtype, state: HiddenShape) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    example, shapes = [torch.zeros(2, size, dtype=dtype)], [{0: batch}]
    if state is not None:
        example.append(torch.zeros(state[0], 2, state[1], dtype=dtype))
        shapes.append({1: batch})
    with torch.no_grad():
        return torch.export.export(module, tuple(example), dynamic_shapes=tuple(shapes), strict=False)


def write_program(
    module: nn.Module, path: str | Path, size: int, dtype: torch.dtype, state: HiddenShape = None
) -> None:
    """Write a module as a `torch.export` program.

    Args:
        module: maps observations (batch, size) to actions; with `state`, maps observations and hidden state
            (layers, batch, h) to actions and the next hidden state.
        size, dtype: the number of entries of an observation, and their type.
        state: layers and size of the hidden state.
    """
    torch.export.save(_program(module, size, dtype, state), str(path))


def write_onnx(module: nn.Module, path: str | Path, size: int, dtype: torch.dtype, state: HiddenShape = None) -> None:
    """Write a module as an ONNX model, with the arguments of :func:`write_program`.

    Raises:
        ValueError: onnx or onnxscript is not installed.
    """
    for name in ("onnx", "onnxscript"):
        _require(name)
    program = _program(module, size, dtype, state)
    names = ([INPUT], [OUTPUT]) if state is None else ([INPUT, HIDDEN], [OUTPUT, f"next_{HIDDEN}"])
    with warnings.catch_warnings():  # torch 2.13's exporter warns of torch's own functions
        warnings.simplefilter("ignore", FutureWarning)
        torch.onnx.export(
            program, (), str(path), input_names=names[0], output_names=names[1], external_data=False, verbose=False
        )


def export_torch(policy: BasePolicy, path: str | Path) -> None:
    """Write a policy as a `torch.export` program, which torch runs without this package.

    Raises:
        ValueError: the observation or action space is not a Box with one axis.
    """
    module = DeployedPolicy(policy)
    write_program(module, path, policy.observation_space.shape[0], module.dtype)  # type: ignore[index]


def export_onnx(policy: BasePolicy, path: str | Path) -> None:
    """Write a policy as an ONNX model: input ``observation`` (batch, n), output ``action`` (batch, m).

    Raises:
        ValueError: the observation or action space is not a Box with one axis; onnx or onnxscript is not installed.
    """
    module = DeployedPolicy(policy)
    write_onnx(module, path, policy.observation_space.shape[0], module.dtype)  # type: ignore[index]


class RecurrentPolicy:
    """A policy with a hidden state, kept between calls. It starts at zero after `reset`, and when the number of rows changes.

    Args:
        step: maps observations (n, observation) and hidden state (layers, n, h) to actions and the next hidden state.
        state: layers and size of the hidden state.
        dtype: the dtype of observations.
    """

    def __init__(self, step: Callable[[NDArray, NDArray], tuple[NDArray, NDArray]], state: tuple[int, int], dtype: Any):
        self.step, self.state, self.dtype = step, state, dtype
        self.hidden: NDArray | None = None

    def reset(self) -> None:
        """Begin new episodes, with a hidden state of zero."""
        self.hidden = None

    def __call__(self, observations: NDArray) -> NDArray:
        observations = np.asarray(observations, self.dtype)
        if self.hidden is None or self.hidden.shape[1] != len(observations):
            self.hidden = np.zeros((self.state[0], len(observations), self.state[1]), self.dtype)
        action, self.hidden = self.step(observations, self.hidden)
        return action


def onnx_policy(path: str | Path) -> Callable[[NDArray], NDArray]:
    """A map from observations (n, observation) to actions (n, action), by ONNX Runtime; a `RecurrentPolicy` if it has a state.

    Raises:
        ValueError: ONNX Runtime is not installed, or the file is no ONNX model of a policy.
    """
    runtime = _require("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever its parser raises
        raise ValueError(
            f"{path} can't be loaded as an ONNX model ({type(error).__name__}): write it again with rppdyn export"
        ) from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    entry = inputs[0]
    recurrent = len(inputs) == 2 and inputs[1].name == HIDDEN
    has_known_inputs = (len(inputs) == 1 or recurrent) and entry.type in ("tensor(double)", "tensor(float)")
    if not has_known_inputs or len(outputs) != len(inputs):
        raise ValueError(
            f"{path} must have one numeric input and one output, or a {HIDDEN} beside each: give a model written by rppdyn"
        )
    dtype = np.float64 if entry.type == "tensor(double)" else np.float32
    if recurrent:
        layers, _, size = inputs[1].shape
        step = lambda x, h: tuple(session.run(None, {entry.name: x, HIDDEN: h}))  # noqa: E731
        return RecurrentPolicy(step, (layers, size), dtype)
    return lambda observations: session.run(None, {entry.name: np.asarray(observations, dtype)})[0]


def torch_policy(program: torch.export.ExportedProgram) -> Callable[[NDArray], NDArray]:
    """The map of a program from :func:`write_program`, as of :func:`onnx_policy`; a `RecurrentPolicy` if it has a state."""
    (example, *hidden), _ = program.example_inputs
    module = program.module()
    if hidden:
        dtype = np.float64 if example.dtype == torch.float64 else np.float32

        def step(x: NDArray, h: NDArray) -> tuple[NDArray, NDArray]:
            action, state = module(torch.as_tensor(x), torch.as_tensor(h))
            return action.detach().numpy(), state.detach().numpy()

        return RecurrentPolicy(step, (len(hidden[0]), hidden[0].shape[-1]), dtype)
    return lambda observations: module(torch.as_tensor(observations, dtype=example.dtype)).detach().numpy()


def _require(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"ONNX needs {name}, which is not installed: pip install 'rppdyn[onnx]'") from error


def largest_difference(policy: BasePolicy, exported: Callable[[NDArray], NDArray], observations: NDArray) -> float:
    """The largest difference between exported and original actions, as a share of half the action's range.

    Actions without bounds, or with a range of 0, are compared absolutely.
    """
    box = require_vectors(OUTPUT, policy.action_space)
    half = (box.high - box.low) / 2
    scale = np.where(np.isfinite(half) & (half > 0), half, 1.0)
    expected = policy.predict(observations, deterministic=True)[0]
    parts = np.array_split(observations, 3)  # to test several batch sizes
    actions = np.concatenate([exported(part) for part in parts])
    return float((np.abs(actions - expected) / scale).max())


FOLDER = Path(str(resources.files("rppdyn.agents"))) / "weights"
MANIFEST = "manifest.json"

PRETRAINED_FORMAT = 1  # for readers elsewhere: `MANIFEST` admits only the files of this release
CARD_KEY = "rppdyn"
"""The key of the card in a file's header."""

TRAINING_SETTINGS = ("gamma", "tau", "batch_size", "learning_starts", "noise_variance")
"""Agent settings stored in the file and restored on loading; a fixed `ent_coef` is stored, too."""
_COPIED_PREFIXES = ("actor.features_extractor.", "critic.features_extractor.", "critic_target.")
"""State-dict prefixes not saved: duplicates of the shared features, and targets, which loading copies from the critics."""


def pretrained_agents() -> dict[str, dict[str, Any]]:
    """Trained agents by name: {name: {"file", "sha256", "source", "return_mean", "return_std"}}."""
    return json.loads((FOLDER / MANIFEST).read_text(encoding="utf-8"))


def pretrained_card(name: str) -> dict[str, Any]:
    """Card of a trained agent: environment, policy, training (command, commit, seed), certificate, returns and their seeds."""
    return _read_pretrained(_pretrained_path(name))[0]


def pretrained_policy(name: str) -> RPPPolicy:
    """The policy of a trained agent, on the CPU; no environment is made."""
    card, tensors = _read_pretrained(_pretrained_path(name))
    observations, actions = (_box(tensors, space) for space in ("observation_space", "action_space"))
    policy = RPPPolicy(observations, actions, lambda _: 0.0, **card["policy"])
    _load_state(policy, tensors)
    policy.set_training_mode(False)
    return policy


def pretrained_env(card: Mapping[str, Any], **options: Any) -> Any:
    """The environment that an agent was trained in; options are those of `gymnasium.make`."""
    return make_env(card["env"]["id"], **card["env"]["kwargs"] | options)


def load_pretrained(cls: type[RPPSAC], name: str, env: GymEnv | str | None = None, **kwargs: Any) -> RPPSAC:
    """See `RPPSAC.pretrained`."""
    card, tensors = _read_pretrained(_pretrained_path(name))
    arguments = dict(card["policy"])
    if not cls.update_class.has_targets:
        raise ValueError(f"{name} has networks without normalisation: use RPPSAC.pretrained")
    spec = SymmetrySpec.from_dict(arguments.pop("spec"))
    options = {**card["settings"], **kwargs}
    agent = cls(
        "RPPPolicy", pretrained_env(card) if env is None else env, spec=spec, policy_kwargs=arguments, **options
    )
    _load_state(agent.policy, tensors)
    if agent.log_ent_coef is not None and "log_ent_coef" in tensors:  # absent if training fixed the temperature
        agent.log_ent_coef.data.copy_(tensors["log_ent_coef"])
    return agent


def write_pretrained(agent: RPPSAC, path: Path, card: Mapping[str, Any]) -> str:
    """Write an agent's policy and its card into one file; returns its SHA-256.

    Args:
        card: "name", "env", "training", "certificate" and "evaluation"; policy and settings are the agent's.
    """
    policy = agent.policy
    tensors = {f"policy.{k}": v for k, v in policy.state_dict().items() if not k.startswith(_COPIED_PREFIXES)}
    for name, space in (("observation_space", policy.observation_space), ("action_space", policy.action_space)):
        tensors |= {f"{name}.{bound}": torch.as_tensor(getattr(space, bound)) for bound in ("low", "high")}
    settings = {name: getattr(agent, name) for name in TRAINING_SETTINGS}
    if agent.log_ent_coef is None:
        settings["ent_coef"] = agent.ent_coef
    else:
        tensors["log_ent_coef"] = agent.log_ent_coef.detach()
    card = {**card, "policy": policy._arguments, "settings": settings}
    text = json.dumps({"format": PRETRAINED_FORMAT, **card}, allow_nan=False, sort_keys=True)
    save_file({k: v.cpu().contiguous().clone() for k, v in tensors.items()}, path, metadata={CARD_KEY: text})
    path.chmod(0o644)  # safetensors makes it readable for the owner only
    return _digest(path)


def _pretrained_path(name: str) -> Path:
    agents = pretrained_agents()
    if name not in agents:
        raise ValueError(f"there is no pretrained agent {name!r}; there are {', '.join(agents)}")
    path = FOLDER / agents[name]["file"]
    if not path.is_file() or _digest(path) != agents[name]["sha256"]:
        raise ValueError(f"{path} is not the file that rppdyn was released with: install rppdyn again")
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_pretrained(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads(file.metadata()[CARD_KEY])
            return card, {key: file.get_tensor(key) for key in file.keys()}  # safe_open is not iterable
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} can't be read ({type(error).__name__}): install rppdyn again") from error


def _box(tensors: Mapping[str, Tensor], name: str) -> spaces.Box:
    low, high = (tensors[f"{name}.{bound}"].numpy() for bound in ("low", "high"))
    return spaces.Box(low, high, dtype=low.dtype.type)


def _load_state(policy: RPPPolicy, tensors: Mapping[str, Tensor]) -> None:
    state = {key.removeprefix("policy."): value for key, value in tensors.items() if key.startswith("policy.")}
    missing, unknown = policy.load_state_dict(state, strict=False)
    if unknown or any(not key.startswith(_COPIED_PREFIXES) for key in missing):
        raise ValueError(
            f"the file's tensors do not fit the network in its card: {[*unknown, *missing][:3]}; install rppdyn again"
        )
    policy.critic_target.load_state_dict(policy.critic.state_dict())
