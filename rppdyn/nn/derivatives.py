"""Functions whose value, first and second derivative are written out, in a form that autograd and ``torch.func`` take apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Arithmetic", "PullBack", "evaluate", "evaluate_vjp", "plain_vjp"]

Tensors = tuple[Tensor, ...]
PullBack = Callable[[Tensor], Tensor]


class Arithmetic(ABC):
    r"""How a function ``y(x, *parameters)`` of features and parameters is computed, and differentiated twice.

    Autograd saves and copies at every small operation, and more at every order; a layer of a hundred small operations costs
    several times less where its derivatives are written out. A Hamiltonian network needs two of them: its vector field is a
    gradient, and training differentiates that.

    All tensors have the same leading axes, none or those of stacked networks. ``index`` is a buffer that they share. Next to
    its results each method returns what it keeps for the next order; the next orders are given all that was kept.
    """

    @abstractmethod
    def plain(self, index: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        """The value, in operations that autograd differentiates; for what the methods below do not cover."""

    @abstractmethod
    def value(self, index: Tensor, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """``(y,)`` at ``inputs = (x, *parameters)``, and what is kept."""

    @abstractmethod
    def gradient(
        self, index: Tensor, inputs: Tensors, kept: Tensors, every: bool, again: bool
    ) -> tuple[Tensors, Tensors]:
        """The gradient of ``<g, y>`` by ``x`` and, with ``every``, by the parameters, at ``inputs = (x, *parameters, g)``.

        Nothing need be kept where there is no next order (``again`` is False).
        """

    @abstractmethod
    def second(self, index: Tensor, inputs: Tensors, kept: Tensors) -> Tensors:
        """The gradient of ``<u, d<g, y>/dx>`` by ``x``, the parameters and ``g``, at ``inputs = (x, *parameters, g, u)``."""


def evaluate(arithmetic: Arithmetic, index: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
    """``y(x, *parameters)``, differentiable to any order in any way.

    What is not written out is left to autograd: derivatives from the third on, second ones by parameters twice, forward mode.
    ``torch.compile``, which fuses small operations, and devices other than the CPU are given the plain formula throughout.
    """
    if _left_to_autograd(x):
        return arithmetic.plain(index, x, *parameters)
    return _Derivative.apply(arithmetic, 0, True, True, index, 1 + len(parameters), x, *parameters)[0]


def evaluate_vjp(arithmetic: Arithmetic, index: Tensor, x: Tensor, *parameters: Tensor) -> tuple[Tensor, PullBack]:
    """The value, and the function from a cotangent of it to that of ``x``: an ordinary function, as differentiable itself.

    Autograd gets the same from :func:`evaluate` by a backward pass, in which it forms the parameters' gradients too.
    """
    if _left_to_autograd(x):
        return plain_vjp(lambda x: arithmetic.plain(index, x, *parameters), x)
    n = 1 + len(parameters)
    y, *kept = _Derivative.apply(arithmetic, 0, True, True, index, n, x, *parameters)
    return y, lambda g: _Derivative.apply(arithmetic, 1, False, True, index, n + 1, x, *parameters, g, *kept)[0]


def plain_vjp(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, PullBack]:
    """The same of any function, by autograd."""
    y, pull_back = torch.func.vjp(f, x)
    return y, lambda g: pull_back(g)[0]


def _left_to_autograd(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or x.device.type != "cpu"


def _plain(arithmetic: Arithmetic, order: int, index: Tensor, *inputs: Tensor) -> Tensors:
    """The plain formula, and its derivatives of each order: by all inputs, of the first of the order before."""
    if order == 0:
        return (arithmetic.plain(index, *inputs),)
    *inputs, cotangent = inputs
    return torch.func.vjp(lambda *xs: _plain(arithmetic, order - 1, index, *xs)[0], *inputs)[1](cotangent)


class _Derivative(torch.autograd.Function):
    """Order 0 is the value; each further order is the gradient of the first result of the one before, times a cotangent.

    Inputs are ``(x, *parameters)`` and one cotangent for each order; after them comes what the orders before kept.
    """

    @staticmethod
    def forward(*arguments):  # with named ones ``apply`` would spend 50 us on matching them
        arithmetic, order, every, again, index, count, *tensors = arguments
        inputs, kept = tensors[:count], tensors[count:]
        if order == 0:
            results, keep = arithmetic.value(index, inputs)
        elif order == 1:
            results, keep = arithmetic.gradient(index, inputs, kept, every, again)
        else:
            results, keep = arithmetic.second(index, inputs, kept), ()
        return *results, *keep

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.arithmetic, ctx.order, every, _, index, ctx.count, *tensors = inputs
        results = 1 if ctx.order == 0 or not every else ctx.count - 1
        ctx.mark_non_differentiable(*output[results:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index, *tensors, *output[results:])
        ctx.save_for_forward(index, *tensors)
        ctx.results, ctx.tensors, ctx.kept = results, len(tensors), len(output) - results

    @staticmethod
    def backward(ctx, *cotangents):
        index, *tensors = ctx.saved_tensors
        inputs, kept = tensors[: ctx.count], tensors[ctx.count :]
        first, *others = cotangents[: ctx.results]
        nothing = [None] * (6 + ctx.tensors)
        if all(c is None for c in cotangents):
            return tuple(nothing)
        if ctx.order < 2 and first is not None and all(c is None for c in others):
            every = ctx.order == 1 or any(ctx.needs_input_grad[7 : 6 + ctx.count])
            results = _Derivative.apply(
                ctx.arithmetic,
                ctx.order + 1,
                every,
                torch.is_grad_enabled(),
                index,
                ctx.count + 1,
                *inputs,
                first,
                *kept,
            )
            nothing[6 : 6 + ctx.count] = results[: ctx.count] if every else [results[0], *[None] * (ctx.count - 1)]
            return tuple(nothing)
        plain = lambda *xs: _plain(ctx.arithmetic, ctx.order, index, *xs)[: ctx.results]  # noqa: E731
        outputs, pull_back = torch.func.vjp(plain, *inputs)
        filled = tuple(torch.zeros_like(y) if c is None else c for c, y in zip(cotangents, outputs, strict=False))
        nothing[6 : 6 + ctx.count] = pull_back(filled)
        return tuple(nothing)

    @staticmethod
    def jvp(ctx, *tangents):
        index, *tensors = ctx.saved_tensors
        inputs = tuple(x.contiguous() for x in tensors[: ctx.count])  # dual numbers refuse expanded tensors
        given = zip(inputs, tangents[6:], strict=False)
        tangents = tuple(torch.zeros_like(x) if t is None else t.contiguous() for x, t in given)
        plain = lambda *xs: _plain(ctx.arithmetic, ctx.order, index, *xs)[: ctx.results]  # noqa: E731
        return *torch.func.jvp(plain, inputs, tangents)[1], *[None] * ctx.kept

    @staticmethod
    def vmap(info, in_dims, arithmetic, order, every, again, index, count, *tensors):
        dims = in_dims[6:]
        if in_dims[4] is not None:  # networks with indices of their own
            plain = lambda i, *xs: _plain(arithmetic, order, i, *xs)[: None if every else 1]  # noqa: E731
            out = torch.vmap(plain, in_dims=(in_dims[4], *dims[:count]))(index, *tensors[:count])
        else:
            stacked = [
                t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                for t, d in zip(tensors, dims, strict=True)
            ]
            out = _Derivative.apply(arithmetic, order, every, again, index, count, *stacked)
        return out, (0,) * len(out)
