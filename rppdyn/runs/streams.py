"""Random streams that follow from a seed."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["data_stream", "stream"]


def stream(seed: int, n: int) -> torch.Generator:
    """The ``n``-th stream of a seed: of an epoch's batches, say, so that a resumed run draws the same."""
    return torch.Generator().manual_seed(seed * 1_000_003 + n)


def data_stream(seed: int) -> torch.Generator:
    """The stream of a seed's training data.

    Initial weights are drawn from ``torch.Generator().manual_seed(seed)``. From that one, normal inputs would be the very
    numbers that the first layer's weights are.
    """
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
