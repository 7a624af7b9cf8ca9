"""What tells runs apart: the values of their configurations that differ, in the words of a legend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rppdyn.jobs.config.agent import FORMER_KEYS

__all__ = ["AGENTS", "MODEL", "agent_of", "flattened", "model_of", "setting", "value_of"]

MODEL = "agent.imagination"
"""An agent's model of its environment; null where it has none."""
AGENTS = {"mbpo": MODEL, "ppo": "agent.ppo"}
"""What agents other than soft actor-critic have of their own."""
IGNORED = (
    "seed",
    "seeds",
    "total_steps",
    "checkpoint_every",
    "run_dir",
    "runs_root",
    "threads",
    "device",
    *FORMER_KEYS,
)
"""Keys that don't tell runs apart: seeds, lengths and folders."""


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration's values by dotted key, without those that don't tell runs apart (`IGNORED`)."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{name}.")
        elif name not in IGNORED and value != {}:
            flat[name] = value
    return flat


def model_of(config: Mapping[str, Any]) -> str:
    """The model of a flattened configuration, as :data:`rppdyn.runs.figures.MODEL_COLOURS` calls it."""
    published = ", published" if "published" in (config.get("variant"), config.get("env.variant")) else ""
    augmented = ", augmented" if config.get("agent.augment") or config.get("task.augment") else ""
    return f"{config.get('model.kind')}{published}{augmented}"


def agent_of(config: Mapping[str, Any]) -> str:
    """The agent of a flattened configuration: "sac", "mbpo" or "ppo"."""
    return next((name for name, part in AGENTS.items() if any(key.startswith(f"{part}.") for key in config)), "sac")


def setting(key: str, value: Any) -> str:
    """A setting in a name: `leg_joint=0.5`; of what is switched on its name alone, of what is off nothing."""
    name = key.removeprefix("agent.") if key.startswith(MODEL) else key.rpartition(".")[2]
    if isinstance(value, bool):
        return name if value else ""
    return f"{name}={value}"


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """A value of a flattened configuration; of actuators and options of an environment that are as they come, "stock"."""
    return config.get(key, "stock" if key.startswith(("env.actuator_scale.", "env.kwargs.")) else None)
