"""Agents that differ in their seed alone, trained at once: their gradient updates are one, each is as if it were alone.

    trainees = train_many([lambda seed=seed: RPPSAC("RPPPolicy", "Walker2d-v5", seed=seed) for seed in range(10)], 100_000)

Each comes out as it would have alone, as an ordinary agent: `trainees[0].agent`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from torch import Tensor

from rppdyn.agents.flat import flatten_
from rppdyn.agents.functional import stacked
from rppdyn.agents.networks import draw_noise
from rppdyn.agents.update import State, UpdateConfig, together, update_

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

logger = logging.getLogger(__name__)


class RandomState:
    """Python's, NumPy's and torch's global random states, for one of several agents that draw from them.

    It begins as the process stands. As a context it puts its own states in place, and keeps what has become of them; it leaves
    the process there, since putting back what was there each time would take as long again.
    """

    def __init__(self) -> None:
        self._keep()

    def _keep(self) -> None:
        # NumPy's legacy generator is what stable-baselines3 draws from
        self._states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002

    def put(self) -> None:
        """Put the states in place."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])  # noqa: NPY002
        torch.set_rng_state(self._states[2])

    def __enter__(self) -> None:
        self.put()

    def __exit__(self, *error: object) -> None:
        self._keep()


class Together:
    """Agents whose gradient updates are done at once.

    Their parameters and optimisers' moments become views of shared vectors, so that the agents themselves are what is
    trained; see `part`.

    Args:
        agents: agents of the same configuration and spaces.
        states: the random states that each draws its batches from; None where each draws from the process's.
    Raises:
        ValueError: agents that differ in more than what is drawn or learned.
    """

    def __init__(self, agents: Sequence[RPPSAC], states: Sequence[AbstractContextManager] | None = None) -> None:
        self.agents = list(agents)
        self.states = [nullcontext()] * len(self.agents) if states is None else list(states)
        self.actors, self.critics = self.agents[0].actor.function, self.agents[0].critic.function
        if len(self.agents) > 1:
            self._check()
            self.actors = stacked([agent.actor.net for agent in self.agents])
            self.critics = stacked([net for agent in self.agents for net in agent.critic.q_networks])

    def _check(self) -> None:
        first, *others = ({**agent.identity(), **_fixed(agent.update_config(agent.tau))} for agent in self.agents)
        for other in others:
            for name, value in first.items():
                if other[name] != value:
                    raise ValueError(
                        f"agents that are trained together have one configuration; {name} is {value} and {other[name]}"
                    )

    def state(self) -> State:
        """The state that `update_` works on: vectors that share their memory with modules and optimisers.

        torch.optim.Adam counts steps per parameter, so `<name>.step` has one entry per parameter here, all equal.
        """
        state: State = {}
        count = len(self.agents)
        tensors = [agent.trained_tensors() for agent in self.agents]
        for name in tensors[0]:
            optimisers, parameters = zip(*(own[name] for own in tensors), strict=True)
            shape = (count, len(self.critics.nets) // count, -1) if name in ("critic", "target") else (count, -1)
            state[name] = flatten_([p for own in parameters for p in own]).view(shape)
            if optimisers[0] is None:
                continue
            moments = [_moments(o, p) for o, own in zip(optimisers, parameters, strict=True) for p in own]
            state[f"{name}.mean"] = flatten_([m["exp_avg"] for m in moments]).view(shape)
            state[f"{name}.square"] = flatten_([m["exp_avg_sq"] for m in moments]).view(shape)
            state[f"{name}.step"] = flatten_([m["step"] for m in moments]).view(count, -1)
        return state

    def config(self, tau: float) -> UpdateConfig:
        """What stays fixed over an update, at the current learning rate."""
        return dataclasses.replace(self.agents[0].update_config(tau), actors=self.actors, critics=self.critics)

    def train(self, gradient_steps: int, batch_size: int) -> list[dict[str, float]]:
        """Run gradient updates on batches from each agent's replay buffer; each agent's mean metrics."""
        first = self.agents[0]
        for agent in self.agents:
            agent.policy.set_training_mode(True)
            agent._update_learning_rate([o for o, _ in agent.trained_tensors().values() if o is not None])
        state, config, still = self.state(), self.config(first.tau), self.config(0.0)
        totals: dict[str, Tensor] = {}
        for step in range(gradient_steps):
            batches, noises = [], []
            for agent, random_state in zip(self.agents, self.states, strict=True):
                with random_state:
                    if step == 0:
                        agent.prepare_updates()
                    batch = agent.sample_batch(batch_size)
                like = batch["actions"]
                batches.append(batch)
                noises.append({key: draw_noise(like.shape, agent._generator, like) for key in ("current", "next")})
            moving = first._n_updates % first.target_update_interval == 0
            metrics = update_(state, together(batches), together(noises), config if moving else still)
            totals = {key: totals.get(key, 0.0) + value for key, value in metrics.items()}
            for agent in self.agents:
                agent._n_updates += 1
        values = (torch.stack(list(totals.values())) / gradient_steps).T.tolist() if totals else []
        return [dict(zip(totals, own, strict=True)) for own in values]

    def part(self) -> None:
        """Give each agent memory of its own again, so that what one saves holds nothing of the others."""
        for agent in self.agents:
            for optimiser, parameters in agent.trained_tensors().values():
                for p in parameters:
                    p.data = p.data.clone()
                    if optimiser is not None:
                        optimiser.state[p].update({k: t.clone() for k, t in optimiser.state[p].items()})


def _moments(optimiser: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    moments = optimiser.state[p]
    if not moments:
        moments.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    return moments


def _fixed(config: UpdateConfig) -> dict[str, Any]:
    """The numbers of an update's configuration."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if isinstance(value := getattr(config, field.name), int | float | tuple | None)
    }


class Trainee:
    """One of several agents in training.

    Attributes:
        agent: the agent; None where it could not be built.
        random: the random states that it draws from.
        error: what ended its training, or None.
        name: what a warning calls it.
    """

    def __init__(
        self,
        build: Callable[[], RPPSAC],
        callback: BaseCallback | Callable | list | None = None,
        name: str = "an agent",
    ) -> None:
        self.name = name
        self.agent: Any = None
        self.random = RandomState()
        self.error: Exception | None = None
        self.callback: Any = callback
        self.has_begun = self.is_training = False
        with self.guarded():
            self.agent = build()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """The trainee's random states inside the block; an error ends its training, and goes no further."""
        try:
            with self.random:
                yield
        except Exception as error:
            logger.warning("%s: %s", self.name, error, exc_info=not isinstance(error, ValueError))
            self.error, self.is_training = error, False

    def begin(self, total_timesteps: int, **options: Any) -> None:
        """As `learn` begins, for as many steps as are missing."""
        done = self.agent.num_timesteps
        if done >= total_timesteps:
            return
        with self.guarded():
            _, self.callback = self.agent._setup_learn(
                total_timesteps - done, self.callback, reset_num_timesteps=not done, **options
            )
            self.callback.on_training_start(locals(), globals())
            self.has_begun = self.is_training = True

    def collect(self) -> bool:
        """Collect a rollout as `learn` does; whether gradient updates are due."""
        agent = self.agent
        with self.guarded():
            rollout = agent.collect_rollouts(
                agent.env,
                train_freq=agent.train_freq,
                action_noise=agent.action_noise,
                callback=self.callback,
                learning_starts=agent.learning_starts,
                replay_buffer=agent.replay_buffer,
                log_interval=LOG_INTERVAL,
            )
            self.is_training = rollout.continue_training
        return self.is_training and agent.num_timesteps > agent.learning_starts

    def end(self) -> None:
        """As `learn` ends, also where a callback stopped it."""
        self.is_training = False
        if self.has_begun and self.error is None:
            with self.guarded():
                self.callback.on_training_end()


LOG_INTERVAL = 4
"""Episodes between two writings of the log, as in stable-baselines3."""


def train_many(
    builds: Sequence[Callable[[], RPPSAC]],
    total_timesteps: int,
    callbacks: Sequence[BaseCallback | Callable | list | None] | None = None,
) -> list[Trainee]:
    """Build agents and train each to a number of environment steps, their gradient updates done at once.

    Each agent has the random streams, environments, replay buffer, logger and callbacks that it would have alone, and comes
    out as it would have, to rounding. One that fails is reported by a warning and in `error`; the others go on.

    Args:
        builds: functions that build the agents, for example by restoring what `capture` returned.
        callbacks: one per agent, as `learn` takes them.
    Returns:
        The trainees, in order: `agent`, `error`, and `random`.
    Raises:
        ValueError: agents of different configurations, or that collect whole episodes.
    """
    callbacks = [None] * len(builds) if callbacks is None else callbacks
    outer = RandomState()
    try:
        trainees = [
            Trainee(build, callback, f"agent {i}")
            for i, (build, callback) in enumerate(zip(builds, callbacks, strict=True))
        ]
        train_together(trainees, total_timesteps)
    finally:
        outer.put()
    return trainees


def train_together(trainees: Sequence[Trainee], total_timesteps: int) -> None:
    """As `train_many`, of agents that are built. Those that are behind, after a resume, catch up first.

    The process's random states are left as the last trainee's; those of each are in its `random`.
    """
    trainees = [trainee for trainee in trainees if trainee.error is None]
    for trainee in trainees:
        if trainee.agent.train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError(
                "agents that are trained together collect steps, not episodes: give train_freq as a number"
            )
    for trainee in trainees:
        trainee.begin(total_timesteps)
    group: Together | None = None
    try:
        while behind := _behind(trainees, total_timesteps):
            due = [trainee for trainee in behind if trainee.collect()]
            if not due:
                continue
            agents = [trainee.agent for trainee in due]
            if group is None or group.agents != agents:
                group = Together(agents, [trainee.random for trainee in due])
            count = agents[0].gradient_steps if agents[0].gradient_steps >= 0 else agents[0].train_freq.frequency
            if count > 0:
                found = group.train(count, agents[0].batch_size)
                for trainee, metrics in zip(due, found, strict=True):
                    trainee.agent.record_updates(metrics)
    finally:
        for trainee in trainees:
            Together([trainee.agent]).part()
    for trainee in trainees:
        trainee.end()


def _behind(trainees: Sequence[Trainee], total_timesteps: int) -> list[Trainee]:
    """Those in training that have taken the fewest steps."""
    going = [t for t in trainees if t.is_training and t.agent.num_timesteps < total_timesteps]
    least = min((t.agent.num_timesteps for t in going), default=0)
    return [t for t in going if t.agent.num_timesteps == least]
