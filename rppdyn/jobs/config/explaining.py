"""What Hydra and OmegaConf complain of, in one line that names the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from rppdyn.jobs.config.checks import ConfigError, did_you_mean
from rppdyn.jobs.config.schemas import SCHEMAS, choices, groups, known_keys, takes_null

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
    text = str(error)
    cause = str(error.__cause__ or "")
    match = re.search(r"Could not (?:find|load) '([^']+)/([^/']*)'", text)
    if match:
        group, choice = match.groups()
        if group.startswith("hydra/"):
            plugin = LAUNCHERS.get(choice.partition("_")[0])
            if group == "hydra/sweeper":
                remedy = "pip install 'rppdyn[optuna]'" if choice == "optuna" else "known are basic and optuna"
                return f"{group}={choice}: not installed; {remedy}, or leave it out"
            remedy = f"pip install {plugin}" if plugin else f"known are {', '.join(LAUNCHERS)}"
            return f"{group}={choice}: not installed; {remedy}, or leave it out"
        known = choices(group, name)
        return f"{group}={choice}: no such choice{did_you_mean(choice, known)}; choose one of {', '.join(known)}"
    match = re.search(r"Could not override '([^']+)'", text)
    if match:
        return unknown_key(match[1].split("@")[0], name)
    match = re.search(r"Error merging override ([^\n]*)", text)
    if match:
        word = match[1].lstrip("+")
        wanted = _wanted(cause)
        null = ", or null" if wanted.startswith("must be") and takes_null(word.partition("=")[0], name) else ""
        return f"{word}: {wanted}{null}"
    match = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if match:
        if match[1].startswith("seeds="):
            return f"{match[1]}: give their number, such as seeds=3, or seed=0,1,2 with --multirun"
        return f"{match[1]}: several values; add --multirun to run each, or write [a,b] for a list"
    full_key = re.search(r"full_key: (\S+)", text)
    where = f"{full_key[1]}: " if full_key else ""
    return where + _first_line(text)


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


def _wanted(complaint: str) -> str:
    """What OmegaConf wanted instead, in plain words."""
    for found, words in (
        ("converted to Float", "must be a number"),
        ("converted to Integer", "must be an integer, written without exponent"),
        ("converted to Boolean", "must be true or false"),
        ("is not a valid bool", "must be true or false"),
        ("is not Optional", "can't be null; leave the override out for the default"),
    ):
        if found in complaint:
            return words
    return _first_line(complaint)


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0] if text.strip() else "can't be used"
