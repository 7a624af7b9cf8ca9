"""How the standard deviations of a Gaussian transform whose mean transforms under an orthogonal representation."""

from __future__ import annotations

import torch
from torch import Tensor

from rppdyn.reps import Rep, Scalar

__all__ = ["blocks_of", "deviation_rep"]


def blocks_of(rep: Rep) -> Tensor | None:
    """The blocks of entries that an orthogonal representation mixes, finest first; None where it only permutes and flips.

    A matrix ``(blocks, dim)`` of zeros and ones, one row per block.
    """
    if rep.is_signed_permutation:
        return None
    coupled = torch.eye(rep.dim, dtype=torch.bool)
    for matrix in (*rep.discrete_generators, *rep.lie_generators):
        coupled |= (matrix.abs() > 1e-9) | (matrix.mT.abs() > 1e-9)
    for _ in range(rep.dim):  # its transitive closure
        coupled |= (coupled.float() @ coupled.float()) > 0
    return coupled.unique(dim=0).flip(0).float()


def deviation_rep(rep: Rep, blocks: Tensor | None) -> Rep:
    """How logarithms of standard deviations transform: under |rho| one per entry, or invariant, one per block."""
    return abs(rep) if blocks is None else len(blocks) * Scalar(rep.G)
