"""Matrices that act on the pixel grid: against flows, exact shifts at odd sizes, and what is no exact action."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator

from rppdyn.equivariance import images
from rppdyn.equivariance.images import AFFINE, affine_generator, coordinates, derivative, exponential, shift


@pytest.mark.parametrize("size", [(3, 3), (5, 7), (9, 1)])
def test_exponentials_of_translations_are_shifts_at_odd_sizes(size):
    for name, by in ("translation_x", (0, 1)), ("translation_y", (1, 0)):
        D = affine_generator(size, name)
        for t in (1, 2, -3):
            error = exponential(D, t) - shift(size, [t * one for one in by])
            assert error.abs().max() < 1e-12
        assert torch.equal(D, -D.mT)


def test_shifts_are_rolls():
    x = torch.randn(2, 3, 4, 5, generator=generator(), dtype=torch.float64)
    moved = (x.flatten(2) @ shift((4, 5), (1, -2)).mT).view_as(x)
    assert torch.equal(moved, x.roll((1, -2), (-2, -1)))


@pytest.mark.parametrize("n", [5, 9])
def test_derivatives_of_band_limited_functions_are_exact(n):
    p = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    for k in range((n - 1) // 2 + 1):  # to the top frequency
        found = derivative(n) @ (k * p + 0.3).sin()
        torch.testing.assert_close(found, 2 * math.pi / n * k * (k * p + 0.3).cos(), rtol=0, atol=1e-12)
    wave = derivative(n, "bilinear") @ p.sin()
    torch.testing.assert_close(wave, math.sin(2 * math.pi / n) * p.cos(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", AFFINE)
def test_the_derivative_of_a_flow_is_the_flows_field(name):
    x, scale = torch.randn(2, 1, 5, 7, generator=generator(), dtype=torch.float64), 1.0
    if name.startswith("translation"):  # of flows, in image widths and heights
        scale = 7 if name.endswith("x") else 5
    flow = images.TRANSFORMATIONS[name]()
    found = scale * (x.flatten(1) @ affine_generator((5, 7), name, "flow").mT)
    torch.testing.assert_close(found, flow.field(x).flatten(1))


@pytest.mark.parametrize("interpolation", ["shannon_whittaker", "bilinear"])
@pytest.mark.parametrize("name", AFFINE)
def test_generators_move_smooth_images_as_flows_do(name, interpolation):
    """To first order, of a blob in the middle; a generator of the opposite sign is as far off as can be."""
    size = (21, 21)
    p = coordinates(size)
    blob = lambda at: (-(at - torch.tensor([1.0, 2.0], dtype=torch.float64)).square().sum(-1) / 8).exp()  # noqa: E731
    t, matrix = 0.01, torch.tensor(AFFINE[name], dtype=torch.float64)
    back = p - t * (p @ matrix[:, :2].mT + matrix[:, 2])
    exact = (blob(back) - blob(p)).flatten()
    found = t * affine_generator(size, name, interpolation) @ blob(p).flatten()
    assert (found - exact).norm() < 0.1 * exact.norm() < (found + exact).norm()


def test_powers_of_rotations_are_orthogonal_and_a_full_turn_is_not_the_identity():
    R = affine_generator((9, 9), "rotation")
    assert (R + R.mT).abs().max() < 1e-12
    turn = exponential(R, 2 * math.pi)
    for k in (-3, 1, 5):
        power = torch.linalg.matrix_power(exponential(R, 0.3), k)
        assert (power @ power.mT - torch.eye(81)).abs().max() < 1e-12
    assert (turn - torch.eye(81)).norm() / 9 > 0.3


def test_refusals():
    with pytest.raises(ValueError, match=r"n=8 pixels: at even sizes .* give an odd number, 7 or 9"):
        affine_generator((8, 7), "rotation")
    with pytest.raises(ValueError, match=r"velocity='turn': choose one of translation_x"):
        affine_generator((7, 7), "turn")
    with pytest.raises(ValueError, match="choose 'shannon_whittaker' or 'bilinear'"):
        derivative(5, "flow")
