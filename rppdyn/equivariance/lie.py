"""The Lie derivative of a function: its failure to be equivariant to first order, along each generator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Inexact
from torch import Tensor

from rppdyn.reps import Rep


def lie_derivative(
    f: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Inexact[Tensor, "*batch dim_in"]
) -> Inexact[Tensor, "D *batch dim_out"]:
    r"""The derivative at t = 0 of :math:`\rho_{out}(g_t)^{-1} f(\rho_{in}(g_t) x)`, :math:`g_t = \exp(t A_i)`.

    .. math:: (L_i f)(x) = Df(x)\, d\rho_{in}(A_i)\, x - d\rho_{out}(A_i)\, f(x)

    by one Jacobian-vector product (forward mode) per generator of the Lie algebra. Zero for every generator and every x
    if and only if f is equivariant to the group's identity component.

    A function whose output carries no derivative (computed in inference mode, detached, through NumPy) is differentiated
    by central differences of fourth order, to about 1e-11 in float64 and 1e-4 in float32.

    Args:
        f: maps ``(..., dim_in)`` to ``(..., dim_out)``.
        x: ``(..., dim_in)``.
    Returns:
        ``(D, ..., dim_out)``, in units of the output per unit of the generator's coefficient (a radian, say).
    Raises:
        ValueError: the representations belong to different groups, or sizes don't match.
    Source: Finzi 2023, Eq. 4.2, with the sign of the text (a pull-back by the inverse on the output).

    >>> from rppdyn.groups import SO
    >>> from rppdyn.reps import V, Scalar
    >>> G, x = SO(2), torch.tensor([[3.0, 4.0]])
    >>> lie_derivative(lambda x: x.norm(dim=-1, keepdim=True), V(G), Scalar(G), x)
    tensor([[[0.]]])
    >>> lie_derivative(lambda x: x[..., :1], V(G), Scalar(G), x)
    tensor([[[-4.]]])
    """
    check_arguments(rep_in, rep_out, x)
    derivatives = []
    for A_in, A_out in zip(rep_in.lie_generators.to(x), rep_out.lie_generators, strict=True):
        y, tangent = _derivative(f, x, x @ A_in.mT)
        derivatives.append(tangent - y @ A_out.to(y).mT)
    return torch.stack(derivatives) if derivatives else x.new_zeros(0, *x.shape[:-1], rep_out.dim)


def _derivative(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``f(x)`` and its derivative along ``v``."""
    try:
        return torch.func.jvp(
            f, (x,), (v,), strict=True
        )  # strict: a detached output raises, and is not taken for constant
    except RuntimeError:  # (or f is at fault, and raises again below)
        y, t = f(x), torch.finfo(x.dtype).eps ** 0.2
        near, far = (f(x + s * v) - f(x - s * v) for s in (t, 2 * t))
        return y, (8 * near - far) / (12 * t)


def check_arguments(rep_in: Rep, rep_out: Rep, x: Tensor) -> None:
    if rep_in.G != rep_out.G:
        raise ValueError(f"rep_in belongs to {rep_in.G} and rep_out to {rep_out.G}: lift or restrict one of them first")
    if x.shape[-1] != rep_in.dim:
        raise ValueError(f"x has {x.shape[-1]} components and rep_in ({rep_in}) has {rep_in.dim}")
