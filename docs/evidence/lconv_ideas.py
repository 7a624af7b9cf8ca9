"""Ideas for L-conv, on validation digits: `python docs/evidence/lconv_ideas.py --json FILE`; prints means over seeds.

Generators that begin near zero, that have a rate of their own, or batch normalisation before the head, which the fully
connected layer is given too. Data, networks and rates are those of `operators.py`, seeds 100 and 101.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from operators import CHOSEN, EPOCHS, TRAINED, Digits, model_of, worth
from torch import nn
from torch.nn import functional as F

from rppdyn.runs.files import write_json

IDEAS = {
    "l_conv": ("none", "near identity", "slow generators", "fast generators", "batch norm"),
    "fc": ("none", "batch norm"),
}
RATES = {"slow generators": 0.2, "fast generators": 5.0}  # of U and V, times that of the others


def run(task: str, arm: str, idea: str, seed: int) -> dict[str, Any]:
    """Train one network; its errors on validation and training digits."""
    data, model, rate = Digits(task, seed), model_of("lconv", arm, task, seed), CHOSEN[f"lconv/{task}/{arm}"]
    if idea == "near identity":
        with torch.no_grad():
            model.blocks[0].operators.operators.U.mul_(0.1)
    if idea == "batch norm":
        norm = nn.BatchNorm2d(model.head.in_channels)
        model.add_module("norm", norm)
        model.head.register_forward_pre_hook(lambda _, inputs: (norm(inputs[0]),))
    named = list(model.named_parameters())
    generators = [p for name, p in named if name.endswith((".U", ".V"))]
    others = [p for name, p in named if not name.endswith((".U", ".V"))]
    groups = [{"params": others, "factor": 1.0}]
    groups += [{"params": generators, "factor": RATES.get(idea, 1.0)}] if generators else []
    optimiser = torch.optim.Adam(groups, lr=rate)
    generator, step, steps = torch.Generator().manual_seed(seed), 0, EPOCHS["lconv"] * TRAINED // 100
    model.train()
    for _ in range(EPOCHS["lconv"]):
        for x, y in data.batches(False, 100, generator):
            for group in optimiser.param_groups:
                group["lr"] = group["factor"] * rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
            step += 1
    model.eval()
    errors = {name: worth(model, task, *data.part(index)) for name, index in (("validation", 1), ("train", 0))}
    return {"task": task, "arm": arm, "idea": idea, "seed": seed, "rate": rate, **errors}


def main() -> None:
    """Run what is not there yet, and print means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    cells = [(task, arm, idea) for task in ("rotated", "scrambled") for arm in IDEAS for idea in IDEAS[arm]]
    for seed in (100, 101):
        for task, arm, idea in cells:
            if (task, arm, idea, seed) not in {(r["task"], r["arm"], r["idea"], r["seed"]) for r in rows}:
                rows.append(run(task, arm, idea, seed))
                write_json(arguments.json, rows)
    for task, arm, idea in cells:
        own = [r["validation"] for r in rows if (r["task"], r["arm"], r["idea"]) == (task, arm, idea)]
        print(f"| {task} | {arm}, {idea} | {mean(own):.3f} ({' '.join(f'{v:.3f}' for v in own)}) |")


if __name__ == "__main__":
    main()
