r"""Discrete symmetries of a robot that its data suggest: permutations of joints with signs, ranked by a linear model.

A model of one step, :math:`\Delta y = M x`, is fitted to features y of observations and :math:`x = (y, u)` with actions u,
about their means. A signed permutation g of joints acts on both, and

.. math:: \frac{|g_y M - M g_x|}{\sqrt{|g_y M - M|^2 + |M g_x - M|^2}}

is 0 where the model has the symmetry and about 1 where nothing agrees; what moves nothing that the model sees has no score. A
linear model cannot see all: it has every symmetry g together with -g, and it is only as good as the data.
`rppdyn.envs.certify` decides, in the simulator. The same is asked of a policy, with the linear model :math:`u = M y`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray
from scipy.linalg import block_diag

from rppdyn.envs.derivation import state_spaces
from rppdyn.envs.episodes import Episode
from rppdyn.envs.making import env_name, stock_env
from rppdyn.envs.observation.action import space_of
from rppdyn.envs.observation.recognition import observation_of
from rppdyn.envs.spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import Group

MOST = 10_000  # permutations and roots; with more, joints are exchanged by whole limbs only
SIGNED = 14  # joints, of which all signs are tried
OUTSIDE = 3.0  # standard deviations by which an image's mean may lie off the data's
UNMOVED = 1e-3  # of the model's size, below which a candidate moves nothing that the model sees
RIDGE = 1e-4  # of the inputs' variance


@dataclass(frozen=True, eq=False)
class Candidate:
    """A signed permutation of joints, with its score (0 is a symmetry of the linear model) and its spec for `certify`."""

    name: str
    score: float
    spec: SymmetrySpec


@dataclass(frozen=True, eq=False)
class Candidates:
    """The ranked permutations of a robot's joints.

    Attributes:
        best: candidates of the smallest scores, ascending.
        scores: scores of all, ascending.
        steps: from which the model was fitted.
        residual: share of the variance of changes that the model leaves.
        limbs: whether joints were exchanged by whole limbs only, since there were too many permutations.
    """

    best: tuple[Candidate, ...]
    scores: NDArray[np.float64]
    steps: int
    residual: float
    limbs: bool

    def __str__(self) -> str:
        lines = [f"{len(self.scores)} candidates, from {self.steps} steps"]
        return "\n".join([*lines, *(f"{one.score:.3f}  {one.name}" for one in self.best)])


class _Image(NamedTuple):
    """A signed permutation of joints; of a free root its turns or reflections of the body's own axes and the world's."""

    joints: tuple[int, ...]  # joint j gets what this one had
    signs: tuple[int, ...]
    body: NDArray[np.float64]
    world: NDArray[np.float64]


def symmetry_candidates(
    env: str | gym.Env, episodes: Sequence[Episode], *, signs: bool = True, top: int = 5
) -> Candidates:
    """Rank signed permutations of a robot's joints by how nearly a linear model of its steps has them.

    Joints are exchanged with others of their type that are observed and driven alike. A robot with a free root may also be
    turned by quarters about the vertical, or mirrored.

    Args:
        env: its id, or an environment with a MuJoCo model.
        episodes: episodes of it (`read_episodes`, or `Episode`s of your own).
        signs: whether joints may change their direction; else they are exchanged only, and the root stays.
        top: how many get a spec.
    Raises:
        ValueError: no MuJoCo environment, episodes of other sizes, fewer steps than the model has inputs, a system that
            never changes, or nothing to exchange.
    """
    if isinstance(env, str):
        with closing(stock_env(env, disable_env_checker=True)) as made:
            return symmetry_candidates(made, episodes, signs=signs, top=top)
    robot = _Robot.of(env, signs)
    robot.check(episodes)
    before = np.concatenate([e.observations[:-1] for e in episodes])
    after = np.concatenate([e.observations[1:] for e in episodes])
    return _of_steps(robot, before, np.concatenate([e.actions for e in episodes]), after, signs, top)


def step_candidates(
    env: gym.Env,
    observations: NDArray[np.float64],
    actions: NDArray[np.float64],
    after: NDArray[np.float64],
    *,
    signs: bool = True,
    top: int = 5,
) -> Candidates:
    """The same of single steps, of a trained model's, say: ``(n, observations)``, ``(n, actions)``, ``(n, observations)``."""
    return _of_steps(_Robot.of(env, signs), observations, actions, after, signs, top)


def policy_candidates(
    env: gym.Env, observations: NDArray[np.float64], actions: NDArray[np.float64], *, signs: bool = True, top: int = 5
) -> Candidates:
    """The same of a policy, by a linear model of its actions ``(n, actions)`` at observations ``(n, observations)``.

    Raises:
        ValueError: as of :func:`symmetry_candidates`; actions that are always the same.
    """
    robot = _Robot.of(env, signs)
    y, u = robot.spaces["obs"].encode(observations), np.asarray(actions, float)
    scale = robot.scales(np.concatenate([y, u], 1), robot.classes())
    n = y.shape[1]
    _check_steps(len(y), n)
    return _fitted(robot, (y - y.mean(0)) / scale[:n], (u - u.mean(0)) / scale[n:], _mean(y, u) / scale, n, signs, top)


def _of_steps(robot: _Robot, before: NDArray, actions: NDArray, after: NDArray, signs: bool, top: int) -> Candidates:
    """From a linear model of the changes of features."""
    encode, classes = robot.spaces["obs"].encode, robot.classes()
    y, u = encode(before), np.asarray(actions, float)
    change, n = encode(after) - y, y.shape[1]
    _check_steps(len(y), n + u.shape[1])
    scale = robot.scales(np.concatenate([y, u], 1), classes)
    x = np.concatenate([y - y.mean(0), u - u.mean(0)], 1) / scale
    target = (change - change.mean(0)) / robot.scales(np.concatenate([change, u], 1), classes)[:n]
    return _fitted(robot, x, target, _mean(y, u) / scale, 0, signs, top)


def _check_steps(steps: int, inputs: int) -> None:
    if steps <= inputs:
        raise ValueError(f"{steps} steps are too few for a linear model of {inputs} inputs: give {inputs + 1} or more")


def _mean(y: NDArray, u: NDArray) -> NDArray:
    return np.concatenate([y.mean(0), u.mean(0)])


def _fitted(robot: _Robot, x: NDArray, target: NDArray, mean: NDArray, first: int, signs: bool, top: int) -> Candidates:
    """Rank candidates by a linear model from the first features and actions, to those from number `first` on."""
    gram = x.T @ x / len(x)
    M = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), x.T @ target / len(x)).T
    total = np.square(target).sum()
    if not total > 0 or not M.any():
        what = "nothing changes in these episodes" if not first else "the actions are always the same"
        raise ValueError(f"{robot.name}: {what}, so everything is a symmetry: let it move")
    residual = float(np.square(target - x @ M.T).sum() / total)
    M = M * np.sqrt(np.square(M).sum()) ** -1
    orders, limbs = robot.orders(signs)
    ranked = _ranked(robot, M, mean, orders, signs, first)
    if not ranked:
        raise ValueError(
            f"{robot.name}: no candidate, as no joint has another to be exchanged with: use `rppdyn certify`"
        )
    scores = np.concatenate([part for part, _, _ in ranked])
    best_first = np.argsort(scores, kind="stable")[:top]
    start = np.cumsum([0, *(len(part) for part, _, _ in ranked)])
    best = []
    for i in best_first:
        k = int(np.searchsorted(start, i, side="right")) - 1
        _, image, signs_of = ranked[k]
        one = image._replace(signs=tuple(int(s) for s in signs_of[i - start[k]]))
        best.append(Candidate(robot.name_of(one), float(scores[i]), robot.spec(one)))
    return Candidates(tuple(best), np.sort(scores), len(x), residual, limbs)


def _orders(classes: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """All permutations within classes."""
    for choice in product(*(permutations(c) for c in classes)):
        order = list(range(count))
        for joints, images in zip(classes, choice, strict=True):
            for j, image in zip(joints, images, strict=True):
                order[j] = image
        yield tuple(order)


def _ranked(
    robot: _Robot, M: NDArray, mean: NDArray, orders: Sequence[tuple[int, ...]], signs: bool, first: int
) -> list[tuple[NDArray, _Image, NDArray]]:
    """Scores of each order and root, with the signs that they belong to.

    With the signs s of joints, :math:`|g M - M g|^2 = 2 |M|^2 - 2 s^T C s`, C summed over the entries of pairs of joints.
    """
    count = len(robot.joints)
    rows, columns = slice(first, first + len(M)), slice(M.shape[1])
    S = np.array(list(product((1, -1), repeat=count)) if signs else [(1,) * count], dtype=float)
    S = np.concatenate([S, np.ones((len(S), 1))], 1)  # and what belongs to no joint
    owners, total = np.array(robot.owners), float(np.square(M).sum())
    member = np.eye(count + 1)[owners]
    ranked = []
    for body, world in robot.roots() if signs else [(np.eye(3), np.eye(3))]:
        for order in orders:
            image = _Image(order, (1,) * count, body, world)
            p, sign = robot.permutation(image)
            of, to = p[columns], p[rows] - first
            C = member[rows].T @ (M * sign[rows, None] * sign[columns] * M[np.ix_(to, of)]) @ member[columns]
            left = (M * sign[rows, None] * M[to]).sum(1) @ member[rows]
            left = left + (M * sign[columns] * M[:, of]).sum(0) @ member[columns]
            numerator = 2 * total - 2 * np.einsum("ka,ab,kb->k", S, C, S, optimize=True)
            denominator = 4 * total - 2 * S @ left
            whole = S[:, owners] * sign
            inside = np.abs(whole * mean[p] - mean).max(1) <= OUTSIDE  # a state and its image are both met
            trivial = (p == np.arange(len(p))).all() & (whole == -1).all(1)  # which every linear map commutes with
            valid = inside & ~trivial & (denominator > UNMOVED * total)
            if valid.any():
                ranked.append((np.sqrt(np.maximum(numerator[valid], 0) / denominator[valid]), image, S[valid, :count]))
    return ranked


class _Robot:
    """The joints of an environment's model, and how their signed permutations act on all its spaces."""

    @classmethod
    def of(cls, env: gym.Env, signs: bool) -> _Robot:
        """The robot of an environment, whose signs are few enough to try."""
        if not isinstance(env.unwrapped, MujocoEnv):
            raise ValueError(
                f"{env_name(env)} is no MuJoCo environment, whose joints are known: give one, or a dataset of one"
            )
        robot = cls(env)
        if signs and len(robot.joints) > SIGNED:
            raise ValueError(
                f"{robot.name} has {len(robot.joints)} joints, whose signs are too many to try: give signs=False "
                "(--no-signs)"
            )
        return robot

    def __init__(self, env: gym.Env):
        model = env.unwrapped.model  # type: ignore[attr-defined]
        self.name, self.model = env_name(env), model
        self.spaces: dict[str, Space] = {"obs": space_of(observation_of(env), []), **state_spaces(model, [])}
        if "action" not in self.spaces:
            raise ValueError(f"the model of {self.name} has no actuator, so there are no actions to exchange")
        kinds = mujoco.mjtJoint
        scalar = [
            j for j, kind in enumerate(model.jnt_type) if kind in (int(kinds.mjJNT_SLIDE), int(kinds.mjJNT_HINGE))
        ]
        self.joints = [model.joint(j).name for j in scalar]
        if len(set(self.joints)) < len(self.joints) or "" in self.joints:
            raise ValueError(f"the joints of {self.name} need names that differ, to be told apart in observations")
        self.types = [int(model.jnt_type[j]) for j in scalar]
        self.bodies = [int(model.jnt_bodyid[j]) for j in scalar]
        free = [j for j in range(model.njnt) if model.jnt_type[j] == int(kinds.mjJNT_FREE)]
        self.root = model.joint(free[0]).name if len(free) == 1 else None
        self.keys = {key: self._keys(space) for key, space in self.spaces.items()}
        number = {joint: k for k, joint in enumerate(self.joints)}
        self.owners = [number.get(key[0], len(self.joints)) for key in self.keys["obs"] + self.keys["action"]]

    def _keys(self, space: Space) -> list[tuple[str, str, int]]:
        """Joint of each feature, what it is of the joint, and which of several alike."""
        seen: dict[tuple[str, str], int] = defaultdict(int)
        keys = []
        for entry in space.features:
            kind = entry.name.replace(entry.joint, "", 1).strip() if entry.joint in self.joints else entry.name
            keys.append((entry.joint, kind, seen[entry.joint, kind]))
            seen[entry.joint, kind] += 1
        return keys

    def check(self, episodes: Sequence[Episode]) -> None:
        """Refuse episodes of another robot."""
        obs, action = self.spaces["obs"], self.spaces["action"]
        for i, episode in enumerate(episodes):
            shape = episode.observations.shape[1], episode.actions.shape[1]
            if shape != (obs.dim, action.dim):
                raise ValueError(
                    f"episode {i} has {shape[0]} observations and {shape[1]} actions a step, {self.name} has {obs.dim} and "
                    f"{action.dim}: give episodes of it"
                )

    def orders(self, signs: bool) -> tuple[list[tuple[int, ...]], bool]:
        """Permutations of joints, and whether they are of whole limbs only."""
        classes = self.classes()
        limbs = math.prod(math.factorial(len(c)) for c in classes) * (len(list(self.roots())) if signs else 1) > MOST
        return list(self.limb_orders() if limbs else _orders(classes, len(self.joints))), limbs

    def classes(self) -> list[list[int]]:
        """Joints of one type that are observed and driven alike."""
        alike = defaultdict(list)
        keys = self.keys["obs"] + self.keys["action"]
        for j, joint in enumerate(self.joints):
            alike[self.types[j], tuple(sorted(key[1:] for key in keys if key[0] == joint))].append(j)
        return list(alike.values())

    def limb_orders(self) -> Iterator[tuple[int, ...]]:
        """Permutations that take whole limbs to limbs of as many joints of the same types; a limb hangs on what branches."""
        parents = self.model.body_parentid
        branching = {b for b in range(self.model.nbody) if (parents[1:] == b).sum() > 1} | {0}
        limbs = defaultdict(list)
        for j, body in enumerate(self.bodies):
            while int(parents[body]) not in branching and parents[body] > 0:
                body = int(parents[body])
            limbs[body].append(j)
        alike = defaultdict(list)
        for number, joints in enumerate(limbs.values()):
            alike[tuple(self.types[j] for j in joints)].append(number)
        members = list(limbs.values())
        for order in _orders(list(alike.values()), len(members)):
            whole = list(range(len(self.joints)))
            for limb, image in enumerate(order):
                for j, k in zip(members[limb], members[image], strict=True):
                    whole[j] = k
            yield tuple(whole)

    def roots(self) -> Iterator[tuple[NDArray, NDArray]]:
        """Turns by quarters of the body's axes about the vertical, and reflections, which the world is carried along with."""
        yield np.eye(3), np.eye(3)
        if self.root is None:
            return
        quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
        for k in range(4):
            M = np.linalg.matrix_power(quarter, k)
            if k:
                yield M, np.eye(3)
            yield M @ np.diag([1.0, -1, 1]), M @ np.diag([1.0, -1, 1])

    def scales(self, x: NDArray, classes: Sequence[Sequence[int]]) -> NDArray:
        """Standard deviations, pooled over what candidates exchange; 1 where nothing varies."""
        home = {self.joints[j]: k for k, members in enumerate(classes) for j in members}
        groups = defaultdict(list)
        for i, (joint, kind, _) in enumerate(self.keys["obs"] + self.keys["action"]):
            parts = kind.rpartition(" ")
            axis = joint == self.root and (parts[2] in "xyz" or parts[2].startswith("R["))
            groups[(home[joint], kind) if joint in home else parts[0] if axis else i].append(i)
        scales, variance = np.ones(x.shape[1]), x.var(0)
        for members in groups.values():
            if (pooled := variance[members].mean()) > 1e-20:
                scales[members] = pooled**0.5
        return scales

    def permutation(self, image: _Image) -> tuple[NDArray[np.intp], NDArray]:
        """Source and sign of each feature and action."""
        (p, a), (q, b) = self._of("obs", image), self._of("action", image)
        return np.concatenate([p, q + len(p)]), np.concatenate([a, b])

    def _of(self, key: str, image: _Image) -> tuple[NDArray[np.intp], NDArray]:
        keys = self.keys[key]
        index = {k: i for i, k in enumerate(keys)}
        p, sign = np.arange(len(keys)), np.ones(len(keys))
        for j, joint in enumerate(self.joints):
            for feature in (k for k in keys if k[0] == joint):
                p[index[feature]] = index[self.joints[image.joints[j]], feature[1], feature[2]]
                sign[index[feature]] = image.signs[j]
        vectors: dict[str, dict[str, int]] = defaultdict(dict)
        for i, (joint, kind, _) in enumerate(keys):
            if joint == self.root and self.root is not None:
                name, _, axis = kind.rpartition(" ")
                vectors[name][axis] = i
        turned = np.kron(image.world, image.body)
        for name, parts in vectors.items():
            if len(parts) == 9:
                matrix = turned
            else:  # what is observed of x, y and z
                matrix = np.linalg.det(image.body) * image.body if name.endswith("angular velocity") else image.world
                rows = [int(np.flatnonzero(matrix["xyz".index(axis)])[0]) for axis in parts]
                if any("xyz"[row] not in parts for row in rows):
                    raise ValueError(f"{self.name} observes {name} in part, and its quarter turn mixes the parts")
                for axis, row in zip(parts, rows, strict=True):
                    p[parts[axis]], sign[parts[axis]] = parts["xyz"[row]], matrix["xyz".index(axis), row]
                continue
            indices = list(parts.values())
            for i, row in zip(indices, matrix, strict=True):
                k = int(np.flatnonzero(row)[0])
                p[i], sign[i] = indices[k], row[k]
        return p, sign

    def name_of(self, image: _Image) -> str:
        """Cycles of joints, which change sign, and what the root does."""
        parts, left = [], set(range(len(self.joints)))
        while left:
            cycle = [min(left)]
            while image.joints[cycle[-1]] != cycle[0]:
                cycle.append(image.joints[cycle[-1]])
            left -= set(cycle)
            names = [self.joints[j] for j in cycle]
            if len(names) == 2:
                parts.append(" <-> ".join(names))
            elif len(names) > 2:
                parts.append(" <- ".join([*names, names[0]]))
        if flipped := [self.joints[j] for j, sign in enumerate(image.signs) if sign < 0]:
            parts.append("signs of " + ", ".join(flipped))
        if not np.array_equal(image.body, np.eye(3)):
            kind = "turned" if np.linalg.det(image.body) > 0 else "mirrored"
            axes = ", ".join("-" * int(row.sum() < 0) + "xyz"[int(np.flatnonzero(row)[0])] for row in image.body[:2])
            parts.append(f"body {kind}: x, y from {axes}")
        return "; ".join(parts)

    def spec(self, image: _Image) -> SymmetrySpec:
        """Action on observations, actions and the simulator's state; entries of no joint are left free."""
        known = {*self.joints, self.root}
        spaces: dict[str, Any] = {}
        for key, space in self.spaces.items():
            p, sign = self._of(key, image)
            matrix = np.zeros((len(p), len(p)))
            matrix[np.arange(len(p)), p] = sign
            entries = [Entry(e.name, e.joint, e.unit, e.joint not in known) for e in space.entries]
            spaces[key] = Space(entries, (matrix,), angles=space.angles, quaternions=space.quaternions)
        joints = np.zeros((len(self.joints),) * 2)
        joints[np.arange(len(joints)), list(image.joints)] = image.signs
        group = Group("candidate", discrete_generators=block_diag(joints, image.body, image.world)[None])
        symmetries = (Symmetry(self.name_of(image), note="Suggested by data."),)
        return SymmetrySpec(self.name, group, symmetries=symmetries, **spaces)
