"""`make demo`: a pole is balanced by a network that prefers the mirror symmetry of pole and cart.

What it ends with: the return before and after, how equivariant the policy is beside a plain network, and a film.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from rppdyn.agents import RPPSAC, policy_equivariance_error
from rppdyn.jobs import train_agent
from rppdyn.jobs.building import agent_of
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.playing import film
from rppdyn.runs import RunFolder, read_metrics
from rppdyn.runs.workers import torch_threads

FILM = dict(render_mode="rgb_array", width=240, height=240)


def main(words: Sequence[str] = ()) -> int:
    """Train, or go on where an earlier demo was interrupted; then say what was learned.

    Args:
        words: keys as `rppdyn train-agent` takes them.
    """
    config = compose.composed("train_agent", ["experiment=demo", *words])
    result = train_agent.run(config, resume=True, progress=True)
    if result.interrupted:
        print(result)
        return 130
    folder = RunFolder.open(result.run)
    before, *_, after = [row["eval/return_mean"] for row in read_metrics(folder.metrics.path)]
    drawn = folder.figures / "episode.gif"
    with torch_threads(1), agent_of(result.run, episodes=3, seed=0) as (agent, _, evaluator):
        states, played = evaluator.explore(agent).observations, evaluator.play(agent)
        plain = RPPSAC("RPPPolicy", agent.spec.env_id, seed=0, policy_kwargs=dict(model="mlp", hidden=128))
        error, of_plain = (policy_equivariance_error(one, states).error for one in (agent, plain))
        try:
            film(partial(evaluator.make, **FILM), played.actions[: min(100, played.lengths[0])], 0, drawn)
            shown = str(drawn)
        except ConfigError as reason:
            shown = f"none: {reason}"
    print(f"""
The pole stood for {before:.0f} steps of 1000 before training, and stands for {after:.0f} after {result.steps:,} steps.
Equivariance error of the policy {error:.1g}, of a plain network {of_plain:.2g} (0: left and right are treated alike).
Film of the policy: {shown}
Next: rppdyn train-agent env=Walker2d-v5, and docs/jobs/train-agent.md""")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
