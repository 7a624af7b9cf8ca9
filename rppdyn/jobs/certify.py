"""`rppdyn certify`: an environment's symmetries, checked by stepping the simulator from mirrored states."""

from __future__ import annotations

from pathlib import Path

from rppdyn.envs import Certificate, certify
from rppdyn.jobs.schema import CertifyConfig
from rppdyn.runs.files import write_json


def run(config: CertifyConfig) -> Certificate:
    """The certificate of an environment's symmetry spec; written to `config.json` too, if that is given.

    Raises:
        ValueError: the environment is unknown or has no spec.
    """
    certificate = certify(config.env, n_states=config.states, seed=config.seed)
    if config.json is not None:
        Path(config.json).parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(config.json), certificate.to_dict())
    return certificate
