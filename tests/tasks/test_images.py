"""Image tasks: what is drawn, how it is placed, and that parts have nothing in common."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch
from registry import generator
from torchvision_files import torchvision, write_idx  # noqa: F401 (a fixture)

from rppdyn.tasks import read_images
from rppdyn.tasks._images import (
    ARRANGEMENTS,
    SOURCES,
    _units,
    image_data,
    place_in_quadrants,
    place_on_canvas,
    quarter_turn,
    resample_centred,
    resize_images,
    rotate_images,
    scramble,
    translate,
)

EMBEDDED = ["digits", "wine", "breast_cancer", "diabetes"]


def blobs(n=40, side=8):
    """Images of which no two, and no two shifts or turns of one, are alike."""
    return torch.rand(n, 1, side, side, generator=generator(3))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_digits_are_seeded_and_parted(arrangement):
    data = image_data("digits", arrangement, 3, validation=100)
    assert (len(data.train), len(data.validation), len(data.test)) == (1337, 100, 360)
    assert data.train.x.dtype == torch.float32 and data.train.y.dtype == torch.int64
    again, other = image_data("digits", arrangement, 3, validation=100), image_data("digits", arrangement, 4)
    assert torch.equal(data.train.x, again.train.x) and torch.equal(data.test.y, again.test.y)
    assert not torch.equal(data.test.x, other.test.x)
    side = 8 * ARRANGEMENTS[arrangement].canvas - (arrangement == "rotated_odd")
    assert data.size == (side, side) and data.channels == 1
    assert data.outputs == len(data.train.y.unique()) == (40 if arrangement == "digit_quadrant" else 10)
    pixels = data.train.x
    assert abs(pixels.mean()) < 1e-4 and abs(pixels.std() - 1) < 1e-4


def test_a_validation_set_comes_out_of_the_training_set():
    whole, split_images = image_data("digits", "upright", 0), image_data("digits", "upright", 0, validation=200)
    assert torch.equal(whole.test.y, split_images.test.y)
    together = torch.cat([split_images.validation.y, split_images.train.y])
    assert torch.equal(whole.train.y, together)


@pytest.mark.parametrize(("side", "options"), [(8, {}), (16, dict(canvas=32, resize=16))])
def test_quadrants_hold_the_digit_that_is_asked_for(side, options):
    """Both tasks have the same images; the quadrant of the 40 classes is where the ink is."""
    plain, asked = (image_data("digits", name, 1, shift=0, **options) for name in ("digit", "digit_quadrant"))
    assert plain.size == (2 * side, 2 * side) and torch.equal(plain.test.x, asked.test.x)
    assert torch.equal(plain.test.y, asked.test.y % 10)
    x = asked.test.x[:, 0] - asked.test.x.min()
    ink = x.view(-1, 2, side, 2, side).sum((2, 4)).flatten(1)
    assert torch.equal(ink.argmax(1), asked.test.y // 10)
    assert (ink > 1e-3).sum(1).max() == 1


def test_resized_images_keep_their_mean_and_their_places():
    """Of a smooth picture linear interpolation is nearly right, and thin strokes are smoothed rather than lost."""
    rows, columns = torch.meshgrid(*[(torch.arange(28) + 0.5) / 28] * 2, indexing="ij")
    x = (rows + 2 * columns)[None, None]
    rows, columns = torch.meshgrid(*[(torch.arange(16) + 0.5) / 16] * 2, indexing="ij")
    small = resize_images(x, 16)
    assert small.shape == (1, 1, 16, 16)
    assert (small - (rows + 2 * columns))[..., 1:-1, 1:-1].abs().max() < 5e-3
    stroke = torch.zeros(1, 1, 28, 28)
    stroke[..., 13] = 1
    assert abs(resize_images(stroke, 4).mean() / stroke.mean() - 1) < 0.05
    assert torch.equal(resize_images(x, 28), x)


def test_translations_are_circular_and_use_their_range():
    x, moves = blobs(1000, 6), [(i, j) for i in range(-2, 3) for j in range(-2, 3)]
    same = [(x.roll(move, (-2, -1)) == translate(x, 2, generator())).flatten(1).all(1) for move in moves]
    assert (torch.stack(same).sum(0) == 1).all() and torch.stack(same).sum(1).min() > 15


def test_quarter_turns_are_exact():
    x = blobs()
    counts = torch.zeros(4)
    for before, after in zip(x, quarter_turn(x, generator()), strict=True):
        found = [r for r in range(4) if torch.equal(torch.rot90(before, r, (-2, -1)), after)]
        assert len(found) == 1
        counts[found[0]] += 1
    assert counts.min() > 2


def test_rotations_keep_the_ink_of_an_image_that_fits():
    """And a disc looks the same from all sides; a bar does not."""
    grid = torch.arange(32) - 15.5
    radius = (grid[:, None].square() + grid.square()).sqrt()
    disc = torch.exp(-((radius / 5) ** 2)).expand(5, 1, 32, 32)
    bar = (torch.exp(-((grid / 3) ** 2))[:, None] * torch.exp(-((grid / 5) ** 2))).expand(5, 1, 32, 32)
    for image, same in ((disc, True), (bar, False)):
        turned = rotate_images(image.contiguous(), generator())
        assert abs(turned.sum() / image.sum() - 1) < 1e-3
        assert ((turned - image).norm() / image.norm() < 0.02) == same


def test_on_an_odd_canvas_an_even_image_turns_about_its_own_centre():
    """A disc that stands in the middle of 8 x 8 pixels stays where it is; on_canvas puts it half a pixel aside."""
    grid = torch.arange(8) - 3.5
    disc = torch.exp(-(grid[:, None].square() + grid.square()) / 5).expand(3, 1, 8, 8)
    turns = torch.tensor([0.0, 50.0, 90.0])
    turned = resample_centred(disc, 15, turns)
    assert turned.shape == (3, 1, 15, 15)
    assert (turned - turned[:1]).norm() < 0.02 * turned.norm()
    aside = place_on_canvas(disc, 15)[:1]
    assert (torch.rot90(aside, 1, (-2, -1)) - aside).norm() > 0.2 * aside.norm()
    x = blobs()[:, :, :8, :8]
    quarter = resample_centred(x, 15, torch.full((len(x),), 90.0))
    torch.testing.assert_close(quarter, torch.rot90(resample_centred(x, 15), 1, (-2, -1)), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="canvas=16 has no middle pixel: give an odd number, 15 or 17"):
        image_data("digits", "rotated_odd", canvas=16)
    with pytest.raises(ValueError, match="canvas=7 is smaller than images"):
        image_data("digits", "rotated_odd", canvas=7)


def test_scrambling_is_one_permutation():
    x = blobs()
    y = scramble(x, generator())
    assert torch.equal(x.flatten(1).sort(1).values, y.flatten(1).sort(1).values)
    order = (y.flatten(1)[0, :, None] == x.flatten(1)[0]).int().argmax(1)
    assert torch.equal(y.flatten(1), x.flatten(1)[:, order])
    assert not torch.equal(x, y)


def test_quadrants_are_all_used():
    x, quadrant = place_in_quadrants(blobs(400, 4), generator())
    assert x.shape[-2:] == (8, 8)
    assert torch.bincount(quadrant, minlength=4).min() > 70


@pytest.mark.parametrize(
    ("name", "rows", "numbers", "side", "outputs"),
    [("wine", 178, 13, 4, 3), ("breast_cancer", 569, 30, 6, 2), ("diabetes", 442, 10, 4, 1)],
)
def test_tables_are_standardised_by_their_training_part(name, rows, numbers, side, outputs):
    data = image_data(name, "upright", 2)
    assert len(data.train) + len(data.test) == rows and abs(len(data.test) - rows / 5) <= 1
    assert data.size == (side, side) and data.outputs == outputs
    x = data.train.x.flatten(1)
    assert x[:, :numbers].mean(0).abs().max() < 1e-3
    assert (x[:, :numbers].std(0) - 1).abs().max() < 1e-3
    assert not x[:, numbers:].any() and not data.test.x.flatten(1)[:, numbers:].any()
    assert data.regression == (name == "diabetes")
    if data.regression:
        assert abs(data.train.y.std() - 1) < 1e-4 and data.test.y.shape == (len(data.test), 1)


@pytest.mark.parametrize(("unit", "dtype"), [(1e3, torch.float32), (1e-9, torch.float64)])
def test_units_of_tables_do_not_matter(unit, dtype):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=dtype) + 3
    x[:, 2], x[:, 3] = 0.1, 0.0  # constant columns, the first with rounding in its mean
    here, there = (_units(values[:40], (0,)).standardise(values) for values in (x, unit * x))
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-5)
    assert not here[:, 2:].any() and not there[:, 2:].any() and abs(here[:40, 0].std() - 1) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(source="letters"), "source='letters': there are digits"),
        (dict(arrangement="mirrored"), "arrangement='mirrored': there are upright"),
        (dict(canvas=12), "canvas=12 has no four quadrants .* from 16 on"),
        (dict(arrangement="upright", canvas=6), "canvas=6 is smaller than images of 8 x 8"),
        (dict(canvas=12), "from 16 on, or resize=6"),
        (dict(canvas=17), "canvas=17 has no four quadrants .* from 16 on$"),
        (dict(resize=0), "resize=0 of digits: give a side"),
        (dict(resize=16, canvas=16), "canvas=16 has no four quadrants .* from 32 on, or resize=8"),
        (dict(source="wine", arrangement="upright", resize=8), "resize=8 of wine: .* leave it out"),
        (dict(validation=1437), "validation=1437 of 1437"),
        (dict(source="wine", arrangement="rotated"), "pixels of the table wine have a fixed place"),
        (dict(source="mnist"), "give folder="),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ValueError, match=words):
        image_data(**arguments)


def test_every_source_is_tested():
    assert set(SOURCES) == {*EMBEDDED, *FOLDERS}


# -- torchvision's ------------------------------------------------------------------------------------------------------


def write_cifar(folder, n, monkeypatch):
    """Files of CIFAR-10's format; torchvision compares their checksums with those of the real ones."""
    from torchvision.datasets import CIFAR10, cifar

    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    (folder / CIFAR10.base_folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, _ in CIFAR10.train_list + CIFAR10.test_list:
        rows = {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8), "labels": rng.integers(0, 10, n).tolist()}
        (folder / CIFAR10.base_folder / name).write_bytes(pickle.dumps(rows))
    meta = {"label_names": [str(i) for i in range(10)]}
    (folder / CIFAR10.base_folder / "batches.meta").write_bytes(pickle.dumps(meta))


FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": None}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.usefixtures("torchvision")
def test_folders_of_torchvision(name, tmp_path, monkeypatch):
    if name == "cifar10":
        write_cifar(tmp_path, 6, monkeypatch)
        expected = (30, 6, 3)
    else:
        write_idx(tmp_path / FOLDERS[name] / "raw", 30, 10)
        expected = (30, 10, 1)
    data = image_data(name, "upright", folder=tmp_path, canvas=32)
    assert (len(data.train), len(data.test), data.channels) == expected
    assert data.size == (32, 32) and data.outputs == 10
    assert abs(data.train.x.mean()) < 1e-4


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "magic": lambda data: b"\x07" + data[1:],
}


@pytest.mark.parametrize(("name", "damage"), [("mnist", "half"), ("mnist", "magic"), ("cifar10", "empty")])
@pytest.mark.usefixtures("torchvision")
def test_damaged_files_are_one_line(name, damage, tmp_path, monkeypatch):
    if name == "cifar10":
        write_cifar(tmp_path, 6, monkeypatch)
        path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    else:
        write_idx(tmp_path / "MNIST" / "raw", 30, 10)
        path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ValueError, match=r"not all of it: .* put them there again") as info:
        image_data(name, "upright", folder=tmp_path)
    assert "\n" not in str(info.value)


@pytest.mark.usefixtures("torchvision")
def test_missing_data_wrong_labels_and_a_missing_package_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="in folder") as info:
        image_data("mnist", "upright", folder=tmp_path)
    assert "\n" not in str(info.value)
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, 12, 5)
    for labels in (range(10), [*range(10), 1, 77]):
        header = np.array([0x801, len(labels)], dtype=">i4").tobytes()
        (raw / "train-labels-idx1-ubyte").write_bytes(header + bytes(labels))
        with pytest.raises(ValueError, match=f"12 images and {len(labels)} labels from 0 to {max(labels)} to train on"):
            image_data("mnist", "upright", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=r"pip install 'rppdyn\[images\]'"):
        image_data("mnist", "upright", folder=tmp_path)


@pytest.mark.parametrize(
    "options", [dict(images="x"), dict(labels="age"), dict(labels="age", numbers=True), dict(part="set")], ids=str
)
def test_arrays_of_a_folder_of_pictures_are_refused(options, tmp_path):
    with pytest.raises(ValueError, match=r"=\w+: .* is a folder of pictures, whose folders are classes; leave it out"):
        read_images(tmp_path, **(dict(images=None, labels=None) | options))
