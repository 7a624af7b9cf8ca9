"""Hindsight replay with and without symmetry, on a goal task in the plane: ten seeds of each.

    python docs/evidence/goals.py [--seeds 10] [--steps 2000]       # writes goals.json beside it

Strict and plain networks learn `docs/examples/reach.py` from a reward of -1 away from the goal and 0 near it. What is
kept is the share of 20 evaluation episodes that end near their goal, at eight times of training.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import HerReplayBuffer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

import reach  # noqa: E402

from rppdyn.agents import RPPSAC  # noqa: E402
from rppdyn.runs.statistics import iqm  # noqa: E402

EPISODES = 20


def success(agent: RPPSAC) -> float:
    """Share of episodes that end near their goal, of deterministic actions from fixed beginnings."""
    near = 0
    env = gym.make("Reach-v0")
    for k in range(EPISODES):
        observation, _ = env.reset(seed=10_000 + k)
        ended = False
        while not ended:
            observation, reward, _, ended, _ = env.step(agent.predict(observation, deterministic=True)[0])
        near += reward == 0
    return near / EPISODES


def curve(model: str, seed: int, steps: int) -> list[float]:
    agent = RPPSAC(
        "RPPPolicy", gym.make("Reach-v0"), seed=seed, replay_buffer_class=HerReplayBuffer, learning_starts=100,
        buffer_size=10_000, batch_size=128, gamma=0.9, learning_rate=1e-3,
        policy_kwargs=dict(model=model, hidden=32, optimizer_kwargs=dict(betas=(0.9, 0.999))),
    )  # fmt: skip
    found = []
    for _ in range(8):
        agent.learn(steps // 8, reset_num_timesteps=False)
        found.append(success(agent))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start, models = time.process_time(), ("emlp", "mlp")
    curves = {model: [curve(model, seed, asked.steps) for seed in range(asked.seeds)] for model in models}
    about = {
        "near": reach.NEAR,
        "seeds": asked.seeds,
        "steps": asked.steps,
        "seconds": round(time.process_time() - start),
    }
    (HERE / "goals.json").write_text(json.dumps(about | {"success": curves}) + "\n", encoding="utf-8")
    for model, found in curves.items():
        means = np.array(found).mean(1)
        print(f"{model}: mean over training {iqm(means):.2f}, at the end {iqm(np.array(found)[:, -1]):.2f}")
    ahead = sum(a > b for a, b in zip(*(np.array(curves[m]).mean(1) for m in ("emlp", "mlp")), strict=True))
    print(f"strict ahead of plain in {ahead} of {asked.seeds} seeds; {about['seconds']} s of one processor")


if __name__ == "__main__":
    main()
