"""Networks under bf16 autocast are near what they are in float32, with gradients."""

from __future__ import annotations

import pytest
import torch

from rppdyn.groups import SO, SO13, O, S, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble, merge
from rppdyn.reps import Scalar, V


@pytest.mark.parametrize("cls", [RPPEMLP, EMLP, MLP])
@pytest.mark.parametrize(
    "options", [{}, dict(bilinear="published"), dict(bilinear=False), dict(activation="tanh")], ids=str
)
@pytest.mark.parametrize("G", [SO(3), O(2), SO13(), Z(4), S(3)], ids=str)
def test_networks_run_under_autocast(G, options, cls):
    if cls is MLP and options.get("bilinear"):
        return
    rep = (Scalar + 2 * V)(G)
    net = cls(rep, rep, G, hidden=24, num_layers=2, generator=torch.Generator().manual_seed(0), **options)
    x = torch.randn(8, rep.dim, generator=torch.Generator().manual_seed(1))
    expected = net(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = net(x), Ensemble([net])(x.unsqueeze(0)).squeeze(0), merge(net)(x)
    for y in outputs:
        assert (y.detach().float() - expected).abs().max() < 0.1 * expected.abs().max()
    outputs[0].float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("G", [SO(3), O(3)], ids=str)
def test_products_lose_no_more_than_linear_layers(G):
    """Products of bf16 features lost 15 % of the output in one draw of sixty: a bound has to hold in every one."""
    rep, lost = (Scalar + 2 * V)(G), []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        net = RPPEMLP(rep, rep, G, hidden=16, generator=generator)
        x = torch.randn(8, rep.dim, generator=generator)
        expected = net(x).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lost.append(float((net(x).detach() - expected).abs().max() / expected.abs().max()))
    assert max(lost) < 0.065
