"""Schemas of the verbs: files, keys, help and choices, and messages for words that are none of them."""

from __future__ import annotations

import ast
import difflib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeGuard, get_args, get_type_hints

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError, RunConfig, did_you_mean
from rppdyn.jobs.config.bound import BoundImageConfig, BoundRegressionConfig
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig
from rppdyn.jobs.config.image import FitImageConfig
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig, FitTransitionConfig

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


@cache
def kinds_of(schema: type) -> dict[str, Any]:
    """The type of each field of a configuration dataclass."""
    hints = get_type_hints(schema)
    return {item.name: hints[item.name] for item in fields(schema)}


def kind_of(key: str, name: str) -> Any:
    """The type of a dotted key of a configuration, or of an entry of a list or a dictionary; None where there is none."""
    kind: Any = SCHEMAS[name]
    for part in re.split(r"[.\[]", key):
        section = next((each for each in (kind, *get_args(kind)) if is_section(each)), None)
        kind = kinds_of(section).get(part) if section is not None else next(reversed(get_args(kind)), None)
    return kind


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


def help_of(schema: type, prefix: str = "") -> dict[str, str]:
    """A line of help for each dotted key: the comment beside its field, or above it; "" where there is none."""
    found: dict[str, str] = {}
    own = _comments_of(schema)
    for name, kind in kinds_of(schema).items():
        section = next((part for part in (kind, *get_args(kind)) if is_section(part)), None)
        if section is None:
            found[f"{prefix}{name}"] = own.get(name, "")
        else:
            found |= help_of(section, f"{prefix}{name}.")
    return found


@cache
def _comments_of(schema: type) -> dict[str, str]:
    """Comments of a dataclass's fields and of those that it inherits; of fields that are made, their metadata."""
    found = {item.name: str(item.metadata["help"]) for item in fields(schema) if "help" in item.metadata}
    for kind in reversed(schema.__mro__):
        if (
            "__dataclass_fields__" in vars(kind) and kind.__module__ != "types"
        ):  # made by make_dataclass, without a source
            found |= {name: text for name, text in _own_comments(kind).items() if text or name not in found}
    return found


def _own_comments(kind: Any) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {number for number in comments if source.splitlines()[number - 1].lstrip().startswith("#")}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for item in definition.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            last = item.end_lineno or item.lineno
            lines = [comments[n] for n in range(item.lineno, last + 1) if n in comments]
            above: list[str] = []
            number = item.lineno - 1
            while not lines and number in alone:
                above.insert(0, comments[number])
                number -= 1
            found[item.target.id] = " ".join(lines or above)
    return found


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
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error, name)) from error
    except AssertionError as error:  # of OmegaConf, on a key below something that holds none
        raise ConfigError(
            f"the overrides can't be used ({_first_line(str(error))}): leave out one after the other"
        ) from error


def _explain(error: Exception, name: str) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return _missing(group, choice, name)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    key = getattr(cause, "full_key", None)
    if not isinstance(cause, OmegaConfBaseException) or not key:
        return _first_line(str(error))
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key, name)
    if not isinstance(cause, ValidationError):
        return f"{key}: {_first_line(str(cause))}"
    if cause.value is None:
        return f"{key}=null: can't be null; leave the override out for the default"
    kind = kind_of(key, name)
    takes_null = type(None) in get_args(kind)
    wanted = next((text for each, text in WANTED.items() if each in (get_args(kind) if takes_null else [kind])), None)
    if wanted is None:
        return f"{key}={cause.value}: {_first_line(str(cause))}"
    return f"{key}={cause.value}: {wanted}{', or null' * takes_null}"


WANTED = {
    bool: "must be true or false",
    int: "must be an integer, written without exponent",
    float: "must be a number",
}


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


def unknown_key(key: str, configuration: str) -> str:
    """Return the message for a key that a configuration lacks."""
    known = known_keys(SCHEMAS[configuration])
    # The right name in another group or in none.
    last = {name.rpartition(".")[2]: name for name in known}
    name = key.rpartition(".")[2]
    if name in last:
        hint = f" (did you mean {last[name]!r}?)"
    else:
        choosable = [] if "." in key else groups(configuration)
        hint = did_you_mean(key, [*known, *choosable], cutoff=0.75)
        if not hint:
            close = difflib.get_close_matches(name, last, n=1, cutoff=0.75)
            hint = f" (did you mean {last[close[0]]!r}?)" if close else ""
    return f"unknown key {key!r}{hint}; `rppdyn {SCHEMAS[configuration].verb} --help` lists the keys"


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0] if text.strip() else "can't be used"
