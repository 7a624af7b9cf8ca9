"""Layerwise attribution: contributions add up, a planted culprit is found, estimates agree with exact values."""

from __future__ import annotations

import pytest
import torch
from registry import generator
from torch import nn

from rppdyn.equivariance import (
    Layer,
    TrivialFlow,
    images,
    layers_of,
    layerwise_difference,
    layerwise_lie_derivative,
    lie_derivative,
)
from rppdyn.groups import SO, D, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, merge
from rppdyn.reps import Scalar, T, V

ROTATIONS = SO(3)
SQUARE = D(4)


def network(kind=EMLP, group=ROTATIONS, dtype=torch.float64, **options):
    rep_in, rep_out = ((2 * T(0) + 3 * T(1)), T(1)) if group == ROTATIONS else ((3 * V + 2 * Scalar), V)
    return kind(rep_in, rep_out, group, hidden=40, num_layers=2, generator=generator(0), **options).to(dtype)


def inputs(net, n=16):
    x = torch.randn(n, net.rep_in.dim, generator=generator(1), dtype=torch.float64)
    return x.to(next(net.parameters()).dtype)


def measured(net, **options):
    measure = layerwise_lie_derivative if len(net.group.lie_algebra) else layerwise_difference
    return measure(net, net.rep_in, net.rep_out, inputs(net), **options)


def residual(attribution):
    total = attribution.total
    return float((attribution.contributions.sum(1) - total).norm() / total.norm())


@pytest.mark.parametrize("group", [ROTATIONS, SQUARE], ids=str)
def test_contributions_add_up_to_the_end_to_end_value(group):
    net = network(RPPEMLP, group, free_scale=0.5)
    attribution = measured(net)
    assert residual(attribution) < 1e-9
    torch.testing.assert_close(attribution.share.sum(1), torch.ones(len(attribution.generators), dtype=torch.float64))
    assert attribution.total.norm(dim=-1).min() > 1e-3  # there was something to attribute
    assert len(attribution.layers) == attribution.norm.shape[1] == (7 if group == ROTATIONS else 5)
    assert attribution.layers[0] in str(attribution)


@pytest.mark.parametrize("group", [ROTATIONS, SQUARE], ids=str)
def test_every_layer_of_an_emlp_is_at_rounding(group):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        net = network(EMLP, group, dtype)
        size = net(inputs(net)).norm(dim=-1).mean()
        attribution = measured(net)
        assert attribution.norm.max() < tolerance * size and attribution.total.norm(dim=-1).mean() < tolerance * size


@pytest.mark.parametrize(
    ("group", "culprit"), [(ROTATIONS, "blocks.0.linear"), (SQUARE, "blocks.1.linear"), (SQUARE, "head")]
)
def test_one_planted_layer_is_pointed_at(group, culprit):
    """Nothing but noise in one layer of a strict network, merged to dense weights first."""
    net = merge(network(EMLP, group))
    layer = net.get_submodule(culprit)
    with torch.no_grad():
        layer.weight += 0.1 * torch.randn(layer.weight.shape, generator=generator(2), dtype=torch.float64)
    attribution = measured(net)
    assert residual(attribution) < 1e-9
    others = [i for i, name in enumerate(attribution.layers) if name != culprit]
    for g, name in enumerate(attribution.generators):
        assert attribution.largest(name) == culprit
        at = attribution.layers.index(culprit)
        assert attribution.norm[g, others].max() < 1e-9 * attribution.norm[g, at]
        assert attribution.share[g, at] == pytest.approx(1, rel=1e-9)


def test_random_probes_agree_with_the_exact_values_within_their_standard_error():
    net = network(RPPEMLP, free_scale=0.5, bilinear=False)
    exact, estimated = measured(net), measured(net, probes=100, generator=generator(3))
    assert estimated.contributions is None and not exact.standard_error.any()
    torch.testing.assert_close(estimated.total, exact.total)
    strong = exact.squared_norm > 1e-3 * exact.squared_norm.max()
    deviation = (estimated.squared_norm - exact.squared_norm)[strong] / estimated.standard_error[strong]
    assert deviation.abs().max() < 4.5 and deviation.square().mean() < 2.5  # chi-square about 1
    relative = (estimated.standard_error / estimated.squared_norm)[strong]
    assert relative.max() < 0.21  # (2 / probes)^(1/2) = 0.14 for one input, and every further input lowers it
    torch.testing.assert_close(estimated.share.sum(1), torch.ones(3, dtype=torch.float64))
    assert (estimated.share - exact.share).abs().max() < 0.1
    again = measured(net, probes=100, generator=generator(3))
    assert torch.equal(again.squared_norm, estimated.squared_norm)


def test_hidden_layers_of_unknown_action_are_taken_together():
    net = network(MLP, SQUARE)
    attribution = measured(net)
    assert attribution.layers == ("blocks.0.linear + blocks.0.gate + blocks.1.linear + blocks.1.gate + head",)
    torch.testing.assert_close(attribution.contributions[:, 0], attribution.total)
    supposed = measured(net, hidden={"blocks.0.gate": 40 * Scalar(SQUARE)})
    assert supposed.layers == ("blocks.0.linear + blocks.0.gate", "blocks.1.linear + blocks.1.gate + head")
    assert residual(supposed) < 1e-12
    torch.testing.assert_close(supposed.total, attribution.total)


def test_a_layer_that_nobody_reads_is_left_out_with_what_only_it_reads():
    """`a` was kept for `b`, which was dropped, and then nothing of `a` came to the output."""
    rep, A = V(ROTATIONS), torch.eye(3, dtype=torch.float64) + torch.ones(3, 3, dtype=torch.float64).triu()
    layer = lambda name, *inputs: Layer(name, lambda x: x @ A, rep, inputs)  # noqa: E731
    x = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
    branched = [layer("a", "input"), layer("b", "a"), layer("c", "input")]
    attribution, alone = (layerwise_lie_derivative(layers, rep, rep, x) for layers in (branched, branched[2:]))
    assert attribution.layers == ("c",) and attribution.residual < 1e-12
    torch.testing.assert_close(attribution.contributions, alone.contributions)


def test_a_sequential_network_gets_layers_from_the_representations_given():
    G = SQUARE
    strict = network(EMLP, G)
    first, last = strict.blocks[0], strict.head
    model = nn.Sequential(first, nn.Linear(40, 40, dtype=torch.float64), last)
    x, ends = inputs(strict), (strict.rep_in, strict.rep_out)
    assert len(layerwise_difference(model, *ends, x).layers) == 1
    known = layerwise_difference(model, *ends, x, hidden={"0": strict.hidden[0], "1": strict.hidden[1]})
    assert known.layers == ("0", "1", "2") and known.largest("h0") == "1"
    assert known.norm[:, [0, 2]].max() < 1e-12
    as_layers = [Layer("0", first, strict.hidden[0]), Layer("1", model[1], strict.hidden[1]), Layer("2", last, None)]
    torch.testing.assert_close(layerwise_difference(as_layers, *ends, x).contributions, known.contributions)
    assert layerwise_difference(lambda x: model(x), *ends, x).layers == ("f",)
    assert layerwise_difference(Layer("alone", model), *ends, x).layers == ("f",)  # it is a function, and no sequence


def smooth_network(channels=3):
    """Convolutions, smooth non-linearities, average pooling: no ties."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, padding_mode="circular"), nn.ReLU(inplace=True), nn.AvgPool2d(2),
            nn.Conv2d(channels, 4, 3, padding=1, padding_mode="circular"), nn.SiLU(), nn.Flatten(), nn.Linear(64, 5),
            nn.Softmax(-1),
        ).double()  # fmt: skip


@pytest.mark.parametrize("flow", [images.rotation(), images.translation("x", "fourier")], ids=lambda f: f.name)
def test_feature_maps_move_with_the_image(flow):
    model = smooth_network()
    x = torch.randn(4, 1, 8, 8, generator=generator(4), dtype=torch.float64)
    before = x.clone()
    attribution = layerwise_lie_derivative(model, flow, flow, x, hidden=flow)
    assert residual(attribution) < 1e-12 and attribution.generators == (flow.name,)
    assert torch.equal(x, before)  # the ReLU in place has not touched it
    torch.testing.assert_close(attribution.total, lie_derivative(model, flow, flow, x))
    if "translation" in flow.name:  # circular convolutions commute with periodic translations, pooling does not
        convolutions = [0, 3]
        assert attribution.norm[0, convolutions].max() < 1e-12 < 1e-5 < attribution.norm[0, [1, 2]].min()


def test_errors_name_the_fault():
    net = network(EMLP, SQUARE)
    x, ends = inputs(net), (net.rep_in, net.rep_out)
    with pytest.raises(ValueError, match="use layerwise_difference"):
        layerwise_lie_derivative(net, *ends, x)
    turning = network(EMLP)
    with pytest.raises(ValueError, match=r"give elements=\[g"):
        layerwise_difference(turning, turning.rep_in, turning.rep_out, inputs(turning))
    with pytest.raises(ValueError, match=r"'blocks\.7'"):
        layerwise_difference(net, *ends, x, hidden={"blocks.7": V(SQUARE)})
    with pytest.raises(ValueError, match="probes=1"):
        layerwise_lie_derivative(turning, turning.rep_in, turning.rep_out, inputs(turning), probes=1)
    with pytest.raises(ValueError, match="the network's own group"):
        layers_of(net, V(Z(4)))
    with pytest.raises(ValueError, match="no layers"):
        layers_of(nn.Sequential(), V(Z(4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rearrangements_of_many_entries_are_seen_in_either_precision(dtype):
    """25,088 entries, as VGG's: flattened, they keep their pixels, and the head breaks what is broken."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 512, 1), nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 2)).to(dtype)
    x = torch.rand(1, 1, 14, 14, generator=generator(2), dtype=dtype)
    rotation = images.rotation()
    found = layerwise_lie_derivative(net, rotation, TrivialFlow("rotation"), x, hidden=rotation)
    flatten = next(i for i, name in enumerate(found.layers) if "Flatten" in name or name == "2")
    assert float(found.share[0, flatten].abs().max()) < 1e-3
