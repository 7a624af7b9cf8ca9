"""`rppdyn fit-regression`: fit networks with symmetry priors to a regression task, or to the user's own rows (:func:`fit`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.equivariance._error import Function, geometric_mean, index_blocks, measured_networks, relative_difference
from rppdyn.equivariance._lie import act
from rppdyn.groups import GL, Group, Trivial
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import device_of, file_stem
from rppdyn.jobs.config.compose import overrides
from rppdyn.jobs.config.fit import FitRegressionConfig, RegressionTaskConfig
from rppdyn.jobs.fit import StackFit, build_stack, equivariance_metrics, make_with_group, plain_model, run_fit
from rppdyn.jobs.own_data import (
    FittedFunction,
    data_file,
    discover_generators,
    group_of,
    round_generators,
    splits_of,
    take_all_steps,
    vector_size,
    vectors,
    warn_of_sizes,
)
from rppdyn.jobs.results import FitResult, values_by_name
from rppdyn.nn import Chained, Ensemble, InvariantNormaliser
from rppdyn.reps import V
from rppdyn.runs.workers import data_stream, stream
from rppdyn.tasks import RegressionTask, regression_task
from rppdyn.tasks._labelled import Rows, read_rows

Data = tuple[Tensor, Tensor]

TEST_SEED = 2**31  # one more than the largest seed; torch's generator takes 32 bits, so that 2**32 would equal 0


def run(config: FitRegressionConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured networks into their run folder.

    Arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.
    """
    return run_fit(config, partial(Regression, config), resume=resume, progress=progress)


class Regressor(nn.Module):
    """A network between normalisers of inputs and targets, which commute with the group.

    Args:
        input, output: normalisers with the statistics of the training data.
    """

    def __init__(self, input: InvariantNormaliser, net: nn.Module, output: InvariantNormaliser):
        super().__init__()
        self.input, self.net, self.output = input, net, output

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.output.inverse(self.net(self.input(x)))


class Regression(StackFit):
    """A configured regression task and its members; training data, weights and batches depend on the seed.

    Validation and test data are common to all members, unless each seed splits the user's rows by itself. ``validation/error``
    and ``test/error`` are the geometric means over them of :math:`|y - f(x)| / (|y| + |f(x)|)`.

    Args:
        normalise_by: data, "train" or "validation", whose statistics normalise inputs and targets.
    Attributes:
        validations, tests: inputs and outputs of each member.
    """

    config: FitRegressionConfig
    task: RegressionTask | OwnRows

    def __init__(self, config: FitRegressionConfig, *, normalise_by: str = "train"):
        self.config, options = config, config.task
        self.dtype, device = getattr(torch, config.dtype), device_of(config.device)
        if options.data is not None:
            self.task, data, self.validations, self.tests = self._read_own_data()
        else:
            self.task = make_with_group(
                options.group, lambda group: regression_task(options.name, group, options.strength)
            )
            data = [self.task.sample(options.train, data_stream(seed)) for seed in config.all_seeds]
            held_out = torch.Generator().manual_seed(TEST_SEED)
            validation, test = (self.task.sample(count, held_out) for count in (options.validation, options.test))
            self.validations, self.tests = [validation] * len(data), [test] * len(data)
        reference = data if normalise_by == "train" else self.validations
        self.normalisers = [(_normaliser(self.task.rep_in, x), _normaliser(self.task.rep_out, y)) for x, y in reference]
        inputs = torch.stack([normalise(x) for (normalise, _), (x, _) in zip(self.normalisers, data, strict=True)])
        targets = torch.stack([normalise(y) for (_, normalise), (_, y) in zip(self.normalisers, data, strict=True)])
        inputs, targets = (t.to(device=device, dtype=self.dtype) for t in (inputs, targets))
        plain = options.data is not None and not self.has_group
        super().__init__(config, build_stack(config, self.task.rep_in, self.task.rep_out, plain=plain), inputs, targets)

    def predict(self, inputs: Tensor) -> Tensor:
        return self.stack(inputs)

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return Chained(net)(inputs)

    def predict_each(self, stack: Ensemble, weights: Any, inputs: Tensor) -> Tensor:
        return stack.apply(inputs.unsqueeze(1), weights).squeeze(1)

    def members(self) -> list[Regressor]:
        """The regressors in their present state, in float64 on the CPU."""
        members = [Regressor(first, self.stack.member(i), last) for i, (first, last) in enumerate(self.normalisers)]
        return [member.double().cpu().requires_grad_(False) for member in members]

    def predictor(self) -> FittedFunction:
        return FittedFunction(self.members())

    def functions(self, group: Group | None = None) -> list[Function]:
        task, options = self.task, self.config.task
        if group is not None and isinstance(task, OwnRows):
            task = OwnRows(task.rows, options, group)
        elif group is not None:
            task = regression_task(options.name, group, options.strength)
        parts = index_blocks(task.parts_in), index_blocks(task.parts_out)
        return [
            Function(
                "regressor", member, task.rep_in, task.rep_out, *parts, seed=seed, samples=x,
                networks=measured_networks("network", member.net, member.input, task.rep_in),
            )
            for seed, member, (x, _) in zip(self.config.all_seeds, self.members(), self.tests, strict=True)
        ]  # fmt: skip

    @property
    def has_group(self) -> bool:
        """True if there is a symmetry to measure; the user's own rows may have none."""
        return self.config.task.data is None or self.task.group != Trivial(1)

    def metrics(self) -> dict[str, Any]:
        rows = self._measure()
        names = [name for name in ("validation/error", "test/error", "equivariance/error") if name in rows[0]]
        return {name: [row[name] for row in rows] for name in names}

    def test(self) -> dict[str, Any]:
        """Errors and equivariance errors of the members on the test data, lists with one value per seed.

        For the user's own rows ``rmse/NAME`` is the root mean square error of an output, in its unit.
        """
        return values_by_name(self._measure())

    def _measure(self) -> list[dict[str, float]]:
        """The values of :meth:`test` for each member."""
        measured: list[dict[str, float]] = []
        for index, member in enumerate(self.members()):
            x, y = self.tests[index]
            residual = member(x) - y
            values = {
                "test/error": _relative_error(member, x, y),
                "test/mse": float(residual.square().mean()),
                "validation/error": _relative_error(member, *self.validations[index]),
            }
            if self.config.task.data is not None:
                names = [name for name, size in self.task.parts_out.items() for _ in range(size)]
                values |= {f"rmse/{name}": float(residual[:, i].square().mean().sqrt()) for i, name in enumerate(names)}
            equivariance = self._equivariance(index, member)
            measured.append(values | {f"equivariance/{name}": value for name, value in equivariance.items()})
        return measured

    def _equivariance(self, index: int, member: Regressor) -> dict[str, float]:
        if not self.has_group:
            return {}
        x = self.tests[index][0][: self.config.evaluation.states]
        return equivariance_metrics(member, self.task.rep_in, self.task.rep_out, x)

    def _read_own_data(self) -> tuple[OwnRows, list[Data], list[Data], list[Data]]:
        """Read the user's rows, as a task and as training, validation and test data of each member."""
        config, task = self.config, self.config.task
        assert task.data is not None
        part = task.split if isinstance(task.split, str) else None
        rows = read_rows(task.data, task.inputs or ["x"], task.outputs or ["y"], part)
        splits = splits_of(task, rows, config.all_seeds)
        warn_of_sizes(torch.cat([rows.x, rows.y], 1), (*rows.names, *rows.output_names))
        parts = [[(rows.x[index], rows.y[index]) for index in split] for split in splits]
        train, validation, test = ([*each] for each in zip(*parts, strict=True))
        task.train, task.validation, task.test = (len(split[0][0]) for split in (train, validation, test))
        group = group_of(task, partial(self._discover_generators, rows, train[0][0]))
        return OwnRows(rows, task, group), train, validation, test

    def _discover_generators(self, rows: Rows, x: Tensor) -> list[Any]:
        """Generators of the symmetry of a plain network fitted to the training data."""
        task = self.config.task
        family = GL(vector_size(task.rep, len(rows.names)))
        candidate = OwnRows(rows, task, family)
        plain = plain_model(self.config.model)
        split_seed = self.config.seed if task.split_seed is None else task.split_seed
        ungrouped = replace(task, group=None, rep=None, rep_out=None, augment=False, split_seed=split_seed)
        first = Regression(replace(self.config, task=ungrouped, model=plain, seeds=1, objective="map"))
        (member,) = take_all_steps(first).members()
        return round_generators(discover_generators(member, candidate.rep_in, candidate.rep_out, x), family)

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Transform inputs and targets by random elements of the group, which commute with both normalisers."""
        if not self.config.task.augment:
            return inputs, targets
        moved: list[list[Tensor]] = [[], []]
        for seed, x, y in zip(self.config.all_seeds, inputs, targets, strict=True):
            g = self.task.group.samples(len(x), stream(seed, step))
            for rep, values, out in ((self.task.rep_in, x, moved[0]), (self.task.rep_out, y, moved[1])):
                out.append(act(rep, g.to(values), values))
        return torch.stack(moved[0]), torch.stack(moved[1])


class OwnRows:
    """The user's rows as a task with representations of inputs and outputs.

    Args:
        group: symmetry group; None without a symmetry.
    Raises:
        ConfigError: the group does not act on so many numbers.
    """

    def __init__(self, rows: Rows, task: RegressionTaskConfig, group: Group | None):
        self.rows, self.name = rows, file_stem(str(task.data))
        self.group = Trivial(1) if group is None else group
        n, m = len(rows.names), len(rows.output_names)
        if group is None:
            self.rep_in, self.rep_out = n * V(self.group), m * V(self.group)
        else:
            self.rep_in = vectors(task.rep, group, n, "rep", "the inputs")
            whole = task.rep_out is not None or m % V(group).dim == 0
            self.rep_out = vectors(task.rep_out if whole else f"{m}*T(0)", group, m, "rep_out", "the outputs")
        self.parts_in: dict[str, int] = dict.fromkeys(rows.names, 1)
        self.parts_out: dict[str, int] = dict.fromkeys(rows.output_names, 1)


def fit(data: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> FittedFunction:
    """Fit networks to rows and return them, without a run folder.

        model = fit({"x": x, "y": y}, group="O(3)", rep="V", rep_out="T(0)", seeds=5)
        model.predict(x)

    Args:
        data: a file, a folder, or arrays by name; see :func:`rppdyn.tasks.read_rows`.
        options: keys of ``rppdyn fit-regression data=...`` without the section ``task.``, and with ``__`` for a dot,
            ``optimiser__epochs=100``.
    """
    with data_file(data) as file:
        subject = Regression(compose.composed("fit_regression", overrides("fit_regression", data=file, **options)))
    return take_all_steps(subject).predictor()


def _normaliser(rep: Any, values: Tensor) -> InvariantNormaliser:
    normaliser = InvariantNormaliser(rep)
    normaliser.update(values)
    return normaliser


@torch.no_grad()
def _relative_error(member: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(geometric_mean(relative_difference(member(x), y)))
