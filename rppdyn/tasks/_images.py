"""Image tasks: handwritten digits that come with scikit-learn, tables reshaped to images, and what torchvision reads.

A source gives images and targets, an arrangement says where they stand on a canvas and what is asked of them. Everything is
drawn from one seed: which images are held out, and how each is placed.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

Generator = torch.Generator
Images = Float[Tensor, "N C H W"]


@dataclass(frozen=True)
class ImageSet:
    """Images and what is asked of them.

    Attributes:
        x: ``(N, C, H, W)``, float32.
        y: classes ``(N,)`` int64, or targets of a regression ``(N, 1)`` float32.
    """

    x: Float[Tensor, "N C H W"]
    y: Shaped[Tensor, "N ..."]

    def __len__(self) -> int:
        return len(self.x)


class Units(NamedTuple):
    """Mean and standard deviation over the training set, which broadcast over the data."""

    mean: Tensor
    std: Tensor

    def standardise(self, values: Tensor) -> Tensor:
        """Values in these units; constant entries are 0."""
        return torch.where(self.std == 0, 0.0, (values - self.mean) / torch.where(self.std == 0, 1.0, self.std))

    def restore(self, values: Tensor) -> Tensor:
        """Values in their original units."""
        return self.mean + self.std * values


@dataclass(frozen=True)
class ImageData:
    """A task's images for training, validation and test.

    Attributes:
        outputs: number of classes, or of targets of a regression.
        regression: whether targets are numbers, in units of their standard deviation over the training set.
        pixels, targets: units of pixels and of targets; None for classes.
        classes: names of the classes, if the data have any.
    """

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    outputs: int
    regression: bool = False
    pixels: Units | None = None
    targets: Units | None = None
    classes: tuple[str, ...] | None = None

    @property
    def channels(self) -> int:
        return self.train.x.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.train.x.shape[2], self.train.x.shape[3]


# -- arrangements -------------------------------------------------------------------------------------------------------


def place_on_canvas(x: Float[Tensor, "N C H W"], side: int) -> Float[Tensor, "N C S S"]:
    """Place images in the middle of a square canvas of zeros.

    Raises:
        ValueError: the canvas is smaller than the images.
    """
    height, width = x.shape[-2:]
    if side < max(height, width):
        raise ValueError(f"canvas={side} is smaller than images of {height} x {width} pixels: give a larger one")
    top, left = (side - height) // 2, (side - width) // 2
    return F.pad(x, (left, side - width - left, top, side - height - top))


def resize_images(x: Float[Tensor, "N C H W"], side: int) -> Float[Tensor, "N C S S"]:
    """Resize images to squares by linear interpolation, smoothed before they are reduced, so that no stroke is lost."""
    return F.interpolate(x, (side, side), mode="bilinear", antialias=True)


def place_in_quadrants(
    x: Float[Tensor, "N C H W"], generator: Generator
) -> tuple[Float[Tensor, "N C H2 W2"], Int[Tensor, " N"]]:
    """Place each image in a random quadrant of a canvas of twice its size; also returns the quadrants, row by row."""
    height, width = x.shape[-2:]
    quadrant = torch.randint(4, (len(x),), generator=generator)
    placed = F.pad(x, (0, width, 0, height))
    return _shift(placed, torch.stack([quadrant // 2 * height, quadrant % 2 * width], -1)), quadrant


def translate(x: Float[Tensor, "N C H W"], pixels: int, generator: Generator) -> Float[Tensor, "N C H W"]:
    """Shift each image at random, uniformly by up to `pixels` along both axes, on the torus."""
    return _shift(x, torch.randint(-pixels, pixels + 1, (len(x), 2), generator=generator))


def _shift(x: Float[Tensor, "N C H W"], shift: Int[Tensor, "N 2"]) -> Float[Tensor, "N C H W"]:
    height, width = x.shape[-2:]
    rows = (torch.arange(height) - shift[:, :1]) % height
    columns = (torch.arange(width) - shift[:, 1:]) % width
    return x[torch.arange(len(x))[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def mirror(x: Float[Tensor, "N C H W"], generator: Generator) -> Float[Tensor, "N C H W"]:
    """Exchange left and right of each image with probability 1/2."""
    flipped = torch.randint(2, (len(x), 1, 1, 1), generator=generator).bool()
    return torch.where(flipped.to(x.device), x.flip(-1), x)


def quarter_turn(x: Float[Tensor, "N C H W"], generator: Generator) -> Float[Tensor, "N C H W"]:
    """Turn each square image by 0, 90, 180 or 270 degrees at random, exactly."""
    turns = torch.randint(4, (len(x),), generator=generator)
    result = x.clone()
    for r in (1, 2, 3):
        result[turns == r] = torch.rot90(x[turns == r], r, (-2, -1))
    return result


def rotate_images(x: Float[Tensor, "N C H W"], generator: Generator) -> Float[Tensor, "N C H W"]:
    """Rotate each image about its centre by a uniform random angle, by linear interpolation; corners are lost."""
    from scipy.ndimage import rotate

    angles = (360 * torch.rand(len(x), generator=generator)).tolist()
    turned = [rotate(image, a, (-2, -1), reshape=False, order=1) for image, a in zip(x.numpy(), angles, strict=True)]
    return torch.from_numpy(np.stack(turned)) if turned else x


def resample_centred(x: Float[Tensor, "N C H W"], side: int, degrees: Tensor | None = None) -> Float[Tensor, "N C S S"]:
    """Resample images about the centre of a square canvas, rotated, by one linear interpolation.

    An image of even size has no pixel at its centre, and a canvas of odd size has one. On such a canvas the image is shifted by
    half a pixel, where :func:`place_on_canvas` would leave it off centre.

    Args:
        side: side of the canvas.
        degrees: by which each image is turned, counter-clockwise; None for 0.
    Raises:
        ValueError: the canvas is smaller than the images.
    """
    from rppdyn.equivariance.images import coordinates

    height, width = x.shape[-2:]
    if side < max(height, width):
        raise ValueError(f"canvas={side} is smaller than images of {height} x {width} pixels: give a larger one")
    angles = torch.zeros(len(x)) if degrees is None else torch.deg2rad(degrees.float())
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)  # x right, y down
    grid = coordinates((side, side), dtype=torch.float32).flatten(0, 1) @ turns.mT
    # grid_sample takes an image's edges as -1 and 1
    grid = grid.unflatten(1, (side, side)) * 2 / torch.tensor([width, height])
    return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)


def scramble(x: Float[Tensor, "N C H W"], generator: Generator) -> Float[Tensor, "N C H W"]:
    """Permute the pixels of all images by one random order, which destroys neighbourhoods."""
    order = torch.randperm(math.prod(x.shape[-2:]), generator=generator)
    return x.flatten(2)[..., order].view_as(x)


@dataclass(frozen=True)
class Arrangement:
    """Placement of images on a canvas: by ``place``, if given, and then by random shifts.

    Attributes:
        canvas: side of the canvas, in sides of the image.
        onto: function that puts images onto a canvas of odd side, by default one pixel less; None to put them into its middle.
        shift: largest shift in pixels; None for a quarter of the canvas.
        quadrants: whether images are placed in random quadrants.
        quadrant_is_asked: whether the quadrant is a part of the class.
    """

    place: Callable[[Images, Generator], Images] | None = None
    canvas: int = 1
    shift: int | None = 0
    quadrants: bool = False
    quadrant_is_asked: bool = False
    onto: Callable[[Images, int, Generator], Images] | None = None


ARRANGEMENTS: dict[str, Arrangement] = {
    "upright": Arrangement(),
    "jittered": Arrangement(shift=1),
    "translated": Arrangement(canvas=2, shift=None),
    "quarter_turned": Arrangement(quarter_turn, canvas=2),
    "rotated": Arrangement(rotate_images, canvas=2),
    "rotated_odd": Arrangement(
        canvas=2,
        onto=lambda x, side, generator: resample_centred(x, side, 360 * torch.rand(len(x), generator=generator)),
    ),
    "scrambled": Arrangement(scramble),
    "digit": Arrangement(canvas=2, shift=1, quadrants=True),
    "digit_quadrant": Arrangement(canvas=2, shift=1, quadrants=True, quadrant_is_asked=True),
}


# -- sources ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """All images of a source, float32; the last ``test_count`` are its test set."""

    x: Tensor
    y: Tensor
    classes: int | None
    test_count: int | None = None


def _digits(folder: Path | None) -> _Source:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return _Source(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels), 10)


def _table(name: str) -> Callable[[Path | None], _Source]:
    def load(folder: Path | None) -> _Source:
        import sklearn.datasets

        rows, targets = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        side = math.ceil(math.sqrt(rows.shape[1]))
        x = F.pad(torch.tensor(rows, dtype=torch.float32), (0, side**2 - rows.shape[1])).view(-1, 1, side, side)
        if name == "diabetes":
            return _Source(x, torch.tensor(targets, dtype=torch.float32)[:, None], None)
        return _Source(x, torch.tensor(targets), len(set(targets.tolist())))

    return load


TORCHVISION_ERRORS = (RuntimeError, AssertionError, ValueError, LookupError, EOFError, OSError, pickle.UnpicklingError)
"""Exceptions of torchvision for files that are missing, cut off or wrong."""


def _torchvision(name: str) -> Callable[[Path | None], _Source]:
    def load(folder: Path | None) -> _Source:
        if folder is None:
            raise ValueError(f"{name} is not part of this package: give folder=..., where torchvision has put it")
        try:
            from torchvision import datasets
        except ImportError as error:
            raise ValueError(f"{name} needs torchvision ({error}): pip install 'rppdyn[images]'") from error
        except RuntimeError as error:
            raise ValueError(
                f"{name} needs torchvision, and the one installed is built for another torch ({error}): install both from "
                "one index"
            ) from error
        xs, ys = [], []
        for train in (True, False):
            try:
                part = getattr(datasets, name)(folder, train=train, download=False)
            except TORCHVISION_ERRORS as error:
                message = " ".join(str(error).split()) or type(error).__name__
                raise ValueError(
                    f"no {name} in folder {str(folder)!r}, or not all of it: torchvision's own layout is expected, and its own "
                    f"files (torchvision: {message}); put them there again"
                ) from error
            x = torch.as_tensor(part.data)
            y = torch.as_tensor(part.targets)
            if len(x) != len(y) or not ((y >= 0) & (y < 10)).all():
                raise ValueError(
                    f"{name} in folder {str(folder)!r} has {len(x)} images and {len(y)} labels from {y.min()} to {y.max()} to "
                    f"{'train on' if train else 'test'}: as many are expected, from 0 to 9; put the files there again"
                )
            xs.append((x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)).float() / 255)
            ys.append(y)
        return _Source(torch.cat(xs), torch.cat(ys), 10, len(xs[1]))

    return load


SOURCES: dict[str, Callable[[Path | None], _Source]] = {
    "digits": _digits,
    "wine": _table("wine"),
    "breast_cancer": _table("breast_cancer"),
    "diabetes": _table("diabetes"),
    "mnist": _torchvision("MNIST"),
    "fashion_mnist": _torchvision("FashionMNIST"),
    "cifar10": _torchvision("CIFAR10"),
}
TABLES = ("wine", "breast_cancer", "diabetes")


# -- tasks --------------------------------------------------------------------------------------------------------------


def image_data(
    source: str = "digits",
    arrangement: str = "digit",
    seed: int = 0,
    *,
    validation: int = 0,
    canvas: int | None = None,
    shift: int | None = None,
    resize: int | None = None,
    folder: str | Path | None = None,
) -> ImageData:
    """Images of a source, placed on a canvas and split into three parts.

    =============== =====================================================================================================
    source          what it is
    =============== =====================================================================================================
    digits          1,797 handwritten digits of 8 x 8 pixels, 10 classes (UCI optical recognition); 360 are the test set
    wine            178 wines of 3 growers, 13 numbers as 4 x 4 pixels; a fifth is the test set, as of all tables
    breast_cancer   569 tumours, benign or not, 30 numbers as 6 x 6 pixels
    diabetes        442 patients, a score of progression, 10 numbers as 4 x 4 pixels; a regression
    mnist           and fashion_mnist, cifar10: 60,000 (50,000) images and their own test set, from ``folder``
    =============== =====================================================================================================

    =============== =====================================================================================================
    arrangement     where images stand
    =============== =====================================================================================================
    upright         as they are
    jittered        moved by up to 1 pixel along both axes
    translated      on a canvas of twice the size, moved by up to a quarter of it
    quarter_turned  on such a canvas, turned by a multiple of 90 degrees
    rotated         on such a canvas, turned by any angle
    rotated_odd     the same about the middle pixel of a canvas of one pixel less, which images are resampled for
    scrambled       with their pixels in another order, the same for all
    digit           in one of the four quadrants of such a canvas, moved by up to 1 pixel
    digit_quadrant  the same images, and the quadrant is asked as well: class + 10 times quadrant
    =============== =====================================================================================================

    Canvases are tori. Images are standardised by the mean and variance of the training set, of each channel; of tables, of
    each pixel, and so are the targets of a regression.

    Args:
        seed: seed of the split and of every random placement.
        validation: number of images that are taken from the training set for the validation set.
        canvas: side of the canvas in pixels; None for the arrangement's own.
        shift: largest random shift in pixels; None for the arrangement's own.
        resize: side in pixels that images are given before they are placed; None leaves them as they are.
        folder: where torchvision has put its datasets.
    Raises:
        ValueError: an unknown name, a canvas that is too small, too many validation images, a table that is to be moved, or a
            source that is not there.
    Source: van der Ouderaa, Immer & van der Wilk 2023, 6.1 and F.5 (MNIST, ``canvas=32, resize=16, shift=0``);
        Finzi, Benton & Wilson 2021 (tables).

    >>> data = image_data("digits", "digit_quadrant", seed=0)
    >>> data.train.x.shape, data.test.x.shape, data.outputs
    (torch.Size([1437, 1, 16, 16]), torch.Size([360, 1, 16, 16]), 40)
    """
    for key, name, known in (("source", source, SOURCES), ("arrangement", arrangement, ARRANGEMENTS)):
        if name not in known:
            raise ValueError(f"{key}={name!r}: there are {', '.join(known)}")
    if shift is not None and shift < 0:
        raise ValueError(f"shift={shift}: the largest shift in pixels can't be negative")
    if source in TABLES and (arrangement not in ("upright", "scrambled") or shift):
        raise ValueError(
            f"arrangement={arrangement!r}, shift={shift}: pixels of the table {source} have a fixed place; take 'upright' and "
            "no shift"
        )
    if resize is not None and (resize < 1 or source in TABLES):
        remedy = "a table is no picture; leave it out" if source in TABLES else "give a side of one pixel or more"
        raise ValueError(f"resize={resize} of {source}: {remedy}")
    if folder is not None and source in ("digits", *TABLES):
        raise ValueError(f"folder={str(folder)!r}: {source} comes with scikit-learn; leave it out")
    dataset = SOURCES[source](None if folder is None else Path(folder))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(dataset.x) - (dataset.test_count or 0), generator=generator)
    # a fifth is held out for tests if the source has no test set of its own
    num_test = math.ceil(len(order) / 5) if dataset.test_count is None else 0
    if not 0 <= validation < len(order) - num_test:
        raise ValueError(f"validation={validation} of {len(order) - num_test} training images: leave some to train on")
    test = torch.cat([order[:num_test], torch.arange(len(order), len(dataset.x))])
    train, validated = order[num_test + validation :], order[num_test : num_test + validation]
    if resize is not None:
        dataset = replace(dataset, x=resize_images(dataset.x, resize))
    x, y, classes = _arrange(dataset, ARRANGEMENTS[arrangement], canvas, shift, generator)
    return split_images(x, y, classes, (train, validated, test), each_pixel=source in TABLES)


def split_images(
    x: Float[Tensor, "N C H W"],
    y: Tensor,
    classes: int | None,
    parts: Sequence[Tensor],
    *,
    each_pixel: bool = False,
    names: Sequence[str] | None = None,
) -> ImageData:
    """Split images and targets into three parts, standardised over the first.

    Args:
        classes: number of classes; None for a regression, whose targets are standardised as well.
        parts: indices of the training, validation and test images.
        each_pixel: standardise each pixel by itself, not each channel.
        names: names of the classes.
    """
    pixels = _units(x[parts[0]], (0,) if each_pixel else (0, 2, 3))
    targets = None if classes is not None else _units(y[parts[0]], (0,))
    x, y = pixels.standardise(x), y if targets is None else targets.standardise(y)
    outputs = y.shape[1] if classes is None else classes
    train, validation, test = (ImageSet(x[index], y[index]) for index in parts)
    return ImageData(
        train, validation, test, outputs, classes is None, pixels, targets, None if names is None else tuple(names)
    )


def _arrange(
    dataset: _Source, how: Arrangement, canvas: int | None, shift: int | None, generator: Generator
) -> tuple[Tensor, Tensor, int | None]:
    """Images on their canvas, targets, and the number of classes."""
    x, y, classes = dataset.x, dataset.y, dataset.classes
    side = how.canvas * max(x.shape[-2:]) if canvas is None else canvas
    if how.quadrants and (side % 2 or side < 2 * max(x.shape[-2:])):
        smaller = f", or resize={side // 2}" if side > 0 and side % 2 == 0 else ""
        raise ValueError(
            f"canvas={side} has no four quadrants that hold an image each: give an even number from {2 * max(x.shape[-2:])} on"
            f"{smaller}"
        )
    if how.onto is not None:
        side -= canvas is None
        if side % 2 == 0:
            raise ValueError(f"canvas={side} has no middle pixel: give an odd number, {side - 1} or {side + 1}")
        x = how.onto(x, side, generator)
    else:
        x = place_on_canvas(x, side // 2 if how.quadrants else side)
    if how.quadrants:
        x, quadrant = place_in_quadrants(x, generator)
        if how.quadrant_is_asked and classes is not None:  # only classes are asked so
            y, classes = y + classes * quadrant, 4 * classes
    elif how.place is not None:
        x = how.place(x, generator)
    pixels = shift if shift is not None else side // 4 if how.shift is None else how.shift
    return translate(x, pixels, generator) if pixels else x, y, classes


def _units(values: Tensor, dims: tuple[int, ...]) -> Units:
    """Mean and standard deviation of the training set; a deviation at rounding level is 0."""
    mean, std = values.mean(dims, keepdim=True), values.std(dims, keepdim=True)
    constant = std <= 100 * torch.finfo(values.dtype).eps * values.abs().amax(dims, keepdim=True)
    return Units(mean, torch.where(constant, 0.0, std))
