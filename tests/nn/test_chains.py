"""Chains of groups: nested pathways, each equivariant under its own group and not under a larger one."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SL, SO, D, Group, O, O2eR3, S, SO2eR3, Trivial, Z
from rppdyn.nn import EMLP, RPPEMLP, Ensemble, RelaxedLinear, named_pathways
from rppdyn.priors import learn_variances, negative_log_prior
from rppdyn.reps import Scalar, T, V, regular

MIRROR = Group("mirror", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, 1.0]]]))
TILTED = Group("tilted mirror", discrete_generators=torch.eye(3).double()[None] - 2 / 3)
TURNS = Group("half turns", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, -1.0]]]))

CHAINS = {
    # how many maps V -> V and invariants of V each group has
    "O(3) > O(2)": ([O(3), O2eR3()], [1, 2], [0, 1]),
    "SO(3) > SO(2) > 1": ([SO(3), SO2eR3(), Trivial(3)], [1, 3, 9], [0, 1, 3]),
    "D4 > Z2": ([D(4), MIRROR], [1, 2], [0, 1]),
    "D4 > half turns": ([D(4), TURNS], [1, 4], [0, 0]),
    "S4 > Z4": ([S(4), Z(4)], [2, 4], [1, 1]),
    "SL(3) > SO(3) > SO(2)": ([SL(3), SO(3), SO2eR3()], [1, 1, 3], [0, 0, 1]),
}


def chained(groups, variances, hidden=16, rep_in=V + Scalar, rep_out=V, **options):
    options = dict(num_layers=2, free_scale=0.5, generator=generator()) | options
    net = RPPEMLP(rep_in, rep_out, groups=groups, variances=variances, hidden=hidden, **options)
    with torch.no_grad():
        for _, _, pathway in named_pathways(net):
            if getattr(pathway, "bias", None) is not None:
                pathway.bias.normal_(generator=generator(1))
    return net.double()


def error(net, G):
    rep_in, rep_out = (rep if rep.G == G else rep.restrict(G) for rep in (net.rep_in, net.rep_out))
    x = torch.randn(6, net.rep_in.dim, generator=generator(2), dtype=torch.float64)
    found = equivariance_error(net, rep_in, rep_out, x, n_samples=4, generator=generator(3))
    return float(found.mean)


@pytest.mark.parametrize("chain", CHAINS)
def test_pathways_are_nested_and_as_large_as_their_groups_say(chain):
    groups, maps, invariants = CHAINS[chain]
    layer = RelaxedLinear(V, V, groups=groups, variances=[1.0] * (len(groups) + 1))
    own = layer.equivariant_pathways
    assert [p.weight_map.rank for p in own] == maps
    assert [p.bias_map.rank for p in own] == invariants
    names = ["equivariant", "equivariant_2", "equivariant_3", "free"]
    del names[len(groups) : -1]
    assert [name for _, name, _ in named_pathways(layer)] == names
    assert [p.within for p in layer.linear_pathways] == [*names[1:], None]
    Q = [(p.rep_in >> p.rep_out).equivariant_basis() for p in own]
    for smaller, larger in pairwise(Q):
        torch.testing.assert_close(larger @ larger.T @ smaller, smaller, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variances, left", [
    ([1.0, 0.0, 0.0], ["equivariant"]),
    ([0.0, 1.0, 0.0], ["equivariant_2"]),
    ([0.0, 1.0, 0.1], ["equivariant_2", "free"]),
    ([1.0, 0.0, 0.1], ["equivariant", "free"]),
    ([0.0, 0.0, 0.1], ["free"]),
    ([1.0, 1.0, 0.0], ["equivariant", "equivariant_2"]),
])  # fmt: skip
def test_variance_0_removes_a_pathway(variances, left):
    net = chained([O(3), O2eR3()], variances)
    assert list(net.pathway_variances()["head"]) == left == list(net.pathway_norms()["head"])
    assert net.head.linear_pathways[-1].within is None and not net.head.linear_pathways[0].is_free
    assert (net.blocks[0].bilinear is not None) == (left != ["free"])
    if left == ["equivariant_2"]:
        assert error(net, O2eR3()) < 1e-10 and error(net, O(3)) > 1e-3
        assert net.head.equivariant_2.unit is None  # alone, it is of full size


def test_one_group_is_the_case_without_a_chain():
    options = dict(hidden=16, num_layers=2)
    one = RPPEMLP(V, V, O(3), equivariant_variance=2.0, free_variance=0.3, generator=generator(), **options)
    other = RPPEMLP(V, V, groups=[O(3)], variances=[2.0, 0.3], generator=generator(), **options)
    assert str(one) == str(other) and one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    told = EMLP(V, V, O(3), equivariant_variance=2.0, generator=generator(), **options)
    strict = RPPEMLP(V, V, groups=[O(3), SO(3)], variances=[2.0, 0.0, 0.0], generator=generator(), **options)
    x = torch.randn(5, 3, generator=generator(4))
    torch.testing.assert_close(strict(x), told(x))


def test_the_prior_is_that_of_the_coefficients():
    layer = RelaxedLinear(2 * V, V + Scalar, groups=[O(3), O2eR3()], variances=[2.0, 1e-3, 1e-4], generator=generator())
    layer = layer.double()
    nn.init.normal_(layer.equivariant_2.bias, generator=generator(1))
    expected = 0.0
    for pathway, s2 in zip(layer.linear_pathways, (2.0, 1e-3, 1e-4), strict=True):
        prior = torch.distributions.Normal(0.0, s2**0.5)
        if pathway is layer.free:
            values = torch.cat([w.flatten() for w in pathway.dense()])
        else:
            weight, bias = pathway.dense()
            Q = (pathway.rep_in >> pathway.rep_out).equivariant_basis(), pathway.rep_out.equivariant_basis()
            values = torch.cat([Q[0].T @ weight.flatten(), Q[1].T @ bias])
        expected = expected - prior.log_prob(values).sum()
    torch.testing.assert_close(negative_log_prior(layer), expected)


def test_a_subgroups_pathway_is_stored_in_the_unit_of_its_prior():
    layer = RelaxedLinear(8 * V, V, groups=[O(3), O2eR3()], variances=[1.0, 1e-4, 1e-6], generator=generator())
    assert layer.equivariant.unit is None
    assert float(layer.equivariant_2.unit) == pytest.approx(1e-2 * (16 / 3) ** 0.5)  # 16 coefficients for 3 outputs
    before = layer.equivariant_2.dense()[0].detach().clone()
    layer.equivariant_2.log_variance.add_(2.0)
    layer.equivariant_2.follow_variance()
    assert float(layer.equivariant_2.unit) == pytest.approx(1e-2 * (16 / 3) ** 0.5 * math.e)
    torch.testing.assert_close(layer.equivariant_2.dense()[0], before)
    layer.equivariant_2.learn_variance()
    assert isinstance(layer.equivariant_2.unit, nn.Parameter) and not layer.equivariant_2.unit.requires_grad
    torch.testing.assert_close(layer.equivariant_2.dense()[0], before)


def test_checkpoints_rebuild_a_chain_with_learned_variances():
    groups = [O(3), O2eR3()]
    net = chained(groups, [1.0, 1e-4, 1e-6])
    x = torch.randn(5, 4, generator=generator(4), dtype=torch.float64)
    learned = copy.deepcopy(net)
    learn_variances(learned)
    with torch.no_grad():
        for name, p in learned.named_parameters():
            if name.endswith("log_variance"):
                p.add_(1.0)
    other = chained(groups, [1.0, 1e-4, 1e-6], generator=generator(7))
    learn_variances(other)
    other.load_state_dict(learned.state_dict())
    torch.testing.assert_close(other(x), net(x), rtol=0, atol=0)
    assert other.pathway_variances() == learned.pathway_variances() != net.pathway_variances()


@pytest.mark.parametrize("smaller, form", [(SO2eR3(), "signed gather"), (TILTED, "sparse")], ids=str)
def test_members_share_the_zero_map_of_the_largest_group(smaller, form):
    """From scalars to vectors; the maps of the smaller group are added to it."""
    nets = [RPPEMLP(V, V, groups=[O(3), smaller], variances=[1.0, 1.0, 1.0], hidden=6 * T(0), generator=generator(s))
            for s in range(2)]  # fmt: skip
    assert nets[0].head.equivariant.weight is None and nets[0].head.equivariant_2.weight_map.form == form
    x = torch.randn(2, 5, 3, generator=generator(4))
    torch.testing.assert_close(Ensemble(nets)(x), torch.stack([net(y) for net, y in zip(nets, x, strict=True)]))


def test_it_says_what_it_is():
    net = chained([O(3), O2eR3()], [1.0, 0.5, 0.1])
    text = str(net)
    assert "O(3) > O2eR3" in text.splitlines()[1] and "(equivariant_2): EquivariantPathway" in text
    assert "variance=0.5, O2eR3" in text
    assert net.group == O(3) and net.groups == (O(3), O2eR3())


def test_strict_chains_let_through_what_the_smallest_group_lets_through():
    """No map of O(3) leads from scalars to a vector, and one of O(2) leads to its third coordinate."""
    with refused("lets nothing through", "T1 of O(3)"):
        RPPEMLP(2 * Scalar, V, groups=[O(3), O2eR3()], variances=[1.0, 0.0, 0.0], hidden=8 * Scalar)
    net = chained([O(3), O2eR3()], [1.0, 1.0, 0.0], rep_in=2 * Scalar, hidden=8 * Scalar)
    y = net(torch.randn(5, 2, generator=generator(4), dtype=torch.float64))
    assert not y[:, :2].any() and y[:, 2].std() > 1e-3


def test_bad_input_is_refused_in_one_line():
    tilted = Group("tilted", discrete_generators=torch.diag(torch.tensor([1.0, -1.0, -1.0])).unsqueeze(0))
    make = lambda *args, **options: RelaxedLinear(V, V, *args, **options)  # noqa: E731
    with refused("O(3) is no subgroup of O2eR3", "lie_algebra[1]", "largest group first"):
        make(groups=[O2eR3(), O(3)], variances=[1, 1, 1])
    with refused("mirror is no subgroup of half turns", "discrete_generators[0]", "largest group first"):
        make(groups=[TURNS, MIRROR], variances=[1, 1, 1])
    # a half turn about x is in no way told from an element of SO(2) about z by its matrix's kind, but by its maps
    with refused("tilted is no subgroup of SO2eR3", "are so under tilted"):
        make(groups=[SO2eR3(), tilted], variances=[1, 1, 1])
    with refused("O(2) is given by 2 x 2 matrices and O(3) by 3 x 3", "Group(name"):
        make(groups=[O(3), O(2)], variances=[1, 1, 1])
    with refused("O(3) is given twice"):
        make(groups=[O(3), O(3)], variances=[1, 1, 1])
    for variances in ([1.0, 1.0], [1.0] * 4, None):
        with refused(f"variances={variances} with 2 groups", "give 3"):
            make(groups=[O(3), O2eR3()], variances=variances)
    with refused("together with group=O(3)", "one of the two"):
        make(O(3), groups=[O(3), O2eR3()], variances=[1, 1, 1])
    with refused("variances=[1, 1, 1] without groups"):
        make(variances=[1, 1, 1])
    with refused("groups=[]", "the largest first"):
        make(groups=[], variances=[1, 1])
    with refused("variances are all 0"):
        make(groups=[O(3), O2eR3()], variances=[0, 0, 0])
    for wrong in (-1, math.nan):
        with refused(f"{wrong!r} is no variance", "zero or positive"):
            make(groups=[O(3), O2eR3()], variances=[1, wrong, 0])
    with refused("T1 is a representation of O2eR3", "largest group, O(3)"):
        RelaxedLinear(V(O2eR3()), V, groups=[O(3), O2eR3()], variances=[1, 1, 1])
    with refused("equivariant_variance=3", "together with variances"):
        RPPEMLP(V, V, groups=[O(3), O2eR3()], variances=[1, 1, 1], equivariant_variance=3.0)
    with refused("free_variance=7", "together with variances"):  # which a layer of its own passed over
        make(groups=[O(3), O2eR3()], variances=[1, 1, 1], free_variance=7.0)
    with refused("group=None"):
        RPPEMLP(V, V)


@pytest.mark.unchecked
def test_groups_and_variances_of_another_type_are_refused():
    for groups in (O(3), ["O(3)"], "O(3)"):
        with refused("groups=", "the largest first"):
            RelaxedLinear(V, V, groups=groups, variances=[1, 1])
    for wrong in ("a", None, [1]):
        with refused(f"{wrong!r} is no variance"):
            RelaxedLinear(V, V, groups=[O(3), O2eR3()], variances=[1, wrong, 0])


def test_representations_given_by_matrices_are_restricted():
    layer = RelaxedLinear(
        2 * regular(D(4)), T(2), groups=[D(4), MIRROR], variances=[1.0, 1.0, 0.0], generator=generator()
    ).double()
    # by characters: traces over the group of rho_in times those of rho_out
    for pathway, H in zip(layer.equivariant_pathways, (D(4), MIRROR), strict=True):
        g = H.elements()
        trace = lambda rep, g=g: rep.rho(g).diagonal(dim1=1, dim2=2).sum(1)  # noqa: E731
        rank = (trace(pathway.rep_in) * trace(pathway.rep_out)).mean()
        assert pathway.weight_map.rank == round(float(rank))
