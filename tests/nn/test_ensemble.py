"""A stack of networks gives what its members give, each by itself, values and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

from rppdyn.groups import SL, D, Group, O2eR3, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Scalar, T, V

CASES = {
    "tensors with gates and bilinear layers": (RPPEMLP, 4 * V, Scalar, O2eR3(), {}),
    "parts copy by copy": (RPPEMLP, 4 * V, Scalar, O2eR3(), {"hidden": 3 * V + 4 * Scalar}),
    "strict": (EMLP, 2 * V + Scalar, T(2), O2eR3(), {}),
    "no orthogonal group": (RPPEMLP, V, T(1, 1), SL(2), {}),
    "regular": (RPPEMLP, V, V, D(4), {}),
    "strict of a finite group": (EMLP, V, V, Z(4), {"hidden": 128}),
    "plain": (MLP, V, V, Z(4), {}),
}


def nets(case, members=3, rep_out=None):
    cls, rep_in, of_case, group, options = CASES[case]
    rep_out = of_case if rep_out is None else rep_out
    options = {"hidden": 12, "num_layers": 2, "free_scale": 1.0} | options
    made = []
    for seed in range(members):
        net = cls(rep_in, rep_out, group, generator=torch.Generator().manual_seed(seed), **options).double()
        if made:  # what is drawn besides parameters is the first member's
            for own, first in zip(net.buffers(), made[0].buffers(), strict=True):
                own.copy_(first)
        made.append(net)
    return made


@pytest.mark.parametrize(("case", "count"), [*((case, 2) for case in CASES), ("parts copy by copy", 1)])
def test_values_gradients_and_priors_are_those_of_the_members(case, count):
    members = nets(case, count)
    stack = Ensemble(members)
    x = torch.randn(count, 3, 2, members[0].rep_in.dim, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    x.requires_grad_()
    weights = stack.assemble()
    y, prior = stack.apply(x, weights), stack.per_member(negative_log_prior)
    alone = torch.stack([net(xi) for net, xi in zip(members, x, strict=True)])
    torch.testing.assert_close(y, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(prior, torch.stack([negative_log_prior(net) for net in members]), rtol=1e-12, atol=0)

    parameters = [x, *stack.stacked]
    together = torch.autograd.grad((y.square().sum((1, 2, 3)) + prior).sum(), parameters)
    for index, net in enumerate(members):
        loss = net(x[index]).square().sum() + negative_log_prior(net)
        apart = torch.autograd.grad(loss, [x, *net.parameters()], allow_unused=True)
        torch.testing.assert_close(together[0][index], apart[0][index], rtol=1e-9, atol=1e-10)
        for stacked, single in zip(together[1:], apart[1:], strict=True):
            single = torch.zeros_like(stacked[index]) if single is None else single
            torch.testing.assert_close(stacked[index], single, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("tensors with gates and bilinear layers", 2),
        ("parts copy by copy", 1),
        ("strict", 2),
        ("regular", 2),
        ("plain", 2),
    ],
)
def test_second_derivatives_are_those_of_the_members(case, count):
    members = nets(case, count, rep_out=Scalar)
    stack = Ensemble(members)
    x = torch.randn(count, 4, members[0].rep_in.dim, generator=torch.Generator().manual_seed(9), dtype=torch.float64)

    def field(apply, x):
        return torch.func.grad(lambda x: apply(x).sum())(x)

    alone = torch.stack([field(net, xi) for net, xi in zip(members, x, strict=True)])
    for together in (field(stack, x), stack.gradient(x)):
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-10)
        together = torch.autograd.grad(together.square().sum(), list(stack.stacked), allow_unused=True)
        for index, net in enumerate(members):
            apart = torch.autograd.grad(
                alone[index].square().sum(), list(net.parameters()), retain_graph=True, allow_unused=True
            )
            for stacked, single in zip(together, apart, strict=True):
                if stacked is None:
                    assert single is None or not single.any()
                else:
                    single = torch.zeros_like(stacked[index]) if single is None else single
                    torch.testing.assert_close(stacked[index], single, rtol=1e-8, atol=1e-9)


def test_members_train_apart():
    """What happens to one member, even its end, changes no other's numbers, to the last bit."""
    results = []
    for spoilt in (False, True):
        stack = Ensemble(nets("tensors with gates and bilinear layers"))
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
    members = nets("tensors with gates and bilinear layers")
    stack = Ensemble(members)
    copy = stack.member(1)
    assert dict(copy.state_dict()).keys() == dict(members[1].state_dict()).keys()
    x = torch.randn(4, 12, dtype=torch.float64)
    assert torch.equal(copy(x), members[1](x))
    with torch.no_grad():
        next(iter(copy.parameters())).add_(1.0)
    assert torch.equal(stack.member(1)(x), members[1](x))
    again = Ensemble(nets("tensors with gates and bilinear layers", 3)[::-1])
    again.load_state_dict(stack.state_dict())
    assert torch.equal(again(x.expand(3, 4, 12)), stack(x.expand(3, 4, 12)))


def test_what_can_not_be_stacked():
    with pytest.raises(ValueError, match="give at least one"):
        Ensemble([])
    other = RPPEMLP(4 * V, Scalar, O2eR3(), hidden=16, num_layers=2).double()
    with pytest.raises(ValueError, match="network 1 has other parameters than the first"):
        Ensemble([nets("tensors with gates and bilinear layers", 1)[0], other])


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


def test_inputs_without_the_axis_of_the_members_are_refused():
    stack = Ensemble(nets("tensors with gates and bilinear layers", 3))
    functions, shapes = (
        (stack, stack.gradient, lambda x: stack.apply(x, stack.assemble())),
        [(6, 12), (1, 6, 12), (6, 2, 12)],
    )
    for function, shape in itertools.product(functions, shapes):
        with pytest.raises(ValueError, match="to an ensemble of 3 networks: the first axis must be the members"):
            function(torch.ones(shape, dtype=torch.float64))
