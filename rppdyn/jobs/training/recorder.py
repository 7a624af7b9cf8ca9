"""The callback of a training run: evaluations, metrics, checkpoints, progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from rppdyn.agents import Agent
from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.training.agent_files import RunState, write_checkpoint
from rppdyn.jobs.training.evaluations import Evaluations
from rppdyn.runs import RunFolder, StopRequest
from rppdyn.runs.loggers import ScalarLogger
from rppdyn.runs.progress import Shown
from rppdyn.runs.workers import WorkerError


class Recorder(BaseCallback):
    """Evaluates and saves an agent between two of its updates.

    Everything happens before a step is taken and after the updates of the one before, where the agent, its buffer and
    its environment agree; nothing it does draws from the random states that training uses. An evaluation beside training is
    recorded when its values come, at the step that it was begun at; the next one, and the next checkpoint, wait for it. One
    that is due with a checkpoint comes after it, and again in a run that goes on from there.
    """

    def __init__(
        self,
        config: TrainAgentConfig,
        folder: RunFolder,
        evaluations: Evaluations,
        state: RunState,
        stop: StopRequest,
        progress: Shown,
    ):
        super().__init__()
        self.config = config
        self.folder = folder
        self.evaluations = evaluations
        self.state = state
        self.stop = stop
        self.progress = progress
        self.saved = state.step
        self.stopped = False
        self._clock = time.monotonic()
        self._counted = state.step
        self._pending: _Pending | None = None
        self._is_first = True  # of this process's updates

    def _on_rollout_start(self) -> None:
        agent: Any = self.model
        step = self.state.step = agent.num_timesteps
        if self.stop:
            self.stopped = True
            self._save(agent)  # at once: an evaluation that is under way may take longer than there is
            if self._pending is not None:
                self._record(agent, wait=True)
                self._save(agent)
            return
        self._record(agent, wait=False)
        if _due(step, self.saved, self.config.checkpoint_every):
            self._record(agent, wait=True)
            self._save(agent)
        if _due(step, self._begun, self.config.evaluation.every):
            self._evaluate(agent)

    def _on_training_end(self) -> None:
        """Begin the last evaluation, so that those of all seeds are under way before one is waited for."""
        agent: Any = self.model
        if not self.stopped:
            self.state.step = agent.num_timesteps
            self._evaluate_at_end(agent)

    def _on_step(self) -> bool:
        agent: Any = self.model
        self.progress.update(min(agent.num_timesteps, self.config.total_steps))
        if self._is_first and agent.compiles and agent.num_timesteps >= agent.learning_starts:
            self._is_first = False
            self.progress.say("compiling")
        return not self.stopped

    def finish(self, agent: Agent) -> None:
        """The last evaluation and the last checkpoint, where they are not there already."""
        self.state.step = agent.num_timesteps
        self._evaluate_at_end(agent)
        self._record(agent, wait=True)
        if self.saved < self.state.step:
            self._save(agent)

    def _evaluate_at_end(self, agent: Agent) -> None:
        if self._begun < self.state.step:
            self._evaluate(agent)

    @property
    def _begun(self) -> int:
        """The step of the evaluation that was begun last."""
        return self.state.evaluated if self._pending is None else self._pending.step

    def _check(self, agent: Agent) -> None:
        """Stop a run that has diverged before it evaluates nothing."""
        agent.record_updates()
        agent.check_finite()

    def _save(self, agent: Agent) -> None:
        write_checkpoint(agent, self.folder, self.state)
        self.saved = self.state.step

    def _evaluate(self, agent: Agent) -> None:
        self._check(agent)
        self._record(agent, wait=True)
        step, now = self.state.step, time.monotonic()
        speed = (step - self._counted) / (now - self._clock) if now > self._clock else 0.0
        self._pending = _Pending(step, _training_metrics(agent), speed)
        self._counted = step
        agent.logger.dump(step)
        self.evaluations.begin(agent)
        self._clock = time.monotonic()
        self._record(agent, wait=False)

    def _record(self, agent: Agent, wait: bool) -> None:
        """Record the evaluation that was begun last, once."""
        pending = self._pending
        if pending is None:
            return
        start = time.monotonic()
        try:
            found = self.evaluations.found(wait)
        except (WorkerError, RuntimeError) as error:
            self._pending = None
            if self.saved < self.state.step:
                self._save(agent)
            raise type(error)(f"the evaluation at step {pending.step}: {error}") from error
        self._clock += time.monotonic() - start  # what training waited for an evaluation is none of its time
        if found is None:
            return
        values, seconds = found
        values |= pending.training
        timing = {"time/steps_per_second": pending.steps_per_second, "time/evaluation_seconds": seconds}
        self.folder.metrics.append(pending.step, values)
        self.folder.timing.append(pending.step, timing)
        shown = {
            name: value
            for name, value in {**values, **timing}.items()
            if isinstance(value, int | float) and not name.startswith(("train/", "prior/"))
        }
        for events in agent.logger.output_formats:  # not by its records, which may be of a later step
            if isinstance(events, Events):
                events.record(shown, pending.step)
        self.progress.show(**{"return": values["eval/return_mean"]})
        self.state.evaluated, self._pending = pending.step, None


class _Pending(NamedTuple):
    """An evaluation that was begun: at which step, and what else is recorded with it."""

    step: int
    training: dict[str, Any]
    steps_per_second: float


def _training_metrics(agent: Agent) -> dict[str, Any]:
    """What the agent last recorded of its updates, and the mean return of its last training episodes."""
    agent.record_updates()
    recorded: Mapping[str, Any] = agent.logger.name_to_value
    values = {name: float(recorded[name]) for name in sorted(recorded) if name.startswith(("train/", "prior/"))}
    episodes: list[dict[str, float]] = list(agent.ep_info_buffer or [])
    if episodes:
        values["rollout/return_mean"] = float(np.mean([episode["r"] for episode in episodes]))
        values["rollout/length_mean"] = float(np.mean([episode["l"] for episode in episodes]))
    return values


def _due(step: int, last: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (last, step]; always, where there was no last time."""
    return last < 0 or step // every > last // every


class Events(KVWriter):
    """What an agent logs and what is measured of it, each value under one name and once at a step.

    An agent's log has pathways, too, newer by some updates than those of the last evaluation, which are kept.
    """

    NAMES: ClassVar[dict[str, str]] = {
        "rollout/ep_rew_mean": "rollout/return_mean",
        "rollout/ep_len_mean": "rollout/length_mean",
    }

    def __init__(self, scalars: ScalarLogger) -> None:
        self._scalars = scalars
        self._written: set[tuple[str, int]] = set()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = {}
        for name, value in key_values.items():
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if is_number and "tensorboard" not in (key_excluded.get(name) or ()) and not name.startswith("pathway/"):
                values[self.NAMES.get(name, name)] = float(value)
        self.record(values, step)

    def record(self, values: Mapping[str, float], step: int) -> None:
        """Write values that are not written at this step yet."""
        new = {name: value for name, value in values.items() if (name, step) not in self._written}
        self._written |= {(name, step) for name in new}
        self._scalars.write(new, step)

    def close(self) -> None:
        self._scalars.close()
