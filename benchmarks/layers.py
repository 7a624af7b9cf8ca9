r"""Time training steps of relaxed and equivariant networks beside an MLP of the same width, and say where the time goes.

    OMP_NUM_THREADS=1 python benchmarks/layers.py --json docs/results/layers.json --plot docs/results/layers.png
    OMP_NUM_THREADS=1 python benchmarks/layers.py --products    # channel-wise products alone, for infinite groups
    OMP_NUM_THREADS=1 python benchmarks/layers.py --swarms      # products of groups, SO(3) by width, a large cyclic group
    OMP_NUM_THREADS=1 python benchmarks/layers.py --assembly    # ways of turning coefficients into dense weights

Ratios first, then the pieces of one block, then how cost grows with batch, width, the group's order and tensor rank. A step is
forward and backward of a mean-square loss, once without and once with the prior (of both networks). Networks take turns, one
step each per round, in one process; a ratio is the median over rounds, between quartiles. "cpu" is processor time, which
other programs on the machine disturb less than the clock on the wall. "torch.nn" is an MLP of torch's own layers. "compiled"
steps are by torch.compile, forward and backward, as ratios to the compiled MLP's; they need a C++ compiler.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from growth import Growth, draw, dress, figure, milliseconds, report_growth, save, to_peer
from measuring import Step, Timing, begin, can_compile, command_line, interleave, report, write
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.groups import SO, D, Group, O, S, SO13p, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, merge
from rppdyn.nn._compiling import compiled
from rppdyn.nn._hidden import component_major
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Rep, Scalar, T, V
from rppdyn.runs.figures import COLOURS

COLOUR_OF = {"RPP": COLOURS[0], "EMLP": COLOURS[1], "RPP, bilinear": COLOURS[2]}
WITHOUT_PRIOR = ("torch.nn", "RPP, merged")
COMPILED = ", compiled"


def seeded() -> torch.Generator:
    """A source of random numbers of its own."""
    return torch.Generator().manual_seed(0)


def training_step(net: nn.Module, x: Tensor, prior: bool, by_compiler: bool = False) -> Step:
    """Forward and backward, with the prior over a million data or without it."""

    def loss() -> Tensor:
        error = net(x).square().mean()
        return error + negative_log_prior(net) / 1e6 if prior else error

    value = compiled(loss, fullgraph=True, dynamic=False) if by_compiler else loss

    def step() -> None:
        net.zero_grad(set_to_none=True)
        value().backward()

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


def torch_mlp(rep_in: Rep, rep_out: Rep, group: object, hidden: int, generator: torch.Generator) -> nn.Module:
    """What one would write without this package: three linear layers with swish, and a last one."""
    widths = [rep_in.dim, hidden, hidden, hidden]
    hidden_layers = [nn.Sequential(nn.Linear(n, m), nn.SiLU()) for n, m in pairwise(widths)]
    return nn.Sequential(*hidden_layers, nn.Linear(hidden, rep_out.dim))


def published(*args: object, **options: object) -> RPPEMLP:
    """A relaxed network of tensors with the published bilinear layers."""
    return RPPEMLP(*args, bilinear="published", **options)


def without_bilinear(*args: object, **options: object) -> RPPEMLP:
    """A relaxed network of tensors without bilinear layers."""
    return RPPEMLP(*args, bilinear=False, **options)


def tables() -> list[Table]:
    """The cases of the targets: robots' widths for regular representations, the thesis's for tensors."""

    def merged(*args, **options):
        return merge(without_bilinear(*args, **options))

    plain = {"MLP": (MLP, None), "torch.nn": (torch_mlp, None)}
    regular = plain | {"RPP": (RPPEMLP, 1.4), "EMLP": (EMLP, 1.4)}
    regular |= {"RPP, merged": (merged, None)}
    tensors = plain | {
        "RPP": (without_bilinear, 1.5),
        "EMLP": (lambda *a, **k: EMLP(*a, bilinear=False, **k), None),
        "RPP, merged": (merged, None),
        "RPP, bilinear": (published, 4.0),
        "EMLP, bilinear": (lambda *a, **k: EMLP(*a, bilinear="published", **k), None),
    }
    if can_compile():
        regular |= {name + COMPILED: regular[name] for name in ("MLP", "RPP", "EMLP", "RPP, merged")}
        tensors |= {name + COMPILED: tensors[name] for name in ("MLP", "RPP", "RPP, merged", "RPP, bilinear")}
    result = [Table(f"{G}, regular representation", *robot(G), 256, 256, regular) for G in (Z(2), D(4))]
    return [*result, Table("SO(3), tensors", *body(), 384, 500, tensors)]


def products() -> list[Table]:
    """Infinite groups and the default of finite ones, with the two forms of bilinear layers; batch and width are one size."""

    def channelwise(*args, **options):
        return RPPEMLP(*args, bilinear="channelwise", **options)

    def strict(*args, **options):
        return EMLP(*args, bilinear="channelwise", **options)

    nets = {"MLP": (MLP, None), "RPP": (channelwise, 2.0), "EMLP": (strict, None), "RPP, published": (published, None)}
    if can_compile():
        nets |= {"MLP" + COMPILED: (MLP, None), "RPP" + COMPILED: (channelwise, 1.5)}
    finite = {name: (RPPEMLP, 1.25) if build is channelwise else (build, target) for name, (build, target) in nets.items()
              if build in (MLP, channelwise)}  # fmt: skip
    reps = {
        O(2): (3 * V + 2 * Scalar, V), SO(3): (4 * V + Scalar, V), SO13p(): (4 * V, Scalar),
    }  # fmt: skip
    found = [Table(str(G), rep_in(G), rep_out(G), 256, 256, nets) for G, (rep_in, rep_out) in reps.items()]
    return [*found, Table("SO(3), to a matrix", *body(), 256, 256, nets), Table("Z(2)", *robot(Z(2)), 256, 256, finite)]


def swarms() -> list[Table]:
    """Products of groups, as swarms have them, and narrow and wide networks of one group; not compiled."""
    nets = {"MLP": (MLP, None), "RPP": (RPPEMLP, 3.0), "EMLP": (EMLP, 3.0)}
    in_space = (4 * V + Scalar)(SO(3)), V(SO(3))
    found = [Table(f"SO(3), width {width}", *in_space, width, 256, nets) for width in (64, 256, 1024)]
    for space, members in ((SO(3), S(3)), (O(2), S(4)), (D(4), S(4))):
        G = space * members
        rep = V(members).lift(G) * V(space).lift(G)
        found.append(Table(f"a swarm, {G}", rep + rep, rep, 256, 256, nets))
    return [
        *found,
        Table("Z(64), regular representation", *robot(Z(64)), 256, 256, {"MLP": (MLP, None), "EMLP": (EMLP, 1.2)}),
    ]


def robot(G: Group) -> tuple[Rep, Rep]:
    """Input and output as of a robot's policy."""
    return (6 * V + 5 * Scalar)(G), (2 * V)(G)


def body() -> tuple[Rep, Rep]:
    """Five masses and their positions, and a matrix."""
    G = SO(3)
    return (5 * T(0) + 5 * T(1))(G), T(2)(G)


def measure(table: Table, rounds: int) -> list[Timing]:
    """Time a table's networks, each without and with the prior where it has one."""
    x = torch.randn(table.batch, table.rep_in.dim, generator=seeded())
    steps, timings = {}, {}
    for name, (build, target) in table.nets.items():
        net = build(table.rep_in, table.rep_out, table.rep_in.G, hidden=table.width, generator=seeded())
        for prior in (False, True)[: 1 if name.removesuffix(COMPILED) in WITHOUT_PRIOR else 2]:
            key = name + (" + prior" if prior else "")
            steps[key] = training_step(net, x, prior, by_compiler=COMPILED in name)
            peer = "MLP" + COMPILED * (COMPILED in name) + " + prior" * prior
            timings[key] = Timing(key, peer, target)
    interleave(steps, timings, rounds)
    report(f"{table.title}: width {table.width}, batch {table.batch}, three hidden layers", list(timings.values()))
    return list(timings.values())


def grow(
    title: str, quantity: str, values: Sequence[float], case: Callable[..., tuple[Rep, Rep, object, int]], rounds: int,
    nets: dict[str, Callable[..., nn.Module]],
) -> Growth:  # fmt: skip
    """Training steps of networks over one quantity; a case is input, output, hidden layers and batch at one of its values."""
    growth = Growth(title, quantity)
    for value in values:
        rep_in, rep_out, hidden, batch = case(value)
        x = torch.randn(batch, rep_in.dim, generator=seeded())
        steps = {
            name: training_step(build(rep_in, rep_out, rep_in.G, hidden=hidden, generator=seeded()), x, prior=False)
            for name, build in nets.items()
        }
        growth.add(value, steps, "MLP", rounds)
    report_growth(growth, milliseconds, "ms of processor time")
    report_growth(growth, to_peer, "ratio to MLP")
    return growth


def up_to_rank(rank: int, width: int = 384) -> Rep:
    """Channels shared out evenly between tensors of rank 0 to ``rank``; scalars make up the width."""
    copies = {k: max(1, width // ((rank + 1) * 3**k)) for k in range(1, rank + 1)}
    scalars = width - sum(n * 3**k for k, n in copies.items())
    return component_major(sum((n * T(k) for k, n in copies.items()), scalars * T(0))(SO(3)))


def growths(rounds: int) -> list[Growth]:
    """Over batch, width and order of the group for regular representations; over batch, width and rank for tensors."""
    regular = {"MLP": MLP, "RPP": RPPEMLP, "EMLP": EMLP}
    tensors = {"MLP": MLP, "RPP": without_bilinear, "RPP, bilinear": published}
    of_robot, of_body = robot(D(4)), body()
    cases = [
        ("D(4), regular, width 256", "batch", (16, 64, 256, 1024, 4096), lambda n: (*of_robot, 256, n), regular),
        ("D(4), regular, batch 256", "width", (64, 128, 256, 512, 1024), lambda n: (*of_robot, n, 256), regular),
        ("D(n), regular, width 256, batch 256", "order of the group", (4, 8, 16, 32, 64),
         lambda n: (*robot(D(n // 2)), 256, 256), regular),
        ("SO(3), tensors, width 384", "batch", (20, 100, 500, 2500), lambda n: (*of_body, 384, n), tensors),
        ("SO(3), tensors, batch 500", "width", (96, 192, 384, 768), lambda n: (*of_body, n, 500), tensors),
        ("SO(3), width 384, batch 500", "highest tensor rank", (0, 1, 2, 3), lambda r: (*of_body, up_to_rank(r), 500),
         tensors),
    ]  # fmt: skip
    return [grow(title, quantity, at, case, rounds, nets) for title, quantity, at, case, nets in cases]


def plot(found: list[Growth], path: Path) -> None:
    """Milliseconds above, ratios to the MLP below; regular representations, then tensors."""
    drawn, rows = figure(4, 3, width=3.8, height=2.6)
    for k, growth in enumerate(found):
        above, below = rows[2 * (k // 3)][k % 3], rows[2 * (k // 3) + 1][k % 3]
        is_scale = growth.quantity != "highest tensor rank"
        for axes, value, label in ((above, milliseconds, "ms per step"), (below, to_peer, "ratio to MLP")):
            draw(axes, growth, value, colours=COLOUR_OF)
            dress(axes, growth, label, logarithmic=(is_scale, True))
        below.set_title("")
        if k % 3 == 0:
            above.legend(edgecolor="none", fontsize="small")
    save(drawn, path)


def pieces(table: Table, rounds: int) -> list[Timing]:
    """Forward and backward of the parts of the second block of the network with bilinear layers."""
    net = published(table.rep_in, table.rep_out, table.rep_in.G, hidden=table.width)
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
    median = {name: statistics.median(timing.cpu) for name, timing in timings.items()}
    print(f"\nOne block of {table.title}, width {table.width}, batch {table.batch}: forward and backward of its parts")
    for name, seconds in sorted(median.items(), key=lambda item: -item[1]):
        print(f"  {name:28} {1e3 * seconds:8.2f} cpu ms {100 * seconds / sum(median.values()):5.0f} %")
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
        print(f"  {t.name:26} {1e6 * statistics.median(t.cpu):8.0f} cpu us")
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=40, quick=8, plot=True)
    parser.add_argument("--assembly", action="store_true", help="compare ways of assembling weights instead")
    parser.add_argument("--products", action="store_true", help="measure channel-wise products alone")
    parser.add_argument(
        "--swarms",
        action="store_true",
        help="measure groups with products, SO(3), Z(64) alone, as --quick",
    )
    arguments, where = begin(parser)
    if arguments.assembly:
        write(arguments.json, where, {"times": {t.title: assembly(t, arguments.rounds) for t in tables()}})
        return
    if arguments.products or arguments.swarms or arguments.quick:
        chosen = products() if arguments.products else swarms()
        write(arguments.json, where, {"times": {table.title: measure(table, arguments.rounds) for table in chosen}})
        return
    times = {table.title: measure(table, arguments.rounds) for table in tables()}
    times["pieces"] = pieces(tables()[-1], arguments.rounds)
    found = growths(max(3, arguments.rounds // 3))
    write(arguments.json, where, {"times": times, "growth": found})
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
