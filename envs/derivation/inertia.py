r"""Bodies' masses as pseudo-inertia matrices, and which differences between them any motion can show.

With points written as (x, 1) in a body's frame, :math:`J = \int \rho\, (x, 1)(x, 1)^T`, a 4 x 4 matrix, holds mass, first and
second moments. With g gravity, X and p the body's orientation and position, and v and w its velocities in the world,

.. math:: T = \tfrac12 \mathrm{tr}(V J V^T), \quad V = ([w]_\times X \;|\; v), \qquad U = -g^T (X \;|\; p)\, J e_4.

Both are linear in J, so a difference in J that changes neither, in any motion that the joints allow, is no deviation: the
lower link of an arm that only turns about a vertical axis may be as lopsided as it likes.
"""

from __future__ import annotations

import mujoco
import numpy as np

from rppdyn.envs.derivation.trees import Skeleton, TreeMatch

__all__ = ["carried_inertias", "matters", "pseudo_inertias", "set_inertias"]

SAMPLES = 6
TOLERANCE = 1e-9


def pseudo_inertias(skeleton: Skeleton) -> np.ndarray:
    """J of every body, (nbody, 4, 4)."""
    m = skeleton.model
    second = np.trace(skeleton.inertia, axis1=1, axis2=2)[:, None, None] / 2 * np.eye(3) - skeleton.inertia
    J = np.zeros((m.nbody, 4, 4))
    c = m.body_ipos
    J[:, :3, :3] = second + m.body_mass[:, None, None] * np.einsum("bi,bj->bij", c, c)
    J[:, :3, 3] = J[:, 3, :3] = m.body_mass[:, None] * c
    J[:, 3, 3] = m.body_mass
    return J


def set_inertias(model: mujoco.MjModel, J: np.ndarray, bodies: np.ndarray) -> None:
    """Give bodies of a model the masses, centres and principal inertias of these pseudo-inertia matrices."""
    for b in bodies:
        mass = J[b, 3, 3]
        com = J[b, :3, 3] / mass
        second = J[b, :3, :3] - mass * np.outer(com, com)
        values, axes = np.linalg.eigh(np.trace(second) * np.eye(3) - second)
        values, axes = values[::-1], axes[:, ::-1] * np.sign(np.linalg.det(axes[:, ::-1]))
        model.body_mass[b], model.body_ipos[b], model.body_inertia[b] = mass, com, values
        mujoco.mju_mat2Quat(model.body_iquat[b], np.ascontiguousarray(axes).ravel())
        model.body_sameframe[b] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE


def carried_inertias(skeleton: Skeleton, trees: TreeMatch) -> np.ndarray:
    """For every body, J of the body that is carried to it, in its own frame."""
    T = np.tile(np.eye(4), (skeleton.model.nbody, 1, 1))
    T[:, :3, :3] = trees.frames
    carried = np.zeros_like(T)
    carried[trees.bodies] = T @ pseudo_inertias(skeleton) @ T.transpose(0, 2, 1)
    return carried


def matters(skeleton: Skeleton, trees: TreeMatch, carried: np.ndarray) -> np.ndarray:
    """Bodies whose inertia differs from their partner's in a way that some motion shows, (nbody,) booleans."""
    m = skeleton.model
    J = pseudo_inertias(skeleton)
    unlike = np.abs(carried - J).max((1, 2)) > 1e-12 * np.abs(J).max(initial=1e-300)
    moving = m.body_weldid != 0
    if skeleton.in_fluid:  # a fluid drags every body by the box of its inertia
        return moving & unlike[trees.bodies]
    if not (unlike & moving).any():
        return np.zeros(m.nbody, bool)
    shown = np.zeros(m.nbody, bool)
    kinetic, potential = _energies(skeleton, carried - J)
    whole_kinetic, whole_potential = _energies(skeleton, J)
    scale_k = max(np.abs(whole_kinetic.sum(1)).max(), 1e-300)
    scale_p = max(np.ptp(whole_potential, axis=0).sum(), np.abs(whole_potential).max() * 1e-3, 1e-300)

    def visible(kinetic, potential):
        return np.abs(kinetic).max() > TOLERANCE * scale_k or np.ptp(potential) > TOLERANCE * scale_p

    if visible(kinetic.sum(1), potential.sum(1)):
        there = [bool(moving[b] and visible(kinetic[:, b], potential[:, b])) for b in range(m.nbody)]
        shown = np.array(there)[trees.bodies]  # said of the body that is carried
    return shown


def _energies(skeleton: Skeleton, J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kinetic and potential energy of each body with these J, (samples, nbody), in random motions."""
    m, rng = skeleton.model, np.random.default_rng(0)
    data, g = mujoco.MjData(m), skeleton.gravity
    kinetic, potential = np.zeros((SAMPLES, m.nbody)), np.zeros((SAMPLES, m.nbody))
    velocity = np.zeros(6)
    for s in range(SAMPLES):
        data.qpos[:] = m.qpos0
        mujoco.mj_integratePos(m, data.qpos, rng.normal(size=m.nv), 1.0)
        data.qvel[:] = rng.normal(size=m.nv)
        mujoco.mj_kinematics(m, data)
        mujoco.mj_comPos(m, data)
        mujoco.mj_comVel(m, data)
        for b in range(1, m.nbody):
            X = data.xmat[b].reshape(3, 3)
            mujoco.mj_objectVelocity(m, data, mujoco.mjtObj.mjOBJ_XBODY, b, velocity, 0)
            (x, y, z), v = velocity[:3], velocity[3:]
            V = np.column_stack([np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ X, v])
            kinetic[s, b] = 0.5 * np.einsum("ij,jk,ik->", V, J[b], V)
            potential[s, b] = -g @ (np.column_stack([X, data.xpos[b]]) @ J[b, :, 3])
    return kinetic, potential
