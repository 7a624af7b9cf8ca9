"""Learned prior variances of critics: `python docs/results/critic_variances.py --seeds 0 1 --json FILE`.

RPP-SAC on Walker2d-v5 with one ankle's actuator at full and at half strength; the critics' variances are learned every 2,000
steps (`rppdyn.agents.variances`). Printed for both robots: effective numbers of parameters of the critics' free pathways,
all layers and both critics together, and equivariance errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from rppdyn.agents import RPPSAC, LearnVariances, critic_equivariance_error, policy_equivariance_error
from rppdyn.envs import make_env
from rppdyn.runs.files import write_json
from rppdyn.runs.provenance import provenance


class Recorded(LearnVariances):
    """Keeps what every update found."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.history: list[dict[str, float]] = []

    def update(self) -> dict[str, float]:
        found = super().update()
        sample = self.model.replay_buffer.sample(512)
        observations, actions = sample.observations.numpy(), self.model.policy.unscale_action(sample.actions.numpy())
        errors = {
            "policy": policy_equivariance_error(self.model, observations).error,
            "critic": critic_equivariance_error(self.model, observations, actions).error,
        }
        self.history.append({"step": self.num_timesteps, **errors, **found})
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    runs = []
    for seed in arguments.seeds:
        for strength in (1.0, 0.5):
            env = make_env("Walker2d-v5", actuator_scale={"foot_joint": strength})
            agent = RPPSAC("RPPPolicy", env, seed=seed, batch_size=128, device="cpu", learning_starts=1000,
                           policy_kwargs=dict(model="rpp", hidden=128, free_variance=1e-4))  # fmt: skip
            recorded = Recorded(every=2000)
            agent.learn(arguments.steps, callback=recorded)
            runs.append({"seed": seed, "strength": strength, "history": recorded.history})
            for at in recorded.history:
                free = sum(v for name, v in at.items() if name.endswith("free.effective"))
                equivariant = sum(v for name, v in at.items() if name.endswith("equivariant.effective"))
                effective = f"effective free {free:8.1f}, equivariant {equivariant:8.1f}"
                errors = f"errors policy {at['policy']:.2e}, critic {at['critic']:.2e}"
                print(f"seed {seed} strength {strength} step {at['step']:6d}: {effective}; {errors}", flush=True)
            if arguments.json:
                write_json(Path(arguments.json), {"runs": runs, "provenance": provenance()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
