"""Fitted models of a system in the units of its data: from raw states to raw trajectories."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rppdyn.dynamics._integrate import Trajectories, integrate
from rppdyn.dynamics._models import DrivenModel, DynamicsModel
from rppdyn.reps import Rep


class Scaling(NamedTuple):
    """Units of a fit, ``z = centre + scale * y`` and ``t = seconds * s``, which commute with the group.

    Controls have their own centre and scale.
    """

    centre: Float[Tensor, " n"]
    scale: Float[Tensor, " n"]
    seconds: float
    control_centre: Float[Tensor, " m"]
    control_scale: Float[Tensor, " m"]

    def states(self, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        return (z - self.centre) / self.scale

    def back(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """States in the user's units."""
        return self.centre + self.scale * y

    def controls(self, u: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        return (u - self.control_centre) / self.control_scale


class Drive(NamedTuple):
    """Steps and controls along trajectories, in scaled units."""

    steps: Float[Tensor, "*batch T"]
    controls: Float[Tensor, "*batch T m"]


def combine_members(values: Tensor, members: str, models: Sequence[nn.Module] = ()) -> Tensor:
    """The mean over members, the first axis, or "all" of them.

    The mean leaves out members whose training diverged: whose weights, or without `models` all values, are nan.

    Raises:
        ValueError: `members` is neither "mean" nor "all".
    """
    if members not in ("mean", "all"):
        raise ValueError(f"members={members!r}: give 'mean' or 'all'")
    if members == "all":
        return values
    lost = [not all(p.isfinite().all() for p in model.parameters()) for model in models]
    dead = torch.tensor(lost) if lost else values.isnan().flatten(1).all(1)
    if dead.any() and not dead.all():
        warnings.warn(f"{int(dead.sum())} of {len(dead)} members diverged in training, and are left out", stacklevel=3)
        values = values[~dead]
    return values.mean(0)


def as_type_of(example: Any, values: Tensor) -> Any:
    """Return a tensor if the example is one, else an array."""
    return values if isinstance(example, Tensor) else values.numpy()


class FittedDynamics:
    """Fitted models of a system, in the units of the data.

    Args:
        models: models in scaled units, one for each seed.
        scalings: units of each model.
        rep: representation of the states.
        names, control_names: names of the coordinates.
        step: longest step of the data, s.
    """

    def __init__(self, models: Sequence[DynamicsModel], scalings: Sequence[Scaling], rep: Rep,
                 names: Sequence[str], control_names: Sequence[str] = (), step: float = math.inf):  # fmt: skip
        self.models, self.scalings, self.rep, self.step = list(models), list(scalings), rep, step
        self.names, self.control_names = tuple(names), tuple(control_names)

    @torch.no_grad()
    def predict(
        self,
        state: NDArray | Tensor | Sequence,
        times: NDArray | Tensor | Sequence[float],
        controls: NDArray | Tensor | None = None,
        *,
        members: str = "mean",
        substeps: int | None = None,
    ) -> Any:
        """States at given times, from the state at the first of them.

        Args:
            state: ``(*batch, n)``.
            times: increasing, s.
            controls: ``(*batch, T - 1, m)``, constant from each time to the next, for a model with controls.
            members: "mean" over seeds, or "all" along a new first axis.
            substeps: number of steps of rk4 from one time to the next; None for steps that are no longer than the data's.
        Returns:
            ``(*batch, T, n)``, an array or a tensor as `state` is; nan after a model diverges.
        Raises:
            ValueError: the state has another size, times do not increase, controls are missing or have another shape, or there
                are no substeps.
        """
        if substeps is not None and substeps < 1:
            raise ValueError(f"substeps={substeps}: give 1 or more")
        z = torch.as_tensor(state, dtype=torch.float64)
        if z.shape[-1:] != (len(self.names),):
            raise ValueError(f"a state of shape {tuple(z.shape)}: its last axis must be {', '.join(self.names)}")
        t = torch.as_tensor(times, dtype=torch.float64)
        if t.ndim != 1 or len(t) < 2 or not bool((t.diff() > 0).all()):
            raise ValueError("times must increase, two of them at least")
        if substeps is None:
            substeps = max(1, math.ceil(float(t.diff().max()) / self.step - 1e-6))
        steps = t.diff().expand(*z.shape[:-1], len(t) - 1)
        u, predictions = self._controls(controls, (*z.shape[:-1], len(t) - 1)), []
        for model, scaling in zip(self.models, self.scalings, strict=True):
            drive = Drive(steps / scaling.seconds, scaling.controls(u))
            rollout = solve(model, None, scaling.states(z), drive, substeps)
            index = torch.arange(len(t))
            lost = rollout.diverged[..., None] & (index >= rollout.diverged_at[..., None])
            predictions.append(torch.where(lost[..., None], torch.nan, scaling.back(rollout.states)))
        return as_type_of(state, combine_members(torch.stack(predictions), members, self.models))

    @torch.no_grad()
    def vector_field(
        self, state: Float[Tensor, "*batch n"], control: Tensor | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The mean of the members' ``dz/dt``, in the user's units."""
        z = torch.as_tensor(state, dtype=torch.float64)
        u, fields = self._controls(control, z.shape[:-1]), []
        for model, scaling in zip(self.models, self.scalings, strict=True):
            y = torch.cat([scaling.states(z), scaling.controls(u)], -1)
            fields.append(model.vector_field(y) * scaling.scale / scaling.seconds)
        return torch.stack(fields).mean(0)

    def _controls(self, controls: Any, shape: Sequence[int]) -> Tensor:
        expected = (*shape, len(self.control_names))
        if controls is None and not self.control_names:
            return torch.zeros(expected, dtype=torch.float64)
        if controls is None:
            raise ValueError(f"controls= is missing: {', '.join(self.control_names)}, of shape {expected}")
        u = torch.as_tensor(controls, dtype=torch.float64)
        if not self.control_names or tuple(u.shape[-2:]) != expected[-2:]:
            raise ValueError(f"controls of shape {tuple(u.shape)}: must be {expected}")
        return u.expand(expected)

    def __repr__(self) -> str:
        return f"FittedDynamics({', '.join(self.names)}; {len(self.models)} members under {self.rep.G})"


def solve(model: DynamicsModel, weights: Any, z: Tensor, drive: Drive, substeps: int = 1) -> Trajectories:
    """Solve a model along steps and controls, by rk4."""
    times = torch.arange(drive.steps.shape[-1] + 1, dtype=z.dtype, device=z.device)
    driven = DrivenModel(model, drive.steps, drive.controls)
    return integrate(driven, z, times, method="rk4", step=1 / substeps, weights=weights)
