"""How many threads torch may use while a job runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def processors() -> int:
    """How many processors this process may use; not every system tells, and then all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Torch's thread count inside the block, put back afterwards.

    At most as many as this process has processors: with more, all wait for each other at every operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, processors()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
