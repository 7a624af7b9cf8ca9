"""Agents that differ in their seed alone, trained at once: each comes out as it would have alone.

    trainers = train_many([lambda seed=seed: RPPSAC("RPPPolicy", "Walker2d-v5", seed=seed) for seed in range(10)], 100_000)
    trainers = train_many(trainers, 200_000)    # go on

`trainers[0].agent` is an ordinary agent. An `AgentStack` computes the gradient updates and actions of several agents at once;
an agent by itself is a stack of one. A `SeedTrainer` takes one agent through its training, step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import combinations
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rppdyn.agents.buffers import UpdateInputs, stack_inputs
from rppdyn.agents.compile import (
    CompiledActions,
    CompiledUpdate,
    ReplayedUpdate,
    is_replayed,
    matmul_precision,
    update_precision,
)
from rppdyn.agents.functional import flatten_, stacked
from rppdyn.agents.update import Metrics, State, UpdateConfig, sample_actions, scalar_settings, update_
from rppdyn.errors import DivergedError, by_user, one_line
from rppdyn.nn.compiling import failed_to_compile, reason_of
from rppdyn.runs.workers import GlobalStates

if TYPE_CHECKING:
    from rppdyn.agents.sac import RPPSAC, RolloutSteps

logger = logging.getLogger(__name__)

T = TypeVar("T")

Optimised = tuple[torch.optim.Optimizer | None, Sequence[Tensor]]
"""Parameters, and their optimiser where they have one."""

LOG_INTERVAL = 4
"""Episodes of each environment between two writings of the log; of one as in stable-baselines3."""


class AgentStack:
    """Agents whose gradient updates, and whose actions, are computed at once.

    Their parameters and optimisers' moments become views of shared vectors, so that the agents themselves are what is
    trained; see `unstack`. On a CUDA device an update is replayed from a graph, which is made anew where tensors have moved.

    Args:
        agents: agents of the same configuration and spaces.
        guards: make the contexts in which each agent does what it does for itself; an error that a guard keeps to itself takes
            its agent out, and no other. None: no contexts.
    Raises:
        ValueError: agents that differ in more than what is drawn or learned.
    """

    def __init__(
        self, agents: Sequence[RPPSAC], guards: Sequence[Callable[[], AbstractContextManager]] | None = None
    ) -> None:
        self.agents = list(agents)
        self.guards = [nullcontext] * len(self.agents) if guards is None else list(guards)
        self.actors, self.critics = self.agents[0].actor.function, self.agents[0].critic.function
        if len(self.agents) > 1:
            _refuse_different(map(_configuration, self.agents))
            self.actors = stacked([agent.actor.net for agent in self.agents])
            self.critics = stacked([net for agent in self.agents for net in agent.critic.function.nets])
        # addresses of the parameters, holders of moments, and the state made of both
        self._state: tuple[list[int], list[Any], State] | None = None
        self._extractors = [agent.policy.features_extractor for agent in self.agents]
        self.compiled_update = CompiledUpdate(self._extractors)
        self._compiled_actions = CompiledActions()
        self.update = ReplayedUpdate(self) if is_replayed(self.agents[0].device) else self._update_at_once

    def state(self) -> State:
        """The state that `update_` works on: vectors that share their memory with modules and optimisers.

        torch.optim.Adam counts steps per parameter, so `<name>.step` has one entry per parameter here, all equal.
        """
        tensors = [agent.trained_tensors() for agent in self.agents]
        addresses = [p.data_ptr() for parts in tensors for _, ps in parts.values() for p in ps]
        holders = [optimiser.state for parts in tensors for optimiser, _ in parts.values() if optimiser is not None]
        if self._state is None or addresses != self._state[0] or any(map(is_not, holders, self._state[1])):
            state = self._gathered(tensors)
            addresses = [p.data_ptr() for parts in tensors for _, ps in parts.values() for p in ps]
            self._state = addresses, holders, state
        return self._state[2]

    def _gathered(self, tensors: Sequence[dict[str, Optimised]]) -> State:
        state: State = {}
        count = len(self.agents)
        for name in tensors[0]:
            optimisers, parameters = zip(*(parts[name] for parts in tensors), strict=True)
            shape = (count, len(self.critics.nets) // count, -1) if name in ("critic", "target") else (count, -1)
            state[name] = flatten_([p for ps in parameters for p in ps]).view(shape)
            if optimisers[0] is None:
                continue
            moments = [_moments(o, p) for o, ps in zip(optimisers, parameters, strict=True) for p in ps]
            state[f"{name}.mean"] = flatten_([m["exp_avg"] for m in moments]).view(shape)
            state[f"{name}.square"] = flatten_([m["exp_avg_sq"] for m in moments]).view(shape)
            state[f"{name}.step"] = flatten_([m["step"] for m in moments]).view(count, -1)
        return state

    def config(self, tau: float) -> UpdateConfig:
        """The configuration of an update, at the current learning rate."""
        return self.agents[0].update_config(tau, self.actors, self.critics)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Run gradient updates on batches from each agent's replay buffer, which then has their mean metrics."""
        for agent in self.agents:
            agent.policy.set_training_mode(True)
            agent._update_learning_rate([o for o, _ in agent.trained_tensors().values() if o is not None])
        rates = [agent.actor.optimizer.param_groups[0]["lr"] for agent in self.agents]
        _refuse_different({"learning_rate": rate} for rate in rates)
        stack: AgentStack | None = self  # without those that fail
        sums, metrics = None, None
        first = self.agents[0]
        fixed: dict[tuple[AgentStack, float], tuple[State, UpdateConfig]] = {}  # while only updates are done
        with matmul_precision(update_precision(first.matmul_precision, first.device)):
            ahead = None if stack is None else stack._draw_ahead(gradient_steps, batch_size)
            for _ in range(gradient_steps):
                if ahead is not None:
                    inputs: Any = next(ahead)
                elif stack is not None:
                    stack, remaining, inputs = stack._for_each(lambda agent: agent.batches.draw(batch_size))
                    sums = None if sums is None else sums[:, remaining]
                if stack is None:
                    return
                first = stack.agents[0]
                tau = first.tau if first._n_updates % first.target_update_interval == 0 else 0.0
                if (stack, tau) not in fixed:
                    fixed[stack, tau] = stack.state(), stack.config(tau)
                metrics = stack.update(*fixed[stack, tau], inputs)
                sums = metrics.values.clone() if sums is None else sums.add_(metrics.values)
                for agent in stack.agents:
                    agent._n_updates += 1
        if stack is not None and metrics is not None and sums is not None:
            for i, agent in enumerate(stack.agents):
                agent._sums = Metrics(metrics.names, sums[:, i]), gradient_steps
                if sums.device.type == "cpu":  # nothing to wait for
                    try:
                        agent.record_updates()
                    except DivergedError as error:
                        with stack.guards[i]():
                            raise error

    def _for_each(self, work: Callable[[RPPSAC], Any]) -> tuple[AgentStack | None, list[int], list[Any]]:
        """Do each agent's own work, under its guard.

        Returns:
            the stack of the agents that came to its end (None without any), their indices, and results.
        """
        results = {}
        for i, (agent, guard) in enumerate(zip(self.agents, self.guards, strict=True)):
            with guard():
                results[i] = work(agent)
        stack: AgentStack | None = self
        if len(results) < len(self.agents):
            parts = [self.agents[i] for i in results], [self.guards[i] for i in results]
            stack = AgentStack(*parts) if results else None
        return stack, list(results), list(results.values())

    def _update_at_once(self, state: State, config: UpdateConfig, inputs: Sequence[UpdateInputs]) -> Metrics:
        return self.compiled_or_plain(
            lambda: self.compiled_update(state, inputs, config),
            lambda: Metrics.of(update_(state, *self.stack_inputs(inputs), config)),
        )

    @torch.no_grad()
    def stack_inputs(self, inputs: Sequence[UpdateInputs]) -> UpdateInputs:
        """Batches and noise of all agents, as updates take them."""
        return stack_inputs(inputs, self._extractors)

    def compiled_or_plain(self, compiled: Callable[[], T], plain: Callable[[], T]) -> T:
        """Call the compiled function where agents have that; the plain one else, or where torch fails unasked."""
        if not self.agents[0].compiles:
            return plain()
        try:
            return compiled()
        except RuntimeError as error:
            if self.agents[0].compile or not failed_to_compile(error):
                raise
            logger.warning("Training goes on without torch.compile, in up to twice the time: %s", reason_of(error))
            for agent in self.agents:
                agent.compile = False
            return plain()

    def _draw_ahead(self, count: int, batch_size: int) -> Iterator[UpdateInputs] | None:
        """Batches of so many updates, drawn on a device several at once; None where each is drawn when its turn comes."""
        if isinstance(self.update, ReplayedUpdate) and all(agent.batches.is_on_device for agent in self.agents):
            return self.update.draw_ahead(count, batch_size)
        return None

    @torch.no_grad()
    def predict(self, observations: Sequence[NDArray]) -> list[NDArray]:
        """Actions of each agent at its own observations (n_envs, n): `predict` of all of them at once, to rounding."""
        agents, like = self.agents, self._extractors[0].like
        x = torch.from_numpy(np.stack(observations))
        noise = torch.stack([agent.actor.draw_noise(obs) for agent, obs in zip(agents, x, strict=True)]).to(like.dtype)
        others = x.to(like.device, non_blocking=True), noise.to(like.device, non_blocking=True), self._extractors
        actions = self.compiled_or_plain(
            lambda: self._compiled_actions(self.actors, *others, agents[0].actor.blocks),
            lambda: sample_actions(self.actors, self.actors.current(), *others, agents[0].actor.blocks),
        )
        return [
            agent.policy.unscale_action(scaled) for agent, scaled in zip(agents, actions.cpu().numpy(), strict=True)
        ]

    def unstack(self) -> None:
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
    moments["step"] = moments["step"].to(p.device)  # torch.optim.Adam keeps it on the CPU
    return moments


def _configuration(agent: RPPSAC) -> dict[str, Any]:
    """Settings that agents which are updated at once have in common, but for the learning rate, which may fall."""
    names = ("batch_size", "gradient_steps", "target_update_interval", "learning_starts", "augment", "matmul_precision",
             "compile")  # fmt: skip
    settings = scalar_settings(agent.update_config(agent.tau))
    del settings["learning_rate"]
    settings["dtype"] = agent.actor.function.parameters[0].dtype
    return {**agent.identity(), **settings, **{name: getattr(agent, name) for name in names}}


def _refuse_different(configurations: Iterable[Mapping[str, Any]]) -> None:
    first, *others = configurations
    for other in others:
        for name, value in first.items():
            if value != other[name]:
                raise ValueError(
                    f"agents that are trained together have one configuration; {name} is {value} and {other[name]}"
                )


_SETTINGS = attrgetter(
    "gamma", "tau", "noise_variance", "target_entropy", "max_gradient_norm", "mirror_loss", "augment", "batch_size",
    "gradient_steps", "target_update_interval", "learning_starts", "matmul_precision", "compiles",
)  # fmt: skip


def update_key(agent: RPPSAC) -> tuple:
    """The numbers that the next update takes from an agent as it is now; those of equal keys are updated at once.

    It is asked at every step, so it is made of attributes, not of an `UpdateConfig`.
    """
    group = agent.actor.optimizer.param_groups[0]
    rate, learned = agent.lr_schedule(agent._current_progress_remaining), agent.ent_coef_optimizer is not None
    since_target = agent._n_updates % agent.target_update_interval
    return *_SETTINGS(agent), rate, *group["betas"], group["eps"], learned, since_target


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
            trace = None if by_user(self.error) else self.error
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
    from rppdyn.agents.sac import RPPSAC  # which needs stacks

    if not callable(build):
        raise TypeError(f"{build!r} is no function that builds an agent: give one, such as lambda: RPPSAC(...)")
    agent = build()
    if not isinstance(agent, RPPSAC):
        raise TypeError(f"the function that builds it returned {agent!r}: let it return an RPPSAC")
    return agent


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
    outer = GlobalStates.now()  # which stable-baselines3 seeds as it builds agents
    try:
        trainers = [
            SeedTrainer(build, callback, f"agent {i}")
            for i, (build, callback) in enumerate(zip(builds, callbacks, strict=True))
        ]
        new = [t for t, build in zip(trainers, builds, strict=True) if not isinstance(build, SeedTrainer)]
        configurations = [
            _configuration(t.agent) | {"learning_rate": t.agent.lr_schedule(1)} for t in new if t.error is None
        ]
        if configurations:
            _refuse_different(configurations)
        _refuse_shared([t for t in trainers if t.error is None])
        train_together(trainers, total_timesteps)
    finally:
        outer.put()
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
    stacks = AgentStacks()
    try:
        while behind := _behind(trainers, total_timesteps):
            collect(behind, stacks)
            due = [t for t in behind if t.is_training and t.agent.num_timesteps > t.agent.learning_starts]
            for part, stack in stacks.of(due):
                first = part[0].agent
                steps = first.train_freq.frequency * first.n_envs
                count = first.gradient_steps if first.gradient_steps >= 0 else steps
                if count > 0:
                    stack.train(count, first.batch_size)
    finally:
        for trainer in trainers:
            if trainer.error is None:
                with trainer.guarded():
                    trainer.agent.record_updates()
            AgentStack([trainer.agent]).unstack()
    for trainer in trainers:
        trainer.end()


class AgentStacks:
    """The stacks of agents that were last asked for; they change where an agent ends, or differs from others from now on."""

    def __init__(self) -> None:
        self._stacks: list[AgentStack] = []

    def of(self, trainers: Sequence[SeedTrainer]) -> list[tuple[list[SeedTrainer], AgentStack]]:
        """Trainers whose agents' next updates take the same numbers, with their stack; of none, none, and stacks stay."""
        if not trainers:
            return []
        parts: dict[tuple, list[SeedTrainer]] = {}
        for trainer in trainers:
            parts.setdefault(update_key(trainer.agent), []).append(trainer)
        pairs = [(part, self._stack(part)) for part in parts.values()]
        self._stacks = [stack for _, stack in pairs]
        return pairs

    def _stack(self, trainers: Sequence[SeedTrainer]) -> AgentStack:
        agents = [trainer.agent for trainer in trainers]
        known = (stack for stack in self._stacks if stack.agents == agents)
        return next(known, None) or AgentStack(agents, [trainer.guarded for trainer in trainers])


def collect(trainers: Sequence[SeedTrainer], stacks: AgentStacks) -> None:
    """Collect a rollout of each agent. All environments are sent their steps before one is waited for."""
    for trainer in trainers:
        trainer.start_rollout()
    while collecting := [trainer for trainer in trainers if trainer.is_collecting]:
        observations = {t: t.observations for t in collecting if t.observations is not None}
        actions: dict[SeedTrainer, NDArray] = {}
        for part, stack in stacks.of(list(observations)):
            actions.update(zip(part, stack.predict([observations[trainer] for trainer in part]), strict=True))
        for trainer in collecting:
            trainer.continue_rollout(actions.get(trainer))


def _behind(trainers: Sequence[SeedTrainer], total_timesteps: int) -> list[SeedTrainer]:
    """Trainers still in training that have taken the fewest steps."""
    training = [t for t in trainers if t.is_training and t.agent.num_timesteps < total_timesteps]
    least = min((t.agent.num_timesteps for t in training), default=0)
    return [t for t in training if t.agent.num_timesteps == least]
