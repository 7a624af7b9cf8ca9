"""Labelled data of the user: rows of numbers with their outputs, and images with their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.errors import reading
from rppdyn.runs.files import require_memory
from rppdyn.tasks._tables import checksum, column_of, columns_of, flat, list_names, read_tables, require_finite

PARTS = ("train", "validation", "test")
"""Values of a column that assigns data to parts."""
COLOUR_AXIS_SIZES = (1, 3, 4)
"""Sizes of a last axis of colours."""
PICTURES = (".png", ".jpg", ".jpeg")
MIN_DATA = 3
"""Least number of data in a class, one for each part."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs and outputs of a regression, float64.

    Attributes:
        source: the file or folder.
        names, output_names: names of the numbers.
        parts: part of each row, if a column assigns rows to parts.
    """

    source: str
    names: tuple[str, ...]
    output_names: tuple[str, ...]
    x: Float[Tensor, "N n"]
    y: Float[Tensor, "N m"]
    parts: NDArray | None = None

    @property
    def digest(self) -> str:
        """A checksum of all numbers, and of the parts."""
        return checksum([self.x, self.y, *_codes(self.parts)])


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images of one size, float32, and their classes or targets.

    Attributes:
        source: the file or folder.
        y: classes ``(N,)`` int64, or targets ``(N, m)`` float32.
        classes: names of the classes; None for a regression.
        parts: part of each image, if the data assign images to parts.
    """

    source: str
    x: Float[Tensor, "N C H W"]
    y: Shaped[Tensor, "N ..."]
    classes: tuple[str, ...] | None
    parts: NDArray | None = None

    @property
    def digest(self) -> str:
        """A checksum of all numbers, and of the parts."""
        return checksum([self.x, self.y, *_codes(self.parts)])


def _codes(parts: NDArray | None) -> list[Tensor]:
    """The parts as numbers."""
    return [] if parts is None else [torch.from_numpy(parts.astype("U10").view(np.uint32).astype(np.int64))]


def read_rows(source: str | Path, inputs: Sequence[str], outputs: Sequence[str], part: str | None = None) -> Rows:
    """Read rows from a CSV, NPZ or HDF5 file, or from all files of a folder.

    Args:
        inputs: names of the input columns or arrays, in order; ``name[0:3]`` is a part of an array.
        outputs: names of the columns or arrays to predict.
        part: a column of the words train, validation and test.
    Raises:
        ValueError: a file or column is missing or empty, a number is not finite, or columns differ in length.
    """
    xs: list[NDArray] = []
    ys: list[NDArray] = []
    parts: list[NDArray] = []
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    for name, arrays in read_tables(source):
        table = flat(arrays)
        input_names, x = columns_of(name, table, inputs, "inputs")
        output_names, y = columns_of(name, table, outputs, "outputs")
        if xs and (input_names, output_names) != names:
            raise ValueError(
                f"{name}: its columns are {list_names((*input_names, *output_names))}, and those before had others"
            )
        names = (input_names, output_names)
        if len(x) != len(y):
            raise ValueError(f"{name}: {len(x)} rows of inputs and {len(y)} of outputs; give as many of each")
        if not len(x):
            raise ValueError(f"{name} is empty: rows of numbers are needed")
        require_finite(name, x, input_names)
        require_finite(name, y, output_names)
        if part is not None:
            parts.append(_read_parts(name, table, part, len(x)))
        xs.append(x)
        ys.append(y)
    x, y = np.concatenate(xs), np.concatenate(ys)
    return Rows(str(source), *names, torch.from_numpy(x), torch.from_numpy(y), np.concatenate(parts) if parts else None)


def read_images(
    source: str | Path, images: str | None, labels: str | None, *, numbers: bool = False, part: str | None = None
) -> LabelledImages:
    """Read images from an NPZ or HDF5 file, or from a folder with a folder of PNG and JPEG files for each class.

    Arrays are ``(N, H, W)``, ``(N, C, H, W)`` or ``(N, H, W, C)``. The folders of classes may be in folders train, validation
    and test.

    Args:
        images: name of the array of images; None for ``images`` or ``x``.
        labels: name of the array of labels; None for ``labels`` or ``y``.
        numbers: labels are targets of a regression; otherwise they are classes, whole numbers or words.
        part: an array of the words train, validation and test.
    Raises:
        ValueError: a file or array is missing, images differ in size, labels are no classes or differ in number from the
            images, a class has fewer than three images, or an argument names an array where there is a folder.
    """
    path = Path(source)
    if path.is_dir():
        keys = {"images": images, "targets" if numbers else "labels": labels or numbers or None, "split": part}
        for key, value in keys.items():
            if value is not None:
                raise ValueError(
                    f"{key}={value}: {path} is a folder of pictures, whose folders are classes; leave it out"
                )
        return _read_folder(path)
    ((name, arrays), *more) = read_tables(source)
    if more:
        raise ValueError(f"{source}: has several groups of arrays; give one file with all images")
    x = _pixels(name, _array(name, arrays, images, ("images", "x"), "images"))
    values = _array(name, arrays, labels, ("labels", "y"), "targets" if numbers else "labels")
    if len(values) != len(x):
        raise ValueError(f"{name}: {len(x)} images and {len(values)} labels; give one for each")
    parts = None if part is None else _read_parts(name, flat(arrays), part, len(x))
    if numbers:
        names, y = columns_of(name, {"targets": values.reshape(len(values), -1)}, ["targets"], "targets")
        require_finite(name, y, names)
        return LabelledImages(str(source), x, torch.from_numpy(y).float(), None, parts)
    return _classify(name, x, values, parts)


def _array(
    name: str, arrays: Mapping[str, NDArray], key: str | None, defaults: Sequence[str], key_name: str
) -> NDArray:
    keys = [key] if key is not None else [candidate for candidate in defaults if candidate in arrays]
    if len(keys) != 1 or keys[0] not in arrays:
        missing = (
            f"{key_name}={key}: {name} has no such array" if key else f"{name} has no array {' or '.join(defaults)}"
        )
        raise ValueError(f"{missing}; name it, {key_name}=NAME; it has {list_names(list(arrays))}")
    return arrays[keys[0]]


def _pixels(name: str, values: NDArray) -> Float[Tensor, "N C H W"]:
    if values.ndim not in (3, 4) or not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise ValueError(
            f"{name}: images of shape {values.shape} and type {values.dtype}; give numbers (N, H, W), (N, C, H, W) or "
            "(N, H, W, C)"
        )
    if not values.size:
        raise ValueError(f"{name} is empty: images of shape {values.shape}")
    x = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    if values.ndim == 3:
        x = x[:, None]
    elif values.shape[-1] in COLOUR_AXIS_SIZES and values.shape[1] not in COLOUR_AXIS_SIZES:
        x = x.permute(0, 3, 1, 2).contiguous()
    if bool((x == x.flatten()[0]).all()):
        raise ValueError(
            f"{name}: every pixel of every image is {float(x.flatten()[0]):g}; there is nothing to tell apart"
        )
    bad = (~x.isfinite()).nonzero()
    if len(bad):
        image, _, row, column = bad[0].tolist()
        raise ValueError(
            f"{name}: image {image + 1} has {float(x[tuple(bad[0])])} in row {row + 1}, column {column + 1}; leave it out"
        )
    return x


def _classify(name: str, x: Tensor, labels: NDArray, parts: NDArray | None) -> LabelledImages:
    if labels.ndim > 1 and labels.size == len(labels):
        labels = labels.reshape(-1)
    if labels.ndim != 1:
        raise ValueError(
            f"{name}: labels of shape {labels.shape}; give one class for each image, a whole number or a word"
        )
    if np.issubdtype(labels.dtype, np.floating):
        odd = (labels != np.round(labels)).nonzero()[0]
        if len(odd):
            raise ValueError(
                f"{name}: label {labels[odd[0]]:g} of image {odd[0] + 1} is no class; give whole numbers or words, or "
                "targets= in the place of labels= for numbers that are to be predicted"
            )
        labels = labels.astype(np.int64)
    classes, y = np.unique(labels.astype(str) if labels.dtype == bool else labels, return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    if len(names) < 2:
        raise ValueError(f"{name}: all labels are {names[0]}; two classes are needed")
    counts = np.bincount(y)
    if parts is None and counts.min() < MIN_DATA:
        count = int(counts.min())
        raise ValueError(
            f"{name}: class {names[int(counts.argmin())]} has {count} image{'s' * (count > 1)}, and one is needed in each of "
            f"{', '.join(PARTS)}; give {MIN_DATA}, or leave the class out (labels that are numbers to predict are targets=)"
        )
    return LabelledImages(name, x, torch.from_numpy(y.astype(np.int64)), names, parts)


def _read_folder(path: Path) -> LabelledImages:
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    names = {folder.name: "validation" if folder.name in ("val", "valid") else folder.name for folder in folders}
    parted = {"train", "test"} <= set(names.values()) <= set(PARTS)
    arrays: list[NDArray] = []
    labels: list[str] = []
    parts: list[str] = []
    first: Path | None = None
    for part in folders if parted else [path]:
        for folder in sorted(inner for inner in part.iterdir() if inner.is_dir() and not inner.name.startswith(".")):
            for file in sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES):
                pixels = read_picture(file, lambda mode: "L" if mode in ("1", "L", "LA") else "RGB")
                if first is None:
                    first = file
                if arrays and pixels.shape != arrays[0].shape:
                    sizes = " and ".join(" x ".join(map(str, each.shape)) for each in (pixels, arrays[0]))
                    raise ValueError(
                        f"{file} and {first} have {sizes} pixels; give all one size and one kind of colours"
                    )
                arrays.append(pixels)
                labels.append(folder.name)
                parts.append(names.get(part.name, ""))
    if not arrays:
        raise ValueError(f"{path}: no folder in it holds {', '.join(PICTURES)} files; make one for each class")
    x = _pixels(str(path), np.stack(arrays))
    return _classify(str(path), x, np.array(labels), np.array(parts) if parted else None)


def read_picture(file: Path, mode: Callable[[str], str]) -> NDArray:
    """Read the pixels of a picture after checking its size; `mode` maps PIL's mode of an 8-bit file to the one returned."""
    from PIL import Image

    with reading(file, "leave it out, or write it anew", "as a picture"), Image.open(file) as image:
        require_memory(str(file), 4.0 * image.width * image.height, "give a smaller picture")
        if image.mode[0] in "IF":  # numbers of 16 or 32 bits, as depths have, which `convert` would clip at 255
            return np.asarray(image, dtype=np.float32)
        return np.asarray(image.convert(mode(image.mode)))


# -- parts ------------------------------------------------------------------------------------------------------------


def _read_parts(name: str, table: Mapping[str, NDArray], column: str, count: int) -> NDArray:
    values = column_of(name, table, column, "split")[:, 0].astype(str)
    if len(values) != count:
        raise ValueError(f"split={column}: {name} has {len(values)} of it for {count} data; give one for each")
    for row, value in enumerate(values):
        if value not in PARTS:
            raise ValueError(f"split={column}: {name}, row {row + 1}: {str(value)!r} is none of {', '.join(PARTS)}")
    return values


def indices_by_part(parts: NDArray, source: str) -> tuple[list[int], ...]:
    """Indices of the training, validation and test data, by a column.

    Raises:
        ValueError: a part is empty.
    """
    indices = tuple((parts == name).nonzero()[0].tolist() for name in PARTS)
    for name, index in zip(PARTS, indices, strict=True):
        if not index:
            raise ValueError(f"{source}: no datum is for {name}; mark some so")
    return indices


def split_indices(
    count: int, shares: Sequence[float], seed: int, classes: Tensor | None = None
) -> tuple[list[int], list[int], list[int]]:
    """Draw the indices of three parts, none of them empty; if classes are given, each part has data of each class.

    Raises:
        ValueError: there are fewer than three data.
    """
    if count < MIN_DATA:
        raise ValueError(f"{count} data can't be parted in {', '.join(PARTS)}: give {MIN_DATA} at least")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    groups = [order] if classes is None else [order[classes[order] == each] for each in classes.unique()]
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for group in groups:
        sizes = [max(1, round(share * len(group))) for share in shares[1:]]
        if sum(sizes) >= len(group):
            sizes = [1, 1]
        for part, chosen in zip(parts, group.split([len(group) - sum(sizes), *sizes]), strict=True):
            part += chosen.tolist()
    return parts
