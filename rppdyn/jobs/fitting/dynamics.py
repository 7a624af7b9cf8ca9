"""What fits of vector fields share, of a task's trajectories and of the user's: how they are solved, measured and drawn."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.dynamics import DynamicsModel, Trajectories, rollout_error
from rppdyn.equivariance.error import geometric_mean
from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.fitting.members import StackFit, equivariance_metrics
from rppdyn.jobs.results import over_members
from rppdyn.nn import Chained, Stack
from rppdyn.reps import Rep
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json

__all__ = ["INITIAL_SCALE", "LONGEST", "DynamicsFit", "mean_error"]

Item = TypeVar("Item")

LONGEST = 10.0
"""Times its running mean that a gradient may be long: one trajectory that all but diverges has one 1e8 times as long."""
INITIAL_SCALE = 0.1
"""Of the last layer's weights: at full size some networks, cubic in their inputs, throw first rollouts out of all bounds."""
SPLITS = ("validation", "test")


class DynamicsFit(StackFit):
    """Trajectories and the vector fields that are fitted to them, one with each seed.

    A subclass sets ``rep``, ``model`` and ``trained`` (vector fields of the stack; what ``torch.compile`` compiles is the
    second) before this constructor, and says the rest by the methods without a body.

    Attributes:
        curves: of the test rollouts, per seed: ``error`` and what :meth:`errors` has besides, over ``times``; filled by
            :meth:`test`.
        example: the first test trajectory, ``truth``, and that of the first member's model, ``found``, each ``(T, n)``.
    """

    model: DynamicsModel
    trained: DynamicsModel
    rep: Rep

    def __init__(self, config: FitConfig, stack: Stack, inputs: Tensor, targets: Tensor, *, by_gradients: bool):
        super().__init__(config, stack, inputs, targets, longest=LONGEST, by_gradients=by_gradients)
        self.curves: dict[str, Any] = {}
        self.example: dict[str, Any] = {}

    # -- what a task says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def system(self, net: nn.Module) -> DynamicsModel:
        """The vector field of a network."""

    @abstractmethod
    def solve(self, model: DynamicsModel, weights: Any, inputs: Float[Tensor, "*batch d"]) -> Trajectories:
        """Chunks from their inputs, as in training."""

    @abstractmethod
    def held(self, split: str) -> tuple[Float[Tensor, "members N d"], Float[Tensor, "members N T n"]]:
        """Inputs of chunks of "validation" or "test", and the states from the first on."""

    @abstractmethod
    def fields_of(self, index: int) -> tuple[Rep, Float[Tensor, "N d"]] | None:
        """The representation and the inputs of a member's vector field, at test states; None where there is no group."""

    @abstractmethod
    def rollouts(self, members: Sequence[DynamicsModel]) -> Iterable[Trajectories]:
        """Each member's, from the beginning of the test trajectories on."""

    @abstractmethod
    def truth(self, index: int) -> Float[Tensor, "m T n"]:
        """The test trajectories of a member, in the units of its rollouts; nan after the end of one."""

    @property
    @abstractmethod
    def times(self) -> list[float]:
        """Of the rollouts, s."""

    def errors(self, found: Float[Tensor, "m T n"], truth: Float[Tensor, "m T n"]) -> dict[str, Float[Tensor, "m t"]]:
        """By name, of rollouts that did not diverge, at each time but the first; nan after a trajectory's end."""
        known = truth.isfinite().all(-1)[:, 1:]
        return {"error": torch.where(known, rollout_error(found, truth), torch.nan)}

    def others(self, index: int, member: DynamicsModel, found: Trajectories) -> dict[str, Any]:
        """What else a member is worth, by name."""
        return {}

    def example_of(self, found: Trajectories) -> dict[str, Any]:
        """The first member's first test trajectory and the true one."""
        return {"truth": self.truth(0)[0].tolist(), "found": found.states[0].tolist()}

    # -- what follows -------------------------------------------------------------------------------------------------

    def predict(self, inputs: Tensor) -> Tensor:
        return self.solve(self.trained, self.trained.assemble(), inputs).states[..., 1:, :]

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return self.solve(self.system(Chained(net)), None, inputs).states[..., 1:, :]

    def predict_each(self, stack: Stack, weights: Any, inputs: Float[Tensor, "N d"]) -> Float[Tensor, "N T n"]:
        return self.solve(self.system(stack), weights, inputs.unsqueeze(1)).states[..., 1:, :].squeeze(1)

    def members(self) -> list[DynamicsModel]:
        """The models as they stand, in float64 on the CPU, where errors are measured."""
        return [self.system(self.stack.member(index)).double().cpu() for index in range(self.stack.members)]

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        weights = self.model.assemble()
        for split in SPLITS:
            inputs, states = self.held(split)
            found = self.solve(self.model, weights, inputs)
            errors = zip(rollout_error(found.states, states), ~found.diverged, strict=True)
            metrics[f"{split}/error"] = [mean_error(of[kept]) for of, kept in errors]
            metrics[f"{split}/diverged"] = found.diverged.double().mean(1).tolist()
        equivariance = [self._equivariance(index, member) for index, member in enumerate(self.members())]
        if all(equivariance):
            metrics["equivariance/error"] = [of["error"] for of in equivariance]
        return metrics

    def _equivariance(self, index: int, member: DynamicsModel) -> dict[str, float]:
        """The vector field's error under the group: that of the model, since a Hamiltonian has a constant of no meaning."""
        fields = self.fields_of(index)
        if fields is None:
            return {}
        rep_in, z = fields
        weights = member.assemble()
        z = z[: self.config.evaluation.states]
        return equivariance_metrics(lambda z: member.vector_field(z, weights), rep_in, self.rep, z)

    def test(self) -> dict[str, Any]:
        """Errors of the members' rollouts, lists with one value per seed.

        ``rollout/error`` is the geometric mean over time and trajectories of the relative error. Trajectories that diverged are
        left out of what is measured and counted in ``rollout/diverged``; where all did, there is no number. So it is with
        ``test/error`` and ``test/diverged``, of the test data's chunks.
        """
        metrics, members, measured = self.metrics(), self.members(), []
        self.curves = {"times": self.times}
        for index, found in enumerate(self._in_turn(self.rollouts(members), "test rollouts")):
            kept = ~found.diverged
            values: dict[str, Any] = {
                f"{split}/{name}": metrics[f"{split}/{name}"][index]
                for split in SPLITS
                for name in ("error", "diverged")
            }
            values["rollout/diverged"] = float(found.diverged.double().mean())
            for name, errors in self.errors(found.states[kept], self.truth(index)[kept]).items():
                values[f"rollout/{name}"] = mean_error(errors)
                self.curves.setdefault(name, []).append(_over_time(errors))
            values |= self.others(index, members[index], found)
            equivariance = self._equivariance(index, members[index])
            values |= {f"equivariance/{name}": value for name, value in equivariance.items()}
            measured.append(values)
            if index == 0:
                self.example = self.example_of(found)
        return over_members(measured)

    def save(self, folder: RunFolder) -> None:
        write_json(folder.path / "rollouts.json", self.curves | {"example": self.example})

    def _in_turn(self, items: Iterable[Item], description: str) -> Iterator[Item]:
        """One item per seed."""
        yield from items


def mean_error(errors: Float[Tensor, "*any"]) -> float:
    """The geometric mean, without entries that are nan; nan of none."""
    known = errors[~errors.isnan()]
    return float(geometric_mean(known)) if known.numel() else math.nan


def _over_time(errors: Float[Tensor, "m t"]) -> list[float] | None:
    """Geometric means over trajectories, as far as all last; None of none."""
    return geometric_mean(errors).tolist() if len(errors) else None
