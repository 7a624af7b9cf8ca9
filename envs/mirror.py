"""A mirror symmetry of your own environment, from permutations and signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rppdyn.envs.flat import dictionary_of, flat_names
from rppdyn.envs.making import env_name
from rppdyn.envs.spec import NOT_CERTIFIED, Entry, Matrix, Space, Symmetry, SymmetrySpec
from rppdyn.groups import Group, Trivial

__all__ = ["entry_names", "mirror_group", "mirror_spec", "plain_spec"]


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
        verdict, reward_symmetric, note: what you know of the symmetry, if you do; `certify` measures it.
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
        mirror_group(),
        obs=space("observation", obs_permutation, obs_signs, obs_names, obs_origin),
        action=space("action", action_permutation, action_signs, action_names),
        symmetries=(Symmetry(name, verdict, reward_symmetric, note),),
        **state,
    )


def plain_spec(env: gym.Env) -> SymmetrySpec:
    """The spec of an environment without any symmetry, for networks that have none (`model="mlp"`).

    Raises:
        ValueError: observations or actions are no vectors.
    """
    for what, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(
                f"the {what} space of {env_name(env)} is {space}: give an environment whose {what}s are vectors"
            )
    names = entry_names(env)
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


def mirror_group() -> Group:
    """Z_2 as the exchange of two coordinates, the group of every mirror in the catalogue; equal to `Z(2)`."""
    return Group("Z(2)", discrete_generators=[[[0.0, 1.0], [1.0, 0.0]]])


def _involution(what: str, permutation, signs) -> Matrix:
    n = len(permutation)
    if signs is None or len(signs) != n:
        raise ValueError(
            f"{what}: permutation has {n} entries, signs {0 if signs is None else len(signs)}; give as many"
        )
    if sorted(permutation) != list(range(n)):
        raise ValueError(f"{what}: {list(permutation)} is not a permutation of 0..{n - 1}")
    if not set(signs) <= {1, -1}:
        raise ValueError(f"{what}: signs {list(signs)} must be 1 or -1")
    matrix = np.zeros((n, n))
    matrix[np.arange(n), list(permutation)] = signs
    if (wrong := np.flatnonzero((matrix @ matrix != np.eye(n)).any(1))).size:
        raise ValueError(f"{what}: mirroring twice does not return entry {wrong[0]}; swap in pairs with equal signs")
    return tuple(map(tuple, matrix.tolist()))
