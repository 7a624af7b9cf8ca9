"""One dense weight has the prior, the start and the maximum a posteriori of the two pathways whose sum it is."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from registry import generator
from torch.distributions import MultivariateNormal
from torch.func import functional_call, grad, hessian

from rppdyn.groups import SL, SO, SO13, D, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, DensePathway, RelaxedLinear, Stack, merge
from rppdyn.priors import Gaussian, curvature, learn_variances, negative_log_prior
from rppdyn.reps import Scalar, V

GROUPS = [Z(4), D(4), SO(3), SO13(), SL(3)]
BOTH = ("pathways", "dense")
A, B = 3.0, 0.02


def pair(G, **options):
    """A layer in both parametrisations, in float64, with biases, some of which are equivariant."""
    options = dict(equivariant_variance=A, free_variance=B, free_scale=0.1) | options
    reps = V + Scalar, V + 2 * Scalar
    layers = (RelaxedLinear(*reps, G, parametrisation=kind, generator=generator(), **options) for kind in BOTH)
    return tuple(layer.double() for layer in layers)


def nets(G, cls=RPPEMLP, seed=0, **options):
    options = dict(hidden=24, num_layers=2, bilinear="published") | options
    return [cls(V + Scalar, V, G, parametrisation=kind, generator=generator(seed), **options) for kind in BOTH]


def covariance(layer, a=A, b=B):
    """Of weight and bias, from the solver's own bases."""
    Q = torch.block_diag((layer.rep_in >> layer.rep_out).equivariant_basis(), layer.rep_out.equivariant_basis())
    return a * Q @ Q.T + b * torch.eye(len(Q), dtype=torch.float64), Q


def vector(affine):
    return torch.cat([t.detach().flatten() for t in affine])


@pytest.mark.parametrize("G", GROUPS, ids=str)
@pytest.mark.parametrize("a, b", [(A, B), (1e5, 1.0), (0.5, 2.0)])
def test_the_prior_is_the_density_of_the_papers_covariance(G, a, b):
    layer = pair(G, equivariant_variance=a, free_variance=b)[1]
    for p in layer.parameters():
        torch.nn.init.normal_(p, generator=generator(p.numel()))
    Sigma, _ = covariance(layer, a, b)
    expected = -MultivariateNormal(torch.zeros(len(Sigma)).double(), Sigma).log_prob(vector(layer.assemble()))
    torch.testing.assert_close(negative_log_prior(layer), expected, rtol=1e-9, atol=0)
    log = lambda v: torch.tensor(math.log(v), dtype=torch.float64)  # noqa: E731
    s = {"equivariant": log(B), "free": log(A)}
    expected = -MultivariateNormal(torch.zeros(len(Sigma)).double(), covariance(layer, B, A)[0]).log_prob(
        vector(layer.assemble())
    )
    torch.testing.assert_close(negative_log_prior(layer, {"": s}), expected, rtol=1e-9, atol=0)


def posterior(layer, x, y, noise):
    """The layer at its maximum a posteriori: one step of Newton's method, since the objective is quadratic."""
    names, values = zip(*layer.named_parameters(), strict=True)
    sizes = [v.numel() for v in values]

    class Objective(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self):
            return (self.layer(x) - y).square().sum() / (2 * noise) + negative_log_prior(self.layer)

    objective = Objective()
    split = lambda v: [p.view(q.shape) for p, q in zip(v.split(sizes), values, strict=True)]  # noqa: E731
    f = lambda v: functional_call(objective, {f"layer.{n}": p for n, p in zip(names, split(v), strict=True)}, ())  # noqa: E731
    start = torch.cat([v.detach().flatten() for v in values])
    end = start - torch.linalg.solve(hessian(f)(start), grad(f)(start))
    with torch.no_grad():
        for p, value in zip(values, split(end), strict=True):
            p.copy_(value)
    return layer


@pytest.mark.parametrize("G", GROUPS, ids=str)
def test_the_maximum_a_posteriori_of_a_regression_is_that_of_the_pathways(G):
    """And that of the formula, (Sigma^-1 + X^T X / s^2)^-1 X^T y / s^2; there the norms of the pathways agree, too."""
    noise, count = 0.3, 7
    layers = pair(G)
    x = torch.randn(count, layers[0].rep_in.dim, generator=generator(1), dtype=torch.float64)
    y = torch.randn(count, layers[0].rep_out.dim, generator=generator(2), dtype=torch.float64)
    pathways, dense = (posterior(layer, x, y, noise) for layer in layers)
    n = y.shape[1]
    eye = torch.eye(n, dtype=torch.float64)
    X = torch.cat([torch.einsum("bi,op->bopi", x, eye).reshape(count * n, -1), eye.repeat(count, 1)], 1)
    Sigma, _ = covariance(dense)
    formula = torch.linalg.solve(Sigma.inverse() + X.T @ X / noise, X.T @ y.flatten() / noise)
    scale = formula.norm()
    assert (vector(dense.assemble()) - formula).norm() < 1e-10 * scale
    assert (vector(pathways.assemble()) - vector(dense.assemble())).norm() < 1e-10 * scale
    found, expected = (
        dense.dense.norms("dense"),
        {name: getattr(pathways, name).norm() for name in ("equivariant", "free")},
    )
    assert found == {name: pytest.approx(norm.item(), rel=1e-9) for name, norm in expected.items()}


@pytest.mark.parametrize("G", GROUPS, ids=str)
def test_the_split_is_the_posterior_mean(G):
    """E[A | W] = Cov(A, W) Cov(W)^-1 w."""
    layer = pair(G)[1]
    for p in layer.parameters():
        torch.nn.init.normal_(p, generator=generator(p.numel()))
    Sigma, Q = covariance(layer)
    w = vector(layer.assemble())
    equivariant, free = layer.dense.pathways()
    torch.testing.assert_close(vector(equivariant), A * Q @ Q.T @ torch.linalg.solve(Sigma, w))
    torch.testing.assert_close(vector(equivariant) + vector(free), w)


@pytest.mark.parametrize("G", [Z(4), SO(3)], ids=str)
def test_both_start_from_the_same_weights_and_are_measured_alike(G):
    pathways, dense = nets(G)
    x = torch.randn(9, pathways.rep_in.dim, generator=generator(3))
    assert torch.equal(dense(x), pathways(x)) and torch.equal(merge(dense)(x), merge(pathways)(x))
    assert dense.pathway_variances() == pathways.pathway_variances()
    assert {layer: set(norms) for layer, norms in dense.pathway_norms().items()} == {
        layer: set(norms) for layer, norms in pathways.pathway_norms().items()
    }
    mlp = MLP(V + Scalar, V, G, hidden=[block.linear.rep_out.dim for block in dense.blocks])
    of = lambda net: sum(p.numel() for name, p in net.named_parameters() if ".linear." in name or "head" in name)  # noqa: E731
    assert of(dense) <= of(mlp) < of(pathways)


def test_float32_knows_what_is_outside_of_the_subspace():
    """|w|^2 - |Q^T w|^2 of float32 numbers would be off by the prior itself where the free variance is narrow."""
    net = nets(D(4), free_variance=1e-8)[1]
    exact = copy.deepcopy(net).double()
    values = {}
    for each in (net, exact):
        value = negative_log_prior(each)
        value.backward()
        values[each] = value.detach(), torch.cat([p.grad.flatten() for p in each.parameters()])
    (value, gradient), (expected, direction) = values[net], values[exact]
    assert value.dtype == torch.float32 and value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (gradient.double() - direction).norm() < 1e-5 * direction.norm()


def test_derivatives_by_weights_and_variances():
    net = RPPEMLP(V, V, SO(3), hidden=6, num_layers=1, parametrisation="dense", generator=generator()).double()
    names, values = zip(*net.named_parameters(), strict=True)
    layers = [(layer, part) for layer, parts in net.pathway_variances().items() for part in parts]

    class Prior(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, s):
            nested = {}
            for (layer, part), value in zip(layers, s.unbind(), strict=True):
                nested.setdefault(layer, {})[part] = value
            return negative_log_prior(self.net, nested)

    s = torch.randn(len(layers), dtype=torch.float64, generator=generator(2), requires_grad=True)
    f = lambda s, *p: functional_call(Prior(), {f"net.{n}": v for n, v in zip(names, p, strict=True)}, (s,))  # noqa: E731
    assert torch.autograd.gradcheck(f, (s, *values), fast_mode=True)


def test_a_stack_is_its_members_and_a_checkpoint_the_network():
    members = [nets(Z(4), seed=seed)[1] for seed in range(3)]
    stack = Stack(members)
    x = torch.randn(3, 5, members[0].rep_in.dim, generator=generator(4))
    torch.testing.assert_close(stack(x), torch.stack([net(x) for net, x in zip(members, x, strict=True)]))
    priors = torch.stack([negative_log_prior(net) for net in members])
    torch.testing.assert_close(stack.per_member(negative_log_prior), priors)
    other = nets(Z(4), seed=9, equivariant_variance=7.0)[1]
    other.load_state_dict(stack.member(1).state_dict())
    assert torch.equal(other(x[1]), members[1](x[1])) and negative_log_prior(other) == negative_log_prior(members[1])


def test_the_prior_pulls_towards_the_subspace():
    """After a few steps along the prior's gradient alone the network is as good as equivariant; without it, it is not."""
    net = nets(Z(4), free_variance=0.1, free_scale=1.0)[1].double()
    before = net.pathway_norms()["head"]
    for _ in range(60):
        gradients = torch.autograd.grad(negative_log_prior(net), list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradients, strict=True):
                p.sub_(g, alpha=0.05)
    after = net.pathway_norms()["head"]
    assert after["free"] < 1e-5 * before["free"] and after["equivariant"] == pytest.approx(
        before["equivariant"], rel=1e-3
    )


@pytest.mark.parametrize("name", ["equivariant_variance", "free_variance"])
def test_a_sum_of_one_pathway_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0 with parametrisation='dense'"):
        RelaxedLinear(V, V, Z(4), parametrisation="dense", **{name: 0})
    for cls in (EMLP, MLP):
        with pytest.raises(ValueError, match="the prior of a sum needs both pathways"):
            nets(Z(4), cls, bilinear="auto")


def test_variances_that_can_not_be_told_apart_are_not_learned():
    net = nets(SO(3))[1]
    assert isinstance(net.head.dense, DensePathway)
    words = "one dense weight has no pathways whose variances could be learned"
    with pytest.raises(ValueError, match=words):
        learn_variances(net)
    with pytest.raises(ValueError, match=words):
        curvature(net.head, net.head, [torch.randn(4, net.head.rep_in.dim)], Gaussian(1.0))
