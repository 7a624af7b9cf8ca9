"""Functions whose value, first and second derivative are written out, in a form that autograd and ``torch.func`` take apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
PullBack = Callable[[Tensor], Tensor]


class Arithmetic(ABC):
    r"""Rules to compute a function ``y(x, *parameters)`` of features and parameters, and to differentiate it twice.

    Autograd saves and copies at every small operation, and more at every order; a layer of a hundred small operations costs
    several times less where its derivatives are written out. A Hamiltonian network needs two of them: its vector field is a
    gradient, and training differentiates that.

    All tensors have the same leading axes, none or those of stacked networks. ``index`` is a buffer that they share. Next to
    its results each method returns the residuals that the next order needs; later orders receive those of all before.
    """

    @abstractmethod
    def plain(self, index: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        """The value, in operations that autograd differentiates; for what the methods below do not cover."""

    @abstractmethod
    def value(self, index: Tensor, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """``(y,)`` at ``inputs = (x, *parameters)``, and residuals."""

    @abstractmethod
    def gradient(
        self, index: Tensor, inputs: Tensors, residuals: Tensors, every: bool, again: bool
    ) -> tuple[Tensors, Tensors]:
        """The gradient of ``<g, y>`` by ``x`` and, with ``every``, by the parameters, at ``inputs = (x, *parameters, g)``.

        No residuals are needed where there is no next order (``again`` is False).
        """

    @abstractmethod
    def second(self, index: Tensor, inputs: Tensors, residuals: Tensors) -> Tensors:
        """The gradient of ``<u, d<g, y>/dx>`` by ``x``, the parameters and ``g``, at ``inputs = (x, *parameters, g, u)``."""


def evaluate(arithmetic: Arithmetic, index: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
    """``y(x, *parameters)``, differentiable to any order in any way.

    What is not written out is left to autograd: derivatives from the third on, second ones by parameters twice, forward mode.
    ``torch.compile``, which fuses small operations, and devices other than the CPU are given the plain formula throughout; so
    is ``torch.jit.trace``, which would record the writes into views of memory that the other forms save.
    """
    if _left_to_autograd(x):
        return arithmetic.plain(index, x, *parameters)
    return _Derivative.apply(_Task(arithmetic, 0, 1 + len(parameters)), index, x, *parameters)[0]


def evaluate_vjp(arithmetic: Arithmetic, index: Tensor, x: Tensor, *parameters: Tensor) -> tuple[Tensor, PullBack]:
    """The value, and the function from a cotangent of it to that of ``x``: an ordinary function, as differentiable itself.

    Autograd gets the same from :func:`evaluate` by a backward pass, in which it forms the parameters' gradients too.
    """
    if _left_to_autograd(x):
        return plain_vjp(lambda x: arithmetic.plain(index, x, *parameters), x)
    n = 1 + len(parameters)
    y, *residuals = _Derivative.apply(_Task(arithmetic, 0, n), index, x, *parameters)
    gradient = _Task(arithmetic, 1, n + 1, every=False)
    return y, lambda g: _Derivative.apply(gradient, index, x, *parameters, g, *residuals)[0]


def plain_vjp(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, PullBack]:
    """The same of any function, by autograd."""
    y, pull_back = torch.func.vjp(f, x)[:2]
    return y, lambda g: pull_back(g)[0]


def _left_to_autograd(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or x.device.type != "cpu"


class _Task(NamedTuple):
    """A computation from ``tensors``, which are ``num_inputs`` and then the residuals of the orders before.

    Order 0 is the value at ``(x, *parameters)``; each further order has a cotangent more and is the gradient of the first
    result of the order before, times that cotangent, by the inputs of that order: by all of them with ``every``, or by ``x``.
    """

    arithmetic: Arithmetic
    order: int
    num_inputs: int
    every: bool = True
    again: bool = True

    @property
    def num_results(self) -> int:
        return self.num_inputs - 1 if self.order and self.every else 1

    def compute(self, index: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        """The results, and the residuals."""
        inputs, residuals = tuple(tensors[: self.num_inputs]), tuple(tensors[self.num_inputs :])
        if self.order == 0:
            return self.arithmetic.value(index, inputs)
        if self.order == 1:
            return self.arithmetic.gradient(index, inputs, residuals, self.every, self.again)
        return self.arithmetic.second(index, inputs, residuals), ()

    def plain(self, index: Tensor, *inputs: Tensor) -> Tensors:
        """The results by autograd."""
        if self.order == 0:
            return (self.arithmetic.plain(index, *inputs),)
        *arguments, cotangent = inputs
        before = self._replace(order=self.order - 1, num_inputs=self.num_inputs - 1)
        gradients = torch.func.vjp(lambda *xs: before.plain(index, *xs)[0], *arguments)[1](cotangent)
        return gradients[: self.num_results]


class _Derivative(torch.autograd.Function):
    @staticmethod
    def forward(*arguments):  # with named ones ``apply`` would spend 50 us on matching them
        task, index, *tensors = arguments
        results, residuals = task.compute(index, tensors)
        return *results, *residuals

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.task, index, *tensors = inputs
        results = ctx.task.num_results
        ctx.mark_non_differentiable(*output[results:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index, *tensors, *output[results:])
        ctx.save_for_forward(index, *tensors)
        ctx.num_tensors, ctx.num_kept = len(tensors), len(output) - results

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        task, (index, *tensors) = ctx.task, ctx.saved_tensors
        inputs, residuals = tensors[: task.num_inputs], tensors[task.num_inputs :]
        first, *others = cotangents[: task.num_results]
        if all(c is None for c in cotangents):
            gradients: Tensors = ()
        elif task.order < 2 and all(c is None for c in others):
            every = task.order > 0 or any(ctx.needs_input_grad[3 : 2 + task.num_inputs])
            again = torch.is_grad_enabled()
            following = _Task(task.arithmetic, task.order + 1, task.num_inputs + 1, every, again)
            arguments = *inputs, first, *residuals
            results = (
                _Derivative.apply(following, index, *arguments) if again else following.compute(index, arguments)[0]
            )
            gradients = results[: following.num_results]
        else:
            outputs, pull_back = torch.func.vjp(lambda *xs: task.plain(index, *xs), *inputs)[:2]
            gradients = pull_back(tuple(_or_zero(c, y) for c, y in zip(cotangents, outputs, strict=False)))
        return None, None, *gradients, *[None] * (ctx.num_tensors - len(gradients))

    @staticmethod
    def jvp(ctx, *tangents):
        task, (index, *tensors) = ctx.task, ctx.saved_tensors
        inputs = tuple(x.contiguous() for x in tensors[: task.num_inputs])  # dual numbers refuse expanded tensors
        tangents = tuple(_or_zero(t, x).contiguous() for t, x in zip(tangents[2:], inputs, strict=False))
        return *torch.func.jvp(lambda *xs: task.plain(index, *xs), inputs, tangents)[1], *[None] * ctx.num_kept

    @staticmethod
    def vmap(info, in_dims, task, index, *tensors):
        dims = in_dims[2:]
        if in_dims[1] is not None:  # networks with indices of their own
            out = torch.vmap(task.plain, in_dims=(in_dims[1], *dims[: task.num_inputs]))(
                index, *tensors[: task.num_inputs]
            )
        else:
            stacked = [
                t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                for t, d in zip(tensors, dims, strict=True)
            ]
            out = _Derivative.apply(task, index, *stacked)
        return out, (0,) * len(out)


def _or_zero(x: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if x is None else x
