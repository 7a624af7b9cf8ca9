"""Rollouts: from a vector field and initial states to trajectories, and what became of those that diverged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from rppdyn.dynamics.models import DynamicsModel

__all__ = ["METHODS", "Trajectories", "integrate"]

METHODS = ("dopri5", "rk4", "leapfrog")
BOUND = 1e6
"""A state whose largest coordinate reaches this has diverged: its motion is stopped there."""


@dataclass(frozen=True)
class Trajectories:
    """Solutions of an ordinary differential equation.

    Attributes:
        times: ``(T,)``.
        states: ``(*batch, T, n)``; of a trajectory that diverged, the states from then on are meaningless but finite.
        diverged_at: ``(*batch,)``, the index in ``times`` at which a trajectory was first found to have diverged; -1 for
            those that did not.
    """

    times: Float[Tensor, " T"]
    states: Float[Tensor, "*batch T n"]
    diverged_at: Int[Tensor, "*batch"]

    @property
    def diverged(self) -> Bool[Tensor, "*batch"]:
        """Which trajectories diverged."""
        return self.diverged_at >= 0

    def __repr__(self) -> str:
        count, last = int(self.diverged.sum()), float(self.times[-1])
        if not count:
            return f"Trajectories({tuple(self.states.shape)}, to t = {last:g})"
        first = float(self.times[int(self.diverged_at[self.diverged].min())])
        return (
            f"Trajectories({tuple(self.states.shape)}, to t = {last:g}; {count} diverged, the first by t = {first:g})"
        )


def integrate(
    model: DynamicsModel,
    z0: Float[Tensor, "*batch n"],
    times: Float[Tensor, " T"],
    *,
    method: str = "dopri5",
    step: float | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    adjoint: bool = False,
    weights: Any = None,
) -> Trajectories:
    """Solve ``dz/dt = f(z)`` from ``z0``, differentiable in the initial states and the model's parameters.

    A trajectory that leaves every bound is stopped and reported; the others go on. With an adaptive method all trajectories of
    a batch share their steps; with a fixed one they are independent, to the last bit, of their neighbours.

    Args:
        model: the vector field.
        z0: initial states.
        times: increasing, the first is that of ``z0``; in the dtype of ``z0``.
        method: ``"dopri5"`` (adaptive, torchdiffeq), ``"rk4"`` (fixed steps, order 4, torchdiffeq's 3/8 rule) or ``"leapfrog"``
            (Stoermer-Verlet: fixed steps, order 2, symplectic and time-reversible; separable Hamiltonians only).
        step: longest step of the fixed methods; each interval of ``times`` has equal steps. None: one per interval.
        rtol, atol: tolerances of the adaptive one.
        adjoint: gradients by integrating backwards, in memory that does not grow with the number of steps; not with leapfrog.
        weights: assembled before, see :class:`DynamicsModel`; not with ``adjoint``, which differentiates parameters.
    Raises:
        ValueError: an unknown method, times that do not increase, a step that is not positive, leapfrog of a model not
            declared separable.
    """
    _check(model, z0, times, method, step, adjoint, weights)
    if method == "leapfrog":
        states = _leapfrog(model, z0, times, step, weights)
    else:
        options = dict(rtol=rtol, atol=atol) if method == "dopri5" else {}
        if adjoint:
            field: Callable = lambda t, z: _bounded(model.vector_field(z), z)  # noqa: E731
            solve: Callable = lambda f, z, t: odeint_adjoint(  # noqa: E731
                f, z, t, method=method, adjoint_params=tuple(model.parameters()), **options
            )
        else:
            weights = model.assemble() if weights is None else weights
            field = lambda t, z: _bounded(model.vector_field(z, weights), z)  # noqa: E731
            solve = lambda f, z, t: odeint(f, z, t, method=method, **options)  # noqa: E731
        fine, kept = (times, slice(None)) if method == "dopri5" else _subdivided(times, step)
        states = solve(field, z0, fine)[kept]
    states = states.movedim(0, -2)
    out = _out_of_bounds(states)
    first = torch.where(out.any(-1), out.to(torch.int64).argmax(-1), -1)
    return Trajectories(times, states, first)


def _check(model, z0, times, method, step, adjoint, weights) -> None:
    if method not in METHODS:
        raise ValueError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    if times.ndim != 1 or len(times) < 2 or not bool((times.diff() > 0).all()):
        raise ValueError("times must increase and be two at least, the first that of the initial states")
    if step is not None and not (math.isfinite(step) and step > 0):
        raise ValueError(f"step={step}: must be a positive number, or None for one step per interval")
    if method == "leapfrog" and not model.separable:
        raise ValueError(
            "leapfrog needs H = V(q) + T(p): build the model with separable=True if its Hamiltonian is, or use dopri5 or rk4"
        )
    if adjoint and (method == "leapfrog" or weights is not None):
        raise ValueError("adjoint=True goes with dopri5 and rk4, and without weights=: it differentiates parameters")


def _out_of_bounds(z: Float[Tensor, "*batch n"]) -> Bool[Tensor, "*batch"]:
    return ~(z.detach().abs().amax(-1) < BOUND)  # a nan is not below either


def _bounded(field: Tensor, z: Tensor) -> Tensor:
    """The field, zero where the state has diverged: there the solver would take ever smaller steps or hand on nan."""
    stopped = _out_of_bounds(z) | ~field.detach().isfinite().all(-1)
    return torch.where(stopped.unsqueeze(-1), torch.zeros_like(field), field)


def _subdivided(times: Tensor, step: float | None) -> tuple[Tensor, Tensor]:
    """Times with equal steps of at most ``step`` in each interval, and where the given ones stand among them."""
    if step is None:
        return times, torch.arange(len(times))
    counts = [max(1, math.ceil(float(length) / step * (1 - 1e-6))) for length in times.diff()]
    pieces = [
        start + (stop - start) * torch.arange(count, dtype=times.dtype, device=times.device) / count
        for start, stop, count in zip(times[:-1], times[1:], counts, strict=True)
    ]
    return torch.cat([*pieces, times[-1:]]), torch.tensor([0, *counts]).cumsum(0)


def _leapfrog(
    model: DynamicsModel, z0: Tensor, times: Tensor, step: float | None, weights: Any
) -> Float[Tensor, "T *batch n"]:
    """Half a kick, a drift, half a kick: ``p -= h/2 V'(q); q += h T'(p); p -= h/2 V'(q)``."""
    weights = model.assemble() if weights is None else weights
    field = lambda q, p: _bounded(model.vector_field(z := torch.cat([q, p], -1), weights), z).chunk(2, -1)  # noqa: E731
    fine, kept = _subdivided(times, step)
    q, p = z0.chunk(2, -1)
    force, states = field(q, p)[1], [z0]
    for h in fine.diff():
        p = p + h / 2 * force
        q = q + h * field(q, p)[0]
        force = field(q, p)[1]
        p = p + h / 2 * force
        states.append(torch.cat([q, p], -1))
    return torch.stack(states)[kept]
