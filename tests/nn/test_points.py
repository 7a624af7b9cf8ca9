"""Hidden layers of products of groups: features of some factors at the points that the others permute."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SL, SO, D, Group, O, S, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Chained, ChannelProducts, Ensemble
from rppdyn.nn.hidden import AtPoints, Points, points_hidden
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Pseudoscalar, Rep, Scalar, V


def swarm(space: Group, members: Group) -> Rep:
    """A vector of space for each member."""
    G = space * members
    return V(members).lift(G) * V(space).lift(G)


SWARMS = [(SO(3), S(3)), (O(2), S(4)), (O(2), Z(5)), (SL(3), S(3)), (D(4), S(4)), (SO(2), D(3)), (S(5), O(2))]


@pytest.mark.parametrize("space, members", SWARMS, ids=lambda group: str(group))
def test_networks_of_swarms_are_equivariant_and_relaxed_ones_are_not(space, members):
    if not space.lie_algebra.any() and space.is_permutation:
        space, members = members, space
    rep = swarm(space, members)
    x = 0.5 * torch.randn(6, 2 * rep.dim, generator=generator(1), dtype=torch.float64)
    options = dict(hidden=128, num_layers=2, generator=generator())
    net = EMLP(2 * rep, rep, rep.G, **options)
    assert all(isinstance(points_hidden(128, net.rep_in, rep), Points | Rep) for _ in net.hidden)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        error = equivariance_error(net.to(dtype), net.rep_in, rep, x.to(dtype), n_samples=3)
        assert net(x.to(dtype)).abs().mean() > 1e-3 and error.mean < tolerance
    for control in (RPPEMLP(2 * rep, rep, rep.G, free_scale=0.3, **options), MLP(2 * rep, rep, rep.G, **options)):
        assert equivariance_error(control.double(), net.rep_in, rep, x, n_samples=3).mean > 1e-3


def test_the_layer_is_permutations_where_all_factors_permute_and_else_has_products_at_each_point():
    net = EMLP(swarm(D(4), S(4)), Scalar, D(4) * S(4), hidden=70, num_layers=1)
    assert net.hidden[0].is_permutation and net.hidden[0].dim == 70 and net.blocks[0].is_plain
    net = EMLP(swarm(O(2), S(4)), Scalar, O(2) * S(4), hidden=128, num_layers=2)
    bilinear, gate = net.blocks[0].bilinear, net.blocks[0].gate
    assert isinstance(bilinear, AtPoints) and isinstance(bilinear.layer, ChannelProducts)
    assert isinstance(gate, AtPoints) and gate.rep == net.hidden[0] and gate.points == 4


def test_other_layers_where_points_lack_a_type_or_have_no_room_or_another_is_asked_for():
    G = SO(3) * S(3)
    rep, pairs = swarm(SO(3), S(3)), swarm(SO(3), S(3)) * V(S(3)).lift(G)
    assert points_hidden(128, rep, rep) is not None
    assert points_hidden(128, rep, pairs) is None  # pairs of members have types that single ones lack
    assert points_hidden(6, rep, rep) is None
    assert points_hidden(128, V(SO(3)), V(SO(3))) is None
    for options in (dict(architecture="tensor"), dict(bilinear="published")):
        blocks = EMLP(rep, rep, G, hidden=64, num_layers=1, **options).blocks
        assert not any(isinstance(block.gate, AtPoints) for block in blocks)
    small = EMLP(V, V, Z(2) * S(3), hidden=32, num_layers=1)  # 12 elements: the regular representation
    assert small.hidden[0].is_permutation and small.hidden[0].dim == 32


def test_types_of_space_that_vectors_lack_are_carried():
    """As of the turning rates of members in the plane."""
    G = O(2) * S(4)
    rates = V(S(4)).lift(G) * Pseudoscalar(O(2)).lift(G)
    net = EMLP(swarm(O(2), S(4)) + rates, rates, G, hidden=128, num_layers=2, generator=generator()).double()
    x = torch.randn(5, 12, generator=generator(1), dtype=torch.float64)
    assert net(x).std() > 1e-3 and equivariance_error(net, net.rep_in, net.rep_out, x, n_samples=3).mean < 1e-12


def test_a_swarm_learns_what_one_member_does_to_another():
    """Tensors of the product, which a width of 128 has no room for, learn nothing of it."""
    rep = swarm(SO(3), S(3))
    x = torch.randn(200, 3, 3, generator=generator())
    apart = x.unsqueeze(1) - x.unsqueeze(2)
    pull = (apart * (-0.5 * apart.square().sum(-1, keepdim=True)).exp()).sum(2)
    x, y = x.flatten(1), 2 * pull.flatten(1)

    def unexplained(**options) -> float:
        net = EMLP(rep, rep, rep.G, hidden=128, num_layers=2, generator=generator(), **options)
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(60):
            optimiser.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimiser.step()
        return (loss.detach() / y.square().mean()).item()

    assert unexplained() < 0.8 and unexplained(architecture="tensor") > 0.95


def test_ensembles_chains_of_layers_and_state_dicts_are_the_network():
    rep = swarm(SO(3), S(3))
    build = lambda seed: RPPEMLP(rep, rep, rep.G, hidden=96, num_layers=2, free_scale=0.3, generator=generator(seed))  # noqa: E731
    nets = [build(0).double(), build(1).double()]
    x = torch.randn(2, 5, 9, generator=generator(2), dtype=torch.float64)
    both = torch.stack([net(xi) for net, xi in zip(nets, x, strict=True)])
    ensemble = Ensemble(nets)
    torch.testing.assert_close(ensemble(x), both, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(Chained(nets[0])(x[0]), both[0], rtol=1e-12, atol=1e-12)
    priors = torch.stack([negative_log_prior(net) for net in nets])
    torch.testing.assert_close(ensemble.per_member(negative_log_prior), priors, rtol=1e-12, atol=0)
    other = build(7).double()
    other.load_state_dict(nets[0].state_dict())
    assert torch.equal(other(x[0]), nets[0](x[0]))
    tensors = RPPEMLP(rep, rep, rep.G, hidden=96, num_layers=2, architecture="tensor")
    with pytest.raises(ValueError, match="the state dict has weights of"):
        tensors.load_state_dict(nets[0].state_dict())
