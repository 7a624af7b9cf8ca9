"""Random streams that follow from a seed, and the global ones of the process."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand

__all__ = ["GlobalStates", "data_stream", "kept_random_state", "quick_states", "stream"]


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
    """The states of the generators that Python, NumPy and torch draw from where none is named, on the CPU.

    Python's is as `random.getstate` has it; copied, the generator's words, and the normal number that it keeps.
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any]  # of the legacy generator, which is what stable-baselines3 draws from
    torch: torch.Tensor

    @classmethod
    def now(cls) -> GlobalStates:
        """As they stand."""
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())  # noqa: NPY002

    @classmethod
    def copied(cls) -> GlobalStates:
        """As they stand, to be put in this process: Python's is copied as memory, not made into 624 numbers."""
        address = _words_of_python()
        if address is None:
            return cls.now()
        python = ctypes.string_at(address, WORDS), _PYTHON.gauss_next
        return cls(python, np.random.get_state(legacy=False), torch.get_rng_state())  # noqa: NPY002

    def put(self) -> None:
        """Put these in place."""
        address = _words_of_python()
        if address is not None and isinstance(self.python[0], bytes):
            words, _PYTHON.gauss_next = self.python
            ctypes.memmove(address, words, WORDS)
        else:
            random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)

    def same(self, other: GlobalStates) -> bool:
        """Whether the same numbers will be drawn."""
        own, others = self.numpy["state"], other.numpy["state"]
        numpy = own["pos"] == others["pos"] and np.array_equal(own["key"], others["key"])
        return self.python == other.python and numpy and torch.equal(self.torch, other.torch)


WORDS = 625 * ctypes.sizeof(ctypes.c_uint32)
_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]


@cache
def _words_of_python() -> int | None:
    """Where Python's generator has its position and its 624 words, as CPython does; None where they are not there."""
    start = object.__basicsize__
    if sys.implementation.name != "cpython" or random.Random.__basicsize__ < start + WORDS:
        return None
    address = id(_PYTHON) + start
    _, (*words, position), _ = random.getstate()
    found = np.frombuffer(ctypes.string_at(address, WORDS), np.uint32).tolist()
    return address if found == [position, *words] else None


class _Twister(np.random.MT19937):
    """NumPy's legacy generator, whose state is copied as memory: 2 us, where its own loop over 624 words takes 33."""

    def __init__(self) -> None:
        super().__init__()
        words = (ctypes.c_uint32 * 625).from_address(self.ctypes.state_address)  # the key, then the position in it
        self._words = np.ctypeslib.as_array(words)

    @property
    def state(self) -> Any:
        return {"bit_generator": "MT19937", "state": {"key": self._words[:624].copy(), "pos": int(self._words[624])}}

    @state.setter
    def state(self, value: Any) -> None:
        self._words[:624], self._words[624] = value["state"]["key"], value["state"]["pos"]


@contextmanager
def quick_states() -> Iterator[None]:
    """NumPy's global generator goes on inside the block as one whose state is quickly taken and put, and after it as before.

    Agents that are trained together take turns with the global states several times a step.
    """
    kept = np.random.get_state(legacy=False)  # noqa: NPY002
    if kept["bit_generator"] != "MT19937":  # another was set
        yield
        return
    outer = mtrand.get_bit_generator()
    mtrand.set_bit_generator(_Twister())
    np.random.set_state(kept)  # noqa: NPY002
    try:
        yield
    finally:
        kept = np.random.get_state(legacy=False)  # noqa: NPY002
        mtrand.set_bit_generator(outer)
        np.random.set_state(kept)  # noqa: NPY002
