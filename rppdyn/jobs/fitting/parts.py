"""Members of a stack whose gradients several processes take side by side.

Two threads of one process share out every product of ten members, and wait for each other after each; two processes with five
members each wait once in a step. Parameters and gradients are in files that all of them map, so that no more than batches and
errors is sent.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn import Stack
from rppdyn.runs.workers import Worker

__all__ = ["Backward", "Parts"]

VALUES, GRADIENTS = "values", "gradients"  # files

Backward = Callable[..., Float[Tensor, " members"]]
"""Of a stack: it takes tensors ``(members, ...)``, leaves gradients with the parameters and returns each member's error."""


class Parts:
    """A stack's members, some of them with each worker, where their gradients are taken.

    The stack's parameters move to a file that the workers map: what is done to them in place is seen there.

    Args:
        build: of a stack's part, the function that is called there with that part of every argument; both are sent to the
            workers, so it is a function of a module or an object of a class of one.
    """

    def __init__(self, stack: Stack, workers: Sequence[Worker], build: Callable[[Stack], Backward]):
        self.workers, self.parameters = workers, list(stack.stacked)
        self.slices = _slices(stack.members, len(workers))
        shapes, dtype = [p.shape for p in self.parameters], self.parameters[0].dtype
        with tempfile.TemporaryDirectory(prefix="rppdyn-parts-", ignore_cleanup_errors=True) as folder:
            for name in (VALUES, GRADIENTS):  # in full: a full disk is found out here, and not by a signal
                Path(folder, name).write_bytes(bytes(sum(p.nbytes for p in self.parameters)))
            values, self.gradients = _shared(folder, shapes, dtype)
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.data = value.copy_(parameter.detach())
            for worker, members in zip(workers, self.slices, strict=True):
                worker.ask(_take, stack.part(members), build, stack.members, members, folder)
            for worker in workers:
                worker.answer()  # from here on the files need no names

    def backward(self, *values: Float[Tensor, "members ..."]) -> Float[Tensor, " members"]:
        """Gradients of all members, left with the stack's parameters; each member's error."""
        for worker, members in zip(self.workers, self.slices, strict=True):
            worker.ask(_backward, [value[members].clone() for value in values])  # a view is sent with all that it is of
        errors = torch.cat([worker.answer() for worker in self.workers])
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return errors


def _slices(members: int, parts: int) -> list[slice]:
    """As equal as they can be."""
    ends = [members * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def _shared(folder: str, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Values and gradients of all members."""
    values, gradients = (_mapped(Path(folder, name), shapes, dtype) for name in (VALUES, GRADIENTS))
    return values, gradients


def _mapped(path: Path, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of these shapes whose memory is a file's."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.from_file(str(path), shared=True, size=sum(sizes), dtype=dtype)
    return [part.view(*shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


# -- in the workers ----------------------------------------------------------------------------------------------------


class _Own:
    """The part that a worker has."""

    backward: Backward
    parameters: list[nn.Parameter]
    gradients: list[Tensor]


def _take(part: Stack, build: Callable[[Stack], Backward], of: int, members: slice, folder: str) -> None:
    values, gradients = _shared(folder, [(of, *p.shape[1:]) for p in part.stacked], part.stacked[0].dtype)
    for parameter, value in zip(part.stacked, values, strict=True):
        parameter.data = value[members]
    _Own.parameters, _Own.gradients = list(part.stacked), [gradient[members] for gradient in gradients]
    _Own.backward = staticmethod(build(part))


def _backward(values: list[Tensor]) -> Tensor:
    for parameter in _Own.parameters:
        parameter.grad = None
    errors = _Own.backward(*values)
    for parameter, gradient in zip(_Own.parameters, _Own.gradients, strict=True):
        gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
    return errors
