"""Convolutions over groups of the plane: with what they commute, their curvature, relaxed rotations, and a ResNet-18."""

from __future__ import annotations

import math

import pytest
import torch
from image_pathways import images, relative
from refusals import refused
from registry import generator
from torch import nn

from rppdyn.images import ImageModel, LayerSpec
from rppdyn.images._continuous import AnchorBasis, pixel_grid
from rppdyn.images._lie_convolution import (
    LieConvolution,
    RelaxedLieConvolution,
    amplitudes,
    draw_elements,
    implied_omega,
    implied_omegas,
    learn_omega,
    omega_penalty,
    set_elements,
    set_omega,
)
from rppdyn.images._models import LieResNet18
from rppdyn.images.registry import FilterSettings
from rppdyn.priors import Categorical, curvature, kronecker_evidence

CASES = [
    (group, orientations, kernel, pooled)
    for group, count in (("p4", 4), ("se2", 4), ("se2", 8))
    for orientations in ((1, count), (count, count), (count, 1))
    for kernel, pooled in (((3 if group == "p4" else 5), False),)
] + [("se2", (8, 1), 1, True)]


def lie(group="se2", orientations=(8, 8), kernel_size=3, kind=LieConvolution, fields=(2, 3), **options):
    channels = [n * o for n, o in zip(fields, orientations, strict=True)]
    options = dict(kernel_size=kernel_size, generator=generator()) | options
    return kind(*channels, group=group, orientations=orientations, **options).double()


def maps(f, n=2, size=(8, 8)):
    return images(n, f.orientations[0] * f.u.shape[1], size=size)


def turned(x, orientations):
    """By a quarter: maps turn, and an element of N becomes the one N / 4 further."""
    x = torch.rot90(x, 1, (-2, -1))
    return torch.roll(x.unflatten(1, (-1, orientations)), orientations // 4, 2).flatten(1, 2)


@pytest.mark.parametrize("kind", [LieConvolution, RelaxedLieConvolution])
@pytest.mark.parametrize(("group", "orientations", "kernel", "pooled"), CASES)
def test_shifts_and_quarter_turns(kind, group, orientations, kernel, pooled):
    """Strict ones commute with both, whatever the elements; relaxed ones with shifts alone."""
    f = lie(group, orientations, kernel, kind, pooled=pooled)
    x = maps(f)
    for offset in (0.0, 0.3):
        set_elements(f, offset)
        y = f(x)
        shift = (0, 0) if pooled else (1, 3)
        assert relative(f(torch.roll(x, (1, 3), (-2, -1))), torch.roll(y, shift, (-2, -1))) < 1e-12
        error = relative(f(turned(x, orientations[0])), turned(y, orientations[1]))
        assert error < 1e-12 if kind is LieConvolution else error > 0.05


def test_smooth_images_turn_with_se2_by_any_angle_and_a_plain_convolution_is_no_such_map():
    """What is invariant of lifted maps; images that are turned by a formula, since interpolation blurs more than is left."""
    rows = torch.arange(17, dtype=torch.float64)[:, None] - 8

    def blob(angle):
        cos, sin = math.cos(angle), math.sin(angle)
        return torch.exp(-((cos * rows + sin * rows.mT - 1.5) ** 2 / 8 + (cos * rows.mT - sin * rows - 1) ** 2 / 3))[
            None, None
        ]

    def error(f):
        invariant = lambda x: f(x).square().sum((-2, -1)).unflatten(1, (-1, f.orientations[1])).mean(2)  # noqa: E731
        still = invariant(blob(0.0))
        return max(relative(invariant(blob(angle)), still) for angle in (0.2, 0.4, 0.7))

    se2 = error(lie("se2", (1, 8), 5, fields=(1, 8)))
    assert se2 < 0.01 < 0.05 < error(lie("t2", (1, 1), 5, fields=(1, 8)))


def test_scaling_moves_scales_on():
    """A larger image, at a scale that is as much larger; of smooth images and filters, so that pixels don't count."""
    f = lie("scale", (1, 5), 15, fields=(1, 2), share=0.04)
    f.basis = AnchorBasis(
        1.5 * pixel_grid((3, 3)).double(), frequencies=(0.7, 0.7)
    )  # which vanish inside of the kernel
    set_elements(f)
    rows = torch.arange(33, dtype=torch.float64) - 16
    blob = lambda width: torch.exp(-(rows[:, None] ** 2 + (rows - 1 * width) ** 2) / (2 * (3 * width) ** 2))[None, None]  # noqa: E731
    step = float(f.coordinates()[1] - f.coordinates()[0])
    small, large = (f(blob(w))[0].unflatten(0, (2, 5))[..., 16, 16] for w in (1.0, 2.0**step))
    assert relative(large[:, 1:], small[:, :-1]) < 1e-3 < 0.02 < relative(large, small)


def test_elements_are_shared_by_all_layers_and_even():
    net = nn.Sequential(lie(orientations=(1, 8)), lie(fields=(3, 3)), lie(orientations=(8, 1), fields=(3, 1)))
    x = images(1, 2, size=(8, 8))
    before = net(x)
    offset = draw_elements(net, generator(5))
    assert {float(f.offset) for f in net} == {offset}
    assert relative(net(x), before) > 1e-4
    t = net[1].coordinates()
    assert torch.allclose(t.diff(), torch.full((7,), 0.25, dtype=torch.float64))
    set_elements(net, 0.0)
    assert relative(net(x), before) < 1e-14


def test_the_periodic_basis_is_a_strict_and_a_free_part():
    for omega in (0.1, 1.0, 2.0):
        basis = AnchorBasis(torch.zeros(1, 1), ["periodic"], frequencies=[omega])
        t = torch.linspace(0, 2, 9, dtype=torch.float64)[:, None]
        waves = torch.cos(torch.pi * t * torch.arange(1, 13))
        series = 1 + waves @ amplitudes(torch.tensor(omega, dtype=torch.float64), 12).square()
        c_0 = torch.special.i0e(torch.tensor(omega**2, dtype=torch.float64))
        assert relative(c_0 * series, basis.similarity(t, torch.zeros(1, 1))[:, 0]) < 1e-6


def test_a_pair_of_pathways_has_the_prior_of_relaxed_filters():
    """Over draws of coefficients the filters of both have the covariance of those of the product basis at the same g."""
    f = lie("se2", (8, 8), kind=RelaxedLieConvolution, omega=1.0)
    t = f.coordinates()
    K = f.features() @ f.features().mT + 1
    basis = AnchorBasis(torch.zeros(1, 1), ["periodic"])
    expected = basis.similarity(t[:, None], t[:, None])
    assert relative(K * torch.special.i0e(torch.tensor(1.0, dtype=torch.float64)), expected) < 1e-3


def test_omega_has_a_gradient_at_zero_and_none_by_its_square():
    f = lie(kind=RelaxedLieConvolution)
    x, target = maps(f), 1.0
    (omega,) = learn_omega(f, 0.0)
    assert not f(x).any()
    (f(x) - target).square().sum().backward()
    assert omega.grad.abs() > 1e-3
    omega.grad = None
    omega_penalty(f, 0.5).backward()
    assert omega.grad == 0
    set_omega(f, 0.4)
    assert float(omega_penalty(f, 0.5).detach()) == pytest.approx(0.08)
    assert "omega" not in f.coefficient_names()


def test_omega_fixed_and_implied():
    f = lie(kind=RelaxedLieConvolution, omega=0.5)
    x, before = maps(f), f(maps(f))
    set_omega(f, 0.0)
    assert not f(x).any()
    set_omega(f, 0.5)
    assert relative(f(x), before) < 1e-14
    for omega in (0.0, 0.1, 1.0, 2.0):
        ratio = float(amplitudes(torch.tensor(omega, dtype=torch.float64), 1)[0]) ** 2
        assert implied_omega(ratio) == pytest.approx(omega, abs=1e-9)
    both = dict(p4=1.0, p4_relaxed=0.5, se2=1.0, se2_relaxed=2.0)
    settings = dict.fromkeys(both, FilterSettings(elements=4))
    net = ImageModel([LayerSpec(2)], 1, (6, 6), 4, both, settings=settings, generator=generator())
    assert [*implied_omegas(net)][:2] == ["blocks.0", "blocks.0.se2_relaxed"]


def test_a_learned_omega_is_loaded_into_filters_of_another():
    f, g = (lie(kind=RelaxedLieConvolution, omega=omega) for omega in (1.0, 0.5))
    learn_omega(f, 2.0)
    x = maps(f)
    g.load_state_dict(f.state_dict())
    assert relative(g(x), f(x)) < 1e-14


@pytest.mark.parametrize("group", ["p4", "se2"])
def test_a_resnet_of_the_plain_ones_parameters(group):
    net = LieResNet18(group=group, generator=generator())
    count = sum(p.numel() for p in net.parameters())
    assert count == (11_179_338 if group == "se2" else 11_181_642)


def test_a_small_resnet_turns_with_its_images_and_learns():
    net = LieResNet18(in_channels=1, stages=((4, 1), (8, 2)), generator=generator())
    x = torch.randn(6, 1, 33, 33, generator=generator(1))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for step in range(3):
        draw_elements(net, generator(step))
        loss = nn.functional.cross_entropy(net(x), torch.arange(6))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    net.eval().double()
    x = x.double()
    assert relative(net(torch.rot90(x, 1, (-2, -1))), net(x)) < 1e-10 < relative(net(x.mT), net(x))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lie("so3"), ("group='so3'", "se2")),
        (lambda: lie("p4", (8, 8)), ("p4", "elements=8")),
        (lambda: lie("se2", (1, 1)), ("orientations=(1, 1)", "SE(2)")),
        (lambda: lie("t2", (8, 8)), ("T(2)", "(1, 1)")),
        (lambda: LieConvolution(17, 8), ("17 channels", "8")),
        (lambda: lie(kernel_size=4), ("kernel_size=4", "odd")),
        (lambda: lie(share=0), ("share=0",)),
        (lambda: lie("se2", (1, 8), kernel_size=5, share=2), ("share=2", "at most 1.0")),
        (lambda: lie("scale", kind=RelaxedLieConvolution), ("T(2) x R+", "rotations")),
        (lambda: lie("t2", (1, 1), kind=RelaxedLieConvolution), ("T(2)", "no rotations")),
        (lambda: lie(kind=RelaxedLieConvolution, omega=-1), ("omega=-1",)),
        (lambda: learn_omega(nn.Linear(1, 1)), ("no relaxed pathway", "Linear")),
    ],
)
def test_what_can_not_be(make, words):
    with refused(*words):
        make()


def test_a_model_of_both_pathways_learns_how_much_to_relax():
    """Variances by the Kronecker evidence: a differentiable number for each; its strict half turns with the image."""
    settings = {name: FilterSettings(elements=4, share=0.5) for name in ("se2", "se2_relaxed")}
    pathways = {"se2": 1.0, "se2_relaxed": 0.5}
    model = ImageModel([LayerSpec(2), LayerSpec(3)], 1, (6, 6), 4, pathways, settings=settings, generator=generator())
    model = model.double()
    assert model.blocks[1].se2.u.shape == (3, 2, 5) and model.blocks[1].se2_relaxed.u.shape == (3, 2, 20)
    x = images(8, 1, size=(6, 6))
    evidence = kronecker_evidence(model, curvature(model, model, [x], Categorical()))
    own = [pathways["se2_relaxed"] for pathways in evidence.effective_parameters.values()]
    assert len(own) == 3 and all(0 < number < 60 for number in own)
    assert relative(model(torch.rot90(x, 1, (-2, -1))), model(x)) > 1e-4
    set_omega(model, 0.0)
    assert relative(model(torch.rot90(x, 1, (-2, -1))), model(x)) < 1e-12
