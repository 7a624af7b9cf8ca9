"""Kronecker curvature of filters and operators beside the exact: `python docs/results/pathway_curvature.py --json FILE`.

As `convolution_curvature.py`, of digits of 8 x 8 (operators: 9 x 9) pixels and networks of width 4 with batch normalisation,
before and after 15 epochs: the trace and the effective number of every pathway, over those of the exact Gauss-Newton block.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from convolution_curvature import extent, ratios
from torch.nn import functional as F

from rppdyn.images import ARCHITECTURES, ImageModel
from rppdyn.images.registry import FilterSettings, OperatorSettings
from rppdyn.priors import negative_log_prior
from rppdyn.runs import provenance
from rppdyn.runs.files import write_json
from rppdyn.tasks import image_data

FILTERS, OPERATORS = FilterSettings(), OperatorSettings(count=5, rank=4)
MODELS: dict[str, dict[str, float]] = {
    name: dict.fromkeys(name.split("+"), 1.0)
    for name in ("conv", "anchored", "p4", "se2", "se2+se2_relaxed", "scaling", "operators")
}
EPOCHS, BATCH, IMAGES, SEED = 15, 64, 60, 0


def measured(name: str) -> list[dict[str, Any]]:
    """Ratios layer by layer, of an untrained and of the trained network."""
    arrangement, canvas = ("rotated_odd", 9) if name == "operators" else ("upright", None)
    data = image_data("digits", arrangement, SEED, canvas=canvas)
    generator = torch.Generator().manual_seed(SEED)
    settings: dict[str, Any] = {
        own: OPERATORS if own == "operators" else FILTERS for own in MODELS[name] if own != "conv"
    }
    layers = ARCHITECTURES["power_blocks" if name == "operators" else "small"](4)
    model = ImageModel(
        layers[:4], 1, data.size, data.outputs, MODELS[name], batch_norm=True, settings=settings, generator=generator
    )
    x, y = data.train.x, data.train.y
    rows = [{"trained": False, **row} for row in ratios(model.eval(), x[:IMAGES], len(x))]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x), generator=generator).split(BATCH):
            optimiser.zero_grad()
            loss = F.cross_entropy(model.train()(x[index]), y[index]) + negative_log_prior(model) / len(x)
            loss.backward()
            optimiser.step()
    right = float((model.eval()(x).argmax(-1) == y).float().mean())
    rows += [{"trained": True, **row} for row in ratios(model, x[:IMAGES], len(x))]
    return [{"model": name, "train_accuracy": right, **row} for row in rows]


def main() -> None:
    """Print a table, as Markdown; write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in MODELS:
        rows += measured(name)
        for layer in ("hidden", "head"):
            own = [row for row in rows if row["model"] == name and (row["layer"] == "head") == (layer == "head")]
            cells = [
                extent([row[key] for row in own if row["trained"] == trained])
                for key, trained in (("trace", False), ("trace", True), ("effective", True))
            ]
            print(f"| {name}, {layer} | {' | '.join(cells)} | {own[0]['train_accuracy']:.2f} |", flush=True)
        if arguments.json:
            write_json(arguments.json, {"provenance": provenance(), "rows": rows})


if __name__ == "__main__":
    main()
