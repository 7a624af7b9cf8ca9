"""Projectors, networks in subspaces, quantisation, and model choice."""

from __future__ import annotations

import copy
import functools
import math
from functools import partial

import pytest
import torch
from torch import nn

from rppdyn.compression import (
    PROJECTORS,
    FiLMProjector,
    KroneckerProjector,
    Subspace,
    agreement,
    categorical_bits,
    catoni_bound,
    compress,
    empirical_risk,
    gaussian_bits,
    make_projector,
    modulating,
    universal_kl,
    zero_one_loss,
)
from rppdyn.equivariance import equivariance_error
from rppdyn.groups import O2eR3
from rppdyn.images import ImageModel
from rppdyn.images._models import small
from rppdyn.nn import EMLP, MLP, RPPEMLP
from rppdyn.reps import T


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@functools.cache
def networks():  # shared: tests leave them as they are
    G = O2eR3()
    rep_in, rep_out = (2 * T(0) + 2 * T(1))(G), T(1)(G)
    shared = dict(hidden=16, num_layers=2, generator=generator())
    return {
        "emlp": (EMLP(rep_in, rep_out, G, **shared), torch.randn(5, 8, generator=generator())),
        "rpp": (RPPEMLP(rep_in, rep_out, G, **shared), torch.randn(5, 8, generator=generator())),
        "mlp": (MLP(rep_in, rep_out, G, **shared), torch.randn(5, 8, generator=generator())),
        "images": (
            ImageModel(small(2), 1, (8, 8), 3, {"conv": 1.0, "f_fc": 1.0}, generator=generator()),
            torch.randn(5, 1, 8, 8, generator=generator()),
        ),
    }


@pytest.mark.parametrize("d, D", [(1, 1), (1, 10), (4, 100), (7, 53), (50, 2000), (0, 9)])
def test_kronecker_projector_is_part_of_the_product(d, D):
    project = KroneckerProjector(d, D, generator())
    product = torch.kron(project.first, project.second)[:D, :d] / D**0.5
    torch.testing.assert_close(project.dense(), product)


@pytest.mark.parametrize("kind", PROJECTORS)
def test_columns_are_about_orthonormal(kind):
    parameters = {
        "body.weight": torch.zeros(150, 200),
        "body.bias": torch.zeros(200),
        "head.weight": torch.zeros(10_000),
    }
    project = make_projector(kind, 9, parameters, generator())
    gram = (project.dense().mT @ project.dense()).double()
    torch.testing.assert_close(gram, torch.eye(9).double(), atol=0.4, rtol=0)
    uneven = (3 * project.dense()).mT @ project.dense()
    assert (uneven - torch.eye(9)).abs().max() > 1  # which the tolerance would not let pass


def test_film_moves_what_scales_and_shifts_features():
    net = networks()["rpp"][0]
    parameters = dict(net.named_parameters())
    chosen = modulating(parameters)
    moved = FiLMProjector(5, chosen, generator())(torch.ones(5))
    assert torch.equal(moved != 0, chosen)
    names = {
        name
        for name, p in zip(parameters, chosen.split([p.numel() for p in parameters.values()]), strict=True)
        if p.all()
    }
    assert any(name.startswith("head.") and name.endswith("weight") for name in names)
    assert not any(name.startswith("blocks.0.linear") and name.endswith("weight") for name in names)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("rpp", kind) for kind in PROJECTORS), *((name, "film+kronecker") for name in ("mlp", "images"))],
)
def test_any_network_starts_as_it_was_and_moves_in_the_subspace(name, kind):
    net, x = networks()[name]
    subspace = Subspace(net, 5, projector=kind, generator=generator())
    torch.testing.assert_close(subspace(x), net(x))
    with torch.no_grad():
        subspace.weight.fill_(3.0)
    initial = torch.cat([p.detach().flatten() for p in net.parameters()])
    moved = torch.cat([p.detach().flatten() for p in subspace.network().parameters()])
    torch.testing.assert_close(moved, initial + subspace.project.dense() @ torch.full((5,), 3.0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(subspace(x), subspace.network()(x))
    assert not torch.allclose(subspace(x), net(x))
    subspace(x).square().sum().backward()
    assert bool((subspace.weight.grad != 0).all())
    assert all(p.grad is None for p in subspace.net.parameters())


def test_the_network_of_a_subspace_keeps_the_units_of_free_pathways():
    net = RPPEMLP(T(1), T(1), O2eR3(), hidden=16, num_layers=1, free_variance=1e-4, generator=generator())
    subspace = Subspace(net, 10, generator=generator(1))
    nn.init.normal_(subspace.weight, generator=generator(2))
    x = torch.randn(5, 3, generator=generator(3))
    torch.testing.assert_close(subspace.network()(x), subspace(x))


def test_strict_networks_stay_strict_and_others_do_not():
    errors = {}
    for name in ("emlp", "mlp"):
        net = copy.deepcopy(networks()[name][0]).double()
        subspace = Subspace(net, 5, generator=generator())
        with torch.no_grad():
            subspace.weight.normal_(generator=generator())
        x = torch.randn(20, 8, dtype=torch.float64, generator=generator())
        errors[name] = equivariance_error(subspace, net.rep_in, net.rep_out, x, n_samples=2).mean
    assert errors["emlp"] < 1e-10 < 1e-2 < errors["mlp"]


def test_gradients_pass_straight_through():
    subspace = Subspace(nn.Linear(10, 4), 6, generator=generator())
    with torch.no_grad():
        subspace.weight.copy_(torch.tensor([-1.0, -0.9, 0.1, 0.2, 0.9, 1.0]))
    subspace.quantise(3)
    assert subspace.levels.tolist() == [-1.0, 0.0, 1.0]
    assert subspace.coefficients().tolist() == [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]
    slope = torch.arange(6.0)
    (subspace.coefficients() @ slope).backward()
    assert subspace.weight.grad.tolist() == slope.tolist()  # as if nothing were rounded
    assert subspace.levels.grad.tolist() == [0 + 1, 2 + 3, 4 + 5]  # each level those that have it


def test_kmeans_finds_clusters():
    subspace = Subspace(nn.Linear(10, 4), 6, generator=generator())
    with torch.no_grad():
        subspace.weight.copy_(torch.tensor([0.0, 0.1, 5.0, 5.1, 5.2, 100.0]))
    subspace.quantise(3, "kmeans")
    torch.testing.assert_close(subspace.levels.detach(), torch.tensor([0.05, 5.1, 100.0]))


def classes(n, seed=0):
    x = torch.randn(n, 6, generator=generator(seed))
    return x, (x[:, :3].sum(1) > 0).long()


@pytest.mark.unchecked
def test_what_is_coded_is_what_is_judged():
    """A small problem from end to end: another network with the same seeds takes the message and gives the same outputs."""
    (x, y), (held_x, held_y) = classes(2000), classes(2000, 1)
    make = lambda: Subspace(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), 20, generator=generator(3))  # noqa: E731
    torch.manual_seed(0)
    subspace = make()
    message = compress(subspace, partial(fits, x, y), levels=4, steps=150, quantised_steps=50)
    torch.manual_seed(0)
    other = make()
    other.load_message(message, 4)
    assert torch.equal(other(x), subspace(x))
    risk, test = (empirical_risk(zero_one_loss(subspace(a), b)) for a, b in ((x, y), (held_x, held_y)))
    bound = catoni_bound(risk, universal_kl(len(message)), len(x)).value
    assert risk < 0.1 and test <= bound < 0.3
    assert len(message) <= 20 * 2 + 4 * (16 + 5)


def fits(x, y, model):
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.unchecked
def test_bound_holds_for_random_labels():
    """What fits them is at a risk of one half, whatever it says of its own data (200 problems: docs/evidence/bounds.md)."""
    for seed in range(3):
        x = torch.randn(60, 6, generator=generator(seed))
        y = torch.randint(2, (60,), generator=generator(1000 + seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        subspace = Subspace(net, 40, generator=generator(seed))
        options = dict(levels=4, steps=80, quantised_steps=40, learning_rate=0.2, quantised_rate=0.1)
        message = compress(subspace, partial(fits, x, y), **options)
        risk = empirical_risk(zero_one_loss(subspace(x), y))
        assert risk < 0.45  # they have been fitted
        assert catoni_bound(risk, universal_kl(len(message)), 60).value >= 0.5


def test_subspace_of_no_dimension_is_the_initial_network():
    net, x = networks()["mlp"]
    subspace = Subspace(net, 0, generator=generator())
    message = compress(subspace, lambda model: model(x).sum(), levels=2, steps=3, quantised_steps=3)
    assert message == "" and torch.equal(subspace(x), net(x))


def test_refusals():
    net, parameters = nn.Linear(3, 2), dict(nn.Linear(3, 2).named_parameters())
    with pytest.raises(ValueError, match="dimension=9 of a subspace of 8 parameters"):
        Subspace(net, 9)
    with pytest.raises(ValueError, match="dimension=-1"):
        Subspace(net, -1)
    with pytest.raises(ValueError, match="levels=1: a quantiser has two levels or more"):
        Subspace(net, 4).quantise(1)
    with pytest.raises(ValueError, match="start='even'"):
        Subspace(net, 4).quantise(3, "even")
    with pytest.raises(ValueError, match="projector='dense': choose one of kronecker"):
        make_projector("dense", 4, parameters)
    with pytest.raises(ValueError, match="no parameters"):
        make_projector("kronecker", 0, {})
    with pytest.raises(ValueError, match="dimension=7 with projector=film: 2 parameters"):
        make_projector("film", 7, {"a.weight": torch.zeros(9), "a.bias": torch.zeros(2), "b.none": torch.zeros(0)})


def test_bits_of_data():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    assert categorical_bits(logits, torch.tensor([0, 1])) == pytest.approx(1 + 2)
    y = torch.randn(5000, 2, generator=generator())
    halved = gaussian_bits(y / 2, y)
    assert gaussian_bits(0 * y, y) - halved == pytest.approx(10_000, rel=1e-3)  # a bit for each number


def test_agreement_of_rankings():
    test = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [3.0, 3.0, 0.5]}
    assert agreement(test, test) == (1.0, 1.0, True)
    opposite = {name: [-v for v in values] for name, values in test.items()}
    assert agreement(opposite, test) == (0.0, 0.0, False)
    with pytest.raises(ValueError, match="give the same models"):
        agreement({"a": [1.0]}, {"a": [1.0], "b": [1.0]})
