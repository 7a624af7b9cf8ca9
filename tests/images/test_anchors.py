"""Continuous filters: what anchors say, conversion of convolutions and back, and fewer anchors."""

from __future__ import annotations

import pytest
import torch
from image_pathways import relative
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.images._continuous import AnchorBasis, AnchoredConv2d, anchored, pixel_grid, refit, sampled, spread


def network(**options) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, (3, 5), padding="same", **options),
            nn.Conv2d(6, 2, 1),
        )


def grid(side):
    return pixel_grid((side, side)).double()


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=generator(seed))


@pytest.mark.parametrize("size", [3, 5, 7])
def test_a_converted_convolution_is_the_same_function_in_float32_and_back(size):
    conv, x = nn.Conv2d(3, 4, size, padding=size // 2), draw(2, 3, 9, 9)
    with torch.no_grad():
        conv.weight.copy_(draw(*conv.weight.shape))
    converted = AnchoredConv2d.of(conv)
    assert (converted.weight - conv.weight).abs().max() < 1e-5
    assert (converted(x) - conv(x)).abs().max() < 1e-5 * conv(x).abs().max()
    assert (converted.to_conv2d().weight - conv.weight).abs().max() < 1e-5


def test_a_converted_convolution_has_a_bias_of_its_own():
    conv = nn.Conv2d(2, 3, 3)
    converted = AnchoredConv2d.of(conv)
    conv.bias.data.add_(1)
    assert not (converted.bias == conv.bias).any()


def test_the_published_length_scale_needs_float64():
    """A length scale of half a 7 x 7 filter's width: float32 can't solve for it, and here nothing is solved in float32."""
    points, w = grid(7), draw(5, 49).double()
    basis = AnchorBasis(points, frequencies=(1 / 3.5, 1 / 3.5), noise=1e-10)
    assert (refit(basis, points, w) @ basis(points).mT - w).abs().max() < 1e-5
    gram = basis.gram().float()  # with noise it is 1e-10 on a diagonal of 1: none
    naive = gram @ torch.linalg.solve(gram, w.mT.float())
    assert not (naive.mT - w).abs().max() < 1e-3


def test_filters_between_pixels_are_those_of_kernel_ridge_regression():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    z, u, v = grid(3) * 0.7, draw(9, seed=1).double(), draw(20, 2).double()
    peer = GaussianProcessRegressor(RBF(1 / 1.3, "fixed"), alpha=1e-3, optimizer=None).fit(z.numpy(), u.numpy())
    found = AnchorBasis(z, frequencies=(1.3, 1.3), noise=1e-3)(v) @ u
    assert relative(found, torch.from_numpy(peer.predict(v.numpy()))) < 1e-9


def test_a_periodic_dimension_has_period_two_and_no_seam():
    basis = AnchorBasis(torch.tensor([[0.0], [0.5], [1.9]]), ["periodic"])
    t = torch.tensor([[0.3], [1.99]], dtype=torch.float64)
    assert relative(basis(t), basis(t + 2)) < 1e-9 < relative(basis(t), basis(t + 1))
    assert basis.similarity(t[1:], t[1:] + 0.02) > 0.99  # across the seam
    ordinary = AnchorBasis(torch.tensor([[0.0]]), ["rbf"])
    assert ordinary.similarity(t, t + 2).diagonal().max() < 0.2


def test_eq_5_is_the_least_squares_fit():
    points, w = grid(5), draw(3, 25).double()
    basis = AnchorBasis(spread(points, 7))
    u = refit(basis, points, w)
    A = basis(points)
    assert (A.mT @ (u @ A.mT - w).mT).abs().max() < 1e-12  # the residual is orthogonal to what can be said
    printed = torch.linalg.inv(basis.gram())[:, :] @ basis.similarity(basis.places, points)
    assert relative(printed.mT, A) < 1e-9
    worse = u + 0.1 * draw(*u.shape).double()
    assert (u @ A.mT - w).norm() < (worse @ A.mT - w).norm()


@pytest.mark.parametrize(
    "options", [{}, {"padding_mode": "circular"}, {"groups": 2}, {"dilation": 2}, {"padding_mode": "reflect"}]
)
def test_networks_are_converted_and_back(options):
    net, x = network(**options), draw(2, 2, 8, 8)
    converted = anchored(net)
    assert sum(isinstance(m, AnchoredConv2d) for m in converted.modules()) == 2
    assert isinstance(converted[3], nn.Conv2d)  # of one pixel
    assert relative(converted(x), net(x)) < 1e-6
    assert relative(sampled(converted)(x), net(x)) < 1e-6
    assert not any(isinstance(m, AnchoredConv2d) for m in sampled(converted).modules())
    assert relative(anchored(net.double())(x.double()), net(x.double())) < 1e-12
    assert relative(anchored(net, 0.4)(x.double()), net(x.double())) > 0.01


@pytest.mark.parametrize("learned", [False, True])
def test_sparse_networks_train_and_survive_a_file(learned, tmp_path):
    net, x = anchored(network(), 0.5, learned=learned), draw(2, 2, 8, 8)
    before = [p.detach().clone() for p in net.parameters()]
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    net(x).square().mean().backward()
    optimiser.step()
    assert not any(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    other = anchored(network(), 0.5, learned=learned)
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(other(x), net(x))


def test_anchors_that_coincide_give_numbers():
    conv = nn.Conv2d(2, 2, 3)
    for learned in (False, True):
        f = AnchoredConv2d(conv, torch.zeros(4, 2), learned=learned)
        f(draw(1, 2, 5, 5)).square().sum().backward()
        assert all(p.grad.isfinite().all() for p in f.parameters())
        assert f.weight.isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AnchorBasis(torch.zeros(2, 2), noise=0.0), ("condition", "noise=0.0")),
        (lambda: AnchorBasis(grid(3), frequencies=(1e-4, 1e-4), noise=0.0), ("condition", "frequencies")),
        (lambda: AnchorBasis(grid(3), ["rbf"]), ("(9, 2)",)),
        pytest.param(
            lambda: AnchorBasis(grid(3), ["rbf", "cosine"]), ("'cosine']", "periodic"), marks=pytest.mark.unchecked
        ),
        (lambda: AnchorBasis(torch.full((1, 2), torch.nan)), ("anchors=[[nan, nan]]", "finite")),
        (lambda: AnchorBasis(grid(3), noise=-1.0), ("noise=-1.0",)),
        (lambda: anchored(network(), 0.0), ("share=0.0",)),
        (lambda: anchored(nn.Linear(2, 2)), ("Linear",)),
        (lambda: AnchoredConv2d.of(nn.Conv2d(1, 1, 3), 10), ("anchors=10",)),
    ],
)
def test_what_can_not_be(make, words):
    with refused(*words):
        make()
