"""Attribution through residual connections and tokens: sums, planted blocks, actions that follow from a flow, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from image_networks import Attention, ResidualNetwork, VisionTransformer, seeded
from registry import generator
from torch import nn
from torch.nn import functional as F

from rppdyn.equivariance import (
    Layer,
    images,
    layers_of,
    layerwise_difference,
    layerwise_lie_derivative,
    lie_derivative,
    tokens,
)
from rppdyn.equivariance._layerwise import _defects, _forward_contributions
from rppdyn.equivariance._lie import TrivialFlow
from rppdyn.equivariance._tracing import Placed
from rppdyn.images import ImageModel, LayerSpec

X = torch.randn(3, 1, 16, 16, generator=generator(0), dtype=torch.float64)
WAVES = torch.stack([torch.ones(16), *(f(math.pi * torch.arange(16) / 8) for f in (torch.cos, torch.sin))]).double()
SMOOTH = torch.einsum("nij,ir,jc->nrc", X[:, 0, :3, :3], WAVES, WAVES)[:, None]
SHIFT = images.translation("x", "fourier")
FLOWS = [SHIFT, images.rotation(), images.brightening()]
NETWORKS = {
    "residual": lambda **options: seeded(ResidualNetwork, **options),
    "transformer": lambda **options: seeded(VisionTransformer, **options),
    "transformer written out": lambda **options: seeded(VisionTransformer, written_out=True, **options),
}


def attributed(network, flow=SHIFT, hidden=None, x=X):
    return layerwise_lie_derivative(network, flow, flow, x, hidden=flow if hidden is None else hidden)


@pytest.mark.parametrize(
    ("name", "flow"), [("residual", FLOWS[1]), ("transformer", FLOWS[2]), ("transformer written out", SHIFT)]
)
def test_contributions_add_up_to_the_end_to_end_value(name, flow):
    network = NETWORKS[name]()
    found = attributed(network, flow)
    assert found.residual < 1e-9
    torch.testing.assert_close(found.total, lie_derivative(network, flow, flow, X))
    assert found.total.norm() > 1e-4 and len(found.layers) > 10  # there was something to attribute, and to what
    assert sum(found.by_kind(flow.name).values()) == pytest.approx(1)
    x32 = X.float()
    single = layerwise_lie_derivative(network.float(), flow, flow, x32, hidden=flow)
    assert single.residual < 1e-2


@pytest.mark.parametrize(("name", "block"), [("residual", 1), ("transformer written out", 0)])
def test_a_planted_broken_block_is_pointed_at(name, block):
    """On smooth images, of which nonlinear layers alias little."""
    assert "broken" not in attributed(NETWORKS[name](), x=SMOOTH).largest(SHIFT.name)  # control: nothing planted
    found = attributed(NETWORKS[name](broken=block), x=SMOOTH)
    assert found.largest(SHIFT.name) == f"blocks.{block}.broken.mul"
    assert found.residual < 1e-9


def test_a_residual_network_of_linear_maps_loses_nothing_but_in_the_planted_block():
    intact = attributed(seeded(ResidualNetwork, act=nn.Identity))
    assert intact.norm.max() < 1e-12
    found = attributed(seeded(ResidualNetwork, act=nn.Identity, broken=1))
    at = found.layers.index("blocks.1.broken.mul")
    assert found.share[0, at] == pytest.approx(1, rel=1e-9) and found.norm[0, at] > 1e-3
    assert found.norm[0].sum() - found.norm[0, at] < 1e-12


def test_gradients_of_outputs_and_forward_products_say_the_same():
    network = NETWORKS["transformer"]()
    graph = layers_of(network, SHIFT, SHIFT, X)
    assert 2 * 3 <= len(graph)  # the first is what the measure takes
    exact = attributed(network)
    torch.testing.assert_close(_forward_contributions(graph, X, _defects(graph, SHIFT, X)[0]), exact.contributions)


def test_the_difference_tends_to_the_lie_derivative_on_a_graph():
    network, t = seeded(ResidualNetwork), 1e-7
    finite = layerwise_difference(network, SHIFT, SHIFT, X, elements=[t], hidden=SHIFT)
    exact = attributed(network)
    assert finite.layers == exact.layers and finite.residual < 1e-6
    torch.testing.assert_close(finite.contributions / t, exact.contributions, rtol=1e-3, atol=1e-5)


def test_tokens_move_with_the_image_and_a_class_token_stays():
    network = seeded(VisionTransformer)
    found = {layer.name: layer for layer in layers_of(network, SHIFT, SHIFT, X)}
    action = found["blocks.0.norm1"].action
    assert isinstance(action, Placed) and torch.equal(action.index, tokens(SHIFT, 8, 8, 8, before=1).index)
    values = torch.randn(2, 65, 8, generator=generator(1), dtype=torch.float64)
    moved = action(values, 0.125)  # one of eight columns
    assert torch.equal(moved[:, 0], values[:, 0])
    torch.testing.assert_close(moved[:, 1:].unflatten(1, (8, 8)), values[:, 1:].unflatten(1, (8, 8)).roll(1, 2))
    assert isinstance(found["getitem"].action, TrivialFlow)
    whole = attributed(network)
    shares = dict(zip(whole.layers, whole.norm[0].tolist(), strict=True))
    assert shares["flatten"] == shares["transpose"] == shares["cat"] == 0 < shares["embed"]
    with pytest.raises(ValueError, match=r"acts on \(batch, 65, 8\) here"):
        action(values[:, 1:], 0.1)


class Patches(nn.Module):
    """A transformer's first layer without a convolution: patches become channels first."""

    def __init__(self):
        super().__init__()
        self.linear, self.head = nn.Linear(16, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = x.unflatten(2, (4, 4)).unflatten(4, (4, 4)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return self.head(F.gelu(self.linear(x)).mean(1))


def test_patches_put_beside_one_another_become_pixels_of_a_coarser_image():
    graph = {layer.name: layer for layer in layers_of(seeded(Patches), SHIFT, SHIFT, X)}
    assert graph["linear"].action.index.shape == (5, 4, 4)  # type: ignore[union-attr]
    found = attributed(seeded(Patches))
    assert found.largest(SHIFT.name) == "linear" and found.residual < 1e-9


def test_of_a_flattened_map_the_linear_layer_is_to_blame():
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 2)))
    found = attributed(network)
    assert found.norm[0, [0, 3, 4]].max() < 1e-12 < found.norm[0, 2] and found.norm[0, 1] > 0  # pointwise: aliasing


def test_scores_of_attention_have_no_action_of_their_own_and_are_one_layer_with_what_reads_them():
    block = seeded(lambda: nn.Sequential(nn.Flatten(2), Transposed(), Attention(1, 1), nn.Flatten(), nn.Linear(256, 2)))
    names = attributed(block).layers
    assert any("softmax" in name and name.count(" + ") >= 2 for name in names)
    assert attributed(block).residual < 1e-9


class Transposed(nn.Module):
    """Channels last."""

    def forward(self, x):
        return x.transpose(1, 2)


def test_image_models_come_apart_into_pathways():
    layers = [LayerSpec(4, subsample="max"), LayerSpec(4, subsample="polyphase"), LayerSpec(3, subsample="flatten")]
    pathways = {"conv": 1.0, "f_fc": 1.0, "pixel_bias": 1.0}
    model = ImageModel(layers, 1, (16, 16), 3, pathways, generator=generator(0)).double()
    with torch.no_grad():
        model.blocks[0].get_submodule("pixel_bias").bias.normal_(generator=generator(1))
    found = attributed(model)
    shares = dict(zip(found.layers, found.norm[0].tolist(), strict=True))
    assert found.residual < 1e-9
    assert shares["blocks.0.conv"] < 1e-12 < 1e-4 < min(shares["blocks.0.f_fc"], shares["blocks.0.pixel_bias"])
    assert shares["blocks.0.bias"] < 1e-12 < shares["subsampling.0.0"]
    strict = ImageModel([LayerSpec(4), LayerSpec(4)], 1, (16, 16), 3, {"conv": 1.0}, generator=generator(0)).double()
    blamed = attributed(strict)
    assert set(blamed.by_kind(SHIFT.name)) >= {"relu", "Convolution"}
    assert blamed.by_kind(SHIFT.name)["relu"] == pytest.approx(1, rel=1e-9)  # Finzi 2023, 4.5: aliasing, nothing else


def test_actions_may_be_named_beside_a_flow():
    network = seeded(VisionTransformer)
    held = {"*": SHIFT, "blocks.0.attention": TrivialFlow(SHIFT.name)}
    found, plain = attributed(network, hidden=held), attributed(network)
    assert found.layers == plain.layers and found.residual < 1e-9
    at = found.layers.index("blocks.0.attention")
    assert abs(found.norm[0, at] - plain.norm[0, at]) > 1e-6
    whole = attributed(network, hidden={"*": SHIFT, "blocks.0": tokens(SHIFT, 8, 8, 8, before=1)})
    assert "blocks.0" in whole.layers and not any(name.startswith("blocks.0.") for name in whole.layers)
    assert whole.residual < 1e-9


def test_layers_with_named_inputs_are_a_graph():
    mix = nn.Conv2d(1, 1, 1).double()
    nn.init.ones_(mix.weight)  # drawn ones may be so small that nothing bends
    layers = [
        Layer("mix", mix, SHIFT),
        Layer("sum", torch.add, SHIFT, ("mix", "input")),
        Layer("tanh", torch.tanh, SHIFT),
        Layer("mean", lambda x: x.mean((2, 3)), TrivialFlow(SHIFT.name)),
    ]
    found = layerwise_lie_derivative(layers, SHIFT, SHIFT, X)
    assert found.residual < 1e-9
    assert found.norm[0, [0, 1, 3]].max() < 1e-12 < 1e-3 < found.norm[0, 2]


class Branching(nn.Module):
    """Goes one way or the other by what it sees."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


class InPlace(nn.Module):
    """Writes into a tensor and reads it under its old name."""

    def forward(self, x):
        y = x * 2
        y.add_(1)
        return y.mean((2, 3))


class Pair(nn.Module):
    """Two outputs."""

    def forward(self, x):
        return x.mean(3), x


def test_what_cannot_be_traced_is_refused_by_name():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(Branching(), nn.Flatten())).double()
    with pytest.raises(
        ValueError, match=r"'1\.0' \(Branching\) can't be traced, after the node 'gt'.*control flow.*hidden="
    ):
        attributed(network)
    assert "1.0" in attributed(network, hidden={"*": SHIFT, "1.0": None}).layers  # what the message says
    with pytest.raises(ValueError, match=r"InPlace computes something else.*'add_', whose value nobody reads"):
        attributed(InPlace())
    with pytest.raises(ValueError, match="Pair returns a tuple"):
        attributed(Pair())
    training = seeded(ResidualNetwork).train()
    with pytest.raises(ValueError, match=r"norm \(BatchNorm2d\) is in training mode.*network\.eval"):
        attributed(training)
    with pytest.raises(ValueError, match=r"hidden names 'blocks\.9'"):
        attributed(seeded(ResidualNetwork), hidden={"*": SHIFT, "blocks.9": SHIFT})
    with pytest.raises(ValueError, match=r"layer b reads 'c': it must come before"):
        layers_of([Layer("a", torch.relu), Layer("b", torch.relu, None, ("c",))], SHIFT)
    with pytest.raises(ValueError, match="two layers are called 'a'"):
        layers_of([Layer("a", torch.relu), Layer("a", torch.relu)], SHIFT)
