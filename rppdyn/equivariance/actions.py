"""Action of a symmetry on a space: a representation on vectors, or a flow on anything else (images, above all)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Inexact
from torch import Tensor

from rppdyn.reps import Rep, RepType


class Flow(ABC):
    """A one-parameter group of transformations of a space: ``flow(x, t)`` with ``flow(x, 0) = x``, inverse ``flow(x, -t)``.

    It must be differentiable in ``t`` at 0. Where interpolation makes ``flow(., -t)`` an inverse only approximately, its
    derivative at 0 still is minus that of ``flow(., t)``, which is all that Lie derivatives need.
    """

    name: str

    @abstractmethod
    def __call__(self, x: Inexact[Tensor, "..."], t: Tensor | float) -> Inexact[Tensor, "..."]:
        """The image of a batch ``x`` after time ``t``, a number."""

    def field(self, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """The velocity at ``x``: the derivative of ``flow(x, t)`` at t = 0."""
        zero = torch.zeros((), dtype=torch.float64, device=x.device)
        return torch.func.jvp(lambda t: self(x, t), (zero,), (torch.ones_like(zero),))[1]


@dataclass(frozen=True)
class TrivialFlow(Flow):
    """Nothing moves, while something else does: the action on a vector that should be invariant."""

    name: str

    def __call__(self, x: Inexact[Tensor, "..."], t: Tensor | float) -> Inexact[Tensor, "..."]:
        return x


Action = Rep | Flow
"""A representation acts by one matrix per group element, a flow by one function of time."""


def act(action: Action, g: Tensor | float, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
    """The image of ``x`` under ``g``: an element ``(d, d)`` or one per input ``(batch, d, d)``; a time for a flow.

    Raises:
        ValueError: complex matrices would act on real vectors.
    """
    if isinstance(action, Flow):
        return action(x, g)
    rho = _for(x, action.rho(torch.as_tensor(g, dtype=action.G.dtype)), action)
    if x.ndim > 1 and rho.numel() == rho.shape[-1] ** 2:  # one element for all inputs: one product of matrices
        return x @ rho.reshape(rho.shape[-2:]).mT
    return (rho @ x[..., None])[..., 0]


def inverse(g: Tensor | float) -> Tensor | float:
    """The inverse of a group element, or of a time."""
    return torch.linalg.inv(g) if isinstance(g, Tensor) and g.ndim >= 2 else -g


def tangents(action: Action, x: Inexact[Tensor, "..."]) -> list[Tensor]:
    """The velocity of ``x`` along each generator of the Lie algebra; a flow has one."""
    if isinstance(action, Flow):
        return [action.field(x)]
    return [x @ A.mT for A in _for(x, action.lie_generators, action)]


def _for(x: Tensor, matrices: Tensor, rep: Rep) -> Tensor:
    """Matrices of a representation where ``x`` is, in its dtype.

    Raises:
        ValueError: they are complex and ``x`` is real, where half of what they do would be lost.
    """
    if matrices.is_complex() and not x.is_complex():
        if bool((matrices.imag.abs() > 1e-9 * matrices.abs().max()).any()):
            raise ValueError(f"{rep} of {rep.G} acts by complex matrices, and the vectors are real: give complex ones")
        matrices = matrices.real
    return matrices.to(x)


def generator_names(action: Action, kind: str = "lie") -> tuple[str, ...]:
    """``A0, A1, ...`` for the Lie algebra (a flow's own name), ``h0, h1, ...`` for the discrete generators."""
    if isinstance(action, Flow):
        return (action.name,) if kind == "lie" else ()
    letter, count = ("A", len(action.G.lie_algebra)) if kind == "lie" else ("h", len(action.G.discrete_generators))
    return tuple(f"{letter}{i}" for i in range(count))


def check_actions(action_in: Action, action_out: Action, x: Tensor) -> None:
    """Refuse actions of different symmetries, and inputs that the first does not act on."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"x is of type {kind}: give a tensor of floating-point numbers, as torch.as_tensor(x).double()"
        )
    for action in (action_in, action_out):
        if isinstance(action, RepType):
            raise ValueError(f"{action} is not bound to a group: call it with one, as {action}(G)")
    if isinstance(action_in, Rep) and isinstance(action_out, Rep):
        if action_in.G != action_out.G:
            raise ValueError(
                f"rep_in belongs to {action_in.G} and rep_out to {action_out.G}: lift or restrict one of them first"
            )
    elif len(generator_names(action_in)) != len(generator_names(action_out)):
        raise ValueError(
            f"{_describe(action_in)} and {_describe(action_out)} have different numbers of continuous generators: "
            "give the same symmetry on both sides"
        )
    if isinstance(action_in, Rep) and x.shape[-1] != action_in.dim:
        raise ValueError(f"x has {x.shape[-1]} components and rep_in ({action_in}) has {action_in.dim}")


def check_finite(y: Tensor, what: str) -> None:
    """Refuse values that are not finite: every mean would silently be nan, or leave them out."""
    if not torch.isfinite(y).all():
        raise ValueError(f"{what} has entries that are not finite, so it has no equivariance error: check the inputs")


def _describe(action: Action) -> str:
    return f"the flow {action.name}" if isinstance(action, Flow) else f"{action} of {action.G}"
