"""The squashed Gaussian against torch.distributions, and its symmetry."""

from __future__ import annotations

import math

import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rppdyn.agents import gaussian


def test_density_is_that_of_torch_distributions():
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(64, 6, generator=generator, dtype=torch.float64).clamp(-1.0, 0.5)
    noise = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    action, log_prob = gaussian.sample(output, noise)
    mean, log_std = output.chunk(2, -1)
    squashed = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), TanhTransform(cache_size=1))
    u = mean + log_std.exp() * noise
    torch.testing.assert_close(action, u.tanh())
    expected = Independent(Normal(mean, log_std.exp()), 1).log_prob(u) - torch.log1p(-(u.tanh() ** 2)).sum(-1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_prob, squashed.log_prob(action), rtol=1e-6, atol=1e-6)


def test_density_stays_finite_where_tanh_saturates():
    output = torch.tensor([[80.0, math.log(0.1)]], requires_grad=True)
    action, log_prob = gaussian.sample(output, torch.zeros(1, 1))
    log_prob.sum().backward()
    assert action.item() == 1.0 and log_prob.isfinite() and output.grad.isfinite().all()


def test_signed_permutation_of_mean_and_permutation_of_deviation_commute_with_sampling():
    sign, order = torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([1, 0, 2])
    mean, log_std, noise = torch.randn(3, 10, 3, generator=torch.Generator().manual_seed(1)).unbind(0)
    action, log_prob = gaussian.sample(torch.cat([mean, log_std], -1), noise)
    moved = torch.cat([(sign * mean)[:, order], log_std[:, order]], -1)
    other, other_log_prob = gaussian.sample(moved, (sign * noise)[:, order])
    torch.testing.assert_close(other, (sign * action)[:, order], rtol=0, atol=0)
    torch.testing.assert_close(other_log_prob, log_prob)
