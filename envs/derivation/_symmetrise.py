r"""The group that chosen symmetries generate, a model in which they are exact, and their action on state and controls.

If g has order n and carries parameters v to g v, the mean :math:`\frac1n \sum_k g^k v` is the nearest point that g fixes.

The group acts faithfully by small matrices. Its elements are all products of the discrete symmetries' actions on the state.
Small matrices for the generators are tried in turn. The first are taken that generate as many elements, alone and as blocks
beside the action on the state. A continuous symmetry turns the world: it adds a 2 x 2 block, on which discrete ones act as on
the horizontal plane.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import mujoco
import numpy as np
from scipy.linalg import block_diag

from rppdyn.envs._model_symmetry import (
    BIAS,
    DISABLE,
    GAIN,
    GEOM,
    HINGE,
    JOINT_TRANSMISSIONS,
    SLIDE,
    Deviation,
    ModelSymmetry,
    acts_alike,
    control_addresses,
    joint_name,
    name_of,
    state_matrix,
)  # fmt: skip
from rppdyn.envs._spec import Entry, Space
from rppdyn.envs.derivation._elements import NONE, Match, carried_inertias, pseudo_inertias, set_inertias
from rppdyn.envs.derivation._parameters import Parameter, parameters
from rppdyn.envs.derivation._search import derive
from rppdyn.envs.derivation._trees import Skeleton
from rppdyn.envs.observation._action import space_of
from rppdyn.envs.observation._quantities import quantities_of
from rppdyn.envs.observation._recognition import Observation, Source
from rppdyn.groups import MAX_ORDER, SO, D, Group, O, Trivial, Z


def symmetry_group(symmetries: Sequence[ModelSymmetry]) -> Group:
    """A faithful matrix group whose generators are the discrete symmetries, in order, then the continuous one.

    One mirror gives `Z(2)`, yaw `SO(2)`, yaw with a mirror of the world `O(2)`.

    Raises:
        ValueError: a discrete symmetry after a continuous one, two continuous ones, more than `MAX_ORDER` discrete elements, or
            a turn of the world beside yaw, which contains it.
    """
    discrete = [s for s in symmetries if not s.is_continuous]
    continuous = [s for s in symmetries if s.is_continuous]
    names = ", ".join(s.name for s in symmetries)
    if [*discrete, *continuous] != list(symmetries):
        raise ValueError(f"symmetries {names}: give the discrete ones first")
    if len(continuous) > 1:
        raise ValueError(f"symmetries {names}: {len(continuous)} continuous ones are given; choose one")
    if not continuous:
        return _finite_group(discrete) if discrete else Trivial(1)
    if not discrete:
        return SO(2)
    plane_axes = np.flatnonzero(continuous[0].rotation.any(1))
    planes = [s.rotation[np.ix_(plane_axes, plane_axes)] for s in discrete]
    if any(np.linalg.det(plane) > 0 and not np.allclose(plane, np.eye(2)) for plane in planes):
        raise ValueError(f"symmetries {names}: a turn of the world is contained in the continuous one; leave it out")
    if len(discrete) == 1 and np.linalg.det(planes[0]) < 0 and order_of(discrete[0]) == 2:
        return O(2)
    finite = _finite_group(discrete)
    generator = SO(2).lie_algebra[0].numpy()
    zero = np.zeros((finite.d, finite.d))
    return Group(
        f"{finite.name} with SO(2)",
        discrete_generators=[block_diag(p, f) for p, f in zip(planes, finite.discrete_generators.numpy(), strict=True)],
        lie_algebra=[block_diag(generator, zero)],
    )


def order_of(*symmetries: ModelSymmetry) -> int:
    """Order of the group that discrete symmetries generate."""
    return len(_closure([state_matrix(s) for s in symmetries], len(symmetries[0].joint_shift)))


def _finite_group(symmetries: Sequence[ModelSymmetry]) -> Group:
    """The group that discrete symmetries generate."""
    joints, order = len(symmetries[0].joint_shift), order_of(*symmetries)
    for name, matrices in _candidates(symmetries, order):
        group = Group(name, discrete_generators=matrices)
        together = [state_matrix(s, m) for s, m in zip(symmetries, matrices, strict=True)]
        if group.order == order == len(_closure(together, joints)):
            return group
    raise AssertionError("the regular representation is faithful")


def _candidates(symmetries: Sequence[ModelSymmetry], order: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """(name, matrices of the generators) that may be faithful, small ones first."""
    k = len(symmetries)
    if k == 1 and order == 2:
        yield "Z(2)", [Z(2).discrete_generators[0].numpy()]
    if k == 1 and order > 2:
        yield f"Z({order})", [D(order).discrete_generators[0].numpy()]
    orders = [order_of(s) for s in symmetries]
    if k == 2 and 2 in orders and order == 2 * max(orders) > 4:
        turn, mirror = D(order // 2).discrete_generators.numpy()
        yield f"D({order // 2})", [mirror if n == 2 else turn for n in orders]
    if order == 2**k:
        yield " x ".join(["Z(2)"] * k), [np.diag([-1.0 if i == n else 1.0 for i in range(k)]) for n in range(k)]
    fixed = [b for b in range(1, len(symmetries[0].bodies)) if all(s.bodies[b] == b for s in symmetries)]
    torso_frames = [s.frames[fixed[0]] if fixed else np.eye(3) for s in symmetries]
    for matrices in (torso_frames, [s.rotation for s in symmetries]):
        for axis in range(3):
            plane, e = [a for a in range(3) if a != axis], np.eye(3)[axis]
            if all(np.allclose(m[axis], e) and np.allclose(m[:, axis], e) for m in matrices):
                yield f"group of order {order}", [m[np.ix_(plane, plane)] for m in matrices]
    exchanged = [b for b in range(len(symmetries[0].bodies)) if any(s.bodies[b] != b for s in symmetries)]
    if 0 < len(exchanged) <= order:
        images = [[exchanged.index(s.bodies[b]) for b in exchanged] for s in symmetries]
        yield f"group of order {order}", [_permutation(numbers) for numbers in images]
    states, joints = [state_matrix(s) for s in symmetries], len(symmetries[0].joint_shift)
    elements = _closure(states, joints)

    def number_of(product: np.ndarray) -> int:
        return next(i for i, element in enumerate(elements) if acts_alike(element, product, joints))

    yield f"group of order {order}", [_permutation([number_of(s @ e) for e in elements]) for s in states]


def _closure(generators: Sequence[np.ndarray], joints: int) -> list[np.ndarray]:
    """All products of symmetries' actions on the state (`state_matrix`), the identity first."""
    elements = [np.eye(len(generators[0]))]
    for element in elements:  # the list grows while it is read
        for generator in generators:
            product = generator @ element
            if not any(acts_alike(product, known, joints) for known in elements):
                elements.append(product)
                if len(elements) > MAX_ORDER:
                    raise ValueError(f"the chosen symmetries generate more than {MAX_ORDER} elements; choose fewer")
    return elements


def _permutation(images: Sequence[int]) -> np.ndarray:
    """The matrix that takes basis vector i to basis vector images[i]."""
    return np.eye(len(images))[list(images)].T


EQUALITY_TOLERANCE = 1e-12  # relative; numbers that would change by less are not written

INERTIAL = ("mass", "com", "inertia")
"""Parameters of a body that are averaged together, as its pseudo-inertia."""

LIMIT = re.compile("(range|limited)$")
"""Ends the names of a limit, such as `forcerange`, and of its flag, `forcelimited`."""

SIZES = ("history", "ctrlspec")
"""Whole numbers that sizes of arrays follow; they are not written."""


def symmetrise(model: mujoco.MjModel, symmetry: ModelSymmetry, only: Deviation | None = None) -> mujoco.MjModel:
    """Copy the model, with the numbers that deviate from a symmetry replaced by their means over its orbit.

    Masses, places, axes, sizes and the parameters of joints and actuators are averaged, and MuJoCo's derived constants are
    recomputed. A limit, or another flag, that one partner lacks becomes both's. Gravity, wind, meshes, height fields and
    elements without a partner stay as they are.

    Args:
        only: average only the parameter and the two elements of this deviation. Mass, centre of mass and inertia of a body are
            averaged together, and so are a limit and its flag.
    Raises:
        ValueError: the symmetry is continuous, or it is not one that `derive` finds in the model.
    """
    if symmetry.is_continuous:
        raise ValueError(f"symmetrise averages over discrete symmetries; {symmetry.name} is continuous")
    match = derive(model)[symmetry.name].match
    skeleton, order, new = Skeleton(model), order_of(symmetry), copy.deepcopy(model)
    for parameter in parameters(skeleton, match):
        if only is not None and LIMIT.sub("limit", parameter.name) != LIMIT.sub("limit", only.parameter):
            continue
        rows = _element_mask(only, skeleton, parameter.kind, len(parameter.values))[:, None]
        mean = np.where(rows, _parameter_mean(model, parameter, order), parameter.values)
        _write_mean(new, skeleton, parameter, mean)
    bodies = _average_inertias(new, skeleton, match, order, only)
    _average_axes(new, skeleton, match, order, only)
    _refresh(new, model, bodies)
    return new


def _element_mask(only: Deviation | None, skeleton: Skeleton, kind: str, count: int) -> np.ndarray:
    """Mask of the two elements of a deviation among the elements of a kind; all of them if `only` is None."""
    if only is None:
        return np.ones(count, bool)
    return np.isin([name_of(skeleton.model, kind, i) for i in range(count)], [only.element, only.partner])


def _parameter_mean(model: mujoco.MjModel, parameter: Parameter, order: int) -> np.ndarray:
    """Mean of a parameter over the orbits of the elements for which it counts, or, of flags, the largest value."""
    values, counts, partners = parameter.values, parameter.counts, parameter.partners
    paired = partners != NONE
    total, weight, largest = np.zeros_like(values), np.zeros(len(values)), values
    for _ in range(order):
        total, weight, largest = total + values * counts[:, None], weight + counts, np.maximum(largest, values)
        values, carried = parameter.image(values), counts.copy()
        carried[partners[paired]] = counts[paired]
        counts = carried
    if parameter.attribute and not np.issubdtype(getattr(model, parameter.attribute).dtype, np.floating):
        return parameter.values if parameter.name in SIZES else largest
    mean = total / np.maximum(weight, 1)[:, None]
    return np.where((weight > 0)[:, None] & _differs(mean, parameter.values), mean, parameter.values)


def _differs(mean: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.abs(mean - values) > EQUALITY_TOLERANCE * np.abs(values).max(initial=1e-300)


def _orbit_mean(image, values: np.ndarray, order: int) -> np.ndarray:
    """Mean of values, image(values), image(image(values)), ...: as many terms as the symmetry's order."""
    total, carried = values.copy(), values
    for _ in range(order - 1):
        carried = image(carried)
        total = total + carried
    mean = total / order
    return np.where(_differs(mean, values), mean, values)


def _write_mean(new: mujoco.MjModel, skeleton: Skeleton, parameter: Parameter, mean: np.ndarray) -> None:
    """Write the means of a parameter into the new model."""
    m = skeleton.model
    match (parameter.kind, parameter.name):
        case ("joint", "springref"):
            adr = m.jnt_qposadr[skeleton.scalars]
            new.qpos_spring[adr] = mean[skeleton.scalars, 0]
        case ("actuator", "gear"):
            values = parameter.values[:, 0]
            new.actuator_gear[:] *= (mean[:, 0] / np.where(values == 0, 1, values))[:, None]
        case ("tendon", "coef"):
            for k in np.flatnonzero((mean != parameter.values).any(1)):
                path = slice(m.tendon_adr[k], m.tendon_adr[k] + m.tendon_num[k])
                new.wrap_prm[path] = mean[k, np.searchsorted(skeleton.scalars, m.wrap_objid[path])]
        case _ if parameter.attribute:
            changed = (mean != parameter.values).any(1)
            array = getattr(new, parameter.attribute)
            array[changed] = mean[changed].reshape(-1, *array.shape[1:])
    if parameter.name == "axis":
        new.jnt_axis[:] /= np.maximum(np.linalg.norm(new.jnt_axis, axis=1), 1e-12)[:, None]


def _average_inertias(
    new: mujoco.MjModel, skeleton: Skeleton, match: Match, order: int, only: Deviation | None
) -> np.ndarray:
    """Average masses, centres of mass and inertias; return the bodies that changed."""
    J = pseudo_inertias(skeleton)
    mean = _orbit_mean(partial(carried_inertias, match.trees), J, order)
    changed = np.abs(mean - J).max((1, 2)) > EQUALITY_TOLERANCE * np.abs(J).max((1, 2))
    changed &= _element_mask(only, skeleton, "body", len(J)) & (only is None or only.parameter in INERTIAL)
    bodies = np.flatnonzero(changed & (skeleton.model.body_weldid != 0) & (skeleton.model.body_mass > 0))
    set_inertias(new, mean, bodies)
    return bodies


def _average_axes(new: mujoco.MjModel, skeleton: Skeleton, match: Match, order: int, only: Deviation | None) -> None:
    """Average the axes of geoms, for round and rectangular ones modulo the turns that keep the shape."""
    m, trees = skeleton.model, match.trees
    mask = _element_mask(only, skeleton, "geom", m.ngeom) & (only is None or only.parameter == "orientation")
    geoms = [i for i in np.flatnonzero(skeleton.shaped & mask) if match.geoms[i] != NONE]
    axes = skeleton.axes["geom"]

    def image(values):
        carried = values.copy()
        for i in geoms:
            j = int(match.geoms[i])
            nearest = _nearest_axes(int(m.geom_type[i]), trees.frames[m.geom_bodyid[i]] @ values[i], axes[j])
            carried[j] = values[j] if nearest is None else nearest
        return carried

    mean = _orbit_mean(image, axes, order)
    for i in geoms:
        if np.abs(mean[i] - axes[i]).max() > EQUALITY_TOLERANCE:
            u, _, v = np.linalg.svd(mean[i])
            mujoco.mju_mat2Quat(new.geom_quat[i], np.ascontiguousarray(u @ v).ravel())


def _nearest_axes(shape: int, axes: np.ndarray, reference: np.ndarray) -> np.ndarray | None:
    """The axes nearest to a reference that give a geom the same surface; None for shapes with one choice of axes."""
    if shape in (GEOM.CAPSULE, GEOM.CYLINDER, GEOM.PLANE):
        z = axes[:, 2] * (1.0 if axes[:, 2] @ reference[:, 2] > 0 or shape == GEOM.PLANE else -1.0)
        K = np.cross(np.eye(3), np.cross(reference[:, 2], z))
        cosine = reference[:, 2] @ z
        return (np.eye(3) + K + K @ K / (1 + cosine)) @ reference if cosine > -0.999 else None
    if shape in (GEOM.BOX, GEOM.ELLIPSOID):
        rounded = np.round(reference.T @ axes)
        return axes @ rounded.T if np.abs(np.abs(rounded).sum(0) - 1).max() == 0 else None
    return None


def _refresh(new: mujoco.MjModel, model: mujoco.MjModel, bodies: np.ndarray) -> None:
    """Recompute the new model's bounds and derived constants."""
    moved = (new.geom_pos != model.geom_pos).any(1) | (new.geom_quat != model.geom_quat).any(1)
    resized = (new.geom_size != model.geom_size).any(1)
    new.geom_sameframe[moved | np.isin(model.geom_bodyid, bodies)] = 0
    for i in np.flatnonzero(resized):
        a, b, c = new.geom_size[i]
        extents = {GEOM.SPHERE: (a, a, a), GEOM.CAPSULE: (a, a, a + b), GEOM.CYLINDER: (a, a, b)}
        half = extents.get(int(new.geom_type[i]), (a, b, c))
        round_ = new.geom_type[i] in (GEOM.SPHERE, GEOM.CAPSULE, GEOM.ELLIPSOID)
        new.geom_aabb[i, 3:] = half
        new.geom_rbound[i] = max(half) if round_ else np.linalg.norm(half)
    if moved.any() or resized.any() or len(bodies):
        # MuJoCo makes the tree of bounding boxes only when it compiles a model, so it may not be used now.
        new.opt.disableflags |= DISABLE.MIDPHASE
    mujoco.mj_setConst(new, mujoco.MjData(new))


# -- action on state, controls and activations -----------------------------------------------------------------------------


SPACE_QUANTITIES = {"qpos": "qpos", "qvel": "qvel", "action": "ctrl", "act": "act"}
"""The array of `mjData` that each space describes."""


def state_spaces(model: mujoco.MjModel, symmetries: Sequence[ModelSymmetry]) -> dict[str, Space]:
    """The spaces "qpos", "qvel", "action" and "act" (if the model has activations), each with a generator per symmetry.

    Quaternions are encoded as rotation matrices. A hinge's angle is encoded as cosine and sine if the symmetries shift it
    and have no common fixed point (`Space.origin`) about which their action is linear.

    Raises:
        ValueError: positions in the world have no fixed point in common.
    """
    data = mujoco.MjData(model)
    quantities = {quantity.key: quantity for quantity in quantities_of(model)}
    spaces = {}
    for key, name in SPACE_QUANTITIES.items():
        if (quantity := quantities.get(name)) is None:
            continue
        hinges = quantities.get("cosine and sine")
        known = (quantity,) if hinges is None else (quantity, hinges)
        sources = tuple(Source(((i, 1.0),)) for i in range(len(quantity.entries)))
        observed = Observation(name, model, data, partial(getattr, data, name), known, sources)
        spaces[key] = space_of(observed, symmetries)
    if "action" in spaces:
        spaces["action"] = replace(spaces["action"], entries=_control_entries(model))
    return spaces


def _control_entries(model: mujoco.MjModel) -> tuple[Entry, ...]:
    """Entries of the controls: a motor's is the torque or force on its joint, others have the actuator's name."""
    entries = []
    is_motor = (model.actuator_gaintype == GAIN.FIXED) & (model.actuator_biastype == BIAS.NONE)
    adr, num = control_addresses(model)
    for i in range(len(adr)):
        on_joint = model.actuator_trntype[i] in JOINT_TRANSMISSIONS
        j = int(model.actuator_trnid[i, 0])
        joint = joint_name(model, j) if on_joint else ""
        name = model.actuator(i).name or joint or f"actuator {i}"
        for _ in range(num[i]):
            if on_joint and is_motor[i] and model.jnt_type[j] in (SLIDE, HINGE):
                slides = model.jnt_type[j] == SLIDE
                entries.append(Entry(f"{joint} {'force' if slides else 'torque'}", joint, "N" if slides else "N m"))
            else:
                entries.append(Entry(f"{name} control", joint))
    return tuple(entries)
