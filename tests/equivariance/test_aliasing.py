"""The aliasing theorem against the measured Lie derivative, and where its printed form stops holding."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator

from rppdyn.equivariance import aliasing_error, aliasing_lie_derivative, images, lie_derivative
from rppdyn.equivariance.images import alias

ALONG_X = images.translation("x", "fourier")
ALONG_Y = images.translation("y", "fourier")


def image(height, width, n=2):
    return torch.randn(n, 2, height, width, generator=generator(height + width), dtype=torch.float64)


def measured(x, stride, v):
    subsample = lambda x: x[..., ::stride, ::stride]  # noqa: E731
    along = [lie_derivative(subsample, flow, flow, x)[0] for flow in (ALONG_X, ALONG_Y)]
    return v[0] * along[0] + v[1] * along[1]


@pytest.mark.parametrize(
    ("height", "width", "stride"), [(16, 16, 2), (12, 18, 3), (24, 24, 4), (15, 25, 5)]
)  # fmt: skip
def test_closed_form_is_the_measured_lie_derivative(height, width, stride):
    v = (0.6, -0.8)
    x = image(height, width)
    torch.testing.assert_close(aliasing_lie_derivative(x, stride, v), measured(x, stride, v), rtol=1e-9, atol=1e-9)
    assert measured(x, stride, v).abs().max() > 1


@pytest.mark.parametrize("n", [16, 34])
def test_the_printed_theorem_holds_in_one_dimension_at_stride_two(n):
    """Each alias has one frequency that moves wrongly, as the proof assumes; rows alike make the image one-dimensional."""
    frequencies = torch.fft.fftfreq(n, 1 / n).abs()
    spectrum = torch.fft.fft(image(1, n)) * (
        4 * frequencies != n
    )  # both signs of n/4 land on one frequency, at stride 2
    x = torch.fft.ifft(spectrum).real.expand(-1, -1, n, -1)
    found = measured(x, 2, (1.0, 0.0)).square().mean((1, 2, 3))
    torch.testing.assert_close(aliasing_error(x, 2, (1.0, 0.0)), found, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n", "stride", "frequency"), [(16, 2, 5), (24, 3, 7), (32, 4, 13), (30, 5, 11)])
def test_the_printed_theorem_holds_for_one_wave_sampled_from_its_formula(n, stride, frequency):
    """Ground truth without a Fourier transform: a wave is shifted in its formula, seen through a comb, shifted back."""

    def wave(frequency, shift, samples):
        at = torch.arange(samples, dtype=torch.float64) / samples - shift
        return torch.cos(2 * math.pi * frequency * at + 0.3).expand(1, 1, samples, samples)

    seen = alias(torch.tensor(float(frequency)), n // stride).item()
    assert seen != frequency
    t, coarse = 1e-6, n // stride
    # the comb shows `seen` with the phase of `frequency` shifted by t; shifting back by t turns it by seen * t
    phase = [2 * math.pi * (seen - frequency) * s * t for s in (1, -1)]
    at = 2 * math.pi * seen * torch.arange(coarse, dtype=torch.float64) / coarse + 0.3
    truth = ((at + phase[0]).cos() - (at + phase[1]).cos()) / (2 * t)
    x = wave(frequency, 0.0, n)
    torch.testing.assert_close(x[..., ::stride, ::stride], wave(seen, 0.0, coarse))
    torch.testing.assert_close(measured(x, stride, (1.0, 0.0))[0, 0, 0], truth, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aliasing_error(x, stride, (1.0, 0.0))[0], truth.square().mean(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_the_printed_theorem_is_the_mean_over_random_phases(stride):
    x = image(24, 24, n=1000)
    found = measured(x, stride, (0.6, 0.8)).square().mean((1, 2, 3))
    printed = aliasing_error(x, stride, (0.6, 0.8))
    assert found.mean().item() == pytest.approx(printed.mean().item(), rel=0.01)
    assert (found / printed - 1).abs().mean() > 0.05  # single images differ: products of aliases that the print drops


def test_nothing_is_lost_below_the_coarse_nyquist_frequency():
    spectrum = torch.fft.fft2(image(32, 32))
    keep = (torch.fft.fftfreq(32, 1 / 32).abs() < 8).double()
    x = torch.fft.ifft2(spectrum * keep * keep[:, None]).real
    assert measured(x, 2, (1.0, 0.0)).abs().max() < 1e-10 and aliasing_error(x, 2, (1.0, 0.0)).max() < 1e-20


def test_a_stride_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="stride=3 must divide"):
        aliasing_error(image(16, 16), 3, (1.0, 0.0))
