"""`rppdyn collect`: episodes of an agent, or of random actions, as a Minari dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from rppdyn.agents import RPPSAC, played_episodes, random_policy, replay_episodes, spread_episodes
from rppdyn.envs import Episode, make_env, write_episodes
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import EnvConfig, TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import CollectConfig
from rppdyn.jobs.loading import load_policy
from rppdyn.jobs.measuring.targets import check_environment
from rppdyn.jobs.training import building
from rppdyn.jobs.training.evaluation import Policy, agent_of, exploring, policy_of
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.workers import torch_threads

STEPS = 50_000  # that are played unless another number is asked for


@dataclass(frozen=True)
class CollectResult:
    """The dataset that was written, and its place.

    Attributes:
        dataset, folder: its Minari id and its place.
        env: environment of the episodes.
        source: where they are from.
        lengths, returns: steps and undiscounted sum of rewards of each episode.
    """

    dataset: str
    folder: str
    env: str
    source: str
    lengths: list[int]
    returns: list[float]

    def __str__(self) -> str:
        steps, count = sum(self.lengths), len(self.lengths)
        return (
            f"{self.dataset}: {steps} transitions of {self.env} in {count} episode{'s' * (count != 1)}, {self.source}\n"
            f"mean return {sum(self.returns) / count:.2f}, mean length {steps / count:.1f}\n{self.folder}"
        )


@dataclass(frozen=True)
class _Source:
    """Episodes to be written, played as they are asked for; their steps, about; what they are by, in a word and in words."""

    env: gymnasium.Env
    episodes: Iterable[Episode]
    steps: int
    short: str
    words: str


def run(config: CollectConfig, *, progress: bool = False) -> CollectResult:
    """Collect episodes into a new Minari dataset.

    Args:
        progress: show a bar on standard error.
    Raises:
        RunFolderError, CheckpointError: there is no such run, it has no policy yet, or its files are damaged.
        ConfigError, ValueError: Minari is not installed, or the dataset exists; the environment can't be made or described,
            or is not the agent's; the replay buffer holds fewer steps than asked for.
    """
    lengths: list[int] = []
    returns: list[float] = []

    def watched(source: _Source, bar: Progress) -> Iterator[Episode]:
        steps = 0
        for episode in source.episodes:
            steps += len(episode)
            lengths.append(len(episode))
            returns.append(float(episode.rewards.sum()))
            bar.update(min(steps, source.steps))
            yield episode

    with torch_threads(None), _source(config) as source:
        assert source.env.spec is not None
        env_id = source.env.spec.id
        own = f"rppdyn/{_plain(env_id)}/{_plain(source.short)}-v0"
        dataset = own if config.name is None else config.name
        with Progress(source.steps, description=f"collect {env_id}", delay=1.0, enabled=progress) as bar:
            folder = write_episodes(
                dataset,
                watched(source, bar),
                env=source.env,
                algorithm=source.words,
                description=f"{env_id}, {source.words}",
            )
    return CollectResult(dataset, str(folder), env_id, source.words, lengths, returns)


@contextmanager
def _source(config: CollectConfig) -> Iterator[_Source]:
    if config.kind == "run":
        with _of_run(config) as source:
            yield source
        return
    assert config.env is not None
    env = make_env(config.env.id, actuator_scale=config.env.actuator_scale, monitor=False, **config.env.kwargs)
    with closing(env):
        if config.kind == "random":
            episodes = _played(config, env, random_policy(env.action_space, config.seed))
            yield _Source(env, episodes, config.steps or STEPS, f"random-seed{config.seed}", "random actions")
            return
        assert config.source is not None
        policy = load_policy(config.source, config.vecnormalize)
        check_environment(config.source, policy, env, "env=")
        play = config.play or "exploring"
        with _acting(policy, play, config.seed) as act:
            file = Path(config.source)
            yield _Source(
                env,
                _played(config, env, act),
                config.steps or STEPS,
                f"{file.stem}-{play}",
                f"{play} policy of {file.name}",
            )


@contextmanager
def _of_run(config: CollectConfig) -> Iterator[_Source]:
    """The replay buffer of a run, or episodes of its policy."""
    assert config.source is not None
    folder = RunFolder.open(config.source)
    trained: TrainAgentConfig = compose.from_run("train_agent", folder)
    if config.env is not None and _identity(config.env) != _identity(trained.env):
        raise ConfigError(
            f"env={config.env.id} with its options is not what {folder.path} was trained on, {trained.env.id} with its own: "
            "leave out env="
        )
    trust = config.trust or config.env is not None  # which is the run's own, as the user has it
    who = f"{trained.model.kind}-seed{trained.seed}"
    with agent_of(config.source, 1, config.seed, trust=trust) as (agent, weights, evaluator):
        env = evaluator.envs[0]
        if config.play is not None:
            with _acting(agent, config.play, config.seed) as act:
                episodes = _played(config, env, act)
                words = f"{config.play} {weights} of {trained.model.kind}"
                yield _Source(env, episodes, config.steps or STEPS, f"{who}-{config.play}", words)
            return
        if not isinstance(agent, RPPSAC):
            raise ConfigError(f"{folder.path} is a run of agent=ppo, which keeps no transitions: add --play exploring")
        step = building.load_checkpoint(agent, folder)
        held = replay_episodes(agent)
        if config.steps is not None:
            held = spread_episodes(held, steps=config.steps, seed=config.seed)
        words = f"replay buffer of {trained.model.kind} at step {step}"
        yield _Source(env, held, sum(map(len, held)), f"{who}-replay", words)


def _played(config: CollectConfig, env: gymnasium.Env, policy: Policy) -> Iterator[Episode]:
    return played_episodes(env, policy, steps=config.steps or STEPS, seed=config.seed)


@contextmanager
def _acting(agent, play: str, seed: int) -> Iterator[Policy]:
    if play == "deterministic":
        yield policy_of(agent)
        return
    with exploring(agent, seed) as policy:
        yield policy


def _identity(env: EnvConfig) -> tuple[str, dict, dict]:
    return env.id, env.kwargs, env.actuator_scale


def _plain(text: str) -> str:
    """A text of the characters that Minari allows in names."""
    return re.sub(r"[^\w-]", "_", text)
