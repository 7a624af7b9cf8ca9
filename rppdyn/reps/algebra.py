"""The operators that representations share, whether bound to a group or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from numbers import Integral
from typing import TypeGuard


class Algebra(ABC):
    """The operators that bound and unbound representations share."""

    @property
    @abstractmethod
    def T(self) -> Algebra:
        """The dual."""

    @abstractmethod
    def _sum(self, other, swap: bool): ...

    @abstractmethod
    def _product(self, other, swap: bool): ...

    @abstractmethod
    def _multiple(self, n: int): ...

    @abstractmethod
    def _one(self): ...

    def __add__(self, other):
        return self._sum(other, swap=False)

    def __radd__(self, other):
        return self if is_int(other) and other == 0 else self._sum(other, swap=True)  # so that sum([...]) works

    def __mul__(self, other):
        return self._multiple(other) if is_int(other) else self._product(other, swap=False)

    def __rmul__(self, other):
        return self._multiple(other) if is_int(other) else self._product(other, swap=True)

    def __pow__(self, n):
        if not is_int(n) or n < 0:
            raise ValueError(f"{self} ** {n!r}: a tensor power is a non-negative integer")
        check_factors(n, f"{self} ** {n}")
        return reduce(lambda a, b: a * b, [self] * n) if n else self._one()

    def __rshift__(self, other):
        """``rep_in >> rep_out``: the linear maps, as ``rep_out * rep_in.T``, row-major vec(W)."""
        return other * self.T

    def __rrshift__(self, other):
        return self * other.T


MAX_FACTORS = 64
"""Of a tensor product: in two dimensions already it has more coordinates than any memory."""


def check_factors(n: int, product: str) -> None:
    """Refuse a tensor product of more factors than anything could be computed with."""
    if n > MAX_FACTORS:
        raise ValueError(f"{product}: a product of {n} factors is beyond any memory; use {MAX_FACTORS} at most")


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_multiplicity(n: int, rep) -> int:
    if n < 0:
        raise ValueError(f"{n} * {rep}: a multiplicity must not be negative")
    return n
