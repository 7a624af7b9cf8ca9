"""Models of images: sizes as published, symmetry where free pathways are off, and seeds that run stacked."""

from __future__ import annotations

import pytest
import torch
from image_pathways import images, relative
from registry import generator

from rppdyn.images import (
    ARCHITECTURES,
    ImageModel,
    LayerSpec,
    RelaxedImageLayer,
    nine_layers,
    small,
    ten_layers,
    three_layers,
)
from rppdyn.images._pathways import MAPS, STATIONARY
from rppdyn.images.registry import REGISTRY
from rppdyn.nn import Ensemble
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import Categorical, curvature, kronecker_evidence

TINY = [LayerSpec(3), LayerSpec(4, subsample="polyphase"), LayerSpec(4, kernel_size=1)]


def tiny(pathways, seed=0, size=(8, 8)):
    return ImageModel(TINY, 1, size, 5, pathways, generator=generator(seed)).double()


def ten_layers_counts(width, channels=3, outputs=10):
    """In closed form: pairs of channels and input channels of its eight 3 x 3 layers, and the rest."""
    widths = [width * factor for factor in (1, 2, 2, 4, 4, 8, 8, 16)]
    inputs = [channels, *widths[:-1]]
    pairs = sum(a * b for a, b in zip(inputs, widths, strict=True))
    one_by_one = 16 * width * 64 * width + 64 * width * outputs
    return pairs, sum(inputs), one_by_one + sum(widths) + 64 * width + outputs


@pytest.mark.parametrize(
    ("kind", "width", "published"),
    [
        ("conv", 10, 338_770), ("gconv", 10, 1_025_380), ("gconv_separable", 10, 214_550), ("gconv_pointwise", 10, 338_770),
        ("gconv", 6, 371_200), ("gconv_separable", 13, 358_463), ("gconv", 1, None),
    ],
)  # fmt: skip
def test_ten_layers_have_the_published_number_of_parameters(kind, width, published):
    """Table 7, on CIFAR-10, with width 10 and with widths matched in parameters."""
    pairs, inputs, rest = ten_layers_counts(width)
    expected = {
        "conv": 9 * pairs,
        "gconv": 4 * 9 * pairs,
        "gconv_separable": 4 * pairs + (9 + 1) * inputs,  # depthwise in space, with an offset
        "gconv_pointwise": 9 * pairs,
    }[kind] + rest
    model = ImageModel(ten_layers(width), 3, (32, 32), 10, {kind: 1.0})
    assert sum(p.numel() for p in model.parameters()) == expected
    assert published in (expected, None)
    assert [layer.size[0] for _, layer in model.layers()] == [32, 32, 16, 16, 8, 8, 4, 2, 1, 1]
    assert [list(dict(layer.named_children())) for _, layer in model.layers()[-2:]] == [["conv", "bias"]] * 2


def test_nine_layers():
    model = ImageModel(nine_layers(), 3, (32, 32), 10, {"conv": 1.0})
    assert [layer.out_channels for _, layer in model.layers()] == [16, 16, 16, 32, 32, 32, 32, 32, 32, 10]
    assert [layer.size[0] for _, layer in model.layers()] == [32] * 3 + [16] * 3 + [8] * 3 + [1]
    assert model.head.in_channels == 32 * 8 * 8


@pytest.mark.parametrize(
    "pathways", [{"conv": 1.0}, {"fc": 1.0}, {"fc": 1e-2, "conv": 1.0}, {"gconv": 1.0}], ids="+".join
)
def test_networks_of_tables_end_in_a_fully_connected_layer(pathways):
    """Finzi 2023, A.2.3.2: three layers and one, which is the same for convolutions, a plain network and their sum."""
    width, pixels, outputs = 6, 16, 3
    model = ImageModel(three_layers(width), 1, (4, 4), outputs, pathways, generator=generator()).double()
    turns = 4 if "gconv" in pathways else 1
    pairs = width + 2 * turns * width**2
    expected = {"conv": 9 * pairs, "gconv": 9 * pairs, "fc": pixels**2 * pairs}
    hidden = sum(expected[name] for name in pathways) + 3 * width
    assert sum(p.numel() for p in model.parameters()) == hidden + turns * width * pixels * outputs + outputs
    assert list(dict(model.head.named_children())) == ["conv", "bias"] and not model.head.pooled
    assert model.head.conv.variance == max(pathways.values())
    x = images(3, 1, size=(4, 4))
    assert min(relative(model(x.roll(s, (-2, -1))), model(x)) for s in ((1, 0), (0, 1), (2, 3))) > 1e-2


def test_maps_are_flattened_as_torch_flattens_them():
    model = ImageModel([LayerSpec(3, subsample="flatten")], 1, (4, 4), 2, {"conv": 1.0}, generator=generator()).double()
    x = images(2, 1, size=(4, 4))
    hidden = torch.relu(model.blocks[0](x)).flatten(1)
    expected = torch.nn.functional.linear(hidden, model.head.conv.weight.flatten(1))
    assert relative(model(x), expected) < 1e-14


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_runs(name):
    model = ImageModel(ARCHITECTURES[name](2), 3, (32, 32), 7, {"conv": 1.0, "f_fc": 1.0}, generator=generator())
    y = model(torch.randn(4, 3, 32, 32, generator=generator(1)))
    assert y.shape == (4, 7) and 0.05 < y.std() < 5


@pytest.mark.parametrize("kind", [name for name in MAPS if not name.startswith("gconv")])
def test_models_are_invariant_where_only_stationary_pathways_are_on(kind):
    x = images(3, 1, size=(8, 8))
    model = tiny({kind: 1.0})
    y = model(x)
    errors = [relative(model(x.roll(s, (-2, -1))), y) for s in ((1, 0), (3, 5), (4, 4))]
    if kind in STATIONARY:
        assert max(errors) < 1e-12
        assert relative(model.float()(x.float().roll((1, 2), (-2, -1))), model(x.float())) < 1e-5
    else:
        assert min(errors) > 1e-3


def test_construction_is_seeded():
    x = images(2, 1, size=(8, 8))
    a, b, c = (tiny({"conv": 1.0, "s_fc": 1.0}, seed)(x) for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_ten_layers_of_group_convolutions_are_invariant():
    """To shifts and quarter turns, from lifted images to maps of one pixel; without pooling orientations they are not."""
    model = ImageModel(ten_layers(1), 2, (32, 32), 5, {"gconv": 1.0}, generator=generator()).double()
    x = images(2, 2, size=(32, 32))
    y = model(x)
    assert (y - y[:1]).abs().max() > 1e-3
    for turns, shift in ((1, (0, 0)), (0, (1, 0)), (3, (5, 2)), (2, (16, 31))):
        assert relative(model(x.rot90(turns, (-2, -1)).roll(shift, (-2, -1))), y) < 1e-11
    pooling = model.subsampling[7][1]
    pooling.forward = lambda maps: maps.unflatten(1, (-1, 4))[:, :, 0]
    assert relative(model(x.rot90(1, (-2, -1))), model(x)) > 1e-3


def test_a_lifted_image_makes_the_same_function_of_more_weights():
    """Only the sum over orientations of a lifted layer's filters matters."""
    lifted, plain = (
        ImageModel([LayerSpec(3, lifted=on)], 2, (8, 8), 4, {"gconv": 1.0}, generator=generator()).double()
        for on in (True, False)
    )
    with torch.no_grad():
        plain.blocks[0].gconv.weight.copy_(lifted.blocks[0].gconv.weight.sum(2, keepdim=True))
        plain.head.load_state_dict(lifted.head.state_dict())
    x = images(3, 2, size=(8, 8))
    assert relative(lifted(x), plain(x)) < 1e-13
    with pytest.raises(ValueError, match=r"lifted=True of a layer that is not the first"):
        ImageModel([LayerSpec(3), LayerSpec(3, lifted=True)], 2, (8, 8), 4, {"gconv": 1.0})
    without = ImageModel([LayerSpec(3, lifted=True)], 2, (8, 8), 4, {"conv": 1.0})
    assert without.blocks[0].in_channels == 2


def test_a_free_pathway_breaks_the_symmetry_in_proportion():
    x = images(3, 1, size=(8, 8))
    errors = []
    for scale in (0.0, 1e-3, 1e-2):
        model = tiny({"conv": 1.0, "f_fc": 1.0})
        with torch.no_grad():
            for _, name, p in named_pathways(model):
                if name == "f_fc":
                    p.V.mul_(scale)
        errors.append(relative(model(x.roll((1, 2), (-2, -1))), model(x)))
    assert errors[0] < 1e-12 and 5 < errors[2] / errors[1] < 20


def test_stacked_batch_norm_is_each_members_own():
    """Outputs and running means of training, and outputs afterwards; then it turns with its images, and samples are apart."""
    members = [ImageModel(TINY, 1, (8, 8), 5, {"p4": 1.0}, batch_norm=True, generator=generator(s)) for s in range(2)]
    members = [member.double() for member in members]
    stack, x = Ensemble(members), torch.stack([images(6, 1, seed, (8, 8)) for seed in (1, 2)])
    for training in (True, False):
        y = stack.train(training).per_member(lambda net, x: net(x), x)
        for i, member in enumerate(members):
            assert relative(member.train(training)(x[i]), y[i]) < 1e-13
            own = stack.member(i)
            assert relative(own.norms[0].running_mean, member.norms[0].running_mean) < 1e-13
            assert own.norms[0].running_mean.abs().max() > 1e-3
    model = members[0]
    assert relative(model(torch.rot90(x[0], 1, (-2, -1))), model(x[0])) < 1e-12
    assert relative(model(x[0])[4:], model(x[0][4:])) < 1e-13
    plain = ImageModel(TINY, 1, (8, 8), 5, {"p4": 1.0}, generator=generator(0))
    assert set(plain.state_dict()) == {k for k in members[0].state_dict() if not k.startswith("norms")}


@pytest.mark.parametrize("kind", MAPS)
def test_the_marginal_likelihood_takes_every_pathway(kind):
    """Every layer's, biases among them; the data determine something of each, and no more than there is."""
    x = images(6, 1, size=(8, 8))
    model = tiny({kind: 1.0})
    blocks = curvature(model, model, [x], Categorical())
    found = kronecker_evidence(model, blocks)
    assert {(p.layer, p.name) for p in found.pathways} == {(layer, name) for layer, name, _ in named_pathways(model)}
    gamma = found.effective()
    assert (gamma > 0).all() and (gamma < found.counts).all()


@pytest.mark.parametrize(
    ("size", "words"), [((10, 10), r"maps of \(5, 5\) pixels can't be subsampled"), ((2, 2), r"maps of \(1, 1\)")]
)
def test_refusals(size, words):
    with pytest.raises(ValueError, match=words):
        ImageModel(small(2), 1, size, 10, {"conv": 1.0})


def test_on_maps_of_one_pixel_the_map_keeps_the_variance_of_a_map():
    model = ImageModel([LayerSpec(3)], 1, (1, 1), 2, {"pixel_bias": 1e-4, "fc": 0.5})
    assert model.blocks[0].conv.variance == 0.5


@pytest.mark.parametrize("pathway", ["conv", "gconv", "se2", "fc", "f_fc", "s_fc", "operators"])
def test_maps_of_another_size_are_refused(pathway):
    """A height and a width that are exchanged have as many pixels, and one pixel would be spread over all."""
    turning = REGISTRY[pathway].orientations()
    channels = 4 if turning == 1 else turning
    layer = RelaxedImageLayer(channels, channels, (4, 9), {pathway: 1.0}, orientations=(turning, turning))
    expected = rf"give \(N, {channels}, 4, 9\)"
    model = ImageModel([LayerSpec(4), LayerSpec(4)], 1, (4, 9), 3, {pathway: 1.0})
    for size in ((9, 4), (2, 18), (1, 1), (6, 6)):
        with pytest.raises(ValueError, match=rf"maps of shape .*: {expected}, {channels} channels of 4 x 9 pixels"):
            layer(torch.zeros(2, channels, *size))
        with pytest.raises(ValueError, match=r"give \(N, 1, 4, 9\)"):
            model(torch.zeros(2, 1, *size))
    with pytest.raises(ValueError, match=expected):
        layer(torch.zeros(2, 3, 4, 9))
    if pathway not in STATIONARY:
        with pytest.raises(ValueError, match=expected):
            getattr(layer, pathway)(torch.zeros(2, 4, 9, 4))
