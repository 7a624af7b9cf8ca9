"""The measures that the Lie derivative is compared with: what each sees and what each is blind to."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator
from torch.nn import functional as F

from rppdyn.equivariance import discrete_inconsistency, eq_t, eq_t_frac, expected_group_sample, images, lie_derivative

X = torch.randn(6, 2, 32, 32, generator=generator(0), dtype=torch.float64)
SHIFT = images.translation("x", "fourier")


def subsample(x):
    return x[..., ::2, ::2]


def test_eq_t_is_blind_to_aliasing_and_eq_t_frac_is_not():
    whole, fractional = eq_t(subsample, X), eq_t_frac(subsample, X)
    assert whole.mean < 1e-20 < 1e-2 < fractional.mean
    band_limited = images_without_high_frequencies(X)
    assert eq_t_frac(subsample, band_limited).mean < 1e-20


def images_without_high_frequencies(x):
    keep = (torch.fft.fftfreq(32, 1 / 32).abs() < 8).double()
    return torch.fft.ifft2(torch.fft.fft2(x) * keep * keep[:, None]).real


def test_eq_t_sees_a_mask_and_has_three_normalisations():
    error = eq_t(lambda x: x * X[:1, :1], X)
    assert error.mean > 0.1
    interior = 2 * (32 - 2 * (4 + 1)) ** 2
    assert error.total / interior == pytest.approx(error.mean) and error.total / interior**0.5 == pytest.approx(
        error.root
    )


def test_eq_t_of_a_vector_is_its_change():
    error = eq_t(lambda x: x[:, 0, 16], X)  # one row of one channel changes under translation
    assert error.mean > 0.1
    assert eq_t_frac(lambda x: x.mean((2, 3)), X).mean < 1e-20


def test_discrete_inconsistency_counts_changed_classes():
    invariant = discrete_inconsistency(lambda x: torch.stack([x[:, 0] * 0, x[:, 0] * 0 + 1], 1).amax((2, 3)), X, 3)
    assert invariant == 0
    # the class is the brightest of 4 blocks of columns: a bright column at 6 moves by 3 into the next block, along x only
    x = torch.zeros(5, 1, 32, 32)
    x[..., 6] = 1
    blocks = lambda x: F.avg_pool2d(x, (32, 8))[:, 0, 0]  # noqa: E731
    assert discrete_inconsistency(blocks, x, pixels=3) == 0.5
    assert discrete_inconsistency(blocks, x, pixels=1) == 0


def test_expected_group_sample_tends_to_the_lie_derivative():
    """For small radii, |f(g_t x) - f(x)| = |t| |L f| and E|t| = radius / 2."""
    flow, radius = SHIFT, 1e-5
    f = lambda x: (x[:, 0, :4, :4].flatten(1)).tanh()  # noqa: E731
    mean, error = expected_group_sample(f, flow, flow, X, radius, n_samples=200)
    size = lie_derivative(f, flow, flow, X)[0].norm(dim=-1)
    times = 2 * torch.rand(200, generator=generator(0), dtype=torch.float64) - 1
    assert mean == pytest.approx((radius * times.abs().mean() * size.mean()).item(), rel=1e-4)
    assert 0.4 < times.abs().mean() < 0.6 and 0 < error < mean
    zero, _ = expected_group_sample(lambda x: x.mean((2, 3)), flow, flow, X, 0.1)
    assert zero < 1e-15 and not math.isnan(zero)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: eq_t(torch.nn.AvgPool2d(16), X), "leaves no interior of outputs of 2 x 2 pixels"),
        (lambda: eq_t(subsample, X, max_shift=0.5), r"max_shift=0\.5"),
        (lambda: eq_t_frac(subsample, X, n_samples=0), "n_samples=0: give 1 or more"),
        (lambda: expected_group_sample(subsample, SHIFT, SHIFT, X, 0.1, n_samples=0), "n_samples=0: give 1 or more"),
        *(
            (
                lambda r=r: expected_group_sample(subsample, SHIFT, SHIFT, X, r),
                "radius=.*: give a positive finite number",
            )
            for r in (0.0, math.nan, math.inf)
        ),
    ],
)
def test_what_is_out_of_range_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
