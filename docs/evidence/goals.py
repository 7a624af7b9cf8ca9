"""Hindsight replay with and without symmetry, on a goal task in the plane; settings are in `protocol.md`, section 39.

    python docs/evidence/goals.py [--arms strict plain ...] [--seeds 2300 2301 ...]       # adds to goals.json
    python docs/evidence/goals.py --table

Agents learn `docs/examples/reach.py` from a reward of -1 away from the goal and 0 near it. What is kept is the share of 20
evaluation episodes that end near their goal, at eight times of training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from agent_runs import read_rows
from evidence import arms_parser, holm, rank_test, write_rows
from stable_baselines3 import SAC, HerReplayBuffer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

import reach  # noqa: E402

from rppdyn.agents import RPPSAC  # noqa: E402
from rppdyn.runs.folder import provenance  # noqa: E402

DATA = HERE / "goals.json"
SEEDS = range(2300, 2310)
EPISODES, STEPS, EVALUATIONS, WIDTH = 20, 2000, 8, 32
PEER = "stable-baselines3's SAC"
ARMS: dict[str, dict[str, Any] | None] = {
    "strict": dict(model="emlp"),
    "plain": dict(model="mlp"),
    "relaxed": dict(model="rpp"),
    "control": dict(model="rpp", equivariant_variance=1e5, free_variance=1e5),
    PEER: None,
}
TESTS = [("strict", arm) for arm in ARMS if arm != "strict"] + [("relaxed", "control")]


def success(agent: SAC) -> float:
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


def curve(arm: str, seed: int) -> list[float]:
    """The shares of one agent, evaluation by evaluation."""
    networks = ARMS[arm]
    shared: dict[str, Any] = dict(
        seed=seed, replay_buffer_class=HerReplayBuffer, learning_starts=100, buffer_size=10_000, batch_size=128, gamma=0.9,
        learning_rate=1e-3, device="cpu",
    )  # fmt: skip
    if networks is None:
        peer = dict(net_arch=[WIDTH, WIDTH], activation_fn=torch.nn.SiLU)
        agent = SAC("MultiInputPolicy", gym.make("Reach-v0"), policy_kwargs=peer, **shared)
    else:
        networks = networks | dict(hidden=WIDTH, optimizer_kwargs=dict(betas=(0.9, 0.999)))
        agent = RPPSAC("RPPPolicy", gym.make("Reach-v0"), policy_kwargs=networks, **shared)
    shares = []
    for _ in range(EVALUATIONS):
        agent.learn(STEPS // EVALUATIONS, reset_num_timesteps=False)
        shares.append(success(agent))
    return shares


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds as Markdown, and p-values by Holm over the tests of a metric."""
    curves = {row["arm"]: np.array(row["shares"]) for row in rows}
    metrics = {
        "mean over training": {arm: shares.mean(1) for arm, shares in curves.items()},
        "at the end": {arm: shares[:, -1] for arm, shares in curves.items()},
    }
    lines = [f"| share of goals reached | {' | '.join(curves)} |", f"| --- |{' ---: |' * len(curves)}"]
    for name, values in metrics.items():
        lines.append(f"| {name} | {' | '.join(f'{v.mean():.2f}' for v in values.values())} |")
    for name, values in metrics.items():
        ps = holm([rank_test(values[a], values[b]) for a, b in TESTS])
        lines.append(
            f"\np, {name}: " + ", ".join(f"{a} against {b} {p:.2g}" for (a, b), p in zip(TESTS, ps, strict=True))
        )
    return "\n".join(lines)


def main() -> None:
    """Train what is asked for, and write the rows."""
    asked = arms_parser(__doc__ or "", ARMS, SEEDS, DATA).parse_args()
    torch.set_num_threads(1)
    rows = read_rows(asked.out)
    for arm in [] if asked.table else asked.arms:
        shares = [curve(arm, seed) for seed in asked.seeds]
        rows = [row for row in rows if row["arm"] != arm] + [
            {"arm": arm, "near": reach.NEAR, "steps": STEPS, "seeds": asked.seeds, "shares": shares, "commit": commit()}
        ]
        write_rows(asked.out, rows)
    print(table(rows) if {row["arm"] for row in rows} >= set(ARMS) else f"{len(rows)} arms of {len(ARMS)}")


def commit() -> str:
    """The first seven digits of this checkout's."""
    return (provenance()["commit"] or "")[:7]


if __name__ == "__main__":
    main()
