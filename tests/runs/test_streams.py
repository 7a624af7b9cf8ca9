"""Random streams: of a seed, and the process's own."""

from __future__ import annotations

import random

import numpy as np
import torch

from rppdyn.runs.streams import GlobalStates, data_stream, stream


def draw():
    return random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item()  # noqa: NPY002


def test_global_states_that_are_put_back_draw_the_same_again():
    outer = GlobalStates.now()
    np.random.randn()  # noqa: NPY002 (one of a pair is kept for the next call)
    before = GlobalStates.now()
    first = draw()
    assert not GlobalStates.now().same(before)
    before.put()
    assert GlobalStates.now().same(before) and draw() == first
    outer.put()
    assert GlobalStates.now().same(outer)


def test_streams_of_a_seed_repeat_and_differ_from_those_of_its_weights_and_of_others():
    made = [
        lambda: stream(0, 0),
        lambda: stream(0, 1),
        lambda: stream(1, 0),
        lambda: data_stream(0),
        lambda: data_stream(1),
    ]
    numbers = [torch.rand(3, generator=make()) for make in made]
    assert all(torch.equal(x, torch.rand(3, generator=make())) for x, make in zip(numbers, made, strict=True))
    weights = torch.rand(3, generator=torch.Generator().manual_seed(0))
    assert not any(torch.equal(weights, x) for x in numbers[1:])
    assert len({tuple(x.tolist()) for x in numbers}) == len(numbers)
