"""Local equivariance error: the two published norms against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from registry import generator

from rppdyn.equivariance import Flow, images, lie_derivative, local_equivariance_error
from rppdyn.groups import SO, Group, Z
from rppdyn.nn import EMLP
from rppdyn.reps import Scalar, T, V

X = torch.randn(40, 2, generator=generator(0), dtype=torch.float64)


def test_both_norms_have_their_analytic_value_for_a_linear_map():
    # f(x) = W x with W = diag(2, 1) under SO(2), generator A = [[0, -1], [1, 0]] up to sign: L f = (W A - A W) x = |x| long.
    G, W = SO(2), torch.tensor([2.0, 1.0], dtype=torch.float64)
    error = local_equivariance_error(lambda x: x * W, V(G), V(G), X)
    squares = X.square().sum(1) / 2
    assert error.generators == ("A0",)
    assert error.squared.item() == pytest.approx(squares.mean().item(), rel=1e-12)
    assert error.absolute.item() == pytest.approx((X.abs().sum(1) / 2).mean().item(), rel=1e-12)
    assert error.squared_standard_error.item() == pytest.approx((squares.std() / math.sqrt(40)).item(), rel=1e-12)
    assert "A0" in repr(error)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_an_emlp_is_at_rounding(dtype, tolerance):
    G = SO(3)
    net = EMLP(2 * T(0) + 3 * T(1), T(1), G, hidden=40, num_layers=2, generator=generator(1)).to(dtype)
    x = torch.randn(20, net.rep_in.dim, generator=generator(2), dtype=torch.float64).to(dtype)
    size = net(x).abs().max()
    assert lie_derivative(net, net.rep_in, net.rep_out, x).abs().max() < tolerance * size
    assert local_equivariance_error(net, net.rep_in, net.rep_out, x).squared.max().sqrt() < tolerance * size


def test_an_image_flow_may_meet_a_representation_with_one_generator():
    """A detector of orientation: an image turns by an angle, and the vector that it points at turns with it."""
    G, turn = SO(2), images.rotation()
    n = 24
    at = torch.linspace(-(n - 1) / 2, (n - 1) / 2, n, dtype=torch.float64)
    smooth = torch.exp(-((at - 3) ** 2)[None] / 8 - ((at - 1) ** 2)[:, None] / 8)[None, None]

    def centre_of_mass(image):
        return torch.stack([(image * at).sum((1, 2, 3)), (image * at[:, None]).sum((1, 2, 3))], -1)

    clockwise = float(-G.lie_algebra[0, 0, 1])  # the flow turns x towards y
    assert clockwise == 1.0
    derivative = lie_derivative(centre_of_mass, turn, V(G), smooth)
    assert derivative.norm() < 0.05 * centre_of_mass(smooth).norm()  # what bilinear interpolation is good for
    assert lie_derivative(centre_of_mass, turn, (2 * Scalar)(G), smooth).norm() > 0.9 * centre_of_mass(smooth).norm()


def test_actions_of_different_symmetries_are_refused():
    with pytest.raises(ValueError, match="different numbers of continuous generators"):
        lie_derivative(lambda x: x, V(SO(3)), images.rotation(), torch.zeros(1, 3))
    assert lie_derivative(lambda x: x, V(Z(3)), V(Z(3)), torch.zeros(4, 3)).shape == (0, 4, 3)


class Stretch(Flow):
    """A flow of one's own: exp(t) x."""

    name = "stretch"

    def __call__(self, x, t):
        return torch.exp(torch.as_tensor(t)).to(x.dtype) * x


def test_a_flow_of_ones_own():
    """Euler's theorem: for f of degree k, L f = (k - 1) f."""
    derivative = lie_derivative(lambda x: x**3, Stretch(), Stretch(), X)
    torch.testing.assert_close(derivative[0], 2 * X**3)


def test_what_has_no_derivative_to_speak_of_is_refused():
    for measure in (lie_derivative, local_equivariance_error):
        with pytest.raises(ValueError, match=r"f\(x\) has shape \(40, 1\); rep_out \(T1\) asks for 2 components"):
            measure(lambda x: x[:, :1], V(SO(2)), V(SO(2)), X)
    with pytest.raises(ValueError, match="at least one input"):
        local_equivariance_error(lambda x: x, V(SO(2)), V(SO(2)), X[:0])
    with pytest.raises(ValueError, match="not finite"):
        local_equivariance_error(lambda x: x, V(SO(2)), V(SO(2)), X / 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@pytest.mark.parametrize("size", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("length", [1.0, 100.0, 1e-4])
def test_functions_without_derivatives_at_any_scale(dtype, tolerance, size, length):
    """Through NumPy, where neither inputs nor generators are of order one; sin varies at 1, however large inputs are."""
    G = Group("turns", lie_algebra=length * SO(2).lie_algebra)
    x = size * torch.tensor([[0.6, 0.8], [0.2, -1.1]], dtype=dtype)
    found = lie_derivative(lambda x: torch.from_numpy(np.sin(x.numpy()[..., :1])), V(G), Scalar(G), x)
    expected = -length * x[:, 1] * x[:, 0].cos()
    assert ((found.flatten() - expected).norm() / expected.norm()).item() < tolerance


def test_functions_that_are_detached_in_part():
    G, x = SO(2), torch.tensor([[3.0, 4.0], [0.2, 0.1]], dtype=torch.float64)
    broken = lambda x: x.norm(dim=-1, keepdim=True) + x[..., :1].detach()  # noqa: E731
    assert torch.allclose(lie_derivative(broken, V(G), Scalar(G), x).flatten(), -x[:, 1], rtol=1e-9)
    whole = lambda x: torch.cat([x[..., :1], x[..., 1:].detach()], -1)  # noqa: E731
    assert lie_derivative(whole, V(G), V(G), x).abs().max() < 1e-9


def test_noise_and_kinks_keep_the_derivative_of_the_graph():
    G, x = SO(2), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    noise = torch.Generator().manual_seed(0)
    noisy = lambda x: x[..., :1] + torch.randn(1, 1, generator=noise, dtype=x.dtype)  # noqa: E731
    assert lie_derivative(noisy, V(G), Scalar(G), x).item() == -1
    assert torch.vmap(lambda x: lie_derivative(lambda x: x[..., :1], V(G), Scalar(G), x))(x).item() == -1
