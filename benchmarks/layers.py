r"""Time training steps of relaxed and equivariant networks beside an MLP of the same width, and say where the time goes.

    python benchmarks/layers.py --json docs/results/layers.json     # ratios, then the pieces of one block
    python benchmarks/layers.py --assembly                          # ways of turning coefficients into dense weights

A step is forward and backward of a mean-square loss, once without and once with the prior (of both networks). Networks
take turns, one step each per round, in one process; a ratio is that of the medians over rounds. `cpu` is the same from
the processor time of the process, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.groups import SO, D, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, merge
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Rep, Scalar, T, V

Step = Callable[[], object]


@dataclass
class Timing:
    """Wall and processor times of one step, in seconds, one per round."""

    name: str
    peer: str | None = None  # what its ratio is taken against
    target: float | None = None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def interleave(steps: dict[str, Step], timings: dict[str, Timing], rounds: int) -> None:
    """Run every step once per round and note its times."""
    for step in steps.values():
        step()
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            timings[name].wall.append(time.perf_counter() - wall)
            timings[name].cpu.append(time.process_time() - cpu)


def training_step(net: nn.Module, x: Tensor, prior: bool) -> Step:
    """Forward and backward, with the prior over a million data or without it."""

    def step() -> None:
        net.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        if prior:
            loss = loss + negative_log_prior(net) / 1e6
        loss.backward()

    return step


@dataclass
class Table:
    """Networks of one width on one batch; the first is the MLP that the others are measured against."""

    title: str
    rep_in: Rep
    rep_out: Rep
    width: int
    batch: int
    nets: dict[str, tuple[Callable[..., nn.Module], float | None]]


def tables() -> list[Table]:
    """The cases of the targets: robots' widths for regular representations, the thesis's for tensors."""

    def relaxed(*args, **options):
        return RPPEMLP(*args, **options)

    def without_bilinear(*args, **options):
        return RPPEMLP(*args, bilinear=False, **options)

    def merged(*args, **options):
        return merge(without_bilinear(*args, **options))

    regular = {"MLP": (MLP, None), "RPP": (relaxed, 1.4), "EMLP": (EMLP, 0.9), "RPP, merged": (merged, None)}
    tensors = {
        "MLP": (MLP, None),
        "RPP": (without_bilinear, 1.5),
        "EMLP": (lambda *a, **k: EMLP(*a, bilinear=False, **k), None),
        "RPP, merged": (merged, None),
        "RPP, bilinear": (relaxed, 4.0),
        "EMLP, bilinear": (EMLP, None),
    }
    result = []
    for G in (Z(2), D(4)):
        rep = (6 * V + 5 * Scalar)(G)
        result.append(Table(f"{G}, regular representation", rep, (2 * V)(G), 256, 256, regular))
    G = SO(3)
    result.append(Table("SO(3), tensors", (5 * T(0) + 5 * T(1))(G), T(2)(G), 384, 500, tensors))
    return result


def measure(table: Table, rounds: int) -> list[Timing]:
    """Time a table's networks, each without and with the prior where it has one."""
    print(f"\n{table.title}: width {table.width}, batch {table.batch}, three hidden layers")
    x = torch.randn(table.batch, table.rep_in.dim, generator=torch.Generator().manual_seed(0))
    steps, timings = {}, {}
    for name, (build, target) in table.nets.items():
        generator = torch.Generator().manual_seed(0)
        net = build(table.rep_in, table.rep_out, table.rep_in.G, hidden=table.width, generator=generator)
        for prior in (False, True):
            if prior and "merged" in name:
                continue
            key = name + (" + prior" if prior else "")
            steps[key] = training_step(net, x, prior)
            timings[key] = Timing(key, "MLP + prior" if prior else "MLP", target)
    interleave(steps, timings, rounds)
    print(f"  {'':26} {'ms':>8} {'ratio':>7} {'cpu':>7}   target")
    for t in timings.values():
        peer = timings[t.peer]
        ratio, cpu = (statistics.median(getattr(t, k)) / statistics.median(getattr(peer, k)) for k in ("wall", "cpu"))
        target = "" if t.target is None else f"{t.target}"
        print(f"  {t.name:26} {1e3 * statistics.median(t.wall):8.2f} {ratio:7.2f} {cpu:7.2f}   {target}")
    return list(timings.values())


def pieces(table: Table, rounds: int) -> list[Timing]:
    """Forward and backward of the parts of the second block of the network with bilinear layers."""
    net = RPPEMLP(table.rep_in, table.rep_out, table.rep_in.G, hidden=table.width)
    block = net.blocks[1]
    x = torch.randn(table.batch, block.linear.rep_in.dim, requires_grad=True)
    h = torch.randn(
        block.linear.rep_out.dim, table.batch
    ).mT.requires_grad_()  # samples last in memory, as in the network
    dense = [w.detach().requires_grad_() for w in block.linear.assemble()]

    def step(f: Callable[[], tuple[Tensor, ...]]) -> Step:
        gradients = [torch.randn_like(y) for y in f()]

        def run() -> None:
            for t in (x, h, *dense, *net.parameters()):
                t.grad = None
            torch.autograd.backward(f(), gradients)

        return run

    steps = {
        "linear product": step(lambda: (F.linear(x, *dense),)),
        "assembly of A + B": step(block.linear.assemble),
        "bilinear layer": step(lambda: (block.bilinear(h),)),
        "relaxed gate": step(lambda: (block.gate(h),)),
        "prior": step(lambda: (negative_log_prior(block),)),
    }
    timings = {name: Timing(name) for name in steps}
    interleave(steps, timings, rounds)
    total = sum(statistics.median(t.wall) for t in timings.values())
    print(f"\nOne block of {table.title}, width {table.width}, batch {table.batch}: forward and backward of its parts")
    for t in sorted(timings.values(), key=lambda t: -statistics.median(t.wall)):
        median = statistics.median(t.wall)
        print(f"  {t.name:26} {1e3 * median:8.2f} ms {100 * median / total:5.0f} %")
    return list(timings.values())


def assembly(table: Table, rounds: int) -> list[Timing]:
    """Ways to compute the dense weight of the second layer from its coefficients, forward and backward."""
    layer = RPPEMLP(table.rep_in, table.rep_out, table.rep_in.G, hidden=table.width, bilinear=False).blocks[1].linear
    basis = (layer.rep_in >> layer.rep_out).solve()
    rows, cols, values = basis.sparse()
    values = values.float()
    shape = (layer.rep_out.dim, layer.rep_in.dim)
    size, rank = shape[0] * shape[1], basis.rank
    beta = torch.randn(rank, requires_grad=True)
    theta = layer.equivariant.weight
    gradient = torch.randn(shape)
    Q = torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (size, rank)).coalesce().to_sparse_csr()
    Qt = torch.sparse_coo_tensor(torch.stack([cols, rows]), values, (rank, size)).coalesce().to_sparse_csr()
    dense_blocks = [(b.basis.dense().float(), b.index, b.multiplicity) for b in basis.blocks if b.rank]

    class Sparse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, beta):
            return Q @ beta

        @staticmethod
        def backward(ctx, gradient):
            return Qt @ gradient

    def blocks() -> Tensor:
        out, start = beta.new_zeros(size), 0
        for q, index, copies in dense_blocks:
            part = beta[start : start + copies * q.shape[1]].view(copies, -1) @ q.T
            out = out.index_put((index,), part)
            start += part.shape[0] * q.shape[1]
        return out

    ways = {
        "as shipped": lambda: layer.equivariant.weight_map(theta),
        "gather, scatter_add": lambda: beta.new_zeros(size).scatter_add(0, rows, beta.gather(0, cols) * values),
        "sparse CSR, both ways": lambda: Sparse.apply(beta),
        "loop over blocks": blocks,
    }

    def step(f: Callable[[], Tensor]) -> Step:
        def run() -> None:
            beta.grad = theta.grad = None
            f().view(shape).backward(gradient)

        return run

    timings = {name: Timing(name) for name in ways}
    interleave({name: step(f) for name, f in ways.items()}, timings, rounds)
    form = layer.equivariant.weight_map.form
    print(
        f"\nAssembly of a {shape[0]} x {shape[1]} layer of {table.title}: {rank} coefficients, {len(rows)} entries, {form}"
    )
    for t in timings.values():
        print(f"  {t.name:26} {1e6 * statistics.median(t.wall):8.0f} us")
    return list(timings.values())


def conditions() -> dict:
    """What the numbers depend on."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor,
        "load": os.getloadavg()[0],
    }


def write_times(path: Path, where: dict[str, object], results: dict[str, list[Timing]]) -> None:
    """All times by table, and the conditions they were measured under, as JSON."""
    content = {"conditions": where, "times": {k: [asdict(t) for t in v] for k, v in results.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each network")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--assembly", action="store_true", help="compare ways of assembling weights instead")
    parser.add_argument("--json", type=Path, help="where to write all times")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = conditions()
    print("  ".join(f"{k} {v}" for k, v in where.items()))
    results: dict[str, list[Timing]] = {}
    for table in tables():
        if arguments.assembly:
            results[f"assembly, {table.title}"] = assembly(table, arguments.rounds)
        else:
            results[table.title] = measure(table, arguments.rounds)
    if not arguments.assembly:
        results["pieces"] = pieces(tables()[-1], arguments.rounds)
    if arguments.json:
        write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
