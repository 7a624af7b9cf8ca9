"""Subsampling commutes with what it should, sample by sample."""

from __future__ import annotations

import pytest
import torch
from image_pathways import images, relative

from rppdyn.images import MaxSubsampling, PolyphaseSubsampling
from rppdyn.tasks import image_data

SHIFTS = [(i, j) for i in range(8) for j in range(8)]


def are_shifts(a, b):
    """Whether every sample of one is a circular shift of the other's."""
    height, width = a.shape[-2:]
    shifts = [(i, j) for i in range(height) for j in range(width)]
    return all(any(torch.equal(p.roll(s, (-2, -1)), q) for s in shifts) for p, q in zip(a, b, strict=True))


def test_polyphase_commutes_with_every_shift():
    f, x = PolyphaseSubsampling(), images(4, 3, size=(8, 8))
    y = f(x)
    assert y.shape == (4, 3, 4, 4)
    for shift in SHIFTS:
        moved = f(x.roll(shift, (-2, -1)))
        assert are_shifts(y, moved)
        assert relative(moved.mean((2, 3)), y.mean((2, 3))) < 1e-14
    strided = [x.roll(shift, (-2, -1))[..., ::2, ::2] for shift in SHIFTS]
    assert not all(are_shifts(strided[0], s) for s in strided)


def test_polyphase_takes_the_grid_with_the_largest_entry():
    x = images(6, 3, size=(8, 8))
    largest = x.abs().flatten(1).argmax(1) % 64
    y = PolyphaseSubsampling()(x)
    for image, position, chosen in zip(x, largest.tolist(), y, strict=True):
        assert torch.equal(chosen, image[:, position // 8 % 2 :: 2, position % 2 :: 2])
    assert len({(p // 8 % 2, p % 2) for p in largest.tolist()}) > 1


def test_polyphase_commutes_with_shifts_and_turns_of_images_of_few_grey_levels():
    """Whose grids have the same largest entry more often than not; the digits are of sixteen levels."""
    x = image_data("digits", "upright", seed=0).test.x[:60].double()
    f = PolyphaseSubsampling()
    y = f(x)
    for moved in [*(f(x.roll(shift, (-2, -1))) for shift in SHIFTS), f(x.rot90(1, (-2, -1))).rot90(-1, (-2, -1))]:
        assert all(are_shifts(a[None], b[None]) for a, b in zip(y, moved, strict=True))


def test_max_commutes_with_shifts_by_its_stride_alone():
    f, x = MaxSubsampling(), images(4, 3, size=(8, 8))
    for i, j in SHIFTS:
        same = torch.equal(f(x.roll((i, j), (-2, -1))), f(x).roll((i // 2, j // 2), (-2, -1)))
        assert same == (i % 2 == 0 and j % 2 == 0)


@pytest.mark.parametrize("f", [PolyphaseSubsampling(), MaxSubsampling(), PolyphaseSubsampling(4)], ids=str)
def test_a_sample_does_not_see_its_batch_and_seeds_can_be_stacked(f):
    x = images(12, 3, size=(8, 8))
    assert torch.equal(f(x), torch.cat([f(one[None]) for one in x]))
    together = torch.vmap(torch.func.grad(lambda t: f(t).square().sum()))(x.view(3, 4, 3, 8, 8))
    x.requires_grad_()
    (apart,) = torch.autograd.grad(f(x).square().sum(), x)
    assert torch.equal(together.flatten(0, 1), apart)


def test_rotations_by_90_degrees():
    x = images(4, 3, size=(8, 8))
    for f in (PolyphaseSubsampling(), MaxSubsampling()):
        assert torch.equal(f(x.rot90(1, (-2, -1))), f(x).rot90(1, (-2, -1)))


def test_refusals():
    with pytest.raises(ValueError, match=r"maps of \(5, 6\) pixels can't be subsampled by 2"):
        MaxSubsampling()(images(1, 1, size=(5, 6)))
