"""The Gaussian prior of every pathway of a network, exact."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.pathways import named_pathways

__all__ = ["negative_log_prior"]

LogVariances = Mapping[str, Mapping[str, Tensor]]


def negative_log_prior(module: nn.Module, log_variances: LogVariances | None = None) -> Float[Tensor, ""]:
    r"""Minus the log-density of a network's weights under the priors of its pathways,

    .. math:: \sum_p \frac{\lVert w_p \rVert^2}{2\sigma_p^2} + \frac{n_p}{2}\log(2\pi\sigma_p^2),

    where :math:`w_p` are the pathway's :math:`n_p` coefficients: :math:`\beta` of an equivariant weight in the orthonormal
    basis (not the scaled parameters that are stored), the free weights and biases themselves, and so on. A pathway
    of variance 0 does not exist and counts nothing. MAP training adds this, divided by the number of data, to the mean
    negative log-likelihood.

    Args:
        module: anything that holds pathways: a network, a layer, or an agent's modules in an ``nn.ModuleDict``.
        log_variances: :math:`\log\sigma^2` that take the place of the stored ones, nested like
            ``net.pathway_variances()``; the result is differentiable in them, as in the weights.
    Returns:
        A scalar, in the dtype of the weights.
    Raises:
        ValueError: ``log_variances`` names a layer or pathway that the module does not have, or it has none at all.
    """
    given = {(layer, name): s for layer, inner in (log_variances or {}).items() for name, s in inner.items()}
    squares, logs, counts = [], [], []
    known = []
    for layer, name, pathway in named_pathways(module):
        stored = pathway.log_variances(name)
        known += [f"{layer}.{part}" for part in stored]
        for term in pathway.prior_terms(*(given.pop((layer, part), s) for part, s in stored.items())):
            squares.append(term.square)
            logs.append(term.log_variance.to(term.square.dtype))
            counts.append(term.size)
    if given:
        raise ValueError(
            f"log_variances for {'.'.join(next(iter(given)))}: no such pathway; there are {', '.join(known) or 'none'}"
        )
    if not squares:
        raise ValueError(
            f"{type(module).__name__} has no pathways, and so no prior: give a network of rppdyn.nn, before layers are merged"
        )
    w2, s = torch.stack(squares), torch.stack(logs)  # a few operations for all pathways together
    normaliser = torch.stack([n * log for n, log in zip(counts, logs, strict=True)]).sum()
    return 0.5 * ((w2 * (-s).exp()).sum() + normaliser + sum(counts) * math.log(2 * math.pi))
