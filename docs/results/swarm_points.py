"""Errors of networks of a swarm on ten seeds: hidden layers of points, of tensors of the product of groups, and plain.

    OMP_NUM_THREADS=1 python docs/results/swarm_points.py docs/results/swarm_points.json

Three bodies in space pull on each other; positions to accelerations under SO(3) x S(3). The relative error is the root of the
mean square of what is left over that of the accelerations, on 500 test data. 400 data, 400 steps of Adam in batches of 64.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor

from rppdyn.groups import SO, S
from rppdyn.nn import EMLP, MLP, Ensemble
from rppdyn.reps import V

SEEDS, STEPS, DATA, TEST, BATCH = range(700, 710), 400, 400, 500, 64


def bodies(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions and accelerations of three bodies."""
    x = torch.randn(n, 3, 3, generator=torch.Generator().manual_seed(seed))
    apart = x[:, None] - x[:, :, None]
    pull = (apart * torch.exp(-apart.square().sum(-1, keepdim=True) / 2)).sum(2)
    return x.reshape(n, -1), 2 * pull.reshape(n, -1)


def errors(cls: type, **options: object) -> list[float]:
    """The error of each seed; all are trained as one ensemble."""
    G = SO(3) * S(3)
    rep = V(S(3)).lift(G) * V(SO(3)).lift(G)
    generators = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    ensemble = Ensemble([cls(rep, rep, G, hidden=128, num_layers=2, generator=g, **options) for g in generators])
    optimiser = torch.optim.Adam(ensemble.parameters(), lr=3e-3, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    x, y = (torch.stack(part) for part in zip(*(bodies(DATA, seed) for seed in SEEDS), strict=True))
    batches = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        i = torch.randint(DATA, (BATCH,), generator=batches)
        optimiser.zero_grad()
        (ensemble(x[:, i]) - y[:, i]).square().mean((1, 2)).sum().backward()
        optimiser.step()
        schedule.step()
    x, y = (torch.stack(part) for part in zip(*(bodies(TEST, seed + 10_000) for seed in SEEDS), strict=True))
    with torch.no_grad():
        left = (ensemble(x) - y).square().sum(-1).mean(1)
    return (left / y.square().sum(-1).mean(1)).sqrt().tolist()


def main() -> None:
    """Print means and write all errors."""
    torch.set_num_threads(1)
    arms = {"tensors": errors(EMLP, architecture="tensor"), "points": errors(EMLP), "mlp": errors(MLP)}
    for name, found in arms.items():
        print(f"{name:8} {statistics.mean(found):.3f} +- {statistics.stdev(found):.3f}")
    Path(sys.argv[1]).write_text(json.dumps(arms, indent=1) + "\n")


if __name__ == "__main__":
    main()
