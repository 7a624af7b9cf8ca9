"""Hidden layers of products of groups: features of some factors at the points that the others permute."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SO, D, Group, O, S, Z
from rppdyn.nn import EMLP, RPPEMLP, ChannelProducts, Ensemble
from rppdyn.nn._hidden import AtPoints, Points, points_hidden
from rppdyn.reps import Pseudoscalar, Rep, Scalar, T, V


def swarm(space: Group, members: Group) -> Rep:
    """A vector of space for each member."""
    G = space * members
    return V(members).lift(G) * V(space).lift(G)


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


def test_a_swarm_learns_what_one_member_does_to_another():
    """Tensors of the product, for which a width of 128 has little room, learn less of it."""
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

    assert unexplained() < 0.7 * unexplained(architecture="tensor")


def test_a_matrix_of_each_member_acts_on_its_vector():
    space, members = SO(3), S(3)
    G, rep = space * members, swarm(space, members)
    net = EMLP(
        rep + V(members).lift(G) * T(2)(space).lift(G), rep, G, hidden=192, num_layers=1, generator=generator()
    ).double()
    assert isinstance(net.blocks[0].gate, AtPoints)
    x, m = (torch.randn(5, k, dtype=torch.float64, generator=generator(1)) for k in (9, 27))
    y, skew = net(torch.cat([x, m], 1)), (m.view(5, 3, 3, 3) - m.view(5, 3, 3, 3).mT).flatten(1)
    assert (net(torch.cat([x, m + skew], 1)) - y).norm() > 1e-3 * y.norm()
    assert equivariance_error(net, net.rep_in, rep, torch.cat([x, m], 1), n_samples=3).mean < 1e-11


@pytest.mark.parametrize("space, members", [(SO(3), S(3)), (D(4), S(4))], ids=["products at points", "permuted alone"])
def test_weights_of_tensors_say_how_to_build_their_network(space, members):
    """As they were saved before layers of points were the default."""
    rep = swarm(space, members)
    points, tensors = (
        RPPEMLP(rep, rep, rep.G, hidden=70, num_layers=1, architecture=architecture, generator=generator())
        for architecture in ("auto", "tensor")
    )
    for one, other in ((points, tensors), (Ensemble([points]), Ensemble([tensors]))):
        with pytest.raises(ValueError, match=r"the state dict has weights of .* are built with architecture='tensor'"):
            one.load_state_dict(other.state_dict())
        with pytest.raises(ValueError, match="the state dict has weights of ") as error:
            other.load_state_dict(one.state_dict())
        assert "architecture='tensor'" not in str(error.value)


@pytest.mark.parametrize("hidden", [[256, 4], [4, 256], [256, 4, 256]], ids=str)
def test_a_layer_too_small_for_points_beside_layers_of_points(hidden):
    """Layers of points had the published products of other layers, whose rows they lack: the first call failed."""
    rep = swarm(SO(3), S(3))
    net = RPPEMLP(rep, rep, rep.G, hidden=hidden, generator=generator())
    assert [isinstance(block.bilinear, AtPoints) for block in net.blocks] == [width == 256 for width in hidden]
    assert net(torch.ones(5, rep.dim)).isfinite().all()


@pytest.mark.parametrize("others", [[O(3), SO(2)], [O(3), O(3)]], ids=str)
def test_types_of_each_factor_at_a_point(others):
    """Types of one of several factors were taken for scalars, so that no layer of points had, say, a pseudoscalar."""
    G = S(3) * others[0] * others[1]
    points = V(S(3)).lift(G)
    rep = sum(
        points * ((V + Pseudoscalar)(H) if H == O(3) else V(H)).lift(G, factor=place)
        for place, H in enumerate(others, 1)
    )
    assert isinstance(points_hidden(256, rep, rep), Points)
    net = EMLP(rep, rep, G, hidden=256, num_layers=1, generator=generator()).double()
    x = torch.randn(5, rep.dim, dtype=torch.float64, generator=generator(1))
    assert isinstance(net.blocks[0].gate, AtPoints)
    assert equivariance_error(net, rep, rep, x, n_samples=3).mean < 1e-11
