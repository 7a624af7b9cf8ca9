"""Fast gradient updates and actions: torch.compile on CPUs and GPUs, CUDA graphs on GPUs, plain calls elsewhere."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from torch import Tensor

from rppdyn.nn._compiling import can_compile, compiled, failed_to_compile, failure_reason

if TYPE_CHECKING:
    from rppdyn.agents._sac import RPPSAC
    from rppdyn.agents._update import Batch, Metrics, SACSettings, SACUpdate, State

logger = logging.getLogger(__name__)

T = TypeVar("T")

PRECISIONS = ("highest", "high", "medium")
MAX_ERROR_RATIO = 4.0
"""Largest error of a matrix product at an accepted precision, as a multiple of the error at "highest"."""

FASTEST_PRECISION = "medium"
"""Torch's fastest precision: oneDNN in place of MKL on some processors, bfloat16 or TensorFloat32 on others. Where MKL is as
fast as oneDNN, uncompiled updates of one seed are up to a tenth slower with it."""


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
    """The precision of gradient updates: `name` if given, else the fastest that costs no accuracy on this device.

    None keeps the process's precision, which its user has changed if it is not torch's default "highest". The choice depends on
    errors and never on times, so that results do not depend on how busy a machine is.
    """
    if name is None and torch.get_float32_matmul_precision() == "highest" and _is_accurate(FASTEST_PRECISION, device):
        return FASTEST_PRECISION
    return name


def check_matmul_precision(name: str | None, device: torch.device) -> None:
    """Refuse a precision whose matrix products have larger errors on this device.

    On some processors "high" and "medium" select another library for the same arithmetic, as accurate as "highest" and up to
    twice as fast; on other processors, and on GPUs, they select bfloat16 or TensorFloat32.

    Raises:
        ValueError: no such precision; a product's error is more than `MAX_ERROR_RATIO` times that at "highest".
    """
    if name is None:
        return
    if name not in PRECISIONS:
        raise ValueError(f"matmul_precision={name!r} is not one of {', '.join(PRECISIONS)}")
    if not _is_accurate(name, device):
        error, error_at_highest = product_error(name, device), product_error("highest", device)
        raise ValueError(
            f"matmul_precision={name}: on this {device.type} products have a relative error of {error:.0e} then, and of "
            f"{error_at_highest:.0e} at highest; leave it out"
        )


def _is_accurate(name: str, device: torch.device) -> bool:
    return product_error(name, device) <= MAX_ERROR_RATIO * product_error("highest", device)


@functools.cache
def product_error(name: str, device: torch.device) -> float:
    """The relative error of a product of two normal (256, 256) matrices, compared with double precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    with matmul_precision(name):
        product = (a.float().to(device) @ b.float().to(device)).cpu().double()
    truth = a.float().double() @ b.float().double()
    return float((product - truth).norm() / truth.norm())


COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
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
"""Fewest updates for which compiling pays without a cache; it broke even at 3,300 on Walker2d-v5, at 4,200 on Reacher-v5."""


def worth_compiling(agent: RPPSAC) -> bool:
    """Check whether the training that an agent has begun is long enough to compile, and torch can compile it.

    The length is that of the whole training, so that a resumed one makes the same choice and rounds as before.
    """
    per_rollout = agent.train_freq.frequency * agent.n_envs
    steps = per_rollout if agent.gradient_steps < 0 else agent.gradient_steps
    updates = agent._total_timesteps * steps / max(per_rollout, 1)  # rollouts refuse a train_freq of 0 later
    is_long = agent.train_freq.unit == TrainFrequencyUnit.STEP and updates >= MIN_UPDATES_TO_COMPILE
    return is_long and agent.device.type in COMPILE_OPTIONS and can_compile(agent.device)


class FastUpdate:
    """The steps and actions of a `SACUpdate`, each compiled as one function, or called plainly.

    It compiles at the first call, and again for batches of another shape or settings of another structure. torch's guards are
    switched off, since they check all modules of a network at each call, which is slow. In their place the key of a compiled
    function holds everything that its code depends on and that may change.

    Args:
        update: the update; its agents' settings and device decide whether it is compiled.
    """

    def __init__(self, update: SACUpdate) -> None:
        self.update = update
        self._compiled: dict[Any, Any] = {}
        self._graphs: dict[Any, CapturedUpdate] = {}

    def step(self, batch_size: int, settings: Sequence[SACSettings]) -> Metrics:
        """Draw batches and update, with settings for each agent; the structures of all settings are equal."""
        update, like = self.update, self.update.state["actor"]
        numbers = torch.tensor([s.numbers for s in settings], dtype=like.dtype).T.unsqueeze(-1)
        if self.is_captured:
            return self._replay(batch_size, numbers.to(like.device, non_blocking=True), settings[0])
        return self.update_(update.sample(batch_size), numbers, settings[0])

    def update_(self, batches: Sequence[Batch], numbers: Tensor, settings: SACSettings) -> Metrics:
        """Update with these batches, compiled or not."""
        state = self.update.state
        key = "update", settings.structure, *_signature(state), *(pair for b in batches for pair in _signature(b))
        return self._run(key, functools.partial(_update, self.update, settings), state, batches, numbers)

    @property
    def is_captured(self) -> bool:
        """True if updates are replayed from a CUDA graph: on all CUDA devices."""
        return self.update.agents[0].device.type == "cuda"

    def act(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Actions as of `SACUpdate.actions`, compiled as updates are."""
        vectors, running = self.update.state["actor"], self.update.state.get("actor.running")
        key = "actions", *_signature({"observations": observations, "vectors": vectors})
        return self._run(key, self.update.actions, observations, noise, vectors, running)

    def _run(self, key: tuple, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, compiled if the agents' training is. Without `compile=True`, a failure to compile is a warning."""
        agents = self.update.agents
        with torch.no_grad():
            if not agents[0].compiles:
                return function(*arguments)
            key = *key, torch.get_num_threads(), torch.get_float32_matmul_precision()
            if key not in self._compiled:
                options = COMPILE_OPTIONS[agents[0].device.type] | {"guard_filter_fn": _no_guards}
                self._compiled[key] = compiled(_call, fullgraph=True, dynamic=False, options=options)
            try:
                return self._compiled[key](function, *arguments)
            except RuntimeError as error:
                if agents[0].compile or not failed_to_compile(error):
                    raise
                logger.warning(
                    "Training goes on without torch.compile, in up to twice the time: %s", failure_reason(error)
                )
                for agent in agents:
                    agent.compile = False
                return function(*arguments)

    def _replay(self, batch_size: int, numbers: Tensor, settings: SACSettings) -> Metrics:
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
        return FastUpdate, (self.update,)  # without compiled functions and graphs


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
    """An update that is replayed from a CUDA graph, after its inputs were copied to where the graph reads them.

    The graph draws batches itself from replay buffers on the device; batches from others are copied as inputs.

    Args:
        reads: tensors whose addresses the graph has; references are kept, so that their memory is not reused.
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
        """Check whether any tensor has another address than in the graph."""
        return [t.data_ptr() for t in reads] != [t.data_ptr() for t in self._reads]

    def __call__(self, batches: Sequence[Batch] | None, numbers: Tensor) -> Metrics:
        """Update; the next call overwrites the metrics."""
        inputs = [t for batch in self._batches for t in batch.values()]
        torch._foreach_copy_([*inputs, self._numbers], [*(t for b in batches or [] for t in b.values()), numbers])
        return self._work()


NUM_WARM_UP_RUNS = 2  # runs before a capture, in which libraries make handles and workspaces and fill lazy tables

Work = Callable[[], Any]


def cuda_graph(
    work: Work, device: torch.device, changes: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> Work:
    """Capture work as a CUDA graph, whose replay launches all kernels at once.

    A graph has the addresses of the tensors that it reads and writes: if one moves, the caller makes a new graph. The next
    replay overwrites the tensors that it returns.

    Args:
        work: reads and writes tensors in place, looks at no value of theirs, draws from `generators` only.
        changes: all the tensors that it writes. Their values, and the generators' states, are restored after the capture.
    Raises:
        RuntimeError: torch can't compile a part of the work.
    """
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
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_UP_RUNS):
                work()
    finally:
        current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Any:
        graph.replay()
        return result

    return replay
