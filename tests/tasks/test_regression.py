"""Regression tasks: the truth has the symmetry that it is said to have, and not more."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import O13, SL, SO, SU, O, O2eR3, SO13p
from rppdyn.tasks import REGRESSION_TASKS, Inertia, RegressionTask, regression_task

EXACT = 1e-12


def error(task: RegressionTask, n: int = 200) -> float:
    """The truth's largest equivariance error over 200 inputs, relative."""
    x = task.inputs(n, generator(1))
    return float(equivariance_error(task.target, task.rep_in, task.rep_out, x).per_input.max())


def largest(task: RegressionTask, f=None) -> float:
    """The largest |f(g x) - rho(g) f(x)| over the root mean square of the outputs, which near-zero outputs don't distort."""
    f = task.target if f is None else f
    x = task.inputs(500, generator(2))
    g = task.group.samples(len(x), generator(3))
    act = lambda rep, y: torch.einsum("nij,nj->ni", rep.rho(g), y)  # noqa: E731
    y, moved = f(x), f(act(task.rep_in, x))
    return float((moved - act(task.rep_out, y)).norm(dim=-1).max() / y.square().sum(-1).mean().sqrt())


@pytest.mark.parametrize("name", REGRESSION_TASKS)
def test_samples_are_float64_and_seeded(name):
    task = regression_task(name)
    x, y = task.sample(1000, generator(5))
    assert x.shape == (1000, task.rep_in.dim) and y.shape == (1000, task.rep_out.dim)
    assert sum(task.parts_in.values()) == task.rep_in.dim and sum(task.parts_out.values()) == task.rep_out.dim
    assert x.dtype == y.dtype == torch.float64 and torch.isfinite(y).all() and (y.std(0) > 0).all()
    again, other = task.sample(1000, generator(5)), task.sample(1000, generator(6))
    assert torch.equal(again[0], x) and torch.equal(again[1], y) and not torch.equal(other[0], x)
    assert torch.equal(task.target(x[3]), y[3]) or torch.allclose(task.target(x[3]), y[3], rtol=1e-14)


def test_parts_are_what_they_are_called():
    task = regression_task("inertia")
    m, x = (list(task.parts_in).index(part) for part in ("m_4", "x_4"))
    sizes = list(task.parts_in.values())
    inputs = task.inputs(1, generator(0))
    inputs[:, sum(sizes[:m])] = 0  # a point without mass: where it is does not matter
    moved = inputs.clone()
    moved[:, sum(sizes[:x]) : sum(sizes[: x + 1])] += 1
    assert torch.equal(task.target(moved), task.target(inputs))
    moved[:, sum(sizes[: x - 1])] += 1
    assert not torch.equal(task.target(moved), task.target(inputs))
    assert list(task.parts_out)[5] == "I_yz" and task.parts_out["I_yz"] == 1


@pytest.mark.parametrize(
    "name, group",
    [("inertia", O(3)), ("modified_inertia", O2eR3()), ("modified_inertia_code", O2eR3()), ("o5_invariant", O(5))],
)
def test_truth_is_equivariant(name, group):
    assert error(regression_task(name, group)) < EXACT


def test_scattering_is_lorentz_invariant():
    assert largest(regression_task("lorentz", O13())) < EXACT


@pytest.mark.parametrize(
    "name, group, least",
    [("inertia", SL(3), 0.3), ("modified_inertia", O(3), 0.3), ("modified_inertia_code", SO(3), 0.05),
     ("o5_invariant", SL(5), 0.1), ("lorentz", SO(4), 0.1)],
)  # fmt: skip
def test_misspecified_groups_are_not_symmetries(name, group, least):
    """Negative controls: they act on the same vectors, and the truth is far from equivariant under them."""
    task = regression_task(name, group)
    x = task.inputs(200, generator(1))
    assert equivariance_error(task.target, task.rep_in, task.rep_out, x).mean > least


def test_inertia_of_one_mass_and_of_a_dumbbell():
    x = torch.zeros(2, 20, dtype=torch.float64)
    x[0, 0], x[0, 5:8] = 2.0, torch.tensor([3.0, 0.0, 0.0])
    x[1, 1:3] = 1.0
    x[1, 8:11], x[1, 11:14] = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, -1.0])
    moments = regression_task("inertia").target(x).reshape(2, 3, 3)
    assert torch.equal(moments[0].diag(), torch.tensor([0.0, 18.0, 18.0]).double())
    assert torch.equal(moments[1].diag(), torch.tensor([2.0, 2.0, 0.0]).double())
    assert torch.equal(moments, torch.diag_embed(moments.diagonal(dim1=-2, dim2=-1)))


def test_the_two_modifications_are_those_of_the_text_and_of_the_code():
    x = regression_task("inertia").inputs(50, generator())
    moment, z = Inertia.moment(x), torch.eye(3, dtype=torch.float64)[2]
    zz = torch.outer(z, z)
    text = moment + 0.3 * moment @ moment @ zz @ moment
    code = moment + 0.3 * moment @ zz
    assert torch.allclose(regression_task("modified_inertia").target(x), text.flatten(-2), rtol=1e-13)
    assert torch.allclose(regression_task("modified_inertia_code").target(x), code.flatten(-2), rtol=1e-13)
    assert torch.allclose(regression_task("modified_inertia_code", strength=0.05).target(x),
                          (moment + 0.05 * moment @ zz).flatten(-2), rtol=1e-13)  # fmt: skip
    with pytest.raises(ValueError, match=r"strength=0\.05: nothing breaks the symmetry of inertia"):
        regression_task("inertia", strength=0.05)
    share = lambda y: ((y - moment).norm(dim=(1, 2)) / moment.norm(dim=(1, 2))).median()  # noqa: E731
    assert share(text) > 5 and share(code) < 0.3  # one drowns the symmetric part, the other perturbs it


def dirac_matrices() -> torch.Tensor:
    """gamma^mu in the Dirac representation, (4, 4, 4)."""
    one, sx, sz = torch.eye(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    sy = torch.tensor([[0, -1j], [1j, 0]])
    spatial = [torch.kron(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).to(s.dtype), s) for s in (sx, sy, sz)]
    return torch.stack([m.to(torch.complex128) for m in (torch.kron(sz, one), *spatial)])


def lepton(p, p_out, metric, symmetrised=True) -> torch.Tensor:
    """p^(mu p~^nu) - (p.p~ - p.p) eta^{mu nu}, (..., 4, 4)."""
    dot = lambda a, b: torch.einsum("...i,i,...i->...", a, metric, b)  # noqa: E731
    outer = p[..., :, None] * p_out[..., None, :]
    return outer + symmetrised * outer.mT - (dot(p, p_out) - dot(p, p))[..., None, None] * torch.diag(metric)


def test_scattering_is_the_trace_over_spins():
    """Against Dirac matrices: y = 4 L_e^{mu nu} L_mu_{mu nu}, L^{mu nu} = tr[(p + m) gamma^mu (p~ + m) gamma^nu] / 4."""
    task = regression_task("lorentz")
    x = task.inputs(100, generator())
    metric, gamma = torch.tensor([1.0, -1.0, -1.0, -1.0]).double(), dirac_matrices()
    assert torch.equal(gamma[1] @ gamma[2] + gamma[2] @ gamma[1], torch.zeros(4, 4).to(gamma))  # Clifford algebra
    assert torch.equal(gamma[0] @ gamma[0], torch.eye(4).to(gamma))
    assert torch.equal(gamma[3] @ gamma[3], -torch.eye(4).to(gamma))
    p, p_out, q, q_out = x.unflatten(-1, (4, 4)).unbind(-2)

    def spins(a, b):
        slash = lambda v: torch.einsum("ni,i,ijk->njk", v.to(gamma), metric.to(gamma), gamma)  # noqa: E731
        mass = (a * a * metric).sum(-1).to(gamma).sqrt()[:, None, None] * torch.eye(4).to(gamma)
        trace = torch.einsum("nab,mbc,ncd,kda->nmk", slash(a) + mass, gamma, slash(b) + mass, gamma) / 4
        assert trace.imag.abs().max() < 1e-14
        return trace.real

    lowered = torch.einsum("nij,i,j->nij", spins(q, q_out), metric, metric)
    expected = 4 * (spins(p, p_out) * lowered).sum((1, 2))
    y = task.target(x)[:, 0]
    assert (y - expected).abs().max() / y.abs().max() < 1e-14


def test_scattering_conserves_the_current_and_needs_the_metric():
    task = regression_task("lorentz", O13())
    metric = torch.tensor([1.0, -1.0, -1.0, -1.0]).double()

    def contracted(x, lower, symmetrised=True):
        p, p_out, q, q_out = x.unflatten(-1, (4, 4)).unbind(-2)
        E, M = lepton(p, p_out, metric, symmetrised), lepton(q, q_out, metric, symmetrised)
        return 4 * torch.einsum("...ij,i,j,...ij->...", E, lower, lower, M)[..., None]

    x = task.inputs(100, generator())
    assert torch.allclose(contracted(x, metric), task.target(x), rtol=1e-12, atol=1e-14)
    assert largest(task, lambda x: contracted(x, metric)) < EXACT
    euclidean = torch.ones_like(metric)
    assert largest(task, lambda x: contracted(x, euclidean)) > 0.1

    p = x[:, :4]
    boost = SO13p().samples(100, generator(4))
    p_out = torch.einsum("nij,nj->ni", boost, p)  # on the same mass shell
    current = torch.einsum("ni,i,nij->nj", p - p_out, metric, lepton(p, p_out, metric))
    unsymmetrised = torch.einsum("ni,i,nij->nj", p - p_out, metric, lepton(p, p_out, metric, symmetrised=False))
    assert current.norm() / unsymmetrised.norm() < 1e-13


@pytest.mark.parametrize("group", [O(5), SU(3)])
def test_a_group_of_other_vectors_is_refused(group):
    with pytest.raises(ValueError, match=r"acts on .*inertia's vectors are in R\^3") as caught:
        regression_task("inertia", group)
    assert str(group) in str(caught.value) and "\n" not in str(caught.value)


def test_bad_arguments():
    with pytest.raises(ValueError, match="no regression task 'inertai'; choose inertia, "):
        regression_task("inertai")
    with pytest.raises(ValueError, match="inertia: -1 samples; give 0 or more"):
        regression_task("inertia").sample(-1)
    x, y = regression_task("inertia").sample(0)
    assert x.shape == (0, 20) and y.shape == (0, 9)


@pytest.mark.parametrize("name, group", [("inertia", SL(3)), ("inertia", SO(3)), ("lorentz", O13())])
def test_types_bind_to_groups_that_are_not_orthogonal(name, group):
    """T(1) is V itself and T(2) is V x V: a matrix transforms as g M g^T, whatever g is."""
    task = regression_task(name, group)
    g = group.samples(5, generator())
    vector = task.rep_in.rho(g)[..., -group.d :, -group.d :]
    assert torch.equal(vector, g)
    if name == "inertia":
        M = torch.randn(5, 3, 3, generator=generator(), dtype=torch.float64)
        moved = torch.einsum("nij,nj->ni", task.rep_out.rho(g), M.flatten(-2)).unflatten(-1, (3, 3))
        assert torch.allclose(moved, g @ M @ g.mT, rtol=1e-12)
