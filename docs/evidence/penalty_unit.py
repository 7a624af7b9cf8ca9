"""Is it the prior's penalty that helps a relaxed agent, or the unit its free weights are stored in? `protocol.md`, section 41.

    OMP_NUM_THREADS=1 python docs/evidence/penalty_unit.py [--hills 2 0] [--arms both penalty unit neither]    # adds rows
    python docs/evidence/penalty_unit.py --table

A relaxed layer's free weights are stored as multiples of sigma sqrt(n_in) of their prior (`prior_unit`), so that
Adam's step shrinks with the variance, and the loss has the penalty |w|^2 / (2 sigma^2). Here each is taken away alone: without
the penalty sigma^2 is 1e5 in the loss, without the unit it is 1e5 in what is stored. All begin with the same function.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agent_runs import read_rows
from evidence import arms_parser, holm, rank_test, write_rows, write_table
from goals import commit
from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.agents import RPPSAC, policy_equivariance_error, train_many
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.nn import RelaxedLinear

HERE = Path(__file__).parent
DATA, PAGE = HERE / "penalty_unit.json", HERE.parent / "concepts" / "priors.md"
MARK = "<!-- table: made by `docs/evidence/penalty_unit.py` -->"
SEEDS = range(2520, 2530)
STEPS, EVALUATIONS, EPISODES = 6000, 12, 10
NARROW, WIDE = 1e-4, 1e5
ARMS = {"both": (NARROW, NARROW), "penalty": (NARROW, WIDE), "unit": (WIDE, NARROW), "neither": (WIDE, WIDE)}
"""(free variance in the penalty, free variance that units are for) of each arm."""
TESTS = [("both", "unit"), ("penalty", "neither"), ("both", "penalty"), ("unit", "neither")]
"""The penalty with and without the unit, then the unit with and without the penalty."""


def build(hill: float, arm: str, seed: int) -> RPPSAC:
    """An agent whose penalty and units are those of different variances."""
    penalty, unit = ARMS[arm]
    env = make_env("rppdyn/Navigation-v0", hill=hill)
    agent = RPPSAC(
        "RPPPolicy",
        env,
        spec=symmetry_spec(env, symmetry="D8"),
        policy_kwargs=dict(model="rpp", hidden=64, free_variance=unit),
        learning_rate=3e-3,
        gamma=0.95,
        learning_starts=200,
        seed=seed,
        device="cpu",
        compile=True,
    )
    for layer in agent.policy.modules():
        if isinstance(layer, RelaxedLinear):
            layer.free.log_variance.fill_(math.log(penalty))
    return agent


class Evaluations(BaseCallback):
    """Mean returns of the deterministic policy, every 500 steps, over ten episodes with fixed beginnings."""

    def __init__(self, hill: float) -> None:
        super().__init__()
        self.hill = hill
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % (STEPS // EVALUATIONS) == 0:
            env, total = make_env("rppdyn/Navigation-v0", hill=self.hill), 0.0
            for episode in range(EPISODES):
                observation, _ = env.reset(seed=10_000 + episode)
                ended = False
                while not ended:
                    observation, reward, _, ended, _ = env.step(self.model.predict(observation, deterministic=True)[0])
                    total += reward
            self.returns.append(total / EPISODES)
        return True


def row_of(hill: float, arm: str, seeds: list[int]) -> dict[str, Any]:
    """Train an arm's seeds together; returns at each evaluation, and free shares and equivariance errors at the end."""
    evaluations = [Evaluations(hill) for _ in seeds]
    trainers = train_many([partial(build, hill, arm, seed) for seed in seeds], STEPS, evaluations)
    agents = [trainer.agent for trainer in trainers]
    errors = [policy_equivariance_error(a, a.replay_buffer.sample(256).observations.numpy()).error for a in agents]
    return {
        "hill": hill,
        "arm": arm,
        "seeds": seeds,
        "returns": [np.round(callback.returns, 2).tolist() for callback in evaluations],
        "free_shares": [float(f"{agent.policy.pathway_statistics()['actor_free_share']:.2g}") for agent in agents],
        "errors": [float(f"{error:.2g}") for error in errors],
        "commit": commit(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds as Markdown."""
    lines = [
        "| hill | arm | mean return | final return | free share | equivariance error |",
        "| --- | --- |" + " ---: |" * 4,
    ]
    for hill in dict.fromkeys(row["hill"] for row in rows):
        here = {row["arm"]: row for row in rows if row["hill"] == hill}
        curves = {arm: np.array(row["returns"]) for arm, row in here.items()}
        for arm, row in here.items():
            numbers = curves[arm].mean(), curves[arm][:, -1].mean(), np.mean(row["free_shares"]), np.mean(row["errors"])
            lines.append(f"| {hill:g} J | {arm} | " + " | ".join(f"{number:.3g}" for number in numbers) + " |")
    return "\n".join(lines)


def p_values(rows: list[dict[str, Any]]) -> str:
    """P-values by Holm over the tests of a height and metric."""
    lines = []
    for hill in dict.fromkeys(row["hill"] for row in rows):
        curves = {row["arm"]: np.array(row["returns"]) for row in rows if row["hill"] == hill}
        for name, values in (("mean", lambda curve: curve.mean(1)), ("final", lambda curve: curve[:, -1])):
            pairs = [(a, b) for a, b in TESTS if a in curves and b in curves]
            ps = holm([rank_test(values(curves[a]), values(curves[b])) for a, b in pairs])
            values_by_pair = ", ".join(f"{a} against {b} {p:.2g}" for (a, b), p in zip(pairs, ps, strict=True))
            lines.append(f"p, {name}, {hill:g} J: {values_by_pair}")
    return "\n".join(lines)


def main() -> None:
    """Train what is asked for, and write the rows."""
    parser = arms_parser(__doc__ or "", ARMS, SEEDS, DATA)
    parser.add_argument("--hills", nargs="*", type=float, default=[2.0, 0.0])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = read_rows(asked.out)
    for hill in [] if asked.table else asked.hills:
        for arm in asked.arms:
            rows = [row for row in rows if (row["hill"], row["arm"]) != (hill, arm)] + [row_of(hill, arm, asked.seeds)]
            write_rows(asked.out, rows)
    if asked.out == DATA:
        write_table(PAGE, MARK, table(rows))
    print(table(rows), p_values(rows), sep="\n\n")


if __name__ == "__main__":
    main()
