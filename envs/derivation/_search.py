"""Search for the symmetries of a MuJoCo model: propose candidate isometries, match them, drop duplicates, name the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from rppdyn.envs._model_symmetry import (
    BALL,
    FREE,
    HINGE,
    SLIDE,
    ModelSymmetry,
    acts_alike,
    control_addresses,
    finite_element,
    map_matrices,
    name_of,
    scalar_joints,
    state_matrix,
)  # fmt: skip
from rppdyn.envs._spec import align
from rppdyn.envs.derivation._elements import NONE, Match, NoPartnerError, match_elements, position_offsets
from rppdyn.envs.derivation._parameters import deviations
from rppdyn.envs.derivation._trees import (
    SNAP_TOLERANCE,
    Isometry,
    Skeleton,
    TreeMatch,
    TreeMatcher,
    angle_about,
    rotation_about,
)

TRIAL_ANGLE = 1.0
"""Angle, in radians, of the turn that tests for a continuous symmetry: no fraction of a whole turn."""

MAX_MISFIT = 0.02
"""Largest misfit (`TreeMatch.misfit`) of a turn, or of an exchange of objects."""

MAX_LIMB_MISFIT = 0.1
"""Largest misfit of an exchange of two limbs."""

MAX_MIRROR_MISFIT = 0.25
"""Largest misfit of a reflection; rough ones are kept, such as half-cheetah's, whose legs differ."""

MAX_FIXED_MISFIT = 0.05
"""Largest misfit of bodies that are their own partners."""

TURN_DIVISORS = range(1, 13)
"""Angles within `MAX_MISFIT` of a multiple of 2 pi / n, for one of these n, are rounded to it."""


def _search_pose(skeleton: Skeleton) -> tuple[ModelSymmetry, ...]:
    """The symmetries with the robot in one pose, without trivial ones and duplicates, discrete ones first."""
    yaw = _yaw(skeleton)
    symmetries = [yaw] if yaw else []
    for propose in (_reflections, _body_turns, _swaps, _world_turns):
        for new in propose(skeleton, symmetries):
            if not _is_trivial(new) and not any(_are_equal(skeleton, new, known, yaw) for known in symmetries):
                symmetries.append(new)
    return tuple(sorted(_drop_powers(symmetries), key=lambda s: s.is_continuous))


# -- candidates -------------------------------------------------------------------------------------------------------


def _yaw(skeleton: Skeleton) -> ModelSymmetry | None:
    """The turn of the world about the vertical, if it is a symmetry."""
    up = np.eye(3)[skeleton.vertical]
    rotation = rotation_about(up, TRIAL_ANGLE)
    best = _best_match(skeleton, [Isometry(rotation, p - rotation @ p, keep_roots=True) for p in _pivots(skeleton, up)])
    if best is None:
        return None
    turn = _generator(skeleton, best, "planar rotation" if _planar_slides(skeleton) else "yaw")
    return None if _is_trivial(turn) else turn


def _pivots(skeleton: Skeleton, up: np.ndarray) -> list[np.ndarray]:
    """Points that a vertical axis of symmetry may pass through: anchors of joints to the world, then the origin."""
    m, points = skeleton.model, []
    for j in range(m.njnt):
        if m.jnt_type[j] in (HINGE, BALL) and m.body_weldid[m.body_parentid[m.jnt_bodyid[j]]] == 0:
            points.append(skeleton.data.xanchor[j] * (1 - up))
    return _distinct([*points, np.zeros(3)])


def _reflections(skeleton: Skeleton, known: list[ModelSymmetry]) -> Iterator[ModelSymmetry]:
    """Mirror images y -> -y and x -> -x (if z is vertical). Those that fit better and exchange limbs come first.

    A free robot is mirrored in planes of its own frame. All its mirror images reflect the world in the first one's plane, so
    that a reward for moving along that plane is kept.
    """
    axes, root = [a for a in (1, 0, 2) if a != skeleton.vertical], _free_root(skeleton)

    def match_mirror(world: int, body: int) -> Match | None:
        R, M = (np.diag([-1.0 if a == axis else 1.0 for a in range(3)]) for axis in (world, body))
        root_maps = {root: _snap_integers(skeleton.world[root].T @ M @ skeleton.world[root])} if root else {}
        return _best_match(skeleton, [Isometry(R, t, root_maps) for t in _offsets(skeleton, world)], MAX_MIRROR_MISFIT)

    def rank(pair: tuple[int, Match]) -> tuple[bool, ...]:
        trees = pair[1].trees
        shifts_zeros = bool(np.abs(trees.shift).max(initial=0.0) > 1)
        return trees.misfit > MAX_MISFIT, shifts_zeros, not is_exchange(trees), not exchanges_geoms(skeleton, pair[1])

    mirrors = [(axis, match) for axis in axes if (match := match_mirror(axis, axis)) is not None]
    mirrors.sort(key=rank)
    for n, (axis, match) in enumerate(mirrors):
        if n and root:
            match = match_mirror(mirrors[0][0], axis) or match
        first, alone, other = axis == axes[0], len(mirrors) == 1, axes[1 - axes.index(axis)]
        taken = [s.name for s in known]
        name = reflection_name(skeleton, match, first=first, alone=alone, other_axis=other, known=taken)
        yield _element(skeleton, match, name)
    if root and not mirrors:
        yield from _oblique_reflections(skeleton, root, axes[0])


def _oblique_reflections(skeleton: Skeleton, root: int, axis: int) -> Iterator[ModelSymmetry]:
    """Mirror images of a free robot in vertical planes between two of its limbs."""
    up, world = np.eye(3)[skeleton.vertical], np.diag([-1.0 if a == axis else 1.0 for a in range(3)])
    azimuths = _azimuths(skeleton, root)
    for half in _distinct([(a + b) / 2 % np.pi for a in azimuths for b in azimuths]):
        planes = {}
        for angle in (_round_angle(half) % np.pi, half):
            body = skeleton.world[root].T @ rotation_about(up, 2 * angle) @ world @ skeleton.world[root]
            planes[angle] = _best_match(skeleton, [Isometry(world, np.zeros(3), {root: _snap_integers(body)})])
        matches = [(angle, match) for angle, match in planes.items() if match is not None]
        # The round angle, unless the other one alone is exact.
        for angle, match in sorted(matches, key=lambda plane: plane[1].trees.misfit > SNAP_TOLERANCE)[:1]:
            yield _element(skeleton, match, f"mirror at {np.degrees(angle):.3g} degrees")


def _offsets(skeleton: Skeleton, axis: int) -> list[np.ndarray]:
    """Translations t along an axis, which R reflects, such that x -> R x + t exchanges two bodies' places or keeps one's.

    The bodies are those that a joint other than a free one attaches to the world.
    """
    m, places = skeleton.model, []
    for b in range(1, m.nbody):
        joints = skeleton.joints[b]
        if m.body_weldid[m.body_parentid[b]] == 0 and joints and m.jnt_type[joints[0]] != FREE:
            turning = [j for j in joints if m.jnt_type[j] in (HINGE, BALL)]
            places.append(float((skeleton.data.xanchor[turning[0]] if turning else skeleton.data.xpos[b])[axis]))
    sums = [2 * p for p in places] + [p + q for p in places for q in places]
    return [np.eye(3)[axis] * a for a in _distinct([*sums, 0.0])]


def _body_turns(skeleton: Skeleton, known: list[ModelSymmetry]) -> Iterator[ModelSymmetry]:
    """Turns of a robot alone, by an angle between two of its limbs, which then change places."""
    up, m = np.eye(3)[skeleton.vertical], skeleton.model
    for root in skeleton.children[0]:
        joints = skeleton.joints[root]
        if not joints or m.jnt_type[joints[-1]] not in (FREE, HINGE):
            continue
        if m.jnt_type[joints[-1]] == HINGE and abs(skeleton.data.xaxis[joints[-1]] @ up) < 1 - 1e-6:
            continue
        azimuths = _azimuths(skeleton, root)
        for angle in _distinct([_round_angle(b - a) % (2 * np.pi) for a in azimuths for b in azimuths]):
            if not 1e-3 < angle < np.pi + 1e-3:
                continue
            body = skeleton.world[root].T @ rotation_about(up, angle) @ skeleton.world[root]
            best = _best_match(skeleton, [Isometry(np.eye(3), np.zeros(3), {root: _snap_integers(body)})])
            if best is not None:
                n = 2 * np.pi / angle
                name = f"turn by {np.degrees(angle):.4g} degrees"
                if abs(n - round(n)) < 1e-3:
                    name = {2: "half turn", 4: "quarter turn"}.get(round(n), f"turn by 2 pi/{round(n)}")
                if any(s.name == name for s in known):  # of another robot
                    name = f"{name} ({name_of(m, 'body', root).removeprefix('body ')})"
                yield _element(skeleton, best, name)


def _swaps(skeleton: Skeleton, known: list[ModelSymmetry]) -> Iterator[ModelSymmetry]:
    """Exchanges of two siblings while everything else stays."""
    m = skeleton.model
    for siblings in skeleton.children:
        moving = [b for b in siblings if m.body_weldid[b]]
        while moving:
            left, *rest = moving
            for right in rest:
                is_object = m.body_parentid[left] == 0  # on the world, where only bodies of equal mass are exchanged
                distance = np.linalg.norm(_limb_place(skeleton, left) - _limb_place(skeleton, right))
                if m.body_mass[left] != m.body_mass[right] if is_object else distance > 1e-3 * skeleton.size:
                    continue
                swap = Isometry(np.eye(3), np.zeros(3), keep_roots=True, swapped=(left, right))
                if (best := _best_match(skeleton, [swap], MAX_MISFIT if is_object else MAX_LIMB_MISFIT)) is not None:
                    yield _element(skeleton, best, swap_name(skeleton, left, right, [s.name for s in known]))
                    break
            moving = rest


def _limb_place(skeleton: Skeleton, b: int) -> np.ndarray:
    """Where a limb is attached, in the world: the anchor of its first joint, or its origin."""
    return skeleton.data.xanchor[skeleton.joints[b][0]] if skeleton.joints[b] else skeleton.data.xpos[b]


def _world_turns(skeleton: Skeleton, known: list[ModelSymmetry]) -> Iterator[ModelSymmetry]:
    """A quarter or half turn of the world, if turns by any angle are not an exact symmetry."""
    if any(s.is_continuous and not s.deviations for s in known):
        return
    up = np.eye(3)[skeleton.vertical]
    for name, angle in (("world quarter turn", np.pi / 2), ("world half turn", np.pi)):
        rotation = _snap_integers(rotation_about(up, angle))
        pivots = [skeleton.data.xpos[b] * (1 - up) for b in skeleton.children[0]]
        pivots = _distinct([(p + q) / 2 for p in pivots for q in pivots] + _pivots(skeleton, up))
        best = _best_match(skeleton, [Isometry(rotation, p - rotation @ p, keep_roots=True) for p in pivots])
        if best is not None:
            turn = _element(skeleton, best, name)
            action, n = state_matrix(turn), len(turn.joint_shift)
            actions = [state_matrix(s) for s in known if not s.is_continuous]
            is_product = any(acts_alike(action, a @ b, n) for a in actions for b in actions)
            if not turn.deviations and not is_product:
                yield turn
                return


def _best_match(skeleton: Skeleton, isometries: list[Isometry], max_misfit: float = MAX_MISFIT) -> Match | None:
    """The match of smallest misfit among several isometries, the first of equals; None if all misfits are too large."""
    matches = [TreeMatcher(skeleton, isometry).run() for isometry in isometries]
    fits = [t for t in matches if t is not None and t.misfit < max_misfit and t.fixed_misfit < MAX_FIXED_MISFIT]
    for trees in sorted(fits, key=lambda t: round(t.misfit, 9)):
        try:
            return match_elements(skeleton, trees)
        except NoPartnerError as unpaired:
            if np.linalg.det(trees.isometry.rotation) < 0:
                skeleton.unpaired.append(str(unpaired))
    return None


# -- from a match to a symmetry ---------------------------------------------------------------------------------------


def _element(skeleton: Skeleton, match: Match, name: str) -> ModelSymmetry:
    """A discrete symmetry from its match."""
    trees = match.trees
    return ModelSymmetry(
        name=name,
        is_continuous=False,
        rotation=trees.isometry.rotation + 0.0,
        translation=trees.isometry.translation + 0.0,
        bodies=tuple(int(b) for b in trees.bodies),
        frames=_snap_integers(trees.frames),
        joint_matrix=trees.matrix + 0.0,
        joint_shift=position_offsets(skeleton, trees),
        dofs=_snap_integers(match.dofs),
        controls=match.controls + 0.0,
        activations=match.activations + 0.0,
        deviations=deviations(skeleton, match),
        match=match,
    )


def _generator(skeleton: Skeleton, match: Match, name: str) -> ModelSymmetry:
    r"""A continuous symmetry from its match at one angle.

    Every matrix is a rotation by that angle, G = exp(angle A) with A^3 = -A, so A = (G - G^-1) / (2 sin(angle)). Shifts of
    hinges are proportional to the angle.
    """
    element = _element(skeleton, match, name)

    def log(G: np.ndarray) -> np.ndarray:
        return _snap_integers((G - np.linalg.inv(G)) / (2 * np.sin(TRIAL_ANGLE)))

    generator = map_matrices(element, log, 1.0, is_continuous=True)
    hinges = skeleton.model.jnt_type[skeleton.scalars] == HINGE
    shift = np.where(hinges, _snap_integers(element.joint_shift / TRIAL_ANGLE), generator.joint_shift)
    return replace(generator, joint_shift=shift)


# -- duplicates -------------------------------------------------------------------------------------------------------


def _is_trivial(s: ModelSymmetry) -> bool:
    if s.is_continuous:
        return not (np.any(s.dofs) or np.any(s.joint_shift) or np.any(s.controls))
    action = state_matrix(s)
    return acts_alike(action, np.eye(len(action)), len(s.joint_shift), atol=1e-9)


def _are_equal(skeleton: Skeleton, a: ModelSymmetry, b: ModelSymmetry, yaw: ModelSymmetry | None) -> bool:
    """Check whether two discrete symmetries are equal, up to a turn of the world if `yaw` is a symmetry."""
    if b.is_continuous:
        return False
    n, A, B = len(a.joint_shift), state_matrix(a), state_matrix(b)
    if acts_alike(A, B, n):
        return True
    if yaw is None or a.determinant != b.determinant:
        return False
    angle = angle_about(np.eye(3)[skeleton.vertical], a.rotation @ b.rotation.T)
    return acts_alike(A, state_matrix(finite_element(yaw, angle)) @ B, n)


def _drop_powers(symmetries: list[ModelSymmetry]) -> list[ModelSymmetry]:
    """Drop the turns of a body that are powers of its smallest turn, except the half turn."""

    def angle(turn: ModelSymmetry) -> float:
        (M,) = turn.match.trees.isometry.root_maps.values()
        return float(np.arccos(np.clip((np.trace(M) - 1) / 2, -1, 1)))

    turns = [s for s in symmetries if s.name.startswith(("turn", "quarter turn", "half turn"))]
    smallest: dict[int, ModelSymmetry] = {}
    for turn in sorted(turns, key=angle):
        (root,) = turn.match.trees.isometry.root_maps
        smallest.setdefault(root, turn)
    kept = [s for s in turns if s in smallest.values() or s.name.startswith("half turn")]
    return [s for s in symmetries if s not in turns or s in kept]


# -- helpers ----------------------------------------------------------------------------------------------------------


def _azimuths(skeleton: Skeleton, root: int) -> list[float]:
    """Azimuths of a root's limbs: of the first bodies off its vertical axis."""
    horizontal = [a for a in range(3) if a != skeleton.vertical]
    azimuths, todo = [], list(skeleton.children[root])
    while todo:
        b = todo.pop()
        offset = (_limb_place(skeleton, b) - skeleton.data.xpos[root])[horizontal]
        if np.linalg.norm(offset) > 1e-3 * skeleton.size:
            azimuths.append(float(np.arctan2(offset[1], offset[0])))
        else:
            todo += skeleton.children[b]
    return azimuths


def _round_angle(angle: float) -> float:
    """Round an angle to the nearest fraction of a whole turn (`TURN_DIVISORS`), if it is near one."""
    parts = [2 * np.pi / n for n in TURN_DIVISORS]
    nearest = min((round(angle / part) * part for part in parts), key=lambda x: round(abs(x - angle), 9))
    return nearest if abs(nearest - angle) < MAX_MISFIT else angle


def _distinct(values: list) -> list:
    """Drop values that equal an earlier one to 1e-6."""
    distinct: list = []
    for value in values:
        if not any(np.allclose(value, earlier, atol=1e-6) for earlier in distinct):
            distinct.append(value)
    return distinct


def _snap_integers(array: np.ndarray) -> np.ndarray:
    """Replace entries within 1e-9 of an integer by it."""
    return np.where(np.abs(array - np.round(array)) < 1e-9, np.round(array), array) + 0.0


# -- names of symmetries, by how the robot is built ----------------------------------------------------------------------------


OPPOSITE_TOLERANCE = 0.02
"""Largest distance, relative to the robot's size, of a joint's mirror image from the joint opposite to it."""


def reflection_name(
    skeleton: Skeleton, match: Match, *, first: bool, alone: bool, other_axis: int, known: Collection[str]
) -> str:
    """Name of a mirror image: "left-right" or "front-back", by the limbs and joints on either side of its plane.

    It is a "leg swap" for a planar robot if it exchanges limbs and keeps all other joints as they are.

    Args:
        first: whether it is y -> -y (if z is vertical), the left-right mirror if nothing else decides.
        alone: whether it is the only mirror image.
        other_axis: the other horizontal axis.
        known: names that are taken.
    """
    permuted = (match.trees.bodies != np.arange(len(match.trees.bodies)))[skeleton.model.jnt_bodyid[skeleton.scalars]]
    fixed = match.trees.matrix[np.ix_(~permuted, ~permuted)]
    planar = not np.isin(skeleton.model.jnt_type, (FREE, BALL)).any()
    if planar and permuted.any() and fixed.size and np.allclose(fixed, np.eye(len(fixed))):
        return "leg swap"
    other_sides = _has_sides(skeleton, other_axis)
    if is_exchange(match.trees) or exchanges_geoms(skeleton, match):
        sideways = first or not other_sides
    else:
        sideways = not other_sides and (first or not alone)
    walks_in_plane = any(abs(axis[skeleton.vertical]) > 0.5 for axis in _planar_slides(skeleton))
    may_be_left_right = "left-right" not in known and (first or not walks_in_plane)
    return "left-right" if sideways and may_be_left_right else "front-back"


def _has_sides(skeleton: Skeleton, axis: int) -> bool:
    """Check whether joints of two branches of the main tree lie opposite each other along a horizontal axis."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = [j for j in range(m.njnt) if root is not None and m.body_rootid[m.jnt_bodyid[j]] == m.body_rootid[root]]
    places = skeleton.data.xanchor[joints] - skeleton.data.xpos[root or 0]
    flip = np.where(np.arange(3) == axis, -1.0, 1.0)
    tolerance = OPPOSITE_TOLERANCE * skeleton.size
    for n, j in enumerate(joints):
        for k in np.flatnonzero(np.abs(places * flip - places[n]).max(1) < tolerance):
            a, b = m.jnt_bodyid[j], m.jnt_bodyid[joints[k]]
            if abs(places[n][axis]) > tolerance and not _is_below(m, a, b) and not _is_below(m, b, a):
                return True
    return False


def _is_below(m: mujoco.MjModel, b: int, top: int) -> bool:
    """Check whether body b is `top` or one of its descendants."""
    while b > top:
        b = m.body_parentid[b]
    return bool(b == top)


def is_exchange(trees: TreeMatch) -> bool:
    """Check whether a match exchanges bodies."""
    return bool((trees.bodies != np.arange(len(trees.bodies))).any())


def exchanges_geoms(skeleton: Skeleton, match: Match) -> bool:
    """Check whether a match exchanges geoms, such as arms without joints on one body."""
    shaped = np.flatnonzero(skeleton.shaped & (skeleton.model.body_weldid[skeleton.model.geom_bodyid] != 0))
    partners = match.geoms[shaped]
    return bool(((partners != shaped) & (partners != NONE)).any())


def _planar_slides(skeleton: Skeleton) -> list[np.ndarray]:
    """Axes of the main root's slides if it moves in a plane, on two of them and a hinge; otherwise none."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = skeleton.joints[root] if root is not None else ()
    slides = [skeleton.data.xaxis[j] for j in joints if m.jnt_type[j] == SLIDE]
    return slides if len(slides) >= 2 and any(m.jnt_type[j] == HINGE for j in joints) else []


def swap_name(skeleton: Skeleton, b: int, c: int, known: Collection[str]) -> str:
    """Name of an exchange of two limbs, or of two objects on the world."""
    left, right = (name_of(skeleton.model, "body", i).removeprefix("body ") for i in (b, c))
    if skeleton.model.body_parentid[b] == 0:
        return f"exchange of {left} and {right}"
    taken = any(name.startswith("leg swap") for name in known)
    return f"leg swap ({left}, {right})" if taken else "leg swap"


def _main_root(skeleton: Skeleton) -> int | None:
    """The root of the tree with the most degrees of freedom."""
    m = skeleton.model
    return int(m.tree_bodyadr[m.tree_dofnum.argmax()]) if m.ntree else None


def _free_root(skeleton: Skeleton) -> int | None:
    """The main root, if it is free."""
    root = _main_root(skeleton)
    return root if root is not None and skeleton.model.jnt_type[skeleton.joints[root][0]] == FREE else None


# -- the derivation of a model -----------------------------------------------------------------------------------------

MAX_DEVIATION_ROWS = 12  # deviations that a table lists in full


@dataclass(frozen=True, eq=False)
class Derivation:
    """The symmetries derived from a model, discrete ones first.

    Args:
        unpaired: without "left-right", the actuators and tendons without a partner in a mirror image that fits the bodies.
    """

    model: mujoco.MjModel
    symmetries: tuple[ModelSymmetry, ...]
    unpaired: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ModelSymmetry:
        """The symmetry of this name.

        Raises:
            ValueError: there is none.
        """
        for symmetry in self.symmetries:
            if symmetry.name == name:
                return symmetry
        raise ValueError(f"the model has no symmetry {name!r}; found: {', '.join(self.names) or 'none'}{self.hint}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(symmetry.name for symmetry in self.symmetries)

    @property
    def hint(self) -> str:
        """Text on the element that keeps the model from having a mirror image; "" if nothing is known."""
        return f"; a mirror image fits its bodies, but {self.unpaired[0]} has no partner in it" if self.unpaired else ""

    def table(self) -> str:
        """Table of the images of joints and controls, a column per symmetry, followed by each symmetry's deviations.

        The column of a continuous symmetry is the derivative; its deviations are those of a turn by one radian.
        """
        if not self.symmetries:
            return "no symmetry found" + self.hint
        rows = [["", *self.names]]
        rows.append(["world", *(_axes(s.rotation, s.is_continuous) for s in self.symmetries)])
        columns = [_joints(self.model, s) + _controls(self.model, s) for s in self.symmetries]
        for cells in zip(*columns, strict=True):
            rows.append([cells[0][0], *(cell for _, cell in cells)])
        lines = align(rows)
        for s in self.symmetries:
            count = len(s.deviations)
            summary = {0: "nothing deviates", 1: "one parameter deviates"}.get(count, f"{count} parameters deviate")
            lines += ["", f"{s.name}: {summary}", *(f"  {d}" for d in s.deviations[:MAX_DEVIATION_ROWS])]
            if count > MAX_DEVIATION_ROWS:
                largest = s.deviations[MAX_DEVIATION_ROWS].relative
                lines.append(f"  and {count - MAX_DEVIATION_ROWS} more, none above {largest:.1%}")
        return "\n".join([*lines, *(["", self.hint.removeprefix("; ")] if self.unpaired else [])])

    def __str__(self) -> str:
        return self.table()


def derive(model: mujoco.MjModel) -> Derivation:
    """Derive the symmetries of a MuJoCo model, with their action on bodies, joints, velocities and controls.

    The structure must match: the tree, types and axes of joints, what actuators drive. Parameters that don't match are kept as
    `Deviation`s.

    A free robot may start in any pose. Where its axes aren't the world's, it is searched with its axes laid on them, too; the
    left-right mirror with fewer deviations decides, then the number of symmetries.

    Raises:
        ValueError: the model has flexible parts, or none that move, or MuJoCo can't compute its constants.
    """
    if model.nflex:
        raise ValueError(f"the model has {model.nflex} flexes, whose symmetry is not derived; remove them")
    if not model.nv:
        raise ValueError("the model has no joints: there is nothing to derive a symmetry of")
    skeletons = [Skeleton(model)]
    if (root := _free_root(skeletons[0])) is not None:
        axes = skeletons[0].world[root]
        if not np.allclose(axes, np.eye(3)):
            along_axes = np.allclose(np.abs(axes).max(0), 1)
            skeletons.insert(int(along_axes), Skeleton(model, upright=root))

    def rank(pair: tuple[tuple[ModelSymmetry, ...], Skeleton]) -> tuple[float, int]:
        deviating = [len(s.deviations) for s in pair[0] if s.name == "left-right"]
        return min(deviating, default=np.inf), -len(pair[0])

    found, skeleton = min(((_search_pose(skeleton), skeleton) for skeleton in skeletons), key=rank)
    is_whole = any(s.name == "left-right" for s in found)
    return Derivation(model, found, () if is_whole else tuple(dict.fromkeys(skeleton.unpaired)))


def _axes(matrix: np.ndarray, is_continuous: bool) -> str:
    """Describe a rotation by the images of x, y and z, or a generator by its axis."""
    if is_continuous:
        axis = np.array([matrix[2, 1], matrix[0, 2], matrix[1, 0]])
        return "stays" if not axis.any() else f"turns about {_sum(axis, 'xyz')}"
    return ", ".join(_sum(row, "xyz") for row in matrix.T)


def _sum(row: np.ndarray, names) -> str:
    """Format a linear combination: ``-a``, ``0.5 a + b``; ``stays`` if it is zero, as a generator's row may be."""
    terms = []
    for c, name in zip(row, names, strict=True):
        if abs(c) > 1e-9:
            terms.append(f"{'-' if c < 0 else '+'} {'' if abs(abs(c) - 1) < 1e-9 else f'{abs(c):.3g} '}{name}")
    text = " ".join(terms) or "stays"
    return "-" + text[2:] if text.startswith("- ") else text.removeprefix("+ ")


def _joints(model: mujoco.MjModel, s: ModelSymmetry) -> list[tuple[str, str]]:
    """(name, image) of every joint."""
    scalars = scalar_joints(model)
    names = [name_of(model, "joint", j).removeprefix("joint ") for j in range(model.njnt)]
    joints = []
    for j in range(model.njnt):
        if j in scalars:
            n = scalars.index(j)
            text, shift = _sum(s.joint_matrix[n], [names[k] for k in scalars]), s.joint_shift[n]
            if shift:
                text = f"{shift:.4g}" if text == "stays" else f"{text} {'-' if shift < 0 else '+'} {abs(shift):.4g}"
            joints.append((names[j], text))
        else:
            body = int(model.jnt_bodyid[j])
            source = s.bodies.index(body)
            of = "" if source == body else f" of {name_of(model, 'body', source).removeprefix('body ')}"
            joints.append((f"{names[j]} (own axes)", _axes(s.frames[source], s.is_continuous) + of))
    return joints


def _controls(model: mujoco.MjModel, s: ModelSymmetry) -> list[tuple[str, str]]:
    """(name, image) of every control."""
    names, (_, counts) = [], control_addresses(model)
    for i, count in enumerate(counts):
        names += [name_of(model, "actuator", i)] * count
    short = [name.removeprefix("actuator ").removeprefix("of ") for name in names]
    return [(f"control of {short[k]}", _sum(s.controls[k], short)) for k in range(model.nu)]
