"""Gradient updates, and actions, of agents that differ in their seed alone, computed at once: each is as if it were alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.agents import gaussian
from rppdyn.agents.captured import Work, captured
from rppdyn.agents.flat import flatten_
from rppdyn.agents.functional import stacked
from rppdyn.agents.update import State, UpdateConfig, together, update_

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC


class Together:
    """Agents whose gradient updates, and whose actions, are computed at once.

    Their parameters and optimisers' moments become views of shared vectors, so that the agents themselves are what is
    trained; see `part`. On a CUDA device an update is replayed from a graph, which is made anew where tensors have moved.

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
        # where parameters are, what holds moments, and the state
        self._found: tuple[list[int], list[Any], State] | None = None
        self._update = Replayed(self) if is_replayed(self.agents[0].device) else self._update_at_once

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
        tensors = [agent.trained_tensors() for agent in self.agents]
        where = [p.data_ptr() for own in tensors for _, ps in own.values() for p in ps]
        holders = [optimiser.state for own in tensors for optimiser, _ in own.values() if optimiser is not None]
        if self._found is None or where != self._found[0] or any(map(is_not, holders, self._found[1])):
            state = self._gathered(tensors)
            where = [p.data_ptr() for own in tensors for _, ps in own.values() for p in ps]
            self._found = where, holders, state
        return self._found[2]

    def _gathered(self, tensors: Sequence[dict[str, tuple[torch.optim.Optimizer | None, list[Tensor]]]]) -> State:
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
        return dataclasses.replace(self.agents[0].update_config(tau), actors=self.actors, critics=self.critics)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Run gradient updates on batches from each agent's replay buffer, which then has their mean metrics."""
        first = self.agents[0]
        for agent, random_state in zip(self.agents, self.states, strict=True):
            agent.policy.set_training_mode(True)
            agent._update_learning_rate([o for o, _ in agent.trained_tensors().values() if o is not None])
            if agent.prepare_updates is not None:
                with random_state:
                    agent.prepare_updates()
        state, totals = self.state(), {}
        for _ in range(gradient_steps):
            moving = first._n_updates % first.target_update_interval == 0
            metrics = self._update(state, self.config(first.tau if moving else 0.0), batch_size)
            totals = {name: totals.get(name, 0.0) + value for name, value in metrics.items()}
            for agent in self.agents:
                agent._n_updates += 1
        if totals:
            means = torch.stack(list(totals.values())) / gradient_steps
            for i, agent in enumerate(self.agents):
                agent._means = list(totals), means[:, i]

    def _update_at_once(self, state: State, config: UpdateConfig, batch_size: int) -> dict[str, Tensor]:
        return update_(state, *self.draw(batch_size), config)

    def draw(self, batch_size: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A batch of each agent, and noise, as `update_` takes them."""
        batches, noises = [], []
        for agent, random_state in zip(self.agents, self.states, strict=True):
            with random_state:
                batch = agent.sample_batch(batch_size)
            batches.append(batch)
            noises.append({key: agent.draw_noise(batch["actions"]) for key in ("current", "next")})
        return together(batches), together(noises)

    @torch.no_grad()
    def predict(self, observations: Sequence[NDArray]) -> list[NDArray]:
        """What each agent does at its own observations (n_envs, n): `predict` of all of them at once, to rounding."""
        agents, device = self.agents, self.agents[0].device
        here = torch.from_numpy(np.stack(observations))
        there = here.to(device, non_blocking=True)
        features = torch.stack([agent.policy.features_extractor(x) for agent, x in zip(agents, there, strict=True)])
        vectors = flatten_([p for agent in agents for p in agent.actor.function.parameters]).view(len(agents), -1)
        output = self.actors(features, self.actors.weights(vectors))
        noise = torch.stack([agent.actor.draw_noise(x) for agent, x in zip(agents, here, strict=True)])
        actions = gaussian.sample(output, noise.to(output, non_blocking=True), agents[0].actor.blocks)[0].cpu().numpy()
        return [agent.policy.unscale_action(a) for agent, a in zip(agents, actions, strict=True)]

    def part(self) -> None:
        """Give each agent memory of its own again, so that what one saves holds nothing of the others."""
        for agent in self.agents:
            for optimiser, parameters in agent.trained_tensors().values():
                for p in parameters:
                    p.data = p.data.clone()
                    if optimiser is not None:
                        optimiser.state[p].update({k: t.clone() for k, t in optimiser.state[p].items()})


def is_replayed(device: torch.device) -> bool:
    """Whether updates on a device are replayed; only there is it faster."""
    return device.type == "cuda"


class _Recorded(NamedTuple):
    """Work on an update, what it reads, and what is written before it is done again."""

    reads: list[Tensor]
    work: Work
    names: list[str]
    rate: Tensor
    inputs: tuple[dict[str, Tensor], dict[str, Tensor]] | None


class Replayed:
    """Updates of agents as work on tensors that stay where they are; on a CUDA device a graph.

    Batches are drawn as part of it where replay buffers are on the device; others are copied to where the first one was. The
    learning rate is a tensor, so that one that falls changes nothing.
    """

    def __init__(self, group: Together) -> None:
        self.group = group
        self._found: dict[Any, _Recorded] = {}

    def __call__(self, state: State, config: UpdateConfig, batch_size: int) -> dict[str, Tensor]:
        agents = self.group.agents
        drawn = None if all(agent.draws_on_device for agent in agents) else self.group.draw(batch_size)
        key = batch_size, tuple((k, v) for k, v in _fixed(config).items() if k != "learning_rate")
        reads = [*state.values(), *(t for agent in agents for t in agent.drawn_from()), *_priors(config)]
        found = self._found.get(key)
        if found is None or [t.data_ptr() for t in reads] != [t.data_ptr() for t in found.reads]:
            # what is read is held, so that nothing else gets its address
            found = self._found[key] = self._record(state, config, batch_size, drawn, reads)
        found.rate.fill_(config.learning_rate)
        for static, new in zip(found.inputs or (), drawn or (), strict=True):
            for name, tensor in new.items():
                static[name].copy_(tensor)
        return dict(zip(found.names, found.work().clone(), strict=True))

    def _record(
        self, state: State, config: UpdateConfig, batch_size: int, drawn: Any, reads: list[Tensor]
    ) -> _Recorded:
        device = state["actor"].device
        rate = torch.zeros((), dtype=torch.float32, device=device)  # in which Adam's fused kernel reads it
        names: list[str] = []
        config = dataclasses.replace(config, learning_rate=rate)

        def work() -> Tensor:
            metrics = update_(state, *(drawn or self.group.draw(batch_size)), config)
            names[:] = metrics
            return torch.stack(list(metrics.values()))

        generators = [] if drawn else [agent.replay_buffer.generator for agent in self.group.agents]
        return _Recorded(reads, captured(work, device, list(state.values()), generators), names, rate, drawn)


def _priors(config: UpdateConfig) -> Iterator[Tensor]:
    """What the networks' priors consist of: other tensors where a variance was changed."""
    for networks in (config.actors, config.critics):
        yield from (part for part in networks.prior() if isinstance(part, Tensor))


def _moments(optimiser: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    moments = optimiser.state[p]
    if not moments:
        moments.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    # where the fused kernel reads it; torch.optim.Adam keeps it on the CPU
    moments["step"] = moments["step"].to(p.device)
    return moments


def _fixed(config: UpdateConfig) -> dict[str, Any]:
    """The numbers of an update's configuration."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if isinstance(value := getattr(config, field.name), int | float | tuple | None)
    }
