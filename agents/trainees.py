"""Agents that differ in their seed alone, trained at once: each comes out as it would have alone.

    trainees = train_many([lambda seed=seed: RPPSAC("RPPPolicy", "Walker2d-v5", seed=seed) for seed in range(10)], 100_000)
    trainees = train_many(trainees, 200_000)    # go on

`trainees[0].agent` is an ordinary agent. What is computed at once is in `rppdyn.agents.together`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rppdyn.agents.algorithm import RPPSAC
from rppdyn.agents.rollout import Steps, rollout
from rppdyn.agents.together import Together, check_configurations, update_key
from rppdyn.errors import by_user, one_line
from rppdyn.runs.streams import GlobalStates, quick_states

logger = logging.getLogger(__name__)


class RandomState:
    """The global random states, for one of several agents that draw from them.

    It begins as the process stands. As a context it puts its own states in place, and keeps what has become of them; it leaves
    the process there, since putting back what was there each time would take as long again.
    """

    def __init__(self) -> None:
        self.states = GlobalStates.copied()

    def __enter__(self) -> None:
        self.states.put()

    def __exit__(self, *error: object) -> None:
        self.states = GlobalStates.copied()


def _built(build: Callable[[], RPPSAC]) -> RPPSAC:
    if not callable(build):
        raise TypeError(f"{build!r} is no function that builds an agent: give one, such as lambda: RPPSAC(...)")
    agent = build()
    if not isinstance(agent, RPPSAC):
        raise TypeError(f"the function that builds it returned {agent!r}: let it return an RPPSAC")
    return agent


class Trainee:
    """One of several agents in training. Called, it gives its agent, with its random states in place: so it goes on.

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
        self.asked: NDArray | None = None
        self._rollout: Steps | None = None
        with self.guarded(reported=False):
            self.agent = _built(build)

    def __call__(self) -> RPPSAC:
        if self.error is not None:
            raise self.error
        self.random.states.put()
        return self.agent

    @contextmanager
    def guarded(self, reported: bool = True) -> Iterator[None]:
        """The trainee's random states inside the block; an error ends its training, and goes no further than a warning."""
        try:
            with self.random:
                yield
        except Exception as error:
            self.error, self.is_training = error, False
            if reported:
                self.report()

    def report(self) -> None:
        """Warn of its error, if there is one; with a traceback where that is needed to understand it."""
        if self.error is not None:
            trace = None if by_user(self.error) else self.error
            logger.warning("%s: %s", self.name, one_line(self.error), exc_info=trace)

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

    def start(self) -> None:
        """Begin a rollout: `asked` is what the policy is to be asked, or None where the environment was sent a step."""
        agent = self.agent
        self._rollout = rollout(
            agent,
            agent.env,
            train_freq=agent.train_freq,
            action_noise=agent.action_noise,
            callback=self.callback,
            learning_starts=agent.learning_starts,
            replay_buffer=agent.replay_buffer,
            log_interval=LOG_INTERVAL * agent.n_envs,
        )
        self.go_on(None)

    def go_on(self, actions: NDArray | None) -> None:
        """Up to where the rollout waits again, given the policy's actions if it asked for them."""
        steps, waits = self._rollout, False
        if steps is None:
            return
        with self.guarded():
            try:
                self.asked = steps.send(actions)
                while self.asked is None and self._steps_here:
                    self.asked = steps.send(None)
                waits = True
            except StopIteration as end:
                self.is_training = end.value.continue_training
        if not waits:
            self._rollout = None

    @property
    def _steps_here(self) -> bool:
        """Whether its environments step in this process, when they are waited for."""
        return isinstance(self.agent.env.unwrapped, DummyVecEnv)

    @property
    def is_collecting(self) -> bool:
        """Whether a rollout is under way."""
        return self._rollout is not None

    def end(self) -> None:
        """As `learn` ends, also where a callback stopped it."""
        self.is_training = False
        if self.has_begun and self.error is None:
            with self.guarded():
                self.callback.on_training_end()
                self.agent.record_updates()
                self.agent.check_finite()


LOG_INTERVAL = 4
"""Episodes of each environment between two writings of the log; of one as in stable-baselines3."""


def train_many(
    builds: Sequence[Callable[[], RPPSAC]],
    total_timesteps: int,
    callbacks: Sequence[BaseCallback | Callable | list | None] | None = None,
) -> list[Trainee]:
    """Build agents and train each to a number of environment steps, their gradient updates done at once.

    Each agent has the random streams, environments, replay buffer, logger and callbacks that it would have alone, and comes
    out as it would have, to rounding. One that fails is reported by a warning and in `error`; the others go on. Agents that
    a callback makes differ, in their discount or learning rate for example, are updated one group of equals after the other.

    Args:
        builds: functions that build the agents, for example by restoring what `capture` returned; or the trainees of an
            earlier call, which go on, those without an error; their callbacks are to be given again.
        callbacks: one per agent, as `learn` takes them.
    Returns:
        The trainees, in order: `agent`, `error`, and `random`.
    Raises:
        ValueError: agents that are built with different configurations, that share an environment, a replay buffer or a noise
            that remembers, that collect whole episodes, or that have trained before and would draw the same random numbers as
            another now; callbacks that are not one per agent.
    """
    callbacks = [None] * len(builds) if callbacks is None else callbacks
    if len(callbacks) != len(builds):
        raise ValueError(f"callbacks has {len(callbacks)} entries for {len(builds)} agents: give each one, or None")
    outer = GlobalStates.now()
    try:
        trainees = [
            Trainee(build, callback, f"agent {i}")
            for i, (build, callback) in enumerate(zip(builds, callbacks, strict=True))
        ]
        new = [t for t, build in zip(trainees, builds, strict=True) if not isinstance(build, Trainee)]
        check_configurations(t.agent for t in new if t.error is None)
        _refuse_shared([t for t in trainees if t.error is None])
        _refuse_one_stream([t for t in trainees if t.error is None and t.agent.num_timesteps])
        train_together(trainees, total_timesteps)
    finally:
        outer.put()
    return trainees


def _refuse_shared(trainees: Sequence[Trainee]) -> None:
    """What has a state is moved by whoever has it, so agents that had one together would not train as they do alone."""
    for one, other in combinations(trainees, 2):
        for name in ("env", "action_noise", "replay_buffer"):
            mine, yours = (_with_state(getattr(t.agent, name)) for t in (one, other))
            if not mine.isdisjoint(yours):
                raise ValueError(
                    f"{one.name} and {other.name} share their {name}, which has a state: make one for each, in the "
                    "functions that build them"
                )


def _with_state(owned: Any) -> set[int]:
    """Which objects, of those that an agent is given, remember what was done with them."""
    if owned is None or type(owned) is NormalActionNoise:
        return set()
    if isinstance(owned, VecEnv):
        inner = owned.unwrapped
        return {id(env.unwrapped) for env in inner.envs} if isinstance(inner, DummyVecEnv) else {id(inner)}
    return {id(owned)}


def _refuse_one_stream(trained: Sequence[Trainee]) -> None:
    """New agents are seeded as they are built; of others it is seen to by who builds them."""
    for one, other in combinations(trained, 2):
        if one.random.states.same(other.random.states):
            raise ValueError(
                f"{one.name} and {other.name} have trained before, and would draw the same random numbers: to go on, give the "
                "trainees that train_many returned, or build each agent with restore(...)"
            )


@quick_states()
def train_together(trainees: Sequence[Trainee], total_timesteps: int) -> None:
    """As `train_many`, of agents that are built. Those that are behind, after a resume, catch up first.

    The process's random states are left as the last trainee's; those of each are in its `random`.
    """
    for trainee in trainees:
        trainee.report()
    trainees = [trainee for trainee in trainees if trainee.error is None]
    for trainee in trainees:
        if trainee.agent.train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError(
                "agents that are trained together collect steps, not episodes: give train_freq as a number"
            )
    for trainee in trainees:
        trainee.begin(total_timesteps)
    groups = Groups()
    try:
        while behind := _behind(trainees, total_timesteps):
            collect(behind, groups)
            due = [t for t in behind if t.is_training and t.agent.num_timesteps > t.agent.learning_starts]
            if not due:
                continue
            for part, group in groups.of(due):
                first = part[0].agent
                steps = first.train_freq.frequency * first.n_envs
                count = first.gradient_steps if first.gradient_steps >= 0 else steps
                if count > 0:
                    group.train(count, first.batch_size)
    finally:
        for trainee in trainees:
            if trainee.error is None:
                with trainee.guarded():
                    trainee.agent.record_updates()
            Together([trainee.agent]).part()
    for trainee in trainees:
        trainee.end()


class Groups:
    """The groups of agents that were last asked for; they change where an agent ends, or differs from others from now on."""

    def __init__(self) -> None:
        self._groups: list[Together] = []

    def of(self, trainees: Sequence[Trainee]) -> list[tuple[list[Trainee], Together]]:
        """Those that an update takes the same numbers from, and their group; of none, none, and groups stay."""
        if not trainees:
            return []
        parts: dict[tuple, list[Trainee]] = {}
        for trainee in trainees:
            parts.setdefault(update_key(trainee.agent), []).append(trainee)
        found = [(part, self._group(part)) for part in parts.values()]
        self._groups = [group for _, group in found]
        return found

    def _group(self, trainees: Sequence[Trainee]) -> Together:
        agents = [trainee.agent for trainee in trainees]
        kept = (group for group in self._groups if group.agents == agents)
        return next(kept, None) or Together(agents, [trainee.guarded for trainee in trainees])


def collect(trainees: Sequence[Trainee], groups: Groups) -> None:
    """A rollout of each trainee. All environments are sent their steps before one is waited for."""
    for trainee in trainees:
        trainee.start()
    while going := [trainee for trainee in trainees if trainee.is_collecting]:
        asking = {trainee: trainee.asked for trainee in going if trainee.asked is not None}
        actions: dict[Trainee, NDArray] = {}
        for part, group in groups.of(list(asking)):
            actions.update(zip(part, group.predict([asking[trainee] for trainee in part]), strict=True))
        for trainee in going:
            trainee.go_on(actions.get(trainee))


def _behind(trainees: Sequence[Trainee], total_timesteps: int) -> list[Trainee]:
    """Those in training that have taken the fewest steps."""
    going = [t for t in trainees if t.is_training and t.agent.num_timesteps < total_timesteps]
    least = min((t.agent.num_timesteps for t in going), default=0)
    return [t for t in going if t.agent.num_timesteps == least]
