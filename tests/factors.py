"""Curvature as matrices, however it is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from rppdyn.nn.curvature import Factor, Kronecker, Root
from rppdyn.priors.laplace import PathwayEvidence


def matrix(factor: Factor) -> Tensor:
    return factor.matrix() if isinstance(factor, Root) else factor


def whole(block: Kronecker) -> Kronecker:
    """The same block with matrices for its factors."""
    return block._replace(A=matrix(block.A), G=matrix(block.G))


def spectrum(found: PathwayEvidence) -> Tensor:
    """All eigenvalues, in order, those that are not kept because they are zero among them."""
    zeros = found.eigenvalues.new_zeros(found.size - len(found.eigenvalues))
    return torch.cat([found.eigenvalues, zeros]).sort().values
