r"""A symmetry of a MuJoCo model, and its action on the quantities of `mjData`.

A symmetry is an isometry of the world together with a permutation pi of the bodies. The isometry sends a point x of the world
to R x + t. Body b is carried to body pi(b) (``bodies[b]``), and its frame to that body's frame by the orthogonal map M_b:

.. math:: X'_{\pi(b)} = R\, X_b\, M_b^T, \qquad p'_{\pi(b)} = R\, p_b + t,

with X_b and p_b the orientation and position of body b's frame in the world. det M_b = det R, so orientations stay proper. A
mirror image has R = diag(1, -1, 1). A turn of a robot alone, which only permutes its limbs, has R = 1 and a rotation M. A turn
of the whole world has M = 1.

A `Quantity` is an array of a model (`qpos`, `xpos`, `cinert`, ...) or of its task. Under a symmetry its features f go to
A f + a, where A and a follow from R, t, pi and M by the kind of the quantity:

    =============  ============================  =========================================================================
    kind           image of body b's             quantities
    =============  ============================  =========================================================================
    position       R p + t                       xpos, xipos, geom_xpos, site_xpos, subtree_com, positions of free joints
    vector         R v                           linear velocities and accelerations, forces, subtree_linvel
    axial          det(R) R w                    angular velocities and accelerations, torques, subtree_angmom
    tensor         R I R^T                       inertia tensors (cinert), as xx, yy, zz, xy, xz, yz
    orientation    R X M_b^T                     xmat, site_xmat, row by row; xquat, encoded as a rotation matrix
    own vector     M_b v                         vectors in the body's own axes; "own axial" likewise
    =============  ============================  =========================================================================

A continuous symmetry acts by the derivative of these formulas. `rppdyn.envs.observation._quantities` lists the quantities of a
model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import mujoco
import numpy as np
from scipy.linalg import block_diag, expm

from rppdyn.envs._spec import Encoding, Entry


def codes(enum) -> SimpleNamespace:
    """Members of one of MuJoCo's enumerations as plain integers; MuJoCo's own never equal NumPy's on their right.

    >>> codes(mujoco.mjtJoint).HINGE
    3
    """
    members = {name.split("_", 1)[1]: int(value) for name, value in enum.__members__.items() if "_" in name}
    return SimpleNamespace(**members)


BIAS, DISABLE, DYNAMICS, EQUALITY, GAIN, GEOM, JOINT, OBJECT, SENSOR, TRANSMISSION, WRAP = (
    codes(getattr(mujoco, f"mjt{name}"))
    for name in ("Bias", "DisableBit", "Dyn", "Eq", "Gain", "Geom", "Joint", "Obj", "Sensor", "Trn", "Wrap")
)
FREE, BALL, SLIDE, HINGE = JOINT.FREE, JOINT.BALL, JOINT.SLIDE, JOINT.HINGE

JOINT_TRANSMISSIONS = (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT)
"""Kinds of actuators that act on one joint."""


@dataclass(frozen=True)
class Deviation:
    """A parameter in which an element of the model differs from the image of its partner.

    Args:
        element, partner: kind and name, such as ``"joint right_hip_y"``; the symmetry carries the element to the partner.
        parameter: MuJoCo's name of the parameter, such as ``"armature"``.
        value: the image of the element's value under the symmetry.
        partner_value: the partner's value, equal to `value` in a symmetric model.
        relative: difference of the two over the larger one (1 if one of them is zero).
    """

    element: str
    partner: str
    parameter: str
    value: str
    partner_value: str
    relative: float

    def __str__(self) -> str:
        return f"{self.element} has {self.parameter} {self.value}, {self.partner} {self.partner_value}"


@dataclass(frozen=True, eq=False)
class ModelSymmetry:
    """A symmetry of a model; of a continuous one the generator, whose matrices are derivatives at the identity.

    The s scalar joints (slides and hinges) are numbered in the model's order; q are their positions.

    Args:
        name: "left-right", "front-back", "quarter turn", "yaw", ...
        is_continuous: whether this is the generator of a one-parameter group of period 2 pi.
        rotation: R, (3, 3); its derivative, an antisymmetric matrix, if continuous.
        translation: t, (3,); its derivative if continuous.
        bodies: image of each body; the identity if continuous.
        frames: M_b, (nbody, 3, 3); its derivative if continuous (zero unless the body frame turns).
        joint_matrix, joint_shift: q' = P q + c, (s, s) and (s,); dq/ds = P q + c if continuous.
        dofs: qvel' = D qvel, (nv, nv); derivative if continuous.
        controls: ctrl' = C ctrl, (nu, nu); derivative if continuous.
        activations: act' = A act, (na, na); derivative if continuous.
        deviations: parameters that keep it from being exact, the largest first.
        match: partners that it was made from, a `derivation._elements.Match`; of a continuous one those of one turn.
    """

    name: str
    is_continuous: bool
    rotation: np.ndarray
    translation: np.ndarray
    bodies: tuple[int, ...]
    frames: np.ndarray
    joint_matrix: np.ndarray
    joint_shift: np.ndarray
    dofs: np.ndarray
    controls: np.ndarray
    activations: np.ndarray
    deviations: tuple[Deviation, ...] = ()
    match: Any = field(default=None, repr=False)

    @property
    def determinant(self) -> float:
        """1 for a rotation, -1 for a reflection."""
        return 1.0 if self.is_continuous else float(round(np.linalg.det(self.rotation)))


Affine = tuple[np.ndarray, np.ndarray]
"""(A, a) of the map f -> A f + a."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """An array of numbers of a robot or of its task, and how symmetries act on it.

    Args:
        key: identity of the quantity, such as MuJoCo's name for an array of `mjData`.
        entries: name, joint and unit of each of its n numbers.
        read: function from an `MjData` (for terms of an observation, a `Scene`) to the n numbers.
        act: function from a symmetry to A, (f, f), and a, (f,); for a continuous one to their derivatives. Rows are NaN where
            an element has no image, or none that is linear in the numbers.
        quaternions: first entries of the quaternions, each of which becomes a rotation matrix (4 numbers, 9 features).
        why: remedy that a message names for a row of NaN.
    """

    key: Hashable
    entries: tuple[Entry, ...]
    read: Callable[[Any], np.ndarray]
    act: Callable[[ModelSymmetry], Affine]
    quaternions: tuple[int, ...] = ()
    why: str = "leave it out, or leave out the symmetry"

    @cached_property
    def encoding(self) -> Encoding:
        """The map from the n numbers to the f features."""
        return Encoding(len(self.entries), quaternions=self.quaternions)

    def image(self, symmetry: ModelSymmetry, values: np.ndarray) -> np.ndarray:
        """The image of the n numbers under a discrete symmetry."""
        A, a = self.act(symmetry)
        return self.encoding.decode(A @ self.encoding.encode(np.asarray(values, dtype=np.float64)) + a)


def map_matrices(
    symmetry: ModelSymmetry, function: Callable[[np.ndarray], np.ndarray], corner: float, **changes: Any
) -> ModelSymmetry:
    """Apply a function to each matrix of a symmetry; affine maps (R, t) and (P, c) as [[P, c], [0, corner]]."""

    def affine(matrix: np.ndarray, shift: np.ndarray) -> Affine:
        n = len(shift)
        result = function(np.block([[matrix, shift[:, None]], [np.zeros((1, n)), np.full((1, 1), corner)]]))
        return result[:n, :n], result[:n, n]

    rotation, translation = affine(symmetry.rotation, symmetry.translation)
    joint_matrix, joint_shift = affine(symmetry.joint_matrix, symmetry.joint_shift)
    linear: dict[str, Any] = {
        key: function(getattr(symmetry, key)) for key in ("frames", "dofs", "controls", "activations")
    }
    return replace(
        symmetry, rotation=rotation, translation=translation, joint_matrix=joint_matrix, joint_shift=joint_shift,
        **linear, **changes,
    )  # fmt: skip


def finite_element(symmetry: ModelSymmetry, t: float) -> ModelSymmetry:
    """The element exp(t A) of a continuous symmetry with generator A, as a discrete symmetry without a match."""
    changes = dict(name=f"{symmetry.name} by {t:.3g}", is_continuous=False, match=None)
    return map_matrices(symmetry, lambda A: expm(t * A), 0.0, **changes)


def state_matrix(symmetry: ModelSymmetry, *further: np.ndarray) -> np.ndarray:
    """Action of a discrete symmetry on (joints, 1), velocities, controls and activations, as one block-diagonal matrix.

    Args:
        further: matrices of other representations, further blocks.
    """
    n = len(symmetry.joint_shift)
    joints = np.block([[symmetry.joint_matrix, symmetry.joint_shift[:, None]], [np.zeros((1, n)), np.ones((1, 1))]])
    return block_diag(joints, symmetry.dofs, symmetry.controls, symmetry.activations, *further)


def acts_alike(a: np.ndarray, b: np.ndarray, joints: int, atol: float = 1e-6) -> bool:
    """Check whether two state matrices are equal, with joint shifts modulo a whole turn; `joints` is their number."""
    shifts = slice(joints), joints
    a = a.copy()
    a[shifts] = b[shifts] + (a[shifts] - b[shifts] + np.pi) % (2 * np.pi) - np.pi
    return bool(np.allclose(a, b, atol=atol))


# -- kinds of quantities --------------------------------------------------------------------------


class Part(NamedTuple):
    """A block of numbers of one element: its kind (see the module's table), label and unit."""

    kind: str
    label: str
    unit: str

    @property
    def components(self) -> tuple[str, ...]:
        return COMPONENTS.get(self.kind, ("x", "y", "z"))

    @property
    def feature_count(self) -> int:
        """Number of features: 9 for a quaternion, which becomes a rotation matrix, otherwise one per component."""
        return 9 if self.kind == "quaternion" else len(self.components)


COMPONENTS = {
    "scalar": ("",),
    "tensor": ("xx", "yy", "zz", "xy", "xz", "yz"),
    "orientation": tuple(f"R[{i},{j}]" for i in range(3) for j in range(3)),
    "quaternion": ("w", "x", "y", "z"),
}
_TENSOR_INDICES = ([0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2])  # rows and columns of a tensor's six numbers in its matrix


def _cofactor(Q: np.ndarray) -> np.ndarray:
    """det(Q) Q for orthogonal Q, as a polynomial of degree two so that `derivable` holds."""
    return np.array([np.cross(Q[1], Q[2]), np.cross(Q[2], Q[0]), np.cross(Q[0], Q[1])])


def lift(kind: str, R: np.ndarray, M: np.ndarray) -> np.ndarray:
    """The matrix by which a quantity of this kind transforms; polynomial of degree two in (R, M)."""
    match kind:
        case "scalar":
            return np.eye(1)
        case "position" | "vector":
            return R
        case "axial":
            return _cofactor(R)
        case "own vector":
            return M
        case "own axial":
            return _cofactor(M)
        case "tensor":
            i, j = _TENSOR_INDICES
            products = np.einsum("ak,bl->abkl", R, R)[i, j]  # row ab of R I R^T in terms of I_kl
            # An entry off the diagonal stands for both I_kl and I_lk.
            return products[:, i, j] + np.where(np.equal(i, j), 0, products[:, j, i])
        case "orientation" | "quaternion":
            return np.kron(R, M)
    raise AssertionError(kind)


def derivable(finite: Callable[[ModelSymmetry], Affine]) -> Callable[[ModelSymmetry], Affine]:
    """Extend an action, polynomial of degree at most two in the symmetry's matrices, to continuous symmetries.

    The derivative at the identity is a central difference, which is exact for such polynomials, with step 1.
    """

    def act(symmetry: ModelSymmetry) -> Affine:
        if not symmetry.is_continuous:
            return finite(symmetry)
        identity_plus = lambda A: np.eye(A.shape[-1]) + A  # noqa: E731
        identity_minus = lambda A: np.eye(A.shape[-1]) - A  # noqa: E731
        steps = [map_matrices(symmetry, f, 0.0, is_continuous=False) for f in (identity_plus, identity_minus)]
        (A, a), (B, b) = map(finite, steps)
        return (A - B) / 2, (a - b) / 2

    return act


def element_quantity(
    key: Hashable,
    names: Sequence[str],
    parts: Sequence[Sequence[Part]],
    read: Callable[[mujoco.MjData], np.ndarray],
    images: Callable[[ModelSymmetry], np.ndarray],
    frame: Callable[[ModelSymmetry, int, int], np.ndarray],
    constant: Iterable[int] = (),
) -> Quantity:
    """Make a quantity of elements, each of which consists of parts.

    Args:
        names: names of the elements.
        parts: parts of each element.
        read: the numbers, in the order of elements and parts.
        images: function from a symmetry to the index of each element's image, -1 without one.
        frame: (symmetry, i, j) -> map from the axes of element i to those of element j, its image.
        constant: elements whose numbers never change, and are left as they are.
    """
    entries: list[Entry] = []
    starts, quaternions = [0], []
    for element, blocks in zip(names, parts, strict=True):
        for part in blocks:
            if part.kind == "quaternion":
                quaternions.append(len(entries))
            entries += [Entry(phrase(element, part.label, c), "", part.unit) for c in part.components]
        starts.append(starts[-1] + sum(part.feature_count for part in blocks))

    def finite(symmetry: ModelSymmetry) -> Affine:
        A, a = np.zeros((starts[-1], starts[-1])), np.zeros(starts[-1])
        reached = set(constant)
        for i in constant:
            rows = np.arange(starts[i], starts[i + 1])
            A[rows, rows] = 1.0
        for i, j in enumerate(images(symmetry)):
            if i in constant or j < 0 or [part.kind for part in parts[i]] != [part.kind for part in parts[j]]:
                continue
            reached.add(int(j))
            source, target = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            M = frame(symmetry, i, j)
            A[target, source] = block_diag(*(lift(part.kind, symmetry.rotation, M) for part in parts[i]))
            a[target] = np.concatenate(
                [symmetry.translation if part.kind == "position" else np.zeros(part.feature_count) for part in parts[i]]
            )
        for j in set(range(len(names))) - reached:
            A[starts[j] : starts[j + 1]] = np.nan
        return A, a

    return Quantity(key, tuple(entries), read, derivable(finite), tuple(quaternions))


def scalar_joints(model: mujoco.MjModel) -> list[int]:
    """The slides and hinges, in the order in which a symmetry's `joint_matrix` numbers them."""
    return [j for j, kind in enumerate(model.jnt_type.tolist()) if kind in (SLIDE, HINGE)]


def joint_name(model: mujoco.MjModel, joint: int) -> str:
    return model.joint(joint).name or f"joint {joint}"


def phrase(*parts: str) -> str:
    """Join the parts that are not empty by spaces."""
    return " ".join(part for part in parts if part)


# -- elements of a model -----------------------------------------------------------------------------------------------


def name_of(model: mujoco.MjModel, kind: str, i: int) -> str:
    """Kind and name of an element; without a name, its number and what it belongs to."""
    if kind == "control":
        return name_of(model, "actuator", int(np.searchsorted(control_addresses(model)[0], i, "right")) - 1)
    if kind == "dof":
        joint, first = int(model.dof_jntid[i]), int(model.jnt_dofadr[model.dof_jntid[i]])
        name = name_of(model, "joint", joint)
        return f"{name} (dof {i - first})" if model.jnt_type[joint] in (FREE, BALL) else name
    object_type = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    if name := mujoco.mj_id2name(model, object_type, i):
        return f"{kind} {name}"
    if kind == "actuator" and model.actuator_trntype[i] in JOINT_TRANSMISSIONS:
        return f"actuator of {name_of(model, 'joint', int(model.actuator_trnid[i, 0])).removeprefix('joint ')}"
    if kind == "pair":
        return " and ".join(name_of(model, "geom", int(ids[i])) for ids in (model.pair_geom1, model.pair_geom2))
    if kind == "actuator" and model.actuator_trntype[i] == TRANSMISSION.TENDON:
        return f"actuator of {name_of(model, 'tendon', int(model.actuator_trnid[i, 0]))}"
    if kind in ("geom", "site", "joint"):
        body = int(getattr(model, f"{'jnt' if kind == 'joint' else kind}_bodyid")[i])
        return f"{kind} {i} of {name_of(model, 'body', body)}"
    return f"{kind} {i}"


def control_addresses(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """First control and number of controls of each actuator; one each before MuJoCo 4."""
    if hasattr(model, "actuator_ctrladr"):
        return np.asarray(model.actuator_ctrladr), np.asarray(model.actuator_ctrlnum)
    return np.arange(model.nu), np.ones(model.nu, int)
