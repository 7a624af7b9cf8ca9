"""Group convolutions commute with rotations by 90 degrees as well as with shifts, and so do layers and models of them."""

from __future__ import annotations

import pytest
import torch
from image_pathways import IN, OUT, PATHWAYS, SIZE, images, pathway, relative
from registry import generator

from rppdyn.images import ImageModel, LayerSpec, RelaxedImageLayer
from rppdyn.images._group_convolution import GroupConvolution, expand_filters

TYPES = {name: (4, 4) for name in PATHWAYS if "gconv" in name} | {
    "gconv, lifting": (1, 4),
    "gconv, projecting": (4, 1),
    "gconv, pooled": (4, 1),
}


def turned(x, orientations):
    """Maps turn; of four orientations each becomes the next."""
    x = torch.rot90(x, 1, (-2, -1))
    return torch.roll(x.unflatten(1, (-1, orientations)), 1, 2).flatten(1, 2)


def moved(x, orientations, word):
    """By a word of generators: r is a rotation, i and j are shifts by a pixel."""
    for letter in word:
        x = turned(x, orientations) if letter == "r" else torch.roll(x, 1, -2 if letter == "i" else -1)
    return x


WORDS = ["r", "rr", "i", "j", "ri", "irj", "rijri"]


@pytest.mark.parametrize("name", TYPES)
def test_group_convolutions_commute_with_the_whole_group(name):
    f, x = pathway(name), images()
    before, after = TYPES[name]
    errors = [relative(f(moved(x, before, word)), moved(f(x), after, word)) for word in WORDS]
    assert max(errors) < 1e-12


@pytest.mark.parametrize("name", ["conv", "fc", "s_conv"])
def test_others_do_not(name):
    f, x = pathway(name), images()
    assert relative(f(turned(x, 4)), turned(f(x), 4)) > 0.05


def test_filters_that_do_not_turn_are_no_group_convolution(monkeypatch):
    """The published full version: orientations move on, filters stay as they are."""
    f, x = pathway("gconv"), images()
    still = torch.stack([torch.roll(f.weight, r, 2) for r in range(4)], 1).flatten(2, 3)
    monkeypatch.setattr("rppdyn.images._group_convolution.expand_filters", lambda *_: still)
    assert relative(f(moved(x, 4, "i")), moved(f(x), 4, "i")) < 1e-12
    assert relative(f(turned(x, 4)), turned(f(x), 4)) > 0.05


@pytest.mark.parametrize("orientations", [(4, 4), (1, 4), (4, 1)])
def test_group_convolutions_are_all_that_commute(orientations):
    """The group moves no filter entry to itself alone, so that invariant filters have a quarter of the entries' dimension."""
    f = GroupConvolution(4, 4, orientations=orientations, generator=generator()).double()
    entries = lambda w: expand_filters(w, orientations).flatten()  # noqa: E731
    jacobian = torch.func.jacrev(entries)(f.weight).flatten(1)
    assert torch.linalg.matrix_rank(jacobian) == f.num_coefficients == len(jacobian) // 4


def test_a_layer_is_as_symmetric_as_its_pathways():
    x = images()
    for free, least in ((0, 0.0), (1.0, 0.05)):
        layer = RelaxedImageLayer(
            IN, OUT, SIZE, {"gconv": 1.0, "conv": free}, orientations=(4, 4), free_scale=1.0, generator=generator()
        )
        layer = layer.double()
        torch.nn.init.normal_(layer.bias.bias, generator=generator(7))
        error = relative(layer(turned(x, 4)), turned(layer(x), 4))
        assert error > least if free else error < 1e-12
        assert relative(layer(moved(x, 4, "ij")), moved(layer(x), 4, "ij")) < 1e-12


@pytest.mark.parametrize("kind", ["gconv", "gconv_separable"])
def test_a_model_of_group_convolutions_is_invariant(kind):
    """To every element of the group, through polyphase subsampling; a shared convolution beside it breaks rotations alone."""
    specs = [LayerSpec(2), LayerSpec(3, subsample="polyphase"), LayerSpec(3)]
    x = images(3, 1, size=(8, 8))
    for other, invariant in ({}, True), ({"conv": 1.0}, False):
        model = ImageModel(specs, 1, (8, 8), 5, {kind: 1.0, **other}, generator=generator()).double()
        y = model(x)
        assert y.shape == (3, 5)
        errors = {word: relative(model(moved(x, 1, word)), y) for word in WORDS}
        assert max(errors[word] for word in ("i", "j")) < 1e-12
        assert max(errors.values()) < 1e-12 if invariant else errors["r"] > 1e-3


@pytest.mark.parametrize(
    ("channels", "orientations", "words"),
    [
        ((6, 8), (4, 4), "6 channels don't make fields of 4"),
        ((4, 4), (1, 1), r"give \(1, 4\), \(4, 4\) or \(4, 1\)"),
        ((4, 4), (2, 4), r"orientations=\(2, 4\)"),
    ],
)
def test_refusals(channels, orientations, words):
    with pytest.raises(ValueError, match=words):
        RelaxedImageLayer(*channels, SIZE, {"gconv": 1.0}, orientations=orientations)
