"""Gradient updates of agents, and their batches, as work on tensors that stay where they are; on a CUDA device graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rppdyn.agents.batches import Drawn, split
from rppdyn.agents.captured import Work, captured
from rppdyn.agents.compiled import NUMBERS
from rppdyn.agents.update import Metrics, State, UpdateConfig, numbers_of, update_

if TYPE_CHECKING:
    from rppdyn.agents.together import Together

MOST_AHEAD, BYTES = 64, 2**28
"""Updates whose batches are drawn at once, and the memory that these may take."""


def is_replayed(device: torch.device) -> bool:
    """Whether updates on a device are replayed; only there is it faster."""
    return device.type == "cuda"


class Ahead(NamedTuple):
    """A batch of all agents that was drawn on a device, and noise.

    Attributes:
        columns: (S, B, c), of which `split` makes views.
        transitions: the numbers that priors are shared out over, (S,).
    """

    columns: Tensor
    transitions: Tensor


class _Recorded(NamedTuple):
    """Work, and what it reads that is elsewhere."""

    reads: list[Tensor]
    work: Work


class _RecordedUpdate(NamedTuple):
    """Work on an update, the names of its metrics, and what is written before it is done again.

    Attributes:
        numbers: those of `NUMBERS` that it reads, in their order.
    """

    recorded: _Recorded
    names: list[str]
    numbers: Tensor
    inputs: Ahead | Drawn


class Replayed:
    """Updates of agents that are replayed, with a copy of a batch's tensors before each.

    Batches are drawn by a graph of their own where replay buffers are on the device, those of up to `MOST_AHEAD` updates at
    once: drawing takes as many kernels as an update, however much is drawn. Batches that are drawn elsewhere are copied, too.
    The learning rate, and where updates are compiled the other `NUMBERS` but tau, are tensors: other ones change nothing.
    """

    def __init__(self, group: Together) -> None:
        self.group = group
        self._draws: dict[Any, _Recorded] = {}
        self._updates: dict[Any, _RecordedUpdate] = {}
        self._known: list[tuple[State, UpdateConfig, _RecordedUpdate]] = []

    def __call__(self, state: State, config: UpdateConfig, drawn: Ahead | Sequence[Drawn]) -> Metrics:
        """An update; one with the very state and configuration of one before is known to find everything where it was.

        Its metrics are overwritten by the next one.
        """
        new = drawn if isinstance(drawn, Ahead) else self.group.stacked_up(drawn)
        known = (found for s, c, found in self._known if s is state and c is config)
        found = next(known, None) or self._look_up(state, config, new)
        for static, tensor in zip(_tensors(found.inputs), _tensors(new), strict=True):
            static.copy_(tensor)
        values = found.recorded.work()  # the first time it finds the names
        return Metrics(tuple(found.names), values)

    def drawn_ahead(self, count: int, batch_size: int) -> Iterator[Ahead]:
        """Batches of so many updates."""
        first = self.group.agents[0]
        row = sum(first.batches.widths) * first.policy.features_extractor.dtype.itemsize
        most = min(MOST_AHEAD, max(1, BYTES // (len(self.group.agents) * batch_size * row)))
        while count > 0:
            part = min(count, most)
            columns, transitions = self._drawn(part, batch_size)
            yield from (Ahead(each, transitions) for each in columns.unbind())
            count -= part

    def _drawn(self, count: int, batch_size: int) -> tuple[Tensor, Tensor]:
        agents = self.group.agents
        reads = [t for agent in agents for t in agent.batches.drawn_from]
        key = count, batch_size, agents[0].learning_starts
        found = self._draws.get(key)
        if found is None or _moved(found, reads):

            def work() -> tuple[Tensor, Tensor]:
                each = [agent.batches.ahead(count, batch_size) for agent in agents]
                return torch.stack([columns for columns, _ in each], 1), torch.stack([n for _, n in each])

            generators = [own for agent in agents for own in agent.batches.drawn_by]
            found = self._draws[key] = _Recorded(reads, captured(work, agents[0].device, [], generators))
        return found.work()

    def _look_up(self, state: State, config: UpdateConfig, new: Ahead | Drawn) -> _RecordedUpdate:
        find = partial(self._find, state, config, new)
        found = self.group.by_torch_compile(partial(find, True), partial(find, False))
        for number, name in zip(found.numbers, NUMBERS, strict=False):
            number.fill_(getattr(config, name))
        self._known = [*self._known[-1:], (state, config, found)]  # with targets that move, and without
        return found

    def _find(self, state: State, config: UpdateConfig, new: Ahead | Drawn, is_compiled: bool) -> _RecordedUpdate:
        reads = [*state.values(), *_priors(config)]
        names = () if isinstance(new, Ahead) else tuple(new[0])
        # targets that move now and then have a graph for when they do, and one for when they don't
        free = {*NUMBERS} - {"tau"} if is_compiled else {*NUMBERS[:1]}
        fixed = tuple((name, value) for name, value in numbers_of(config).items() if name not in free)
        key = is_compiled, names, tuple(tensor.shape for tensor in _tensors(new)), fixed
        found = self._updates.get(key)
        if found is None or _moved(found.recorded, reads):
            found = self._updates[key] = self._record(state, config, new, reads, is_compiled)
        return found

    def _record(
        self, state: State, config: UpdateConfig, new: Ahead | Drawn, reads: list[Tensor], is_compiled: bool
    ) -> _RecordedUpdate:
        like = state["actor"]
        # single precision is what Adam's fused kernel reads a rate in
        dtype, count = (like.dtype, len(NUMBERS)) if is_compiled else (torch.float32, 1)
        numbers = torch.zeros(count, dtype=dtype, device=like.device)
        names: list[str] = []
        config = dataclasses.replace(config, learning_rate=numbers[0])
        inputs: Ahead | Drawn
        if isinstance(new, Ahead):
            inputs = Ahead(*(tensor.clone() for tensor in new))
            batch, noise = split(inputs.columns, self.group.agents[0].batches.widths)
            drawn = batch | {"transitions": inputs.transitions}, noise
        else:
            batch, noise = ({name: tensor.clone() for name, tensor in part.items()} for part in new)
            inputs = drawn = batch, noise

        def work() -> Tensor:
            if is_compiled:
                metrics = self.group.compiled_update(state, drawn, config, numbers)
            else:
                metrics = Metrics.of(update_(state, *drawn, config))
            names[:] = metrics.names
            return metrics.values

        recorded = _Recorded(reads, captured(work, like.device, list(state.values()), []))
        return _RecordedUpdate(recorded, names, numbers, inputs)


def _tensors(drawn: Ahead | Drawn) -> list[Tensor]:
    if isinstance(drawn, Ahead):
        return list(drawn)
    return [tensor for part in drawn for tensor in part.values()]


def _moved(found: _Recorded, reads: Sequence[Tensor]) -> bool:
    """Whether something is no longer where it was read; what was is held, so that nothing else gets its address."""
    return [t.data_ptr() for t in reads] != [t.data_ptr() for t in found.reads]


def _priors(config: UpdateConfig) -> Iterator[Tensor]:
    """What the networks' priors consist of: other tensors where a variance was changed."""
    for networks in (config.actors, config.critics):
        yield from (part for part in networks.prior() if isinstance(part, Tensor))
