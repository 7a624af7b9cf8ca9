"""Forms of the Laplace approximation against the exact one: `python docs/results/evidence_forms.py --json FILE`.

With `--blocks` the first four networks alone, block by block: the effective numbers that the package gave before joint
evidence (Kronecker factors, each pathway for itself), the exact ones of each pathway alone, those of joint evidence, and
those of the dense Gauss-Newton matrix of all coefficients, which is built and factored here by itself.

Small networks, trained by MAP for some hundred steps, whose joint evidence of all data and outputs is exact (the tests
compare it with the dense matrix of all coefficients). Beside it each pathway as if it were alone, the Kronecker form, and the
joint one from random targets or a subset: log-determinants as ratios to the exact one, and effective numbers of parameters.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rppdyn.groups import Z
from rppdyn.images import ImageModel, LayerSpec
from rppdyn.nn import RPPEMLP, Chained
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import (
    Categorical,
    Evidence,
    Gaussian,
    Likelihood,
    curvature,
    joint_evidence,
    kronecker_evidence,
    negative_log_prior,
)
from rppdyn.priors._joint import JointEvidence
from rppdyn.reps import V
from rppdyn.runs.files import write_json
from rppdyn.tasks import regression_task

Case = tuple[nn.Module, Tensor, Tensor, Likelihood]


def normal(*shape: int, seed: int) -> Tensor:
    """Independent normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regular(variance: float, seed: int) -> Case:
    """Z(2) on the plane, two hidden layers of 16 channels of the regular representation, 150 data."""
    x = normal(150, 2, seed=seed)
    y = x * x.norm(dim=-1, keepdim=True) + 0.1 * normal(150, 2, seed=seed + 100)
    net = RPPEMLP(V, V, Z(2), 16, 2, free_variance=variance, generator=torch.Generator().manual_seed(seed))
    return net.double(), x, y, Gaussian(0.01)


def inertia(variance: float, seed: int) -> Case:
    """Inertia under O(3), two hidden layers of 32 channels with bilinear layers, 60 data of 9 outputs."""
    task = regression_task("inertia", None, None)
    x, y = task.sample(60, torch.Generator().manual_seed(seed))
    net = RPPEMLP(
        task.rep_in,
        task.rep_out,
        task.group,
        32,
        2,
        free_variance=variance,
        generator=torch.Generator().manual_seed(seed),
    )
    return net.double(), x.double(), (y / y.std()).double(), Gaussian(0.01)


def images(pathways: dict[str, float], seed: int) -> Case:
    """Maps of 6 x 6 pixels in three classes by what a filter finds in them, two layers of 4 channels, 100 data."""
    x = normal(100, 1, 6, 6, seed=seed)
    y = torch.stack([(x * x.roll(shift, (2, 3))).sum((1, 2, 3)) for shift in ((0, 1), (1, 0), (1, 1))], 1).argmax(1)
    specs, generator = [LayerSpec(4), LayerSpec(4)], torch.Generator().manual_seed(seed)
    return ImageModel(specs, 1, (6, 6), 3, pathways, generator=generator).double(), x, y, Categorical()


CASES: dict[str, Callable[[int], Case]] = {
    "Z(2), regular, variance 1": lambda seed: regular(1.0, seed),
    "Z(2), regular, variance 1e-4": lambda seed: regular(1e-4, seed),
    "inertia, O(3), variance 1": lambda seed: inertia(1.0, seed),
    "inertia, O(3), variance 1e-4": lambda seed: inertia(1e-4, seed),
    "images, conv and fc": lambda seed: images({"conv": 1.0, "fc": 1e-2}, seed),
    "images, conv and f_fc": lambda seed: images({"conv": 1.0, "f_fc": 1e-1}, seed),
    "images, conv": lambda seed: images({"conv": 1.0}, seed),
}


def trained(net: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood, steps: int) -> None:
    """Maximum a posteriori, by Adam at a falling rate."""
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        ((likelihood.negative_log(net(x), y) + negative_log_prior(net)) / len(x)).backward()
        optimiser.step()


def alone(exact: JointEvidence) -> tuple[float, Tensor]:
    """The determinant without blocks between pathways, and effective numbers by it; each block exact."""
    total, effective = 0.0, []
    for p, kernel in zip(exact.pathways, exact.kernels, strict=True):
        one = JointEvidence([p], kernel[None])
        total += float(one.log_determinant(one.log_variances))
        effective.append(float(one.effective()))
    return total, torch.tensor(effective)


def numbers(found: Evidence, exact: JointEvidence, free: tuple[str, ...]) -> dict[str, float]:
    """The log-determinant as a ratio, and the effective number of free pathways of the first layer and the head."""
    own = {(p.layer, p.name): float(v) for p, v in zip(found.pathways, found.effective().detach(), strict=True)}
    value = float(found.log_determinant(found.log_variances)) / float(exact.log_determinant(exact.log_variances))
    return {"ratio": value} | _free(own, free)


def _free(own: dict[tuple[str, str], float], free: tuple[str, ...]) -> dict[str, float]:
    layers = list(dict.fromkeys(layer for layer, _ in own))
    at = {"first": layers[0], "head": layers[-1]}
    return {
        key: sum(v for (layer, name), v in own.items() if layer == where and name in free) for key, where in at.items()
    }


def measured(case: Case, steps: int, seed: int) -> dict[str, Any]:
    """All forms of one network."""
    net, x, y, likelihood = case
    trained(net, x, y, likelihood, steps)
    free = ("free", "fc", "f_fc")
    exact = joint_evidence(net, x, likelihood)
    value, each = alone(exact)
    chained = Chained(net) if isinstance(net, RPPEMLP) else net
    found: dict[str, Any] = {"exact": numbers(exact, exact, free)}
    found["exact"]["log_determinant"] = float(exact.log_determinant(exact.log_variances))
    own = {(p.layer, p.name): float(v) for p, v in zip(exact.pathways, each, strict=True)}
    found["alone"] = {"ratio": value / found["exact"]["log_determinant"]} | _free(own, free)
    blocks = curvature(net, chained, [x], likelihood)
    found["kronecker"] = numbers(kronecker_evidence(net, blocks), exact, free)
    stream = torch.Generator().manual_seed(seed)
    for draws in (1, 2, 4):
        sampled = joint_evidence(net, x, likelihood, generator=stream, draws=draws)
        found[f"{draws} drawn"] = numbers(sampled, exact, free)
    for share in (2, 4):
        part = joint_evidence(net, x[: len(x) // share], likelihood, total=len(x))
        found[f"1/{share} of the data"] = numbers(part, exact, free)
    return found


def before(net: nn.Module, x: Tensor, likelihood: Likelihood) -> tuple[float, dict[str, float]]:
    """Log-determinant and effective numbers as they were: Kronecker factors, shared directions counted with each pathway.

    Layers without factors have none.
    """
    found = kronecker_evidence(net, curvature(net, Chained(net), [x], likelihood))
    value, effective = 0.0, {}
    for p, own in zip(found.pathways, found.eigenvalues, strict=True):
        scaled = float(p.log_variance.exp()) * own
        value += float(scaled.log1p().sum())
        effective[f"{p.layer}.{p.name}"] = float((scaled / (1 + scaled)).sum())
    return value, effective


def dense(net: nn.Module, x: Tensor, likelihood: Likelihood) -> tuple[float, dict[str, float], int]:
    r"""The same of the matrix :math:`I + \Sigma^{1/2} J^T J \Sigma^{1/2}` of all P coefficients, and P."""
    named = [(f"{layer}.{name}", pathway) for layer, name, pathway in named_pathways(net)]
    scales, parameters = [], []
    for _, pathway in named:
        leaves = [pathway.get_parameter(leaf) for leaf in pathway.coefficient_names()]
        total = torch.stack([c.sum() for c in pathway.coefficients()]).sum()
        parameters.append(leaves)
        scales.append([float(pathway.variance) ** 0.5 / unit for unit in torch.autograd.grad(total, leaves)])
    flat = [p for leaves in parameters for p in leaves]
    units = [scale for own in scales for scale in own]
    outputs = net(x)
    rows = []
    for factor in likelihood.factors(outputs.detach()):
        for n in range(len(x)):
            found = torch.autograd.grad(outputs[n], flat, factor[n], retain_graph=True)
            rows.append(torch.cat([(g * s).flatten() for g, s in zip(found, units, strict=True)]))
    J = torch.stack(rows)
    root = torch.linalg.cholesky(torch.eye(J.shape[1], dtype=J.dtype) + J.T @ J)
    inverse = torch.cholesky_inverse(root).diagonal()
    shares = (1 - inverse).split([sum(p.numel() for p in leaves) for leaves in parameters])
    effective = {key: float(share.sum()) for (key, _), share in zip(named, shares, strict=True)}
    return 2 * float(root.diagonal().log().sum()), effective, J.shape[1]


def by_block(case: Case, steps: int) -> dict[str, Any]:
    """All four, by block."""
    net, x, y, likelihood = case
    trained(net, x, y, likelihood, steps)
    exact = joint_evidence(net, x, likelihood)
    names = [f"{p.layer}.{p.name}" for p in exact.pathways]
    value, each = alone(exact)
    found = {"alone": (value, dict(zip(names, each.tolist(), strict=True)))}
    found["before"] = before(net, x, likelihood)
    joint = dict(zip(names, exact.effective().tolist(), strict=True))
    found["joint"] = float(exact.log_determinant(exact.log_variances)), joint
    *whole, size = dense(net, x, likelihood)
    found["dense"] = (whole[0], whole[1])
    return {"rows": len(exact.kernels[0]), "coefficients": size} | {
        form: {"log_determinant": value, "effective": effective} for form, (value, effective) in found.items()
    }


def print_blocks(found: dict[str, dict[str, Any]]) -> None:
    """As Markdown."""
    forms = ("before", "alone", "joint", "dense")
    print("| network | block | " + " | ".join(forms) + " |\n| --- | --- " + "| ---: " * len(forms) + "|")
    for name, own in found.items():
        print(f"| {name} | log det | " + " | ".join(f"{own[form]['log_determinant']:.1f}" for form in forms) + " |")
        for block in own["joint"]["effective"]:
            cells = [own[form]["effective"].get(block) for form in forms]
            print(f"| | {block} | " + " | ".join("–" if v is None else f"{v:.2f}" for v in cells) + " |")


def main() -> None:
    """Print the table, as Markdown; write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    if arguments.blocks:
        blocks = {name: by_block(case(arguments.seeds[0]), arguments.steps) for name, case in list(CASES.items())[:4]}
        print_blocks(blocks)
        if arguments.json:
            write_json(arguments.json, {"steps": arguments.steps, "seed": arguments.seeds[0], "networks": blocks})
        return
    found = {
        name: [measured(case(seed), arguments.steps, seed) for seed in arguments.seeds] for name, case in CASES.items()
    }
    forms = list(next(iter(found.values()))[0])
    print("| network | log det | " + " | ".join(form for form in forms if form != "exact") + " |")
    print("| --- " + "| ---: " * len(forms) + "|")
    for name, runs in found.items():
        mean = lambda form, key, runs=runs: sum(run[form][key] for run in runs) / len(runs)  # noqa: E731
        cells = [f"{mean('exact', 'log_determinant'):.0f}"] + [f"{mean(f, 'ratio'):.2f}" for f in forms if f != "exact"]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| effective free parameters: first layer, head | " + " | ".join(forms) + " |")
    print("| --- " + "| ---: " * len(forms) + "|")
    for name, runs in found.items():
        mean = lambda form, key, runs=runs: sum(run[form][key] for run in runs) / len(runs)  # noqa: E731
        print(f"| {name} | " + " | ".join(f"{mean(f, 'first'):.1f}, {mean(f, 'head'):.1f}" for f in forms) + " |")
    if arguments.json:
        write_json(arguments.json, {"steps": arguments.steps, "seeds": arguments.seeds, "cases": found})


if __name__ == "__main__":
    main()
