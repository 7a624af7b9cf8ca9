"""One registry of image pathways: layers, models and configurations read it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from registry import generator

from rppdyn.images import Convolution, GroupConvolution, ImageModel, ImagePathway, LayerSpec
from rppdyn.images._continuous import AnchorBasis, ExponentialBasis, pixel_grid
from rppdyn.images._pathways import MAPS, PATHWAYS, ROTATIONAL, STATIONARY, RelaxedImageLayer, count_rotations
from rppdyn.images.registry import REGISTRY, ROTATIONS_AND_SHIFTS, FilterSettings, PathwayKind
from rppdyn.jobs.config.image import ImagePathwaysConfig


@pytest.mark.parametrize("kind", REGISTRY.values(), ids=lambda kind: kind.name)
def test_every_kind_is_built_by_a_layer_and_can_be_configured(kind):
    turned = kind.orientations()
    others = {} if kind.is_map else {"conv": 1.0}
    layer = RelaxedImageLayer(turned, 2 * turned, (5, 5), {**others, kind.name: 0.5}, orientations=(turned, turned))
    own = getattr(layer, kind.name)
    assert isinstance(own, ImagePathway) and own.variance.item() == pytest.approx(0.5)
    assert kind.name in {item.name for item in fields(ImagePathwaysConfig)}
    assert set(kind.within) <= set(PATHWAYS)


def test_names_follow_from_the_registry():
    assert tuple(REGISTRY) == PATHWAYS
    assert set(ROTATIONAL) < set(STATIONARY) < set(MAPS) < set(PATHWAYS)
    assert [REGISTRY[name].symmetry for name in PATHWAYS] == sorted(REGISTRY[name].symmetry for name in PATHWAYS)


def test_rotations_are_those_of_the_models_group(monkeypatch):
    assert [count_rotations({"conv": 1.0, name: on}) for name, on in (("gconv", 0), ("gconv", 1), ("fc", 1))] == [
        1,
        4,
        1,
    ]
    eight = PathwayKind("eight", "nowhere:Pathway", ROTATIONS_AND_SHIFTS, rotations=lambda settings: settings["n"])
    monkeypatch.setitem(REGISTRY, "eight", eight)
    monkeypatch.setattr("rppdyn.images._pathways.ROTATIONAL", (*ROTATIONAL, "eight"))
    assert count_rotations({"eight": 1.0}, {"eight": {"n": 8}}) == 8
    with pytest.raises(ValueError, match=r"these differ: gconv has 4, eight has 8; give the others filters.elements=4"):
        count_rotations({"gconv": 1.0, "eight": 1.0}, {"eight": {"n": 8}})
    with pytest.raises(
        ValueError, match="pathways scaling and p4: channels stand for scalings of one and for rotations of"
    ):
        count_rotations({"p4": 1.0, "scaling": 1.0}, {"scaling": FilterSettings(elements=4)})
    model = ImageModel([LayerSpec(3)], 1, (4, 4), 2, {"gconv": 1.0}, generator=generator())
    assert model.rotations == 4 and isinstance(model.blocks[0].gconv, GroupConvolution)
    assert isinstance(ImageModel([LayerSpec(3)], 1, (4, 4), 2, {"s_conv": 1.0}).head.s_conv, Convolution)


def test_a_configuration_reads_it_without_torch():
    code = "import sys, rppdyn.jobs.config.image, rppdyn.images; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_product_over_dimensions_is_the_exponential_of_the_plane():
    plane = ExponentialBasis((3, 5)).double()
    anchors = AnchorBasis(plane.anchors.detach(), frequencies=[2**0.5] * 2)
    torch.testing.assert_close(anchors.similarity(anchors.places, pixel_grid((3, 5)).double()), plane())
