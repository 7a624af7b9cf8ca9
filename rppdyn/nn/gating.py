"""The arithmetic of the gate, with derivatives of few passes over memory."""

from __future__ import annotations

from collections.abc import Callable
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
    relaxed term and all derivatives. With the samples last, gates are gathered and summed as whole rows. Without an ``index``
    (None) it is known from the shapes.

    Args:
        pointwise: how many leading coordinates of ``v`` gate themselves.
        shapes: ``(components, copies)`` of the gated parts that follow, in order.
    """

    pointwise: int
    shapes: tuple[tuple[int, int], ...]

    @property
    def gates(self) -> int:
        return sum(copies for _, copies in self.shapes)

    def _split(self, x: Float[Tensor, "*stack gated samples"]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """The gates of each part, what gates itself, and the gated parts."""
        gates, own, gated = x.split_with_sizes(
            [self.gates, self.pointwise, x.shape[-2] - self.gates - self.pointwise], -2
        )
        return gates.split_with_sizes([copies for _, copies in self.shapes], -2), own, gated

    def plain(self, index, x, *c):
        v, s = x[..., self.gates :, :], x.sigmoid()
        h = self._repeated(s)
        return v * (torch.addcmul(h, c[0].unsqueeze(-1), s[..., self.gates :, :]) if c else h)

    def with_activation(self, activation: Callable[[Tensor], Tensor], x: Float[Tensor, "*stack gated samples"],
                        *c: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n samples"]:  # fmt: skip
        """The value with another function in the place of swish, in operations that autograd differentiates."""
        v, own = x[..., self.gates :, :], x[..., self.gates : self.gates + self.pointwise, :]
        gated = v * self._repeated(x.sigmoid())
        y = torch.cat([activation(own), gated[..., self.pointwise :, :]], -2)
        return torch.addcmul(y, c[0].unsqueeze(-1), activation(v)) if c else y

    def _repeated(self, s: Float[Tensor, "*stack gated samples"]) -> Float[Tensor, "*stack n samples"]:
        """``s[index]`` by structure: its gradient is a sum, where that of a gather is atomic additions, number by number."""
        gates, own, _ = self._split(s)
        repeated = (gate for gate, (components, _) in zip(gates, self.shapes, strict=True) for _ in range(components))
        return torch.cat([own, *repeated], -2)

    def value(self, index, inputs):
        x, *c = inputs
        s = x.sigmoid()
        h = self._spread(index, s, *c)
        return (x[..., self.gates :, :] * h,), (s, h)

    def _spread(self, index, s, c=None) -> Float[Tensor, "*stack n samples"]:
        h = self._repeated(s) if index is None else s.index_select(-2, index)
        return h if c is None else h.addcmul_(c.unsqueeze(-1), s[..., self.gates :, :])

    def _gather(self, t: Float[Tensor, "*stack gated samples"], c=None) -> Float[Tensor, "*stack gated samples"]:
        """The transpose of :meth:`_spread`, in place: of what stands in the rows of ``v``; those of the gates have no value."""
        sums, _, gated = self._split(t)
        values = gated.split_with_sizes([components * copies for components, copies in self.shapes], -2)
        for part, own, shape in zip(values, sums, self.shapes, strict=True):
            torch.sum(part.view(*t.shape[:-2], *shape, t.shape[-1]), -3, out=own)
        if c is None:
            gated.zero_()
        else:
            c = c.clone()
            c[..., : self.pointwise] += 1  # pointwise coordinates gate themselves
            t[..., self.gates :, :].mul_(c.unsqueeze(-1))
        return t

    def gradient(self, index, inputs, kept, every, again):
        x, *c, g = inputs
        s, h = kept
        n = self.gates
        back = torch.empty_like(s)
        t = torch.mul(g, x[..., n:, :], out=back[..., n:, :])  # gradient of h
        grad_c = [(t * s[..., n:, :]).sum(-1)] if c and every else []
        self._gather(back, *c)
        # in one place where that is possible: new memory costs several times as much as memory in the cache
        grad_x = torch.ops.aten.sigmoid_backward.grad_input(back, s, grad_input=torch.empty_like(s) if again else back)
        grad_x[..., n:, :].addcmul_(g, h)
        return (grad_x, *grad_c), (back,) if again else ()

    def second(self, index, inputs, kept):
        x, *c, g, u = inputs
        s, h, back = kept
        n = self.gates
        v, u_v, s_v = x[..., n:, :], u[..., n:, :], s[..., n:, :]
        ds = torch.ops.aten.sigmoid_backward(u, s)
        dh = self._spread(index, ds, *c)
        grad_g = torch.mul(u_v, h).addcmul_(v, dh)
        t = torch.empty_like(s)
        gu = torch.mul(g, u_v, out=t[..., n:, :])  # gradient of h
        grad_c = [(gu * s_v).addcmul_(g * v, ds[..., n:, :]).sum(-1)] if c else []
        grad_x = torch.ops.aten.sigmoid_backward(self._gather(t, *c), s)
        ds.mul_(back)
        grad_x.add_(ds).addcmul_(ds, s, value=-2)  # the second derivative of the sigmoid is its first times 1 - 2 s
        grad_x[..., n:, :].addcmul_(g, dh)
        return grad_x, *grad_c, grad_g
