"""Activations by name: what they are, where they act, and that symmetries survive them."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from rppdyn.groups import Z
from rppdyn.jobs.config.base import Activation
from rppdyn.nn import ACTIVATIONS, MLP, Pointwise
from rppdyn.nn._hidden import ALIASES, activation_of
from rppdyn.reps import Rep, V

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


def test_signs_take_odd_activations_alone():
    x = torch.randn(9, 3, generator=seeded(), dtype=torch.float64)
    odd = Pointwise(3 * SIGN, "tanh")
    torch.testing.assert_close(odd(-x), -odd(x))
    for name in ("relu", "swish"):
        assert not torch.allclose(ACTIVATIONS[name](-x), -ACTIVATIONS[name](x))
        with pytest.raises(ValueError, match="breaks the symmetry of"):
            Pointwise(3 * SIGN, name)


def test_networks_have_it():
    x = torch.randn(5, 3, generator=seeded(1))
    swish, tanh = (MLP(V, V, Z(3), hidden=[12, 6], activation=name, generator=seeded()) for name in ("swish", "tanh"))
    assert not torch.allclose(swish(x), tanh(x), rtol=1e-3) and [rep.dim for rep in tanh.hidden] == [12, 6]
    net = MLP(V, V, Z(3), hidden=[12, 6], device="meta")
    assert {t.device.type for t in (*net.parameters(), *net.buffers())} == {"meta"}
