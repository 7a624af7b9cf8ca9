r"""Time the steps of seeds that are trained together, and what they are made of.

    python benchmarks/seeds.py --device cuda --json docs/results/seeds_h100.json

Seeds are trained as `rppdyn train-agent seeds=10 workers=true agent.num_envs=32 agent.gradient_steps=-1` does: networks of two
layers of 256, batches of 256, a gradient update for each transition, environments in a process for each seed. A round is
a step of all environments, and as many updates of all seeds at once as each has environments. Its parts by themselves:
"simulator" steps the environments in their processes, with random actions and nothing else; "collection" also asks the policies
and stores transitions; "updates" does nothing but updates. Rounds take turns with twenty steps of one seed of
stable-baselines3's SAC, on the same device, its environment in this process. On a GPU each is waited for at its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from measuring import Spread, Step, Timing, begin, command_line, interleave, spread, write
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from rppdyn.agents import RPPSAC
from rppdyn.agents._seeds import SeedTrainer, Updates, collect
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.jobs.building import WorkerEnv

PEER, STEPS = "stable-baselines3, one seed", 20
OPTIONS = dict(batch_size=256, buffer_size=1_000_000, learning_starts=0)


def peer(env: str, device: str) -> Step:
    """Steps of stable-baselines3's SAC, which has begun."""
    networks = dict(net_arch=[256, 256], activation_fn=nn.SiLU)
    agent = SAC("MlpPolicy", make_env(env), policy_kwargs=networks, device=device, seed=0, **OPTIONS)
    agent.set_logger(Logger(None, []))
    agent.learn(STEPS)
    return lambda: agent.learn(STEPS, reset_num_timesteps=False)


def trainer(arguments: argparse.Namespace, model: str, env: VecEnv, seed: int, is_compiled: bool) -> SeedTrainer:
    """A seed in training."""
    networks = dict(model=model, hidden=256, num_layers=2)
    spec = symmetry_spec(arguments.env)

    def build() -> RPPSAC:
        options = OPTIONS | dict(compile=is_compiled, gradient_steps=-1, device=arguments.device, seed=seed)
        agent = RPPSAC("RPPPolicy", env, spec, policy_kwargs=networks, **options)
        agent.set_logger(Logger(None, []))
        return agent

    made = SeedTrainer(build, name=f"seed {seed}")
    made()  # raises what building it raised
    made.begin(10**9)
    return made


@contextmanager
def parts(arguments: argparse.Namespace, model: str, count: int, num_envs: int, is_compiled: bool) -> Iterator[dict]:
    """A round of so many seeds and environments, and what it is made of; before, all have been done."""
    envs = [WorkerEnv(partial(make_env, arguments.env), num_envs) for _ in range(count)]
    trainers = [trainer(arguments, model, env, seed, is_compiled) for seed, env in enumerate(envs)]
    known = Updates()

    def simulator() -> None:
        chosen = [trainers[0].agent.action_space.sample()] * num_envs
        for env in envs:
            env.step_async(chosen)
        for env in envs:
            env.step_wait()

    def collection() -> None:
        collect(trainers, known)

    def updates() -> None:
        known.get(trainers).train(num_envs, OPTIONS["batch_size"])

    def whole() -> None:
        collection()
        updates()

    for _ in range(3):
        whole()
    try:
        yield {"together": whole, "updates": updates, "collection": collection, "simulator": simulator}
    finally:
        for env in envs:
            env.close()


def waited_for(step: Step) -> Step:
    """The step, to its end on a GPU too."""

    def run() -> None:
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def per_second(timing: Timing, steps: int) -> Spread:
    """Steps of environments in a second."""
    return spread([steps / wall for wall in timing.wall])


def report(title: str, timings: Sequence[Timing], steps: int) -> None:
    """Print milliseconds of a round and its parts, steps per second, and how many times those of the peer they are."""
    print(f"\n{title}\n  {'':30} {'ms':>8} {'steps/s':>9}  {'quartiles':18} {'ratio':>7}  quartiles")
    beside = timings[0]
    for timing in timings:
        own = STEPS if timing is beside else steps
        rate = per_second(timing, own)
        ratios = [own / STEPS * other / wall for wall, other in zip(timing.wall, beside.wall, strict=True)]
        milliseconds = 1e3 * spread(timing.wall).median
        quartiles = f"({rate.low:,.0f}, {rate.high:,.0f})"
        print(
            f"  {timing.name:30} {milliseconds:8.2f} {rate.median:9,.0f}  {quartiles:18} {spread(ratios)}", flush=True
        )


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=20, quick=3)
    parser.add_argument("--device", default="cpu", help="of all agents: cpu or cuda (cpu)")
    parser.add_argument("--env", default="Walker2d-v5", help="the task (Walker2d-v5)")
    parser.add_argument("--models", nargs="+", default=["rpp"], help="rpp, mlp or emlp (rpp)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10], help="trained together (10)")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 32], help="environments of each seed (1 32)")
    parser.add_argument("--compile", choices=("true", "false", "both"), default="both", help="of updates (both)")
    arguments, where = begin(parser, "stable_baselines3", "gymnasium", "mujoco")
    if arguments.device != "cpu":
        where["device"] = torch.cuda.get_device_name(arguments.device)
        print(f"  device {where['device']}")
    beside = waited_for(peer(arguments.env, arguments.device))
    compiled = {"true": (True,), "false": (False,), "both": (False, True)}[arguments.compile]
    cases = [
        (model, count, num_envs, how)
        for model in arguments.models for count in arguments.seeds for num_envs in arguments.num_envs for how in compiled
    ]  # fmt: skip
    found: dict[str, dict] = {}
    for model, count, num_envs, is_compiled in cases:
        how = "compiled" if is_compiled else "not compiled"
        title = f"{arguments.env}, {model}, {count} seeds of {num_envs} environments, {how}"
        with parts(arguments, model, count, num_envs, is_compiled) as steps_of:
            steps = {PEER: beside} | {name: waited_for(step) for name, step in steps_of.items()}
            timings = {name: Timing(name) for name in steps}
            interleave(steps, timings, arguments.rounds)
        report(title, list(timings.values()), count * num_envs)
        found[title] = {"seeds": count, "num_envs": num_envs, "times": list(timings.values())}
        write(arguments.json, where, {"rounds": found, "steps of the peer": STEPS})


if __name__ == "__main__":
    main()
