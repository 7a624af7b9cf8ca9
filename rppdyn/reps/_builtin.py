"""Elementary representations, duals, absolute values, lifts, sums and products; and types not yet bound to a group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from rppdyn.groups import Group
from rppdyn.reps._rep import Algebra, Rep, check_factors, check_multiplicity, is_int


class ScalarRep(Rep):
    """The trivial representation on one dimension."""

    def __init__(self, G: Group):
        self._set(G=G, dim=1)

    def rho(self, g):
        return torch.ones_like(g[..., :1, :1])

    def drho(self, A):
        return torch.zeros_like(A[..., :1, :1])

    def _content(self):
        return ()

    def _rebind(self, G):
        return ScalarRep(G)

    def _lift(self, G, slot):
        return ScalarRep(G)

    def _expand(self):
        return [((), torch.zeros(1, 1, dtype=torch.int64))]

    @property
    def T(self):
        return self

    def __repr__(self):
        return "T0"


class PseudoscalarRep(Rep):
    """One dimension on which an element acts by the sign of its determinant (its phase for a complex group)."""

    def __init__(self, G: Group):
        self._set(G=G, dim=1)

    def rho(self, g):
        return torch.sgn(torch.linalg.det(g))[..., None, None]

    def drho(self, A):
        trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return 1j * trace.imag if A.is_complex() else torch.zeros_like(trace)

    def _content(self):
        return ()

    def _rebind(self, G):
        return PseudoscalarRep(G)

    @property
    def T(self):
        return DualRep(self) if self.G.is_complex else self

    def __repr__(self):
        return "P"


class VectorRep(Rep):
    """The defining representation: an element acts by its own matrix."""

    def __init__(self, G: Group):
        self._set(G=G, dim=G.d)

    def rho(self, g):
        return g

    def drho(self, A):
        return A

    def _content(self):
        return ()

    def _rebind(self, G):
        return VectorRep(G)

    @property
    def T(self):
        return self if self.G.is_orthogonal and not self.G.is_complex else DualRep(self)

    def __repr__(self):
        return "T1"


class DualRep(Rep):
    """The dual of a leaf, ``rho(g)^-T``."""

    of: Rep

    def __init__(self, of: Rep):
        self._set(G=of.G, dim=of.dim, of=of)

    def rho(self, g):
        return torch.linalg.inv(self.of.rho(g)).mT

    def drho(self, A):
        return -self.of.drho(A).mT

    def _content(self):
        return (self.of,)

    def _rebind(self, G):
        return self.of._rebind(G).T

    def _lift(self, G, slot):
        return self.of._lift(G, slot).T

    @property
    def T(self):
        return self.of

    def __repr__(self):
        return f"{self.of}*"


class AbsRep(Rep):
    """``|rho|`` of a signed-permutation leaf."""

    of: Rep

    def __init__(self, of: Rep):
        self._set(G=of.G, dim=of.dim, of=of)

    def rho(self, g):
        return self.of.rho(g).abs()

    def drho(self, A):
        return torch.zeros_like(self.of.drho(A))

    def _content(self):
        return (self.of,)

    def _rebind(self, G):
        return abs(self.of._rebind(G))

    def _lift(self, G, slot):
        return abs(self.of._lift(G, slot))

    @property
    def T(self):
        return self

    def __repr__(self):
        return f"|{self.of}|"


class LiftedRep(Rep):
    """A leaf of factors of a direct product, acting through their diagonal block, the rows and columns ``slot``."""

    of: Rep
    slot: tuple[int, ...]

    def __init__(self, of: Rep, G: Group, slot: tuple[int, ...]):
        self._set(G=G, dim=of.dim, of=of, slot=slot)

    def _restrict(self, g: Tensor) -> Tensor:
        slot = torch.tensor(self.slot, device=g.device)
        g = g[..., slot[:, None], slot]
        # A real factor of a product that is complex through another factor still acts by real matrices.
        return g.real if g.is_complex() and not self.of.G.is_complex else g

    def rho(self, g):
        return self.of.rho(self._restrict(g)).to(g.dtype)

    def drho(self, A):
        return self.of.drho(self._restrict(A)).to(A.dtype)

    def _content(self):
        return self.of, self.slot

    def _rebind(self, G):
        return Rep.from_generators(G, self.drho(G.lie_algebra), self.rho(G.discrete_generators), repr(self))

    def _lift(self, G, slot):
        return LiftedRep(self.of, G, tuple(slot[i] for i in self.slot))

    @property
    def T(self):
        dual = self.of.T
        return self if dual == self.of else LiftedRep(dual, self.G, self.slot)

    def __repr__(self):
        return f"{self.of}[{self.of.G}]"


# -- direct sums and tensor products -------------------------------------------------------------------------------------------


MAX_TERMS = 2**20
"""Largest number of terms of a direct sum, copies of one part counted once."""


def direct_sum(G: Group, terms: Iterable[tuple[Rep, int]]) -> Rep:
    """The direct sum of representations with multiplicities, in its simplest form with the same layout."""
    terms = list(terms)
    if (count := sum(len(rep.terms) * (n if len(rep.terms) > 1 else 1) for rep, n in terms)) > MAX_TERMS:
        raise ValueError(
            f"a direct sum of {count} terms is more than {MAX_TERMS}: use fewer copies, or write each part's together"
        )
    merged: list[tuple[Rep, int]] = []
    for rep, n in terms:
        # n copies of one leaf stay one term; n copies of a sum repeat its terms, because the layout does.
        inner = [(r, m * n) for r, m in rep.terms] if len(rep.terms) == 1 else list(rep.terms) * n
        for r, m in inner:
            if merged and merged[-1][0] == r:
                merged[-1] = (r, merged[-1][1] + m)
            elif m:
                merged.append((r, m))
    return merged[0][0] if len(merged) == 1 and merged[0][1] == 1 else SumRep(G, tuple(merged))


class SumRep(Rep):
    """A direct sum, with its terms in the order of the expression."""

    _terms: tuple[tuple[Rep, int], ...]

    def __init__(self, G: Group, terms: tuple[tuple[Rep, int], ...]):
        self._set(G=G, dim=sum(r.dim * n for r, n in terms), _terms=terms)

    @property
    def terms(self):
        return self._terms

    def _block_diagonal(self, x: Tensor, blocks: list[Tensor]) -> Tensor:
        result = x.new_zeros(*x.shape[:-2], self.dim, self.dim)
        start = 0
        for (rep, n), block in zip(self._terms, blocks, strict=True):
            index = start + torch.arange(n * rep.dim, device=x.device).reshape(n, rep.dim)
            result[..., index[:, :, None], index[:, None, :]] = block[..., None, :, :]
            start += n * rep.dim
        return result

    def rho(self, g):
        return self._block_diagonal(g, [rep.rho(g) for rep, _ in self._terms])

    def drho(self, A):
        return self._block_diagonal(A, [rep.drho(A) for rep, _ in self._terms])

    def _content(self):
        return self._terms

    def _rebind(self, G):
        return direct_sum(G, [(rep._rebind(G), n) for rep, n in self._terms])

    def _lift(self, G, slot):
        return direct_sum(G, [(rep._lift(G, slot), n) for rep, n in self._terms])

    def _abs(self):
        return direct_sum(self.G, [(abs(rep), n) for rep, n in self._terms])

    def _leaves(self):
        return (leaf for rep, _ in self._terms for leaf in rep._leaves())

    def _expand(self):
        parts, start = [], 0
        for rep, n in self._terms:
            copies = start + rep.dim * torch.arange(n)[:, None, None]
            parts += [(factors, (copies + index).reshape(-1, index.shape[1])) for factors, index in rep._expand()]
            start += rep.dim * n
        return parts

    @property
    def T(self):
        return direct_sum(self.G, [(rep.T, n) for rep, n in self._terms])

    def __repr__(self):
        names = [f"{n}*{rep}" if n != 1 else f"{rep}" for rep, n in self._terms]
        if len(names) > 40:  # products of sums have hundreds
            names = [*names[:6], "...", *names[-2:]]
        return " + ".join(names) or "0"


def tensor_product(G: Group, factors: Iterable[Rep]) -> Rep:
    """The tensor product, in its simplest form with the same layout.

    Products are flattened, trivial one-dimensional factors dropped, and a product whose first factor is a sum becomes a sum of
    products; ``a * (b + c)`` stays a product, because its coordinates interleave those of b and c.
    """
    flat = [leaf for rep in factors for leaf in rep.factors if not isinstance(leaf, ScalarRep)]
    check_factors(len(flat), "a tensor product")
    if len(flat) > 1 and isinstance(flat[0], SumRep):
        return direct_sum(G, [(tensor_product(G, [rep, *flat[1:]]), n) for rep, n in flat[0].terms])
    return ScalarRep(G) if not flat else flat[0] if len(flat) == 1 else ProductRep(G, tuple(flat))


class ProductRep(Rep):
    """A tensor product, coordinates in row-major order of the factors' coordinates."""

    _factors: tuple[Rep, ...]

    def __init__(self, G: Group, factors: tuple[Rep, ...]):
        self._set(G=G, dim=math.prod(r.dim for r in factors), _factors=factors)

    @property
    def factors(self):
        return self._factors

    def rho(self, g):
        return reduce(_kron, [rep.rho(g) for rep in self._factors])

    def drho(self, A):
        images = [rep.drho(A) for rep in self._factors]

        def kron_sum(a: Tensor, b: Tensor) -> Tensor:
            eye_a, eye_b = (torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) for x in (a, b))
            return _kron(a, eye_b) + _kron(eye_a, b)

        return reduce(kron_sum, images)

    def _content(self):
        return self._factors

    def _rebind(self, G):
        return tensor_product(G, [rep._rebind(G) for rep in self._factors])

    def _lift(self, G, slot):
        return tensor_product(G, [rep._lift(G, slot) for rep in self._factors])

    def _abs(self):
        return tensor_product(self.G, [abs(rep) for rep in self._factors])

    def _leaves(self):
        return (leaf for rep in self._factors for leaf in rep._leaves())

    def _expand(self) -> list[tuple[tuple[Rep, ...], Tensor]]:
        parts: list[tuple[tuple[Rep, ...], Tensor]] = [((), torch.zeros(1, 1, dtype=torch.int64))]
        for rep in self._factors:
            parts = [
                (
                    factors + inner_factors,
                    (index[:, None, :, None] * rep.dim + inner[None, :, None, :]).reshape(len(index) * len(inner), -1),
                )
                for factors, index in parts
                for inner_factors, inner in rep._expand()
            ]
        return parts

    @property
    def T(self):
        return tensor_product(self.G, [rep.T for rep in self._factors])

    def __repr__(self):
        if all(isinstance(r, VectorRep) for r in self._factors):
            return f"T{len(self._factors)}"
        names = [f"({r})" if isinstance(r, SumRep) else repr(r) for r in self._factors]
        return "*".join(names)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    product = torch.einsum("...ij,...kl->...ikjl", a, b)
    return product.reshape(*product.shape[:-4], a.shape[-2] * b.shape[-2], a.shape[-1] * b.shape[-1])


@dataclass(frozen=True)
class RepType(Algebra):
    """An expression in ``V``, ``Scalar``, ``Pseudoscalar`` and ``T(p, q)`` that is not yet bound to a group."""

    operation: str
    arguments: tuple = ()

    def __call__(self, G: Group) -> Rep:
        """The representation of ``G`` that this expression describes."""
        if not isinstance(G, Group):
            raise ValueError(f"{self} is called with a group, such as {self}(SO(3)); got {G!r}")
        match self.operation, self.arguments:
            case "tensor", (p, q):
                vector = VectorRep(G)
                return tensor_product(G, [vector] * p + [vector.T] * q)
            case "pseudoscalar", ():
                return PseudoscalarRep(G)
            case "sum", terms:
                return direct_sum(G, [(rep(G), n) for rep, n in terms])
            case "product", factors:
                return tensor_product(G, [rep(G) for rep in factors])
            case "dual", (rep,):
                return rep(G).T
            case "abs", (rep,):
                return abs(rep(G))
        raise AssertionError(self.operation)

    @property
    def T(self) -> RepType:
        return RepType("dual", (self,))

    if TYPE_CHECKING:  # types of the operators of `Algebra`

        @overload
        def __add__(self, other: RepType) -> RepType: ...

        @overload
        def __add__(self, other: Rep) -> Rep: ...

        def __add__(self, other): ...

        @overload
        def __mul__(self, other: RepType | int) -> RepType: ...

        @overload
        def __mul__(self, other: Rep) -> Rep: ...

        def __mul__(self, other): ...

        def __rmul__(self, other: int) -> RepType: ...

        def __pow__(self, n: int) -> RepType: ...

        @overload
        def __rshift__(self, other: RepType) -> RepType: ...

        @overload
        def __rshift__(self, other: Rep) -> Rep: ...

        def __rshift__(self, other): ...

    def __abs__(self) -> RepType:
        return RepType("abs", (self,))

    def _sum(self, other, swap):
        if isinstance(other, Rep):
            return self(other.G)._sum(other, swap)
        if not isinstance(other, RepType):
            return NotImplemented
        first, second = (other, self) if swap else (self, other)
        return RepType("sum", ((first, 1), (second, 1)))

    def _product(self, other, swap):
        if isinstance(other, Rep):
            return self(other.G)._product(other, swap)
        if not isinstance(other, RepType):
            return NotImplemented
        return RepType("product", (other, self) if swap else (self, other))

    def _multiple(self, n):
        return RepType("sum", ((self, check_multiplicity(n, self)),))

    def _one(self):
        return Scalar

    def __repr__(self) -> str:
        match self.operation, self.arguments:
            case "tensor", (p, q):
                return f"T({p},{q})" if q else "V" if p == 1 else f"T({p})" if p else "Scalar"
            case "sum", terms:
                return "(" + " + ".join(f"{n}*{rep}" if n != 1 else f"{rep}" for rep, n in terms) + ")"
            case "product", factors:
                return "*".join(map(repr, factors))
            case "dual", (rep,):
                return f"{rep}.T"
            case "abs", (rep,):
                return f"abs({rep})"
        return "Pseudoscalar"


def T(p: int, q: int = 0) -> RepType:
    """Tensors of rank (p, q): p factors V and q factors V*; for orthogonal groups V* is V."""
    if not (is_int(p) and is_int(q)) or p < 0 or q < 0:
        raise ValueError(f"T({p!r}, {q!r}): both ranks must be non-negative integers")
    check_factors(p + q, f"T({p}, {q})")
    return RepType("tensor", (p, q))


V = T(1)
Scalar = T(0)
Pseudoscalar = RepType("pseudoscalar")
