r"""Chosen symmetries: the group that they generate, and a model in which they are exact.

If g has order n and carries parameters v to g v, the mean :math:`\frac1n \sum_k g^k v` is the nearest that g leaves alone.

The group is one of small matrices. Discrete symmetries are multiplied out on the state; then the smallest of a few
candidates for their matrices is taken whose group is the same: the same number of elements, alone and together with the
state. A continuous symmetry turns the world, so it adds the 2 x 2 block on which discrete ones act by how they turn or
reflect the horizontal plane.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import mujoco
import numpy as np
from scipy.linalg import block_diag

from rppdyn.envs.derivation.elements import NONE, Match, carried_inertias, pseudo_inertias, set_inertias
from rppdyn.envs.derivation.parameters import Parameter, parameters
from rppdyn.envs.derivation.search import search
from rppdyn.envs.derivation.trees import Skeleton
from rppdyn.envs.model_symmetry import (
    BIAS,
    GAIN,
    GEOM,
    JOINT,
    TRANSMISSION,
    Deviation,
    ModelSymmetry,
    acts_alike,
    control_addresses,
    name_of,
    state_matrix,
)  # fmt: skip
from rppdyn.envs.observation.action import space_of
from rppdyn.envs.observation.quantities import quantities_of
from rppdyn.envs.observation.recognition import Observation, Source
from rppdyn.envs.spec import Entry, Space
from rppdyn.groups import MAX_ORDER, SO, D, Group, O, Trivial, Z


def symmetry_group(symmetries: Sequence[ModelSymmetry]) -> Group:
    """A faithful matrix group whose generators are the discrete symmetries, in order, then the continuous one.

    One mirror gives `Z(2)`, yaw `SO(2)`, yaw with a mirror of the world `O(2)`.

    Raises:
        ValueError: a discrete symmetry after a continuous one, more than one continuous one, more than `MAX_ORDER`
            discrete elements, or a turn of the world beside yaw, which contains it.
    """
    discrete = [s for s in symmetries if not s.is_continuous]
    continuous = [s for s in symmetries if s.is_continuous]
    names = ", ".join(s.name for s in symmetries)
    if [*discrete, *continuous] != list(symmetries):
        raise ValueError(f"symmetries {names}: give the discrete ones first")
    if len(continuous) > 1:
        raise ValueError(f"symmetries {names}: {len(continuous)} continuous ones are given; choose one")
    if not continuous:
        return _finite(discrete) if discrete else Trivial(1)
    if not discrete:
        return SO(2)
    turned = np.flatnonzero(continuous[0].rotation.any(1))  # the axes of the plane that it turns
    planes = [s.rotation[np.ix_(turned, turned)] for s in discrete]
    if any(np.linalg.det(plane) > 0 and not np.allclose(plane, np.eye(2)) for plane in planes):
        raise ValueError(f"symmetries {names}: a turn of the world is contained in the continuous one; leave it out")
    if len(discrete) == 1 and np.linalg.det(planes[0]) < 0 and order_of(discrete[0]) == 2:
        return O(2)
    finite = _finite(discrete)
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


def _finite(symmetries: Sequence[ModelSymmetry]) -> Group:
    """The group of discrete symmetries."""
    joints, order = len(symmetries[0].joint_shift), order_of(*symmetries)
    for name, matrices in _candidates(symmetries, order):
        group = Group(name, discrete_generators=matrices)
        together = [state_matrix(s, m) for s, m in zip(symmetries, matrices, strict=True)]
        if group.order == order == len(_closure(together, joints)):
            return group
    raise AssertionError("the regular representation is faithful")


def _candidates(symmetries: Sequence[ModelSymmetry], order: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Matrices for the generators that may be faithful, small ones first."""
    k = len(symmetries)
    if k == 1 and order == 2:
        yield "Z(2)", [Z(2).discrete_generators[0].numpy()]
    if k == 1 and order > 2:
        yield f"Z({order})", [D(order).discrete_generators[0].numpy()]
    orders = [order_of(s) for s in symmetries]
    if k == 2 and 2 in orders and order == 2 * max(orders) > 4:
        # A turn and a mirror.
        turn, mirror = D(order // 2).discrete_generators.numpy()
        yield f"D({order // 2})", [mirror if n == 2 else turn for n in orders]
    if order == 2**k:
        yield " x ".join(["Z(2)"] * k), [np.diag([-1.0 if i == n else 1.0 for i in range(k)]) for n in range(k)]
    stays = [b for b in range(1, len(symmetries[0].bodies)) if all(s.bodies[b] == b for s in symmetries)]
    torso = [
        s.frames[stays[0]] if stays else np.eye(3) for s in symmetries
    ]  # M of the first body that stays where it is
    for matrices in (torso, [s.rotation for s in symmetries]):
        for axis in range(3):
            plane, e = [a for a in range(3) if a != axis], np.eye(3)[axis]
            if all(np.allclose(m[axis], e) and np.allclose(m[:, axis], e) for m in matrices):
                yield f"group of order {order}", [m[np.ix_(plane, plane)] for m in matrices]
    moved = [b for b in range(len(symmetries[0].bodies)) if any(s.bodies[b] != b for s in symmetries)]
    if 0 < len(moved) <= order:
        yield f"group of order {order}", [_permutation([moved.index(s.bodies[b]) for b in moved]) for s in symmetries]
    states, joints = [state_matrix(s) for s in symmetries], len(symmetries[0].joint_shift)
    elements = _closure(states, joints)

    def number_of(product: np.ndarray) -> int:
        return next(i for i, element in enumerate(elements) if acts_alike(element, product, joints))

    yield f"group of order {order}", [_permutation([number_of(s @ e) for e in elements]) for s in states]


def _closure(generators: Sequence[np.ndarray], joints: int) -> list[np.ndarray]:
    """All products of symmetries' actions on the state (`state_matrix`), the identity first."""
    elements = [np.eye(len(generators[0]))]
    for element in elements:  # which grows meanwhile
        for generator in generators:
            product = generator @ element
            if not any(acts_alike(product, known, joints) for known in elements):
                elements.append(product)
                if len(elements) > MAX_ORDER:
                    raise ValueError(f"the chosen symmetries generate more than {MAX_ORDER} elements; choose fewer")
    return elements


def _permutation(images: Sequence[int]) -> np.ndarray:
    """The matrix that takes basis vector i to the one of number images[i]."""
    return np.eye(len(images))[list(images)].T


EQUALITY_TOLERANCE = 1e-12  # relative; what changes less keeps its bits


def symmetrise(model: mujoco.MjModel, symmetry: ModelSymmetry, only: Deviation | None = None) -> mujoco.MjModel:
    """A copy of the model in which every number that deviates from a symmetry is its mean over the symmetry's orbit.

    Masses, places, axes, sizes, joints' and actuators' parameters are averaged and MuJoCo's derived constants recomputed.
    Meshes, height fields and whether something is limited at all stay as they are.

    Args:
        only: one of the symmetry's deviations: nothing but its parameter of its two elements is averaged. Mass, centre of mass
            and inertia of a body are averaged together.
    Raises:
        ValueError: the symmetry is continuous, or it is not one that `derive` finds in the model.
    """
    if symmetry.is_continuous:
        raise ValueError(f"symmetrise averages over discrete symmetries; {symmetry.name} is continuous")
    match = next((one.match for one in search(model) if one.symmetry.name == symmetry.name), None)
    if match is None:
        raise ValueError(f"the model has no symmetry {symmetry.name!r} to be averaged over; see derive(model)")
    skeleton, order, made = Skeleton(model), order_of(symmetry), copy.deepcopy(model)
    for parameter in parameters(skeleton, match):
        if only is not None and parameter.name != only.parameter:
            continue
        rows = _of(only, skeleton, parameter.kind, len(parameter.values))[:, None]
        mean = np.where(rows, _mean(parameter.image, parameter.values, order), parameter.values)
        _put(made, skeleton, parameter, mean)
    bodies = _average_inertias(made, skeleton, match, order, only)
    _average_axes(made, skeleton, match, order, only)
    _refresh(made, model, bodies)
    return made


def _of(only: Deviation | None, skeleton: Skeleton, kind: str, count: int) -> np.ndarray:
    """Mask of the two elements of a deviation; all where there is none."""
    if only is None:
        return np.ones(count, bool)
    return np.isin([name_of(skeleton.model, kind, i) for i in range(count)], [only.element, only.partner])


def _mean(image, values: np.ndarray, order: int) -> np.ndarray:
    total, carried = values.copy(), values
    for _ in range(order - 1):
        carried = image(carried)
        total = total + carried
    mean = total / order
    return np.where(np.abs(mean - values) > EQUALITY_TOLERANCE * np.abs(values).max(initial=1e-300), mean, values)


def _put(made: mujoco.MjModel, skeleton: Skeleton, parameter: Parameter, mean: np.ndarray) -> None:
    """Write a parameter's means into the model."""
    m = skeleton.model
    scale = mean[:, 0] / np.where(parameter.values[:, 0] == 0, 1, parameter.values[:, 0])
    match (parameter.kind, parameter.name):
        case ("joint", "springref"):
            adr = m.jnt_qposadr[skeleton.scalars]
            made.qpos_spring[adr] = mean[skeleton.scalars, 0]
        case ("actuator", "gear"):
            made.actuator_gear[:] *= scale[:, None]
        case ("tendon", "coef"):
            for k in np.flatnonzero((mean != parameter.values).any(1)):
                path = slice(m.tendon_adr[k], m.tendon_adr[k] + m.tendon_num[k])
                made.wrap_prm[path] = mean[k, np.searchsorted(skeleton.scalars, m.wrap_objid[path])]
        case _ if parameter.attribute:
            array = getattr(made, parameter.attribute)
            if np.issubdtype(array.dtype, np.floating):
                array[:] = mean.reshape(array.shape)
    if parameter.name == "axis":
        made.jnt_axis[:] /= np.maximum(np.linalg.norm(made.jnt_axis, axis=1), 1e-12)[:, None]


def _average_inertias(
    made: mujoco.MjModel, skeleton: Skeleton, match: Match, order: int, only: Deviation | None
) -> np.ndarray:
    """Average masses, centres of mass and inertias; the bodies that changed."""
    J = pseudo_inertias(skeleton)
    mean = _mean(partial(carried_inertias, match.trees), J, order)
    unlike = np.abs(mean - J).max((1, 2)) > EQUALITY_TOLERANCE * np.abs(J).max((1, 2))
    unlike &= _of(only, skeleton, "body", len(J))
    bodies = np.flatnonzero(unlike & (skeleton.model.body_weldid != 0) & (skeleton.model.body_mass > 0))
    set_inertias(made, mean, bodies)
    return bodies


def _average_axes(made: mujoco.MjModel, skeleton: Skeleton, match: Match, order: int, only: Deviation | None) -> None:
    """Average the axes of geoms; those of a round or rectangular one up to the turns that leave its shape alone."""
    m, trees = skeleton.model, match.trees
    turned = _of(only, skeleton, "geom", m.ngeom) & (only is None or only.parameter == "orientation")
    which = [i for i in np.flatnonzero(skeleton.shaped & turned) if match.geoms[i] != NONE]
    axes = skeleton.axes["geom"]

    def image(values):
        carried = values.copy()
        for i in which:
            j = int(match.geoms[i])
            nearest = _nearest(int(m.geom_type[i]), trees.frames[m.geom_bodyid[i]] @ values[i], axes[j])
            carried[j] = values[j] if nearest is None else nearest
        return carried

    mean = _mean(image, axes, order)
    for i in which:
        if np.abs(mean[i] - axes[i]).max() > EQUALITY_TOLERANCE:
            u, _, v = np.linalg.svd(mean[i])
            mujoco.mju_mat2Quat(made.geom_quat[i], np.ascontiguousarray(u @ v).ravel())


def _nearest(shape: int, axes: np.ndarray, reference: np.ndarray) -> np.ndarray | None:
    """Axes of the same shape nearest to a reference; None for shapes without such freedom."""
    if shape in (GEOM.CAPSULE, GEOM.CYLINDER, GEOM.PLANE):
        z = axes[:, 2] * (1.0 if axes[:, 2] @ reference[:, 2] > 0 or shape == GEOM.PLANE else -1.0)
        v = np.cross(reference[:, 2], z)
        K = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
        cosine = reference[:, 2] @ z
        return (np.eye(3) + K + K @ K / (1 + cosine)) @ reference if cosine > -0.999 else None
    if shape in (GEOM.BOX, GEOM.ELLIPSOID):
        whole = np.round(reference.T @ axes)
        return axes @ whole.T if np.abs(np.abs(whole).sum(0) - 1).max() == 0 else None
    return None


def _refresh(made: mujoco.MjModel, model: mujoco.MjModel, bodies: np.ndarray) -> None:
    """Recompute what follows from the numbers that were changed."""
    moved = (made.geom_pos != model.geom_pos).any(1) | (made.geom_quat != model.geom_quat).any(1)
    resized = (made.geom_size != model.geom_size).any(1)
    made.geom_sameframe[moved | np.isin(model.geom_bodyid, bodies)] = 0
    for i in np.flatnonzero(resized):
        a, b, c = made.geom_size[i]
        half = {
            GEOM.SPHERE: (a, a, a),
            GEOM.CAPSULE: (a, a, a + b),
            GEOM.CYLINDER: (a, a, b),
        }.get(int(made.geom_type[i]), (a, b, c))
        round_ = made.geom_type[i] in (GEOM.SPHERE, GEOM.CAPSULE, GEOM.ELLIPSOID)
        made.geom_aabb[i, 3:] = half
        made.geom_rbound[i] = max(half) if round_ else np.linalg.norm(half)
    if moved.any() or resized.any() or len(bodies):
        # The tree of bounding boxes was made when the model was compiled, and is not made again.
        made.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    mujoco.mj_setConst(made, mujoco.MjData(made))


# -- how chosen symmetries act on a simulator's state, its controls and its actuators' activations -----------------------------


# Quantity of `mjData` that each space is about.
_ARRAYS = {"qpos": "qpos", "qvel": "qvel", "action": "ctrl", "act": "act"}


def state_spaces(model: mujoco.MjModel, symmetries: Sequence[ModelSymmetry]) -> dict[str, Space]:
    """The spaces "qpos", "qvel", "action" and, where actuators have any activation, "act"; a generator per symmetry in each.

    A quaternion is encoded as a rotation matrix. A hinge's angle is encoded as cosine and sine if the chosen symmetries
    shift it and no fixed point that they have in common (`Space.origin`) makes them linear.

    Raises:
        ValueError: positions in the world have no fixed point in common.
    """
    data = mujoco.MjData(model)
    quantities = {quantity.key: quantity for quantity in quantities_of(model)}
    spaces = {}
    for key, name in _ARRAYS.items():
        if (quantity := quantities.get(name)) is None:
            continue
        seen = (
            quantity,
            *(quantities[key] for key in ("cosine and sine",) if key in quantities),
        )  # of hinges, if there are any
        sources = tuple(Source(((i, 1.0),)) for i in range(len(quantity.entries)))
        observed = Observation(name, model, data, partial(getattr, data, name), seen, sources)
        spaces[key] = space_of(observed, symmetries)
    if "action" in spaces:
        spaces["action"] = replace(spaces["action"], entries=_controls(model))
    return spaces


def _controls(model: mujoco.MjModel) -> tuple[Entry, ...]:
    """The effect of each control: the torque or force on a joint that a motor gives, or the actuator's own name."""
    entries = []
    plain = (GAIN.FIXED, BIAS.NONE)
    kinds = zip(model.actuator_gaintype, model.actuator_biastype, strict=True)
    motors = [(int(gain), int(bias)) == plain for gain, bias in kinds]
    adr, num = control_addresses(model)
    for i in range(len(adr)):
        on_joint = model.actuator_trntype[i] in (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT)
        j = int(model.actuator_trnid[i, 0])
        joint = (model.joint(j).name or f"joint {j}") if on_joint else ""
        name = model.actuator(i).name or joint or f"actuator {i}"
        for _ in range(num[i]):
            if on_joint and motors[i] and model.jnt_type[j] in (JOINT.SLIDE, JOINT.HINGE):
                slides = model.jnt_type[j] == JOINT.SLIDE
                entries.append(Entry(f"{joint} {'force' if slides else 'torque'}", joint, "N" if slides else "N m"))
            else:
                entries.append(Entry(f"{name} control", joint))
    return tuple(entries)
