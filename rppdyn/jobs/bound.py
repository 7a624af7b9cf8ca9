"""`rppdyn bound`: train a fit's networks in random subspaces, code them, and bound their risk on new data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from rppdyn.compression import (
    Subspace,
    categorical_bits,
    catoni_bound,
    empirical_risk,
    gaussian_bits,
    hoeffding_bound,
    relative_error,
    setting_bits,
    universal_kl,
    zero_one_loss,
)
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.image import BoundImageConfig, BoundRegressionConfig
from rppdyn.jobs.fit import FitSubject, run_fit
from rppdyn.jobs.fit_image import ImageFit, load_image_models
from rppdyn.jobs.fit_regression import Regression
from rppdyn.jobs.results import FitResult, numbers
from rppdyn.nn import Ensemble
from rppdyn.priors import weights_of
from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS, draw_panels, draw_several, legend_below, save
from rppdyn.runs.files import write_json
from rppdyn.tasks._images import TABLES, Units

BoundConfig = BoundRegressionConfig | BoundImageConfig
EVALUATION_BATCH = 2000  # data evaluated at a time
MESSAGES_FILE = "messages.json"


def run(config: BoundConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Bound the configured networks into their run folder.

    Arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.
    """
    return run_fit(config, partial(SubspaceFit, config), resume=resume, progress=progress)


class Stage(NamedTuple):
    """A stage of the training: of the initial networks, of a subspace, or of its quantised coefficients."""

    kind: str  # "prior", "subspace" or "quantised"
    epochs: int
    dimension: int = 0
    levels: int = 0


class SubspaceFit(FitSubject):
    """A fit's task and networks, compressed with each setting in turn.

    Each seed has its own data, initial network and projectors. The prior may depend on the validation set, whose statistics
    normalise inputs and targets, and on the data of a data-dependent prior; the bound uses other data. A diverged member has
    the bound 1.
    """

    def __init__(self, config: BoundConfig):
        self.config, self.options = config, config.subspace
        fit: Regression | ImageFit
        if isinstance(config, BoundRegressionConfig):
            fit = Regression(config, normalise_by="validation")
            normalise, out = fit.normalisers[0]  # of the validation data, which all seeds share
            x, y = (values.to(fit.inputs) for values in (normalise(fit.tests[0][0]), out(fit.tests[0][1])))
            held_out = x.expand(fit.stack.members, *x.shape), y.expand(fit.stack.members, *y.shape)
            # from normalised targets to the units of the task; a copy, since members of the fit take theirs to the CPU
            self.raw: Callable[[Tensor], Tensor] = copy.deepcopy(out).to(fit.inputs.device).inverse
            self.classes = False
        else:
            fit = ImageFit(config)
            held_out, self.raw = _standardise_by_validation(fit)
            self.classes = not fit.data[0].regression
        self.fit, self.held_out = fit, held_out
        if self.options.prior_run is not None:
            fit.stack = _initial_networks(config, fit)
        self._check()
        N = fit.inputs.shape[1]
        first = round(self.options.prior_share * N)
        if self.options.prior_share and not 0 < first < N:
            raise ConfigError(
                f"subspace.prior_share={self.options.prior_share} of {N} data: leaves {first} to the prior; "
                "give another share, or more data"
            )
        self.data = {
            "prior": (fit.inputs[:, :first], fit.targets[:, :first]),
            "subspace": (fit.inputs[:, first:], fit.targets[:, first:]),
        }
        self.data["quantised"] = self.data["subspace"]
        self.predict = _Predict(fit)
        self.stages = self._stages()
        self.stage = -1
        self.subspaces: list[Subspace] = []
        self.unquantised: list[Tensor] = []  # coefficients before quantisation
        self.records: list[list[dict[str, Any]]] = []  # for each setting, one per seed
        self.prior_risks: list[float] = []
        self.loss = torch.full((fit.stack.members,), math.nan)

    def _check(self) -> None:
        """Refuse losses and objectives of another kind of task, and dimensions above the number of parameters."""
        if self.classes and self.options.loss == "relative_error":
            raise ConfigError(
                f"subspace.loss=relative_error with task={self.config.task_name}: of regressions; leave it out"
            )
        if not self.classes and self.options.loss == "zero_one":
            raise ConfigError(f"subspace.loss=zero_one with task={self.config.task_name}: of classes; leave it out")
        if self.classes and self.options.objective == "risk":
            raise ConfigError(
                "subspace.objective=risk: the share of errors has no gradient; leave it out for the likelihood"
            )
        for d in self.options.dimension:
            try:
                Subspace(self.fit.stack.member(0), d, projector=self.options.projector)
            except ValueError as error:
                raise ConfigError(f"subspace.{error}") from error

    def _stages(self) -> list[Stage]:
        options = self.options
        stages = [Stage("prior", options.prior_epochs)] if options.prior_share else []
        for d in options.dimension:
            stages.append(Stage("subspace", self.config.optimiser.epochs, d))
            stages += [Stage("quantised", options.quantised_epochs, d, L) for L in options.levels]
        return stages

    # -- fitting ------------------------------------------------------------------------------------------------------

    def _batches(self, stage: Stage) -> int:
        return math.ceil(self.data[stage.kind][0].shape[1] / self.config.optimiser.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return self._batches(self.stages[-1])

    @property
    def steps(self) -> int:
        return sum(map(self._steps_of, self.stages))

    def _steps_of(self, stage: Stage) -> int:
        return stage.epochs * self._batches(stage)

    def step(self, step: int) -> None:
        index, local = 0, step  # of the stage, and in the stage
        while local >= (steps := self._steps_of(self.stages[index])):
            index, local = index + 1, local - steps
        stage = self.stages[index]
        if local == 0:
            self._begin(index)
        if stage.kind == "prior" or stage.dimension:
            optimiser, kind = self.config.optimiser, stage.kind
            rates = {"prior": self.options.prior_rate, "quantised": self.options.quantised_rate}
            warm_up = optimiser.warm_up * self._batches(stage) if kind == "subspace" else 0
            self._set_rate(rates.get(kind, optimiser.learning_rate), local, steps, warm_up)
            self.optimiser.zero_grad(set_to_none=True)
            batch = local % self._batches(stage)
            rows = self._rows(*self.data[kind], step - batch, batch)  # an epoch's number is that of its first step
            self.loss = self._backward(stage, *rows)
            self.optimiser.step()
        if local + 1 == steps:
            self._end(stage)

    def _begin(self, index: int) -> None:
        self.stage, stage = index, self.stages[index]
        if stage.kind == "subspace":
            self._make_subspaces(stage.dimension)
        elif stage.kind == "quantised":
            for subspace, weight in zip(self.subspaces, self.unquantised, strict=True):
                with torch.no_grad():
                    subspace.weight.copy_(weight)
                subspace.quantise(stage.levels, self.options.start)
        self.optimiser = self._adam(stage)

    def _subspace(self, index: int, dimension: int) -> Subspace:
        """A member's random subspace."""
        generator = _projector_stream(self.config.all_seeds[index], dimension)
        net = self.fit.stack.member(index)
        return Subspace(net, dimension, projector=self.options.projector, generator=generator)

    def _make_subspaces(self, dimension: int) -> None:
        self.subspaces = [self._subspace(index, dimension) for index in range(self.config.seeds)]

    def _adam(self, stage: Stage) -> torch.optim.Optimizer:
        coefficients = [p for s in self.subspaces for p in (s.weight, s.levels) if p is not None]
        return torch.optim.Adam(weights_of(self.fit.stack) if stage.kind == "prior" else coefficients, foreach=True)

    def _backward(self, stage: Stage, inputs: Tensor, targets: Tensor) -> Float[Tensor, " members"]:
        if stage.kind == "prior":
            return self.fit._backward(inputs, targets)
        outputs = self._predict(inputs)
        by_risk = not self.classes and self.options.objective != "likelihood"
        losses = self._losses(outputs, targets) if by_risk else self.fit.likelihood.loss(outputs, targets)
        errors = losses.flatten(1).mean(1)
        errors.sum().backward()
        return errors.detach()

    def _predict(self, inputs: Float[Tensor, "members N ..."]) -> Float[Tensor, "members N out"]:
        """Outputs of the networks with the present parameters of the subspaces."""
        members = [subspace.parameters_by_name() for subspace in self.subspaces]
        parameters = {f"stack.net.{name}": torch.stack([p[name] for p in members]) for name in self.fit.stack.names}
        return torch.func.functional_call(self.predict, parameters, (inputs,))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, "members N"]:
        """The bounded loss, for numbers in the units of the task."""
        if self.classes:
            return zero_one_loss(outputs, targets)
        return relative_error(self.raw(outputs), self.raw(targets))

    # -- measurements -------------------------------------------------------------------------------------------------

    def _end(self, stage: Stage) -> None:
        if stage.kind == "prior":
            self._make_subspaces(0)
            outputs, targets = self._outputs(self.data["subspace"][0]), self.data["subspace"][1]
            self.prior_risks = [empirical_risk(losses) for losses in self._losses(outputs, targets)]
        elif stage.kind == "subspace":
            self.unquantised = [subspace.weight.detach().clone() for subspace in self.subspaces]
        else:
            self.records.append(self._scores(stage))

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> Tensor:
        return torch.cat([self._predict(part) for part in inputs.split(EVALUATION_BATCH, 1)], 1)

    @torch.no_grad()
    def _scores(self, stage: Stage) -> list[dict[str, Any]]:
        """Messages, and bounds of the networks decoded from them."""
        messages: list[str | None] = []
        for subspace in self.subspaces:
            finite = all(bool(p.isfinite().all()) for p in (subspace.weight, subspace.levels) if p is not None)
            messages.append(subspace.message() if finite else None)
            if finite:
                subspace.load_message(str(messages[-1]), stage.levels)
        inputs, targets = self.data["subspace"]
        outputs, held_out = self._outputs(inputs), self._outputs(self.held_out[0])
        losses, test_losses = self._losses(outputs, targets), self._losses(held_out, self.held_out[1])
        extra = setting_bits(len(self.options.settings))
        records = []
        for index, message in enumerate(messages):
            record: dict[str, Any] = {"dimension": stage.dimension, "levels": stage.levels, "message": message or ""}
            if message is None or not bool(outputs[index].isfinite().all()):  # the member has diverged
                records.append(record | dict.fromkeys(("bits", "risk", "test", "bound", "description"), math.nan))
                continue
            bits, risk = len(message) + extra, empirical_risk(losses[index])
            target_bits = categorical_bits if self.classes else gaussian_bits
            records.append(
                record
                | {
                    "bits": bits,
                    "risk": risk,
                    "test": empirical_risk(test_losses[index]),
                    "bound": catoni_bound(risk, universal_kl(bits), inputs.shape[1], delta=self.options.delta).value,
                    "description": bits + target_bits(outputs[index], targets[index]),
                }
            )
        return records

    def _best(self, index: int, name: str = "bound") -> dict[str, Any] | None:
        """A member's record with the smallest value of a name; None before the first."""
        records = [members[index] for members in self.records if math.isfinite(members[index][name])]
        return min(records, key=lambda record: record[name], default=None)

    def evaluate(self) -> dict[str, Any]:
        best = [self._best(index) for index in range(len(self.loss))]
        metrics: dict[str, Any] = {
            "train/loss": self.loss.tolist(),
            "bound/value": [1.0 if record is None else record["bound"] for record in best],
        }
        means = {f"{name}_mean": sum(v) / len(v) for name, v in metrics.items()}
        return metrics | means | {"bound/settings": len(self.records)}

    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        return {"bound": metrics["bound/value_mean"]}

    def test(self) -> dict[str, Any]:
        """Metrics of each seed's setting with the smallest bound, and the smallest description over all settings."""
        members = range(len(self.loss))
        best = [self._best(index) or {} for index in members]
        names = {"bound/value": "bound", "risk/train": "risk", "risk/test": "test", "bound/bits": "bits"}
        names |= {"bound/dimension": "dimension", "bound/levels": "levels"}
        values: dict[str, Any] = {name: numbers([b.get(key) for b in best]) for name, key in names.items()}
        values["description/bits"] = numbers([(self._best(i, "description") or {}).get("description") for i in members])
        if self.prior_risks:
            n = self.data["subspace"][0].shape[1]
            values["prior/risk"] = self.prior_risks
            values["prior/hoeffding"] = [hoeffding_bound(r, n, delta=self.options.delta) for r in self.prior_risks]
        return values

    # -- files and state ----------------------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The networks decoded from the messages with the smallest bounds."""
        nets = []
        for index in range(self.config.seeds):
            record, net = self._best(index), self.fit.stack.member(index)
            if record is not None:
                subspace = self._subspace(index, record["dimension"])
                subspace.load_message(record["message"], record["levels"])
                net = subspace.network()
            nets.append(net)
        return Ensemble(nets)

    def save(self, folder: RunFolder) -> None:
        """Write the numbers and the message of every setting."""
        rows = [
            {"seed": seed, **record}
            for records in self.records
            for seed, record in zip(self.config.all_seeds, records, strict=True)
        ]
        write_json(folder.path / MESSAGES_FILE, {"settings": rows})

    def draw(self, folder: RunFolder) -> None:
        """Draw `figures/bound.png`: risks and the bound of each setting, over seeds."""

        def paint(axes: Axes) -> None:
            labels = {"bound": "bound", "risk": "empirical risk", "test": "test risk"}
            for colour, (name, label) in zip(COLOURS, labels.items(), strict=False):
                values = np.array([[record[name] for record in records] for records in self.records]).T
                draw_several(axes, np.arange(len(self.records)), values, colour, label=label, each=True, log=False)
            axes.set_xticks(range(len(self.records)), [f"{d}, {L}" for d, L in self.options.settings])
            axes.set_xlabel("dimension, levels")
            axes.set_ylim(bottom=0)
            legend_below(axes, 3)

        title = f"{self.config.task_name}, {self.config.model_name}"
        save(draw_panels([(title, paint)], 1, size=(6.4, 4.2)), folder.figures / "bound.png")

    def state_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "initial": self.fit.stack.state_dict(),
            "weights": [s.weight.detach().clone() for s in self.subspaces],
            "levels": [None if s.levels is None else s.levels.detach().clone() for s in self.subspaces],
            "optimiser": self.optimiser.state_dict(),
            "trained": self.unquantised,
            "records": self.records,
            "prior_risks": self.prior_risks,
            "loss": self.loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage, stage = state["stage"], self.stages[state["stage"]]
        self.fit.stack.load_state_dict(state["initial"])
        self.unquantised, self.records = state["trained"], state["records"]
        self.prior_risks, self.loss = state["prior_risks"], state["loss"]
        if stage.kind != "prior":
            self._make_subspaces(stage.dimension)
            for subspace, weight, levels in zip(self.subspaces, state["weights"], state["levels"], strict=True):
                subspace.weight = nn.Parameter(weight.to(subspace.weight))
                subspace.levels = None if levels is None else nn.Parameter(levels.to(subspace.weight))
        self.optimiser = self._adam(stage)
        self.optimiser.load_state_dict(state["optimiser"])


class _Predict(nn.Module):
    """A fit's prediction as a module, for ``functional_call`` with other parameters of its stack."""

    def __init__(self, fit: Regression | ImageFit):
        super().__init__()
        self.stack, self.predict = fit.stack, fit.predict

    def forward(self, inputs: Tensor) -> Tensor:
        return self.predict(inputs)


def _projector_stream(seed: int, dimension: int) -> torch.Generator:
    """The random stream of a seed's projector, different from those of its weights, data and batches."""
    words = np.random.SeedSequence([seed, dimension]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


def _standardise_by_validation(fit: ImageFit) -> tuple[tuple[Tensor, Tensor], Callable[[Tensor], Tensor]]:
    """Standardise images by the validation set in place of the training set, on which the prior must not depend.

    Returns:
        (test images, their targets), and the map from standardised targets to the units of the task.
    """
    axes = (0,) if fit.config.task.source in TABLES else (0, 2, 3)  # as image_data has it
    train, test, targets, test_targets, units = [], [], [], [], []
    for data in fit.data:
        mean, std = data.validation.x.mean(axes, keepdim=True), data.validation.x.std(axes, keepdim=True)
        std = torch.where(std > 0, std, 1.0)
        train.append((data.train.x - mean) / std)
        test.append((data.test.x - mean) / std)
        parts = data.train.y, data.test.y
        if data.targets is not None:
            centre, scale = data.validation.y.mean(0, keepdim=True), data.validation.y.std(0, keepdim=True)
            parts = (parts[0] - centre) / scale, (parts[1] - centre) / scale
            units.append((data.targets.restore(centre), data.targets.std * scale))
        targets.append(parts[0])
        test_targets.append(parts[1])
    fit.inputs, fit.targets = torch.stack(train).to(fit.device), torch.stack(targets).to(fit.device)
    held_out = torch.stack(test).to(fit.device), torch.stack(test_targets).to(fit.device)
    own = Units(*(torch.stack(part).to(fit.device) for part in zip(*units, strict=True))) if units else None
    return held_out, (lambda values: values) if own is None else own.restore


def _initial_networks(config: BoundConfig, fit: Regression | ImageFit) -> Ensemble:
    """Use the first network of a finished fit as the initial one of all members.

    Raises:
        ConfigError: the run is of another kind or has another model, or its data are not independent of the bound's.
    """
    run = str(config.subspace.prior_run)
    key, folder = f"subspace.prior_run={run}", RunFolder.open(run)
    prior = compose.from_run("fit_regression" if isinstance(fit, Regression) else "fit_image", folder)
    if prior.model != config.model:
        raise ConfigError(
            f"{key}: was fitted with another model; give this one's keys model=... as its config.yaml has them"
        )
    if isinstance(fit, Regression):
        if set(prior.all_seeds) & set(config.all_seeds):
            raise ConfigError(
                f"{key}: was fitted to data of seed {min(set(prior.all_seeds) & set(config.all_seeds))}, whose inputs are the "
                "bound's; give other seeds"
            )
        task = Regression.load(prior, folder)
        if (task.task.rep_in, task.task.rep_out) != (fit.task.rep_in, fit.task.rep_out):
            raise ConfigError(f"{key}: task {prior.task.name} has other inputs or targets than {config.task.name}")
        net: nn.Module = task.members()[0].net
    else:
        assert isinstance(config, BoundImageConfig)
        own, other = ((task.data and task.digest, task.data or task.source) for task in (config.task, prior.task))
        if own[0] == other[0] and (own[0] or own[1] == other[1]):
            raise ConfigError(
                f"{key}: was fitted to {other[1]}, too, whose images are the bound's; give another source"
            )
        images, models = load_image_models(prior, folder)
        if (images.data[0].channels, images.data[0].size, images.data[0].outputs) != (
            fit.data[0].channels, fit.data[0].size, fit.data[0].outputs,
        ):  # fmt: skip
            raise ConfigError(
                f"{key}: {prior.task.name} has images of other sizes or other classes than {config.task.name}"
            )
        net = models[0]
    return Ensemble([net] * fit.stack.members).to(fit.inputs)
