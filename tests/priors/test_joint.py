"""Joint evidence: against dense Gauss-Newton matrices, exact on linear-Gaussian models, and what it refuses."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from factors import jacobians, unit_of
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.dynamics import HamiltonianModel, NeuralODEModel, integrate
from rppdyn.groups import SO, D, Group, O, O2eR3, SO2eR3, Z
from rppdyn.images import ImageModel, LayerSpec, RelaxedImageLayer
from rppdyn.nn import MLP, RPPEMLP, RelaxedLinear, merge, named_pathways
from rppdyn.priors import Categorical, Gaussian, Laplace, curvature, joint_evidence, kronecker_evidence, learn_variances
from rppdyn.priors import _joint as module
from rppdyn.reps import Scalar, T, V


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def network(G, hidden=12, rep_in=V, rep_out=V, num_layers=2, **options):
    return RPPEMLP(
        rep_in, rep_out, G, hidden=hidden, num_layers=num_layers, free_scale=0.5, generator=generator(), **options
    ).double()


def dense(net, x, likelihood, f=lambda net, x: net(x)):
    """Half of what is added to the negative log-likelihood, by the matrix of all coefficients, and effective numbers."""
    own, pathways = jacobians(net, x, likelihood, f), {(layer, name): p for layer, name, p in named_pathways(net)}
    J = torch.cat(list(own.values()), 1)
    counts = [part.shape[1] for part in own.values()]
    variances = torch.cat([pathways[key].variance.detach().expand(part.shape[1]) for key, part in own.items()])
    root = variances.sqrt()
    H = torch.eye(J.shape[1], dtype=J.dtype) + root[:, None] * (J.T @ J) * root
    eigenvalues = torch.linalg.eigvalsh(H)
    shares = (1 - torch.linalg.inv(H).diagonal()).split(counts)
    squares = sum(
        sum(float(c.detach().square().sum()) for c in p.coefficients()) / float(p.variance) for p in pathways.values()
    )
    value = 0.5 * (squares + float(eigenvalues.log().sum()))
    return value, {key: float(share.sum()) for key, share in zip(own, shares, strict=True)}


class Rollout(nn.Module):
    """Two steps of a model, whose solver looks at the states."""

    def __init__(self, model):
        super().__init__()
        self.model, self.times = model, torch.arange(3, dtype=torch.float64) / 5

    def forward(self, z):
        return integrate(self.model, z, self.times, method="rk4").states[..., 1:, :]


def hamiltonian(bilinear=True):
    return network(O2eR3(), 10, 2 * V, Scalar, num_layers=1, bilinear=bilinear)


MIRROR = Group("mirror", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, 1.0]]]))


def chained(groups, hidden=12, rep_in=V, rep_out=V, variances=(1.0, 0.1, 0.01)):
    return RPPEMLP(
        rep_in, rep_out, groups=groups, variances=variances, hidden=hidden, num_layers=2, free_scale=0.5,
        generator=generator(),
    ).double()  # fmt: skip


CASES = {
    "regular": lambda: (network(Z(2)), normal(9, 2), Gaussian(0.1)),
    "regular, strict": lambda: (network(Z(4), free_variance=0), normal(9, 4), Gaussian(0.1)),
    "bilinear": lambda: (network(SO(3), 20), normal(4, 3), Gaussian(0.1)),
    "narrow and wide": lambda: (network(O(3), 16, equivariant_variance=1e5, free_variance=1e-4), normal(4, 3), Gaussian(0.1)),
    "chain": lambda: (chained([O(3), O2eR3()], 16), normal(4, 3), Gaussian(0.1)),
    "finite chain": lambda: (chained([D(4), MIRROR]), normal(9, 2), Gaussian(0.1)),
    "plain": lambda: (MLP(V, V, Z(2), hidden=6, generator=generator()).double(), normal(9, 2), Gaussian(0.1)),
    "absolute errors": lambda: (network(D(4)), normal(9, 2), Laplace(0.1)),
    "classes": lambda: (network(Z(2), rep_out=3 * Scalar), normal(9, 2), Categorical()),
    "images": lambda: (
        ImageModel([LayerSpec(4, subsample="max"), LayerSpec(4)], 1, (4, 4), 3, {"conv": 1.0, "fc": 0.1, "f_fc": 1.0},
                   generator=generator()).double(),
        normal(5, 1, 4, 4), Categorical(),
    ),
    "anchors and lengthscales": lambda: (
        ImageModel([LayerSpec(4)], 1, (4, 4), 3, {"s_conv": 1.0, "s_fc_lengthscales": 1.0}, generator=generator()).double(),
        normal(5, 1, 4, 4), Categorical(),
    ),
    "orientations": lambda: (
        ImageModel([LayerSpec(4)], 1, (4, 4), 3, {"gconv": 1.0, "conv": 0.5}, generator=generator()).double(),
        normal(5, 1, 4, 4), Categorical(),
    ),
    "rollout": lambda: (Rollout(NeuralODEModel(network(SO2eR3(), 12))), normal(4, 3), Gaussian(0.1)),
    "rollout of a Hamiltonian": lambda: (Rollout(HamiltonianModel(hamiltonian())), normal(3, 6), Gaussian(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_determinant_of_the_dense_gauss_newton_matrix(case):
    net, x, likelihood = CASES[case]()
    found = joint_evidence(net, x, likelihood)
    value, effective = dense(net, x, likelihood)
    assert -float(found.log_evidence) == pytest.approx(value, rel=1e-8)
    for (layer, name), number in effective.items():
        assert float(found.effective_parameters[layer][name]) == pytest.approx(number, rel=1e-6, abs=1e-7)


def test_a_vector_field_and_rollouts_of_stacks():
    net, z = hamiltonian(), normal(3, 6)
    field = lambda net, z: HamiltonianModel(net).vector_field(z)  # noqa: E731
    found = joint_evidence(net, z, Gaussian(0.1), predict=field)
    assert -float(found.log_evidence) == pytest.approx(dense(net, z, Gaussian(0.1), field)[0], rel=1e-8)
    one = joint_evidence(Rollout(HamiltonianModel(net)), z, Gaussian(0.1))
    each = lambda stack, weights, z: Rollout(HamiltonianModel(stack))(z[:, None])[:, 0]  # noqa: E731
    other = joint_evidence(net, z, Gaussian(0.1), predict_each=each)
    torch.testing.assert_close(one.kernels, other.kernels, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("groups, variances, rep_in, rep_out", [
    ([Z(5)], [0.7, 0.2], 2 * V, V + Scalar),
    ([SO(3)], [0.7, 0.2], 2 * T(1), T(0) + T(1)),
    ([O(3)], [0.7, 0.2], 2 * V, V),
    ([O(3), O2eR3()], [0.7, 0.3, 0.01], 2 * V, V + Scalar),
    ([O(3), SO(3), SO2eR3()], [0.7, 0.3, 0.02, 0.01], 2 * V, V + T(2)),
    ([D(4), MIRROR], [0.7, 0.3, 0.01], 2 * V, V + Scalar),
    ([D(4), MIRROR], [0.7, 0.3, 0.0], 2 * V, V + Scalar),
])  # fmt: skip
def test_a_linear_gaussian_model_has_its_exact_evidence(groups, variances, rep_in, rep_out):
    """Around the mode, with pathways each of which contains the one before."""
    layer = RelaxedLinear(rep_in, rep_out, groups=groups, variances=variances, generator=generator()).double()
    x, s2 = normal(17, layer.rep_in.dim), 0.3
    y = normal(17, layer.rep_out.dim, seed=1)
    own = jacobians(layer, x, Gaussian(1.0))
    covariance = s2 * torch.eye(y.numel(), dtype=y.dtype)
    for (_, name), J in own.items():
        covariance = covariance + float(getattr(layer, name).variance) * J @ J.T
    weights = torch.linalg.solve(covariance, y.flatten())
    with torch.no_grad():
        for (_, name), J in own.items():  # the mode, by coefficients
            pathway = getattr(layer, name)
            values = float(pathway.variance) * J.T @ weights
            for leaf in pathway.coefficient_names():
                p, basis = pathway.get_parameter(leaf), getattr(pathway, f"{leaf}_map", None)
                beta, values = values[: p.numel()], values[p.numel() :]
                p.copy_((beta / unit_of(pathway, basis)).view_as(p))
    found = joint_evidence(layer, x, Gaussian(s2), y)
    normal_ = torch.distributions.MultivariateNormal(torch.zeros(y.numel(), dtype=y.dtype), covariance)
    assert float(found.log_evidence) == pytest.approx(float(normal_.log_prob(y.flatten())), abs=1e-6)


@pytest.mark.parametrize("case", ["one", "chain"])
def test_gradients_by_log_variances_agree_with_differences(case):
    net = network(Z(4), 8) if case == "one" else chained([O(3), O2eR3()], 6, V + Scalar)
    learn_variances(net)
    found = joint_evidence(net, normal(7, 4), Gaussian(0.1), normal(7, net.rep_out.dim, seed=1))
    s = torch.linspace(-3, 3, len(found.pathways), dtype=torch.float64).requires_grad_()
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, c: found.negative_log(12.0, s, c), (s, scale))
    assert torch.autograd.gradcheck(found.effective, (s,))
    found.log_evidence.backward()
    effective = found.effective().detach()
    expected = 0.5 * (found.squared_norms * (-found.log_variances.detach()).exp() - effective)
    slopes = [net.get_submodule(f"{p.layer}.{p.name}").log_variance.grad for p in found.pathways]
    torch.testing.assert_close(torch.stack(slopes), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_layers", [0, 1])
def test_the_optimum_of_the_linearised_network_is_ridge_regression(num_layers):
    variances = dict(equivariant_variance=2.0, free_variance=0.1)
    net, noise = network(Z(4), rep_in=3 * V, rep_out=Scalar, num_layers=num_layers, **variances), 0.3
    x, y = normal(20, 12), normal(20, seed=1)
    own = jacobians(net, x, Gaussian(1.0), lambda net, x: net(x))
    pathways = {(layer, name): p for layer, name, p in named_pathways(net)}
    weights = {key: torch.cat([c.detach().flatten() for c in pathways[key].coefficients()]) for key in own}
    targets = y - net(x).detach().squeeze(-1) + sum(J @ weights[key] for key, J in own.items())
    assert torch.allclose(module.linear_targets(net, x, y), targets)
    gram = sum(float(pathways[key].variance) * J @ J.T for key, J in own.items())
    solved = torch.linalg.solve(gram + noise * torch.eye(20).double(), targets)
    expected = [float((float(pathways[key].variance) * J.T @ solved).square().sum()) for key, J in own.items()]
    found = joint_evidence(net, x, Gaussian(noise)).squared_norms_at_optimum(targets / noise**0.5)
    assert found.tolist() == pytest.approx(expected, rel=1e-8)


def test_blocks_of_rows_and_chunks_of_examples_change_nothing(monkeypatch):
    net, x, y = network(Z(2), rep_out=3 * Scalar), normal(9, 2), torch.arange(9) % 3
    whole = joint_evidence(net, x, Categorical(), y)
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 3 * 1000)  # bytes: two data
    monkeypatch.setattr(module, "CHUNK_DATA", 2)
    blocks = joint_evidence(net, x, Categorical(), y)
    torch.testing.assert_close(blocks.kernels, whole.kernels, rtol=1e-10, atol=1e-12)
    assert float(blocks.log_evidence) == pytest.approx(float(whole.log_evidence), rel=1e-12)


def test_draws_have_the_mean_of_all_outputs_and_a_subset_is_scaled():
    net, x = network(Z(2)), normal(8, 2)
    exact = joint_evidence(net, x, Gaussian(0.1))
    trace = lambda found: found.kernels.diagonal(dim1=1, dim2=2).sum(1)  # noqa: E731
    drawn = joint_evidence(net, x, Gaussian(0.1), generator=generator(), draws=200)
    torch.testing.assert_close(trace(drawn), trace(exact), rtol=0.2, atol=0)
    assert joint_evidence(net, x, Gaussian(0.1), generator=generator()).kernels.shape[-1] == 8
    y = normal(8, 2, seed=1)
    twice = joint_evidence(net, x.repeat(2, 1), Gaussian(0.1), y.repeat(2, 1))
    scaled = joint_evidence(net, x, Gaussian(0.1), y, total=16)
    assert float(scaled.log_evidence) == pytest.approx(float(twice.log_evidence), rel=1e-10)


def test_frozen_networks_and_groups_in_skewed_axes_have_evidence():
    axes = torch.tensor([[1.0, 0.4, 0.0], [0.0, 2.0, 0.3], [0.1, 0.0, 3.0]], dtype=torch.float64)
    G = Group("skewed", lie_algebra=axes @ SO(3).lie_algebra @ torch.linalg.inv(axes))
    net = network(G, 12).requires_grad_(False)
    with torch.no_grad():
        found = joint_evidence(net, normal(4, 3), Gaussian(0.1))
    assert found.log_evidence.isfinite()
    learn_variances(net)
    with refused("can't be learned by curvature=kronecker", "Take curvature=joint"):
        learn_variances(net, "kronecker")
    with refused("curvature='diagonal'", "joint, kronecker"):
        learn_variances(net, "diagonal")


def test_refusals():
    net, x = network(Z(2)), normal(5, 2)
    with refused("Sequential has no pathways", "before layers are merged"):
        joint_evidence(nn.Sequential(nn.Linear(2, 2)).double(), x, Gaussian(1.0))
    with refused("has no pathways"):
        joint_evidence(merge(net), x, Gaussian(1.0))
    with refused("10 rows", "bytes", "GiB", "total=5", "curvature=kronecker"):
        joint_evidence(net, x, Gaussian(1.0), memory=1000)
    with refused("outputs of shape (5, 2) and targets of (4, 2)"):
        joint_evidence(net, x, Gaussian(1.0), x[:4])
    with refused("outputs of shape (5, 2) and targets of (5,)"):
        joint_evidence(net, x, Gaussian(1.0), x[:, 0])
    classes = network(Z(2), rep_out=3 * Scalar)
    for wrong, said in (
        (torch.zeros(4).long(), "(4,)"),
        (torch.full((5,), 3), "from 0 to 2"),
        (x, "integer class"),
    ):
        with refused(said):
            joint_evidence(classes, x, Categorical(), wrong)
    with refused("evidence of no data"):
        joint_evidence(net, x[:0], Gaussian(1.0))
    for options in (dict(total=0), dict(draws=0, generator=generator())):
        with refused(f"{next(iter(options))}=0"):
            joint_evidence(net, x, Gaussian(1.0), **options)
    with refused("outputs of 1 of 5 data are no finite numbers"):
        joint_evidence(net, torch.cat([x[:4], torch.full((1, 2), math.nan).double()]), Gaussian(1.0))
    with refused("outputs of shape", "for 5 data"):
        joint_evidence(net, x, Gaussian(1.0), predict=lambda net, x: net(x)[:1])
    with refused("no gradient by the network's weights"):
        joint_evidence(net, x, Gaussian(1.0), predict=lambda net, x: net(x).detach())
    with torch.inference_mode(), refused("torch.inference_mode()"):
        joint_evidence(net, x, Gaussian(1.0))


def test_memory_is_that_of_the_container_and_unlimited_where_the_system_does_not_tell_it(monkeypatch):
    net, x = network(Z(2)), normal(5, 2)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "1000\n")  # bytes
    with refused("10 rows", "more than the 500 available"):
        joint_evidence(net, x, Gaussian(1.0))
    monkeypatch.undo()
    monkeypatch.delattr(os, "sysconf")
    assert joint_evidence(net, x, Gaussian(1.0)).log_evidence.isfinite()


def test_a_kernel_matrix_that_is_singular_or_not_finite_is_named():
    found = joint_evidence(network(Z(2)), normal(5, 2).repeat(2, 1), Gaussian(1.0))
    for log in 100.0, 800.0:
        with refused("of 20 rows is singular in float64", "lower the largest variance"):
            found.negative_log(0.0, torch.full((len(found.pathways),), log, dtype=torch.float64))
    kernels = found.kernels.clone()
    kernels[1, 0, 0] = math.inf
    with refused("the kernel matrix of blocks.0.linear.free", "no finite numbers"):
        module.JointEvidence(found.pathways, kernels)


def test_of_chains_the_kronecker_form_is_near_the_exact_one_and_counts_less_than_every_pathway_by_itself():
    layer = RelaxedLinear(
        4 * V, 2 * V, groups=[O(3), O2eR3()], variances=[1.0, 0.1, 0.01], generator=generator()
    ).double()
    x, likelihood = normal(40, 12) @ normal(12, 12, seed=1) / 3, Gaussian(0.1)
    joint = joint_evidence(layer, x, likelihood)
    found = kronecker_evidence(layer, curvature(layer, layer, [x], likelihood))
    s = joint.log_variances
    exact, near = float(joint.log_determinant(s)), float(found.log_determinant(s))
    alone = sum(float((t * e).log1p().sum()) for t, e in zip(s.exp(), found.eigenvalues, strict=True))
    assert exact * (1 - 1e-9) <= near < 1.1 * exact  # an upper bound (KroneckerEvidence)
    assert alone > 1.15 * exact  # the control: shared directions counted again
    assert float(found.effective().sum()) == pytest.approx(float(joint.effective().sum()), rel=0.1)


@pytest.mark.parametrize("kind", ["linear", "chain", "conv in fc", "gconv in conv in fc"])
def test_the_kronecker_form_counts_nothing_twice(kind):
    """Of inputs without correlations the curvature maps nested subspaces into themselves, and the form is exact."""
    if kind == "linear":
        layer = RelaxedLinear(2 * V, V, Z(4), equivariant_variance=3.0, free_variance=0.2, bias=False).double()
        x = torch.linalg.qr(normal(20, 8)).Q * 5
    elif kind == "chain":
        layer = RelaxedLinear(2 * V, 2 * V, groups=[O(3), O2eR3()], variances=[3.0, 1.0, 0.2], bias=False).double()
        x = torch.linalg.qr(normal(20, 6)).Q * 5
    else:
        gconv = kind.startswith("gconv")
        pathways = {"gconv": 2.0, "conv": 0.5, "fc": 0.1} if gconv else {"conv": 3.0, "fc": 0.2}
        channels = 4 if gconv else 1
        orientations = (4, 4) if gconv else (1, 1)
        layer = RelaxedImageLayer(
            channels, channels, (3, 3), pathways, bias_variance=0, orientations=orientations, generator=generator()
        ).double()
        x = torch.eye(9 * channels, dtype=torch.float64).view(-1, channels, 3, 3) * 5
    likelihood = Gaussian(0.3)
    joint = joint_evidence(layer, x, likelihood)
    found = kronecker_evidence(layer, curvature(layer, layer, [x], likelihood))
    torch.testing.assert_close(found.log_determinant(found.log_variances), joint.log_determinant(joint.log_variances))
    torch.testing.assert_close(found.effective(), joint.effective(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_classes_of_any_integer_type(dtype):
    outputs, classes = torch.randn(4, 2, generator=generator()), torch.tensor([0, 1, 1, 0])
    assert torch.equal(
        Categorical().negative_log(outputs, classes.to(dtype)), Categorical().negative_log(outputs, classes)
    )
