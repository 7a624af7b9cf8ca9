"""Prior variances of pathways, learned by marginal likelihood at intervals while the networks are trained."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rppdyn.errors import DivergedError
from rppdyn.nn import RPPEMLP, Chained, Ensemble
from rppdyn.nn._pathways import named_pathways, pathway_path, rescale_parameters
from rppdyn.priors._joint import Predict, describe_memory_excess, joint_evidence
from rppdyn.priors._laplace import Evidence, PredictEach, check_form, curvature, gradient_curvature, kronecker_evidence
from rppdyn.priors._likelihood import Gaussian, Likelihood

CURVATURE_BATCH = 256  # number of data whose curvature is computed at a time

Generators = Sequence[torch.Generator | None]
Member = tuple[Evidence, Callable[[Tensor], Tensor]]
Members = dict[int, Member]  # by index in the ensemble
Key = tuple[str, str]  # the names of a layer and of a pathway of it


def _predict_by_modules(net: nn.Module, inputs: Tensor) -> Tensor:
    return Chained(net)(inputs) if isinstance(net, RPPEMLP) else net(inputs)


class VarianceLearning:
    r"""Learns the variances of an ensemble's pathways and of its likelihood by each member's marginal likelihood.

        learning = VarianceLearning(stack, inputs, targets, noise=torch.zeros(stack.members))
        optimiser = torch.optim.Adam(weights_of(stack))
        ...                                          # steps of the optimiser
        learning.update(optimiser)                   # every few epochs

    An update computes the curvature at each member's current weights, and takes a few steps of Adam on :math:`\log\sigma_p^2`,
    and on the likelihood's log variance, along the gradient of :meth:`Evidence.negative_log`.

    A member that has diverged, whose outputs or curvature are not finite, has no evidence: its variances stay as they are, and
    its metrics are nan.

    Args:
        stack: ensemble of networks after :func:`learn_variances`; for one network, ``Ensemble([net])``.
        inputs, targets: the training data, ``(members, N, ...)``.
        density: makes the likelihood for a variance; ``lambda _: Categorical()`` for a likelihood without one.
        noise: ``(members,)``, the logarithms of the likelihood's variances, learned in place; None for a likelihood without a
            variance, or a variance that stays 1.
        learn_noise: False keeps these variances.
        predict: outputs of a network for inputs, computed by calling its layers as modules; by default the network's own.
        predict_each: outputs for inputs, each by a network of its own (:func:`rppdyn.priors.joint_evidence`).
        curvature: "joint", the exact Gauss-Newton matrix with one row for each datum; or "kronecker", for more data than fit.
        by_gradients: whether Kronecker factors are those of :func:`rppdyn.priors.gradient_curvature`, for weights that are not
            only maps of features; it needs `predict_each`.
        learning_rate, steps: learning rate and number of steps of Adam at each update.
        data: number of each member's data from which the curvature is estimated.
        sampled: True for the Fisher information of random targets; False for one backward pass for each output.
        draws: number of random targets of each datum for joint curvature; Kronecker factors have one.
        shrink: whether weights of free pathways shrink with their prior: if an update lowers a variance, they are multiplied by
            the ratio of standard deviations. A variance is about the mean square of the weights that the data determine.
            Without this it falls only as fast as training makes these weights smaller, and weights that free pathways learned
            before the first update keep their variances up.

    Attributes:
        found: metrics of the members at the last update, by name.
    Raises:
        ValueError: no variance of the ensemble is a parameter; data or noise of another number of members or of different
            lengths; a number that is not positive; more rows than memory; `by_gradients` without `predict_each`.
    """

    def __init__(
        self,
        stack: Ensemble,
        inputs: Tensor,
        targets: Tensor,
        density: Callable[[Any], Likelihood] = Gaussian,
        *,
        noise: Tensor | None = None,
        learn_noise: bool = True,
        predict: Predict = _predict_by_modules,
        predict_each: PredictEach | None = None,
        curvature: str = "joint",
        by_gradients: bool = False,
        learning_rate: float = 0.1,
        steps: int = 20,
        data: int = 500,
        sampled: bool = True,
        draws: int = 1,
        shrink: bool = False,
    ):
        if curvature == "kronecker" and by_gradients and predict_each is None:
            raise ValueError(
                "by_gradients=True without predict_each, whose outputs it differentiates: give both or neither"
            )
        self.stack, self.inputs, self.targets, self.density = stack, inputs, targets, density
        self.predict, self.predict_each = predict, predict_each
        self.curvature, self.by_gradients = check_form(curvature), by_gradients
        self.learning_rate, self.steps, self.data = learning_rate, steps, data
        self.sampled, self.draws = sampled, draws
        self.shrink = shrink
        pathways = {(layer, name): pathway for layer, name, pathway in named_pathways(stack.net)}
        self._pathways = {key: p for key, p in pathways.items() if isinstance(p.log_variance, nn.Parameter)}
        self.variances: dict[Key, Tensor] = {key: p.log_variance for key, p in self._pathways.items()}
        if not self.variances:
            raise ValueError(
                "no variance of the stack's pathways is a parameter: call learn_variances on each network before it is stacked"
            )
        for name, value in (("learning_rate", learning_rate), ("steps", steps), ("data", data), ("draws", draws)):
            if not value > 0:
                raise ValueError(f"{name}={value} must be positive")
        if inputs.shape[:2] != targets.shape[:2] or len(inputs) != stack.members:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)} and targets of {tuple(targets.shape)}: both begin with "
                f"({stack.members}, N), the members of the stack and their data"
            )
        if noise is not None and noise.shape != (stack.members,):
            raise ValueError(
                f"noise of shape {tuple(noise.shape)}: give one number for each of {stack.members} members"
            )
        self._check_memory()
        learned = learn_noise and noise is not None
        self.noise = torch.zeros(stack.members) if noise is None else noise.requires_grad_(learned)
        self.has_noise = noise is not None
        self.found: dict[str, list[float]] = {}
        parameters = [*self.variances.values(), *([self.noise] if learned else [])]
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate)

    def _check_memory(self) -> None:
        """Refuse, before training, data whose kernel matrices don't fit into memory for all members."""
        data, members = min(self.data, self.inputs.shape[1]), self.stack.members
        rows = self.draws if self.sampled else max(1, self.targets[0, :1].numel())  # of each datum
        pathways = sum(bool(p.coefficient_names()) for *_, p in named_pathways(self.stack.net))
        excess = describe_memory_excess(data * rows, members * pathways)
        if self.curvature == "joint" and excess:
            setting = f"draws={rows}" if self.sampled else f"sampled=False, {rows} rows each"
            raise ValueError(
                f"data={data} with {setting} and {members} members: {excess}; give less data, "
                f"{'fewer draws' if self.sampled else 'sampled=True'}, or curvature='kronecker'"
            )

    def update(
        self, weights: torch.optim.Optimizer, *, rate: float = 1.0, generators: Generators | None = None
    ) -> None:
        """Compute all members' curvature, and take a few steps along the gradient of their marginal likelihoods.

        Args:
            weights: the optimiser of the members' weights, whose moments follow the units of free pathways.
            rate: factor on the learning rate, for schedules.
            generators: one generator for each member, which chooses its data and draws random targets; torch's own if None.
        Raises:
            ValueError: an optimiser other than Adam, or a wrong number of generators.
        """
        if not isinstance(weights, torch.optim.Adam) or any(group["amsgrad"] for group in weights.param_groups):
            raise ValueError(
                f"weights are trained by {type(weights).__name__}: give Adam, without amsgrad, whose moments follow"
            )
        members = self._members(generators)
        absent = [index for index in range(self.stack.members) if index not in members]
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        before = [p.detach()[absent].clone() for p in parameters]
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * rate
        noise_before = self.noise.detach().clone()
        variances = {key: p.detach().clone() for key, p in self.variances.items()}
        for _ in range(self.steps if members else 0):
            self.optimiser.zero_grad()
            self._negative_log(members, noise_before).sum().backward()
            self.optimiser.step()
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p[absent] = old  # undo the moves of Adam's momentum
        self._follow_variances(weights, variances)
        self.found = self._compute_metrics(members, noise_before)

    @torch.no_grad()
    def _compute_metrics(self, members: Members, noise_before: Tensor) -> dict[str, list[float]]:
        """-log p(D) per datum, and each pathway's norm of coefficients and shares (:meth:`Evidence.shares`)."""
        metrics: dict[str, list[float]] = defaultdict(lambda: [math.nan] * self.stack.members)
        per_datum = self._negative_log(members, noise_before) / len(self.inputs[0])
        for (index, (evidence, _)), negative_log in zip(members.items(), per_datum, strict=True):
            metrics["marginal_likelihood/negative_log"][index] = float(negative_log)
            values = evidence.shares(self._log_variances(index, evidence), self._scale(index, noise_before))
            for name, numbers in ({"norm": evidence.squared_norms.sqrt()} | values).items():
                for pathway, value in zip(evidence.pathways, numbers.tolist(), strict=True):
                    metrics[f"{name}/{pathway_path(pathway.layer, pathway.name)}"][index] = value
        return dict(metrics)

    def _negative_log(self, members: Members, noise_before: Tensor) -> Tensor:
        """-log p(D) of each member at the current variances; ``noise_before`` are the log noise variances of the curvature."""
        values = [torch.zeros(0, dtype=torch.float64)]
        for index, (evidence, negative_log_likelihood) in members.items():
            nll = negative_log_likelihood(self.noise[index].double().cpu().exp())
            value = evidence.negative_log(nll, self._log_variances(index, evidence), self._scale(index, noise_before))
            values.append(value.view(1))
        return torch.cat(values)

    def _scale(self, index: int, noise_before: Tensor) -> Tensor:
        """The factor on a member's curvature since the noise variance was ``noise_before``."""
        return (noise_before[index] - self.noise[index]).double().cpu().exp()

    def _log_variances(self, index: int, evidence: Evidence) -> Tensor:
        """A member's log variances, learned or fixed, in the order of its evidence."""
        own = dict(zip(self.variances, torch.stack([*self.variances.values()])[:, index].double().cpu(), strict=True))
        return torch.stack([own.get((p.layer, p.name), p.log_variance.double()) for p in evidence.pathways])

    @torch.no_grad()
    def _follow_variances(self, weights: torch.optim.Optimizer, before: Mapping[Key, Tensor]) -> None:
        """Store pathways that have a unit in that of their new variance (:func:`rppdyn.nn._pathways.prior_unit`).

        Weights stay as they are or, of free pathways with `shrink`, shrink with a variance that has fallen.
        """
        for key, pathway in self._pathways.items():
            if self.shrink and pathway.is_free:
                stored = [pathway.get_parameter(name) for name in pathway.coefficient_names()]
                share = ((pathway.log_variance - before[key]) / 2).exp().clamp(max=1.0)
                rescale_parameters(stored, share.to(stored[0]))
            pathway.follow_variance(weights)

    @torch.no_grad()
    def evidence(self, generators: Generators | None = None) -> list[Evidence | None]:
        """The evidence of each member at its current weights; None for one that has diverged."""
        members = self._members(generators)
        return [members[index][0] if index in members else None for index in range(self.stack.members)]

    def _members(self, generators: Generators | None) -> Members:
        """The members that have evidence."""
        each = [None] * self.stack.members if generators is None else generators
        if len(each) != self.stack.members:
            raise ValueError(f"{len(each)} generators: give one for each of {self.stack.members} members")
        members = {index: self._at(index, generator) for index, generator in enumerate(each)}
        return {index: member for index, member in members.items() if member is not None}

    def _at(self, index: int, generator: torch.Generator | None) -> Member | None:
        """A member's evidence, and its negative log-likelihood of all data as a function of the noise variance."""
        net: Any = self.stack.member(index)
        inputs, targets = self.inputs[index], self.targets[index]
        chosen = torch.randperm(len(inputs), generator=generator)[: self.data].to(inputs.device)
        parts = []
        for batch in inputs[chosen].split(CURVATURE_BATCH):
            with torch.enable_grad():
                prediction = self.predict(net, batch)
            if not prediction.requires_grad:  # rollouts that were all cut off
                return None
            parts.append(prediction.detach().cpu())
        outputs = torch.cat(parts)
        if not outputs.isfinite().all():
            return None
        wanted, share = targets[chosen].cpu(), len(inputs) / len(chosen)
        evidence = self._evidence(net, inputs[chosen], self.density(float(self.noise[index].detach().exp())), generator)
        if evidence is None:
            return None
        return evidence, lambda variance: share * self.density(variance).negative_log(outputs, wanted)

    def _evidence(
        self, net: Any, inputs: Tensor, likelihood: Likelihood, generator: torch.Generator | None
    ) -> Evidence | None:
        """The evidence of one member; None if its curvature is not finite."""
        options: dict[str, Any] = dict(
            total=len(self.inputs[0]),
            generator=(generator or torch.default_generator) if self.sampled else None,
        )
        if self.curvature == "joint":
            functions: dict[str, Any] = dict(predict=self.predict, predict_each=self.predict_each)
            try:
                return joint_evidence(net, inputs, likelihood, draws=self.draws, **functions, **options)
            except DivergedError:
                return None
        batches = inputs.split(CURVATURE_BATCH)
        if self.by_gradients:
            assert self.predict_each is not None
            blocks = gradient_curvature(net, self.predict_each, batches, likelihood, **options)
        else:
            blocks = curvature(net, partial(self.predict, net), batches, likelihood, **options)
        if not all(M.isfinite().all() for factors in blocks.values() for A, G in factors for M in (A, G)):
            return None
        return kronecker_evidence(net, blocks)

    def metrics(self) -> dict[str, list[float]]:
        """Logarithms to base 10 of all variances and, after an update, the evidence and effective numbers of parameters."""
        named = {pathway_path(*key): p for key, p in self.variances.items()}
        metrics = {f"log10_variance/{name}": (p.detach() / math.log(10)).tolist() for name, p in named.items()}
        if self.has_noise:
            metrics["log10_variance/noise"] = (self.noise.detach() / math.log(10)).tolist()
        return metrics | self.found

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise.detach().clone(), "optimiser": self.optimiser.state_dict(), "found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.noise.copy_(state["noise"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.found = state.get("found", {})
