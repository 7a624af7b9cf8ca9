r"""The Laplace approximation of the marginal likelihood, with which prior variances are learned from training data alone."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn._ensemble import Ensemble
from rppdyn.nn._hidden import AtPoints
from rppdyn.nn._networks import RPPEMLP, Weights
from rppdyn.nn._pathways import AffineMap, Kronecker, Pathway, named_pathways
from rppdyn.priors._likelihood import Likelihood

CURVATURES = ("joint", "kronecker")
"""Forms of the evidence."""

BIASES = ("bias", "pixel_bias")
"""Names of pathways that are biases."""


@dataclass(frozen=True, eq=False)
class PathwayEvidence:
    """A pathway's numbers for the Laplace approximation.

    Attributes:
        layer, name: layer and name of the pathway.
        squared_norm: sum of its squared coefficients.
        log_variance: log variance of the prior.
        size: number of coefficients.
        within: name of the pathway of the same layer that contains it; None if there is none.
        uses: squared norm of the dense map with one coefficient of 1 and all others 0.
    """

    layer: str
    name: str
    squared_norm: float
    log_variance: Float[Tensor, ""]
    size: int
    within: str | None = None
    uses: int | float = 1

    @classmethod
    def of(cls, layer: str, name: str, pathway: Pathway) -> PathwayEvidence:
        """The numbers of a pathway at its current weights."""
        squared = sum(float(c.detach().double().square().sum()) for c in pathway.coefficients())
        return cls(
            layer, name, squared, pathway.log_variance.cpu(), pathway.num_coefficients, pathway.within, pathway.uses
        )


class Evidence(ABC):
    r"""Minus the logarithm of the marginal likelihood around weights :math:`\theta`, as a function of prior variances.

    .. math:: -\log p(D) \approx -\log p(D \mid \theta) + \frac12 \sum_p \frac{|\theta_p|^2}{\sigma_p^2}
        + \frac12 \log\det\big(I + \Sigma^{1/2} H \Sigma^{1/2}\big)

    over pathways p with coefficients of prior variance :math:`\sigma_p^2`, the diagonal of :math:`\Sigma`, and H the curvature
    of the negative log-likelihood by all of them (MacKay 1992; Immer et al. 2021; van der Ouderaa, Immer & van der Wilk 2023,
    Eq. 9, where the determinant is that of the posterior precision, prior included). Subclasses compute the determinant.

    Args:
        pathways: one or more.
        negative_log_likelihood: negative log-likelihood of all data, for :attr:`log_evidence`.
    Raises:
        ValueError: no pathways.
    """

    def __init__(self, pathways: list[PathwayEvidence], negative_log_likelihood: float | Tensor = 0.0):
        if not pathways:
            raise ValueError(
                "no pathway has curvature: give the blocks of a module with pathways, from rppdyn.priors.curvature"
            )
        self.pathways = pathways
        self.negative_log_likelihood = negative_log_likelihood
        self.squared_norms = torch.tensor([p.squared_norm for p in pathways], dtype=torch.float64)
        self.counts = torch.tensor([p.size for p in pathways], dtype=torch.float64)
        self.log_variances = torch.stack([p.log_variance.double() for p in pathways])

    @abstractmethod
    def log_determinant(
        self, log_variances: Float[Tensor, " pathways"], curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, ""]:
        """The log-determinant above, with the curvature multiplied by ``curvature_scale``; twice differentiable."""

    @property
    def log_evidence(self) -> Float[Tensor, ""]:
        r""":math:`\log p(D)` at the current variances, differentiable in those that are parameters."""
        return -self.negative_log(self.negative_log_likelihood)

    @property
    def effective_parameters(self) -> dict[str, dict[str, Tensor]]:
        """:meth:`effective` at the current variances, ``{layer: {pathway: number}}``."""
        effective: dict[str, dict[str, Tensor]] = {}
        for p, value in zip(self.pathways, self.effective(), strict=True):
            effective.setdefault(p.layer, {})[p.name] = value
        return effective

    def negative_log(
        self,
        negative_log_likelihood: float | Tensor,
        log_variances: Float[Tensor, " pathways"] | None = None,
        curvature_scale: float | Tensor = 1.0,
    ) -> Float[Tensor, ""]:
        r"""The formula above, differentiable in all of its arguments.

        Args:
            negative_log_likelihood: negative log-likelihood of all data, :math:`-\log p(D \mid \theta)`.
            log_variances: :math:`\log \sigma_p^2`, in the order of `pathways`; None for the current ones.
            curvature_scale: multiplies the curvature; for a normal likelihood, the noise variance with which it was computed
                over the new one.
        """
        s = self.log_variances if log_variances is None else log_variances
        penalty = (-s).exp() @ self.squared_norms
        return negative_log_likelihood + 0.5 * (penalty + self.log_determinant(s, curvature_scale))

    def effective(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, " pathways"]:
        r""":math:`\gamma_p = \partial \log\det / \partial \log\sigma_p^2`, the number of coefficients that the data determine.

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        Source: MacKay 1992.
        """
        s = self.log_variances if log_variances is None else log_variances
        is_differentiable = torch.is_grad_enabled() and s.requires_grad
        with torch.enable_grad():
            s = s if s.requires_grad else s.detach().requires_grad_()
            return torch.autograd.grad(self.log_determinant(s, curvature_scale), s, create_graph=is_differentiable)[0]

    def shares(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> dict[str, Float[Tensor, " pathways"]]:
        r"""Shares of the coefficients that the data determine (van der Ouderaa, Immer & van der Wilk 2023, Table 4).

        ``effective`` is the number :math:`\gamma` of the P coefficients, ``normalised`` is :math:`\gamma / P`, and ``relative``
        is normalised by the sum over the layer's pathways, without biases.

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        """
        effective = self.effective(log_variances, curvature_scale)
        normalised = effective / self.counts.clamp_min(1)
        is_map = torch.tensor([p.name not in BIASES for p in self.pathways])
        same_layer = torch.tensor([[p.layer == q.layer for q in self.pathways] for p in self.pathways])
        total = (same_layer & is_map).to(normalised) @ normalised
        relative = torch.where(is_map & (total > 0), normalised / total, 0.0)
        return {"effective": effective, "normalised": normalised, "relative": relative}


class KroneckerEvidence(Evidence):
    r"""The evidence with one block of curvature for each layer, from the spectra of each pathway's curvature.

    A layer's pathways span nested subspaces :math:`V_1 \subset V_2 \subset \ldots` of its weights. Their sum has the prior
    variance :math:`\tau_j = \sigma_j^2 + \sigma_{j+1}^2 + \ldots` on the orthogonal complement of :math:`V_{j-1}` in
    :math:`V_j`. With the eigenvalues :math:`\lambda_{ji}` of the curvature within :math:`V_j`,

    .. math:: \log\det \approx \sum_j \sum_i \log \frac{1 + \tau_j \lambda_{ji}}{1 + \tau_{j+1} \lambda_{ji}},

    which counts no direction twice. It is exact if the curvature maps the subspaces into themselves, and kernels are no longer
    than a side of the maps (else several taps are one shift, and it may be too small). Otherwise it is an upper
    bound, by Jensen's inequality (of :math:`\det(I + \sigma_b^2 H) \det(I + \sigma_a^2 Q^T H (I + \sigma_b^2 H)^{-1} Q)`).

    Args:
        eigenvalues: eigenvalues of each pathway's curvature, none negative; zeros may be left out.
    """

    def __init__(
        self,
        pathways: list[PathwayEvidence],
        eigenvalues: list[Float[Tensor, " known"]],
        negative_log_likelihood: float | Tensor = 0.0,
    ):
        super().__init__(pathways, negative_log_likelihood)
        self.eigenvalues = eigenvalues
        index = {(p.layer, p.name): i for i, p in enumerate(pathways)}
        # entry (i, j), if pathway j contains pathway i: the factor on j's variance in i's coordinates
        self.containing = torch.zeros(len(pathways), len(pathways), dtype=torch.float64)
        for i, p in enumerate(pathways):
            within = p.within
            while within is not None and (j := index.get((p.layer, within))) is not None:
                self.containing[i, j] = pathways[j].uses / p.uses
                within = pathways[j].within

    def log_determinant(
        self, log_variances: Float[Tensor, " pathways"], curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, ""]:
        variances = log_variances.exp()
        outer = self.containing @ variances
        logs = [
            (curvature_scale * tau * e).log1p().sum() - (curvature_scale * tau_outer * e).log1p().sum()
            for e, tau, tau_outer in zip(self.eigenvalues, variances + outer, outer, strict=True)
        ]
        return torch.stack(logs).sum()


def check_form(curvature: str) -> str:
    """Check and return the name of a form of the evidence."""
    if curvature not in CURVATURES:
        raise ValueError(f"curvature={curvature!r}: choose one of {', '.join(CURVATURES)}")
    return curvature


def learn_variances(module: nn.Module, curvature: str = "joint") -> None:
    """Make the prior variances of pathways parameters, in place (:meth:`Pathway.learn_variance`).

    Args:
        curvature: form of the evidence: with "joint" all variances are learned, with "kronecker" those of pathways with
            Kronecker factors.
    Raises:
        ValueError: an unknown form; for "kronecker", a group in coordinates for which factors are not known.
    """
    check_form(curvature)
    for *_, pathway in named_pathways(module):
        if pathway.num_coefficients and (curvature == "joint" or pathway.has_curvature):
            pathway.learn_variance()
            if curvature == "kronecker":
                pathway.check_curvature()


@torch.no_grad()
def kronecker_evidence(
    module: nn.Module, blocks: Blocks, negative_log_likelihood: float | Tensor = 0.0
) -> KroneckerEvidence:
    """The marginal likelihood around a module's current weights, from Kronecker factors.

    Args:
        blocks: from :func:`curvature`; pathways without blocks are left out.
    Raises:
        ValueError: a block and its pathway have different numbers of coefficients.
    """
    pathways, eigenvalues = [], []
    for layer, name, pathway in named_pathways(module):
        if (layer, name) not in blocks:
            continue
        spectra = [block.eigenvalues() for block in blocks[layer, name]]
        size = sum(count for _, count in spectra)
        if size != pathway.num_coefficients:
            raise ValueError(
                f"curvature of {layer}.{name} is of {size} coefficients, and it has {pathway.num_coefficients}"
            )
        pathways.append(PathwayEvidence.of(layer, name, pathway))
        eigenvalues.append(torch.cat([torch.zeros(0, dtype=torch.float64), *(spectrum for spectrum, _ in spectra)]))
    return KroneckerEvidence(pathways, eigenvalues, negative_log_likelihood)


# -- Kronecker-factored Gauss-Newton curvature of pathways, from inputs and outputs of layers ----------------------------------


Blocks = dict[tuple[str, str], list[Kronecker]]
"""Curvature by layer and pathway, as `rppdyn.nn.named_pathways` names them."""

PredictEach = Callable[[Ensemble, Weights | None, Any], Tensor]
"""Outputs ``(N, *out)`` of N data by an ensemble of N networks, one for each, with assembled weights or None."""

Uses = dict[str, list[tuple[Tensor, Tensor]]]


def curvature(
    module: nn.Module,
    predict: Callable[[Any], Tensor],
    batches: Iterable[Any],
    likelihood: Likelihood,
    *,
    total: int | None = None,
    generator: torch.Generator | None = None,
) -> Blocks:
    r"""Curvature of the negative log-likelihood of all data, one block for each pathway.

    The blocks are those of the generalised Gauss-Newton matrix

    .. math:: \sum_n J_n^T H_n J_n, \qquad H_n = \sum_s v_{ns} v_{ns}^T,

    in the Kronecker-factored form of the pathway (:class:`~rppdyn.nn._pathways.Kronecker`). Layers that are used several times,
    along a rollout for instance, are treated like weights that are shared between places.

    Forward hooks record the layers: each must be called as a module, once or more, with its input as first argument (an
    `RPPEMLP` inside :class:`~rppdyn.nn.Chained`). Parameters may be frozen.

    Args:
        module: the module that contains the layers.
        predict: outputs ``(N, *out)`` of a batch, computed with the module's layers.
        batches: batches of inputs; empty ones are skipped.
        likelihood: likelihood of the outputs.
        total: number of data of the curvature, one or more; those in the batches if None.
        generator: draws one target for each datum from the likelihood, which costs one backward pass; without it there is one
            pass for each factor of the Hessian, as many as there are outputs.
    Returns:
        Factors of all pathways that have curvature, in float64, ``A`` a mean over data and ``G`` a sum over ``total`` of them.
    Raises:
        ValueError: there are no data, `predict` calls no layer with such pathways, or gradients are disabled.
    """
    check_total(total)
    sums: Blocks = {}
    count = 0
    for batch in batches:
        with torch.enable_grad(), _record_uses(module) as uses:
            outputs = predict(batch)
            if not uses:
                raise ValueError(
                    f"predict called no layer of {type(module).__name__} that has pathways with curvature: of an RPPEMLP, "
                    "predict with rppdyn.nn.Chained(net)"
                )
            if not len(outputs):
                continue
            factors = likelihood.factors(outputs.detach(), generator)
            used = [(name, x, y) for name, calls in uses.items() for x, y in calls]
            gradients = [output_gradients(outputs, [y for *_, y in used], factor) for factor in factors]
        by_layer: Blocks = defaultdict(list)
        for (name, x, _), g in zip(used, zip(*gradients, strict=True), strict=True):
            _add_use(by_layer, name, module.get_submodule(name), x, torch.stack(g), len(uses[name]))
        for key, blocks in by_layer.items():
            _add(sums, key, blocks)
        count += len(outputs)
    scale = _scale(count, total)
    return {key: [b._replace(A=b.A / count, G=b.G * scale) for b in blocks] for key, blocks in sums.items()}


def gradient_curvature(
    net: RPPEMLP,
    predict: PredictEach,
    batches: Iterable[Any],
    likelihood: Likelihood,
    *,
    total: int | None = None,
    generator: torch.Generator | None = None,
) -> Blocks:
    r"""Curvature as of :func:`curvature`, of weights that are not only maps of features, such as a Hamiltonian's in its field.

    With gradients :math:`M_{ns}` of every datum, a pathway's block :math:`\sum \mathrm{vec}(M_{ns}) \mathrm{vec}(M_{ns})^T` is
    approximated by the Kronecker product that has the same partial traces, and so the same trace:
    :math:`A = \sum M^T M / \sum |M|^2`, :math:`G = \sum M M^T` (Ren & Goldfarb 2021). For a linear model with normal noise
    this function and :func:`curvature` are exact.

    Args:
        predict: outputs ``(N, *out)`` of a batch by an ensemble of copies of the network, one for each datum, with assembled
            weights (of `Ensemble.assemble`).
    """
    check_total(total)
    if net.norms:
        raise ValueError(
            "gradients by the weights of normalised layers are not measured: use curvature(), or joint evidence"
        )
    net = copy.deepcopy(net)
    sums: Blocks = {}
    count = 0
    for batch in batches:
        if not len(batch):
            continue
        with torch.no_grad():
            stack = Ensemble([net] * len(batch))
            weights = stack.assemble()
        layers = _layer_weights(net, weights)
        tensors = [w.requires_grad_() for layer in layers.values() for w in layer if w is not None]
        with torch.enable_grad():
            outputs = predict(stack, weights, batch)
            for factor in likelihood.factors(outputs.detach(), generator):
                gradients = iter(output_gradients(outputs, tensors, factor))
                for name, (_, bias) in layers.items():
                    by_weight, by_bias = next(gradients), None if bias is None else next(gradients)
                    if net.breaking is not None and name == ("blocks.0.linear" if net.blocks else "head"):
                        by_weight = net.breaking.unfold_gradient(by_weight, by_bias)
                    for pathway_name, pathway in _curved_pathways(net.get_submodule(name)):
                        _add(sums, (name, pathway_name), pathway.gradient_curvature(by_weight, by_bias))
        count += len(outputs)
    scale = _scale(count, total)
    return {key: [_normalise_trace(b, scale) for b in blocks] for key, blocks in sums.items()}


def check_total(total: int | None) -> None:
    """Refuse a number of data below one, and to measure curvature where gradients are ruled out."""
    if total is not None and not total >= 1:
        raise ValueError(f"total={total}: give a number of data, one or more, or None for those that are given")
    if torch.is_inference_mode_enabled():
        raise ValueError("evidence needs gradients, which torch.inference_mode() rules out: call it outside of it")


def _scale(count: int, total: int | None) -> float:
    """The factor from a sum over ``count`` data to one over ``total``."""
    if not count:
        raise ValueError("curvature of no data: give one batch or more that is not empty")
    return 1.0 if total is None else total / count


def _layer_weights(net: RPPEMLP, weights: Weights) -> dict[str, AffineMap]:
    """The assembled weights of the layers that have pathways with curvature."""
    assembled = {"head": weights[-1]}
    for i, (linear, _, gate) in enumerate(weights[:-1]):
        at_points = ".layer" if isinstance(net.blocks[i].gate, AtPoints) else ""
        assembled |= {f"blocks.{i}.linear": linear, f"blocks.{i}.gate{at_points}": (gate, None)}
    return {name: pair for name, pair in assembled.items() if _curved_pathways(net.get_submodule(name))}


def _normalise_trace(block: Kronecker, scale: float) -> Kronecker:
    """Divide A by its trace, unless that is zero, and multiply G by ``scale``."""
    assert isinstance(block.A, Tensor)
    traces = block.A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return block._replace(A=block.A / torch.where(traces > 0, traces, torch.ones_like(traces)), G=block.G * scale)


@contextmanager
def _record_uses(module: nn.Module) -> Iterator[Uses]:
    """Record inputs and outputs of the layers that own pathways with curvature, in the order of their calls."""
    uses: Uses = defaultdict(list)
    hooks = []

    def record(name: str, _: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
        if not y.requires_grad:  # neither earlier layers nor this one's parameters require gradients: they start here
            y = y.detach().requires_grad_()
        uses[name].append((args[0].detach(), y))
        return y

    for name, layer in module.named_modules():
        if _curved_pathways(layer):
            hooks.append(layer.register_forward_hook(partial(record, name)))
    try:
        yield uses
    finally:
        for hook in hooks:
            hook.remove()


def _curved_pathways(layer: nn.Module) -> list[tuple[str, Pathway]]:
    children = layer.named_children()
    return [(name, p) for name, p in children if isinstance(p, Pathway) and p.has_curvature]


def output_gradients(
    outputs: Tensor, tensors: list[Tensor], factor: Tensor, source: str = "its layers'"
) -> tuple[Tensor, ...]:
    """Gradients of outputs times a factor by tensors, which the message calls ``source``; zero by those that are not used."""
    if not outputs.requires_grad:
        raise ValueError(f"predict's outputs have no gradient by {source}: compute them without no_grad() and detach()")
    return torch.autograd.grad(outputs, tensors, factor, retain_graph=True, materialize_grads=True)


def _add_use(sums: Blocks, name: str, layer: nn.Module, x: Tensor, g: Tensor, uses: int) -> None:
    """Add one call of a layer; G is a mean over calls, as over places."""
    for pathway_name, pathway in _curved_pathways(layer):
        with torch.no_grad():
            blocks = pathway.curvature(x, g)
            blocks = [b._replace(G=b.G / uses) for b in blocks] if uses > 1 else blocks
        _add(sums, (name, pathway_name), blocks)


def _add(sums: Blocks, key: tuple[str, str], blocks: list[Kronecker]) -> None:
    if key in sums:
        blocks = [a._replace(A=a.A + b.A, G=a.G + b.G) for a, b in zip(sums[key], blocks, strict=True)]
    sums[key] = blocks
