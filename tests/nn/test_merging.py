"""What can not be merged; that merging keeps the function is tested with the networks."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.groups import SO
from rppdyn.images import ImageModel, LayerSpec, RelaxedImageLayer
from rppdyn.nn import RPPEMLP, Bilinear, Gate, RelaxedLinear, gated, merge
from rppdyn.reps import T, V


def test_layers_of_images_are_refused_by_name():
    layer = RelaxedImageLayer(1, 2, (4, 4), {"conv": 1.0, "fc": 1.0}, generator=generator())
    model = ImageModel([LayerSpec(2)], 1, (4, 4), 3, {"conv": 1.0}, generator=generator())
    net = RPPEMLP(V, V, SO(3), hidden=12, num_layers=1, generator=generator())
    both = nn.ModuleDict({"net": net, "images": model})
    for module, name in (layer, "the module"), (model, "blocks.0"), (both, "images.blocks.0"):
        with refused(f"{name} is a RelaxedImageLayer", "merge networks of RelaxedLinear alone"):
            merge(module)


@pytest.mark.parametrize("cls", [Gate, Bilinear])
def test_gates_and_bilinear_layers_remain(cls):
    rep = (V + T(2))(SO(3))
    layer = cls(rep, **(dict(free_variance=1.0) if cls is Gate else {}), generator=generator())
    x = torch.randn(5, gated(rep).dim if cls is Gate else rep.dim, generator=generator(1))
    merged = merge(layer)
    assert merged is not layer and torch.equal(merged(x), layer(x))


def test_a_layer_in_two_places_remains_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = RelaxedLinear(V, V, group=SO(3), generator=generator())

        def forward(self, x):
            return self.b(self.a(x))

    net, x = Twice(), torch.randn(5, 3, generator=generator(1))
    merged = merge(net)
    assert type(merged.a) is nn.Linear and merged.b is merged.a
    torch.testing.assert_close(merged(x), net(x))
