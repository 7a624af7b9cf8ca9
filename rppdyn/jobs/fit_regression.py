"""`rppdyn fit-regression`: fit networks with symmetry priors to a regression task, several seeds in one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.envs.tasks import regression_task
from rppdyn.equivariance.actions import act
from rppdyn.equivariance.error import geometric_mean, relative_difference
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.config.fit import FitRegressionConfig
from rppdyn.jobs.fitting.members import StackFit, equivariance_metrics
from rppdyn.jobs.fitting.networks import build_stack, under_group
from rppdyn.jobs.fitting.result import FitResult, over_members
from rppdyn.jobs.fitting.running import load_members, run_fit
from rppdyn.nn import Chained, InvariantNormaliser, Stack
from rppdyn.runs import RunFolder
from rppdyn.runs.streams import data_stream, stream

__all__ = ["Regression", "Regressor", "load_regressors", "run"]

TEST_SEED = 2**31  # one more than the largest seed; torch's generator takes 32 bits, so 2**32 would be seed 0 again


def run(config: FitRegressionConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured networks into their run folder.

    Args:
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show a bar on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: the task, its group or the networks can't be made as configured; no folder has been made
            then.
        CheckpointError: the folder's checkpoints are all damaged.
    """
    return run_fit(config, partial(Regression, config), resume=resume, progress=progress)


class Regressor(nn.Module):
    """A network between normalised inputs and normalised targets; both maps commute with the group.

    Args:
        input, output: with the statistics of the training data.
    """

    def __init__(self, input: InvariantNormaliser, net: nn.Module, output: InvariantNormaliser):
        super().__init__()
        self.input, self.net, self.output = input, net, output

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.output.inverse(self.net(self.input(x)))


class Regression(StackFit):
    """A configured task with the members that are fitted to it; each seed draws training data, weights and batches.

    Args:
        normalise_by: the data, "train" or "validation", whose statistics inputs and targets are normalised by.

    Validation and test data are the same for all, and ``validation/error``, ``test/error`` are the geometric mean over them
    of :math:`|y - f(x)| / (|y| + |f(x)|)`.
    """

    config: FitRegressionConfig

    def __init__(self, config: FitRegressionConfig, *, normalise_by: str = "train"):
        self.task = under_group(
            config.task.group, lambda group: regression_task(config.task.name, group, config.task.strength)
        )
        self.dtype, device = getattr(torch, config.dtype), device_of(config.device)
        data = [self.task.sample(config.task.train, data_stream(seed)) for seed in config.all_seeds]
        held_out = torch.Generator().manual_seed(TEST_SEED)
        self.validation = self.task.sample(config.task.validation, held_out)
        self.held_out = self.task.sample(config.task.test, held_out)
        own = data if normalise_by == "train" else [self.validation] * len(data)
        self.normalisers = [(_normaliser(self.task.rep_in, x), _normaliser(self.task.rep_out, y)) for x, y in own]
        inputs = torch.stack([normalise(x) for (normalise, _), (x, _) in zip(self.normalisers, data, strict=True)])
        targets = torch.stack([normalise(y) for (_, normalise), (_, y) in zip(self.normalisers, data, strict=True)])
        inputs, targets = (t.to(device=device, dtype=self.dtype) for t in (inputs, targets))
        super().__init__(config, build_stack(config, self.task.rep_in, self.task.rep_out), inputs, targets)

    def predict(self, inputs: Tensor) -> Tensor:
        return self.stack(inputs)

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return Chained(net)(inputs)

    def predict_each(self, stack: Stack, weights: Any, inputs: Tensor) -> Tensor:
        return stack.apply(inputs.unsqueeze(1), weights).squeeze(1)

    def members(self) -> list[Regressor]:
        """The regressors as they stand, in float64 on the CPU, where errors are measured."""
        return regressors(self.stack, self.normalisers)

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, list[float]] = {"validation/error": [], "test/error": [], "equivariance/error": []}
        x = self.held_out[0][: self.config.evaluation.states]
        for member in self.members():
            metrics["validation/error"].append(_relative_error(member, *self.validation))
            metrics["test/error"].append(_relative_error(member, *self.held_out))
            metrics["equivariance/error"].append(self._equivariance(member, x)["error"])
        return metrics

    def test(self) -> dict[str, Any]:
        """Errors and equivariance errors of the members on the test data, lists with one value per seed."""
        measured: list[dict[str, float]] = []
        x, y = self.held_out
        for member in self.members():
            values = {
                "test/error": _relative_error(member, x, y),
                "test/mse": float((member(x) - y).square().mean()),
                "validation/error": _relative_error(member, *self.validation),
            }
            equivariance = self._equivariance(member, x[: self.config.evaluation.states])
            measured.append(values | {f"equivariance/{name}": value for name, value in equivariance.items()})
        return over_members(measured)

    def _equivariance(self, member: Regressor, x: Tensor) -> dict[str, float]:
        return equivariance_metrics(member, self.task.rep_in, self.task.rep_out, x)

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets moved by random elements of the group, which both normalisations commute with."""
        if not self.config.task.augment:
            return inputs, targets
        moved: list[list[Tensor]] = [[], []]
        for seed, x, y in zip(self.config.all_seeds, inputs, targets, strict=True):
            g = self.task.group.samples(len(x), stream(seed, step))
            for rep, values, out in ((self.task.rep_in, x, moved[0]), (self.task.rep_out, y, moved[1])):
                out.append(act(rep, g.to(values), values))
        return torch.stack(moved[0]), torch.stack(moved[1])


def load_regressors(config: FitRegressionConfig, folder: RunFolder) -> tuple[Regression, list[Regressor]]:
    """A finished run's task with its data, and its members, one per seed, in float64.

    Raises:
        RunFolderError: the run is unfinished, or its file is damaged.
    """
    regression = Regression(config)
    load_members(regression.module, folder)
    return regression, regression.members()


def regressors(stack: Stack, normalisers: Sequence[tuple[InvariantNormaliser, InvariantNormaliser]]) -> list[Regressor]:
    """Members of a stack between their normalisers, in float64 on the CPU."""
    return [
        Regressor(first, stack.member(index), last).double().cpu().requires_grad_(False)
        for index, (first, last) in enumerate(normalisers)
    ]


def _normaliser(rep: Any, values: Tensor) -> InvariantNormaliser:
    normaliser = InvariantNormaliser(rep)
    normaliser.update(values)
    return normaliser


@torch.no_grad()
def _relative_error(member: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(geometric_mean(relative_difference(member(x), y)))
