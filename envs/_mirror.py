r"""Symmetry specs by hand, from permutations and signs or from kinds of entries; partial symmetries; published symmetries.

A partial symmetry leaves a part of the state free, for example the arms a of a state (l, a) with legs l. It acts by
g (l, a) = (g l, a), the only representation that does not change a. For the equivariant pathway of a policy
:math:`\pi = (\pi_l, \pi_a)` it means

.. math:: \pi_l(g l, a) = g\, \pi_l(l, a), \qquad \pi_a(g l, a) = \pi_a(l, a) :

so the legs are mirrored whatever the arms do, and the arms don't depend on the side that the legs are on. Only the free pathway
of a relaxed layer lets the arms depend on it; a strictly equivariant network (`model=emlp`) has no such pathway. An entry that
a symmetry exchanges or mixes with a free one is free too.

Free entries are marked (`Entry.free`), and `certify` does not count their own defects. It does count their effect on the
others: the image of a state has mirrored legs and unchanged arms, so the legs' defect shows how far the arms disturb them.

Published symmetries are the representations in the code of Finzi, Benton & Wilson 2021 (`RL/representations.py`), right or
wrong, for ablations. They differ in places from the paper's Table A.10, and are written here as images of the joints. Entries
that the paper left out of the observation (Ant's contact forces, Humanoid's inertias) are invariant. `docs/symmetries.md` has
the simulator's verdict on each. Walker2d's and Hopper's are those of the model. HalfCheetah's does not exchange front and back
legs, and Swimmer's keeps the lateral velocity. Ant's cycles the legs without the signs of the ankles, and Humanoid's exchanges
x and y.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from scipy.linalg import block_diag

from rppdyn import groups
from rppdyn.envs._making import env_name
from rppdyn.envs._spec import NOT_CERTIFIED, SPACES, Entry, Space, Symmetry, SymmetrySpec
from rppdyn.envs._wrappers import dictionary_of, flat_names
from rppdyn.groups import Group, Trivial, Z
from rppdyn.reps import Pseudoscalar, Rep, Scalar, V


def mirror_spec(
    env_id: str,
    *,
    obs_permutation: Sequence[int],
    obs_signs: Sequence[int],
    action_permutation: Sequence[int],
    action_signs: Sequence[int],
    qpos_permutation: Sequence[int] | None = None,
    qpos_signs: Sequence[int] | None = None,
    qvel_permutation: Sequence[int] | None = None,
    qvel_signs: Sequence[int] | None = None,
    obs_names: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
    obs_origin: Sequence[float] = (),
    qpos_origin: Sequence[float] = (),
    name: str = "mirror",
    verdict: str = NOT_CERTIFIED,
    reward_symmetric: bool | None = None,
    note: str = "",
) -> SymmetrySpec:
    """Make the spec of a mirror symmetry (Z_2) from permutations and signs.

    The mirrored vector is `y[permutation] * signs`. `certify` also needs the action on the simulator's state: the `qpos_*` and
    `qvel_*` arguments. Velocities default to the positions' lists, which is right if all joints are slides or hinges.

    Args:
        obs_origin, qpos_origin: fixed point of the mirror, zero by default.
        verdict, reward_symmetric, note: what you know about the symmetry; `certify` measures it.
    Raises:
        ValueError: lists of different lengths, no permutation, a sign other than 1 and -1, a map that is not its own inverse,
            or signs without a permutation.

    >>> spec = mirror_spec("Cart-v0", obs_permutation=[0, 2, 1], obs_signs=[-1, 1, 1],
    ...                    action_permutation=[0], action_signs=[-1])
    >>> spec.transform_observation(spec.group.discrete_generators[0], np.array([1.0, 2.0, 3.0]))
    array([-1.,  3.,  2.])
    """

    def space(key, permutation, signs, names=None, origin=()):
        matrix = _signed_permutation(f"{env_id} {key}", permutation, signs, len(permutation))
        if (wrong := np.flatnonzero((matrix @ matrix != np.eye(len(matrix))).any(1))).size:
            raise ValueError(
                f"{env_id} {key}: mirroring twice does not return entry {wrong[0]}; swap in pairs with equal signs"
            )
        names = [f"{key}[{i}]" for i in range(len(matrix))] if names is None else names
        if len(names) != len(matrix):
            raise ValueError(f"{env_id}: {len(names)} names for {len(matrix)} entries of {key}")
        return Space(tuple(Entry(n) for n in names), (matrix,), origin=tuple(origin))

    optional = {"qpos_permutation": qpos_permutation, "qpos_signs": qpos_signs,
                "qvel_permutation": qvel_permutation, "qvel_signs": qvel_signs}  # fmt: skip
    for key, needed in {"qpos_signs": "qpos_permutation", "qvel_permutation": "qpos_permutation",
                        "qvel_signs": "qvel_permutation"}.items():  # fmt: skip
        if optional[key] is not None and optional[needed] is None:
            raise ValueError(f"{env_id}: {key} has no effect without {needed}; give both")
    if qvel_permutation is None:
        qvel_permutation, qvel_signs = qpos_permutation, qpos_signs
    state = {}
    if qpos_permutation is not None:
        state = {
            "qpos": space("qpos", qpos_permutation, qpos_signs, origin=qpos_origin),
            "qvel": space("qvel", qvel_permutation, qvel_signs),
        }
    return SymmetrySpec(
        env_id,
        Z(2),
        obs=space("observation", obs_permutation, obs_signs, obs_names, obs_origin),
        action=space("action", action_permutation, action_signs, action_names),
        symmetries=(Symmetry(name, verdict, reward_symmetric, note),),
        **state,
    )


ENTRY_KINDS = ("vector", "scalar", "pseudoscalar", "cycle", "permuted")


def group_spec(
    env_id: str,
    group: Group | str,
    *,
    obs: Mapping[str, Any],
    action: Mapping[str, Any],
    qpos: Mapping[str, Any] | None = None,
    qvel: Mapping[str, Any] | None = None,
    generators: Sequence[str] = (),
    obs_names: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
) -> SymmetrySpec:
    """Make the spec of a symmetry under any group from the kinds of the entries.

    A space is a dictionary from kinds to the entries of each kind, by index or name:

    - ``vector``: lists of as many entries as the group's matrices have rows; under Z(n), two that turn by 360/n degrees;
    - ``scalar``: invariant entries, or "rest" for all entries of no other kind;
    - ``pseudoscalar``: entries whose sign a reflection changes, such as a yaw rate;
    - ``cycle``: lists of n entries, each of which Z(n) carries to the next;
    - ``permuted``: for anything else, a list of dictionaries with ``entries`` and, by name of a generator, ``permutation`` and
      ``signs`` of the image ``entries[permutation] * signs``, as in `mirror_spec`; generators left out act trivially.

    Args:
        group: the group, or its name, such as "D(4)".
        qpos, qvel: the simulator's state, which `certify` needs for a MuJoCo environment; velocities default to positions.
        generators: names of the group's generators, discrete ones first. By default "quarter turn" (or "turn by 2 pi/n") and
            "mirror" for Z(n) and D(n), numbers for other groups.
    Raises:
        ValueError: an entry is in no kind or in two, the group has no such kind, or images break the group's relations.

    >>> spec = group_spec("Point-v0", "D(4)", obs={"vector": [[0, 1], [2, 3]]}, action={"vector": [[0, 1]]})
    >>> spec.generator_names
    ('quarter turn', 'mirror')
    >>> spec.transform_observation(spec.group.discrete_generators[0], np.array([1.0, 2.0, 3.0, 4.0]))
    array([-2.,  1., -4.,  3.])
    """
    G = group if isinstance(group, Group) else _parse_group(env_id, group)
    count = len(G.discrete_generators) + len(G.lie_algebra)
    names = tuple(generators) or tuple(f"generator {k}" for k in range(count))
    kind, _, size = str(G).rstrip(")").partition("(")
    if not generators and kind in ("Z", "D") and size.isdigit():
        turn = {"2": "half turn", "4": "quarter turn"}.get(size, f"turn by 2 pi/{size}")
        names = (turn, "mirror")[: len(G.discrete_generators)]
    if len(names) != count:
        raise ValueError(f"{env_id}: {len(names)} names of generators for {count} generators of {G}; give as many")
    if qvel is not None and qpos is None:
        raise ValueError(f"{env_id}: qvel has no effect without qpos; give both")
    states = {} if qpos is None else {"qpos": (qpos, None), "qvel": (qpos if qvel is None else qvel, None)}
    parts = {"obs": (obs, obs_names), "action": (action, action_names), **states}
    spaces: dict[str, Any] = {key: _make_space(f"{env_id} {key}", G, names, *part) for key, part in parts.items()}
    spec = SymmetrySpec(env_id, G, symmetries=tuple(map(Symmetry, names)), **spaces)
    for key in states:
        spec.state_rep(key).check()
    return spec.check()


def _parse_group(env_id: str, text: Any) -> Group:
    """The group of a text such as D(4)."""
    match = re.fullmatch(r"\s*(\w+)(?:\(\s*(\d*)\s*\))?\s*", str(text))
    name, size = match.groups() if match is not None else ("", "")
    known = [key for key in groups.__all__ if isinstance(getattr(groups, key), FunctionType) and key[0].isupper()]
    try:
        if name in known:
            return getattr(groups, name)(*([int(size)] if size else []))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{env_id}: group {text!r}: {error}; write for example D(4)") from None
    raise ValueError(f"{env_id}: group {text!r} is unknown; write for example D(4) or O(3); known: {', '.join(known)}")


def _make_space(title: str, G: Group, generators: tuple[str, ...], parts: Any, names: Sequence[str] | None) -> Space:
    """The action on a space, from {kind: entries}; each entry must be in one kind."""
    unknown = sorted(map(str, set(parts) - set(ENTRY_KINDS))) if isinstance(parts, Mapping) and parts else ["parts"]
    if unknown:
        raise ValueError(f"{title}: unknown {', '.join(unknown)}; say which entries are {', '.join(ENTRY_KINDS)}")
    blocks = [(index, matrices) for kind, value in parts.items() if kind != "scalar" or value != "rest"
              for index, matrices in _kind_blocks(title, G, generators, kind, value, names)]  # fmt: skip
    taken = [i for index, _ in blocks for i in index]
    n = len(names) if names is not None else max(taken, default=-1) + 1
    if parts.get("scalar") == "rest":
        if names is None:
            raise ValueError(f"{title}: scalar=rest of how many entries? give their names, or their indices")
        rest = sorted(set(range(n)) - set(taken))
        identity, zero = np.eye(len(rest)), np.zeros((len(rest),) * 2)
        blocks.append((rest, [identity] * len(G.discrete_generators) + [zero] * len(G.lie_algebra)))
        taken += rest
    labels = list(names) if names is not None else [f"{title.rpartition(' ')[2]}[{i}]" for i in range(n)]
    for i in range(n):
        if taken.count(i) != 1:
            raise ValueError(
                f"{title}: the entry {labels[i]} is in {taken.count(i) or 'no'} part{'s'[: taken.count(i)]}; put it in one"
            )
    matrices = np.zeros((len(generators), n, n))
    for index, block in blocks:
        matrices[:, np.array(index)[:, None], np.array(index)] = block
    discrete = len(G.discrete_generators)
    return Space(labels, matrices[:discrete], matrices[discrete:])


Block = tuple[list[int], Sequence[np.ndarray]]
"""(indices of a part's entries, matrix for each generator)."""


def _kind_blocks(
    title: str, G: Group, generators: tuple[str, ...], kind: str, value: Any, names: Any
) -> Iterator[Block]:
    """The blocks of the parts of one kind."""

    def index(entry: Any) -> int:
        if names is not None and entry in names:
            return list(names).index(entry)
        is_index = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0
        if is_index and (names is None or entry < len(names)):
            return entry
        known = f" of {', '.join(names)}" if names is not None else ": give an index"
        raise ValueError(f"{title}: {kind} has {entry!r}, which is no entry{known}")

    if not isinstance(value, list | tuple):
        raise ValueError(f"{title}: {kind}={value!r} must be a list")
    if kind == "permuted":
        for part in value:
            entries = [index(entry) for entry in part.get("entries", ())] if isinstance(part, Mapping) else []
            unknown = sorted(map(str, set(part) - {"entries", *generators})) if entries else []
            if not entries or unknown:
                rest = f", not {', '.join(unknown)}" if unknown else ""
                raise ValueError(
                    f"{title}: permuted has entries, and images by generator: {', '.join(generators)}{rest}"
                )
            if len(G.lie_algebra):
                raise ValueError(f"{title}: permuted is of finite groups, and {G} is none; use vector")
            if wrong := [name for name in generators if not isinstance(part.get(name, {}), Mapping)]:
                raise ValueError(f"{title}: permuted: {wrong[0]} is a dictionary of permutation and signs, or left out")
            identity = {"permutation": range(len(entries)), "signs": [1] * len(entries)}
            images = [identity | dict(part.get(name, {})) for name in generators]
            yield (
                entries,
                [_signed_permutation(title, image["permutation"], image["signs"], len(entries)) for image in images],
            )
        return
    cyclic = str(G).startswith("Z(")
    if kind == ("pseudoscalar" if cyclic else "cycle"):
        remedy = "permuted" if kind == "cycle" else "scalar, for it has no reflections"
        raise ValueError(f"{title}: {G} has no {kind}; use {remedy}")
    vector: Any = V(G)
    if kind == "vector" and cyclic:
        angle = 2 * np.pi / G.d
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        vector = Rep.from_generators(
            G, discrete_generators=torch.from_numpy(np.where(abs(turn) < 1e-15, 0.0, turn))[None]
        )
    rep = {"scalar": Scalar(G), "pseudoscalar": Pseudoscalar(G)}.get(kind, vector)
    matrices = [*rep.rho(G.discrete_generators).numpy(), *rep.drho(G.lie_algebra).numpy()]
    for entries in value:
        entries = entries if isinstance(entries, list | tuple) else [entries]
        if len(entries) != rep.dim:
            raise ValueError(f"{title}: {kind} has {list(entries)}, and one of {G} is {rep.dim} entries")
        yield [index(entry) for entry in entries], matrices


def plain_spec(
    env: gym.Env, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
) -> SymmetrySpec:
    """The trivial spec of an environment, for networks without symmetry (`model="mlp"`).

    Args:
        observation_space, action_space: the agent's spaces, if they differ from the environment's.
    Raises:
        ValueError: observations or actions are no vectors.
    """
    observation_space, action_space = observation_space or env.observation_space, action_space or env.action_space
    for key, space in (("observation", observation_space), ("action", action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"the {key} space of {env_name(env)} is {space}: give one whose {key}s are vectors")
    names = entry_names(env)
    if observation_space.shape != env.observation_space.shape:
        names["obs_names"] = [f"observation[{i}]" for i in range(gym.spaces.flatdim(observation_space))]
    return SymmetrySpec(
        env_name(env),
        Trivial(1),
        obs=Space(names["obs_names"], (np.eye(len(names["obs_names"])),)),
        action=Space(names["action_names"], (np.eye(len(names["action_names"])),)),
        symmetries=(Symmetry("identity", "exact", True),),
    )


def entry_names(env: Any) -> dict[str, list[str]]:
    """Names of observation and action entries; those of a flattened dictionary contain its keys."""
    inner = dictionary_of(env)
    names = [f"observation[{i}]" for i in range(env.observation_space.shape[0])] if inner is None else flat_names(inner)
    return {"obs_names": names, "action_names": [f"action[{i}]" for i in range(env.action_space.shape[0])]}


def _signed_permutation(title: str, permutation, signs, n: int) -> np.ndarray:
    if signs is None or not len(permutation) == len(signs) == n:
        raise ValueError(
            f"{title}: permutation has {len(permutation)} entries, signs {0 if signs is None else len(signs)}; give {n}"
        )
    if sorted(permutation) != list(range(n)):
        raise ValueError(f"{title}: {list(permutation)} is not a permutation of 0..{n - 1}")
    if not set(signs) <= {1, -1}:
        raise ValueError(f"{title}: signs {list(signs)} must be 1 or -1")
    matrix = np.zeros((n, n))
    matrix[np.arange(n), list(permutation)] = signs
    return matrix


# -- partial symmetries --------------------------------------------------------------------------------------------------


def without(spec: SymmetrySpec, *names: str, model: mujoco.MjModel | None = None) -> SymmetrySpec:
    """Leave some entries of a spec free: the group acts trivially on them, and certificates don't count them.

    Args:
        names: names of joints, entries or bodies. A body includes all bodies and joints below it.
        model: the model from which the spec was derived; needed for names of bodies.
    Returns:
        a spec whose symmetries are not certified yet.
    Raises:
        ValueError: a name is in no space, or no entry is left for the group to act on.

    >>> legs = without(spec, "right_upper_arm", "left_upper_arm", model=env.unwrapped.model)    # doctest: +SKIP
    """
    joints, bodies = _names_below(model, names) if model is not None else (set(names), set(names))
    joints |= set(names)
    spaces: dict[str, Any] = {}
    matched = set()
    for key in SPACES:
        if (space := getattr(spec, key)) is None:
            continue
        free = set()
        for i, entry in enumerate(space.entries):
            matches = {n for n in joints if n in (entry.name, entry.joint)}
            matches |= {body for body in bodies if entry.name.startswith(f"{body} ") and not entry.joint}
            if matches:
                free.add(i)
                matched |= matches
        spaces[key] = _free_entries(space, free)
    matched |= bodies if model is not None else set()
    if unknown := [name for name in names if name not in matched]:
        known = ", ".join(dict.fromkeys(e.joint for e in (spec.qpos or spec.obs).entries if e.joint))
        raise ValueError(
            f"{spec.env_id} has no joint or entry {unknown[0]!r} to leave free; its joints are {known} (a body needs model=)"
        )
    moved = [m - np.eye(len(m)) for s in spaces.values() for m in map(np.array, s.discrete_generators)]
    moved += [np.array(m) for s in spaces.values() for m in s.lie_algebra]
    if not any(m.any() for m in moved):
        raise ValueError(f"{spec.env_id}: with {', '.join(names)} left free it acts on nothing; leave out fewer")
    note = f"{', '.join(names)} left free."
    symmetries = tuple(Symmetry(s.name, note=f"{s.note} {note}".strip()) for s in spec.symmetries)
    return SymmetrySpec(spec.env_id, spec.group, symmetries=symmetries, **spaces)


def _free_entries(space: Space, entries: set[int]) -> Space:
    """The space with the trivial action on some entries and on all that the group mixes with them."""
    owner = np.empty(space.feature_dim, dtype=int)  # the coordinate of each feature; of a quaternion its first one
    for kind, raw, feature in space.encoding.blocks:
        owner[feature] = range(raw.start, raw.stop) if kind == "linear" else raw.start
    matrices = np.array([*space.discrete_generators, *space.lie_algebra])
    mixed = (matrices != 0).any(0) | (matrices != 0).any(0).T
    free = np.isin(owner, [owner[f] for i in entries for f in space.encoding.features_of(i)])
    while (more := free | np.isin(owner, owner[mixed[free].any(0)])).sum() > free.sum():
        free = more
    first_of = {i: first for first in space.quaternions for i in range(first, first + 4)}
    marked = {int(owner[f]) for f in np.flatnonzero(free)}
    marked_entries = [
        entry._replace(free=entry.free or first_of.get(i, i) in marked) for i, entry in enumerate(space.entries)
    ]
    discrete, lie = ([np.array(m) for m in part] for part in (space.discrete_generators, space.lie_algebra))
    for matrix in discrete:
        matrix[free] = np.eye(space.feature_dim)[free]
    for matrix in lie:
        matrix[free] = 0
    return Space(marked_entries, discrete, lie, space.origin, space.angles, space.quaternions)


def _names_below(model: mujoco.MjModel, names: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """(names of joints, names of bodies) of the named bodies and of all bodies below them."""
    chosen = np.zeros(model.nbody, dtype=bool)
    for b in range(1, model.nbody):  # parents come before their children
        chosen[b] = chosen[model.body_parentid[b]] or model.body(b).name in names
    joints = {model.joint(j).name for j in range(model.njnt) if chosen[model.jnt_bodyid[j]]}
    return joints, {model.body(b).name for b in np.flatnonzero(chosen) if model.body(b).name}


# -- published symmetries ------------------------------------------------------------------------------------------------


_SWAP = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class _Published:
    """A published generator.

    Args:
        name, group: name and group of the symmetry.
        image: the image of each joint that is not its own.
        odd: joints that change sign.
        root: action on the vectors of a free joint; its angular velocity counts as a pseudovector.
    """

    name: str
    group: Group
    image: Mapping[str, str] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    root: np.ndarray = field(default_factory=lambda: np.eye(3))


def _exchange_sides(*names: str) -> dict[str, str]:
    """{right joint: left joint, left joint: right joint} for each name."""
    return {f"{a}_{name}": f"{b}_{name}" for name in names for a, b in (("right", "left"), ("left", "right"))}


_WALKER = {a: b for joint in ("thigh", "leg", "foot")
           for a, b in ((f"{joint}_joint", f"{joint}_left_joint"), (f"{joint}_left_joint", f"{joint}_joint"))}  # fmt: skip

PUBLISHED: Mapping[str, _Published] = {
    "Hopper": _Published("front-back", Z(2), odd=frozenset("rootx rooty thigh_joint leg_joint foot_joint".split())),
    "HalfCheetah": _Published(
        "front-back", Z(2), odd=frozenset("rootx rooty bthigh bshin bfoot fthigh fshin ffoot".split())),
    "Walker2d": _Published("leg swap", Z(2), _WALKER),
    "Swimmer": _Published("left-right", Z(2), odd=frozenset("free_body_rot motor1_rot motor2_rot".split())),
    "Ant": _Published(
        "leg cycle", Z(4), {f"{kind}_{i}": f"{kind}_{i % 4 + 1}" for kind in ("hip", "ankle") for i in (1, 2, 3, 4)}),
    "Humanoid": _Published(
        "left-right", Z(2), _exchange_sides("hip_x", "hip_z", "hip_y", "knee", "shoulder1", "shoulder2", "elbow"),
        frozenset({"abdomen_x", *_exchange_sides("hip_x", "shoulder1")}), root=_SWAP),
}  # fmt: skip
"""Published generator of each task that has one."""


def published_spec(spec: SymmetrySpec, task: str) -> SymmetrySpec:
    """The published representation of a task on the spaces of its derived spec.

    Args:
        spec: the derived spec, whose entries name the joint of each coordinate.
        task: the environment's name without its version.
    Raises:
        ValueError: none was published for the task.
    """
    if task not in PUBLISHED:
        raise ValueError(f"no representation was published for {spec.env_id}; there is one for {', '.join(PUBLISHED)}")
    published = PUBLISHED[task]
    state = {key: _published_matrix(published, getattr(spec, key).features) for key in ("qpos", "qvel", "action")}
    features = [feature for key in ("qpos", "qvel") for feature in getattr(spec, key).features]
    state_matrix = block_diag(state["qpos"], state["qvel"])
    spaces: dict[str, Any] = {key: _with_generator(getattr(spec, key), matrix) for key, matrix in state.items()}
    spaces["obs"] = _with_generator(spec.obs, _restrict(state_matrix, features, spec.obs.features))
    symmetry = Symmetry(published.name, note="As published with the residual-pathway work.")
    return SymmetrySpec(spec.env_id, published.group, act=spec.act, symmetries=(symmetry,), **spaces)


def _published_matrix(published: _Published, features: tuple[Entry, ...]) -> np.ndarray:
    """The generator's matrix on features, each of which belongs to a joint."""
    joints = [f.joint for f in features]
    numbers = [joints[:i].count(joint) for i, joint in enumerate(joints)]
    where = {place: i for i, place in enumerate(zip(joints, numbers, strict=True))}
    matrix = np.zeros((len(features), len(features)))
    for i, (joint, number) in enumerate(zip(joints, numbers, strict=True)):
        if joints.count(joint) == 1:
            sign = -1.0 if joint in published.odd else 1.0
            matrix[where[published.image.get(joint, joint), 0], i] = sign
        elif number == 0:
            # A free joint: position and rotation matrix (12 features), or linear and angular velocity (6).
            S, size = published.root, joints.count(joint)
            block = block_diag(S, np.kron(S, S) if size == 12 else np.linalg.det(S) * S)
            matrix[i : i + size, i : i + size] = block
    return matrix


def _restrict(state_matrix: np.ndarray, features: list[Entry], observed: tuple[Entry, ...]) -> np.ndarray:
    """The generator on the observed features; those that are no features of the state are invariant."""
    place = {f.name: i for i, f in enumerate(features)}
    names = [f.name for f in observed]
    known = [i for i, name in enumerate(names) if name in place and names.index(name) == i]
    at = [place[observed[i].name] for i in known]
    matrix = np.eye(len(observed))
    matrix[np.ix_(known, known)] = state_matrix[np.ix_(at, at)]
    return matrix


def _with_generator(space: Space, matrix: np.ndarray) -> Space:
    return Space(space.entries, (matrix,), angles=space.angles, quaternions=space.quaternions)
