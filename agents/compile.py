"""Gradient updates, and actions, as fast as they go: precision of products, torch.compile, and graphs on a CUDA device."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from torch import Tensor

from rppdyn.agents.buffers import RowReplayBuffer, UpdateInputs, stack_inputs
from rppdyn.agents.functional import Networks, Prior
from rppdyn.agents.networks import SymmetricFeatures
from rppdyn.agents.update import (
    Metrics,
    State,
    UpdateConfig,
    sample_actions,
    scalar_settings,
    stack_tensors,
    update_,
    update_step_,
)
from rppdyn.nn.compiling import can_compile, compiled, failed_to_compile

if TYPE_CHECKING:
    from rppdyn.agents.multi_seed import AgentStack
    from rppdyn.agents.sac import RPPSAC


PRECISIONS = ("highest", "high", "medium")
MAX_ERROR_RATIO = 4.0
"""The largest error of a product, as a multiple of that at "highest"."""


FASTEST = "medium"
"""The fastest precision of torch: by oneDNN in place of MKL on some processors, on others in bfloat16 or TensorFloat32. Where
both libraries are at the processor's peak, updates of one seed that are not compiled are up to a tenth slower by it."""


@contextmanager
def matmul_precision(name: str | None) -> Iterator[None]:
    """Set torch's precision of matrix products inside the block, and put it back afterwards; None leaves it as it is."""
    before = torch.get_float32_matmul_precision()
    if name in (None, before):
        yield
        return
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def update_precision(name: str | None, device: torch.device) -> str | None:
    """The precision that gradient updates have: the one given, or the fastest that costs no accuracy on this device.

    A process that has another precision than torch's "highest" was given it by its user, and keeps it: None. What is chosen
    depends on errors alone and never on times, so that a machine's numbers are the same however busy it is.
    """
    if name is None and torch.get_float32_matmul_precision() == "highest" and _is_accurate(FASTEST, device):
        return FASTEST
    return name


def check_matmul_precision(name: str | None, device: torch.device) -> None:
    """Refuse a precision whose products have larger errors on this device.

    Where they mean another library for the same arithmetic, "high" and "medium" are as accurate as "highest", and may be twice
    as fast; on other processors, and on GPUs, they mean bfloat16 or TensorFloat32.

    Raises:
        ValueError: no such precision; a product's error is more than `MAX_ERROR_RATIO` times that at "highest".
    """
    if name is None:
        return
    if name not in PRECISIONS:
        raise ValueError(f"matmul_precision={name!r} is not one of {', '.join(PRECISIONS)}")
    if not _is_accurate(name, device):
        error, least = product_error(name, device), product_error("highest", device)
        raise ValueError(
            f"matmul_precision={name}: on this {device.type} products have a relative error of {error:.0e} then, and of "
            f"{least:.0e} at highest; leave it out"
        )


def _is_accurate(name: str, device: torch.device) -> bool:
    return product_error(name, device) <= MAX_ERROR_RATIO * product_error("highest", device)


@functools.cache
def product_error(name: str, device: torch.device) -> float:
    """The relative error of a product of two (256, 256) matrices of normal numbers against the same in double precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    with matmul_precision(name):
        product = (a.float().to(device) @ b.float().to(device)).cpu().double()
    truth = a.float().double() @ b.float().double()
    return float((product - truth).norm() / truth.norm())


logger = logging.getLogger(__name__)

WARM_UP = 2  # runs before a capture: libraries make handles and workspaces, lazy tables are filled

Work = Callable[[], Any]


def cuda_graph(
    work: Work, device: torch.device, changes: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> Work:
    """Return the same work; on a CUDA device all its kernels are launched at once, by replaying a graph.

    A graph has the addresses of what it reads and writes: whoever holds one makes it anew where tensors have moved. What it
    returns is overwritten by the next replay.

    Args:
        work: reads and writes tensors in place, looks at no value of theirs, draws from `generators` only.
        changes: all the tensors that it writes. They, and the generators, are left as they were.
    Raises:
        RuntimeError: torch can't compile what is to be compiled of it.
    """
    if device.type != "cuda":
        return work
    values = [tensor.clone() for tensor in changes]
    states = [generator.get_state() for generator in generators]
    try:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            return _graph(work, generators)
    except RuntimeError as error:
        if failed_to_compile(error):
            raise
        reason = str(error).strip().splitlines()[0]
        logger.warning(
            "gradient updates, or their batches, can't be captured as a CUDA graph, and are slower: %s", reason
        )
        return work
    finally:
        for tensor, value in zip(changes, values, strict=True):
            tensor.copy_(value)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _graph(work: Work, generators: Sequence[torch.Generator]) -> Work:
    here, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(here)
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
    finally:
        here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


DYNAMIC_SETTINGS = ("learning_rate", "tau", "gamma", "noise_variance", "target_entropy")
"""Settings that may change from update to update without compiling anew."""

OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {
        "cpp_wrapper": True,
        "size_asserts": False,
        "alignment_asserts": False,
        "unroll_reductions_threshold": 1,  # sums over actions are unrolled otherwise, with exponentials one by one
    },
    "cuda": {},
}
"""Options of torch.compile, by device."""


# What else may change is in `_key`; tensors that come from elsewhere than a buffer of rows may be of any kind.
def NO_GUARDS(entries: Sequence[Any]) -> list[bool]:  # as torch.compiler has it from 2.9 on
    return [False] * len(entries)


TENSOR_GUARDS = torch.compiler.keep_tensor_guards_unsafe


MIN_UPDATES_TO_COMPILE = 20_000
"""Updates from which on compiling saves as much time as it takes where nothing is cached."""


def worth_compiling(agent: RPPSAC) -> bool:
    """Return whether the training that an agent has begun is long enough, and torch can compile it.

    The whole training counts, steps before this call included, so that one that is resumed rounds as before.
    """
    per_rollout = agent.train_freq.frequency * agent.n_envs
    steps = per_rollout if agent.gradient_steps < 0 else agent.gradient_steps
    updates = agent._total_timesteps * steps / per_rollout
    is_long = agent.train_freq.unit == TrainFrequencyUnit.STEP and updates >= MIN_UPDATES_TO_COMPILE
    return is_long and agent.device.type in OPTIONS and can_compile(agent.device)


class CompiledUpdate:
    """`update_`, in which torch.compile leaves the matrix products and one operation for all that is between two of them.

    The first call compiles, and so does one with batches of another size or with settings beside the `DYNAMIC_SETTINGS`.

    Args:
        extractors: one for each agent; they take the features of batches that are rows of a replay buffer.
    """

    def __init__(self, extractors: Sequence[SymmetricFeatures]) -> None:
        self.extractors = list(extractors)
        self._compiled: dict[Any, Any] = {}  # by what torch would otherwise look through at each call
        self._flat: tuple[State, State] = {}, {}  # the last state, and its vectors as rows

    def __call__(
        self,
        state: State,
        inputs: UpdateInputs | Sequence[UpdateInputs],
        config: UpdateConfig,
        settings: Tensor | None = None,
    ) -> Metrics:
        """Update with the batch of all agents, or with those of each, which may still be rows of a replay buffer.

        Args:
            settings: `DYNAMIC_SETTINGS` where the state is, for an update that looks at no value; None: the configuration's.
        """
        like = state["actor"]
        priors = config.actors.prior(), config.critics.prior()
        prepared = (networks.prepare(like) for networks in (config.actors, config.critics))
        key = *_key(like, inputs, config, priors), *prepared
        if key not in self._compiled:
            are_rows = not isinstance(inputs, UpdateInputs) and all("states" in batch for batch, _ in inputs)
            options = OPTIONS[like.device.type] | {"guard_filter_fn": NO_GUARDS if are_rows else TENSOR_GUARDS}
            self._compiled[key] = compiled(_update, fullgraph=True, dynamic=False, options=options)
        if state is not self._flat[0]:
            # of one shape, whose loops become one
            self._flat = state, {name: vectors.flatten(0, -2) for name, vectors in state.items()}
        with torch.no_grad():
            if settings is None:
                settings = torch.tensor([getattr(config, name) for name in DYNAMIC_SETTINGS], dtype=like.dtype)
            return self._compiled[key](self._flat[1], inputs, config, priors, settings, self.extractors)

    def __reduce__(self) -> tuple:
        return CompiledUpdate, (self.extractors,)  # what torch compiled stays here


class CompiledActions:
    """`sample_actions`, compiled as updates are.

    In training its small operations take two to three times as long as by themselves: an update's products empty the caches.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}  # by shapes

    def __call__(self, actors: Networks, observations: Tensor, *others: Any) -> Tensor:
        vectors = actors.vectors()
        prepared = actors.prepare(vectors)
        key = vectors.dtype, vectors.shape, observations.dtype, observations.shape, torch.get_num_threads(), prepared
        if key not in self._compiled:
            options = OPTIONS[vectors.device.type] | {"guard_filter_fn": NO_GUARDS}
            self._compiled[key] = compiled(_sample_actions, fullgraph=True, dynamic=False, options=options)
        return self._compiled[key](actors, vectors, observations, *others)

    def __reduce__(self) -> tuple:
        return CompiledActions, ()  # what torch compiled stays here


def _sample_actions(actors: Networks, vectors: Tensor, *others: Any) -> Tensor:
    return sample_actions(actors, actors.weights(vectors), *others)


def _update(
    state: State,
    inputs: UpdateInputs | Sequence[UpdateInputs],
    config: UpdateConfig,
    priors: tuple[Prior, Prior],
    settings: Tensor,
    extractors: Sequence[SymmetricFeatures],
) -> Metrics:
    batch, noise = inputs if isinstance(inputs, UpdateInputs) else stack_inputs(inputs, extractors)
    return Metrics.of(update_step_(state, batch, noise, _with_settings(config, settings), priors))


def _with_settings(config: UpdateConfig, settings: Tensor) -> UpdateConfig:
    """The configuration with a tensor's entries for its `DYNAMIC_SETTINGS`."""
    entries: dict[str, Any] = dict(zip(DYNAMIC_SETTINGS, settings.unbind(), strict=True))
    return dataclasses.replace(config, **entries)


def _key(
    like: Tensor, inputs: UpdateInputs | Sequence[UpdateInputs], config: UpdateConfig, priors: tuple[Prior, Prior]
) -> tuple:
    """Everything that compiled code depends on and that may change."""
    fixed = tuple(value for name, value in scalar_settings(config).items() if name not in DYNAMIC_SETTINGS)
    each = [inputs] if isinstance(inputs, UpdateInputs) else inputs
    batches = tuple((*batch, next(iter(batch.values())).shape) for batch, _ in each)
    process = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return like.dtype, batches, *(len(prior.precision) for prior in priors), *fixed, *process


MAX_UPDATES_AHEAD, MAX_BYTES_AHEAD = 64, 2**28
"""Updates whose batches are drawn at once, and the memory that these may take."""


def is_replayed(device: torch.device) -> bool:
    """Return whether updates on a device are replayed; only there is it faster."""
    return device.type == "cuda"


class _Graph(NamedTuple):
    """Work that is replayed, and the tensors elsewhere that it reads."""

    work: Work
    reads: list[Tensor]

    def has_moved(self, reads: Sequence[Tensor]) -> bool:
        """Return whether a tensor is no longer where it was read; those are held, so that nothing else gets their addresses."""
        return [t.data_ptr() for t in reads] != [t.data_ptr() for t in self.reads]


class _UpdateGraph(NamedTuple):
    """An update that is replayed, the names of its metrics, and the tensors that are written before.

    Attributes:
        settings: `DYNAMIC_SETTINGS`, in their order.
    """

    graph: _Graph
    names: list[str]
    settings: Tensor
    inputs: UpdateInputs


class ReplayedUpdate:
    """Updates of agents that are replayed, with a copy of a batch's tensors before each.

    Batches are drawn by a graph of their own where replay buffers are on the device, up to `MAX_UPDATES_AHEAD` of them at once:
    drawing takes as many kernels as an update, however much is drawn. Batches that are drawn elsewhere are copied, too.
    `DYNAMIC_SETTINGS` but tau may change without another graph.
    """

    def __init__(self, stack: AgentStack) -> None:
        self.stack = stack
        self._draws: dict[Any, _Graph] = {}
        self._updates: dict[Any, _UpdateGraph] = {}
        self._known: list[tuple[State, UpdateConfig, _UpdateGraph]] = []

    def __call__(self, state: State, config: UpdateConfig, inputs: UpdateInputs | Sequence[UpdateInputs]) -> Metrics:
        """An update; one with the very state and configuration of one before is known to find everything where it was.

        Its metrics are overwritten by the next one.
        """
        new = inputs if isinstance(inputs, UpdateInputs) else self.stack.stack_inputs(inputs)
        known = (update for s, c, update in self._known if s is state and c is config)
        update = next(known, None) or self._look_up(state, config, new)
        torch._foreach_copy_(update.inputs.tensors(), new.tensors())  # by one kernel
        values = update.graph.work()  # which makes the names, the first time
        return Metrics(tuple(update.names), values)

    def draw_ahead(self, count: int, batch_size: int) -> Iterator[UpdateInputs]:
        """Batches of so many updates."""
        agents = self.stack.agents
        spec, like = agents[0].spec, agents[0].policy.features_extractor.like
        row = (2 * spec.feature_dim + 3 * spec.action_rep.dim + 2) * like.dtype.itemsize
        most = min(MAX_UPDATES_AHEAD, max(1, MAX_BYTES_AHEAD // (len(agents) * batch_size * row)))
        while count > 0:
            part = min(count, most)
            inputs = self._draw(part, batch_size)
            for i in range(part):
                yield UpdateInputs(*({name: tensor[i] for name, tensor in tensors.items()} for tensors in inputs))
            count -= part

    def _draw(self, count: int, batch_size: int) -> UpdateInputs:
        """Batches of so many updates, (count, S, ...), which the next ones overwrite."""
        agents = self.stack.agents
        buffers = [agent.replay_buffer for agent in agents if isinstance(agent.replay_buffer, RowReplayBuffer)]
        reads = [t for buffer in buffers for t in (*buffer.rows, buffer.count)]
        reads += [t for agent in agents for t in agent.policy.features_extractor.buffers()]
        key = count, batch_size, agents[0].learning_starts
        graph = self._draws.get(key)
        if graph is None or graph.has_moved(reads):

            def work() -> UpdateInputs:
                each = [agent.batches.draw_ahead(count, batch_size) for agent in agents]
                batches, noises = zip(*each, strict=True)
                return UpdateInputs(stack_tensors(batches, 1), stack_tensors(noises, 1))

            generators = [buffer.generator for buffer in buffers]
            graph = self._draws[key] = _Graph(cuda_graph(work, agents[0].device, [], generators), reads)
        return graph.work()

    def _look_up(self, state: State, config: UpdateConfig, new: UpdateInputs) -> _UpdateGraph:
        find = partial(self._find, state, config, new)
        update = self.stack.compiled_or_plain(partial(find, True), partial(find, False))
        for setting, name in zip(update.settings, DYNAMIC_SETTINGS, strict=True):
            setting.fill_(getattr(config, name))
        self._known = [*self._known[-1:], (state, config, update)]  # with targets that move, and without
        return update

    def _find(self, state: State, config: UpdateConfig, new: UpdateInputs, is_compiled: bool) -> _UpdateGraph:
        priors = [part for networks in (config.actors, config.critics) for part in networks.prior()]
        reads = [*state.values(), *(part for part in priors if isinstance(part, Tensor))]
        # targets that move now and then have a graph for when they do, and one for when they don't
        dynamic = {*DYNAMIC_SETTINGS} - {"tau"}
        fixed = tuple((name, value) for name, value in scalar_settings(config).items() if name not in dynamic)
        key = is_compiled, tuple(new.batch), tuple(tensor.shape for tensor in new.tensors()), fixed
        update = self._updates.get(key)
        if update is None or update.graph.has_moved(reads):
            update = self._updates[key] = self._record(state, config, new, reads, is_compiled)
        return update

    def _record(
        self, state: State, config: UpdateConfig, new: UpdateInputs, reads: list[Tensor], is_compiled: bool
    ) -> _UpdateGraph:
        like = state["actor"]
        settings = torch.zeros(len(DYNAMIC_SETTINGS), dtype=like.dtype, device=like.device)
        names: list[str] = []
        config = _with_settings(config, settings)
        inputs = UpdateInputs(*({name: tensor.clone() for name, tensor in part.items()} for part in new))

        def work() -> Tensor:
            if is_compiled:
                metrics = self.stack.compiled_update(state, inputs, config, settings)
            else:
                metrics = Metrics.of(update_(state, *inputs, config))
            names[:] = metrics.names
            return metrics.values

        graph = _Graph(cuda_graph(work, like.device, list(state.values()), []), reads)
        return _UpdateGraph(graph, names, settings, inputs)
