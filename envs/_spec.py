r"""The action of a symmetry on an environment's observation, action and simulator state, as plain data.

A group acts linearly on *features* of each space: :math:`g \cdot y = \phi^{-1}(\rho(g)\,\phi(y))` with
:math:`\phi(y) = \mathrm{encode}(y - c)`. Most coordinates are their own features. A unit quaternion becomes a rotation matrix.
Quaternions themselves are a representation of the double cover only: four quarter turns give -q, which is the same orientation
as q. An angle that a rotation shifts becomes cosine and sine. Features are in the order of the coordinates.

The fixed point :math:`c` (`Space.origin`) is zero for most robots. InvertedPendulum-v5's pole is built slightly off the
vertical, and its mirror image is exact only about the pole's own axis.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from rppdyn._version import __version__
from rppdyn.groups import Group
from rppdyn.reps import Rep

Array = TypeVar("Array", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Encoding:
    """The map from n coordinates to features, and back.

    Args:
        dim: n.
        angles: indices of the angles, in radians.
        quaternions: index of the first entry of each quaternion (w, x, y, z).
    Attributes:
        blocks: (kind, slice of coordinates, slice of features) of each block; kind is "linear", "angle" or "quaternion".
    Raises:
        ValueError: indices out of range or overlapping.
    """

    dim: int
    angles: tuple[int, ...] = ()
    quaternions: tuple[int, ...] = ()
    blocks: tuple[tuple[str, slice, slice], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "angles", tuple(sorted(int(i) for i in self.angles)))
        object.__setattr__(self, "quaternions", tuple(sorted(int(i) for i in self.quaternions)))
        used = [*self.angles, *(i + k for i in self.quaternions for k in range(4))]
        if len(set(used)) < len(used) or not all(0 <= i < self.dim for i in used):
            raise ValueError(
                f"angles {self.angles} and quaternions {self.quaternions} must be distinct entries of {self.dim}"
            )
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
        object.__setattr__(self, "blocks", tuple(blocks))  # here, as a compiled update can't be the first to ask

    @property
    def is_identity(self) -> bool:
        """True if features are the coordinates themselves."""
        return not (self.angles or self.quaternions)

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
        """Indices of the features that depend on coordinate i."""
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
    """Rotation matrices, row-major (..., 9), of quaternions (..., 4) of any length; zero counts as the identity."""
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

    The result is the row of 4 q q^T with the largest diagonal entry, normalised, which divides by no small number.
    """
    lib = torch if isinstance(matrix, torch.Tensor) else np
    xx, xy, xz, yx, yy, yz, zx, zy, zz = (matrix[..., i] for i in range(9))
    ones = lib.ones_like(xx)
    rows = lib.stack([
        lib.stack([ones + xx + yy + zz, zy - yz, xz - zx, yx - xy], -1),
        lib.stack([zy - yz, ones + xx - yy - zz, xy + yx, xz + zx], -1),
        lib.stack([xz - zx, xy + yx, ones - xx + yy - zz, yz + zy], -1),
        lib.stack([yx - xy, xz + zx, yz + zy, ones - xx - yy + zz], -1),
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


# -- rounding before hashing, so that digests don't depend on a machine's arithmetic --------------------------------------


SIGNIFICANT_BITS = 31
"""Bits of each number that are kept, to 5e-10: coarser than rounding errors, finer than what a certificate calls exact."""

MAX_BITS_BELOW_LARGEST = 39
"""Bits that are kept below an array's largest number, to 2e-12: smaller parts are rounding errors of sums."""


def round_for_digest(values) -> np.ndarray:
    """Round values, as float64, to nine digits each and to 2e-12 of the largest, so that rounding errors leave no trace.

    The order of summation in a matrix product depends on the processor and changes results by some 1e-16, which would change
    the digest of plain numbers. The units are powers of two. In decimal units, numbers of a model file often lie halfway
    between two multiples, where rounding errors decide; between multiples of a power of two they hardly ever do.
    """
    values = np.asarray(values, dtype=np.float64)
    _, exponent = np.frexp(values)
    digits = _round_to_unit(values, exponent - SIGNIFICANT_BITS)
    # The largest number is taken after rounding, because 1 - 1e-16 and 1 have different exponents.
    _, largest = np.frexp(np.abs(digits).max(initial=0.0))
    return _round_to_unit(digits, np.maximum(exponent - SIGNIFICANT_BITS, largest - MAX_BITS_BELOW_LARGEST))


def _round_to_unit(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Round to multiples of 2^exponent; -0 becomes 0."""
    return np.ldexp(np.round(np.ldexp(values, -exponent)), exponent) + 0.0


# -- spaces and specs --------------------------------------------------------------------------------------------------

FORMAT = 2
VERDICTS = ("exact", "approximate", "broken")
NOT_CERTIFIED = "not certified"
SPACES = ("obs", "action", "qpos", "qvel", "act")
ROUNDED_KEYS = {"discrete_generators", "lie_algebra", "origin"}  # numbers of a group or space that a digest rounds

Matrix = tuple[tuple[float, ...], ...]


class Symmetry(NamedTuple):
    """One generator: its name, its verdicts and a note.

    `verdict` is that of `rppdyn.envs.certify` on the dynamics, "exact", "approximate" or "broken", or else "not certified".
    `reward_symmetric` says whether the reward changes no more than the dynamics do; None if unknown.
    """

    name: str
    verdict: str = NOT_CERTIFIED
    reward_symmetric: bool | None = None
    note: str = ""


class Entry(NamedTuple):
    """One coordinate: name, joint that it belongs to, unit, and whether the spec leaves it free (see `without`)."""

    name: str
    joint: str = ""
    unit: str = ""
    free: bool = False


@dataclass(frozen=True)
class Space:
    """Action of the group's generators on a space of n coordinates with f features (f = n unless encoded).

    Args:
        entries: the n coordinates; a name alone is an entry without joint and unit.
        discrete_generators: one (f, f) matrix per discrete generator of the group.
        lie_algebra: one (f, f) matrix per generator of the Lie algebra.
        origin: the fixed point of the action, n numbers; empty means zero. Zero where a coordinate is encoded.
        angles: coordinates encoded as (cos, sin).
        quaternions: first coordinates of the quaternions encoded as rotation matrices (row-major).
    Attributes:
        encoding: the map from coordinates, less the origin, to features.
    Raises:
        ValueError: a matrix or the origin has the wrong size, or an entry is not finite.
    """

    entries: tuple[Entry, ...]
    discrete_generators: tuple[Matrix, ...] = ()
    lie_algebra: tuple[Matrix, ...] = ()
    origin: tuple[float, ...] = ()
    angles: tuple[int, ...] = ()
    quaternions: tuple[int, ...] = ()
    encoding: Encoding = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        entries: Iterable[Entry | str | Sequence[Any]],
        discrete_generators: Iterable[ArrayLike] = (),
        lie_algebra: Iterable[ArrayLike] = (),
        origin: Iterable[float] = (),
        angles: Iterable[int] = (),
        quaternions: Iterable[int] = (),
    ):
        object.__setattr__(self, "entries", tuple(map(_entry, entries)))
        n = len(self.entries)
        object.__setattr__(self, "origin", tuple(map(float, origin)) or (0.0,) * n)
        if len(self.origin) != n or not np.isfinite(self.origin).all():
            raise ValueError(f"origin {self.origin} must hold {n} finite numbers, one per entry")
        encoding = Encoding(n, tuple(angles), tuple(quaternions))
        object.__setattr__(self, "angles", encoding.angles)
        object.__setattr__(self, "quaternions", encoding.quaternions)
        object.__setattr__(self, "encoding", encoding)
        if any(self.origin[i] for i in range(n) if len(encoding.features_of(i)) > 1):
            raise ValueError(f"origin {self.origin} must be zero where a coordinate is encoded")
        for key, matrices in {"discrete_generators": discrete_generators, "lie_algebra": lie_algebra}.items():
            object.__setattr__(self, key, tuple(_matrix(m, encoding.feature_dim, key) for m in matrices))

    @property
    def dim(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def feature_dim(self) -> int:
        return self.encoding.feature_dim

    @cached_property
    def features(self) -> tuple[Entry, ...]:
        """An entry for each feature: the coordinate's own, ``cos`` and ``sin`` of an angle, ``R[i,j]`` of a rotation matrix."""
        names: list[Entry] = []
        for kind, raw, _ in self.encoding.blocks:
            first = self.entries[raw.start]
            if kind == "linear":
                names += self.entries[raw]
            elif kind == "angle":
                names += [Entry(f"{part} {first.name}", first.joint, "1", first.free) for part in ("cos", "sin")]
            else:
                name = first.name.removesuffix(" w")
                names += [Entry(f"{name} R[{i},{j}]", first.joint, "1", first.free) for i in range(3) for j in range(3)]
        return tuple(names)

    @property
    def is_linear(self) -> bool:
        """True if the group acts linearly on the raw coordinates."""
        return self.is_centred and self.encoding.is_identity

    @property
    def is_centred(self) -> bool:
        """True if the fixed point is zero."""
        return not any(self.origin)

    def generator(self, k: int) -> np.ndarray:
        """The k-th generator as an (f, f) array, discrete ones first."""
        return np.array((*self.discrete_generators, *self.lie_algebra)[k])

    def encode(self, y: Array) -> Array:
        """Features (..., f) of coordinates (..., n), of the same type and dtype."""
        return self.encoding.encode(self._add_origin(y, -1.0))

    def decode(self, features: Array) -> Array:
        """Coordinates of features, the inverse of `encode`; angles in (-pi, pi], quaternions with w >= 0."""
        return self._add_origin(self.encoding.decode(features), 1.0)

    def _add_origin(self, y: Array, sign: float) -> Array:
        """Add or subtract the origin, number by number; copying a vector to a GPU would wait for it."""
        if self.is_centred:
            return y
        if isinstance(y, torch.Tensor):
            y = y.clone() if y.is_floating_point() else y.to(torch.get_default_dtype())
        else:
            y = y.astype(y.dtype if np.issubdtype(y.dtype, np.floating) else np.float64)
        for i, value in enumerate(self.origin):
            if value:
                y[..., i] += sign * value
        return y

    def transform(self, matrix: Any, y: Array) -> Array:
        """Image of coordinates y, (..., n), under ``matrix``: rho(g), (f, f), or a batch (..., f, f)."""
        z = self.encode(y)
        if isinstance(z, torch.Tensor):
            z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
            return self.decode(torch.einsum("...ij,...j->...i", matrix.to(dtype=z.dtype, device=z.device), z))
        matrix = np.asarray(matrix)  # refuses a tensor on another device
        return self.decode(np.einsum("...ij,...j->...i", matrix.astype(np.result_type(z, np.float32)), z))

    def describe(self, i: int, k: int) -> str:
        """Feature i of the image under the k-th generator (discrete ones first), for instance ``-[5]``."""
        text = describe_row((*self.discrete_generators, *self.lie_algebra)[k][i])
        origin = next((c for j, c in enumerate(self.origin) if c and i in self.encoding.features_of(j)), 0.0)
        return text if origin == 0 else f"{text} (about {origin:.3g})"


@dataclass(frozen=True)
class SymmetrySpec:
    """A group acting on an environment's raw observation and action, and on its simulator's state.

    It is plain data: hashable and comparable by content, picklable, written to JSON and read by `to_dict` and `from_dict`. A
    saved policy needs neither the environment nor the model file. `mirror_spec` makes one from permutations and signs.

    Args:
        env_id: the environment that it describes, for messages and certificates.
        group: the group; its generators act as given below.
        obs, action: action on the raw observation and on the raw action, which is also the simulator's `ctrl` in Gymnasium's
            MuJoCo tasks.
        qpos, qvel, act: action on the simulator's positions, velocities and activations; only `certify` needs them, and `act`
            only if the model has activations.
        symmetries: one `Symmetry` per generator, discrete ones first, then those of the Lie algebra.
        observation_groups: name and length of each part of the observation ("actor", "critic"), in order; empty without parts.
            A symmetry maps each part into itself.
        terms: the list of terms that described observation and action (`rppdyn.envs.compiled_terms`), or None. Equality and
            digest ignore it.
    Raises:
        ValueError: a space has another number of generators than the group, or the parts have another length than the
            observation or are mixed.
    """

    env_id: str
    group: Group
    obs: Space
    action: Space
    qpos: Space | None = None
    qvel: Space | None = None
    act: Space | None = None
    symmetries: tuple[Symmetry, ...] = ()
    observation_groups: tuple[tuple[str, int], ...] = ()
    terms: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        groups = tuple((str(name), int(size)) for name, size in self.observation_groups)
        object.__setattr__(self, "observation_groups", groups)
        if groups and sum(size for _, size in groups) != self.obs.dim:
            raise ValueError(
                f"{self.env_id}: observation groups {dict(groups)} of {self.obs.dim} entries; their sizes must add up"
            )
        expected = (len(self.group.discrete_generators), len(self.group.lie_algebra))
        for key in SPACES:
            space = getattr(self, key)
            if space is None:
                continue
            counts = (len(space.discrete_generators), len(space.lie_algebra))
            if counts != expected:
                raise ValueError(
                    f"{self.env_id}: {key} has {counts[0]} discrete and {counts[1]} Lie algebra generators, "
                    f"the group {self.group} has {expected[0]} and {expected[1]}; give one matrix for each"
                )
        object.__setattr__(self, "symmetries", tuple(Symmetry(*s) for s in self.symmetries))
        if self.symmetries and len(self.symmetries) != sum(expected):
            raise ValueError(f"{self.env_id}: {len(self.symmetries)} symmetries for {sum(expected)} generators")
        for symmetry in self.symmetries:
            if symmetry.verdict not in (*VERDICTS, NOT_CERTIFIED):
                known = ", ".join((*VERDICTS, NOT_CERTIFIED))
                raise ValueError(f"{self.env_id}: verdict {symmetry.verdict!r} must be one of {known}")

    # -- representations and features ---------------------------------------------------------------------------------

    @cached_property
    def obs_rep(self) -> Rep:
        """The representation on features: `encode(g . obs) = obs_rep.rho(g) encode(obs)`."""
        return representation(self.group, self.obs, f"{self.env_id} observation")

    @cached_property
    def action_rep(self) -> Rep:
        """The representation on raw actions."""
        return representation(self.group, self.action, f"{self.env_id} action")

    @property
    def is_trivial(self) -> bool:
        """True if the group consists of the identity alone."""
        generators = self.group.discrete_generators
        return not len(self.group.lie_algebra) and bool((generators == torch.eye(self.group.d).to(generators)).all())

    @property
    def feature_dim(self) -> int:
        """Length of the feature vector that `encode` returns."""
        return self.obs.feature_dim

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.obs.features)

    @property
    def generator_names(self) -> tuple[str, ...]:
        """Names of the generators, discrete ones first, then those of the Lie algebra."""
        count = len(self.group.discrete_generators) + len(self.group.lie_algebra)
        return tuple(s.name for s in self.symmetries) or tuple(f"generator {k}" for k in range(count))

    @property
    def obs_names(self) -> tuple[str, ...]:
        return self.obs.names

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.action.names

    def encode(self, obs: Array) -> Array:
        """Features that a network sees, (..., feature_dim), of raw observations (..., n); of the same type and dtype."""
        self._check(obs, self.obs.dim, "observation")
        return self.obs.encode(obs)

    def decode(self, features: Array) -> Array:
        """Raw observations from (..., feature_dim) features, the inverse of `encode` (quaternions up to their sign)."""
        self._check(features, self.obs.feature_dim, "feature vector")
        return self.obs.decode(features)

    # -- the action of the group --------------------------------------------------------------------------------------

    def transform_observation(self, g: ArrayLike | torch.Tensor, obs: Array) -> Array:
        """Image of raw observations under g.

        Args:
            g: a group element, (d, d), or a batch (..., d, d) that broadcasts with `obs`.
            obs: (..., n), a NumPy array or a tensor; the result has its type and dtype (whole numbers
                become floating point).
        """
        self._check(obs, self.obs.dim, "observation")
        return self.obs.transform(_rho(self.obs_rep, g, obs), obs)

    def transform_action(self, g: ArrayLike | torch.Tensor, action: Array) -> Array:
        """Image of raw actions (..., m) under g; arguments as in `transform_observation`."""
        self._check(action, self.action.dim, "action")
        return self.action.transform(_rho(self.action_rep, g, action), action)

    def state_rep(self, key: str) -> Rep:
        """The representation on the features of the simulator's "qpos", "qvel" or "act"."""
        return representation(self.group, getattr(self, key), f"{self.env_id} {key}")

    def check(self) -> SymmetrySpec:
        """Check that the actions on observation and action are representations of the group, and return the spec.

        Raises:
            ValueError: a group relation fails; the message names the generator.
        """
        self.obs_rep.check()
        self.action_rep.check()
        return self

    def is_of(self, env_id: str) -> bool:
        """Check whether it describes an environment of this name, in any version and from any module."""
        name = lambda env_id: re.sub(r"-v\d+$", "", env_id.rpartition(":")[2])  # noqa: E731
        return name(self.env_id) == name(env_id)

    def observation_group(self, name: str) -> SymmetrySpec:
        """The spec of one observation group: its entries are the whole observation.

        Raises:
            ValueError: there is no such group, or a symmetry mixes it with another one.
        """
        names = [group for group, _ in self.observation_groups]
        if name not in names:
            raise ValueError(f"{self.env_id} has no observation group {name!r}; known: {', '.join(names) or 'none'}")
        ends = np.cumsum([size for _, size in self.observation_groups])
        stop = int(ends[names.index(name)])
        raw = range(stop - self.observation_groups[names.index(name)][1], stop)
        features = sorted({f for i in raw for f in self.obs.encoding.features_of(i)})

        def part(matrix: Matrix) -> np.ndarray:
            full = np.array(matrix)
            if np.delete(full[features], features, axis=1).any():
                raise ValueError(f"{self.env_id}: a symmetry mixes the observation group {name!r} with another one")
            return full[np.ix_(features, features)]

        obs = Space(
            [self.obs.entries[i] for i in raw],
            [part(m) for m in self.obs.discrete_generators],
            [part(m) for m in self.obs.lie_algebra],
            [self.obs.origin[i] for i in raw],
            [i - raw.start for i in self.obs.angles if i in raw],
            [i - raw.start for i in self.obs.quaternions if i in raw],
        )
        return replace(self, obs=obs, observation_groups=(), terms=None)

    # -- data ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict:
        """JSON-able content of the spec."""
        spaces = {key: _space_to_dict(getattr(self, key)) for key in SPACES}
        symmetries = [symmetry._asdict() for symmetry in self.symmetries]
        groups = {"observation_groups": [list(g) for g in self.observation_groups]} if self.observation_groups else {}
        terms = {} if self.terms is None else {"terms": self.terms}
        head = {"format": FORMAT, "env_id": self.env_id, "group": self.group.to_dict()}
        return head | spaces | {"symmetries": symmetries} | groups | terms

    def contract(self, certificate: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The content of `symmetry.json` beside a policy: `to_dict`, and entries for readers without this package.

        Its keys are listed in docs/jobs/export.md. `from_dict` reads it, and refuses it if spaces, images or joints were
        changed by hand; terms, certificate and version are records that are not checked.

        Args:
            certificate: result of `Certificate.to_dict`.
        """
        data = {**self.to_dict(), "terms": self.terms, "joints": self._joints(), "images": self._images()}
        return {**data, "digest": self.digest, "certificate": certificate, "rppdyn": __version__}

    def _joints(self) -> dict[str, list[str]]:
        """The joints of observation and action, in the order in which they first appear."""
        spaces = {"observation": self.obs, "action": self.action}
        return {key: list(dict.fromkeys(e.joint for e in space.entries if e.joint)) for key, space in spaces.items()}

    def _images(self) -> dict[str, Any]:
        """Index, sign and shift of each discrete generator that permutes entries: x'[i] = sign[i] x[index[i]] + shift[i]."""
        images: dict[str, Any] = {}
        for k, name in enumerate(self.generator_names[: len(self.group.discrete_generators)]):
            images[name] = {}
            for key, space in {"observation": self.obs, "action": self.action}.items():
                A, c = space.generator(k), np.array(space.origin)
                has_one_entry_per_row = ((A != 0).sum(1) == 1).all() and (abs(A).sum(1) == 1).all()
                if not (space.encoding.is_identity and has_one_entry_per_row):
                    images[name][key] = None
                    continue
                index, sign = abs(A).argmax(1), A.sum(1)
                tables = {"index": index, "sign": sign, "shift": c - sign * c[index]}
                images[name][key] = {part: table.tolist() for part, table in tables.items()}
        return images

    @classmethod
    def from_dict(cls, data: SymmetrySpec | Mapping[str, Any]) -> SymmetrySpec:
        """The spec of a dictionary that `to_dict` or `contract` returned; a spec is returned as it is.

        Raises:
            ValueError: another format version, a missing key, a key with another content, or a `contract` that was changed
                after it was written.
        """
        if isinstance(data, SymmetrySpec):
            return data
        if not isinstance(data, Mapping):
            raise ValueError(
                f"{type(data).__name__} describes no symmetry spec; give a SymmetrySpec, or what its to_dict returns"
            )
        if data.get("format") != FORMAT:
            raise ValueError(f"the spec has format {data.get('format')!r}, this version reads {FORMAT}; rebuild it")
        try:
            spec = cls(
                env_id=data["env_id"],
                group=Group.from_dict(data["group"]),
                symmetries=tuple(Symmetry(**s) for s in data["symmetries"]),
                observation_groups=tuple((name, size) for name, size in data.get("observation_groups", ())),
                terms=data.get("terms"),
                **{key: Space(**data[key]) for key in SPACES if data[key] is not None},
            )
        except KeyError as error:
            raise ValueError(f"symmetry spec lacks the key {error}; write it with SymmetrySpec.to_dict") from None
        except TypeError as error:
            raise ValueError(f"symmetry spec is damaged ({error}); write it with SymmetrySpec.to_dict") from error
        for key, compute in {"digest": lambda: spec.digest, "images": spec._images, "joints": spec._joints}.items():
            if key in data and data[key] != compute():
                raise ValueError(
                    f"its {key} is not that of its content, which was changed after it was written; export again"
                )
        return spec

    @property
    def digest(self) -> str:
        """SHA-256 of the content, hexadecimal, which certificates and run folders record.

        Numbers are rounded (`round_for_digest`), so the same spec derived on another machine has the same digest.
        """
        data = self.to_dict()
        data.pop("terms", None)
        data["group"].pop("factors", None)
        for part in (data["group"], *(data[key] for key in SPACES if data[key] is not None)):
            part |= {key: round_for_digest(part[key]).tolist() for key in ROUNDED_KEYS & part.keys()}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def table(self) -> str:
        """Table of observation and action: index, name, joint and unit of each entry, and its image under each generator.

        ``-[5]`` means that this entry of the image is minus entry 5 of the original. For an encoded space the features are
        listed. The column of a continuous symmetry is the derivative.
        """
        titles = self.generator_names
        lines = [f"{self.env_id}: {self.group.name} ({', '.join(titles)})"]
        for title, space in (("observation", self.obs), ("action", self.action)):
            head = ["index", title if space.encoding.is_identity else "feature", "joint", "unit", *titles]
            rows = [
                [str(i), entry.name, entry.joint, entry.unit, *(space.describe(i, k) for k in range(len(titles)))]
                for i, entry in enumerate(space.features)
            ]
            lines += ["", *align([head, *rows])]
        rewards = {True: "the same", False: "changes", None: "not certified"}
        notes = [f"{s.name}: dynamics {s.verdict}, reward {rewards[s.reward_symmetric]}. {s.note}".rstrip()
                 for s in self.symmetries]  # fmt: skip
        return "\n".join([*lines, "", *notes]).rstrip()

    def __str__(self) -> str:
        return self.table()

    def _check(self, y, dim: int, name: str) -> None:
        if not isinstance(y, np.ndarray | torch.Tensor):
            raise ValueError(f"{self.env_id}: {name} is of type {type(y).__name__}; give a NumPy array or a tensor")
        if y.shape[-1:] != (dim,):
            raise ValueError(f"{self.env_id}: {name} of shape {tuple(y.shape)}; its last dimension must be {dim}")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _entry(entry: Entry | str | Sequence[Any]) -> Entry:
    try:
        parsed = Entry(entry) if isinstance(entry, str) else Entry(*entry)
    except TypeError:
        parsed = Entry("")
    if not all(isinstance(text, str) for text in parsed[:3]) or not parsed.name:
        raise ValueError(f"entry {entry!r} of a space: give its name, or Entry(name, joint, unit)")
    return parsed


def describe_row(row: Sequence[float]) -> str:
    """A row of a matrix as a sum, for instance ``+[3] +0.5 [2]``."""
    signs = {1.0: "+", -1.0: "-"}
    return " ".join(f"{signs.get(c, f'{c:+.3g} ')}[{j}]" for j, c in enumerate(row) if c) or "0"


def _matrix(m, n: int, key: str) -> Matrix:
    array = np.asarray(m, dtype=np.float64)
    if array.shape != (n, n) or not np.isfinite(array).all():
        raise ValueError(f"{key} of shape {array.shape} must be finite and ({n}, {n}), one row per entry")
    return tuple(map(tuple, (array + 0.0).tolist()))


def representation(group: Group, space: Space, name: str) -> Rep:
    """The representation of a group on the features of a space."""
    parts = {}
    if space.discrete_generators:
        parts["discrete_generators"] = torch.tensor(space.discrete_generators, dtype=torch.float64)
    if space.lie_algebra:
        parts["lie_algebra"] = torch.tensor(space.lie_algebra, dtype=torch.float64)
    return Rep.from_generators(group, name=name, **parts)


def _rho(rep: Rep, g: ArrayLike | torch.Tensor, y: Array) -> Any:
    """rho(g), a tensor if y is one, otherwise an array."""
    g = torch.as_tensor(g, dtype=rep.dtype, device="cpu")
    if g.shape[-2:] != (rep.G.d, rep.G.d):
        raise ValueError(f"{tuple(g.shape)} is no element of {rep.G}; give a matrix {(rep.G.d, rep.G.d)} or a batch")
    return rep.rho(g) if isinstance(y, torch.Tensor) else rep.rho(g).numpy()


def _space_to_dict(space: Space | None) -> dict | None:
    if space is None:
        return None
    return {
        "entries": [list(entry) for entry in space.entries],
        "discrete_generators": [[list(row) for row in m] for m in space.discrete_generators],
        "lie_algebra": [[list(row) for row in m] for m in space.lie_algebra],
        "origin": list(space.origin),
        "angles": list(space.angles),
        "quaternions": list(space.quaternions),
    }
