"""Specs with entries left free: still a group action, and free entries are not counted."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from refusals import refused

from rppdyn.envs import SymmetrySpec, certify, symmetry_spec
from rppdyn.envs._mirror import without


@pytest.fixture(scope="module")
def humanoid():
    env = gym.make("Humanoid-v5")
    return env.unwrapped.model, symmetry_spec(env)


def test_arms_left_free(humanoid):
    model, spec = humanoid
    legs = without(spec, "right_upper_arm", "left_upper_arm", model=model).check()
    arms = ("shoulder", "elbow", "upper_arm", "lower_arm")
    for key in ("obs", "action", "qpos", "qvel"):
        space, whole = getattr(legs, key), getattr(spec, key)
        free = np.array([entry.free for entry in space.features])
        assert free.tolist() == [any(arm in entry.name for arm in arms) for entry in space.features]
        matrix, before = space.generator(0), whole.generator(0)
        assert (matrix[free] == np.eye(len(free))[free]).all()
        assert (matrix[~free] == before[~free]).all() and (before[free] != matrix[free]).any()
        assert getattr(without(spec, "right_upper_arm", model=model), key) == space  # what is exchanged with it is free
    assert legs.symmetries[0].verdict == "not certified" and "left free" in legs.symmetries[0].note
    assert SymmetrySpec.from_dict(legs.to_dict()) == legs and legs.digest != spec.digest


def test_quaternions_are_freed_whole():
    spec = without(symmetry_spec("Ant-v5", symmetry="left-right"), "root").check()
    assert [e.free for e in spec.qpos.entries] == [True] * 7 + [False] * 8
    yaw = symmetry_spec("Ant-v5", symmetry="yaw")
    with refused("acts on nothing"):
        without(yaw, "root", *(e.name for e in yaw.obs.entries))
    with refused("no joint or entry 'wing' to leave free; its joints are root, "):
        without(spec, "wing")
    with refused("a body needs model="):
        without(symmetry_spec("Ant-v5"), "right_back_foot")


def test_certify_does_not_count_free_entries():
    """Walker2d's feet left free: what they do wrong is not counted, what they do to the rest is."""
    spec = symmetry_spec("Walker2d-v5")
    partial = without(spec, "foot_joint")
    (report,) = certify("Walker2d-v5", partial, n_states=30, n_resets=20).generators
    names = report.components
    assert "foot_joint position" in report.unconstrained and "foot_left_joint velocity" in report.unconstrained
    assert not any("foot" in name for name in names) and "leg_joint position" in names
    assert report.dynamics_verdict != "exact" and report.state.median > 1e-2
