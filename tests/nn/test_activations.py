"""Activations by name: what they are, where they act, and that symmetries survive them."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from rppdyn.groups import SO, Z
from rppdyn.jobs.config.base import Activation
from rppdyn.nn import ACTIVATIONS, EMLP, MLP, RPPEMLP, Pointwise
from rppdyn.nn.hidden import ALIASES, activation_of
from rppdyn.reps import Rep, Scalar, V

SIGN = Rep.from_generators(Z(2), discrete_generators=[[[-1.0]]], name="sign")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gain_keeps_the_mean_square(name):
    z = torch.randn(400_000, generator=seeded(), dtype=torch.float64)
    assert (ACTIVATIONS[name](z) * ACTIVATIONS[name].gain).square().mean().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_module_of_torch_is_the_same_function(name):
    z = torch.randn(50, generator=seeded())
    torch.testing.assert_close(ACTIVATIONS[name].module()(z), ACTIVATIONS[name](z))
    assert activation_of(ACTIVATIONS[name].module) is ACTIVATIONS[name]


def test_configurations_name_the_same_ones():
    assert set(get_args(Activation)) == set(ACTIVATIONS) | set(ALIASES)


@pytest.mark.parametrize("wrong", ["rellu", nn.Linear, 3, nn.ReLU()])
def test_no_such_activation(wrong):
    with pytest.raises(ValueError, match=r"no activation.*choose one of swish, relu"):
        MLP(V, V, Z(3), hidden=8, activation=wrong)


@pytest.mark.parametrize(("group", "name"), [(Z(3), "tanh"), (Z(3), "relu"), (SO(2), "softplus")], ids=str)
def test_symmetry_survives(group, name):
    options = dict(hidden=24, num_layers=2, activation=name)
    net = EMLP(2 * V, V, group, **options, generator=seeded())
    relaxed = RPPEMLP(2 * V, V, group, **options, free_scale=1.0, generator=seeded()).double()
    g, x = group.samples(5, seeded(2)), torch.randn(5, net.rep_in.dim, generator=seeded(1), dtype=torch.float64)

    def error(f, dtype=torch.float64):
        image = lambda rep, y: (rep.rho(g).to(y.dtype) @ y[..., None])[..., 0]  # noqa: E731
        expected = image(net.rep_out, f(x.to(dtype)))
        return ((f(image(net.rep_in, x.to(dtype))) - expected).norm() / expected.norm()).item()

    assert error(net, torch.float32) < 1e-4
    assert error(net.double()) < 1e-12
    assert error(relaxed) > 1e-2  # the control: a free pathway of full size
    swish = EMLP(2 * V, V, group, hidden=24, num_layers=2, generator=seeded()).double()
    assert not torch.allclose(net(x), swish(x), rtol=1e-3)


def test_signs_take_odd_activations_alone():
    x = torch.randn(9, 3, generator=seeded(), dtype=torch.float64)
    odd = Pointwise(3 * SIGN, "tanh")
    torch.testing.assert_close(odd(-x), -odd(x))
    for name in ("relu", "swish"):
        assert not torch.allclose(ACTIVATIONS[name](-x), -ACTIVATIONS[name](x))
        with pytest.raises(ValueError, match="breaks the symmetry of"):
            Pointwise(3 * SIGN, name)


@pytest.mark.parametrize("group", [Z(3), SO(2)], ids=str)
def test_written_gradient_is_autograds(group):
    net = RPPEMLP(2 * V, Scalar, group, hidden=24, num_layers=2, activation="tanh", generator=seeded()).double()
    x = torch.randn(5, net.rep_in.dim, generator=seeded(1), dtype=torch.float64)
    expected = torch.func.grad(lambda x: net(x).sum())(x)
    torch.testing.assert_close(net.gradient(x), expected)


def test_device():
    net = RPPEMLP(V, V, Z(3), hidden=[12, 6], device="meta")
    assert {t.device.type for t in (*net.parameters(), *net.buffers())} == {"meta"}
    assert [rep.dim for rep in net.hidden] == [12, 6]
