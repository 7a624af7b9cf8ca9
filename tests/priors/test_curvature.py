"""What curvature asks of a network, of the data and of the mode that torch is in."""

from __future__ import annotations

import pytest
import torch
from factors import whole
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.groups import SO
from rppdyn.images import ImageModel, LayerSpec
from rppdyn.nn import RPPEMLP, Chained
from rppdyn.priors import Categorical, Gaussian, Laplace, curvature, gradient_curvature
from rppdyn.reps import V


class Features(nn.Module):
    """An RPP-EMLP of vectors, and curvature by its features or by its weights."""

    def __init__(self):
        super().__init__()
        self.net = RPPEMLP(V, V, SO(3), hidden=12, num_layers=2, bilinear=False, generator=generator()).double()
        self.x = torch.randn(7, 3, generator=generator(1), dtype=torch.float64)

    def by_features(self, batches, **options):
        return curvature(self.net, Chained(self.net), batches, Gaussian(0.3), **options)

    def by_weights(self, batches, **options):
        each = lambda stack, weights, x: stack.apply(x[:, None], weights)[:, 0]  # noqa: E731
        return gradient_curvature(self.net, each, batches, Gaussian(0.3), **options)


MEASURES = ["by_features", "by_weights"]


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, blocks in expected.items():
        for one, other in zip(map(whole, found[key]), map(whole, blocks), strict=True):
            torch.testing.assert_close((one.A, one.G), (other.A, other.G), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("frozen", ["", "head", "blocks.0"])
def test_parameters_may_be_frozen(measure, frozen):
    case = Features()
    expected = getattr(case, measure)([case.x])
    case.net.get_submodule(frozen).requires_grad_(False)
    with torch.no_grad():
        same(getattr(case, measure)([case.x]), expected)


@pytest.mark.parametrize("frozen", ["", "blocks.0"])
def test_layers_of_images_may_be_frozen(frozen):
    model = ImageModel([LayerSpec(2), LayerSpec(2)], 1, (4, 4), 3, {"conv": 1.0, "fc": 1.0}, generator=generator())
    x = torch.randn(5, 1, 4, 4, generator=generator(1))
    expected = curvature(model, model, [x], Categorical())
    model.get_submodule(frozen).requires_grad_(False)
    same(curvature(model, model, [x], Categorical()), expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_without_gradients_there_is_no_curvature(measure):
    case = Features()
    with torch.inference_mode(), refused("torch.inference_mode()"):
        getattr(case, measure)([case.x])


def test_outputs_without_gradients_are_refused():
    case = Features()
    with refused("predict's outputs have no gradient"):
        curvature(case.net, lambda x: Chained(case.net)(x).detach(), [case.x], Gaussian(1.0))


@pytest.mark.parametrize("measure", MEASURES)
def test_empty_batches_are_passed_over(measure):
    case = Features()
    measured, x = getattr(case, measure), case.x
    same(measured([x[:0], x, x[7:]], total=20), measured([x], total=20))
    for batches in ([], [x[:0]]):
        for total in (None, 10):
            with refused("curvature of no data", "give one batch or more"):
                measured(batches, total=total)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("total", [0, -5])
def test_a_total_of_no_data_is_refused_before_any_work(measure, total):
    with refused(f"total={total}", "one or more"):
        getattr(Features(), measure)(iter(lambda: pytest.fail("the data were read"), None), total=total)


@pytest.mark.parametrize("likelihood", [Gaussian, Laplace])
def test_likelihoods_have_finite_variances_and_no_factors_of_no_data(likelihood):
    for variance in (0.0, -1.0, float("inf"), float("nan"), torch.tensor(float("inf"))):
        with refused(f"variance={float(variance)}", "positive finite number"):
            likelihood(variance)
    assert likelihood(0.5).factors(torch.zeros(0, 3, 2)).shape == (6, 0, 3, 2)
