"""Rollouts of vector fields from initial states, with a report of diverged trajectories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from rppdyn.dynamics._models import DrivenModel, DynamicsModel
from rppdyn.errors import UserError

METHODS = ("dopri5", "rk4", "leapfrog")
MAX_STEPS = 10_000
"""Largest number of the adaptive method's steps between two times."""


class IntegrationError(UserError):
    """The adaptive method finds no steps within its tolerances."""


@dataclass(frozen=True)
class Trajectories:
    """Solutions of an ordinary differential equation.

    Attributes:
        times: ``(T,)``.
        states: ``(*batch, T, n)``; after a divergence the states of a trajectory are meaningless but finite. All states of a
            diverged trajectory are constants without gradients, so that the other trajectories keep theirs.
        diverged_at: ``(*batch,)``, the first index in ``times`` at which a trajectory has diverged; -1 if it has not.
    """

    times: Float[Tensor, " T"]
    states: Float[Tensor, "*batch T n"]
    diverged_at: Int[Tensor, "*batch"]

    @property
    def diverged(self) -> Bool[Tensor, "*batch"]:
        """Mask of the trajectories that diverged."""
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
    bound: float = 1e6,
    adjoint: bool = False,
    weights: Any = None,
) -> Trajectories:
    """Solve ``dz/dt = f(z)`` from ``z0``, differentiable in the initial states and the model's parameters.

    A trajectory that reaches ``bound``, or whose field is not finite, is stopped and reported; the others go on. With an
    adaptive method all trajectories of a batch share their steps. With a fixed one they do not depend on their neighbours, but
    for the rounding of larger matrix products.

    Args:
        model: the vector field.
        z0: initial states.
        times: increasing, the first is that of ``z0``; in the dtype of ``z0``.
        method: ``"dopri5"`` (adaptive, torchdiffeq), ``"rk4"`` (fixed steps, order 4, torchdiffeq's 3/8 rule) or ``"leapfrog"``
            (Stoermer-Verlet: fixed steps, order 2, symplectic and time-reversible; separable Hamiltonians only).
        step: longest step of the fixed methods; each interval of ``times`` has equal steps. None: one per interval.
        rtol, atol: tolerances of the adaptive one; ``atol`` is in the units of states, its default for states of order one.
        bound: a state whose largest coordinate reaches this has diverged, and is stopped there; in the units of states, too.
        adjoint: whether gradients are integrated backwards, in memory that does not grow with the number of steps; not with
            leapfrog.
        weights: the result of :meth:`DynamicsModel.assemble`; not with ``adjoint``, which differentiates parameters.
    Raises:
        ValueError: an unknown method, no initial states or some that are no numbers, times that do not increase or are of
            another type, a step that is not positive, a tolerance that is negative, leapfrog of a model not declared separable.
        IntegrationError: dopri5's steps become too small or too many, for example where a trajectory goes to infinity in finite
            time.
    """
    _check(model, z0, times, method, step, rtol, atol, bound, adjoint, weights)
    if not adjoint:
        weights = model.assemble() if weights is None else weights
    options: dict[str, Any] = {}
    if method == "dopri5":
        options = dict(rtol=rtol, atol=atol, options=dict(max_num_steps=MAX_STEPS))
    elif isinstance(model, DrivenModel):
        options = dict(options=dict(perturb=True))  # both ends of a step take the step's own controls
    solve = partial(_solve, model, weights, times, method, step, adjoint, options, bound)
    states, diverged_at = solve(z0)
    lost = diverged_at >= 0
    constant = states.detach().clamp(-bound, bound)
    if states.requires_grad and bool(lost.any()):
        # A mask would leave them in the graph, where zero gradients times infinite derivatives make the gradient of the
        # weights, a sum over all trajectories, nan. So the other trajectories are solved again without them.
        states = constant if bool(lost.all()) else solve(_replace_lost(z0, lost))[0]
    return Trajectories(times, torch.where(lost[..., None, None], constant, states), diverged_at)


def _solve(model: DynamicsModel, weights: Any, times: Float[Tensor, " T"], method: str, step: float | None, adjoint: bool,
           options: dict[str, Any], bound: float, z0: Float[Tensor, "*batch n"],
           ) -> tuple[Float[Tensor, "*batch T n"], Int[Tensor, "*batch"]]:  # fmt: skip
    """States, and where they diverged."""
    field = _Guarded(model, weights, bound, retries=method == "dopri5")
    fine, at_times = (times, slice(None)) if method == "dopri5" else _subdivide(times, step)
    if method == "leapfrog":
        states = _leapfrog(field, z0, fine)[at_times]
    else:
        solver = partial(odeint_adjoint, adjoint_params=tuple(model.parameters())) if adjoint else odeint
        try:
            states = solver(field, z0, fine, method=method, **options)[at_times]
        except AssertionError as error:
            if not str(error).startswith(("underflow in dt", "max_num_steps exceeded")):
                raise
            remedy = (
                "give times in between, wider tolerances" if "max_num_steps" in str(error) else "give wider tolerances"
            )
            raise IntegrationError(
                f"dopri5 finds no steps that keep to rtol={options['rtol']:g} and atol={options['atol']:g} ({error}): {remedy}"
                ", or use method='rk4', which stops and reports trajectories that blow up"
            ) from error
    states = states.movedim(0, -2)
    return states, field.diverged_at(states, times)


def _replace_lost(z0: Float[Tensor, "*batch n"], lost: Bool[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
    """Replace the initial states of lost trajectories by a sound one, of the same row (a stack's member) if possible."""
    present = (~lost).to(torch.int64)
    neighbours = torch.take_along_dim(z0, present.argmax(-1, keepdim=True).unsqueeze(-1), -2)
    first = z0.reshape(-1, z0.shape[-1])[present.flatten().argmax()]
    substitutes = torch.where(present.any(-1)[..., None, None], neighbours, first)
    return torch.where(lost.unsqueeze(-1), substitutes.detach(), z0)


def _check(model, z0, times, method, step, rtol, atol, bound, adjoint, weights) -> None:
    if method not in METHODS:
        raise ValueError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    if not z0.is_floating_point() or times.dtype != z0.dtype:
        raise ValueError(f"z0 is {z0.dtype} and times are {times.dtype}: give both in one floating-point type")
    if times.ndim != 1 or len(times) < 2 or not bool((times.diff() > 0).all() and times.isfinite().all()):
        raise ValueError("times must be finite, increase and be two at least, the first that of the initial states")
    if not bool(z0.isfinite().all()):
        count = int((~z0.isfinite().all(-1)).sum())
        raise ValueError(f"z0: {count} of the initial states are no numbers: leave them out")
    if not z0.numel():
        raise ValueError(f"z0 of shape {tuple(z0.shape)}: give one initial state at least")
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"{name}={tolerance}: must be a number of at least 0")
    if rtol == atol == 0:
        raise ValueError("rtol=0 and atol=0: no step is that exact; give one of them")
    if not 0 < bound < math.inf:
        raise ValueError(
            f"bound={bound}: must be a positive number, far above any state of a motion that has not diverged"
        )
    if step is not None and not (math.isfinite(step) and step > 0):
        raise ValueError(f"step={step}: must be a positive number, or None for one step per interval")
    if isinstance(model, DrivenModel) and method != "rk4":
        raise ValueError(f"method={method!r} of a driven model, whose field jumps between steps: use rk4")
    if method == "leapfrog" and not model.separable:
        raise ValueError(
            "leapfrog needs H = V(q) + T(p): build the model with separable=True if its Hamiltonian is, or use dopri5 or rk4"
        )
    if adjoint and (method == "leapfrog" or weights is not None):
        raise ValueError("adjoint=True goes with dopri5 and rk4, and without weights=: it differentiates parameters")


def _is_out_of_bounds(z: Float[Tensor, "*batch n"], bound: float) -> Bool[Tensor, "*batch"]:
    return ~(_largest(z) < bound)  # a nan is not below either


def _largest(z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    return z.detach().abs().amax(-1)


class _Guarded:
    """A vector field that is zero at diverged states, where a solver would take ever smaller steps or return nan.

    Args:
        retries: whether the solver repeats steps that were too long. A field that was not finite then does not count if it is
            finite at the repeated step.
    """

    def __init__(self, model: DynamicsModel, weights: Any, bound: float, retries: bool = False):
        self.model, self.weights, self.bound, self.retries = model, weights, bound, retries
        # for each trajectory the time at which its field was not finite, or infinity
        self.lost_at: Tensor | None = None

    def __call__(self, t: Tensor, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        field = self.model(t, z, self.weights)
        beyond, lost = _is_out_of_bounds(z, self.bound), ~(_largest(field) < torch.inf)
        first = torch.where(lost & ~beyond, t.detach(), torch.inf)
        if self.lost_at is None:
            self.lost_at = first
        elif self.retries:
            self.lost_at = torch.where(
                (self.lost_at <= t.detach()) & ~lost, torch.inf, torch.minimum(self.lost_at, first)
            )
        else:
            self.lost_at = torch.minimum(self.lost_at, first)
        return field.masked_fill((beyond | lost).unsqueeze(-1), 0)

    def diverged_at(self, states: Float[Tensor, "*batch T n"], times: Float[Tensor, " T"]) -> Int[Tensor, "*batch"]:
        assert self.lost_at is not None
        out = _is_out_of_bounds(states, self.bound) | (times >= self.lost_at.unsqueeze(-1))
        return torch.where(out.any(-1), out.to(torch.int64).argmax(-1), -1)


def _subdivide(times: Tensor, step: float | None) -> tuple[Tensor, Tensor]:
    """Divide each interval of times into equal steps of at most ``step``; also returns the indices of the given times."""
    if step is None:
        return times, torch.arange(len(times))
    counts = [max(1, math.ceil(float(length) / step * (1 - 1e-6))) for length in times.diff()]
    pieces = [
        start + (stop - start) * torch.arange(count, dtype=times.dtype, device=times.device) / count
        for start, stop, count in zip(times[:-1], times[1:], counts, strict=True)
    ]
    return torch.cat([*pieces, times[-1:]]), torch.tensor([0, *counts]).cumsum(0)


def _leapfrog(field: _Guarded, z0: Tensor, times: Tensor) -> Float[Tensor, "T *batch n"]:
    """Half a kick, a drift, half a kick: ``p -= h/2 V'(q); q += h T'(p); p -= h/2 V'(q)``."""

    def velocity_and_force(t: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        velocity, force = field(t, torch.cat([q, p], -1)).chunk(2, -1)
        return velocity, force

    q, p = z0.chunk(2, -1)
    (_, force), states = velocity_and_force(times[0], q, p), [z0]
    for t, h in zip(times[:-1], times.diff(), strict=True):
        p = p + h / 2 * force
        velocity, _ = velocity_and_force(t, q, p)
        q = q + h * velocity
        _, force = velocity_and_force(t, q, p)
        p = p + h / 2 * force
        states.append(torch.cat([q, p], -1))
    return torch.stack(states)
