r"""Time what runs do with both parametrisations of relaxed layers beside an ordinary network: steps of fits, updates of agents.

    OMP_NUM_THREADS=1 python benchmarks/parametrisations.py --json docs/results/parametrisations_cost.json

Fits: a step of `fit-regression`, three seeds stacked, width 128, batches of 500, priors included; without bilinear layers, too,
whose products hide the rest. Agents: an update of three seeds of RPP-SAC at once, networks of two layers of 64 and of 256,
batches of 256, per seed. Candidates take turns, one step each per round; ratios are medians over rounds, between quartiles.
"""

from __future__ import annotations

from functools import partial

from measuring import Step, Timing, begin, command_line, interleave, report, write_times
from sac import filled

from rppdyn.agents import RPPSAC
from rppdyn.agents.multi_seed import AgentStack, SeedTrainer
from rppdyn.jobs.config import compose
from rppdyn.jobs.fit_regression import Regression

SEEDS = 3
BATCH = 256
PEER = "mlp"
MODELS = {PEER: (PEER, "pathways"), "rpp, pathways": ("rpp", "pathways"), "rpp, dense": ("rpp", "dense")}


def fitting(model: str, parametrisation: str, *words: str) -> Step:
    """Steps of a fit."""
    own = ["task=inertia", f"model={model}", f"model.parametrisation={parametrisation}", f"seeds={SEEDS}"]
    config = compose.composed("fit_regression", [*own, "model.hidden=128", "optimiser.epochs=1000", *words])
    fit, count = Regression(config), iter(range(10**6))
    return lambda: fit.step(next(count))


def updating(model: str, parametrisation: str, env: str, width: int) -> Step:
    """Updates of agents with random transitions in their buffers, all seeds at once."""
    network = {} if model == PEER else dict(parametrisation=parametrisation)
    trainers = [SeedTrainer(partial(_agent, model, network, env, width, seed)) for seed in range(SEEDS)]
    stack = AgentStack([trainer.agent for trainer in trainers], [trainer.guarded for trainer in trainers])
    return lambda: stack.train(1, BATCH)


def _agent(model: str, network: dict[str, str], env: str, width: int, seed: int) -> RPPSAC:
    policy = dict(model=model, hidden=width, num_layers=2, network_kwargs=network)
    agent = RPPSAC("RPPPolicy", env, policy_kwargs=policy, batch_size=BATCH, buffer_size=5_000, learning_starts=0,
                   seed=seed, device="cpu")  # fmt: skip
    return filled(agent, seed)


def main() -> None:
    """Measure, print, and write the raw times."""
    arguments, where = begin(command_line(__doc__, rounds=40, quick=8), "stable-baselines3")
    cases = {
        "inertia, step of a fit": fitting,
        "inertia, step of a fit, no bilinear layers": lambda *kind: fitting(*kind, "model.bilinear=false"),
        "inertia for SL(3), step of a fit": lambda *kind: fitting(*kind, "task.group=SL(3)"),
    }
    for env, width in (("InvertedPendulum-v5", 64), ("Swimmer-v5", 64), ("Walker2d-v5", 256)):
        cases[f"{env}, update, width {width}"] = partial(updating, env=env, width=width)
    results = {}
    for title, build in cases.items():
        steps = {name: build(*kind) for name, kind in MODELS.items()}
        timings = {name: Timing(name, PEER) for name in steps}
        interleave(steps, timings, arguments.rounds)
        report(f"{title}: {SEEDS} seeds at once", list(timings.values()))
        results[title] = list(timings.values())
    write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
