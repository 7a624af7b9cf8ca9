"""Random streams: of a seed, and the process's own."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch

from rppdyn.runs.workers import RandomStates, data_stream, stream, use_numpy_generator


def draw():
    return random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item()  # noqa: NPY002


def test_global_states_that_are_put_back_draw_the_same_again():
    outer = RandomStates.capture()
    np.random.randn()  # noqa: NPY002 (one of a pair is kept for the next call)
    random.gauss(0.0, 1.0)  # so does Python
    before = RandomStates.capture()
    first = [(*draw(), random.gauss(0.0, 1.0)) for _ in range(700)]  # more than one block of 624 words
    before.restore()
    assert [(*draw(), random.gauss(0.0, 1.0)) for _ in range(700)] == first
    outer.restore()


def test_numpy_draws_from_a_generator_inside_the_block_and_goes_on_after_it():
    own = np.random.MT19937(3)
    outer, before = np.random.mtrand.get_bit_generator(), np.random.get_state()[1].copy()  # noqa: NPY002
    expected = np.random.RandomState(np.random.MT19937(3)).randint(100, size=8)
    with use_numpy_generator(own):
        first = np.random.randint(100, size=4)  # noqa: NPY002
    with pytest.raises(ValueError, match="stop"), use_numpy_generator(own):
        second = np.random.randint(100, size=4)  # noqa: NPY002
        raise ValueError("stop")
    assert np.array_equal(np.concatenate([first, second]), expected)
    assert np.random.mtrand.get_bit_generator() is outer
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_streams_of_a_seed_repeat_and_differ_from_those_of_its_weights_and_of_others():
    made = [
        partial(stream, 0, 0),
        partial(stream, 0, 1),
        partial(stream, 1, 0),
        partial(data_stream, 0),
        partial(data_stream, 1),
    ]
    numbers = [torch.rand(3, generator=make()) for make in made]
    assert all(torch.equal(x, torch.rand(3, generator=make())) for x, make in zip(numbers, made, strict=True))
    weights = torch.rand(3, generator=torch.Generator().manual_seed(0))
    assert not any(torch.equal(weights, x) for x in numbers[1:])
    assert len({tuple(x.tolist()) for x in numbers}) == len(numbers)
