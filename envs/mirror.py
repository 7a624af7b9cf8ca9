r"""A symmetry of your own environment, by permutations and signs or by what its entries are, and partial symmetries.

In a partial symmetry, none for the arms, say, the state is (l, a), with a the part left free. The only linear action that
leaves a alone and is a representation is the trivial one, g (l, a) = (g l, a), so that is the action of a partial symmetry.
It says of a policy :math:`\pi = (\pi_l, \pi_a)` in its equivariant pathway

.. math:: \pi_l(g l, a) = g\, \pi_l(l, a), \qquad \pi_a(g l, a) = \pi_a(l, a) :

the legs obey the mirror whatever the arms do, and the mirror says nothing of the arms but that it does not reach them. How
the arms depend on the side that the legs are on comes from the free pathway alone, which every relaxed layer has; a
strictly equivariant network (`model=emlp`) has none, and its arms can't tell left from right. An entry that a symmetry
exchanges or mixes with a free one is free too: a right arm without a partner has nothing to be exchanged with.

Entries left free are marked (`Entry.free`), and `certify` does not count them. It does count what they do to the others: the
image of a state has the legs mirrored and the arms as they were, so the legs' defect is how far the arms disturb them.

Published symmetries are the representations of the residual-pathway work, right or wrong, for ablations.
They are those of the code published with Finzi, Benton & Wilson 2021 (`RL/representations.py`), which differ here and
there from the text's Table A.10, written as what the symmetry does to each joint. What the papers left out of the
observation (Ant's contact forces, Humanoid's inertias) stays where it is. `docs/symmetries.md` has what the simulator says
of each: Walker2d's and Hopper's are those of the model, HalfCheetah's keeps front and back legs apart, Swimmer's keeps the
lateral velocity, Ant's cycles the legs without the signs of the ankles, Humanoid's exchanges x and y.
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
from rppdyn.envs.making import env_name
from rppdyn.envs.spec import NOT_CERTIFIED, SPACES, Entry, Matrix, Space, Symmetry, SymmetrySpec
from rppdyn.envs.wrappers import dictionary_of, flat_names
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
    """A mirror symmetry (Z_2) of your own, from permutations and signs.

    The mirrored vector is `y[permutation] * signs`. `certify` also needs the action on the simulator's state: the
    `qpos_*` and `qvel_*` arguments (velocities default to the positions' lists, which is right where every joint is a
    slide or a hinge).

    Args:
        obs_origin, qpos_origin: fixed point of the mirror, zero if left out.
        verdict, reward_symmetric, note: your knowledge of the symmetry, if any; `certify` measures it.
    Raises:
        ValueError: lists of different lengths, not a permutation, a sign other than 1 and -1, or a map that is not its
            own inverse.

    >>> spec = mirror_spec("Cart-v0", obs_permutation=[0, 2, 1], obs_signs=[-1, 1, 1],
    ...                    action_permutation=[0], action_signs=[-1])
    >>> spec.transform_observation(spec.group.discrete_generators[0], np.array([1.0, 2.0, 3.0]))
    array([-1.,  3.,  2.])
    """

    def space(what, permutation, signs, names=None, origin=()):
        matrix = _involution(f"{env_id} {what}", permutation, signs)
        names = [f"{what}[{i}]" for i in range(len(matrix))] if names is None else names
        if len(names) != len(matrix):
            raise ValueError(f"{env_id}: {len(names)} names for {len(matrix)} entries of {what}")
        return Space(tuple(Entry(n) for n in names), (matrix,), origin=tuple(origin))

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


KINDS = ("vector", "scalar", "pseudoscalar", "cycle", "permuted")


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
    """A symmetry of your own under any group, by saying which entries are vectors.

    A space is a dictionary of kinds, and of the entries that are of the kind, by index or name:

    - ``vector``: lists of as many entries as the group's matrices have rows; under Z(n), two that turn by 360/n degrees;
    - ``scalar``: entries that stay, or "rest", all that no other kind has;
    - ``pseudoscalar``: entries that a reflection changes the sign of, such as a yaw rate;
    - ``cycle``: lists of n entries that Z(n) carries each to the next;
    - ``permuted``: for anything else a list of dictionaries of ``entries`` and, by generator's name, the ``permutation`` and
      ``signs`` of its image ``entries[permutation] * signs``, as in `mirror_spec`; what is left out stays.

    Args:
        group: the group, or its name, such as "D(4)".
        qpos, qvel: for `certify` of a MuJoCo environment; velocities are as positions if left out.
        generators: names of the group's generators, the discrete ones first. If left out, "quarter turn" (or "turn by 2 pi/n")
            and "mirror" of Z(n) and D(n), and else numbers.
    Raises:
        ValueError: an entry that is in no kind or in two, a kind that the group has not, or images that break its relations.

    >>> spec = group_spec("Point-v0", "D(4)", obs={"vector": [[0, 1], [2, 3]]}, action={"vector": [[0, 1]]})
    >>> spec.generator_names
    ('quarter turn', 'mirror')
    >>> spec.transform_observation(spec.group.discrete_generators[0], np.array([1.0, 2.0, 3.0, 4.0]))
    array([-2.,  1., -4.,  3.])
    """
    G = group if isinstance(group, Group) else _group(env_id, group)
    names = tuple(generators) or _generator_names(G)
    if len(names) != (count := len(G.discrete_generators) + len(G.lie_algebra)):
        raise ValueError(f"{env_id}: {len(names)} names of generators for {count} generators of {G}; give as many")
    states = {} if qpos is None else {"qpos": (qpos, None), "qvel": (qpos if qvel is None else qvel, None)}
    of = {"obs": (obs, obs_names), "action": (action, action_names), **states}
    spaces: dict[str, Any] = {key: _space_of(f"{env_id} {key}", G, names, *parts) for key, parts in of.items()}
    spec = SymmetrySpec(env_id, G, symmetries=tuple(map(Symmetry, names)), **spaces)
    for key in states:
        spec.state_rep(key).check()
    return spec.check()


def _group(env_id: str, text: Any) -> Group:
    """A group by its name and size, such as D(4)."""
    written = re.fullmatch(r"\s*(\w+)(?:\(\s*(\d*)\s*\))?\s*", str(text))
    name, size = written.groups() if written is not None else ("", "")
    known = [one for one in groups.__all__ if isinstance(getattr(groups, one), FunctionType) and one[0].isupper()]
    try:
        if name in known:
            return getattr(groups, name)(*([int(size)] if size else []))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{env_id}: group {text!r}: {error}; write for example D(4)") from None
    raise ValueError(f"{env_id}: group {text!r} is unknown; write for example D(4) or O(3); known: {', '.join(known)}")


def _generator_names(G: Group) -> tuple[str, ...]:
    kind, _, size = str(G).rstrip(")").partition("(")
    if kind in ("Z", "D") and size.isdigit():
        turn = {"2": "half turn", "4": "quarter turn"}.get(size, f"turn by 2 pi/{size}")
        return (turn, "mirror")[: len(G.discrete_generators)]
    return tuple(f"generator {k}" for k in range(len(G.discrete_generators) + len(G.lie_algebra)))


def _space_of(what: str, G: Group, generators: tuple[str, ...], parts: Any, names: Sequence[str] | None) -> Space:
    """The action on a space of which each entry is in one part."""
    if not isinstance(parts, Mapping) or not parts or (unknown := set(parts) - set(KINDS)):
        listed = f" {', '.join(map(str, unknown))}" if isinstance(parts, Mapping) and parts else ""
        raise ValueError(f"{what}: unknown{listed or ' parts'}; say which entries are {', '.join(KINDS)}")
    blocks = [(index, matrices) for kind, value in parts.items() if kind != "scalar" or value != "rest"
              for index, matrices in _blocks(what, G, generators, kind, value, names)]  # fmt: skip
    taken = [i for index, _ in blocks for i in index]
    n = len(names) if names is not None else max(taken, default=-1) + 1
    if parts.get("scalar") == "rest":
        if names is None:
            raise ValueError(f"{what}: scalar=rest of how many entries? give their names, or their indices")
        rest = sorted(set(range(n)) - set(taken))
        blocks.append(
            (rest, [np.eye(len(rest))] * len(G.discrete_generators) + [np.zeros((len(rest),) * 2)] * len(G.lie_algebra))
        )
        taken += rest
    called = list(names) if names is not None else [f"{what.rpartition(' ')[2]}[{i}]" for i in range(n)]
    for i in range(n):
        if taken.count(i) != 1:
            raise ValueError(
                f"{what}: the entry {called[i]} is in {taken.count(i) or 'no'} part{'s'[: taken.count(i)]}; put it in one"
            )
    matrices = np.zeros((len(generators), n, n))
    for index, block in blocks:
        matrices[:, np.array(index)[:, None], np.array(index)] = block
    discrete = len(G.discrete_generators)
    return Space(called, matrices[:discrete], matrices[discrete:])


Block = tuple[list[int], Sequence[np.ndarray]]


def _blocks(what: str, G: Group, generators: tuple[str, ...], kind: str, value: Any, names: Any) -> Iterator[Block]:
    """Indices of each part of a kind, and their matrix for each generator."""

    def index(entry: Any) -> int:
        if names is not None and entry in names:
            return list(names).index(entry)
        is_index = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0
        if is_index and (names is None or entry < len(names)):
            return entry
        known = f" of {', '.join(names)}" if names is not None else ": give an index"
        raise ValueError(f"{what}: {kind} has {entry!r}, which is no entry{known}")

    if not isinstance(value, list | tuple):
        raise ValueError(f"{what}: {kind}={value!r} must be a list")
    if kind == "permuted":
        for part in value:
            listed = part.get("entries", ()) if isinstance(part, Mapping) else ()
            entries = [index(entry) for entry in listed]
            if not entries or (unknown := set(part) - {"entries", *generators}):
                listed = f", not {', '.join(map(str, unknown))}" if entries else ""
                raise ValueError(
                    f"{what}: permuted has entries, and images by generator: {', '.join(generators)}{listed}"
                )
            if len(G.lie_algebra):
                raise ValueError(f"{what}: permuted is of finite groups, and {G} is none; use vector")
            if wrong := [name for name in generators if not isinstance(part.get(name, {}), Mapping)]:
                raise ValueError(f"{what}: permuted: {wrong[0]} is a dictionary of permutation and signs, or left out")
            stay = {"permutation": range(len(entries)), "signs": [1] * len(entries)}
            images = [stay | dict(part.get(name, {})) for name in generators]
            yield entries, [_signed_permutation(what, one["permutation"], one["signs"], len(entries)) for one in images]
        return
    cyclic = str(G).startswith("Z(")
    if kind == ("pseudoscalar" if cyclic else "cycle"):
        remedy = "permuted" if kind == "cycle" else "scalar, for it has no reflections"
        raise ValueError(f"{what}: {G} has no {kind}; use {remedy}")
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
            raise ValueError(f"{what}: {kind} has {list(entries)}, and one of {G} is {rep.dim} entries")
        yield [index(entry) for entry in entries], matrices


def plain_spec(
    env: gym.Env, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
) -> SymmetrySpec:
    """The spec of an environment without any symmetry, for networks that have none (`model="mlp"`).

    Args:
        observation_space, action_space: what an agent sees of it, where that differs.
    Raises:
        ValueError: observations or actions are no vectors.
    """
    observation_space, action_space = observation_space or env.observation_space, action_space or env.action_space
    for what, space in (("observation", observation_space), ("action", action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"the {what} space of {env_name(env)} is {space}: give one whose {what}s are vectors")
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
    """Names of observation and action entries, those of an observation from a dictionary after its keys."""
    inner = dictionary_of(env)
    names = [f"observation[{i}]" for i in range(env.observation_space.shape[0])] if inner is None else flat_names(inner)
    return {"obs_names": names, "action_names": [f"action[{i}]" for i in range(env.action_space.shape[0])]}


def _signed_permutation(what: str, permutation, signs, n: int) -> np.ndarray:
    if signs is None or not len(permutation) == len(signs) == n:
        raise ValueError(
            f"{what}: permutation has {len(permutation)} entries, signs {0 if signs is None else len(signs)}; give {n}"
        )
    if sorted(permutation) != list(range(n)):
        raise ValueError(f"{what}: {list(permutation)} is not a permutation of 0..{n - 1}")
    if not set(signs) <= {1, -1}:
        raise ValueError(f"{what}: signs {list(signs)} must be 1 or -1")
    matrix = np.zeros((n, n))
    matrix[np.arange(n), list(permutation)] = signs
    return matrix


def _involution(what: str, permutation, signs) -> Matrix:
    n = len(permutation)
    matrix = _signed_permutation(what, permutation, signs, n)
    if (wrong := np.flatnonzero((matrix @ matrix != np.eye(n)).any(1))).size:
        raise ValueError(f"{what}: mirroring twice does not return entry {wrong[0]}; swap in pairs with equal signs")
    return tuple(map(tuple, matrix.tolist()))


# -- partial symmetries --------------------------------------------------------------------------------------------------


def without(spec: SymmetrySpec, *names: str, model: mujoco.MjModel | None = None) -> SymmetrySpec:
    """The spec with some entries left free: the group acts trivially on them, and certificates do not count them.

    Args:
        names: names of joints, of entries, or of bodies. A body stands for itself and the bodies it carries; the joints of
            bodies are known from the model only.
        model: the model that the spec was derived from, where bodies are named.
    Returns:
        a spec whose symmetries are not certified yet.
    Raises:
        ValueError: a name that is in no space, or nothing is left for the group to act on.

    >>> legs = without(spec, "right_upper_arm", "left_upper_arm", model=env.unwrapped.model)    # doctest: +SKIP
    """
    joints, bodies = _below(model, names) if model is not None else (set(names), set(names))
    joints |= set(names)
    spaces: dict[str, Any] = {}
    matched = set()
    for key in SPACES:
        if (space := getattr(spec, key)) is None:
            continue
        free = set()
        for i, entry in enumerate(space.entries):
            matches = {n for n in (*names, *joints) if n in (entry.name, entry.joint)}
            matches |= {body for body in bodies if entry.name.startswith(f"{body} ") and not entry.joint}
            if matches:
                free.add(i)
                matched |= matches
        spaces[key] = _freed(space, free)
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


def _freed(space: Space, entries: set[int]) -> Space:
    """The space with the trivial action on these entries and on all that the group mixes them with."""
    owner = np.empty(space.feature_dim, dtype=int)
    for kind, raw, feature in space.encoding.blocks:
        owner[feature] = range(raw.start, raw.stop) if kind == "linear" else raw.start
    matrices = np.array([*space.discrete_generators, *space.lie_algebra])
    mixed = (matrices != 0).any(0) | (matrices != 0).any(0).T
    free = np.isin(owner, [owner[f] for i in entries for f in space.encoding.features_of(i)])
    while (more := free | np.isin(owner, owner[mixed[free].any(0)])).sum() > free.sum():
        free = more
    quaternions = {i: i - i0 for i0 in space.quaternions for i in range(i0, i0 + 4)}
    marked = {int(owner[f]) for f in np.flatnonzero(free)}
    remaining = [
        entry._replace(free=entry.free or (i - quaternions.get(i, 0)) in marked)
        for i, entry in enumerate(space.entries)
    ]
    discrete, lie = ([np.array(m) for m in part] for part in (space.discrete_generators, space.lie_algebra))
    for matrix in discrete:
        matrix[free] = np.eye(space.feature_dim)[free]
    for matrix in lie:
        matrix[free] = 0
    return Space(remaining, discrete, lie, space.origin, space.angles, space.quaternions)


def _below(model: mujoco.MjModel, names: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Joints and bodies of the named bodies and of all that they carry."""
    chosen = np.zeros(model.nbody, dtype=bool)
    for b in range(1, model.nbody):  # parents come before their children
        chosen[b] = chosen[model.body_parentid[b]] or model.body(b).name in names
    joints = {model.joint(j).name for j in range(model.njnt) if chosen[model.jnt_bodyid[j]]}
    return joints, {model.body(b).name for b in np.flatnonzero(chosen) if model.body(b).name}


# -- published symmetries ------------------------------------------------------------------------------------------------


_SWAP = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class _Published:
    """A generator.

    Args:
        name, group: name and group of the symmetry.
        image: the joint that each joint is carried to; others stay.
        odd: joints that change sign.
        root: the generator's action on vectors of a free joint; its angular velocity is taken for a pseudovector.
    """

    name: str
    group: Group
    image: Mapping[str, str] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    root: np.ndarray = field(default_factory=lambda: np.eye(3))


def _pairs(*names: str) -> dict[str, str]:
    """Joints of the right side and of the left one, exchanged."""
    return {f"{a}_{name}": f"{b}_{name}" for name in names for a, b in (("right", "left"), ("left", "right"))}


def _planar(*names: str) -> frozenset[str]:
    return frozenset({"rootx", "rooty", *names})


_WALKER = {a: b for joint in ("thigh", "leg", "foot")
           for a, b in ((f"{joint}_joint", f"{joint}_left_joint"), (f"{joint}_left_joint", f"{joint}_joint"))}  # fmt: skip

PUBLISHED: Mapping[str, _Published] = {
    "Hopper": _Published("front-back", Z(2), odd=_planar("thigh_joint", "leg_joint", "foot_joint")),
    "HalfCheetah": _Published("front-back", Z(2), odd=_planar("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")),
    "Walker2d": _Published("leg swap", Z(2), _WALKER),
    "Swimmer": _Published("left-right", Z(2), odd=frozenset({"free_body_rot", "motor1_rot", "motor2_rot"})),
    "Ant": _Published(
        "leg cycle", Z(4), {f"{kind}_{i}": f"{kind}_{i % 4 + 1}" for kind in ("hip", "ankle") for i in (1, 2, 3, 4)}
    ),
    "Humanoid": _Published(
        "left-right",
        Z(2),
        _pairs("hip_x", "hip_z", "hip_y", "knee", "shoulder1", "shoulder2", "elbow"),
        frozenset({"abdomen_x", *_pairs("hip_x", "shoulder1")}),
        root=_SWAP,
    ),
}
"""Published representation of each task that has one."""


def published_spec(spec: SymmetrySpec, task: str) -> SymmetrySpec:
    """The published representation of a task on the spaces of its derived spec.

    Args:
        spec: the derived spec, whose entries say which joint each coordinate belongs to.
        task: the environment's name without its version.
    Raises:
        ValueError: none was published for the task.
    """
    if task not in PUBLISHED:
        raise ValueError(f"no representation was published for {spec.env_id}; there is one for {', '.join(PUBLISHED)}")
    published = PUBLISHED[task]
    state = {key: _published_matrix(published, getattr(spec, key).features) for key in ("qpos", "qvel", "action")}
    features = [feature for key in ("qpos", "qvel") for feature in getattr(spec, key).features]
    whole = block_diag(state["qpos"], state["qvel"])
    spaces: dict[str, Any] = {key: _with_generator(getattr(spec, key), matrix) for key, matrix in state.items()}
    spaces["obs"] = _with_generator(spec.obs, _restricted(whole, features, spec.obs.features))
    symmetry = Symmetry(published.name, note="As published with the residual-pathway work.")
    return SymmetrySpec(spec.env_id, published.group, act=spec.act, symmetries=(symmetry,), **spaces)


def _published_matrix(published: _Published, features: tuple[Entry, ...]) -> np.ndarray:
    """The generator on features, each of which belongs to a joint."""
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


def _restricted(whole: np.ndarray, features: list[Entry], observed: tuple[Entry, ...]) -> np.ndarray:
    """The generator on those of the features that are observed; what is observed besides stays where it is."""
    place = {f.name: i for i, f in enumerate(features)}
    names = [f.name for f in observed]
    known = [i for i, name in enumerate(names) if name in place and names.index(name) == i]
    at = [place[observed[i].name] for i in known]
    matrix = np.eye(len(observed))
    matrix[np.ix_(known, known)] = whole[np.ix_(at, at)]
    return matrix


def _with_generator(space: Space, matrix: np.ndarray) -> Space:
    return Space(space.entries, (matrix,), angles=space.angles, quaternions=space.quaternions)
