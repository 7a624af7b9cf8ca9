"""The rule of termination from observations is that of the simulator, step by step."""

import gymnasium
import numpy as np
import pytest
import torch

from rppdyn.envs import make_env, termination

TASKS = (
    "InvertedPendulum",
    "InvertedDoublePendulum",
    "Hopper",
    "Walker2d",
    "Ant",
    "Humanoid",
    "Swimmer",
    "HalfCheetah",
)
NEVER = ("Swimmer", "HalfCheetah", "rppdyn/")
OPTIONS = [
    ("rppdyn/WindyPendulum-v0", {}),
    ("Hopper-v5", dict(exclude_current_positions_from_observation=False, healthy_z_range=(1.0, 1.2))),
    ("Walker2d-v5", dict(exclude_current_positions_from_observation=False, healthy_angle_range=(-0.1, 0.05))),
    ("Ant-v5", dict(exclude_current_positions_from_observation=False, healthy_z_range=(0.4, 0.75))),
    ("Humanoid-v5", dict(terminate_when_unhealthy=False)),
]


@pytest.mark.parametrize("env_id, options", [*((f"{task}-v5", {}) for task in TASKS), *OPTIONS])
def test_episodes_end_where_the_simulator_ends_them(env_id, options):
    env = make_env(env_id, monitor=False, **options)
    ends, rng = termination(env), np.random.default_rng(0)
    said, done = [], []
    for seed in range(4):
        env.reset(seed=seed)
        for _ in range(150):
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
            observation, _, terminated, truncated, _ = env.step(action)
            said.append(bool(ends(torch.from_numpy(np.asarray(observation)))))
            done.append(terminated)
            if terminated or truncated:
                break
    env.close()
    assert said == done
    never = env_id.startswith(NEVER) or options.get("terminate_when_unhealthy") is False
    assert any(done) != never  # both answers were put to the test


def test_what_is_not_finite_ends_an_episode_and_batches_work():
    env = make_env("HalfCheetah-v5", monitor=False)
    observations = torch.zeros(2, 3, 17)
    observations[1, 2, 5] = torch.nan
    assert termination(env)(observations).nonzero().tolist() == [[1, 2]]


def test_an_unknown_environment_is_refused():
    with gymnasium.make("MountainCarContinuous-v0") as env, pytest.raises(ValueError, match="give terminates="):
        termination(env)
