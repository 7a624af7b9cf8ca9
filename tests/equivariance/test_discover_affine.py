"""Affine maps that leave functions of images alone."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.equivariance import discover_affine
from rppdyn.equivariance.images import coordinates

N = 15


def blobs(count=40):
    """Smooth images, dark at the edges."""
    g = generator()
    p = coordinates((N, N))
    centres = 5 * (torch.rand(count, 3, 1, 1, 2, generator=g, dtype=torch.float64) - 0.5)
    return (-(p - centres).square().sum(-1) / 3).exp().sum(1, keepdim=True)


def moments(x):
    """Sum, and second moment about the origin."""
    r = coordinates((N, N)).square().sum(-1) / N
    return torch.stack([x.sum((1, 2, 3)), (x * r).sum((1, 2, 3))], 1)


def rings(x):
    r = coordinates((N, N)).norm(dim=-1)
    masks = torch.stack([(-(r - k).square() / 2).exp() for k in range(6)])
    return torch.einsum("nchw,khw->nk", x, masks).tanh()


def test_rotation_of_rings():
    found = discover_affine(rings, blobs(), interpolation="shannon_whittaker")
    assert found.verdict == "approximate" and len(found.generators) == 1 and found.defect < 1e-3
    expected = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]]).double()
    assert torch.allclose(found.generators[0] * found.generators[0][1, 0].sign(), expected, atol=1e-3)


def test_shifts_and_turns_of_what_has_no_place():
    """A power spectrum's rings have the shifts of a torus exactly, and turns up to the corners of the grid."""

    def f(x):
        spectrum = torch.fft.fft2(x).abs().square()
        k = torch.fft.fftfreq(N, dtype=x.dtype)
        r = (k[:, None].square() + k.square()).sqrt()
        return torch.stack([(spectrum * (-(r / w).square()).exp()).sum((1, 2, 3)) for w in (0.05, 0.1, 0.2)], 1)

    found = discover_affine(f, blobs(), interpolation="shannon_whittaker")
    assert found.verdict == "exact" and len(found.generators) == 2 and found.spectrum[2] < 0.01 < found.spectrum[3]
    assert found.generators[:, :2, :2].abs().max() < 1e-9 and found.closure < 1e-9
    assert found.group.d == 3


@pytest.mark.parametrize("interpolation", ["flow", "bilinear"])
def test_none(interpolation):
    mixing = torch.randn(N * N, 20, dtype=torch.float64, generator=generator())
    found = discover_affine(lambda x: (x.flatten(1) @ mixing).tanh(), blobs(), interpolation=interpolation)
    assert found.verdict == "none" and "no symmetry in affine maps" in str(found)


def test_bad_input():
    x = blobs(10)
    for f, images, options, words in [
        (rings, x[:5], {}, "5 images are too few for 6 generators"),
        (rings, x.long(), {}, "give images"),
        (lambda x: torch.ones(len(x), 2).double() + 0 * x.sum(), x, {}, "f does not change with affine maps"),
        (lambda x: x.sum((1, 2, 3))[:, None], 0 * x, {}, "change none of the images"),
        (rings, x[..., :-1, :-1], dict(interpolation="shannon_whittaker"), "odd number"),
    ]:
        with pytest.raises(ValueError, match=words):
            discover_affine(f, images, **options)


def test_a_fixed_point_is_in_half_widths_whatever_the_height():
    """Rings about a point off the centre of an oblong image: columns 4, rows 1 of it."""
    size, centre = (15, 31), torch.tensor([4.0, 1]).double()
    p, g = coordinates(size), generator()
    centres = centre + 4 * (torch.rand(40, 3, 1, 1, 2, generator=g, dtype=torch.float64) - 0.5)
    x = (-(p - centres).square().sum(-1) / 3).exp().sum(1, keepdim=True)
    masks = torch.stack([(-((p - centre).norm(dim=-1) - k).square() / 2).exp() for k in range(5)])
    found = discover_affine(lambda x: torch.einsum("nchw,khw->nk", x, masks).tanh(), x, interpolation="bilinear")
    A = found.generators[0]
    fixed = -torch.linalg.solve(A[:2, :2], A[:2, 2]) * size[1] / 2
    assert torch.allclose(fixed, centre, atol=0.2), fixed
