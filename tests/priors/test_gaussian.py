"""The prior is torch's own Gaussian log-density of the coefficients, whatever the parameters' scale."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator
from torch import nn
from torch.distributions import MultivariateNormal, Normal

from rppdyn.groups import SO, SO13, D, S, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble, RelaxedLinear, merge, named_pathways
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Scalar, T, V


def build(cls, G, **options):
    options = dict(hidden=24, num_layers=2) | options
    net = cls(V + Scalar, V + Scalar, G, generator=generator(), **options).double()
    for p in net.parameters():
        nn.init.normal_(p, generator=generator(p.numel()))
    return net


@pytest.mark.parametrize("G", [Z(4), D(4), SO(3), SO13()], ids=str)
@pytest.mark.parametrize("variances", [(1e5, 1.0), (0.3, 2e-3), (0, 2.0), (7.0, 0)], ids=str)
def test_the_prior_is_torchs_log_density(G, variances):
    """beta is recomputed from the dense weight with the solver's own orthonormal basis."""
    net = build(RPPEMLP, G, equivariant_variance=variances[0], free_variance=variances[1])
    expected = 0.0
    a, b = (Normal(0.0, torch.tensor(v, dtype=torch.float64).sqrt()) if v else None for v in variances)
    for block in [*net.blocks, net]:
        layer = block.head if block is net else block.linear
        assert isinstance(layer, RelaxedLinear)
        if a is not None:
            weight, bias = layer.equivariant.dense()
            expected -= a.log_prob((layer.rep_in >> layer.rep_out).solve().rmatmul(weight.flatten())).sum()
            if bias is not None:
                expected -= a.log_prob(layer.rep_out.solve().rmatmul(bias)).sum()
        if b is not None:
            expected -= sum(b.log_prob(w).sum() for w in layer.free.dense())
        if block is not net and getattr(block.gate, "free", None) is not None:
            expected -= b.log_prob(block.gate.free.coefficients()[0]).sum()
        if block is not net and block.bilinear is not None:
            expected -= a.log_prob(block.bilinear.equivariant.weight).sum()
    torch.testing.assert_close(negative_log_prior(net), expected)


def test_the_sum_of_the_pathways_has_the_covariance_of_the_paper():
    """W = A + B is Gaussian with (a + b) QQ^T + b PP^T (Finzi 2023, Eq. 3.1)."""
    G, a, b = S(3), 3.0, 0.5
    layer = RelaxedLinear(V(G), V(G), equivariant_variance=a, free_variance=b, bias=False).double()
    Q = (V(G) >> V(G)).equivariant_basis()
    prior = MultivariateNormal(torch.zeros(9).double(), a * Q @ Q.T + b * torch.eye(9))
    beta, B = (torch.randn(4000, *shape, generator=generator(), dtype=torch.float64) for shape in ((2,), (3, 3)))
    weights = {"equivariant.weight": a**0.5 * beta / layer.equivariant.weight_map.scale, "free.weight": b**0.5 * B}
    W = torch.func.vmap(lambda p: torch.func.functional_call(layer, p, (torch.eye(3).double(),)).T)(weights)
    torch.testing.assert_close(torch.cov(W.flatten(1).T), prior.covariance_matrix, rtol=0, atol=0.25)


def test_the_prior_of_an_ensemble_is_the_sum_of_its_members():
    """With fixed variances, all learned, and some: then each member has its own."""
    for names in ((), ("equivariant",), ("equivariant", "free")):
        nets = [build(RPPEMLP, Z(4), hidden=8) for _ in range(2)]
        for i, net in enumerate(nets):
            for _, name, pathway in named_pathways(net):
                nn.init.constant_(pathway.get_parameter(pathway.coefficient_names()[0]), i - 0.5)
                if name in names:
                    pathway.learn_variance()
                    nn.init.constant_(pathway.log_variance, 0.3 - i)
        stack = Ensemble(nets)
        torch.testing.assert_close(negative_log_prior(stack), sum(map(negative_log_prior, nets)))
        assert stack.per_member(negative_log_prior).shape == (2,)


def test_a_removed_pathway_counts_nothing():
    for cls, pathway in ((EMLP, "equivariant"), (MLP, "free")):
        net = build(cls, Z(4))
        names = {name for _, name, _ in named_pathways(net)}
        assert names == {pathway}
        n = sum(p.num_coefficients for _, _, p in named_pathways(net))
        assert n == sum(p.numel() for p in net.parameters())
        for p in net.parameters():
            nn.init.zeros_(p)
        variance = net.pathway_variances()["head"][pathway]
        assert negative_log_prior(net).item() == pytest.approx(n / 2 * math.log(2 * math.pi * variance))


@pytest.mark.parametrize("G", [Z(4), SO(3)], ids=str)
def test_it_is_differentiable_in_weights_and_log_variances(G):
    net = build(RPPEMLP, G, hidden=6, num_layers=1)
    names, values = zip(*net.named_parameters(), strict=True)
    keys = [(layer, name) for layer, name, _ in named_pathways(net)]
    s = torch.randn(len(keys), dtype=torch.float64, generator=generator(2), requires_grad=True)

    class Prior(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, s):
            nested = {}
            for (layer, name), value in zip(keys, s.unbind(), strict=True):
                nested.setdefault(layer, {})[name] = value
            return negative_log_prior(self.net, nested)

    prior = Prior()
    f = lambda s, *p: torch.func.functional_call(prior, {f"net.{k}": v for k, v in zip(names, p, strict=True)}, (s,))  # noqa: E731
    assert torch.autograd.gradcheck(f, (s, *values), fast_mode=True)
    many = torch.func.vmap(prior)(torch.stack([s, s + 1]))
    torch.testing.assert_close(many[1], prior(s + 1))


def test_a_log_variance_can_be_a_parameter():
    net = build(RPPEMLP, Z(4))
    before = negative_log_prior(net)
    pathway = net.head.free
    pathway.log_variance = nn.Parameter(pathway.log_variance.clone())
    assert any(p is pathway.log_variance for p in net.parameters())
    value = negative_log_prior(net)
    torch.testing.assert_close(value, before)
    value.backward()
    w2 = sum(c.detach().square().sum() for c in pathway.coefficients())
    expected = (pathway.num_coefficients - w2 / pathway.variance.detach()) / 2
    torch.testing.assert_close(pathway.log_variance.grad, expected)


def test_an_optimal_variance_is_the_mean_square():
    net = build(MLP, Z(4), num_layers=0)
    w = torch.cat([c.flatten() for c in net.head.free.coefficients()])
    best = w.square().mean().log()
    values = [negative_log_prior(net, {"head": {"free": best + d}}).item() for d in (-0.1, 0.0, 0.1)]
    assert values[1] == min(values)


def test_unknown_pathways_are_refused_by_name():
    with pytest.raises(ValueError, match=r"blocks\.7\.linear\.free: no such pathway; there are blocks\.0"):
        negative_log_prior(build(MLP, Z(4)), {"blocks.7.linear": {"free": torch.zeros(())}})


def test_a_module_without_pathways_is_refused():
    for module in (torch.nn.Linear(2, 2), merge(build(MLP, Z(4)))):
        with pytest.raises(ValueError, match=r"has no pathways, and so no prior"):
            negative_log_prior(module)


def test_it_takes_the_dtype_of_the_weights_and_any_module():
    net = RPPEMLP(V, V, Z(4), hidden=8, num_layers=1)
    assert negative_log_prior(net).dtype == torch.float32
    both = nn.ModuleDict({"actor": net, "critic": MLP(V, Scalar, Z(4), hidden=8)})
    torch.testing.assert_close(negative_log_prior(both), negative_log_prior(net) + negative_log_prior(both["critic"]))
    layer = RelaxedLinear((V + T(2))(SO(3)), V(SO(3)))
    assert torch.isfinite(negative_log_prior(layer))
