"""What can be configured: the schema of each verb, where its files are, and its keys and choices."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any, TypeGuard, get_args, get_type_hints

from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.bound import BoundImageConfig, BoundRegressionConfig
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.jobs.config.run import RunConfig
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig
from rppdyn.jobs.config.transition import FitTransitionConfig

SCHEMAS: dict[str, type[RunConfig]] = {
    "train_agent": TrainAgentConfig,
    "fit_regression": FitRegressionConfig,
    "fit_dynamics": FitDynamicsConfig,
    "fit_trajectories": FitTrajectoriesConfig,
    "fit_transition": FitTransitionConfig,
    "fit_image": FitImageConfig,
    "bound_regression": BoundRegressionConfig,  # after the fits, whose keys it has, too: name_of_run takes the first of several
    "bound_image": BoundImageConfig,
}
CONFIGS = {  # where each configuration and its groups are
    "train_agent": "rppdyn.configs",
    "fit_regression": "rppdyn.configs.fit_regression",
    "fit_dynamics": "rppdyn.configs.fit_dynamics",
    "fit_trajectories": "rppdyn.configs.fit_trajectories",
    "fit_transition": "rppdyn.configs.fit_transition",
    "fit_image": "rppdyn.configs.fit_image",
    "bound_regression": "rppdyn.configs.fit_regression",
    "bound_image": "rppdyn.configs.fit_image",
}


def name_of(config: Any) -> str:
    """The name of the configuration that a dataclass is of."""
    return next(name for name, schema in SCHEMAS.items() if type(config) is schema)


def choices(group: str, name: str = "train_agent") -> list[str]:
    """The choices of a group of the configuration `name`: the names of the YAML files in its folder."""
    folder = resources.files(CONFIGS[name]).joinpath(group)
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def known_keys(schema: type, prefix: str = "") -> list[str]:
    """The dotted keys of a configuration dataclass."""
    keys: list[str] = []
    for name, kind in kinds_of(schema).items():
        keys += known_keys(kind, f"{prefix}{name}.") if is_section(kind) else [f"{prefix}{name}"]
    return keys


def kinds_of(schema: type) -> dict[str, Any]:
    """The type of each field of a configuration dataclass."""
    hints = get_type_hints(schema)
    return {item.name: hints[item.name] for item in fields(schema)}


def takes_null(key: str, name: str) -> bool:
    """Whether a dotted key of the configuration `name` may be null."""
    kind: Any = SCHEMAS[name]
    for part in key.split("."):
        kind = kinds_of(kind).get(part) if is_section(kind) else None
    return type(None) in get_args(kind)


def is_section(kind: Any) -> TypeGuard[type]:
    return is_dataclass(kind)


def open_keys(schema: type, prefix: str = "") -> list[str]:
    """The dotted keys whose values are dictionaries with names of the user's own."""
    keys: list[str] = []
    for name, kind in kinds_of(schema).items():
        if is_section(kind):
            keys += open_keys(kind, f"{prefix}{name}.")
        elif getattr(kind, "__origin__", None) is dict:
            keys.append(f"{prefix}{name}")
    return keys


def groups(name: str) -> list[str]:
    """The keys that are chosen by name, and the group of experiments where there is one."""
    keys = [key for key, kind in kinds_of(SCHEMAS[name]).items() if is_section(kind)]
    return [key for key in (*keys, "experiment") if choices(key, name)]
