"""The arithmetic of the gate, with derivatives of few passes over memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.nn.derivatives import Arithmetic

__all__ = ["Gating"]


@dataclass(frozen=True)
class Gating(Arithmetic):
    r"""``y = v * (sigmoid(x)[index] + c sigmoid(v))`` with ``x = (gates, v)``, the samples last.

    ``index`` is, for each coordinate of ``v``, the coordinate of ``x`` that gates it; the parameter ``c``, where there is one,
    is the relaxed swish per channel.

    Written as :math:`\sigma(g)\,v + c\,\mathrm{swish}(v)` with autograd's own backward this is a third of a training step at
    width 384: a dozen passes over features that do not fit in the processor's cache. One sigmoid serves gates, swish, the
    relaxed term and all derivatives. With the samples last, gates are gathered and summed as whole rows.

    Args:
        pointwise: how many leading coordinates of ``v`` gate themselves.
        shapes: ``(components, copies)`` of the gated parts that follow, in order.
    """

    pointwise: int
    shapes: tuple[tuple[int, int], ...]

    @property
    def gates(self) -> int:
        return sum(copies for _, copies in self.shapes)

    def plain(self, index, x, *c):
        v, s = x[..., self.gates :, :], x.sigmoid()
        return v * self._spread(index, s, *c)

    def value(self, index, inputs):
        x, *c = inputs
        s = x.sigmoid()
        h = self._spread(index, s, *c)
        return (x[..., self.gates :, :] * h,), (s, h)

    def _spread(self, index, s, c=None) -> Float[Tensor, "*stack n samples"]:
        h = s.index_select(-2, index)
        return h if c is None else torch.addcmul(h, c.unsqueeze(-1), s[..., self.gates :, :])

    def _gather(self, t, out, c=None) -> Float[Tensor, "*stack gated samples"]:
        """The transpose of :meth:`_spread`."""
        n = self.gates
        values = t.split_with_sizes([self.pointwise, *(a * b for a, b in self.shapes)], -2)[1:]
        gates = out[..., :n, :].split_with_sizes([b for _, b in self.shapes], -2)
        for part, gate, shape in zip(values, gates, self.shapes, strict=True):
            torch.sum(part.unflatten(-2, shape), -3, out=gate)
        own = out[..., n:, :]
        if c is None:
            own[..., : self.pointwise, :] = t[..., : self.pointwise, :]
            own[..., self.pointwise :, :] = 0
        else:
            torch.mul(t, torch.cat([1 + c[..., : self.pointwise], c[..., self.pointwise :]], -1).unsqueeze(-1), out=own)
        return out

    def gradient(self, index, inputs, kept, every):
        x, *c, g = inputs
        s, h = kept
        n = self.gates
        g = g.contiguous()
        t = g * x[..., n:, :]
        back = self._gather(t, torch.empty_like(s), *c)
        grad_x = torch.ops.aten.sigmoid_backward(back, s)
        grad_x[..., n:, :].addcmul_(g, h)
        grad_c = [(t * s[..., n:, :]).sum(-1)] if c and every else []
        return (grad_x, *grad_c), (back,)

    def second(self, index, inputs, kept):
        x, *c, g, u = inputs
        s, h, back = kept
        n = self.gates
        v, u_v, s_v = x[..., n:, :], u[..., n:, :], s[..., n:, :]
        ds = torch.ops.aten.sigmoid_backward(u, s)
        dh = self._spread(index, ds, *c)
        gu = g * u_v
        grad_g = torch.addcmul(u_v * h, v, dh)
        grad_x = torch.ops.aten.sigmoid_backward(self._gather(gu, torch.empty_like(s), *c), s)
        grad_x.addcmul_(ds.mul_(back), 1 - 2 * s)
        grad_x[..., n:, :].addcmul_(g, dh)
        grad_c = []
        if c:
            ds = torch.ops.aten.sigmoid_backward(u_v, s_v)
            grad_c = [(gu * s_v + g * v * ds).sum(-1)]
        return grad_x, *grad_c, grad_g
