r"""Matching a model's kinematic trees with their image under an isometry.

Let a symmetry carry body b to body c, and their parents p to p'. Q is a body's orientation in its parent, and Rot(a, q) the
turn of a hinge by q about its axis a. The pair matches if

.. math:: M_p\, Q_b\, \mathrm{Rot}(a, q)\, M_b^T = Q_c\, \mathrm{Rot}(a', q')

for all q. In the reference pose that gives :math:`M = Q_c^T M_p Q_b`. A hinge axis is a pseudovector, so
:math:`a' = s \det(M) M a` with a sign s; then :math:`q' = s q + \delta` and :math:`M_b = \mathrm{Rot}(a', -\delta) M`.
Slides keep :math:`M_b = M`, and the axes of consecutive slides map as :math:`M A = A' P`. A free joint allows any M_b.

The match depends on the tree, and on the places and axes of its joints. Masses, centres of mass and inertias only tell apart
limbs whose joints coincide: in a CAD model they are off by some millimetres.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from functools import cached_property

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment

from rppdyn.envs._model_symmetry import (
    BALL,
    DISABLE,
    FREE,
    GEOM,
    HINGE,
    JOINT_TRANSMISSIONS,
    OBJECT,
    SLIDE,
    TRANSMISSION,
    WRAP,
    scalar_joints,
)
from rppdyn.envs._spec import rotation_matrix

AXIS_TOLERANCE = 0.05
"""Largest distance between the unit axes of partners: 3 degrees."""

MIN_ZERO_MISFIT = 0.01
"""A hinge's zero may be shifted if the next joints miss their partners by more than this share of the robot's size."""

MASS_WEIGHT = 1e-3
"""Weight of a difference in masses and centres of mass, beside one in the joints' places."""

MASS_TOLERANCE = 0.05
"""Relative difference in masses and centres of mass that costs nothing."""

SNAP_TOLERANCE = 1e-6
"""Smaller differences, relative to the robot's size, count as zero: models give lengths with a few digits."""

NO_MATCH_COST = 1e6
"""Cost, in an assignment, of two elements that can't be partners."""


@dataclass(frozen=True, eq=False)
class Isometry:
    """A candidate symmetry: x -> R x + t in the world, and M of the trees' roots.

    Args:
        root_maps: M of roots that can turn in the world, in their own axes; those not listed follow from R and `qpos0`.
        keep_roots: M = 1 for all roots that can turn in the world: the world turns, and the robots turn with it.
        swapped: siblings that are exchanged, even if another matching fits better.
    """

    rotation: np.ndarray
    translation: np.ndarray
    root_maps: dict[int, np.ndarray] = field(default_factory=dict)
    keep_roots: bool = False
    swapped: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class TreeMatch:
    """Images of bodies and joints.

    Args:
        bodies: image of each body.
        frames: M of each body.
        joints: image of each joint; of slides that mix, one of their images.
        matrix, shift: theta' = P theta + delta for slides and hinges, theta measured from the reference pose.
        gaps: vector from each body's partner to its image, in the partner's axes, less what a slide makes up for.
        misfit: largest distance of a joint's image from its partner: in place, relative to the robot's size, plus unit axes.
        fixed_misfit: the same over the bodies that are their own partners.
    """

    isometry: Isometry
    bodies: np.ndarray
    frames: np.ndarray
    joints: np.ndarray
    matrix: np.ndarray
    shift: np.ndarray
    gaps: np.ndarray
    misfit: float
    fixed_misfit: float = 0.0

    def image(self, body: int, point: np.ndarray) -> np.ndarray:
        """Image of a point of a body's frame, in the frame of the body's partner."""
        return self.frames[body] @ point + (self.isometry.translation if body == 0 else 0.0)


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rotation matrix about a unit axis."""
    K = np.cross(np.eye(3), axis)
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * (K @ K)


def angle_about(axis: np.ndarray, rotation: np.ndarray) -> float:
    """Angle of a rotation about a unit axis."""
    skew = rotation - rotation.T
    sine = axis @ np.array([skew[2, 1], skew[0, 2], skew[1, 0]]) / 2
    return float(np.arctan2(sine, (np.trace(rotation) - 1) / 2))


JointBlock = tuple[tuple[int, ...], tuple[int, ...], np.ndarray, np.ndarray]
"""(joints of b, their partners on c, P, delta) with theta' = P theta + delta."""


@dataclass
class _Pair:
    """Body b matched with body c: M, joints, misfits, and the pairs of their children."""

    b: int
    c: int
    frame: np.ndarray
    blocks: list[JointBlock]
    gap: np.ndarray
    misfit: float
    mass_gap: float
    children: list[_Pair]


class TreeMatcher:
    """Matches two trees from the root down; every method is about body b and its candidate image c."""

    def __init__(self, skeleton: Skeleton, isometry: Isometry):
        self.s, self.m, self.isometry = skeleton, skeleton.model, isometry
        self.scale = skeleton.size
        self.mass = max(float(self.m.body_mass.sum()), 1e-12)

    def run(self) -> TreeMatch | None:
        """The best matching of bodies under the isometry, or None if the structure differs."""
        pairs = self.match_children(0, 0, self.isometry.rotation)
        if pairs is None:
            return None
        n, joints = self.m.nbody, np.arange(self.m.njnt)
        place = np.full(self.m.njnt, -1)
        place[self.s.scalars] = np.arange(len(self.s.scalars))
        bodies, frames = np.zeros(n, int), np.zeros((n, 3, 3))
        frames[0] = self.isometry.rotation
        matrix, shift = np.zeros((len(self.s.scalars),) * 2), np.zeros(len(self.s.scalars))
        gaps, misfit, fixed_misfit = np.zeros((n, 3)), 0.0, 0.0
        while pairs:
            pair = pairs.pop()
            pairs += pair.children
            bodies[pair.b], frames[pair.b] = pair.c, pair.frame
            gaps[pair.b], misfit = pair.gap, max(misfit, pair.misfit)
            fixed_misfit = max(fixed_misfit, pair.misfit if pair.b == pair.c else 0.0)
            for js, ks, P, delta in pair.blocks:
                joints[list(js)] = ks
                if P.size:
                    rows = place[list(ks)]
                    matrix[np.ix_(rows, place[list(js)])], shift[rows] = P, delta
                    images = np.array(ks)[np.abs(P).argmax(0)]
                    joints[list(js)] = images if len(set(images)) == len(images) else ks
        return TreeMatch(self.isometry, bodies, frames, joints, matrix, shift, gaps, misfit, fixed_misfit)

    def match_children(self, b: int, c: int, frame: np.ndarray) -> list[_Pair] | None:
        """The best matching of the children of b with those of c."""
        left, right = self.s.children[b], self.s.children[c]
        if len(left) != len(right):
            return None
        if not left:
            return []
        pairs = [[self.match_bodies(i, j, frame) for j in right] for i in left]
        cost = np.array([[NO_MATCH_COST if p is None else _total_cost(p) for p in row] for row in pairs])
        # Among equally good matchings prefer the one that moves the fewest bodies. The others are swaps, found separately.
        cost += 1e-9 * (np.array(left)[:, None] != np.array(right)[None])
        if self.isometry.swapped and set(self.isometry.swapped) <= set(left):
            i, j = (left.index(x) for x in self.isometry.swapped)
            cost[np.ix_([i, j], [i, j])] += np.diag([NO_MATCH_COST] * 2)
        rows, columns = linear_sum_assignment(cost)
        if cost[rows, columns].max() >= NO_MATCH_COST:
            return None
        return [pairs[i][j] for i, j in zip(rows, columns, strict=True)]

    def match_bodies(self, b: int, c: int, parent: np.ndarray) -> _Pair | None:
        """The pair (b, c) with all below it, given M of their parents; None if the structure differs."""
        m, at_root = self.m, bool(self.m.body_weldid[self.m.body_parentid[b]] == 0)
        kinds = [[int(m.jnt_type[j]) for j in self.s.joints[x]] for x in (b, c)]
        if kinds[0] != kinds[1] or m.body_mocapid[b] >= 0 > m.body_mocapid[c]:
            return None
        M = self.s.rest[c].T @ parent @ self.s.rest[b]
        if kinds[0] == [FREE]:
            if self.isometry.keep_roots:
                M = np.eye(3)
            elif b in self.isometry.root_maps:
                M = self.isometry.root_maps[b]
            else:
                M = self.s.world[c].T @ self.isometry.rotation @ self.s.world[b]
            blocks: list[JointBlock] = [((self.s.joints[b][0],), (self.s.joints[c][0],), np.zeros((0, 0)), np.zeros(0))]
            gap, axis_gap = np.zeros(3), 0.0
        else:
            offset = self.isometry.translation if at_root and m.body_parentid[b] == 0 else np.zeros(3)
            matched = self.match_joints(b, c, parent, M, offset, at_root)
            if matched is None:
                return None
            M, blocks, gap, axis_gap = matched
        far, mass_gap = float(np.linalg.norm(gap)) / self.scale, self.mass_gap(b, c, M)
        misfit = far + axis_gap if self.can_move[b] else 0.0
        mass_gap += 0.0 if self.can_move[b] else min(far, 1.0)  # places of fixed bodies tell equals apart
        children = self.match_children(b, c, M)
        return None if children is None else _Pair(b, c, M, blocks, gap, misfit, mass_gap, children)

    def match_joints(self, b, c, parent, M, offset, at_root):
        """(M_b, blocks of joints, gap of the anchors, gap of the axes) for bodies that are not free; None if axes differ."""
        m, det = self.m, np.sign(np.linalg.det(M))
        js, ks = self.s.joints[b], self.s.joints[c]
        turning = [i for i, j in enumerate(js) if m.jnt_type[j] in (HINGE, BALL)]
        anchors = [np.zeros(3), np.zeros(3)]
        if turning:
            # A hinge's anchor may lie anywhere along its axis.
            for n, joints in enumerate((js, ks)):
                r, j = m.jnt_pos[joints[turning[0]]], joints[turning[0]]
                a = m.jnt_axis[j] if m.jnt_type[j] == HINGE else np.zeros(3)
                anchors[n] = r - a * (a @ r)
        place_b = m.body_pos[b] + self.s.rest[b] @ anchors[0]
        place_c = m.body_pos[c] + self.s.rest[c] @ anchors[1]
        gap = self.s.rest[c].T @ (parent @ place_b + offset - place_c)
        blocks, axis_gap = [], 0.0
        for is_slide, pairs in itertools.groupby(
            zip(js, ks, strict=True), key=lambda pair: m.jnt_type[pair[0]] == SLIDE
        ):
            if is_slide:  # consecutive slides may mix
                left, right = zip(*pairs, strict=True)
                A, B = m.jnt_axis[list(left)].T, m.jnt_axis[list(right)].T
                P = np.linalg.lstsq(B, M @ A, rcond=None)[0]
                rounded = np.round(P)
                is_near = np.abs(P - rounded).max() < AXIS_TOLERANCE and (np.abs(rounded).sum(0) == 1).all()
                P = rounded if is_near else np.where(np.abs(P - rounded) < SNAP_TOLERANCE, rounded, P)
                axis_gap = max(axis_gap, float(np.linalg.norm(B @ P - M @ A, axis=0).max()))
                delta = np.linalg.lstsq(B, gap, rcond=None)[0]
                gap = gap - B @ delta
                blocks.append((left, right, P, delta))
                continue
            for j, k in pairs:
                if m.jnt_type[j] == HINGE:
                    image = det * (M @ m.jnt_axis[j])
                    sign = 1.0 if image @ m.jnt_axis[k] > 0 else -1.0
                    axis_gap = max(axis_gap, float(np.linalg.norm(image - sign * m.jnt_axis[k])))
                    blocks.append(((j,), (k,), np.array([[sign]]), np.zeros(1)))
                else:
                    blocks.append(((j,), (k,), np.zeros((0, 0)), np.zeros(0)))
        if axis_gap > AXIS_TOLERANCE:
            return None
        if js and m.jnt_type[js[-1]] == HINGE:
            delta = self.zero_shift(b, c, M, m.jnt_axis[ks[-1]], at_root)
            if delta:
                M = rotation_about(m.jnt_axis[ks[-1]], -delta) @ M
                blocks[-1] = (*blocks[-1][:3], np.array([delta]))
        elif js and m.jnt_type[js[-1]] == BALL and at_root and self.isometry.keep_roots:
            M = np.eye(3)
        return M, blocks, gap, axis_gap

    def zero_shift(self, b: int, c: int, M: np.ndarray, axis: np.ndarray, at_root: bool) -> float:
        """delta of the last hinge of b: 0, unless the joints below fit clearly better with another."""
        target = np.eye(3) if self.isometry.keep_roots else self.isometry.root_maps.get(b)
        if at_root and target is not None:
            turn = M @ target.T
            if np.abs(turn @ axis - axis).max() < SNAP_TOLERANCE:
                return angle_about(axis, turn)
        if self.misfit_below(b, c, M) > MIN_ZERO_MISFIT:
            pairs = list(itertools.product(self.next_joints(b), self.next_joints(c)))
            vectors = [(M @ x, y) for (_, x, _), (_, y, _) in pairs] + [(M @ x, y) for (_, _, x), (_, _, y) in pairs]
            angles = [a for v, w in vectors for a in _shift_angles(axis, v, w)]
            # An axis has no direction, so half a turn more fits as well.
            angles += [a - np.pi if a > 0 else a + np.pi for a in angles]
            for angle in sorted(angles, key=abs):
                fits = self.misfit_below(b, c, rotation_about(axis, -angle) @ M) < MIN_ZERO_MISFIT
                if fits and self.is_within_range(b, c, M, axis, angle):
                    return angle
        elif not self.actuated & {self.s.joints[b][-1], self.s.joints[c][-1]}:
            # A pendulum may fit at any delta by its joints; its geoms and masses then decide.
            for angle in _shift_angles(axis, M @ self.lever(b), self.lever(c)):
                turned = rotation_about(axis, -angle) @ M
                fits = self.is_image(b, c, turned) and not self.is_image(b, c, M)
                fits = fits and self.misfit_below(b, c, turned) < SNAP_TOLERANCE
                if fits and self.is_within_range(b, c, M, axis, angle):
                    return angle
        return 0.0

    def next_joints(self, b: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(type, place, axis) of the first joints below b, in b's frame with the anchor of b's last joint as origin."""
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

    def misfit_below(self, b: int, c: int, M: np.ndarray) -> float:
        """Misfit of the first joints below b, carried by M, and those below c."""
        left, right = self.next_joints(b), self.next_joints(c)
        cost = np.full((len(left), len(right)), NO_MATCH_COST)
        for (n, (kind, x, axis)), (k, (kind_c, y, axis_c)) in itertools.product(enumerate(left), enumerate(right)):
            if kind == kind_c:
                gap, image = M @ x - y, M @ axis
                if kind == HINGE:  # its anchor may lie anywhere along its axis
                    gap = gap - axis_c * (axis_c @ gap)
                axis_gap = min(np.linalg.norm(image - axis_c), np.linalg.norm(image + axis_c))
                cost[n, k] = np.linalg.norm(gap) / self.scale + axis_gap
        return float(cost[linear_sum_assignment(cost)].max(initial=0.0))

    @cached_property
    def actuated(self) -> set[int]:
        """Joints that an actuator drives, directly or through a tendon."""
        m = self.m
        on_joint = np.isin(m.actuator_trntype, JOINT_TRANSMISSIONS)
        return {*m.actuator_trnid[on_joint, 0].tolist(), *m.wrap_objid[m.wrap_type == WRAP.JOINT].tolist()}

    def lever(self, b: int) -> np.ndarray:
        """Vector from the anchor of b's last joint to its centre of mass."""
        return self.m.body_ipos[b] - self.m.jnt_pos[self.s.joints[b][-1]]

    def is_image(self, b: int, c: int, M: np.ndarray) -> bool:
        """Check whether M carries geoms, centre of mass and inertia of b onto those of c; False for bodies without geoms."""
        m, origins = self.m, [self.m.jnt_pos[self.s.joints[x][-1]] for x in (b, c)]
        left, right = (np.flatnonzero(m.geom_bodyid == x) for x in (b, c))
        if not len(left) or len(left) != len(right):
            return False
        images = (m.geom_pos[left] - origins[0]) @ M.T
        cost = np.linalg.norm(images[:, None] - (m.geom_pos[right] - origins[1])[None], axis=2)
        cost[m.geom_type[left][:, None] != m.geom_type[right][None]] = NO_MATCH_COST
        inertia = np.abs(M @ self.s.inertia[b] @ M.T - self.s.inertia[c]).max() / np.abs(self.s.inertia[c]).max()
        distance = max(cost[linear_sum_assignment(cost)].max(), np.linalg.norm(M @ self.lever(b) - self.lever(c)))
        return bool(distance < SNAP_TOLERANCE * self.scale and inertia < SNAP_TOLERANCE)

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
    def can_move(self) -> np.ndarray:
        """Mask of the bodies with a joint on them or below them, and of mocap bodies: their places are structure."""
        mask = self.m.body_mocapid >= 0
        for b in range(self.m.nbody - 1, 0, -1):
            mask[b] |= bool(self.s.joints[b])
            mask[self.m.body_parentid[b]] |= mask[b]
        return mask

    def mass_gap(self, b: int, c: int, M: np.ndarray) -> float:
        """Difference of b and c in mass and centre of mass, relative to the robot's mass and size, clipped to [0, 1]."""
        m = self.m
        if m.body_weldid[b] == 0:
            return 0.0
        gap = np.linalg.norm(M @ m.body_ipos[b] - m.body_ipos[c]) / self.scale
        gap += abs(m.body_mass[b] - m.body_mass[c]) / self.mass
        return float(np.clip(gap - MASS_TOLERANCE, 0.0, 1.0))


def _total_cost(pair: _Pair) -> float:
    return pair.misfit + MASS_WEIGHT * pair.mass_gap + sum(map(_total_cost, pair.children))


def _shift_angles(axis: np.ndarray, v: np.ndarray, w: np.ndarray) -> list[float]:
    """[delta] such that Rot(axis, -delta) turns v towards w; [] if v or w lies along the axis."""
    v, w = v - axis * (axis @ v), w - axis * (axis @ w)
    lengths = sorted((float(np.linalg.norm(v)), float(np.linalg.norm(w))))
    if lengths[0] <= SNAP_TOLERANCE * lengths[1]:
        return []
    return [-float(np.arctan2(axis @ np.cross(v, w), v @ w))]


# -- a MuJoCo model's kinematic trees as plain arrays in the reference pose `qpos0` --------------------------------------------


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Bodies, joints and masses of a model; b numbers bodies, j joints.

    Everything is measured in the reference pose `qpos0`, where body b has orientation ``rest[b]`` in its parent and
    ``world[b]`` in the world, (nbody, 3, 3) each. The free body `upright` has the world's axes in its place, on which no motion
    depends.
    """

    model: mujoco.MjModel
    upright: int | None = None
    unpaired: list[str] = field(
        default_factory=list
    )  # elements without a partner in a mirror image that fits the bodies

    @cached_property
    def data(self) -> mujoco.MjData:
        """The model in its reference pose."""
        data = mujoco.MjData(self.model)
        if self.upright is not None:
            data.qpos[self.model.jnt_qposadr[self.model.body_jntadr[self.upright]] + 3 :][:4] = 1, 0, 0, 0
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
        """Size of the largest robot: extent of its bodies' centres of mass along a coordinate axis.

        If they coincide, the extent of all moving bodies and joint anchors, at least a thousandth of MuJoCo's `stat.extent`.
        """
        moving = self.model.body_weldid != 0
        places = (self.data.xipos[moving], self.data.xpos[moving], self.data.xanchor)
        points = np.concatenate(places) if moving.any() else np.zeros((1, 3))
        roots = {int(self.model.body_rootid[b]) for b in np.flatnonzero(moving)}
        extents = (float(np.ptp(self.data.xipos[self.model.body_rootid == root], axis=0).max()) for root in roots)
        spread = max(extents, default=0.0)
        extent = float(self.model.stat.extent)
        return spread if spread > 1e-9 * extent else max(float(np.ptp(points, axis=0).max()), 1e-3 * extent)

    @cached_property
    def scalars(self) -> np.ndarray:
        """Slides and hinges, in the model's order."""
        return np.array(scalar_joints(self.model), int)

    @cached_property
    def colliding(self) -> np.ndarray:
        """Mask of the geoms that can touch another geom, by their contact bits and the pairs of the model."""
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
        """Sites that tendons, actuators or equality constraints use."""
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
        """Mask of the geoms whose shape matters: they collide, a fluid drags them, or a tendon wraps around them."""
        m = self.model
        shaped = self.colliding | (self.in_fluid and m.geom_fluid[:, 0] > 0)
        shaped[m.wrap_objid[np.isin(m.wrap_type, (WRAP.SPHERE, WRAP.CYLINDER))]] = True
        return shaped

    @property
    def in_fluid(self) -> bool:
        return bool(self.model.opt.density > 0 or self.model.opt.viscosity > 0)

    @cached_property
    def constants(self) -> mujoco.MjModel:
        """A copy of the model whose derived constants are recomputed from its other numbers.

        Raises:
            ValueError: MuJoCo can't compute them, because the model was changed after it was compiled.
        """
        model = copy.copy(self.model)
        try:
            mujoco.mj_setConst(model, mujoco.MjData(model))
        except mujoco.FatalError as error:
            raise ValueError(f"MuJoCo can't compute this model's constants: {error}; or compile it again") from error
        # `mj_setConst` leaves the boxes of meshes, and `body_simple` of single bodies, as they were compiled.
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
