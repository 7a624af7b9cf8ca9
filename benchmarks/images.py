r"""Time image pathways beside a 3 x 3 convolution.

    OMP_NUM_THREADS=1 python benchmarks/images.py --json docs/results/images_cost.json     # on the CPU
    python benchmarks/images.py --device cuda

A step is forward and backward, by inputs and weights, of one layer from given inputs and gradients: 20 channels, 32 x 32
pixels, batch 64 on the CPU; 64 channels and batch 512 on a GPU. The peer is torch's own convolution, zero padding within the
operation. Layers take turns, one step each per round, in one process; ratios are those of medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from measuring import Step, Timing, conditions, interleave, write_times
from torch import nn

from rppdyn.images import RelaxedImageLayer

SIZE = (32, 32)
CASES = {"cpu": (20, 64), "cuda": (64, 512)}
LAYERS: dict[str, dict[str, float]] = {
    "conv": {"conv": 1.0},
    "F-FC": {"f_fc": 1.0},
    "F-FC + conv": {"f_fc": 1.0, "conv": 1.0},
    "S-FC": {"s_fc": 1.0},
    "gconv": {"gconv": 1.0},
}
TARGETS = {("cpu", "F-FC"): 0.5, ("cuda", "F-FC + conv"): 2.0}
PEER = "torch's convolution"


def training_step(layer: nn.Module, channels: int, batch: int, device: str) -> Step:
    """Forward and backward; on a GPU, until it is done."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(batch, channels, *SIZE, generator=generator).to(device) for _ in range(2))
    x.requires_grad_()

    def step() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(g)
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def measure(device: str, rounds: int) -> list[Timing]:
    """Time all layers and print their ratios."""
    channels, batch = CASES[device]
    layers: dict[str, nn.Module] = {PEER: nn.Conv2d(channels, channels, 3, padding=1, bias=False)}
    for name, pathways in LAYERS.items():
        orientations = (4, 4) if "gconv" in pathways else (1, 1)
        layers[name] = RelaxedImageLayer(
            channels, channels, SIZE, pathways, bias_variance=0, orientations=orientations,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
    timings = {name: Timing(name, PEER, TARGETS.get((device, name))) for name in layers}
    steps = {name: training_step(layer.to(device), channels, batch, device) for name, layer in layers.items()}
    interleave(steps, timings, rounds)
    print(f"\n{channels} channels, {SIZE[0]} x {SIZE[1]} pixels, batch {batch}: forward and backward")
    print(f"  {'':22} {'ms':>8} {'ratio':>7}   target")
    peer = statistics.median(timings[PEER].wall)
    for t in timings.values():
        median = statistics.median(t.wall)
        print(f"  {t.name:22} {1e3 * median:8.2f} {median / peer:7.2f}   {'' if t.target is None else t.target}")
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="steps of each layer")
    parser.add_argument("--device", choices=CASES, default="cpu")
    parser.add_argument("--json", type=Path, help="where to write all times")
    arguments = parser.parse_args()
    where = conditions()
    if arguments.device == "cuda":
        where["device"] = torch.cuda.get_device_name()
    print("  ".join(f"{k} {v}" for k, v in where.items()))
    results = {arguments.device: measure(arguments.device, arguments.rounds)}
    if arguments.json:
        write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
