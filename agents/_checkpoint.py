"""The state of an agent in training as plain data, for runs that continue bit-identically; and checks of saved agents."""

from __future__ import annotations

import copy
import pathlib
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rppdyn.envs import capture_state, restore_state
from rppdyn.runs.workers import RandomStates

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from rppdyn.agents._base import SymmetricAgent

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
FINITE_KEYS = ("parameters", "variables", "observed", "replay")
"""Keys of a captured state whose numbers must be finite: weights, observations and transitions."""
OBSERVATION_ATTRIBUTES = ("_last_obs", "_last_original_obs", "_last_episode_starts", "_discounted_returns")


def capture(agent: SymmetricAgent) -> dict[str, Any]:
    """Capture an agent's state, see `SymmetricAgent.capture`."""
    _, variables = agent._get_torch_save_params()
    algorithm = agent._capture_algorithm()
    random = {
        **{name: plain(state) for name, state in RandomStates.capture()._asdict().items()},
        "action_space": plain(agent.action_space.np_random.bit_generator.state),
        **algorithm.pop("random", {}),
    }
    fresh = agent.fresh_episodes
    data = {
        "format": FORMAT,
        "identity": plain(agent.identity()),
        "parameters": plain(agent.get_parameters()),
        "variables": {name: getattr(agent, name).detach().clone() for name in variables},
        "counters": {name: getattr(agent, name) for name in COUNTERS if hasattr(agent, name)},
        "observed": {} if fresh else {n: plain(getattr(agent, n)) for n in OBSERVATION_ATTRIBUTES if hasattr(agent, n)},
        "episodes": {name: plain(getattr(agent, name)) for name in ("ep_info_buffer", "ep_success_buffer")},
        "random": random,
        "log": _unwritten_log(agent),
        "envs": None if agent.env is None or fresh else _pack_tensors(plain(capture_state(agent.env))),
        **algorithm,
    }
    agent.check_finite({name: data[name] for name in FINITE_KEYS if name in data})
    return data


@torch.no_grad()
def restore(agent: SymmetricAgent, data: dict[str, Any]) -> None:
    """Restore an agent's state, see `SymmetricAgent.restore`."""
    _check_identity(agent, data)
    for name, value in data.get("variables", {}).items():
        getattr(agent, name).copy_(value)
    agent._restore_algorithm(data)
    agent.set_parameters(copy.deepcopy(data["parameters"]), exact_match=True, device=agent.device)
    for name, value in data["counters"].items():
        setattr(agent, name, value)
    for name, value in () if agent.fresh_episodes else data["observed"].items():
        setattr(agent, name, arrays(value))
    for name, value in data["episodes"].items():
        setattr(agent, name, None if value is None else deque(value, maxlen=agent._stats_window_size))
    agent._pending_log = dict(data["log"])
    if agent.env is not None and not agent.fresh_episodes:
        restore_state(agent.env, arrays(data["envs"]))
        agent.env._reset_seeds()  # drops the seeds for the first reset, which is past
        agent.env._reset_options()
    states = data["random"]
    agent.action_space.np_random.bit_generator.state = arrays(states["action_space"])
    version, internal, gauss = states["python"]
    RandomStates((version, tuple(internal), gauss), arrays(states["numpy"]), states["torch"]).restore()


def _check_identity(agent: SymmetricAgent, data: dict[str, Any]) -> None:
    """Refuse the state of another agent, before any of it is restored."""
    if data.get("format") != FORMAT:
        raise ValueError(f"the agent's state has format {data.get('format')!r}, this version reads {FORMAT}")
    if agent.env is not None and data["envs"] is None:  # an earlier version could not capture it
        agent.fresh_episodes = True
    if agent.env is None and data["envs"] is not None:
        raise ValueError("one of the captured and this agent has an environment and the other none; build both alike")
    for key, value in agent.identity().items():
        if (other := data["identity"].get(key)) != value:
            raise ValueError(f"the state was captured from an agent with {key}={other}, this one has {value}")
    _, variables = agent._get_torch_save_params()
    captured = data.get("variables", {})
    if set(captured) != set(variables):
        states = ("learned", "fixed") if "log_ent_coef" in captured else ("fixed", "learned")
        raise ValueError(
            f"the state was captured from an agent with a {states[0]} temperature, this one's is {states[1]} (ent_coef)"
        )
    tensors = data["parameters"]["policy"] | captured
    for name, value in (dict(agent.policy.named_parameters()) | {n: getattr(agent, n) for n in variables}).items():
        if tensors[name].dtype != value.dtype:
            raise ValueError(
                f"the state was captured from an agent with {name} in {tensors[name].dtype}, this one's is in {value.dtype}: "
                "cast agent.policy and agent.log_ent_coef.data before restore"
            )


def _unwritten_log(agent: SymmetricAgent) -> dict[str, list]:
    logger = getattr(agent, "_logger", None)
    if logger is None:
        return dict(agent._pending_log)
    agent.record_updates()
    entries = {}
    for name, value in logger.name_to_value.items():
        if isinstance(value, (bool, int, float, str, np.number)):
            exclude = logger.name_to_excluded.get(name) or ()
            entries[name] = [plain(value), [exclude] if isinstance(exclude, str) else list(exclude)]
    return entries


def plain(value: Any) -> Any:
    """A copy that `torch.load(weights_only=True)` can read: arrays become tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} is no plain data and can't be kept in a checkpoint")


def _pack_tensors(value: Any) -> Any:
    """Make the tensors in nested data views of one tensor per dtype: `torch.save` takes long for each storage."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    for dtype in {tensor.dtype for tensor in tensors}:
        group = [tensor for tensor in tensors if tensor.dtype == dtype]
        packed = torch.cat([tensor.flatten() for tensor in group])
        for tensor, part in zip(group, packed.split([tensor.numel() for tensor in group]), strict=True):
            tensor.data = part.view(tensor.shape)
    return value


def arrays(value: Any) -> Any:
    """The inverse of `plain`: nested data with tensors as arrays again."""
    return tree_map(lambda leaf: leaf.numpy().copy() if isinstance(leaf, Tensor) else leaf, value)


@contextmanager
def explain_load_errors(path: Any, kind: type[BaseAlgorithm], options: Mapping[str, Any]) -> Iterator[None]:
    """Explain why stable-baselines3 fails to load a saved agent inside the block.

    Args:
        options: settings that replace saved ones.
    Raises:
        ValueError: a truncated file, or one that another class has saved; a temperature that is learned where the saved one is
            fixed, or the reverse; weights of another layout.
    """
    if isinstance(path, (str, pathlib.Path)):
        _check_archive(pathlib.Path(path))
    try:
        yield
    except (KeyError, AttributeError) as error:
        first = error.__context__
        if isinstance(first, ValueError) and not str(first).startswith("Names of parameters"):
            raise first from None  # stable-baselines3 took the error for one of an older file
        # KeyError for a missing entry, AttributeError for an optimiser of the temperature that only the file has
        if "ent_coef" in options:
            raise ValueError(
                f"{path} can't be loaded with ent_coef={options['ent_coef']!r}: its temperature is saved as one that is "
                "learned, or as one that is fixed, and stays so; leave ent_coef out"
            ) from error
        if isinstance(error, AttributeError):
            raise
        raise ValueError(
            f"{path} has no {error}: it is no agent of {kind.__name__}, to be loaded by the class that saved it, or "
            "was saved without (exclude=)"
        ) from error


def _check_archive(path: pathlib.Path) -> None:
    """Refuse a truncated file. Stable-baselines3 would open one that ends inside a nested archive."""
    path = path if path.exists() else path.with_name(f"{path.name}.zip")
    if not path.exists():
        return  # stable-baselines3 raises the error
    try:
        with zipfile.ZipFile(path) as archive:
            is_whole = {"data", "policy.pth"} <= set(archive.namelist()) and archive.testzip() is None
    except zipfile.BadZipFile:
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is truncated or not an agent written by save(); load another copy")
