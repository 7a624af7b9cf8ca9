"""Finding the symmetries of a MuJoCo model: candidates, what they do, which of them say something new."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from rppdyn.envs.derivation.elements import NONE, Match, match_elements
from rppdyn.envs.derivation.parameters import deviations
from rppdyn.envs.derivation.trees import Isometry, Skeleton, TreeMatch, angle_about, match_trees, rotation_about
from rppdyn.envs.model_symmetry import (
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
from rppdyn.envs.spec import align

TRIAL_ANGLE = 1.0
"""By how much the world is turned to try a continuous symmetry: no fraction of a whole turn, so no finite group has it."""

MAX_MISFIT = 0.02
"""Misfit of joints' places, relative to the robot's size, below which a turn or an exchange of objects is one."""

MAX_LIMB_MISFIT = 0.1
"""The same for two limbs that change places."""

MAX_MIRROR_MISFIT = 0.25
"""The same for the limbs that a reflection exchanges, which are kept as rough ones too, as a cheetah's are."""

MAX_STRAY = 0.05
"""The same for bodies that stay where they are."""

TURN_DIVISORS = range(1, 13)
"""Angles within `MAX_MISFIT` of a multiple of a whole turn over one of these are that multiple."""


@dataclass(frozen=True, eq=False)
class MatchedSymmetry:
    """A symmetry, with the match that it came from."""

    symmetry: ModelSymmetry
    match: Match


def search(model: mujoco.MjModel) -> tuple[MatchedSymmetry, ...]:
    """Every symmetry found, none of them trivial and no two the same."""
    skeleton = Skeleton(model)
    yaw = _yaw(skeleton)
    symmetries = [yaw] if yaw else []
    for candidate in (_reflections, _body_turns, _swaps, _world_turns):
        for one in candidate(skeleton, symmetries):
            if not _is_trivial(one.symmetry) and not any(_same(skeleton, one, other, yaw) for other in symmetries):
                symmetries.append(one)
    return tuple(sorted(_tidy(symmetries), key=lambda one: one.symmetry.is_continuous))


# -- candidates -------------------------------------------------------------------------------------------------------


def _yaw(skeleton: Skeleton) -> MatchedSymmetry | None:
    """The world turning about the vertical."""
    up = np.eye(3)[skeleton.vertical]
    rotation = rotation_about(up, TRIAL_ANGLE)
    best = _best(skeleton, [Isometry(rotation, p - rotation @ p, keep=True) for p in _pivots(skeleton, up)])
    if best is None:
        return None
    turn = _generator(skeleton, best, yaw_name(skeleton))
    return None if _is_trivial(turn.symmetry) else turn


def _pivots(skeleton: Skeleton, up: np.ndarray) -> list[np.ndarray]:
    """Points that a vertical axis may have to pass through: anchors of the world's own hinges, then the origin."""
    m, points = skeleton.model, []
    for j in range(m.njnt):
        if m.jnt_type[j] in (HINGE, BALL) and m.body_weldid[m.body_parentid[m.jnt_bodyid[j]]] == 0:
            points.append(skeleton.data.xanchor[j] * (1 - up))
    return _distinct([*points, np.zeros(3)])


def _reflections(skeleton: Skeleton, known: list[MatchedSymmetry]) -> Iterator[MatchedSymmetry]:
    """Mirror images, y -> -y before x -> -x, but first those that fit and that exchange limbs.

    A free robot is mirrored in its own plane. The world is mirrored in the first one's plane for all of them, which
    keeps the reward for moving along that plane.
    """
    axes, root = [a for a in (1, 0, 2) if a != skeleton.vertical], _main_root(skeleton)
    if root is not None and skeleton.model.jnt_type[skeleton.joints[root][0]] != FREE:
        root = None

    def mirrored(world: int, body: int) -> Match | None:
        R, M = (np.diag([-1.0 if a == axis else 1.0 for a in range(3)]) for axis in (world, body))
        turned = {root: _whole(skeleton.world[root].T @ M @ skeleton.world[root])} if root else {}
        return _best(skeleton, [Isometry(R, t, turned) for t in _offsets(skeleton, world)], MAX_MIRROR_MISFIT)

    def rank(pair: tuple[int, Match]) -> tuple[bool, ...]:
        trees = pair[1].trees
        turned = np.abs(trees.shift).max(initial=0.0) > 1
        parts = exchanges_geoms(skeleton, pair[1])
        return trees.misfit > MAX_MISFIT, bool(turned), not is_exchange(trees), not parts

    mirrors = [(axis, match) for axis in axes if (match := mirrored(axis, axis)) is not None]
    mirrors.sort(key=rank)
    for n, (axis, match) in enumerate(mirrors):
        if n and root:
            match = mirrored(mirrors[0][0], axis) or match
        name = reflection_name(
            skeleton,
            match,
            first=axis == axes[0],
            alone=len(mirrors) == 1,
            other=axes[1 - axes.index(axis)],
            known=_names(known),
        )
        yield _element(skeleton, match, name)
    if root and not mirrors:
        yield from _oblique_reflections(skeleton, root, axes[0])


def _oblique_reflections(skeleton: Skeleton, root: int, axis: int) -> Iterator[MatchedSymmetry]:
    """Mirror images of a free robot in vertical planes between two of its limbs."""
    up, world = np.eye(3)[skeleton.vertical], np.diag([-1.0 if a == axis else 1.0 for a in range(3)])
    azimuths = _azimuths(skeleton, root)
    for angle in _distinct([_fraction((a + b) / 2) % np.pi for a in azimuths for b in azimuths]):
        body = skeleton.world[root].T @ rotation_about(up, 2 * angle) @ world @ skeleton.world[root]
        best = _best(skeleton, [Isometry(world, np.zeros(3), {root: _whole(body)})])
        if best is not None:
            yield _element(skeleton, best, f"mirror at {np.degrees(angle):.3g} degrees")


def _offsets(skeleton: Skeleton, axis: int) -> list[np.ndarray]:
    """Translations t of x -> R x + t that carry one body anchored in the world onto another, or onto itself."""
    m, place = skeleton.model, []
    for b in range(1, m.nbody):
        joints = skeleton.joints[b]
        if m.body_weldid[m.body_parentid[b]] == 0 and joints and m.jnt_type[joints[0]] != FREE:
            turning = [j for j in joints if m.jnt_type[j] in (HINGE, BALL)]
            place.append(float((skeleton.data.xanchor[turning[0]] if turning else skeleton.data.xpos[b])[axis]))
    sums = [2 * p for p in place] + [p + q for p in place for q in place]
    return [np.eye(3)[axis] * a for a in _distinct([*sums, 0.0])]


def _body_turns(skeleton: Skeleton, known: list[MatchedSymmetry]) -> Iterator[MatchedSymmetry]:
    """A robot that can turn freely in the world turned by an angle between two of its limbs: the limbs change places."""
    up, m = np.eye(3)[skeleton.vertical], skeleton.model
    for root in skeleton.children[0]:
        joints = skeleton.joints[root]
        if not joints or m.jnt_type[joints[-1]] not in (FREE, HINGE):
            continue
        if m.jnt_type[joints[-1]] == HINGE and abs(skeleton.data.xaxis[joints[-1]] @ up) < 1 - 1e-6:
            continue
        azimuths = _azimuths(skeleton, root)
        for angle in _distinct([_fraction(b - a) % (2 * np.pi) for a in azimuths for b in azimuths]):
            if not 1e-3 < angle < np.pi + 1e-3:
                continue
            body = skeleton.world[root].T @ rotation_about(up, angle) @ skeleton.world[root]
            best = _best(skeleton, [Isometry(np.eye(3), np.zeros(3), {root: _whole(body)})])
            if best is not None:
                yield _element(skeleton, best, turn_name(angle))


def _swaps(skeleton: Skeleton, known: list[MatchedSymmetry]) -> Iterator[MatchedSymmetry]:
    """Siblings that can change places while everything else stays."""
    m = skeleton.model
    for siblings in skeleton.children:
        moving = [b for b in siblings if m.body_weldid[b]]
        while moving:
            first, *rest = moving
            for other in rest:
                loose = m.body_parentid[first] == 0  # objects of their own, of which only equal ones are exchanged
                apart = np.linalg.norm(_root_of(skeleton, first) - _root_of(skeleton, other))
                if m.body_mass[first] != m.body_mass[other] if loose else apart > 1e-3 * skeleton.size:
                    continue
                swap = Isometry(np.eye(3), np.zeros(3), keep=True, swapped=(first, other))
                if (best := _best(skeleton, [swap], MAX_MISFIT if loose else MAX_LIMB_MISFIT)) is not None:
                    yield _element(skeleton, best, swap_name(skeleton, first, other, _names(known)))
                    break
            moving = rest


def _root_of(skeleton: Skeleton, b: int) -> np.ndarray:
    """Body that a limb hangs on."""
    return skeleton.data.xanchor[skeleton.joints[b][0]] if skeleton.joints[b] else skeleton.data.xpos[b]


def _world_turns(skeleton: Skeleton, known: list[MatchedSymmetry]) -> Iterator[MatchedSymmetry]:
    """Half and quarter turns of the world with all that is in it, where it can't turn by any angle."""
    if any(one.symmetry.is_continuous and not one.symmetry.deviations for one in known):
        return
    up = np.eye(3)[skeleton.vertical]
    for name, angle in (("world quarter turn", np.pi / 2), ("world half turn", np.pi)):
        rotation = _whole(rotation_about(up, angle))
        pivots = [skeleton.data.xpos[b] * (1 - up) for b in skeleton.children[0]]
        pivots = _distinct([(p + q) / 2 for p in pivots for q in pivots] + _pivots(skeleton, up))
        best = _best(skeleton, [Isometry(rotation, p - rotation @ p, keep=True) for p in pivots])
        if best is not None:
            turn = _element(skeleton, best, name)
            if not turn.symmetry.deviations and not _is_product(turn, known):
                yield turn
                return


def _best(skeleton: Skeleton, isometries: list[Isometry], limit: float = MAX_MISFIT) -> Match | None:
    """The candidate that fits best, the first of equals; none whose misfit reaches the limit."""
    matches = [t for i in isometries if (t := match_trees(skeleton, i)) is not None and t.misfit < limit]
    matches = [t for t in matches if t.strayed < MAX_STRAY]
    for trees in sorted(matches, key=lambda t: round(t.misfit, 9)):
        if (match := match_elements(skeleton, trees)) is not None:
            return match
    return None


# -- what they do -----------------------------------------------------------------------------------------------------


def _element(skeleton: Skeleton, match: Match, name: str) -> MatchedSymmetry:
    """A discrete symmetry from its match."""
    trees, m = match.trees, skeleton.model
    q0 = m.qpos0[m.jnt_qposadr[skeleton.scalars]]
    symmetry = ModelSymmetry(
        name=name,
        is_continuous=False,
        rotation=trees.isometry.rotation + 0.0,
        translation=trees.isometry.translation + 0.0,
        bodies=tuple(int(b) for b in trees.bodies),
        frames=_whole(trees.frames),
        joint_matrix=trees.matrix + 0.0,
        joint_shift=_zero_rounding(trees.shift + q0 - trees.matrix @ q0),
        dofs=_whole(match.dofs),
        controls=match.controls + 0.0,
        activations=match.activations + 0.0,
        deviations=deviations(skeleton, match),
    )
    return MatchedSymmetry(symmetry, match)


def _generator(skeleton: Skeleton, match: Match, name: str) -> MatchedSymmetry:
    r"""A continuous symmetry from its match at one angle.

    Every matrix is a rotation by that angle, G = exp(angle A) with A^3 = -A, so A = (G - G^-1) / (2 sin(angle)). Hinges
    are shifted in proportion to the angle.
    """
    one = _element(skeleton, match, name).symmetry

    def log(G: np.ndarray) -> np.ndarray:
        return _whole((G - np.linalg.inv(G)) / (2 * np.sin(TRIAL_ANGLE)))

    generator = map_matrices(one, log, 1.0, is_continuous=True)
    hinges = skeleton.model.jnt_type[skeleton.scalars] == HINGE
    shift = np.where(hinges, _whole(one.joint_shift / TRIAL_ANGLE), generator.joint_shift)
    translation = _zero_rounding(generator.translation)
    return MatchedSymmetry(replace(generator, translation=translation, joint_shift=_zero_rounding(shift)), match)


# -- which of them say something new ----------------------------------------------------------------------------------


def _is_trivial(s: ModelSymmetry) -> bool:
    if s.is_continuous:
        return not (np.any(s.dofs) or np.any(s.joint_shift) or np.any(s.controls))
    action = state_matrix(s)
    return acts_alike(action, np.eye(len(action)), len(s.joint_shift), atol=1e-9)


def _same(skeleton: Skeleton, one: MatchedSymmetry, other: MatchedSymmetry, yaw: MatchedSymmetry | None) -> bool:
    """Check whether two discrete symmetries are the same, or differ by the robot's turning in an anchored world."""
    a, b = one.symmetry, other.symmetry
    if b.is_continuous:
        return False
    n, action, known = len(a.joint_shift), state_matrix(a), state_matrix(b)
    if acts_alike(action, known, n):
        return True
    if yaw is None or a.determinant != b.determinant:
        return False
    angle = angle_about(np.eye(3)[skeleton.vertical], a.rotation @ b.rotation.T)
    return acts_alike(action, state_matrix(finite_element(yaw.symmetry, angle)) @ known, n)


def _is_product(one: MatchedSymmetry, known: list[MatchedSymmetry]) -> bool:
    """Check whether two known discrete symmetries, one after the other, do the same."""
    actions = [state_matrix(other.symmetry) for other in known if not other.symmetry.is_continuous]
    action, n = state_matrix(one.symmetry), len(one.symmetry.joint_shift)
    return any(acts_alike(action, a @ b, n) for a in actions for b in actions)


def _tidy(symmetries: list[MatchedSymmetry]) -> list[MatchedSymmetry]:
    """Keep, of several turns by fractions of a whole one, the smallest, which generates the others, and the half turn."""

    def angle(one: MatchedSymmetry) -> float:
        (M,) = one.match.trees.isometry.turned.values()
        return float(np.arccos(np.clip((np.trace(M) - 1) / 2, -1, 1)))

    turns = [one for one in symmetries if one.symmetry.name.endswith("turn") or one.symmetry.name.startswith("turn")]
    turns = [one for one in turns if not one.symmetry.name.startswith("world")]
    smallest = min(turns, key=angle, default=None)
    return [one for one in symmetries if one not in turns or one is smallest or one.symmetry.name == "half turn"]


# -- small helpers ----------------------------------------------------------------------------------------------------


def _names(symmetries: list[MatchedSymmetry]) -> list[str]:
    return [one.symmetry.name for one in symmetries]


def _azimuths(skeleton: Skeleton, root: int) -> list[float]:
    """Directions about the vertical, from the root, of the first bodies off its axis."""
    horizontal = [a for a in range(3) if a != skeleton.vertical]
    azimuths, todo = [], list(skeleton.children[root])
    while todo:
        b = todo.pop()
        off = (_root_of(skeleton, b) - skeleton.data.xpos[root])[horizontal]
        if np.linalg.norm(off) > 1e-3 * skeleton.size:
            azimuths.append(float(np.arctan2(off[1], off[0])))
        else:
            todo += skeleton.children[b]
    return azimuths


def _fraction(angle: float) -> float:
    """The fraction of a whole turn that an angle stands for, if it is near one."""
    parts = [2 * np.pi / n for n in TURN_DIVISORS]
    nearest = min((round(angle / part) * part for part in parts), key=lambda x: round(abs(x - angle), 9))
    return nearest if abs(nearest - angle) < MAX_MISFIT else angle


def _distinct(values: list) -> list:
    """Values that are not, to rounding, an earlier one."""
    distinct: list = []
    for value in values:
        if not any(np.allclose(value, other, atol=1e-6) for other in distinct):
            distinct.append(value)
    return distinct


def _whole(array: np.ndarray) -> np.ndarray:
    """Whole numbers where rounding kept them from being so."""
    return np.where(np.abs(array - np.round(array)) < 1e-9, np.round(array), array) + 0.0


def _zero_rounding(array: np.ndarray) -> np.ndarray:
    return np.where(np.abs(array) < 1e-12, 0.0, array)


# -- what a symmetry is called, which depends on how the robot is built --------------------------------------------------------


OPPOSITE_TOLERANCE = 0.02
"""How near two places are, relative to the robot's size, that lie opposite each other."""


def reflection_name(
    skeleton: Skeleton, match: Match, *, first: bool, alone: bool, other: int, known: Collection[str]
) -> str:
    """Name of a mirror image: "left-right" or "front-back", by what the robot has on either side of its plane.

    A planar robot whose motion in its plane stays as it is, but not its limbs, has a "leg swap".

    Args:
        first: whether it is y -> -y (if z is vertical), which comes first where nothing else decides.
        alone: whether there is no reflection of the other horizontal axis.
        other: that axis.
        known: names that are taken.
    """
    permuted = (match.trees.bodies != np.arange(len(match.trees.bodies)))[skeleton.model.jnt_bodyid[skeleton.scalars]]
    fixed = match.trees.matrix[np.ix_(~permuted, ~permuted)]
    planar = not np.isin(skeleton.model.jnt_type, (FREE, BALL)).any()  # reflections may leave its plane alone
    if planar and permuted.any() and fixed.size and np.allclose(fixed, np.eye(len(fixed))):
        return "leg swap"
    other_sides = _has_sides(skeleton, other)
    if is_exchange(match.trees) or exchanges_geoms(skeleton, match):
        sideways = first or not other_sides
    else:
        sideways = not other_sides and (first or not alone)
    return "left-right" if sideways and "left-right" not in known and (first or not _walks(skeleton)) else "front-back"


def _has_sides(skeleton: Skeleton, axis: int) -> bool:
    """Check whether joints of two branches of the main tree lie opposite each other along a horizontal axis."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = [j for j in range(m.njnt) if root is not None and m.body_rootid[m.jnt_bodyid[j]] == m.body_rootid[root]]
    places = skeleton.data.xanchor[joints] - skeleton.data.xpos[root or 0]
    flip = np.where(np.arange(3) == axis, -1.0, 1.0)
    near = OPPOSITE_TOLERANCE * skeleton.size
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
    """Check whether bodies change places."""
    return bool((trees.bodies != np.arange(len(trees.bodies))).any())


def exchanges_geoms(skeleton: Skeleton, match: Match) -> bool:
    """Check whether parts of one body change places, such as arms without joints."""
    shaped = np.flatnonzero(skeleton.shaped & (skeleton.model.body_weldid[skeleton.model.geom_bodyid] != 0))
    to = match.geoms[shaped]
    return bool(((to != shaped) & (to != NONE)).any())


def _walks(skeleton: Skeleton) -> bool:
    """Check whether the robot moves freely in a vertical plane, as planar walkers do."""
    m, root = skeleton.model, _main_root(skeleton)
    joints = skeleton.joints[root] if root is not None else ()
    slides = [skeleton.data.xaxis[j] for j in joints if m.jnt_type[j] == SLIDE]
    hinged = any(m.jnt_type[j] == HINGE for j in joints)
    return hinged and len(slides) >= 2 and max(abs(a[skeleton.vertical]) for a in slides) > 0.5


def yaw_name(skeleton: Skeleton) -> str:
    """Name of a turn: "planar rotation" of a main tree that slides and turns in the horizontal plane, otherwise "yaw"."""
    m, root = skeleton.model, _main_root(skeleton)
    kinds = [int(m.jnt_type[j]) for j in skeleton.joints[root]] if root is not None else []
    return "planar rotation" if kinds.count(SLIDE) >= 2 and HINGE in kinds else "yaw"


def turn_name(angle: float) -> str:
    """Name of a turn of the body alone, by a fraction of a whole turn if it is one."""
    n = 2 * np.pi / angle
    if abs(n - round(n)) < 1e-3:
        return {2: "half turn", 4: "quarter turn"}.get(round(n), f"turn by 2 pi/{round(n)}")
    return f"turn by {np.degrees(angle):.4g} degrees"


def swap_name(skeleton: Skeleton, first: int, other: int, known: Collection[str]) -> str:
    """Name of an exchange of two limbs, or two objects."""
    one, two = (name_of(skeleton.model, "body", b).removeprefix("body ") for b in (first, other))
    if skeleton.model.body_parentid[first] == 0:
        return f"exchange of {one} and {two}"
    taken = any(name.startswith("leg swap") for name in known)
    return f"leg swap ({one}, {two})" if taken else "leg swap"


def _main_root(skeleton: Skeleton) -> int | None:
    """The root of the tree with most degrees of freedom."""
    m = skeleton.model
    roots = [b for b in range(1, m.nbody) if skeleton.joints[b] and m.body_weldid[m.body_parentid[b]] == 0]
    return max(
        roots, key=lambda b: sum(m.body_dofnum[c] for c in range(b, m.nbody) if _is_below(m, c, b)), default=None
    )


# -- from a model to its spec ------------------------------------------------------------------------------------------

MAX_DEVIATION_ROWS = 12  # deviations that a table spells out


@dataclass(frozen=True, eq=False)
class Derivation:
    """The result of a derivation: a model's candidate symmetries, discrete ones first."""

    model: mujoco.MjModel
    symmetries: tuple[ModelSymmetry, ...]

    def __getitem__(self, name: str) -> ModelSymmetry:
        """The symmetry of this name.

        Raises:
            ValueError: there is none.
        """
        for symmetry in self.symmetries:
            if symmetry.name == name:
                return symmetry
        raise ValueError(f"the model has no symmetry {name!r}; found: {', '.join(self.names) or 'none'}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(symmetry.name for symmetry in self.symmetries)

    def table(self) -> str:
        """Images of joints and controls under each symmetry, a column each, and what deviates from it.

        A continuous symmetry's column is the derivative along it; its deviations are those of a turn by one radian.
        """
        if not self.symmetries:
            return "no symmetry found"
        rows = [["", *self.names]]
        rows.append(["world", *(_axes(s.rotation, s.is_continuous) for s in self.symmetries)])
        columns = [_joints(self.model, s) + _controls(self.model, s) for s in self.symmetries]
        for cells in zip(*columns, strict=True):
            rows.append([cells[0][0], *(cell for _, cell in cells)])
        lines = align(rows)
        for s in self.symmetries:
            count = len(s.deviations)
            what = {0: "nothing deviates", 1: "one parameter deviates"}.get(count, f"{count} parameters deviate")
            lines += ["", f"{s.name}: {what}", *(f"  {d}" for d in s.deviations[:MAX_DEVIATION_ROWS])]
            if count > MAX_DEVIATION_ROWS:
                largest = s.deviations[MAX_DEVIATION_ROWS].relative
                lines.append(f"  and {count - MAX_DEVIATION_ROWS} more, none above {largest:.1%}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def derive(model: mujoco.MjModel) -> Derivation:
    """Candidate symmetries of a MuJoCo model, with their action on bodies, joints, velocities and controls.

    The structure must match: the tree, the types of its joints and their axes, what the actuators drive. Parameters that
    don't match are kept as `Deviation`s.

    Raises:
        ValueError: the model has flexible parts, or none that move.
    """
    if getattr(model, "nflex", 0):
        raise ValueError(f"the model has {model.nflex} flexes, whose symmetry is not derived; remove them")
    if not model.nv:
        raise ValueError("the model has no joints: there is nothing to derive a symmetry of")
    return Derivation(model, tuple(candidate.symmetry for candidate in search(model)))


def _axes(matrix: np.ndarray, is_continuous: bool) -> str:
    """Images of x, y and z, or the axis about which a generator turns."""
    if is_continuous:
        axis = np.array([matrix[2, 1], matrix[0, 2], matrix[1, 0]])
        return "stays" if not axis.any() else f"turns about {_sum(axis, 'xyz')}"
    return ", ".join(_sum(row, "xyz") for row in matrix.T)


def _sum(row: np.ndarray, names) -> str:
    """A linear combination in words: ``-a``, ``0.5 a + b``; a generator of zero leaves its coordinate where it is."""
    terms = []
    for c, name in zip(row, names, strict=True):
        if abs(c) > 1e-9:
            terms.append(f"{'-' if c < 0 else '+'} {'' if abs(abs(c) - 1) < 1e-9 else f'{abs(c):.3g} '}{name}")
    text = " ".join(terms) or "stays"
    return "-" + text[2:] if text.startswith("- ") else text.removeprefix("+ ")


def _joints(model: mujoco.MjModel, s: ModelSymmetry) -> list[tuple[str, str]]:
    """(joint, what it becomes) of every joint."""
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
    """(control, what it becomes) of every control."""
    names, (_, counts) = [], control_addresses(model)
    for i, count in enumerate(counts):
        names += [name_of(model, "actuator", i)] * count
    short = [name.removeprefix("actuator ").removeprefix("of ") for name in names]
    return [(f"control of {short[k]}", _sum(s.controls[k], short)) for k in range(model.nu)]
