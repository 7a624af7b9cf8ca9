"""Local equivariance error: the two published norms against their definitions."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from registry import generator

from rppdyn.equivariance import Flow, images, lie_derivative, local_equivariance_error
from rppdyn.equivariance._lie import tangents
from rppdyn.groups import SO, Group, Z
from rppdyn.reps import Scalar, V

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
@pytest.mark.parametrize(("size", "length"), [(1.0, 1.0), (1e-2, 100.0), (100.0, 1e-4)])
def test_functions_without_derivatives_at_any_scale(dtype, tolerance, size, length):
    """Through NumPy, where neither inputs nor generators are of order one; sin varies at 1, however large inputs are."""
    G = Group("turns", lie_algebra=length * SO(2).lie_algebra)
    x = size * torch.tensor([[0.6, 0.8], [0.2, -1.1]], dtype=dtype)
    found = lie_derivative(lambda x: torch.from_numpy(np.sin(x.numpy()[..., :1])), V(G), Scalar(G), x)
    expected = -length * x[:, 1] * x[:, 0].cos()
    assert ((found.flatten() - expected).norm() / expected.norm()).item() < tolerance
    assert not lie_derivative(lambda x: torch.ones(2, 1), V(G), Scalar(G), x).any()  # constant, so invariant


def forward_mode(f, action, out, x):
    """The Lie derivative by torch.func.jvp and nothing else."""
    pushed = [torch.func.jvp(f, (x,), (v,)) for v in tangents(action, x)]
    return torch.stack([dy - tangents(out, y)[k] for k, (y, dy) in enumerate(pushed)])


def network(activation, dtype, seed=3):
    """Three layers of a width at which some unit's kink is always near, and its float64 copy."""
    torch.manual_seed(seed)
    sizes = [6, 128, 128, 3]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), activation)][:-1]
    net = torch.nn.Sequential(*layers).requires_grad_(False).to(dtype)
    return net, copy.deepcopy(net).double()


class Hard(torch.nn.Module):
    """A gate that jumps."""

    def forward(self, x):
        return (x > 0).to(x.dtype) * x.sin()


KINKED = (torch.nn.ReLU(), Hard(), torch.nn.Hardtanh(), torch.nn.Hardswish())
IN, OUT = 2 * V(SO(3)), V(SO(3))


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [*((kinked, torch.float32) for kinked in KINKED[:-1]), (KINKED[0], torch.float64), (KINKED[-1], torch.bfloat16)],
)
def test_kinks_keep_the_derivative_of_the_graph(activation, dtype):
    """What forward mode gives, to the last bit: next to kinks, and on those where inputs and features are zero."""
    net, _ = network(activation, dtype)
    policy = lambda x: net(x).tanh().mul(2).clamp(-0.1, 0.1)  # noqa: E731
    for batch in (1, 300):
        x = torch.randn(batch, 6, generator=generator(4)).to(dtype)
        for f, at in ((net, x), (policy, x), (net, 0 * x), (activation, x.relu())):
            reps = (IN, IN) if f is activation else (IN, OUT)
            assert torch.equal(lie_derivative(f, *reps, at), forward_mode(f, *reps, at))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("flow", [images.translation("x", "fourier"), images.rotation()], ids=lambda flow: flow.name)
def test_kinks_of_image_networks_keep_the_derivative_of_the_graph(flow, dtype):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 10),
    ).requires_grad_(False).to(dtype)  # fmt: skip
    bright = torch.rand(8, 1, 16, 16, generator=generator(1)).to(dtype)
    for x in (bright, bright[:1], bright * (bright > 0.6)):  # the last on a background of zeros
        for f in (net, net[:3]):
            assert torch.equal(lie_derivative(f, flow, flow, x), forward_mode(f, flow, flow, x))


class Undifferentiated(torch.autograd.Function):
    """ReLU without a rule for forward mode."""

    @staticmethod
    def forward(ctx, x):
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _tensor(values, like):
    return torch.as_tensor(values).to(like.dtype)


def _without_gradient(f):
    with torch.inference_mode():
        return f()


PARTIAL = {  # a network and something that forward mode does not see
    "detach": lambda net, x: net(x) + x[..., :3].detach(),
    "little": lambda net, x: net(x) + 0.01 * x[..., :3].detach(),
    "network": lambda net, x: net(x.detach()) + x[..., :3],
    "data": lambda net, x: net(x) + x.data[..., :3],
    "list": lambda net, x: net(x) + torch.tensor(x.tolist(), dtype=x.dtype)[..., :3],
    "inference": lambda net, x: net(x) + _without_gradient(lambda: x[..., :3] * 1),
    "numpy": lambda net, x: net(x) + _tensor(x.detach().double().numpy()[..., :3], x),
    "all": lambda net, x: _tensor(net(x.detach()).double().numpy(), x) + x[..., :3],
    "buffer": lambda net, x: torch.zeros(len(x), 3, dtype=x.dtype).copy_(net(x)) + x[..., :3].detach(),
}
WHOLE = {"little": lambda net, x: net(x) + 0.01 * x[..., :3]}


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        *((name, torch.float32, 1e-6) for name in PARTIAL),
        ("detach", torch.float64, 1e-8),
        ("all", torch.bfloat16, 0.02),
    ],
)
def test_functions_with_kinks_that_are_detached_in_part(name, dtype, tolerance):
    net, exact = network(torch.nn.ReLU(), dtype)
    x = torch.randn(100, 6, generator=generator(5)).to(dtype)
    whole = WHOLE.get(name, lambda net, x: net(x) + x[..., :3])
    expected = forward_mode(lambda x: whole(exact, x), IN, OUT, x.double())
    found = lie_derivative(lambda x: PARTIAL[name](net, x), IN, OUT, x)
    assert found.dtype == dtype and (found - expected).norm() < tolerance * expected.norm()


def test_functions_without_forward_mode_are_differentiated_in_double_precision():
    net, exact = network(torch.nn.ReLU(), torch.float32)
    x = torch.randn(100, 6, generator=generator(6))
    expected = forward_mode(exact, IN, OUT, x.double())
    custom = torch.nn.Sequential(*[layer for layer in net if not isinstance(layer, torch.nn.ReLU)])

    def written(x):
        buffer.copy_(net(x))
        return buffer.clone()

    def undifferentiated(x):
        for layer in custom[:-1]:
            x = Undifferentiated.apply(layer(x))
        return custom[-1](x)

    buffer = torch.zeros(100, 3)
    for f, tolerance in ((torch.inference_mode()(net.forward), 1e-6), (undifferentiated, 1e-6), (written, 0.02)):
        assert (lie_derivative(f, IN, OUT, x) - expected).norm() < tolerance * expected.norm()


def test_noise_keeps_the_derivative_of_the_graph():
    G, x = SO(2), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    noise = torch.Generator().manual_seed(0)
    noisy = lambda x: x[..., :1] + torch.randn(1, 1, generator=noise, dtype=x.dtype)  # noqa: E731
    assert lie_derivative(noisy, V(G), Scalar(G), x).item() == -1
    assert torch.vmap(lambda x: lie_derivative(lambda x: x[..., :1], V(G), Scalar(G), x))(x).item() == -1
