"""Layers and networks are built under torch's default device, meta included, and filled by a state dict."""

from __future__ import annotations

import pytest
import torch

from rppdyn.dynamics import LearnedFrame
from rppdyn.groups import SO, D, O, S, SO2eR3, Z
from rppdyn.images import RelaxedImageLayer
from rppdyn.nn import (
    EMLP,
    Bilinear,
    ChannelProducts,
    Ensemble,
    Gate,
    InvariantNormaliser,
    RelaxedLinear,
)
from rppdyn.reps import Scalar, T, V

SO3, O2, Z4 = SO(3), O(2), Z(4)
REPS = {str(G): (Scalar + 2 * V)(G) for G in (SO3, O2, Z4)}
TENSORS, COLUMNS = (Scalar + 2 * V + T(2))(SO3), (3 * Scalar + 2 * V)(SO3)


def on_group(build):
    return [pytest.param(build, rep, id=f"{build.__name__} of {name}") for name, rep in REPS.items()]


def generator():
    return torch.Generator().manual_seed(0)


def linear(rep):
    return RelaxedLinear(rep, rep, generator=generator())


def gate(rep):
    return Gate(rep, free_variance=1.0, generator=generator())


def bilinear(rep):
    return Bilinear(rep, generator=generator())


def products(rep):
    return ChannelProducts(rep, channels=2, generator=generator())


def frame(rep):
    return LearnedFrame(EMLP(rep, rep, rep.G, hidden=32, bilinear="published", generator=generator()), rep, rep)


def stack(rep):
    return Ensemble([linear(rep), linear(rep)])


def normaliser(rep):
    return InvariantNormaliser(rep, clip=5.0) if rep.is_orthogonal else InvariantNormaliser(rep)


def image(name):
    orientations = (1, 4) if name in ("gconv", "p4") else (1, 1)
    return RelaxedImageLayer(2, 8, (8, 8), {name: 1.0}, orientations=orientations, generator=generator())


CASES = [
    *(case for build in (linear, gate, normaliser, stack) for case in on_group(build)),
    *(pytest.param(build, TENSORS, id=build.__name__) for build in (bilinear, frame)),
    pytest.param(products, COLUMNS, id="products"),
    *(
        pytest.param(image, name, id=name)
        for name in ("conv", "gconv", "s_conv", "fc", "f_fc", "s_fc", "p4", "anchored")
    ),
]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("build, of", CASES)
def test_modules_are_built_on_meta_and_filled(build, of, assign):
    plain = build(of)
    with torch.device("meta"):
        module = build(of)
    assert {t.device.type for t in (*module.parameters(), *module.buffers())} <= {"meta"}
    assert [(n, p.shape) for n, p in module.named_parameters()] == [(n, p.shape) for n, p in plain.named_parameters()]
    module = module if assign else module.to_empty(device="cpu")
    module.load_state_dict(plain.state_dict(), assign=assign)
    for (name, expected), (_, found) in zip(plain.named_buffers(), module.named_buffers(), strict=True):
        torch.testing.assert_close(found, expected, msg=name)
    assert build(of).state_dict().keys() == plain.state_dict().keys()


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
