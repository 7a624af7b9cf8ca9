"""One wrong sign or one wrong pair anywhere in a right spec: the simulator says so, every time."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from ant import OPTIONS, ant_spec
from mutants import EXACT

from benchmarks.mutation import Mutation, mutations, refute_mutations
from rppdyn.envs import symmetry_spec
from rppdyn.envs.certification._certificate import EXACT_BELOW, Defect
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.envs.certification._evidence import Comparison, Elements, SimulatedSteps


def count(env, spec, **options):
    with open_simulator(env) as simulator:
        return refute_mutations(simulator, spec, **options)


@pytest.mark.parametrize("env_id", EXACT)
def test_every_mutation_is_refuted(env_id):
    spec = symmetry_spec(env_id)
    found = count(env_id, spec)
    assert found.unseen == found.symmetries == ()
    n = {key: getattr(spec, key).dim for key in ("obs", "action", "qpos", "qvel")}
    assert found.refuted == len(list(mutations(spec))) == sum(d * (d + 1) // 2 for d in n.values())
    assert "exact" not in found.verdicts


def test_every_mutation_of_a_turn_with_quaternions_is_refuted():
    spec = ant_spec("quarter turn")
    found = count(gym.make("Ant-v5", **OPTIONS), spec, n_states=20)
    assert found.unseen == found.symmetries == () and found.refuted == len(list(mutations(spec))) > 800


def test_mutations_of_a_continuous_generator():
    spec = ant_spec("left-right", "yaw")
    chosen = [Mutation(1, "qvel", (0,)), Mutation(1, "qpos", (3, 4)), Mutation(1, "obs", (18, 19))]
    assert set(chosen) <= set(mutations(spec))
    assert Mutation(1, "action", (0,)) not in set(mutations(spec))  # its row is zero: a sign has no effect
    with open_simulator(gym.make("Ant-v5", **OPTIONS)) as simulator:
        evidence = SimulatedSteps.visit(simulator, 20, np.random.default_rng(0))
        right = Elements.of_generator(spec, 1, np.random.default_rng(0))
        assert np.median(evidence.compare(right, evidence.images(right))[0].relative) < 1e-12
        for m in chosen:
            wrong = right.with_generator(m.space, m.of(right.generators[m.space]))
            assert evidence.verdict(wrong) == "broken", m.name(spec)


def test_entries_that_never_vary_are_listed():
    """No random action reaches the end of the rail, and the double pendulum's other constraint forces are not observed."""
    env = gym.make("InvertedDoublePendulum-v5")
    env.unwrapped.model.opt.gravity[0] = 0.0  # what spoils its mirror
    found = count(env, symmetry_spec(env), n_states=40)
    assert found.unseen == ("left-right, obs: sign of slider constraint force",)
    assert found.symmetries == ()


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_a_state_at_rest_whose_image_moves_by_rounding_is_exact(unit):
    moved = unit * np.r_[np.zeros((1, 2)), np.ones((20, 2))]
    rounding, push = np.zeros_like(moved), np.zeros_like(moved)
    rounding[0], push[0] = 1e-16 * unit, 0.1 * unit
    assert Comparison(("x", "y"), rounding, moved).relative.max() < 1e-10
    assert Comparison(("x", "y"), push, moved).relative.max() > 1
    assert not Comparison(("x", "y"), 0 * push, 0 * moved).relative.any()
    assert Comparison(("x", "y"), push, 0 * moved).relative.max() > 1


def test_a_force_that_seldom_acts_is_not_lost_in_a_percentile():
    """Ant's torso touches the ground in a few states of a hundred: the wrong sign of that force shows there only."""
    spec = symmetry_spec("Ant-v5", symmetry="left-right")
    names = [entry.name for entry in spec.obs.features]
    with open_simulator("Ant-v5") as simulator:
        evidence = SimulatedSteps.visit(simulator, 200, np.random.default_rng(0))
        right = Elements.of_generator(spec, 0, np.random.default_rng(0))
        m = evidence.images(right)
        force = names.index("torso external force z")
        wrong = right.with_generator("obs", Mutation(0, "obs", (force,)).of(right.generators["obs"]))
    found = Comparison.of_space(wrong, "obs", evidence.outcome, m)
    assert 0 < np.mean(found.relative > EXACT_BELOW) < 0.05 and Defect.from_values(found.relative).verdict == "exact"
    assert found.verdict == "approximate" and found.components["torso external force z"].median > 1
    assert Comparison.of_space(right, "obs", evidence.outcome, m).verdict == "exact"
