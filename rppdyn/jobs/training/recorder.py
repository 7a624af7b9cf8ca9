"""The callback of a training run: evaluations, metrics, checkpoints, progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from rppdyn.agents import RPPSAC
from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.training.agent_files import RunState, write_checkpoint
from rppdyn.jobs.training.evaluations import Evaluations
from rppdyn.runs import RunFolder, StopRequest
from rppdyn.runs.progress import Shown


class DivergedError(ValueError):
    """The networks' weights are no longer finite."""


class Recorder(BaseCallback):
    """Evaluates and saves an agent between two of its updates.

    Everything happens before a step is taken and after the updates of the one before, where the agent, its buffer and
    its environment agree; nothing it does draws from the random states that training uses. An evaluation beside training is
    recorded when its values come, at the step that it was begun at, and before the next one and the next checkpoint.
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
        self._pending: dict[str, Any] | None = None  # what else is to be recorded of the evaluation that was begun
        self._is_first = True  # of this process's updates

    def _on_rollout_start(self) -> None:
        agent: Any = self.model
        step = self.state.step = agent.num_timesteps
        self._record(agent, wait=False)
        if _due(step, self.state.evaluated, self.config.evaluation.every):
            self._evaluate(agent)
        if self.stop or _due(step, self.saved, self.config.checkpoint_every):
            self._save(agent)
            self.stopped = bool(self.stop)

    def _on_step(self) -> bool:
        agent: Any = self.model
        self.progress.update(min(agent.num_timesteps, self.config.total_steps))
        if self._is_first and agent.num_timesteps >= agent.learning_starts:
            self._is_first = False
            if agent.compiles:
                self.progress.say("compiling")
        return not self.stopped

    def finish(self, agent: RPPSAC) -> None:
        """The last evaluation and the last checkpoint, where they are not there already."""
        self.state.step = agent.num_timesteps
        if self.state.evaluated < self.state.step:
            self._evaluate(agent)
        self._record(agent, wait=True)
        if self.saved < self.state.step:
            self._save(agent)

    def _check(self, agent: RPPSAC) -> None:
        """Stop a run that has diverged before it evaluates nothing, or replaces its last good checkpoints."""
        for name in ("actor", "critic"):
            if not all(bool(p.isfinite().all()) for p in getattr(agent, name).parameters()):
                raise DivergedError(
                    f"training diverged: weights of the {name} are not finite at step {self.state.step} (last checkpoint: "
                    f"step {self.saved}); start another run with a smaller agent.learning_rate"
                )

    def _save(self, agent: RPPSAC) -> None:
        self._check(agent)
        self._record(agent, wait=True)
        write_checkpoint(agent, self.folder, self.state)
        self.saved = self.state.step

    def _evaluate(self, agent: RPPSAC) -> None:
        self._check(agent)
        self._record(agent, wait=True)
        step = self.state.evaluated = self.state.step
        now = time.monotonic()
        speed = (step - self._counted) / (now - self._clock) if now > self._clock else 0.0
        self._pending = _training_metrics(agent) | {"time/steps_per_second": speed}
        self._counted = step
        self.evaluations.begin(agent)
        self._clock = time.monotonic()  # what training waited for an evaluation is none of its time
        self._record(agent, wait=False)

    def _record(self, agent: RPPSAC, wait: bool) -> None:
        """Record the evaluation that was begun last, once."""
        found = None if self._pending is None else self.evaluations.found(wait)
        if found is None or self._pending is None:
            return
        step, (values, seconds) = self.state.evaluated, found
        timing = {
            "time/steps_per_second": self._pending.pop("time/steps_per_second"),
            "time/evaluation_seconds": seconds,
        }
        training, self._pending = self._pending, None
        self.folder.metrics.append(step, values | training)
        self.folder.timing.append(step, timing)
        for name, value in {**values, **training, **timing}.items():
            if isinstance(value, int | float) and not name.startswith(("train/", "prior/")):
                agent.logger.record(name, value)
        agent.logger.dump(step)
        self.progress.show(**{"return": values["eval/return_mean"]})


def _training_metrics(agent: RPPSAC) -> dict[str, Any]:
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


class Events(TensorBoardOutputFormat):
    """TensorBoard events in a folder.

    Args:
        after: a resumed run goes on after this step; TensorBoard hides what was written later before the interruption.
    """

    def __init__(self, folder: Path, after: int):
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=after + 1 if after else None)
        self._is_closed = False
