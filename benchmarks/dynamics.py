r"""Time training steps of models of dynamics and of stacked networks beside an MLP.

    OMP_NUM_THREADS=1 python benchmarks/dynamics.py --json docs/results/dynamics_cost.json --plot docs/results/dynamics_growth.png

A step is a rollout of the vector field (rk4, 5 intervals of one step of 0.2: 20 gradients of the Hamiltonian, or 20 values of a
neural ODE), its mean-square error, the backward pass and Adam; or, in a regression, a forward and a backward pass and Adam. Ten
seeds are stacked and trained as one, on at most `--threads` threads; one seed has one, as in a fit. Networks take turns, one step
each per round, in one process; a ratio is the median over rounds, between quartiles. "Steps of fits" (with `--threads 2`) are those of
`rppdyn fit-dynamics` itself. `RPP` and `EMLP` have the hidden layers of `rppdyn fit-dynamics` (Hamiltonians 112 channels each,
others and MLPs 128); `128 channels` are wider Hamiltonians of the same kind, `vectors twice` some with vectors in the first two
layers and as many maps as published, `tensors` what a number of channels gives. Hamiltonians are trained as `fit-dynamics`
trains them in 500 steps and more: by `torch.compile`, where that works; "not compiled" is `compile=false`. With
`--quick`, compiled models beside torchdiffeq over a plain network alone.
"""  # noqa: E501

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from growth import PEER_COLOUR, Growth, draw, dress, figure, report_growth, save, to_peer
from measuring import Step, Timing, begin, can_compile, command_line, interleave, ratio, report, write
from torch import Tensor, nn
from torchdiffeq import odeint

from rppdyn.dynamics import DynamicsModel, HamiltonianModel, NeuralODEModel, integrate
from rppdyn.groups import Group, O, O2eR3
from rppdyn.jobs.config.compose import composed
from rppdyn.jobs.fit import build_network
from rppdyn.jobs.fit_dynamics import INITIAL_SCALE, Dynamics
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble
from rppdyn.nn._hidden import component_major
from rppdyn.reps import Rep, RepType, Scalar, T, V
from rppdyn.runs.figures import COLOURS
from rppdyn.runs.workers import torch_threads

Build = Callable[..., RPPEMLP]
STEPS, DT = 5, 0.2
MEMBERS = (1, 10)
WIDER = [80 * T(0) + 16 * T(1), 128 * T(0), 128 * T(0)]
CONTRACTED_TWICE = [32 * T(0) + 32 * T(1), 64 * T(0) + 20 * T(1), 128 * T(0)]


def shipped(name: str) -> Build:
    """The network of `rppdyn fit-dynamics model=NAME` whatever the width."""

    def build(rep_in: Rep, rep_out: Rep, G: Group, hidden: int, generator: torch.Generator) -> RPPEMLP:
        model = composed("fit_dynamics", [f"model={name}"]).model
        return build_network(model, rep_in, rep_out, generator.initial_seed(), INITIAL_SCALE)

    return build


def with_layers(layers: list[RepType], bilinear_maps: int | None = None) -> Build:
    """A relaxed network with these hidden layers whatever the width."""
    return lambda rep_in, rep_out, G, hidden, **k: RPPEMLP(
        rep_in, rep_out, G, hidden=[component_major(layer(G)) for layer in layers], bilinear_maps=bilinear_maps, **k
    )


PLAIN: dict[str, Build] = {"MLP": MLP, "RPP": RPPEMLP, "EMLP": EMLP}
HAMILTONIANS = {
    "MLP": MLP,
    "RPP": shipped("rpp_hnn"),
    "EMLP": shipped("emlp_hnn"),
    "RPP, 128 channels": with_layers(WIDER, bilinear_maps=4),
    "RPP, vectors twice": with_layers(CONTRACTED_TWICE),
    "RPP, tensors": RPPEMLP,
}
ODES = {"MLP": MLP, "RPP": shipped("rpp_ode"), "EMLP": shipped("emlp_ode"), "RPP, tensors": RPPEMLP}


def stacked(build: Build, rep_in: Rep, rep_out: Rep, members: int, hidden: int) -> Ensemble:
    """Networks of seeds 0, 1, ..."""
    generators = (torch.Generator().manual_seed(seed) for seed in range(members))
    return Ensemble([build(rep_in, rep_out, rep_in.G, hidden=hidden, generator=g) for g in generators])


def training_step(stack: Ensemble, loss: Callable[[], Tensor]) -> Step:
    """One step of Adam; the loss is a sum over members, which share nothing."""
    optimiser = torch.optim.Adam(stack.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        with torch_threads(None):
            optimiser.zero_grad()
            loss().backward()
            optimiser.step()

    return step


def pendulum(
    build: Build, members: int, hidden: int, batch: int, system: Callable[[nn.Module], DynamicsModel] = HamiltonianModel
) -> Step:
    """The double pendulum's symmetry and dimensions, random data."""
    G = O2eR3()
    stack = stacked(build, (4 * V)(G), (4 * V)(G) if system is NeuralODEModel else Scalar(G), members, hidden)
    model = system(stack)
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(members, batch, 12, generator=generator)
    truth = z0.unsqueeze(-2) + 0.1 * torch.randn(members, batch, STEPS + 1, 12, generator=generator)
    times = DT * torch.arange(STEPS + 1)

    def loss() -> Tensor:
        states = integrate(model, z0, times, method="rk4", weights=model.assemble()).states
        return (states - truth).square().mean() * members

    return training_step(stack, loss)


def regression(build: Build, members: int, hidden: int, batch: int) -> Step:
    """Five masses and positions to their inertia matrix, in shapes; random data."""
    G = O(3)
    stack = stacked(build, (5 * T(0) + 5 * T(1))(G), T(2)(G), members, hidden)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(members, batch, n, generator=generator) for n in (20, 9))
    return training_step(stack, lambda: (stack(x) - y).square().mean() * members)


def measure(
    title: str,
    networks: Mapping[str, Build],
    job: Callable[..., Step],
    rounds: int,
    asked: Mapping[str, float] | None = None,
    **options: int,
) -> list[Timing]:
    """All networks of one job, alone and ten at a time; `asked` of one network's ratio to the MLP."""
    steps, timings = {}, {}
    for name, build in networks.items():
        for members in MEMBERS:
            key = f"{name} x {members}"
            steps[key] = job(build, members, **options)
            timings[key] = Timing(key, f"MLP x {members}", (asked or {}).get(name))
    interleave(steps, timings, rounds, warm_up=1)
    found = list(timings.values())
    report(f"{title}: batch {options['batch']}, MLPs of three hidden layers of {options['hidden']}", found)
    one, ten = MEMBERS
    for clock, what in (("wall", "wall-clock"), ("cpu", "processor")):
        ratios = (
            f"{name} {ratio(timings[f'{name} x {ten}'], timings[f'{name} x {one}'], clock).median:.1f}"
            for name in networks
        )
        print(f"  ten seeds as one, {what} time: {', '.join(ratios)}")
    return found


# -- fits --------------------------------------------------------------------------------------------------------------

MODELS = ("mlp_hnn", "rpp_hnn")


def fit_steps(rounds: int, batch: int) -> list[Timing]:
    """Training steps of the command's own fits, by the clock."""
    steps = {f"{model} x {members}": fit_step(model, members, batch) for model in MODELS for members in MEMBERS}
    timings = {name: Timing(name) for name in steps}
    interleave(steps, timings, rounds, warm_up=2)
    one, ten = MEMBERS
    print(f"\nSteps of fits: rppdyn fit-dynamics optimiser.batch_size={batch}, wall-clock time")
    for name, timing in timings.items():
        print(f"  {name:14} {1e3 * statistics.median(timing.wall):7.1f} ms")
    mlp, rpp = MODELS
    for asked, ours, theirs in [(4, f"{m} x {ten}", f"{m} x {one}") for m in MODELS] + [
        (1.5, f"{rpp} x {members}", f"{mlp} x {members}") for members in MEMBERS
    ]:
        found = ratio(timings[ours], timings[theirs], "wall")
        print(f"  {f'{ours} / {theirs}':28} {found}  asked {asked}", flush=True)
    return list(timings.values())


def fit_step(model: str, members: int, batch: int) -> Step:
    """A default fit's steps, one after another."""
    words = [f"model={model}", f"seeds={members}", f"optimiser.batch_size={batch}", "compile=true", "device=cpu"]
    config = composed("fit_dynamics", [*words, "task.validation=1", "task.test=1", "task.horizon=1"])
    with torch_threads(config.threads):
        fit = Dynamics(config)
    fit.compile()
    numbers = itertools.count()

    def step() -> None:
        with torch_threads(config.threads):
            fit.step(next(numbers))

    return step


FIT = ["fit-dynamics", "experiment=symmetry_levels", "task=pendulum", "device=cpu"]


def whole_fits(rounds: int) -> list[Timing]:
    """Wall-clock times of the command itself, 500 steps and all that goes with them, by what was compiled before."""
    fits: dict[str, list[str]] = {}
    for model in MODELS:
        for members in MEMBERS:
            fits[f"{model} x {members}"] = words = [*FIT, f"model={model}", f"seeds={members}"]
            fit(*words, "rollout.trajectories=1")
    timings = {name: Timing(name, f"{name.partition(' ')[0]} x {MEMBERS[0]}") for name in fits}
    for _ in range(rounds):
        for name, words in fits.items():
            start = time.perf_counter()
            fit(*words)
            timings[name].wall.append(time.perf_counter() - start)
    print(f"\nWhole fits: rppdyn {' '.join(FIT)}")
    for name, timing in timings.items():
        against = ratio(timing, timings[str(timing.peer)], "wall")
        print(f"  {name:14} {statistics.median(timing.wall):6.0f} s {against}", flush=True)
    return list(timings.values())


def fit(*words: str) -> None:
    """`rppdyn` with some words, in a process and a folder of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rppdyn.cli", *words, f"run_dir={folder}/run"]
        subprocess.run(command, env=environment, check=True, capture_output=True)


# -- beside torchdiffeq ------------------------------------------------------------------------------------------------

PEER = "torchdiffeq, MLP"


def plain_peer(outputs: int, batch: int) -> Step:
    """A training step of torchdiffeq's `odeint` over an `nn.Sequential`, of the shapes and data of `pendulum`."""
    widths = [12, 128, 128, 128]
    hidden = [layer for n, m in itertools.pairwise(widths) for layer in (nn.Linear(n, m), nn.SiLU())]
    net = nn.Sequential(*hidden, nn.Linear(128, outputs))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(batch, 12, generator=generator)
    truth = z0 + 0.1 * torch.randn(STEPS + 1, batch, 12, generator=generator)
    times = DT * torch.arange(STEPS + 1)

    def field(t: Tensor, z: Tensor) -> Tensor:
        if outputs > 1:
            return net(z)
        z = z if z.requires_grad else z.detach().requires_grad_()
        dH_dq, dH_dp = torch.autograd.grad(net(z).sum(), z, create_graph=True)[0].chunk(2, -1)
        return torch.cat([dH_dp, -dH_dq], -1)

    def step() -> None:
        optimiser.zero_grad()
        (odeint(field, z0, times, method="rk4") - truth).square().mean().backward()
        optimiser.step()

    return step


def beside_torchdiffeq(rounds: int, batch: int = 500) -> dict[str, list[Timing]]:
    """Models of dynamics as fits train them, compiled, beside torchdiffeq over a plain network."""
    systems = {"Hamiltonian": (HAMILTONIANS, HamiltonianModel, 1), "neural ODE": (ODES, NeuralODEModel, 12)}
    found = {}
    for title, (networks, system, outputs) in systems.items():
        steps, timings = {PEER: plain_peer(outputs, batch)}, {PEER: Timing(PEER)}
        for name, asked in (
            ("MLP", None),
            ("EMLP", 1.8 if outputs == 1 else 2.5),
            ("RPP", 1.8 if outputs == 1 else 2.5),
        ):
            steps[name] = pendulum(networks[name], 1, 128, batch, partial(compiled, system=system))
            timings[name] = Timing(name, PEER, asked)
        interleave(steps, timings, rounds)
        found[f"{title} beside torchdiffeq, batch {batch}"] = list(timings.values())
        report(f"{title}, compiled, beside torchdiffeq over an MLP, batch {batch}", list(timings.values()))
    return found


def compiled(net: nn.Module, system: type[DynamicsModel] = HamiltonianModel) -> DynamicsModel:
    """The vector field by torch.compile."""
    model = system(net)
    model.compile(dynamic=False)
    return model


# -- number of seeds ---------------------------------------------------------------------------------------------------

SEEDS = (1, 2, 5, 10, 20)
JOBS: dict[str, tuple[Callable[..., Step], dict[str, Build]]] = {
    "Hamiltonian, not compiled, batch 100": (pendulum, HAMILTONIANS),
    "neural ODE, batch 100": (partial(pendulum, system=NeuralODEModel), ODES),
    "regression, batch 100": (regression, PLAIN),
}
GROWN = ("MLP", "RPP")


def growths(rounds: int) -> list[Growth]:
    """Stacks of more and more seeds, each beside one network of its kind in the same rounds."""
    found = []
    for title, (job, networks) in JOBS.items():
        growth = Growth(title, "seeds trained as one")
        for members in SEEDS:
            steps = {name: job(networks[name], members, 128, 100) for name in GROWN}
            steps |= {f"one {name}": job(networks[name], 1, 128, 100) for name in GROWN}
            growth.add(members, steps, {name: f"one {name}" for name in GROWN}, rounds)
        report_growth(growth, to_peer, "time as a multiple of one seed's", GROWN)
        found.append(growth)
    return found


def plot(found: list[Growth], path: Path) -> None:
    """Time of stacked seeds as a multiple of one's; dashed, one after another."""
    drawn, (row,) = figure(1, len(found), width=3.6, height=3.2)
    for axes, growth in zip(row, found, strict=True):
        draw(axes, growth, to_peer, GROWN, {"MLP": PEER_COLOUR, "RPP": COLOURS[0]})
        axes.plot(growth.at, growth.at, "--", color="0.6", linewidth=1, label="one after another")
        dress(axes, growth, "time / one seed's", logarithmic=(True, True))
    row[0].legend(edgecolor="none", fontsize="small")
    save(drawn, path)


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=10, quick=8, plot=True)
    arguments, where = begin(parser, "torchdiffeq")
    n = arguments.rounds
    by_compiler = can_compile()
    times = beside_torchdiffeq(n) if by_compiler else {}
    write(arguments.json, where, {"times": times})
    if arguments.quick:
        return
    hamiltonians: dict[str, tuple[dict[str, Build], Callable[..., Step]]] = {}
    if by_compiler:  # which takes ten seconds for each of one seed and of ten; tensors take minutes
        networks = {name: HAMILTONIANS[name] for name in tuple(HAMILTONIANS)[:-1]}
        hamiltonians["Hamiltonian"] = (networks, partial(pendulum, system=compiled))
    hamiltonians["Hamiltonian, not compiled"] = (HAMILTONIANS, pendulum)
    if arguments.threads > 1 and by_compiler:
        times |= {f"steps of fits, batch {batch}": fit_steps(n, batch) for batch in (100, 500)}
    for batch in (100, 500):
        for title, (networks, job) in hamiltonians.items():
            asked = {"RPP": 1.5} if title == next(iter(hamiltonians)) else None
            times[f"{title}, batch {batch}"] = measure(title, networks, job, n, asked, hidden=128, batch=batch)
    ode = partial(pendulum, system=NeuralODEModel)
    times["neural ODE, batch 500"] = measure("Neural ODE", ODES, ode, n, hidden=128, batch=500)
    times["regression, batch 500"] = measure("Regression", PLAIN, regression, 3 * n, hidden=128, batch=500)
    if arguments.threads > 1:
        times["fits"] = whole_fits(max(2, n // 6))
    found = growths(n)
    write(arguments.json, where, {"times": times, "growth": found})
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
