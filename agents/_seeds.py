"""Agents that differ in their seed alone, trained at once: each comes out as it would have alone, to rounding.

    trainers = train_many([lambda seed=seed: RPPSAC("RPPPolicy", "Walker2d-v5", seed=seed) for seed in range(10)], 100_000)
    trainers = train_many(trainers, 200_000)    # go on

`trainers[0].agent` is an ordinary agent. A `SeedTrainer` takes one agent through its training step by step; one `SACUpdate`
computes the gradient updates and actions of all (`rppdyn.agents._update`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rppdyn.agents._sac import RPPSAC, RolloutSteps
from rppdyn.agents._update import SACUpdate
from rppdyn.errors import is_user_error, one_line
from rppdyn.runs.workers import RandomStates

logger = logging.getLogger(__name__)

EPISODES_PER_LOG = 4
"""Episodes of each environment between two writes of the log; for one environment as in stable-baselines3."""


class SeedTrainer:
    """One of several agents in training. A call returns its agent, so that another `train_many` can continue it.

    Attributes:
        agent: the agent; None where it could not be built.
        error: the exception that ended its training, or None.
        name: its name in warnings.
        observations: the observations for which the policy should act; None while the environment takes a step.
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
        with self.guard(reports=False):
            if not callable(build):
                raise TypeError(f"{build!r} is no function that builds an agent: give one, such as lambda: RPPSAC(...)")
            if not isinstance(agent := build(), RPPSAC):
                raise TypeError(f"the function that builds it returned {agent!r}: let it return an RPPSAC")
            self.agent = agent

    def __call__(self) -> RPPSAC:
        if self.error is not None:
            raise self.error
        return self.agent

    @contextmanager
    def guard(self, reports: bool = True) -> Iterator[None]:
        """Catch an error of the block: it ends this agent's training and, with `reports`, is logged as a warning."""
        try:
            yield
        except Exception as error:
            self.error, self.is_training = error, False
            if reports:
                self.report()

    def report(self) -> None:
        """Log its error, if there is one, as a warning; with a traceback unless it is the user's mistake."""
        if self.error is not None:
            trace = None if is_user_error(self.error) else self.error
            logger.warning("%s: %s", self.name, one_line(self.error), exc_info=trace)

    def begin(self, total_timesteps: int) -> None:
        """Begin as `learn` does, for the steps that remain."""
        done = self.agent.num_timesteps
        if done >= total_timesteps:
            return
        with self.guard():
            _, self.callback = self.agent._setup_learn(
                total_timesteps - done, self.callback, reset_num_timesteps=not done
            )
            self.callback.on_training_start(locals(), globals())
            self.has_begun = self.is_training = True

    def start_rollout(self) -> None:
        """Begin a rollout, and run it until it first waits for actions or for environments."""
        agent = self.agent
        self._rollout = agent.rollout_steps(
            agent.env,
            train_freq=agent.train_freq,
            action_noise=agent.action_noise,
            callback=self.callback,
            learning_starts=agent.learning_starts,
            replay_buffer=agent.replay_buffer,
            log_interval=EPISODES_PER_LOG * agent.n_envs,
        )
        self.continue_rollout(None)

    def continue_rollout(self, actions: NDArray | None) -> None:
        """Continue the rollout, by the policy's `actions`, until it waits for the next or for environments' processes."""
        steps, self._rollout = self._rollout, None
        if steps is None:
            return
        with self.guard():
            try:
                self.observations = steps.send(actions)
                while self.observations is None and isinstance(self.agent.env.unwrapped, DummyVecEnv):
                    self.observations = steps.send(None)
                self._rollout = steps  # it waits
            except StopIteration as end:
                result: RolloutReturn = end.value
                self.is_training = result.continue_training

    def end(self) -> None:
        """End as `learn` does, also after a callback stopped the training."""
        self.is_training = False
        if self.has_begun and self.error is None:
            with self.guard():
                self.callback.on_training_end()
                self.agent.record_updates()
                self.agent.check_finite()


def _configuration(agent: RPPSAC) -> dict[str, Any]:
    """The settings that agents must have in common to be trained at once."""
    names = ("batch_size", "gradient_steps", "target_update_interval", "learning_starts", "augment", "matmul_precision",
             "compile")  # fmt: skip
    settings = dataclasses.asdict(agent.settings()) | {"learning_rate": agent.lr_schedule(1), "tau": agent.tau}
    return {**agent.identity(), **settings, **{name: getattr(agent, name) for name in names},
            "dtype": agent.policy.features_extractor.dtype}  # fmt: skip


def train_many(
    builds: Sequence[Callable[[], RPPSAC]],
    total_timesteps: int,
    callbacks: Sequence[BaseCallback | Callable | list | None] | None = None,
) -> list[SeedTrainer]:
    """Build agents and train each to a number of environment steps, with one gradient update for all.

    Each agent has the generators, environments, replay buffer, logger and callbacks that it would have alone, and comes
    out as it would have, to rounding; but an environment or callback that draws from the process's global generators shares
    those with all others. If one fails, a warning and its `error` say so, and the others go on. If callbacks give agents
    different settings that an update must share, such as clipping, agents with equal ones are updated together.

    Args:
        builds: functions that build the agents, for example by restoring what `capture` returned; or the trainers of an
            earlier call, of which those without an error continue; give their callbacks again.
        callbacks: one per agent, as `learn` takes them.
    Returns:
        The trainers, in order, with `agent` and `error`.
    Raises:
        ValueError: agents with different configurations, that share an environment, a replay buffer or an action noise with a
            state, or that collect whole episodes; callbacks that are not one per agent.
    """
    callbacks = [None] * len(builds) if callbacks is None else callbacks
    if len(callbacks) != len(builds):
        raise ValueError(f"callbacks has {len(callbacks)} entries for {len(builds)} agents: give each one, or None")
    states = RandomStates.capture()  # stable-baselines3 seeds the global generators as it builds agents
    try:
        trainers = [
            SeedTrainer(build, callback, f"agent {i}")
            for i, (build, callback) in enumerate(zip(builds, callbacks, strict=True))
        ]
        new = [t for t, build in zip(trainers, builds, strict=True) if not isinstance(build, SeedTrainer)]
        configurations = [_configuration(t.agent) for t in new if t.error is None]
        for name, value, other in ((key, configurations[0][key], c[key]) for c in configurations for key in c):
            if value != other:
                raise ValueError(
                    f"agents that are trained together have one configuration; {name} is {value} and {other}"
                )
        _refuse_shared([t for t in trainers if t.error is None])
        train_together(trainers, total_timesteps)
    finally:
        states.restore()
    return trainers


def _refuse_shared(trainers: Sequence[SeedTrainer]) -> None:
    """Refuse agents that share an object with a state, since each would change it and none would train as it does alone."""
    for first, second in combinations(trainers, 2):
        for name in ("env", "action_noise", "replay_buffer"):
            first_ids, second_ids = (_stateful_ids(getattr(t.agent, name)) for t in (first, second))
            if not first_ids.isdisjoint(second_ids):
                raise ValueError(
                    f"{first.name} and {second.name} share their {name}, which has a state: make one for each, in the "
                    "functions that build them"
                )


def _stateful_ids(part: Any) -> set[int]:
    """Identities of the objects with a state in an agent's environment, noise or buffer."""
    if part is None or type(part) is NormalActionNoise:
        return set()
    if isinstance(part, VecEnv):
        inner = part.unwrapped
        return {id(env.unwrapped) for env in inner.envs} if isinstance(inner, DummyVecEnv) else {id(inner)}
    return {id(part)}


def train_together(trainers: Sequence[SeedTrainer], total_timesteps: int) -> None:
    """Train built agents, as `train_many` does. After a resume, those with the fewest steps catch up first."""
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
        while behind := _trainers_behind(trainers, total_timesteps):
            collect(behind, updates)
            due = [t for t in behind if t.is_training and t.agent.num_timesteps > t.agent.learning_starts]
            for part in _group_by_settings(due):
                first = part[0].agent
                steps = first.train_freq.frequency * first.n_envs
                count = first.gradient_steps if first.gradient_steps >= 0 else steps
                update = updates.get(part)
                try:
                    update.train(count, first.batch_size)
                except Exception as error:  # ends all agents of this update, except where one has an error of its own
                    update.errors = {i: update.errors.get(i, error) for i in range(len(part))}
                for i, trainer in enumerate(part):
                    with trainer.guard():
                        if i in update.errors:
                            raise update.errors[i]
                        trainer.agent.record_updates(wait=False)
    finally:
        for trainer in trainers:
            if trainer.error is None:
                with trainer.guard():
                    trainer.agent.record_updates()
            _unstack(trainer.agent)
    for trainer in trainers:
        trainer.end()


def _unstack(agent: RPPSAC) -> None:
    """Give an agent memory of its own again, so that a saved one holds nothing of the others."""
    running = [buffer for name, buffer in agent.policy.named_buffers() if name.endswith(".running")]
    for tensor in (*agent.policy.parameters(), *running, agent.log_alpha):
        tensor.data = tensor.data.clone()
    for optimiser in agent.optimisers.values():
        for moments in optimiser.state.values():
            moments.update({key: tensor.clone() for key, tensor in moments.items()})


class Updates:
    """The current updates, by their agents; an agent is in one of them at most."""

    def __init__(self) -> None:
        self._updates: list[SACUpdate] = []

    def get(self, trainers: Sequence[SeedTrainer]) -> SACUpdate:
        """The update of these trainers' agents, a new one if they were not updated together last."""
        agents = [trainer.agent for trainer in trainers]
        current = next((update for update in self._updates if update.agents == agents), None)
        update = current or agents[0].update_class(agents)
        self._updates = [update, *(u for u in self._updates if set(u.agents).isdisjoint(agents))]
        return update


def _group_by_settings(trainers: Sequence[SeedTrainer]) -> list[list[SeedTrainer]]:
    """Group trainers whose agents can be updated at once; callbacks may have made their settings differ."""
    parts: dict[tuple, list[SeedTrainer]] = {}
    for trainer in trainers:
        agent = trainer.agent
        sizes = agent.batch_size, agent.gradient_steps, bool(agent.augment), agent.matmul_precision, agent.compiles
        rhythm = agent.policy_delay, agent._n_updates % agent.policy_delay
        parts.setdefault((agent.settings().structure, *rhythm, *sizes), []).append(trainer)
    return list(parts.values())


def collect(trainers: Sequence[SeedTrainer], updates: Updates) -> None:
    """Collect a rollout of each agent; all environments get their actions before any is waited for."""
    for trainer in trainers:
        trainer.start_rollout()
    while collecting := [trainer for trainer in trainers if trainer._rollout is not None]:
        waiting = {trainer: x for trainer in collecting if (x := trainer.observations) is not None}
        actions: dict[SeedTrainer, NDArray] = {}
        if waiting:
            actions = dict(zip(waiting, updates.get([*waiting]).act([*waiting.values()]), strict=True))
        for trainer in collecting:
            trainer.continue_rollout(actions.get(trainer))


def _trainers_behind(trainers: Sequence[SeedTrainer], total_timesteps: int) -> list[SeedTrainer]:
    """Trainers still in training that have taken the fewest steps."""
    training = [t for t in trainers if t.is_training and t.agent.num_timesteps < total_timesteps]
    fewest = min((t.agent.num_timesteps for t in training), default=0)
    return [t for t in training if t.agent.num_timesteps == fewest]
