r"""A squashed Gaussian whose mean transforms under rho, for actions that a group permutes and flips, or turns.

Squashing by tanh and exponentiating a standard deviation act entry by entry, so they commute with permutations, and
tanh is odd, so it commutes with signs; a standard deviation then transforms under |rho|. They commute with nothing else.
Where an orthogonal representation mixes entries (a torque that a rotation turns), those that it mixes form a *block* with
one standard deviation, which is invariant, and a radial squash: a block u becomes u tanh|u| / |u|, in the unit ball. For
a block of one entry that is tanh(u).

Blocks are those of `rppdyn.nn.normaliser`; None stands for an ordinary tanh.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # as in stable-baselines3

SMALLEST_RADIUS = 1e-6  # of a block: below it the radial squash is the identity to rounding

_LOG_2 = math.log(2.0)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def split(output: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean and the clamped logarithm of the standard deviation, each (..., dim), from a network's output.

    Args:
        output: (..., 2 dim), or (..., dim + blocks).
    """
    if blocks is None:
        mean, log_std = output.chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    count, dim = blocks.shape
    mean, log_std = output.split([dim, count], dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX) @ blocks


def mode(output: Tensor, blocks: Tensor | None = None) -> Tensor:
    """The deterministic action, (..., dim): the squashed mean, from a network's output as in `split`."""
    return squash(split(output, blocks)[0], blocks)[0]


def squash(u: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""The squashed action (..., dim), and the logarithm of the squash's Jacobian determinant (...).

    tanh(u) has log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) per entry, which stays finite where 1 - a^2 rounds to
    zero. A block of d entries and radius r is stretched by 1 - tanh(r)^2 along its radius and by tanh(r) / r across it.
    """
    if blocks is None:
        return torch.tanh(u), 2.0 * (_LOG_2 - u - softplus(-2.0 * u)).sum(-1)
    r = (u.square() @ blocks.mT).clamp_min(SMALLEST_RADIUS**2).sqrt()
    scale = torch.tanh(r) / r
    radial = 2.0 * (_LOG_2 - r - softplus(-2.0 * r))
    return u * (scale @ blocks), (radial + (blocks.sum(-1) - 1.0) * scale.log()).sum(-1)


def action(output: Tensor, noise: Tensor, blocks: Tensor | None = None) -> Tensor:
    """The action of `sample` alone."""
    mean, log_std = split(output, blocks)
    u = mean + log_std.exp() * noise
    return torch.tanh(u) if blocks is None else squash(u, blocks)[0]


def sample(output: Tensor, noise: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""A squashed action and its log-density, from the network's output and standard normal noise.

    u = mean + exp(log_std) * noise, a = squash(u), log p(a) = log N(u; mean, std) - log |da/du|.

    Args:
        output: mean and log standard deviation, as in `split`.
        noise: (..., dim), standard normal.
    Returns:
        The action, inside the unit interval or ball, shape (..., dim), and log p, shape (...).
    Source: Haarnoja et al. 2018, appendix C, for tanh.
    """
    mean, log_std = split(output, blocks)
    action, log_determinant = squash(mean + log_std.exp() * noise, blocks)
    density = -0.5 * noise.square() - log_std - _HALF_LOG_2_PI
    return action, density.sum(-1) - log_determinant
