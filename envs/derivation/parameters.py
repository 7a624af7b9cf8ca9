"""A model's parameters and their images under a symmetry: what deviates from it.

Structure (the tree, joint types and axes, what actuators drive) has matched; numbers may still differ. Each `Parameter` is
one array of the model, an element's row at a time, with the rule by which the row is carried to the element's partner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from rppdyn.envs.derivation.elements import NONE, Match, image_in_body
from rppdyn.envs.derivation.inertia import carried_inertias, matters
from rppdyn.envs.derivation.shapes import image_size, orientation_gap
from rppdyn.envs.derivation.skeleton import BALL, EQUALITY, GAIN, GEOM, HINGE, SLIDE, Skeleton, name_of
from rppdyn.envs.derivation.trees import rotation_about
from rppdyn.envs.encoding import rotation_matrix
from rppdyn.envs.model_symmetry import Deviation

__all__ = ["Parameter", "actuators", "deviations", "parameters", "shared", "signed_interval"]

TOLERANCE = 1e-9
"""Relative difference from which on a parameter is said to deviate; rounding gives 1e-15."""

Carry = Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Parameter:
    """One parameter of all elements of a kind.

    Args:
        kind, name: "joint", "damping".
        values: (n, k), a row per element.
        partners: where each element goes; -1 for none.
        carry: row i, in the terms of its partner; NaN where the symmetry has no such parameter.
        counts: elements for which it matters, (n,) booleans.
        floor: a size below which differences are relative to this instead; 0 for none.
        attribute: the model's array, where it can simply be written back.
    """

    kind: str
    name: str
    values: np.ndarray
    partners: np.ndarray
    carry: Carry
    counts: np.ndarray
    floor: float = 0.0
    attribute: str = ""

    @property
    def may_deviate(self) -> np.ndarray:
        """Rows that are worth carrying: numbers that partners share need a look only where they differ."""
        if self.carry is not _same:
            return np.ones(len(self.values), bool)
        return (self.partners == NONE) | (self.values != self.values[self.partners]).any(1)

    def image(self, values: np.ndarray) -> np.ndarray:
        """All rows carried to their partners; an element that nothing is carried to keeps its own."""
        found = values.copy()
        for i in np.flatnonzero(self.partners != NONE):
            carried = self.carry(int(i), values[i])
            if np.isfinite(carried).all():
                found[self.partners[i]] = carried
        return found


def deviations(skeleton: Skeleton, match: Match, compared: Iterable[Parameter] | None = None) -> tuple[Deviation, ...]:
    """What keeps a symmetry from being exact, the largest first; of a pair of partners it is said once.

    `compared` stands in for the parameters of a symmetry that keeps the root of each tree.
    """
    found: dict[tuple, Deviation] = {}
    for parameter in parameters(skeleton, match) if compared is None else compared:
        for i in np.flatnonzero(parameter.counts & parameter.may_deviate):
            j = int(parameter.partners[i])
            key = (parameter.kind, parameter.name, frozenset((int(i), j)))
            if key not in found and (one := _deviation(skeleton, parameter, int(i), j)) is not None:
                found[key] = one
    return tuple(sorted([*found.values(), *_sets(skeleton, match)], key=lambda d: -d.relative))


def _deviation(skeleton: Skeleton, parameter: Parameter, i: int, j: int) -> Deviation | None:
    element = name_of(skeleton.model, parameter.kind, i)
    if j == NONE:
        return Deviation(element, "nothing", parameter.name, _text(parameter.values[i]), "at its image", 1.0)
    partner, there = name_of(skeleton.model, parameter.kind, j), parameter.values[j]
    carried = parameter.carry(i, parameter.values[i])
    if np.isnan(carried).any():
        return Deviation(element, partner, parameter.name, "turned", _text(there), 1.0)
    size = max(float(np.linalg.norm(carried)), float(np.linalg.norm(there)), parameter.floor)
    gap = float(np.linalg.norm(carried - there))
    if gap <= TOLERANCE * size:
        return None
    return Deviation(element, partner, parameter.name, _text(carried), _text(there), gap / size)


def _text(values: np.ndarray) -> str:
    return " ".join(f"{x + 0.0:.4g}" for x in np.atleast_1d(np.where(np.abs(values) < 1e-12, 0, values)))


def parameters(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Every parameter that the dynamics depend on."""
    for group in (_joints, _dofs, _bodies, _geoms, _tendons, actuators, _equalities):
        yield from group(skeleton, match)


def _same(i: int, row: np.ndarray) -> np.ndarray:
    return row


def _rows(model, attribute: str) -> np.ndarray | None:
    """The model's array as (n, k) floats; None if this MuJoCo has none of the name."""
    if not hasattr(model, attribute):
        return None
    array = np.asarray(getattr(model, attribute), float)
    return array.reshape(len(array), -1)


def shared(model, kind: str, prefix: str, partners, counts, names: str) -> Iterator[Parameter]:
    """Parameters that partners simply share."""
    for name in names.split():
        if (values := _rows(model, f"{prefix}_{name}")) is not None and len(values):
            yield Parameter(kind, name, values, partners, _same, counts, attribute=f"{prefix}_{name}")


def signed_interval(signs: np.ndarray) -> Carry:
    """[low, high] with its sign: [-high, -low] for -1, nothing for 0 (elements that mix)."""

    def carry(i: int, row: np.ndarray) -> np.ndarray:
        return row if signs[i] > 0 else -row[::-1] if signs[i] < 0 else np.full_like(row, np.nan)

    return carry


# -- joints and degrees of freedom ------------------------------------------------------------------------------------


def _joints(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees = skeleton.model, match.trees
    if not m.njnt:
        return
    scalars, turning = skeleton.scalars, np.isin(m.jnt_type, (HINGE, BALL))
    signs = np.ones(m.njnt)  # 0 where joints mix
    shift, zero = np.zeros(m.njnt), np.where(np.isin(m.jnt_type, (HINGE, SLIDE)), m.qpos0[m.jnt_qposadr], 0.0)
    place = {int(j): n for n, j in enumerate(scalars)}
    for j in scalars:
        column, image = trees.matrix[:, place[int(j)]], place[int(trees.joints[j])]
        signs[j] = np.sign(column[image]) if abs(abs(column[image]) - 1) < 1e-6 else 0.0
        shift[j] = trees.shift[image]

    def about_zero(carry: Carry) -> Carry:
        """Positions are measured from the reference pose, and shifted."""

        def carried(i: int, row: np.ndarray) -> np.ndarray:
            to = trees.joints[i]
            return carry(i, row - zero[i]) + shift[i] + zero[to]

        return carried

    def frame(i: int) -> np.ndarray:
        """M where joint i acts: the shift of a body's last hinge turns the body's frame, but not the joints before it."""
        joints = skeleton.joints[m.jnt_bodyid[i]]
        last = joints[-1]
        M = trees.frames[m.jnt_bodyid[i]]
        if i == last or m.jnt_type[last] != HINGE or not shift[last]:
            return M
        return rotation_about(m.jnt_axis[trees.joints[last]], float(shift[last])) @ M

    def local(i: int, row: np.ndarray) -> np.ndarray:
        return frame(i) @ row

    def across(i: int, row: np.ndarray) -> np.ndarray:
        """The anchor: along a hinge it may lie anywhere, so there the partner's is taken."""
        to, carried = trees.joints[i], local(i, row)
        if m.jnt_type[i] != HINGE:
            return carried
        axis = m.jnt_axis[to]
        return carried + axis * (axis @ (m.jnt_pos[to] - carried))

    def axis(i: int, row: np.ndarray) -> np.ndarray:
        if signs[i] == 0:
            return m.jnt_axis[trees.joints[i]]
        M = frame(i)
        return signs[i] * (np.sign(np.linalg.det(M)) if m.jnt_type[i] == HINGE else 1.0) * (M @ row)

    def spring(i: int, row: np.ndarray) -> np.ndarray:
        if signs[i]:
            return about_zero(lambda i, row: signs[i] * row)(i, row)
        to = place[int(trees.joints[i])]
        offset = m.qpos_spring[m.jnt_qposadr[scalars]] - zero[scalars]
        return np.array([trees.matrix[to] @ offset + trees.shift[to] + zero[trees.joints[i]]])

    def interval(i: int, row: np.ndarray) -> np.ndarray:
        if m.jnt_type[i] == BALL:
            return row
        return about_zero(signed_interval(signs))(i, row)

    limited = m.jnt_limited.astype(bool)
    sprung = m.jnt_stiffness != 0
    if (poly := _rows(m, "jnt_stiffnesspoly")) is not None:
        sprung = sprung | (poly != 0).any(1)
    everywhere, to = np.ones(m.njnt, bool), trees.joints
    springs = m.qpos_spring[m.jnt_qposadr][:, None]
    yield Parameter("joint", "axis", m.jnt_axis.copy(), to, axis, np.isin(m.jnt_type, (HINGE, SLIDE)), 1.0, "jnt_axis")
    yield Parameter("joint", "pos", m.jnt_pos.copy(), to, across, turning, skeleton.size, "jnt_pos")
    yield from shared(m, "joint", "jnt", to, everywhere, "stiffness stiffnesspoly springyield limited actgravcomp")
    yield from shared(m, "joint", "jnt", to, everywhere, "actfrclimited")
    yield Parameter("joint", "range", m.jnt_range.copy(), to, interval, limited, attribute="jnt_range")
    yield from shared(m, "joint", "jnt", to, limited, "margin solref solimp")
    yield Parameter("joint", "springref", springs, to, spring, sprung & np.isin(m.jnt_type, (HINGE, SLIDE)), 1.0)
    forced = m.jnt_actfrclimited.astype(bool)
    yield Parameter("joint", "actfrcrange", m.jnt_actfrcrange.copy(), to, signed_interval(signs), forced,
                    attribute="jnt_actfrcrange")  # fmt: skip


def _dofs(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Armature and friction form diagonal matrices, K' = D K D^T; of each joint the first number that deviates is named."""
    m = skeleton.model
    if not m.nv:
        return
    squares = match.dofs**2
    lossy = m.dof_frictionloss != 0
    for name in ("armature", "damping", "dampingpoly", "frictionloss", "solref", "solimp"):
        if (values := _rows(m, f"dof_{name}")) is None:
            continue
        images = squares @ values
        counts = lossy if name in ("solref", "solimp") else np.ones(m.nv, bool)
        partners = squares.argmax(0)

        def carry(i, row, images=images, values=values, partners=partners):
            # One degree of freedom to one: exactly its own number. Those that mix are compared as a whole.
            if abs(squares[partners[i], i] - 1) < 1e-6:
                return row
            return row + images[partners[i]] - values[i]

        yield Parameter("dof", name, values, partners, carry, counts, attribute=f"dof_{name}")


# -- bodies and geoms -------------------------------------------------------------------------------------------------


def _bodies(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees = skeleton.model, match.trees
    moving, to = m.body_weldid != 0, trees.bodies
    carried = carried_inertias(skeleton, trees)
    counts = matters(skeleton, trees, carried)
    holds = np.zeros(m.nbody, bool)  # something whose place matters
    holds[m.geom_bodyid[skeleton.shaped]] = True
    holds[m.body_parentid[moving]] = True
    holds |= moving
    holds[0] = False
    place_there = np.einsum("bij,bj->bi", skeleton.rest[to], trees.gaps) + m.body_pos[to]
    parents = trees.frames[m.body_parentid]
    fixed = place_there - np.einsum("bij,bj->bi", parents, m.body_pos)

    def place(i: int, row: np.ndarray) -> np.ndarray:
        return parents[i] @ row + fixed[i]

    def local(i: int, row: np.ndarray) -> np.ndarray:
        return trees.frames[i] @ row

    def tensor(i: int, row: np.ndarray) -> np.ndarray:
        return (trees.frames[i] @ row.reshape(3, 3) @ trees.frames[i].T).ravel()

    free = np.array([bool(js) and m.jnt_type[js[0]] == mujoco.mjtJoint.mjJNT_FREE for js in skeleton.joints])
    tensors = skeleton.inertia.reshape(-1, 9)
    yield Parameter("body", "pos", m.body_pos.copy(), to, place, holds & ~free, skeleton.size, "body_pos")
    yield Parameter("body", "mass", m.body_mass[:, None].copy(), to, _same, counts)
    yield Parameter("body", "com", m.body_ipos.copy(), to, local, counts, skeleton.size)
    yield Parameter("body", "inertia", tensors, to, tensor, counts)
    yield from shared(m, "body", "body", to, moving, "gravcomp")


def _geoms(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees, to = skeleton.model, match.trees, match.geoms
    if not m.ngeom:
        return
    shaped, colliding = skeleton.shaped, skeleton.colliding
    measured = ~np.isin(m.geom_type, (GEOM.PLANE, GEOM.HFIELD, GEOM.MESH))

    def place(i: int, row: np.ndarray) -> np.ndarray:
        body = m.geom_bodyid[i]
        position = trees.frames[body] @ row + (trees.isometry.translation if body == 0 else 0.0)
        if m.geom_type[i] == GEOM.PLANE:
            there = m.geom_pos[to[i]]
            normal = rotation_matrix(m.geom_quat[to[i]]).reshape(3, 3)[:, 2]
            return there + normal * (normal @ (position - there))
        return position

    def turned(i: int, row: np.ndarray) -> np.ndarray:
        """A length: how far surfaces are apart because the axes are turned."""
        return np.array(
            [orientation_gap(skeleton, "geom", i, int(to[i]), image_in_body(skeleton, trees, "geom", i)[2])]
        )

    def size(i: int, row: np.ndarray) -> np.ndarray:
        return image_size(skeleton, i, int(to[i]), image_in_body(skeleton, trees, "geom", i)[2], row)

    nowhere = np.zeros((m.ngeom, 1))
    yield Parameter("geom", "pos", m.geom_pos.copy(), to, place, shaped, skeleton.size, "geom_pos")
    yield Parameter("geom", "size", m.geom_size.copy(), to, size, shaped & measured, attribute="geom_size")
    yield Parameter("geom", "orientation", nowhere, to, turned, shaped & (to != NONE), skeleton.size)
    names = "friction condim contype conaffinity priority solmix solref solimp margin gap adhesion"
    yield from shared(m, "geom", "geom", to, colliding & (to != NONE), names)
    yield from shared(m, "geom", "geom", to, shaped & ~colliding & (to != NONE), "fluid")


# -- tendons, actuators, constraints ----------------------------------------------------------------------------------


def _tendons(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, to, signs = skeleton.model, match.tendons, match.tendon_signs
    if not m.ntendon:
        return
    everywhere, limited = np.ones(m.ntendon, bool), m.tendon_limited.astype(bool)
    lossy, sprung = m.tendon_frictionloss != 0, m.tendon_stiffness != 0
    yield from shared(m, "tendon", "tendon", to, everywhere, "stiffness stiffnesspoly damping dampingpoly frictionloss")
    yield from shared(m, "tendon", "tendon", to, everywhere, "armature springyield limited")
    yield Parameter(
        "tendon", "range", m.tendon_range.copy(), to, signed_interval(signs), limited, attribute="tendon_range"
    )
    yield from shared(m, "tendon", "tendon", to, limited, "margin solref_lim solimp_lim")
    yield from shared(m, "tendon", "tendon", to, lossy, "solref_fri solimp_fri")
    yield Parameter("tendon", "springlength", m.tendon_lengthspring.copy(), to, signed_interval(signs), sprung,
                    attribute="tendon_lengthspring")  # fmt: skip
    size = np.array([[np.linalg.norm(m.wrap_prm[a : a + n])] for a, n in zip(m.tendon_adr, m.tendon_num, strict=True)])
    yield Parameter("tendon", "coef", size, to, _same, everywhere)


def actuators(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, to, signs = skeleton.model, match.actuators, match.actuator_signs
    n = len(to)
    if not n:
        return

    def affine(*flipped: int) -> Carry:
        """Force' = sign force: the gain's terms in length and velocity and the bias's constant change sign."""

        def carry(i: int, row: np.ndarray) -> np.ndarray:
            row = row.copy()
            if signs[i] < 0:
                row[list(flipped)] *= -1
            return row

        return carry

    everywhere = np.ones(n, bool)
    gears = np.linalg.norm(m.actuator_gear, axis=1)[:, None]
    yield Parameter("actuator", "gear", gears, to, _same, everywhere)
    for name, flag in (("ctrlrange", "ctrllimited"), ("forcerange", "forcelimited"), ("actrange", "actlimited")):
        yield from shared(m, "actuator", "actuator", to, everywhere, flag)
        ranges, counts = np.array(getattr(m, f"actuator_{name}")), getattr(m, f"actuator_{flag}").astype(bool)
        if len(ranges) == n:
            yield Parameter("actuator", name, ranges, to, signed_interval(signs), counts, attribute=f"actuator_{name}")
    yield Parameter("actuator", "gainprm", m.actuator_gainprm.copy(), to, affine(1, 2), everywhere,
                    attribute="actuator_gainprm")  # fmt: skip
    yield Parameter("actuator", "biasprm", m.actuator_biasprm.copy(), to, affine(0), everywhere,
                    attribute="actuator_biasprm")  # fmt: skip
    yield from shared(
        m, "actuator", "actuator", to, everywhere, "dynprm cranklength armature damping dampingpoly delay"
    )
    lengths = m.actuator_lengthrange.copy()
    muscle = m.actuator_gaintype == GAIN.MUSCLE
    yield Parameter(
        "actuator", "lengthrange", lengths, to, signed_interval(signs), muscle, attribute="actuator_lengthrange"
    )


def _equalities(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, to, trees = skeleton.model, match.equalities, match.trees
    if not m.neq:
        return
    place = {int(j): n for n, j in enumerate(skeleton.scalars)}

    def sign(k: int, i: int) -> float:
        if i < 0:
            return 1.0
        if m.eq_type[k] == EQUALITY.TENDON:
            return match.tendon_signs[i]
        return float(np.sign(trees.matrix[place[int(trees.joints[i])], place[i]]))

    def data(k: int, row: np.ndarray) -> np.ndarray:
        kind, (a, b) = int(m.eq_type[k]), (int(m.eq_obj1id[k]), int(m.eq_obj2id[k]))
        row = row.copy()
        if kind in (EQUALITY.JOINT, EQUALITY.TENDON):
            row[0] *= sign(k, a)
            if b >= 0:  # y = sum_n c_n x^n, otherwise y = c_0
                row[1:5] *= sign(k, a) * sign(k, b) ** np.arange(1, 5)
        elif m.eq_objtype[k] == mujoco.mjtObj.mjOBJ_BODY:
            A, B = trees.frames[a], trees.frames[b]
            first, second = (A, B) if kind == EQUALITY.CONNECT else (B, A)
            row[:3], row[3:6] = first @ row[:3], second @ row[3:6]
            if kind == EQUALITY.WELD:
                there = rotation_matrix(m.eq_data[to[k], 6:10])
                here = (A @ rotation_matrix(row[6:10]).reshape(3, 3) @ B.T).ravel()
                row[6:10] = m.eq_data[to[k], 6:10] if np.abs(here - there).max() < 1e-6 else np.nan
        return row

    yield Parameter("equality", "data", m.eq_data.copy(), to, data, np.ones(m.neq, bool), attribute="eq_data")
    yield from shared(m, "equality", "eq", to, to != NONE, "solref solimp active0")


# -- what is no element's ---------------------------------------------------------------------------------------------


def _sets(skeleton: Skeleton, match: Match) -> Iterator[Deviation]:
    """Gravity and wind, which have a direction; pairs of geoms and of bodies that have their own rule of contact."""
    m, R = skeleton.model, match.trees.isometry.rotation
    for name, vector in (("gravity", skeleton.gravity), ("wind", m.opt.wind if skeleton.in_fluid else np.zeros(3))):
        gap, size = np.linalg.norm(R @ vector - vector), np.linalg.norm(vector)
        if gap > TOLERANCE * size:
            yield Deviation("the world", "the world", name, _text(R @ vector), _text(vector), float(gap / size))
    bodies, geoms = match.trees.bodies, match.geoms
    excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in m.exclude_signature}
    kept = {frozenset(pair) for pair in excluded}
    for a, b in excluded:
        if frozenset((int(bodies[a]), int(bodies[b]))) not in kept:
            one, two = (name_of(m, "body", x) for x in (a, b))
            yield Deviation(one, two, "exclude", "for this pair", "not for its image", 1.0)
    kept = {frozenset(pair) for pair in zip(m.pair_geom1.tolist(), m.pair_geom2.tolist(), strict=True)}
    for a, b in (tuple(pair) * (2 // len(pair)) for pair in kept):
        if frozenset((int(geoms[a]), int(geoms[b]))) not in kept:
            one, two = (name_of(m, "geom", x) for x in (a, b))
            yield Deviation(one, two, "contact pair", "for this pair", "not for its image", 1.0)
