"""Agents that differ in their seed alone, trained at once: each comes out as it would have alone.

    trainers = train_many([lambda seed=seed: RPPSAC("RPPPolicy", "Walker2d-v5", seed=seed) for seed in range(10)], 100_000)
    trainers = train_many(trainers, 200_000)    # go on

`trainers[0].agent` is an ordinary agent. A `SeedTrainer` takes one agent through its training, step by step; gradient updates
and actions of all are computed at once (`rppdyn.agents.update`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rppdyn.agents.sac import RPPSAC, RolloutSteps
from rppdyn.agents.update import SACUpdate
from rppdyn.errors import is_user_error, one_line
from rppdyn.runs.workers import RandomStates

logger = logging.getLogger(__name__)

LOG_INTERVAL = 4
"""Episodes of each environment between two writings of the log; of one as in stable-baselines3."""


class SeedTrainer:
    """One of several agents in training. Called, it returns its agent: so it goes on in another `train_many`.

    Attributes:
        agent: the agent; None where it could not be built.
        error: the exception that ended its training, or None.
        name: its name in warnings.
        observations: those that the policy is to act on; None where its environment is taking a step.
    """

    def __init__(
        self,
        build: Callable[[], RPPSAC],
        callback: BaseCallback | Callable | list | None = None,
        name: str = "an agent",
    ) -> None:
        self.name = name
        self.agent: Any = None
        self.error: Exception | None = None
        self.callback: Any = callback
        self.has_begun = self.is_training = False
        self.observations: NDArray | None = None
        self._rollout: RolloutSteps | None = None
        with self.guarded(reported=False):
            self.agent = _built(build)

    def __call__(self) -> RPPSAC:
        if self.error is not None:
            raise self.error
        return self.agent

    @contextmanager
    def guarded(self, reported: bool = True) -> Iterator[None]:
        """Let an error inside the block end this agent's training, and go no further than a warning."""
        try:
            yield
        except Exception as error:
            self.error, self.is_training = error, False
            if reported:
                self.report()

    def report(self) -> None:
        """Warn of its error, if there is one; with a traceback where that is needed to understand it."""
        if self.error is not None:
            trace = None if is_user_error(self.error) else self.error
            logger.warning("%s: %s", self.name, one_line(self.error), exc_info=trace)

    def begin(self, total_timesteps: int, **options: Any) -> None:
        """Begin as `learn` does, for as many steps as are missing."""
        done = self.agent.num_timesteps
        if done >= total_timesteps:
            return
        with self.guarded():
            _, self.callback = self.agent._setup_learn(
                total_timesteps - done, self.callback, reset_num_timesteps=not done, **options
            )
            self.callback.on_training_start(locals(), globals())
            self.has_begun = self.is_training = True

    def start_rollout(self) -> None:
        """Begin a rollout, up to where it waits for the first time."""
        agent = self.agent
        self._rollout = agent.rollout_steps(
            agent.env,
            train_freq=agent.train_freq,
            action_noise=agent.action_noise,
            callback=self.callback,
            learning_starts=agent.learning_starts,
            replay_buffer=agent.replay_buffer,
            log_interval=LOG_INTERVAL * agent.n_envs,
        )
        self.continue_rollout(None)

    def continue_rollout(self, actions: NDArray | None) -> None:
        """Go on up to where the rollout waits again, with the policy's actions where it asked for them."""
        steps, waits = self._rollout, False
        if steps is None:
            return
        with self.guarded():
            try:
                self.observations = steps.send(actions)
                while self.observations is None and self._steps_here:
                    self.observations = steps.send(None)
                waits = True
            except StopIteration as end:
                result: RolloutReturn = end.value
                self.is_training = result.continue_training
        if not waits:
            self._rollout = None

    @property
    def _steps_here(self) -> bool:
        """True if its environments step in this process, when they are waited for."""
        return isinstance(self.agent.env.unwrapped, DummyVecEnv)

    @property
    def is_collecting(self) -> bool:
        """True if a rollout is under way."""
        return self._rollout is not None

    def end(self) -> None:
        """End as `learn` does, also where a callback stopped it."""
        self.is_training = False
        if self.has_begun and self.error is None:
            with self.guarded():
                self.callback.on_training_end()
                self.agent.record_updates()
                self.agent.check_finite()


def _built(build: Callable[[], RPPSAC]) -> RPPSAC:
    if not callable(build):
        raise TypeError(f"{build!r} is no function that builds an agent: give one, such as lambda: RPPSAC(...)")
    agent = build()
    if not isinstance(agent, RPPSAC):
        raise TypeError(f"the function that builds it returned {agent!r}: let it return an RPPSAC")
    return agent


def _configuration(agent: RPPSAC) -> dict[str, Any]:
    """The settings that agents which are trained at once begin with in common."""
    names = ("batch_size", "gradient_steps", "target_update_interval", "learning_starts", "augment", "matmul_precision",
             "compile")  # fmt: skip
    settings = dataclasses.asdict(agent.settings()) | {"learning_rate": agent.lr_schedule(1), "tau": agent.tau}
    return {**agent.identity(), **settings, **{name: getattr(agent, name) for name in names},
            "dtype": agent.policy.features_extractor.dtype}  # fmt: skip


def _refuse_different(configurations: Iterable[Mapping[str, Any]]) -> None:
    first, *others = configurations
    for other in others:
        for name, value in first.items():
            if value != other[name]:
                raise ValueError(
                    f"agents that are trained together have one configuration; {name} is {value} and {other[name]}"
                )


def train_many(
    builds: Sequence[Callable[[], RPPSAC]],
    total_timesteps: int,
    callbacks: Sequence[BaseCallback | Callable | list | None] | None = None,
) -> list[SeedTrainer]:
    """Build agents and train each to a number of environment steps, their gradient updates done at once.

    Each agent has the generators, environments, replay buffer, logger and callbacks that it would have alone, and comes
    out as it would have, to rounding; but an environment or callback that draws from the process's global generators shares
    those with all others. One that fails is reported by a warning and in `error`; the others go on. Agents that a callback
    makes differ, in their discount or learning rate for example, are updated one stack of equals after the other.

    Args:
        builds: functions that build the agents, for example by restoring what `capture` returned; or the trainers of an
            earlier call, which go on, those without an error; their callbacks are to be given again.
        callbacks: one per agent, as `learn` takes them.
    Returns:
        The trainers, in order, with `agent` and `error`.
    Raises:
        ValueError: agents that are built with different configurations, that share an environment, a replay buffer or a noise
            that remembers, or that collect whole episodes; callbacks that are not one per agent.
    """
    callbacks = [None] * len(builds) if callbacks is None else callbacks
    if len(callbacks) != len(builds):
        raise ValueError(f"callbacks has {len(callbacks)} entries for {len(builds)} agents: give each one, or None")
    outer = RandomStates.capture()  # which stable-baselines3 seeds as it builds agents
    try:
        trainers = [
            SeedTrainer(build, callback, f"agent {i}")
            for i, (build, callback) in enumerate(zip(builds, callbacks, strict=True))
        ]
        new = [t for t, build in zip(trainers, builds, strict=True) if not isinstance(build, SeedTrainer)]
        configurations = [_configuration(t.agent) for t in new if t.error is None]
        if configurations:
            _refuse_different(configurations)
        _refuse_shared([t for t in trainers if t.error is None])
        train_together(trainers, total_timesteps)
    finally:
        outer.restore()
    return trainers


def _refuse_shared(trainers: Sequence[SeedTrainer]) -> None:
    """Refuse agents that share an object with a state: each would move it, and none would train as it does alone."""
    for one, other in combinations(trainers, 2):
        for name in ("env", "action_noise", "replay_buffer"):
            mine, yours = (_with_state(getattr(t.agent, name)) for t in (one, other))
            if not mine.isdisjoint(yours):
                raise ValueError(
                    f"{one.name} and {other.name} share their {name}, which has a state: make one for each, in the "
                    "functions that build them"
                )


def _with_state(part: Any) -> set[int]:
    """Identities of those objects, of a part of an agent, that remember what was done with them."""
    if part is None or type(part) is NormalActionNoise:
        return set()
    if isinstance(part, VecEnv):
        inner = part.unwrapped
        return {id(env.unwrapped) for env in inner.envs} if isinstance(inner, DummyVecEnv) else {id(inner)}
    return {id(part)}


def train_together(trainers: Sequence[SeedTrainer], total_timesteps: int) -> None:
    """Train agents that are built, as `train_many` does. Those that are behind, after a resume, catch up first."""
    for trainer in trainers:
        trainer.report()
    trainers = [trainer for trainer in trainers if trainer.error is None]
    for trainer in trainers:
        if trainer.agent.train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError(
                "agents that are trained together collect steps, not episodes: give train_freq as a number"
            )
    for trainer in trainers:
        trainer.begin(total_timesteps)
    updates = Updates()
    try:
        while behind := _behind(trainers, total_timesteps):
            collect(behind, updates)
            due = [t for t in behind if t.is_training and t.agent.num_timesteps > t.agent.learning_starts]
            for part in _with_equal_settings(due):
                first = part[0].agent
                steps = first.train_freq.frequency * first.n_envs
                count = first.gradient_steps if first.gradient_steps >= 0 else steps
                update = updates.of(part)
                try:
                    update.train(count, first.batch_size)
                except Exception as error:  # of what they have in common
                    update.errors = {i: update.errors.get(i, error) for i in range(len(part))}
                for i, trainer in enumerate(part):
                    with trainer.guarded():
                        if i in update.errors:
                            raise update.errors[i]
                        trainer.agent.record_updates(wait=False)
    finally:
        for trainer in trainers:
            if trainer.error is None:
                with trainer.guarded():
                    trainer.agent.record_updates()
            trainer.agent.update_class([trainer.agent]).unstack()
    for trainer in trainers:
        trainer.end()


class Updates:
    """The last updates of several agents at once; new ones where an agent has ended, or goes on by itself."""

    def __init__(self) -> None:
        self._known: list[SACUpdate] = []

    def of(self, trainers: Sequence[SeedTrainer]) -> SACUpdate:
        """The update of these trainers' agents."""
        agents = [trainer.agent for trainer in trainers]
        known = next((update for update in self._known if update.agents == agents), None)
        update = known or agents[0].update_class(agents)
        self._known = [update, *(other for other in self._known if set(other.agents).isdisjoint(agents))]
        return update


def _with_equal_settings(trainers: Sequence[SeedTrainer]) -> list[list[SeedTrainer]]:
    """Trainers in parts whose agents can be updated at once; callbacks may have made them differ."""
    parts: dict[tuple, list[SeedTrainer]] = {}
    for trainer in trainers:
        agent = trainer.agent
        sizes = agent.batch_size, agent.gradient_steps, bool(agent.augment), agent.matmul_precision, agent.compiles
        parts.setdefault((agent.settings().structure, *sizes), []).append(trainer)
    return list(parts.values())


def collect(trainers: Sequence[SeedTrainer], updates: Updates) -> None:
    """Collect a rollout of each agent. All environments are sent their steps before one is waited for."""
    for trainer in trainers:
        trainer.start_rollout()
    while collecting := [trainer for trainer in trainers if trainer.is_collecting]:
        waiting = {trainer: x for trainer in collecting if (x := trainer.observations) is not None}
        actions: dict[SeedTrainer, NDArray] = {}
        if waiting:
            actions = dict(zip(waiting, updates.of([*waiting]).act([*waiting.values()]), strict=True))
        for trainer in collecting:
            trainer.continue_rollout(actions.get(trainer))


def _behind(trainers: Sequence[SeedTrainer], total_timesteps: int) -> list[SeedTrainer]:
    """Trainers still in training that have taken the fewest steps."""
    training = [t for t in trainers if t.is_training and t.agent.num_timesteps < total_timesteps]
    least = min((t.agent.num_timesteps for t in training), default=0)
    return [t for t in training if t.agent.num_timesteps == least]
