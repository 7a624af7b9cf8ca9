"""Curvature as matrices, however it is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from rppdyn.nn._pathways import Factor, Kronecker, Root
from rppdyn.priors._laplace import KroneckerEvidence


def matrix(factor: Factor) -> Tensor:
    return factor.matrix() if isinstance(factor, Root) else factor


def whole(block: Kronecker) -> Kronecker:
    """The same block with matrices for its factors."""
    return block._replace(A=matrix(block.A), G=matrix(block.G))


def spectra(found: KroneckerEvidence) -> list[Tensor]:
    """All eigenvalues of each pathway, in order, those that are not kept because they are zero among them."""
    sizes = [p.size for p in found.pathways]
    return [
        torch.cat([own, own.new_zeros(size - len(own))]).sort().values
        for own, size in zip(found.eigenvalues, sizes, strict=True)
    ]
