"""Bounds and code lengths: `python docs/evidence/bounds.py RUNS... --problems 200 --out bounds.png --json bounds.json`.

RUNS are folders of `rppdyn bound` and `rppdyn fit-regression` as section 5 of `protocol.md` says, or the file of raw data,
which holds the problems with random labels, too. Prints the tables of `bounds.md`.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from rppdyn.compression import (
    Subspace,
    agreement,
    catoni_bound,
    compress,
    empirical_risk,
    encode_symbols,
    entropy,
    universal_kl,
    zero_one_loss,
)
from rppdyn.runs import RunFolder, bootstrap_interval
from rppdyn.runs.figures import MODEL_COLOURS, legend_below, save
from rppdyn.runs.files import write_json

REACHED = 0.35  # the risk at which bits are compared
KEPT = ("task", "model", "seed", "seeds", "optimiser", "subspace", "objective", "marginal_likelihood")
MEASURED = ("bound/value", "bound/bits", "risk/train", "risk/test", "description/bits", "test/error")


def brief(path: str) -> dict[str, Any]:
    """Read a finished run: its configuration, results by seed, and all settings without their messages."""
    folder = RunFolder.open(path)
    result, config = folder.result(), folder.config()
    assert result is not None, f"{path} is unfinished"
    test = {name: result["test"][name] for name in MEASURED if name in result["test"]}
    if "marginal_likelihood/negative_log" in result["metrics"]:
        test["marginal_likelihood"] = result["metrics"]["marginal_likelihood/negative_log"]
    run = {key: config[key] for key in KEPT if key in config}
    settings = []
    if result["verb"] == "bound":
        rows = json.loads((folder.path / "messages.json").read_text(encoding="utf-8"))["settings"]
        settings = [[row[key] for key in ("seed", "dimension", "levels", "bits", "risk", "bound")] for row in rows]
    provenance = {"commit": result["provenance"]["commit"], "torch": result["provenance"]["packages"].get("torch")}
    return {"verb": result["verb"], "model": result["model"], "config": run, "test": test, "settings": settings,
            "seeds": result["seeds"], "provenance": provenance}  # fmt: skip


def random_labels(count: int, n: int = 60, inputs: int = 6, dimension: int = 40) -> list[list[float]]:
    """Empirical risk, bits and bound of networks that are fitted to labels drawn at random, whose risk is one half."""
    found = []
    for seed in range(count):
        x = torch.randn(n, inputs, generator=torch.Generator().manual_seed(seed))
        y = torch.randint(2, (n,), generator=torch.Generator().manual_seed(10_000 + seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 2))
        subspace = Subspace(net, dimension, generator=torch.Generator().manual_seed(20_000 + seed))
        loss = lambda model, x=x, y=y: nn.functional.cross_entropy(model(x), y)  # noqa: E731
        message = compress(
            subspace, loss, levels=4, steps=80, quantised_steps=40, learning_rate=0.2, quantised_rate=0.1
        )
        risk = empirical_risk(zero_one_loss(subspace(x), y))
        found.append([risk, len(message), catoni_bound(risk, universal_kl(len(message)), n).value])
    return found


def coder(trials: int = 300) -> dict[str, float]:
    """Bits of arithmetic codes less the entropy of what they code: 10 to 1,000 symbols of 2 to 16 levels."""
    rng, over = np.random.default_rng(0), []
    for _ in range(trials):
        levels, length = rng.integers(2, 17), rng.integers(10, 1001)
        symbols = rng.choice(levels, size=length, p=rng.dirichlet(np.full(levels, 0.5)))
        counts = np.bincount(symbols, minlength=levels).tolist()
        over.append(len(encode_symbols(symbols.tolist(), counts)) - length * entropy(counts))
    return {"mean": float(np.mean(over)), "least": min(over), "most": max(over)}


def of(runs: list[dict[str, Any]], verb: str, task: str, train: int | None = None) -> dict[str, dict[str, Any]]:
    """Runs by model."""
    chosen = [r for r in runs if r["verb"] == verb and r["config"]["task"]["name"] == task]
    return {r["model"]: r for r in chosen if train is None or r["config"]["task"]["train"] == train}


def reached(run: dict[str, Any]) -> list[float]:
    """Find each seed's fewest bits of a setting whose empirical risk is at most REACHED; infinite where none has it."""
    bits = {seed: [row[3] for row in run["settings"] if row[0] == seed and row[4] <= REACHED] for seed in run["seeds"]}
    return [min(found, default=math.inf) for found in bits.values()]


def mean(values: list[float]) -> str:
    """Mean, with the bootstrap interval of the interquartile mean where there are enough seeds."""
    if not np.isfinite(values).all():
        return f"none in {sum(not math.isfinite(v) for v in values)} of {len(values)}"
    text = f"{np.mean(values):.3g}"
    if len(values) > 3:
        low, high = bootstrap_interval(values)
        text += f" [{float(low):.3g}, {float(high):.3g}]"
    return text


def bounds_table(runs: dict[str, dict[str, Any]], share: bool) -> str:
    """A line for each model."""
    head = "| model | bound | empirical risk | test risk | bits |" + (
        f" bits at a risk of {REACHED} |" if share else ""
    )
    lines = [head, "| --- |" + " ---: |" * (4 + share)]
    for model, run in sorted(runs.items(), key=lambda item: np.mean(item[1]["test"]["bound/value"])):
        cells = [mean(run["test"][name]) for name in ("bound/value", "risk/train", "risk/test", "bound/bits")]
        lines.append(f"| {model} | " + " | ".join(cells + [mean(reached(run))] * share) + " |")
    return "\n".join(lines)


def choice_table(runs: list[dict[str, Any]], task: str) -> str:
    """Values of each criterion by model, and the share of pairs of models that it ranks as two tests do."""
    coded = of(runs, "bound", task, 500)
    fits = [
        of(
            [r for r in runs if r["model"] == "mlp" or r["config"]["model"].get("equivariant_variance") == v],
            "fit-regression",
            task,
        )
        for v in (1.0, 1e5)
    ]
    criteria = {
        "test error of fits": {m: r["test"]["test/error"] for m, r in fits[0].items()},
        "test risk of coded networks": {m: r["test"]["risk/test"] for m, r in coded.items()},
        "code length, bits per datum": {m: [v / 500 for v in r["test"]["description/bits"]] for m, r in coded.items()},
        "bound": {m: r["test"]["bound/value"] for m, r in coded.items()},
        "-log evidence per datum": {m: r["test"]["marginal_likelihood"] for m, r in fits[0].items()},
        "the same, variances from 1e5": {m: r["test"]["marginal_likelihood"] for m, r in fits[1].items()},
    }
    by_fits, by_coded = list(criteria.values())[:2]
    lines = ["| criterion | emlp | rpp | mlp | ranks as fits test | ranks as coded networks test |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, values in criteria.items():
        shown = [f"{np.mean(values[m]):.3g}" for m in ("emlp", "rpp", "mlp")]
        shown += ["" if values is test else f"{agreement(values, test).pairs:.2f}" for test in (by_fits, by_coded)]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(inertia: dict[str, dict[str, Any]], labels: list[list[float]]) -> Figure:
    """Risk and bound against bits, setting by setting; empirical risks and bounds of random labels."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for model, run in inertia.items():
        rows = np.array(run["settings"], dtype=float)
        means = [
            rows[(rows[:, 1] == d) & (rows[:, 2] == L)].mean(0)
            for d, L in sorted({(r[1], r[2]) for r in run["settings"]})
        ]
        bits, risk, bound = np.array(sorted(tuple(m[3:]) for m in means)).T
        colour = MODEL_COLOURS[model]
        left.plot(bits, bound, "o-", color=colour, label=model)
        left.plot(bits, risk, ".--", color=colour, lw=1)
    left.set(
        xlabel="bits of the code",
        ylabel="relative error",
        title="inertia: bound (line), empirical risk (dashed)",
        ylim=(0, None),
    )
    legend_below(left, 3)
    risk, _, bound = np.array(labels).T
    right.scatter(risk, bound, s=9, alpha=0.5, color=MODEL_COLOURS["rpp"], label="one problem")
    right.axhline(0.5, color="black", lw=1, label="the risk, one half")
    right.plot([0, 0.5], [0, 0.5], ":", color="grey", label="the empirical risk")
    right.set(xlabel="empirical risk", ylabel="bound", title="random labels", xlim=(0, 0.55), ylim=(0, 1.05))
    legend_below(right, 3)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's folder, or the file of raw data")
    parser.add_argument("--problems", type=int, default=0, help="with random labels, to be solved anew")
    parser.add_argument("--out", metavar="FILE", help="the figure")
    parser.add_argument("--json", metavar="FILE", help="the raw data")
    arguments = parser.parse_args()
    data: dict[str, Any] = {"runs": [], "labels": [], "coder": {}}
    for path in arguments.runs:
        if path.endswith(".json"):
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            data = {"runs": data["runs"] + stored["runs"], "labels": stored["labels"], "coder": stored["coder"]}
        else:
            data["runs"].append(brief(path))
    if arguments.problems:
        data["labels"], data["coder"] = random_labels(arguments.problems), coder()
    if arguments.json:
        write_json(Path(arguments.json), data)
    runs, labels = data["runs"], data["labels"]
    if inertia := of(runs, "bound", "inertia", 10_000):
        print(bounds_table(inertia, True) + "\n")
        if {"emlp", "mlp"} <= set(inertia):
            pairs = list(zip(*(inertia[m]["test"]["bound/value"] for m in ("emlp", "mlp")), strict=True))
            bits = list(zip(*(reached(inertia[m]) for m in ("emlp", "mlp")), strict=True))
            print(
                f"emlp below mlp: bound in {sum(a < b for a, b in pairs)}, bits in {sum(a < b for a, b in bits)}, "
                f"of {len(pairs)}\n"
            )
    if digits := of(runs, "bound", "upright"):
        print(bounds_table(digits, False) + "\n")
    if len(of(runs, "fit-regression", "inertia")) == 3:
        print(choice_table(runs, "inertia") + "\n")
    if labels:
        risk, bits, bound = np.array(labels).T
        print(
            f"random labels: {(bound >= 0.5).sum()} of {len(labels)} bounds hold, the least {bound.min():.3f}; empirical risk "
            f"{risk.mean():.3f} ({risk.min():.3f} to {risk.max():.3f}), bits {bits.mean():.0f}; bounds below the empirical "
            f"risk: {(bound < risk).sum()}; below one half without the code's price: "
            f"{sum(catoni_bound(r, 0.0, 60).value < 0.5 for r in risk)}"
        )
        print("coder, bits above the entropy:", {name: round(value, 2) for name, value in data["coder"].items()})
    if arguments.out:
        save(draw(inertia, labels), Path(arguments.out))


if __name__ == "__main__":
    main()
