"""How many threads torch may use while a job runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST = 4
"""Threads that networks trained together share unless told otherwise; no more have been measured."""


def processors() -> int:
    """How many processors this process may use; not every system tells, and then all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(threads: int | None, together: int = 1) -> Iterator[None]:
    """Torch's thread count inside the block, put back afterwards.

    At most as many as this process has processors: with more, all wait for each other at every operation.

    Args:
        threads: how many; None for one, whose products are too small to share out, or, where several networks are trained
            `together`, for as many as there are networks, torch has threads (`OMP_NUM_THREADS`) and `MOST` allows.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(min(together, before, MOST) if threads is None else threads, processors()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
