r"""Images of geoms, sites, tendons, actuators and equality constraints under a symmetry of the bodies and joints.

The partner of an element is the element that it is carried to. Tendons and actuators also have a sign. It is -1 if a tendon
shortens where its partner lengthens, or if a control pushes where the partner's control pulls.

Masses are compared as pseudo-inertia matrices. A difference counts only if it changes some motion.
With points written as (x, 1) in a body's frame, :math:`J = \int \rho\, (x, 1)(x, 1)^T`, a 4 x 4 matrix, holds mass, first and
second moments. With g gravity, X and p the body's orientation and position, and v and w its velocities in the world,

.. math:: T = \tfrac12 \mathrm{tr}(V J V^T), \quad V = ([w]_\times X \;|\; v), \qquad U = -g^T (X \;|\; p)\, J e_4.

Both are linear in J. A difference in J is no deviation if it changes neither T nor U in any motion of the joints. For example,
the lower link of an arm that only turns about a vertical axis may be lopsided.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from rppdyn.envs._model_symmetry import (
    BALL,
    EQUALITY,
    FREE,
    GAIN,
    GEOM,
    JOINT_TRANSMISSIONS,
    OBJECT,
    TRANSMISSION,
    WRAP,
    control_addresses,
    name_of,
)
from rppdyn.envs.derivation._trees import NO_MATCH_COST, Skeleton, TreeMatch

NONE = -1
"""Partner of an element that has none."""

MIN_PARTNER_COSINE = 0.95
"""Smallest cosine between the forces of partner actuators, or between the coefficients of partner tendons."""


@dataclass(frozen=True, eq=False)
class Match:
    """A `TreeMatch` with the partners of all other elements, `NONE` where there is none.

    Args:
        dofs: D with qvel' = D qvel.
        tendon_signs: s with l' = s l: l a tendon's length, l' its partner's in the image of the motion.
        controls, activations: C and A with ctrl' = C ctrl and act' = A act.
        actuators: partners; of those that mix, the one that they mix with most.
        actuator_signs: the entry of C from each actuator to its partner, 1 or -1; 0 where actuators mix.
        actuator_gaps: distance between the unit force vectors of an actuator's image and its partner, up to sign.
    """

    trees: TreeMatch
    dofs: np.ndarray
    geoms: np.ndarray
    sites: np.ndarray
    tendons: np.ndarray
    tendon_signs: np.ndarray
    actuators: np.ndarray
    actuator_signs: np.ndarray
    actuator_gaps: np.ndarray
    controls: np.ndarray
    activations: np.ndarray
    equalities: np.ndarray


class NoPartnerError(Exception):
    """An actuator or a tendon, which is named, has no partner, so the structure differs."""


def match_elements(skeleton: Skeleton, trees: TreeMatch) -> Match:
    """Partners of a model's elements.

    Raises:
        NoPartnerError: an actuator or a tendon has none.
    """
    dofs = dof_matrix(skeleton, trees)
    geoms = _match_local(skeleton, trees, "geom", np.flatnonzero(skeleton.shaped))
    sites = _match_local(skeleton, trees, "site", skeleton.sites_in_use)
    tendons, tendon_signs = _match_tendons(skeleton, trees, geoms, sites)
    if (tendons == NONE).any():
        raise NoPartnerError(name_of(skeleton.model, "tendon", int(np.flatnonzero(tendons == NONE)[0])))
    actuators = _match_actuators(skeleton, trees, dofs, sites, tendons, tendon_signs)
    equalities = _match_equalities(skeleton, trees, sites, tendons)
    return Match(trees, dofs, geoms, sites, tendons, tendon_signs, *actuators, equalities)


def dof_matrix(skeleton: Skeleton, trees: TreeMatch) -> np.ndarray:
    """D with qvel' = D qvel: R on global linear velocities, det(M) M on body-local angular ones, P on scalar joints."""
    m, D = skeleton.model, np.zeros((skeleton.model.nv,) * 2)
    scalar = m.jnt_dofadr[skeleton.scalars]
    D[np.ix_(scalar, scalar)] = trees.matrix
    for j in np.setdiff1d(np.arange(m.njnt), skeleton.scalars):
        a, c, M = m.jnt_dofadr[j], m.jnt_dofadr[trees.joints[j]], trees.frames[m.jnt_bodyid[j]]
        if m.jnt_type[j] == FREE:
            D[c : c + 3, a : a + 3] = trees.isometry.rotation
            a, c = a + 3, c + 3
        D[c : c + 3, a : a + 3] = np.sign(np.linalg.det(M)) * M
    return D


def image_in_body(skeleton: Skeleton, trees: TreeMatch, kind: str, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Position and orientation (an improper one for a reflection) of a geom's or site's image, in its body."""
    body = int(getattr(skeleton.model, f"{kind}_bodyid")[i])
    place = trees.image(body, getattr(skeleton.model, f"{kind}_pos")[i])
    return place, trees.frames[body] @ skeleton.axes[kind][i]


def _match_local(skeleton: Skeleton, trees: TreeMatch, kind: str, ids: np.ndarray) -> np.ndarray:
    """Match each body's geoms or sites with its partner's at least total cost: `shape_gap` of geoms, distance of sites."""
    m = skeleton.model
    partners = np.full(getattr(m, f"n{kind}"), NONE)
    body_of, type_of = getattr(m, f"{kind}_bodyid"), getattr(m, f"{kind}_type")
    for b in np.unique(body_of[ids]):
        own = ids[body_of[ids] == b]
        others = ids[body_of[ids] == trees.bodies[b]]
        if not len(others):
            continue
        cost = np.full((len(own), len(others)), NO_MATCH_COST)
        for n, i in enumerate(own):
            place, axes = image_in_body(skeleton, trees, kind, i)
            for k, j in enumerate(others):
                if kind == "site":  # a site's type and size only matter for its picture
                    cost[n, k] = np.linalg.norm(place - m.site_pos[j]) / skeleton.size + 1e-9 * (i != j)
                elif type_of[i] == type_of[j]:
                    cost[n, k] = shape_gap(skeleton, i, j, place, axes) / skeleton.size + 1e-9 * (i != j)
        for n, k in zip(*linear_sum_assignment(cost), strict=True):
            if cost[n, k] < NO_MATCH_COST:
                partners[own[n]] = others[k]
    return partners


def _match_tendons(skeleton, trees, geoms, sites) -> tuple[np.ndarray, np.ndarray]:
    m = skeleton.model
    partners, signs = np.full(m.ntendon, NONE), np.ones(m.ntendon)
    fixed = [m.wrap_type[m.tendon_adr[k]] == WRAP.JOINT for k in range(m.ntendon)]
    rows = tendon_coefficients(skeleton)

    def cosine(k, j):
        """Cosine between the image of k's coefficients and j's; 1 or 0 for spatial tendons, whose paths are compared."""
        if fixed[k] != fixed[j]:
            return 0.0
        if not fixed[k]:
            carried = tendon_path(
                m, k, sites, geoms
            )  # reversed, a path with pulleys has its branches at other divisors
            has_pulley = any(kind == WRAP.PULLEY for kind, _ in carried)
            return float(tendon_path(m, j) in (carried, carried if has_pulley else carried[::-1]))
        image = trees.matrix @ rows[k]
        return image @ rows[j] / max(np.linalg.norm(image) * np.linalg.norm(rows[j]), 1e-300)

    for k in range(m.ntendon):
        # A tendon has one partner at most; among equals k itself comes first.
        free = [j for j in [k, *range(m.ntendon)] if j not in partners]
        best = max(free, key=lambda j: round(abs(cosine(k, j)), 6), default=NONE)
        if best != NONE and abs(cosine(k, best)) > MIN_PARTNER_COSINE:
            partners[k], signs[k] = best, np.sign(cosine(k, best))
    return partners, signs


def tendon_path(m: mujoco.MjModel, k: int, sites=None, geoms=None) -> list[tuple[int, int]]:
    """(type, id) of the objects that a tendon passes; of their images, if those of sites and geoms are given."""
    maps = {} if sites is None else {WRAP.SITE: sites, WRAP.SPHERE: geoms, WRAP.CYLINDER: geoms}
    span = slice(m.tendon_adr[k], m.tendon_adr[k] + m.tendon_num[k])
    objects = zip(m.wrap_type[span].tolist(), m.wrap_objid[span].tolist(), strict=True)
    return [(kind, int(maps[kind][i]) if kind in maps else i) for kind, i in objects]


def tendon_coefficients(skeleton: Skeleton) -> np.ndarray:
    """Coefficients of fixed tendons on slides and hinges, (ntendon, s); zero for spatial tendons."""
    m, rows = skeleton.model, np.zeros((skeleton.model.ntendon, len(skeleton.scalars)))
    for k, adr in enumerate(m.tendon_adr):
        for w in range(adr, adr + m.tendon_num[k]):
            if m.wrap_type[w] == WRAP.JOINT:
                rows[k, np.searchsorted(skeleton.scalars, m.wrap_objid[w])] += m.wrap_prm[w]
    return rows


def position_offsets(skeleton: Skeleton, trees: TreeMatch) -> np.ndarray:
    """c with q' = P q + c for slides and hinges, (s,); q counts from zero, theta of `TreeMatch` from the reference pose."""
    q0 = skeleton.model.qpos0[skeleton.model.jnt_qposadr[skeleton.scalars]]
    offsets = trees.shift + q0 - trees.matrix @ q0
    return np.where(np.abs(offsets) < 1e-12, 0.0, offsets)


def turned_in_parents(skeleton: Skeleton, trees: TreeMatch) -> np.ndarray:
    """M that each body would have if its joints stood at zero, (nbody, 3, 3)."""
    parents = trees.frames[skeleton.model.body_parentid]
    return skeleton.rest[trees.bodies].transpose(0, 2, 1) @ parents @ skeleton.rest


def active_gear(m: mujoco.MjModel, i: int) -> np.ndarray:
    """The entries of actuator i's gear in use: 1 on a slide, hinge or tendon, 3 on a ball joint, 6 on a free joint or site."""
    kind = int(m.actuator_trntype[i])
    width = 6 if kind == TRANSMISSION.SITE else 1
    if kind in JOINT_TRANSMISSIONS:
        width = {FREE: 6, BALL: 3}.get(int(m.jnt_type[m.actuator_trnid[i, 0]]), 1)
    return m.actuator_gear[i, :width]


def _match_actuators(
    skeleton, trees, dofs, sites, tendons, tendon_signs
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(partners, signs, gaps, C, A).

    Actuators are compared by the vectors along which a unit of their force acts. An actuator of gear zero is treated as if its
    gear were 1 along the first axis.
    """
    m = skeleton.model
    n = m.actuator_trntype.shape[0]
    adr, num = control_addresses(m)
    # With JOINTINPARENT, a torque is given in the axes that the body has at angle zero; on a free joint, in the world's.
    in_parent = turned_in_parents(skeleton, trees)
    in_parent[m.jnt_bodyid[m.jnt_type == FREE]] = trees.isometry.rotation
    dofs_in_parent = dof_matrix(skeleton, replace(trees, frames=in_parent))
    joint_maps = {TRANSMISSION.JOINT: dofs, TRANSMISSION.JOINTINPARENT: dofs_in_parent}
    object_maps = {TRANSMISSION.TENDON: tendons, TRANSMISSION.BODY: trees.bodies}
    object_maps |= {TRANSMISSION.SITE: sites, TRANSMISSION.SLIDERCRANK: sites}

    def target(i: int) -> tuple[tuple[int, ...], np.ndarray]:
        """((transmission, ids of the driven objects), force) of actuator i; on joints no ids, but a force in R^nv."""
        kind, gear = int(m.actuator_trntype[i]), active_gear(m, i)
        gear = gear if gear.any() else np.eye(len(gear))[0]
        if kind in object_maps:
            return (kind, *(int(k) for k in m.actuator_trnid[i] if k >= 0)), gear
        force, first = np.zeros(m.nv), m.jnt_dofadr[m.actuator_trnid[i, 0]]
        force[first : first + len(gear)] = gear
        return (kind,), force

    def image(i: int) -> tuple[tuple[int, ...], np.ndarray]:
        """The target of actuator i's image."""
        (kind, *objects), force = target(i)
        images = [int(object_maps[kind][k]) for k in objects]
        if kind in joint_maps:
            force = joint_maps[kind] @ force
        elif kind == TRANSMISSION.TENDON:
            force = tendon_signs[objects[0]] * force
        elif kind == TRANSMISSION.SITE and NONE not in images:
            # The last object, whose axes the gear refers to, is the reference site, or the site itself if there is none.
            W = skeleton.axes["site"][images[-1]].T @ image_in_body(skeleton, trees, "site", objects[-1])[1]
            force = np.r_[W @ force[:3], np.sign(np.linalg.det(W)) * W @ force[3:]]
        return (kind, *images), force

    unknown = np.flatnonzero(~np.isin(m.actuator_trntype, [*joint_maps, *object_maps]))
    if len(unknown):
        raise NoPartnerError(name_of(m, "actuator", int(unknown[0])))
    targets, images = [target(i) for i in range(n)], [image(i) for i in range(n)]
    kinds = [(m.actuator_gaintype[i], m.actuator_biastype[i], m.actuator_dyntype[i], num[i]) for i in range(n)]
    ranges = [m.actuator_ctrlrange[adr[i] : adr[i] + num[i]] for i in range(n)]
    cosine, cost = np.zeros((n, n)), np.full((n, n), NO_MATCH_COST)
    for i, j in itertools.product(range(n), range(n)):
        (driven_image, v), (driven, w) = images[i], targets[j]
        if driven_image != driven or kinds[i] != kinds[j]:
            continue
        cosine[i, j] = v @ w / (np.linalg.norm(v) * np.linalg.norm(w))
        differs = (m.actuator_gainprm[i] != m.actuator_gainprm[j]).any()
        carried = ranges[i] if cosine[i, j] > 0 else -ranges[i][:, ::-1]
        differs = differs or (carried != ranges[j]).any()
        differs = differs or (cosine[i, j] < 0 and m.actuator_gaintype[i] == GAIN.MUSCLE)  # which pull, and never push
        if abs(cosine[i, j]) > MIN_PARTNER_COSINE:
            # At most 0.5 for the direction, 1 for gears, 0.5 for other numbers; among equals i itself comes first.
            stretch = abs(np.log(np.linalg.norm(v) / np.linalg.norm(w)))
            cost[i, j] = 10 * (1 - abs(cosine[i, j])) + min(stretch, 1.0) + 0.5 * bool(differs) + 1e-6 * (i != j)
    rows, columns = linear_sum_assignment(cost)
    partners, signs, gaps = np.full(n, NONE), np.zeros(n), np.zeros(n)
    C, A = np.zeros((m.nu, m.nu)), np.zeros((m.na, m.na))
    for i, j in zip(rows, columns, strict=True):
        if cost[i, j] < NO_MATCH_COST:
            partners[i], signs[i] = j, np.sign(cosine[i, j])
            gaps[i] = np.sqrt(max(2 - 2 * abs(cosine[i, j]), 0.0))
            for k in range(num[i]):
                C[adr[j] + k, adr[i] + k] = signs[i]
            for k in range(max(int(m.actuator_actnum[i]), 0)):
                A[m.actuator_actadr[j] + k, m.actuator_actadr[i] + k] = signs[i]
    rest = np.flatnonzero(partners == NONE)
    if len(rest):
        # They may mix, as motors along x and y do when the world turns. With unit forces G and their images V, V = G C.
        comparable = {(*x[i][0], *kinds[i]) for x in (targets, images) for i in rest}
        states = {int(m.actuator_actnum[i]) for i in rest}
        if max(len(comparable), len(states)) > 1 or any(num[i] != 1 for i in rest) or np.isin(rest, partners).any():
            raise NoPartnerError(name_of(m, "actuator", int(rest[0])))
        G, V = (np.array([x[i][1] / np.linalg.norm(x[i][1]) for i in rest]).T for x in (targets, images))
        mix = np.linalg.lstsq(G, V, rcond=None)[0]
        if np.abs(G @ mix - V).max() > 1e-6 or np.abs(mix.T @ mix - np.eye(len(rest))).max() > 1e-6:
            raise NoPartnerError(name_of(m, "actuator", int(rest[0])))
        C[np.ix_(adr[rest], adr[rest])] = mix
        for k in range(max(0, *states)):
            A[np.ix_(m.actuator_actadr[rest] + k, m.actuator_actadr[rest] + k)] = mix
        # Each is compared with the other one that it mixes with most.
        partners[rest] = rest[linear_sum_assignment(np.abs(mix.T) * (np.eye(len(rest)) - 1))[1]]
    return partners, signs, gaps, C, A


def images_of_objects(m: mujoco.MjModel, k: int, trees: TreeMatch, sites, tendons) -> np.ndarray:
    """Images of all joints, tendons, sites or bodies, whichever the equality constraint k relates."""
    if m.eq_type[k] in (EQUALITY.JOINT, EQUALITY.TENDON):
        return trees.joints if m.eq_type[k] == EQUALITY.JOINT else tendons
    return sites if m.eq_objtype[k] == OBJECT.SITE else trees.bodies


def _match_equalities(skeleton, trees, sites, tendons) -> np.ndarray:
    """Partner of each equality constraint: one of its type between the images of its objects, in the same order if possible."""
    m = skeleton.model
    partners = np.full(m.neq, NONE)
    for k in range(m.neq):
        if m.eq_type[k] not in (EQUALITY.CONNECT, EQUALITY.WELD, EQUALITY.JOINT, EQUALITY.TENDON):
            continue
        images = images_of_objects(m, k, trees, sites, tendons)
        image = [int(images[o]) if o >= 0 else NONE for o in (m.eq_obj1id[k], m.eq_obj2id[k])]
        orders = [image, image[::-1]] if image[1] != NONE else [image]
        for objects, j in itertools.product(orders, [k, *range(m.neq)]):
            same_type = m.eq_type[j] == m.eq_type[k] and m.eq_objtype[j] == m.eq_objtype[k]
            if same_type and j not in partners and [int(m.eq_obj1id[j]), int(m.eq_obj2id[j])] == objects:
                partners[k] = j
                break
    return partners


# -- shapes of geoms -----------------------------------------------------------------------------------------------------------


MAX_MESH_VERTICES = 500  # compared vertices of a mesh without a convex hull, evenly spaced in its list


def shape_gap(skeleton: Skeleton, i: int, j: int, position: np.ndarray, axes: np.ndarray) -> float:
    """Difference between geom j and the image of geom i, as a length; position and axes are the image's, in j's body."""
    m = skeleton.model
    # Planes are infinite, and `orientation_gap` compares the sizes of meshes and height fields.
    has_size = m.geom_type[i] not in (GEOM.PLANE, GEOM.HFIELD, GEOM.MESH)
    size_gap = np.abs(image_size(skeleton, i, j, axes, m.geom_size[i]) - m.geom_size[j]).max() if has_size else 0.0
    gap = position - m.geom_pos[j]  # of a plane only along its normal, since it is infinite
    distance = abs(skeleton.axes["geom"][j][:, 2] @ gap) if m.geom_type[i] == GEOM.PLANE else np.linalg.norm(gap)
    return float(distance) + size_gap + orientation_gap(skeleton, i, j, axes)


def orientation_gap(skeleton: Skeleton, i: int, j: int, axes: np.ndarray) -> float:
    """Difference in orientation between geom j and the image of geom i, as a length; for meshes and fields also in shape."""
    m = skeleton.model
    shape, size = int(m.geom_type[i]), m.geom_size[j]
    W = skeleton.axes["geom"][j].T @ axes  # i's axes, in j's frame
    if shape == GEOM.SPHERE:
        return 0.0
    if shape == GEOM.PLANE:
        return float(np.linalg.norm(W[:, 2] - [0, 0, 1])) * skeleton.size
    if shape in (GEOM.CAPSULE, GEOM.CYLINDER):
        sine = np.linalg.norm(W[:2, 2])
        return float(sine * np.linalg.norm(size[:2]))
    if shape == GEOM.ELLIPSOID:
        squared = np.diag(m.geom_size[i] ** 2)
        carried = image_size(skeleton, i, j, axes, m.geom_size[i])
        return float(np.abs(W @ squared @ W.T - np.diag(carried**2)).max() / size.max())
    if shape == GEOM.BOX:
        rounded = np.round(np.abs(W))
        gap = float(np.abs(np.abs(W) - rounded).max())
        return float(np.linalg.norm(size)) * (gap if _is_permutation(rounded) else 1.0)
    if shape == GEOM.MESH:
        a, b = int(m.geom_dataid[i]), int(m.geom_dataid[j])
        if a == b and np.abs(W - np.eye(3)).max() < 1e-9:
            return 0.0
        hulls = _hull(m, a) @ W.T, _hull(m, b)  # largest distance from a vertex of one to the nearest of the other
        return float(max(cKDTree(y).query(x)[0].max() for x, y in (hulls, hulls[::-1])))
    if shape == GEOM.HFIELD:
        return _field_gap(m, int(m.geom_dataid[i]), int(m.geom_dataid[j]), W)
    differs = m.geom_dataid[i] != m.geom_dataid[j]  # a signed distance field, whose values are not compared
    return float(max(np.abs(W - np.eye(3)).max(), differs) * np.linalg.norm(size))


def image_size(skeleton: Skeleton, i: int, j: int, axes: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Size of geom i's image along the axes of geom j: a quarter turn of a box exchanges two of its lengths."""
    if skeleton.model.geom_type[i] not in (GEOM.BOX, GEOM.ELLIPSOID):
        return size
    rounded = np.round(np.abs(skeleton.axes["geom"][j].T @ axes))
    return rounded @ size if _is_permutation(rounded) else size


def _is_permutation(matrix: np.ndarray) -> bool:
    return bool((matrix.sum(0) == 1).all() and (matrix.sum(1) == 1).all())


def _hull(m, mesh: int) -> np.ndarray:
    """Vertices (n, 3) of the convex hull with which a mesh collides; without a hull, at most `MAX_MESH_VERTICES` of its own."""
    vertices = m.mesh_vert[m.mesh_vertadr[mesh] : m.mesh_vertadr[mesh] + m.mesh_vertnum[mesh]].astype(float)
    graph = int(m.mesh_graphadr[mesh])
    if graph < 0:
        return vertices[:: 1 + len(vertices) // MAX_MESH_VERTICES]
    n = int(m.mesh_graph[graph])  # the graph: sizes (2), addresses of edges (n), indices of vertices (n), ...
    return vertices[m.mesh_graph[graph + 2 + n : graph + 2 + 2 * n]]


def _field_gap(m, i: int, j: int, W: np.ndarray) -> float:
    """Largest difference in height between field j and field i's image; j's larger half-extent if grids can't be compared."""

    def heights(k):
        rows, columns, adr = int(m.hfield_nrow[k]), int(m.hfield_ncol[k]), int(m.hfield_adr[k])
        return m.hfield_data[adr : adr + rows * columns].reshape(rows, columns) * m.hfield_size[k, 2]

    grid, partner = heights(i), heights(j)
    if i == j and np.ptp(grid) == 0 and W[2, 2] > 0.999999:
        return 0.0  # flat ground may turn: its edges are ignored
    rounded, half_extent = np.round(W).astype(int), float(np.abs(m.hfield_size[j, :2]).max())
    if np.abs(W - rounded).max() > 1e-6 or rounded[2, 2] != 1:
        return half_extent
    # Rows run along y and columns along x. W may exchange x and y, and may reverse each.
    image, extent = (grid, m.hfield_size[i, :2]) if rounded[0, 0] else (grid.T, m.hfield_size[i, 1::-1])
    x_sign, y_sign = rounded[:2, :2].sum(1)
    image = image[::y_sign, ::x_sign]
    if image.shape != partner.shape or (extent != m.hfield_size[j, :2]).any():
        return half_extent
    # Each cell is two triangles, cut along one diagonal. Mirrors in x or y and quarter turns carry it to the other diagonal.
    bent = partner[1:, 1:] + partner[:-1, :-1] - partner[1:, :-1] - partner[:-1, 1:]
    cut = np.abs(bent).max() / 2 if x_sign != y_sign else 0.0
    return float(np.abs(image - partner).max() + cut + abs(m.hfield_size[i, 3] - m.hfield_size[j, 3]))


# -- masses and inertias -------------------------------------------------------------------------------------------------------


MOTION_SAMPLES = 6
"""Random motions in which energies are compared."""

ENERGY_TOLERANCE = 1e-9
"""Smallest relative difference in energy that counts."""


def pseudo_inertias(skeleton: Skeleton) -> np.ndarray:
    """Pseudo-inertia matrix J of every body (see the module), (nbody, 4, 4)."""
    m = skeleton.model
    second = np.trace(skeleton.inertia, axis1=1, axis2=2)[:, None, None] / 2 * np.eye(3) - skeleton.inertia
    J = np.zeros((m.nbody, 4, 4))
    c = m.body_ipos
    J[:, :3, :3] = second + m.body_mass[:, None, None] * np.einsum("bi,bj->bij", c, c)
    J[:, :3, 3] = J[:, 3, :3] = m.body_mass[:, None] * c
    J[:, 3, 3] = m.body_mass
    return J


def set_inertias(model: mujoco.MjModel, J: np.ndarray, bodies: np.ndarray) -> None:
    """Set masses, centres of mass and principal inertias of some bodies from pseudo-inertia matrices."""
    for b in bodies:
        mass = J[b, 3, 3]
        com = J[b, :3, 3] / mass
        second = J[b, :3, :3] - mass * np.outer(com, com)
        values, axes = np.linalg.eigh(np.trace(second) * np.eye(3) - second)
        values, axes = values[::-1], axes[:, ::-1] * np.sign(np.linalg.det(axes[:, ::-1]))
        model.body_mass[b], model.body_ipos[b], model.body_inertia[b] = mass, com, values
        mujoco.mju_mat2Quat(model.body_iquat[b], np.ascontiguousarray(axes).ravel())
        model.body_sameframe[b] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE


def carried_inertias(trees: TreeMatch, J: np.ndarray) -> np.ndarray:
    """For every body, the image of J of the body that is carried to it, (nbody, 4, 4)."""
    T = np.tile(np.eye(4), (len(J), 1, 1))
    T[:, :3, :3] = trees.frames
    carried = np.zeros_like(T)
    carried[trees.bodies] = T @ J @ T.transpose(0, 2, 1)
    return carried


def inertia_differs(skeleton: Skeleton, trees: TreeMatch, carried: np.ndarray) -> np.ndarray:
    """Mask of the bodies whose inertia differs from their partner's in a way that changes some motion, (nbody,)."""
    m = skeleton.model
    J = pseudo_inertias(skeleton)
    unlike = np.abs(carried - J).max((1, 2)) > 1e-12 * np.abs(J).max(initial=1e-300)
    moving = m.body_weldid != 0
    if skeleton.in_fluid:  # where the drag on a body depends on all of its inertia
        return moving & unlike[trees.bodies]
    if not (unlike & moving).any():
        return np.zeros(m.nbody, bool)
    kinetic, potential = _energies(skeleton, carried - J)
    full_kinetic, full_potential = _energies(skeleton, J)
    # Only changes of U act, so they set its scale. Where U hardly changes, rounding does: a thousandth of |U| is the least.
    scale_k = max(np.abs(full_kinetic.sum(1)).max(), 1e-300)
    scale_p = max(np.ptp(full_potential, axis=0).sum(), np.abs(full_potential).max() * 1e-3, 1e-300)

    def visible(kinetic, potential):
        return np.abs(kinetic).max() > ENERGY_TOLERANCE * scale_k or np.ptp(potential) > ENERGY_TOLERANCE * scale_p

    if not visible(kinetic.sum(1), potential.sum(1)):
        return np.zeros(m.nbody, bool)
    differs = [bool(moving[b] and visible(kinetic[:, b], potential[:, b])) for b in range(m.nbody)]
    return np.array(differs)[trees.bodies]  # a deviation belongs to the body that is carried


def _energies(skeleton: Skeleton, J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kinetic and potential energy of each body with inertias J in random motions, (`MOTION_SAMPLES`, nbody) each."""
    m, rng = skeleton.model, np.random.default_rng(0)
    data, g = mujoco.MjData(m), skeleton.gravity
    kinetic, potential = np.zeros((MOTION_SAMPLES, m.nbody)), np.zeros((MOTION_SAMPLES, m.nbody))
    velocity = np.zeros(6)
    for s in range(MOTION_SAMPLES):
        data.qpos[:] = m.qpos0
        mujoco.mj_integratePos(m, data.qpos, rng.normal(size=m.nv), 1.0)
        data.qvel[:] = rng.normal(size=m.nv)
        mujoco.mj_kinematics(m, data)
        mujoco.mj_comPos(m, data)
        mujoco.mj_comVel(m, data)
        for b in range(1, m.nbody):
            X = data.xmat[b].reshape(3, 3)
            mujoco.mj_objectVelocity(m, data, mujoco.mjtObj.mjOBJ_XBODY, b, velocity, 0)
            V = np.column_stack([np.cross(np.eye(3), velocity[:3]) @ X, velocity[3:]])
            kinetic[s, b] = 0.5 * np.einsum("ij,jk,ik->", V, J[b], V)
            potential[s, b] = -g @ (np.column_stack([X, data.xpos[b]]) @ J[b, :, 3])
    return kinetic, potential
