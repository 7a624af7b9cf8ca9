"""Networks: equivariance at both precisions, both limits of the variances, and every way torch may run them."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.groups import SL, SO, SO13, SU, D, O, S, Sp, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, named_pathways, tensor_hidden
from rppdyn.nn._hidden import component_major, hidden_representation
from rppdyn.reps import Pseudoscalar, Scalar, T, V, regular


def build(cls, G, seed=0, rep_in=2 * V + Scalar, rep_out=V + Scalar, **options):
    options = dict(hidden=48, num_layers=2) | options
    return cls(rep_in, rep_out, G, generator=generator(seed), **options)


def test_without_the_equivariant_pathway_pointwise_networks_are_plain_mlps():
    net = build(RPPEMLP, Z(4), equivariant_variance=0)
    plain = nn.Sequential(nn.Linear(9, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 5))
    linears = [*(b.linear for b in net.blocks), net.head]
    for mine, theirs in zip(linears, plain[::2], strict=True):
        theirs.load_state_dict({"weight": mine.free.weight, "bias": mine.free.bias})
    x = torch.randn(7, 9)
    assert torch.equal(net(x), plain(x))
    assert net.pathway_variances() == {name: {"free": 1.0} for name in ("blocks.0.linear", "blocks.1.linear", "head")}
    same = build(MLP, Z(4))
    assert [tuple(p.shape) for p in same.parameters()] == [tuple(p.shape) for p in net.parameters()]


def test_without_the_equivariant_pathway_gated_networks_stay_gated_and_dense():
    net = build(RPPEMLP, SO(3), equivariant_variance=0)
    assert all(block.bilinear is None and block.gate.free is not None for block in net.blocks)
    assert {name for _, name, _ in named_pathways(net)} == {"free"}
    with pytest.raises(ValueError, match="bilinear=True needs the equivariant pathway"):
        build(RPPEMLP, SO(3), equivariant_variance=0, bilinear=True)


# -- hidden representations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "d, width, counts",
    [(2, 256, (48, 24, 12, 6, 2, 1)), (3, 384, (102, 34, 11, 3)), (3, 128, (38, 12, 3, 1)), (4, 256, (64, 16, 4, 1))],
)
def test_widths_are_shared_out_between_tensor_ranks(d, width, counts):
    G = O(d)
    rep = sum(n * T(r) for r, n in enumerate(counts))(G)
    assert tensor_hidden(width, G) == rep and rep.dim == width
    layout = hidden_representation(width, G)
    assert layout.dim == width and [len(i) for _, i in layout.blocks()] == list(counts)
    assert [part for part, _ in layout.blocks()] == [part for part, _ in rep.blocks()]


@pytest.mark.parametrize("G", [SL(2), Sp(1), SO13(), O(1), SO(2)], ids=str)
def test_every_width_is_used_up(G):
    for width in (1, 7, 64, 100):
        assert tensor_hidden(width, G).dim == width


def test_tensors_of_groups_that_are_not_orthogonal_are_split_evenly():
    parts = {(str(rep)): len(index) for rep, index in tensor_hidden(256, SO13()).blocks()}
    assert (
        parts == {"T0": 64, "T1": 8, "T1*": 8, "T2": 1, "T1*T1*": 2, "T2*T1*": 1}
        or sum(parts.values()) == 64 + 16 + 4 + 1
    )
    assert tensor_hidden(256, SO13()) == tensor_hidden(256, SO13())


@pytest.mark.parametrize("G, width", [(Z(2), 256), (S(3), 100), (D(4), 64), (Z(2) * Z(3), 31)], ids=str)
def test_finite_groups_get_copies_of_the_regular_representation(G, width):
    rep = hidden_representation(width, G)
    copies, trivial = divmod(width, G.order)
    assert rep.dim == width and rep.is_permutation
    blocks = {part: len(index) for part, index in rep.blocks()}
    assert blocks == {regular(G): copies} | ({Scalar(G): trivial} if trivial else {})
    net = build(EMLP, G, rep_in=Scalar + regular(G), rep_out=regular(G), hidden=width)
    assert all(block.bilinear is None for block in net.blocks)


def test_hidden_layers_can_be_given():
    G = SO(3)
    hidden = [20, 8 * Scalar + 4 * V, (5 * Scalar + V)(G)]
    assert [rep.dim for rep in RPPEMLP(V, Scalar, G, hidden=hidden, bilinear="published").hidden] == [20, 20, 8]
    assert [rep.dim for rep in RPPEMLP(V, Scalar, G, hidden=hidden).hidden] == [9, 20, 8]  # operands need room, too
    assert RPPEMLP(V, Scalar, G, hidden=4 * Scalar, num_layers=0)(torch.ones(3)).shape == (1,)
    assert component_major((2 * V + Scalar)(G)).dim == 7


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(hidden=0), "at least 1"),
        (dict(hidden=3, architecture="regular"), "less than the order 4"),
        (dict(hidden=[8, 8], num_layers=3), "lists 2 layers"),
        (dict(num_layers=-1), "number of hidden layers"),
        (dict(hidden=V(SO(3))), "cannot lift"),
        (dict(equivariant_variance=0, free_variance=0), "no pathway"),
    ],
)
def test_impossible_networks_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        build(RPPEMLP, Z(4), **options)


def test_groups_without_a_regular_representation_and_complex_groups_are_refused():
    with pytest.raises(ValueError, match="no enumerated regular representation"):
        build(EMLP, SO(3), architecture="regular")
    with pytest.raises(ValueError, match="write it as a real group"):
        build(EMLP, SU(2))


# -- prior, merging, reports ------------------------------------------------------------------------------------------


def test_variances_and_norms_are_reported_by_layer_and_pathway():
    net = build(RPPEMLP, SO(3), equivariant_variance=100.0, free_variance=0.25)
    variances, norms = net.pathway_variances(), net.pathway_norms()
    assert set(variances) == {f"blocks.{i}.{part}" for i in (0, 1) for part in ("linear", "bilinear", "gate")} | {
        "head"
    }
    assert variances["head"] == {"equivariant": 100.0, "free": 0.25}
    assert variances["blocks.0.gate"] == {"free": 0.25}
    assert norms.keys() == variances.keys()
    assert norms["head"]["free"] == pytest.approx(net.head.free.weight.norm().item())
    assert norms["head"]["equivariant"] == pytest.approx(
        (net.head.assemble()[0] - net.head.free.weight).norm().item(), rel=1e-4
    )


def test_print_shows_representations_and_counts():
    text = repr(build(RPPEMLP, SO(3), hidden=20))
    assert "2*T1 + T0 -> T1 + T0, SO(3)" in text
    assert "free): FreePathway(36 weights, 4 biases, variance=1" in text and "EquivariantPathway(" in text


def test_output_scale_shrinks_both_pathways_of_the_last_layer_only():
    for cls in (RPPEMLP, MLP, EMLP):
        whole, small = build(cls, Z(4)), build(cls, Z(4), output_scale=0.01)
        x = torch.randn(5, 9)
        torch.testing.assert_close(small(x), 0.01 * whole(x))
        for pathway in small.head.linear_pathways:
            torch.testing.assert_close(
                100 * pathway.weight, whole.head.get_submodule(_name(small.head, pathway)).weight
            )


def _name(parent, child):
    return next(name for name, module in parent.named_children() if module is child)


# -- state, copies, transforms ----------------------------------------------------------------------------------------


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError, match="RPPEMLP"):
        build(MLP, Z(2))(torch.ones(5, dtype=torch.int64))


def test_module_apply_still_maps_a_function():
    seen = []
    build(RPPEMLP, Z(2)).apply(lambda module: seen.append(type(module).__name__))
    assert "RPPEMLP" in seen and "FreePathway" in seen


def test_inputs_of_another_size_are_refused_by_name():
    net = EMLP(2 * V + Scalar, V, SO(3), hidden=40)
    for call in (net, net.apply):
        with pytest.raises(
            ValueError, match=r"shape \(7, 3\): the last axis must have 7 entries, .* 2\*T1 \+ T0 of SO\(3\)"
        ):
            call(torch.randn(7, 3))
    with pytest.raises(ValueError, match="the last axis must have 6 entries"):
        MLP(2 * V, Scalar, SO(3), hidden=8).gradient(torch.randn(7, 3))


def test_a_gradient_of_several_outputs_is_refused():
    with pytest.raises(ValueError, match="a gradient is of one number"):
        build(MLP, Z(2)).gradient(torch.randn(3, 5))


@pytest.mark.parametrize(
    ("rep_in", "rep_out", "G", "hidden", "layer"),
    [
        (V, V, SO(3), 8 * Scalar, "blocks.0.linear"),
        (V + Scalar, V, SO(3), 8 * Scalar, "head"),
        (V, Scalar, SO(3), 8 * Scalar, "blocks.0.linear"),
        (V, V, O(3), Scalar + T(2), "blocks.0.linear"),
        (V, Pseudoscalar, O(3), 16, "head"),  # that many channels end at vectors
        (V, V, SO(3), [16, 8 * Scalar, 32], "head"),  # what is left are traces, which no vector is made of
        (V + Scalar, V, SO(3), [8 * Scalar, 32], "head"),
        (Scalar, V, SO(3), 16, "head"),
        (V, Pseudoscalar, S(3), 8 * Scalar, "head"),
    ],
)
def test_a_strict_network_that_lets_nothing_through_is_refused_by_name(rep_in, rep_out, G, hidden, layer):
    for make in (EMLP, lambda *args, **kwargs: RPPEMLP(*args, free_variance=0, **kwargs)):
        with refused(f"{layer} lets nothing through", str(G), "RPPEMLP"):
            make(rep_in, rep_out, G, hidden=hidden, bilinear="published")
    x = torch.randn(8, rep_in(G).dim, generator=generator())
    assert RPPEMLP(rep_in, rep_out, G, hidden=hidden, generator=generator())(x).std(0).max() > 0
    MLP(rep_in, rep_out, G, hidden=hidden)


def test_a_part_of_the_output_that_ignores_the_input_is_warned_of():
    with pytest.warns(UserWarning, match="parts T1 of the output T0 . T1 of SO.3. don't depend on the input"):
        net = EMLP(V + Scalar, Scalar + V, SO(3), hidden=8 * Scalar)
    y = net(torch.randn(8, 4, generator=generator()))
    assert (y[:, 1:] == 0).all() and y[:, 0].std() > 0


@pytest.mark.parametrize("hidden", [16, V + 8 * Scalar, [16, 4 * T(2) + Scalar]])
def test_strict_networks_that_let_something_through_are_not_refused(hidden):
    net = EMLP(V, Scalar + T(2), SO(3), hidden=hidden, generator=generator())
    assert (net(torch.randn(8, 3, generator=generator())).std(0) > 0).all()


def test_products_of_operands_let_an_input_through_that_no_linear_map_does():
    net = EMLP(V, Scalar, SO(3), hidden=8 * Scalar, bilinear="channelwise", generator=generator())
    assert net(torch.randn(8, 3, generator=generator())).std() > 0
    with refused("head lets nothing through"):
        EMLP(V, V, SO(3), hidden=8 * Scalar, bilinear="channelwise")


@pytest.mark.parametrize("hidden", [V**9, V**17, 20000 * Scalar])
def test_networks_beyond_memory_are_refused_before_anything_is_solved(hidden):
    with refused("to keep account of its", "use a lower tensor power"):
        EMLP(V, V, SO(3), hidden=hidden)


def test_a_network_without_data_can_be_printed():
    net = RPPEMLP(V, V, SO(3), hidden=16)
    assert "unknown" not in repr(net) and "variance=unknown" in repr(net.to("meta"))
