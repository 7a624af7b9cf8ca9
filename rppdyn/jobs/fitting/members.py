r"""Shared by the fits: networks, one for each seed and all of them as one stack, and their maximum a posteriori objective.

Each member minimises

.. math:: \frac{1}{N d}\sum_n |y_n - f(x_n)|^2 + \frac{2 s^2}{N d}\Big(\sum_p \frac{|w_p|^2}{2\sigma_p^2} + \ldots\Big),

the negative log-posterior under a Gaussian likelihood of variance :math:`s^2` per output (``noise_variance``) and the
pathways' priors, times :math:`2 s^2 / (N d)`: ``N`` training data of ``d`` outputs. Under other likelihoods the first term and
the factor before the priors are others (:class:`Likelihood`).
"""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn import priors
from rppdyn.equivariance import equivariance_error
from rppdyn.errors import is_out_of_memory
from rppdyn.groups import Group
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.fit import FitConfig, NetworkConfig
from rppdyn.jobs.config.run import device_of
from rppdyn.jobs.plots import fit_curves
from rppdyn.nn import EMLP, MLP, RPPEMLP, Stack
from rppdyn.nn.hidden import component_major
from rppdyn.priors import Evidence, VarianceLearning, learn_variances, negative_log_prior, weights_of
from rppdyn.reps import Rep
from rppdyn.runs import RunFolder
from rppdyn.runs.checkpoints import not_finite
from rppdyn.runs.streams import stream
from rppdyn.runs.workers import Worker

__all__ = [
    "Backward",
    "FitSubject",
    "GAUSSIAN",
    "LAPLACE",
    "Likelihood",
    "Parts",
    "StackFit",
    "backward",
    "build_network",
    "build_stack",
    "equivariance_metrics",
    "stack_of",
    "under_group",
    "widest",
]


Made = TypeVar("Made")


def under_group(text: str | None, make: Callable[[Group | None], Made]) -> Made:
    """Make a task with the group that its configuration names; a refusal of the group names the key."""
    group = None if text is None else notation.group(text, "task.group")
    try:
        return make(group)
    except ValueError as error:
        if not str(error).startswith("group="):
            raise
        raise ConfigError(f"task.{error}") from error


def build_network(
    config: NetworkConfig,
    rep_in: Rep,
    rep_out: Rep,
    seed: int,
    output_scale: float = 1.0,
    symmetries: Sequence[str] | None = None,
) -> RPPEMLP:
    """The configured network with initial weights of a seed.

    Args:
        output_scale: multiplies those of the last layer.
        symmetries: names of the generators of a symmetry spec's group, which a chain may be written in.
    """
    options: dict[str, Any] = dict(
        output_scale=output_scale,
        hidden=_hidden(config.hidden, rep_in.G),
        num_layers=config.num_layers,
        architecture=config.architecture,
        activation=config.activation or "swish",
        bilinear=config.bilinear,
        bilinear_maps=config.bilinear_maps,
        generator=torch.Generator().manual_seed(seed),
    )
    if config.kind == "mlp":
        return MLP(rep_in, rep_out, rep_in.G, free_variance=config.free, **options)
    options["equivariant_variance"] = config.equivariant_variance
    if config.kind == "emlp":
        return EMLP(rep_in, rep_out, rep_in.G, **options)
    if config.groups is not None:
        options.pop("equivariant_variance")
        remedy = ", or give task.group the chain's first" if symmetries is None else ""
        groups = notation.chain(config.groups, rep_in.G, symmetries or (), remedy)
        options |= dict(groups=groups, variances=config.variances)
        return RPPEMLP(rep_in, rep_out, **options)
    options |= dict(free_variance=config.free, parametrisation=config.parametrisation)
    return RPPEMLP(rep_in, rep_out, rep_in.G, **options)


def _hidden(hidden: int | str | list, G: Group) -> Any:
    if isinstance(hidden, list):
        return [_hidden(layer, G) for layer in hidden]
    if isinstance(hidden, str):
        return component_major(notation.representation("model.hidden", hidden, G))
    return hidden


def widest(hidden: int | str | list, G: Group) -> int:
    """The inputs of the layer that has most of those between hidden ones and the last."""
    layers = [_hidden(layer, G) for layer in (hidden if isinstance(hidden, list) else [hidden])]
    return max(layer if isinstance(layer, int) else layer.dim for layer in layers)


def build_stack(
    config: FitConfig,
    rep_in: Rep,
    rep_out: Rep,
    output_scale: float = 1.0,
    symmetries: Sequence[str] | None = None,
    plain: bool = False,
) -> Stack:
    """A member for each seed; other arguments are those of :func:`build_network`.

    Args:
        plain: whether networks are plain whatever is configured, since no symmetry was found for them.
    Raises:
        ConfigError: their weights don't fit in memory.
    """
    model = replace(config.model, kind="mlp", free_variance=config.model.free or 1.0) if plain else config.model
    try:
        nets = [build_network(model, rep_in, rep_out, seed, output_scale, symmetries) for seed in config.all_seeds]
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
            learn_variances(net, config.marginal_likelihood.curvature)
    stack = Stack(nets)
    return stack.to(device=device_of(config.device), dtype=getattr(torch, config.dtype))


# -- what they minimise ------------------------------------------------------------------------------------------------


def equivariance_metrics(
    function: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Float[Tensor, "N n"]
) -> dict[str, float]:
    """A member's equivariance error and that of each generator; nan of one whose outputs are no numbers any more."""
    if not function(x).isfinite().all():
        return {"error": math.nan}
    error = equivariance_error(function, rep_in, rep_out, x, n_samples=4)
    return {"error": error.mean} | error.per_generator


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


def backward(
    stack: Stack, prediction: Any, targets: Tensor, likelihood: Likelihood, prior_scale: Float[Tensor, " members"]
) -> Float[Tensor, " members"]:
    """Gradients of the members' objectives, left with the stack's parameters; each member's error."""
    errors = likelihood.loss(prediction, targets).flatten(1).mean(1)
    (errors + prior_scale * stack.per_member(negative_log_prior)).sum().backward()
    return errors.detach()


class FitSubject(Protocol):
    """The contents of a run folder: models that are fitted, and all that is measured and kept of them.

    A step must follow from the state and its number alone, so that a resumed run repeats it.
    """

    compiled: bool
    """Whether it is trained by ``torch.compile``."""

    @property
    def steps(self) -> int:
        """Of the whole fit."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches; the last one of an epoch may be smaller."""

    @property
    def module(self) -> nn.Module:
        """The part of the finished fit that is saved."""

    def step(self, step: int) -> None:
        """The update number ``step``, counted from 0."""

    def evaluate(self) -> dict[str, Any]:
        """Metrics by name: numbers, or lists of numbers."""

    def headline(self, metrics: dict[str, Any]) -> dict[str, float]:
        """The metrics worth a place behind the progress bar."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which :meth:`load_state_dict` goes on exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state."""

    def give_up(self) -> None:
        """Make the weights of members that have diverged nan."""

    def test(self) -> dict[str, Any]:
        """Errors and other measures of the finished members, lists with one value per seed."""

    def evidence(self) -> list[Evidence | None]:
        """Of the finished members, where variances were learned."""

    def save(self, folder: RunFolder) -> None:
        """What else is kept beside the members and the result."""

    def draw(self, folder: RunFolder) -> None:
        """Figures of the finished fit."""

    def close(self) -> None:
        """End what works for it."""


class StackFit(ABC):
    """A configured task and its members, each fitted to data of its own (a :class:`FitSubject`).

    Args:
        inputs, targets: ``(members, N, ...)``.
        likelihood: of the targets; a normal one has the configured variance.
        longest: how many times as long as the running mean of its lengths a member's gradient may be; longer ones are
            shortened to that, and those that are no numbers left out. Adam's next ten steps would all go where one such
            gradient points, however long it is.
        by_gradients: whether weights enter in other ways than as maps of features (:func:`rppdyn.priors.gradient_curvature`).

    Attributes:
        compiled: whether it is trained by ``torch.compile``.
        workers: processes that do some of the work.
    """

    compiled = False
    workers: Sequence[Worker] = ()

    def __init__(
        self,
        config: FitConfig,
        stack: Stack,
        inputs: Float[Tensor, "members N ..."],
        targets: Float[Tensor, "members N ..."],
        *,
        likelihood: Likelihood = GAUSSIAN,
        longest: float | None = None,
        by_gradients: bool = False,
    ):
        self.config, self.stack, self.likelihood, self.longest = config, stack, likelihood, longest
        self.inputs, self.targets = inputs, targets
        if (name := not_finite({"inputs": inputs, "targets": targets})) is not None:
            raise ConfigError(f"the {name} of the training data have values that are not finite: leave these data out")
        self.optimiser = torch.optim.Adam(weights_of(stack), lr=config.optimiser.learning_rate, foreach=True)
        self.noise = torch.full((stack.members,), math.log(config.optimiser.noise_variance)).to(inputs)
        self.variances: VarianceLearning | None = None
        if config.objective == "marginal_likelihood":
            density, noise = likelihood.density, self.noise if likelihood.noise else None
            if density is None:
                raise ConfigError(f"objective=marginal_likelihood: the likelihood of {likelihood.name} has no density")
            options = config.marginal_likelihood
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
                    curvature=options.curvature,
                    by_gradients=by_gradients,
                    learning_rate=options.learning_rate,
                    steps=options.steps,
                    data=options.data,
                    sampled=options.fisher == "sampled",
                    draws=options.draws,
                    shrink=options.shrink,
                )
            except ValueError as error:
                if not str(error).startswith("data="):
                    raise
                text = str(error).replace("sampled=False", "fisher=exact").replace("sampled=True", "fisher=sampled")
                raise ConfigError(f"marginal_likelihood.{text.replace(chr(39), '')}") from error
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

    @abstractmethod
    def predict_each(self, stack: Stack, weights: Any, inputs: Tensor) -> Tensor:
        """The same of inputs that have a network each, with weights that were assembled or None."""

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Change a batch before it is used; left alone unless data are augmented."""
        return inputs, targets

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Of the members as they stand; called without gradients."""

    @abstractmethod
    def test(self) -> dict[str, Any]:
        """Errors and other measures of the finished members, lists with one value per seed."""

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.close()

    def save(self, folder: RunFolder) -> None:  # noqa: B027  (most have nothing of the kind)
        """What figures of the finished fit are drawn from, and what else is kept beside the members and the result."""

    def draw(self, folder: RunFolder) -> None:
        """Figures of the finished fit."""
        fit_curves(folder)

    @property
    def module(self) -> nn.Module:
        """The stack, or the module that contains it, which is saved."""
        return self.stack

    # -- how it is fitted ---------------------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Batches; the last one of an epoch may be smaller."""
        return math.ceil(self.inputs.shape[1] / self.config.optimiser.batch_size)

    @property
    def steps(self) -> int:
        """Of the whole fit."""
        return self.config.optimiser.epochs * self.steps_per_epoch

    @property
    def prior_scale(self) -> Float[Tensor, " members"]:
        """The factor of a negative log-prior that is added to the mean loss."""
        return self.likelihood.scale(self.noise.detach().exp()) / self.targets[0].numel()

    def step(self, step: int) -> None:
        epoch, batch = divmod(step, self.steps_per_epoch)
        if self.variances is not None and batch == 0 and self._learns_variances(epoch):
            rate = 0.5 * (1 + math.cos(math.pi * epoch / self.config.optimiser.epochs))
            self.variances.update(self.optimiser, rate=rate, generators=self._streams(epoch))
        inputs, targets = self._batch(epoch, batch)
        inputs, targets = self.prepare(inputs, targets, step)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate(step)
        self.optimiser.zero_grad(set_to_none=True)
        self.loss = self._backward(inputs, targets)
        if self.longest is not None:
            self._shorten(self.longest)
        self.optimiser.step()

    def _backward(self, inputs: Tensor, targets: Tensor) -> Float[Tensor, " members"]:
        """Gradients of the objective, left with the parameters; each member's error."""
        return backward(self.stack, self.predict(inputs), targets, self.likelihood, self.prior_scale)

    def _learns_variances(self, epoch: int) -> bool:
        options = self.config.marginal_likelihood
        return epoch >= options.burn_in and (epoch - options.burn_in) % options.every == 0

    def _streams(self, epoch: int) -> list[torch.Generator]:
        """Of each member, what follows from its seed and the epoch."""
        return [stream(seed, epoch) for seed in self.config.all_seeds]

    def evidence(self) -> list[Evidence | None]:
        """Of the finished members, where variances were learned; None of one that has diverged."""
        return [] if self.variances is None else self.variances.evidence(self._streams(self.config.optimiser.epochs))

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
            order = [torch.randperm(count, generator=generator) for generator in self._streams(epoch)]
            self._order, self._ordered = torch.stack(order).to(self.inputs.device), epoch
        chosen = self._order[:, batch * size : (batch + 1) * size]
        members = torch.arange(len(chosen), device=chosen.device)[:, None]
        return self.inputs[members, chosen], self.targets[members, chosen]

    def _learning_rate(self, step: int) -> float:
        optimiser, rate = self.config.optimiser, self.config.optimiser.learning_rate
        if optimiser.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * step / (optimiser.epochs * self.steps_per_epoch)))
        return rate * min(1.0, (step + 1) / max(1, optimiser.warm_up * self.steps_per_epoch))

    @torch.no_grad()
    def give_up(self) -> None:
        """Make the weights of members that have diverged nan, so that all that is measured of them is.

        One has diverged whose weights, or whose optimiser's moments, are not finite. Adam leaves weights where they are
        once a second moment is infinite: that looks like a fit that has ended, and is none.
        """
        optimisers = [self.optimiser] + ([] if self.variances is None else [self.variances.optimiser])
        states = (state for optimiser in optimisers for state in optimiser.state.values())
        held = [*self.stack.stacked, *(t for state in states for t in state.values() if t.dim())]
        sound = torch.stack([t.reshape(self.stack.members, -1).isfinite().all(1).cpu() for t in held]).all(0)
        for p in weights_of(self.stack):
            p[~sound.to(p.device)] = torch.nan

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
        state |= {} if self.longest is None else {"lengths": self.lengths}
        return state if self.variances is None else state | {"variances": self.variances.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stack.load_state_dict(state["stack"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.loss = state["loss"]
        self.lengths = state.get("lengths", self.lengths)
        if self.variances is not None:
            self.variances.load_state_dict(state["variances"])


# -- processes that share them -----------------------------------------------------------------------------------------

VALUES, GRADIENTS = "values", "gradients"  # files

Backward = Callable[..., Float[Tensor, " members"]]
"""Of a stack: it takes tensors ``(members, ...)``, leaves gradients with the parameters and returns each member's error."""


class Parts:
    """A stack's members, some of them with each worker, where their gradients are taken.

    Two threads of one process share out every product of ten members, and wait for each other after each; two processes with
    five members each wait once in a step. Parameters and gradients are in files that all of them map, so that no more than
    batches and errors is sent.

    The stack's parameters move to a file that the workers map: what is done to them in place is seen there.

    Args:
        build: of a stack's part, the function that is called there with that part of every argument; both are sent to the
            workers, so it is a function of a module or an object of a class of one.
    """

    def __init__(self, stack: Stack, workers: Sequence[Worker], build: Callable[[Stack], Backward]):
        self.workers, self.parameters = workers, list(stack.stacked)
        self.slices = _slices(stack.members, len(workers))
        shapes, dtype = [p.shape for p in self.parameters], self.parameters[0].dtype
        with tempfile.TemporaryDirectory(prefix="rppdyn-parts-", ignore_cleanup_errors=True) as folder:
            for name in (VALUES, GRADIENTS):  # in full: a full disk is found out here, and not by a signal
                Path(folder, name).write_bytes(bytes(sum(p.nbytes for p in self.parameters)))
            values, self.gradients = _shared(folder, shapes, dtype)
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.data = value.copy_(parameter.detach())
            for worker, members in zip(workers, self.slices, strict=True):
                worker.ask(_take, stack.part(members), build, stack.members, members, folder)
            for worker in workers:
                worker.answer()  # from here on the files need no names

    def backward(self, *values: Float[Tensor, "members ..."]) -> Float[Tensor, " members"]:
        """Gradients of all members, left with the stack's parameters; each member's error."""
        for worker, members in zip(self.workers, self.slices, strict=True):
            worker.ask(_backward, [value[members].clone() for value in values])  # a view is sent with all that it is of
        errors = torch.cat([worker.answer() for worker in self.workers])
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return errors


def _slices(members: int, parts: int) -> list[slice]:
    """As equal as they can be."""
    ends = [members * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def _shared(folder: str, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Values and gradients of all members."""
    values, gradients = (_mapped(Path(folder, name), shapes, dtype) for name in (VALUES, GRADIENTS))
    return values, gradients


def _mapped(path: Path, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of these shapes whose memory is a file's."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.from_file(str(path), shared=True, size=sum(sizes), dtype=dtype)
    return [part.view(*shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


# -- in the workers ----------------------------------------------------------------------------------------------------


class _Own:
    """The part that a worker has."""

    backward: Backward
    parameters: list[nn.Parameter]
    gradients: list[Tensor]


def _take(part: Stack, build: Callable[[Stack], Backward], of: int, members: slice, folder: str) -> None:
    values, gradients = _shared(folder, [(of, *p.shape[1:]) for p in part.stacked], part.stacked[0].dtype)
    for parameter, value in zip(part.stacked, values, strict=True):
        parameter.data = value[members]
    _Own.parameters, _Own.gradients = list(part.stacked), [gradient[members] for gradient in gradients]
    _Own.backward = staticmethod(build(part))


def _backward(values: list[Tensor]) -> Tensor:
    for parameter in _Own.parameters:
        parameter.grad = None
    errors = _Own.backward(*values)
    for parameter, gradient in zip(_Own.parameters, _Own.gradients, strict=True):
        gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
    return errors
