"""Lie-group filters: `python docs/evidence/filters.py PART --seeds 1200 1201 1202 --json FILE`; without seeds, tables.

PART is `sparse` (fewer anchors before and after training), `relax` or `partial` (how much rotations are relaxed, of upright
images or of few that are turned a little) or `rotated` (SE(2) beside plain convolutions). Runs that the file holds are passed
over. A section of `protocol.md` says what is claimed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from scipy.ndimage import rotate
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.images import (
    AnchoredConv2d,
    RelaxedImageLayer,
    anchored,
    draw_elements,
    implied_omega,
    learn_omega,
    omega_penalty,
    sampled,
)
from rppdyn.images._continuous import pixel_grid
from rppdyn.images._lie_convolution import GROUPS, amplitudes, relaxed_pathways, set_elements
from rppdyn.images._models import FieldNorm, OrientationPooling
from rppdyn.images._pathways import count_rotations
from rppdyn.images.registry import FilterSettings
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import Categorical, curvature, kronecker_evidence, negative_log_prior
from rppdyn.runs.files import write_json
from rppdyn.tasks import image_data
from rppdyn.tasks._images import ImageData

Row = dict[str, Any]
OMEGAS = (0.0, 0.1, 0.5, 1.0, 2.0)
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
LEARNED_BY = ("penalty", "evidence")


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Percent."""
    with torch.no_grad():
        return 100 * float((net(x).argmax(-1) == y).double().mean())


def fitted(
    net: nn.Module, data: ImageData, epochs: int, rate: float, seed: int, batch: int = 64,
    penalty: Callable[[], Tensor] | None = None, every: Callable[[int], None] | None = None,
    redraw: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Train by Adam at a rate that falls on a cosine; accuracies on training, validation and test images."""
    x, y = data.train.x, data.train.y
    optimiser, generator = torch.optim.Adam(net.parameters(), lr=rate), torch.Generator().manual_seed(seed)
    start, steps, step = time.perf_counter(), epochs * math.ceil(len(x) / batch), 0
    for epoch in range(epochs):
        for chosen in torch.randperm(len(x), generator=generator).split(batch):
            if redraw:
                draw_elements(net, generator)
            warm = min(1.0, (step + 1) / 30)
            optimiser.param_groups[0]["lr"] = warm * rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            loss = F.cross_entropy(net(x[chosen]), y[chosen])
            if penalty is not None:
                loss = loss + penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
        if every is not None:
            every(epoch)
    net.eval()
    set_elements(net)
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    result = {name: accuracy(net, part.x, part.y) for name, part in parts.items()}
    return result | {"seconds": time.perf_counter() - start}


# -- fewer anchors ------------------------------------------------------------------------------------------------------


def plain(seed: int) -> nn.Sequential:
    """Two convolutions of 5 x 5 pixels and one of 3 x 3."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 24, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip


def sparse(seed: int) -> list[Row]:
    data = image_data("digits", "upright", seed, validation=237)
    options: dict[str, Any] = dict(data=data, epochs=30, rate=4e-3, seed=seed)
    whole = plain(seed)
    rows = [{"arm": "all pixels", **fitted(whole, **options)}]
    for share in (0.5, 0.2):
        for free in (False, True):
            net = anchored(plain(seed), share, learned=free)
            rows.append({"arm": f"before, {share}, {'free' if free else 'fixed'}", **fitted(net, **options)})
    back = sampled(anchored(whole))
    gap = float((back(data.test.x) - whole(data.test.x)).detach().abs().max())
    rows.append({"arm": "converted and back", "gap": gap, "test": accuracy(back, data.test.x, data.test.y)})
    for share in SHARES:
        net = anchored(whole, share)
        collapsed = accuracy(net, data.test.x, data.test.y)
        again = fitted(net, data, epochs=5, rate=2e-3, seed=seed)
        rows.append({"arm": f"after, {share}", "collapsed": collapsed, **again})
    return rows


# -- relaxed rotations --------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Three relaxed image layers with batch normalisation, the largest element of a field, and a linear map."""

    def __init__(
        self, seed: int, width: int, size: tuple[int, int], pathways: dict[str, float], settings: FilterSettings
    ):
        super().__init__()
        generator, self.blocks, before, channels = torch.Generator().manual_seed(seed), nn.ModuleList(), 1, 1
        elements = count_rotations(pathways, dict.fromkeys(pathways, settings))
        for fields in (width, 2 * width, 2 * width):
            layer = RelaxedImageLayer(
                channels, fields * elements, size, pathways, bias_variance=0, orientations=(before, elements),
                settings=dict.fromkeys(pathways, settings), free_scale=1.0, generator=generator,
            )  # fmt: skip
            self.blocks.append(nn.Sequential(layer, FieldNorm(fields, elements), nn.ReLU()))
            channels, before = fields * elements, elements
            if fields == width:
                self.blocks.append(nn.MaxPool2d(2))
                size = size[0] // 2, size[1] // 2
        self.pool, self.head = OrientationPooling(elements), nn.Linear(2 * width, 10)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(self.head.weight.shape, generator=generator) / math.sqrt(2 * width))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x.mean((-2, -1), keepdim=True)).flatten(1))


def cut(data: ImageData, train: int) -> ImageData:
    """The first training images alone."""
    object.__setattr__(data.train, "x", data.train.x[:train])
    object.__setattr__(data.train, "y", data.train.y[:train])
    return data


class ByEvidence:
    """Every few epochs all prior variances are moved towards the largest evidence, of which the relaxed share follows."""

    def __init__(self, net: nn.Module, data: ImageData, first: int = 5, every: int = 10):
        self.net, self.data, self.first, self.every = net, data, first, every

    def __call__(self, epoch: int) -> None:
        if epoch < self.first or (epoch - self.first) % self.every:
            return
        x = self.data.train.x
        self.net.eval()
        blocks = curvature(self.net, self.net, [x[i : i + 50] for i in range(0, len(x), 50)], Categorical())
        self.net.train()
        found = kronecker_evidence(self.net, blocks)
        s = found.log_variances.detach().clone().requires_grad_()
        optimiser = torch.optim.Adam([s], lr=0.2)
        for _ in range(30):
            optimiser.zero_grad()
            found.negative_log(0.0, s).backward()
            optimiser.step()
        own = {(layer, name): p for layer, name, p in named_pathways(self.net)}
        for p, value in zip(found.pathways, s.detach(), strict=True):
            own[p.layer, p.name].log_variance.fill_(float(value))


def omegas(net: nn.Module) -> list[float]:
    """Of each layer, by the ratio of its two variances."""
    own = {(layer, name): p for layer, name, p in named_pathways(net)}
    result = []
    for (layer, name), p in own.items():
        if name == "se2_relaxed":
            start = float(amplitudes(p.omega.detach(), 1)[0]) ** 2
            ratio = start * float(p.variance.detach()) / float(own[layer, "se2"].variance)
            result.append(implied_omega(ratio))
    return result


def relax(seed: int) -> list[Row]:
    data = cut(image_data("digits", "upright", seed, validation=237), 400)
    return relaxations(data, seed, epochs=35, batch=32)


def partial(seed: int) -> list[Row]:
    """Few images, all of them turned by up to 45 degrees either way."""
    data = cut(image_data("digits", "upright", seed, validation=237), 150)
    generator = torch.Generator().manual_seed(seed)
    for part in (data.train, data.validation, data.test):
        angles = (90 * torch.rand(len(part), generator=generator) - 45).tolist()
        turned = [rotate(x, a, (-2, -1), reshape=False, order=1) for x, a in zip(part.x.numpy(), angles, strict=True)]
        object.__setattr__(part, "x", torch.from_numpy(np.stack(turned)))
    return relaxations(data, seed, epochs=100, batch=16)


def relaxations(data: ImageData, seed: int, epochs: int, batch: int) -> list[Row]:
    """All arms of relaxation, by the same data."""
    arms: tuple[Any, ...] = (*OMEGAS, *LEARNED_BY)
    rows = []
    for arm in arms:
        learned = isinstance(arm, str)
        settings = FilterSettings(omega=0.1 if arm == "penalty" else 1.0 if learned else arm)
        pathways = {"se2": 1.0} | ({"se2_relaxed": 1.0} if arm else {})
        net = Network(seed, 4, data.size, pathways, settings)
        every = ByEvidence(net, data, every=max(10, epochs // 4)) if arm == "evidence" else None
        if arm == "penalty":
            learn_omega(net, 0.1)
        prior = lambda net=net: negative_log_prior(net).float() / len(data.train)  # noqa: E731
        penalty = (
            (lambda prior=prior, net=net: prior() + omega_penalty(net, 1e-2).float()) if arm == "penalty" else prior
        )
        row = {"arm": str(arm), **fitted(net, data, epochs, 2e-2, seed, batch=batch, penalty=penalty, every=every)}
        if arm == "penalty":
            row["omega"] = [float(p.omega.detach()) for p in relaxed_pathways(net)]
        if arm == "evidence":
            row["omega"] = omegas(net)
        rows.append(row)
    return rows


# -- SE(2) beside plain convolutions ------------------------------------------------------------------------------------


def rotated(seed: int) -> list[Row]:
    data = cut(image_data("digits", "rotated", seed, canvas=8, validation=237), 600)
    cases: dict[str, tuple[str, int, FilterSettings]] = {
        "SE(2)": ("se2", 4, FilterSettings()),
        "p4": ("p4", 4, FilterSettings()),
        "CNN of as many parameters": ("conv", 4, FilterSettings()),
        "CNN of as many channels": ("conv", 32, FilterSettings()),
    }
    rows = []
    for arm, (name, width, settings) in cases.items():
        net = Network(seed, width, data.size, {name: 1.0}, settings)
        count = sum(p.numel() for p in net.parameters())
        prior = lambda net=net: negative_log_prior(net).float() / len(data.train)  # noqa: E731
        rows.append(
            {
                "arm": arm,
                "parameters": count,
                **fitted(net, data, 20, 2e-2, seed, batch=32, penalty=prior, redraw=settings.redraw),
            }
        )
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "sparse": sparse,
    "relax": relax,
    "partial": partial,
    "rotated": rotated,
}


def table(rows: list[Row]) -> str:
    """Means over seeds, and the smallest and largest."""
    lines = []
    for part in PARTS:
        for arm in dict.fromkeys(row["arm"] for row in rows if row["part"] == part):
            own = [row for row in rows if row["part"] == part and row["arm"] == arm]
            words = [f"{part:8} {arm:28} {len(own)} seeds"]
            for key in ("train", "test", "collapsed", "gap", "seconds"):
                if all(key in row for row in own):
                    v = [row[key] for row in own]
                    words.append(f"{key} {mean(v):.4g} [{min(v):.4g}, {max(v):.4g}]")
            if "omega" in own[0]:
                words.append(
                    "omega " + " ".join(f"{mean(v):.2f}" for v in zip(*(row["omega"] for row in own), strict=True))
                )
            lines.append("  ".join(words))
    return "\n".join(lines)


def figure(path: Path) -> None:
    """A filter of 5 x 5 pixels between its pixels, by fewer anchors, and an SE(2) filter at its elements."""
    from matplotlib.figure import Figure

    conv = nn.Conv2d(1, 1, 5)
    rows = pixel_grid((5, 5))
    with torch.no_grad():  # an oriented edge
        conv.weight.copy_((torch.exp(-(rows**2).sum(1) / 4) * (rows[:, 1] + 0.6 * rows[:, 0])).view(1, 1, 5, 5))
    fine = (pixel_grid((61, 61)) / 12).double()
    shown = Figure((11, 3.9), layout="constrained")
    axes = shown.subplots(2, 8)
    limit = float(conv.weight.detach().abs().max())
    look: dict[str, Any] = dict(cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(-2.5, 2.5, 2.5, -2.5))
    axes[0, 0].imshow(conv.weight.detach()[0, 0], **look)
    axes[0, 0].set_title("Conv2d, 5 x 5", fontsize=8)
    for ax, count in zip(axes[0, 1:], (25, 20, 13, 8, 5, 3, 1), strict=True):
        f = AnchoredConv2d.of(conv, count)
        ax.imshow((f.basis(fine) @ f.values.detach()[0, 0].double()).view(61, 61), **look)
        ax.plot(f.basis.anchors[:, 1], f.basis.anchors[:, 0], "k.", markersize=3)
        ax.set_title(f"{count} anchors", fontsize=8)
    f = AnchoredConv2d.of(conv)
    angles = GROUPS["se2"].coordinates(8, torch.tensor(0.0, dtype=torch.float64))
    for ax, t, turn in zip(axes[1], angles, GROUPS["se2"].matrices(angles), strict=True):
        points = pixel_grid((5, 5)).double() @ turn  # turned back
        seen = (f.basis(points) @ f.values.detach()[0, 0].double()) * (pixel_grid((5, 5)).norm(dim=1) <= 2.5)
        ax.imshow(seen.view(5, 5), **look)
        ax.set_title(f"SE(2), {180 * float(t):.0f} degrees", fontsize=8)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    shown.savefig(path, dpi=90)


def main() -> None:
    """Run what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS, nargs="?")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--figure", type=Path, help="where to draw filters")
    arguments = parser.parse_args()
    if arguments.figure is not None:
        figure(arguments.figure)
    rows: list[Row] = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    for seed in arguments.seeds:
        if any(row["part"] == arguments.part and row["seed"] == seed for row in rows):
            continue
        rows += [{"part": arguments.part, "seed": seed, **row} for row in PARTS[arguments.part](seed)]
        write_json(arguments.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
