"""The whole state of a training agent as plain data, for runs that continue bit-identically."""

from __future__ import annotations

import copy
import json
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.noise import NormalActionNoise
from torch import Tensor

from rppdyn.agents import buffers
from rppdyn.envs import capture_state, restore_state
from rppdyn.runs.workers import GlobalStates

if TYPE_CHECKING:
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
OBSERVED = ("_last_obs", "_last_original_obs", "_last_episode_starts", "_discounted_returns")


def capture(agent: RPPSAC) -> dict[str, Any]:
    """Capture an agent's state, see `RPPSAC.capture`."""
    if agent.action_noise is not None and not isinstance(agent.action_noise, NormalActionNoise):
        raise ValueError(f"the state of {agent.action_noise!r} can't be captured; use NormalActionNoise or none")
    _, variables = agent._get_torch_save_params()
    data = capture_common(agent)
    data["variables"] = {name: getattr(agent, name).detach().clone() for name in variables}
    data["replay"] = buffers.capture(agent.replay_buffer)
    data["random"] |= {
        "update": agent.sampler.generator.get_state(),
        "actor": agent.actor.generator.get_state(),
        "draws": _plain(agent.sampler.numpy.state),
    }
    agent.check_finite({name: data[name] for name in LEARNED})
    return data


def capture_common(agent: RPPSAC | RPPPPO) -> dict[str, Any]:
    """Capture the parts of every agent's state: parameters, counters, last observation, random states, environments."""
    return {
        "format": FORMAT,
        "identity": agent.identity(),
        "parameters": _plain(agent.get_parameters()),
        "counters": {name: getattr(agent, name) for name in COUNTERS if hasattr(agent, name)},
        "observed": {}
        if agent.fresh_episodes
        else {n: _plain(getattr(agent, n)) for n in OBSERVED if hasattr(agent, n)},
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
    agent.sampler.generator.set_state(states["update"])
    agent.actor.generator.set_state(states["actor"])
    if "draws" in states:  # version 0.1 drew from NumPy's global generator
        agent.sampler.numpy.state = _arrays(states["draws"])
    _restore_common(agent, data)


def restore_common(agent: RPPPPO, data: dict[str, Any]) -> None:
    """Put what :func:`capture_common` returned in place."""
    _check_alike(agent, data)
    _check_precision(agent, data, {})
    _restore_common(agent, data)


def _check_alike(agent: RPPSAC | RPPPPO, data: dict[str, Any]) -> None:
    if data.get("format") != FORMAT:
        raise ValueError(f"the agent's state has format {data.get('format')!r}, this version reads {FORMAT}")
    if agent.env is not None and data["envs"] is None:  # an earlier version could not capture it
        agent.fresh_episodes = True
    if agent.env is None and data["envs"] is not None:
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
    for name, value in () if agent.fresh_episodes else data["observed"].items():
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
