"""Symmetries that are found: `python docs/evidence/discovery.py PART --seeds 1000 ... 1009 --json FILE`; without seeds, tables.

PART is `exact` (the field itself, in gl(3)), `fields` (plain Hamiltonian networks, trained for longer and longer: what error
discovery stands), `evidence` (axis and strength learned with the Hamiltonian from 30 and 100 noisy states), `frame` (a network
in a learned frame) or `images`. Runs that the file holds are passed over. Sections 8 and 13 of `protocol.md` say what is
claimed. Of `robots` (permutations of joints, ranked from random steps) only the table is left: version 0.1.0 made its rows.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import save_small
from sklearn.datasets import load_digits
from torch import Tensor

from rppdyn.dynamics import LearnedFrame, learn_symmetry
from rppdyn.equivariance import discover, discover_affine
from rppdyn.equivariance._error import geometric_mean, relative_difference
from rppdyn.groups import GL, SO, O2eR3
from rppdyn.nn import EMLP, MLP
from rppdyn.reps import Scalar, T, V
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio
from rppdyn.tasks import Pendulum

VERTICAL = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
FRAME_STEPS = 500
IMAGE_STEPS = 1500
LEGS = ("thigh", "leg", "foot")
MOTIONS = {"shift along x": (0.0, 0, 1, 0, 0, 0), "along y": (0.0, 0, 0, 0, 0, 1), "rotation": (0.0, -1, 0, 1, 0, 0)}
Row = dict[str, Any]


def states(pendulum: Pendulum, count: int, generator: torch.Generator) -> Tensor:
    """States along trajectories, each at a time of its own from 0 to 5 s."""
    paths = pendulum.trajectories(pendulum.initial_state(count, generator), torch.linspace(0, 5, 11).double())
    return paths[torch.arange(count), torch.randint(11, (count,), generator=generator)]


def off_axis(A: Tensor, wind: float) -> float:
    """Degrees between the axis of a turn and the total force."""
    axis = torch.nn.functional.normalize(
        torch.stack([A[2, 1] - A[1, 2], A[0, 2] - A[2, 0], A[1, 0] - A[0, 1]]).double(), dim=0
    )
    force = torch.nn.functional.normalize(torch.tensor([-8 * wind, -5 * wind, -1.0]).double(), dim=0)
    return math.degrees(math.acos(min(1.0, abs(float(axis @ force)))))


def error(found: Tensor, truth: Tensor) -> float:
    """Geometric mean of relative errors over states."""
    return float(geometric_mean(relative_difference(found, truth)))


def field_of(energy: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """J grad H as a function that forward mode differentiates."""
    slope = torch.func.vmap(torch.func.grad(lambda z: energy(z)[0]))

    def field(z: Tensor) -> Tensor:
        first, second = slope(z).chunk(2, 1)
        return torch.cat([second, -first], 1)

    return field


def fields(seed: int) -> Row:
    """Plain Hamiltonian networks in wind 0.1, from 1,000 states along trajectories, after more and more steps.

    Their fields' error, and what is found in them.
    """
    wind, generator = 0.1, torch.Generator().manual_seed(seed)
    pendulum = Pendulum(wind=wind)
    z, test = states(pendulum, 1000, generator), states(pendulum, 300, generator)
    rows: Row = {}
    for steps in (30, 100, 300, 1000):
        rep = pendulum.rep(SO(3))
        net = MLP(rep, Scalar(SO(3)), SO(3), hidden=128, generator=torch.Generator().manual_seed(seed))
        x, y = z.float(), pendulum.vector_field(z).float()
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimiser.zero_grad()
            (rates_of(net, x, train=True) - y).square().mean().backward()
            optimiser.step()
        off = error(rates_of(net, test.float(), train=False), pendulum.vector_field(test).float())
        found = discover(field_of(net), rep, rep, test.float())  # an energy's own defects are 0 or 1 alone
        axis = off_axis(found.generators[0], wind) if len(found.generators) == 1 else None
        rows[str(steps)] = {"error": off, "verdict": found.verdict, "count": len(found.generators), "axis": axis,
                            "defects": found.spectrum.tolist()}  # fmt: skip
    return rows


def evidence(seed: int) -> Row:
    """Axis and strength by evidence, beside the vertical axis and none, from 30 and 100 states with noise of 0.02."""
    rows: Row = {}
    for wind in (0.0, 0.01, 0.1):
        for count in (30, 100):
            generator = torch.Generator().manual_seed(seed)
            pendulum = Pendulum(wind=wind)
            z, test = states(pendulum, count, generator), states(pendulum, 300, generator)
            rates = pendulum.vector_field(z)
            rates = rates + 0.02 * torch.randn(rates.shape, dtype=rates.dtype, generator=generator)
            rep = pendulum.rep(SO(3))
            vertical = torch.tensor([float((A * VERTICAL).sum()) / 2 for A in SO(3).lie_algebra])
            row: Row = {}
            for arm, options in {"learned": {}, "vertical": {"fixed": vertical}, "none": None}.items():
                draws = torch.Generator().manual_seed(seed)
                model = learn_symmetry(z, rates, None if options is None else rep, generator=draws, **(options or {}))
                row[arm] = {"error": error(model.vector_field(test), pendulum.vector_field(test)), "noise": model.noise,
                            "strength": model.strength, "log_evidence": model.log_evidence}  # fmt: skip
                if model.generator is not None:
                    row[arm]["axis"] = off_axis(model.generator, wind)
            rows[f"{wind:g},{count}"] = row
    return rows


def rates_of(energy: torch.nn.Module, z: Tensor, *, train: bool) -> Tensor:
    """J grad H of a network H."""
    z = z.detach().requires_grad_()
    (slope,) = torch.autograd.grad(energy(z).sum(), z, create_graph=train)
    return torch.cat([slope[:, 6:], -slope[:, :6]], 1)


def frame(seed: int) -> Row:
    """Hamiltonian networks in wind 0.1 from 300 states: without symmetry, in the vertical frame, and in learned ones.

    Of the learned ones the first starts from the vertical frame, the second from the axis that `discover` finds in the network
    without symmetry.
    """
    wind, generator = 0.1, torch.Generator().manual_seed(seed)
    pendulum = Pendulum(wind=wind)
    z, test = states(pendulum, 300, generator).float(), states(pendulum, 300, generator).float()
    y, truth = pendulum.vector_field(z), pendulum.vector_field(test)
    hidden = [(64 * T(0) + 16 * T(1))(O2eR3())] * 2
    rows: Row = {}
    start = torch.zeros(3)
    for arm in ("none", "vertical", "learned", "discovered"):
        draws = torch.Generator().manual_seed(seed)
        if arm == "none":
            net: torch.nn.Module = MLP(4 * V, Scalar, O2eR3(), hidden=128, generator=draws)
        else:
            net = EMLP(4 * V, Scalar, O2eR3(), hidden, generator=draws, bilinear="published")
        if arm in ("learned", "discovered"):
            net = LearnedFrame(net, (4 * V)(SO(3)), Scalar(SO(3)))
        if isinstance(net, LearnedFrame) and arm == "discovered":
            with torch.no_grad():
                net.coefficients.copy_(start)
        frames = [p for name, p in net.named_parameters() if name == "coefficients"]
        others = [p for name, p in net.named_parameters() if name != "coefficients"]
        rate = 1e-2 if arm == "discovered" else 3e-2
        optimiser = torch.optim.Adam([{"params": others, "base": 1e-2}, {"params": frames, "base": rate}])
        for step in range(FRAME_STEPS):
            for group in optimiser.param_groups:
                group["lr"] = group["base"] * 0.5 * (1 + math.cos(math.pi * step / FRAME_STEPS))
            optimiser.zero_grad()
            (rates_of(net, z, train=True) - y).square().mean().backward()
            optimiser.step()
        rows[arm] = {"error": error(rates_of(net, test, train=False), truth)}
        if arm == "none":
            start, rows[arm]["axis"] = frame_of(net, z, wind)
        if isinstance(net, LearnedFrame):
            R = net.element().detach().double()
            rows[arm]["axis"] = off_axis(R @ VERTICAL @ R.mT, wind)
    return rows


def frame_of(net: torch.nn.Module, z: torch.Tensor, wind: float) -> tuple[torch.Tensor, float]:
    """Coefficients of the turn from the vertical to the axis of a network's field, and how far off that is, in degrees."""
    family = SO(3)
    rep = (4 * V)(family)
    A = discover(lambda x: rates_of(net, x.float(), train=False).to(x.dtype), rep, rep, z.double()).generators[0]
    axis = torch.stack([A[2, 1], A[0, 2], A[1, 0]])
    axis = axis / axis.norm() * axis[2].sign()
    across = torch.linalg.cross(axis.new_tensor([0.0, 0.0, 1.0]), axis)
    x, y, _ = across / across.norm() * torch.atan2(across.norm(), axis[2])
    turn = torch.stack([*(x * 0, x * 0, y), *(x * 0, x * 0, -x), *(-y, x, x * 0)]).view(3, 3)
    coefficients = torch.linalg.lstsq(family.lie_algebra.double().flatten(1).mT, turn.flatten()[:, None]).solution
    return coefficients[:, 0].float(), off_axis(A, wind)


def exact(seed: int) -> Row:
    """The exact field in wind, with equal masses and not; from rates along trajectories; and what discovery costs."""
    rows: Row = {}
    family = GL(3)
    for name, options in {"equal": {}, "m2 = 2": {"m2": 2}}.items():
        for wind in (0.01, 0.1):
            generator = torch.Generator().manual_seed(seed)
            pendulum = Pendulum(wind=wind, **options)
            rep = pendulum.rep(family)
            z = states(pendulum, 500, generator)
            start = time.process_time()
            found = discover(pendulum.vector_field, rep, rep, z)
            spent = time.process_time() - start
            rows[f"{name},{wind:g}"] = {"verdict": found.verdict, "count": len(found.generators), "seconds": spent,
                "defects": found.spectrum.tolist(),
                "axis": off_axis(found.generators[0], wind) if len(found.generators) == 1 else None}  # fmt: skip
    return rows


def placed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Digits turned by any angle and shifted by up to two pixels."""
    n = len(images)
    angle = 2 * math.pi * torch.rand(n, generator=generator)
    shift = (torch.rand(n, 2, generator=generator) - 0.5) * (8 / images.shape[-1])
    cos, sin = angle.cos(), angle.sin()
    theta = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def images(seed: int) -> Row:
    """Affine generators of classifiers of small digits, trained on turned and shifted ones or on upright ones."""
    bunch = load_digits()
    x = torch.nn.functional.pad(torch.as_tensor(bunch.images).float()[:, None] / 16, (3, 4, 3, 4))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], torch.as_tensor(bunch.target)[order]
    rows: Row = {}
    for arm in ("moved", "upright"):
        draws = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            conv, act = torch.nn.Conv2d, torch.nn.ReLU
            net = torch.nn.Sequential(
                conv(1, 32, 5, padding=2), act(), torch.nn.AvgPool2d(2),
                conv(32, 64, 3, padding=1), act(), torch.nn.AvgPool2d(2), conv(64, 64, 3), act(),
                torch.nn.Flatten(), torch.nn.Linear(64, 64), act(), torch.nn.Linear(64, 10),
            )  # fmt: skip
        optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
        for step in range(IMAGE_STEPS):
            optimiser.param_groups[0]["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / IMAGE_STEPS))
            batch = torch.randint(1400, (64,), generator=draws)
            shown = placed(x[batch], draws) if arm == "moved" else x[batch]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(shown), y[batch]).backward()
            optimiser.step()
        test = placed(x[1400:], draws) if arm == "moved" else x[1400:]
        with torch.no_grad():
            accuracy = float((net(test).argmax(1) == y[1400:]).float().mean())
        found = discover_affine(lambda x, net=net: net(x) - net(x).mean(1, keepdim=True), test)
        rows[arm] = {"accuracy": accuracy, "verdict": found.verdict, "count": len(found.generators), "gap": found.gap,
            "defects": found.spectrum.tolist(), "generators": found.generators.tolist(),
            "angles": {name: outside(torch.tensor(v), found.coefficients) for name, v in MOTIONS.items()}
                if len(found.generators) else None}  # fmt: skip
    return rows


def outside(direction: Tensor, coefficients: Tensor) -> float:
    """Degrees between a direction and the span of those that were found."""
    q, _ = torch.linalg.qr(coefficients.mT)
    unit = torch.nn.functional.normalize(direction.double(), dim=0)
    return math.degrees(math.acos(min(1.0, float((q.mT @ unit).norm()))))


def table(part: str, runs: dict[str, Row]) -> None:
    """Print what was measured, as Markdown."""
    rows = list(runs.values())
    if part == "fields":
        print("| steps | error of the field | verdict | degrees off the axis, median, largest | smallest defects |")
        print("| ---: | ---: | --- | ---: | ---: |")
        for steps in rows[0]:
            own = [row[steps] for row in rows]
            axes = [one["axis"] for one in own if one["axis"] is not None]
            shown = f"{np.median(axes):.1f}, {max(axes):.1f}" if axes else ""
            words = ", ".join(f"{sum(one['verdict'] == v for one in own)} {v}" for v in ("approximate", "none"))
            first, second = (np.median([one["defects"][i] for one in own]) for i in (0, 1))
            print(
                f"| {steps} | {np.median([one['error'] for one in own]):.3f} | {words} | {shown} | {first:.2f}, {second:.2f} |"
            )
        return
    if part == "exact":
        print(
            "| masses, wind | verdict | degrees off, largest | smallest defect, largest | next, smallest | seconds, median |"
        )
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for cell in rows[0]:
            own = [row[cell] for row in rows]
            words = ", ".join(sorted({f"{one['verdict']} ({one['count']})" for one in own}))
            axes = [one["axis"] for one in own if one["axis"] is not None]
            low, high = min(one["defects"][0] for one in own), max(one["defects"][0] for one in own)
            following = min(one["defects"][1] for one in own)
            seconds = np.median([one["seconds"] for one in own])
            shown = f"{max(axes):.1e}" if axes else ""
            print(f"| {cell} | {words} | {shown} | {low:.1e} to {high:.1e} | {following:.2f} | {seconds:.2f} |")
        return
    if part == "images":
        print(
            "| trained on digits | accuracy | verdicts (generators) | median defects | largest angle of shifts, of rotation |"
        )
        print("| --- | ---: | --- | --- | ---: |")
        for arm in rows[0]:
            own = [row[arm] for row in rows]
            words = ", ".join(f"{one['verdict']} ({one['count']})" for one in own)
            shown = ", ".join(f"{x:.2f}" for x in np.median([one["defects"] for one in own], axis=0))
            angles = [one["angles"] for one in own if one["angles"]]
            worst = [max((a[name] for a in angles), default=math.nan) for name in MOTIONS]
            accuracy = np.mean([one["accuracy"] for one in own])
            print(f"| {arm} | {accuracy:.3f} | {words} | {shown} | {max(worst[:2]):.1f}, {worst[2]:.1f} |")
        return
    if part == "robots":
        print("| robot | candidates | residual | first, with its score and verdict on each seed | second |")
        print("| --- | ---: | ---: | --- | --- |")
        for cell in rows[0]:
            own = [row[cell] for row in rows]
            first, second = (
                "; ".join(
                    f"{one['best'][i]['name']}: {one['best'][i]['score']:.3f}, {one['best'][i]['verdict']}"
                    for one in own
                )
                for i in (0, 1)
            )
            print(f"| {cell} | {own[0]['candidates']} | {own[0]['residual']:.2f} | {first} | {second} |")
        return
    cells = rows[0] if part == "evidence" else {"0.1,300": rows[0]}
    print("| wind, states | degrees off, largest | learned | vertical | none | learned / vertical | learned / none |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cell in cells:
        own = [row[cell] for row in rows] if part == "evidence" else rows
        errors = {arm: [one[arm]["error"] for one in own] for arm in ("learned", "vertical", "none")}
        ratios = [paired_ratio(errors["learned"], errors[other]) for other in ("vertical", "none")]
        means = " | ".join(f"{np.mean(errors[arm]):.4f}" for arm in errors)
        shown = " | ".join(f"{ratio:.3f} [{low:.3f}, {high:.3f}]" for ratio, (low, high) in ratios)
        print(f"| {cell} | {max(one['learned']['axis'] for one in own):.2f} | {means} | {shown} |")


def draw(whole: dict[str, dict[str, Row]], path: Path) -> None:
    """Defects of the exact field, defects of networks by their error, and scores of Walker2d's permutations."""
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    for k, (name, label) in enumerate({"equal": "equal masses", "m2 = 2": "masses 2 to 1"}.items()):
        for row in whole["exact"].values():
            left.semilogy(range(1, 10), np.maximum(row[f"{name},0.1"]["defects"], 1e-16), "os"[k] + "-", color=f"C{k}",
                          ms=4, lw=0.6, label=label)  # fmt: skip
            label = "_"
    left.set(title="exact field, wind 0.1, in gl(3)", xlabel="direction of the family", ylabel="relative defect",
             xticks=range(1, 10))  # fmt: skip
    left.legend(frameon=False, loc="lower right")
    for k, kind in enumerate(("smallest", "next")):
        points = np.array(
            [(one["error"], one["defects"][k]) for row in whole["fields"].values() for one in row.values()]
        )
        middle.loglog(*points.T, "os"[k], color=f"C{k}", ms=4, alpha=0.7, label=f"{kind} defect")
    middle.set(title="networks of that field, in so(3)", xlabel="error of the network's field")
    middle.legend(frameon=False)
    for k, (seed, row) in enumerate(whole["robots"].items()):
        scores = [one["score"] for one in row["Walker2d-v5,permutations"]["best"]]
        right.plot(range(1, len(scores) + 1), scores, "o-", color=f"C{k}", ms=4, lw=0.8, label=f"seed {seed}")
        for i, one in enumerate(row["Walker2d-v5,permutations"]["best"]):
            if one["name"].count("<->") == 3 and all(f"{j}_joint <-> {j}_left_joint" in one["name"] for j in LEGS):
                right.plot(i + 1, scores[i], "o", color=f"C{k}", ms=11, mfc="none")
    right.set(title="Walker2d: the leg swap, ringed", xlabel="rank of the permutation", ylabel="score", ylim=(0, None))
    right.legend(frameon=False, loc="lower right")
    save_small(figure, path)
    plt.close(figure)


PARTS: dict[str, Callable[[int], Row]] = {
    "exact": exact, "fields": fields, "evidence": evidence, "frame": frame, "images": images,
}  # fmt: skip


def main() -> None:
    """Measure what the file does not hold; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "robots"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    parser.add_argument("--figure", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    whole = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    runs = whole.setdefault(arguments.part, {})
    for seed in arguments.seeds if arguments.part in PARTS else ():
        if str(seed) not in runs:
            runs[str(seed)] = PARTS[arguments.part](seed)
            write_json(arguments.json, whole)
    table(arguments.part, runs)
    if arguments.figure is not None:
        draw(whole, arguments.figure)


if __name__ == "__main__":
    main()
