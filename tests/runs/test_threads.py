"""Threads of torch while a job runs."""

from __future__ import annotations

import torch

from rppdyn.runs.workers import processors, torch_threads


def test_a_job_has_the_threads_it_asks_for_and_no_more_than_there_are_processors(monkeypatch):
    before = torch.get_num_threads()
    with torch_threads(1000):
        assert torch.get_num_threads() == processors()
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 3)
    for asked, given in ((1, 1), (2, 2), (3, 3), (1000, 3)):
        with torch_threads(asked):
            assert torch.get_num_threads() == given
    assert torch.get_num_threads() == before


def test_networks_trained_together_share_threads_and_others_have_one(monkeypatch):
    monkeypatch.setattr("rppdyn.runs.workers.processors", lambda: 6)
    with torch_threads(5):  # as of OMP_NUM_THREADS
        for together, given in ((1, 1), (2, 2), (4, 4), (10, 4)):
            with torch_threads(None, together):
                assert torch.get_num_threads() == given
        with torch_threads(2), torch_threads(None, 10):
            assert torch.get_num_threads() == 2
        with torch_threads(3, 10):
            assert torch.get_num_threads() == 3
