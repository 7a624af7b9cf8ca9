"""The error along rollouts: exact models, a drift of known size, controls."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator

from rppdyn.dynamics import NeuralODEModel, integrate
from rppdyn.equivariance import rollout_equivariance_error, trajectory_equivariance_error
from rppdyn.groups import SO, O, S, Z
from rppdyn.reps import Pseudoscalar, Scalar, V

X = torch.randn(30, 3, generator=generator(0), dtype=torch.float64)


def test_an_equivariant_model_stays_at_rounding():
    G = SO(3)
    error = rollout_equivariance_error(lambda x: x + 0.1 * x * x.norm(dim=-1, keepdim=True).tanh(), V(G), X, 50)
    assert error.errors.shape == (4, 50, 30) and error.over().mean < 1e-14


def test_a_drift_of_known_size():
    """x -> x + c under x -> -x: the rollouts -x0 - kc and -x0 + kc differ by 2kc, and their sizes are x0 + kc and |kc - x0|."""
    G, c, horizon = O(1), 0.1, 8
    x = torch.linspace(1, 2, 5, dtype=torch.float64)[:, None]
    error = rollout_equivariance_error(lambda x: x + c, V(G), x, horizon)
    k = torch.arange(1, horizon + 1, dtype=torch.float64)[:, None] * c
    expected = 2 * k / ((x[:, 0] + k) + (k - x[:, 0]).abs())
    torch.testing.assert_close(error.errors[0], expected)
    torch.testing.assert_close(error.over().per_input, expected.log().mean(0).exp())
    assert error.over(3).mean == pytest.approx(expected[:3].log().mean(0).exp().mean().item())
    torch.testing.assert_close(error.per_step, expected.log().mean(1).exp())
    assert error.over(1).mean < error.over(8).mean and error.over().interval[0] < error.over().mean


def test_controls_transform_too():
    G = O(1) * S(2)
    state, control = Pseudoscalar(O(1)).lift(G), Pseudoscalar(O(1)).lift(G)
    x, u = X[:, :1], torch.randn(6, 30, 1, generator=generator(1), dtype=torch.float64)
    step = lambda x, u: (0.9 * x + u).tanh()  # noqa: E731
    options = dict(controls=u, generator=generator(2))
    right = rollout_equivariance_error(step, state, x, 6, rep_control=control, **options)
    assert right.over().mean < 1e-15
    wrong = rollout_equivariance_error(step, state, x, 6, rep_control=Scalar(G), **options)
    assert wrong.over().mean > 0.1 and "6 steps" in repr(wrong)


def test_errors_name_the_fault():
    G = SO(3)
    with pytest.raises(ValueError, match="after 3 steps has entries that are not finite"):
        rollout_equivariance_error(lambda x: x * 1e150, V(G), X, 5)
    with pytest.raises(ValueError, match="horizon=0"):
        rollout_equivariance_error(lambda x: x, V(G), X, 0)
    with pytest.raises(ValueError, match="belong together"):
        rollout_equivariance_error(lambda x, u: x, V(G), X, 2, controls=X[None])
    with pytest.raises(ValueError, match="for 2 steps of 30"):
        rollout_equivariance_error(lambda x, u: x, V(G), X, 2, controls=X[None], rep_control=V(G))
    with pytest.raises(ValueError, match="horizon=9"):
        rollout_equivariance_error(lambda x: x, V(G), X, 2).over(9)
    assert math.isfinite(rollout_equivariance_error(lambda x: x, V(G), X, 2).over().mean)


# -- whole trajectories -----------------------------------------------------------------------------------------------


def flow(field, times, **options):
    """Initial states to solutions of dx/dt = field(x), nan from where they diverged."""

    class Field(torch.nn.Module):
        forward = staticmethod(field)

    def solve(x):
        found = integrate(NeuralODEModel(Field()), x, times, **options)
        return torch.where(found.diverged[:, None, None], torch.nan, found.states)

    return solve


def test_trajectories_agree_with_rollouts_step_by_step():
    field = lambda x: torch.linalg.cross(x, x.new_tensor([0.0, 0.3, 1.0]).expand_as(x)) - 0.1 * x * x[..., :1]  # noqa: E731
    times = torch.linspace(0, 3, 16, dtype=torch.float64)
    step = lambda x: flow(field, times[:2], method="rk4", step=0.05)(x)[:, 1]  # noqa: E731
    by_step = rollout_equivariance_error(step, V(SO(3)), X, 15, generator=generator(4))
    whole = trajectory_equivariance_error(
        flow(field, times, method="rk4", step=0.05), V(SO(3)), X, generator=generator(4)
    )
    torch.testing.assert_close(whole.errors, by_step.errors, rtol=1e-9, atol=0)
    assert whole.over().mean > 0.01 and whole.left_out == 0


def test_adaptive_steps_are_not_blamed_on_the_model():
    """Solved apart, two images of a trajectory differ by the solver's tolerance; together, by rounding."""
    field = lambda x: -x * x.norm(dim=-1, keepdim=True).sin()  # noqa: E731
    solve = flow(field, torch.linspace(0, 5, 6, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    x = X[:5]
    apart = rollout_equivariance_error(lambda x: solve(x)[:, -1], V(SO(3)), x, 1)
    assert trajectory_equivariance_error(solve, V(SO(3)), x).over().mean < 1e-13 < 1e-9 < apart.over().mean


def test_trajectories_that_diverge_are_left_out_and_counted():
    x = torch.tensor([[0.5, 0, 0], [0, 0.6, 0], [0, 0, 3.0]], dtype=torch.float64)
    field = lambda x: x * (x.square().sum(-1, keepdim=True) - 1)  # noqa: E731  # beyond the unit sphere all diverge
    times = torch.linspace(0, 2, 5, dtype=torch.float64)
    error = trajectory_equivariance_error(flow(field, times, method="rk4", step=0.02), V(SO(3)), x)
    assert error.left_out == 1 and error.errors.shape == (4, 4, 2) and error.over().mean < 1e-14
    none = trajectory_equivariance_error(flow(field, times, method="rk4", step=0.02), V(SO(3)), x[2:])
    assert none.left_out == 1 and math.isnan(none.over().mean) and none.per_step.isnan().all()
    with pytest.raises(ValueError, match="at least one initial state"):
        trajectory_equivariance_error(flow(field, times), V(SO(3)), x[:0])


def test_few_samples_of_a_finite_group_are_none_of_them_the_identity():
    """Its error is 0, and a geometric mean with rounding in the place of 0 is far too small."""
    A = torch.eye(6, dtype=torch.float64)
    A[0, 1] = 0.5
    x = torch.randn(400, 6, generator=generator(0), dtype=torch.float64)
    few, every = (rollout_equivariance_error(lambda z: z @ A.T, V(Z(6)), x, 2, n_samples=n).per_step for n in (3, 5))
    torch.testing.assert_close(few, every, rtol=0.2, atol=0)
