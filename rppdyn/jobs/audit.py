"""`rppdyn audit`: somebody's map of observations and actions, against the one that is derived and against the simulator.

A file of its own, as every verb has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rppdyn.envs import compiled_terms
from rppdyn.envs.making import is_model_file
from rppdyn.envs.terms import Audit, audit, read_terms
from rppdyn.jobs.config.command import AuditConfig
from rppdyn.jobs.loading import load_function
from rppdyn.runs.files import write_json, write_measured


def run(config: AuditConfig, progress: bool = False) -> Audit:
    """The audit of a function; written to the file that the configuration names.

    Raises:
        ValueError: no such model, file of terms, symmetry or function; or the function raises or is no affine map.
        UnwrittenError: a file can't be written; it has the audit.
    """
    terms = read_terms(config.observation)
    if config.symmetry is not None:
        terms["symmetry"] = config.symmetry
    if is_model_file(config.model):
        compiled = compiled_terms(config.model, **terms)
    else:
        from rppdyn.envs.making import stock_env

        env = stock_env(config.model, disable_env_checker=True)
        compiled = compiled_terms(env, **terms)
        env.close()
    function = load_function(config.what)
    actions = None if config.actions is None else load_function(config.actions)
    found = audit(function, compiled, actions=actions, states=config.states, seed=config.seed, name=config.what)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        files[config.json] = lambda path: write_json(path, found.to_dict())
    write_measured(found, files)
    return found
