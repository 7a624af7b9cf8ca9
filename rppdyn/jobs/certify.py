"""`rppdyn certify` and `rppdyn audit`: symmetries and hand-written maps, checked in the simulator from mirrored states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path

from rppdyn.envs import (
    Certificate,
    SymmetrySpec,
    certify,
    compiled_terms,
    diagnose,
    file_spec,
    find_fault,
    read_episodes,
    save_certificate,
    symmetry_spec,
)
from rppdyn.envs._catalogue import read_spec
from rppdyn.envs.certification._doctor import Diagnosis
from rppdyn.envs.certification._faults import FaultReport
from rppdyn.envs.terms import Audit, CompiledTerms, read_terms
from rppdyn.envs.terms import audit as terms_audit
from rppdyn.jobs.config.base import ConfigError, refuse
from rppdyn.jobs.config.command import AuditConfig, CertifyConfig
from rppdyn.jobs.loading import load_function
from rppdyn.runs.files import write_json, write_measured

MAX_RANKING_STATES = 100  # from which each repaired model is stepped
MAX_LOG_TRANSITIONS = 400  # of a log that are compared with the model


def run(config: CertifyConfig, progress: bool = False) -> Certificate:
    """Certify a symmetry spec; the certificate is cached, and written to the files in the configuration."""
    spec = None  # all derived symmetries
    if config.spec is not None:
        spec = file_spec(config.what, config.spec, symmetry=config.symmetry)
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
    """Rank the causes of a broken symmetry by their effect on the motion."""
    return diagnose(config.what, config.symmetry, n_states=min(config.states, MAX_RANKING_STATES), seed=config.seed)


def find(config: CertifyConfig) -> FaultReport:
    """Find the faulty part in logged transitions, and write the report to the file in the configuration."""
    assert config.log is not None
    env_id = None if config.is_model_file else config.what
    episodes = read_episodes(config.log, env_id=env_id, trust=config.trust).episodes
    report = find_fault(config.what, episodes, n_states=min(config.states, MAX_LOG_TRANSITIONS), seed=config.seed)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        fault = None if report.fault is None else f"{report.fault.part}: {report.fault.parameter}"
        files[config.json] = lambda path: write_json(path, asdict(report) | {"fault": fault})
    write_measured(report, files)
    return report


def _compile_terms(config: AuditConfig, contract: SymmetrySpec | None) -> CompiledTerms:
    """Compile the terms of a file or a contract for the model.

    Raises:
        ValueError: the model does not have these terms, or has another symmetry than the contract.
    """
    assert config.model is not None
    terms = read_terms(config.observation) if contract is None else dict(contract.terms or {})
    if config.symmetry is not None:
        terms["symmetry"] = config.symmetry
    compiled = compiled_terms(config.model, **terms)
    if contract is not None:
        present = replace(compiled.spec, env_id=contract.env_id, symmetries=contract.symmetries)
        if present.digest != contract.digest:
            tables = ([" ".join(line.split()) for line in spec.table().splitlines()] for spec in (contract, present))
            changed = [pair for pair in zip_longest(*tables, fillvalue="nothing") if pair[0] != pair[1]]
            change = "{!r} is {!r} there".format(*changed[0]) if changed else "its states move otherwise"
            raise ConfigError(
                f"{config.observation} is no contract of {config.model}: {change}; export one that was trained on it"
            )
    return compiled


def audit(config: AuditConfig) -> Audit:
    """Audit a function, and write the audit to the file in the configuration.

    Raises:
        ValueError: the model, the file of terms, the contract, the symmetry or the function is missing, or the function raises
            or is not affine.
        UnwrittenError: the file can't be written; the error carries the audit.
    """
    contract = read_spec(config.observation) if config.is_contract else None
    if contract is not None and (config.model is None or contract.terms is None):
        refuse({"--model": config.model}, f"{config.observation} lists no terms to observe it by; leave it out")
        right: CompiledTerms | SymmetrySpec = contract
    else:
        right = _compile_terms(config, contract)
    function = load_function(config.what)
    actions = None if config.actions is None else load_function(config.actions)
    result = terms_audit(function, right, actions=actions, states=config.states, seed=config.seed, name=config.what)
    files: dict[str, Callable[[Path], object]] = {}
    if config.json is not None:
        files[config.json] = lambda path: write_json(path, result.to_dict())
    write_measured(result, files)
    return result
