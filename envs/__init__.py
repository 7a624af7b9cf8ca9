"""Tasks and their symmetries: symmetry specs, their certification in the simulator, and resumable environments.

    spec = symmetry_spec("Walker2d-v5")
    print(spec.table())                  # index, name, unit and transformation of every entry
    print(certify("Walker2d-v5").table())
    legs = without(spec, "foot_joint")   # a partial symmetry: what is named is left free
    env = make_env("Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    state = capture_state(env); restore_state(env, state)
    gymnasium.make("rppdyn/WindyPendulum-v0", wind=0.02)   # one number breaks its symmetry; more in rppdyn.envs.approximate

Errors are `ValueError`s of one line.
"""

from __future__ import annotations

if __name__ != "rppdyn.envs":
    raise ImportError(f"this folder is imported as rppdyn.envs, not as {__name__!r}; write `import rppdyn.envs`")

from importlib import import_module
from typing import Any

import gymnasium as gym

from rppdyn.envs import planar
from rppdyn.envs._catalogue import compiled_terms, file_spec, symmetry_spec
from rppdyn.envs._episodes import Episode, read_episodes, write_episodes
from rppdyn.envs._making import make_env
from rppdyn.envs._mirror import group_spec, mirror_spec, without
from rppdyn.envs._spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.envs._state import capture_state, restore_state
from rppdyn.envs.approximate import CURRENT_SWIMMER, HEADING_ANT, TILTED_REACHER
from rppdyn.envs.certification._certificate import Certificate, certificate_for, save_certificate
from rppdyn.envs.certification._certify import certified_share, certify
from rppdyn.envs.certification._doctor import diagnose
from rppdyn.envs.certification._faults import find_fault
from rppdyn.envs.planar import NAVIGATION, SWARM
from rppdyn.envs.windy_pendulum import EPISODE_STEPS, WINDY_PENDULUM

for _id, _class, _steps in (
    (WINDY_PENDULUM, "windy_pendulum:WindyPendulum", EPISODE_STEPS),
    (TILTED_REACHER, "approximate:TiltedReacher", 50),
    (CURRENT_SWIMMER, "approximate:CurrentSwimmer", 1000),
    (HEADING_ANT, "approximate:HeadingAnt", 100),
    (NAVIGATION, "planar:Navigation", planar.EPISODE_STEPS),
    (SWARM, "planar:Swarm", planar.EPISODE_STEPS),
):
    if _id not in gym.registry:
        gym.register(_id, f"rppdyn.envs.{_class}", max_episode_steps=_steps)

__all__ = [
    "symmetry_spec", "SymmetrySpec", "Space", "Entry", "Symmetry", "mirror_spec", "group_spec", "file_spec", "without",
    "compiled_terms", "certify", "Certificate", "certified_share", "certificate_for", "save_certificate", "diagnose",
    "find_fault", "make_env", "capture_state", "restore_state", "Episode", "read_episodes", "write_episodes",
]  # fmt: skip

EARLIER = {
    "_catalogue": "KNOWN_ENVIRONMENTS symmetry_choices terms_spec", "_mirror": "plain_spec", "_making": "ScaledActuators",
    "_state": "Resumable why_not_capturable", "_episodes": "EpisodeDataset", "windy_pendulum": "WindyPendulum",
    "approximate": "KNOBS CurrentSwimmer TiltedReacher", "_wrappers": "dictionary_of flat_names flattened unflattening",
    "certification._certificate": "CertifiedShare Defect GeneratorReport Support share_of find_certificate",
    "certification._doctor": "Diagnosis", "certification._faults": "FaultReport Suspect", "terms._layout": "CompiledTerms",
}  # fmt: skip
"""Names that stood here in version 0.1, by the module that has them."""


def __getattr__(name: str) -> Any:
    for module, names in EARLIER.items():
        if name in names.split():
            return getattr(import_module(f"rppdyn.envs.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
