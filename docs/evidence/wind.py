"""Does what is learned follow the wind? `python docs/evidence/wind.py --seeds 400 ... 409 --json FILE`; without seeds, tables.

Networks of the forces on the double pendulum's masses, from noisy values of them, under O(2) about the vertical, which the
wind breaks. Variances of all pathways are learned by joint evidence from the training data, that of the noise too (arm
`learned`; `restarts` from two narrower starts) or given, falling to its true value (`fixed`). Beside them are networks with a
given free variance of a grid, the one that validation favours. Each arm of each seed at each strength is written when it is
measured, and one that the file holds is passed over, so that a run that was stopped goes on (docs/evidence/protocol.md).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from rppdyn.equivariance._error import geometric_mean, relative_difference
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.nn._hidden import component_major
from rppdyn.priors import VarianceLearning, learn_variances, negative_log_prior, weights_of
from rppdyn.reps import T, V
from rppdyn.runs import iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio
from rppdyn.tasks import Pendulum

STRENGTHS = (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3)
GRID = (0.0, 1e-6, 1e-4, 1e-2, 1.0)  # of free variances; 0 is the strict network
NOISE = 0.1  # standard deviation of the noise of training and validation data, in units of the forces
TRAIN, VALIDATION, TEST = 100, 200, 500
STEPS, RATE = 800, 1e-2  # of Adam, of all data at each step, at a rate that falls on a cosine
BURN_IN = 50  # steps before the first update of the variances
EVERY = {"learned": 25, "restarts": 25, "fixed": 100}  # steps between updates
# steps and rate of Adam on the logarithms of the variances
INNER = {"learned": (20, 0.2), "restarts": (20, 0.2), "fixed": (10, 0.4)}
ANNEALED = 400  # steps in which the noise that data are taken to have falls from 1 to its known value
ARMS = ("learned", "restarts", "fixed", "grid")
START = 1e-4  # the free variance that learning begins with, beside an equivariant one of 1
STARTS = (1e-8, 1e-6)  # of `restarts`, which keeps the fit with the larger evidence


def fields(
    strength: float, masses: tuple[float, float], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """States along trajectories, each at a time of its own from 0 to 5 s, and the forces there."""
    pendulum = Pendulum(wind=strength, m1=masses[0], m2=masses[1])
    states = pendulum.trajectories(pendulum.initial_state(count, generator), torch.linspace(0, 5, 11).double())
    chosen = torch.randint(11, (count,), generator=generator)
    z = states[torch.arange(count), chosen]
    return z.float(), pendulum.vector_field(z)[..., 6:].float()


def network(equivariant_variance: float, free_variance: float, seed: int) -> RPPEMLP:
    """Two hidden layers of 16 scalars and 16 vectors."""
    rep = Pendulum().rep()
    hidden = component_major((16 * T(0) + 16 * T(1))(rep.G))
    generator = torch.Generator().manual_seed(seed)
    variances: dict[str, Any] = dict(equivariant_variance=equivariant_variance, free_variance=free_variance)
    return RPPEMLP(rep, (2 * V)(rep.G), rep.G, [hidden, hidden], output_scale=0.1, generator=generator, **variances)


def trained(nets: list[RPPEMLP], x: Tensor, y: Tensor, noise: Tensor, seeds: list[int], arm: str) -> Any:
    """A stack by MAP, with its learning of variances."""
    learns = arm != "grid"
    if learns:
        for net in nets:
            learn_variances(net)
    stack = Ensemble(nets)
    learning = (
        VarianceLearning(
            stack,
            x,
            y,
            noise=noise,
            learn_noise=arm != "fixed",
            data=TRAIN,
            sampled=False,
            steps=INNER[arm][0],
            learning_rate=INNER[arm][1],
        )
        if learns
        else None
    )
    optimiser = torch.optim.Adam(weights_of(stack), lr=RATE)
    streams = lambda step: [torch.Generator().manual_seed(1000 * seed + step) for seed in seeds]  # noqa: E731
    for step in range(STEPS):
        if arm == "fixed":
            noise.fill_(2 * math.log(NOISE) * min(1.0, step / ANNEALED))
        falling = 0.5 * (1 + math.cos(math.pi * step / STEPS))
        if learning is not None and step >= BURN_IN and (step - BURN_IN) % EVERY[arm] == 0:
            learning.update(optimiser, rate=falling, generators=streams(step))
        optimiser.param_groups[0]["lr"] = RATE * falling
        errors = (stack(x) - y).square().sum((1, 2)) / (2 * noise.detach().exp())
        optimiser.zero_grad()
        ((errors + stack.per_member(negative_log_prior)) / y[0].numel()).sum().backward()
        optimiser.step()
    found = [None] * len(nets) if learning is None else learning.evidence(streams(STEPS))
    return stack, found


def measured(strength: float, masses: tuple[float, float], seeds: list[int], arm: str) -> list[dict[str, Any]]:
    """Metrics of an arm for each seed; of the grid, for each of its variances."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {"train": [], "validation": [], "test": []}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for name, count in zip(parts, (TRAIN, VALIDATION, TEST), strict=True):
            z, field = fields(strength, masses, count, generator)
            noise = NOISE * torch.randn(field.shape, generator=generator)
            parts[name].append((z, field if name == "test" else field + noise))
    data = {name: tuple(torch.stack(values) for values in zip(*own, strict=True)) for name, own in parts.items()}
    x, y = data["train"]
    rows: list[dict[str, Any]] = [{} for _ in seeds]
    choices: tuple[float, ...] = {"grid": GRID, "restarts": STARTS}.get(arm, (START,))
    for variance in choices:
        noise = torch.full((len(seeds),), 0.0 if arm in ("learned", "restarts") else 2 * math.log(NOISE))
        nets = [network(1e5 if arm == "grid" else 1.0, variance, seed) for seed in seeds]
        stack, found = trained(nets, x, y, noise, seeds, arm)
        with torch.no_grad():
            validation = (stack(data["validation"][0]) - data["validation"][1]).square().mean((1, 2)).tolist()
            outputs = stack(data["test"][0])
        errors = [
            float(geometric_mean(relative_difference(a, b))) for a, b in zip(outputs, data["test"][1], strict=True)
        ]
        for row, one, own, error, log in zip(rows, found, validation, errors, noise.tolist(), strict=True):
            values = {"validation": own, "error": error}
            if one is None:
                row[str(variance)] = values
                continue
            effective = {f"{p.layer}.{p.name}": float(v) for p, v in zip(one.pathways, one.effective(), strict=True)}
            free = sum(v for name, v in effective.items() if name.endswith(".free"))
            values |= {"noise": math.exp(log / 2), "free": free, "evidence": float(one.log_evidence)}
            starts = row.get("starts", {}) | {str(variance): values}
            if values["evidence"] >= row.get("evidence", -math.inf):
                row |= values | {"effective": effective}
            if len(choices) > 1:
                row["starts"] = starts
    return rows


def table(runs: dict[str, Any], arm: str) -> None:
    """Interquartile means over seeds, as Markdown, and the rank correlation."""
    own: dict[float, list[dict[str, Any]]] = {}
    for key, row in runs.items():
        if row.get(arm) and row.get("grid"):
            own.setdefault(float(key.split(",")[1]), []).append(row)
    if not own:
        return
    print(f"\n| strength | effective free parameters | noise | error, {arm} | grid, by validation | ratio | seeds |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    centres = []
    for strength, rows in sorted(own.items()):
        best = [min(row["grid"].values(), key=lambda one: one["validation"])["error"] for row in rows]
        learned = [row[arm] for row in rows]
        errors = [one["error"] for one in learned]
        centres.append(float(iqm([one["free"] for one in learned])))
        ratio, (low, high) = paired_ratio(errors, best)
        noise = float(iqm([one["noise"] for one in learned]))
        cells = f"{centres[-1]:.2f} | {noise:.3f} | {float(iqm(errors)):.4f} | {float(iqm(best)):.4f}"
        print(f"| {strength:g} | {cells} | {ratio:.2f} [{low:.2f}, {high:.2f}] | {len(rows)} |")
    if len(own) > 2:
        print(f"\nrank correlation of the centres with the strength: {spearmanr(sorted(own), centres).statistic:.2f}")
        seeds = sorted({key.split(",")[0] for key in runs})
        each = {
            seed: [row[arm]["free"] for s in sorted(own) if (row := runs.get(f"{seed},{s:g}", {})).get(arm)]
            for seed in seeds
        }
        whole = [values for values in each.values() if len(values) == len(own)]
        print("seed by seed: " + ", ".join(f"{spearmanr(sorted(own), values).statistic:.2f}" for values in whole))


def main() -> None:
    """Measure what the file does not hold; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["learned", "grid"])
    parser.add_argument("--masses", type=float, nargs=2, default=(1.0, 1.0), help="kg")
    parser.add_argument("--block", type=int, default=2, help="how many seeds are trained as one")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    arguments = parser.parse_args()
    runs = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for arm in arguments.arms:
        for start in range(0, len(arguments.seeds), arguments.block):
            for strength in arguments.strengths:
                seeds = [
                    seed
                    for seed in arguments.seeds[start : start + arguments.block]
                    if arm not in runs.get(f"{seed},{strength:g}", {})
                ]
                if seeds:
                    found = zip(seeds, measured(strength, (*arguments.masses,), seeds, arm), strict=True)
                    for seed, row in found:
                        runs.setdefault(f"{seed},{strength:g}", {})[arm] = row
                    write_json(arguments.json, runs)
    for arm in ("learned", "restarts", "fixed"):
        table(runs, arm)


if __name__ == "__main__":
    main()
