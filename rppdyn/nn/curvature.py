r"""Kronecker-factored curvature of a pathway's coefficients, for the Laplace approximation.

The loss of a linear map :math:`y = W x` has the generalised Gauss-Newton matrix
:math:`\sum_{n,s} (x_n \otimes g_{ns})(x_n \otimes g_{ns})^T`, :math:`g_{ns}` being gradients of square-root factors of its
Hessian by :math:`y_n`. It is approximated by :math:`A \otimes G` with :math:`A = \frac1N \sum_n x_n x_n^T` and
:math:`G = \sum_{n,s} g_{ns} g_{ns}^T` (Martens & Grosse 2015). Of a weight that is used at P places (pixels, copies of an
irreducible representation) A is a sum over places and G a mean over them (Grosse & Martens 2016).

Where a weight enters in other ways too, as a Hamiltonian network's enters its vector field, there are its gradients
:math:`M_{ns}` for each datum: of :math:`\sum_{n,s} \mathrm{vec}(M_{ns}) \mathrm{vec}(M_{ns})^T` the product
:math:`\sum M^T M \otimes \sum M M^T / \sum |M|^2` has the same partial traces (Ren & Goldfarb 2021); for a linear map with
normal noise it is the one above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Root:
    r"""A matrix :math:`R^T R` that is kept as R, since it has few rows beside its columns; leading axes are of blocks.

    A layer of thousands of inputs is seen with hundreds of data: neither its matrix, in time :math:`k n^2`, nor its
    eigenvalues, in :math:`n^3`, need be computed to know those that are not zero. Sums and multiples are as of matrices.
    """

    rows: Float[Tensor, "*blocks k n"]

    def matrix(self) -> Float[Tensor, "*blocks n n"]:
        """:math:`R^T R`."""
        return (self.rows.mT @ self.rows).double()

    def eigenvalues(self) -> Float[Tensor, "*blocks k"]:
        """All that are not zero, and perhaps some that are, in float64 on the CPU."""
        rows = self.rows.double().cpu()
        return torch.linalg.eigvalsh(rows @ rows.mT)

    def isfinite(self) -> Tensor:
        return self.rows.isfinite()

    def __add__(self, other: Factor) -> Factor:
        return gram(torch.cat([self.rows, other.rows], -2)) if isinstance(other, Root) else self.matrix() + other

    def __radd__(self, other: Tensor) -> Tensor:
        return other + self.matrix()

    def __mul__(self, scale: int | float) -> Root:
        return Root(self.rows * math.sqrt(scale))

    def __truediv__(self, scale: int | float) -> Root:
        return Root(self.rows / math.sqrt(scale))


Factor = Tensor | Root
"""A positive semi-definite matrix, float64, or a root of it."""


def gram(rows: Float[Tensor, "*blocks k n"]) -> Factor:
    """The sum of outer products of rows, as their :class:`Root` where there are at most half as many as columns."""
    root = Root(rows)
    return root if 2 * rows.shape[-2] <= rows.shape[-1] else root.matrix()


class Kronecker(NamedTuple):
    r"""The curvature :math:`A \otimes G` of a matrix of coefficients; leading axes are of independent blocks.

    Attributes:
        A: factor of inputs, ``(*blocks, n, n)``, a sum over the data (whoever has seen all of them divides by their number).
        G: factor of gradients, ``(*blocks, m, m)``, a sum over the data and the factors of the loss's Hessian.
        copies: how many matrices of coefficients have this curvature each.
    """

    A: Factor
    G: Factor
    copies: int = 1

    def eigenvalues(self) -> tuple[Float[Tensor, " eigenvalues"], int]:
        """Those of the curvature that are not zero, and perhaps some that are, none negative; and how many there are."""
        (a, n), (g, m) = (_eigenvalues(factor) for factor in (self.A, self.G))
        eigenvalues = (a.unsqueeze(-1) * g.unsqueeze(-2)).flatten().repeat(self.copies)
        return eigenvalues, math.prod(a.shape[:-1]) * n * m * self.copies


def _eigenvalues(factor: Factor) -> tuple[Float[Tensor, "*blocks k"], int]:
    """Eigenvalues of each block of a factor, and its number of rows and columns."""
    if isinstance(factor, Root):
        return factor.eigenvalues().clamp_min(0), factor.rows.shape[-1]
    return torch.linalg.eigvalsh(factor.double().cpu()).clamp_min(0), factor.shape[-1]


def of_linear(x: Float[Tensor, "N *places n"], g: Float[Tensor, "S N *places m"]) -> Kronecker:
    """Curvature of a weight ``(m, n)`` that is used at several places of each of N data, from S gradients of each."""
    places = math.prod(x.shape[1:-1])
    x, g = (rows.reshape(-1, rows.shape[-1]).double() for rows in (x, g))
    return Kronecker(gram(x), gram(g) / places)


def of_gradients(M: Float[Tensor, "*blocks K m n"]) -> Kronecker:
    """Curvature of a weight ``(m, n)``, from its K gradients; the sum over all is to be divided by the trace of A."""
    M = M.double()
    return Kronecker(torch.einsum("...kmn,...kmp->...np", M, M), torch.einsum("...kmn,...kpn->...mp", M, M))
