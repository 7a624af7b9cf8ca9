"""Representation types: expressions in ``V``, ``Scalar``, ``Pseudoscalar`` and ``T(p, q)`` that wait for a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from rppdyn.groups import Group
from rppdyn.reps.builtin import PseudoscalarRep, VectorRep, direct_sum, tensor_product
from rppdyn.reps.rep import Algebra, Rep, check_factors, check_multiplicity, is_int


@dataclass(frozen=True)
class RepType(Algebra):
    """An expression in ``V``, ``Scalar``, ``Pseudoscalar`` and ``T(p, q)`` that waits for a group."""

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

    if TYPE_CHECKING:  # what the operators of `Algebra` give

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
