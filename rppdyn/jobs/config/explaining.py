"""What Hydra and OmegaConf complain of, in one line that names the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from rppdyn.jobs.config.checks import ConfigError, did_you_mean
from rppdyn.jobs.config.schemas import SCHEMAS, choices, groups, kind_of, known_keys

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
    """What to say of a choice that there is not."""
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
    """What to say of a key that a configuration lacks."""
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
