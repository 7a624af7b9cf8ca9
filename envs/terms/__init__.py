"""Observations as trainers of legged robots describe them: named terms, each of which knows how a symmetry acts on it.

    spec = symmetry_spec(model, symmetry="left-right", action=["joint_positions"], observation={
        "actor": ["base_angular_velocity", "projected_gravity", {"term": "commands", "entries": ["forward", "lateral", "yaw"]},
                  {"term": "joint_positions", "scale": 1.0, "history": 5}, "last_action"],
        "critic": ["base_linear_velocity", {"term": "height_scan", "size": [1.6, 1.0], "resolution": 0.1}]})

Each term also computes its numbers from the simulator's state, so that `rppdyn.envs.certify` can step mirrored states
and compare what is observed of them with the image under the spec. The terms:

    ========================  =========================================================================================
    term                      how it transforms
    ========================  =========================================================================================
    base_linear_velocity      a vector: M of the base in its own axes (`frame="body"` or `"yaw"`), R in the world's
    base_angular_velocity     a pseudovector: det(M) M, or det(R) R
    projected_gravity         a vector in the base's own axes
    base_height               invariant
    euler_angles              signs, where the symmetry only changes signs; otherwise refused
    quaternion                a conjugation under mirrors, as a rotation matrix under other groups
    commands                  by each entry's meaning: parts of a vector, of a pseudovector, or scalars
    joint_positions           the derived map of the joints, relative to the default pose
    joint_velocities          likewise
    joint_torques             likewise
    last_action               the derived map of the action
    gait_phase                sine and cosine of the gait's clock: shifted as the feet are exchanged
    foot_clocks               a clock per foot: permuted with the feet
    foot_contacts             permuted with the feet
    foot_forces               vectors, permuted with the feet
    foot_positions            vectors in the base's own axes, permuted with the feet
    height_scan               the grid's points are permuted
    image                     pixels are permuted: a flip
    reference_joint_...       positions and velocities of a reference motion, as those of the joints
    anchor_position           of the reference's anchor from the robot's: a vector in the anchor's own axes
    anchor_orientation        its first two columns as six numbers: a rotation matrix Q becomes M Q M^T
    body_positions            of bodies from the anchor: vectors in its axes, permuted with the bodies
    body_orientations         likewise, Q becomes M Q F^T with F the map of the body's frame; permuted with the bodies
    vector, pseudovector      of the task's own, in the base's, yaw's or world's axes
    scalars                   of the task's own: invariant
    ========================  =========================================================================================

M is the map of the base's frame and R that of the world (`rppdyn.envs._model_symmetry`).
"""

from __future__ import annotations

from rppdyn.envs.terms._auditing import Audit, audit
from rppdyn.envs.terms._layout import CompiledTerms, Layout, compile_terms, read_terms
from rppdyn.envs.terms._robot import Robot, Scene
from rppdyn.envs.terms._simulator import TermsSimulator, TermSteps, step_terms
from rppdyn.envs.terms._terms import TERMS, Term, parse_term

__all__ = [
    "TERMS", "Audit", "CompiledTerms", "Layout", "Robot", "Scene", "Term", "TermSteps", "TermsSimulator", "audit",
    "compile_terms", "parse_term", "read_terms", "step_terms",
]  # fmt: skip
