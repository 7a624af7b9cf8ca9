"""The rotation nearest to a matrix, differentiably: what a learned step makes of a rotation is only nearly one."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["nearest_rotation"]

SMALLEST = 1e-6
"""Sums of singular values count as at least this in the derivative: a matrix near a reflection has no nearest rotation."""


def nearest_rotation(M: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""The rotation that is nearest to ``M`` in Frobenius norm, :math:`U\,\mathrm{diag}(1, \ldots, 1, \det UV^T)\,V^T`.

    With the singular value decomposition :math:`M = U S V^T`. It commutes with rotations and reflections on either side,
    :math:`\Pi(gMh) = g\,\Pi(M)\,h` for orthogonal ``g, h`` with :math:`\det g \det h = 1`, so an equivariant step that
    is projected stays equivariant (Gram-Schmidt would not).

    The derivative is that of the polar factor, :math:`U\,\frac{U^T dM\,V - (\ldots)^T}{s_i + s_j}\,V^T`, which exists where
    that of ``U`` and ``V`` does not: at rotations all singular values are equal.

    There is no second derivative: backwards it is refused, forwards it is nan. Of a matrix with an entry that is no finite
    number the rotation is nan, and so is its derivative; the others of a batch keep theirs.

    Source: Kabsch 1976; the derivative by differentiating :math:`M = QP`, ``P`` symmetric.
    """
    return _NearestRotation.apply(M)[0]


class _NearestRotation(torch.autograd.Function):
    """The rotation, and the decomposition ``U S V^T`` with its sign that the derivatives are made of."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M):
        finite = M.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        U, S, Vh = torch.linalg.svd(torch.where(finite, M, torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)))
        sign = torch.cat([torch.ones_like(S[..., 1:]), torch.linalg.det(U @ Vh).sign().unsqueeze(-1)], -1)
        U = torch.where(finite, U * sign.unsqueeze(-2), torch.nan)
        return U @ Vh, U, S * sign, Vh

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, *decomposition = output
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*decomposition)
        ctx.save_for_forward(*decomposition)

    @staticmethod
    def backward(ctx, gradient, *of_decomposition):
        if any(g is not None for g in of_decomposition):
            raise NotImplementedError("nearest_rotation has no second derivative: differentiate it once")
        return None if gradient is None else _polar_derivative(*ctx.saved_tensors, gradient)

    @staticmethod
    def jvp(ctx, tangent):
        unknown = (torch.full_like(part, torch.nan) for part in ctx.saved_tensors)  # so that second derivatives are nan
        return _polar_derivative(*ctx.saved_tensors, tangent), *unknown


def _polar_derivative(U, S, Vh, X):
    """Along X; the same forwards and backwards, since it is symmetric."""
    B = U.mT @ X @ Vh.mT
    return U @ ((B - B.mT) / (S.unsqueeze(-1) + S.unsqueeze(-2)).clamp_min(SMALLEST)) @ Vh
