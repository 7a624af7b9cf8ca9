"""The arithmetic of the gate, with a backward pass of few passes over memory."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["gate_product"]

Shapes = tuple[tuple[int, int], ...]


def gate_product(
    x: Float[Tensor, "gated samples"],
    c: Float[Tensor, " n"] | None,
    index: Int[Tensor, " n"],
    pointwise: int,
    shapes: Shapes,
) -> Float[Tensor, "n samples"]:
    r"""``v * (sigmoid(x)[index] + c sigmoid(v))`` with ``v`` the first ``n`` coordinates of ``x``, the samples last.

    Written as :math:`\sigma(g)\,v + c\,\mathrm{swish}(v)` with autograd's own backward this is a third of a training step at
    width 384: a dozen passes over features that do not fit in the processor's cache. One sigmoid serves gates, swish and the
    relaxed term, and the backward pass below makes seven. With the samples last, gates are gathered and summed as whole
    rows. ``torch.compile`` fuses the plain formula and is given that.

    Args:
        x: values, then one gate for each copy of each gated part.
        c: relaxed swish per channel, or None.
        index: of each coordinate, the coordinate of ``x`` that gates it.
        pointwise: how many leading coordinates gate themselves.
        shapes: ``(components, copies)`` of the gated parts that follow, in order.
    """
    if torch.compiler.is_compiling():
        return _gate(x, c, index)[0]
    return _GateProduct.apply(x, c, index, pointwise, shapes)[0]


def _gate(x: Tensor, c: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = index.shape[0]
    s = x.sigmoid()
    h = s.index_select(0, index)
    h = h if c is None else torch.addcmul(h, c.unsqueeze(1), s[:n])
    return x[:n] * h, s, h


class _GateProduct(torch.autograd.Function):
    @staticmethod
    def forward(x, c, index, pointwise, shapes):
        return _gate(x, c, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, c, index, ctx.pointwise, ctx.shapes = inputs
        _, s, h = output
        ctx.mark_non_differentiable(s, h)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, c, index, s, h)
        ctx.save_for_forward(x, c, index, s, h)

    @staticmethod
    def backward(ctx, grad, _s, _h):
        if grad is None:
            return None, None, None, None, None
        x, c, index, s, h = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, or this runs under vmap
            inputs = (x,) if c is None else (x, c)
            gradients = torch.func.vjp(lambda x, c=None: _gate(x, c, index)[0], *inputs)[1](grad)
            return *gradients, *[None] * (5 - len(gradients))
        n, first = index.shape[0], ctx.pointwise
        grad = grad.contiguous()  # from a layer with the samples first it comes strided
        grad_x = torch.empty_like(x)  # all in one place: new memory costs several times as much as memory in the cache
        t = torch.mul(grad, x[:n], out=grad_x[:n])  # gradient of h
        values = t[first:].split([components * copies for components, copies in ctx.shapes])
        gates = grad_x[n:].split([copies for _, copies in ctx.shapes])
        for part, gate, shape in zip(values, gates, ctx.shapes, strict=True):
            torch.sum(part.unflatten(0, shape), 0, out=gate)
        grad_c = None
        if c is None:
            t[first:].zero_()  # a pointwise coordinate is its own gate
        else:
            grad_c = (t * s[:n]).sum(1)
            t.mul_(torch.cat([1 + c[:first], c[first:]]).unsqueeze(1))
        torch.ops.aten.sigmoid_backward.grad_input(grad_x, s, grad_input=grad_x)
        t.addcmul_(grad, h)
        return grad_x, grad_c, None, None, None

    @staticmethod
    def jvp(ctx, tx, tc, *_):
        x, c, index, s, h = ctx.saved_tensors
        n = index.shape[0]
        ds = torch.zeros_like(s) if tx is None else tx * s * (1 - s)
        dh = ds.index_select(0, index)
        dh = dh if c is None else dh + c.unsqueeze(1) * ds[:n]
        dh = dh if tc is None else dh + tc.unsqueeze(1) * s[:n]
        out = x[:n] * dh
        return (out if tx is None else out + tx[:n] * h), None, None

    @staticmethod
    def vmap(info, in_dims, x, c, index, pointwise, shapes):
        out = torch.vmap(_gate, in_dims=in_dims[:3])(x, c, index)
        return out, (0, 0, 0)
