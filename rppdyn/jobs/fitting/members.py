r"""What the fits share: members stacked, their maximum a posteriori objective, and the life of their run folder.

Each member minimises

.. math:: \frac{1}{N d}\sum_n |y_n - f(x_n)|^2 + \frac{2 s^2}{N d}\Big(\sum_p \frac{|w_p|^2}{2\sigma_p^2} + \ldots\Big),

the negative log-posterior under a Gaussian likelihood of variance :math:`s^2` per output (``noise_variance``) and the
pathways' priors, times :math:`2 s^2 / (N d)`: ``N`` training data of ``d`` outputs. Under other likelihoods the first term and
the factor before the priors are others (:class:`Likelihood`).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn import priors
from rppdyn.equivariance import equivariance_error
from rppdyn.errors import is_out_of_memory
from rppdyn.groups import Group
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.config.fit import FitConfig, NetworkConfig
from rppdyn.jobs.config.preflight import preflight
from rppdyn.jobs.fitting.evidence import PredictEach, VarianceLearning, weights_of
from rppdyn.jobs.fitting.figures import fit_curves
from rppdyn.jobs.fitting.pathways import draw_pathways, pathway_rows
from rppdyn.jobs.fitting.result import FitResult
from rppdyn.nn import EMLP, MLP, RPPEMLP, Stack
from rppdyn.nn.hidden import component_major
from rppdyn.priors import learn_variances, negative_log_prior
from rppdyn.reps import Rep
from rppdyn.runs import CheckpointError, Progress, RunFolder, RunFolderError, provenance, stop_on_signals
from rppdyn.runs.files import replacing
from rppdyn.runs.fitting import fit, load_tensors
from rppdyn.runs.streams import stream
from rppdyn.runs.threads import torch_threads

__all__ = [
    "GAUSSIAN",
    "LAPLACE",
    "Likelihood",
    "StackFit",
    "build_network",
    "build_stack",
    "equivariance_metrics",
    "load_members",
    "run_fit",
    "stack_of",
    "task_group",
]

MEMBERS = "members.pt"


def task_group(text: str | None) -> Group | None:
    """The group that a task's configuration names."""
    return None if text is None else notation.group(text, "task.group")


def equivariance_metrics(
    function: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Float[Tensor, "N n"]
) -> dict[str, float]:
    """A member's equivariance error and that of each generator; nan of one whose outputs are no numbers any more."""
    if not function(x).isfinite().all():
        return {"error": math.nan}
    error = equivariance_error(function, rep_in, rep_out, x, n_samples=4)
    return {"error": error.mean} | error.per_generator


def build_network(config: NetworkConfig, rep_in: Rep, rep_out: Rep, seed: int, output_scale: float = 1.0) -> RPPEMLP:
    """The configured network with initial weights of a seed; those of the last layer times ``output_scale``."""
    options: dict[str, Any] = dict(
        output_scale=output_scale,
        hidden=_hidden(config.hidden, rep_in.G),
        num_layers=config.num_layers,
        architecture=config.architecture,
        bilinear=config.bilinear,
        generator=torch.Generator().manual_seed(seed),
    )
    if config.kind == "mlp":
        return MLP(rep_in, rep_out, rep_in.G, free_variance=config.free_variance, **options)
    options["equivariant_variance"] = config.equivariant_variance
    if config.kind == "emlp":
        return EMLP(rep_in, rep_out, rep_in.G, **options)
    options |= dict(free_variance=config.free_variance, parametrisation=config.parametrisation)
    return RPPEMLP(rep_in, rep_out, rep_in.G, **options)


def _hidden(hidden: int | str | list, G: Group) -> Any:
    if isinstance(hidden, list):
        return [_hidden(layer, G) for layer in hidden]
    if isinstance(hidden, str):
        return component_major(notation.representation("model.hidden", hidden, G))
    return hidden


def build_stack(config: FitConfig, rep_in: Rep, rep_out: Rep, output_scale: float = 1.0) -> Stack:
    """A member for each seed.

    Raises:
        ConfigError: their weights don't fit in memory.
    """
    try:
        nets = [build_network(config.model, rep_in, rep_out, seed, output_scale) for seed in config.all_seeds]
        return stack_of(config, nets)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"model.hidden={config.model.hidden}, {len(config.all_seeds)} of them: the weights don't fit in memory; give fewer "
            "channels"
        ) from error


def stack_of(config: FitConfig, nets: Sequence[nn.Module]) -> Stack:
    """Networks as one; their prior variances are parameters where they are learned."""
    if config.objective == "marginal_likelihood":
        for net in nets:
            learn_variances(net)
    stack = Stack(nets)
    return stack.to(device=device_of(config.device), dtype=getattr(torch, config.dtype))


class Likelihood(NamedTuple):
    """The negative logarithm of a likelihood per number, times ``scale`` and up to a constant.

    Attributes:
        name: of its mean in the metrics.
        loss: ``(prediction, targets) -> (members, batch, ...)``.
        scale: of the variance: what one number's negative log-likelihood was multiplied by, and a negative log-prior is.
        density: the likelihood itself with a variance, of which the marginal likelihood is made; None where it has none.
        noise: whether it has a variance.
    """

    name: str
    loss: Callable[[Any, Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]
    density: Callable[[Any], priors.Likelihood] | None = None
    noise: bool = True


GAUSSIAN = Likelihood(
    "mse", lambda prediction, targets: (prediction - targets).square(), lambda v: 2 * v, priors.Gaussian
)
"""Squared errors: of a normal distribution."""

LAPLACE = Likelihood(
    "l1", lambda prediction, targets: (prediction - targets).abs(), lambda v: (v / 2).sqrt(), priors.Laplace
)
"""Absolute errors: of a Laplace distribution, whose variance is twice the square of its scale."""


class StackFit(ABC):
    """A configured task and its members, each fitted to data of its own (a :class:`~rppdyn.runs.fitting.Fittable`).

    Args:
        inputs, targets: ``(members, N, ...)``.

    Attributes:
        likelihood: of the targets; normal, with the configured variance, unless a subclass has set another by now.
        longest: how many times as long as the running mean of its lengths a member's gradient may be; longer ones are
            shortened to that, and those that are no numbers left out. Adam's next ten steps would all go where one such
            gradient points, however long it is.
        predict_each: of a stack, its weights and inputs that have a network each; where weights enter in other ways than as
            maps of features (:func:`rppdyn.priors.gradient_curvature`).
    """

    likelihood: Likelihood = GAUSSIAN
    longest: float | None = None
    predict_each: PredictEach | None = None

    def __init__(
        self,
        config: FitConfig,
        stack: Stack,
        inputs: Float[Tensor, "members N ..."],
        targets: Float[Tensor, "members N ..."],
    ):
        self.config, self.stack = config, stack
        self.inputs, self.targets = inputs, targets
        self.optimiser = torch.optim.Adam(weights_of(stack), lr=config.optimiser.learning_rate, foreach=True)
        self.noise = torch.full((stack.members,), math.log(config.optimiser.noise_variance)).to(inputs)
        self.variances: VarianceLearning | None = None
        if config.objective == "marginal_likelihood":
            density, noise = self.likelihood.density, self.noise if self.likelihood.noise else None
            if density is None:
                raise ConfigError(
                    f"objective=marginal_likelihood: the likelihood of {self.likelihood.name} has no density"
                )
            self.variances = VarianceLearning(
                config, stack, inputs, targets, self.predict_one, density, noise, self.predict_each
            )
        self.lengths = torch.full((stack.members,), math.nan).to(inputs)  # of gradients, the running mean
        self.loss = torch.full((stack.members,), math.nan)
        self._order: Tensor | None = None
        self._ordered = -1  # the epoch it is of

    # -- what a task says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def predict(self, inputs: Tensor) -> Any:
        """All members' predictions, for the likelihood."""

    @abstractmethod
    def predict_one(self, net: nn.Module, inputs: Tensor) -> Tensor:
        """What one member's network says of some of its inputs, comparable with targets; its layers are called as modules."""

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """What is done to a batch before it is used; nothing unless data are augmented."""
        return inputs, targets

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Of the members as they stand; called without gradients."""

    @abstractmethod
    def test(self) -> dict[str, Any]:
        """What the finished members are worth, lists with one value per seed."""

    def draw(self, folder: RunFolder) -> None:
        """Figures of the finished fit, and what they are drawn from."""
        fit_curves(folder)

    @property
    def module(self) -> nn.Module:
        """What is saved of the finished fit: the stack, or what contains it."""
        return self.stack

    # -- how it is fitted ---------------------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Batches; the last one of an epoch may be smaller."""
        return math.ceil(self.inputs.shape[1] / self.config.optimiser.batch_size)

    @property
    def prior_scale(self) -> Float[Tensor, " members"]:
        """What a negative log-prior is multiplied by to be added to the mean loss."""
        return self.likelihood.scale(self.noise.detach().exp()) / self.targets[0].numel()

    def step(self, step: int) -> None:
        epoch, batch = divmod(step, self.steps_per_epoch)
        if self.variances is not None and batch == 0 and self.variances.due(epoch):
            self.variances.update(epoch, self.optimiser)
        inputs, targets = self._batch(epoch, batch)
        inputs, targets = self.prepare(inputs, targets, step)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate(step)
        self.optimiser.zero_grad(set_to_none=True)
        errors = self.likelihood.loss(self.predict(inputs), targets).flatten(1).mean(1)
        self.loss = errors.detach()
        (errors + self.prior_scale * self.stack.per_member(negative_log_prior)).sum().backward()
        if self.longest is not None:
            self._shorten(self.longest)
        self.optimiser.step()

    def _shorten(self, longest: float) -> None:
        """Of gradients that are too long, see `longest`."""
        gradients = [p.grad for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        finite = lengths.isfinite()
        scale = torch.where(finite, (longest * self.lengths / lengths).nan_to_num(1.0).clamp(max=1.0), 0.0)
        for gradient in gradients:
            each = (-1,) + (1,) * (gradient.ndim - 1)
            gradient.copy_(torch.where(finite.view(each), gradient * scale.view(each), 0.0))
        kept = torch.where(finite, lengths * scale, self.lengths)
        self.lengths = torch.where(self.lengths.isnan(), kept, self.lengths.lerp(kept, 0.1))

    def _batch(self, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """A batch of each member, in an order that follows from its seed and the epoch."""
        size, count = self.config.optimiser.batch_size, self.inputs.shape[1]
        if size >= count:
            return self.inputs, self.targets
        if self._order is None or self._ordered != epoch:
            generators = [stream(seed, epoch) for seed in self.config.all_seeds]
            order = [torch.randperm(count, generator=generator) for generator in generators]
            self._order, self._ordered = torch.stack(order).to(self.inputs.device), epoch
        chosen = self._order[:, batch * size : (batch + 1) * size]
        members = torch.arange(len(chosen), device=chosen.device)[:, None]
        return self.inputs[members, chosen], self.targets[members, chosen]

    def _learning_rate(self, step: int) -> float:
        optimiser = self.config.optimiser
        if optimiser.schedule == "constant":
            return optimiser.learning_rate
        return (
            optimiser.learning_rate * 0.5 * (1 + math.cos(math.pi * step / (optimiser.epochs * self.steps_per_epoch)))
        )

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        metrics = {f"train/{self.likelihood.name}": self.loss.tolist()} | self.metrics()
        metrics |= {} if self.variances is None else self.variances.metrics()
        means = {f"{name}_mean": sum(v) / len(v) for name, v in metrics.items() if isinstance(v, list)}
        return metrics | means

    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        name = "validation" if "validation/error_mean" in metrics else "test"
        return {name: metrics[f"{name}/error_mean"]}

    def state_dict(self) -> dict[str, Any]:
        state = {"stack": self.stack.state_dict(), "optimiser": self.optimiser.state_dict(), "loss": self.loss}
        state |= {} if self.longest is None else {"lengths": self.lengths}
        return state if self.variances is None else state | {"variances": self.variances.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stack.load_state_dict(state["stack"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.loss = state["loss"]
        self.lengths = state.get("lengths", self.lengths)
        if self.variances is not None:
            self.variances.load_state_dict(state["variances"])


def run_fit(config: FitConfig, build: Callable[[], StackFit], *, resume: bool, progress: bool) -> FitResult:
    """Fit into the configuration's run folder, measure the finished members, and leave them, the figures and the result there.

    Args:
        build: the configured task and members.
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show a bar on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: what is configured can't be built; no folder has been made then.
        CheckpointError: the folder's checkpoints are all damaged.
    """
    finished = preflight(config, resume)
    if finished is not None:
        return FitResult.from_dict(finished)
    start, origin = time.monotonic(), provenance()  # a checkout may have moved on when the run ends
    burn_in, epochs = config.marginal_likelihood.burn_in, config.optimiser.epochs
    if config.objective == "marginal_likelihood" and burn_in >= epochs:
        raise ConfigError(
            f"marginal_likelihood.burn_in={burn_in} with optimiser.epochs={epochs}: no variance would be learned; give fewer "
            "epochs before the first update"
        )
    with torch_threads(config.threads):
        subject = build()
        folder = RunFolder(config.folder())
        if folder.is_vacant():
            folder = RunFolder.create(folder.path, asdict(config))
        with folder.lock():
            folder.replace_config(asdict(config))
            steps = config.optimiser.epochs * subject.steps_per_epoch
            label = f"{config.task_name} {config.model_name}"
            with (
                stop_on_signals() as stop,
                Progress(steps, description=label, enabled=progress) as bar,
            ):
                done = fit(
                    subject,
                    folder,
                    steps=steps,
                    evaluate_every=config.evaluation.every * subject.steps_per_epoch,
                    checkpoint_every=config.checkpoint_every * subject.steps_per_epoch,
                    stop=stop,
                    progress=bar,
                )
            result = FitResult(
                run=str(folder.path),
                verb=config.verb,
                task=config.task_name,
                model=config.model_name,
                seeds=config.all_seeds,
                epochs=config.optimiser.epochs,
                metrics=folder.metrics.last(),
                interrupted=not done,
                note="" if done else "stopped; a checkpoint was written",
            )
            if done:
                with torch.no_grad():
                    result.test = subject.test()
                if subject.variances is not None:
                    result.pathways = pathway_rows(subject.variances.evidence(config.optimiser.epochs))
                    if result.pathways:
                        draw_pathways(result.pathways, folder.figures / "pathways.png")
                save_members(subject.module, folder)
                subject.draw(folder)
                result.seconds = time.monotonic() - start
                folder.write_result({**asdict(result), "provenance": origin})
    return result


def save_members(module: nn.Module, folder: RunFolder) -> None:
    """The fitted members' parameters, tensors alone."""
    with replacing(folder.path / MEMBERS) as path:
        torch.save(module.state_dict(), path)


def load_members(module: nn.Module, folder: RunFolder) -> None:
    """Give a stack, or what contains one, the parameters of a finished run.

    Raises:
        RunFolderError: the run is unfinished, or the file is damaged or of another network.
    """
    path = folder.path / MEMBERS
    if folder.result() is None or not path.is_file():
        raise RunFolderError(f"{folder.path} is unfinished: let it go on with --resume {folder.path}")
    try:
        module.load_state_dict(load_tensors(path))
    except CheckpointError as error:
        raise RunFolderError(
            f"{path} is damaged: delete it and {folder.result_file}, and use --resume {folder.path} to write both again"
        ) from error
    except RuntimeError as error:
        raise RunFolderError(
            f"{path} is of another network than config.yaml says: delete the folder and fit again"
        ) from error
