"""Layers and networks are built under torch's default device, meta included, and filled by a state dict.

`test_contracts.py` has networks with all layers of theirs; here are the modules that stand in none.
"""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.dynamics import LearnedFrame
from rppdyn.groups import SO, D, S, SO2eR3
from rppdyn.images import RelaxedImageLayer
from rppdyn.nn import EMLP, Ensemble, InvariantNormaliser, RelaxedLinear
from rppdyn.reps import Scalar, T, V

VECTORS = (Scalar + 2 * V)(SO(3))


def frame():
    rep = (Scalar + 2 * V + T(2))(SO(3))
    return LearnedFrame(EMLP(rep, rep, rep.G, hidden=32, bilinear="published", generator=generator()), rep, rep)


def image(name):
    orientations = (1, 4) if name in ("gconv", "p4") else (1, 1)
    return RelaxedImageLayer(2, 8, (8, 8), {name: 1.0}, orientations=orientations, generator=generator())


CASES = {
    "frame": frame,
    "normaliser": lambda: InvariantNormaliser(VECTORS, clip=5.0),
    "ensemble": lambda: Ensemble([RelaxedLinear(VECTORS, VECTORS, generator=generator()) for _ in range(2)]),
} | {
    name: lambda name=name: image(name)
    for name in ("conv", "gconv", "s_conv", "fc", "f_fc", "s_fc", "p4", "anchored")
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_modules_are_built_on_meta_and_filled(name):
    build = CASES[name]
    plain = build()
    for assign in (False, True):
        with torch.device("meta"):
            module = build()
        assert {t.device.type for t in (*module.parameters(), *module.buffers())} <= {"meta"}
        named = [[(n, p.shape) for n, p in net.named_parameters()] for net in (module, plain)]
        assert named[0] == named[1]
        module = module if assign else module.to_empty(device="cpu")
        module.load_state_dict(plain.state_dict(), assign=assign)
        for (name, expected), (_, found) in zip(plain.named_buffers(), module.named_buffers(), strict=True):
            torch.testing.assert_close(found, expected, msg=name)
    assert build().state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("make", [lambda: SO(3), lambda: D(4), lambda: S(4) * SO(2), lambda: SO2eR3()])
def test_groups_and_representations_are_computed_on_the_cpu(make):
    plain = make()
    with torch.device("meta"):
        G = make()
        rep = (V + Scalar + V * V)(G)
        found = rep.equivariant_basis(), rep.rho(G.samples(2)), rep.is_orthogonal, (rep >> V(G)).equivariant_basis()
        net = EMLP(V + Scalar, V, G, hidden=8)
    assert G == plain and found[2] == plain.is_orthogonal
    assert {t.device.type for t in (found[0], found[1], found[3])} == {"cpu"}
    assert {p.device.type for p in net.parameters()} == {"meta"}
    torch.testing.assert_close(found[0], (V + Scalar + V * V)(plain).equivariant_basis())
