"""A four-legged robot written by hand, whose groups are those that walking robots have: for tests of agents.

Observed are height, orientation (a quaternion), one joint per leg, the velocity in world axes, the angular velocity in body
axes and the joints' velocities; legs stand at 45, 135, 225 and 315 degrees.
"""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np

from rppdyn.envs import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import Group

TURN = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # by 90 degrees about the vertical
YAW = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]])  # its generator
MIRROR = np.diag([1.0, -1, 1])
CYCLE = np.roll(np.eye(4), 1, axis=0)  # leg k to leg k + 1
SWAP = np.eye(4)[::-1]  # left legs with right legs

OBSERVED = ("height", "torso w", "torso x", "torso y", "torso z", *(f"leg {k}" for k in range(4)))
OBSERVED += ("velocity x", "velocity y", "velocity z", "spin x", "spin y", "spin z",
             *(f"leg {k} speed" for k in range(4)))  # fmt: skip


@functools.cache
def legged_spec(*names: str, reward_symmetric: bool = True) -> SymmetrySpec:
    """The spec for some of "left-right", "quarter turn" (of the body alone) and "yaw" (of the world)."""
    eye, nothing = np.eye(3), np.zeros((4, 4))
    parts = {  # rotation matrix (row-major), velocity, spin in body axes, joints; in the group's own 4 x 4 matrices
        "left-right": (np.kron(MIRROR, MIRROR), MIRROR, -MIRROR, SWAP, np.diag([1.0, -1, 1, -1])),
        "quarter turn": (np.kron(eye, TURN), eye, TURN, CYCLE, _beside(TURN[:2, :2], np.eye(2))),
        "yaw": (np.kron(YAW, eye), YAW, 0 * eye, nothing, _beside(np.zeros((2, 2)), YAW[:2, :2])),
    }
    observed, acted, matrices = {}, {}, {}
    for name in names:
        rotation, velocity, spin, legs, matrices[name] = parts[name]
        height = np.zeros((1, 1)) if name == "yaw" else np.ones((1, 1))
        observed[name], acted[name] = _beside(height, rotation, legs, velocity, spin, legs), legs
    discrete, lie = [n for n in names if n != "yaw"], [n for n in names if n == "yaw"]

    def space(entries, maps, **kwargs) -> Space:
        generators = [tuple(maps[n]) for n in discrete], [tuple(maps[n]) for n in lie]
        return Space(tuple(Entry(e) for e in entries), *map(tuple, generators), **kwargs)

    return SymmetrySpec(
        "Legged-v0",
        Group(
            "x".join(names),
            discrete_generators=[matrices[n] for n in discrete] or None,
            lie_algebra=[matrices[n] for n in lie] or None,
        ),
        obs=space(OBSERVED, observed, quaternions=(1,)),
        action=space([f"leg {k} torque" for k in range(4)], acted),
        symmetries=tuple(Symmetry(n, "exact", reward_symmetric and n != "yaw") for n in [*discrete, *lie]),
    ).check()


def _beside(*blocks: np.ndarray) -> np.ndarray:
    n = sum(len(b) for b in blocks)
    matrix, at = np.zeros((n, n)), 0
    for block in blocks:
        matrix[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return matrix


class Legged(gym.Env):
    """A stand-in with the robot's spaces: states are random, and the quaternion is zero after a reset."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (len(OBSERVED),), np.float64)
    action_space = gym.spaces.Box(-0.4, 0.4, (4,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(len(OBSERVED)), {}

    def step(self, action):
        self.count += 1
        obs = legged_states(1, self.np_random)[0]
        return obs, float(obs[9] - np.square(action).sum()), False, self.count >= 25, {}


def legged_states(n: int, rng: np.random.Generator) -> np.ndarray:
    """Random raw observations with unit quaternions."""
    obs = rng.normal(size=(n, len(OBSERVED)))
    obs[:, 1:5] /= np.linalg.norm(obs[:, 1:5], axis=1, keepdims=True)
    return obs
