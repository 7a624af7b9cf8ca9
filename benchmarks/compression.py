r"""Time a training step in a subspace beside one of the whole network, projectors beside a dense matrix, and the coder.

    OMP_NUM_THREADS=1 python benchmarks/compression.py

A step is forward, backward and Adam on a batch of 500 inertia tensors, of an MLP with two hidden layers of 64. Projectors map
100 coefficients to its parameters, forward and backward. The coder writes and reads 1,000 symbols of 5 levels; its peer is
zlib at its highest level, on one byte for each, whose code is longer.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from measuring import Step, Timing, begin, command_line, interleave, report, write_times
from torch import nn

from rppdyn.compression import KroneckerProjector, Subspace, decode_symbols, encode_symbols
from rppdyn.nn import MLP
from rppdyn.tasks import regression_task

DIMENSION = 100


def training_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Forward, backward and Adam."""
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], foreach=True)

    def step() -> None:
        optimiser.zero_grad()
        (model(x) - y).square().mean().backward()
        optimiser.step()

    return step


def projection(matrix: nn.Module | torch.Tensor) -> Step:
    """``P w`` and its gradient."""
    w = torch.randn(DIMENSION, requires_grad=True)
    product = matrix if isinstance(matrix, nn.Module) else matrix.__matmul__

    def step() -> None:
        w.grad = None
        product(w).sum().backward()

    return step


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    arguments, where = begin(command_line(__doc__, rounds=200, quick=40))
    task = regression_task("inertia")
    x, y = (values.float() for values in task.sample(500, torch.Generator().manual_seed(0)))
    net = MLP(task.rep_in, task.rep_out, task.group, hidden=64, num_layers=2)
    subspace, quantised = Subspace(net, DIMENSION), Subspace(net, DIMENSION)
    with torch.no_grad():
        quantised.weight.normal_()
    quantised.quantise(5)
    project = KroneckerProjector(DIMENSION, sum(p.numel() for p in net.parameters()))
    symbols = np.random.default_rng(0).choice(5, size=1000, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    counts, text = np.bincount(symbols).tolist(), symbols.astype(np.uint8).tobytes()
    bits = encode_symbols(symbols.tolist(), counts)
    packed = zlib.compress(text, 9)
    tables: dict[str, dict[str, Step]] = {
        "a training step": {
            "whole network": training_step(net, x, y),
            "subspace": training_step(subspace, x, y),
            "subspace, quantised": training_step(quantised, x, y),
        },
        f"{DIMENSION} coefficients to {project.D} parameters": {
            "dense": projection(project.dense()),
            "kronecker": projection(project),
        },
        f"1,000 symbols of 5 levels: {len(bits)} bits, zlib {8 * len(packed)}": {
            "zlib": lambda: zlib.decompress(zlib.compress(text, 9)),
            "arithmetic code": lambda: decode_symbols(encode_symbols(symbols.tolist(), counts), counts, 1000),
        },
    }
    found = {}
    for title, steps in tables.items():
        timings = {name: Timing(name, next(iter(steps))) for name in steps}
        interleave(steps, timings, arguments.rounds)
        report(title, list(timings.values()))
        found[title] = list(timings.values())
    write_times(arguments.json, where, found)


if __name__ == "__main__":
    main()
