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
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Kronecker", "of_gradients", "of_linear"]


class Kronecker(NamedTuple):
    r"""The curvature :math:`A \otimes G` of a matrix of coefficients; leading axes are of independent blocks.

    Attributes:
        A: of inputs, a sum over the data (whoever has seen all of them divides by their number).
        G: of gradients, a sum over the data and the factors of the loss's Hessian.
        copies: how many matrices of coefficients have this curvature each.
    """

    A: Float[Tensor, "*blocks n n"]
    G: Float[Tensor, "*blocks m m"]
    copies: int = 1


def of_linear(x: Float[Tensor, "N *places n"], g: Float[Tensor, "S N *places m"]) -> Kronecker:
    """Of a weight ``(m, n)`` that is used at several places of each of N data, from S gradients of each."""
    places = math.prod(x.shape[1:-1])
    x, g = x.reshape(-1, x.shape[-1]).double(), g.reshape(-1, g.shape[-1]).double()
    return Kronecker(x.mT @ x, g.mT @ g / places)


def of_gradients(M: Float[Tensor, "*blocks K m n"]) -> Kronecker:
    """Of a weight ``(m, n)``, from its K gradients; to be divided by the trace of A when all of them have been added."""
    M = M.double()
    return Kronecker(torch.einsum("...kmn,...kmp->...np", M, M), torch.einsum("...kmn,...kpn->...mp", M, M))
