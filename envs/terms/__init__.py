"""Observations as trainers of legged robots describe them: named terms, each of which knows how a symmetry acts on it.

    spec = symmetry_spec(model, symmetry="left-right", action=["joint_positions"], observation={
        "actor": ["base_angular_velocity", "projected_gravity", {"term": "commands", "entries": ["forward", "lateral", "yaw"]},
                  {"term": "joint_positions", "scale": 1.0, "history": 5}, "last_action"],
        "critic": ["base_linear_velocity", {"term": "height_scan", "size": [1.6, 1.0], "resolution": 0.1}]})

`rppdyn.envs.terms.catalogue` lists the terms. Each also computes its numbers from the simulator's state, so that
`certify_terms` can step mirrored states and compare what is observed of them with the image under the spec.
"""

from __future__ import annotations

from rppdyn.envs.terms import catalogue as catalogue  # registers the terms
from rppdyn.envs.terms.auditing import Audit, audit
from rppdyn.envs.terms.certification import TermCertificate, certify_terms
from rppdyn.envs.terms.layout import CompiledTerms, Layout, compile_terms, read_terms
from rppdyn.envs.terms.robot import Robot, Scene
from rppdyn.envs.terms.term import TERMS, Term, register, term_of

__all__ = [
    "TERMS",
    "Audit",
    "CompiledTerms",
    "Layout",
    "Robot",
    "Scene",
    "Term",
    "TermCertificate",
    "audit",
    "certify_terms",
    "compile_terms",
    "read_terms",
    "register",
    "term_of",
]
