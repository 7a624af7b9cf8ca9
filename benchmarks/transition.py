r"""Time training steps of transition models beside an MLP's.

    OMP_NUM_THREADS=1 python benchmarks/transition.py --json docs/results/transition_cost.json

A step is a rollout over ten transitions of a batch of 200 chunks, the l1 norm of its error, the priors, the backward pass and
Adam: what `rppdyn fit-transition` does, on random data of the environments' dimensions and symmetries. Networks take turns, one
step each per round, in one process; a ratio is the median over rounds, between quartiles.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import torch
from measuring import Step, Timing, begin, command_line, interleave, report, write_times

from rppdyn.dynamics import TransitionModel
from rppdyn.dynamics._transition import INITIAL_SCALE
from rppdyn.envs import SymmetrySpec, make_env, symmetry_spec
from rppdyn.nn import EMLP, MLP, RPPEMLP
from rppdyn.priors import negative_log_prior

BATCH, CHUNK, HIDDEN, LAYERS = 200, 10, 256, 2
TASKS = {
    "Swimmer-v5": {},
    "Hopper-v5": {},
    "Ant-v5": {"include_cfrc_ext_in_observation": False},
}
NETWORKS: dict[str, Callable[..., RPPEMLP]] = {"MLP": MLP, "RPP": RPPEMLP, "EMLP": EMLP}


def training_step(build: Callable[..., RPPEMLP], spec: SymmetrySpec) -> Step:
    """One step of a model of an environment."""
    x_rep, u_rep = spec.obs_rep, spec.action_rep
    generator = torch.Generator().manual_seed(0)
    reps = TransitionModel.rep_in(x_rep, u_rep), TransitionModel.rep_out(x_rep)
    net = build(*reps, spec.group, hidden=HIDDEN, num_layers=LAYERS, output_scale=INITIAL_SCALE, generator=generator)
    model = TransitionModel(net, x_rep, u_rep, rotations=spec.obs.encoding.rotations)
    states = spec.encode(torch.randn(BATCH, CHUNK + 1, spec.obs.dim, generator=generator))
    actions = torch.rand(BATCH, CHUNK, spec.action.dim, generator=generator)
    model.observe(states[:, :-1], actions, states[:, 1:])
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        optimiser.zero_grad()
        error = (model.rollout(states[:, 0], actions).states - states[:, 1:]) / model.states.std
        (error.abs().mean() + 1e-8 * negative_log_prior(net)).backward()
        optimiser.step()

    return step


def measure(task: str, rounds: int) -> list[Timing]:
    """All networks on one environment."""
    with closing(make_env(task, monitor=False, **TASKS[task])) as env:
        spec = symmetry_spec(env)
    steps = {name: training_step(build, spec) for name, build in NETWORKS.items()}
    timings = {name: Timing(name, "MLP") for name in NETWORKS}
    interleave(steps, timings, rounds)
    title = f"{task}, {spec.group}: {spec.feature_dim} features, {spec.action.dim} actions"
    report(title, list(timings.values()))
    return list(timings.values())


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    arguments, where = begin(command_line(__doc__, rounds=20, quick=5))
    write_times(arguments.json, where, {task: measure(task, arguments.rounds) for task in TASKS})


if __name__ == "__main__":
    main()
