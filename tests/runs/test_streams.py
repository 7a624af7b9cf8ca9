"""Random streams: of a seed, and the process's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rppdyn.runs import streams
from rppdyn.runs.streams import GlobalStates, _Twister, data_stream, quick_states, stream


def draw():
    return random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item()  # noqa: NPY002


@pytest.mark.parametrize("taken", [GlobalStates.now, GlobalStates.copied])
def test_global_states_that_are_put_back_draw_the_same_again(taken):
    outer = GlobalStates.now()
    np.random.randn()  # noqa: NPY002 (one of a pair is kept for the next call)
    random.gauss(0.0, 1.0)  # so does Python
    before = taken()
    first = [(*draw(), random.gauss(0.0, 1.0)) for _ in range(700)]  # more than one block of 624 words
    assert not taken().same(before)
    before.put()
    assert taken().same(before) and [(*draw(), random.gauss(0.0, 1.0)) for _ in range(700)] == first
    outer.put()
    assert GlobalStates.now().same(outer)


def test_copied_states_are_the_usual_ones(monkeypatch):
    outer = GlobalStates.now()
    random.gauss(0.0, 1.0)
    usual, copied = GlobalStates.now(), GlobalStates.copied()
    assert isinstance(copied.python[0], bytes)
    random.seed(1)
    copied.put()
    assert GlobalStates.now().same(usual)
    monkeypatch.setattr(streams, "_words_of_python", lambda: None)  # another Python
    assert GlobalStates.copied().same(usual)
    outer.put()


def test_numbers_are_the_same_where_states_are_quick_and_after_that():
    outer = GlobalStates.now()
    np.random.seed(7)  # noqa: NPY002
    np.random.randn()  # noqa: NPY002 (one of a pair is kept)
    before = GlobalStates.now()
    expected = [draw() for _ in range(700)]
    before.put()
    own = np.random.mtrand.get_bit_generator()
    found = [draw() for _ in range(3)]
    with pytest.raises(ValueError, match="stop"), quick_states():
        assert type(np.random.mtrand.get_bit_generator()) is _Twister
        found += [draw() for _ in range(400)]  # more than one block of 624 words
        middle = GlobalStates.now()
        draw(), np.random.seed(1)  # noqa: NPY002
        middle.put()
        assert GlobalStates.now().same(middle)
        found += [draw() for _ in range(200)]
        raise ValueError("stop")
    found += [draw() for _ in range(97)]
    assert found == expected
    assert np.random.mtrand.get_bit_generator() is own
    outer.put()


def test_a_quick_state_is_numpys_own():
    quick, usual = _Twister(), np.random.MT19937(5)
    quick.state = usual.state
    quick.random_raw(1000), usual.random_raw(1000)
    for state in (quick.state, np.random.MT19937.state.__get__(quick)):
        assert state["state"]["pos"] == usual.state["state"]["pos"]
        assert (state["state"]["key"] == usual.state["state"]["key"]).all()


def test_a_generator_of_another_kind_stays():
    own = np.random.mtrand.get_bit_generator()
    kept = np.random.get_state()  # noqa: NPY002
    other = np.random.PCG64(0)
    try:
        np.random.mtrand.set_bit_generator(other)
        with quick_states():
            assert np.random.mtrand.get_bit_generator() is other
    finally:
        np.random.mtrand.set_bit_generator(own)
        np.random.set_state(kept)  # noqa: NPY002


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
