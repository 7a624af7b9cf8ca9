"""The planner beside what is optimal, on a linear system with quadratic costs."""

import pytest
import torch
from scipy.linalg import solve_discrete_are

from rppdyn.dynamics import CrossEntropyPlanner, TransitionModel
from rppdyn.groups import Z
from rppdyn.nn import MLP, RPPEMLP, Ensemble
from rppdyn.reps import Pseudoscalar

A = torch.tensor([[1.0, 0.2], [0.1, 1.0]], dtype=torch.float64)  # unstable
B = torch.tensor([[0.0], [0.2]], dtype=torch.float64)
LOW, HIGH = torch.full((1,), -3.0, dtype=torch.float64), torch.full((1,), 3.0, dtype=torch.float64)


def linear_model(members: int | None = None) -> TransitionModel:
    """x' = A x + B u, by a network without hidden layers."""
    G = Z(2)
    state, action = 2 * Pseudoscalar(G), Pseudoscalar(G)
    net = MLP(TransitionModel.rep_in(state, action), state, G, hidden=[])
    with torch.no_grad():
        net.head.free.weight.copy_(torch.cat([A - torch.eye(2), B], 1))
        net.head.free.bias.zero_()
    return TransitionModel(net if members is None else Ensemble([net] * members), state, action).double()


def cost(x, u, after):
    return -(after.square().sum(-1) + 0.1 * u.square().sum(-1))


def optimal_cost(x: torch.Tensor) -> float:
    """Of all steps to come, from the Riccati equation; the state at the beginning is none of them."""
    P = solve_discrete_are(A.numpy(), B.numpy(), torch.eye(2).numpy(), [[0.1]])
    return float(x @ torch.from_numpy(P) @ x - x @ x)


def run(planner: CrossEntropyPlanner, x: torch.Tensor, steps: int = 40) -> float:
    total = 0.0
    for _ in range(steps):
        u = planner.act(x)
        after = A @ x + B @ u
        total -= float(cost(x, u, after))
        x = after
    return total


def test_it_comes_close_to_the_linear_quadratic_regulator():
    x = torch.tensor([1.0, -0.5], dtype=torch.float64)
    search = dict(horizon=12, samples=200, elites=20, iterations=8)
    planner = CrossEntropyPlanner(linear_model(3), LOW, HIGH, reward=cost, **search)
    assert optimal_cost(x) < run(planner, x) < 1.08 * optimal_cost(x)
    blind = CrossEntropyPlanner(linear_model(), LOW, HIGH, reward=cost, horizon=1, samples=100, elites=15)
    assert run(blind, x) > 1.2 * optimal_cost(x)  # one step ahead, the speed that a force makes has not moved anything


def test_an_episode_repeats_and_reset_forgets():
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    first, second = (
        CrossEntropyPlanner(linear_model(), LOW, HIGH, reward=cost, samples=50, elites=5) for _ in range(2)
    )
    assert torch.equal(first.act(x), second.act(x))
    assert first.mean.abs().max() > 0.1
    first.reset()
    assert not first.mean.any()


def test_it_plans_with_the_weights_that_the_model_has():
    G = Z(2)
    state, action = 2 * Pseudoscalar(G), Pseudoscalar(G)
    net = RPPEMLP(TransitionModel.rep_in(state, action), state, G, hidden=8)
    model = TransitionModel(net, state, action)
    x, low, high = torch.ones(2), LOW.float(), HIGH.float()
    actions = torch.ones(1, 3, 1)
    before = CrossEntropyPlanner(model, low, high, reward=cost, horizon=3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    after = CrossEntropyPlanner(model, low, high, reward=cost, horizon=3)
    assert before.returns(x, actions).equal(after.returns(x, actions))
    assert before.plan(x).equal(after.plan(x))


@pytest.mark.parametrize(
    ("bounds", "options", "words"),
    [
        ((LOW, HIGH), dict(samples=4, elites=5), "elites=5 of samples=4"),
        ((LOW, HIGH), dict(horizon=0), "horizon=0"),
        *(((LOW, HIGH), dict(discount=d), "discount=.*: give a number from 0 to 1") for d in (-0.1, 1.1, torch.nan)),
        ((HIGH, LOW), {}, r"low=\[3.0\] and high=\[-3.0\]"),
        ((LOW, HIGH), dict(reward=None), "has learned no rewards"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(bounds, options, words):
    with pytest.raises(ValueError, match=words):
        CrossEntropyPlanner(linear_model(), *bounds, **(dict(reward=cost) | options))


@pytest.mark.parametrize("number", [1.0, torch.inf, torch.nan])
def test_rewards_after_an_end_do_not_count_whatever_they_are(number):
    """A learned model may say anything of states behind the last."""
    ends = lambda x: x[..., 0] > 1.5  # noqa: E731
    reward = lambda x, u, after: torch.where(ends(x), number, 1.0).to(x)  # noqa: E731
    planner = CrossEntropyPlanner(linear_model(), LOW, HIGH, reward=reward, ends=ends)
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = planner.returns(x, HIGH.expand(5, 6, 1))
    x_t, steps = x, 0
    while not ends(x_t):
        x_t, steps = A @ x_t + B @ HIGH, steps + 1
    assert 1 < steps < 6 and torch.equal(found, torch.full((5,), float(steps), dtype=torch.float64))
    assert planner.returns(-x, torch.zeros(1, 6, 1).double()).item() == 6.0
