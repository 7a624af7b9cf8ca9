"""Work on tensors that stay where they are, done again and again: on a CUDA device as a graph, elsewhere as it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rppdyn.nn.compiling import failed_to_compile

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
