"""Random streams that follow from a seed, and the global ones of the process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand

__all__ = ["GlobalStates", "data_stream", "kept_random_state", "numpy_draws_from", "stream"]


def stream(seed: int, n: int) -> torch.Generator:
    """The ``n``-th stream of a seed: of an epoch's batches, say, so that a resumed run draws the same."""
    return torch.Generator().manual_seed(seed * 1_000_003 + n)


def data_stream(seed: int) -> torch.Generator:
    """The stream of a seed's training data.

    Initial weights are drawn from ``torch.Generator().manual_seed(seed)``. From that one, normal inputs would be the very
    numbers that the first layer's weights are.
    """
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch back on leaving."""
    states = GlobalStates.now()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=torch.cuda.is_initialized()):
            yield
    finally:
        states.put()


class GlobalStates(NamedTuple):
    """The states of the generators that Python, NumPy and torch draw from where none is named, on the CPU."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]  # of the legacy generator, which is what stable-baselines3 draws from
    torch: torch.Tensor

    @classmethod
    def now(cls) -> GlobalStates:
        """As they stand."""
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())  # noqa: NPY002

    def put(self) -> None:
        """Put these in place."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)


@contextmanager
def numpy_draws_from(generator: np.random.BitGenerator) -> Iterator[None]:
    """Let NumPy's global functions draw from a generator of one's own inside the block.

    Nothing is copied. Normal numbers are drawn in pairs, of which the second is lost on entering and on leaving.
    """
    outer = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    try:
        yield
    finally:
        mtrand.set_bit_generator(outer)
