"""Batch normalisation that keeps a symmetry: pools, both modes, ensembles, compiled; and the ordinary one, which does not."""

from __future__ import annotations

import copy

import pytest
import torch
from registry import generator
from torch import nn

from rppdyn.groups import O13, SO, D, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, BatchNorm, Ensemble
from rppdyn.nn._normalisation import pools
from rppdyn.reps import Pseudoscalar, Scalar, T, V, regular

CASES = {"D4": (D(4), 2 * V + Scalar, V + Scalar), "SO(3)": (SO(3), 2 * V + T(2) + Scalar, V + Scalar)}


def trained(net, seed=1):
    """The network with scales, shifts and running statistics that are not those of the start, in double precision."""
    net = net.double()
    draw = generator(seed)
    with torch.no_grad():
        for norm in net.norms:
            norm.scale.add_(0.3 * torch.randn(norm.scale.shape, generator=draw))
            norm.shift.add_(0.3 * torch.randn(norm.shift.shape, generator=draw))
        for _ in range(3):
            put(net, net.on_batch(2 * torch.randn(32, net.rep_in.dim, generator=draw, dtype=torch.float64) + 1)[1])
    return net


def put(net, running):
    for norm, part in zip(net.norms, running.split([len(norm.running) for norm in net.norms]), strict=True):
        norm.running.copy_(part)


def test_pools():
    """One for each copy of the regular representation, in component-major order; signs and vectors have no mean."""
    labels, centred = pools(regular(D(4)) * (3 * Scalar(D(4))))
    assert centred == 3 and labels.view(8, 3).eq(labels[:3]).all() and sorted(labels[:3].tolist()) == [0, 1, 2]
    labels, centred = pools((Scalar + Pseudoscalar + 2 * V)(SO(3)))
    assert centred == 2 and labels.tolist()[2:] == [2, 2, 2, 3, 3, 3]  # SO(3) leaves pseudoscalars alone
    labels, centred = pools((Scalar + 2 * V)(Z(2)))
    assert centred == 3 and labels.tolist() == [0, 1, 1, 2, 2]


def test_statistics_are_those_of_the_data_moved_by_the_whole_group():
    G = D(4)
    rep = V(G) + regular(G) + Scalar(G)
    norm = BatchNorm(rep, eps=0.0).double()
    x = torch.randn(20, rep.dim, generator=generator(), dtype=torch.float64) + 1
    every = torch.cat([x @ rep.rho(g).mT for g in G.elements()])
    eye, zero = torch.eye(rep.dim, dtype=torch.float64), torch.zeros(rep.dim, dtype=torch.float64)
    (weight, bias), _ = norm.on_batch(every, eye, zero)
    y = every @ weight.mT + bias
    assert torch.allclose(y.mean(0), torch.zeros(rep.dim, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(y.square().mean(0), torch.ones(rep.dim, dtype=torch.float64), atol=0.02)
    (pooled, offset), _ = norm.on_batch(x, eye, zero)  # the same statistics, but for Bessel's correction
    assert torch.allclose(pooled, weight, rtol=0.03) and torch.allclose(offset, bias, atol=0.03)


def test_entrywise_it_is_what_torch_computes():
    rep = 5 * Scalar(Z(2))
    mine, theirs = BatchNorm(rep).double(), nn.BatchNorm1d(5, eps=1e-3, momentum=0.01).double()
    eye = torch.eye(5, dtype=torch.float64)
    for seed in range(3):
        x = torch.randn(16, 5, generator=generator(seed), dtype=torch.float64) * 3 + 1
        (weight, bias), running = mine.on_batch(x, eye, None)
        reference = (x - x.mean(0)) / (x.var(0) + 1e-3).sqrt()  # torch normalises by the biased variance
        assert torch.allclose(x @ weight.mT + bias, reference, atol=1e-12)
        theirs.train()(x)
        mine.running.copy_(running.detach())
    assert torch.allclose(mine.running[:5], theirs.running_mean) and torch.allclose(
        mine.running[5:10], theirs.running_var
    )
    x = torch.randn(4, 5, generator=generator(9), dtype=torch.float64)
    assert torch.allclose(mine(x), theirs.eval()(x), atol=1e-12)
    weight, bias = mine.fold(2 * eye, torch.ones(5, dtype=torch.float64))
    assert torch.allclose(x @ weight.mT + bias, 2 * mine(x) + 1, atol=1e-12)


def test_renormalised_features_are_those_of_the_running_statistics_within_bounds():
    """Without clipping, r and d make of the batch's statistics the running ones (Ioffe 2017, Eq. 1)."""
    rep = 4 * Scalar(Z(2))
    norm = BatchNorm(rep, warm_up=2).double()
    eye = torch.eye(4, dtype=torch.float64)
    for batch in range(6):
        x = (0.5 * torch.randn(64, 4, generator=generator(batch), dtype=torch.float64) + 0.2).requires_grad_()
        (weight, bias), running = norm.on_batch(x, eye, None)
        y = x @ weight.mT + bias
        by_batch = (x - x.mean(0)) / (x.var(0) + 1e-3).sqrt()
        assert torch.allclose(y, by_batch if batch <= 2 else norm(x), atol=1e-10)
        norm.running.copy_(running.detach())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.abs().max() < 1e-9  # through the batch's statistics, none through r and d


@pytest.mark.parametrize("case, kind", [("D4", RPPEMLP), ("SO(3)", EMLP), ("SO(3)", MLP)])
def test_ensembles_compute_what_their_members_do(case, kind):
    group, rep_in, rep_out = CASES[case]
    options = dict(hidden=48, num_layers=2, normalisation="batch")
    nets = [trained(kind(rep_in, rep_out, group, generator=generator(seed), **options), seed) for seed in range(3)]
    own = [copy.deepcopy(net) for net in nets]
    x = torch.randn(3, 12, nets[0].rep_in.dim, generator=generator(), dtype=torch.float64)
    expected = [net.on_batch(part) for net, part in zip(own, x, strict=True)]
    assert torch.allclose(Ensemble(own)(x), torch.stack([net(part) for net, part in zip(own, x, strict=True)]))
    stack = Ensemble(nets, own=False)
    y, running = stack.on_batch(x, stack.flat, stack.running)
    assert torch.allclose(y, torch.stack([y for y, _ in expected]))
    assert torch.allclose(running, torch.stack([after for _, after in expected]))
    stack.running.copy_(running)  # the networks' own, to which they are views
    for net, part, before, (_, after) in zip(nets, x, own, expected, strict=True):
        assert torch.allclose(torch.cat([norm.running for norm in net.norms]), after)
        put(before, after)
        assert torch.allclose(net(part), before(part))
    assert not stack.restack_()
    assert torch.allclose(stack(x), torch.stack([net(part) for net, part in zip(nets, x, strict=True)]))
    nets[1].load_state_dict(own[0].state_dict())
    stack.restack_()
    assert torch.allclose(stack(x)[1], own[0](x[1]))


def test_what_has_no_invariant_size_is_refused():
    with pytest.raises(ValueError, match=r"not orthogonal.*leave normalisation out"):
        BatchNorm(V(O13()))
    for option in (dict(momentum=0), dict(eps=-1.0), dict(warm_up=-1)):
        with pytest.raises(ValueError, match="give a share, and 0 or more"):
            BatchNorm(V(Z(2)), **option)
    with pytest.raises(ValueError, match="the last axis must have"):
        BatchNorm(V(Z(2))).on_batch(torch.zeros(4, 7), torch.zeros(1, 7), None)
    with pytest.raises(ValueError, match="normalisation='layer': choose 'batch', 'renorm' or None"):
        MLP(V, V, Z(2), normalisation="layer")
