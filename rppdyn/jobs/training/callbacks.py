"""The callbacks of a training run: evaluations, metrics, checkpoints and progress; and those that the user names."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from rppdyn.agents import Agent
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.training.building import capture_into
from rppdyn.jobs.training.evaluation import Evaluations
from rppdyn.runs import Session, StopRequest
from rppdyn.runs.progress import ProgressBar
from rppdyn.runs.workers import WorkerError
from rppdyn.trust import UntrustedError


class Recorder(BaseCallback):
    """Evaluates and saves an agent between two of its updates.

    Everything happens before a step is taken and after the updates of the one before, where the agent, its buffer and
    its environment agree; nothing it does draws from the random states that training uses. An evaluation beside training is
    recorded when its values come, at the step that it was begun at; the next one, and the next checkpoint, wait for it. One
    that is due with a checkpoint comes after it, and again in a run that goes on from there.
    """

    def __init__(
        self, run: Session, total_steps: int, evaluations: Evaluations, stop: StopRequest, progress: ProgressBar
    ) -> None:
        super().__init__()
        self.run, self.total_steps, self.evaluations = run, total_steps, evaluations
        self.stop, self.progress = stop, progress
        self.stopped = False
        self._clock = time.monotonic()
        self._counted = run.saved
        self._pending: _Pending | None = None
        self._is_first = True  # of this process's updates

    def _on_rollout_start(self) -> None:
        agent: Any = self.model
        step = agent.num_timesteps
        if self.stop:
            self.stopped = True
            self._save(agent)  # at once: an evaluation that is under way may take longer than there is
            if self._pending is not None:
                self._record(agent, wait=True)
                self._save(agent)
            return
        self._record(agent, wait=False)
        if self.run.save_due(step):
            self._record(agent, wait=True)
            self._save(agent)
        if self.run.due(step):
            self._evaluate(agent)

    def _on_training_end(self) -> None:
        """Begin the last evaluation, so that those of all seeds are under way before one is waited for."""
        agent: Any = self.model
        if not self.stopped:
            self._evaluate_at_end(agent)

    def _on_step(self) -> bool:
        agent: Any = self.model
        self.progress.update(min(agent.num_timesteps, self.total_steps))
        if self._is_first and agent.compiles and agent.num_timesteps >= agent.learning_starts:
            self._is_first = False
            self.progress.say("compiling")
        return not self.stopped

    def finish(self, agent: Agent) -> None:
        """The last evaluation and the last checkpoint, where they are not there already."""
        self._evaluate_at_end(agent)
        self._record(agent, wait=True)
        if self.run.saved < agent.num_timesteps:
            self._save(agent)

    def _evaluate_at_end(self, agent: Agent) -> None:
        if self.run.measured < agent.num_timesteps:
            self._evaluate(agent)

    def _save(self, agent: Agent) -> None:
        self.run.checkpoint(agent.num_timesteps, partial(capture_into, agent))

    def _evaluate(self, agent: Agent) -> None:
        agent.record_updates()
        agent.check_finite()  # stop a run that has diverged before it evaluates nothing
        self._record(agent, wait=True)
        step, now = agent.num_timesteps, time.monotonic()
        speed = (step - self._counted) / (now - self._clock) if now > self._clock else 0.0
        self._pending = _Pending(step, _training_metrics(agent), speed)
        self.run.measured = self._counted = step
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
            if self.run.saved < agent.num_timesteps:
                self._save(agent)
            raise type(error)(f"the evaluation at step {pending.step}: {error}") from error
        self._clock += time.monotonic() - start  # what training waited for an evaluation is none of its time
        if found is None:
            return
        values, seconds = found
        timing = {"time/steps_per_second": pending.steps_per_second, "time/evaluation_seconds": seconds}
        # not by the agent's log, whose records may be of a later step
        self.run.record(pending.step, values | pending.training, timing, unlogged=("train/", "prior/"))
        self.progress.show(**{"return": values["eval/return_mean"]})
        self._pending = None


class _Pending(NamedTuple):
    """An evaluation that was begun: at which step, and what else is recorded with it."""

    step: int
    training: dict[str, Any]
    steps_per_second: float


def _training_metrics(agent: Agent) -> dict[str, Any]:
    """The agent's last records of its updates, and the mean return of its last training episodes."""
    agent.record_updates()
    recorded: Mapping[str, Any] = agent.logger.name_to_value
    values = {name: float(recorded[name]) for name in sorted(recorded) if name.startswith(("train/", "prior/"))}
    episodes: list[dict[str, float]] = list(agent.ep_info_buffer or [])
    if episodes:
        values["rollout/return_mean"] = float(np.mean([episode["r"] for episode in episodes]))
        values["rollout/length_mean"] = float(np.mean([episode["l"] for episode in episodes]))
    return values


class Events(KVWriter):
    """Pass an agent's log on to a run's loggers, each value under one name and once at a step.

    An agent's log has pathways, too, newer by some updates than those of the last evaluation, which are kept.
    """

    NAMES: ClassVar[dict[str, str]] = {
        "rollout/ep_rew_mean": "rollout/return_mean",
        "rollout/ep_len_mean": "rollout/length_mean",
    }

    def __init__(self, run: Session) -> None:
        self._run = run

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = {}
        for name, value in key_values.items():
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if is_number and "tensorboard" not in (key_excluded.get(name) or ()) and not name.startswith("pathway/"):
                values[self.NAMES.get(name, name)] = float(value)
        self._run.log(values, step)

    def close(self) -> None:
        """Leave the loggers to the session."""


# -- the user's --------------------------------------------------------------------------------------------------------


def load_callbacks(
    names: Sequence[str], load: Callable[[str], Callable], named_by: str | None = None
) -> list[BaseCallback]:
    """New callbacks: of a class one without arguments, of a function (locals, globals) one that calls it at each step.

    Args:
        names: `module:Class` or `module:function`.
        load: what a name stands for.
        named_by: the file that alone names them; no module is imported then.
    Raises:
        UntrustedError: a file alone names them.
        ConfigError: there is none of that name, or it is no callback.
    """
    if names and named_by is not None:
        raise UntrustedError(
            f"{named_by} names the callback {names[0]}, and going on runs the module {names[0].partition(':')[0]!r}: add "
            "--trust if you know where it is from"
        )
    return [_callback(name, load(name)) for name in names]


class _Called(BaseCallback):
    """Calls a function of (locals, globals) at each step; False ends the training, as in stable-baselines3, nothing doesn't."""

    def __init__(self, function: Callable[[dict[str, Any], dict[str, Any]], bool | None]) -> None:
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        return self._function(self.locals, self.globals) is not False


def _callback(name: str, found: Callable) -> BaseCallback:
    what = "give a class derived from stable_baselines3's BaseCallback, or a function of (locals, globals)"
    if not inspect.isclass(found):
        return _Called(found)
    if not issubclass(found, BaseCallback):
        raise ConfigError(f"callbacks={name}: the class {found.__name__} is no callback; {what}")
    needed = [p.name for p in list(inspect.signature(found).parameters.values())
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
    if needed:
        raise ConfigError(
            f"callbacks={name}: {found.__name__} needs {', '.join(needed)}, and is made without arguments; give them "
            "defaults, or name a class of yours that gives them"
        )
    return found()
