"""Candidates of a robot: the data suggest its symmetry, and the simulator decides."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rppdyn.agents import played_episodes, random_policy
from rppdyn.envs import Episode, certify, symmetry_candidates, symmetry_spec


def episodes(env_id, steps, seed=0):
    env = gym.make(env_id)
    return list(played_episodes(env, random_policy(env.action_space, seed), steps=steps, seed=seed))


@pytest.fixture(scope="module")
def swimming():
    return episodes("Swimmer-v5", 4000)


def test_swimmer_mirror_is_first_and_exact(swimming):
    ranked = symmetry_candidates("Swimmer-v5", swimming)
    first, second = ranked.best[:2]
    derived = symmetry_spec("Swimmer-v5", symmetry="left-right")
    for key in ("obs", "action", "qpos", "qvel"):
        assert np.array_equal(getattr(first.spec, key).discrete_generators, getattr(derived, key).discrete_generators)
    assert first.score < 0.7 * second.score and (np.diff(ranked.scores) >= 0).all()
    first.spec.check()
    verdicts = [certify("Swimmer-v5", c.spec, n_states=20, n_resets=20).dynamics_verdict for c in (first, second)]
    assert verdicts == ["exact", "broken"]
    assert "signs of slider2, free_body_rot, motor1_rot, motor2_rot" in str(ranked)


def test_scores_are_those_of_the_definition(swimming):
    """Of the candidates' own matrices, and of a linear model that is fitted again."""
    ranked = symmetry_candidates("Swimmer-v5", swimming, top=10_000)
    y = np.concatenate([e.observations[:-1] for e in swimming])
    u, after = np.concatenate([e.actions for e in swimming]), np.concatenate([e.observations[1:] for e in swimming])
    x, change = np.concatenate([y, u], 1), after - y
    pooled = lambda z, pairs: np.array([z[:, p].var(0).mean() ** 0.5 for p in pairs])  # noqa: E731
    pairs = [[0], [1, 2], [1, 2], [3, 4], [3, 4], [5], [6, 7], [6, 7], [8, 9], [8, 9]]
    x = (x - x.mean(0)) / pooled(x, pairs)
    change = (change - change.mean(0)) / pooled(change, pairs[:8])
    M = np.linalg.lstsq(x, change, rcond=None)[0].T
    for one in ranked.best:
        g, h = (np.array(space.discrete_generators[0]) for space in (one.spec.obs, one.spec.action))
        both = np.block([[g, np.zeros((8, 2))], [np.zeros((2, 8)), h]])
        score = np.linalg.norm(g @ M - M @ both) / np.hypot(np.linalg.norm(g @ M - M), np.linalg.norm(M @ both - M))
        assert one.score == pytest.approx(score, rel=0.05)  # of a ridge


def test_a_free_root_turns_with_its_limbs():
    """The limbs of Ant, and its body's quarter turns: each candidate is a representation of what it says."""
    env = gym.make("Ant-v5", include_cfrc_ext_in_observation=False)
    data = list(played_episodes(env, random_policy(env.action_space, 0), steps=1500, seed=0))
    ranked = symmetry_candidates(env, data, top=30)
    assert ranked.limbs and any("body mirrored" in one.name for one in ranked.best)
    for one in ranked.best:
        one.spec.check()
    derived = symmetry_spec(env, symmetry="left-right")
    assert any(
        all(
            np.array_equal(getattr(one.spec, key).discrete_generators, getattr(derived, key).discrete_generators)
            for key in ("obs", "action", "qpos", "qvel")
        )
        for one in ranked.best
    )


def test_permutations_alone_are_all_but_one():
    ranked = symmetry_candidates("Walker2d-v5", episodes("Walker2d-v5", 1000), signs=False, top=1)
    assert len(ranked.scores) == 719


def test_bad_input(swimming):
    still = [Episode(np.zeros((50, 8)), np.zeros((49, 2)), np.zeros(49))]
    for env, data, options, words in [
        ("Swimmer-v5", still, {}, "nothing changes in these episodes, so everything is a symmetry"),
        ("Swimmer-v5", [replace(swimming[0], observations=swimming[0].observations[:, :7])], {}, "has 8 and 2"),
        ("Swimmer-v5", [Episode(np.zeros((5, 8)), np.zeros((4, 2)), np.zeros(4))], {}, "4 steps are too few"),
        ("CartPole-v1", swimming, {}, "is no MuJoCo environment"),
        ("InvertedPendulum-v5", [Episode(*(np.random.default_rng(0).normal(size=s) for s in ((50, 4), (49, 1), 49)))],
         dict(signs=False), "no candidate"),
        ("Humanoid-v5", swimming, {}, "whose signs are too many"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            symmetry_candidates(env, data, **options)
