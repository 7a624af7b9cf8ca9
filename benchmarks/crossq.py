r"""Time RPP-CrossQ's steps of training beside those of sb3-contrib's CrossQ.

    OMP_NUM_THREADS=1 python benchmarks/crossq.py --json docs/results/crossq_cost.json

Actor and critics of two layers of 256 with ReLU, batches of 256, one update a step and the actor's every third. A step is one
of `agent.learn`, with the simulator's. Agents take turns in one process, thirty steps each per round; a ratio is the agent's
time over sb3-contrib's. "compiled" agents have compile=True; without a C++ compiler they are left out.
"""

from __future__ import annotations

from measuring import Timing, begin, can_compile, command_line, interleave, report, write_times
from sb3_contrib import CrossQ

from rppdyn.agents import RPPCrossQ

PEER = "sb3-contrib"
STEPS, WIDTH, TARGET = 30, 256, 0.5


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__ or "", rounds=15, quick=3)
    parser.add_argument("--env", nargs="+", default=["Hopper-v5", "Ant-v5"], help="environments (Hopper-v5 Ant-v5)")
    arguments, where = begin(parser, "sb3_contrib")
    forms = [False, True] if can_compile() else [False]
    results = {}
    for env in arguments.env:
        agents = {PEER: CrossQ("MlpPolicy", env, policy_kwargs=dict(net_arch=[WIDTH, WIDTH]), seed=0, device="cpu")}
        for model in ("mlp", "emlp", "rpp"):
            for compile in forms:
                agents[f"{model}, compiled" if compile else model] = RPPCrossQ(
                    "RPPPolicy",
                    env,
                    policy_kwargs=dict(model=model, hidden=WIDTH),
                    compile=compile,
                    seed=0,
                    device="cpu",
                )
        for agent in agents.values():
            agent.learn(150)
        timings = {name: Timing(name, None if name == PEER else PEER) for name in agents}
        for name in timings:
            timings[name].target = TARGET if name.endswith("compiled") else None
        steps = {
            name: lambda agent=agent: agent.learn(STEPS, reset_num_timesteps=False) for name, agent in agents.items()
        }
        interleave(steps, timings, arguments.rounds)
        report(f"{env}, {STEPS} steps", list(timings.values()))
        results[env] = list(timings.values())
    write_times(arguments.json, where, results)


if __name__ == "__main__":
    main()
