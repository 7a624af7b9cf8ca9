r"""Features on which a symmetry acts linearly, where it does not on raw coordinates.

An angle that a rotation shifts becomes (cos, sin). A unit quaternion becomes its rotation matrix: q and -q are the same
orientation, and four quarter turns of a quaternion give -q, so quaternions carry a representation of the double cover
only. Every other coordinate is its own feature. Features stand in the order of the coordinates they replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

Array = TypeVar("Array", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Encoding:
    """The map from n coordinates to features, and back.

    Args:
        dim: n.
        angles: indices of the angles, in radians.
        quaternions: index of the first entry of each quaternion (w, x, y, z).
    Raises:
        ValueError: indices out of range or overlapping.
    """

    dim: int
    angles: tuple[int, ...] = ()
    quaternions: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "angles", tuple(sorted(int(i) for i in self.angles)))
        object.__setattr__(self, "quaternions", tuple(sorted(int(i) for i in self.quaternions)))
        used = [*self.angles, *(i + k for i in self.quaternions for k in range(4))]
        if len(set(used)) < len(used) or not all(0 <= i < self.dim for i in used):
            raise ValueError(
                f"angles {self.angles} and quaternions {self.quaternions} must be distinct entries of {self.dim}"
            )

    @property
    def is_identity(self) -> bool:
        """True if features are the coordinates themselves."""
        return not (self.angles or self.quaternions)

    @cached_property
    def blocks(self) -> tuple[tuple[str, slice, slice], ...]:
        """Runs of like coordinates as (kind, raw slice, feature slice); kind is "linear", "angle" or "quaternion"."""
        sizes = {"linear": (1, 1), "angle": (1, 2), "quaternion": (4, 9)}
        kinds = dict.fromkeys(self.angles, "angle") | dict.fromkeys(self.quaternions, "quaternion")
        blocks: list[tuple[str, slice, slice]] = []
        raw = feature = 0
        while raw < self.dim:
            kind = kinds.get(raw, "linear")
            a, b = sizes[kind]
            if kind == "linear" and blocks and blocks[-1][0] == "linear":
                _, r, f = blocks.pop()
                blocks.append((kind, slice(r.start, raw + a), slice(f.start, feature + b)))
            else:
                blocks.append((kind, slice(raw, raw + a), slice(feature, feature + b)))
            raw, feature = raw + a, feature + b
        return tuple(blocks)

    @property
    def rotations(self) -> tuple[int, ...]:
        """The first feature of each rotation matrix."""
        return tuple(features.start for kind, _, features in self.blocks if kind == "quaternion")

    @property
    def circles(self) -> tuple[int, ...]:
        """The first feature of each pair (cos, sin)."""
        return tuple(features.start for kind, _, features in self.blocks if kind == "angle")

    @property
    def feature_dim(self) -> int:
        return self.dim + len(self.angles) + 5 * len(self.quaternions)

    def features_of(self, i: int) -> range:
        """Indices of the features that coordinate i became part of."""
        for kind, raw, feature in self.blocks:
            if raw.start <= i < raw.stop:
                if kind == "linear":
                    return range(feature.start + i - raw.start, feature.start + i - raw.start + 1)
                return range(feature.start, feature.stop)
        raise IndexError(f"coordinate {i} of {self.dim}")

    def encode(self, y: Array) -> Array:
        """Features (..., feature_dim) of coordinates (..., n), of the same type and dtype."""
        if self.is_identity:
            return y
        lib = torch if isinstance(y, torch.Tensor) else np
        parts = []
        for kind, raw, _ in self.blocks:
            part = y[..., raw]
            if kind == "angle":
                parts += [lib.cos(part), lib.sin(part)]
            else:
                parts.append(rotation_matrix(part) if kind == "quaternion" else part)
        return _concatenate(parts)

    def decode(self, features: Array) -> Array:
        """Coordinates (..., n) of features: angles in (-pi, pi], quaternions with w >= 0."""
        if self.is_identity:
            return features
        lib = torch if isinstance(features, torch.Tensor) else np
        parts = []
        for kind, _, feature in self.blocks:
            part = features[..., feature]
            if kind == "angle":
                parts.append(lib.arctan2(part[..., 1:], part[..., :1]))
            else:
                parts.append(quaternion(part) if kind == "quaternion" else part)
        return _concatenate(parts)


def rotation_matrix(q: Array) -> Array:
    """Rotation matrices, row-major (..., 9), of quaternions (..., 4) of any length but zero; a zero one is taken for 1."""
    lib = torch if isinstance(q, torch.Tensor) else np
    length = lib.sqrt((q * q).sum(-1))[..., None]
    q = q / lib.where(length > 0, length, lib.ones_like(length))
    w, x, y, z = (q[..., i] for i in range(4))
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return lib.stack(rows, -1)


def quaternion(matrix: Array) -> Array:
    """Unit quaternions (..., 4) with w >= 0 of rotation matrices, row-major (..., 9).

    Of four expressions for 4 q q^T, each exact in exact arithmetic, the row of the largest diagonal entry is taken, which
    divides by no small number.
    """
    lib = torch if isinstance(matrix, torch.Tensor) else np
    xx, xy, xz, yx, yy, yz, zx, zy, zz = (matrix[..., i] for i in range(9))
    one = lib.ones_like(xx)
    rows = lib.stack([
        lib.stack([one + xx + yy + zz, zy - yz, xz - zx, yx - xy], -1),
        lib.stack([zy - yz, one + xx - yy - zz, xy + yx, xz + zx], -1),
        lib.stack([xz - zx, xy + yx, one - xx + yy - zz, yz + zy], -1),
        lib.stack([yx - xy, xz + zx, yz + zy, one - xx - yy + zz], -1),
    ], -2)  # fmt: skip
    diagonal = lib.stack([rows[..., i, i] for i in range(4)], -1)
    best = diagonal.argmax(-1)
    if isinstance(matrix, torch.Tensor):
        q = torch.take_along_dim(rows, best[..., None, None], dim=-2).squeeze(-2)
    else:
        q = np.take_along_axis(rows, best[..., None, None], axis=-2).squeeze(-2)
    q = q / lib.sqrt((q * q).sum(-1))[..., None]
    return lib.where(q[..., :1] < 0, -q, q)


def _concatenate(parts: list[Array]) -> Array:
    return torch.cat(parts, -1) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, -1)


# -- numbers without the last bits, in which one machine's arithmetic differs from another's, for content that is hashed -------


SIGNIFICANT_BITS = 31  # of every number, 5e-10 of it: far above rounding errors, below what a certificate calls exact
CANCELLED_BITS = 39  # below the largest number of an array, 2e-12 of it: where parts cancel, rounding errors are left


def rounded(values) -> np.ndarray:
    """The values in float64 to nine digits each and to 2e-12 of the largest of them; rounding errors leave no trace.

    In which order a product of matrices is summed depends on the processor and moves results by some 1e-16, so that a
    digest of the plain numbers is another one elsewhere. Units are powers of two: a number typed as a decimal may lie
    halfway between two decimals, where rounding errors decide, and hardly ever halfway between two of these.
    """
    values = np.asarray(values, dtype=np.float64)
    _, exponent = np.frexp(values)
    digits = _to_unit(values, exponent - SIGNIFICANT_BITS)
    _, largest = np.frexp(np.abs(digits).max(initial=0.0))  # of the rounded: 1 - 1e-16 and 1 differ in their exponent
    return _to_unit(digits, np.maximum(exponent - SIGNIFICANT_BITS, largest - CANCELLED_BITS))


def _to_unit(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Whole multiples of 2^exponent, with one zero."""
    return np.ldexp(np.round(np.ldexp(values, -exponent)), exponent) + 0.0
