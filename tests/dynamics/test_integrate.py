"""Rollouts: orders of convergence, symplecticity, gradients, and trajectories that diverge."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module

import pytest
import torch
from torch import nn

from rppdyn.dynamics import (
    METHODS,
    DynamicsModel,
    HamiltonianModel,
    IntegrationError,
    NeuralODEModel,
    SeparableHamiltonian,
    integrate,
)
from rppdyn.groups import O2eR3
from rppdyn.nn import EMLP
from rppdyn.reps import V


class Pendulum(nn.Module):
    """H = p^2 / 2 - cos q."""

    def forward(self, z):
        q, p = z.chunk(2, -1)
        return p.square() / 2 - q.cos()


class Field(DynamicsModel):
    """A vector field given by a function."""

    def __init__(self, function):
        super().__init__(nn.Identity())
        self.function = function

    def assemble(self):
        return None

    def vector_field(self, z, weights=None):
        return self.function(z)


def pendulum():
    return HamiltonianModel(Pendulum(), separable=True)


Z0 = torch.tensor([[1.0, 0.5], [-0.3, 0.1]], dtype=torch.float64)
TIMES = torch.linspace(0, 2, 5, dtype=torch.float64)


@cache
def truth():
    return integrate(pendulum(), Z0, TIMES, rtol=1e-12, atol=1e-13).states


@pytest.mark.parametrize(("method", "order"), [("rk4", 4), ("leapfrog", 2)])
def test_errors_fall_with_the_methods_order(method, order):
    solve = lambda step: integrate(pendulum(), Z0, TIMES, method=method, step=step).states  # noqa: E731
    coarse, fine = (float((solve(step) - truth()).abs().max()) for step in (0.1, 0.05))
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.15)


def test_the_adaptive_method_keeps_its_tolerance():
    solve = lambda t: integrate(pendulum(), Z0, TIMES, rtol=t, atol=t).states  # noqa: E731
    errors = [float((solve(t) - truth()).abs().max()) for t in (1e-4, 1e-8)]
    assert errors[0] < 1e-3 and errors[1] < 1e-7 and errors[0] > 100 * errors[1]


def test_steps_divide_each_interval_and_land_on_every_time():
    uneven = torch.tensor([0.0, 0.25, 0.3, 1.0], dtype=torch.float64)
    expected = integrate(pendulum(), Z0, uneven, rtol=1e-9, atol=1e-9).states
    for step in (None, 0.1, 10.0):
        found = integrate(pendulum(), Z0, uneven, method="rk4", step=step)
        assert found.states.shape == (2, 4, 2) and torch.equal(found.states[:, 0], Z0)
        assert (found.states - expected).abs().max() < (1e-5 if step == 0.1 else 5e-3)


def test_leapfrog_is_symplectic_reversible_and_keeps_energy_for_long():
    times = torch.tensor([0.0, 1.0], dtype=torch.float64)
    flow = lambda z: integrate(pendulum(), z, times, method="leapfrog", step=0.1).states[-1]  # noqa: E731
    M = torch.autograd.functional.jacobian(flow, Z0[0])
    J = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(M.T @ J @ M, J, rtol=0, atol=1e-13)
    rk4 = torch.autograd.functional.jacobian(
        lambda z: integrate(pendulum(), z, times, method="rk4", step=0.25).states[-1], Z0[0]
    )
    assert (rk4.T @ J @ rk4 - J).abs().max() > 1e-7  # the negative control

    back = torch.tensor([1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(flow(flow(Z0[0]) * back) * back, Z0[0], rtol=0, atol=1e-13)

    energy = pendulum().hamiltonian
    long = torch.linspace(0, 100, 51, dtype=torch.float64)
    drift = (energy(integrate(pendulum(), Z0, long, method="leapfrog", step=0.2).states) - energy(Z0)[:, None]).abs()
    assert drift[:, 38:].max() < 1.2 * drift[:, 1:13].max() < 1e-2


def test_leapfrog_of_two_networks_and_not_of_one():
    torch.manual_seed(0)
    part = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()  # noqa: E731
    model = HamiltonianModel(SeparableHamiltonian(part(), part()), separable=True)
    z0 = torch.randn(4, 6, dtype=torch.float64)
    truth = integrate(model, z0, TIMES, rtol=1e-11, atol=1e-12).states
    assert (integrate(model, z0, TIMES, method="leapfrog", step=0.01).states - truth).abs().max() < 1e-4
    whole = HamiltonianModel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double())
    with pytest.raises(ValueError, match="leapfrog needs H = V"):
        integrate(whole, z0, TIMES, method="leapfrog")


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_the_adjoint_gives_the_same_gradients(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    gradients = []
    for adjoint in (False, True):
        model, z0 = HamiltonianModel(net), Z0.clone().requires_grad_()
        options = dict(rtol=1e-10, atol=1e-10) if method == "dopri5" else dict(step=0.02)
        states = integrate(model, z0, TIMES[:3], method=method, adjoint=adjoint, **options).states
        parameters = [z0, *list(net.parameters())[:-1]]  # the Hamiltonian's constant moves nothing
        gradients.append(torch.autograd.grad(states[:, -1].square().sum(), parameters))
    for direct, adjoint in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, adjoint, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("method", "unit"), [("dopri5", 2.0**-30), ("rk4", 2.0**30)])
def test_states_in_other_units_move_and_diverge_alike(method, unit):
    """dz/dt = z^2 / unit; powers of two change no digit."""
    z0, times = torch.tensor([[0.1], [1.0], [0.4]], dtype=torch.float64), torch.linspace(0, 3, 7, dtype=torch.float64)
    one, other = (
        integrate(
            Field(lambda z, u=u: z.square() / u), u * z0, times, method=method, step=0.01, atol=1e-6 * u, bound=1e6 * u
        )
        for u in (1.0, unit)
    )
    assert other.diverged.tolist() == [False, True, True]
    assert torch.equal(other.diverged_at, one.diverged_at) and torch.equal(other.states / unit, one.states)


@pytest.mark.parametrize(("method", "dtype"), [("dopri5", torch.float32), ("rk4", torch.float64)])
def test_a_divergent_trajectory_is_reported_with_its_time_and_harms_no_other(method, dtype):
    """dz/dt = z^2 ends at t = 1 / z(0)."""
    z0 = torch.tensor([[0.1], [1.0], [0.4], [-1.0]], dtype=dtype)
    times = torch.linspace(0, 3, 31, dtype=dtype)
    found = integrate(Field(torch.square), z0, times, method=method, step=0.01)
    assert found.states.isfinite().all()
    assert found.diverged.tolist() == [False, True, True, False]
    assert times[found.diverged_at[1]].item() == pytest.approx(1.0, abs=0.15)
    assert times[found.diverged_at[2]].item() == pytest.approx(2.5, abs=0.15)
    exact = z0 / (1 - z0 * times)
    torch.testing.assert_close(found.states[0, :, 0], exact[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.states[3, :, 0], exact[3], rtol=1e-4, atol=1e-5)
    assert "2 diverged, the first by t = 1" in repr(found)


@pytest.mark.parametrize("times_larger", [1e2, 1e8])
def test_gradients_of_the_others_are_what_they_are_without_a_trajectory_that_diverges(times_larger):
    """A network of degree eight in float32: its values, or their derivatives, are infinite far out."""
    rep = 4 * V(O2eR3())
    net = EMLP(rep, rep, O2eR3(), hidden=32, num_layers=3, generator=torch.Generator().manual_seed(0))
    model = NeuralODEModel(net)
    z0 = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    times = torch.linspace(0, 1, 6)

    def gradient(z0):
        kept = integrate(model, z0, times, method="rk4")
        return kept, torch.autograd.grad(kept.states[~kept.diverged].square().mean(), list(net.parameters()))

    _, expected = gradient(z0[1:])
    far = z0.clone()
    far[0, 0] *= times_larger
    found, gradients = gradient(far)
    assert found.diverged.tolist() == [True, False, False, False]
    assert found.states.isfinite().all() and found.states.abs().max() <= 1e6
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 * float(b.abs().max()) + 1e-12)


@pytest.mark.parametrize("adjoint", [False, True])
def test_so_they_are_where_a_whole_row_diverges(adjoint):
    model = NeuralODEModel(Cubed())
    z0 = torch.tensor([[[50.0], [60.0]], [[0.1], [0.2]]], dtype=torch.float64)
    times = torch.linspace(0, 1, 6, dtype=torch.float64)

    def gradient(z0):
        found = integrate(model, z0, times, method="rk4", step=0.05, adjoint=adjoint)
        return found.diverged, torch.autograd.grad(found.states.sum(), model.net.a)[0]

    _, expected = gradient(z0[1])
    for rows in (z0, z0.flatten(0, 1), z0.unsqueeze(2)):
        diverged, found = gradient(rows)
        assert diverged.flatten().tolist() == [True, True, False, False]
        torch.testing.assert_close(found, expected)


class Cubed(torch.nn.Module):
    """exp((a z)^3) - 1, which is infinite far out."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, z):
        return torch.exp((self.a * z) ** 3) - 1


@pytest.mark.parametrize("far", [[1e7, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]], ids=["out of bounds", "at the centre"])
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_so_they_are_of_a_field_that_is_singular_at_the_origin(method, far):
    a = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    kepler = Field(lambda z: torch.cat([z[..., 2:], -a * z[..., :2] / z[..., :2].norm(dim=-1, keepdim=True) ** 3], -1))
    z0, times = torch.tensor([[1.0, 0, 0, 1], far], dtype=torch.float64), torch.linspace(0, 1, 11, dtype=torch.float64)
    found = integrate(kepler, z0, times, method=method)
    assert found.diverged.tolist() == [False, True]
    alone = integrate(kepler, z0[:1], times, method=method)
    expected = torch.autograd.grad(alone.states[0, -1].sum(), a)[0]
    torch.testing.assert_close(torch.autograd.grad(found.states[0, -1].sum(), a)[0], expected, rtol=1e-4, atol=0)
    lost = integrate(kepler, z0[1:], times, method=method)
    assert lost.diverged.all() and not lost.states.requires_grad


def test_a_step_that_is_taken_again_loses_nothing():
    """dz/dt = -10 log z: a first step of the adaptive method goes below zero, where there is no logarithm."""
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    found = integrate(Field(lambda z: -10 * z.log()), torch.tensor([[2.0]]).double(), times, rtol=1e-2, atol=1e-2)
    assert not found.diverged.any() and abs(float(found.states[0, -1, 0]) - 1) < 0.05


def test_the_adaptive_method_says_that_it_finds_no_steps(monkeypatch):
    with pytest.raises(IntegrationError, match=r"dopri5 finds no steps .*underflow in dt.*use method='rk4'"):
        integrate(Field(lambda z: z.square().exp()), torch.tensor([[1.0], [0.1]]), torch.linspace(0, 1, 5))
    monkeypatch.setattr(import_module("rppdyn.dynamics._integrate"), "MAX_STEPS", 100)
    times = torch.tensor([0.0, 20], dtype=torch.float64)
    with pytest.raises(IntegrationError, match=r"max_num_steps exceeded.*give times in between"):
        integrate(pendulum(), Z0, times, rtol=1e-10, atol=1e-10)

    def refusing(z):
        raise AssertionError("my model wants three coordinates")

    with pytest.raises(AssertionError, match="three coordinates"):
        integrate(Field(refusing), Z0, TIMES)


def test_a_field_that_is_no_number_is_a_divergence():
    found = integrate(
        Field(lambda z: (0.5 - z).sqrt()), torch.zeros(1, 1), torch.linspace(0, 3, 4), method="rk4", step=0.1
    )
    assert found.states.isfinite().all() and found.diverged_at.tolist() == [2]  # sqrt(1/2) - t/2 is zero at t = 1.41
    for method in ("dopri5", "rk4"):
        nothing = integrate(Field(lambda z: z * torch.nan), torch.zeros(1, 1), torch.linspace(0, 3, 4), method=method)
        assert nothing.states.isfinite().all() and nothing.diverged_at.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *((dict(times=t), "times must be finite, increase") for t in (TIMES.flip(0), TIMES[:1], 0 * TIMES, TIMES / 0)),
        (dict(times=TIMES.float()), r"z0 is torch.float64 and times are torch.float32: give both in one"),
        (dict(z0=torch.tensor([[0.0, 1.0], [math.nan, 0.0]]).double()), "z0: 1 of the initial states are no numbers"),
        (dict(z0=Z0[:0]), "give one initial state at least"),
        (dict(method="euler"), f"'euler': choose one of {', '.join(METHODS)}"),
        *((dict(method="rk4", step=h), r"step=.*: must be a positive number") for h in (0.0, -1.0, math.nan)),
        *((dict(rtol=t), r"rtol=.*: must be a number of at least 0") for t in (-1.0, math.nan, math.inf)),
        (dict(rtol=0.0, atol=0.0), "rtol=0 and atol=0"),
        (dict(method="leapfrog", adjoint=True), "adjoint=True goes with"),
        (dict(bound=0.0), r"bound=0\.0: must be a positive number"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        integrate(pendulum(), **(dict(z0=Z0, times=TIMES) | changes))
