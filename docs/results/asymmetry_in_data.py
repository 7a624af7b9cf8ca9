r"""How much of a robot's lost symmetry its replay buffer can show: `python docs/results/asymmetry_in_data.py RUNS...`.

A critic learns its free pathway from the part of its residuals that changes sign under the symmetry. For each run of
`rppdyn train-agent` this takes the last checkpoint's buffer and fits the residuals of n-step targets,

    r_t + ... + gamma^(n-1) r_(t+n-1) + gamma^n (min_k target_k(s', a') - alpha log pi) - q(s_t, a_t),

by least squares in the antisymmetric features (x - g x) / 2 of state and action, x both normalised. Reported is the mean
square that the fit explains beside what noise alone would explain, estimated from sums over episodes, whose steps are not
independent (a cluster-robust covariance; Liang & Zeger 1986). A ratio of 1 is noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from rppdyn.jobs.training.building import agent_of
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json
from rppdyn.runs.provenance import provenance


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 10, 40], help="of the targets")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers")
    arguments = parser.parse_args()
    rows = [row for run in arguments.runs for row in measure(run, arguments.steps)]
    print(f"{'run':24} {'n':>3} {'episodes':>8} {'residual':>10} {'explained':>10} {'by noise':>10} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['run']:24} {row['n']:3d} {row['episodes']:8d} {row['residual']:10.3f} {row['explained']:10.4f} "
            f"{row['noise']:10.4f} {row['explained'] / row['noise']:6.2f}"
        )
    if arguments.json:
        write_json(Path(arguments.json), {"provenance": provenance(), "rows": rows})


@torch.no_grad()
def measure(run: str, steps: list[int]) -> list[dict]:
    """Mean squares of the residuals and of what antisymmetric features explain, for each length of the targets."""
    checkpoint = sorted((RunFolder.open(run).path / "checkpoints").iterdir())[-1]
    captured = torch.load(checkpoint / "agent.pt", weights_only=True)
    rows = {name: torch.as_tensor(value).double().flatten(1) for name, value in captured["replay"]["rows"].items()}
    with agent_of(run, 1, 0) as (agent, _, _):
        agent.set_parameters(captured["parameters"], device="cpu")
        alpha = float(captured["variables"]["log_ent_coef"].exp())
        features, policy, spec = agent.actor.features_extractor, agent.policy.double(), agent.spec
        next_actions, log_prob = policy.actor.action_log_prob(rows["next_observations"])
        bootstrap = torch.cat(policy.critic_target(rows["next_observations"], next_actions), 1).amin(1)
        bootstrap = (bootstrap - alpha * log_prob).numpy()
        values = policy.critic.q1_forward(rows["observations"], rows["actions"]).squeeze(1).numpy()
        x = torch.cat([features(rows["observations"]), rows["actions"]], 1).numpy()
        generators = [rep.discrete_generators[0].numpy() for rep in (spec.obs_rep, spec.action_rep)]
        gamma = agent.gamma
    n_obs = len(generators[0])
    image = np.hstack([x[:, :n_obs] @ generators[0].T, x[:, n_obs:] @ generators[1].T])
    left, size, _ = np.linalg.svd((x - image) / 2, full_matrices=False)
    basis = left[:, size > 1e-6 * size[0]]
    rewards, dones, timeouts = (rows[name].squeeze(1).numpy() for name in ("rewards", "dones", "timeouts"))
    episodes = np.concatenate([[0], np.cumsum(dones)[:-1]]).astype(int)
    found = []
    for n in steps:
        residual = targets(rewards, dones, timeouts, bootstrap, gamma, n) - values
        sums = np.zeros((episodes[-1] + 1, basis.shape[1]))
        np.add.at(sums, episodes, basis * residual[:, None])
        found.append({
            "run": Path(run).name,
            "n": n,
            "transitions": len(residual),
            "episodes": int(episodes[-1] + 1),
            "dimensions": basis.shape[1],
            "residual": float(np.mean(residual**2)),
            "explained": float(((basis.T @ residual) ** 2).sum() / len(residual)),
            "noise": float((sums**2).sum() / len(residual)),
        })  # fmt: skip
    return found


def targets(rewards, dones, timeouts, bootstrap, gamma: float, n: int) -> np.ndarray:
    """n-step targets, cut short where an episode or the buffer ends."""
    found = np.empty_like(rewards)
    last = len(rewards) - 1
    for t in range(len(rewards)):
        total, discount = 0.0, 1.0
        for k in range(t, min(t + n, last + 1)):
            total += discount * rewards[k]
            discount *= gamma
            if dones[k] or k == min(t + n - 1, last):
                total += discount * bootstrap[k] * (1 - dones[k] * (1 - timeouts[k]))
                break
        found[t] = total
    return found


if __name__ == "__main__":
    main()
