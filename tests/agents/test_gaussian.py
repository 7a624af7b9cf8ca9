"""The squashed Gaussian against torch.distributions, and its symmetry."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rppdyn.agents import _networks as networks
from rppdyn.groups import SO, O2eR3, SO2eR3, Z
from rppdyn.nn._normaliser import deviation_rep, mixing_blocks
from rppdyn.reps import Scalar, V


def test_density_is_that_of_torch_distributions():
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(64, 6, generator=generator, dtype=torch.float64).clamp(-1.0, 0.5)
    noise = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    action, log_prob = networks.sample_with_log_prob(output, noise)
    mean, log_std = output.chunk(2, -1)
    squashed = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), TanhTransform(cache_size=1))
    u = mean + log_std.exp() * noise
    torch.testing.assert_close(action, u.tanh())
    expected = Independent(Normal(mean, log_std.exp()), 1).log_prob(u) - torch.log1p(-(u.tanh() ** 2)).sum(-1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_prob, squashed.log_prob(action), rtol=1e-6, atol=1e-6)


def test_density_stays_finite_where_tanh_saturates():
    output = torch.tensor([[80.0, math.log(0.1)]], requires_grad=True)
    action, log_prob = networks.sample_with_log_prob(output, torch.zeros(1, 1))
    log_prob.sum().backward()
    assert action.item() == 1.0 and log_prob.isfinite() and output.grad.isfinite().all()


def test_signed_permutation_of_mean_and_permutation_of_deviation_commute_with_sampling():
    sign, order = torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([1, 0, 2])
    mean, log_std, noise = torch.randn(3, 10, 3, generator=torch.Generator().manual_seed(1)).unbind(0)
    action, log_prob = networks.sample_with_log_prob(torch.cat([mean, log_std], -1), noise)
    moved = torch.cat([(sign * mean)[:, order], log_std[:, order]], -1)
    other, other_log_prob = networks.sample_with_log_prob(moved, (sign * noise)[:, order])
    torch.testing.assert_close(other, (sign * action)[:, order], rtol=0, atol=0)
    torch.testing.assert_close(other_log_prob, log_prob)


def test_the_action_alone_is_that_of_a_sample():
    output = 3 * torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
    for blocks, dim in ((None, 2), (BLOCKS.float(), 3)):
        noise = torch.randn(64, dim, generator=torch.Generator().manual_seed(3))
        seen = output[:, : 2 * dim] if blocks is None else output
        assert torch.equal(
            networks.sample_action(seen, noise, blocks), networks.sample_with_log_prob(seen, noise, blocks)[0]
        )


BLOCKS = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)


def test_blocks_are_what_a_representation_mixes():
    assert mixing_blocks(V(SO2eR3())).tolist() == BLOCKS.tolist()
    assert mixing_blocks((V + Scalar)(O2eR3())).tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert mixing_blocks((2 * V)(SO(3))).tolist() == [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert mixing_blocks(V(Z(3))) is None
    assert deviation_rep(V(O2eR3()), BLOCKS) == 2 * Scalar(O2eR3())


def test_a_radial_squash_has_its_own_density():
    """Against the Jacobian of u tanh|u| / |u| by automatic differentiation, also near zero and far out."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(200, 3, generator=generator, dtype=torch.float64) * torch.logspace(-5, 0.6, 200).double()[:, None]
    action, log_determinant = networks.squash(u, BLOCKS)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: networks.squash(v, BLOCKS)[0]))(u)
    torch.testing.assert_close(log_determinant, torch.linalg.slogdet(jacobian)[1], rtol=1e-7, atol=1e-9)
    r = u[:, :2].norm(dim=-1)
    torch.testing.assert_close(action[:, :2].norm(dim=-1), r.tanh(), rtol=1e-10, atol=0)
    torch.testing.assert_close(action[:, 2], u[:, 2].tanh(), rtol=1e-10, atol=0)
    singles = torch.eye(3, dtype=torch.float64)
    for one, other in zip(networks.squash(u, singles), networks.squash(u), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_density_of_blocks_integrates_to_one():
    mean, log_std = torch.tensor([0.4, -0.8]).double(), torch.tensor([-0.3]).double()
    blocks = torch.ones(1, 2, dtype=torch.float64)
    grid = torch.linspace(-1, 1, 801, dtype=torch.float64)
    a = torch.cartesian_prod(grid, grid)
    r = a.norm(dim=-1, keepdim=True)
    inside = a[(r < 1).squeeze(-1)]
    u = inside * (r[r < 1].atanh() / r[r < 1].clamp_min(1e-12))[:, None]
    noise = (u - mean) / log_std.exp()
    output = torch.cat([mean, log_std]).expand(len(u), 3)
    action, log_prob = networks.sample_with_log_prob(output, noise, blocks)
    torch.testing.assert_close(action, inside, rtol=1e-9, atol=1e-9)
    assert float(log_prob.exp().sum() * (grid[1] - grid[0]) ** 2) == pytest.approx(1, abs=1e-2)


def test_sampling_blocks_commutes_with_rotations_and_a_tanh_does_not():
    rotations = SO2eR3().samples(50, torch.Generator().manual_seed(2))
    mean, noise = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).unbind(0)
    log_std = torch.tensor([[-0.5, 0.2]], dtype=torch.float64).expand(50, 2)
    turn = lambda x: torch.einsum("nij,nj->ni", rotations, x)  # noqa: E731
    action, log_prob = networks.sample_with_log_prob(torch.cat([mean, log_std], -1), noise, BLOCKS)
    moved, moved_log_prob = networks.sample_with_log_prob(torch.cat([turn(mean), log_std], -1), turn(noise), BLOCKS)
    torch.testing.assert_close(moved, turn(action), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moved_log_prob, log_prob, rtol=1e-12, atol=1e-12)
    assert (torch.tanh(turn(mean)) - turn(torch.tanh(mean))).abs().max() > 0.1


def test_blocks_stay_finite_at_zero_and_far_out():
    output = torch.tensor([[0.0, 0.0, 0.0, -20.0, -20.0], [60.0, 80.0, -90.0, -1.0, -1.0]], requires_grad=True)
    action, log_prob = networks.sample_with_log_prob(output, torch.zeros(2, 3), BLOCKS.float())
    (log_prob.sum() + action.sum()).backward()
    assert log_prob.isfinite().all() and output.grad.isfinite().all() and action[0].tolist() == [0, 0, 0]
    torch.testing.assert_close(action[1], torch.tensor([0.6, 0.8, -1.0]))
