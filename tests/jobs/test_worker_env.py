"""Environments in processes of their own take the steps that they would take here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_states import update_state
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, train_many
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.errors import UserCodeError
from rppdyn.jobs.building import WorkerEnv
from rppdyn.runs.workers import WorkerError

HOPPER = partial(make_env, "Hopper-v5")


class Kill(BaseCallback):
    """Kills the environment's worker at a step, after asking it politely."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        process = self.training_env.worker.process
        os.kill(process.pid, signal.SIGINT)  # which it leaves to this process
        os.kill(process.pid, signal.SIGTERM)
        if self.num_timesteps == self.step:
            os.kill(process.pid, signal.SIGKILL)
        return True


def bits(agent: RPPSAC) -> dict:
    """All that two agents are to agree in, by path: not clocks, and not what an environment's spaces would draw."""

    def leaves(value, path):
        if isinstance(value, dict):
            return {k: v for key, item in value.items() for k, v in leaves(item, f"{path}/{key}").items()}
        if isinstance(value, (list, tuple)):
            return {k: v for i, item in enumerate(value) for k, v in leaves(item, f"{path}/{i}").items()}
        return {path: value}

    clocks = ("elapsed", "episode_times", "/t", "_space", "_num_timesteps_at_start", "random/python")
    return {k: v for k, v in leaves(agent.capture(), "").items() if not any(word in k for word in clocks)}


def assert_identical(one: RPPSAC, other: RPPSAC) -> None:
    here, there = bits(one), bits(other)
    assert here.keys() == there.keys()
    different = [k for k, v in here.items() if not (torch.equal(v, there[k]) if torch.is_tensor(v) else v == there[k])]
    assert not different


def test_steps_are_the_same_a_dead_worker_fails_its_seed_alone_and_none_is_left(caplog):
    small = dict(policy_kwargs=dict(model="mlp", hidden=16), buffer_size=2000, learning_starts=50, batch_size=32)
    spec = symmetry_spec("Hopper-v5")
    make = partial(RPPSAC, "RPPPolicy", spec=spec, device="cpu", **small)
    envs = [WorkerEnv(HOPPER) for _ in range(2)]
    here = train_many([lambda seed=seed: make(HOPPER(), seed=seed) for seed in (0, 1)], 70)
    there = train_many([lambda seed=seed: make(envs[seed], seed=seed) for seed in (0, 1)], 70)
    captured = []
    for one, other in zip(here, there, strict=True):
        captured.append(other.agent.capture())
        assert_identical(one.agent, other.agent)

    def restored(agent: RPPSAC, data: dict) -> RPPSAC:
        agent.restore(data)
        return agent

    resumed = restored(make(HOPPER()), captured[1]).learn(20, reset_num_timesteps=False)
    builds = [partial(restored, trainee.agent, data) for trainee, data in zip(there, captured, strict=True)]
    alive = train_many(builds, 90, [Kill(80), None])
    pid = envs[0].worker.process.pid
    assert str(alive[0].error) == f"a worker process ({pid}) was killed by signal 9"
    assert caplog.text.count("agent 0: a worker process") == 1 and alive[1].error is None
    for name, value in update_state(alive[1].agent).items():
        torch.testing.assert_close(update_state(resumed)[name], value, rtol=1e-4, atol=1e-6)
    for env in envs:
        env.close()
        env.close()
        assert not env.worker.process.is_alive()


def test_several_environments_of_a_worker_take_the_steps_of_a_dummy():
    here, there = DummyVecEnv([HOPPER] * 3), WorkerEnv(HOPPER, 3)
    rng = np.random.default_rng(0)
    for env in (here, there):
        env.seed(7)
        env.set_options([{"x": 1}] * 3)
    assert np.array_equal(here.reset(), there.reset())
    ended = 0
    for _ in range(60):
        actions = rng.uniform(-1, 1, size=(3, 3)).astype(np.float32)
        mine, yours = here.step(actions), there.step(actions)
        for one, other in zip(mine[:3], yours[:3], strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
        for one, other in zip(mine[3], yours[3], strict=True):
            assert one.keys() == other.keys()
            episode = one.pop("episode", {}), other.pop("episode", {})
            assert episode[0].get("r") == episode[1].get("r")
            assert all(np.array_equal(value, other[key]) for key, value in one.items())
        ended += int(mine[2].sum())
    assert ended >= 3
    assert here.reset_infos == there.reset_infos
    assert there.get_attr("spec", 1)[0].id == "Hopper-v5"
    assert not there.has_attr("nothing") and there.env_is_wrapped(gym.Wrapper, [0, 2]) == [True, True]
    assert there.env_method("get_wrapper_attr", "frame_skip", indices=[1]) == [4]
    with pytest.raises(AttributeError, match="nothing"):
        there.get_attr("nothing")
    there.close()


def no_environment() -> gym.Env:
    os._exit(3)


class Breaks(gym.Wrapper):
    def step(self, action):
        raise RuntimeError("the robot\nbroke")


def broken() -> gym.Env:
    return Breaks(HOPPER())


def test_what_ends_an_environment_there_is_said_here():
    with pytest.raises(WorkerError, match=r"worker process \(\d+\) ended with status 3 while it made the environment"):
        WorkerEnv(no_environment)
    env = WorkerEnv(broken)
    env.reset()
    with pytest.raises(UserCodeError, match=r"test_worker_env.py:\d+: RuntimeError: the robot broke$"):
        env.step(np.zeros((1, 3), np.float32))
    env.close()


def test_workers_start_where_processes_are_started_in_ways_of_joblib_s():
    code = """
import joblib

def steps():
    import gymnasium
    from rppdyn.jobs.building import WorkerEnv
    env = WorkerEnv(lambda: gymnasium.make("InvertedPendulum-v5"))
    try:
        return env.reset().shape
    finally:
        env.close()

print(joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(steps)()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "[(1, 4)]" in done.stdout, done.stderr
