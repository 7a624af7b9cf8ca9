r"""Likelihoods of a network's outputs, with square roots of their Hessians, and the Gaussian prior of its pathways.

With variances :math:`\sigma_a^2` and :math:`\sigma_b^2` the free pathway has the share
:math:`s = \sigma_b^2 / (\sigma_a^2 + \sigma_b^2)` of the prior. With a very wide equivariant prior (1e5) a share would mean
nothing. So :math:`\sigma_a^2` is at most :math:`1/n`, the usual variance of a weight with n inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.nn._ensemble import Ensemble, call_with
from rppdyn.nn._pathways import named_pathways, summed_squares


@runtime_checkable
class Likelihood(Protocol):
    """The interface of likelihoods for the marginal likelihood."""

    def negative_log(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """The negative logarithm, summed over the data."""
        ...

    def factors(
        self, outputs: Float[Tensor, "N *out"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N *out"]:
        r"""Vectors :math:`v_s` for each datum with :math:`\sum_s v_s v_s^T` the likelihood's Fisher information of its outputs.

        For `Gaussian` and `Categorical` this is the Hessian of the negative logarithm. With a generator:
        one random vector whose outer product has this sum as its mean. No gradient flows to the variance.
        """
        ...


class Gaussian:
    r"""Independent normal numbers with one variance :math:`\sigma^2`.

    Args:
        variance: a float, or a scalar tensor, by which :meth:`negative_log` alone is differentiable.
    """

    def __init__(self, variance: float | Tensor):
        self.variance = _positive(variance)

    def negative_log(self, outputs: Float[Tensor, "N *out"], targets: Float[Tensor, "..."]) -> Float[Tensor, ""]:
        squares = _residuals(outputs, targets).square().sum()
        return 0.5 * (squares / self.variance + outputs.numel() * (2 * math.pi * self.variance).log())

    def factors(
        self, outputs: Float[Tensor, "N *out"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N *out"]:
        scale = float(self.variance) ** -0.5
        if generator is not None:
            return scale * torch.randn((1, *outputs.shape), generator=generator).to(outputs)
        count = math.prod(outputs.shape[1:])
        vectors = scale * torch.eye(count).to(outputs).view(count, 1, *outputs.shape[1:])  # the same for all N data
        return vectors.expand(count, *outputs.shape)


class Laplace:
    r"""Independent numbers with density :math:`\exp(-|y - f| / b) / 2b`, of variance :math:`2 b^2`: absolute errors.

    Where its negative logarithm is differentiable it has no curvature; the factors are those of its Fisher information,
    :math:`1 / b^2` for each number.

    Args:
        variance: a float, or a scalar tensor, by which :meth:`negative_log` alone is differentiable.
    """

    def __init__(self, variance: float | Tensor):
        self.variance = _positive(variance)

    def negative_log(self, outputs: Float[Tensor, "N *out"], targets: Float[Tensor, "..."]) -> Float[Tensor, ""]:
        b = (self.variance / 2).sqrt()
        return _residuals(outputs, targets).abs().sum() / b + outputs.numel() * (2 * b).log()

    def factors(
        self, outputs: Float[Tensor, "N *out"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N *out"]:
        return Gaussian(self.variance / 2).factors(outputs, generator)


class Categorical:
    """Classes, with outputs as logits."""

    def negative_log(self, outputs: Float[Tensor, "N classes"], targets: Shaped[Tensor, "..."]) -> Float[Tensor, ""]:
        if targets.is_floating_point() or targets.shape != outputs.shape[:-1]:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape)} and targets of {tuple(targets.shape)}, {targets.dtype}: give "
                "one integer class for each datum"
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < outputs.shape[-1]:
            raise ValueError(
                f"classes from {int(targets.min())} to {int(targets.max())} and {outputs.shape[-1]} outputs: give classes "
                f"from 0 to {outputs.shape[-1] - 1}"
            )
        return F.cross_entropy(outputs, targets.long(), reduction="sum").double()

    def factors(
        self, outputs: Float[Tensor, "N classes"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N classes"]:
        p, one_hot = outputs.softmax(-1), torch.eye(outputs.shape[-1]).to(outputs)
        if generator is not None:
            classes = torch.multinomial(p.cpu(), 1, generator=generator).squeeze(-1).to(p.device)
            return (p - one_hot[classes])[None]
        # vector s is sqrt(p_s) (e_s - p): (S, N, 1) times (S, 1, classes) - (N, classes), with S = classes
        return p.sqrt().mT.unsqueeze(-1) * (one_hot[:, None] - p)


def _residuals(outputs: Float[Tensor, "N *out"], targets: Float[Tensor, "..."]) -> Float[Tensor, "N *out"]:
    if outputs.shape != targets.shape:  # torch would broadcast them
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of {tuple(targets.shape)}: give one target for each output"
        )
    return (outputs - targets).double()


def _positive(variance: float | Tensor) -> Float[Tensor, ""]:
    if not 0 < variance < math.inf:
        raise ValueError(f"variance={float(variance)} of a likelihood: give a positive finite number")
    return torch.as_tensor(variance, dtype=torch.float64)


# -- Gaussian priors of pathways -----------------------------------------------------------------------------------------------


LogVariances = Mapping[str, Mapping[str, Tensor]]


def negative_log_prior(module: nn.Module, log_variances: LogVariances | None = None) -> Float[Tensor, ""]:
    r"""Minus the log-density of a network's weights under the priors of its pathways,

    .. math:: \sum_p \frac{\lVert w_p \rVert^2}{2\sigma_p^2} + \frac{n_p}{2}\log(2\pi\sigma_p^2),

    where :math:`w_p` are the pathway's :math:`n_p` coefficients: :math:`\beta` of an equivariant weight in the orthonormal
    basis (not the scaled parameters that are stored), the free weights and biases themselves, and so on. Removed pathways, of
    variance 0, do not count. MAP training adds this, divided by the number of data, to the mean negative log-likelihood.

    Args:
        module: any module with pathways: a network, a layer, an ensemble, or an agent's modules in an ``nn.ModuleDict``.
        log_variances: :math:`\log\sigma^2` in the place of the stored ones, nested like ``net.pathway_variances()``; the result
            is differentiable in them, and in the weights.
    Returns:
        A scalar, in the dtype of the weights.
    Raises:
        ValueError: ``log_variances`` names a layer or pathway that the module does not have, or the module has no pathways.
    """
    by_pathway = {(layer, name): log for layer, inner in (log_variances or {}).items() for name, log in inner.items()}
    squares, logs, counts = [], [], []
    pathways = {(layer, name): pathway for layer, name, pathway in named_pathways(module)}
    if unknown := [key for key in by_pathway if key not in pathways]:
        known = ", ".join(map(".".join, pathways)) or "none"
        raise ValueError(f"log_variances for {'.'.join(unknown[0])}: no such pathway; there are {known}")
    for key, pathway in pathways.items():
        if coefficients := pathway.coefficients():
            log = by_pathway.get(key, pathway.log_variance)  # learned in an ensemble, one for each member
            each = zip(log, *coefficients, strict=True) if log.ndim else [(log, *coefficients)]
            for own_log, *own in each:
                squares.append(summed_squares(own))
                logs.append(own_log.to(squares[-1].dtype))
                counts.append(sum(c.numel() for c in own))
    if not squares:
        raise ValueError(
            f"{type(module).__name__} has no pathways, and so no prior: give a network of rppdyn.nn, before layers are merged"
        )
    w2, log_variance = torch.stack(squares), torch.stack(logs)  # a few operations for all pathways together
    normaliser = torch.stack([n * log for n, log in zip(counts, logs, strict=True)]).sum()
    return 0.5 * ((w2 * (-log_variance).exp()).sum() + normaliser + sum(counts) * math.log(2 * math.pi))


def prior_precision(ensemble: Ensemble) -> tuple[Float[Tensor, "N n"], Float[Tensor, " members"]]:
    r"""Diagonal of :math:`\Lambda` and constant b of each network's negative log prior :math:`v^T \Lambda v / 2 + b`.

    :math:`\Lambda` is diagonal, since coefficients are multiples of parameters. So its diagonal is the gradient
    :math:`\Lambda v` at v = (1, ..., 1), and b is the value at v = 0.

    Args:
        ensemble: networks that own their parameters, the vectors v of ``ensemble.flat``.
    Returns:
        :math:`\Lambda`, and b. If all networks agree :math:`\Lambda` has one row, which saves memory.
    """
    ones = torch.ones_like(ensemble.flat[:1])
    rows, constants = [], []
    for net in ensemble.nets:
        value = lambda v, net=net: call_with(  # noqa: E731
            net, {name: part.squeeze(0) for name, part in ensemble.named(v).items()}, negative_log_prior
        )
        rows.append(torch.func.grad(value)(ones))
        constants.append(value(torch.zeros_like(ones)).detach())
    agree = all(torch.equal(row, rows[0]) for row in rows)
    return rows[0] if agree else torch.cat(rows), torch.stack(constants)


STRICT_SHARE = 1e-3
"""Share of the prior below which a relaxed network is practically strict: free weights have 3 % of a weight's size."""

MIN_DEFECT = 1e-6
"""Smaller nonzero defects are raised to this; float32 rounds by about 1e-7."""

MAX_DEFECT = 0.99
"""Larger defects are lowered to this; a defect of 1 would give a share of 1."""


def share_of_defect(defect: float) -> float:
    r"""The share :math:`d^2` of the free pathway for a symmetry with the relative defect d.

    If a part d of a map's size is not equivariant it comes from the free pathway, and variances are squares of sizes.

    Args:
        defect: 0 for an exact symmetry; others are clamped to [`MIN_DEFECT`, `MAX_DEFECT`].
    Raises:
        ValueError: a defect that is negative, or no number.
    """
    if not defect >= 0:
        raise ValueError(f"defect={defect!r}: give a relative defect, zero or positive")
    return min(max(defect, MIN_DEFECT), MAX_DEFECT) ** 2 if defect else 0.0


def free_variance(share: float, equivariant_variance: float, inputs: int) -> float:
    r"""The free pathway's variance :math:`\sigma_b^2 = \sigma_a^2 s / (1 - s)`, with :math:`\sigma_a^2` at most 1 / inputs.

    Args:
        share: share of the free pathway, s, from 0 (which removes it) to below 1.
        equivariant_variance: prior variance of the equivariant pathway.
        inputs: number of inputs of the layer, n.
    Raises:
        ValueError: a share outside of [0, 1); an equivariant variance that is not positive; no inputs.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share={share!r}: give the free pathway's part of the prior, from 0 to below 1")
    return _weight_variance(equivariant_variance, inputs) * share / (1 - share)


def free_share(free: float, equivariant_variance: float, inputs: int) -> float:
    r"""The share of the free pathway: the inverse of :func:`free_variance`; 1 without an equivariant pathway."""
    return free / (free + _weight_variance(equivariant_variance, inputs)) if equivariant_variance else 1.0


def _weight_variance(equivariant_variance: float, inputs: int) -> float:
    """The equivariant prior's variance, at most 1 / inputs."""
    if not (equivariant_variance > 0 and inputs >= 1):
        raise ValueError(f"equivariant_variance={equivariant_variance!r} and inputs={inputs!r}: both must be positive")
    return min(equivariant_variance, 1 / inputs)
