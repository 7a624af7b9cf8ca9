"""A restored environment goes on bit-identically, in a fresh process too."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from forked import run_code

from rppdyn.envs import KNOWN_ENVIRONMENTS, capture_state, make_env, restore_state

every_env = pytest.mark.parametrize("env_id", KNOWN_ENVIRONMENTS)

OPTIONS = dict(max_episode_steps=90)  # so that Swimmer and HalfCheetah, which never terminate, are truncated and reset


def record(env, steps: int) -> dict:
    """Everything `steps` random steps return, resets and Monitor's episodes included, as hexadecimal bytes."""
    trace, episodes = hashlib.sha256(), []
    for _ in range(steps):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        for part in (action, obs, np.float64(reward), np.array([terminated, truncated])):
            trace.update(np.ascontiguousarray(part).tobytes())
        if terminated or truncated:
            episodes.append([info["episode"]["r"], info["episode"]["l"]])
            obs, info = env.reset()
            trace.update(obs.tobytes())
            trace.update(repr(sorted(info.items())).encode())
    trace.update(env.observation_space.sample().tobytes())
    return {"trace": trace.hexdigest(), "episodes": episodes, "next": env.unwrapped.np_random.random().hex()}


def started(env_id: str, steps: int = 100):
    env = make_env(env_id, **OPTIONS)
    env.reset(seed=5)
    env.action_space.seed(6)
    env.observation_space.seed(7)
    record(env, steps)
    return env


def to_json(state) -> str:
    """Plain data indeed: arrays become lists, everything else is JSON already (floats are exact in it)."""
    return json.dumps(state, default=lambda x: x.tolist() if isinstance(x, np.ndarray) else {}["not plain data"])


def test_fresh_process_continues_bit_identically(tmp_path):
    expected = {}
    for env_id in KNOWN_ENVIRONMENTS:
        env = started(env_id)
        (tmp_path / f"{env_id}.json").write_text(to_json(capture_state(env)))
        expected[env_id] = record(env, 200)
        assert len(expected[env_id]["episodes"]) >= 2
    code = f"""
import json, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_state as t
for env_id in t.KNOWN_ENVIRONMENTS:
    env, file = t.make_env(env_id, **t.OPTIONS), pathlib.Path(f"{{env_id}}.json")
    t.restore_state(env, json.loads(file.read_text()))
    file.write_text(json.dumps(t.record(env, 200)))
"""
    run_code(code, folder=tmp_path)
    found = {env_id: json.loads((tmp_path / f"{env_id}.json").read_text()) for env_id in KNOWN_ENVIRONMENTS}
    assert found == expected


@every_env
def test_used_environment_continues_bit_identically(env_id):
    env = started(env_id)
    state = capture_state(env)
    expected = record(env, 100)
    env.reset(seed=99)
    record(env, 30)
    restore_state(env, state)
    assert record(env, 100) == expected


@every_env
def test_capturing_changes_nothing(env_id):
    one, other = started(env_id), started(env_id)
    first, second = capture_state(one), capture_state(one)
    for state in (first, second):
        state["wrappers"][1].pop("elapsed")  # Monitor's clock
    assert to_json(first) == to_json(second)
    assert record(one, 50) == record(other, 50)


def test_restoring_before_the_first_reset():
    env, other = make_env("Hopper-v5"), make_env("Hopper-v5")
    env.action_space.seed(0)
    restore_state(other, capture_state(env))
    for e in (env, other):
        e.reset(seed=1)
    assert record(env, 50) == record(other, 50)
    with pytest.raises(gym.error.ResetNeeded):
        fresh = make_env("Hopper-v5")
        fresh.env.needs_reset = False  # past Monitor, to Gymnasium's own check
        fresh.step(fresh.action_space.sample())


def test_counters_and_clock_are_kept():
    env, other = started("Swimmer-v5", 100), make_env("Swimmer-v5", **OPTIONS)
    env.env.t_start -= 1000.0
    restore_state(other, capture_state(env))
    assert other.env.total_steps == 100 and other.env.episode_lengths == [90]
    assert other.env.rewards == env.env.rewards and len(other.env.rewards) == 10
    assert other.env.env._elapsed_steps == 10
    assert other.env.t_start == pytest.approx(env.env.t_start, abs=5.0)
    other.env.rewards.append(1.0)
    assert len(env.env.rewards) == 10  # copies, not references


def test_derived_quantities_are_there_at_once():
    env, other = started("InvertedDoublePendulum-v5"), make_env("InvertedDoublePendulum-v5")
    restore_state(other, capture_state(env))
    assert np.allclose(other.unwrapped.data.site_xpos, env.unwrapped.data.site_xpos, atol=0.2)
    assert np.array_equal(other.unwrapped.data.qpos, env.unwrapped.data.qpos)


@pytest.mark.parametrize("kind", ["dummy", "subprocess"])
def test_vectorised(kind):
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    make = functools.partial(make_env, "Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    pickle.dumps(make)
    vec_class = DummyVecEnv if kind == "dummy" else functools.partial(SubprocVecEnv, start_method="forkserver")
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 2, 6)).astype(np.float32)
    vec, other = vec_class([make, make]), DummyVecEnv([make, make])
    try:
        vec.seed(3)
        vec.reset()
        for action in actions:
            vec.step(action)
        restore_state(other, json.loads(to_json(capture_state(vec))))
        for action in actions:
            for a, b in zip(vec.step(action)[:3], other.step(action)[:3], strict=True):
                assert np.array_equal(np.float32(a), np.float32(b))  # DummyVecEnv has float32 rewards
    finally:
        vec.close()


def test_errors():
    def message(call, *parts):
        with pytest.raises(ValueError) as error:
            call()
        assert "\n" not in str(error.value)
        for part in parts:
            assert part in str(error.value)

    state = capture_state(started("Hopper-v5", 5))
    message(lambda: restore_state(make_env("Swimmer-v5"), state), "Hopper-v5", "Swimmer-v5")
    message(lambda: restore_state(make_env("Hopper-v5", monitor=False), state), "Monitor", "wrap it alike")
    message(lambda: restore_state(make_env("Hopper-v5"), state | {"format": 9}), "9")
    message(lambda: restore_state(make_env("Hopper-v5"), state | {"simulator": np.zeros(3)}), "(3,)")
    message(lambda: restore_state(make_env("Hopper-v5"), {"format": 2, "envs": []}), "vectorised")
    counting = gym.wrappers.RecordEpisodeStatistics(gym.make("Hopper-v5"))
    message(lambda: capture_state(counting), "RecordEpisodeStatistics", "TimeLimit")
    message(lambda: capture_state(gym.make("CartPole-v1")), "CartPole", "MuJoCo")
