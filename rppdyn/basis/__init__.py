r"""Equivariant bases: solving rho(g) v = v with a certificate on every answer.

>>> from rppdyn.groups import SO
>>> from rppdyn.reps import T
>>> basis = T(4)(SO(3)).solve()
>>> basis.rank, basis.certificate.residual < 1e-10
(3, True)
"""

from __future__ import annotations

from rppdyn.basis import cache
from rppdyn.basis._basis import Basis, Block
from rppdyn.basis._isotypic import IrreducibleType, Isotypic, isotypic
from rppdyn.basis._problem import BasisCertificate, NotCertified
from rppdyn.basis._solver import solve

__all__ = [
    "Basis",
    "Block",
    "BasisCertificate",
    "IrreducibleType",
    "Isotypic",
    "NotCertified",
    "cache",
    "isotypic",
    "solve",
]
