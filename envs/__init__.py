"""Tasks and their symmetries: symmetry specs, their certification in the simulator, and resumable environments.

    spec = symmetry_spec("Walker2d-v5")
    print(spec.table())                  # index, name, unit and transformation of every entry
    print(certify("Walker2d-v5").table())
    legs = without(spec, "foot_joint")   # a partial symmetry: what is named is left free
    env = make_env("Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    state = capture_state(env); restore_state(env, state)
    gymnasium.make("rppdyn/WindyPendulum-v0", wind=0.02)   # and others whose symmetry one number breaks, rppdyn.envs.KNOBS

Errors are `ValueError`s of one line.
"""

from __future__ import annotations

if __name__ != "rppdyn.envs":
    raise ImportError(f"this folder is imported as rppdyn.envs, not as {__name__!r}; write `import rppdyn.envs`")

import gymnasium as gym

from rppdyn.envs.approximate import CURRENT_SWIMMER, KNOBS, TILTED_REACHER, CurrentSwimmer, TiltedReacher
from rppdyn.envs.catalogue import (
    KNOWN_ENVIRONMENTS,
    compiled_terms,
    file_spec,
    symmetry_choices,
    symmetry_spec,
    terms_spec,
)
from rppdyn.envs.certification.certificate import (
    Certificate,
    CertifiedShare,
    Defect,
    GeneratorReport,
    Support,
    share_of,
)
from rppdyn.envs.certification.certify import certified_share, certify
from rppdyn.envs.certification.doctor import Diagnosis, Finding, diagnose
from rppdyn.envs.certification.faults import FaultReport, Suspect, find_fault
from rppdyn.envs.certification.store import certificate_for, find_certificate, save_certificate
from rppdyn.envs.episodes import Episode, EpisodeDataset, read_episodes, write_episodes
from rppdyn.envs.making import ScaledActuators, make_env
from rppdyn.envs.mirror import group_spec, mirror_spec, plain_spec, without
from rppdyn.envs.spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.envs.state import Resumable, capture_state, restore_state, why_not_capturable
from rppdyn.envs.terms import CompiledTerms
from rppdyn.envs.windy_pendulum import EPISODE_STEPS, WINDY_PENDULUM, WindyPendulum
from rppdyn.envs.wrappers import dictionary_of, flat_names, flattened, unflattening

for _id, _class, _steps in (
    (WINDY_PENDULUM, "windy_pendulum:WindyPendulum", EPISODE_STEPS),
    (TILTED_REACHER, "approximate:TiltedReacher", 50),
    (CURRENT_SWIMMER, "approximate:CurrentSwimmer", 1000),
):
    if _id not in gym.registry:
        gym.register(_id, f"rppdyn.envs.{_class}", max_episode_steps=_steps)

__all__ = [
    "FaultReport", "Suspect", "find_fault", "CURRENT_SWIMMER", "KNOBS", "KNOWN_ENVIRONMENTS",
    "Certificate", "CertifiedShare", "CompiledTerms", "CurrentSwimmer", "Defect", "Diagnosis",
    "Entry", "Episode", "EpisodeDataset", "Finding", "GeneratorReport", "Resumable", "ScaledActuators", "Space",
    "Symmetry", "Support", "SymmetrySpec", "TILTED_REACHER", "TiltedReacher",
    "WINDY_PENDULUM", "WindyPendulum", "capture_state", "dictionary_of", "file_spec", "flat_names", "flattened",
    "plain_spec", "unflattening", "why_not_capturable", "certificate_for", "certified_share", "certify", "diagnose",
    "compiled_terms", "find_certificate", "group_spec", "make_env", "mirror_spec",
    "read_episodes", "restore_state", "save_certificate", "share_of",
    "symmetry_choices", "symmetry_spec", "terms_spec", "without", "write_episodes",
]  # fmt: skip
