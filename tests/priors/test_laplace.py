"""Curvature and the marginal likelihood: exact where they can be, and what they say of a symmetry that is there or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from factors import jacobians, spectra
from registry import generator
from torch import nn

from rppdyn.dynamics import HamiltonianModel, integrate
from rppdyn.groups import SO, D, O, O2eR3, SO2eR3, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Chained, RelaxedLinear, named_pathways
from rppdyn.priors import Categorical, Gaussian, Laplace, curvature, gradient_curvature, joint_evidence
from rppdyn.priors import kronecker_evidence as evidence
from rppdyn.reps import Scalar, T, V

LAYERS = {
    "cyclic": (Z(5), 2 * V, 3 * V + Scalar),
    "dihedral": (D(4), V, 2 * V),
    "rotations": (SO(3), 2 * T(0) + 3 * T(1) + T(2), T(0) + 2 * T(1) + T(2)),
    "about an axis": (SO2eR3(), 2 * V, V + T(2)),
    "no invariants": (O(3), 5 * T(1), V),
}


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def linear(case, equivariant, free):
    G, rep_in, rep_out = LAYERS[case]
    return RelaxedLinear(
        rep_in, rep_out, G, equivariant_variance=equivariant, free_variance=free, generator=generator()
    ).double()


def close(a, b, tolerance):
    assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("breaking", [None, "V+Scalar"])
@pytest.mark.parametrize("case", LAYERS)
def test_curvature_from_gradients_of_a_linear_gaussian_model_is_the_same(case, breaking):
    G, rep_in, rep_out = LAYERS[case]
    options = dict(num_layers=0, free_variance=0.3, breaking=breaking, breaking_learned=False)
    net = RPPEMLP(rep_in, rep_out, G, generator=generator(), **options).double()
    batches = normal(17, net.rep_in.dim).split(10)
    expected = evidence(net, curvature(net, Chained(net), batches, Gaussian(0.3), total=40))
    each = lambda stack, weights, x: stack.apply(x[:, None], weights)[:, 0]  # noqa: E731
    found = evidence(net, gradient_curvature(net, each, batches, Gaussian(0.3), total=40))
    for one, other in zip(spectra(found), spectra(expected), strict=True):
        close(one, other, 1e-12)


class Rollout(nn.Module):
    """Two steps of a Hamiltonian model."""

    def __init__(self, net):
        super().__init__()
        self.net, self.times = net, torch.arange(3, dtype=torch.float64) / 5

    def forward(self, z, weights=None):
        return integrate(HamiltonianModel(self.net), z, self.times, method="rk4", weights=weights).states[..., 1:, :]


def test_curvature_of_a_hamiltonian_has_the_traces_of_the_exact_gauss_newton_matrix():
    net = RPPEMLP(
        4 * V, Scalar, O2eR3(), hidden=10, num_layers=2, free_scale=0.5, bilinear=False, generator=generator()
    )
    net, z, s2 = net.double(), normal(6, 12), 0.3
    each = lambda stack, weights, z: Rollout(stack)(z[:, None], weights)[:, 0]  # noqa: E731
    blocks = gradient_curvature(net, each, z.split(4), Gaussian(s2))
    assert len(blocks) == sum(p.num_coefficients > 0 for *_, p in named_pathways(net))
    own, layers = jacobians(Rollout(net), z, Gaussian(s2)), dict(net.layers())
    for (layer, name), found in blocks.items():
        exact = own[f"net.{layer}", name].T @ own[f"net.{layer}", name]
        (eigenvalues,) = evidence(net, {(layer, name): found}).eigenvalues
        assert float(eigenvalues.sum()) == pytest.approx(float(exact.trace()), rel=1e-9)
        if name == "free" and layer.endswith("linear"):
            m, n = layers[layer].free.weight.shape
            by_place = exact[: m * n, : m * n].view(m, n, m, n)
            (pair,) = found
            close(pair.A[:n, :n] * pair.G.trace(), torch.einsum("inip->np", by_place), 1e-10)


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("pathway", ["equivariant", "free"])
def test_a_linear_gaussian_model_is_exact(case, pathway):
    layer = linear(case, *((0.7, 0) if pathway == "equivariant" else (0, 0.7)))
    x, s2 = normal(17, layer.rep_in.dim), 0.3
    J = jacobians(layer, x, Gaussian(1.0))["", pathway]
    y = layer(x).detach() + 0.1 * normal(17, layer.rep_out.dim, seed=1)
    likelihood = Gaussian(s2)
    found = evidence(layer, curvature(layer, layer, [x[:5], x[5:]], likelihood))
    close(spectra(found)[0], torch.linalg.eigvalsh(J.T @ J / s2).clamp_min(0), 1e-12)

    # at the mode the Laplace approximation of a linear-Gaussian model is the marginal likelihood itself
    precision = J.T @ J / s2 + torch.eye(J.shape[1], dtype=J.dtype) / 0.7
    mode = torch.linalg.solve(precision, J.T @ y.flatten() / s2)
    residual = (y.flatten() - J @ mode).view_as(y)
    at_mode = type(found)([replace(found.pathways[0], squared_norm=float(mode @ mode))], found.eigenvalues)
    value = at_mode.negative_log(likelihood.negative_log(residual, torch.zeros_like(y)))
    covariance = s2 * torch.eye(y.numel(), dtype=J.dtype) + 0.7 * J @ J.T
    exact = -torch.distributions.MultivariateNormal(torch.zeros(y.numel(), dtype=J.dtype), covariance).log_prob(
        y.flatten()
    )
    assert float(value) == pytest.approx(float(exact), rel=1e-9)


def test_gradients_by_the_variances_agree_with_differences():
    net = RPPEMLP(V, V, Z(4), hidden=8, num_layers=1, free_variance=0.5, generator=generator()).double()
    x = normal(30, 4)
    found = evidence(net, curvature(Chained(net).net, Chained(net), [x], Gaussian(0.1)))
    s = torch.linspace(-3, 3, len(found.pathways), dtype=torch.float64).requires_grad_()
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, c: found.negative_log(12.0, s, c), (s, scale))


@pytest.mark.parametrize("likelihood", [Gaussian(0.2), Categorical()], ids=["gaussian", "categorical"])
def test_factors_are_roots_of_the_hessian_and_samples_have_its_mean(likelihood):
    outputs = normal(3, 4)
    targets = torch.tensor([0, 3, 2]) if isinstance(likelihood, Categorical) else normal(3, 4, seed=1)
    factors = likelihood.factors(outputs)
    for n in range(3):
        hessian = torch.func.hessian(lambda o, n=n: likelihood.negative_log(o[None], targets[n : n + 1]))(outputs[n])
        close(torch.einsum("si,sj->ij", factors[:, n], factors[:, n]), hessian, 1e-12)
    many = torch.stack([likelihood.factors(outputs, generator(seed))[0] for seed in range(4000)])
    sampled = torch.einsum("sni,snj->nij", many, many) / len(many)
    exact = torch.einsum("sni,snj->nij", factors, factors)
    close(sampled, exact, 0.1)


@pytest.mark.parametrize("G", [Z(4), SO2eR3(), O(3)], ids=str)
def test_blocks_inside_a_network_against_the_exact_gauss_newton_matrix(G):
    """Of one datum a free weight's is exact and a gate's has the exact diagonal; an equivariant one's trace of many is near."""
    net = RPPEMLP(2 * V, V, G, hidden=12, num_layers=2, free_scale=0.5, bilinear=False, generator=generator()).double()
    chain, likelihood = Chained(net), Gaussian(0.5)
    for n, names in (1, ("free",)), (60, ("equivariant",)):
        x = normal(n, net.rep_in.dim)
        blocks, exact_roots = curvature(net, chain, x.split(20), likelihood), jacobians(chain, x, likelihood)
        assert len(blocks) == sum(p.num_coefficients > 0 for *_, p in named_pathways(net))
        for (layer, name), found in blocks.items():
            if name in names:
                own = evidence(net, {(layer, name): found})
                exact = exact_roots[f"net.{layer}", name].T @ exact_roots[f"net.{layer}", name]
                if name == "equivariant":
                    assert 0.5 < float(own.eigenvalues[0].sum() / exact.trace()) < 2
                elif layer.endswith("gate"):
                    close(own.eigenvalues[0], exact.diagonal(), 1e-10)
                else:
                    close(spectra(own)[0], torch.linalg.eigvalsh(exact).clamp_min(0), 1e-10)


def test_the_chain_is_the_network():
    for net in (RPPEMLP(V, V, SO(3), 24, 2), EMLP(V, V, Z(4), 128, 2), MLP(V, V, Z(2), 8)):
        x = normal(5, net.rep_in.dim).float()
        torch.testing.assert_close(Chained(net)(x), net(x), rtol=1e-5, atol=1e-6)


def test_refusals():
    net = RPPEMLP(V, V, SO(3), hidden=12, num_layers=1)
    with pytest.raises(ValueError, match=r"predict with rppdyn\.nn\.Chained"):
        curvature(net, net, [torch.randn(3, 3)], Gaussian(1.0))
    with pytest.raises(ValueError, match="no data"):
        curvature(net, Chained(net), [], Gaussian(1.0))
    with pytest.raises(ValueError, match="no pathway has curvature"):
        evidence(net, {})
    for likelihood in (Gaussian, Laplace):
        with pytest.raises(ValueError, match="variance=0"):
            likelihood(0.0)


def test_gradients_of_normalised_weights_are_refused():
    net = RPPEMLP(V, V, Z(4), hidden=8, num_layers=1, normalisation="batch")
    with pytest.raises(ValueError, match="normalised layers"):
        gradient_curvature(net, lambda stack, weights, x: x, [torch.zeros(2, 4)], Gaussian(1.0))


def test_the_evidence_prefers_symmetry_where_the_data_have_it():
    """Variances that maximise the marginal likelihood of linear maps, around their exact modes."""
    G, n, s2 = Z(6), 40, 0.01
    x = normal(n, 6)
    shift = torch.roll(torch.eye(6, dtype=torch.float64), 1, 0)
    learned = {}
    for name, W in {"commutes": 0.7 * shift, "does not": normal(6, 6, seed=3) / 6**0.5}.items():
        y = x @ W.T + s2**0.5 * normal(n, 6, seed=4)
        layer = RelaxedLinear(V, V, G, equivariant_variance=1.0, free_variance=1.0, generator=generator()).double()
        found = joint_evidence(layer, x, Gaussian(s2))
        J = torch.cat([*jacobians(layer, x, Gaussian(1.0)).values()], 1)
        counts = [pathway.num_coefficients for pathway in layer.linear_pathways]
        s = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([s], lr=0.1)
        for _ in range(300):
            deltas = torch.cat([(-v.detach()).exp().expand(count) for v, count in zip(s, counts, strict=True)])
            modes = torch.linalg.solve(J.T @ J / s2 + deltas.diag(), J.T @ y.flatten() / s2).split(counts)
            found.squared_norms = torch.stack([mode @ mode for mode in modes])
            optimiser.zero_grad()
            found.negative_log(0.0, s).backward()
            optimiser.step()
        learned[name] = found.effective(s.detach())
    (tied, free), (_, free_where_broken) = learned["commutes"], learned["does not"]
    assert free < 6 < tied and 20 < free_where_broken
