r"""What all fits share: a stack of networks, one for each seed, their maximum a posteriori objective, and their run.

Each member minimises

.. math:: \frac{1}{N d}\sum_n |y_n - f(x_n)|^2 + \frac{2 s^2}{N d}\Big(\sum_p \frac{|w_p|^2}{2\sigma_p^2} + \ldots\Big),

the negative log-posterior times :math:`2 s^2 / (N d)`, under a Gaussian likelihood of variance :math:`s^2` per output
(``noise_variance``) and the priors of the pathways, for ``N`` training data of ``d`` outputs. Other likelihoods change the
first term and the factor of the priors (:class:`FitLoss`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn import priors
from rppdyn.equivariance import equivariance_error
from rppdyn.errors import is_out_of_memory
from rppdyn.groups import Group
from rppdyn.jobs.config.base import ConfigError, device_of
from rppdyn.jobs.config.compose import preflight
from rppdyn.jobs.config.fit import FitConfig, NetworkConfig
from rppdyn.jobs.figure import draw_run
from rppdyn.jobs.results import FitResult
from rppdyn.nn import EMLP, MLP, RPPEMLP, Ensemble
from rppdyn.nn._hidden import component_major
from rppdyn.priors import Evidence, VarianceLearning, learn_variances, negative_log_prior, weights_of
from rppdyn.reps import Rep, notation
from rppdyn.runs import CheckpointError, Progress, RunFolder, RunFolderError, Session, stop_on_signals
from rppdyn.runs.files import first_non_finite, load_tensors, write_tensors
from rppdyn.runs.workers import Stopped, stream, torch_threads
from rppdyn.settings import keys_of_sections

T = TypeVar("T")


def make_with_group(text: str | None, make: Callable[[Group | None], T]) -> T:
    """Make a task with the configured group; an error about the group names its key."""
    group = None if text is None else notation.group(text, "task.group")
    try:
        return make(group)
    except ValueError as error:
        if not str(error).startswith("group="):
            raise
        raise ConfigError(f"task.{error}") from error


def build_network(config: NetworkConfig, rep_in: Rep, rep_out: Rep, seed: int,
                  output_scale: float = 1.0, symmetries: Sequence[str] | None = None) -> RPPEMLP:  # fmt: skip
    """Build the configured network with the initial weights of a seed.

    Args:
        output_scale: factor of the last layer's initial weights.
        symmetries: names of a symmetry spec's generators, by which a chain of groups may be given.
    """
    options: dict[str, Any] = dict(
        output_scale=output_scale,
        hidden=_hidden_layers(config.hidden, rep_in.G),
        num_layers=config.num_layers,
        architecture=config.architecture,
        activation=config.activation or "swish",
        bilinear=config.bilinear,
        bilinear_maps=config.bilinear_maps,
        generator=torch.Generator().manual_seed(seed),
    )
    if config.kind == "mlp":
        return MLP(rep_in, rep_out, rep_in.G, free_variance=config.free, **options)
    options |= {key: getattr(config, key) for key in ("breaking", "breaking_variance", "breaking_learned")}
    options["equivariant_variance"] = config.equivariant_variance
    if config.kind == "emlp":
        return EMLP(rep_in, rep_out, rep_in.G, **options)
    if config.groups is not None:
        options.pop("equivariant_variance")
        remedy = ", or give task.group the chain's first" if symmetries is None else ""
        groups = notation.chain(config.groups, rep_in.G, symmetries or (), remedy)
        options |= dict(groups=groups, variances=config.variances)
        return RPPEMLP(rep_in, rep_out, **options)
    return RPPEMLP(rep_in, rep_out, rep_in.G, free_variance=config.free, **options)


def _hidden_layers(hidden: int | str | list, G: Group) -> Any:
    if isinstance(hidden, list):
        return [_hidden_layers(layer, G) for layer in hidden]
    if isinstance(hidden, str):
        return component_major(notation.representation(hidden, G, "model.hidden"))
    return hidden


def widest(hidden: int | str | list, G: Group) -> int:
    """The largest number of inputs of a layer, the first excepted."""
    layers = [_hidden_layers(layer, G) for layer in (hidden if isinstance(hidden, list) else [hidden])]
    return max(layer if isinstance(layer, int) else layer.dim for layer in layers)


def plain_model(config: Any, variance: float = 1.0) -> Any:
    """The model without a symmetry, and without what needs one."""
    return replace(config, kind="mlp", free_variance=variance, breaking=None, bilinear="auto")


def build_stack(config: FitConfig, rep_in: Rep, rep_out: Rep, output_scale: float = 1.0,
                symmetries: Sequence[str] | None = None, plain: bool = False) -> Ensemble:  # fmt: skip
    """Build a stack with a member for each seed; further arguments are those of :func:`build_network`.

    Args:
        plain: build plain networks whatever is configured, since there is no symmetry.
    Raises:
        ConfigError: the weights don't fit in memory.
    """
    model: NetworkConfig = plain_model(config.model, config.model.free or 1.0) if plain else config.model
    try:
        with keys_of_sections(model=config.model):
            nets = [build_network(model, rep_in, rep_out, seed, output_scale, symmetries) for seed in config.all_seeds]
        return stack_of(config, nets)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"model.hidden={config.model.hidden}, {len(config.all_seeds)} of them: the weights don't fit in memory; give fewer "
            "channels"
        ) from error


def stack_of(config: FitConfig, nets: Sequence[nn.Module]) -> Ensemble:
    """Stack networks. Their prior variances become parameters if the marginal likelihood is the objective."""
    if config.objective == "marginal_likelihood":
        for net in nets:
            learn_variances(net, config.marginal_likelihood.curvature)
    stack = Ensemble(nets)
    return stack.to(device=device_of(config.device), dtype=getattr(torch, config.dtype))


# -- objective ---------------------------------------------------------------------------------------------------------


def equivariance_metrics(
    function: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Float[Tensor, "N n"]
) -> dict[str, float]:
    """A member's equivariance error, in all and by generator; nan if its outputs are not finite."""
    if not function(x).isfinite().all():
        return {"error": math.nan}
    error = equivariance_error(function, rep_in, rep_out, x, n_samples=4)
    return {"error": error.mean} | error.per_generator


class FitLoss(NamedTuple):
    """A negative log-likelihood per number, times ``scale`` and up to a constant.

    Attributes:
        name: name of its mean in the metrics.
        loss: ``(prediction, targets) -> (members, batch, ...)``.
        scale: maps the noise variance to the factor by which the negative log-prior is multiplied as well.
        density: maps the noise variance to the likelihood in the marginal likelihood; None if there is none.
        noise: whether there is a noise variance.
    """

    name: str
    loss: Callable[[Any, Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]
    density: Callable[[Any], priors.Likelihood] | None = None
    noise: bool = True


GAUSSIAN = FitLoss("mse", lambda prediction, targets: (prediction - targets).square(), lambda v: 2 * v, priors.Gaussian)
"""Squared errors, the likelihood of a normal distribution."""

LAPLACE = FitLoss(
    "l1", lambda prediction, targets: (prediction - targets).abs(), lambda v: (v / 2).sqrt(), priors.Laplace
)
"""Absolute errors, the likelihood of a Laplace distribution, whose variance is twice its squared scale."""


class FitSubject(ABC):
    """The models of a run, with the methods that fit, measure and save them.

    A step depends on the state and on its number alone, so that a resumed run repeats it.

    Attributes:
        compiled: whether ``torch.compile`` compiles the training.
    """

    config: FitConfig
    optimiser: torch.optim.Optimizer
    compiled = False
    _order: Tensor | None = None  # of the data, in the epoch _order_epoch
    _order_epoch = -1

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of updates in the whole fit."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches; the last one of an epoch may be smaller."""
        return self.config.steps_per_epoch

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The networks, which are saved."""

    @abstractmethod
    def step(self, step: int) -> None:
        """Make the update number ``step``, counted from 0."""

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """Measure metrics by name: numbers, or lists with one number per seed."""

    @abstractmethod
    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        """The metrics to show behind the progress bar."""

    @abstractmethod
    def test(self) -> dict[str, Any]:
        """Measure the finished members: lists by name, with one value per seed."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state for an exact continuation, tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def give_up(self) -> None:  # noqa: B027
        """Make all measurements of diverged members nan."""

    def evidence(self) -> list[Evidence | None]:
        """The evidence of each finished member, None if it has diverged; empty unless variances were learned."""
        return []

    def save(self, folder: RunFolder) -> None:  # noqa: B027
        """Save the data of figures, and further files."""

    def draw(self, folder: RunFolder) -> None:
        """Draw the figure of the finished fit."""
        draw_run(folder, "curves")

    def _set_rate(self, rate: float, step: int, steps: int, warm_up: int) -> None:
        """Set the learning rate of a step, by the configured schedule and a linear warm-up."""
        if self.config.optimiser.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / max(1, warm_up))

    def _streams(self, epoch: int) -> list[torch.Generator]:
        """Each member's random stream, by its seed and the epoch."""
        return [stream(seed, epoch) for seed in self.config.all_seeds]

    def _rows(self, inputs: Tensor, targets: Tensor, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """A batch of each member's data, in an order by its seed and the epoch."""
        size, count = self.config.optimiser.batch_size, inputs.shape[1]
        if size >= count:
            return inputs, targets
        if self._order is None or self._order_epoch != epoch:
            order = [torch.randperm(count, generator=generator) for generator in self._streams(epoch)]
            self._order, self._order_epoch = torch.stack(order).to(inputs.device), epoch
        chosen = self._order[:, batch * size : (batch + 1) * size]
        members = torch.arange(len(chosen), device=chosen.device)[:, None]
        return inputs[members, chosen], targets[members, chosen]


class StackFit(FitSubject):
    """A configured task and its members, each fitted to its own data.

    Args:
        inputs, targets: ``(members, N, ...)``.
        likelihood: likelihood of the targets.
        max_gradient_ratio: largest length of a member's gradient, relative to the running mean of its lengths. Longer gradients
            are scaled down and gradients that are not finite are dropped, since one such gradient would direct Adam's next ten
            steps.
        by_gradients: whether predictions are gradients of the networks, as of Hamiltonians
            (:func:`rppdyn.priors.gradient_curvature`).
    """

    def __init__(
        self,
        config: FitConfig,
        stack: Ensemble,
        inputs: Float[Tensor, "members N ..."],
        targets: Float[Tensor, "members N ..."],
        *,
        likelihood: FitLoss = GAUSSIAN,
        max_gradient_ratio: float | None = None,
        by_gradients: bool = False,
    ):
        self.config, self.stack, self.likelihood = config, stack, likelihood
        self.max_gradient_ratio = max_gradient_ratio
        self.inputs, self.targets = inputs, targets
        if (name := first_non_finite({"inputs": inputs, "targets": targets})) is not None:
            raise ConfigError(f"the {name} of the training data have values that are not finite: leave these data out")
        self.optimiser = torch.optim.Adam(weights_of(stack), lr=config.optimiser.learning_rate, foreach=True)
        self.noise = torch.full((stack.members,), math.log(config.optimiser.noise_variance)).to(inputs)
        self.variances: VarianceLearning | None = None
        if config.objective == "marginal_likelihood":
            density, noise = likelihood.density, self.noise if likelihood.noise else None
            assert density is not None  # the configuration refuses the others
            options = config.marginal_likelihood
            keys = ("curvature", "learning_rate", "steps", "data", "draws", "shrink")
            try:
                self.variances = VarianceLearning(
                    stack,
                    inputs,
                    targets,
                    density,
                    noise=noise,
                    learn_noise=options.noise,
                    predict=self.predict_one,
                    predict_each=self.predict_each,
                    by_gradients=by_gradients,
                    sampled=options.fisher == "sampled",
                    **{key: getattr(options, key) for key in keys},
                )
            except ValueError as error:
                if not str(error).startswith("data="):
                    raise
                text = str(error).replace("sampled=False", "fisher=exact").replace("sampled=True", "fisher=sampled")
                raise ConfigError(f"marginal_likelihood.{text.replace(chr(39), '')}") from error
        self.lengths = torch.full((stack.members,), math.nan).to(inputs)  # running means of the gradients' lengths
        self.loss = torch.full((stack.members,), math.nan)

    # -- methods of a task --------------------------------------------------------------------------------------------

    @abstractmethod
    def predict(self, inputs: Tensor) -> Any:
        """Predict the targets by all members, as the likelihood takes them."""

    @abstractmethod
    def predict_one(self, net: nn.Module, inputs: Tensor) -> Tensor:
        """Predict the targets by one member's network, whose layers are called as modules."""

    @abstractmethod
    def predict_each(self, stack: Ensemble, weights: Any, inputs: Tensor) -> Tensor:
        """Predict a target for each input by its own network, with assembled weights or None."""

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Augment a batch."""
        return inputs, targets

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Measure the members in their present state; called without gradients."""

    @property
    def module(self) -> nn.Module:
        return self.stack

    @classmethod
    def load(cls, config: Any, folder: RunFolder, *, trust: bool = False) -> Self:
        """Load the fit of a finished run with its data, on the CPU.

        Args:
            trust: whether a module that a dataset names may be imported to make its environment.
        """
        subject = cls(replace(config, device="cpu"))  # type: ignore[call-arg]  # the constructor of a subclass
        load_members(subject.module, folder)
        return subject

    @abstractmethod
    def predictor(self) -> Any:
        """The members as one object with a method ``predict``, from raw inputs to raw outputs."""

    # -- fitting ------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.config.optimiser.epochs * self.steps_per_epoch

    @property
    def prior_scale(self) -> Float[Tensor, " members"]:
        """The factor of the negative log-prior in the objective."""
        return self.likelihood.scale(self.noise.detach().exp()) / self.targets[0].numel()

    def step(self, step: int) -> None:
        epoch, batch = divmod(step, self.steps_per_epoch)
        options, learning = self.config.optimiser, self.config.marginal_likelihood
        learns = epoch >= learning.burn_in and (epoch - learning.burn_in) % learning.every == 0
        if self.variances is not None and batch == 0 and learns:
            rate = 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
            self.variances.update(self.optimiser, rate=rate, generators=self._streams(epoch))
        inputs, targets = self.prepare(*self._rows(self.inputs, self.targets, epoch, batch), step)
        self._set_rate(options.learning_rate, step, self.steps, options.warm_up * self.steps_per_epoch)
        self.optimiser.zero_grad(set_to_none=True)
        self.loss = self._backward(inputs, targets)
        if self.max_gradient_ratio is not None:
            self._clip_gradients(self.max_gradient_ratio)
        self.optimiser.step()

    def _backward(self, inputs: Tensor, targets: Tensor) -> Float[Tensor, " members"]:
        """Add the gradients of the objective to the parameters; returns each member's mean loss."""
        errors = self.likelihood.loss(self.predict(inputs), targets).flatten(1).mean(1)
        (errors + self.prior_scale * self.stack.per_member(negative_log_prior)).sum().backward()
        return errors.detach()

    def evidence(self) -> list[Evidence | None]:
        return [] if self.variances is None else self.variances.evidence(self._streams(self.config.optimiser.epochs))

    def _clip_gradients(self, max_gradient_ratio: float) -> None:
        """Scale gradients down that are longer than `max_gradient_ratio` allows."""
        gradients = [p.grad for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        finite = lengths.isfinite()
        scale = torch.where(finite, (max_gradient_ratio * self.lengths / lengths).nan_to_num(1.0).clamp(max=1.0), 0.0)
        for gradient in gradients:
            each = (-1,) + (1,) * (gradient.ndim - 1)
            gradient.copy_(torch.where(finite.view(each), gradient * scale.view(each), 0.0))
        latest = torch.where(finite, lengths * scale, self.lengths)
        self.lengths = torch.where(self.lengths.isnan(), latest, self.lengths.lerp(latest, 0.1))

    @torch.no_grad()
    def give_up(self) -> None:
        """Make the weights of diverged members nan, and so all measurements of them.

        A member has diverged if its weights or the moments of its optimiser are not finite. Adam no longer moves weights once a
        second moment is infinite, which would look like a converged fit.
        """
        optimisers = [self.optimiser] + ([] if self.variances is None else [self.variances.optimiser])
        states = (state for optimiser in optimisers for state in optimiser.state.values())
        tensors = [*self.stack.stacked, *(t for state in states for t in state.values() if t.dim())]
        is_finite = torch.stack([t.reshape(self.stack.members, -1).isfinite().all(1).cpu() for t in tensors]).all(0)
        for p in weights_of(self.stack):
            p[~is_finite.to(p.device)] = torch.nan

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        self.give_up()
        metrics = {f"train/{self.likelihood.name}": self.loss.tolist()} | self.metrics()
        metrics |= {} if self.variances is None else self.variances.metrics()
        means = {f"{name}_mean": sum(v) / len(v) for name, v in metrics.items() if isinstance(v, list)}
        return metrics | means

    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        name = "validation" if "validation/error_mean" in metrics else "test"
        return {name: metrics[f"{name}/error_mean"]}

    def state_dict(self) -> dict[str, Any]:
        state = {"stack": self.stack.state_dict(), "optimiser": self.optimiser.state_dict(), "loss": self.loss}
        state |= {} if self.max_gradient_ratio is None else {"lengths": self.lengths}
        return state if self.variances is None else state | {"variances": self.variances.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stack.load_state_dict(state["stack"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.loss = state["loss"]
        self.lengths = state.get("lengths", self.lengths).to(self.lengths)  # checkpoints are read to the CPU
        if self.variances is not None:
            self.variances.load_state_dict(state["variances"])


# -- the run of a fit --------------------------------------------------------------------------------------------------

MEMBERS_FILE = "members.pt"
STATE_FILE = "state.pt"


def run_fit(config: FitConfig, build: Callable[[], FitSubject], *, resume: bool, progress: bool) -> FitResult:
    """Run a fit in its run folder: fit, measure the members, and write them with figures and result.

    Args:
        build: build the configured task and members.
        resume: go on from the folder's last checkpoint, or start a new run if there is no folder.
        progress: show a bar on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: the fit can't be built; no folder is made then.
    """
    finished = preflight(config, resume)
    if finished is not None:
        if config.report and not (config.folder() / "report.html").exists():
            _write_report(config.folder())
        return FitResult.from_dict(finished)
    with Session(config) as run, torch_threads(config.threads):
        if not run.folder.is_vacant():  # a configuration composed anew lacks what the run wrote of its data
            config.take_stored(run.folder.config()["task"])
        subject = build()
        run.begin(
            lambda checkpoint: subject.load_state_dict(load_tensors(checkpoint / STATE_FILE)),
            evaluate_every=config.evaluation.every * subject.steps_per_epoch,
            checkpoint_every=config.checkpoint_every * subject.steps_per_epoch,
        )
        is_complete = _fit(subject, run, f"{config.task_name} {config.model_name}", progress)
        stopped = "stopped; a checkpoint was written" if run.saved else "stopped"
        folder = run.folder
        result = FitResult(
            run=str(folder.path),
            verb=config.verb,
            task=config.task_name,
            model=config.model_name,
            seeds=config.all_seeds,
            epochs=config.optimiser.epochs,
            metrics=folder.metrics.last(),
            compiled=subject.compiled,
            interrupted=not is_complete,
            note="" if is_complete else stopped,
        )
        if is_complete:
            subject.give_up()
            with torch.no_grad():
                result.test = subject.test()
            result.pathways = pathway_rows(subject.evidence())
            save_members(subject.module, folder)
            subject.save(folder)
            result.seconds = run.seconds
            run.finish(result)
            subject.draw(folder)  # last, so that a failure leaves the result
            if config.reports:
                _write_report(folder.path)
    return result


def _write_report(run_dir: Path) -> None:
    """Write the page on this run alone."""
    from rppdyn.jobs import report
    from rppdyn.jobs.config.command import ReportConfig

    report.run(ReportConfig(runs=[str(run_dir)], out=str(run_dir / "report.html")))


def _fit(subject: FitSubject, run: Session, description: str, progress: bool) -> bool:
    """Take the remaining steps; returns whether all were taken. A stop ends them after a step or during compilation."""
    steps = subject.steps

    def evaluate(step: int) -> None:
        metrics = subject.evaluate()
        run.record(step, metrics)
        bar.show(**subject.headline(metrics))

    with stop_on_signals() as stop, Progress(steps, description=description, enabled=progress) as bar:
        if subject.compiled:
            bar.say("compiling, up to a minute")
        bar.update(run.saved)
        for step in range(run.saved, steps):
            if run.due(step):
                evaluate(step)
            stop.interrupts = subject.compiled and step == run.saved and not stop
            try:
                subject.step(step)
                stop.interrupts = False
            except (Exception, Stopped):
                if stop:  # Ctrl-C also ends subprocesses that the step waits for, such as a compiler
                    return False
                raise
            bar.update(step + 1)
            if stop or run.save_due(step + 1) or step + 1 == steps:
                run.checkpoint(step + 1, lambda folder: torch.save(subject.state_dict(), folder / STATE_FILE))
            if stop:
                return False
        if run.recorded < steps:
            evaluate(steps)
    return True


def pathway_rows(members: Sequence[Evidence | None]) -> list[dict[str, Any]]:
    """A row for each pathway: lists over members of ``precision``, ``norm`` and :meth:`~rppdyn.priors.Evidence.shares`.

    Numbers are None for a member without evidence. There are no rows if no member has evidence.
    """
    first = next((evidence for evidence in members if evidence is not None), None)
    if first is None:
        return []
    rows: list[dict[str, Any]] = [
        {"layer": p.layer, "pathway": p.name, "coefficients": int(count)}
        for p, count in zip(first.pathways, first.counts, strict=True)
    ]
    for evidence in members:
        numbers: dict[str, Tensor] = {}
        if evidence is not None:
            precision, norm = (-evidence.log_variances.detach()).exp(), evidence.squared_norms.sqrt()
            numbers = {"precision": precision, "norm": norm, **evidence.shares()}
        for i, row in enumerate(rows):
            for name in ("precision", "norm", "effective", "normalised", "relative"):
                row.setdefault(name, []).append(numbers[name].tolist()[i] if numbers else None)
    return rows


def save_members(module: nn.Module, folder: RunFolder) -> None:
    """Write the parameters of the members, tensors alone."""
    write_tensors(folder.path / MEMBERS_FILE, module.state_dict())


def load_members(module: nn.Module, folder: RunFolder) -> None:
    """Load the parameters of a finished run into a stack, or into a module that contains one.

    Raises:
        RunFolderError: the run is unfinished, or the file is damaged or of another network.
    """
    path = folder.path / MEMBERS_FILE
    if folder.result() is None:
        raise RunFolderError(f"{folder.path} is unfinished: let it go on with --resume {folder.path}")
    try:
        module.load_state_dict(load_tensors(path))
    except CheckpointError as error:
        state, both = ("damaged", f"it and {folder.result_file}") if path.exists() else ("missing", folder.result_file)
        raise RunFolderError(
            f"{path} is {state}: delete {both}, and use --resume {folder.path} to write both again"
        ) from error
    except (RuntimeError, TypeError, ValueError) as error:
        why = f" ({error})" if isinstance(error, ValueError) else ""
        raise RunFolderError(
            f"{path} is of another network than config.yaml says{why}: delete the folder and fit again"
        ) from error
