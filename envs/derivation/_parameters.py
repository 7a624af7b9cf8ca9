"""Parameters of a model, their images under a symmetry, and the deviations between the two.

The structure (tree, joint types and axes, driven joints) has matched; numbers may still differ. A `Parameter` is an array
of the model with a row per element, and the rule that carries a row to the element's partner. A test checks that every array of
the installed MuJoCo is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.polynomial import Polynomial

from rppdyn.envs._model_symmetry import (
    BALL,
    BIAS,
    DISABLE,
    DYNAMICS,
    EQUALITY,
    FREE,
    GAIN,
    GEOM,
    HINGE,
    JOINT_TRANSMISSIONS,
    OBJECT,
    SLIDE,
    TRANSMISSION,
    WRAP,
    Deviation,
    control_addresses,
    name_of,
)
from rppdyn.envs._spec import rotation_matrix
from rppdyn.envs.derivation._elements import (
    NONE,
    Match,
    active_gear,
    carried_inertias,
    image_in_body,
    image_size,
    images_of_objects,
    inertia_differs,
    orientation_gap,
    position_offsets,
    pseudo_inertias,
    tendon_coefficients,
    tendon_path,
    turned_in_parents,
)
from rppdyn.envs.derivation._trees import Skeleton, TreeMatch, rotation_about

DEVIATION_TOLERANCE = 1e-9
"""Relative difference above which a parameter deviates; rounding gives 1e-15."""

STALE_TOLERANCE = 1e-6
"""Relative difference above which a constant is not what MuJoCo computes; rounding gives 1e-12."""

TINY = np.finfo(float).tiny
"""Avoids a division by zero."""

SHARED = {
    "joint": {
        "always": "jnt_limited jnt_actgravcomp jnt_actfrclimited",
        "limited": "jnt_margin jnt_solref jnt_solimp",
    },
    "body": {"moving": "body_gravcomp"},
    "geom": {
        "colliding": "geom_friction geom_condim geom_contype geom_conaffinity geom_priority geom_solmix geom_solref "
        "geom_solimp geom_margin geom_gap geom_adhesion",
    },
    "pair": {
        "always": "pair_dim pair_friction pair_solref pair_solreffriction pair_solimp pair_margin pair_gap pair_adhesion"
    },
    "tendon": {
        "always": "tendon_stiffness tendon_damping tendon_dampingpoly tendon_frictionloss "
        "tendon_armature tendon_springyield tendon_limited tendon_actfrclimited",
        "limited": "tendon_margin tendon_solref_lim tendon_solimp_lim",
        "lossy": "tendon_solref_fri tendon_solimp_fri",
    },
    "actuator": {
        "always": "actuator_cranklength actuator_armature actuator_damping actuator_delay actuator_history "
        "actuator_actearly actuator_ctrlspec actuator_forcelimited actuator_actlimited",
    },
    "control": {"always": "actuator_ctrllimited"},
    "equality": {"always": "eq_solref eq_solimp eq_active0"},
}
"""Arrays whose rows are equal for partners, by kind of element and the condition on which they count."""

INTERVALS = {
    "joint": {"limited": "jnt_range", "forced": "jnt_actfrcrange"},
    "tendon": {"limited": "tendon_range", "forced": "tendon_actfrcrange", "sprung": "tendon_lengthspring"},
    "actuator": {"forced": "actuator_forcerange", "active": "actuator_actrange", "muscle": "actuator_lengthrange"},
    "control": {"limited": "actuator_ctrlrange"},
}
"""Intervals whose ends are exchanged where the sign of the joint, tendon or actuator is -1; keyed as `SHARED`."""

LENGTHS = ("jnt_range", "tendon_range", "tendon_lengthspring", "actuator_lengthrange")
"""Intervals that shift where a joint's zero does. Intervals of forces, controls and activations don't."""

DCMOTOR, PID = getattr(GAIN, "DCMOTOR", NONE), getattr(GAIN, "PID", NONE)  # that older versions of MuJoCo lack

CONSTANTS = {
    "body": "body_subtreemass body_invweight0",
    "dof": "dof_invweight0 dof_M0 dof_length",
    "tendon": "tendon_length0 tendon_invweight0",
    "actuator": "actuator_acc0 actuator_length0",
}
"""Numbers that `mj_setConst` computes from others; compared only where a model has different ones."""

SHORTCUTS = {
    "body": "body_margin body_contype body_conaffinity body_sameframe body_simple bvh_aabb",
    "geom": "geom_aabb geom_rbound geom_sameframe",
    "site": "site_sameframe",
}
"""Bounds and flags that follow from the shapes. Wrong ones lose contacts or move geoms, so they deviate from any symmetry."""

Carry = Callable[[int, np.ndarray], np.ndarray]
"""(i, row of element i) -> row of its image."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """One parameter of all elements of a kind.

    Args:
        kind, name: "joint", "damping".
        values: (n, k), a row per element.
        partners: index of each element's partner, `NONE` if it has none.
        carry: (i, row i) -> its image, comparable with the partner's row; NaN where the image can't be expressed.
        counts: mask of the elements for which the parameter matters, (n,).
        floor: differences are relative to the larger row's norm, or to this if it is larger.
        attribute: the model's array, if means can be written to it; otherwise "".
    """

    kind: str
    name: str
    values: np.ndarray
    partners: np.ndarray
    carry: Carry
    counts: np.ndarray
    floor: float = 0.0
    attribute: str = ""

    def image(self, values: np.ndarray) -> np.ndarray:
        """Carry all rows to their partners; a row that is no image stays as it is."""
        image = values.copy()
        for i in np.flatnonzero(self.partners != NONE):
            carried = self.carry(int(i), values[i])
            if np.isfinite(carried).all():
                image[self.partners[i]] = carried
        return image


def deviations(skeleton: Skeleton, match: Match) -> tuple[Deviation, ...]:
    """Deviations that keep a symmetry from being exact, the largest first, one per parameter and pair of partners."""
    by_pair: dict[tuple, Deviation] = {}
    for parameter in parameters(skeleton, match):
        differs = (parameter.values != parameter.values[parameter.partners]).any(1)
        compared = (parameter.partners == NONE) | (parameter.carry is not _identity) | differs
        for i in np.flatnonzero(parameter.counts & compared):
            j = int(parameter.partners[i])
            key = (parameter.kind, parameter.name, frozenset((int(i), j)))
            if key not in by_pair and (deviation := _deviation(skeleton, parameter, int(i), j)) is not None:
                by_pair[key] = deviation
    return tuple(sorted([*by_pair.values(), *_world_deviations(skeleton, match)], key=lambda d: -d.relative))


def _deviation(skeleton: Skeleton, parameter: Parameter, i: int, j: int) -> Deviation | None:
    element = name_of(skeleton.model, parameter.kind, i)
    if j == NONE:
        return Deviation(element, "nothing", parameter.name, _text(parameter.values[i]), "at its image", 1.0)
    partner, row = name_of(skeleton.model, parameter.kind, j), parameter.values[j]
    carried = parameter.carry(i, parameter.values[i])
    if np.isnan(carried).any():
        return Deviation(element, partner, parameter.name, "turned", _text(row), 1.0)
    size = max(float(np.linalg.norm(carried)), float(np.linalg.norm(row)), parameter.floor)
    gap = float(np.linalg.norm(carried - row))
    if gap <= DEVIATION_TOLERANCE * size:
        return None
    return Deviation(element, partner, parameter.name, _text(carried), _text(row), gap / size)


def _text(values: np.ndarray) -> str:
    return " ".join(f"{x + 0.0:.4g}" for x in np.atleast_1d(np.where(np.abs(values) < 1e-12, 0, values)))


def parameters(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Every parameter that the dynamics depend on."""
    elements = (_joints, _dofs, _bodies, _geoms, _contact_pairs, _sites, _tendons, _actuators, _equalities)
    for group in (*elements, _constants, _shortcuts):
        yield from group(skeleton, match)


def _identity(i: int, row: np.ndarray) -> np.ndarray:
    return row


def _rows(model, attribute: str) -> np.ndarray | None:
    """An array of the model as (n, k) floats; None if this MuJoCo has no such array, or the model no such element."""
    if not hasattr(model, attribute):
        return None
    array = np.asarray(getattr(model, attribute), float)
    return array.reshape(len(array), -1) if array.size else None


def array_parameter(m, kind: str, field: str, partners, counts, carry: Carry = _identity, floor=0.0) -> Parameter:
    """The parameter that one array of the model holds."""
    name, values = field.split("_", 1)[1], np.asarray(getattr(m, field), float)
    return Parameter(kind, name, values.reshape(len(values), -1), partners, carry, counts, floor, field)


def array_parameters(m: mujoco.MjModel, kind: str, partners, counts, fields: str) -> Iterator[Parameter]:
    """A parameter for each named array whose rows are equal for partners."""
    for field in fields.split():
        if _rows(m, field) is not None:
            yield array_parameter(m, kind, field, partners, counts)


def shared_parameters(m: mujoco.MjModel, kind: str, partners, **counts: np.ndarray) -> Iterator[Parameter]:
    """The parameters that `SHARED` lists for a kind, given the mask of each condition."""
    for condition, fields in SHARED[kind].items():
        yield from array_parameters(m, kind, partners, counts[condition], fields)


def interval_parameters(
    m: mujoco.MjModel, kind: str, partners, signs, offsets: np.ndarray | None = None, **counts: np.ndarray
) -> Iterator[Parameter]:
    """The parameters that `INTERVALS` lists for a kind, given offsets of lengths and the mask of each condition."""
    for condition, field in INTERVALS[kind].items():
        if (values := _rows(m, field)) is not None and len(values) == len(partners):
            carry = signed_interval(signs, partners, offsets if field in LENGTHS else None)
            yield array_parameter(m, kind, field, partners, counts[condition], carry)


def plugin_parameters(m: mujoco.MjModel, kind: str, partners, counts: np.ndarray) -> Iterator[Parameter]:
    """The plugin of each element, numbered so that equal plugins with equal attributes have one number."""
    if m.nplugin and (instances := _rows(m, f"{kind}_plugin")) is not None:
        ends = [*m.plugin_attradr[1:].tolist(), len(m.plugin_attr)]
        text = [bytes(np.asarray(m.plugin_attr[a:z], np.uint8)) for a, z in zip(m.plugin_attradr, ends, strict=True)]
        known = [*zip(m.plugin.tolist(), text, strict=True)]
        values = np.array([[NONE if i < 0 else known.index(known[int(i)])] for i in instances[:, 0]], float)
        yield Parameter(kind, "plugin", values, partners, _identity, counts & (partners != NONE))


def signed_interval(signs: np.ndarray, partners: np.ndarray, offsets: np.ndarray | None = None) -> Carry:
    """Carry [low, high] to itself for sign 1, to [-high, -low] for -1, and to NaN for 0 (elements that mix).

    The partner's offset is added.
    """

    def carry(i: int, row: np.ndarray) -> np.ndarray:
        image = row if signs[i] > 0 else -row[::-1] if signs[i] < 0 else np.full_like(row, np.nan)
        return image if offsets is None else image + offsets[partners[i]]

    return carry


def diagonal(matrix: np.ndarray, values: np.ndarray, partners: np.ndarray) -> Carry:
    """Carry the rows of diagonal matrices K to those of D K D^T."""
    images = matrix**2 @ values

    def carry(i: int, row: np.ndarray) -> np.ndarray:
        # An element with one image keeps its exact number; those that mix are compared by D K D^T.
        return row if abs(matrix[partners[i], i] ** 2 - 1) < 1e-6 else row + images[partners[i]] - values[i]

    return carry


def nonlinear_parameters(m: mujoco.MjModel, kind: str, fields: str, partners, signs) -> Iterator[Parameter]:
    """Coefficients of springs k_2 x^2 + k_3 x^3, of dampers in |v|, of plastic yield and of dry friction.

    Powers of x have powers of the sign. Where elements mix (sign 0), such a force has no image.
    """
    for parameter in array_parameters(m, kind, partners, np.ones(len(partners), bool), fields):
        powers = 1 + np.arange(parameter.values.shape[1]) if parameter.name == "stiffnesspoly" else 0

        def carry(i: int, row: np.ndarray, powers=powers) -> np.ndarray:
            return row * signs[i] ** powers if signs[i] else np.where(row.any(), np.nan, row)

        yield replace(parameter, carry=carry)


# -- joints and degrees of freedom ------------------------------------------------------------------------------------


def _joints(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees = skeleton.model, match.trees
    if not m.njnt:
        return
    scalars, turning = skeleton.scalars, np.isin(m.jnt_type, (HINGE, BALL))
    matrix, offsets, shift = np.zeros((m.njnt, m.njnt)), np.zeros(m.njnt), np.zeros(m.njnt)
    matrix[trees.joints, np.arange(m.njnt)] = 1.0
    matrix[np.ix_(scalars, scalars)] = trees.matrix
    offsets[scalars], shift[scalars] = position_offsets(skeleton, trees), trees.shift
    signs = _signs(matrix, trees.joints)

    def frame(i: int) -> np.ndarray:
        """M for joint i: the shift of a body's last hinge turns the body's frame, but not the axes of its other joints."""
        joints = skeleton.joints[m.jnt_bodyid[i]]
        last, image = joints[-1], trees.joints[joints[-1]]
        M = trees.frames[m.jnt_bodyid[i]]
        if i == last or m.jnt_type[last] != HINGE or not shift[image]:
            return M
        return rotation_about(m.jnt_axis[image], float(shift[image])) @ M

    def anchor(i: int, row: np.ndarray) -> np.ndarray:
        """Image of the anchor; along a hinge's axis, where it does not matter, the partner's place."""
        partner, carried = trees.joints[i], frame(i) @ row
        if m.jnt_type[i] != HINGE:
            return carried
        axis = m.jnt_axis[partner]
        return carried + axis * (axis @ (m.jnt_pos[partner] - carried))

    def axis(i: int, row: np.ndarray) -> np.ndarray:
        if signs[i] == 0:
            return m.jnt_axis[trees.joints[i]]
        M = frame(i)
        return signs[i] * (np.sign(np.linalg.det(M)) if m.jnt_type[i] == HINGE else 1.0) * (M @ row)

    def spring(i: int, row: np.ndarray) -> np.ndarray:
        """Image of a spring's reference position; where joints mix, by their matrix."""
        j = trees.joints[i]
        return (signs[i] * row if signs[i] else matrix[j] @ springs) + offsets[j]

    limited = m.jnt_limited.astype(bool)
    sprung = m.jnt_stiffness != 0
    if (poly := _rows(m, "jnt_stiffnesspoly")) is not None:
        sprung = sprung | (poly != 0).any(1)
    everywhere, partners = np.ones(m.njnt, bool), trees.joints
    springs = m.qpos_spring[m.jnt_qposadr][:, None]
    is_scalar = np.isin(m.jnt_type, (HINGE, SLIDE))
    masks = {"limited": limited, "forced": m.jnt_actfrclimited.astype(bool)}
    mixed = diagonal(matrix, m.jnt_stiffness[:, None], partners)
    yield array_parameter(m, "joint", "jnt_axis", partners, is_scalar, axis, 1.0)
    yield array_parameter(m, "joint", "jnt_pos", partners, turning, anchor, skeleton.size)
    yield from shared_parameters(m, "joint", partners, always=everywhere, limited=limited)
    yield from interval_parameters(m, "joint", partners, signs, offsets, **masks)
    yield array_parameter(m, "joint", "jnt_stiffness", partners, everywhere, mixed)
    yield from nonlinear_parameters(m, "joint", "jnt_stiffnesspoly jnt_springyield", partners, signs)
    yield Parameter("joint", "springref", springs, partners, spring, sprung & is_scalar, 1.0)
    yield from _spring_poses(skeleton, trees, sprung)


def _spring_poses(skeleton: Skeleton, trees: TreeMatch, sprung: np.ndarray) -> Iterator[Parameter]:
    """Rest poses of the springs of free and ball joints: a position in the world, and an orientation as a matrix."""
    m, R = skeleton.model, trees.isometry.rotation
    free = m.jnt_type == FREE
    counts = sprung & (free | (m.jnt_type == BALL))
    if not counts.any():
        return
    places, axes = np.zeros((m.njnt, 3)), np.zeros((m.njnt, 9))
    for j in np.flatnonzero(counts):
        a = int(m.jnt_qposadr[j])
        places[j] = m.qpos_spring[a : a + 3] if free[j] else 0.0
        a += 3 * free[j]
        axes[j] = rotation_matrix(m.qpos_spring[a : a + 4]).ravel()

    def orientation(i: int, row: np.ndarray) -> np.ndarray:
        b, c = m.jnt_bodyid[i], m.jnt_bodyid[trees.joints[i]]
        outer = R if free[i] else skeleton.rest[c].T @ trees.frames[m.body_parentid[b]] @ skeleton.rest[b]
        return (outer @ row.reshape(3, 3) @ trees.frames[b].T).ravel()

    partners = trees.joints
    yield Parameter("joint", "spring position", places, partners, lambda i, row: R @ row + trees.isometry.translation,
                    counts & free, skeleton.size)  # fmt: skip
    yield Parameter("joint", "spring orientation", axes, partners, orientation, counts, 1.0)


def _signs(matrix: np.ndarray, partners: np.ndarray) -> np.ndarray:
    """Sign of each element's partner in its image, 0 where elements mix."""
    entries = matrix[partners, np.arange(len(partners))]
    return np.where(np.abs(np.abs(entries) - 1) < 1e-6, np.sign(entries), 0.0)


def _dofs(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Armature and damping: diagonal matrices K with K' = D K D^T."""
    m = skeleton.model
    if not m.nv:
        return
    lossy, partners = m.dof_frictionloss != 0, (match.dofs**2).argmax(0)
    for name in ("armature", "damping", "solref", "solimp"):
        counts = lossy if name in ("solref", "solimp") else np.ones(m.nv, bool)
        carry = diagonal(match.dofs, getattr(m, f"dof_{name}").reshape(m.nv, -1), partners)
        yield array_parameter(m, "dof", f"dof_{name}", partners, counts, carry)
    signs = _signs(match.dofs, partners)
    yield from nonlinear_parameters(m, "dof", "dof_dampingpoly dof_frictionloss", partners, signs)


# -- bodies and geoms -------------------------------------------------------------------------------------------------


def _bodies(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees = skeleton.model, match.trees
    moving, partners = m.body_weldid != 0, trees.bodies
    carried = carried_inertias(trees, pseudo_inertias(skeleton))
    counts = inertia_differs(skeleton, trees, carried)
    placed = moving.copy()  # bodies whose place matters
    placed[m.geom_bodyid[skeleton.shaped]] = True
    placed[m.body_parentid[moving]] = True
    placed[0] = False
    image_places = np.einsum("bij,bj->bi", skeleton.rest[partners], trees.gaps) + m.body_pos[partners]
    parents = trees.frames[m.body_parentid]
    offsets = image_places - np.einsum("bij,bj->bi", parents, m.body_pos)

    M = trees.frames
    place = lambda i, row: parents[i] @ row + offsets[i]  # noqa: E731
    local = lambda i, row: M[i] @ row  # noqa: E731
    tensor = lambda i, row: (M[i] @ row.reshape(3, 3) @ M[i].T).ravel()  # noqa: E731
    free = np.array([bool(js) and m.jnt_type[js[0]] == FREE for js in skeleton.joints])
    tensors = skeleton.inertia.reshape(-1, 9)
    yield array_parameter(m, "body", "body_pos", partners, placed & ~free, place, skeleton.size)
    yield Parameter("body", "mass", m.body_mass[:, None].copy(), partners, _identity, counts)
    yield Parameter("body", "com", m.body_ipos.copy(), partners, local, counts, skeleton.size)
    yield Parameter("body", "inertia", tensors, partners, tensor, counts)
    yield from shared_parameters(m, "body", partners, moving=moving)
    yield from plugin_parameters(m, "body", partners, np.ones(m.nbody, bool))
    if m.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        policy = np.r_[m.tree_sleep_policy, 0][m.body_treeid][:, None].astype(float)
        yield Parameter("body", "sleep", policy, partners, _identity, m.body_parentid == 0)


def _geoms(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, trees, partners = skeleton.model, match.trees, match.geoms
    if not m.ngeom:
        return
    shaped, colliding = skeleton.shaped, skeleton.colliding
    has_size = ~np.isin(m.geom_type, (GEOM.PLANE, GEOM.HFIELD, GEOM.MESH))

    def place(i: int, row: np.ndarray) -> np.ndarray:
        position = trees.image(m.geom_bodyid[i], row)
        if m.geom_type[i] == GEOM.PLANE:
            partner, normal = m.geom_pos[partners[i]], skeleton.axes["geom"][partners[i]][:, 2]
            return partner + normal * (normal @ (position - partner))
        return position

    def axes(i: int) -> np.ndarray:
        return image_in_body(skeleton, trees, "geom", i)[1]

    turn = lambda i, row: np.array([orientation_gap(skeleton, i, int(partners[i]), axes(i))])  # noqa: E731
    size = lambda i, row: image_size(skeleton, i, int(partners[i]), axes(i), row)  # noqa: E731

    def drag(i: int, row: np.ndarray) -> np.ndarray:
        """Six coefficients, then virtual masses and inertias along the axes."""
        return np.r_[row[:6], size(i, row[6:9]), size(i, row[9:])]

    def velocity(i: int, row: np.ndarray) -> np.ndarray:
        W = skeleton.axes["geom"][partners[i]].T @ axes(i)
        return np.r_[W @ row[:3], np.sign(np.linalg.det(W)) * (W @ row[3:])]

    paired = partners != NONE
    yield array_parameter(m, "geom", "geom_pos", partners, shaped, place, skeleton.size)
    yield array_parameter(m, "geom", "geom_size", partners, shaped & has_size & paired, size)
    yield Parameter("geom", "orientation", np.zeros((m.ngeom, 1)), partners, turn, shaped & paired, skeleton.size)
    yield from shared_parameters(m, "geom", partners, colliding=colliding & paired)
    if skeleton.in_fluid:
        yield array_parameter(m, "geom", "geom_fluid", partners, shaped & paired, drag)
    if (moving := _rows(m, "geom_surfacevel")) is not None:
        counts = colliding & paired & (moving.any(1) | moving[partners].any(1))
        yield Parameter("geom", "surfacevel", moving, partners, velocity, counts)
    yield from plugin_parameters(m, "geom", partners, colliding & paired)


def _contact_pairs(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Explicit contact pairs; the partner of a pair is the pair of the geoms' images, in either order."""
    m, geom_images, R = skeleton.model, match.geoms, match.trees.isometry.rotation
    geoms = np.column_stack([m.pair_geom1, m.pair_geom2])
    known = [frozenset(pair) for pair in geoms.tolist()]
    images = [frozenset(geom_images[pair].tolist()) for pair in geoms]
    partners = np.array([known.index(image) if image in known else NONE for image in images], int)

    def friction(i: int, row: np.ndarray) -> np.ndarray:
        """Friction along two tangents, which MuJoCo aligns with the world's y and z axes where it can."""
        same_plane = np.abs(R[1, 1]) > 1 - 1e-9 and np.abs(R[2, 2]) > 1 - 1e-9
        isotropic = row[0] == row[1] and row[3] == row[4]
        return row if isotropic or same_plane else np.full_like(row, np.nan)

    if m.npair:
        paired = partners != NONE
        pair = lambda i, row: geoms[partners[i]]  # noqa: E731
        yield Parameter("pair", "contact pair", geoms.astype(float), partners, pair, np.ones(m.npair, bool))
        yield from shared_parameters(m, "pair", partners, always=paired)
        yield Parameter("pair", "friction", m.pair_friction, partners, friction, paired)


def _sites(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """Places of the sites in use; their orientations are compared with the elements that use them."""
    m, trees = skeleton.model, match.trees

    place = lambda i, row: image_in_body(skeleton, trees, "site", i)[0]  # noqa: E731
    used = np.isin(np.arange(m.nsite), skeleton.sites_in_use)
    if used.any():
        yield array_parameter(m, "site", "site_pos", match.sites, used, place, skeleton.size)


# -- tendons, actuators, constraints ----------------------------------------------------------------------------------


def _tendons(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, partners, signs = skeleton.model, match.tendons, match.tendon_signs
    if not m.ntendon:
        return

    def path(i: int, row: np.ndarray) -> np.ndarray:
        """Side sites and divisors along the partner's path, which may run from the other end."""
        images = tendon_path(m, i, match.sites, match.geoms)
        has_side = [kind in (WRAP.SPHERE, WRAP.CYLINDER) and x >= 0 for (kind, _), x in zip(images, row, strict=False)]
        sides = [match.sites[int(x)] if wraps else x for wraps, x in zip(has_side, row, strict=False)]
        return np.r_[sides if images == tendon_path(m, partners[i]) else sides[::-1], row[len(images) :]]

    everywhere, limited = np.ones(m.ntendon, bool), m.tendon_limited.astype(bool)
    lossy, sprung = m.tendon_frictionloss != 0, m.tendon_stiffness != 0
    if (poly := _rows(m, "tendon_stiffnesspoly")) is not None:
        sprung = sprung | (poly != 0).any(1)
    yield from shared_parameters(m, "tendon", partners, always=everywhere, limited=limited, lossy=lossy)
    fixed = m.wrap_type[m.tendon_adr] == WRAP.JOINT
    rows = tendon_coefficients(skeleton)
    offsets = rows @ position_offsets(skeleton, match.trees)
    masks = {"limited": limited, "forced": m.tendon_actfrclimited.astype(bool), "sprung": sprung}
    yield from interval_parameters(m, "tendon", partners, signs, offsets, **masks)
    yield from nonlinear_parameters(m, "tendon", "tendon_stiffnesspoly", partners, signs)
    yield Parameter("tendon", "coef", rows, partners, lambda i, row: signs[i] * (match.trees.matrix @ row), fixed)
    paths = np.zeros((m.ntendon, int(m.tendon_num.max(initial=0))))  # side site or divisor of each object on the path
    for k, (adr, num) in enumerate(zip(m.tendon_adr, m.tendon_num, strict=True)):
        paths[k, :num] = np.where(m.wrap_type[adr : adr + num] == WRAP.SITE, 0.0, m.wrap_prm[adr : adr + num])
    yield Parameter("tendon", "path", paths, partners, path, ~fixed)


def _actuators(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, partners, signs = skeleton.model, match.actuators, match.actuator_signs
    n = len(partners)
    if not n:
        return

    biases, offsets = m.actuator_biasprm, _length_offsets(skeleton, match)
    dc, pid = m.actuator_gaintype == DCMOTOR, m.actuator_gaintype == PID
    mixes, (adr, num) = signs == 0, control_addresses(m)
    mixing = np.zeros((n, n))  # C of the actuators that mix
    mixing[np.ix_(mixes, mixes)] = match.controls[np.ix_(adr[mixes], adr[mixes])]

    def gain(i: int, row: np.ndarray) -> np.ndarray:
        """(constant, factor of length, factor of velocity, ...): odd in length and velocity under a sign of -1."""
        kind, offset, image = m.actuator_gaintype[i], offsets[partners[i]], row.copy()
        if kind == GAIN.AFFINE and not mixes[i]:
            image[1:3] *= signs[i]
            image[0] -= image[1] * offset if image[1] else 0.0
        # The gain varies with the length and velocity, or with temperature and a limit; a controller holds a position.
        varies = {GAIN.AFFINE: row[1:3], DCMOTOR: row[[2, 3, 7]]}.get(kind, row[:0])
        holds = {DCMOTOR: row[4:6], PID: row[:1]}.get(kind, row[:0])
        breaks = (mixes[i] and varies.any()) or (offset and holds.any()) or (kind == GAIN.MUSCLE and signs[i] <= 0)
        return np.full_like(row, np.nan) if breaks else image

    def bias(i: int, row: np.ndarray) -> np.ndarray:
        """(constant, factor of length, factor of velocity); of DC motors (size, frequency, phase) of cogging, and friction."""
        j, image, shift = partners[i], row.copy(), row[1] * offsets[partners[i]] if row[1] else 0.0
        if m.actuator_biastype[i] == BIAS.AFFINE:
            image[0] = (mixing[j] @ biases[:, 0] if mixes[i] else signs[i] * row[0]) - shift
        elif dc[i] and row[0]:
            image[2] = biases[j, 2] + np.remainder(signs[i] * row[2] - shift - biases[j, 2] + np.pi, 2 * np.pi) - np.pi
        breaks = (m.actuator_biastype[i] == BIAS.MUSCLE and signs[i] <= 0) or (dc[i] and mixes[i] and row.any())
        return np.full_like(row, np.nan) if breaks else image

    def dynamics(i: int, row: np.ndarray) -> np.ndarray:
        """Time constants are equal; a muscle's activation and a motor's temperature have no sign, and limits don't mix."""
        limits = row[1:] if dc[i] else row if pid[i] else row[:0]
        breaks = (mixes[i] and limits.any()) or (signs[i] < 0 and dc[i] and row[2:5].any())
        breaks = breaks or (signs[i] <= 0 and m.actuator_dyntype[i] == DYNAMICS.MUSCLE)
        return np.full_like(row, np.nan) if breaks else row

    everywhere = np.ones(n, bool)
    gears = np.array([[np.linalg.norm(active_gear(m, i))] for i in range(n)])
    gaps, nothing = match.actuator_gaps, np.zeros((n, 1))
    yield Parameter("actuator", "gear", gears, partners, _identity, everywhere)
    yield Parameter("actuator", "direction", nothing, partners, lambda i, row: gaps[i : i + 1], gaps > 1e-6, 1.0)
    masks = {"forced": m.actuator_forcelimited != 0, "active": m.actuator_actlimited != 0}
    masks["muscle"] = (m.actuator_gaintype == GAIN.MUSCLE) | (m.actuator_biastype == BIAS.MUSCLE)
    yield from interval_parameters(m, "actuator", partners, signs, offsets, **masks)
    yield array_parameter(m, "actuator", "actuator_gainprm", partners, everywhere, gain)
    yield array_parameter(m, "actuator", "actuator_biasprm", partners, everywhere, bias)
    yield array_parameter(m, "actuator", "actuator_dynprm", partners, everywhere, dynamics)
    yield from nonlinear_parameters(m, "actuator", "actuator_dampingpoly", partners, signs)
    yield from shared_parameters(m, "actuator", partners, always=everywhere)
    yield from plugin_parameters(m, "actuator", partners, everywhere)
    if m.opt.disableactuator:
        group = np.clip(m.actuator_group, 0, 31)
        off = (m.opt.disableactuator >> group & (group < 31))[:, None].astype(float)
        yield Parameter("actuator", "disabled", off, partners, _identity, everywhere)
    owners = np.repeat(np.arange(n), num)  # actuator of each control
    controls = adr[partners[owners]] + np.arange(m.nu) - adr[owners]
    yield from shared_parameters(m, "control", controls, always=np.ones(m.nu, bool))
    yield from interval_parameters(m, "control", controls, signs[owners], limited=m.actuator_ctrllimited.astype(bool))


def _length_offsets(skeleton: Skeleton, match: Match) -> np.ndarray:
    """o with l' = C l + o for the lengths of actuators, (n,); NaN on a ball joint that is turned against its parent."""
    m, trees = skeleton.model, match.trees
    joints, offsets = np.zeros(m.njnt), np.zeros(len(match.actuators))
    joints[skeleton.scalars] = position_offsets(skeleton, trees)
    turned = np.abs(turned_in_parents(skeleton, trees) - trees.frames).max((1, 2)) > 1e-9
    joints[trees.joints[(m.jnt_type == BALL) & turned[m.jnt_bodyid]]] = np.nan
    tendons = tendon_coefficients(skeleton) @ position_offsets(skeleton, trees)
    for i, (kind, k) in enumerate(zip(m.actuator_trntype, m.actuator_trnid[:, 0], strict=True)):
        if kind in JOINT_TRANSMISSIONS:
            offsets[i] = joints[k] * m.actuator_gear[i, 0] if joints[k] else 0.0
        elif kind == TRANSMISSION.TENDON:
            offsets[i] = tendons[k] * m.actuator_gear[i, 0]
    return offsets


def _equalities(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    m, partners, trees = skeleton.model, match.equalities, match.trees
    if not m.neq:
        return
    place = {int(j): n for n, j in enumerate(skeleton.scalars)}
    tendon_shifts = tendon_coefficients(skeleton) @ trees.shift

    def sign(k: int, i: int) -> tuple[float, float]:
        """(s, d) with x' = s x + d: x a joint's or tendon's position less that in the reference pose; NaN where joints mix."""
        if i < 0:
            return 1.0, 0.0
        if m.eq_type[k] == EQUALITY.TENDON:
            return match.tendon_signs[i], tendon_shifts[match.tendons[i]]
        image = place[int(trees.joints[i])]
        entry = trees.matrix[image, place[i]]
        return np.sign(entry) if abs(abs(entry) - 1) < 1e-6 else np.nan, trees.shift[image]

    def is_swapped(k: int) -> bool:
        """Check whether the partner names the images of k's two objects in the other order."""
        images = images_of_objects(m, k, trees, match.sites, match.tendons)
        return m.eq_obj2id[k] >= 0 and images[m.eq_obj1id[k]] != m.eq_obj1id[partners[k]]

    def polynomial(k: int, row: np.ndarray) -> np.ndarray:
        """Coefficients c of y = sum_n c_n x^n; without a second object, of y = c_0.

        If x and y are swapped, a linear relation is inverted. Errors keep their weight for c_1 = 1 or -1 only.
        """
        a, b = int(m.eq_obj1id[k]), int(m.eq_obj2id[k])
        (s_a, shift_a), (s_b, shift_b) = sign(k, a), sign(k, b)
        image = s_a * Polynomial(row[: 5 if b >= 0 else 1])(Polynomial([-s_b * shift_b, s_b])) + shift_a
        row = np.r_[image.coef, np.zeros(len(row) - len(image.coef))]
        if is_swapped(k):
            if row[2:].any() or abs(row[1]) != 1:
                return np.full_like(row, np.nan)
            row[0] *= -row[1]
        return row

    def data(k: int, row: np.ndarray) -> np.ndarray:
        kind, (a, b) = int(m.eq_type[k]), (int(m.eq_obj1id[k]), int(m.eq_obj2id[k]))
        if kind in (EQUALITY.JOINT, EQUALITY.TENDON):
            return polynomial(k, row)
        carried = np.zeros_like(row)
        carried[10] = row[10] if kind == EQUALITY.WELD else 0.0
        if m.eq_objtype[k] == OBJECT.SITE:
            return carried
        # The first point belongs to the first body of a connection, and to the second body of a weld.
        first, second = (a, b) if kind == EQUALITY.CONNECT else (b, a)
        points = [trees.image(first, row[:3]), trees.image(second, row[3:6])]
        carried[:6] = np.concatenate(points[::-1] if is_swapped(k) else points)
        if kind == EQUALITY.WELD:
            pose = trees.frames[a] @ rotation_matrix(row[6:10]).reshape(3, 3) @ trees.frames[b].T
            mujoco.mju_mat2Quat(quat := np.zeros(4), (pose.T if is_swapped(k) else pose).ravel())
            partner = m.eq_data[partners[k], 6:10] / np.linalg.norm(m.eq_data[partners[k], 6:10])
            carried[6:10] = quat if quat @ partner > 0 else -quat
        return carried

    def in_use(k: int, row: np.ndarray) -> np.ndarray:
        """The row with zeros for numbers that constraints of this type don't use."""
        kind, mask = int(m.eq_type[k]), np.zeros(len(row), bool)
        if kind in (EQUALITY.JOINT, EQUALITY.TENDON):
            mask[: 5 if m.eq_obj2id[k] >= 0 else 1] = True
        elif m.eq_objtype[k] != OBJECT.SITE:
            mask[: 6 if kind == EQUALITY.CONNECT else 11] = True
        mask[10] = kind == EQUALITY.WELD
        return np.where(mask, row, 0.0)

    def weld_turn(k: int, row: np.ndarray) -> np.ndarray:
        """Difference in orientation between the images of two sites that are welded together; 0 for other constraints."""
        if not site_welds[k]:
            return np.zeros(1)
        W = [skeleton.axes["site"][match.sites[i]].T @ image_in_body(skeleton, trees, "site", i)[1]
             for i in (int(m.eq_obj1id[k]), int(m.eq_obj2id[k]))]  # fmt: skip
        return np.array([np.abs(W[0] - W[1]).max()])

    values = np.array([in_use(k, row) for k, row in enumerate(m.eq_data)])
    paired, site_welds = partners != NONE, (m.eq_type == EQUALITY.WELD) & (m.eq_objtype == OBJECT.SITE)
    yield Parameter("equality", "data", values, partners, data, np.ones(m.neq, bool), attribute="eq_data")
    yield Parameter("equality", "orientation", np.zeros((m.neq, 1)), partners, weld_turn, paired & site_welds, 1.0)
    yield from shared_parameters(m, "equality", partners, always=paired)


# -- derived constants, bounds and flags ------------------------------------------------------------------------------


def _constants(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """`CONSTANTS` that differ from MuJoCo's results for the model's other numbers."""
    dofs = (match.dofs**2).argmax(0) if match.dofs.size else np.zeros(0, int)
    partners = {"body": match.trees.bodies, "dof": dofs, "tendon": match.tendons, "actuator": match.actuators}
    for kind, fields in CONSTANTS.items():
        for parameter in array_parameters(skeleton.model, kind, partners[kind], np.zeros(0, bool), fields):
            computed = np.asarray(getattr(skeleton.constants, parameter.attribute)).reshape(parameter.values.shape)
            if len(partners[kind]) == len(computed):
                stale = np.abs(parameter.values - computed).max(1) > STALE_TOLERANCE * np.abs(computed).max(1)
                yield replace(parameter, counts=stale, attribute="")


def _shortcuts(skeleton: Skeleton, match: Match) -> Iterator[Parameter]:
    """`SHORTCUTS` of elements in use that don't follow from the shapes; each row is compared with the recomputed one.

    Partners whose bounds are off by the same amount are left out: their sizes were changed alike after compilation.
    """
    m, recomputed = skeleton.model, skeleton.constants
    partners_by_kind = {"body": match.trees.bodies, "geom": match.geoms, "site": match.sites}
    sites = np.isin(np.arange(m.nsite), skeleton.sites_in_use)
    used = {"body": np.ones(m.nbody, bool), "geom": skeleton.shaped, "site": sites}
    for kind, fields in SHORTCUTS.items():
        for field in fields.split():
            values, computed = _rows(m, field), _rows(recomputed, field)
            is_box = field.endswith("_aabb")
            if values is None or computed is None or (is_box and m.opt.disableflags & DISABLE.MIDPHASE):
                continue
            gaps = np.abs(values - computed).max(1) / np.maximum(np.abs(computed).max(1), TINY)
            if field.endswith(("sameframe", "simple")):
                gaps *= values[:, 0] != 0  # leaving a shortcut out costs only time
            if field == "bvh_aabb":  # the worst box of each body
                worst = [
                    adr + int(gaps[adr : adr + num].argmax()) if num else NONE
                    for adr, num in zip(m.body_bvhadr, m.body_bvhnum, strict=True)
                ]
                values, computed = values[worst], computed[worst]
                gaps = np.where(np.array(worst) == NONE, 0.0, gaps[worst])
            partners = partners_by_kind[kind]
            paired = (partners != np.arange(len(partners))) & (partners != NONE)
            alike = paired & (np.abs(gaps - gaps[partners]) < STALE_TOLERANCE)
            right_row = lambda i, row, computed=computed: computed[i]  # noqa: E731
            counts = used[kind] & (gaps > STALE_TOLERANCE) & ~alike
            yield Parameter(kind, field.split("_", 1)[1], values, np.arange(len(values)), right_row, counts)


# -- the world --------------------------------------------------------------------------------------------------------


def _world_deviations(skeleton: Skeleton, match: Match) -> Iterator[Deviation]:
    """Deviations of gravity, of wind, and of the pairs of bodies whose contacts are excluded."""
    m, R = skeleton.model, match.trees.isometry.rotation
    for name, vector in (("gravity", skeleton.gravity), ("wind", m.opt.wind if skeleton.in_fluid else np.zeros(3))):
        gap, size = np.linalg.norm(R @ vector - vector), np.linalg.norm(vector)
        if gap > DEVIATION_TOLERANCE * size:
            yield Deviation("the world", "the world", name, _text(R @ vector), _text(vector), float(gap / size))
    bodies = match.trees.bodies
    excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in m.exclude_signature}
    unordered = {frozenset(pair) for pair in excluded}
    for a, b in excluded:
        if frozenset((int(bodies[a]), int(bodies[b]))) not in unordered:
            pair = name_of(m, "body", a), name_of(m, "body", b)
            yield Deviation(*pair, "exclude", "for this pair", "not for its image", 1.0)
