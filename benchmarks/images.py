r"""Time image pathways beside a 3 x 3 convolution, and an update of learned variances beside an epoch of training.

    OMP_NUM_THREADS=1 python benchmarks/images.py --json docs/results/images_cost.json     # on the CPU
    python benchmarks/images.py --device cuda

A step is forward and backward, by inputs and weights, of one layer from given inputs and gradients: 20 channels, 32 x 32
pixels, batch 64 on the CPU; 64 channels and batch 512 on a GPU. The peer is torch's own convolution, zero padding within the
operation. Layers take turns, one step each per round, in one process; a ratio is the median over rounds, between quartiles.
An update estimates the curvature of all pathways and takes twenty steps along the gradient of the marginal likelihood, as
`rppdyn fit-image task=digit objective=marginal_likelihood` does, from its default of 400 images and from 1,000; of several
models unless the run is a quick one.

Operators, whose bases want an odd size, are timed on 15 x 15 pixels beside the same peer: 16 channels, batch 64, on the CPU.
"""

from __future__ import annotations

from functools import partial

import torch
from measuring import Step, Timing, begin, command_line, interleave, report, write_times
from torch import nn

from rppdyn.images import RelaxedImageLayer
from rppdyn.images.registry import OperatorSettings
from rppdyn.jobs import fit_image
from rppdyn.jobs.config import compose

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
OPERATORS = {
    "L-conv, 9 of rank 8": OperatorSettings(count=9, rank=8),
    "5 powers of a rotation": OperatorSettings(form="powers"),
    "9 powers of two shifts": OperatorSettings(form="powers", bases=["translation_x", "translation_y"], reach=1),
}
PEER = "torch's convolution"
MODELS = ("f_fc+conv", "fc+conv", "f_fc+conv+gconv")


def training_step(layer: nn.Module, channels: int, batch: int, device: str, size: tuple[int, int] = SIZE) -> Step:
    """Forward and backward; on a GPU, until it is done."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(batch, channels, *size, generator=generator).to(device) for _ in range(2))
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
    title = f"{channels} channels, {SIZE[0]} x {SIZE[1]} pixels, batch {batch}: forward and backward"
    report(title, list(timings.values()))
    return list(timings.values())


def measure_operators(rounds: int) -> list[Timing]:
    """Time operator pathways and print their ratios."""
    size, channels, batch = (15, 15), 16, 64
    layers: dict[str, nn.Module] = {PEER: nn.Conv2d(channels, channels, 3, padding=1, bias=False)}
    for name, settings in OPERATORS.items():
        layers[name] = RelaxedImageLayer(
            channels, channels, size, {"operators": 1.0}, bias_variance=0, settings={"operators": settings}
        )
    timings = {name: Timing(name, PEER) for name in layers}
    steps = {name: training_step(layer, channels, batch, "cpu", size) for name, layer in layers.items()}
    interleave(steps, timings, rounds)
    report(f"operators: {channels} channels, {size[0]} x {size[1]} pixels, batch {batch}", list(timings.values()))
    return list(timings.values())


def measure_learning(model: str, device: str, rounds: int) -> list[Timing]:
    """Time epochs and updates of a model with learned variances, which train it on the way."""
    words = ["task=digit", f"model={model}", "objective=marginal_likelihood", f"device={device}"]
    usual = fit_image.ImageFit(compose.composed("fit_image", words))
    more = fit_image.ImageFit(compose.composed("fit_image", [*words, "marginal_likelihood.data=1000"]))

    def epoch() -> None:
        for step in range(usual.steps_per_epoch):  # of the first epoch, before which no variance is learned
            usual.step(step)

    steps: dict[str, Step] = {"epoch": epoch}
    for fit in (usual, more):
        name = f"update, {fit.config.marginal_likelihood.data} images"
        steps[name] = partial(fit.variances.update, fit.optimiser)
    timings = {name: Timing(name, "epoch", None if name == "epoch" else 1.0) for name in steps}
    interleave(steps, timings, rounds)
    report(f"digits in quadrants, {usual.inputs.shape[1]} to train on: {model}", list(timings.values()))
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=20, quick=8)
    parser.add_argument("--device", choices=CASES, default="cpu")
    parser.add_argument("--operators", action="store_true", help="time operator pathways alone")
    arguments, where = begin(parser)
    if arguments.operators:
        write_times(arguments.json, where, {"operators": measure_operators(arguments.rounds)})
        return
    if arguments.device == "cuda":
        where["device"] = torch.cuda.get_device_name()
    found = {arguments.device: measure(arguments.device, arguments.rounds)}
    if arguments.device == "cpu":
        found["operators"] = measure_operators(arguments.rounds)
    for model in MODELS[: 1 if arguments.quick else None]:
        found[f"learning, {model}"] = measure_learning(model, arguments.device, max(3, arguments.rounds // 4))
    write_times(arguments.json, where, found)


if __name__ == "__main__":
    main()
