"""Agents as plain data: the whole state of one in training, for runs that continue bit-identically, and trained ones in files.

A file that comes with the package has tensors alone, and a card as JSON in its header: how the agent was trained, and what it
reaches. Nothing in it is a pickle. `manifest.json` beside the files has the SHA-256 of each; one that differs is refused.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import deque
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from stable_baselines3.common.noise import NormalActionNoise
from torch import Tensor

from rppdyn.agents import buffers
from rppdyn.agents.checks import check_finite
from rppdyn.agents.policy import RPPPolicy
from rppdyn.envs import SymmetrySpec, capture_state, make_env, restore_state
from rppdyn.runs.workers import GlobalStates

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import GymEnv

    from rppdyn.agents.ppo import RPPPPO
    from rppdyn.agents.sac import RPPSAC

FORMAT = 1
COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_episode_num",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_current_progress_remaining",
    "_collected_steps",
    "_collected_episodes",
)
LEARNED = ("parameters", "variables", "observed", "replay")
"""Names of the tensors and arrays that are finite in every checkpoint: what is learned, and from what."""
OBSERVED = ("_last_obs", "_last_original_obs", "_last_episode_starts")


def capture(agent: RPPSAC) -> dict[str, Any]:
    """Capture an agent's state, see `RPPSAC.capture`."""
    if agent.action_noise is not None and not isinstance(agent.action_noise, NormalActionNoise):
        raise ValueError(f"the state of {agent.action_noise!r} can't be captured; use NormalActionNoise or none")
    _, variables = agent._get_torch_save_params()
    data = capture_common(agent)
    data["variables"] = {name: getattr(agent, name).detach().clone() for name in variables}
    data["replay"] = buffers.capture(agent.replay_buffer)
    data["random"] |= {
        "update": agent.batches.generator.get_state(),
        "actor": agent.actor.generator.get_state(),
        "draws": _plain(agent.batches.numpy.state),
    }
    check_finite(agent, {name: data[name] for name in LEARNED})
    return data


def capture_common(agent: RPPSAC | RPPPPO) -> dict[str, Any]:
    """Capture the parts of every agent's state: parameters, counters, last observation, random states, environments."""
    return {
        "format": FORMAT,
        "identity": agent.identity(),
        "parameters": _plain(agent.get_parameters()),
        "counters": {name: getattr(agent, name) for name in COUNTERS if hasattr(agent, name)},
        "observed": {} if agent.fresh_episodes else {name: _plain(getattr(agent, name)) for name in OBSERVED},
        "episodes": {name: _plain(getattr(agent, name)) for name in ("ep_info_buffer", "ep_success_buffer")},
        "random": {
            **{name: _plain(state) for name, state in GlobalStates.now()._asdict().items()},
            "action_space": _plain(agent.action_space.np_random.bit_generator.state),
        },
        "log": _unwritten_log(agent),
        "envs": None if agent.env is None or agent.fresh_episodes else _in_one_place(_plain(capture_state(agent.env))),
    }


def restore(agent: RPPSAC, data: dict[str, Any]) -> None:
    """Restore an agent's state, see `RPPSAC.restore`."""
    _check_alike(agent, data)
    if set(data["variables"]) != set(agent._get_torch_save_params()[1]):
        there, here = ("learned", "fixed") if agent.log_ent_coef is None else ("fixed", "learned")
        raise ValueError(
            f"the state was captured from an agent with a {there} temperature, this one's is {here} (ent_coef)"
        )
    _check_precision(agent, data, {name: getattr(agent, name) for name in data["variables"]})
    with torch.no_grad():
        for name, value in data["variables"].items():
            getattr(agent, name).copy_(value)
    buffers.restore(agent.replay_buffer, data["replay"])
    states = data["random"]
    agent.batches.generator.set_state(states["update"])
    agent.actor.generator.set_state(states["actor"])
    if "draws" in states:  # version 0.1 drew from NumPy's global generator
        agent.batches.numpy.state = _arrays(states["draws"])
    _restore_common(agent, data)


def restore_common(agent: RPPPPO, data: dict[str, Any]) -> None:
    """Put what :func:`capture_common` returned in place.

    Raises:
        ValueError: the data is of another agent.
    """
    _check_alike(agent, data)
    _check_precision(agent, data, {})
    _restore_common(agent, data)


def _check_alike(agent: RPPSAC | RPPPPO, data: dict[str, Any]) -> None:
    if data.get("format") != FORMAT:
        raise ValueError(f"the agent's state has format {data.get('format')!r}, this version reads {FORMAT}")
    if (data["envs"] is None) != (agent.env is None or agent.fresh_episodes):
        raise ValueError("one of the captured and this agent has an environment and the other none; build both alike")
    for key, here in agent.identity().items():
        if (there := data["identity"].get(key)) != here:
            raise ValueError(f"the state was captured from an agent with {key}={there}, this one has {here}")


def _check_precision(agent: RPPSAC | RPPPPO, data: dict[str, Any], variables: dict[str, Tensor]) -> None:
    there = data["parameters"]["policy"] | data.get("variables", {})
    for name, value in (dict(agent.policy.named_parameters()) | variables).items():
        if there[name].dtype != value.dtype:
            raise ValueError(
                f"the state was captured from an agent with {name} in {there[name].dtype}, this one's is in {value.dtype}: "
                "cast agent.policy and agent.log_ent_coef.data before restore"
            )


def _restore_common(agent: RPPSAC | RPPPPO, data: dict[str, Any]) -> None:
    agent.set_parameters(copy.deepcopy(data["parameters"]), exact_match=True, device=agent.device)
    for name, value in data["counters"].items():
        setattr(agent, name, value)
    for name, value in data["observed"].items():
        setattr(agent, name, _arrays(value))
    for name, value in data["episodes"].items():
        setattr(agent, name, None if value is None else deque(value, maxlen=agent._stats_window_size))
    agent._pending_log = dict(data["log"])
    if agent.env is not None and not agent.fresh_episodes:
        restore_state(agent.env, _arrays(data["envs"]))
        agent.env._reset_seeds()  # given at construction for the first reset, which is past
        agent.env._reset_options()
    states = data["random"]
    agent.action_space.np_random.bit_generator.state = _arrays(states["action_space"])
    version, internal, gauss = states["python"]
    GlobalStates((version, tuple(internal), gauss), _arrays(states["numpy"]), states["torch"]).put()


def replay_log(agent: RPPSAC | RPPPPO) -> None:
    """Put the entries that were waiting to be written when the agent was captured back into its logger."""
    for name, (value, exclude) in agent._pending_log.items():
        agent.logger.record(name, value, exclude=tuple(exclude))
    agent._pending_log = {}


def identity(agent: RPPSAC) -> dict[str, Any]:
    """Settings that must agree, see `RPPSAC.identity`."""
    return {
        **common_identity(agent),
        "buffer_size": agent.replay_buffer.buffer_size,
        "replay_buffer": "ReplayBuffer"
        if isinstance(agent.replay_buffer, buffers.RowReplayBuffer)
        else type(agent.replay_buffer).__name__,
        "train_freq": f"{agent.train_freq.frequency} {agent.train_freq.unit.value}",
    }


def common_identity(agent: RPPSAC | RPPPPO) -> dict[str, Any]:
    """Symmetry, networks and number of environments."""
    policy = {key: value for key, value in agent.policy._arguments.items() if key != "spec"}
    return {
        "spec": agent.spec.digest,
        "policy_kwargs": json.dumps(policy, sort_keys=True, default=str),
        "n_envs": agent.n_envs,
    }


def _unwritten_log(agent: RPPSAC | RPPPPO) -> dict[str, list]:
    logger = getattr(agent, "_logger", None)
    if logger is None:
        return dict(agent._pending_log)
    agent.record_updates()
    entries = {}
    for name, value in logger.name_to_value.items():
        if isinstance(value, (bool, int, float, str, np.number)):
            exclude = logger.name_to_excluded.get(name) or ()
            entries[name] = [_plain(value), [exclude] if isinstance(exclude, str) else list(exclude)]
    return entries


def _plain(value: Any) -> Any:
    """A copy made of what `torch.load(weights_only=True)` reads: arrays become tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} is no plain data and can't be kept in a checkpoint")


def _in_one_place(value: Any) -> Any:
    """The same data, its tensors views of one for each dtype: `torch.save` takes as long for each storage, however small."""
    tensors = _leaves(value)
    for dtype in {tensor.dtype for tensor in tensors}:
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        whole = torch.cat([tensor.flatten() for tensor in alike])
        for tensor, part in zip(alike, whole.split([tensor.numel() for tensor in alike]), strict=True):
            tensor.data = part.view(tensor.shape)
    return value


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in items for tensor in _leaves(item)]


def _arrays(value: Any) -> Any:
    """The same data with tensors as arrays again."""
    if isinstance(value, Tensor):
        return value.numpy().copy()
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return [_arrays(item) for item in value] if isinstance(value, list) else value


# -- agents that come with the package ---------------------------------------------------------------------------------

FOLDER = Path(str(resources.files("rppdyn.agents"))) / "weights"
MANIFEST = "manifest.json"

HEADER = "rppdyn"
"""The key of the card in a file's header."""

SETTINGS = ("gamma", "tau", "batch_size", "learning_starts", "noise_variance")
"""Settings of an agent with which it was trained, and may go on."""
_SHARED = ("actor.features_extractor.", "critic.features_extractor.", "critic_target.")
"""Parts of a policy that are other parts again, or, targets, begin as a copy of them."""


def pretrained_agents() -> dict[str, dict[str, Any]]:
    """Trained agents by name: {name: {"file", "sha256", "steps", "return_mean", "return_std"}}."""
    return json.loads((FOLDER / MANIFEST).read_text(encoding="utf-8"))


def pretrained_card(name: str) -> dict[str, Any]:
    """Card of a trained agent: environment, policy, training (command, commit, seed), certificate, returns and their seeds.

    Raises:
        ValueError: an unknown name, or a damaged file.
    """
    return _read(_path(name))[0]


def pretrained_policy(name: str) -> RPPPolicy:
    """The policy of a trained agent, on the CPU; no environment is made.

    Raises:
        ValueError: an unknown name, or a damaged file.
    """
    card, tensors = _read(_path(name))
    observations, actions = (_box(tensors, space) for space in ("observation_space", "action_space"))
    policy = RPPPolicy(observations, actions, lambda _: 0.0, **card["policy"])
    _put(policy, tensors)
    policy.set_training_mode(False)
    return policy


def pretrained_env(card: Mapping[str, Any], **options: Any) -> Any:
    """The environment that an agent was trained in; options are those of `gymnasium.make`."""
    return make_env(card["env"]["id"], **card["env"]["kwargs"] | options)


def load_pretrained(cls: type[RPPSAC], name: str, env: GymEnv | str | None = None, **kwargs: Any) -> RPPSAC:
    """See `RPPSAC.pretrained`."""
    card, tensors = _read(_path(name))
    arguments = dict(card["policy"])
    spec = SymmetrySpec.from_dict(arguments.pop("spec"))
    options = {**card["settings"], **kwargs}
    agent = cls(
        "RPPPolicy", pretrained_env(card) if env is None else env, spec=spec, policy_kwargs=arguments, **options
    )
    _put(agent.policy, tensors)
    if agent.log_ent_coef is not None:
        agent.log_ent_coef.data.copy_(tensors["log_ent_coef"])
    return agent


def write_pretrained(agent: RPPSAC, path: Path, card: Mapping[str, Any]) -> str:
    """Write an agent's policy and its card into one file; returns its SHA-256.

    Args:
        card: "name", "env", "training", "certificate" and "evaluation"; policy and settings are the agent's.
    """
    policy = agent.policy
    tensors = {f"policy.{k}": v for k, v in policy.state_dict().items() if not k.startswith(_SHARED)}
    for name, space in (("observation_space", policy.observation_space), ("action_space", policy.action_space)):
        tensors |= {f"{name}.{bound}": torch.as_tensor(getattr(space, bound)) for bound in ("low", "high")}
    if agent.log_ent_coef is not None:
        tensors["log_ent_coef"] = agent.log_ent_coef.detach()
    of_agent = {"policy": policy._arguments, "settings": {name: getattr(agent, name) for name in SETTINGS}}
    text = json.dumps({"format": FORMAT, **card, **of_agent}, allow_nan=False, sort_keys=True)
    save_file({k: v.cpu().contiguous().clone() for k, v in tensors.items()}, path, metadata={HEADER: text})
    path.chmod(0o644)  # safetensors lets the owner alone read it
    return _digest(path)


def _path(name: str) -> Path:
    known = pretrained_agents()
    if name not in known:
        raise ValueError(f"there is no pretrained agent {name!r}; there are {', '.join(known)}")
    path = FOLDER / known[name]["file"]
    if not path.is_file() or _digest(path) != known[name]["sha256"]:
        raise ValueError(f"{path} is not the file that rppdyn was released with: install rppdyn again")
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads(file.metadata()[HEADER])
            return card, {key: file.get_tensor(key) for key in file.keys()}  # it is no mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} can't be read ({type(error).__name__}): install rppdyn again") from error


def _box(tensors: Mapping[str, Tensor], name: str) -> spaces.Box:
    low, high = (tensors[f"{name}.{bound}"].numpy() for bound in ("low", "high"))
    return spaces.Box(low, high, dtype=low.dtype.type)


def _put(policy: RPPPolicy, tensors: Mapping[str, Tensor]) -> None:
    state = {key.removeprefix("policy."): value for key, value in tensors.items() if key.startswith("policy.")}
    missing, unknown = policy.load_state_dict(state, strict=False)
    if unknown or any(not key.startswith(_SHARED) for key in missing):
        raise ValueError(
            f"the file is of another network than its card says: {[*unknown, *missing][:3]}; install rppdyn again"
        )
    policy.critic_target.load_state_dict(policy.critic.state_dict())
