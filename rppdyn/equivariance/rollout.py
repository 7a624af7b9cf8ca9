"""The equivariance error along rollouts of a transition or ODE model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from rppdyn.equivariance.actions import act, check_actions, check_finite
from rppdyn.equivariance.error import Summary, geometric_mean, relative_difference, sampled_elements, summarise
from rppdyn.reps import Rep

__all__ = ["RolloutError", "rollout_equivariance_error", "trajectory_equivariance_error"]


@dataclass(frozen=True)
class RolloutError:
    """Relative differences between a transformed rollout and the rollout from the transformed state.

    Attributes:
        errors: ``(samples, horizon, batch)``; the initial state, where the error is zero, is not among them.
        left_out: how many trajectories are not in the batch because they, or one of their images, diverged; where that
            is all of them, every statistic is nan.
    """

    errors: Float[Tensor, "samples horizon batch"]
    left_out: int = 0

    @property
    def per_step(self) -> Float[Tensor, " horizon"]:
        """The geometric mean over elements and trajectories after 1, 2, ... steps."""
        return geometric_mean(self.errors.transpose(1, 2).flatten(0, 1))

    def over(self, horizon: int | None = None) -> Summary:
        """Statistics over trajectories of the geometric mean over the first steps, all of them by default (as Table 3.3)."""
        horizon = self.errors.shape[1] if horizon is None else horizon
        if not 1 <= horizon <= self.errors.shape[1]:
            raise ValueError(f"horizon={horizon}: the rollouts have 1 to {self.errors.shape[1]} steps")
        return summarise(geometric_mean(self.errors[:, :horizon], 1).nanmean(0))

    def __repr__(self) -> str:
        summary = self.over()
        low, high = summary.interval
        return f"RolloutError(mean {summary.mean:.2e} in [{low:.2e}, {high:.2e}] over {self.errors.shape[1]} steps)"


@torch.no_grad()
def rollout_equivariance_error(
    step: Callable[..., Tensor],
    rep_state: Rep,
    x: Inexact[Tensor, "batch dim"],
    horizon: int,
    *,
    controls: Inexact[Tensor, "horizon batch dim_control"] | None = None,
    rep_control: Rep | None = None,
    n_samples: int = 4,
    generator: torch.Generator | None = None,
) -> RolloutError:
    r"""The relative difference of :math:`\rho(g) x_t` and :math:`x'_t`, where x' starts from :math:`\rho(g) x_0`.

    Errors of single steps add up along a rollout, and where the dynamics is chaotic they grow; so the mean over the horizon is
    geometric. The step 0, at which both agree, is left out (the published code counts it, at 1e-7).

    Args:
        step: ``state -> next state``, or ``state, control -> next state`` where there are controls; for an ODE, its
            flow over one time step.
        x: initial states.
        controls: the same for both rollouts, transformed by ``rep_control`` for the second one.
        n_samples: group elements for each trajectory, as for :func:`equivariance_error`.
    Raises:
        ValueError: sizes or groups don't match, or a rollout leaves the finite numbers.
    Source: Finzi 2023, Table 3.3, last row.
    """
    _check_states(rep_state, x)
    if horizon < 1:
        raise ValueError(f"horizon={horizon}: give at least one step")
    if (controls is None) != (rep_control is None):
        raise ValueError("controls and rep_control belong together: give both or neither")
    if controls is not None and rep_control is not None:
        check_actions(rep_control, rep_state, controls)
        if controls.shape[:2] != (horizon, len(x)):
            raise ValueError(f"controls of shape {tuple(controls.shape)} for {horizon} steps of {len(x)} trajectories")

    def rollout(g: Tensor | None) -> Tensor:
        state, states = x if g is None else act(rep_state, g, x), []
        for t in range(horizon):
            if controls is None or rep_control is None:
                state = step(state)
            else:
                state = step(state, controls[t] if g is None else act(rep_control, g, controls[t]))
            check_finite(state, f"the state after {t + 1} steps")
            states.append(state)
        return torch.stack(states)

    here, errors = rollout(None), []
    for g in sampled_elements(rep_state.G, len(x), n_samples, generator):
        errors.append(relative_difference(act(rep_state, g, here), rollout(g)))
    return RolloutError(torch.stack(errors))


@torch.no_grad()
def trajectory_equivariance_error(
    solve: Callable[[Tensor], Tensor],
    rep_state: Rep,
    x: Inexact[Tensor, "batch dim"],
    *,
    n_samples: int = 4,
    generator: torch.Generator | None = None,
) -> RolloutError:
    """:func:`rollout_equivariance_error` for a solver that makes whole trajectories, an ODE's above all.

    All rollouts are solved as one batch. A solver with adaptive steps then takes the same steps in each of them, and since a
    Runge-Kutta step commutes with linear maps, what differs is the model's doing and not the solver's.

    Args:
        solve: initial states ``(n, dim)`` to ``(n, 1 + horizon, dim)``, the initial states first; a trajectory that diverged
            is nan from there on.
        x: initial states.
        n_samples: group elements for each trajectory, as for :func:`equivariance_error`.
    Raises:
        ValueError: sizes or groups don't match.
    """
    _check_states(rep_state, x)
    elements = sampled_elements(rep_state.G, len(x), n_samples, generator)
    states = solve(torch.cat([x, *(act(rep_state, g, x) for g in elements)]))
    here, *moved = states[:, 1:].transpose(0, 1).split(len(x), dim=1)  # (horizon, batch, dim) each
    finite = states.isfinite().flatten(1).all(1).reshape(-1, len(x)).all(0)
    pairs = zip(elements, moved, strict=True)
    errors = torch.stack([relative_difference(act(rep_state, g, here), there) for g, there in pairs])
    return RolloutError(errors[..., finite], left_out=int((~finite).sum()))


def _check_states(rep_state: Rep, x: Tensor) -> None:
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one initial state, as (batch, {rep_state.dim})")
    check_actions(rep_state, rep_state, x)
