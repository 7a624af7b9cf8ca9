"""Vector fields of networks: Hamilton's equations, their symmetry, and what it makes them conserve."""

from __future__ import annotations

import pytest
import torch
from forked import run_code
from torch import nn

from rppdyn.dynamics import (
    FittedDynamics,
    HamiltonianModel,
    MechanicalModel,
    NeuralODEModel,
    integrate,
    noether_momenta,
    relative_drift,
    rollout_error,
)
from rppdyn.equivariance import equivariance_error
from rppdyn.groups import GL, SO, DkeR3, O2eR3, S, SO2eR3
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble
from rppdyn.reps import Scalar, V
from rppdyn.reps._matrices import GeneratedRep

SKEW = [[1.0, 1.0], [0.0, -1.0]]  # a reflection that is not orthogonal


class Oscillators(nn.Module):
    """H = |p|^2 / 2m + k |q|^2 / 2 + a q1 p2."""

    def __init__(self, m=2.0, k=3.0, a=0.0):
        super().__init__()
        self.m, self.k, self.a = m, k, a

    def forward(self, z):
        q, p = z.chunk(2, -1)
        H = p.square().sum(-1) / (2 * self.m) + self.k * q.square().sum(-1) / 2 + self.a * q[..., 0] * p[..., 1]
        return H.unsqueeze(-1)


def network(cls, group, *, out=Scalar, seed=0, **options):
    options = {"hidden": 16, "num_layers": 2} | options
    return cls(4 * V, out, group, generator=torch.Generator().manual_seed(seed), **options).double()


def states(n=6, seed=1):
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_hamiltons_equations_with_the_right_signs():
    z = torch.tensor([[0.5, -1.0, 2.0, 0.25]], dtype=torch.float64)
    field = HamiltonianModel(Oscillators(a=0.7)).vector_field(z)
    q, p = z.chunk(2, -1)
    dq = p / 2.0 + 0.7 * torch.tensor([[0.0, 0.5]], dtype=z.dtype)
    dp = -3.0 * q - 0.7 * torch.tensor([[0.25, 0.0]], dtype=z.dtype)
    torch.testing.assert_close(field, torch.cat([dq, dp], -1), rtol=1e-14, atol=1e-14)


def test_the_field_is_tangent_to_the_levels_of_energy():
    model = HamiltonianModel(network(MLP, O2eR3()))
    z = states().requires_grad_()
    (gradient,) = torch.autograd.grad(model.hamiltonian(z).sum(), z)
    along = (gradient * model.vector_field(z)).sum(-1)
    assert (along.abs() / gradient.square().sum(-1)).max() < 1e-14


@pytest.mark.parametrize(("cls", "out"), [(MLP, Scalar), (RPPEMLP, Scalar), (EMLP, 4 * V)], ids=str)
def test_assembled_once_or_each_time_alone_or_stacked(cls, out):
    system = HamiltonianModel if out is Scalar else NeuralODEModel
    nets = [network(cls, DkeR3(3), out=out, seed=seed, architecture="tensor", bilinear=False) for seed in range(2)]
    z = torch.stack([states(seed=1), states(seed=2)])
    stack = system(Ensemble(nets))
    together = stack.vector_field(z, stack.assemble())
    for net, field, z_member in zip(nets, together, z, strict=True):
        model = system(net)
        torch.testing.assert_close(model.vector_field(z_member), field, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(model(0.0, z_member), model.vector_field(z_member, model.assemble()), rtol=0, atol=0)


def test_symmetric_networks_make_symmetric_fields_and_wrong_groups_do_not():
    z = states(20)
    for system, out in ((HamiltonianModel, Scalar), (NeuralODEModel, 4 * V)):
        for group in (O2eR3(), DkeR3(6)):
            model = system(network(EMLP, group, out=out))
            rep = (4 * V)(group)
            assert equivariance_error(model.vector_field, rep, rep, z).mean < 1e-12, (system, group)
        rep = (4 * V)(SO(3))
        assert equivariance_error(model.vector_field, rep, rep, z).mean > 1e-2  # a smaller symmetry is not a larger one
        plain = system(network(MLP, SO2eR3(), out=out))
        rep = (4 * V)(SO2eR3())
        assert equivariance_error(plain.vector_field, rep, rep, z).mean > 1e-2


def test_momenta_are_the_angular_momentum():
    z = states()
    x1, x2, p1, p2 = z.split(3, -1)
    L = torch.linalg.cross(x1, p1) + torch.linalg.cross(x2, p2)
    torch.testing.assert_close(noether_momenta((2 * V)(SO2eR3()), z).abs(), L[:, 2:].abs(), rtol=1e-13, atol=1e-13)
    all_three = noether_momenta((2 * V)(SO(3)), z)
    torch.testing.assert_close(all_three.square().sum(-1), L.square().sum(-1), rtol=1e-12, atol=1e-12)
    assert noether_momenta((2 * V)(DkeR3(6)), z).shape == (6, 0)


def test_noether_invariant_hamiltonians_conserve_momentum_and_others_do_not():
    times, rep = torch.linspace(0, 2, 5, dtype=torch.float64), (2 * V)(SO2eR3())

    def drift(cls, group, system=HamiltonianModel, out=Scalar, tolerance=1e-5):
        model = system(network(cls, group, out=out, seed=3))
        found = integrate(model.requires_grad_(False), states(2), times, rtol=tolerance, atol=tolerance)
        assert not found.diverged.any()
        return float(relative_drift(noether_momenta(rep, found.states).squeeze(-1)).max())

    assert drift(EMLP, SO2eR3(), tolerance=1e-9) < 1e-7
    assert drift(MLP, SO2eR3()) > 1e-2
    assert drift(EMLP, DkeR3(2)) > 1e-2  # a discrete symmetry has no momentum
    assert drift(EMLP, SO2eR3(), NeuralODEModel, 4 * V) > 1e-2  # nor has a field without a Hamiltonian


def test_rollout_error_leaves_the_initial_state_out():
    truth = torch.ones(2, 4, 3)
    found = truth.clone()
    found[:, 1:] = 3.0
    torch.testing.assert_close(rollout_error(found, truth), torch.full((2, 3), 0.5))


COMPILE = """
import torch
from rppdyn.dynamics import HamiltonianModel, MechanicalModel, integrate
from rppdyn.groups import O2eR3
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.reps import Scalar, V

def backend(graph, inputs):
    graphs.append(graph)
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)
rep = (2 * V)(O2eR3())
for system, *reps in (HamiltonianModel, 4 * V, Scalar), (MechanicalModel, rep, MechanicalModel.rep_out(rep)):
    generators = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    stack = Ensemble([RPPEMLP(*reps, O2eR3(), hidden=8, num_layers=1, generator=g) for g in generators])
    found, graphs = [], []
    for compiled in (False, True):
        model = system(stack)
        if compiled:
            model.compile(backend=backend, fullgraph=True, dynamic=False)
        z0 = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
        integrate(model, z0, torch.tensor([0.0, 0.2]), method="rk4").states.square().sum().backward()
        found.append([z0.grad, *(p.grad for p in stack.parameters() if p.grad is not None)])
        stack.zero_grad()
    assert len(graphs) == 1  # of four values of the field
    for eager, fast in zip(*found, strict=True):
        torch.testing.assert_close(eager, fast, rtol=1e-4, atol=1e-5)
"""


def test_a_compiled_vector_field_trains_as_the_plain_one(tmp_path):
    """In a process of its own: the shape checks that tests put around functions can't be compiled."""
    run_code(COMPILE, folder=tmp_path)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: HamiltonianModel(nn.Linear(3, 1)).hamiltonian(torch.zeros(2, 3)), "a state of 3 numbers"),
        (
            lambda: HamiltonianModel(MLP(3 * Scalar, Scalar, SO(3), hidden=4)).vector_field(torch.zeros(2, 3)),
            "a state of 3",
        ),
        (lambda: MechanicalModel(nn.Linear(2, 5)).vector_field(torch.zeros(2, 3)), "a state of 3 numbers"),
        (
            lambda: MechanicalModel(nn.Linear(2, 4)).vector_field(torch.zeros(2, 4)),
            r"4 outputs for 2 positions.* 1 \+ 2\^2",
        ),
        (lambda: MechanicalModel.rep_out(V(GL(2))), "is not orthogonal"),
        (lambda: MechanicalModel.rep_out(GeneratedRep(S(2), discrete_generators=[SKEW])), "is not orthogonal"),
        (lambda: HamiltonianModel(nn.Linear(4, 2)).hamiltonian(torch.zeros(2, 4)), "must be one number per state"),
        (lambda: noether_momenta((2 * V)(SO2eR3()), torch.zeros(2, 6)), "positions in .*, then as many momenta"),
        (lambda: FittedDynamics([], [], V(SO(3)), "xyz").predict([0.0] * 3, [0, 1], substeps=0), "substeps=0: give 1"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()
