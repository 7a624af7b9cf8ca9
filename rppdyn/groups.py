r"""Matrix groups, given by a basis of their Lie algebra and by discrete generators.

The elements are all products of exponentials :math:`\exp(\sum_i a_i A_i)` of the Lie algebra, discrete generators
:math:`h_k` and their inverses. So a linear map commutes with the whole group if and only if it commutes with each
:math:`A_i` and each :math:`h_k` (Finzi 2023, Eq. A.10, for elements that are one exponential times a word in the h_k).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce, wraps
from itertools import combinations, product
from numbers import Integral
from operator import mul
from types import FunctionType
from typing import Any

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

__all__ = [
    "SO", "O", "GL", "SL", "Sp", "U", "SU", "Z", "S", "D", "SO13p", "SO13", "O13", "SO2eR3", "O2eR3", "DkeR3", "RubiksCube",
    "Trivial", "Group", "MAX_ORDER", "is_signed_permutation",
]  # fmt: skip

MAX_ORDER = 64
"""Finite groups up to this order are enumerated (``Group.order``, ``Group.elements``, the regular representation)."""

MAX_FACTORS = 32
MAX_GENERATOR_ENTRIES = 2**27
"""Limits of a direct product: the number of its factors, and of the entries of its generators."""

Matrices = Tensor | np.ndarray | Sequence[Any]
"""Square matrices ``(n, d, d)``: an array, or a sequence of arrays or of rows of numbers."""

_TOLERANCE = 1e-9  # entries up to this are zero
_WORD_LENGTH = 64  # letters of a random word in the discrete generators


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if torch.empty(0).device.type == "cpu":  # ten times as fast as torch.get_default_device()
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return compute


def compute_on_cpu(cls: type) -> type:
    """Decorate a class so that constructors, methods and properties compute on the CPU, whatever the default device is."""
    for name, value in [*vars(cls).items()]:
        if isinstance(value, FunctionType) and (name in ("__init__", "__mul__") or not name.startswith("__")):
            setattr(cls, name, _on_cpu(value))
        elif isinstance(value, staticmethod | classmethod):
            setattr(cls, name, type(value)(_on_cpu(value.__func__)))
        elif isinstance(value, cached_property):
            value.func = _on_cpu(value.func)
        elif isinstance(value, property) and value.fget is not None:
            setattr(cls, name, property(_on_cpu(value.fget)))
    return cls


@compute_on_cpu
class Group:
    r"""A matrix group acting on :math:`\mathbb{R}^d` or :math:`\mathbb{C}^d`.

    Args:
        name: for printing only; groups with the same generators and factors are equal, whatever their names.
        lie_algebra: ``(D, d, d)`` basis of the Lie algebra, if there is a continuous part.
        discrete_generators: ``(M, d, d)`` invertible matrices, if there is a discrete part.
    Raises:
        ValueError: no part is given, a shape is wrong, an entry is not finite, or a generator's condition number is above 1e12.

    >>> C4 = Group("C4", discrete_generators=[[[0.0, -1.0], [1.0, 0.0]]])
    >>> C4.order, C4.is_orthogonal
    (4, True)
    >>> C4 == Group("quarter turns", discrete_generators=[[[0, -1], [1, 0]]])
    True
    """

    __slots__ = ("_lie", "_discrete", "_digest", "_elements", "_factors", "_sizes", "name", "d", "__weakref__")

    name: str
    d: int
    _lie: Tensor
    _discrete: Tensor
    _digest: bytes
    _elements: Tensor | None
    _factors: tuple[Group, ...] | None
    _sizes: Tensor | None

    def __init__(
        self, name: str, *, lie_algebra: Matrices | None = None, discrete_generators: Matrices | None = None
    ) -> None:
        lie = as_matrices(lie_algebra, f"lie_algebra of {name}")
        discrete = as_matrices(discrete_generators, f"discrete_generators of {name}")
        parts = [part for part in (lie, discrete) if part is not None]
        if not parts:
            raise ValueError(
                f"group {name!r} has no generators: pass lie_algebra or discrete_generators, or use Trivial(d)"
            )
        if lie is not None and discrete is not None and lie.shape[-1] != discrete.shape[-1]:
            raise ValueError(
                f"group {name!r}: lie_algebra acts on {lie.shape[-1]} dimensions, "
                f"discrete_generators on {discrete.shape[-1]}; give both the same size"
            )
        empty = parts[0][:0]
        self._set(name, empty if lie is None else lie, empty if discrete is None else discrete, factors=None)

    def _set(self, name: str, lie: Tensor, discrete: Tensor, factors: tuple[Group, ...] | None) -> None:
        dtype = torch.promote_types(lie.dtype, discrete.dtype)
        lie, discrete = lie.to(dtype), discrete.to(dtype)
        if len(discrete):
            # A small determinant alone is no sign of singularity (0.1 I has 0.1^d), so the condition number decides.
            values = torch.linalg.svdvals(discrete)
            singular = (values[:, -1] <= 1e-12 * values[:, 0]).nonzero().flatten().tolist()
            if singular:
                raise ValueError(
                    f"group {name!r}: discrete_generators[{singular[0]}] is singular, or nearly so (condition number of 1e12 "
                    "or more); give an invertible matrix"
                )
        digest = hashlib.sha256()
        for part in (lie, discrete):
            digest.update(repr((tuple(part.shape), str(part.dtype))).encode())
            digest.update((part + 0.0).numpy().tobytes())  # + 0.0 turns -0.0 into 0.0
        for factor in factors or ():
            digest.update(factor._digest)
        for key, value in dict(
            name=str(name), d=lie.shape[-1], _lie=lie, _discrete=discrete, _digest=digest.digest(), _elements=None,
            _factors=factors, _sizes=None,
        ).items():  # fmt: skip
            object.__setattr__(self, key, value)

    # -- identity -----------------------------------------------------------------------------------------------------

    def __setattr__(self, key, value):
        raise AttributeError(f"groups are immutable; cannot set {key!r} of {self.name}")

    def __delattr__(self, key):
        raise AttributeError(f"groups are immutable; cannot delete {key!r} of {self.name}")

    def __eq__(self, other) -> bool:
        return isinstance(other, Group) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return _rebuild, (self.name, self._lie.numpy(), self._discrete.numpy(), self._factors)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    # -- structure ----------------------------------------------------------------------------------------------------

    @property
    def lie_algebra(self) -> Inexact[Tensor, "D d d"]:
        """Basis of the Lie algebra, ``(D, d, d)``."""
        return self._lie.clone()

    @property
    def discrete_generators(self) -> Inexact[Tensor, "M d d"]:
        """Discrete generators, ``(M, d, d)``."""
        return self._discrete.clone()

    @property
    def lie_sizes(self) -> Float[Tensor, "D 1 1"]:
        """Spectral norm of each Lie generator after balancing its rows and columns; 1 for a zero generator.

        Generators divided by these don't depend on their given lengths, and only weakly on the units of coordinates, since
        balancing scales by powers of 2. The norms are 1 for every group of the catalogue.
        """
        sizes = self._sizes
        if sizes is None:
            balanced = [np.linalg.norm(scipy.linalg.matrix_balance(A, permute=False)[0], 2) for A in self._lie.numpy()]
            sizes = torch.tensor(balanced, dtype=torch.float64).view(-1, 1, 1)
            sizes = torch.where((sizes == 0) | ((sizes - 1).abs() < 1e-12), 1.0, sizes)
            object.__setattr__(self, "_sizes", sizes)
        return sizes.clone()

    @property
    def unit_lie_algebra(self) -> Inexact[Tensor, "D d d"]:
        """The Lie generators divided by their ``lie_sizes``."""
        return self._lie / self.lie_sizes

    @property
    def dtype(self) -> torch.dtype:
        return self._lie.dtype

    @property
    def is_complex(self) -> bool:
        return self.dtype.is_complex

    @property
    def factors(self) -> tuple[Group, ...]:
        """The factors of a direct product, ``(self,)`` for any other group."""
        return self._factors or (self,)

    @property
    def is_orthogonal(self) -> bool:
        """True if every element is orthogonal (unitary for a complex group)."""
        eye = torch.eye(self.d, dtype=self.dtype)
        unit = self.unit_lie_algebra
        return _is_zero(unit + unit.mH) and _is_zero(self._discrete @ self._discrete.mH - eye)

    @property
    def is_signed_permutation(self) -> bool:
        """True if every element permutes the coordinate axes up to sign."""
        return len(self._lie) == 0 and is_signed_permutation(self._discrete)

    @property
    def is_permutation(self) -> bool:
        """True if every element permutes the coordinates."""
        return self.is_signed_permutation and bool((self._discrete.real >= 0).all())

    @property
    def order(self) -> int | None:
        """Number of elements, counting those within 1e-6 once; ``None`` if there are more than ``MAX_ORDER``."""
        elements = self._enumerate()
        return None if elements is None else len(elements)

    def elements(self) -> Inexact[Tensor, "order d d"]:
        """All elements of a finite group, the identity first; those within 1e-6 count as one.

        Raises:
            ValueError: the group is infinite or has more than ``MAX_ORDER`` elements.
        """
        elements = self._enumerate()
        if elements is None:
            raise ValueError(f"{self.name} is infinite or has more than {MAX_ORDER} elements; use samples(n) instead")
        return elements.clone()

    def _enumerate(self) -> Tensor | None:
        if len(self._lie) or ((torch.linalg.det(self._discrete).abs() - 1).abs() > 1e-4).any():
            # If |det h| is not 1, h has infinitely many powers; those of a contraction become too close to tell apart.
            return None
        elements = self._elements
        if elements is None:
            elements = _closure(self._discrete, self.d)
            object.__setattr__(self, "_elements", elements)
        return elements if len(elements) else None

    def samples(self, n: int, generator: torch.Generator | None = None) -> Inexact[Tensor, "n d d"]:
        r"""``n`` random elements, ``(n, d, d)``.

        They are uniform for a finite group of order at most ``MAX_ORDER``. Otherwise an element is the product of
        :math:`\exp(\sum_i a_i A_i)` and a random word of 64 letters in the discrete generators and the identity (4 letters
        if one is not orthogonal). Here :math:`A_i` is ``unit_lie_algebra`` and :math:`a_i \sim N(0, s^2)`. The scale s is 1
        if ``is_orthogonal``, and :math:`1/\sqrt{D}` otherwise, which keeps boosts and shears well conditioned (and applies
        to a compact group in skewed coordinates, too). This is not the Haar measure. In some groups not all elements are
        reached: -diag(2, 1/2) of SL(2) is no exponential of a real matrix.
        """
        if n < 0:
            raise ValueError(f"samples(n={n}): n must not be negative")
        elements = self._enumerate()
        if elements is not None:
            return elements[torch.randint(len(elements), (n,), generator=generator)]
        g = torch.eye(self.d, dtype=self.dtype).expand(n, -1, -1)
        if len(self._lie):
            scale = 1.0 if self.is_orthogonal else 1 / math.sqrt(len(self._lie))
            a = scale * torch.randn(n, len(self._lie), generator=generator, dtype=torch.float64)
            g = torch.linalg.matrix_exp(torch.einsum("ni,ijk->njk", a.to(self.dtype), self.unit_lie_algebra))
        if len(self._discrete):
            letters = torch.cat([torch.eye(self.d, dtype=self.dtype)[None], self._discrete])
            # Words in generators that aren't orthogonal (a scaling, say) may grow without bound, so keep them short.
            length = _WORD_LENGTH if _is_zero(letters @ letters.mH - letters[0]) else 4
            for letter in torch.randint(len(letters), (length, n), generator=generator):
                g = g @ letters[letter]
        return g.contiguous()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON if the group is real: name and generators, and those of each factor of a direct product."""
        data: dict[str, Any] = {"name": self.name, "d": self.d}
        data |= {"discrete_generators": self._discrete.tolist(), "lie_algebra": self._lie.tolist()}
        return data | ({"factors": [factor.to_dict() for factor in self.factors]} if len(self.factors) > 1 else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Group:
        """The group that `to_dict` described.

        Raises:
            ValueError: the factors' product has other generators.
        """
        group = cls(data["name"], **{key: data[key] or None for key in ("lie_algebra", "discrete_generators")})
        if "factors" not in data:
            return group
        whole = reduce(mul, map(cls.from_dict, data["factors"]))
        pairs = (whole._lie, group._lie), (whole._discrete, group._discrete)
        if not all(torch.equal(a.to(b.dtype), b) for a, b in pairs):
            raise ValueError(
                f"group {group}: the product of its factors, {whole}, has other generators; save the group again"
            )
        return _rebuild(group.name, group._lie.numpy(), group._discrete.numpy(), whole.factors)

    def __mul__(self, other: Group) -> Group:
        """The direct product; its elements are block-diagonal.

        Raises:
            ValueError: more than ``MAX_FACTORS`` factors, or generators that would not fit in memory.
        """
        if not isinstance(other, Group):
            return NotImplemented
        factors = self.factors + other.factors
        generators = sum(len(part) for group in (self, other) for part in (group._lie, group._discrete))
        size = generators * (self.d + other.d) ** 2
        if len(factors) > MAX_FACTORS or size > MAX_GENERATOR_ENTRIES:
            raise ValueError(
                f"a product of {len(factors)} groups, with {size} numbers in its generators, is more than {MAX_FACTORS} "
                f"groups or {MAX_GENERATOR_ENTRIES} numbers: use fewer, or smaller ones"
            )
        d, dtype = self.d + other.d, torch.promote_types(self.dtype, other.dtype)
        lie, discrete = [], []
        for group, slot in ((self, slice(0, self.d)), (other, slice(self.d, d))):
            block = torch.zeros(len(group._lie), d, d, dtype=dtype)
            block[:, slot, slot] = group._lie.to(dtype)
            lie.append(block)
            block = torch.eye(d, dtype=dtype).repeat(len(group._discrete), 1, 1)
            block[:, slot, slot] = group._discrete.to(dtype)
            discrete.append(block)
        whole = Group.__new__(Group)
        whole._set(" x ".join(f.name for f in factors), torch.cat(lie), torch.cat(discrete), factors)
        return whole


@_on_cpu
def _rebuild(name, lie, discrete, factors) -> Group:
    group = Group.__new__(Group)
    group._set(name, torch.tensor(lie), torch.tensor(discrete), factors)
    return group


def as_tensor(value: Any) -> Tensor:
    """A tensor of anything array-like; unlike ``torch.as_tensor``, lists of Python numbers keep double precision."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def as_matrices(value: Matrices | None, name: str) -> Tensor | None:
    """``(n, d, d)`` float64 or complex128 copy of ``value``; None if it is None or empty."""
    if value is None:
        return None
    try:
        tensors = [as_tensor(v).detach().cpu() for v in value]
    except (TypeError, ValueError):
        raise ValueError(f"{name} is no sequence of matrices of numbers; give them stacked as (n, d, d)") from None
    if not tensors:
        return None
    shapes = list(dict.fromkeys(tuple(v.shape) for v in tensors))
    if len(shapes) > 1:
        raise ValueError(f"{name} has matrices of shapes {shapes[0]} and {shapes[1]}; give all of them one size")
    matrices = torch.stack(tensors)
    matrices = matrices.to(torch.complex128 if matrices.is_complex() else torch.float64, copy=True)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or matrices.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(matrices.shape)}; give square matrices stacked as (n, d, d)")
    if not torch.isfinite(torch.view_as_real(matrices) if matrices.is_complex() else matrices).all():
        raise ValueError(f"{name} holds an entry that is not finite")
    return matrices.contiguous()


def _is_zero(x: Tensor) -> bool:
    return x.numel() == 0 or bool(x.abs().max() < _TOLERANCE)


def is_signed_permutation(matrices: Inexact[Tensor, "*batch d d"]) -> bool:
    """Check whether each matrix has one entry of 1 or -1 in every row and column and zeros elsewhere, exactly."""
    size = matrices.abs()
    binary = bool(((size == 0) | (size == 1)).all()) and not (matrices.is_complex() and matrices.imag.any())
    return binary and bool((size.sum(-1) == 1).all()) and bool((size.sum(-2) == 1).all())


def _closure(generators: Tensor, d: int) -> Tensor:
    """The generated elements, the identity first, by breadth-first search; empty if they are more than ``MAX_ORDER``."""
    elements = torch.eye(d, dtype=generators.dtype)[None]
    frontier = elements
    while len(frontier) and len(generators):
        products = (generators[None] @ frontier[:, None]).reshape(-1, d, d)
        new = []
        for g in products:
            if (elements - g).abs().amax((1, 2)).min() > 1e-6:
                elements = torch.cat([elements, g[None]])
                new.append(g)
                if len(elements) > MAX_ORDER:
                    return elements[:0]
        frontier = torch.stack(new) if new else elements[:0]
    return elements


# -- The catalogue of groups ---------------------------------------------------------------------------------------------


def _unit(d: int, i: int, j: int, dtype=torch.float64) -> Tensor:
    matrix = torch.zeros(d, d, dtype=dtype)
    matrix[i, j] = 1
    return matrix


def _permutation_matrix(images: Sequence[int]) -> Tensor:
    """The matrix that sends basis vector ``j`` to basis vector ``images[j]``."""
    matrix = torch.zeros(len(images), len(images), dtype=torch.float64)
    matrix[torch.tensor(images), torch.arange(len(images))] = 1
    return matrix


def _rotations(d: int) -> list[Tensor]:
    return [_unit(d, j, i) - _unit(d, i, j) for i, j in combinations(range(d), 2)]


MAX_FINITE_SIZE, MAX_CONTINUOUS_SIZE, MAX_POLYGON_SIZE = 4096, 64, 10**6
"""Largest n for permutation groups, continuous groups (about n^2 generators) and regular polygons."""


def _check_size(name: str, n: int, minimum: int = 1, maximum: int = MAX_CONTINUOUS_SIZE) -> int:
    if not isinstance(n, Integral) or isinstance(n, bool) or not minimum <= n <= maximum:
        raise ValueError(f"{name}({n!r}): the size must be an integer of at least {minimum} and at most {maximum}")
    return n


def _group(name: str, lie: Sequence[Tensor], discrete: Sequence[Tensor], d: int) -> Group:
    """A catalogue group; if it has no generators (SO(1), S(1)), the identity becomes its only one."""
    if not len(lie) and not len(discrete):
        discrete = [torch.eye(d, dtype=torch.float64)]
    return Group(name, lie_algebra=lie, discrete_generators=discrete)


def Trivial(d: int) -> Group:
    """The group of the identity alone, on ``d`` dimensions."""
    return _group(f"Trivial({d})", [], [], _check_size("Trivial", d, maximum=MAX_FINITE_SIZE))


def Z(n: int) -> Group:
    """The cyclic group of order ``n``, as cyclic shifts of ``n`` coordinates."""
    _check_size("Z", n, maximum=MAX_FINITE_SIZE)
    return _group(f"Z({n})", [], [_permutation_matrix([(i + 1) % n for i in range(n)])], n)


def S(n: int) -> Group:
    """The symmetric group, as all permutations of ``n`` coordinates (order n!)."""
    _check_size("S", n, maximum=MAX_FINITE_SIZE)
    swap = [1, 0, *range(2, n)]
    cycle = [(i + 1) % n for i in range(n)]
    images = [] if n == 1 else [swap] if n == 2 else [swap, cycle]
    return _group(f"S({n})", [], [_permutation_matrix(image) for image in images], n)


def D(n: int) -> Group:
    """The dihedral group of order ``2n``, as the rotations and reflections of a regular polygon in the plane."""
    _check_size("D", n, maximum=MAX_POLYGON_SIZE)
    return _group(f"D({n})", [], [_plane_rotation(2 * math.pi / n), torch.diag(torch.tensor([-1.0, 1.0]).double())], 2)


def _plane_rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    rotation = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    # Quarter turns are exact, so that D(4) is a group of signed permutations.
    return torch.where((rotation - rotation.round()).abs() < 1e-15, rotation.round(), rotation)


def SO(n: int) -> Group:
    """Rotations of R^n."""
    return _group(f"SO({n})", _rotations(_check_size("SO", n)), [], n)


def O(n: int) -> Group:
    """Rotations and reflections of R^n."""
    _check_size("O", n)
    reflection = torch.eye(n, dtype=torch.float64)
    reflection[0, 0] = -1
    return _group(f"O({n})", _rotations(n), [reflection], n)


def GL(n: int) -> Group:
    """All invertible real n x n matrices: the largest family in which to search for symmetries."""
    _check_size("GL", n)
    reflection = torch.eye(n, dtype=torch.float64)
    reflection[0, 0] = -1
    return _group(f"GL({n})", [_unit(n, i, j) for i in range(n) for j in range(n)], [reflection], n)


def SL(n: int) -> Group:
    """Real matrices of determinant one: volume-preserving linear maps of R^n."""
    _check_size("SL", n)
    lie = [_unit(n, i, j) for i in range(n) for j in range(n) if i != j]
    lie += [_unit(n, i, i) - _unit(n, i + 1, i + 1) for i in range(n - 1)]
    return _group(f"SL({n})", lie, [], n)


def Sp(n: int) -> Group:
    """The real symplectic group on R^2n: linear canonical transformations of ``(q, p)``.

    With ``J = [[0, I], [-I, 0]]`` its Lie algebra is ``{A : A^T J + J A = 0}``, of dimension n(2n+1).
    """
    _check_size("Sp", n)
    d, lie = 2 * n, []
    for i in range(n):
        for j in range(n):
            lie.append(_unit(d, i, j) - _unit(d, n + j, n + i))
    for i in range(n):
        for j in range(i, n):
            upper, lower = _unit(d, i, n + j), _unit(d, n + i, j)
            if i != j:
                upper, lower = upper + _unit(d, j, n + i), lower + _unit(d, n + j, i)
            lie += [upper, lower]
    return _group(f"Sp({n})", lie, [], d)


def _special_unitary(n: int) -> list[Tensor]:
    c = torch.complex128
    lie = [1j * (_unit(n, i, i, c) - _unit(n, i + 1, i + 1, c)) for i in range(n - 1)]
    for i, j in combinations(range(n), 2):
        lie += [_unit(n, j, i, c) - _unit(n, i, j, c), 1j * (_unit(n, j, i, c) + _unit(n, i, j, c))]
    return lie


def SU(n: int) -> Group:
    """Unitary matrices of determinant one, complex, on C^n."""
    _check_size("SU", n, minimum=2)
    return _group(f"SU({n})", _special_unitary(n), [], n)


def U(n: int) -> Group:
    """Unitary matrices, complex, on C^n."""
    _check_size("U", n)
    return _group(f"U({n})", [1j * torch.eye(n, dtype=torch.complex128), *_special_unitary(n)], [], n)


def _lorentz_algebra() -> list[Tensor]:
    boosts = [_unit(4, 0, i) + _unit(4, i, 0) for i in (1, 2, 3)]
    rotations = [_unit(4, j, i) - _unit(4, i, j) for i, j in combinations((1, 2, 3), 2)]
    return boosts + rotations


_TIME_REVERSAL = (-1.0, 1.0, 1.0, 1.0)


def SO13p() -> Group:
    """The proper orthochronous Lorentz group, on ``(t, x, y, z)`` with metric diag(1, -1, -1, -1)."""
    return _group("SO13p", _lorentz_algebra(), [], 4)


def SO13() -> Group:
    """The proper Lorentz group: ``SO13p`` with the inversion of space and time."""
    return _group("SO13", _lorentz_algebra(), [-torch.eye(4, dtype=torch.float64)], 4)


def O13() -> Group:
    """The full Lorentz group: ``SO13`` with the reversal of time."""
    discrete = [-torch.eye(4, dtype=torch.float64), torch.diag(torch.tensor(_TIME_REVERSAL, dtype=torch.float64))]
    return _group("O13", _lorentz_algebra(), discrete, 4)


def SO2eR3() -> Group:
    """Rotations of R^3 about the z axis."""
    return _group("SO2eR3", [_unit(3, 1, 0) - _unit(3, 0, 1)], [], 3)


def O2eR3() -> Group:
    """Rotations of R^3 about the z axis and reflections in planes that contain it."""
    reflection = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    return _group("O2eR3", [_unit(3, 1, 0) - _unit(3, 0, 1)], [reflection], 3)


def DkeR3(k: int) -> Group:
    """The k rotations about z by multiples of 2 pi / k, and k reflections in planes through z."""
    _check_size("DkeR3", k, maximum=MAX_POLYGON_SIZE)
    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = _plane_rotation(2 * math.pi / k)
    reflection = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    return _group(f"DkeR3({k})", [], [turn, reflection], 3)


def RubiksCube(turns: str = "published") -> Group:
    """Permutations of the 48 facets of a Rubik's cube that move, generated by quarter turns of its six faces.

    Args:
        turns: ``"published"`` is the group whose T1, T2, T3 have 2, 6, 22 invariants in the literature. Its turns move
            stickers from face to face without rotating them within the face. So it is *not* the group of the puzzle but a
            far larger one, which moves the 24 corner facets and the 24 edge facets independently.
            ``"puzzle"`` is the group of the puzzle, of order 43252003274489856000, with 2, 9, 51 invariants.
    Raises:
        ValueError: another value of ``turns``.
    Source: Finzi 2023, A.1.5.3 and the code published with it.
    """
    if turns not in ("published", "puzzle"):
        raise ValueError(f"RubiksCube(turns={turns!r}): choose 'published' or 'puzzle'")
    images = _puzzle_turns() if turns == "puzzle" else _published_turns()
    return _group("RubiksCube" if turns == "published" else "RubiksCube(puzzle)", [], images, 48)


def _puzzle_turns() -> list[Tensor]:
    """The turns of the puzzle. A facet is a cubie's position and an outward normal; a turn rotates both in one layer."""
    axes = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]

    def dot(u, v):
        return sum(a * b for a, b in zip(u, v, strict=True))

    def rotate(axis, v):  # v rotated by 90 degrees about axis: (axis . v) axis + axis x v
        cross = tuple(axis[i - 2] * v[i - 1] - axis[i - 1] * v[i - 2] for i in range(3))
        return tuple(dot(axis, v) * a + c for a, c in zip(axis, cross, strict=True))

    def turn(axis, cubie, normal):  # only cubies of the layer of this face move
        return (rotate(axis, cubie), rotate(axis, normal)) if dot(cubie, axis) == 1 else (cubie, normal)

    cubies = list(product((-1, 0, 1), repeat=3))
    facets = [(c, n) for n in axes for c in cubies if dot(c, n) == 1 and c != n]  # c = n is the centre of a face
    return [_permutation_matrix([facets.index(turn(axis, *facet)) for facet in facets]) for axis in axes]


def _published_turns() -> list[Tensor]:
    """The published turns. Facets are ``8 * face + place``, places row by row without the centre.

    Faces are Up, Front, Right, Back, Left, Down. Other faces turn as Up does, with the faces renamed and the places unchanged:
    their turn is R U R^-1 for the renaming R and Up's turn U.
    """
    up = list(range(48))
    for place, target in enumerate([5, 3, 0, 6, 1, 7, 4, 2]):  # a quarter turn of the face itself
        up[place] = target
    for face, next_face in zip((1, 2, 3, 4), (2, 3, 4, 1), strict=True):  # the top rows of the faces around it
        for place in (0, 1, 2):
            up[8 * face + place] = 8 * next_face + place
    renamings = [  # the new name of each face; the first entry is the face that turns
        (0, 1, 2, 3, 4, 5), (1, 5, 2, 0, 4, 3), (2, 1, 5, 3, 0, 4), (3, 0, 2, 5, 4, 1), (4, 1, 0, 3, 5, 2),
        (5, 3, 2, 1, 4, 0),
    ]  # fmt: skip
    turns, U = [], _permutation_matrix(up)
    for renaming in renamings:
        R = _permutation_matrix([8 * renaming[i // 8] + i % 8 for i in range(48)])
        turns.append(R @ U @ R.mT)
    return turns


def check_acts_on(group: Group, d: int, owner: str, example: Group) -> None:
    """Refuse a group that does not act on R^d.

    Args:
        owner: whose vectors are in R^d, for the message.
        example: a group that acts on R^d, for the message.
    Raises:
        ValueError: the group acts on another space.
    """
    if group.d != d or group.is_complex:
        field = "C" if group.is_complex else "R"
        raise ValueError(
            f"group={group}: acts on {field}^{group.d}, and {owner}'s vectors are in R^{d}; "
            f"use a group of real {d} x {d} matrices, such as {example}"
        )


# With a default device of a GPU, all groups of the catalogue are still built on the CPU.
globals().update(
    {name: _on_cpu(make) for name, make in globals().items() if name in __all__ and isinstance(make, FunctionType)}
)
