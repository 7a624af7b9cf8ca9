r"""Time one action: networks as they are, merged, frozen and exported, beside torch's own MLP of the same widths, batch 1.

    OMP_NUM_THREADS=1 python benchmarks/acting.py --json build/acting.json

Networks take turns in one process, twenty calls each per round. "exported" is ONNX Runtime, whose peer is the exported MLP.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from measuring import Step, Timing, begin, command_line, installed, interleave, report, write_times
from torch import nn

from rppdyn.groups import SO, D, S, SO13p, Z
from rppdyn.nn import EMLP, RPPEMLP, freeze, merge
from rppdyn.reps import Rep, Scalar, V

WIDTH, LAYERS, CALLS = 256, 2, 20


def cases() -> dict[str, tuple[Rep, Rep]]:
    """Inputs and outputs by name: a walker, bodies in space, in space-time, and swarms."""
    swarm, planar = SO(3) * S(3), D(4) * S(4)
    bodies = V(S(3)).lift(swarm) * V(SO(3)).lift(swarm)
    walkers = V(S(4)).lift(planar) * V(D(4)).lift(planar)
    return {
        "Z(2)": ((6 * V)(Z(2)), (3 * V)(Z(2))),
        "SO(3)": ((4 * V + Scalar)(SO(3)), V(SO(3))),
        "SO13p": ((4 * V)(SO13p()), V(SO13p())),
        "SO(3) x S(3)": (bodies + bodies, bodies),
        "D(4) x S(4)": (walkers + walkers, walkers),
    }


def plain(rep_in: Rep, rep_out: Rep) -> nn.Module:
    """Linear layers of torch with swish."""
    widths = [rep_in.dim, *[WIDTH] * LAYERS]
    hidden = [nn.Sequential(nn.Linear(n, m), nn.SiLU()) for n, m in pairwise(widths)]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, rep_out.dim)).requires_grad_(False)


def calls(f: Callable[..., object], *arguments: object) -> Step:
    """A step of several calls."""

    def step() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                f(*arguments)

    return step


def measure(name: str, rep_in: Rep, rep_out: Rep, rounds: int, with_onnx: bool) -> list[Timing]:
    """Eager calls, and those of exported networks."""
    options = dict(hidden=WIDTH, num_layers=LAYERS, generator=torch.Generator().manual_seed(0))
    strict, relaxed = (cls(rep_in, rep_out, rep_in.G, **options) for cls in (EMLP, RPPEMLP))
    nets = {"MLP": plain(rep_in, rep_out), "EMLP": strict, "EMLP, merged": merge(strict), "EMLP, frozen": freeze(strict),
            "RPP": relaxed, "RPP, merged": merge(relaxed), "RPP, frozen": freeze(relaxed)}  # fmt: skip
    x = torch.randn(1, rep_in.dim)
    steps = {key: calls(net, x) for key, net in nets.items()}
    timings = {key: Timing(key, "MLP", 4.0 if "frozen" in key else None) for key in nets}
    with tempfile.TemporaryDirectory() as folder:
        if with_onnx:
            import onnxruntime

            from rppdyn.agents._export import write_onnx

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            for key in ("MLP", "EMLP, frozen", "RPP, frozen"):
                path, exported = Path(folder) / "net.onnx", f"{key.removesuffix(', frozen')}, exported"
                write_onnx(nets[key], path, rep_in.dim, torch.float32)
                session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                steps[exported] = calls(session.run, None, {"observation": np.asarray(x)})
                timings[exported] = Timing(exported, "MLP, exported", None if key == "MLP" else 1.5)
        interleave(steps, timings, rounds)
    report(f"{name}: {LAYERS} layers of {WIDTH}, {CALLS} actions", list(timings.values()))
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    arguments, where = begin(command_line(__doc__, rounds=60, quick=8), "onnxruntime")
    with_onnx = all(installed(name, "pip install 'rppdyn[onnx]'") for name in ("onnx", "onnxscript", "onnxruntime"))
    results = {name: measure(name, *reps, arguments.rounds, with_onnx) for name, reps in cases().items()}
    write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
