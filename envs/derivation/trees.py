r"""Matching a model's kinematic trees with their image under an isometry.

Written for one pair of bodies, b carried to c, with parents p carried to p'. With Q the orientation in the parent and
Rot(a, q) the turn of a hinge about its axis, the pair matches if

.. math:: M_p\, Q_b\, \mathrm{Rot}(a, q)\, M_b^T = Q_c\, \mathrm{Rot}(a', q')

for all q. In the reference pose that gives :math:`M = Q_c^T M_p Q_b`. A hinge axis is a pseudovector, so
:math:`a' = s \det(M) M a` with a sign s; then :math:`q' = s q + \delta` and :math:`M_b = \mathrm{Rot}(a', -\delta) M`.
Slides keep :math:`M_b = M`, and the axes of consecutive ones map as :math:`M A = A' P`. A free joint lets M_b be anything.

The tree and its joints' places and axes decide; masses, centres of mass and inertias do not, which in a CAD model lie anywhere
within some millimetres. They only tell apart limbs whose joints coincide.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from functools import cached_property

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment

from rppdyn.envs.model_symmetry import BALL, DISABLE, FREE, GEOM, HINGE, OBJECT, SLIDE, TRANSMISSION, WRAP
from rppdyn.envs.spec import rotation_matrix

AXIS_TOLERANCE = 0.05
"""Largest distance between unit axes that still count as the same structure, 3 degrees."""

MIN_ZERO_MISFIT = 0.01
"""How far from their partners the next joints must lie, relative to the robot's size, for a hinge's zero to be another."""

MASS_WEIGHT, MASS_TOLERANCE = 1e-3, 0.05
"""Weight of masses and their centres against the joints' places, and how far they may differ without any."""

SNAP_TOLERANCE = 1e-6
"""A mismatch below this, relative to the robot's size, is none: models give lengths with a few digits."""


@dataclass(frozen=True, eq=False)
class Isometry:
    """A candidate: x -> R x + t in the world, and M of the world's moving children where their joints leave it free.

    Args:
        turned: M of such a body, in its own axes; what is left out follows from R and the reference pose.
        keep: whether bodies that can turn in the world keep M = 1, as they do when the world turns around them.
        swapped: siblings to be exchanged, whatever else would match better.
    """

    rotation: np.ndarray
    translation: np.ndarray
    turned: dict[int, np.ndarray] = field(default_factory=dict)
    keep: bool = False
    swapped: tuple[int, int] | None = None

    @property
    def determinant(self) -> float:
        return float(round(np.linalg.det(self.rotation)))


@dataclass(frozen=True, eq=False)
class TreeMatch:
    """Images of bodies and joints.

    Args:
        bodies: image of each body; M of each is ``frames``.
        joints: image of each joint (of slides that mix, the first of their images).
        matrix, shift: theta' = P theta + delta for slides and hinges, theta measured from the reference pose.
        gaps: where the image of each body lies from its partner, in the partner's axes, as far as no slide takes it up.
        misfit: how far joints are from their partners: places relative to the robot's size, and unit axes.
        strayed: the same, of the bodies that are their own partners.
    """

    isometry: Isometry
    bodies: np.ndarray
    frames: np.ndarray
    joints: np.ndarray
    matrix: np.ndarray
    shift: np.ndarray
    gaps: np.ndarray
    misfit: float
    strayed: float = 0.0

    def image(self, body: int, point: np.ndarray) -> np.ndarray:
        """Image of a point, from a body's frame into that of its partner."""
        return self.frames[body] @ point + (self.isometry.translation if body == 0 else 0.0)


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rotation matrix about a unit axis."""
    x, y, z = axis
    K = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * (K @ K)


def angle_about(axis: np.ndarray, rotation: np.ndarray) -> float:
    """Angle of a rotation about this axis."""
    skew = rotation - rotation.T
    sine = axis @ np.array([skew[2, 1], skew[0, 2], skew[1, 0]]) / 2
    return float(np.arctan2(sine, (np.trace(rotation) - 1) / 2))


def match_trees(skeleton: Skeleton, isometry: Isometry) -> TreeMatch | None:
    """The best relabelling of bodies under an isometry, or None if the structure differs."""
    return _Matcher(skeleton, isometry).run()


JointBlock = tuple[tuple[int, ...], tuple[int, ...], np.ndarray, np.ndarray]  # joints of b, of c, P, delta


@dataclass
class _Pair:
    """One body on another: its frame, its joints and what is below."""

    b: int
    c: int
    frame: np.ndarray
    blocks: list[JointBlock]
    gap: np.ndarray
    misfit: float
    unlike: float
    below: list[_Pair] = field(default_factory=list)


class _Matcher:
    def __init__(self, skeleton: Skeleton, isometry: Isometry):
        self.s, self.m, self.isometry = skeleton, skeleton.model, isometry
        self.scale = skeleton.size
        self.mass = max(float(self.m.body_mass.sum()), 1e-12)

    def run(self) -> TreeMatch | None:
        below = self.assign(0, 0, self.isometry.rotation)
        if below is None:
            return None
        n, joints = self.m.nbody, np.arange(self.m.njnt)
        place = np.full(self.m.njnt, -1)
        place[self.s.scalars] = np.arange(len(self.s.scalars))
        bodies, frames = np.zeros(n, int), np.zeros((n, 3, 3))
        frames[0] = self.isometry.rotation
        matrix, shift = np.zeros((len(self.s.scalars),) * 2), np.zeros(len(self.s.scalars))
        gaps, misfit, strayed, todo = np.zeros((n, 3)), 0.0, 0.0, list(below)
        while todo:
            pair = todo.pop()
            todo += pair.below
            bodies[pair.b], frames[pair.b] = pair.c, pair.frame
            gaps[pair.b], misfit = pair.gap, max(misfit, pair.misfit)
            strayed = max(strayed, pair.misfit if pair.b == pair.c else 0.0)
            for js, ks, P, delta in pair.blocks:
                joints[list(js)] = ks
                if P.size:
                    rows = place[list(ks)]
                    matrix[np.ix_(rows, place[list(js)])], shift[rows] = P, delta
                    images = np.array(ks)[np.abs(P).argmax(0)]
                    joints[list(js)] = images if len(set(images)) == len(images) else ks
        return TreeMatch(self.isometry, bodies, frames, joints, matrix, shift, gaps, misfit, strayed)

    def assign(self, b: int, c: int, frame: np.ndarray) -> list[_Pair] | None:
        """The best matching of the children of b with those of c."""
        left, right = self.s.children[b], self.s.children[c]
        if len(left) != len(right):
            return None
        if not left:
            return []
        pairs = [[self.pair(i, j, frame) for j in right] for i in left]
        big = 1e6
        cost = np.array([[big if p is None else _total(p) for p in row] for row in pairs])
        # Of equally good matchings the one that moves least is taken: the others are swaps, found on their own.
        cost += 1e-9 * (np.array(left)[:, None] != np.array(right)[None])
        if self.isometry.swapped and set(self.isometry.swapped) <= set(left):
            i, j = (left.index(x) for x in self.isometry.swapped)
            cost[np.ix_([i, j], [i, j])] += np.diag([big, big])
        rows, columns = linear_sum_assignment(cost)
        if cost[rows, columns].max() >= big:
            return None
        return [pairs[i][j] for i, j in zip(rows, columns, strict=True)]

    def pair(self, b: int, c: int, parent: np.ndarray) -> _Pair | None:
        m, at_root = self.m, bool(self.m.body_weldid[self.m.body_parentid[b]] == 0)
        kinds = [[int(m.jnt_type[j]) for j in self.s.joints[x]] for x in (b, c)]
        if kinds[0] != kinds[1] or m.body_mocapid[b] >= 0 > m.body_mocapid[c]:
            return None
        M = self.s.rest[c].T @ parent @ self.s.rest[b]
        if kinds[0] == [FREE]:
            if self.isometry.keep:
                M = np.eye(3)
            elif b in self.isometry.turned:
                M = self.isometry.turned[b]
            else:
                M = self.s.world[c].T @ self.isometry.rotation @ self.s.world[b]
            blocks: list[JointBlock] = [((self.s.joints[b][0],), (self.s.joints[c][0],), np.zeros((0, 0)), np.zeros(0))]
            gap, off = np.zeros(3), 0.0
        else:
            offset = self.isometry.translation if at_root and m.body_parentid[b] == 0 else np.zeros(3)
            matched = self.joints(b, c, parent, M, offset, at_root)
            if matched is None:
                return None
            M, blocks, gap, off = matched
        misfit = float(np.linalg.norm(gap)) / self.scale + off if self.carries[b] else 0.0
        below = self.assign(b, c, M)
        return None if below is None else _Pair(b, c, M, blocks, gap, misfit, self.unlike(b, c, M), below)

    def joints(self, b, c, parent, M, offset, at_root):
        """(M_b, blocks of joints, distance of the anchors, of the axes) for bodies that are not free, or None."""
        m, det = self.m, np.sign(np.linalg.det(M))
        js, ks = self.s.joints[b], self.s.joints[c]
        turning = [i for i, j in enumerate(js) if m.jnt_type[j] in (HINGE, BALL)]
        anchors = [np.zeros(3), np.zeros(3)]
        if turning:
            # Along a hinge its anchor may lie anywhere.
            for n, joints in enumerate((js, ks)):
                r, j = m.jnt_pos[joints[turning[0]]], joints[turning[0]]
                a = m.jnt_axis[j] if m.jnt_type[j] == HINGE else np.zeros(3)
                anchors[n] = r - a * (a @ r)
        place_b = m.body_pos[b] + self.s.rest[b] @ anchors[0]
        place_c = m.body_pos[c] + self.s.rest[c] @ anchors[1]
        gap = self.s.rest[c].T @ (parent @ place_b + offset - place_c)
        blocks, i, off = [], 0, 0.0
        while i < len(js):
            kind = m.jnt_type[js[i]]
            if kind == SLIDE:
                stop = i
                while stop < len(js) and m.jnt_type[js[stop]] == SLIDE:
                    stop += 1
                A, B = m.jnt_axis[list(js[i:stop])].T, m.jnt_axis[list(ks[i:stop])].T
                P = _snap(np.linalg.lstsq(B, M @ A, rcond=None)[0])
                off = max(off, float(np.linalg.norm(B @ P - M @ A, axis=0).max()))
                delta = np.linalg.lstsq(B, gap, rcond=None)[0]
                gap = gap - B @ delta
                blocks.append((js[i:stop], ks[i:stop], P, delta))
                i = stop
                continue
            if kind == HINGE:
                image = det * (M @ m.jnt_axis[js[i]])
                sign = 1.0 if image @ m.jnt_axis[ks[i]] > 0 else -1.0
                off = max(off, float(np.linalg.norm(image - sign * m.jnt_axis[ks[i]])))
                blocks.append(((js[i],), (ks[i],), np.array([[sign]]), np.zeros(1)))
            else:
                blocks.append(((js[i],), (ks[i],), np.zeros((0, 0)), np.zeros(0)))
            i += 1
        if off > AXIS_TOLERANCE:
            return None
        if js and m.jnt_type[js[-1]] == HINGE:
            delta = self.turn(b, c, M, m.jnt_axis[ks[-1]], at_root)
            if delta:
                M = rotation_about(m.jnt_axis[ks[-1]], -delta) @ M
                blocks[-1] = (*blocks[-1][:3], np.array([delta]))
        elif js and m.jnt_type[js[-1]] == BALL and at_root and self.isometry.keep:
            M = np.eye(3)
        return M, blocks, gap, off

    def turn(self, b: int, c: int, M: np.ndarray, axis: np.ndarray, at_root: bool) -> float:
        """delta of the last hinge: 0, unless the joints below say clearly that its zero is another."""
        target = np.eye(3) if self.isometry.keep else self.isometry.turned.get(b)
        if at_root and target is not None:
            turn = M @ target.T
            if np.abs(turn @ axis - axis).max() < SNAP_TOLERANCE:
                return angle_about(axis, turn)
        if self.hanging(b, c, M) > MIN_ZERO_MISFIT:
            both = list(itertools.product(self.next_joints(b), self.next_joints(c)))
            pairs = [(M @ x, y) for (_, x, _), (_, y, _) in both] + [(M @ x, y) for (_, _, x), (_, _, y) in both]
            # An axis has no direction, so that half a turn more does as well.
            angles = [a for v, w in pairs for a in _turns(axis, v, w)]
            angles += [a - np.pi if a > 0 else a + np.pi for a in angles]
            for angle in sorted(angles, key=abs):
                fits = self.hanging(b, c, rotation_about(axis, -angle) @ M) < MIN_ZERO_MISFIT
                if fits and self.is_within_range(b, c, M, axis, angle):
                    return angle
        elif not self.driven & {self.s.joints[b][-1], self.s.joints[c][-1]}:
            # Nothing but its matter says where the zero of a pendulum is, if all of it turns alike.
            for angle in _turns(axis, M @ self.lever(b), self.lever(c)):
                turned = rotation_about(axis, -angle) @ M
                fits = self.is_image(b, c, turned) and not self.is_image(b, c, M)
                if fits and self.hanging(b, c, turned) < SNAP_TOLERANCE and self.is_within_range(b, c, M, axis, angle):
                    return angle
        return 0.0

    def next_joints(self, b: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(type, place, axis) of the first joints below b, from the anchor of its last joint, in its frame."""
        m = self.m
        origin = m.jnt_pos[self.s.joints[b][-1]] if self.s.joints[b] else np.zeros(3)
        joints = []
        for i in self.s.children[b]:
            rest, place = self.s.rest[i], m.body_pos[i] - origin
            if self.s.joints[i]:
                j = self.s.joints[i][0]
                axis = m.jnt_axis[j] if m.jnt_type[j] in (HINGE, SLIDE) else np.zeros(3)
                joints.append((int(m.jnt_type[j]), place + rest @ m.jnt_pos[j], rest @ axis))
            else:
                joints += [(kind, place + rest @ x, rest @ axis) for kind, x, axis in self.next_joints(i)]
        return joints

    def hanging(self, b: int, c: int, M: np.ndarray) -> float:
        """Distance of the first joints below b, carried by M, from those of c."""
        left, right = self.next_joints(b), self.next_joints(c)
        cost = np.full((len(left), len(right)), 1e6)
        for (n, (kind, x, axis)), (k, (other, y, there)) in itertools.product(enumerate(left), enumerate(right)):
            if kind == other:
                gap, image = M @ x - y, M @ axis
                if kind == HINGE:  # whose anchor may lie anywhere along it
                    gap = gap - there * (there @ gap)
                off = min(np.linalg.norm(image - there), np.linalg.norm(image + there))
                cost[n, k] = np.linalg.norm(gap) / self.scale + off
        return float(cost[linear_sum_assignment(cost)].max(initial=0.0))

    @cached_property
    def driven(self) -> set[int]:
        """Joints that an actuator acts on, by itself or through a tendon."""
        m = self.m
        on_joint = np.isin(m.actuator_trntype, (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT))
        return {*m.actuator_trnid[on_joint, 0].tolist(), *m.wrap_objid[m.wrap_type == WRAP.JOINT].tolist()}

    def lever(self, b: int) -> np.ndarray:
        """From the anchor of the last joint to the centre of mass."""
        return self.m.body_ipos[b] - self.m.jnt_pos[self.s.joints[b][-1]]

    def is_image(self, b: int, c: int, M: np.ndarray) -> bool:
        """Check whether M carries the geoms, the centre of mass and the inertia of b onto those of c; never without geoms."""
        m, origins = self.m, [self.m.jnt_pos[self.s.joints[x][-1]] for x in (b, c)]
        here, there = (np.flatnonzero(m.geom_bodyid == x) for x in (b, c))
        if not len(here) or len(here) != len(there):
            return False
        images = (m.geom_pos[here] - origins[0]) @ M.T
        cost = np.linalg.norm(images[:, None] - (m.geom_pos[there] - origins[1])[None], axis=2)
        cost[m.geom_type[here][:, None] != m.geom_type[there][None]] = 1e6
        inertia = np.abs(M @ self.s.inertia[b] @ M.T - self.s.inertia[c]).max() / np.abs(self.s.inertia[c]).max()
        apart = max(cost[linear_sum_assignment(cost)].max(), np.linalg.norm(M @ self.lever(b) - self.lever(c)))
        return bool(apart < SNAP_TOLERANCE * self.scale and inertia < SNAP_TOLERANCE)

    def is_within_range(self, b: int, c: int, M: np.ndarray, axis: np.ndarray, delta: float) -> bool:
        """Check whether most of the range of the last hinge of b is carried into that of c."""
        m, (j, k) = self.m, (self.s.joints[b][-1], self.s.joints[c][-1])
        if not (m.jnt_limited[j] and m.jnt_limited[k]):
            return True
        sign = np.sign(np.linalg.det(M) * (M @ m.jnt_axis[j]) @ axis)
        low, high = np.sort(sign * (m.jnt_range[j] - m.qpos0[m.jnt_qposadr[j]])) + delta
        a, z = m.jnt_range[k] - m.qpos0[m.jnt_qposadr[k]]
        return min(high, z) - max(low, a) > (z - a) / 2

    @cached_property
    def carries(self) -> np.ndarray:
        """Bodies with a joint on them or below, or moved by hand, (nbody,) booleans: where they are is structure."""
        carries = self.m.body_mocapid >= 0
        for b in range(self.m.nbody - 1, 0, -1):
            carries[b] |= bool(self.s.joints[b])
            carries[self.m.body_parentid[b]] |= carries[b]
        return carries

    def unlike(self, b: int, c: int, M: np.ndarray) -> float:
        """Difference of b and c in mass and its centre, relative to the robot's, from 0 to 1."""
        m = self.m
        if m.body_weldid[b] == 0:
            return 0.0
        apart = np.linalg.norm(M @ m.body_ipos[b] - m.body_ipos[c]) / self.scale
        apart += abs(m.body_mass[b] - m.body_mass[c]) / self.mass
        return float(np.clip(apart - MASS_TOLERANCE, 0.0, 1.0))


def _total(pair: _Pair) -> float:
    return pair.misfit + MASS_WEIGHT * pair.unlike + sum(map(_total, pair.below))


def _turns(axis: np.ndarray, v: np.ndarray, w: np.ndarray) -> list[float]:
    """The delta whose turn Rot(axis, -delta) brings v over w; none if one of them lies along the axis."""
    v, w = v - axis * (axis @ v), w - axis * (axis @ w)
    lengths = sorted((float(np.linalg.norm(v)), float(np.linalg.norm(w))))
    if lengths[0] <= SNAP_TOLERANCE * lengths[1]:
        return []
    return [-float(np.arctan2(axis @ np.cross(v, w), v @ w))]


def _snap(matrix: np.ndarray) -> np.ndarray:
    """Whole numbers where rounding, or axes that are a little off, kept them from being so."""
    whole = np.round(matrix)
    if np.abs(matrix - whole).max() < AXIS_TOLERANCE and (np.abs(whole).sum(0) == 1).all():
        return whole
    return np.where(np.abs(matrix - whole) < SNAP_TOLERANCE, whole, matrix)


# -- a MuJoCo model's kinematic trees as plain arrays in the reference pose `qpos0` --------------------------------------------


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Bodies, joints and masses of a model; b numbers bodies, j joints.

    Everything is measured from the reference pose, in which every hinge and slide is at ``qpos0``: the frame of a body has
    orientation ``rest[b]`` in its parent there, and ``world[b]`` in the world.
    """

    model: mujoco.MjModel

    @cached_property
    def data(self) -> mujoco.MjData:
        """The model in its reference pose."""
        data = mujoco.MjData(self.model)
        mujoco.mj_kinematics(self.model, data)
        mujoco.mj_comPos(self.model, data)
        return data

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in range(self.model.nbody)]
        for b in range(1, self.model.nbody):
            children[self.model.body_parentid[b]].append(b)
        return tuple(map(tuple, children))

    @cached_property
    def joints(self) -> tuple[tuple[int, ...], ...]:
        """Joints of each body, in order."""
        m = self.model
        return tuple(tuple(range(a, a + n)) for a, n in zip(m.body_jntadr, m.body_jntnum, strict=True))

    @cached_property
    def rest(self) -> np.ndarray:
        return matrices(self.model.body_quat)

    @cached_property
    def world(self) -> np.ndarray:
        return self.data.xmat.reshape(-1, 3, 3)

    @cached_property
    def axes(self) -> dict[str, np.ndarray]:
        """Axes of geoms and sites in their bodies, (n, 3, 3)."""
        return {kind: matrices(getattr(self.model, f"{kind}_quat")) for kind in ("geom", "site")}

    @cached_property
    def inertia(self) -> np.ndarray:
        """Inertia tensors about the centres of mass, in the bodies' axes, (nbody, 3, 3)."""
        axes = matrices(self.model.body_iquat)
        return np.einsum("bik,bk,bjk->bij", axes, self.model.body_inertia, axes)

    @cached_property
    def size(self) -> float:
        """A length that says what is far: the largest distance between moving bodies' origins and joint anchors.

        Where all of them coincide it is a share of MuJoCo's own measure of the model.
        """
        moving = self.model.body_weldid != 0
        places = (self.data.xipos[moving], self.data.xpos[moving], self.data.xanchor)
        points = np.concatenate(places) if moving.any() else np.zeros((1, 3))
        roots = {int(self.model.body_rootid[b]) for b in np.flatnonzero(moving)}
        spread = max((self._spread(r) for r in roots), default=0.0)
        extent = float(self.model.stat.extent)
        return spread if spread > 1e-9 * extent else max(float(np.ptp(points, axis=0).max()), 1e-3 * extent)

    def _spread(self, root: int) -> float:
        return float(np.ptp(self.data.xipos[self.model.body_rootid == root], axis=0).max())

    @cached_property
    def scalars(self) -> np.ndarray:
        """Slides and hinges, in the model's order."""
        return np.flatnonzero(np.isin(self.model.jnt_type, (SLIDE, HINGE)))

    @cached_property
    def colliding(self) -> np.ndarray:
        """Mask of the geoms that can touch another one, by their bits; all that its shape matters for."""
        m = self.model
        off = DISABLE.CONTACT | DISABLE.CONSTRAINT
        if m.opt.disableflags & off:
            return np.zeros(m.ngeom, bool)
        meet = (m.geom_contype[:, None] & m.geom_conaffinity[None]) != 0
        body = m.body_weldid[m.geom_bodyid]
        meet = (meet | meet.T) & (body[:, None] != body[None])
        colliding = meet.any(1)
        colliding[m.pair_geom1] = colliding[m.pair_geom2] = True
        return colliding

    @cached_property
    def sites_in_use(self) -> np.ndarray:
        """Sites that tendons, actuators or constraints hang on."""
        m = self.model
        wraps = np.isin(m.wrap_type, (WRAP.SPHERE, WRAP.CYLINDER))
        used = set(m.wrap_objid[m.wrap_type == WRAP.SITE].tolist())
        used |= {int(k) for k in m.wrap_prm[wraps] if k >= 0}  # on which side a tendon passes a geom
        for i in range(len(m.actuator_trntype)):
            if m.actuator_trntype[i] in (TRANSMISSION.SITE, TRANSMISSION.SLIDERCRANK):
                used |= {int(k) for k in m.actuator_trnid[i] if k >= 0}
        on_sites = m.eq_objtype == OBJECT.SITE
        used |= {*m.eq_obj1id[on_sites].tolist(), *m.eq_obj2id[on_sites].tolist()}
        return np.array(sorted(used), int)

    @cached_property
    def shaped(self) -> np.ndarray:
        """Mask of the geoms whose shape matters: it collides, a fluid drags it, or a tendon wraps around it."""
        m = self.model
        shaped = self.colliding | (self.in_fluid and m.geom_fluid[:, 0] > 0)
        shaped[m.wrap_objid[np.isin(m.wrap_type, (WRAP.SPHERE, WRAP.CYLINDER))]] = True
        return shaped

    @property
    def in_fluid(self) -> bool:
        return bool(self.model.opt.density > 0 or self.model.opt.viscosity > 0)

    @cached_property
    def constants(self) -> mujoco.MjModel:
        """A copy of the model with the constants that follow from its other numbers computed anew.

        Raises:
            ValueError: MuJoCo can't compute them, for the model was changed in a way that it was not compiled for.
        """
        model = copy.copy(self.model)
        try:
            mujoco.mj_setConst(model, mujoco.MjData(model))
        except mujoco.FatalError as error:
            raise ValueError(f"MuJoCo can't compute this model's constants: {error}; or compile it again") from error
        # What MuJoCo leaves as it was compiled: the boxes of meshes, and bodies alone on the world with a diagonal mass matrix.
        for i in np.flatnonzero(model.geom_type == GEOM.MESH):
            mesh = int(model.geom_dataid[i])
            vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]].astype(float)
            low, high = vertices.min(0), vertices.max(0)
            model.geom_aabb[i] = np.r_[(high + low) / 2, (high - low) / 2]
            model.geom_rbound[i] = np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))
        alone = (model.body_weldid[model.body_parentid] == 0) & ~np.isin(
            np.arange(model.nbody), model.body_parentid[1:]
        )
        model.body_simple[1:] *= alone[1:]
        return model

    @cached_property
    def gravity(self) -> np.ndarray:
        disabled = self.model.opt.disableflags & DISABLE.GRAVITY
        return np.zeros(3) if disabled else self.model.opt.gravity.copy()

    @cached_property
    def vertical(self) -> int:
        """The coordinate axis nearest to gravity; z without any."""
        return int(np.abs(self.gravity).argmax()) if np.abs(self.gravity).max() > 0 else 2


def matrices(quats: np.ndarray) -> np.ndarray:
    """Rotation matrices (n, 3, 3) of unit quaternions (n, 4)."""
    return rotation_matrix(np.asarray(quats, float)).reshape(-1, 3, 3)
