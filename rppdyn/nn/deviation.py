"""How the standard deviations of a Gaussian transform whose mean transforms under an orthogonal representation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from rppdyn.reps import Rep, Scalar

__all__ = ["blocks_of", "deviation_rep"]


def blocks_of(rep: Rep) -> Tensor | None:
    """The blocks of entries that an orthogonal representation mixes, in their order; None where it only permutes and flips.

    A matrix ``(blocks, dim)`` of zeros and ones, one row per block.
    """
    if rep.is_signed_permutation:
        return None
    return F.one_hot(rep.components).mT.float()


def deviation_rep(rep: Rep, blocks: Tensor | None) -> Rep:
    """How logarithms of standard deviations transform: under |rho| one per entry, or invariant, one per block."""
    return abs(rep) if blocks is None else len(blocks) * Scalar(rep.G)
