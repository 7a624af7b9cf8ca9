"""Operators on digits: `python docs/evidence/operators.py PART --seeds 1100 1101 1102 --json FILE`; without seeds, the table.

PART is `lconv` (one layer of L-conv beside a convolution, untrained operators and a fully connected layer, on rotated and on
scrambled digits) or `powers` (PowerBlocks of several bases: the angle of a digit, upright digits to turned ones, and turned
digits). With `--choose` it trains at every rate, to choose by validation errors. Runs that the file holds are passed over. A
section of `protocol.md` says what is claimed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images import ImageModel
from rppdyn.images._models import one_layer, power_blocks
from rppdyn.images._operators import affine_base
from rppdyn.images.registry import OperatorSettings
from rppdyn.runs.files import write_json
from rppdyn.tasks._images import resample_centred

SIDE, TRAINED, VALIDATED = 9, 1000, 437  # of 1,797 digits; 360 are left to test
RATES = (3e-3, 1e-2)
EPOCHS = {"lconv": 40, "powers": 60}
Row = dict[str, Any]

LCONV: dict[str, tuple[dict[str, float], OperatorSettings | None, int]] = {
    "l_conv": ({"operators": 1.0}, OperatorSettings(count=9, rank=16), 32),
    "random": ({"operators": 1.0}, OperatorSettings(count=9, rank=16, trained=False), 32),
    "conv": ({"conv": 1.0}, None, 32),
    "fc": ({"fc": 1.0}, None, 6),  # as wide as has the parameters of l_conv
}
"""Pathways, operators, and channels of one hidden layer."""

BASES: dict[str, OperatorSettings] = {
    "shift": OperatorSettings(form="powers", bases=["translation_y"]),
    "scaling": OperatorSettings(form="powers", bases=["scaling"]),
    "rotation": OperatorSettings(form="powers", bases=["rotation"]),
    "two shifts": OperatorSettings(form="powers", bases=["translation_y", "translation_x"], reach=1),
}
TASKS = {"lconv": ("rotated", "scrambled"), "powers": ("angle", "upright_to_rotated", "rotated")}
CHOSEN: dict[str, float] = {
    "lconv/rotated/l_conv": 3e-3,
    "lconv/rotated/random": 1e-2,
    "lconv/rotated/conv": 3e-3,
    "lconv/rotated/fc": 1e-2,
    "lconv/scrambled/l_conv": 3e-3,
    "lconv/scrambled/random": 3e-3,
    "lconv/scrambled/conv": 1e-2,
    "lconv/scrambled/fc": 3e-3,
    **{f"powers/{task}/{arm}": 1e-2 for task in TASKS["powers"] for arm in BASES},
}
"""Rates by part, task and arm, chosen on validation digits of seed 100."""


def angles(count: int, generator: torch.Generator) -> Tensor:
    """Degrees, uniform over a whole turn about 0."""
    return 360 * torch.rand(count, generator=generator) - 180


class Digits:
    """Digits on an odd canvas in three parts, standardised; `scrambled` puts their pixels into another order."""

    def __init__(self, task: str, seed: int):
        raw = load_digits()
        self.task, generator = task, torch.Generator().manual_seed(seed)
        order = torch.randperm(len(raw.images), generator=generator)
        x, y = torch.tensor(raw.images, dtype=torch.float32)[:, None][order] / 16, torch.tensor(raw.target)[order]
        self.pixels = torch.randperm(SIDE**2, generator=generator) if task == "scrambled" else torch.arange(SIDE**2)
        turned = angles(len(x), generator)
        cuts = [TRAINED, VALIDATED, len(x) - TRAINED - VALIDATED]
        self.raw, self.labels = x.split(cuts), y.split(cuts)
        self.mean, self.std = 0.0, 1.0
        first = self.placed(self.raw[0], turned[:TRAINED])
        self.mean, self.std = float(first.mean()), float(first.std())
        self.turned = turned.split(cuts)

    def placed(self, x: Tensor, degrees: Tensor | None) -> Tensor:
        """On the canvas, turned and standardised."""
        x = resample_centred(x, SIDE, degrees).flatten(2)[..., self.pixels].unflatten(2, (SIDE, SIDE))
        return (x - self.mean) / self.std

    def part(self, index: int) -> tuple[Tensor, Tensor]:
        """Images and targets to train (0), choose (1) or test (2) by: turned, but those to train upright_to_rotated."""
        upright = self.task == "upright_to_rotated" and index == 0
        degrees = None if upright else self.turned[index]
        y = torch.deg2rad(self.turned[index])[:, None] if self.task == "angle" else self.labels[index]
        return self.placed(self.raw[index], degrees), y

    def batches(self, fresh: bool, size: int, generator: torch.Generator) -> Iterable[tuple[Tensor, Tensor]]:
        """An epoch; `fresh` turns every digit anew."""
        if fresh and self.task != "upright_to_rotated":
            self.turned = (angles(TRAINED, generator), *self.turned[1:])
        x, y = self.part(0)
        for index in torch.randperm(TRAINED, generator=generator).split(size):
            yield x[index], y[index]


def model_of(part: str, arm: str, task: str, seed: int) -> ImageModel:
    """A model as configured for an arm."""
    generator = torch.Generator().manual_seed(seed)
    if part == "lconv":
        pathways, settings, width = LCONV[arm]
        layers = one_layer(width)
        if settings is not None and not settings.trained:
            settings = OperatorSettings(**vars(settings) | {"drawn": seed})
    else:
        pathways, settings, layers = {"operators": 1.0}, BASES[arm], power_blocks(8, blocks=2, layers=2)
    own = {} if settings is None else {"operators": settings}
    outputs = 1 if task == "angle" else 10
    return ImageModel(layers, 1, (SIDE, SIDE), outputs, pathways, settings=own, generator=generator)


@torch.no_grad()
def worth(model: nn.Module, task: str, x: Tensor, y: Tensor) -> float:
    """Share of wrong classes; of angles, the mean square in rad^2."""
    out = model(x)
    return float((out - y).square().mean() if task == "angle" else (out.argmax(1) != y).double().mean())


@torch.no_grad()
def turn_error(model: nn.Module, data: Digits) -> float:
    """Mean relative difference of outputs of 100 test digits and of the same by 10 degrees further (|a - b| / (|a| + |b|))."""
    raw, degrees = data.raw[2][:100], data.turned[2][:100]
    a, b = model(data.placed(raw, degrees)), model(data.placed(raw, degrees + 10))
    return float(((a - b).norm(dim=1) / (a.norm(dim=1) + b.norm(dim=1))).mean())


def trained(part: str, task: str, arm: str, seed: int, rate: float) -> tuple[ImageModel, Digits]:
    """A model after its training, and its data."""
    data, model = Digits(task, seed), model_of(part, arm, task, seed)
    if (
        part == "powers"
    ):  # as published: means over pixels of rectified maps have much in common, and the head learns badly
        norm = nn.BatchNorm2d(model.head.in_channels)
        model.add_module("norm", norm)
        model.head.register_forward_pre_hook(lambda _, inputs: (norm(inputs[0]),))
    model.train()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    epochs, step = EPOCHS[part], 0
    for _ in range(epochs):
        for x, y in data.batches(part == "powers", 100, generator):
            optimiser.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / (epochs * TRAINED / 100)))
            optimiser.zero_grad()
            out = model(x)
            loss = (out - y).square().mean() if task == "angle" else F.cross_entropy(out, y)
            loss.backward()
            optimiser.step()
            step += 1
    return model.eval(), data


def run(part: str, task: str, arm: str, seed: int, rate: float) -> Row:
    """Train one model and measure it."""
    begin = time.process_time()
    model, data = trained(part, task, arm, seed, rate)
    row: Row = {"part": part, "task": task, "arm": arm, "seed": seed, "rate": rate}
    for name, index in ("train", 0), ("validation", 1), ("test", 2):
        row[name] = worth(model, task, *data.part(index))
    if task == "upright_to_rotated":
        row["upright"] = worth(model, task, data.placed(data.raw[2], None), data.labels[2])
    if task in ("rotated", "upright_to_rotated"):
        row["turn_error"] = turn_error(model, data)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    return row | {"seconds": round(time.process_time() - begin, 1)}


def draw(path: Path) -> None:
    """Powers of three bases on a digit of 15 x 15 pixels, and generators that L-conv has learned of rotated digits."""
    digit = resample_centred(torch.tensor(load_digits().images[3], dtype=torch.float32)[None, None] / 16, 15)[
        0, 0
    ].double()
    figure = Figure(figsize=(8.0, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, 6)
    for row, name in zip(axes, ("rotation", "scaling", "translation_y"), strict=False):
        base = affine_base((15, 15), name, 2.0 if name == "rotation" else 1.0)
        row[0].imshow(base, cmap="RdBu", vmin=-1, vmax=1)
        row[0].set_title(f"{name}: A", fontsize=8)
        for axis, power in zip(row[1:], (-4, -2, 0, 2, 4), strict=True):
            axis.imshow(
                (torch.linalg.matrix_power(base, power) @ digit.flatten()).view(15, 15), cmap="gray_r", vmin=0, vmax=1
            )
            axis.set_title(f"A^{power} x", fontsize=8)
    model, _ = trained("lconv", "rotated", "l_conv", 100, CHOSEN["lconv/rotated/l_conv"])
    learned = model.blocks[0].operators.operators.generators.detach()
    for index, (axis, L) in enumerate(zip(axes[3], learned, strict=False)):
        axis.imshow(L, cmap="RdBu", vmin=-float(L.abs().max()), vmax=float(L.abs().max()))
        axis.set_title(f"L-conv: L_{index + 1}", fontsize=8)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(path, dpi=90)


def table(rows: list[Row]) -> None:
    """Means over seeds, and each seed."""
    for part, tasks in TASKS.items():
        for task in tasks:
            for arm in LCONV if part == "lconv" else BASES:
                own = [
                    row
                    for row in rows
                    if (row["part"], row["task"], row["arm"]) == (part, task, arm) and row["seed"] != 100
                ]
                if own:
                    each = " ".join(f"{row['test']:.3f}" for row in own)
                    mean = sum(row["test"] for row in own) / len(own)
                    more = [f"{key} {sum(row[key] for row in own) / len(own):.3f}" for key in
                            ("train", "upright", "turn_error") if key in own[0]]  # fmt: skip
                    print(
                        f"{part:7} {task:19} {arm:11} test {mean:.3f} ({each})  {'  '.join(more)}  {own[0]['parameters']}"
                    )


def main() -> None:
    """Parse arguments, run what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else []
    known = {(row["part"], row["task"], row["arm"], row["seed"], row["rate"]) for row in rows}
    for seed in arguments.seeds:
        for task in TASKS[arguments.part]:
            for arm in LCONV if arguments.part == "lconv" else BASES:
                rates = RATES if arguments.choose else (CHOSEN[f"{arguments.part}/{task}/{arm}"],)
                for rate in rates:
                    if (arguments.part, task, arm, seed, rate) in known:
                        continue
                    rows.append(run(arguments.part, task, arm, seed, rate))
                    print(json.dumps(rows[-1]), flush=True)
                    if arguments.json:
                        write_json(arguments.json, rows)
    if arguments.figure:
        draw(arguments.figure)
    table(rows)


if __name__ == "__main__":
    main()
