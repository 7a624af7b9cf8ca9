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

from rppdyn.agents.buffers import Drawn, split, stacked_up
from rppdyn.agents.functional import Networks, Prior
from rppdyn.agents.networks import SymmetricFeatures
from rppdyn.agents.update import Metrics, State, UpdateConfig, acted, bias_corrections, numbers_of, step_, update_
from rppdyn.nn.compiling import can_compile, compiled, failed_to_compile, materialised

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC
    from rppdyn.agents.together import Together


PRECISIONS = ("highest", "high", "medium")
TOLERATED = 4.0
"""How many times larger than at "highest" a product's error may be."""


FASTEST = "medium"
"""The fastest precision of torch: by oneDNN in place of MKL on some processors, on others in bfloat16 or TensorFloat32. Where
both libraries are at the processor's peak, updates of one seed that are not compiled are up to a tenth slower by it."""


@contextmanager
def matmul_precision(name: str | None) -> Iterator[None]:
    """`torch.set_float32_matmul_precision` inside the block, put back afterwards; None leaves it as it is."""
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
        ValueError: no such precision; a product's error is more than `TOLERATED` times that at "highest".
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
    return product_error(name, device) <= TOLERATED * product_error("highest", device)


@functools.cache
def product_error(name: str, device: torch.device) -> float:
    """The relative error of a product of two (256, 256) matrices of normal numbers against the same in double precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    with matmul_precision(name):
        found = (a.float().to(device) @ b.float().to(device)).cpu().double()
    truth = a.float().double() @ b.float().double()
    return float((found - truth).norm() / truth.norm())


logger = logging.getLogger(__name__)

WARM_UP = 2  # runs before a capture: libraries make handles and workspaces, lazy tables are filled

Work = Callable[[], Any]


def captured(
    work: Work, device: torch.device, changes: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> Work:
    """The same work; on a CUDA device all its kernels are launched at once, by replaying a graph.

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
    kept = [tensor.clone() for tensor in changes]
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
        for tensor, value in zip(changes, kept, strict=True):
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


NUMBERS = ("learning_rate", "tau", "gamma", "noise_variance", "target_entropy")
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


PAYS = 20_000
"""Updates from which on compiling saves as much time as it takes where nothing is cached."""


def gains_by_compiling(agent: RPPSAC) -> bool:
    """True where the training that an agent has begun is long enough, and torch can compile it.

    The whole training counts, steps before this call included, so that one that is resumed rounds as before.
    """
    per_rollout = agent.train_freq.frequency * agent.n_envs
    steps = per_rollout if agent.gradient_steps < 0 else agent.gradient_steps
    updates = agent._total_timesteps * steps / per_rollout
    is_long = agent.train_freq.unit == TrainFrequencyUnit.STEP and updates >= PAYS
    return is_long and agent.device.type in OPTIONS and can_compile(agent.device)


class CompiledUpdate:
    """`update_`, in which torch.compile leaves the matrix products and one operation for all that is between two of them.

    The first call compiles, and so does one with batches of another size or with settings that are not among `NUMBERS`.

    Args:
        extractors: of each agent; they take the features of batches that are rows of a replay buffer.
    """

    def __init__(self, extractors: Sequence[SymmetricFeatures]) -> None:
        self.extractors = list(extractors)
        self._steps: dict[Any, Any] = {}  # by what torch would otherwise look through at each call
        self._flat: tuple[State, State] = {}, {}  # the last state, and as it is updated

    def __call__(
        self, state: State, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, numbers: Tensor | None = None
    ) -> Metrics:
        """`update_` of the batch of all agents, or of those of each, which may still be rows of a replay buffer.

        Args:
            numbers: `NUMBERS` where the state is, for an update that looks at no value; None: the configuration's.
        """
        like = state["actor"]
        priors = config.actors.prior(), config.critics.prior()
        key = (
            *_key(like, drawn, config, priors),
            *(networks.prepare(like) for networks in (config.actors, config.critics)),
        )
        if key not in self._steps:
            rows = not isinstance(drawn, tuple) and all("states" in batch for batch, _ in drawn)
            options = OPTIONS[like.device.type] | {"guard_filter_fn": NO_GUARDS if rows else TENSOR_GUARDS}
            self._steps[key] = compiled(_step, fullgraph=True, dynamic=False, options=options)
        if state is not self._flat[0]:
            # of one shape, whose loops become one
            self._flat = state, {name: vectors.flatten(0, -2) for name, vectors in state.items()}
        with torch.no_grad():
            if numbers is None:
                numbers = torch.tensor([getattr(config, name) for name in NUMBERS], dtype=like.dtype)
            return self._steps[key](self._flat[1], drawn, config, priors, numbers, self.extractors)

    def __reduce__(self) -> tuple:
        return CompiledUpdate, (self.extractors,)  # what torch compiled stays here


class CompiledActions:
    """`acted`, of which torch.compile leaves the matrix products and one operation for all that is between two of them.

    In training its small operations take two to three times as long as by themselves: an update's products empty the caches.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}  # by shapes

    def __call__(self, actors: Networks, observations: Tensor, *others: Any) -> Tensor:
        vectors = actors.vectors()
        own = actors.prepare(vectors)
        key = vectors.dtype, vectors.shape, observations.dtype, observations.shape, torch.get_num_threads(), own
        if key not in self._compiled:
            options = OPTIONS[vectors.device.type] | {"guard_filter_fn": NO_GUARDS}
            self._compiled[key] = compiled(_act, fullgraph=True, dynamic=False, options=options)
        return self._compiled[key](actors, vectors, observations, *others)

    def __reduce__(self) -> tuple:
        return CompiledActions, ()  # what torch compiled stays here


def _act(actors: Networks, vectors: Tensor, *others: Any) -> Tensor:
    return acted(actors, actors.weights(vectors), *others)


def _step(
    state: State, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, priors: tuple[Prior, Prior], numbers: Tensor,
    extractors: Sequence[SymmetricFeatures],
) -> Metrics:  # fmt: skip
    batch, noise = drawn if isinstance(drawn, tuple) else stacked_up(drawn, extractors)
    own: dict[str, Any] = dict(zip(NUMBERS, numbers.unbind(), strict=True))
    config = dataclasses.replace(config, **own)
    corrections = materialised(bias_corrections(state, config).to(numbers.dtype))
    return Metrics.of(step_(state, batch, noise, config, priors, corrections))


def _key(like: Tensor, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, priors: tuple[Prior, Prior]) -> tuple:
    """What compiled code depends on and may change."""
    fixed = config.learn_temperature, config.betas, config.epsilon, config.max_gradient_norm, config.mirror_loss
    each = [drawn] if isinstance(drawn, tuple) else drawn
    of_batches = tuple((*batch, next(iter(batch.values())).shape) for batch, _ in each)
    process = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return like.dtype, of_batches, *(len(prior.precision) for prior in priors), *fixed, *process


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
