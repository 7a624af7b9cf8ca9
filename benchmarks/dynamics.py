r"""Time training steps of models of dynamics and of stacked networks beside an MLP of the same width.

    OMP_NUM_THREADS=1 python benchmarks/dynamics.py --json docs/results/dynamics_cost.json

A step is a rollout of the vector field (rk4, 5 intervals of one step of 0.2: 20 gradients of the Hamiltonian, or 20 values of a
neural ODE), its mean-square error, the backward pass and Adam; or, in a regression, a forward and a backward pass and Adam. Ten
seeds are stacked and trained as one. Networks take turns, one step each per round, in one process; ratios are those of medians
over rounds. `RPP` and `EMLP` have the hidden layers of `rppdyn fit-dynamics`, `tensors` those that a number of channels gives.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from layers import Step, Timing, conditions, interleave, write_times

from rppdyn.dynamics import HamiltonianModel, NeuralODEModel, integrate
from rppdyn.groups import O, O2eR3
from rppdyn.nn import EMLP, MLP, RPPEMLP, Stack
from rppdyn.nn.hidden import component_major
from rppdyn.reps import Rep, RepType, Scalar, T, V

STEPS, DT = 5, 0.2
MEMBERS = (1, 10)
SCALARS_LAST = [32 * T(0) + 32 * T(1), 64 * T(0) + 20 * T(1), 128 * T(0)]
VECTORS = 3 * [32 * T(0) + 32 * T(1)]


def with_layers(cls: type[RPPEMLP], layers: list[RepType]) -> Callable[..., RPPEMLP]:
    """A network class with these hidden layers whatever the width."""
    return lambda rep_in, rep_out, G, hidden, **k: cls(
        rep_in, rep_out, G, hidden=[component_major(layer(G)) for layer in layers], **k
    )


PLAIN: dict[str, Callable[..., RPPEMLP]] = {"MLP": MLP, "RPP": RPPEMLP, "EMLP": EMLP}
HAMILTONIANS = {
    "MLP": MLP,
    "RPP": with_layers(RPPEMLP, SCALARS_LAST),
    "EMLP": with_layers(EMLP, SCALARS_LAST),
    "RPP, tensors": RPPEMLP,
}
ODES = {"MLP": MLP, "RPP": with_layers(RPPEMLP, VECTORS), "EMLP": with_layers(EMLP, VECTORS), "RPP, tensors": RPPEMLP}


def stacked(build: Callable[..., RPPEMLP], rep_in: Rep, rep_out: Rep, members: int, hidden: int) -> Stack:
    """Networks of seeds 0, 1, ..."""
    generators = (torch.Generator().manual_seed(seed) for seed in range(members))
    return Stack([build(rep_in, rep_out, rep_in.G, hidden=hidden, generator=g) for g in generators])


def training_step(stack: Stack, loss: Callable[[], torch.Tensor]) -> Step:
    """One step of Adam; the loss is a sum over members, which share nothing."""
    optimiser = torch.optim.Adam(stack.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


def pendulum(build: Callable[..., RPPEMLP], members: int, hidden: int, batch: int, is_hamiltonian: bool) -> Step:
    """The double pendulum's symmetry and dimensions, random data."""
    G = O2eR3()
    stack = stacked(build, (4 * V)(G), Scalar(G) if is_hamiltonian else (4 * V)(G), members, hidden)
    model = HamiltonianModel(stack) if is_hamiltonian else NeuralODEModel(stack)
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(members, batch, 12, generator=generator)
    truth = z0.unsqueeze(-2) + 0.1 * torch.randn(members, batch, STEPS + 1, 12, generator=generator)
    times = DT * torch.arange(STEPS + 1)

    def loss() -> torch.Tensor:
        states = integrate(model, z0, times, method="rk4", weights=model.assemble()).states
        return (states - truth).square().mean() * members

    return training_step(stack, loss)


def regression(build: Callable[..., RPPEMLP], members: int, hidden: int, batch: int) -> Step:
    """Five masses and positions to their inertia matrix, in shapes; random data."""
    G = O(3)
    stack = stacked(build, (5 * T(0) + 5 * T(1))(G), T(2)(G), members, hidden)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(members, batch, n, generator=generator) for n in (20, 9))
    return training_step(stack, lambda: (stack(x) - y).square().mean() * members)


def measure(
    title: str, networks: dict[str, Callable[..., RPPEMLP]], job: Callable[..., Step], rounds: int, **options: int
) -> list[Timing]:
    """All networks of one job, alone and ten at a time."""
    print(f"\n{title}: batch {options['batch']}, three hidden layers of width {options['hidden']}")
    steps, timings = {}, {}
    for name, build in networks.items():
        for members in MEMBERS:
            key = f"{name} x {members}"
            steps[key] = job(build, members, **options)
            timings[key] = Timing(key, f"MLP x {members}")
    interleave(steps, timings, rounds)
    median = {(key, k): statistics.median(getattr(t, k)) for key, t in timings.items() for k in ("wall", "cpu")}
    print(f"  {'':28} {'ms':>8} {'to MLP':>7} {'cpu':>7} {'ten / one':>10}")
    for key, t in timings.items():
        ratios = [median[key, k] / median[t.peer, k] for k in ("wall", "cpu")]
        name, members = key.rsplit(" x ", 1)
        together = "" if members == "1" else f"{median[key, 'wall'] / median[f'{name} x 1', 'wall']:10.1f}"
        print(f"  {key:28} {1e3 * median[key, 'wall']:8.1f} {ratios[0]:7.2f} {ratios[1]:7.2f} {together}")
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="steps of each network")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--json", type=Path, help="where to write all times")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = conditions()
    print("  ".join(f"{k} {v}" for k, v in where.items()))
    n = arguments.rounds
    hamiltonian, ode = (partial(pendulum, is_hamiltonian=kind) for kind in (True, False))
    results = {
        "Hamiltonian, batch 500": measure("Hamiltonian", HAMILTONIANS, hamiltonian, n, hidden=128, batch=500),
        "Hamiltonian, batch 100": measure("Hamiltonian", HAMILTONIANS, hamiltonian, 2 * n, hidden=128, batch=100),
        "neural ODE, batch 500": measure("Neural ODE", ODES, ode, n, hidden=128, batch=500),
        "regression, batch 500": measure("Regression", PLAIN, regression, 3 * n, hidden=128, batch=500),
    }
    if arguments.json:
        write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
