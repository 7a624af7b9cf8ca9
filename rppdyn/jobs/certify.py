"""`rppdyn certify` and `rppdyn audit`: symmetries, and maps written by hand, checked in the simulator from mirrored states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from rppdyn.envs import (
    Certificate,
    certify,
    compiled_terms,
    diagnose,
    file_spec,
    find_fault,
    read_episodes,
    save_certificate,
    symmetry_spec,
)
from rppdyn.envs.certification.doctor import Diagnosis
from rppdyn.envs.certification.faults import FaultReport
from rppdyn.envs.making import is_model_file, load_model, stock_env
from rppdyn.envs.terms import Audit, read_terms
from rppdyn.envs.terms import audit as terms_audit
from rppdyn.jobs.config.command import AuditConfig, CertifyConfig
from rppdyn.jobs.loading import load_function
from rppdyn.runs.files import write_json, write_measured

MAX_RANKING_STATES = 100  # states at most, from which each repaired model is stepped
MAX_LOG_TRANSITIONS = 400  # transitions at most, of a log


def run(config: CertifyConfig, progress: bool = False) -> Certificate:
    """The certificate of a symmetry spec; kept in the user's cache, and written to the files that the configuration names.

    Raises:
        ValueError: the environment or file is unknown or unreadable, has no such symmetry, or its observation can't be
            explained.
        UnwrittenError: a file can't be written; it has the certificate.
    """
    if config.figure is not None:
        from rppdyn.envs.certification.figure import picture_format  # with matplotlib, which takes a second

        picture_format(Path(config.figure))  # before the work
    spec = None  # every symmetry that is found
    if config.spec is not None:
        with closing(stock_env(config.what, disable_env_checker=True)) as env:
            spec = file_spec(env, config.spec, symmetry=config.symmetry)
    elif config.symmetry is not None or config.variant != "derived":
        spec = symmetry_spec(config.what, symmetry=config.symmetry, variant=config.variant)
    certificate = certify(
        config.what,
        spec,
        n_states=config.states,
        seed=config.seed,
        solver=config.solver,
        control_scale=config.control_scale,
        progress=progress,
    )
    save_certificate(certificate)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        files[config.json] = lambda path: write_json(path, certificate.to_dict())
    if config.figure is not None:
        files[config.figure] = certificate.figure
    write_measured(certificate, files)
    return certificate


def rank(config: CertifyConfig) -> Diagnosis:
    """Rank what breaks the symmetry by its effect on motion.

    Raises:
        ValueError: no discrete symmetry of the model deviates.
    """
    return diagnose(config.what, config.symmetry, n_states=min(config.states, MAX_RANKING_STATES), seed=config.seed)


def find(config: CertifyConfig) -> FaultReport:
    """The part that is at fault in logged transitions; written to the file that the configuration names.

    Raises:
        ValueError: no such dataset, or one that can't be compared with the model.
        UnwrittenError: a file can't be written; it has the report.
    """
    assert config.log is not None
    env_id = None if config.is_model_file else config.what
    episodes = read_episodes(config.log, env_id=env_id, trust=config.trust).episodes
    model = load_model(config.what) if config.is_model_file else config.what
    found = find_fault(model, episodes, n_states=min(config.states, MAX_LOG_TRANSITIONS), seed=config.seed)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        files[config.json] = lambda path: write_json(path, asdict(found) | {"fault": _fault(found)})
    write_measured(found, files)
    return found


def _fault(report: FaultReport) -> str | None:
    return None if report.fault is None else f"{report.fault.part}: {report.fault.parameter}"


def audit(config: AuditConfig) -> Audit:
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
        with closing(stock_env(config.model, disable_env_checker=True)) as env:
            compiled = compiled_terms(env, **terms)
    function = load_function(config.what)
    actions = None if config.actions is None else load_function(config.actions)
    result = terms_audit(function, compiled, actions=actions, states=config.states, seed=config.seed, name=config.what)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        files[config.json] = lambda path: write_json(path, result.to_dict())
    write_measured(result, files)
    return result
