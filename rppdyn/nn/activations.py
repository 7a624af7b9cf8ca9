"""Activations of hidden layers by name, and the gains that keep the size of features."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ACTIVATIONS", "SWISH", "Activation", "activation_of"]


@dataclass(frozen=True)
class Activation:
    r"""A function of each coordinate.

    Attributes:
        gain: :math:`E[f(z)^2]^{-1/2}` for :math:`z \sim N(0, 1)`, which keeps the mean square of hidden features near one.
        is_odd: whether :math:`f(-z) = -f(z)`; such functions commute with changes of sign, all others with permutations alone.
        module: the class of `torch.nn` that is the same function.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    gain: float
    module: type[nn.Module]
    is_odd: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def __reduce__(self) -> tuple:
        """Copies and pickles are the same object: layers ask which one they have."""
        return activation_of, (self.name,)


def _gain(function: Callable[[Tensor], Tensor]) -> float:
    z = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / np.sqrt(2 * np.pi)
    return round(float(torch.trapezoid(density * function(z).square(), z)) ** -0.5, 4)


SWISH = Activation("swish", F.silu, 1.6766, nn.SiLU)
"""The usual one."""

_OTHERS: tuple[tuple[str, Callable[[Tensor], Tensor], type[nn.Module]], ...] = (
    ("relu", F.relu, nn.ReLU),
    ("tanh", torch.tanh, nn.Tanh),
    ("gelu", F.gelu, nn.GELU),
    ("elu", F.elu, nn.ELU),
    ("leaky_relu", F.leaky_relu, nn.LeakyReLU),
    ("mish", F.mish, nn.Mish),
    ("softplus", F.softplus, nn.Softplus),
    ("sigmoid", torch.sigmoid, nn.Sigmoid),
)

ACTIVATIONS: dict[str, Activation] = {"swish": SWISH} | {
    name: Activation(name, function, _gain(function), module, is_odd=name == "tanh")
    for name, function, module in _OTHERS
}
"""By name."""

ALIASES = {"silu": "swish"}


def activation_of(activation: Any, key: str = "activation") -> Activation:
    """The activation that a name or a class of `torch.nn` stands for.

    Args:
        key: how a message calls what was given.
    Raises:
        ValueError: there is none of that name, or of that class.

    >>> activation_of("relu").gain, activation_of(nn.Tanh).name
    (1.4142, 'tanh')
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        name = ALIASES.get(activation.lower(), activation.lower())
    else:
        name = next((a.name for a in ACTIVATIONS.values() if activation is a.module or activation is a.function), "")
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    close = difflib.get_close_matches(name, [*ACTIVATIONS, *ALIASES], n=1) if name else []
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    modules = ", ".join(a.module.__name__ for a in ACTIVATIONS.values())
    raise ValueError(
        f"{key}={activation!r}: no activation{hint}; choose one of {', '.join(ACTIVATIONS)}, or of torch.nn's classes {modules}"
    )
