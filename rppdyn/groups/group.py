"""A matrix group: generators, elements, samples, products, identity by content."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

MAX_ORDER = 64
"""Finite groups up to this order are enumerated (``Group.order``, ``Group.elements``, the regular representation)."""

MAX_FACTORS = 32
MAX_NUMBERS = 2**27
"""Of a direct product: its factors, and the entries of its generators."""

Matrices = Tensor | np.ndarray | Sequence[Any]
"""Square matrices ``(n, d, d)``: an array, or a sequence of arrays or of rows of numbers."""

_TOLERANCE = 1e-9
_WORD_LENGTH = 64


class Group:
    r"""A matrix group acting on :math:`\mathbb{R}^d` or :math:`\mathbb{C}^d`.

    Args:
        name: for printing only; two groups with the same generators are equal whatever their names.
        lie_algebra: ``(D, d, d)`` basis of the Lie algebra, if there is a continuous part.
        discrete_generators: ``(M, d, d)`` invertible matrices, if there is a discrete part.
    Raises:
        ValueError: neither part is given, a shape is wrong, an entry is not finite, or a discrete generator is singular.

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
        given = [part for part in (lie, discrete) if part is not None]
        if not given:
            raise ValueError(
                f"group {name!r} has no generators: pass lie_algebra or discrete_generators, or use Trivial(d)"
            )
        if lie is not None and discrete is not None and lie.shape[-1] != discrete.shape[-1]:
            raise ValueError(
                f"group {name!r}: lie_algebra acts on {lie.shape[-1]} dimensions, "
                f"discrete_generators on {discrete.shape[-1]}; give both the same size"
            )
        none = given[0][:0]
        self._set(name, none if lie is None else lie, none if discrete is None else discrete, factors=None)

    def _set(self, name: str, lie: Tensor, discrete: Tensor, factors: tuple[Group, ...] | None) -> None:
        dtype = torch.promote_types(lie.dtype, discrete.dtype)
        lie, discrete = lie.to(dtype), discrete.to(dtype)
        if len(discrete):
            # An invertible matrix may be badly scaled, so singularity is judged by the condition number.
            singular = torch.linalg.svdvals(discrete)
            bad = (singular[:, -1] <= 1e-12 * singular[:, 0]).nonzero().flatten().tolist()
            if bad:
                raise ValueError(f"group {name!r}: discrete_generators[{bad[0]}] is singular; group elements invert")
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

    @property
    def digest(self) -> bytes:
        """SHA-256 of the generators' shapes, types and bytes: the group's identity."""
        return self._digest

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
        """Spectral norms of the Lie generators in coordinates that are balanced for each, and 1 of a zero.

        How long generators are given and in which units coordinates are does not matter to what is divided by them. They are
        1 for every group of the catalogue.
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
        """Whether every element is orthogonal (unitary for a complex group)."""
        eye = torch.eye(self.d, dtype=self.dtype)
        unit = self.unit_lie_algebra
        return _is_zero(unit + unit.mH) and _is_zero(self._discrete @ self._discrete.mH - eye)

    @property
    def is_signed_permutation(self) -> bool:
        """Whether every element permutes the coordinate axes up to sign."""
        return len(self._lie) == 0 and is_signed_permutation(self._discrete)

    @property
    def is_permutation(self) -> bool:
        """Whether every element permutes the coordinates."""
        return self.is_signed_permutation and bool((self._discrete.real >= 0).all())

    @property
    def order(self) -> int | None:
        """Number of elements of a finite group with at most ``MAX_ORDER`` of them, otherwise ``None``."""
        elements = self._enumerate()
        return None if elements is None else len(elements)

    def elements(self) -> Inexact[Tensor, "order d d"]:
        """All elements of a finite group, the identity first.

        Raises:
            ValueError: the group is infinite or has more than ``MAX_ORDER`` elements.
        """
        elements = self._enumerate()
        if elements is None:
            raise ValueError(f"{self.name} is infinite or has more than {MAX_ORDER} elements; use samples(n) instead")
        return elements.clone()

    def _enumerate(self) -> Tensor | None:
        if len(self._lie) or ((torch.linalg.det(self._discrete).abs() - 1).abs() > 1e-4).any():
            return None  # powers of a contraction would come too near to each other to be told apart
        elements = self._elements
        if elements is None:
            elements = _closure(self._discrete, self.d)
            object.__setattr__(self, "_elements", elements)
        return elements if len(elements) else None

    def samples(self, n: int, generator: torch.Generator | None = None) -> Inexact[Tensor, "n d d"]:
        r"""``n`` random elements, ``(n, d, d)``.

        Uniform for a finite group of order at most ``MAX_ORDER``. Otherwise the product of
        :math:`\exp(\sum_i a_i A_i)`, :math:`a_i \sim N(0, s^2)`, with a random word of 64 letters in the discrete
        generators and the identity, where :math:`A_i` is ``unit_lie_algebra``;
        :math:`s = 1` for a compact group and :math:`1/\sqrt{D}` otherwise, which keeps
        boosts and shears well conditioned. Not the Haar measure, and of some groups not all
        elements are reached: -diag(2, 1/2) of SL(2) is no exponential of a real matrix.
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
            # Words grow without bound where the discrete part is not compact (a scaling, say), so keep those short.
            length = _WORD_LENGTH if _is_zero(letters @ letters.mH - letters[0]) else 4
            for letter in torch.randint(len(letters), (length, n), generator=generator):
                g = g @ letters[letter]
        return g.contiguous()

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
        if len(factors) > MAX_FACTORS or size > MAX_NUMBERS:
            raise ValueError(
                f"a product of {len(factors)} groups, with {size} numbers in its generators, is more than {MAX_FACTORS} "
                f"groups or {MAX_NUMBERS} numbers: use fewer, or smaller ones"
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
        product = Group.__new__(Group)
        product._set(" x ".join(f.name for f in factors), torch.cat(lie), torch.cat(discrete), factors)
        return product


def _rebuild(name, lie, discrete, factors) -> Group:
    group = Group.__new__(Group)
    group._set(name, torch.tensor(lie), torch.tensor(discrete), factors)
    return group


def as_tensor(value: Any) -> Tensor:
    """A tensor of anything array-like; unlike ``torch.as_tensor``, lists of Python numbers keep double precision."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def as_matrices(value: Matrices | None, what: str) -> Tensor | None:
    """``(n, d, d)`` float64 or complex128 copy of ``value``; ``None`` where it is ``None`` or empty."""
    if value is None:
        return None
    try:
        each = [as_tensor(v).detach().cpu() for v in value]
    except (TypeError, ValueError):
        raise ValueError(f"{what} is no sequence of matrices of numbers; give them stacked as (n, d, d)") from None
    if not each:
        return None
    shapes = list(dict.fromkeys(tuple(v.shape) for v in each))
    if len(shapes) > 1:
        raise ValueError(f"{what} has matrices of shapes {shapes[0]} and {shapes[1]}; give all of them one size")
    matrices = torch.stack(each)
    matrices = matrices.to(torch.complex128 if matrices.is_complex() else torch.float64, copy=True)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or matrices.shape[1] == 0:
        raise ValueError(f"{what} has shape {tuple(matrices.shape)}; give square matrices stacked as (n, d, d)")
    if not torch.isfinite(torch.view_as_real(matrices) if matrices.is_complex() else matrices).all():
        raise ValueError(f"{what} holds an entry that is not finite")
    return matrices.contiguous()


def _is_zero(x: Tensor) -> bool:
    return x.numel() == 0 or bool(x.abs().max() < _TOLERANCE)


def is_signed_permutation(matrices: Inexact[Tensor, "*batch d d"]) -> bool:
    """Whether each matrix has one entry of 1 or -1 in every row and column and zeros elsewhere, exactly."""
    size = matrices.abs()
    binary = bool(((size == 0) | (size == 1)).all()) and not (matrices.is_complex() and matrices.imag.any())
    return binary and bool((size.sum(-1) == 1).all()) and bool((size.sum(-2) == 1).all())


def _closure(generators: Tensor, d: int) -> Tensor:
    """The elements generated, the identity first, by breadth-first search; empty where there are too many."""
    elements = torch.eye(d, dtype=generators.dtype)[None]
    frontier = elements
    while len(frontier) and len(generators):
        products = (generators[None] @ frontier[:, None]).reshape(-1, d, d)
        fresh = []
        for g in products:
            if (elements - g).abs().amax((1, 2)).min() > 1e-6:
                elements = torch.cat([elements, g[None]])
                fresh.append(g)
                if len(elements) > MAX_ORDER:
                    return elements[:0]
        frontier = torch.stack(fresh) if fresh else elements[:0]
    return elements
