"""Networks that merging refuses, and frozen ones; `test_networks.py` has that merging keeps the function."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.groups import SO, S
from rppdyn.images import ImageModel, LayerSpec, RelaxedImageLayer
from rppdyn.nn import EMLP, RPPEMLP, RelaxedLinear, freeze, merge
from rppdyn.reps import V


def test_layers_of_images_are_refused_by_name():
    layer = RelaxedImageLayer(1, 2, (4, 4), {"conv": 1.0, "fc": 1.0}, generator=generator())
    model = ImageModel([LayerSpec(2)], 1, (4, 4), 3, {"conv": 1.0}, generator=generator())
    net = RPPEMLP(V, V, SO(3), hidden=12, num_layers=1, generator=generator())
    both = nn.ModuleDict({"net": net, "images": model})
    for module, name in (layer, "the module"), (model, "blocks.0"), (both, "images.blocks.0"):
        with refused(f"{name} is a RelaxedImageLayer", "merge networks of RelaxedLinear alone"):
            merge(module)


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


def test_networks_inside_a_module_are_frozen_where_they_are():
    net = RPPEMLP(V, V, SO(3), hidden=24, num_layers=1, generator=generator())
    module, x = nn.ModuleDict({"a": nn.Sequential(net, nn.Tanh())}), torch.randn(5, 3, generator=generator(1))
    frozen = freeze(module)
    assert not any(isinstance(m, RPPEMLP) for m in frozen.modules())
    torch.testing.assert_close(frozen["a"](x), module["a"](x))


RUN_ALONE = """
import sys
import numpy as np
import onnxruntime
sys.modules["rppdyn"] = sys.modules["torch"] = None  # neither can be imported
options = onnxruntime.SessionOptions()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
data = np.load(sys.argv[2])
for x, y in ((data["x"], data["y"]), (data["gx"], data["gy"])):
    (out,) = session.run(None, {"observation": x})
    assert np.abs(out - y).max() < 1e-5 * np.abs(y).max(), np.abs(out - y).max()
"""


SWARM = SO(3) * S(3)
MEMBERS = V(S(3)).lift(SWARM) * V(SO(3)).lift(SWARM)


def test_an_exported_network_runs_without_this_package_and_is_equivariant(tmp_path):
    """One with products at points; the tests of agents have other layers."""
    pytest.importorskip("onnxruntime")
    from rppdyn.agents._export import write_onnx

    net = EMLP(MEMBERS, MEMBERS, SWARM, num_layers=2, hidden=96, generator=generator())
    x = torch.randn(7, net.rep_in.dim, generator=generator(1))
    g = SWARM.samples(1, generator(2))[0]
    with torch.no_grad():
        gx, y = x @ net.rep_in.rho(g).float().mT, net(x)
        gy = y @ net.rep_out.rho(g).float().mT
    assert (gy - y).norm() > 0.1 * y.norm()  # else nothing is asked
    write_onnx(freeze(net), tmp_path / "net.onnx", net.rep_in.dim, torch.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y, gx=gx, gy=gy)
    command = [sys.executable, "-c", RUN_ALONE, str(tmp_path / "net.onnx"), str(tmp_path / "data.npz")]
    subprocess.run(command, check=True, cwd=tmp_path)
