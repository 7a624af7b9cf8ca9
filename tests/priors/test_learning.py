"""Variances learned in a training loop of one's own."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rppdyn.groups import Z
from rppdyn.images import ImageModel, LayerSpec
from rppdyn.nn import RPPEMLP, Ensemble, named_pathways
from rppdyn.priors import (
    Categorical,
    Gaussian,
    Laplace,
    VarianceLearning,
    _learning,
    learn_variances,
    negative_log_prior,
    weights_of,
)
from rppdyn.reps import Scalar, V


def learned(break_by: float, epochs: int = 60, learn_noise: bool = True) -> VarianceLearning:
    """Two seeds fitted to a function that Z(2) preserves, plus one that it doesn't."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, 2, generator=generator, dtype=torch.float64)
    y = x * x.norm(dim=-1, keepdim=True) + break_by * x[..., :1]
    nets = [
        RPPEMLP(V, V, Z(2), hidden=16, num_layers=1, free_variance=1e-4, generator=generator).double() for _ in range(2)
    ]
    for net in nets:
        learn_variances(net)
    stack = Ensemble(nets)
    noise = torch.full((2,), -1.0, dtype=torch.float64)
    learning = VarianceLearning(stack, x, y, noise=noise, learn_noise=learn_noise, data=100)
    optimiser = torch.optim.Adam(weights_of(stack), lr=1e-2)
    for epoch in range(epochs):
        if epoch >= 10 and epoch % 10 == 0:
            learning.update(optimiser, generators=[torch.Generator().manual_seed(epoch + i) for i in range(2)])
        errors = (stack(x) - y).square().sum((1, 2)) / (2 * noise.detach().exp())
        optimiser.zero_grad()
        ((errors + stack.per_member(negative_log_prior)) / 200).sum().backward()
        optimiser.step()
    return learning


def test_the_more_the_data_break_the_symmetry_the_more_free_parameters_they_determine():
    found = [learned(break_by, learn_noise=False) for break_by in (0.0, 0.3, 1.0)]
    assert all(torch.equal(each.noise, torch.full_like(each.noise, -1.0)) for each in found)
    for index in range(2):
        free = [
            sum(v[index] for k, v in each.found.items() if k.startswith("effective/") and k.endswith(".free"))
            for each in found
        ]
        assert 1.1 * free[0] < free[2] and free[0] < free[1] < free[2], free


def test_the_noise_is_learned_in_place():
    learning = learned(0.0)
    assert (learning.noise + 1).abs().min() > 0.1
    stated = learning.metrics()["log10_variance/noise"]
    assert stated == pytest.approx((learning.noise.detach() / math.log(10)).tolist())


def test_evidence_is_of_members_as_they_stand_and_sampled_by_their_generators():
    learning = learned(0.5, epochs=22)
    generators = lambda: [torch.Generator().manual_seed(i) for i in range(2)]  # noqa: E731
    first, again = (learning.evidence(generators()) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.effective(), other.effective())
        own = [learning.variances[p.layer, p.name][first.index(one)].item() for p in one.pathways]
        assert one.log_variances.tolist() == pytest.approx(own)
    shares = first[0].shares()
    assert float(shares["relative"][:2].sum()) == pytest.approx(1)


def test_a_likelihood_without_a_variance_learns_those_of_pathways_alone():
    generator = torch.Generator().manual_seed(0)
    net = RPPEMLP(V, 3 * Scalar, Z(2), hidden=8, num_layers=1, generator=generator)
    learn_variances(net)
    stack = Ensemble([net])
    x, classes = torch.randn(1, 50, 2, generator=generator), torch.randint(3, (1, 50), generator=generator)
    learning = VarianceLearning(stack, x, classes, lambda _: Categorical(), sampled=False)
    before = {key: p.detach().clone() for key, p in learning.variances.items()}
    learning.update(torch.optim.Adam(weights_of(stack)))
    assert all((p - before[key]).abs().max() > 0.1 for key, p in learning.variances.items())
    assert learning.noise.tolist() == [0.0] and "log10_variance/noise" not in learning.metrics()


def small(**options) -> tuple[VarianceLearning, torch.Tensor]:
    nets = [RPPEMLP(V, V, Z(2), hidden=8, num_layers=1, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    for net in nets:
        learn_variances(net)
    x = torch.randn(2, 30, 2, generator=torch.Generator().manual_seed(5))
    arguments = dict(inputs=x, targets=x, noise=torch.zeros(2)) | options
    return VarianceLearning(Ensemble(nets), **arguments), x


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(inputs=torch.zeros(30, 2)), r"both begin with \(2, N\)"),
        (dict(targets=torch.zeros(2, 31, 2)), r"both begin with \(2, N\)"),
        (dict(noise=torch.zeros(3)), "give one number for each of 2 members"),
        (dict(noise=torch.zeros(())), "give one number for each of 2 members"),
        (dict(data=-5), "data=-5 must be positive"),
        (dict(steps=0), "steps=0 must be positive"),
        (dict(by_gradients=True, curvature="kronecker"), "by_gradients=True without predict_each"),
    ],
)
def test_data_and_numbers_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        small(**options)


def test_more_rows_than_memory_are_refused_before_anything_is_trained():
    net = RPPEMLP(V, V, Z(2), hidden=4, num_layers=1)
    learn_variances(net)
    x = torch.zeros(1, 100_000, 2)
    with pytest.raises(ValueError, match=r"data=100000 with draws=3 and 1 members: .* GiB.*fewer draws"):
        VarianceLearning(Ensemble([net]), x, x, data=100_000, draws=3)
    with pytest.raises(ValueError, match=r"data=100000 with sampled=False, 2 rows each .*curvature='kronecker'"):
        VarianceLearning(Ensemble([net]), x, x, data=100_000, sampled=False)
    VarianceLearning(Ensemble([net]), x, x, data=100_000, curvature="kronecker")


def test_other_optimisers_and_generators_are_refused_before_anything_moves():
    learning, _ = small()
    before = [p.detach().clone() for p in learning.stack.stacked]
    with pytest.raises(ValueError, match="trained by SGD: give Adam"):
        learning.update(torch.optim.SGD(weights_of(learning.stack), momentum=0.9))
    with pytest.raises(ValueError, match="1 generators: give one for each of 2 members"):
        learning.update(torch.optim.Adam(weights_of(learning.stack)), generators=[torch.Generator()])
    assert all(torch.equal(p, old) for p, old in zip(learning.stack.stacked, before, strict=True))


def test_variances_of_a_member_that_diverges_stay_where_they_were():
    learning, _ = small()
    optimiser = torch.optim.Adam(weights_of(learning.stack))
    learning.update(optimiser)
    stood = {key: p.detach().clone() for key, p in learning.variances.items()}
    with torch.no_grad():
        for p in weights_of(learning.stack):
            p[0] = math.nan
    noise = learning.noise.detach().clone()
    learning.update(optimiser)
    assert all(p[0] == stood[key][0] and p[1] != stood[key][1] for key, p in learning.variances.items())
    assert learning.noise[0] == noise[0] and learning.noise[1] != noise[1]
    assert math.isnan(learning.found["effective/head.free"][0])


def test_networks_whose_variances_are_fixed_are_refused():
    stack = Ensemble([RPPEMLP(V, V, Z(2), hidden=8, num_layers=1)])
    x = torch.zeros(1, 5, 2)
    with pytest.raises(ValueError, match="call learn_variances on each network before it is stacked"):
        VarianceLearning(stack, x, x)


@pytest.mark.parametrize("density", [Gaussian, Laplace])
def test_targets_of_another_shape_than_outputs_are_refused(density):
    """Torch would spread one over the other, and the evidence be of N x N errors."""
    with pytest.raises(ValueError, match=r"outputs of shape \(5, 1\) and targets of \(5,\): give one target for each"):
        density(0.7).negative_log(torch.zeros(5, 1), torch.zeros(5))
    learning, _ = small(targets=torch.zeros(2, 30, 1), density=density)
    with pytest.raises(ValueError, match=r"outputs of shape \(30, 2\) and targets of \(30, 1\)"):
        learning.update(torch.optim.Adam(weights_of(learning.stack)))


def test_models_of_images_are_predicted_as_they_are():
    """They are no chains of their layers: rectifiers and subsampling stand between."""
    model = ImageModel([LayerSpec(4, subsample="max"), LayerSpec(4)], 1, (4, 4), 2, {"conv": 1.0, "fc": 1.0}).double()
    learn_variances(model)
    x, y = (torch.randn(1, 20, *shape, dtype=torch.float64) for shape in ((1, 4, 4), (2,)))
    found = []
    for options in ({}, {"predict": lambda net, inputs: net(inputs)}):
        learning = VarianceLearning(Ensemble([copy.deepcopy(model)]), x, y, noise=torch.zeros(1), data=20, **options)
        learning.update(torch.optim.Adam(weights_of(learning.stack)), generators=[torch.Generator().manual_seed(0)])
        found.append(learning.found)
    assert found[0] == found[1]


def coefficients_of(stack: Ensemble, name: str) -> torch.Tensor:
    """Of a pathway of all members, (members, n)."""
    found = []
    for index in range(stack.members):
        pathway = stack.member(index).get_submodule(name)
        found.append(torch.cat([c.detach().flatten() for c in pathway.coefficients()]))
    return torch.stack(found)


@pytest.mark.parametrize("shrink", [True, False])
def test_weights_of_free_pathways_fall_with_their_variance(shrink):
    """By its standard deviation, whichever unit they are stored in; a variance that rises and symmetric pathways move none."""
    nets = [
        RPPEMLP(V, V, Z(2), hidden=4, num_layers=1, free_variance=v, generator=torch.Generator().manual_seed(i)).double()
        for i, v in enumerate((1e-2, 1e-2))
    ]  # fmt: skip
    images = [
        ImageModel([LayerSpec(4)], 1, (4, 4), 2, {"conv": 1.0, "f_fc": 1.0, "s_fc_lengthscales": 1.0}).double()
        for _ in range(2)
    ]
    for own, free, kept, x in (
        (nets, ["blocks.0.linear.free", "head.free"], "head.equivariant", torch.randn(2, 20, 2)),
        (images, ["blocks.0.f_fc", "blocks.0.s_fc_lengthscales"], "blocks.0.conv", torch.randn(2, 20, 1, 4, 4)),
    ):
        for net in own:
            learn_variances(net)
        stack, x = Ensemble(own), x.double()
        learning = VarianceLearning(stack, x, torch.randn(2, 20, 2).double(), noise=torch.zeros(2), shrink=shrink)
        optimiser = torch.optim.Adam(weights_of(stack))
        names = [*free, kept]
        before = {name: coefficients_of(stack, name) for name in names}
        stood = {key: p.detach().clone() for key, p in learning.variances.items()}
        with torch.no_grad():
            for p in learning.variances.values():
                p += torch.tensor([-3.0, 2.0])
        learning._follow_variances(optimiser, stood)
        for name in names:
            share = torch.tensor([math.exp(-1.5) if shrink and name in free else 1.0, 1.0], dtype=torch.float64)
            expected = share[:, None] * before[name]
            torch.testing.assert_close(coefficients_of(stack, name), expected, rtol=1e-12, atol=1e-15)


def test_constant_inputs_are_stored_in_the_unit_of_their_variance():
    nets = [RPPEMLP(V, V, Z(2), hidden=4, num_layers=1, breaking="V", breaking_variance=1e-2).double() for _ in "ab"]
    for net in nets:
        torch.nn.init.ones_(net.breaking.vector)
        learn_variances(net)
    stack = Ensemble(nets)
    learning = VarianceLearning(
        stack, torch.randn(2, 20, 2).double(), torch.randn(2, 20, 2).double(), noise=torch.zeros(2)
    )
    learning.update(torch.optim.Adam(weights_of(stack)))
    for index in range(2):
        constants = stack.member(index).breaking
        assert constants.unit.item() == pytest.approx(constants.variance.sqrt().item()) != pytest.approx(0.1)
        torch.testing.assert_close(constants.value(), torch.full((2,), 0.1).double(), rtol=1e-6, atol=0)
    assert "log10_variance/breaking" in learning.metrics()


@pytest.mark.parametrize("form", ["joint", "kronecker"])
def test_variances_that_are_not_learned_stay_as_they_are(form, monkeypatch):
    net = RPPEMLP(V, V, Z(2), hidden=4, num_layers=1, generator=torch.Generator().manual_seed(0)).double()
    pathways = [pathway for *_, pathway in named_pathways(net)]
    for pathway in pathways:
        if pathway.is_free:
            pathway.learn_variance()
    stack, (x, y) = Ensemble([net]), torch.randn(2, 1, 20, 2).double()
    asked = []
    monkeypatch.setattr(_learning, "describe_memory_excess", lambda rows, matrices: asked.append(matrices) or "")
    learning = VarianceLearning(stack, x, y, noise=torch.zeros(1), curvature=form)
    before = {key: value for key, value in stack.net.state_dict().items() if "log_variance" in key}
    before = {key: value.clone() for key, value in before.items()}
    learning.update(torch.optim.Adam(weights_of(stack)))
    for key, value in before.items():
        assert torch.equal(stack.net.state_dict()[key], value) == (".free." not in key)
    assert asked == [len(pathways)]  # kernel matrices of all of them
