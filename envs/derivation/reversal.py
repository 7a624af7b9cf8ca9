r"""Head-tail reversal of a serial chain: the last body takes the place of the first.

The symmetries of `derive` keep the root of each kinematic tree, and so act linearly on joint coordinates. A reversal moves the
root: the coordinates of the new one follow from those of all joints through the kinematics of the chain. It acts on
states of the simulator, and no linear action on them, hence no `SymmetrySpec`, exists.

In the reference pose the isometry :math:`x \mapsto R_0 x + t_0` carries body b onto body :math:`\pi(b)`. In any other pose the
bodies move along, with an isometry R of the world (the identity, or a reflection for a chain that is bent like a C):

.. math:: X'_{\pi(b)} = R X_b M_b^T, \quad M_b = W_{\pi(b)}^T R_0 W_b,

where X_b is the orientation of body b, and W_b that in the reference pose. The hinge between b and its child is carried to the
one between their images, with :math:`q' = \sigma q`; only the pose and velocity of the root need the kinematics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment

from rppdyn.envs.derivation.elements import NONE, Match, image_size, match_actuators, orientation_gap, shape_gap
from rppdyn.envs.derivation.fields import SAME
from rppdyn.envs.derivation.parameters import (
    Parameter,
    actuators,
    contact_pairs,
    deviations,
    same,
    shared,
    signed_interval,
    surfaces,
)
from rppdyn.envs.derivation.trees import AXIS_TOLERANCE, Isometry, Skeleton, TreeMatch, local_transform
from rppdyn.envs.model_symmetry import FREE, GEOM, HINGE, SLIDE, TRANSMISSION, Deviation

ROUGH = 0.1
"""Misfit, relative to the chain's size and mass, from which on head and tail are too unlike to change places."""


@dataclass(frozen=True, eq=False)
class Reversal:
    """A reversal of a chain whose first body moves freely, in a plane or in space.

    Args:
        chain: the moving bodies, root first.
        bodies: image of each body.
        rotation: R, (3, 3), of the world.
        frames, offsets: a point x of body b's frame becomes ``frames[b] @ x + offsets[b]`` in the frame of its image.
        joints: image of each joint; -1 for those of the root, which have none.
        signs: q' = sign q of each hinge, measured from the reference pose.
        controls: ctrl' = C ctrl, (nu, nu).
        deviations: parameters that keep it from being exact, the largest first.
    """

    chain: tuple[int, ...]
    bodies: np.ndarray
    rotation: np.ndarray
    frames: np.ndarray
    offsets: np.ndarray
    joints: np.ndarray
    signs: np.ndarray
    controls: np.ndarray
    deviations: tuple[Deviation, ...] = ()

    def image(self, model: mujoco.MjModel, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions (nq,) and velocities (nv,) of the reversed state; the root's angle comes within (-pi, pi] of `qpos0`."""
        data = mujoco.MjData(model)
        reference = Skeleton(model).data
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        new_qpos, new_qvel = np.array(qpos, float), np.array(qvel, float)
        hinges = np.flatnonzero(self.joints != NONE)
        adr, to = model.jnt_qposadr[hinges], model.jnt_qposadr[self.joints[hinges]]
        new_qpos[to] = model.qpos0[to] + self.signs[hinges] * (qpos[adr] - model.qpos0[adr])
        new_qvel[model.jnt_dofadr[self.joints[hinges]]] = self.signs[hinges] * qvel[model.jnt_dofadr[hinges]]

        root, last = self.chain[0], self.chain[-1]
        R, M, X = self.rotation, self.frames[last], data.xmat[last].reshape(3, 3)
        turning = model.body_jntadr[root] + model.body_jntnum[root] - 1  # the hinge, or the free joint
        is_free = model.jnt_type[turning] == FREE
        # The point of the last body that becomes the root's anchor, or its origin, with its velocity.
        anchor = np.zeros(3) if is_free else model.jnt_pos[turning]
        point = data.xpos[last] + X @ M.T @ (anchor - self.offsets[last])
        jac = np.zeros((2, 3, model.nv))
        mujoco.mj_jac(model, data, *jac, point, last)
        position, velocity = R @ point, R @ jac[0] @ qvel
        orientation, angular = R @ X @ M.T, np.linalg.det(R) * R @ jac[1] @ qvel
        a, v = model.jnt_qposadr[turning], model.jnt_dofadr[turning]
        if is_free:
            new_qpos[a : a + 3], new_qvel[v : v + 3] = position, velocity
            mujoco.mju_mat2Quat(new_qpos[a + 3 : a + 7], orientation.ravel())
            new_qvel[v + 3 : v + 6] = orientation.T @ angular
            return new_qpos, new_qvel
        turn = orientation @ reference.xmat[root].reshape(3, 3).T
        axis = reference.xaxis[turning]
        sine = axis @ [turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]] / 2
        new_qpos[a] = model.qpos0[a] + np.arctan2(sine, (np.trace(turn) - 1) / 2)
        new_qvel[v] = axis @ angular
        slides = np.arange(model.body_jntadr[root], turning)
        along = np.linalg.pinv(reference.xaxis[slides].T)
        a, v = model.jnt_qposadr[slides], model.jnt_dofadr[slides]
        new_qpos[a] = model.qpos0[a] + along @ (position - reference.xanchor[turning])
        new_qvel[v] = along @ velocity
        return new_qpos, new_qvel


def derive_reversal(model: mujoco.MjModel) -> Reversal | None:
    """The reversal of a model whose moving bodies form one serial chain; None where there is none.

    The first body moves freely in a plane (two slides and a hinge across them) or in space (a free joint), single hinges
    join the others, and actuators drive hinges only. The reference pose must be a reversible one, such as a straight line.
    """
    skeleton = Skeleton(model)
    chain = _chain(skeleton)
    if chain is None or model.ntendon or model.neq or model.na or not _drives_hinges_only(model, chain[0]):
        return None
    fits = [fit for R, R0 in _isometries(skeleton, chain) if (fit := _fit(skeleton, chain, R, R0)) is not None]
    best = min(fits, key=lambda fit: round(fit.trees.misfit, 9), default=None)
    if best is None or best.trees.misfit > ROUGH:
        return None
    trees, signs = best.trees, best.signs
    dofs = np.zeros((model.nv, model.nv))
    hinges = np.flatnonzero(trees.joints != NONE)
    dofs[model.jnt_dofadr[trees.joints[hinges]], model.jnt_dofadr[hinges]] = signs[hinges]
    none = np.zeros(0, int)
    driven = match_actuators(skeleton, trees, dofs, none, none, none)
    if driven is None:
        return None
    geoms = _match_geoms(skeleton, best)
    match = Match(trees, dofs, geoms, none, none, none, *driven, equalities=none)
    spoilers = deviations(skeleton, match, _parameters(skeleton, match, best))
    R = trees.isometry.rotation
    return Reversal(chain, trees.bodies, R, trees.frames, best.offsets, trees.joints, signs, match.controls, spoilers)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A candidate: x -> R_0 x + t_0 in the reference pose, and what follows for bodies and hinges."""

    trees: TreeMatch
    rotation: np.ndarray
    translation: np.ndarray
    offsets: np.ndarray
    signs: np.ndarray

    def carry(self, i: int, point: np.ndarray) -> np.ndarray:
        """The image of a point in the reference pose; i, its element, is not needed."""
        return self.rotation @ point + self.translation

    def geom(self, skeleton: Skeleton, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and orientation of a geom's image in the partner body."""
        body, position, axes = local_transform(skeleton, "geom", i)
        return self.trees.frames[body] @ position + self.offsets[body], self.trees.frames[body] @ axes


def _chain(skeleton: Skeleton) -> tuple[int, ...] | None:
    """The moving bodies, root first, if they form a serial chain of hinges with a free root."""
    m = skeleton.model
    chain = tuple(int(b) for b in np.flatnonzero(m.body_weldid))
    if len(chain) < 2 or any(m.body_weldid[b] != b for b in chain) or m.body_weldid[m.body_parentid[chain[0]]]:
        return None
    if any(m.body_parentid[c] != b for b, c in itertools.pairwise(chain)):
        return None
    root, *kinds = ([int(m.jnt_type[j]) for j in skeleton.joints[b]] for b in chain)
    if any(kind != [HINGE] for kind in kinds) or root not in ([FREE], [SLIDE, SLIDE, HINGE]):
        return None
    if root != [FREE]:
        axes = skeleton.data.xaxis[list(skeleton.joints[chain[0]])]
        if np.abs(axes[:2] @ axes[2]).max() > 1e-6 or np.linalg.matrix_rank(axes[:2], 1e-6) < 2:
            return None
    return chain


def _drives_hinges_only(m: mujoco.MjModel, root: int) -> bool:
    joints = m.actuator_trntype == TRANSMISSION.JOINT
    return bool(joints.all() and (m.jnt_bodyid[m.actuator_trnid[:, 0]] != root).all())


def _isometries(skeleton: Skeleton, chain: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(R, R_0) to be tried: R_0 is its own inverse and permutes the axes of the root's frame, up to signs."""
    m, W = skeleton.model, skeleton.world[chain[0]]
    turning = skeleton.joints[chain[0]][-1]
    normal = skeleton.data.xaxis[turning] if m.jnt_type[turning] == HINGE else None
    wall = (skeleton.colliding & (m.body_weldid[m.geom_bodyid] == 0)).any()
    directed = [skeleton.gravity, m.opt.wind]
    signed = [
        np.diag(s)[list(p)] for p in itertools.permutations(range(3)) for s in itertools.product((1.0, -1.0), repeat=3)
    ]
    involutions = [W @ S @ W.T for S in signed if (S == S.T).all()]
    for R in (np.eye(3), *(np.diag(1.0 - 2.0 * np.eye(3)[k]) for k in range(3))):
        is_reflection = np.linalg.det(R) < 0
        if is_reflection and (wall or any(np.abs(R @ x - x).max() > 0 for x in directed)):
            continue
        for R0 in involutions:
            # The root of a planar chain can only turn about the plane's normal.
            in_plane = normal is None or np.abs(R @ R0.T @ normal - normal).max() < 1e-6
            if (np.linalg.det(R0) < 0) == is_reflection and in_plane:
                yield R, R0


def _fit(skeleton: Skeleton, chain: tuple[int, ...], R: np.ndarray, R0: np.ndarray) -> _Fit | None:
    """Images of bodies and hinges under an isometry of the reference pose; None if a hinge's axis lands on no hinge's."""
    m, data = skeleton.model, skeleton.data
    bodies, joints, signs = np.arange(m.nbody), np.full(m.njnt, NONE), np.zeros(m.njnt)
    bodies[list(chain)] = chain[::-1]
    hinges = np.array([skeleton.joints[b][0] for b in chain[1:]])
    joints[hinges] = hinges[::-1]
    images = np.linalg.det(R0) * data.xaxis[hinges] @ R0.T
    turned = np.sign((images * data.xaxis[hinges[::-1]]).sum(1))
    if np.linalg.norm(images - turned[:, None] * data.xaxis[hinges[::-1]], axis=1).max() > AXIS_TOLERANCE:
        return None
    signs[hinges] = -turned  # what was the child is now the parent
    t0 = data.xanchor[hinges].mean(0) @ (np.eye(3) - R0.T)
    anchors = data.xanchor[hinges] @ R0.T + t0 - data.xanchor[hinges[::-1]]
    centres = data.xipos[list(chain)] @ R0.T + t0 - data.xipos[list(chain[::-1])]
    masses = m.body_mass[list(chain)]
    apart = max(np.linalg.norm(gaps, axis=1).max() for gaps in (anchors, centres)) / skeleton.size
    misfit = float(apart + np.abs(masses - masses[::-1]).max() / masses.sum())
    W = skeleton.world
    frames = np.einsum("bji,jk,bkl->bil", W[bodies], R0, W)
    offsets = np.einsum("bji,bj->bi", W[bodies], data.xpos @ R0.T + t0 - data.xpos[bodies])
    fixed = np.setdiff1d(np.arange(m.nbody), chain)
    frames[fixed], offsets[fixed] = R, 0.0
    place = {int(j): n for n, j in enumerate(skeleton.scalars)}
    matrix = np.zeros((len(place),) * 2)
    for j in hinges:
        matrix[place[int(joints[j])], place[int(j)]] = signs[j]
    none = np.zeros(len(place)), np.zeros((m.nbody, 3))
    trees = TreeMatch(Isometry(R, np.zeros(3)), bodies, frames, joints, matrix, *none, misfit)
    return _Fit(trees, R0, t0, offsets, signs)


def _match_geoms(skeleton: Skeleton, fit: _Fit) -> np.ndarray:
    """Partners among the geoms of the partner body: the same type, the nearest in place, shape and size."""
    m, partners = skeleton.model, np.full(skeleton.model.ngeom, NONE)
    fixed = m.body_weldid[m.geom_bodyid] == 0
    partners[fixed] = np.flatnonzero(fixed)
    for b in np.unique(m.geom_bodyid[~fixed]):
        left, right = (
            np.flatnonzero(skeleton.shaped & (m.geom_bodyid == x)).tolist() for x in (b, fit.trees.bodies[b])
        )
        cost = np.full((len(left), len(right)), 1e6)
        for n, k in np.ndindex(*cost.shape):
            if m.geom_type[left[n]] == m.geom_type[right[k]]:
                cost[n, k] = shape_gap(skeleton, left[n], right[k], *fit.geom(skeleton, left[n]))
        for n, k in zip(*linear_sum_assignment(cost), strict=True):
            if cost[n, k] < 1e6:
                partners[left[n]] = right[k]
    return partners


def _parameters(skeleton: Skeleton, match: Match, fit: _Fit) -> Iterator[Parameter]:
    """Parameters that the dynamics of a chain depend on; places and axes are those of the reference pose.

    What acts on the root's own coordinates (an armature, a spring) has nothing at the other end to be carried to.
    """
    m, data = skeleton.model, skeleton.data
    W, R0, signs, b, c = skeleton.world, fit.rotation, fit.signs, fit.trees.bodies, fit.trees.joints
    moving, hinge, det = m.body_weldid != 0, c != NONE, np.linalg.det(R0)

    def acts(field: str, partners: np.ndarray) -> np.ndarray:
        values = np.asarray(getattr(m, field, np.zeros(len(partners))), float).reshape(len(partners), -1)
        return (partners != NONE) | values.any(1)

    axes = data.xaxis.copy()
    yield Parameter("joint", "axis", axes, c, lambda i, row: -signs[i] * det * R0 @ row, hinge, 1.0)
    yield Parameter("joint", "pos", data.xanchor.copy(), c, fit.carry, hinge, skeleton.size)
    for field in SAME["joint"]["always"].split():
        yield from shared(m, "joint", c, acts(field, c), field)
    limited, zero = hinge & m.jnt_limited.astype(bool), m.qpos0[m.jnt_qposadr][:, None]
    yield Parameter("joint", "range", m.jnt_range - zero, c, signed_interval(signs), limited)
    yield from shared(m, "joint", c, limited, SAME["joint"]["limited"])
    springs, sprung = m.qpos_spring[m.jnt_qposadr][:, None] - zero, hinge & (m.jnt_stiffness != 0)
    yield Parameter("joint", "springref", springs, c, lambda i, row: signs[i] * row, sprung, 1.0)
    forced = hinge & m.jnt_actfrclimited.astype(bool)
    yield Parameter("joint", "actfrcrange", m.jnt_actfrcrange.copy(), c, signed_interval(signs), forced)

    of = np.where(match.dofs.any(0), np.abs(match.dofs).argmax(0), NONE)
    for field in ("dof_armature", "dof_damping", "dof_dampingpoly", "dof_frictionloss"):
        yield from shared(m, "dof", of, acts(field, of), field)
    yield from shared(m, "dof", of, (of != NONE) & (m.dof_frictionloss != 0), "dof_solref dof_solimp")

    inertia = (W @ skeleton.inertia @ np.swapaxes(W, 1, 2)).reshape(-1, 9)
    yield from shared(m, "body", b, moving, "body_mass")
    yield from same(m, "body", b, moving=moving)
    yield Parameter("body", "com", data.xipos.copy(), b, fit.carry, moving, skeleton.size)
    yield Parameter("body", "inertia", inertia, b, lambda i, row: (R0 @ row.reshape(3, 3) @ R0.T).ravel(), moving)

    if m.ngeom:
        yield from _geom_parameters(skeleton, match, fit)
    yield from contact_pairs(skeleton, match)
    yield from actuators(skeleton, match)


def _geom_parameters(skeleton: Skeleton, match: Match, fit: _Fit) -> Iterator[Parameter]:
    m, to = skeleton.model, match.geoms
    shaped = skeleton.shaped & (m.body_weldid[m.geom_bodyid] != 0)
    paired = shaped & (to != NONE)
    measured = shaped & ~np.isin(m.geom_type, (GEOM.PLANE, GEOM.HFIELD, GEOM.MESH))

    def turned(i: int, row: np.ndarray) -> np.ndarray:
        return np.array([orientation_gap(skeleton, i, int(to[i]), fit.geom(skeleton, i)[1])])

    def size(i: int, row: np.ndarray) -> np.ndarray:
        return image_size(skeleton, i, int(to[i]), fit.geom(skeleton, i)[1], row)

    yield Parameter(
        "geom", "pos", m.geom_pos.copy(), to, lambda i, row: fit.geom(skeleton, i)[0], shaped, skeleton.size
    )
    yield Parameter("geom", "size", m.geom_size.copy(), to, size, measured)
    yield Parameter("geom", "orientation", np.zeros((m.ngeom, 1)), to, turned, paired, skeleton.size)
    yield from surfaces(skeleton, match, lambda i: fit.geom(skeleton, i)[1])
