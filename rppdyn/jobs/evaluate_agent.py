"""`rppdyn evaluate-agent`: episodes with the agent of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.jobs.training.building import agent_of
from rppdyn.jobs.training.film import film, require_format
from rppdyn.jobs.training.rollouts import policy_of
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json, write_measured


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
        ConfigError: the film has no known format, or nothing can draw on this machine.
        UnwrittenError: a file can't be written; it has the result.
    """
    if config.video is not None:
        require_format(config.video)
    with agent_of(config.run, config.episodes, config.seed, trust=config.trust) as (agent, source, evaluator):
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
        files: dict[str, Callable[[Path], object]] = {}
        if config.video is not None:
            make = partial(evaluator.make, render_mode="rgb_array")
            files[config.video] = lambda path: film(make, policy_of(agent), config.seed, path, progress=progress)
        files[str(RunFolder(config.run).path / "evaluation.json")] = lambda path: write_json(path, asdict(result))
        write_measured(result, files)
    return result


def table(result: EvaluateAgentResult, written: bool = True) -> str:
    """Returns and lengths, one episode a line; where the film is, if it was written."""
    lines = [f"{result.run}: {result.source}", "episode  seed        return  steps"]
    for i, (value, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        lines.append(f"{i:7d}  {result.seed + i:<6d}  {value:10.2f}  {length:5d}")
    if result.video is not None and written:
        lines.append(f"film of the first episode: {result.video}")
    lines.append(f"mean return {result.return_mean:.2f}, standard deviation {result.return_std:.2f}")
    return "\n".join(lines)
