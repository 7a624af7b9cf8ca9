"""Where trained image models lose their equivariance: `python docs/evidence/lie_derivatives.py --seeds 3 --json FILE`.

Trains the models of section 6 of `protocol.md` on scikit-learn's digits, with and without random shifts, and measures them:
test error, local equivariance errors of the softmax, what layers contribute. Arms that the file holds are not trained
again; without `--seeds` it prints the tables and draws the figure (`--out`).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance import images, layerwise_lie_derivative, local_equivariance_error
from rppdyn.jobs import fit_image
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.figures import COLOURS, label_decades, save
from rppdyn.runs.files import write_json
from rppdyn.runs.workers import stream
from rppdyn.tasks._images import translate

EPOCHS, BATCH, SHIFT = 50, 128, 2
MEASURED, ATTRIBUTED = 100, 30  # images
PACKAGE = ("conv", "f_fc+conv")
FLOWS = {name: images.TRANSFORMATIONS[name]() for name in ("translation_x", "rotation")}
GROUPS = {  # of kinds of layers
    "strided": ("strided Conv2d", "MaxSubsampling", "PolyphaseSubsampling"),
    "nonlinearity": ("relu", "ReLU", "gelu", "GELU"),
    "normalisation": ("BatchNorm2d", "LayerNorm"),
    "attention": ("MultiheadAttention",),
    "positions": ("FactoredFullyConnected", "positions"),
}


class Block(nn.Module):
    """Two convolutions beside the identity, or beside a strided one."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    """Three stages of one residual block, the later two strided; a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16), Block(16, 32), Block(32, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


class TransformerBlock(nn.Module):
    """Attention and a perceptron for each token."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Positions(nn.Module):
    """Learned positions."""

    def __init__(self, count: int, width: int):
        super().__init__()
        self.values = nn.Parameter(0.02 * torch.randn(1, count, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.values


class ViT(nn.Module):
    """Sixteen patches, a class token, three blocks."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.embed, self.token = nn.Conv2d(1, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = Positions(17, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = self.positions(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))
        return self.head(self.norm(self.blocks(x))[:, 0])


OWN: dict[str, Callable[[], nn.Module]] = {"resnet": ResNet, "vit": ViT}


def words(model: str, augmented: bool, seeds: list[int]) -> list[str]:
    """The command line of `rppdyn fit-image`, but for its run's folder."""
    return [
        "task=upright", "task.canvas=16", f"task.augment_shift={SHIFT if augmented else 0}", f"model={model}",
        "model.architecture=small_max", f"optimiser.epochs={EPOCHS}",
        "optimiser.learning_rate=4e-3", "optimiser.warm_up=5", f"evaluation.every={EPOCHS}", f"seed={seeds[0]}",
        f"seeds={len(seeds)}",
    ]  # fmt: skip


def trained(name: str, augmented: bool, seeds: list[int]) -> list[tuple[nn.Module, Any]]:
    """A network with its images for each seed."""
    with tempfile.TemporaryDirectory() as folder:
        config = compose.composed(
            "fit_image", [*words(name if name in PACKAGE else "conv", augmented, seeds), f"run_dir={folder}/run"]
        )
        if name in PACKAGE:
            fit_image.run(config)
            fit, models = fit_image.load_image_models(config, RunFolder.open(f"{folder}/run"))
            return list(zip(models, fit.data, strict=True))
        data = fit_image.ImageFit(config).data
    return [(_train(OWN[name], d.train, seed, augmented), d) for d, seed in zip(data, seeds, strict=True)]


def _train(make: Callable[[], nn.Module], data: Any, seed: int, augmented: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make()
    steps = EPOCHS * math.ceil(len(data) / BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps)
    for step in range(steps):
        generator = stream(seed, step)
        at = torch.randint(len(data), (BATCH,), generator=generator)
        x = translate(data.x[at], SHIFT, generator) if augmented else data.x[at]
        optimiser.zero_grad()
        F.cross_entropy(network(x), data.y[at]).backward()
        optimiser.step()
        schedule.step()
    return network.eval()


def measured(network: nn.Module, data: Any) -> dict[str, Any]:
    """Test error, local equivariance errors on test, training and turned images, and norms of contributions by layer."""
    whole = nn.Sequential(network, nn.Softmax(-1)).double().eval()
    test, train = data.test.x[:MEASURED].double(), data.train.x[:MEASURED].double()
    with torch.no_grad():
        error = float((whole(data.test.x.double()).argmax(-1) != data.test.y).double().mean())
    turned = test.rot90(1, (2, 3))
    shift = FLOWS["translation_x"]
    lee = {name: float(local_equivariance_error(whole, flow, flow, test).squared) for name, flow in FLOWS.items()}
    others = {
        where: float(local_equivariance_error(whole, shift, shift, x).squared)
        for where, x in (("train", train), ("turned", turned))
    }
    found = layerwise_lie_derivative(whole, shift, shift, test[:ATTRIBUTED], hidden=shift)
    layers = [
        {"layer": layer, "kind": "positions" if ".positions." in layer else kind, "norm": norm, "share": share}
        for layer, kind, norm, share in zip(
            found.layers, found.kinds, found.norm[0].tolist(), found.share[0].tolist(), strict=True
        )
        if norm > 1e-12
    ]
    return {"error": error, "lee": lee, "elsewhere": others, "residual": found.residual, "layers": layers}


def by_group(row: dict[str, Any]) -> dict[str, float]:
    """Shares of the summed norms."""
    total = sum(layer["norm"] for layer in row["layers"])
    shares = dict.fromkeys([*GROUPS, "other"], 0.0)
    for layer in row["layers"]:
        group = next((g for g, kinds in GROUPS.items() if layer["kind"] in kinds), "other")
        shares[group] += layer["norm"] / total
    return shares


def arms(rows: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Measurements of each seed, by model and augmentation."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, row in rows.items():
        name, how, _ = key.split(",")
        found.setdefault((name, how), []).append(row)
    return found


def table(rows: dict[str, Any]) -> None:
    """Means over seeds, as Markdown, and the numbers of the claims."""
    print(
        "| model | shifts | test error, % | LEE, translation | rotation | train | turned | "
        + " | ".join([*GROUPS, "other"])
        + " |"
    )
    print("| --- | --- |" + " ---: |" * (len(GROUPS) + 6))
    for (name, how), own in arms(rows).items():
        mean = lambda pick: float(np.mean([pick(row) for row in own]))  # noqa: B023, E731
        cells = [f"{100 * mean(lambda r: r['error']):.1f}"]
        cells += [f"{mean(lambda r: r['lee'][f]):.2g}" for f in ("translation_x", "rotation")]  # noqa: B023
        cells += [f"{mean(lambda r: r['elsewhere'][f]):.2g}" for f in ("train", "turned")]  # noqa: B023
        cells += [f"{100 * mean(lambda r: by_group(r)[g]):.0f}" for g in [*GROUPS, "other"]]  # noqa: B023
        print(f"| {name} | {how} | " + " | ".join(cells) + " |")
    for seed in sorted({key.split(",")[2] for key in rows}):
        own = [row for key, row in rows.items() if key.endswith(f",{seed}")]
        for flow in FLOWS:
            rank = spearmanr([r["error"] for r in own], [r["lee"][flow] for r in own]).statistic
            print(f"seed {seed}, {flow}: rank correlation of LEE with test error {rank:.2f} over {len(own)} networks")
    for name in dict.fromkeys(name for name, _ in arms(rows)):
        ratios = [
            rows[f"{name},yes,{key.split(',')[2]}"]["lee"]["translation_x"] / row["lee"]["translation_x"]
            for key, row in rows.items()
            if key.startswith(f"{name},no,") and f"{name},yes,{key.split(',')[2]}" in rows
        ]
        print(f"{name}: LEE with shifts / without {', '.join(f'{r:.2f}' for r in ratios)}")
    for where, other in (("test", "train"), ("turned", "test")):
        value = lambda row, at: row["lee"]["translation_x"] if at == "test" else row["elsewhere"][at]  # noqa: E731
        more = sum(value(row, where) > value(row, other) for row in rows.values())
        print(f"LEE on {where} above {other}: {more} of {len(rows)} networks")
    print(f"sums against end to end: at most {max(row['residual'] for row in rows.values()):.1e}")


def draw(rows: dict[str, Any]) -> Figure:
    """LEE against test error, and the groups' shares."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = arms(rows)
    names = list(dict.fromkeys(name for name, _ in found))
    for (name, how), own in found.items():
        colour, filled = COLOURS[names.index(name)], how == "yes"
        left.plot(
            [100 * row["error"] for row in own], [row["lee"]["translation_x"] for row in own], "o", ms=6, color=colour,
            mfc=colour if filled else "none", label=name if filled else None,
        )  # fmt: skip
    left.set_yscale("log")
    label_decades(left.yaxis)
    left.set_xlabel("test error, %")
    left.set_ylabel("local equivariance error, translation")
    left.set_title("one point a network (filled: trained on shifted images)", fontsize="medium")
    left.legend(fontsize="small", framealpha=0.8, edgecolor="none")
    labels = [f"{name}{', shifts' if how == 'yes' else ''}" for name, how in found]
    start = np.zeros(len(found))
    for k, group in enumerate([*GROUPS, "other"]):
        share = np.array([np.mean([by_group(row)[group] for row in own]) for own in found.values()])
        right.barh(range(len(found)), share, 0.7, left=start, color=COLOURS[k % len(COLOURS)], label=group)
        start += share
    right.set_yticks(range(len(found)), labels, fontsize="small")
    right.invert_yaxis()
    right.set_xlim(0, 1)
    right.set_xlabel("share of the summed contributions")
    right.set_title("where translation is lost", fontsize="medium")
    right.legend(fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.4, -0.18), frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Train and measure what the file does not hold; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    parser.add_argument("--out", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    content = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"runs": {}}
    rows, seeds = content["runs"], list(range(arguments.seed, arguments.seed + arguments.seeds))
    for name in ("conv", "vit", "resnet", "f_fc+conv") if seeds else ():
        for how in ("no", "yes"):
            if all(f"{name},{how},{seed}" in rows for seed in seeds):
                continue
            for seed, (network, data) in zip(seeds, trained(name, how == "yes", seeds), strict=True):
                rows[f"{name},{how},{seed}"] = measured(network, data)
            content["provenance"] = provenance()
            write_json(arguments.json, content)
    table(rows)
    if arguments.out:
        save(draw(rows), arguments.out)


if __name__ == "__main__":
    main()
