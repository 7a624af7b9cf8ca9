"""Constant inputs that transform: a strict network leaves its symmetry through them, and by as much as they are."""

from __future__ import annotations

import math

import pytest
import torch
from refusals import refused
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SO, D, O, O2eR3
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble, named_pathways
from rppdyn.priors import joint_evidence, learn_variances, negative_log_prior
from rppdyn.priors._likelihood import Gaussian
from rppdyn.reps import Scalar, T, V

GROUPS = pytest.mark.parametrize("G", [D(4), SO(3)], ids=str)


def network(G, cls=EMLP, seed=0, **options):
    return cls(
        2 * V + Scalar, V, G, hidden=48, num_layers=2, breaking="V", generator=generator(seed), **options
    ).double()


@GROUPS
@torch.no_grad()
def test_networks_are_equivariant_in_input_and_constants_together_and_strict_where_these_are_zero(G):
    net, x = network(G), torch.randn(30, (2 * V + Scalar)(G).dim, generator=generator(1), dtype=torch.float64)
    assert equivariance_error(net, net.rep_in, net.rep_out, x).mean < 1e-13
    assert net.pathway_norms()[""] == {"breaking": 0}
    b = torch.randn(V(G).dim, generator=generator(2), dtype=torch.float64)
    errors = []
    for size in (0.01, 0.1, 1.0):
        net.breaking.vector.copy_(size * b)
        errors.append(equivariance_error(net, net.rep_in, net.rep_out, x).mean)
    assert 1e-5 < errors[0] < errors[1] < errors[2] and errors[2] > 1e-2
    for g in G.samples(4, generator(3)).double():
        y = net(x) @ net.rep_out.rho(g).mT
        net.breaking.vector.copy_(V(G).rho(g) @ b)
        torch.testing.assert_close(net(x @ net.rep_in.rho(g).mT), y, rtol=1e-10, atol=1e-11)
        net.breaking.vector.copy_(b)


def test_of_an_elements_that_leaves_them_as_they_are_the_network_stays_equivariant():
    net = network(O(3))
    with torch.no_grad():
        net.breaking.vector.copy_(torch.tensor([0.0, 0.0, 0.7]))
    upright, x = O2eR3(), torch.randn(30, 7, generator=generator(1), dtype=torch.float64)
    rep_in, rep_out = (rep.restrict(upright) for rep in (net.rep_in, net.rep_out))
    assert equivariance_error(net, rep_in, rep_out, x).mean < 1e-12
    assert equivariance_error(net, net.rep_in, net.rep_out, x).mean > 1e-2


def test_what_is_learned_points_along_what_breaks_the_symmetry():
    """A planar group with reflections maps a constant onto its own line alone. In still air it stays small."""
    wind = torch.tensor([0.8, 0.5], dtype=torch.float64)
    x = torch.randn(400, 4, generator=generator(1), dtype=torch.float64)
    norms = {}
    for strength in (0.0, 1.0):
        net = EMLP(2 * V, V, O(2), hidden=32, num_layers=2, breaking="V", generator=generator(0)).double()
        target = x[:, :2] * x[:, 2:].norm(dim=1, keepdim=True) + strength * wind
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(150):
            optimiser.zero_grad()
            ((net(x) - target).square().sum() / 0.02 + negative_log_prior(net)).backward()
            optimiser.step()
        b = net.breaking.value()
        norms[strength] = b.norm().item()
    assert abs(b @ wind) / (b.norm() * wind.norm()) > math.cos(math.radians(10))
    assert norms[0.0] < 0.2 * norms[1.0]


def test_constants_have_a_prior_and_evidence_of_their_own():
    net, x = network(D(4), RPPEMLP, breaking_variance=0.25), torch.randn(20, 5, dtype=torch.float64)
    assert next((name, float(p.variance)) for _, name, p in named_pathways(net)) == ("breaking", pytest.approx(0.25))
    before = negative_log_prior(net)
    with torch.no_grad():
        net.breaking.vector.fill_(1.0)  # in units of the prior's deviation
    assert (negative_log_prior(net) - before).item() == pytest.approx(0.5 * 2)
    torch.testing.assert_close(net.breaking.value(), torch.full((2,), 0.5, dtype=torch.float64))
    evidence = joint_evidence(net, x, Gaussian(0.1))
    assert next((p.layer, p.name) for p in evidence.pathways) == ("", "breaking")


def test_drawn_constants_stay_as_they_were_drawn_and_differ_between_members():
    nets = [network(D(4), seed=seed, breaking_learned=False) for seed in range(3)]
    vectors = torch.stack([net.breaking.value() for net in nets])
    assert not any(name.startswith("breaking") for name, _ in nets[0].named_parameters())
    assert len({tuple(v.tolist()) for v in vectors}) == 3
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    apart = torch.stack([net(xi) for net, xi in zip(nets, x, strict=True)])
    for own in (True, False):
        torch.testing.assert_close(Ensemble(nets, own=own)(x), apart)


def test_what_has_no_symmetry_to_leave_is_refused_and_other_layouts_are_not_loaded():
    with refused("breaking='V'", "no symmetry to leave"):
        MLP(V, V, D(4), breaking="V")
    with refused("breaking", "W"):
        EMLP(V, V, D(4), breaking="W")
    with pytest.raises(ValueError, match="positive and finite; got -1"):
        EMLP(V, V, D(4), breaking="V", breaking_variance=-1)
    other = EMLP(2 * V + Scalar, V, D(4), hidden=48, num_layers=2, breaking=Scalar + V)
    with pytest.raises(ValueError, match="T0"):
        other.load_state_dict(network(D(4)).state_dict())
    assert network(SO(3), breaking_variance=1e-6).breaking.unit is not None


def test_the_norm_is_of_what_the_group_moves():
    net = EMLP(2 * V, V, D(4), hidden=16, breaking=V + Scalar)
    with torch.no_grad():
        net.breaking.vector.copy_(torch.tensor([0.3, 0.4, 5.0]))
    torch.testing.assert_close(net.breaking.moved(), torch.tensor([0.3, 0.4, 0.0]).double())
    assert net.pathway_norms()[""]["breaking"] == pytest.approx(0.5)


@pytest.mark.parametrize("G", [O(2), O(3)], ids=str)
def test_constants_that_the_input_gates_are_let_through(G):
    """x0 x1 b is a function from scalars to vectors; without constants there is none."""
    options = dict(hidden=48, num_layers=2, generator=generator())
    net = EMLP(3 * Scalar, V, G, breaking="V", **options).double()
    with torch.no_grad():
        net.breaking.vector.copy_(torch.arange(1.0, 1 + V(G).dim))
        y = net(torch.randn(5, 3, generator=generator(1), dtype=torch.float64))
    assert (y - y[:1])[1:].norm(dim=1).min() > 1e-3 * y.norm()
    with refused("head lets nothing through"):
        EMLP(3 * Scalar, V, G, **options)
    with refused("head lets nothing through"):
        EMLP(3 * Scalar, V, G, breaking="Scalar", **options)


def test_constants_of_a_type_that_the_layers_lack_are_named():
    with torch.no_grad():
        net = EMLP(V, V, O(3), hidden=48, num_layers=2, breaking="T(2)", generator=generator()).double()
        net.breaking.vector.normal_(generator=generator(1))
        x = torch.randn(20, 3, dtype=torch.float64, generator=generator(2))
        assert equivariance_error(net, net.rep_in, net.rep_out, x).mean > 1e-3
    for breaking, hidden in ((T(2), 16 * Scalar + 8 * V), (2 * Scalar, 48)):
        with pytest.warns(UserWarning, match=r"breaking=(T2|2\*T0) of O\(3\) breaks nothing: only invariant"):
            EMLP(V, V, O(3), hidden=hidden, num_layers=2, breaking=breaking)


def test_drawn_constants_have_no_variance_to_learn():
    net, x = network(D(4), RPPEMLP, breaking_learned=False), torch.randn(20, 5, dtype=torch.float64)
    learn_variances(net)
    assert not net.breaking.log_variance.requires_grad
    assert "breaking" not in {p.name for p in joint_evidence(net, x, Gaussian(0.1)).pathways}
