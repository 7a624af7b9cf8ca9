"""Gradient updates, and actions, as fast as they go: torch.compile, CUDA graphs on such a device, plainly elsewhere."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from torch import Tensor

from rppdyn.nn.compiling import can_compile, compiled, failed_to_compile, reason_of

if TYPE_CHECKING:
    from rppdyn.agents.sac import RPPSAC
    from rppdyn.agents.update import Batch, Metrics, SACSettings, SACUpdate, State

logger = logging.getLogger(__name__)

T = TypeVar("T")

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


MIN_UPDATES_TO_COMPILE = 5_000
"""Updates from which on compiling saves more than it takes, with nothing cached: 3,300 of Walker2d-v5, 4,200 of Reacher-v5."""


def worth_compiling(agent: RPPSAC) -> bool:
    """Return whether the training that an agent has begun is long enough, and torch can compile it.

    The whole training counts, steps before this call included, so that one that is resumed rounds as before.
    """
    per_rollout = agent.train_freq.frequency * agent.n_envs
    steps = per_rollout if agent.gradient_steps < 0 else agent.gradient_steps
    updates = agent._total_timesteps * steps / max(per_rollout, 1)  # of 0 steps the rollout says that there is none
    is_long = agent.train_freq.unit == TrainFrequencyUnit.STEP and updates >= MIN_UPDATES_TO_COMPILE
    return is_long and agent.device.type in OPTIONS and can_compile(agent.device)


class FastUpdate:
    """The steps and actions of a `SACUpdate`, as one compiled function each, or as they are.

    The first call compiles, and so does one with batches of another shape or with settings of another structure. torch's guards
    are left out, since looking through a network's modules takes longer than parts of an update: all that compiled code depends
    on, and that may change, is in its key.

    Args:
        update: its agents say whether they are compiled, and on which device they are.
    """

    def __init__(self, update: SACUpdate) -> None:
        self.update = update
        self._compiled: dict[Any, Any] = {}
        self._graphs: dict[Any, CapturedUpdate] = {}

    def step(self, batch_size: int, settings: Sequence[SACSettings]) -> Metrics:
        """Sample, and update with settings for each agent, whose structures are equal."""
        update, like = self.update, self.update.state["actor"]
        numbers = torch.tensor([s.numbers for s in settings], dtype=like.dtype).T.unsqueeze(-1)
        if self.is_captured:
            return self._replayed(batch_size, numbers.to(like.device, non_blocking=True), settings[0])
        return self.update_(update.sample(batch_size), numbers, settings[0])

    def update_(self, batches: Sequence[Batch], numbers: Tensor, settings: SACSettings) -> Metrics:
        """Update with these batches, compiled or not."""
        state = self.update.state
        key = "update", settings.structure, *_signature(state), *(pair for b in batches for pair in _signature(b))
        return self._run(key, functools.partial(_update, self.update, settings), state, batches, numbers)

    @property
    def is_captured(self) -> bool:
        """True if updates are replayed from a CUDA graph; only on such a device it is faster."""
        return self.update.agents[0].device.type == "cuda"

    def act(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Actions as `SACUpdate.actions` gives them; compiled, too, since small operations take long after an update."""
        vectors, running = self.update.state["actor"], self.update.state.get("actor.running")
        key = "actions", *_signature({"observations": observations, "vectors": vectors})
        return self._run(key, self.update.actions, observations, noise, vectors, running)

    def _run(self, key: tuple, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function compiled where agents have that; plainly else, or where torch fails unasked."""
        agents = self.update.agents
        with torch.no_grad():
            if not agents[0].compiles:
                return function(*arguments)
            key = *key, self.update.units, torch.get_num_threads(), torch.get_float32_matmul_precision()
            if key not in self._compiled:
                options = OPTIONS[agents[0].device.type] | {"guard_filter_fn": _no_guards}
                self._compiled[key] = compiled(_call, fullgraph=True, dynamic=False, options=options)
            try:
                return self._compiled[key](function, *arguments)
            except RuntimeError as error:
                if agents[0].compile or not failed_to_compile(error):
                    raise
                logger.warning("Training goes on without torch.compile, in up to twice the time: %s", reason_of(error))
                for agent in agents:
                    agent.compile = False
                return function(*arguments)

    def _replayed(self, batch_size: int, numbers: Tensor, settings: SACSettings) -> Metrics:
        samplers = [agent.sampler for agent in self.update.agents]
        batches = None if all(sampler.is_on_device for sampler in samplers) else self.update.sample(batch_size)
        shapes = [pair for batch in batches or [] for pair in _signature(batch)]
        key = batch_size, settings.structure, self.update.agents[0].compiles, *shapes
        reads = [*self.update.state.values(), *(t for f in self.update.features for t in f.buffers())]
        if batches is None:
            reads += [t for s in samplers if s.rows is not None for t in (*s.rows.rows, s.rows.count)]
        captured = self._graphs.get(key)
        if captured is None or captured.has_moved(reads):
            captured = self._graphs[key] = CapturedUpdate(self, batch_size, batches, numbers, settings, reads)
        return captured(batches, numbers)

    def __reduce__(self) -> tuple:
        return FastUpdate, (self.update,)  # what torch compiled stays here


def _update(
    update: SACUpdate, settings: SACSettings, state: State, batches: Sequence[Batch], numbers: Tensor
) -> Metrics:
    return update.update_(state, update.stacked(batches), numbers, settings)


def _call(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def _no_guards(entries: Sequence[Any]) -> list[bool]:
    return [False] * len(entries)


def _signature(tensors: Mapping[str, Tensor]) -> tuple:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())


class CapturedUpdate:
    """An update that is replayed from a CUDA graph, after its numbers were copied to where the graph reads them.

    Batches are drawn in the graph where replay buffers are on the device; others are copied, too.

    Args:
        reads: tensors whose addresses the graph has; they are held, so that nothing else gets these.
    """

    def __init__(
        self,
        fast: FastUpdate,
        batch_size: int,
        batches: Sequence[Batch] | None,
        numbers: Tensor,
        settings: SACSettings,
        reads: list[Tensor],
    ) -> None:
        update, self._reads, self._numbers = fast.update, reads, numbers.clone()
        self._batches = [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches or []]

        def work() -> Metrics:
            return fast.update_(self._batches or update.sample(batch_size), self._numbers, settings)

        samplers = [] if self._batches else [agent.sampler for agent in update.agents]
        generators = [sampler.rows.generator for sampler in samplers if sampler.rows is not None]
        self._work = cuda_graph(work, self._numbers.device, list(update.state.values()), generators)

    def has_moved(self, reads: Sequence[Tensor]) -> bool:
        """Return whether a tensor is no longer where it was read."""
        return [t.data_ptr() for t in reads] != [t.data_ptr() for t in self._reads]

    def __call__(self, batches: Sequence[Batch] | None, numbers: Tensor) -> Metrics:
        """Update; metrics are overwritten by the next one."""
        mine = [t for batch in self._batches for t in batch.values()]
        torch._foreach_copy_([*mine, self._numbers], [*(t for b in batches or [] for t in b.values()), numbers])
        return self._work()


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
