"""A run captured half-way and continued in another process ends bit-identical to the uninterrupted one.

Run as a script, this file is that other process: ENVIRONMENT N_ENVS TRAIN_FREQ CAPTURED RESULT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from agent_states import update_state
from forked import run_code
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC

TOTAL = 230


class Lines(KVWriter):
    """Everything that is logged, but for what the clock decides."""

    def __init__(self):
        self.lines = []

    def write(self, key_values, key_excluded, step=0):
        kept = {k: v for k, v in key_values.items() if k not in ("time/fps", "time/time_elapsed")}
        self.lines.append([step, {k: float(v) for k, v in sorted(kept.items())}])


class Capture(BaseCallback):
    """Save the agent's state once, at a step, and go on."""

    def __init__(self, step: int, path):
        super().__init__()
        self.step, self.path = step, path

    def _on_step(self) -> bool:
        if self.num_timesteps == self.step:
            torch.save(self.model.capture(), self.path)
        return True


def build(env_id: str, n_envs: int, train_freq) -> tuple[RPPSAC, Lines]:
    env = DummyVecEnv([lambda: Monitor(gym.make(env_id))] * n_envs)
    agent = RPPSAC(
        "RPPPolicy", env, seed=0, device="cpu", learning_starts=100, batch_size=32, buffer_size=300 * n_envs,
        train_freq=train_freq, learning_rate=schedule, policy_kwargs=dict(hidden=16),
    )  # fmt: skip
    lines = Lines()
    agent.set_logger(Logger(None, [lines]))
    return agent, lines


def schedule(progress: float) -> float:
    return 1e-3 * progress


def finish(agent: RPPSAC, lines: Lines, callback=None) -> dict:
    """Learn up to the total, and return all that there is to compare: the final state, and what was logged."""
    agent.learn(TOTAL - agent.num_timesteps, callback, log_interval=1, reset_num_timesteps=False)
    data = agent.capture()
    for episode in data["episodes"]["ep_info_buffer"]:
        del episode["t"]
    for env in data["envs"]["envs"]:
        for wrapper in env["wrappers"]:
            wrapper.pop("elapsed", None)
            wrapper["attributes"].pop("episode_times", None)
    del data["counters"]["_num_timesteps_at_start"]
    del data["random"]["python"]  # moved by imports of torch's on first use; nothing in training draws from it
    return data | {"lines": lines.lines}


def flat(value, path=""):
    """Leaves of nested data, by path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{path}/{i}").items()}
    return {path: value}


@pytest.mark.parametrize(
    "env_id, n_envs, frequency, stop",
    [
        ("InvertedPendulum-v5", 1, (2, "episode"), 153),
        ("Walker2d-v5", 2, (5, "step"), 166),
    ],
    ids=["pendulum by episodes", "two walkers in the middle of a rollout"],
)
def test_bit_identical(tmp_path, env_id, n_envs, frequency, stop):
    agent, lines = build(env_id, n_envs, frequency)
    whole = flat(finish(agent, lines, Capture(stop, tmp_path / "captured")))
    assert torch.load(tmp_path / "captured", weights_only=True)["counters"]["num_timesteps"] == stop
    arguments = [env_id, str(n_envs), json.dumps(frequency), tmp_path / "captured", tmp_path / "result"]
    run_code(Path(__file__).read_text(), *map(str, arguments), folder=tmp_path)
    data = torch.load(tmp_path / "result", weights_only=True)
    after = [line for line in lines.lines if line[0] > stop]
    assert data.pop("lines") == after and after
    resumed = flat(data)
    assert resumed.keys() == {path for path in whole if not path.startswith("/lines/")}
    different = [path for path, value in resumed.items() if not same(value, whole[path])]
    assert not different


def same(a, b) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class Captures(BaseCallback):
    """Captures the agent at one step, in each of the methods of a callback; stops at another step."""

    def __init__(self, step: int, stop: int):
        super().__init__()
        self.step, self.stop, self.data = step, stop, {}

    def _capture(self, where: str) -> None:
        if self.num_timesteps >= self.step and where not in self.data:
            self.data[where] = self.model.capture()

    def _on_rollout_start(self) -> None:
        self._capture("start")

    def _on_rollout_end(self) -> None:
        self._capture("end")

    def _on_step(self) -> bool:
        self._capture("step")
        return self.num_timesteps != self.stop


def test_any_callback_may_capture_and_one_that_stops_is_no_interruption(make_agent):
    options = dict(train_freq=3, gradient_steps=2)
    expected = update_state(make_agent("rpp", **options).learn(85))
    stopped, callback = make_agent("rpp", **options), Captures(70, 76)
    stopped.learn(85, callback=callback)
    assert stopped.num_timesteps == 76 and set(callback.data) == {"start", "end", "step"}
    agents = [stopped]
    for data in callback.data.values():
        agents.append(make_agent("rpp", **options, seed=5))
        agents[-1].restore(data)
    for agent in agents:
        agent.learn(85 - agent.num_timesteps, reset_num_timesteps=False)
        for name, value in update_state(agent).items():
            assert torch.equal(value, expected[name]), name


def test_restoring_into_another_agent_names_the_difference(make_agent):
    data = make_agent("rpp").learn(60).capture()
    with pytest.raises(ValueError, match=r"policy_kwargs=.*this one has"):
        make_agent("emlp").restore(data)
    with pytest.raises(ValueError, match=r"buffer_size=2000, this one has 100"):
        make_agent("rpp", buffer_size=100).restore(data)
    with pytest.raises(ValueError, match=r"format 0"):
        make_agent("rpp").restore(data | {"format": 0})


if __name__ == "__main__":
    env_id, n_envs, train_freq, captured, result = sys.argv[1:]
    frequency = json.loads(train_freq)
    agent, lines = build(env_id, int(n_envs), tuple(frequency) if isinstance(frequency, list) else frequency)
    agent.restore(torch.load(captured, weights_only=True))
    torch.save(finish(agent, lines), result)
