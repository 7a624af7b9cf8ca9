"""Measure which subgroup survives: `python docs/evidence/chains.py --seeds 500 ... 509 --json FILE`; without seeds, a table.

Small networks with an equivariant pathway for each group of a chain, whose variances and noise are learned by joint evidence
from the training data; beside them networks that are told the group that survives. Each seed of each cell is written when it
is measured, and one that the file holds is passed over, so that a run that was stopped goes on (docs/evidence/protocol.md).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rppdyn.equivariance._error import geometric_mean, relative_difference
from rppdyn.groups import D, Group, O, O2eR3
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.nn._hidden import component_major
from rppdyn.priors import VarianceLearning, learn_variances, negative_log_prior, weights_of
from rppdyn.reps import RepType, T, V
from rppdyn.runs import iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio
from rppdyn.tasks import Pendulum, regression_task

NOISE = 0.1  # standard deviation of the noise of training data, in units of the targets' root mean square
TEST = 500
STEPS, RATE = 1000, 1e-2  # of Adam, of all data at each step, at a rate that falls on a cosine
BURN_IN, EVERY = 50, 50  # steps before the first update of the variances, and between updates
ARMS = ("chain", "told")
START = (1.0, 1e-2, 1e-4)  # the variances that learning begins with, from the largest group's pathway to the free one

AXIAL = Group(
    "O(2) x Z2 about z",
    lie_algebra=O2eR3().lie_algebra,
    discrete_generators=torch.stack([torch.diag(torch.tensor(v)) for v in ([-1.0, 1.0, 1.0], [1.0, 1.0, -1.0])]),
)
MIRROR = Group("Z2", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, 1.0]]]))

Sample = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Cell:
    """Data, their types, and a chain of which the group at place ``survivor`` survives, the free pathway's if it is the last.

    ``sample`` is drawn from by a seed's generator, after whatever of the data is the seed's own.
    """

    rep_in: RepType
    rep_out: RepType
    groups: tuple[Group, ...]
    survivor: int
    hidden: RepType | int
    layers: int
    train: int
    sample: Callable[[torch.Generator], Sample]


def inertia(name: str) -> Callable[[torch.Generator], Sample]:
    return lambda _: regression_task(name).sample


def pendulum(wind: float) -> Callable[[torch.Generator], Sample]:
    """States along trajectories, each at a time of its own from 0 to 5 s, and the forces there."""
    own = Pendulum(wind=wind)

    def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        states = own.trajectories(own.initial_state(count, generator), torch.linspace(0, 5, 11).double())
        z = states[torch.arange(count), torch.randint(11, (count,), generator=generator)]
        return z, own.vector_field(z)[..., 6:]

    return lambda _: sample


PLANTED = (2 * V, V, (D(4), MIRROR), 16)


def planted(place: int) -> Callable[[torch.Generator], Sample]:
    """A network of the student's layers, whose weights are drawn for the pathway at a place of the chain alone."""

    def draw(seeded: torch.Generator) -> Sample:
        rep_in, rep_out, groups, hidden = PLANTED
        variances = [float(place == i) for i in range(len(groups) + 1)]
        teacher = RPPEMLP(
            rep_in, rep_out, groups=groups, variances=variances, hidden=hidden, num_layers=1, generator=seeded
        )

        @torch.no_grad()
        def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, teacher.rep_in.dim, generator=generator)
            return x, teacher(x)

        return sample

    return draw


INERTIA = (5 * T(0) + 5 * T(1), T(2), (O(3), AXIAL))
FORCES = (4 * V, 2 * V, (O(3), O2eR3()))
CELLS = {
    "modified inertia": Cell(*INERTIA, 1, 16 * T(0) + 8 * T(1) + 4 * T(2), 2, 40, inertia("modified_inertia_code")),
    "pendulum": Cell(*FORCES, 1, 16 * T(0) + 16 * T(1), 1, 40, pendulum(0.0)),
    "pendulum in wind": Cell(*FORCES, 2, 16 * T(0) + 16 * T(1), 1, 40, pendulum(0.3)),
    "planted, D4": Cell(*PLANTED[:3], 0, PLANTED[3], 1, 100, planted(0)),
    "planted, Z2": Cell(*PLANTED[:3], 1, PLANTED[3], 1, 100, planted(1)),
}


def variances(cell: Cell, arm: str) -> list[float]:
    """At the start; who is told has the pathway of the surviving group alone."""
    if arm == "chain":
        return [*START]
    return [float(place == cell.survivor) for place in range(len(START))]


def network(cell: Cell, arm: str, seed: int) -> RPPEMLP:
    hidden = cell.hidden if isinstance(cell.hidden, int) else component_major(cell.hidden(cell.groups[0]))
    return RPPEMLP(
        cell.rep_in, cell.rep_out, groups=cell.groups, variances=variances(cell, arm), hidden=hidden,
        num_layers=cell.layers,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def trained(nets: list[RPPEMLP], x: Tensor, y: Tensor, noise: Tensor) -> tuple[Ensemble, list[Any]]:
    """A stack by MAP, with its evidence."""
    for net in nets:
        learn_variances(net)
    stack = Ensemble(nets)
    learning = VarianceLearning(stack, x, y, noise=noise, data=x.shape[1], sampled=False, steps=20, learning_rate=0.2)
    optimiser = torch.optim.Adam(weights_of(stack), lr=RATE)
    for step in range(STEPS):
        falling = 0.5 * (1 + math.cos(math.pi * step / STEPS))
        if step >= BURN_IN and (step - BURN_IN) % EVERY == 0:
            learning.update(optimiser, rate=falling)
        optimiser.param_groups[0]["lr"] = RATE * falling
        errors = (stack(x) - y).square().sum((1, 2)) / (2 * noise.detach().exp())
        optimiser.zero_grad()
        ((errors + stack.per_member(negative_log_prior)) / y[0].numel()).sum().backward()
        optimiser.step()
    return stack, learning.evidence()


def measured(cell: Cell, seeds: list[int]) -> list[dict[str, Any]]:
    """All arms, for each seed."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {"train": [], "test": []}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        sample = cell.sample(generator)
        x, y = sample(cell.train, generator)
        size = y.square().mean().sqrt()
        parts["train"].append((x.float(), (y / size + NOISE * torch.randn(y.shape, generator=generator)).float()))
        x, y = sample(TEST, generator)
        parts["test"].append((x.float(), (y / size).float()))
    data = {name: tuple(torch.stack(values) for values in zip(*own, strict=True)) for name, own in parts.items()}
    rows: list[dict[str, Any]] = [{} for _ in seeds]
    for arm in ARMS:
        noise = torch.zeros(len(seeds))
        x, y = data["train"]
        stack, found = trained([network(cell, arm, seed) for seed in seeds], x, y, noise)
        with torch.no_grad():
            outputs = stack(data["test"][0])
        for row, one, own, target, log in zip(rows, found, outputs, data["test"][1], noise.tolist(), strict=True):
            error = float(geometric_mean(relative_difference(own, target)))
            row[arm] = {"error": error, "noise": math.exp(log / 2)}
            if one is not None:
                effective = {
                    f"{p.layer}.{p.name}": float(v) for p, v in zip(one.pathways, one.effective(), strict=True)
                }
                row[arm] |= {"log_evidence": float(-one.negative_log(0.0)), "effective": effective}
    return rows


def numbers(row: dict[str, Any]) -> list[float]:
    """Effective numbers of linear layers' pathways, summed over layers: the largest group's first, the free one's last."""
    found = {"equivariant": 0.0, "equivariant_2": 0.0, "free": 0.0}
    for name, value in row["chain"]["effective"].items():
        layer, _, pathway = name.rpartition(".")
        if layer == "head" or layer.endswith(".linear"):
            found[pathway] += value
    return [*found.values()]


def table(runs: dict[str, Any]) -> None:
    """Interquartile means over seeds, as Markdown."""
    head = ["cell", "survives", "G1", "G2", "free", "above all smaller", "above all", "chain", "told", "chain / told"]
    print("|", " | ".join(head), "|")
    print("| --- | --- |" + " ---: |" * (len(head) - 2))
    for name, cell in CELLS.items():
        rows = [row for key, row in runs.items() if key.partition(",")[2] == name]
        if not rows:
            continue
        each, own = [numbers(row) for row in rows], cell.survivor
        smaller = sum(all(one[own] > value for value in one[own + 1 :]) for one in each)
        every = sum(one[own] == max(one) for one in each)
        centres = [f"{float(iqm([one[i] for one in each])):.1f}" for i in range(len(START))]
        chain, told = ([row[arm]["error"] for row in rows] for arm in ARMS)
        ratio, (low, high) = paired_ratio(chain, told)
        cells = [
            name, str(cell.groups[own]) if own < len(cell.groups) else "none", *centres,
            f"{smaller} of {len(rows)}" if own < len(cell.groups) else "", f"{every} of {len(rows)}",
            f"{float(iqm(chain)):.4f}", f"{float(iqm(told)):.4f}", f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
        ]  # fmt: skip
        print("|", " | ".join(cells), "|")


def main() -> None:
    """Measure what the file does not hold; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--block", type=int, default=5, help="how many seeds are trained as one")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    arguments = parser.parse_args()
    runs = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for name in arguments.cells:
        for start in range(0, len(arguments.seeds), arguments.block):
            seeds = [seed for seed in arguments.seeds[start : start + arguments.block] if f"{seed},{name}" not in runs]
            if seeds:
                found = measured(CELLS[name], seeds)
                runs |= {f"{seed},{name}": row for seed, row in zip(seeds, found, strict=True)}
                write_json(arguments.json, runs)
    table(runs)


if __name__ == "__main__":
    main()
