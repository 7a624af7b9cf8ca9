r"""What measuring equivariance costs, how it compares with closed forms, and the picture of docs/concepts/equivariance.md.

OMP_NUM_THREADS=2 python benchmarks/equivariance.py --json docs/results/equivariance.json --figure docs/concepts/equivariance.png
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import conditions
from torch import Tensor, nn

from rppdyn.envs import symmetry_spec
from rppdyn.equivariance import (
    aliasing_error,
    aliasing_lie_derivative,
    equivariance_error,
    error_by_input,
    error_by_output,
    images,
    layerwise_difference,
    layerwise_lie_derivative,
    lie_derivative,
    relative_difference,
)
from rppdyn.groups import SO, D, O
from rppdyn.nn import EMLP, MLP, RPPEMLP, merge
from rppdyn.reps import Rep, Scalar, T, V
from rppdyn.runs.figures import COLOURS

ROTATIONS = SO(3)
BODY = (5 * T(0) + 5 * T(1))(ROTATIONS)
STATES = 1000
PIXELS = 2_000_000  # of all images of one size
CULPRIT = "blocks.1.linear"


def seeded(seed: int = 0) -> torch.Generator:
    """A source of random numbers of its own."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# -- closed forms -----------------------------------------------------------------------------------------------------


def linear_maps() -> list[dict]:
    """Lie derivatives of random linear maps: W d rho_in(A) - d rho_out(A) W, applied to x."""
    rows = []
    for rep_in, rep_out in ((V(ROTATIONS), V(ROTATIONS)), (BODY, T(2)(ROTATIONS))):
        W, x = normal(rep_out.dim, rep_in.dim), normal(50, rep_in.dim, seed=2)
        pairs = zip(rep_in.lie_generators, rep_out.lie_generators, strict=True)
        truth = torch.stack([x @ (W @ A - B @ W).T for A, B in pairs])
        measured = lie_derivative(lambda x, W=W: x @ W.T, rep_in, rep_out, x)
        rows.append(
            {"map": f"{rep_in} -> {rep_out}", "relative deviation": float((measured - truth).norm() / truth.norm())}
        )
    return rows


def strict_networks() -> list[dict]:
    """Errors of EMLPs, which are rounding."""
    rows = []
    for name, (rep_in, rep_out) in networks().items():
        for dtype in (torch.float64, torch.float32):
            net = EMLP(rep_in, rep_out, rep_in.G, hidden=64, generator=seeded()).to(dtype)
            error = equivariance_error(net, rep_in, rep_out, normal(100, rep_in.dim).to(dtype))
            worst = max([error.mean, *error.per_generator.values()])
            rows.append({"network": name, "dtype": str(dtype).removeprefix("torch."), "largest error": worst})
    return rows


def planted(group_name: str) -> dict:
    """Layerwise contributions in a strict network with noise on the weights of one layer."""
    rep_in, rep_out = networks()[group_name]
    net = merge(EMLP(rep_in, rep_out, rep_in.G, hidden=64, generator=seeded()).double())
    weight = net.get_submodule(CULPRIT).weight
    with torch.no_grad():
        weight += 0.05 * normal(*weight.shape)
    measure = layerwise_lie_derivative if len(rep_in.G.lie_algebra) else layerwise_difference
    found = measure(net, rep_in, rep_out, normal(50, rep_in.dim, seed=3))
    residual = (found.contributions.sum(1) - found.total).norm() / found.total.norm()
    return {
        "network": group_name,
        "culprit": CULPRIT,
        "blamed": [found.largest(g) for g in found.generators],
        "sum against end to end": float(residual),
        "layers": list(found.layers),
        "norm": found.norm.mean(0).tolist(),
    }


def aliasing() -> list[dict]:
    """The mean square of the Lie derivative of subsampling, measured and in closed form, over white images."""
    flow, rows = images.translation("x", "fourier"), []
    for size, stride in ((16, 2), (24, 2), (32, 2), (24, 3), (48, 3), (16, 4), (32, 4), (30, 5)):
        x = normal(PIXELS // size**2, 1, size, size)
        measured = lie_derivative(lambda x, s=stride: x[..., ::s, ::s], flow, flow, x)[0]
        truth, printed = aliasing_lie_derivative(x, stride, (1.0, 0.0)), aliasing_error(x, stride, (1.0, 0.0))
        squares = measured.square().mean((1, 2, 3))
        rows.append({
            "size": size,
            "stride": stride,
            "measured": float(squares.mean()),
            "largest relative deviation from the closed form": float((measured - truth).norm() / truth.norm()),
            "mean over images, measured / Theorem 4.1": float(squares.mean() / printed.mean()),
            "standard deviation of that ratio over images": float((squares / printed).std()),
        })  # fmt: skip
    return rows


# -- cost -------------------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Rep, Rep]]:
    """Representations of input and output, by a name."""
    walker = symmetry_spec("Walker2d-v5")
    return {
        "Walker2d-v5, Z(2)": (walker.obs_rep, walker.action_rep),
        "D(4)": ((12 * V + 3 * Scalar)(D(4)), (4 * V)(D(4))),
        "SO(3)": (BODY, T(1)(ROTATIONS)),
    }


def seconds(f: Callable[[], object]) -> float:
    """Wall time of the second call: the first one solves bases and compiles."""
    f()
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def cost(name: str, rep_in: Rep, rep_out: Rep, width: int = 256) -> dict:
    """Seconds for 1,000 states, of a foreign policy and of a relaxed one; three hidden layers."""
    layers = [nn.Linear(rep_in.dim, width), nn.ReLU()]
    layers += [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, rep_out.dim)]
    foreign = nn.Sequential(*layers)
    relaxed = RPPEMLP(rep_in, rep_out, rep_in.G, hidden=width, generator=seeded())
    x = normal(STATES, rep_in.dim).float()
    entries = {"in": [f"in {i}" for i in range(rep_in.dim)], "out": [f"out {i}" for i in range(rep_out.dim)]}
    layerwise = layerwise_lie_derivative if len(rep_in.G.lie_algebra) else layerwise_difference
    return {
        "symmetry": name,
        "error, MLP": seconds(lambda: equivariance_error(foreign, rep_in, rep_out, x)),
        "error, RPP": seconds(lambda: equivariance_error(relaxed, rep_in, rep_out, x)),
        "by output, MLP": seconds(lambda: error_by_output(foreign, rep_in, rep_out, x, entries["out"])),
        "by input, MLP": seconds(lambda: error_by_input(foreign, rep_in, rep_out, x, entries["in"])),
        "layerwise, RPP": seconds(lambda: layerwise(relaxed, rep_in, rep_out, x)),
    }


# -- the picture ------------------------------------------------------------------------------------------------------


def angles() -> dict:
    """Error of Eq. 3.3 for rotations by one angle about the first axis, and what the Lie derivative predicts."""
    rep_in, rep_out = BODY, T(1)(ROTATIONS)
    kinds = {"MLP": (MLP, {}), "RPP": (RPPEMLP, dict(free_scale=0.02)), "EMLP": (EMLP, {})}
    t = torch.logspace(-4, 0.5, 28, dtype=torch.float64)
    x, A, curves = normal(200, rep_in.dim), ROTATIONS.lie_algebra[0], {}
    for name, (kind, options) in kinds.items():
        net = kind(rep_in, rep_out, ROTATIONS, hidden=64, num_layers=2, generator=seeded(), **options).double()
        with torch.no_grad():
            errors = []
            for angle in t:
                g = torch.eye(3, dtype=torch.float64) + angle.sin() * A + (1 - angle.cos()) * A @ A  # to the last digit
                errors.append(float(relative_difference(net(x) @ rep_out.rho(g).T, net(x @ rep_in.rho(g).T)).mean()))
        slope = equivariance_error(net, rep_in, rep_out, x, n_samples=1).per_generator["A0"]
        curves[name] = {"errors": errors, "slope": slope}
    return {"t": t.tolist(), "curves": curves}


def blame() -> dict[str, float]:
    """Errors by generator and its axis, of a function that rotations about z and the reflection leave alone."""
    G = O(3)
    axes = {f"A{i}": f"about {'xyz'[int(A.abs().sum(0).argmin())]}" for i, A in enumerate(G.lie_algebra)}
    f = lambda x: x.norm(dim=-1, keepdim=True) + 0.1 * x[:, 2:] ** 2  # noqa: E731
    error = equivariance_error(f, V(G), Scalar(G), normal(500, 3))
    return {f"{name}\n{axes.get(name, 'reflection')}": value for name, value in error.per_generator.items()}


def draw(data: dict, out: Path) -> None:
    """Four panels, one for each question."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    (a, b), (c, d) = figure.subplots(2, 2)
    t = torch.tensor(data["angles"]["t"])
    for colour, (name, curve) in zip(COLOURS, data["angles"]["curves"].items(), strict=False):
        a.loglog(t, curve["errors"], color=colour, label=name)
        if curve["slope"] > 1e-10:
            a.loglog(t, curve["slope"] * t, "--", color=colour, linewidth=1)
    a.set(title="How much? error of Eq. 3.3 (dashed: t · |Lf| / 2|f|)", xlabel="rotation t (radians)", ylabel="error",
          ylim=(1e-17, 3))  # fmt: skip
    a.legend(edgecolor="none")
    b.bar(list(data["blame"]), [max(v, 1e-17) for v in data["blame"].values()], color=COLOURS[0], log=True)
    b.set(title="Which symmetry? |x| + z² / 10, by generator", ylabel="error", ylim=(1e-17, 3))
    found = next(p for p in data["planted"] if p["network"] == "SO(3)")
    bars = c.barh(found["layers"], [max(v, 1e-17) for v in found["norm"]], color=COLOURS[0], log=True)
    bars[found["layers"].index(found["culprit"])].set_color(COLOURS[1])
    c.invert_yaxis()
    c.set(title="Which layer? a strict network, noise on one layer", xlabel="|contribution to Lf|", xlim=(1e-17, 10))
    for stride in sorted({row["stride"] for row in data["aliasing"]}):
        rows = [row for row in data["aliasing"] if row["stride"] == stride]
        closed = [row["measured"] / row["mean over images, measured / Theorem 4.1"] for row in rows]
        d.loglog(closed, [row["measured"] for row in rows], "o", color=COLOURS[stride - 2], label=f"stride {stride}")
    ends = [
        min(row["measured"] for row in data["aliasing"]) / 1.5,
        max(row["measured"] for row in data["aliasing"]) * 1.5,
    ]
    d.loglog(ends, ends, color="0.6", zorder=0)
    d.set(title="Is it right? subsampling images, mean of |Lf|² / dim", xlabel="Theorem 4.1", ylabel="measured")
    d.legend(edgecolor="none")
    for axes in (a, b, c, d):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.title.set_fontsize("medium")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def main() -> None:
    """Parse arguments, measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    parser.add_argument("--figure", type=Path, help="where to draw the picture")
    arguments = parser.parse_args()
    data: dict = {
        "conditions": conditions(),
        "linear maps": linear_maps(),
        "strict networks": strict_networks(),
        "planted": [planted(name) for name in networks()],
        "aliasing": aliasing(),
        f"seconds for {STATES} states": [cost(name, *reps) for name, reps in networks().items()],
        "angles": angles(),
        "blame": blame(),
    }
    for title in [key for key in data if isinstance(data[key], list)]:
        print(f"\n{title}")
        for row in data[title]:
            print("  " + "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    if arguments.figure:
        draw(data, arguments.figure)


if __name__ == "__main__":
    main()
