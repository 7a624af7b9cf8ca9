"""Transformations of images: against torch's grid_sample, exact cases, inverses, derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator
from torch.nn import functional as F

from rppdyn.equivariance import images, lie_derivative

X = torch.randn(2, 3, 9, 12, generator=generator(0), dtype=torch.float64)
FLOWS = [make() for make in images.TRANSFORMATIONS.values()]
AFFINE = [flow for flow in FLOWS if isinstance(flow, images.AffineFlow)]
MAPS = {  # of a point (x, y) after time t, by hand
    "rotation": lambda t: [[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]],
    "scaling": lambda t: [[math.exp(t), 0], [0, math.exp(t)]],
    "stretch x": lambda t: [[math.exp(t), 0], [0, 1]],
    "stretch y": lambda t: [[1, 0], [0, math.exp(t)]],
    "shear x": lambda t: [[1, t], [0, 1]],
    "shear y": lambda t: [[1, 0], [t, 1]],
    "hyperbolic rotation": lambda t: [[math.cosh(t), math.sinh(t)], [math.sinh(t), math.cosh(t)]],
}


@pytest.mark.parametrize("flow", AFFINE, ids=lambda f: f.name)
def test_affine_flows_are_grid_sample_with_reflection(flow):
    t, (height, width) = 0.3, X.shape[-2:]
    linear = torch.tensor(MAPS.get(flow.name, lambda t: [[1, 0], [0, 1]])(t), dtype=torch.float64)
    back = torch.linalg.inv(linear)
    shift = {"translation x": (2 * t, 0.0), "translation y": (0.0, 2 * t)}.get(flow.name, (0.0, 0.0))
    # torch's coordinates run from -1 to 1 over each axis: pixels = coordinates * size / 2
    size = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    theta = torch.cat([back * size / size[:, None], -torch.tensor(shift, dtype=torch.float64)[:, None]], 1)
    grid = F.affine_grid(theta[None].expand(2, -1, -1), list(X.shape), align_corners=False)
    expected = F.grid_sample(X, grid, padding_mode="reflection", align_corners=False)
    torch.testing.assert_close(flow(X, t), expected)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_time_zero_is_the_identity_and_vectors_stay(flow):
    torch.testing.assert_close(flow(X, 0.0), X, rtol=0, atol=1e-14)
    logits = torch.randn(4, 10, generator=generator(1))
    assert flow(logits, 0.7) is logits and not flow.field(logits).any()


@pytest.mark.parametrize("name", ["bilinear", "fourier"])
def test_whole_pixels_are_exact(name):
    x = F.pad(X[..., 2:-2, 2:-2], (2, 2, 2, 2))  # a dark margin, so that all borders agree
    moved = images.translation("x", name)(x, 2 / 12)
    torch.testing.assert_close(moved, x.roll(2, -1), atol=1e-12, rtol=0)
    torch.testing.assert_close(images.translation("y", name)(x, -1 / 9), x.roll(-1, -2), atol=1e-12, rtol=0)


def test_a_quarter_turn_is_exact_on_a_square():
    x = X[..., :9]
    torch.testing.assert_close(images.rotation()(x, math.pi / 2), x.rot90(-1, (-2, -1)), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("axis", "n"), [("x", 12), ("x", 11), ("y", 9), ("y", 8)])
def test_fourier_translation_is_exact_below_the_nyquist_frequency_and_inverts(axis, n):
    at = torch.arange(n, dtype=torch.float64) / n

    def wave(shift):
        s = at - shift
        values = 0.3 + torch.cos(2 * math.pi * 2 * s + 0.4) + 0.5 * torch.sin(2 * math.pi * 3 * s)
        return (values if axis == "x" else values[:, None]).expand(1, 1, n, n)

    flow, t = images.translation(axis, "fourier"), 0.137
    torch.testing.assert_close(flow(wave(0.0), t), wave(t))
    torch.testing.assert_close(flow(flow(wave(0.0), t), -t), wave(0.0))
    slope = (wave(1e-6) - wave(-1e-6)) / 2e-6
    torch.testing.assert_close(flow.field(wave(0.0)), slope, rtol=1e-6, atol=1e-6)


def test_the_nyquist_frequency_stands_still_to_first_order():
    x = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64).expand(1, 1, 8, 8)
    flow = images.translation("x", "fourier")
    assert flow.field(x).abs().max() < 1e-12
    torch.testing.assert_close(flow(x, 0.5 / 8), math.cos(math.pi * 0.5) * x, atol=1e-12, rtol=0)


@pytest.mark.parametrize("flow", AFFINE, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_pixel_takes_the_same_side_of_the_kink(flow, dtype):
    """The velocity is the vector field times right-hand differences, at every pixel; rounding would flip some of them."""
    n = 31
    x = torch.randn(1, 1, n, n, generator=generator(2), dtype=torch.float64).to(dtype)
    padded = F.pad(x, (0, 1, 0, 1), mode="replicate")[0, 0]  # the pixel beyond the edge is its mirror image
    to_right, down = (padded[:-1, 1:] - x[0, 0]), (padded[1:, :-1] - x[0, 0])
    A, b = torch.tensor(flow.linear, dtype=torch.float64), torch.tensor(flow.shift, dtype=torch.float64)
    at = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    rows, columns = torch.meshgrid(at, at, indexing="ij")
    velocity = -(torch.stack([columns, rows], -1) @ A.mT + b * n).to(dtype)
    expected = velocity[..., 0] * to_right + velocity[..., 1] * down
    torch.testing.assert_close(flow.field(x)[0, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_pointwise_maps_of_channels_commute_with_every_flow(flow):
    mix = torch.randn(4, 3, generator=generator(3), dtype=torch.float64)
    assert lie_derivative(lambda x: torch.einsum("oc,bchw->bohw", mix, x), flow, flow, X).abs().max() < 1e-10
    if flow.name != "brightening":
        assert lie_derivative(lambda x: x * X[:1, :1], flow, flow, X).abs().max() > 0.1  # a mask does not


def test_homogeneous_maps_commute_with_brightening_and_biases_do_not():
    flow = images.brightening()
    assert lie_derivative(torch.relu, flow, flow, X).abs().max() < 1e-12
    torch.testing.assert_close(lie_derivative(lambda x: x + 0.3, flow, flow, X)[0], torch.full_like(X, -0.3))
    torch.testing.assert_close(flow(flow(X, 0.4), -0.4), X)


def test_stretches_of_both_axes_are_scaling():
    fields = [flow.field(X) for flow in (images.stretch("x"), images.stretch("y"), images.scaling())]
    torch.testing.assert_close(fields[0] + fields[1], fields[2])


def test_errors_name_the_fault():
    for make in (images.translation, images.shear, images.stretch):
        with pytest.raises(ValueError, match="axis='z'"):
            make("z")
    with pytest.raises(ValueError, match="'cubic'"):
        images.translation("x", "cubic")
