r"""Time RPP-SAC's gradient updates and steps beside those of stable-baselines3's SAC, and how they grow.

    OMP_NUM_THREADS=1 python benchmarks/sac.py --json docs/results/sac_cost.json --plot docs/results/sac_growth.png
    OMP_NUM_THREADS=2 python benchmarks/sac.py --threads 2 --updates
    OMP_NUM_THREADS=1 python benchmarks/sac.py --env Reacher-v5 --rounds 20 --json docs/results/sac_reacher.json

Networks of two layers of 256 with swish, batches of 256, each agent's own replay buffer and `train`. An update is
`agent.train(1, 256)`, sampling included; a step is one of `agent.learn`, with the simulator's. Each agent takes turns with
stable-baselines3's in one process, five updates or twenty steps each per round, so that caches are as in training; a ratio is
stable-baselines3's time over the agent's. "compiled" agents have compile=True, which needs a C++ compiler; without one they are
left out. "products" are the matrix products that an update needs (two actors forward and one backward; two targets, critics
and improved critics forward, critics backward and improved critics backward to their actions) and nothing else, in the
precision that agents' updates have here. "both medium": torch.set_float32_matmul_precision("medium") for stable-baselines3,
too, which leaves it alone; "highest": neither has it. "4 seeds" are trained at once; times are per seed. With more threads than
one they are also shared out over as many processes of one thread each, as `rppdyn train-agent seeds=4` does ("2 processes",
of which only the wall clock is read). With `--env` updates of one environment's relaxed, strict and plain agents alone;
`--quick` is Reacher-v5's relaxed and plain agents.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from growth import Growth, draw, dress, figure, milliseconds, report_growth, save, to_peer
from measuring import Spread, Step, Timing, begin, can_compile, command_line, interleave, spread, write
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from torch import nn

from rppdyn.agents import RPPSAC
from rppdyn.agents._compiling import matmul_precision, update_precision
from rppdyn.agents._seeds import SeedTrainer, Updates, collect
from rppdyn.agents._update import SACUpdate
from rppdyn.envs import symmetry_spec
from rppdyn.runs.figures import COLOURS

ENVS = ("Hopper-v5", "Walker2d-v5")
PEER = "stable-baselines3"
TARGETS = {"mlp": 2.0, "rpp": 1.5}
SEEDS = 4
MANY = f", {SEEDS} seeds"
APART = " processes"
COMPILED = ", compiled"
HIGHEST = "highest"
BATCH, WIDTH, STEPS, BURST = 256, 256, 20, 5
UPDATES = "updates"
COLOUR_OF = dict(zip(("mlp", "rpp", "emlp"), COLOURS, strict=False))
GROUPS = {2: "left-right", 4: "Z4", 8: "D4"}  # of Ant, by their order


def build(
    env: str, model: str, seed: int = 0, *, width: int = WIDTH, batch: int = BATCH, symmetry: str | None = None
) -> SAC:
    """An agent with random transitions in its buffer; its model's name may say that its updates are compiled."""
    options = dict(batch_size=batch, buffer_size=50_000, learning_starts=0, seed=seed, device="cpu")
    if model == PEER:
        agent = SAC("MlpPolicy", env, policy_kwargs=dict(net_arch=[width, width], activation_fn=nn.SiLU), **options)
    else:
        spec = symmetry_spec(env, symmetry=symmetry)
        networks = dict(model=model.removesuffix(COMPILED), hidden=width, num_layers=2)
        agent = RPPSAC("RPPPolicy", env, spec, policy_kwargs=networks, compile=model.endswith(COMPILED), **options)
    return filled(agent, seed)


def filled(agent: SAC, seed: int) -> SAC:
    """The agent with random transitions in its buffer, and a logger that writes nothing."""
    draw = np.random.default_rng(seed).normal
    n, m = agent.observation_space.shape, agent.action_space.shape
    for _ in range(2_000):
        agent.replay_buffer.add(
            draw(size=(1, *n)), draw(size=(1, *n)), np.tanh(draw(size=(1, *m))), draw(size=1), np.zeros(1), [{}]
        )
    agent.set_logger(Logger(None, []))
    return agent


def update(agent: SAC | list[SeedTrainer]) -> Step:
    """Updates of an agent, or of several at once, each as after one step of the environment."""
    if isinstance(agent, SAC):
        return lambda: [agent.train(1, agent.batch_size) for _ in range(BURST)]
    together = SACUpdate([trainer.agent for trainer in agent])
    return lambda: [together.train(1, agent[0].agent.batch_size) for _ in range(BURST)]


def steps(agent: SAC | list[SeedTrainer]) -> Step:
    """Steps of an agent, or of several at once, with an update after each; the latter without what begins their training."""
    if isinstance(agent, SAC):
        return lambda: agent.learn(STEPS, reset_num_timesteps=False)
    updates = Updates()
    for trainer in agent:
        trainer.begin(10**9)

    def run() -> None:
        for _ in range(STEPS):
            collect(agent, updates)
            updates.get(agent).train(1, BATCH)

    return run


KINDS = {UPDATES: update, "steps": steps}


class Apart:
    """Steps of seeds that are shared out over processes of one thread each, all at the same time."""

    def __init__(self, env: str, model: str, kind: str, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for i in range(processes):
            here, there = context.Pipe()
            arguments = there, env, model, kind, range(SEEDS)[i::processes]
            self._processes.append(context.Process(target=serve, args=arguments, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)

    def __call__(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """End the processes, so that they take nothing from what is measured next."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()


def serve(pipe: Connection, env: str, model: str, kind: str, seeds: Sequence[int]) -> None:
    """Run steps of these seeds, one after each message."""
    torch.set_num_threads(1)
    step = KINDS[kind](seeds_of(env, model, seeds))
    with suppress(EOFError):  # the other end was closed
        while True:
            pipe.recv()
            step()
            pipe.send(None)


def products(n: int, m: int, width: int = WIDTH, batch: int = BATCH) -> Step:
    """The matrix products of one update, for n numbers observed and m acted on."""
    actor, critic = ((n, width), (width, width), (width, 2 * m)), ((n + m, width), (width, width), (width, 1))
    forward = [(batch, i, o) for sizes, count in ((actor, 2), (critic, 6)) for i, o in sizes * count]
    weights = [(o, batch, i) for sizes, count in ((actor, 1), (critic, 2)) for i, o in sizes * count]
    inputs = [(batch, o, i) for sizes, count in ((actor, 1), (critic, 4)) for i, o in sizes[1:] * count]
    inputs += [(batch, width, m)] * 2
    pairs = [(torch.randn(a, b), torch.randn(b, c)) for a, b, c in forward + weights + inputs]

    def step() -> None:
        for _ in range(BURST):
            for a, b in pairs:
                a @ b

    step.flops = sum(2 * a.numel() * b.shape[1] for a, b in pairs)
    return step


@dataclass
class Pair:
    """Times of a candidate, and of its peer in the same rounds."""

    peer: Timing
    candidate: Timing

    def ratio(self, clock: str) -> Spread:
        """The peer's time over the candidate's, of one seed."""
        pairs = zip(getattr(self.peer, clock), getattr(self.candidate, clock), strict=True)
        return spread([seeds(self.candidate.name) * peer / own for peer, own in pairs])


def seeds(name: str) -> int:
    """How many a candidate trains at once."""
    return SEEDS if MANY in name else 1


def report(title: str, pairs: Sequence[Pair], unit: float) -> None:
    """Print medians of the time of one update or step of one seed, and ratios between their quartiles."""
    print(
        f"\n{title}\n  {'':36} {'peer ms':>7} {'ms':>6} {'ratio':>7}  {'quartiles':14} {'by cpu':>7}  {'quartiles':14} asked"
    )
    for pair in pairs:
        name = pair.candidate.name
        peer, own = (1e3 * statistics.median(t.wall) / unit for t in (pair.peer, pair.candidate))
        cells = [str(pair.ratio(clock)) for clock in ("wall", "cpu")[: 1 if APART in name else 2]]
        cells = " ".join(f"{cell:23}" for cell in cells)
        print(
            f"  {name:36} {peer:7.2f} {own / seeds(name):6.2f} {cells} {pair.candidate.target or ''}".rstrip(),
            flush=True,
        )


def measure(env: str, rounds: int, with_steps: bool) -> dict[str, list[Pair]]:
    """Updates, then steps, of all agents on one environment, each in turns with its peer."""
    models = [name + how for name in TARGETS for how in ("", COMPILED)[: 1 + can_compile()]]
    peer = build(env, PEER)
    least = products(peer.observation_space.shape[0], peer.action_space.shape[0])
    threads, chosen = torch.get_num_threads(), update_precision(None, peer.device) or HIGHEST
    results = {}
    for kind, unit in [(UPDATES, BURST)] + [("steps", STEPS)] * with_steps:
        step_of = KINDS[kind]
        beside = step_of(peer)
        pairs = [turns(beside, cast_module(chosen, least), Timing("products", PEER), rounds)] if kind == UPDATES else []
        for model in models:
            target = TARGETS[model.removesuffix(COMPILED)]
            agent = build(env, model)
            step = step_of(agent)
            pairs.append(turns(beside, step, Timing(model, PEER, target), rounds))
            both = (cast_module("medium", each) for each in (beside, step))
            pairs.append(turns(*both, Timing(f"{model}, both medium", f"{PEER}, medium", 1.25), rounds))
            agent.matmul_precision = HIGHEST
            pairs.append(turns(beside, step, Timing(f"{model}, {HIGHEST}", PEER, target), rounds))
            together = step_of(seeds_of(env, model, range(SEEDS)))
            pairs.append(turns(beside, together, Timing(model + MANY, PEER, 2.5), rounds))
            if threads > 1:
                apart = Apart(env, model, kind, threads)
                timing = Timing(f"{model}{MANY}, {threads}{APART}", PEER, 2.5)
                pairs.append(turns(beside, apart, timing, rounds))
                apart.close()
        title = f"{env}, {kind}, {threads} threads"
        report(title, pairs, unit)
        results[title] = pairs
    print(
        f"  updates' products are at {chosen}; an update needs {least.flops / 1e9:.2f} GFLOP of products at the least"
    )
    return results


def alone(env: str, models: Sequence[str], rounds: int) -> dict[str, list[Pair]]:
    """Updates of these agents on one environment, and what the first compiled one takes where nothing was compiled before."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # so that the C++ compiler's time counts as its children's
    peer, pairs = update(build(env, PEER)), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for model in [model + how for how in ("", COMPILED)[: 1 + can_compile()] for model in models]:
            step, before = update(build(env, model)), sum(os.times()[:4])
            step()
            if model == models[0] + COMPILED:  # the others find parts of it compiled
                seconds = sum(os.times()[:4]) - before
                print(f"  {model}: the first updates took {seconds:.0f} s of processor time", flush=True)
            pairs.append(turns(peer, step, Timing(model, PEER, 1.0), rounds))
    title = f"{env}, {UPDATES}, {torch.get_num_threads()} threads"
    report(title, pairs, BURST)
    return {title: pairs}


def turns(peer: Step, candidate: Step, timing: Timing, rounds: int) -> Pair:
    """A candidate in turns with its peer."""
    pair = Pair(Timing(str(timing.peer)), timing)
    interleave({"peer": peer, "candidate": candidate}, {"peer": pair.peer, "candidate": timing}, rounds)
    return pair


def seeds_of(env: str, model: str, seeds: Sequence[int]) -> list[SeedTrainer]:
    """Agents of these seeds, in training."""
    return [SeedTrainer(partial(build, env, model, seed)) for seed in seeds]


def cast_module(name: str, step: Step) -> Step:
    """The step under a matrix-product precision."""

    def run() -> None:
        with matmul_precision(name):
            step()

    return run


def per_update(timing: Timing, timings: Sequence[Timing]) -> Spread:
    """Milliseconds of processor time."""
    return Spread(*(value / BURST for value in milliseconds(timing, timings)))


def grow(
    title: str, quantity: str, values: Sequence[int], case: Callable[[int], dict[str, Step]], rounds: int
) -> Growth:
    """Updates over one quantity; a case is the candidates at one of its values, the first their peer."""
    growth = Growth(title, quantity)
    for value in values:
        candidates = case(value)
        growth.add(value, candidates, next(iter(candidates)), rounds)
    report_growth(growth, per_update, "ms of processor time")
    return growth


def growths(rounds: int) -> list[Growth]:
    """Updates over batch, width, the number of seeds, and the order of the group."""

    def agents(env: str, models: Sequence[str], **options: int | str | None) -> dict[str, Step]:
        return {model: update(build(env, model, **options)) for model in models}

    def at_once(count: int) -> dict[str, Step]:
        alone = build("Hopper-v5", PEER)
        found: dict[str, Step] = {PEER: lambda: [alone.train(1, BATCH) for _ in range(count * BURST)]}
        return found | {model: update(seeds_of("Hopper-v5", model, range(count))) for model in TARGETS}

    def over_group(order: int) -> dict[str, Step]:
        return agents("Ant-v5", ("mlp", "rpp", "emlp"), symmetry=GROUPS[order])

    plain = (PEER, "mlp", "rpp")
    cases = [
        ("Hopper-v5, width 256", "batch", (32, 64, 128, 256, 512, 1024, 2048),
         lambda n: agents("Hopper-v5", plain, batch=n)),
        ("Hopper-v5, batch 256", "width", (32, 64, 128, 256, 512), lambda n: agents("Hopper-v5", plain, width=n)),
        ("Hopper-v5, all seeds together", "number of seeds", (1, 2, 4, 8, 16), at_once),
        ("Ant-v5, width 256, batch 256", "order of the group", tuple(GROUPS), over_group),
    ]  # fmt: skip
    return [grow(title, quantity, at, case, rounds) for title, quantity, at, case in cases]


def plot(path: Path, found: Sequence[Growth]) -> None:
    """Milliseconds of processor time per update, a panel for each quantity; over the order of the group ratios."""
    drawn, (above, below) = figure(2, 2)
    *first, last = [*above, *below]
    for axes, growth in zip(first, found, strict=False):
        draw(axes, growth, per_update, colours=COLOUR_OF)
        dress(axes, growth, "update, ms of processor time", logarithmic=(True, True))
    draw(last, found[-1], to_peer, colours=COLOUR_OF)
    dress(last, found[-1], "processor time over the mlp's", logarithmic=(True, False))
    last.set_ylim(bottom=0)
    for axes in (*first, last):
        axes.legend(fontsize="small", frameon=False)
    save(drawn, path)


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=60, quick=12, plot=True)
    parser.add_argument("--updates", action="store_true", help="updates alone, without steps")
    parser.add_argument("--env", metavar="ID", help="updates on this environment alone")
    arguments, where = begin(parser, "stable_baselines3", "gymnasium", "mujoco")
    if arguments.env or arguments.quick:
        models = ("rpp", "mlp") if arguments.quick else ("rpp", "emlp", "mlp")
        write(arguments.json, where, {"times": alone(arguments.env or "Reacher-v5", models, arguments.rounds)})
        return
    results: dict[str, list[Pair]] = {}
    for env in ENVS:
        results |= measure(env, arguments.rounds, not arguments.updates)
        write(arguments.json, where, {"times": results})
    found = growths(max(2, arguments.rounds // 2))
    write(arguments.json, where, {"times": results, "growth": found})
    if arguments.plot:
        plot(arguments.plot, found)


if __name__ == "__main__":
    main()
