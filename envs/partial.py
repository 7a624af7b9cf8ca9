r"""Partial symmetries: a mirror for the legs, none for the arms.

Let the state be (l, a), with a the part left free. The only linear action that leaves a alone and is a representation is
the trivial one, g (l, a) = (g l, a), so that is the action of a partial symmetry. It says of a policy
:math:`\pi = (\pi_l, \pi_a)` in its equivariant pathway

.. math:: \pi_l(g l, a) = g\, \pi_l(l, a), \qquad \pi_a(g l, a) = \pi_a(l, a) :

the legs obey the mirror whatever the arms do, and the mirror says nothing of the arms but that it does not reach them. How
the arms depend on the side that the legs are on comes from the free pathway alone, which every relaxed layer has; a
strictly equivariant network (`model=emlp`) has none, and its arms can't tell left from right. An entry that a symmetry
exchanges or mixes with a free one is free too: a right arm without a partner has nothing to be exchanged with.

Entries left free are marked (`Entry.free`), and `certify` does not count them. It does count what they do to the others: the
image of a state has the legs mirrored and the arms as they were, so the legs' defect is how far the arms disturb them.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from rppdyn.envs.spec import SPACES, Space, Symmetry, SymmetrySpec

__all__ = ["without"]


def without(spec: SymmetrySpec, *names: str, model: mujoco.MjModel | None = None) -> SymmetrySpec:
    """The spec with some entries left free: the group acts trivially on them, and certificates do not count them.

    Args:
        names: of joints, of entries, or of bodies. A body stands for itself and the bodies it carries; the joints of
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
    found = set()
    for key in SPACES:
        if (space := getattr(spec, key)) is None:
            continue
        free = set()
        for i, entry in enumerate(space.entries):
            matches = {n for n in (*names, *joints) if n in (entry.name, entry.joint)}
            matches |= {body for body in bodies if entry.name.startswith(f"{body} ") and not entry.joint}
            if matches:
                free.add(i)
                found |= matches
        spaces[key] = _freed(space, free)
    if unknown := [name for name in names if name not in found and not (model is not None and _is_body(model, name))]:
        known = ", ".join(dict.fromkeys(e.joint for e in (spec.qpos or spec.obs).entries if e.joint))
        raise ValueError(
            f"{spec.env_id} has no joint or entry {unknown[0]!r} to leave free; its joints are {known} "
            "(a body needs model=)"
        )
    if all(_is_trivial(space) for space in spaces.values()):
        raise ValueError(
            f"{spec.env_id}: with {', '.join(names)} left free the symmetry acts on nothing; leave out fewer"
        )
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
    kept = [
        entry._replace(free=entry.free or (i - quaternions.get(i, 0)) in marked)
        for i, entry in enumerate(space.entries)
    ]
    discrete, lie = ([np.array(m) for m in part] for part in (space.discrete_generators, space.lie_algebra))
    for matrix in discrete:
        matrix[free] = np.eye(space.feature_dim)[free]
    for matrix in lie:
        matrix[free] = 0
    return Space(kept, discrete, lie, space.origin, space.angles, space.quaternions)


def _below(model: mujoco.MjModel, names: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Joints and bodies of the named bodies and of all that they carry."""
    chosen = np.zeros(model.nbody, dtype=bool)
    for b in range(1, model.nbody):  # parents come before their children
        chosen[b] = chosen[model.body_parentid[b]] or model.body(b).name in names
    joints = {model.joint(j).name for j in range(model.njnt) if chosen[model.jnt_bodyid[j]]}
    return joints, {model.body(b).name for b in np.flatnonzero(chosen) if model.body(b).name}


def _is_body(model: mujoco.MjModel, name: str) -> bool:
    return any(model.body(b).name == name for b in range(1, model.nbody))


def _is_trivial(space: Space) -> bool:
    eye = np.eye(space.feature_dim)
    return all((np.array(m) == eye).all() for m in space.discrete_generators) and not np.any(space.lie_algebra)
