"""`rppdyn evaluate-agent`: episodes with the agent of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.jobs.training.building import agent_of
from rppdyn.jobs.training.film import film, require_format
from rppdyn.jobs.training.rollouts import policy_of
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json


@dataclass(frozen=True)
class EvaluateAgentResult:
    """Returns and lengths of the episodes, and which weights played them."""

    run: str
    source: str
    seed: int
    returns: list[float]
    lengths: list[int]
    return_mean: float
    return_std: float
    video: str | None = None


def run(config: EvaluateAgentConfig, *, progress: bool = False) -> EvaluateAgentResult:
    """Play episodes with a run's deterministic policy; the result is also written to its `evaluation.json`.

    Args:
        progress: show a bar on standard error while the film is drawn.
    Raises:
        RunFolderError, CheckpointError: there is no such run, it has no policy yet, or its files are damaged.
        ConfigError: the film can't be written, or nothing can draw on this machine.
    """
    if config.video is not None:
        require_format(config.video)
    with agent_of(config.run, config.episodes, config.seed) as (agent, source, evaluator):
        episodes = evaluator.play(agent)
        result = EvaluateAgentResult(
            run=config.run,
            source=source,
            seed=config.seed,
            returns=episodes.returns.tolist(),
            lengths=episodes.lengths.tolist(),
            return_mean=float(episodes.returns.mean()),
            return_std=float(episodes.returns.std()),
            video=config.video,
        )
        if config.video is not None:
            make = partial(evaluator.make, render_mode="rgb_array")
            film(make, policy_of(agent), config.seed, Path(config.video), progress=progress)
    write_json(RunFolder(config.run).path / "evaluation.json", asdict(result))
    return result


def table(result: EvaluateAgentResult) -> str:
    """Returns and lengths, one episode a line."""
    lines = [f"{result.run}: {result.source}", "episode  seed        return  steps"]
    for i, (value, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        lines.append(f"{i:7d}  {result.seed + i:<6d}  {value:10.2f}  {length:5d}")
    if result.video is not None:
        lines.append(f"film of the first episode: {result.video}")
    lines.append(f"mean return {result.return_mean:.2f}, standard deviation {result.return_std:.2f}")
    return "\n".join(lines)
