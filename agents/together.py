"""Gradient updates, and actions, of agents that differ in their seed alone, computed at once: each is as if it were alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.agents.buffers import NOISES, Drawn, stacked_up
from rppdyn.agents.compilation import (
    Ahead,
    CompiledActions,
    CompiledUpdate,
    Replayed,
    is_replayed,
    matmul_precision,
    update_precision,
)
from rppdyn.agents.functional import flatten_, stacked
from rppdyn.agents.update import Metrics, State, UpdateConfig, acted, numbers_of, update_
from rppdyn.nn.compiling import failed_to_compile, reason_of
from rppdyn.runs.checkpoints import DivergedError

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

logger = logging.getLogger(__name__)

T = TypeVar("T")


Trained = tuple[torch.optim.Optimizer | None, Sequence[Tensor]]
"""Parameters, and their optimiser where they have one."""


class Together:
    """Agents whose gradient updates, and whose actions, are computed at once.

    Their parameters and optimisers' moments become views of shared vectors, so that the agents themselves are what is
    trained; see `part`. On a CUDA device an update is replayed from a graph, which is made anew where tensors have moved.

    Args:
        agents: agents of the same configuration and spaces.
        guards: make the contexts in which each agent does what it does for itself, with random states of its own; an error that
            a guard keeps to itself takes its agent out, and no other. None: no context, and no random states but the process's.
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
        # where parameters are, what holds moments, and the state
        self._found: tuple[list[int], list[Any], State] | None = None
        self._extractors = [agent.policy.features_extractor for agent in self.agents]
        self._compiled = CompiledUpdate(self._extractors)
        self._compiled_actions = CompiledActions()
        self.update = Replayed(self) if is_replayed(self.agents[0].device) else self._update_at_once

    def state(self) -> State:
        """The state that `update_` works on: vectors that share their memory with modules and optimisers.

        torch.optim.Adam counts steps per parameter, so `<name>.step` has one entry per parameter here, all equal.
        """
        tensors = [agent.trained_tensors() for agent in self.agents]
        where = [p.data_ptr() for own in tensors for _, ps in own.values() for p in ps]
        holders = [optimiser.state for own in tensors for optimiser, _ in own.values() if optimiser is not None]
        if self._found is None or where != self._found[0] or any(map(is_not, holders, self._found[1])):
            state = self._gathered(tensors)
            where = [p.data_ptr() for own in tensors for _, ps in own.values() for p in ps]
            self._found = where, holders, state
        return self._found[2]

    def _gathered(self, tensors: Sequence[dict[str, Trained]]) -> State:
        state: State = {}
        count = len(self.agents)
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
        return self.agents[0].update_config(tau, self.actors, self.critics)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Run gradient updates on batches from each agent's replay buffer, which then has their mean metrics."""
        for agent in self.agents:
            agent.policy.set_training_mode(True)
            agent._update_learning_rate([o for o, _ in agent.trained_tensors().values() if o is not None])
        rates = [agent.actor.optimizer.param_groups[0]["lr"] for agent in self.agents]
        _refuse_different({"learning_rate": rate} for rate in rates)
        group: Together | None = self
        sums, metrics = None, None
        first = self.agents[0]
        fixed: dict[tuple[Together, float], tuple[State, UpdateConfig]] = {}  # as long as nothing but updates is done
        with matmul_precision(update_precision(first.matmul_precision, first.device)):
            if any(agent.prepare_updates for agent in self.agents):
                group = self._each(lambda agent: agent.prepare_updates and agent.prepare_updates())[0]
            ahead = None if group is None else group.drawn_ahead(gradient_steps, batch_size)
            for _ in range(gradient_steps):
                if ahead is not None:
                    drawn: Any = next(ahead)
                elif group is not None:
                    group, kept, drawn = group._each(partial(_draw, batch_size=batch_size))
                    sums = None if sums is None else sums[:, kept]
                if group is None:
                    return
                first = group.agents[0]
                tau = first.tau if first._n_updates % first.target_update_interval == 0 else 0.0
                if (group, tau) not in fixed:
                    fixed[group, tau] = group.state(), group.config(tau)
                metrics = group.update(*fixed[group, tau], drawn)
                sums = metrics.values.clone() if sums is None else sums.add_(metrics.values)
                for agent in group.agents:
                    agent._n_updates += 1
        if group is not None and metrics is not None and sums is not None:
            for i, agent in enumerate(group.agents):
                agent._sums = Metrics(metrics.names, sums[:, i]), gradient_steps
                if sums.device.type == "cpu":  # nothing to wait for
                    try:
                        agent.record_updates()
                    except DivergedError as error:
                        with group.guards[i]():
                            raise error

    def _each(self, work: Callable[[RPPSAC], Any]) -> tuple[Together | None, list[int], list[Any]]:
        """What each agent does for itself: the group of those that came to its end (None without any), which, and results."""
        found = {}
        for i, (agent, guard) in enumerate(zip(self.agents, self.guards, strict=True)):
            with guard():
                found[i] = work(agent)
        group: Together | None = self
        if len(found) < len(self.agents):
            group = Together([self.agents[i] for i in found], [self.guards[i] for i in found]) if found else None
        return group, list(found), list(found.values())

    def _update_at_once(self, state: State, config: UpdateConfig, drawn: Sequence[Drawn]) -> Metrics:
        return self.by_torch_compile(
            lambda: self._compiled(state, drawn, config),
            lambda: Metrics.of(update_(state, *self.stacked_up(drawn), config)),
        )

    def stacked_up(self, drawn: Sequence[Drawn]) -> Drawn:
        """Batches and noise of all agents, as updates take them."""
        return stacked_up(drawn, self._extractors)

    def compiled_update(self, state: State, drawn: Drawn, config: UpdateConfig, numbers: Tensor) -> Metrics:
        """An update by torch.compile, at the `NUMBERS` of a tensor."""
        return self._compiled(state, drawn, config, numbers)

    def by_torch_compile(self, compiled: Callable[[], T], plain: Callable[[], T]) -> T:
        """What is compiled, where agents have that; else, and where torch fails at what nobody asked for, what is not."""
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

    def drawn_ahead(self, count: int, batch_size: int) -> Iterator[Ahead] | None:
        """Batches of so many updates, drawn on a device several at once; None where each is drawn when its turn comes."""
        if isinstance(self.update, Replayed) and all(agent.batches.drawn_on_device for agent in self.agents):
            return self.update.drawn_ahead(count, batch_size)
        return None

    @torch.no_grad()
    def predict(self, observations: Sequence[NDArray]) -> list[NDArray]:
        """What each agent does at its own observations (n_envs, n): `predict` of all of them at once, to rounding."""
        agents, like = self.agents, self._extractors[0].like
        seen = torch.from_numpy(np.stack(observations))
        noise = torch.stack([agent.actor.draw_noise(x) for agent, x in zip(agents, seen, strict=True)]).to(like.dtype)
        others = seen.to(like.device, non_blocking=True), noise.to(like.device, non_blocking=True), self._extractors
        found = self.by_torch_compile(
            lambda: self._compiled_actions(self.actors, *others, agents[0].actor.blocks),
            lambda: acted(self.actors, self.actors.current(), *others, agents[0].actor.blocks),
        )
        actions = found.cpu().numpy()
        return [agent.policy.unscale_action(a) for agent, a in zip(agents, actions, strict=True)]

    def part(self) -> None:
        """Give each agent memory of its own again, so that what one saves holds nothing of the others."""
        for agent in self.agents:
            for optimiser, parameters in agent.trained_tensors().values():
                for p in parameters:
                    p.data = p.data.clone()
                    if optimiser is not None:
                        optimiser.state[p].update({k: t.clone() for k, t in optimiser.state[p].items()})


def _draw(agent: RPPSAC, batch_size: int) -> Drawn:
    batches = agent.batches
    buffer = batches.row_buffer if agent.compiles else None
    batch = batches.sample(batch_size) if buffer is None else batches.rows(buffer, batch_size)
    return batch, {name: batches.noise(batch_size) for name in NOISES}


def _moments(optimiser: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    moments = optimiser.state[p]
    if not moments:
        moments.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    # where the fused kernel reads it; torch.optim.Adam keeps it on the CPU
    moments["step"] = moments["step"].to(p.device)
    return moments


def _configuration(agent: RPPSAC) -> dict[str, Any]:
    """What agents that are updated at once have in common, but for the learning rate, which may fall."""
    names = ("batch_size", "gradient_steps", "target_update_interval", "learning_starts", "augment", "matmul_precision",
             "compile")  # fmt: skip
    fixed = numbers_of(agent.update_config(agent.tau))
    del fixed["learning_rate"]
    fixed["dtype"] = agent.actor.function.parameters[0].dtype
    return {**agent.identity(), **fixed, **{name: getattr(agent, name) for name in names}}


def _refuse_different(configurations: Iterable[Mapping[str, Any]]) -> None:
    first, *others = configurations
    for other in others:
        for name, value in first.items():
            if value != other[name]:
                raise ValueError(
                    f"agents that are trained together have one configuration; {name} is {value} and {other[name]}"
                )


def check_configurations(agents: Iterable[RPPSAC]) -> None:
    """Refuse new agents that differ in more than their seed.

    Raises:
        ValueError: naming what they differ in.
    """
    configurations = [_configuration(agent) | {"learning_rate": agent.lr_schedule(1)} for agent in agents]
    if configurations:
        _refuse_different(configurations)


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
