"""Sparse pathways: plain exponentials between half as many anchors as pixels, and what their lengthscales do."""

from __future__ import annotations

import math

import pytest
import torch
from image_pathways import IN, OUT, SIZE, images, pathway, relative
from registry import generator

from rppdyn.images import FactoredFullyConnected, SparseConvolution, SparseFullyConnected
from rppdyn.images._group_convolution import ExponentialBasis


@pytest.mark.parametrize("size", [(3, 3), (5, 5), (4, 4), (4, 6), (1, 1)])
def test_anchors_are_half_of_the_pixels_rounded_up(size):
    basis = ExponentialBasis(size)
    assert len(basis.omega) == math.ceil(size[0] * size[1] / 2)
    distances = torch.cdist(basis.anchors, basis.anchors) + 9 * torch.eye(len(basis.anchors))
    assert distances.min() > 1.4  # no two are neighbours
    assert (torch.cdist(basis.anchors, basis.grid).min(1).values < 1e-6).all()


def test_filters_are_sums_of_exponentials():
    f = pathway("s_conv")
    z, w, u = (t.detach() for t in (f.basis.anchors, f.basis.omega, f.u))
    expected = torch.zeros(OUT, IN, 3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            p = torch.tensor([i - 1.0, j - 1.0], dtype=torch.float64)
            for m in range(5):
                expected[:, :, i, j] += u[:, :, m] * math.exp(-(w[m] ** 2) * (p - z[m]).square().sum())
    assert relative(f.filters(f.basis()), expected) < 1e-14


def test_sparse_is_factored_with_the_weights_it_stands_for():
    f, x = pathway("s_fc"), images()
    whole = FactoredFullyConnected(IN, OUT, SIZE).double()
    whole.U.data, whole.V.data = f.u @ f.basis_in(), f.v @ f.basis_out()
    assert relative(f(x), whole(x)) < 1e-14


def test_without_lengthscales_there_is_no_sense_of_place():
    """The limit of a vanishing prior variance on them: then even a fully connected pathway commutes with shifts."""
    f, x = pathway("s_fc, lengthscales"), images()
    errors = []
    for scale in (1.0, 0.1, 0.01, 0.0):
        for basis, omega in zip(f.bases, (0.8, 1.1), strict=True):
            basis.omega.data.fill_(scale * omega)
        errors.append(relative(f(x.roll((1, 2), (-2, -1))), f(x).roll((1, 2), (-2, -1))))
    assert errors[0] > 0.1 and errors[-1] < 1e-12
    assert 30 < errors[1] / errors[2] < 300  # of second order in the lengthscales


def test_the_prior_is_on_one_of_the_two():
    for prior, names in (("anchors", {"u", "v"}), ("lengthscales", {"basis_in.omega", "basis_out.omega"})):
        f = SparseFullyConnected(IN, OUT, SIZE, prior=prior, generator=generator())
        own = {id(c) for c in f.coefficients()}
        assert {name for name, p in f.named_parameters() if id(p) in own} == names


@pytest.mark.parametrize("variance", [1.0, 1e-6])
def test_a_prior_on_lengthscales_leaves_anchor_values_their_size(variance):
    x = images(64, 4, size=(6, 6))
    maps = (
        SparseFullyConnected(4, 32, (6, 6), variance, prior="lengthscales", generator=generator()),
        SparseConvolution(4, 32, variance, prior="lengthscales", generator=generator()),
    )
    for f in maps:
        assert 0.7 < f.double()(x).detach().std() < 1.4
    narrow = SparseConvolution(4, 32, 1e-6, prior="anchors", generator=generator())
    assert narrow.u.detach().std() == pytest.approx(1e-3, rel=0.1)


def test_initial_filters_have_the_size_of_dense_ones():
    f = SparseConvolution(64, 64, generator=generator())
    assert abs(f.filters(f.basis()).square().mean().sqrt() * 24 - 1) < 0.05
