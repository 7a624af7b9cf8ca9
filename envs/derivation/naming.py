"""What a symmetry is called, which depends on how the robot is built."""

from __future__ import annotations

from collections.abc import Collection

import mujoco
import numpy as np

from rppdyn.envs.derivation.elements import NONE, Match
from rppdyn.envs.derivation.skeleton import BALL, FREE, HINGE, SLIDE, Skeleton, name_of
from rppdyn.envs.derivation.trees import TreeMatch

__all__ = ["exchanges_geoms", "is_exchange", "main_free_root", "reflection_name", "swap_name", "turn_name", "yaw_name"]


SIDE = 0.02
"""How near two places are, relative to the robot's size, that lie opposite each other."""


def reflection_name(
    skeleton: Skeleton, match: Match, *, first: bool, alone: bool, other: int, known: Collection[str]
) -> str:
    """Of a mirror image: "left-right" or "front-back", by what the robot has on either side of its plane.

    A planar robot whose motion in its plane stays as it is, but not its limbs, has a "leg swap".

    Args:
        first: whether it is y -> -y (if z is vertical), which comes first where nothing else decides.
        alone: whether there is no reflection of the other horizontal axis.
        other: that axis.
        known: names that are taken.
    """
    permuted = (match.trees.bodies != np.arange(len(match.trees.bodies)))[skeleton.model.jnt_bodyid[skeleton.scalars]]
    fixed = match.trees.matrix[np.ix_(~permuted, ~permuted)]
    if _is_flat(skeleton) and permuted.any() and fixed.size and np.allclose(fixed, np.eye(len(fixed))):
        return "leg swap"
    other_sides = _has_sides(skeleton, other)
    if is_exchange(match.trees) or exchanges_geoms(skeleton, match):
        sideways = first or not other_sides
    else:
        sideways = not other_sides and (first or not alone)
    return "left-right" if sideways and "left-right" not in known and (first or not _walks(skeleton)) else "front-back"


def _has_sides(skeleton: Skeleton, axis: int) -> bool:
    """Whether joints of two branches of the main tree lie opposite each other along a horizontal axis."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = [j for j in range(m.njnt) if root is not None and m.body_rootid[m.jnt_bodyid[j]] == m.body_rootid[root]]
    places = skeleton.data.xanchor[joints] - skeleton.data.xpos[root or 0]
    flip = np.where(np.arange(3) == axis, -1.0, 1.0)
    near = SIDE * skeleton.size
    for n, j in enumerate(joints):
        for k in np.flatnonzero(np.abs(places * flip - places[n]).max(1) < near):
            branches = not _is_below(m, m.jnt_bodyid[j], m.jnt_bodyid[joints[k]])
            if branches and not _is_below(m, m.jnt_bodyid[joints[k]], m.jnt_bodyid[j]) and abs(places[n][axis]) > near:
                return True
    return False


def _is_below(m: mujoco.MjModel, b: int, top: int) -> bool:
    while b > top:
        b = m.body_parentid[b]
    return bool(b == top)


def is_exchange(trees: TreeMatch) -> bool:
    """Whether bodies change places."""
    return bool((trees.bodies != np.arange(len(trees.bodies))).any())


def exchanges_geoms(skeleton: Skeleton, match: Match) -> bool:
    """Whether parts of one body change places, such as arms without joints."""
    shaped = np.flatnonzero(skeleton.shaped & (skeleton.model.body_weldid[skeleton.model.geom_bodyid] != 0))
    to = match.geoms[shaped]
    return bool(((to != shaped) & (to != NONE)).any())


def _walks(skeleton: Skeleton) -> bool:
    """Whether the robot moves freely in a vertical plane, as planar walkers do."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = skeleton.joints[root] if root is not None else ()
    slides = [skeleton.data.xaxis[j] for j in joints if m.jnt_type[j] == SLIDE]
    hinged = any(m.jnt_type[j] == HINGE for j in joints)
    return hinged and len(slides) >= 2 and max(abs(a[skeleton.vertical]) for a in slides) > 0.5


def _is_flat(skeleton: Skeleton) -> bool:
    """Whether the model has no free joint: its reflections may then act on a plane of motion trivially."""
    return not np.isin(skeleton.model.jnt_type, (FREE, BALL)).any()


def yaw_name(skeleton: Skeleton) -> str:
    """Of a main tree that slides in the horizontal plane and turns in it, "planar rotation"; otherwise "yaw"."""
    m, root = skeleton.model, _main_root(skeleton)
    kinds = [int(m.jnt_type[j]) for j in skeleton.joints[root]] if root is not None else []
    return "planar rotation" if kinds.count(SLIDE) >= 2 and HINGE in kinds else "yaw"


def turn_name(angle: float) -> str:
    """Of a turn of the body alone, by a fraction of a whole turn if it is one."""
    n = 2 * np.pi / angle
    if abs(n - round(n)) < 1e-3:
        return {2: "half turn", 4: "quarter turn"}.get(round(n), f"turn by 2 pi/{round(n)}")
    return f"turn by {np.degrees(angle):.4g} degrees"


def swap_name(skeleton: Skeleton, first: int, other: int, known: Collection[str]) -> str:
    """Of two limbs, or two objects, that change places."""
    one, two = (name_of(skeleton.model, "body", b).removeprefix("body ") for b in (first, other))
    if skeleton.model.body_parentid[first] == 0:
        return f"exchange of {one} and {two}"
    taken = any(name.startswith("leg swap") for name in known)
    return f"leg swap ({one}, {two})" if taken else "leg swap"


def _main_root(skeleton: Skeleton) -> int | None:
    """The root of the tree with most degrees of freedom."""
    m = skeleton.model
    roots = [b for b in range(1, m.nbody) if skeleton.joints[b] and m.body_weldid[m.body_parentid[b]] == 0]
    return max(roots, key=lambda b: int(_dofs_below(skeleton, b)), default=None)


def _dofs_below(skeleton: Skeleton, b: int) -> int:
    return int(skeleton.model.body_dofnum[b]) + sum(_dofs_below(skeleton, c) for c in skeleton.children[b])


def main_free_root(skeleton: Skeleton) -> int | None:
    """The root of the tree with most degrees of freedom, if it is free; otherwise None."""
    root = _main_root(skeleton)
    if root is None or skeleton.model.jnt_type[skeleton.joints[root][0]] != FREE:
        return None
    return root
