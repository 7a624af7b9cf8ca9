"""Likelihoods of a network's outputs: their negative logarithm, and square roots of its Hessian."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Categorical", "Gaussian", "Laplace", "Likelihood"]


@runtime_checkable
class Likelihood(Protocol):
    """What the marginal likelihood asks of a likelihood."""

    def negative_log(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """Summed over the data."""
        ...

    def factors(
        self, outputs: Float[Tensor, "N *out"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N *out"]:
        r"""Vectors :math:`v_s` with :math:`\sum_s v_s v_s^T` the Hessian of the negative logarithm by each datum's outputs.

        With a generator one random vector with that mean: the gradient for a target drawn from the likelihood itself, which
        makes the curvature an estimate of the Fisher information.
        """
        ...


class Gaussian:
    r"""Independent normal numbers with one variance :math:`s^2`.

    Args:
        variance: a float, or a scalar tensor to differentiate by.
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
        each = scale * torch.eye(count).to(outputs).view(count, 1, *outputs.shape[1:])
        return each.expand(count, *outputs.shape)


class Laplace:
    r"""Independent numbers with density :math:`\exp(-|y - f| / b) / 2b`, of variance :math:`2 b^2`: absolute errors.

    Its negative logarithm has no curvature but where it is not differentiable; the factors are those of its Fisher information,
    :math:`1 / b^2` for each number.

    Args:
        variance: a float, or a scalar tensor to differentiate by.
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
                "classes, integers, one for each datum"
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < outputs.shape[-1]:
            raise ValueError(
                f"classes from {int(targets.min())} to {int(targets.max())} and {outputs.shape[-1]} outputs: give classes "
                f"from 0 to {outputs.shape[-1] - 1}"
            )
        return F.cross_entropy(outputs, targets, reduction="sum").double()

    def factors(
        self, outputs: Float[Tensor, "N classes"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "S N classes"]:
        p = outputs.softmax(-1)
        each = torch.eye(outputs.shape[-1]).to(outputs)
        if generator is not None:
            drawn = torch.multinomial(p.cpu(), 1, generator=generator).squeeze(-1).to(p.device)
            return (p - each[drawn])[None]
        return p.sqrt().mT.unsqueeze(-1) * (each[:, None] - p)


def _residuals(outputs: Float[Tensor, "N *out"], targets: Float[Tensor, "..."]) -> Float[Tensor, "N *out"]:
    if outputs.shape != targets.shape:  # which torch would spread over each other
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of {tuple(targets.shape)}: give one target for each output"
        )
    return (outputs - targets).double()


def _positive(variance: float | Tensor) -> Float[Tensor, ""]:
    if not 0 < variance < math.inf:
        raise ValueError(f"variance={float(variance)} of a likelihood: give a positive finite number")
    return torch.as_tensor(variance, dtype=torch.float64)
