"""Rounding of strict agents in training: `python docs/results/float32_errors.py --json FILE`.

RPP-SAC, `emlp`, on InvertedPendulum-v5 and Walker2d-v5; every thousand steps the equivariance errors of policy and critics,
with the networks in float32, in which they train, and in float64. On 1,000 states of the replay buffer and on those of two
deterministic episodes. Of critics twice: of their values as they are, |a - b| / (|a| + |b|), and with their mean over states
taken off, as the package measures them. Printed are maxima over training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.agents import RPPSAC, critic_equivariance_error, policy_equivariance_error
from rppdyn.envs import make_env
from rppdyn.runs import provenance
from rppdyn.runs.files import write_json

EVERY, STATES, EPISODES = 1000, 1000, 2
PRECISIONS = {"float32": None, "float64": torch.float64}


class Recorded(BaseCallback):
    """Keeps the errors along training, by precision, states and measure."""

    def __init__(self, env_id: str):
        super().__init__()
        self.env = make_env(env_id)
        self.history: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % EVERY:
            return True
        found: dict[str, float] = {"step": self.num_timesteps}
        sample = self.model.replay_buffer.sample(STATES)
        buffer = sample.observations.numpy(), self.model.policy.unscale_action(sample.actions.numpy())
        for at, (observations, actions) in {"buffer": buffer, "episodes": self._episodes()}.items():
            for name, dtype in PRECISIONS.items():
                values = {
                    "policy": policy_equivariance_error(self.model, observations, dtype=dtype).error,
                    "critic": self._of_values(observations, actions, dtype),
                    "critic without mean": critic_equivariance_error(
                        self.model, observations, actions, dtype=dtype
                    ).error,
                }
                found |= {f"{name}, {at}, {what}": value for what, value in values.items()}
        self.history.append(found)
        return True

    def _episodes(self) -> tuple[NDArray, NDArray]:
        """States and actions of the deterministic policy."""
        observations, actions = [], []
        for seed in range(EPISODES):
            observation, _ = self.env.reset(seed=seed)
            over = False
            while not over:
                action, _ = self.model.predict(observation, deterministic=True)
                observations.append(observation)
                actions.append(action)
                observation, _, terminated, truncated, _ = self.env.step(action)
                over = terminated or truncated
        return np.array(observations), np.array(actions)

    def _of_values(self, observations: NDArray, actions: NDArray, dtype: torch.dtype | None) -> float:
        """The ratio of sums of the critics' values as they are, under the one generator of these robots."""
        spec, q = self.model.spec, self.model.policy.value_function(dtype)
        (g,) = spec.group.discrete_generators.double()
        with torch.no_grad():
            s, a = (torch.as_tensor(x, dtype=torch.float64) for x in (observations, actions))
            here, moved = q(s, a), q(spec.transform_observation(g, s), spec.transform_action(g, a))
        return float((here - moved).abs().sum() / (here.abs() + moved.abs()).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    runs = []
    for env_id, rate in (("InvertedPendulum-v5", 1e-3), ("Walker2d-v5", 3e-4)):
        for seed in arguments.seeds:
            recorded = Recorded(env_id)
            networks = dict(model="emlp", hidden=128, num_layers=2)
            agent = RPPSAC("RPPPolicy", make_env(env_id), seed=seed, device="cpu", batch_size=128, learning_rate=rate,
                           learning_starts=500, policy_kwargs=networks)  # fmt: skip
            agent.learn(arguments.steps, callback=recorded)
            runs.append({"env": env_id, "seed": seed, "history": recorded.history})
        print(f"\n| {env_id} | policy | critic | critic, mean taken off |\n| --- | ---: | ---: | ---: |")
        for name in PRECISIONS:
            for at in ("buffer", "episodes"):
                cells = [
                    max(
                        found[f"{name}, {at}, {what}"]
                        for run in runs
                        if run["env"] == env_id
                        for found in run["history"]
                    )
                    for what in ("policy", "critic", "critic without mean")
                ]
                print(f"| {name}, states of {at} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |", flush=True)
    if arguments.json:
        write_json(Path(arguments.json), {"runs": runs, "provenance": provenance()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
