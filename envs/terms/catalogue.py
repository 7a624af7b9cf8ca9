"""The terms of observations of legged robots and arms, each with the way that it transforms and is read.

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
    vector, pseudovector      of the task's own, in the base's, yaw's or world's axes
    scalars                   of the task's own: invariant
    ========================  =========================================================================================

M is the map of the base's frame and R that of the world (`rppdyn.envs.model_symmetry`).
"""

from __future__ import annotations

from rppdyn.envs.terms.feet import FootClocks, FootContacts, FootForces, FootPositions, GaitPhase
from rppdyn.envs.terms.grids import HeightScan, Image
from rppdyn.envs.terms.joints import Controls, JointPositions, JointTorques, JointVelocities, LastAction
from rppdyn.envs.terms.vectors import (
    FRAMES,
    BaseAngularVelocity,
    BaseHeight,
    BaseLinearVelocity,
    Commands,
    EulerAngles,
    ProjectedGravity,
    Pseudovector,
    Quaternion,
    Scalars,
    Vector,
)

__all__ = [
    "BaseAngularVelocity",
    "BaseHeight",
    "BaseLinearVelocity",
    "Commands",
    "Controls",
    "EulerAngles",
    "FootClocks",
    "FootContacts",
    "FootForces",
    "FootPositions",
    "GaitPhase",
    "HeightScan",
    "Image",
    "JointPositions",
    "JointTorques",
    "JointVelocities",
    "LastAction",
    "ProjectedGravity",
    "Pseudovector",
    "Quaternion",
    "Scalars",
    "Vector",
    "FRAMES",
]
