"""`rppdyn evaluate-agent`: episodes with the agent of a run, or of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rppdyn.agents.export import onnx_policy, torch_policy
from rppdyn.envs import make_env
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import POLICIES, PRETRAINED, EvaluateAgentConfig, pretrained_name
from rppdyn.jobs.loading import load_policy, load_pretrained, load_program, takes_keys
from rppdyn.jobs.training.evaluation import Evaluator, Policy, agent_of, film, policy_of, require_format
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json, write_measured
from rppdyn.runs.workers import torch_threads


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
    """Play episodes with a deterministic policy; the result is also written to `RUN/evaluation.json`, of a file beside it.

    Args:
        progress: show a bar on standard error while the film is drawn.
    Raises:
        RunFolderError, CheckpointError: there is no such run, it has no policy yet, or its files are damaged.
        ConfigError: the film has no known format, or nothing can draw on this machine; a file without an environment.
        UnwrittenError: a file can't be written; it has the result.
    """
    if config.video is not None:
        require_format(config.video)
    with torch_threads(None), _policy(config) as (policy, source, evaluator):
        episodes = evaluator.run(policy)
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
            files[config.video] = lambda path: film(make, policy, config.seed, path, progress=progress)
        files[_evaluation(config)] = lambda path: write_json(path, asdict(result))
        write_measured(result, files)
    return result


def _evaluation(config: EvaluateAgentConfig) -> str:
    if config.kind == "run":
        return str(RunFolder(config.run).path / "evaluation.json")
    if name := pretrained_name(config.run):
        return f"{Path(name).name}.evaluation.json"  # in the working folder
    return str(Path(config.run).with_suffix(".evaluation.json"))


@contextmanager
def _policy(config: EvaluateAgentConfig) -> Iterator[tuple[Policy, str, Evaluator]]:
    """The deterministic policy of a run or a file, where its weights come from, and what plays its episodes."""
    if config.kind == "run":
        with agent_of(config.run, config.episodes, config.seed, trust=config.trust) as (agent, source, evaluator):
            yield policy_of(agent), source, evaluator
        return
    env = config.env
    make = None
    if config.kind == PRETRAINED:
        pretrained, make = load_pretrained(config.run)
        policy, env = policy_of(pretrained), pretrained.spec.env_id
    if config.kind == POLICIES[".zip"]:
        loaded = load_policy(config.run, config.vecnormalize)
        env = env or getattr(getattr(loaded, "spec", None), "env_id", None)
        policy = policy_of(loaded)
    if env is None:
        raise ConfigError(f"{config.run}: give --env, the environment that it plays in")
    evaluator = Evaluator(make or partial(make_env, env), config.episodes, config.seed)
    try:
        size = evaluator.envs[0].observation_space.shape
        if config.kind == POLICIES[".onnx"]:
            policy = onnx_policy(config.run)
        elif config.kind == POLICIES[".pt2"]:
            policy = torch_policy(load_program(config.run))
        elif config.kind == POLICIES[".zip"]:
            policy = takes_keys(loaded, evaluator.envs[0]) or policy
        try:
            policy(np.zeros((config.episodes, *(size or ())), dtype=evaluator.envs[0].observation_space.dtype))
        except Exception as error:  # whatever its runtime raises
            raise ConfigError(
                f"{config.run} takes no observations of {env}, {size}: give the environment that it was made for"
            ) from error
        yield policy, config.kind, evaluator
    finally:
        evaluator.close()


def table(result: EvaluateAgentResult, written: bool = True) -> str:
    """Returns and lengths, one episode a line; where the film is, if it was written."""
    lines = [f"{result.run}: {result.source}", "episode  seed        return  steps"]
    for i, (value, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        lines.append(f"{i:7d}  {result.seed + i:<6d}  {value:10.2f}  {length:5d}")
    if result.video is not None and written:
        lines.append(f"film of the first episode: {result.video}")
    lines.append(f"mean return {result.return_mean:.2f}, standard deviation {result.return_std:.2f}")
    return "\n".join(lines)
