"""Schemas of the verbs: their files and choices, and messages for words that Hydra refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.base import RunConfig
from rppdyn.jobs.config.bound import BoundImageConfig, BoundRegressionConfig
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig, FitTransitionConfig
from rppdyn.settings import ConfigError, did_you_mean, fields_of, section_of

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


def groups(name: str) -> list[str]:
    """The keys that are chosen by name, and the group of experiments where there is one."""
    keys = [key for key, item in fields_of(SCHEMAS[name]).items() if section_of(item.annotation)]
    return [key for key in (*keys, "experiment") if choices(key, name)]


# -- what Hydra and OmegaConf complain of, in one line that names the remedy -------------------------------------------

LAUNCHERS = {  # of sweeps, and what installs them
    "joblib": "hydra-joblib-launcher",
    "submitit": "hydra-submitit-launcher",
    "ray": "ray, then pip install --no-deps hydra-ray-launcher",  # its pin of cloudpickle excludes gymnasium's
}


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into one line."""
    try:
        yield
    except ConfigError:
        raise
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        raise ConfigError(_missing(group, choice, name)) from error
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        first = (str(error).strip().splitlines() or ["leave out one override after the other"])[0]
        raise ConfigError(f"the overrides can't be used: {first}") from error


def _missing(group: str, choice: str, name: str) -> str:
    """Return the message for a choice that does not exist."""
    if not group.startswith("hydra/"):
        known = choices(group, name)
        return f"{group}={choice}: no such choice{did_you_mean(choice, known)}; choose one of {', '.join(known)}"
    plugin = LAUNCHERS.get(choice.partition("_")[0])
    if group == "hydra/sweeper":
        remedy = "pip install 'rppdyn[optuna]'" if choice == "optuna" else "known are basic and optuna"
    else:
        remedy = f"pip install {plugin}" if plugin else f"known are {', '.join(LAUNCHERS)}"
    return f"{group}={choice}: not installed; {remedy}, or leave it out"
