"""Tensors as views of one vector."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rppdyn.agents.functional import flat_view, flatten_


def test_values_stay_and_memory_is_shared():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = [p.detach().clone() for p in net.parameters()]
    parameters = list(net.parameters())
    assert flat_view(parameters) is None
    flat = flatten_(parameters)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    flat.zero_()
    assert all((p == 0).all() for p in net.parameters())
    assert flatten_(parameters).data_ptr() == flat.data_ptr()


def test_taken_apart_it_is_put_together_again():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    flat = flatten_(list(net.parameters()))
    net.double()
    again = flatten_(list(net.parameters()))
    assert again.dtype == torch.float64
    torch.testing.assert_close(again.float(), flat)
    net[0].weight.data = net[0].weight.data.clone()
    assert flat_view(list(net.parameters())) is None


def test_a_transposed_tensor_keeps_its_values():
    a = torch.arange(6.0).view(2, 3).t()
    flatten_([a, torch.zeros(2)])
    assert torch.equal(a, torch.arange(6.0).view(2, 3).t())


def test_a_copy_does_not_share():
    net = nn.Linear(3, 4)
    flat = flatten_(list(net.parameters()))
    other = copy.deepcopy(net)
    flat.zero_()
    assert not (other.weight == 0).all()
