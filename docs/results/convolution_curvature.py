"""Kronecker-factored curvature of image networks beside the exact: `python convolution_curvature.py [--json FILE]`.

Digits in quadrants, small networks of width 4, seeds 0 and 1, before and after training by MAP with unit prior variances. Of
every pathway with weights: the trace of its curvature block and the effective number of parameters at the pathway's prior,
each over the same of the exact Gauss-Newton block of these coefficients. The curvature is from 100 images, of all 1,437.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F

from rppdyn.images import ARCHITECTURES, ImageModel
from rppdyn.nn._pathways import Pathway, named_pathways
from rppdyn.priors import Categorical, curvature, negative_log_prior
from rppdyn.runs.files import write_json
from rppdyn.tasks import image_data

MODELS: dict[str, tuple[str, dict[str, float], float, float]] = {  # architecture, pathways, rate, size of outputs
    "conv": ("small_max", {"conv": 1.0}, 4e-3, 1.0),
    "conv, polyphase": ("small", {"conv": 1.0}, 4e-3, 1.0),
    "gconv": ("small_max", {"gconv": 1.0}, 2e-3, 0.1),
    "f_fc+conv": ("small_max", {"f_fc": 1.0, "conv": 1.0}, 4e-3, 1.0),
}
SEEDS = (0, 1)
EPOCHS, BATCH, IMAGES = 20, 64, 100


def main() -> None:
    """Print a table of ranges, as Markdown; write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = [row for name in MODELS for seed in SEEDS for row in measured(name, seed)]
    print("| network, pathway, layer | trace, untrained | trace, trained | effective number, trained |")
    print("| --- | ---: | ---: | ---: |")
    for of in dict.fromkeys((row["model"], row["pathway"], row["layer"]) for row in rows):
        own = [row for row in rows if (row["model"], row["pathway"], row["layer"]) == of]
        cells = [
            extent([row[key] for row in own if row["trained"] == trained])
            for key, trained in (("trace", False), ("trace", True), ("effective", True))
        ]
        print(f"| {', '.join(of)} | {' | '.join(cells)} |")
    if arguments.json:
        write_json(Path(arguments.json), rows)


def extent(values: list[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


def measured(name: str, seed: int) -> list[dict[str, Any]]:
    """Ratios to the exact curvature, layer by layer, of an untrained and of the trained network, and its training accuracy."""
    architecture, pathways, rate, output_scale = MODELS[name]
    data = image_data("digits", "digit", seed)
    generator = torch.Generator().manual_seed(seed)
    model = ImageModel(
        ARCHITECTURES[architecture](4),
        1,
        data.size,
        data.outputs,
        pathways,
        output_scale=output_scale,
        generator=generator,
    )
    x, y = data.train.x, data.train.y
    rows = [{"trained": False, **row} for row in ratios(model, x[:IMAGES], len(x))]
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x), generator=generator).split(BATCH):
            optimiser.zero_grad()
            (F.cross_entropy(model(x[index]), y[index]) + negative_log_prior(model) / len(x)).backward()
            optimiser.step()
        schedule.step()
    right = float((model(x).argmax(-1) == y).float().mean())
    rows += [{"trained": True, **row} for row in ratios(model, x[:IMAGES], len(x))]
    return [{"model": name, "seed": seed, "train_accuracy": right, **row} for row in rows]


def ratios(model: ImageModel, x: Tensor, total: int) -> list[dict[str, Any]]:
    """Ratios to the exact matrix, by pathway and without biases: of traces and of effective numbers."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    names = {id(p): name for name, p in model.named_parameters()}

    def outputs(own: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(model, own, (image[None],))[0]

    jacobians = vmap(jacrev(outputs), (None, 0), chunk_size=25)(parameters, x)
    roots = Categorical().factors(model(x).detach())
    found = curvature(model, model, x.split(50), Categorical(), total=total)
    rows = []
    for layer, name, pathway in named_pathways(model):
        if name == "bias":
            continue
        own = [names[id(c)] for c in pathway.coefficients()]
        exact = [
            spectrum(torch.einsum("sno,nop->snp", roots, jacobians[key].flatten(2)), total / len(x)) for key in own
        ]
        kronecker = [block.eigenvalues()[0] for block in found[layer, name]]
        rows.append(
            {
                "layer": layer,
                "pathway": name,
                "trace": float(sum(e.sum() for e in kronecker) / sum(e.sum() for e in exact)),
                "effective": effective(kronecker, pathway) / effective(exact, pathway),
                "effective_exact": effective(exact, pathway),
                "coefficients": pathway.num_coefficients,
            }
        )
    return rows


def spectrum(rows: Tensor, scale: float) -> Tensor:
    """Eigenvalues of the sum of outer products, those that are not zero."""
    rows = rows.flatten(0, 1).double()
    small = rows @ rows.mT if len(rows) < rows.shape[1] else rows.mT @ rows
    return torch.linalg.eigvalsh(small * scale).clamp_min(0)


def effective(spectra: list[Tensor], pathway: Pathway) -> float:
    precision = 1 / pathway.variance
    return float(sum((values / (values + precision)).sum() for values in spectra))


if __name__ == "__main__":
    main()
