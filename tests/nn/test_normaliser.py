"""The invariant normaliser: statistics of the symmetrised data, gathered by counts, and a map that commutes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from registry import KINDS, generator

from rppdyn.groups import SO, SO13, D, O, S, Z
from rppdyn.nn import InvariantNormaliser
from rppdyn.reps import Pseudoscalar, Scalar, T, V

REAL = [G for G in KINDS if not G.is_complex]


def data(rep, n=400):
    x = torch.randn(n, rep.dim, generator=generator(3), dtype=torch.float64)
    return x * (1 + torch.arange(rep.dim)) + torch.arange(rep.dim) - 1.5


def transformed(rep, x, seed=4):
    g = rep.G.samples(3, generator(seed))
    return torch.einsum("gij,bj->gbi", rep.rho(torch.cat([g, g @ g])), x)


@pytest.mark.parametrize("G", REAL, ids=str)
def test_it_commutes_with_the_group(G):
    rep = (V + 2 * Scalar + Pseudoscalar)(G)
    normaliser = InvariantNormaliser(rep)
    normaliser.update(data(rep))
    x = data(rep, 5)
    torch.testing.assert_close(normaliser(transformed(rep, x)), transformed(rep, normaliser(x)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("G", [Z(4), D(4), SO(3), O(2)], ids=str)
def test_clipping_commutes_too(G):
    rep = (V + 2 * Scalar + T(2))(G)
    normaliser = InvariantNormaliser(rep, clip=1.0)
    normaliser.update(data(rep))
    x = 3 * data(rep, 20)
    y = normaliser(x)
    torch.testing.assert_close(normaliser(transformed(rep, x)), transformed(rep, y), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(y, InvariantNormaliser(rep)(x))
    sizes = torch.zeros(20, len(normaliser.component_size)).double().index_add(1, normaliser.component, y**2)
    assert (sizes <= normaliser.component_size * (1 + 1e-9)).all()


def test_clipping_what_is_not_orthogonal_is_refused():
    with pytest.raises(ValueError, match="no clipping commutes"):
        InvariantNormaliser(V(SO13()), clip=5.0)
    with pytest.raises(ValueError, match="positive"):
        InvariantNormaliser(V(Z(2)), clip=-1.0)


def test_statistics_are_those_of_the_symmetrised_data():
    rep = (V + Scalar)(S(3))
    x = data(rep)
    normaliser = InvariantNormaliser(rep, eps=0.0)
    normaliser.update(x)
    everywhere = torch.einsum("gij,bj->gbi", rep.rho(S(3).elements()), x).reshape(-1, rep.dim)
    torch.testing.assert_close(normaliser.mean, everywhere.mean(0))
    torch.testing.assert_close(normaliser.std, everywhere.std(0, correction=0))
    rotations = InvariantNormaliser(V(SO(3)))
    rotations.update(data(V(SO(3))))
    assert rotations.mean.abs().max() < 1e-12 and rotations.std.unique().numel() == 1


def test_batches_of_any_size_give_what_one_pass_gives():
    rep = (V + T(2))(D(4))
    x = data(rep)
    once, often = InvariantNormaliser(rep), InvariantNormaliser(rep)
    once.update(x)
    for part in x.split([1, 199, 0, 50, 150]):
        often.update(part.reshape(-1, 1, rep.dim))
    assert often.count == 400
    torch.testing.assert_close(often.mean, once.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(often.std, once.std, rtol=1e-12, atol=1e-12)
    shifted = InvariantNormaliser(V(Z(4)), eps=0.0)
    y = torch.randn(100, 4, generator=generator(6), dtype=torch.float64)
    for part in (1e8 + y).split(7):
        shifted.update(part)  # a naive sum of squares would cancel
    torch.testing.assert_close(shifted.std**2, y.var(correction=0).expand(4), rtol=1e-6, atol=0)


def test_it_changes_in_updates_only_and_starts_as_the_identity():
    normaliser = InvariantNormaliser(V(Z(4)))
    x = torch.randn(5, 4)
    assert torch.equal(normaliser(x), x)
    before = copy.deepcopy(normaliser.state_dict())
    normaliser.train()(x)
    assert all(torch.equal(before[k], v) for k, v in normaliser.state_dict().items())
    assert not list(normaliser.parameters())


def test_buffers_stay_float64_and_survive_round_trips():
    rep = V(Z(4))
    normaliser = InvariantNormaliser(rep, clip=2.0)
    normaliser.update(data(rep))
    x = torch.randn(5, 4)
    y = normaliser(x)
    assert y.dtype == torch.float32 and normaliser.float().mean.dtype == torch.float64
    loaded = InvariantNormaliser(rep, clip=2.0)
    loaded.load_state_dict(normaliser.state_dict())
    for same in (loaded, copy.deepcopy(normaliser), pickle.loads(pickle.dumps(normaliser)), normaliser.half()):
        assert torch.equal(same(x), y)


def test_bad_batches_are_refused():
    normaliser = InvariantNormaliser(V(Z(4)))
    with pytest.raises(ValueError, match="last dimension must be 4"):
        normaliser.update(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="not finite"):
        normaliser.update(torch.full((3, 4), torch.nan))
    assert normaliser.count == 0


@pytest.mark.parametrize("unit", [1e3, 1e-3, 1e-6, 1e-12])
def test_units_do_not_matter(unit):
    """Nor where a component is constant, or has always been zero."""
    rep = (V + 3 * Scalar)(D(4))
    x = data(rep, 50)
    x[:, -2:] = torch.tensor([2.0, 0.0], dtype=torch.float64)
    here, there = InvariantNormaliser(rep), InvariantNormaliser(rep)
    for part in x.split(20):
        here.update(part)
        there.update(unit * part)
    torch.testing.assert_close(there.std, unit * here.std, rtol=1e-9, atol=0)
    torch.testing.assert_close(there(unit * x), here(x), rtol=1e-9, atol=1e-9)
    assert here(x)[:, :-2].std(0).max() < 1.5 and not here(x)[:, -2:].any()
