"""The sampled equivariance error and the Lie derivative, against analytic values and with negative controls."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator

from rppdyn.equivariance import equivariance_error, error_by_input, error_by_output, lie_derivative, summarise
from rppdyn.equivariance._lie import check_actions
from rppdyn.groups import SO, D, O, S, SO2eR3, U
from rppdyn.nn import EMLP, MLP
from rppdyn.reps import Pseudoscalar, Scalar, T, V

X = torch.randn(50, 3, generator=generator(5), dtype=torch.float64)


def test_equivariant_functions_have_rounding_error_and_a_dense_map_has_not():
    G = O(3)
    outer = equivariance_error(lambda x: (x[:, :, None] * x[:, None]).reshape(-1, 9), V(G), T(2)(G), X)
    assert outer.mean < 1e-14 and max(outer.per_generator.values()) < 1e-14 and outer.vacuous == 0
    assert set(outer.per_generator) == {"h0", "A0", "A1", "A2"}
    single = equivariance_error(lambda x: (x * x.norm(dim=-1, keepdim=True)).float(), V(G), V(G), X)
    assert single.mean < 1e-6 and max(single.per_generator.values()) < 1e-6
    W = torch.randn(3, 3, generator=generator(1), dtype=torch.float64)
    dense = equivariance_error(lambda x: x @ W.T, V(SO(3)), V(SO(3)), X)
    assert dense.mean > 0.1 and dense.interval[0] < dense.mean < dense.interval[1]


def test_error_of_a_reflection_broken_map_is_its_analytic_value():
    # f(x) = x_0 is odd under h = diag(-1, 1, 1); with f(x) = x_0 + c the two sides are c - x_0 and c + x_0.
    G, c = O(1) * S(2), 3.0
    x = torch.rand(20, 3, generator=generator(2), dtype=torch.float64)
    error = equivariance_error(lambda x: x[:, :1] + c, V(G), Pseudoscalar(O(1)).lift(G), x)
    # rho_out(h) f(x) = -(x + c), f(h x) = c - x:  difference 2c, sizes (x + c) + (c - x) = 2c.
    assert error.per_generator["h0"] == pytest.approx(1.0)
    invariant = equivariance_error(lambda x: x[:, :1] + c, V(G), Scalar(G), x)
    # (x + c) against (c - x): 2x / 2c.
    assert invariant.per_generator["h0"] == pytest.approx((x[:, 0] / c).mean().item())


def test_complex_groups_act_on_complex_vectors_alone():
    G, x = U(2), torch.randn(20, 2, generator=generator(3), dtype=torch.complex128)
    linear = equivariance_error(lambda x: (1 + 2j) * x, V(G), V(G), x)
    assert linear.mean < 1e-14 and max(linear.per_generator.values()) < 1e-14
    assert min(equivariance_error(torch.sin, V(G), V(G), x).per_generator.values()) > 0.1
    for measure in (equivariance_error, lie_derivative):
        with pytest.raises(
            ValueError, match=r"U\(2\) acts by complex matrices, and the vectors are real: give complex"
        ):
            measure(torch.sin, V(G), V(G), x.real)
    assert equivariance_error(torch.sin, 2 * Scalar(G), 2 * Scalar(G), x.real).mean == 0
    phase = V(U(1)) * V(U(1)).T  # real, up to rounding
    assert equivariance_error(torch.sin, phase, phase, x.real[:, :1]).mean < 1e-14


def test_blame_falls_on_the_broken_generator():
    # Invariant to rotations about z, not about x or y.
    error = equivariance_error(lambda x: x[:, 2:] + 2, V(SO(3)), Scalar(SO(3)), X)
    blame = error.per_generator
    assert sorted(blame.values())[0] < 1e-14 and sorted(blame.values())[1] > 0.05
    axis = min(blame, key=blame.get)
    assert SO(3).lie_algebra[int(axis[1:])].equal(SO2eR3().lie_algebra[0])


def test_a_zero_function_is_vacuous_not_perfect():
    error = equivariance_error(lambda x: 0 * x, V(SO(3)), V(SO(3)), X)
    assert math.isnan(error.mean) and error.vacuous == 1.0
    half = equivariance_error(lambda x: x * (x[:, :1] ** 2 > 100), V(SO2eR3()), V(SO2eR3()), X)
    assert half.vacuous == 1.0


def test_finite_groups_use_every_element():
    G = D(3)
    x = X[:, :2]
    W = torch.randn(2, 2, generator=generator(3), dtype=torch.float64)
    error = equivariance_error(lambda x: x @ W.T, V(G), V(G), x, n_samples=5)
    by_hand = []
    for g in G.elements()[1:]:
        a, b = x @ W.T @ g.T, x @ g.T @ W.T
        by_hand.append((a - b).norm(dim=1) / (a.norm(dim=1) + b.norm(dim=1)))
    assert error.mean == pytest.approx(torch.stack(by_hand).mean().item(), rel=1e-12)


def test_lie_derivative_is_the_limit_of_finite_transformations():
    G, t = SO(3), 1e-6
    W = torch.randn(9, 3, generator=generator(4), dtype=torch.float64)

    def f(x):
        return torch.tanh(x @ W.T)

    rep_in, rep_out = V(G), T(2)(G)
    exact = lie_derivative(f, rep_in, rep_out, X)
    for i, A in enumerate(G.lie_algebra):
        plus, minus = (torch.linalg.matrix_exp(s * t * A) for s in (1, -1))
        values = [f(X @ rep_in.rho(g).T) @ torch.linalg.inv(rep_out.rho(g)).T for g in (plus, minus)]
        torch.testing.assert_close(exact[i], (values[0] - values[1]) / (2 * t), atol=1e-8, rtol=1e-7)


def test_a_function_may_write_into_its_input():
    x, G = X.clone(), O(3)
    for rewriting, pure in ((torch.nn.ReLU(inplace=True), torch.nn.ReLU()), (lambda x: x.mul_(2.0), lambda x: 2.0 * x)):
        for measure in (
            lambda f: equivariance_error(f, V(G), V(G), x).mean,
            lambda f: error_by_input(f, V(G), V(G), x, ["x", "y", "z"])["x, y, z"],
            lambda f: error_by_output(f, V(G), V(G), x, ["x", "y", "z"])["x"],
            lambda f: float(lie_derivative(f, V(G), V(G), x).norm()),
        ):
            assert measure(rewriting) == pytest.approx(measure(pure), rel=1e-9, abs=1e-12, nan_ok=True)
        assert torch.equal(x, X)


R3 = V(SO(3))
IDENTITY = lambda x: x  # noqa: E731


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: equivariance_error(IDENTITY, R3, R3, X, n_samples=0), "n_samples=0"),
        (lambda: equivariance_error(IDENTITY, R3, R3, X, elements=[]), "elements is empty"),
        (lambda: equivariance_error(IDENTITY, R3, R3, X[:0]), r"\(batch, 3\)"),
        (lambda: equivariance_error(IDENTITY, R3, V(O(3)), X), "lift or restrict"),
        (lambda: equivariance_error(IDENTITY, R3, Scalar(SO(3)), X), r"shape \(50, 3\)"),
        (lambda: equivariance_error(lambda x: x / 0, R3, R3, X), r"f\(x\) has entries that are not finite"),
        (lambda: equivariance_error(lambda x: x if torch.equal(x, X) else x / 0, R3, R3, X), r"f\(g x\) has entries"),
        (lambda: lie_derivative(IDENTITY, R3, R3, torch.zeros(2, 4)), "4 components"),
        (lambda: check_actions(R3, R3, torch.tensor([[3, 4, 5]])), r"of type torch\.int64"),
    ],
)
def test_errors_name_the_fault(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_fault_of_the_functions_own_is_not_hidden():
    with pytest.raises(RuntimeError, match="must match"):
        lie_derivative(lambda x: x + torch.ones(7), R3, R3, X)


def test_statistics_are_those_of_the_errors_at_each_input():
    W = torch.randn(3, 3, generator=generator(1), dtype=torch.float64)
    error = equivariance_error(lambda x: x @ W.T, V(SO(3)), V(SO(3)), X)
    values = error.per_input
    assert error.mean == pytest.approx(values.mean().item())
    assert error.geometric_mean == pytest.approx(values.log().mean().exp().item())
    assert error.quantiles == pytest.approx({q: values.quantile(q).item() for q in (0.05, 0.25, 0.5, 0.75, 0.95)})
    assert error.quantiles[0.05] < error.geometric_mean < error.mean < error.quantiles[0.95]
    first = error.generators["A0"]
    assert first.mean == error.per_generator["A0"] and first.interval[0] < first.mean < first.interval[1]


def test_vacuous_inputs_are_left_out_of_every_statistic_and_exact_ones_do_not_annihilate_the_geometric_mean():
    values = torch.tensor([math.nan, 0.1, 0.001, 0.0], dtype=torch.float64)
    found = summarise(values)
    eps = torch.finfo(torch.float64).eps
    assert found.mean == pytest.approx(0.101 / 3) and found.quantiles[0.5] == 0.001
    assert found.geometric_mean == pytest.approx((1e-4 * eps) ** (1 / 3))
    nothing = summarise(values[:1])
    assert math.isnan(nothing.mean) and math.isnan(nothing.geometric_mean) and math.isnan(nothing.quantiles[0.5])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
@pytest.mark.parametrize("G", [D(4), SO(3)], ids=str)
def test_an_emlp_is_at_rounding_and_an_mlp_is_not(G, dtype, tolerance):
    ends = (2 * V + Scalar)(G), V(G)
    x = torch.randn(20, ends[0].dim, generator=generator(6), dtype=dtype)
    strict, plain = (kind(*ends, G, hidden=24, num_layers=2, generator=generator(7)).to(dtype) for kind in (EMLP, MLP))
    error = equivariance_error(strict, *ends, x)
    assert max(error.mean, *error.per_generator.values()) < tolerance and error.vacuous == 0
    assert equivariance_error(plain, *ends, x).mean > 0.3


def test_given_elements_are_used_for_every_input():
    """All elements of a finite group, given by hand, are what is taken by default; one of them is one of them."""
    G = D(4)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = lambda x: x[:, :1] ** 2 + 2 * x[:, 1:]  # noqa: E731
    by_default = equivariance_error(f, V(G), Scalar(G), x)
    given = equivariance_error(f, V(G), Scalar(G), x, elements=list(G.elements()[1:]))
    assert torch.equal(given.per_input, by_default.per_input)
    first = equivariance_error(f, V(G), Scalar(G), x, elements=[G.discrete_generators[0]])
    assert first.mean == pytest.approx(by_default.per_generator["h0"]) and first.mean != by_default.mean
    explained = error_by_input(f, V(G), Scalar(G), x, ["x", "y"], elements=list(G.elements()[1:]))
    assert explained == error_by_input(f, V(G), Scalar(G), x, ["x", "y"])
