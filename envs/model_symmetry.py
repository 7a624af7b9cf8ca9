r"""A symmetry of a MuJoCo model: an isometry of the world together with a relabelling of the bodies.

The isometry sends a point x of the world to R x + t; the motion of body b is carried to body ``bodies[b]``, whose local
frame it reaches through the orthogonal map M_b:

.. math:: X'_{\pi(b)} = R\, X_b\, M_b^T, \qquad p'_{\pi(b)} = R\, p_b + t,

with X_b and p_b the orientation and position of body b's frame in the world. det M_b = det R, so orientations stay proper. A
mirror image has R = diag(1, -1, 1); a turn of the body alone, which only relabels its limbs, has R = 1 and M = a
rotation; turning the whole world has M = 1. Everything that is derived from bodies follows from R, t, pi and M.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Deviation:
    """A parameter in which an element of the model differs from the image of its partner.

    Args:
        element, partner: kind and name, such as ``"joint right_hip_y"``; the partner is the element that it is carried to.
        parameter: MuJoCo's name for it, such as ``"armature"``.
        value, partner_value: after the symmetry was applied, so that equal means symmetric.
        relative: their difference over the larger of the two (1 where one of them is zero).
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
    """One symmetry of a model, or for a continuous one its generator (every matrix is then d/ds at s = 0).

    Scalar joints (slides and hinges) are numbered in the model's order, s of them; q stands for their positions.

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
        deviations: parameters that keep it from being exact, the largest first; empty if nothing was found.
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

    @property
    def determinant(self) -> float:
        """1 for a rotation, -1 for a reflection."""
        return 1.0 if self.is_continuous else float(round(np.linalg.det(self.rotation)))
