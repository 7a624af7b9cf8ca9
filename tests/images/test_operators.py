"""Operator pathways: what they contain, what they commute with, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from image_pathways import images, relative
from refusals import refused
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.equivariance._lie import centraliser
from rppdyn.groups import SO, Group
from rppdyn.images import Convolution, FullyConnected, ImageModel, LayerSpec
from rppdyn.images._models import power_blocks
from rppdyn.images._operators import (
    DenseOperators,
    FixedOperators,
    LowRankOperators,
    OperatorPathway,
    PowerOperators,
    affine_base,
    kernel_shifts,
    one_hot,
    operators_of,
    penalty,
)
from rppdyn.images.registry import OperatorSettings
from rppdyn.nn import Ensemble
from rppdyn.reps import Rep


def pathway(matrices, channels=(2, 3), size=(5, 5), **options):
    operators = FixedOperators(matrices) if isinstance(matrices, torch.Tensor) else matrices
    return OperatorPathway(*channels, size, operators, generator=generator(), **options).double()


@pytest.mark.parametrize("size", [(5, 5), (4, 6)])
def test_with_shifts_it_is_a_convolution(size):
    f, x = pathway(kernel_shifts(size, 3), size=size), images(3, 2, size=size)
    peer = Convolution(2, 3).double()
    peer.weight.data = f.weight.detach().view(3, 9, 2).mT.reshape(3, 2, 3, 3)
    assert relative(f(x), peer(x)) < 1e-14


def test_with_powers_of_two_shifts_it_is_a_convolution_too():
    size = (5, 5)
    bases = torch.stack([affine_base(size, f"translation_{axis}") for axis in "yx"])
    f, x = pathway(PowerOperators(bases, 1)), images(3, 2, size=size)
    peer = Convolution(2, 3).double()
    # A^i moves the image by i: the tap at -i
    peer.weight.data = f.weight.detach().view(3, 9, 2).mT.reshape(3, 2, 3, 3).flip(-2, -1)
    assert relative(f(x), peer(x)) < 1e-12


def test_with_an_adjacency_matrix_it_is_a_graph_convolution():
    """relu(D^-1/2 (A + I) D^-1/2 X W) of Kipf & Welling, of a graph of ten nodes as maps of 1 x 10 pixels."""
    A = (torch.rand(10, 10, generator=generator()) < 0.3).double()
    A = ((A + A.mT) > 0).double().fill_diagonal_(1.0)
    degrees = A.sum(1).rsqrt()
    A = degrees[:, None] * A * degrees
    f, x = pathway(A[None], size=(1, 10)), images(3, 2, size=(1, 10))
    nodes = x[:, :, 0].mT  # (N, nodes, features)
    assert relative(f(x)[:, :, 0].mT, A @ nodes @ f.weight.mT) < 1e-14


def test_with_one_hot_matrices_it_is_fully_connected():
    size, out = (2, 3), (2, 3)
    f, x = pathway(one_hot(6, 6), size=size), images(3, 2, size=size)
    peer = FullyConnected(2, 3, size, out_size=out).double()
    weight = f.weight.detach().view(3, 6, 6, 2)  # (c', p', p, c)
    peer.weight.data = weight.permute(0, 1, 3, 2).reshape(18, 12)
    assert relative(f(x), peer(x)) < 1e-14


def test_low_rank_is_its_matrices():
    operators = LowRankOperators(4, 25, 3, generator=generator()).double()
    x = images(2, 3, size=(5, 5)).flatten(2)
    assert relative(operators(x), torch.einsum("ipq,ncq->nicp", operators.matrices(), x)) < 1e-14
    assert torch.equal(operators.matrices()[0], torch.eye(25).double())
    assert torch.linalg.matrix_rank(operators.generators[0]) == 3


@pytest.mark.parametrize("n", [5, 9])
def test_powers_of_rotations_are_orthogonal_and_dilated_ones_skip(n):
    base = affine_base((n, n), "rotation")
    M = PowerOperators(base[None], 2, dilation=3).double().matrices()
    one = torch.eye(n * n).double()
    assert (M @ M.mT - one).abs().max() < 1e-12
    torch.testing.assert_close(M[4], torch.linalg.matrix_power(base, 6))
    assert (M[0] @ M[4] - one).abs().max() < 1e-12


def moved_by(algebra: torch.Tensor, f: OperatorPathway, x: torch.Tensor):
    """The package's measure, of the group that an algebra generates, on one channel in and out."""
    group = Group("generated", lie_algebra=algebra)
    rep = Rep.from_generators(group, lie_algebra=algebra)
    return equivariance_error(lambda v: f(v.view(-1, 1, *x.shape[-2:])).flatten(1), rep, rep, x.flatten(1), n_samples=2)


def test_it_is_equivariant_to_the_centraliser_and_not_to_what_the_operators_generate():
    x = images(20, 1, size=(1, 3))
    so3 = SO(3).lie_algebra.double()
    own = pathway(so3, channels=(1, 1), size=(1, 3))
    assert moved_by(so3, own, x).mean > 0.3  # the negative control: the group that they generate
    found = centraliser(so3)
    assert len(found) == 1  # multiples of the identity
    assert relative(own((x.flatten(1) @ found[0].mT).view_as(x)).flatten(1), own(x).flatten(1) @ found[0].mT) < 1e-12
    turn = so3[:1]
    commuting = torch.stack([torch.linalg.matrix_exp(t * turn[0]) for t in (-0.5, 0.2, 1.0)])
    assert moved_by(turn, pathway(commuting, channels=(1, 1), size=(1, 3)), x).mean < 1e-12
    drawn = torch.randn(3, 3, 3, generator=generator(), dtype=torch.float64)
    assert moved_by(turn, pathway(drawn, channels=(1, 1), size=(1, 3)), x).mean > 0.1


@pytest.mark.parametrize("name", ["rotation", "translation_x"])
def test_networks_of_powers_of_one_base_keep_it_until_they_rectify(name):
    size = (5, 5)
    base = affine_base(size, name, 1.0)
    x = images(4, 1, size=size)
    moved = (x.flatten(2) @ base.mT).view_as(x)
    layer = pathway(PowerOperators(base[None], 2), channels=(1, 4))
    assert relative(layer(moved), (layer(x).flatten(2) @ base.mT).unflatten(2, size)) < 1e-12
    settings = {"operators": OperatorSettings(form="powers", bases=[name])}
    model = ImageModel(
        power_blocks(4, 2), 1, size, 3, {"operators": 1.0}, settings=settings, generator=generator()
    ).double()
    error = relative(model(moved), model(x))
    if name == "translation_x":  # a shift, which commutes with rectifiers
        assert error < 1e-12
    else:
        assert 1e-3 < error < 0.7


def test_penalties_reach_only_what_is_learned():
    settings = {"operators": OperatorSettings(count=4, rank=2, closure=1.0, orthogonality=0.5)}
    make = lambda seed, own: ImageModel(  # noqa: E731
        [LayerSpec(3)], 1, (3, 3), 2, {"operators": 1.0}, settings=own, generator=generator(seed)
    ).double()
    model = make(0, settings)
    penalty(model).backward()
    named = {name.rpartition(".")[2] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert named == {"U", "V"}
    members = [make(seed, settings) for seed in range(2)]
    each = Ensemble(members).per_member(penalty)
    torch.testing.assert_close(each, torch.stack([penalty(member) for member in members]))
    assert penalty(make(0, {"operators": OperatorSettings(count=4)})) is None


def test_untrained_operators_are_buffers_that_all_members_share():
    settings = OperatorSettings(trained=False, count=3, rank=2)
    a, b = (operators_of(settings, (3, 3), generator(seed)) for seed in (0, 1))
    assert not list(a.parameters()) and torch.equal(a.matrices(), b.matrices())
    other = operators_of(OperatorSettings(trained=False, count=3, rank=2, drawn=5), (3, 3))
    assert not torch.equal(a.matrices(), other.matrices())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: affine_base((8, 8), "rotation"), r"^n=8 pixels: at even sizes .*; give an odd number, 7 or 9$"),
        (
            lambda: PowerOperators(torch.ones(1, 3, 3).double()),
            r"^base 0 is singular .*: powers below 0 need its inverse",
        ),
        (
            lambda: PowerOperators(torch.eye(3).double()[None]),
            r"^5 powers of bases of rank 1 are dependent: leave out 4 of them$",
        ),
        (lambda: PowerOperators(torch.eye(3)[None], (2, 1)), "powers from 2 to 1"),
        (lambda: pathway(torch.zeros(2, 4, 4)), r"^operators on 4 -> 4 pixels for maps of \(5, 5\)"),
        (lambda: FixedOperators(torch.full((1, 2, 2), torch.nan)), "no finite numbers"),
        (lambda: PowerOperators(torch.full((1, 2, 2), torch.nan)), "1 bases have entries that are no finite numbers"),
        (lambda: OperatorSettings(bases=["rotation", "rotation"]), "rotation stands twice"),
        (lambda: OperatorSettings(step=0.0), "operators.step=0: "),
        (
            lambda: pathway(kernel_shifts((5, 5), 3), closure=1.0),
            r"operators\.closure=1: a penalty has no effect on .* fixed",
        ),
        *(
            (
                lambda s=s: ImageModel([LayerSpec(2)], 1, (5, 5), 2, {"operators": 1.0}, settings={"operators": s}),
                "fixed; give 0",
            )
            for s in (
                OperatorSettings(form="powers", orthogonality=0.5),
                OperatorSettings(form="shifts", reach=1, closure=0.5),
                OperatorSettings(trained=False, closure=0.5),
            )
        ),
        (
            lambda: pathway(DenseOperators(18, 4), size=(2, 2), closure=1.0),
            "^17 learned operators of rank 16 are dependent: leave out 1 of them$",
        ),
        (lambda: LayerSpec(3, span=0), "past span=0 layers"),
        (
            lambda: ImageModel([LayerSpec(3, residual=1.0)], 1, (3, 3), 2, {"conv": 1.0}),
            "residual=1.0 past 1 layers: their input has other channels",
        ),
    ],
)
def test_refusals_are_one_line(build, words):
    with pytest.raises(ValueError, match=words) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_singular_bases_have_powers_from_zero_on():
    M = PowerOperators(torch.diag(torch.tensor([1.0, 2.0, 0.0])).double()[None], (0, 2)).matrices()
    assert M.isfinite().all() and M.shape == (3, 3, 3)


def test_kernels_without_a_centre_are_refused():
    with refused("kernel_size=4", "give an odd number"):
        kernel_shifts((9, 9), 4)
