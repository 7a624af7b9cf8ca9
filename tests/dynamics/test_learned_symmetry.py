"""A Hamiltonian and the axis of its symmetry, learned together."""

from __future__ import annotations

import math

import pytest
import torch
from refusals import refused
from registry import generator

from rppdyn.dynamics import learn_symmetry
from rppdyn.groups import SO, Z
from rppdyn.reps import V
from rppdyn.tasks import Pendulum


def data(wind, count=30, noise=0.02):
    pendulum, g = Pendulum(wind=wind), generator()
    z = pendulum.initial_state(count, g)
    rates = pendulum.vector_field(z)
    return pendulum, z, rates + noise * torch.randn(rates.shape, dtype=rates.dtype, generator=g)


def axis_of(model):
    A = model.generator
    return torch.nn.functional.normalize(torch.stack([A[2, 1], A[0, 2], A[1, 0]]), dim=0)


def test_the_tilted_axis_is_found_from_thirty_noisy_states():
    pendulum, z, rates = data(wind=0.1)
    arms = {"learned": (pendulum.rep(SO(3)), None), "none": (None, None)}
    arms["vertical"] = (pendulum.rep(SO(3)), torch.tensor([float(A[0, 1]) for A in SO(3).lie_algebra]))
    found = {
        arm: learn_symmetry(z, rates, rep, generator=generator(1), fixed=fixed, features=60)
        for arm, (rep, fixed) in arms.items()
    }
    force = torch.nn.functional.normalize(torch.tensor([0.8, 0.5, 1.0]).double(), dim=0)
    assert math.degrees(math.acos(abs(float(axis_of(found["learned"]) @ force)))) < 5
    assert found["learned"].log_evidence > found["vertical"].log_evidence > found["none"].log_evidence
    assert found["none"].generator is None and found["learned"].strength > 100 * found["vertical"].strength
    assert torch.allclose(axis_of(found["vertical"]).abs(), torch.tensor([0.0, 0.0, 1.0]).double())
    assert found["learned"].vector_field(z[:3]).shape == (3, 12)


def test_units_change_nothing():
    pendulum, z, rates = data(wind=0.1)
    unit = torch.tensor([1e3] * 6 + [1e3 * 60] * 6).double()  # mm, and g mm/s of other clocks, or so
    first, second = (
        learn_symmetry(z * s, rates * s, pendulum.rep(SO(3)), generator=generator(1), features=40)
        for s in (torch.ones(12).double(), unit)
    )
    assert abs(float(axis_of(first) @ axis_of(second))) > math.cos(math.radians(0.5))
    scaled = second.vector_field(z * unit) / unit
    assert (scaled - first.vector_field(z)).norm() < 0.01 * first.vector_field(z).norm()


def test_bad_input():
    z = torch.zeros(4, 6).double()
    for states, rates, rep, words in [
        (z, z[:2], None, "a rate for each coordinate"),
        (z[:, :5], z[:, :5], None, "as many momenta"),
        (z[:1], z[:1], None, "two or more states"),
        (z, z, 4 * V(SO(3)), "acts on 12"),
    ]:
        with pytest.raises(ValueError, match=words):
            learn_symmetry(states, rates, rep, generator=generator())
    with refused("Z(3) has no continuous generators"):
        learn_symmetry(z, z, 2 * V(Z(3)), generator=generator())
    for rep, count in ((None, 0), (2 * V(SO(3)), 3)):
        with refused("fixed has 2 coefficients", f"{count} generators"):
            learn_symmetry(z, z, rep, generator=generator(), fixed=torch.ones(2))
    pendulum, z, rates = data(wind=0.1, noise=0.0)
    with refused("the rates seem to have no noise", "discover"):
        learn_symmetry(z, rates, pendulum.rep(SO(3)), generator=generator(1), features=20)
