"""What a training run measures of its agent now and then: in its own process, or beside it while training goes on."""

from __future__ import annotations

import copy
import io
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from rppdyn.agents import Agent, AgentEquivarianceError
from rppdyn.envs import SymmetrySpec
from rppdyn.jobs.config.agent import EVALUATION_SEED, TrainAgentConfig
from rppdyn.jobs.training.agent_files import kept_random_state
from rppdyn.jobs.training.building import build_agent, build_env
from rppdyn.jobs.training.rollouts import Evaluator
from rppdyn.runs.workers import Worker

Measured = tuple[dict[str, Any], float]
"""Values by the names that `docs/metrics.md` defines, and the seconds that it took."""


class Evaluations(ABC):
    """Measures an agent as it is, always on the same initial states; one at a time."""

    @abstractmethod
    def begin(self, agent: Agent) -> None:
        """Measure the agent as it is now."""

    @abstractmethod
    def found(self, wait: bool) -> Measured | None:
        """What was found since, once; None where it isn't known yet, and is not waited for."""

    @abstractmethod
    def close(self) -> None:
        """Close environments."""


class Here(Evaluations):
    """In this process, while training waits."""

    def __init__(self, config: TrainAgentConfig) -> None:
        self.states = config.evaluation.states
        self.evaluator = Evaluator(lambda: build_env(config), config.evaluation.episodes, EVALUATION_SEED)
        self._found: Measured | None = None

    def measured(self, agent: Agent) -> Measured:
        """Of the agent as it is now."""
        start = time.monotonic()
        with kept_random_state():
            values = measure(agent, self.evaluator, self.states)
        return values, time.monotonic() - start

    def begin(self, agent: Agent) -> None:
        self._found = self.measured(agent)

    def found(self, wait: bool) -> Measured | None:
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        self.evaluator.close()


class Aside(Evaluations):
    """In a process of its own, on the CPU, while training goes on.

    Args:
        spec: the symmetry of the agent's networks.
    """

    def __init__(self, config: TrainAgentConfig, spec: SymmetrySpec) -> None:
        # without what training alone needs
        agent = replace(config.agent, buffer_size=1, num_envs=1, compile=False, matmul_precision=None)
        self._arguments = replace(config, device="cpu", agent=agent), spec
        self._worker = Worker()
        self._pool = ThreadPoolExecutor(1)
        self._answer: Future[Measured] | None = None

    def begin(self, agent: Agent) -> None:
        weights = io.BytesIO()
        # copies: agents that are trained together have views of what all share, which would be saved whole
        copied = {
            name: {key: value.to("cpu", copy=True) for key, value in part.state_dict().items()}
            for name, part in agent.parts.items()
        }
        torch.save(copied, weights)
        self._worker.ask(measure_there, *self._arguments, weights.getvalue())
        self._answer = self._pool.submit(self._worker.answer)

    def found(self, wait: bool) -> Measured | None:
        if self._answer is None or not (wait or self._answer.done()):
            return None
        found, self._answer = self._answer.result(), None
        return found

    def close(self) -> None:
        self._worker.close()
        self._pool.shutdown()


_there: tuple[Agent, Here] | None = None


def measure_there(config: TrainAgentConfig, spec: SymmetrySpec, weights: bytes) -> Measured:
    """In a worker: measure the agent that has these weights, which is built at the first call."""
    global _there
    if _there is None:
        _there = build_agent(config, build_env(config), spec), Here(config)
    agent, here = _there
    parts = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    for name, part in agent.parts.items():
        part.load_state_dict(parts[name])
    return here.measured(agent)


def measure(agent: Agent, evaluator: Evaluator, states: int) -> dict[str, Any]:
    """Returns, equivariance errors and pathways of an agent, by the names that `docs/metrics.md` defines."""
    # one step's actions are too little for a GPU to be faster at
    player = agent.policy if agent.device.type == "cpu" else copy.deepcopy(agent.policy).to("cpu")
    episodes = evaluator.play(player)
    observations, actions = evaluator.explore(player).spread(states)
    values: dict[str, Any] = {
        "eval/return_mean": float(episodes.returns.mean()),
        "eval/return_std": float(episodes.returns.std()),
        "eval/length_mean": float(episodes.lengths.mean()),
        "eval/returns": episodes.returns.tolist(),
    }
    if not agent.spec.is_trivial:
        for who, error in agent.equivariance_errors(observations, actions).items():
            values |= _named(who, error)
    return values | {f"pathway/{name}": value for name, value in agent.pathway_statistics().items()}


def _named(who: str, error: AgentEquivarianceError) -> dict[str, Any]:
    """Errors by generator; null where they are vacuous."""
    values: dict[str, Any] = {f"equivariance/{who}": None if error.vacuous else error.error}
    for generator, value in error.per_generator.items():
        values[f"equivariance/{who}/{generator}"] = None if error.vacuous else value
    return values
