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

    Of a matrix with an entry that is no finite number it is nan, and so is its derivative; the others of a batch keep theirs.

    Source: Kabsch 1976; the derivative by differentiating :math:`M = QP`, ``P`` symmetric.
    """
    return _NearestRotation.apply(M)


class _NearestRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, M):
        finite = M.isfinite().all((-2, -1), keepdim=True)
        U, S, Vh = torch.linalg.svd(torch.where(finite, M, torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)))
        sign = torch.ones_like(S)
        sign[..., -1] = torch.linalg.det(U @ Vh).sign()
        U = torch.where(finite, U * sign.unsqueeze(-2), torch.nan)
        ctx.save_for_backward(U, S * sign, Vh)
        return U @ Vh

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        U, S, Vh = ctx.saved_tensors
        B = U.mT @ gradient @ Vh.mT
        return U @ ((B - B.mT) / (S.unsqueeze(-1) + S.unsqueeze(-2)).clamp_min(SMALLEST)) @ Vh
