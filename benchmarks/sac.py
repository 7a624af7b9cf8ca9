r"""Time RPP-SAC's gradient updates and steps beside those of stable-baselines3's SAC.

    python benchmarks/sac.py --json docs/results/sac_cost.json     # on one thread and on two

Networks of two layers of 256, batches of 256, stable-baselines3's replay buffer and its own `train`. An update is
`agent.train(1, 256)`, sampling included; a step is one of `agent.learn`, with the simulator's. Agents take turns in one
process, one update or twenty steps each per round; a ratio is the median over rounds of the peer's time over the agent's,
between quartiles; `cpu` is the same of the process's processor time, which other programs disturb less. "products" are the
matrix products that an update needs at the least (two actors forward and one backward; two targets, critics and improved
critics forward, critics backward and improved critics backward to their actions) and nothing else. "medium" stands for
torch.set_float32_matmul_precision("medium"). "4 seeds" are trained at once; times are per seed.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import stable_baselines3
import torch
from measuring import Step, Timing, conditions, interleave, write_times
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger

from rppdyn.agents import RPPSAC
from rppdyn.agents.together import Together, Trainee, train_together

ENVS = ("Hopper-v5", "Walker2d-v5")
PEER = "stable-baselines3"
TARGETS = {"mlp": 2.0, "rpp": 1.5}
SEEDS = 4
MANY = f", {SEEDS} seeds"
BATCH, WIDTH, STEPS = 256, 256, 20
UPDATES = "updates"


def build(env: str, model: str, seed: int = 0) -> SAC:
    """An agent with random transitions in its buffer."""
    options = dict(batch_size=BATCH, buffer_size=50_000, learning_starts=0, seed=seed, device="cpu")
    if model == PEER:
        agent = SAC("MlpPolicy", env, policy_kwargs=dict(net_arch=[WIDTH, WIDTH]), **options)
    else:
        agent = RPPSAC("RPPPolicy", env, policy_kwargs=dict(model=model, hidden=WIDTH, num_layers=2), **options)
    draw = np.random.default_rng(seed).normal
    n, m = agent.observation_space.shape, agent.action_space.shape
    for _ in range(2_000):
        agent.replay_buffer.add(
            draw(size=(1, *n)), draw(size=(1, *n)), np.tanh(draw(size=(1, *m))), draw(size=1), np.zeros(1), [{}]
        )
    agent.set_logger(Logger(None, []))
    return agent


def updates(agent: SAC | list[Trainee]) -> Step:
    """One update of an agent, or of several at once."""
    if isinstance(agent, SAC):
        return lambda: agent.train(1, BATCH)
    group = Together([trainee.agent for trainee in agent], [trainee.random for trainee in agent])
    return lambda: group.train(1, BATCH)


def steps(agent: SAC | list[Trainee]) -> Step:
    """Steps of an agent, or of several at once, with an update after each."""
    if isinstance(agent, SAC):
        return lambda: agent.learn(STEPS, reset_num_timesteps=False)
    return lambda: train_together(agent, agent[0].agent.num_timesteps + STEPS)


@contextmanager
def precision(name: str):
    """Torch's matrix-product precision inside the block, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def products(n: int, m: int) -> Step:
    """The matrix products of one update, for n numbers observed and m acted on."""
    actor, critic = ((n, WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * m)), ((n + m, WIDTH), (WIDTH, WIDTH), (WIDTH, 1))
    forward = [(BATCH, i, o) for sizes, count in ((actor, 2), (critic, 6)) for i, o in sizes * count]
    weights = [(o, BATCH, i) for sizes, count in ((actor, 1), (critic, 2)) for i, o in sizes * count]
    inputs = [(BATCH, o, i) for sizes, count in ((actor, 1), (critic, 4)) for i, o in sizes[1:] * count]
    inputs += [(BATCH, WIDTH, m)] * 2
    pairs = [(torch.randn(a, b), torch.randn(b, c)) for a, b, c in forward + weights + inputs]

    def step() -> None:
        for a, b in pairs:
            a @ b

    step.flops = sum(2 * a.numel() * b.shape[1] for a, b in pairs)
    return step


def report(title: str, timings: dict[str, Timing], unit: float) -> None:
    """Print medians, and ratios between their quartiles."""
    print(f"\n{title}\n  {'':28} {'ms':>7} {'ratio':>6}  {'quartiles':12} {'cpu ms':>7} {'ratio':>6}  asked")
    for t in timings.values():
        peer, count = timings[t.peer], SEEDS if MANY in t.name else 1
        pairs = (zip(getattr(peer, k), getattr(t, k), strict=True) for k in ("wall", "cpu"))
        wall, cpu = ([count * a / b for a, b in pair] for pair in pairs)
        low, middle, high = statistics.quantiles(wall, n=4)
        print(
            f"  {t.name:28} {1e3 * statistics.median(t.wall) / unit / count:7.2f} {middle:6.2f}  {low:5.2f} {high:5.2f}  "
            f"{1e3 * statistics.median(t.cpu) / unit / count:7.2f} {statistics.median(cpu):6.2f}  {t.target or ''}"
        )


def measure(env: str, rounds: int, with_steps: bool) -> dict[str, list[Timing]]:
    """Updates, then steps, of all agents in both precisions on one environment."""
    found: dict[str, SAC | list[Trainee]] = {name: build(env, name) for name in (PEER, *TARGETS)}
    for name in TARGETS:
        found[name + MANY] = [Trainee(partial(build, env, name, seed)) for seed in range(SEEDS)]
    peer = found[PEER]
    least = products(peer.observation_space.shape[0], peer.action_space.shape[0])
    results = {}
    kinds = [(UPDATES, updates, rounds, 1)] + [("steps", steps, max(2, rounds // 8), STEPS)] * with_steps
    for kind, step_of, count, unit in kinds:
        arms = {"products": (least, Timing("products", PEER))} if kind == UPDATES else {}
        for name, agent in found.items():
            target = TARGETS.get(name, 2.5 if MANY in name else None)
            arms[name] = step_of(agent), Timing(name, PEER, target)
            if MANY not in name:
                fast = f"{name}, medium"
                step = in_precision("medium", step_of(agent))
                arms[fast] = step, Timing(fast, f"{PEER}, medium", 1.25 if name in TARGETS else None)
        timings = {name: timing for name, (_, timing) in arms.items()}
        interleave({name: step for name, (step, _) in arms.items()}, timings, count)
        title = f"{env}, {kind}, {torch.get_num_threads()} threads"
        report(title, timings, unit)
        results[title] = list(timings.values())
    print(f"  an update needs {least.flops / 1e9:.2f} GFLOP of products at the least")
    return results


def in_precision(name: str, step: Step) -> Step:
    """The step under a matrix-product precision."""

    def run() -> None:
        with precision(name):
            step()

    return run


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="updates of each agent")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of torch, one after another")
    parser.add_argument("--updates", action="store_true", help="updates alone, without steps")
    parser.add_argument("--json", type=Path, help="where to write all times")
    arguments = parser.parse_args()
    where = conditions() | {"threads": arguments.threads, "stable_baselines3": stable_baselines3.__version__}
    print("  ".join(f"{k} {v}" for k, v in where.items()))
    results: dict[str, list[Timing]] = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for env in ENVS:
            results |= measure(env, arguments.rounds, not arguments.updates)
    if arguments.json:
        write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
