"""What a pathway keeps when its variance is learned."""

from __future__ import annotations

import copy

import pytest
import torch
from registry import generator
from torch import nn

from rppdyn.groups import SO
from rppdyn.nn import RPPEMLP, named_pathways
from rppdyn.priors import learn_variances
from rppdyn.reps import V

VARIANCES = [1.0, 3e-4]
"""Of free pathways that are stored as they are, and in units of their prior."""


def network(free_variance, seed=0):
    return RPPEMLP(V, V, SO(3), hidden=12, num_layers=1, free_variance=free_variance, generator=generator(seed))


def learned(net):
    net = copy.deepcopy(net)
    learn_variances(net)
    return net


def kept(net):
    """All tensors by name."""
    return dict(net.named_parameters()) | dict(net.named_buffers())


@pytest.mark.parametrize("free_variance", VARIANCES)
def test_learning_variances_twice_is_learning_them_once(free_variance):
    net = learned(network(free_variance))
    nn.init.constant_(net.head.free.unit, 0.5)
    before = kept(net)
    learn_variances(net)
    after = kept(net)
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)


def test_a_variance_that_was_made_a_parameter_by_hand_is_learned():
    net = network(3e-4)
    pathway = net.head.free
    own = pathway.log_variance = nn.Parameter(pathway.log_variance.clone())
    learn_variances(net)
    assert pathway.log_variance is own and isinstance(pathway.unit, nn.Parameter)


@pytest.mark.parametrize("free_variance", VARIANCES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_learning_variances_keeps_the_function(free_variance, dtype):
    net = network(free_variance).to(dtype)
    x = torch.randn(5, 3, generator=generator(1), dtype=dtype)
    after = learned(net)
    assert torch.equal(after(x), net(x))
    assert after.head.free.unit.dtype == dtype and after.head.free.log_variance.dtype == torch.float64


@pytest.mark.parametrize(("free_variance", "own_variance"), [VARIANCES, VARIANCES[::-1]])
@pytest.mark.parametrize("kinds", ["exact to learned", "learned to exact", "exact to exact", "learned to learned"])
def test_checkpoints_are_read_whether_variances_were_learned_or_not(free_variance, own_variance, kinds):
    saved, own = (
        (learned(net) if kind == "learned" else net).double()
        for kind, net in zip(kinds.split(" to "), (network(free_variance), network(own_variance, seed=1)), strict=True)
    )
    if kinds.startswith("learned"):
        for *_, pathway in named_pathways(saved):
            nn.init.constant_(pathway.log_variance, -9.0)
            nn.init.constant_(pathway.unit, 0.01) if pathway.unit is not None else None
    x = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
    assert not torch.equal(own(x), saved(x))
    own.load_state_dict(saved.state_dict())
    assert torch.equal(own(x), saved(x))
    assert own.pathway_variances() == saved.pathway_variances()
    again = copy.deepcopy(own)
    again.load_state_dict(own.state_dict())
    assert torch.equal(again(x), saved(x)) and torch.equal(learned(again)(x), saved(x))


def test_a_part_of_a_checkpoint_leaves_other_units_alone():
    net = learned(network(3e-4))
    x = torch.randn(5, 3, generator=generator(1))
    before = net(x)
    net.load_state_dict({"head.free.bias": net.head.free.bias}, strict=False)
    assert torch.equal(net(x), before)


def test_parameters_alone_leave_units_alone():
    """A state dict without variances is a part of one, and says nothing about units; a whole one without units says 1."""
    net, wide = network(3e-4), network(1.0, seed=1)
    x = torch.randn(5, 3, generator=generator(1))
    before = net(x)
    net.load_state_dict(dict(net.named_parameters()), strict=False)
    assert torch.equal(net(x), before)
    without = {name: t for name, t in wide.state_dict().items() if not name.endswith("unit_exact")}
    assert len(without) < len(wide.state_dict())
    with torch.device("meta"):
        empty = network(3e-4)
    for other, assign in ((net, False), (empty, True)):  # a file of 0.1.0
        other.load_state_dict(without, assign=assign)
        assert torch.equal(other(x), wide(x))


def test_a_unit_is_not_read_where_there_is_none():
    equivariant, alone = (
        RPPEMLP(V, V, SO(3), hidden=12, num_layers=0, equivariant_variance=a, free_variance=3e-4) for a in (1.0, 0)
    )
    with pytest.raises(RuntimeError, match=r"Unexpected key.*head\.free\.unit_exact"):
        alone.load_state_dict({k: v for k, v in equivariant.state_dict().items() if "free" in k})
