"""Trained agents that come with the package: weights as safetensors, what they were trained by, and what they reach.

A file holds tensors alone, and its card as JSON in the file's header; nothing in it is a pickle. `manifest.json` beside the
files has the SHA-256 of each, and a file that differs is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rppdyn.agents.policy import RPPPolicy
from rppdyn.envs import SymmetrySpec, make_env

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import GymEnv

    from rppdyn.agents.sac import RPPSAC

FOLDER = Path(str(resources.files("rppdyn.agents"))) / "weights"
MANIFEST = "manifest.json"

FORMAT = 1
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
