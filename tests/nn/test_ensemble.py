"""A stack of networks gives what its members give, each by itself, values and gradients."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rppdyn.groups import D, Group, O2eR3
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.reps import Scalar, V


def nets(members=3):
    """With published bilinear layers, whose pairs, drawn at construction, are the first member's."""
    made = [RPPEMLP(4 * V, Scalar, O2eR3(), hidden=12, num_layers=2, free_scale=1.0, bilinear="published",
                    generator=torch.Generator().manual_seed(seed)).double() for seed in range(members)]  # fmt: skip
    for net in made[1:]:
        for own, first in zip(net.buffers(), made[0].buffers(), strict=True):
            own.copy_(first)
    return made


def test_members_train_apart():
    """What happens to one member, even its end, changes no other's numbers, to the last bit."""
    results = []
    for spoilt in (False, True):
        stack = Ensemble(nets())
        optimiser = torch.optim.Adam(stack.parameters(), lr=1e-2, foreach=True)
        x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        if spoilt:
            x[1] = torch.nan
        for _ in range(3):
            optimiser.zero_grad()
            stack(x).square().sum((1, 2)).sum().backward()
            optimiser.step()
        results.append([p.detach()[[0, 2]] for p in stack.stacked])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_member_is_a_network_of_its_own():
    members = nets()
    stack = Ensemble(members)
    copy = stack.member(1)
    assert dict(copy.state_dict()).keys() == dict(members[1].state_dict()).keys()
    x = torch.randn(4, 12, dtype=torch.float64)
    assert torch.equal(copy(x), members[1](x))
    with torch.no_grad():
        next(iter(copy.parameters())).add_(1.0)
    assert torch.equal(stack.member(1)(x), members[1](x))
    again = Ensemble(nets()[::-1])
    again.load_state_dict(stack.state_dict())
    assert torch.equal(again(x.expand(3, 4, 12)), stack(x.expand(3, 4, 12)))


def test_what_can_not_be_stacked():
    with pytest.raises(ValueError, match="give at least one"):
        Ensemble([])
    other = RPPEMLP(4 * V, Scalar, O2eR3(), hidden=16, num_layers=2).double()
    with pytest.raises(ValueError, match="network 1 has other parameters than the first"):
        Ensemble([nets(1)[0], other])


def test_networks_of_other_groups_or_variances_are_not_stacked():
    def net(axis, variance):
        mirror = torch.eye(2)
        mirror[axis, axis] = -1
        return RPPEMLP(
            V, V, Group("mirror", discrete_generators=mirror[None]), hidden=8, num_layers=1, free_variance=variance
        )

    Ensemble([net(0, 1.0), net(0, 1.0)])
    for other in (net(1, 1.0), net(0, 1e-4), net(0, 0.5)):
        with pytest.raises(
            ValueError, match=r"network 1 has another \S+ than the first: build all with the same arguments"
        ):
            Ensemble([net(0, 1.0), other])


def test_constant_inputs_have_a_prior_variance_and_a_unit_of_their_own_in_each_member():
    nets = [RPPEMLP(V, V, D(4), hidden=16, breaking="V", breaking_variance=0.1) for _ in range(2)]
    ensemble, x = Ensemble(nets, own=False), torch.randn(2, 7, 2)
    with torch.no_grad():
        for net, variance in zip(nets, (0.01, 0.3), strict=True):
            net.breaking.vector.fill_(1.0)
            net.breaking.log_variance.fill_(math.log(variance))
            net.breaking.follow_variance()
    ensemble.restack_()
    torch.testing.assert_close(ensemble(x), torch.stack([net(part) for net, part in zip(nets, x, strict=True)]))


def test_inputs_without_the_axis_of_the_members_are_refused():
    stack = Ensemble(nets())
    functions, shapes = (
        (stack, stack.gradient, lambda x: stack.apply(x, stack.assemble())),
        [(6, 12), (1, 6, 12), (6, 2, 12)],
    )
    for function, shape in itertools.product(functions, shapes):
        with pytest.raises(ValueError, match="to an ensemble of 3 networks: the first axis must be the members"):
            function(torch.ones(shape, dtype=torch.float64))
