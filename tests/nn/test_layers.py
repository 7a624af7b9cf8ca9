"""Relaxed layers, gates and bilinear layers: equivariant at one limit, ordinary at the other, over every group."""

from __future__ import annotations

import pytest
import torch
from registry import KINDS, TYPES, generator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from rppdyn.groups import SL, SO, SO13, SU, D, O, S, Sp, U, Z
from rppdyn.nn import Bilinear, Gate, InvariantNormaliser, Pointwise, RelaxedLinear, gated
from rppdyn.nn._bilinear import contractions
from rppdyn.nn._hidden import component_major
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Pseudoscalar, Scalar, T, V, regular

REAL = [G for G in KINDS if not G.is_complex]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def elements(G, n=4, dtype=torch.float64):
    """Seeded elements, with products of them."""
    g = G.samples(n, generator(11))
    return torch.cat([g, g[:-1] @ g[1:]]).to(dtype)


def defect(f, rep_in, rep_out, dtype=torch.float64, scale=1.0):
    """|f(g x) - g f(x)| / (|f(g x)| + |g f(x)|) over seeded inputs and elements; NaN where f vanishes."""
    g = elements(rep_in.G)
    rho_in, rho_out = rep_in.rho(g).to(dtype), rep_out.rho(g).to(dtype)
    x = scale * torch.randn(6, rep_in.dim, generator=generator(12), dtype=torch.float64).to(dtype)
    a = f(torch.einsum("gij,bj->gbi", rho_in, x).reshape(-1, rep_in.dim)).reshape(len(g), 6, -1)
    b = torch.einsum("gij,bj->gbi", rho_out, f(x))
    return ((a - b).norm() / (a.norm() + b.norm())).item()


def linear(rep_in, rep_out, **options):
    return RelaxedLinear(rep_in, rep_out, generator=generator(0), **options)


@pytest.mark.parametrize("G", REAL, ids=str)
def test_without_the_free_pathway_a_layer_is_equivariant(G):
    rep_in, rep_out = (V + 2 * Scalar)(G), (V + Scalar)(G)
    layer = linear(rep_in, rep_out, free_variance=0)
    if layer.equivariant.bias is not None:
        torch.nn.init.normal_(layer.equivariant.bias, generator=generator(1))
    assert layer.free is None
    for dtype, tolerance in TOLERANCE.items():
        assert defect(layer.to(dtype), rep_in, rep_out, dtype) < tolerance  # a zero map would give NaN


@pytest.mark.parametrize("G", [D(4), O(3), Sp(1), SL(2)], ids=str)
def test_equivariance_over_representations(G):
    for rep in TYPES:
        rep_in = rep(G) + Scalar(G)
        layer = linear(rep_in, rep_in, free_variance=0).double()
        assert defect(layer, rep_in, rep_in) < 1e-12, rep


@pytest.mark.parametrize("G", [Z(4), S(3), SO(3), SO13()], ids=str)
def test_a_dense_layer_is_not_equivariant(G):
    layer = linear(V(G), V(G), equivariant_variance=0).double()
    assert layer.equivariant is None
    assert defect(layer, V(G), V(G)) > 1e-2
    assert layer.free.weight.std() > 0.1 / G.d  # of full size, being alone


def test_the_sum_of_the_pathways_is_the_layer():
    layer = linear(V(Z(4)), (V + Scalar)(Z(4)))
    torch.nn.init.normal_(layer.free.bias)
    x = torch.randn(5, 4)
    torch.testing.assert_close(layer(x), layer.equivariant(x) + layer.free(x))
    weight, bias = layer.assemble()
    torch.testing.assert_close(layer(x, (weight, bias)), x @ weight.T + bias)


def test_a_free_pathway_under_a_narrow_prior_moves_at_its_priors_scale():
    rep, learning_rate = (8 * V)(S(3)), 1e-2
    layer = RelaxedLinear(rep, rep, free_variance=1e-6, generator=generator())
    unit = 1e-3 * rep.dim**0.5
    B = layer.free.dense()[0].detach()
    assert B.std().item() == pytest.approx(
        1e-3 / rep.dim**0.5, rel=0.1
    )  # the initial draw is what it is without a unit
    prior = torch.distributions.Normal(0.0, 1e-3)
    expected = -sum(prior.log_prob(w.detach().double()).sum() for w in layer.free.dense())
    only_free = negative_log_prior(layer.free)
    torch.testing.assert_close(only_free.double(), expected, rtol=1e-6, atol=0)
    optimiser = torch.optim.Adam(layer.parameters(), lr=learning_rate)
    A = layer.equivariant.dense()[0].detach()
    x = torch.randn(64, rep.dim, generator=generator(1))
    layer(x).square().mean().backward()
    optimiser.step()
    moved = (layer.free.dense()[0].detach() - B).abs().median().item()
    assert moved == pytest.approx(unit * learning_rate, rel=1e-3)
    assert (layer.equivariant.dense()[0].detach() - A).abs().median().item() == pytest.approx(learning_rate, rel=1e-3)
    wide = RelaxedLinear(rep, rep, free_variance=1.0, generator=generator())
    assert float(wide.free.unit) == 1
    torch.testing.assert_close(wide.free.dense()[0], B, rtol=1e-6, atol=0)


def test_the_free_pathway_is_an_independent_small_draw():
    G = S(5)
    layer = linear((20 * V)(G), (20 * V)(G))
    A, B = layer.equivariant.dense()[0], layer.free.dense()[0]
    assert B.norm() / A.norm() < 3e-3
    correlation = (A * B).sum() / (A.norm() * B.norm())
    assert abs(correlation) < 4 / A.numel() ** 0.5  # the same draw, projected, would be correlated by 0.4


def test_outputs_keep_unit_variance_at_initialisation():
    for G, rep in ((Z(4), 16 * V + 8 * Scalar), (SO(3), 20 * Scalar + 10 * V + 4 * T(2))):
        layer = linear(rep(G), rep(G), free_variance=0)
        y = layer(torch.randn(4000, rep(G).dim, generator=generator(2)))
        assert 0.6 < y.std().item() < 1.5


def test_parameters_of_orbits_are_the_tied_weights_themselves():
    layer = linear(V(S(5)), V(S(5)), free_variance=0)
    theta = layer.equivariant.weight
    W = layer.assemble()[0]
    assert set(W.unique().tolist()) == set(theta.tolist())  # S_5 on R^5: diagonal and off-diagonal value
    with torch.no_grad():
        theta += 0.1
    torch.testing.assert_close(layer.assemble()[0] - W, torch.full_like(W, 0.1))
    beta = layer.equivariant.coefficients()[0]
    torch.testing.assert_close(beta.abs().sort().values, (theta.abs() * torch.tensor([5.0, 20.0]).sqrt()).sort().values)


@pytest.mark.parametrize("G", [Z(4), SO(3), SO13()], ids=str)
def test_coefficients_are_those_of_the_orthonormal_basis(G):
    rep_in, rep_out = (V + Scalar)(G), (T(2) + V)(G)
    layer = linear(rep_in, rep_out, free_variance=0).double()
    weight_map, theta = layer.equivariant.weight_map, layer.equivariant.weight
    W, beta = weight_map(theta), weight_map.beta(theta)
    torch.testing.assert_close(W.norm(), beta.norm())  # Q is orthonormal
    torch.testing.assert_close((rep_in >> rep_out).solve().rmatmul(W.flatten()).norm(), beta.norm())
    torch.testing.assert_close(weight_map.theta(W), theta.detach())
    torch.testing.assert_close(weight_map(theta, W), 2 * W)


@pytest.mark.parametrize("G", [Z(4), SO(3)], ids=str)
def test_gradients(G):
    layer = linear((V + Scalar)(G), (V + Scalar + T(2))(G)).double()
    x = torch.randn(3, layer.rep_in.dim, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)
    f = lambda x, *p: torch.func.functional_call(layer, dict(zip(names, p, strict=True)), (x,))  # noqa: E731
    assert torch.autograd.gradcheck(f, (x, *values))


def test_second_derivatives_by_tied_parameters_forward_over_reverse():
    layer = linear(V(Z(4)), (V + Scalar)(Z(4)), free_variance=0).double()
    assert layer.equivariant.weight_map.ties is not None
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator(1))
    f = lambda w: torch.func.functional_call(layer, {"equivariant.weight": w}, (x,)).pow(3).sum()  # noqa: E731
    w = layer.equivariant.weight.detach()
    expected = torch.func.jacrev(torch.func.jacrev(f))(w)
    assert expected.norm() > 1
    torch.testing.assert_close(torch.func.hessian(f)(w), expected)


def test_representations_of_a_factor_are_lifted():
    G = SO(3) * Z(4)
    layer = RelaxedLinear(V(SO(3)), V(SO(3)), G, free_variance=0, generator=generator())
    assert layer.rep_in.G == G and layer.equivariant.weight.numel() == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((V(SO(3)), V(O(3))), "cannot lift"),
        ((V, V), "not bound to a group"),
        ((V(SU(2)), V(SU(2))), "complex"),
        ((V(U(1)), V(U(1))), "complex"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        RelaxedLinear(*arguments)


@pytest.mark.parametrize("cls", [Gate, Pointwise, Bilinear, InvariantNormaliser, gated], ids=lambda c: c.__name__)
def test_parts_refuse_complex_representations(cls):
    with pytest.raises(ValueError, match="write it as a real group"):
        cls((V + T(1, 1))(U(2)))


def test_no_pathway_or_a_negative_variance_is_refused():
    with pytest.raises(ValueError, match="both 0"):
        linear(V(Z(2)), V(Z(2)), equivariant_variance=0, free_variance=0)
    with pytest.raises(ValueError, match="positive and finite"):
        linear(V(Z(2)), V(Z(2)), free_variance=-1.0)


# -- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("G", REAL, ids=str)
def test_the_gate_is_equivariant(G):
    rep = (2 * Scalar + 2 * V + Pseudoscalar + T(2))(G)
    gate = Gate(rep).double()
    assert gate.rep_in == gated(rep)
    assert defect(gate, gated(rep), rep) < 1e-12


def test_gated_adds_a_scalar_per_part_that_coordinates_are_not_merely_permuted_in():
    G = SO(3)
    assert gated((5 * T(0) + 4 * T(1) + 2 * T(2))(G)) == (6 * T(0) + 5 * T(0) + 4 * T(1) + 2 * T(2))(G)
    assert gated((3 * V + Scalar)(S(4))) == (3 * V + Scalar)(S(4))
    assert gated((2 * Pseudoscalar + V)(S(4))) == (2 * Scalar + 2 * Pseudoscalar + V)(S(4))


def test_a_relaxed_gate_adds_a_free_swish_per_channel():
    rep = (3 * Scalar + 2 * V)(SO(3))
    gate, strict = Gate(rep, free_variance=1.0, generator=generator()).double(), Gate(rep)
    x = torch.randn(7, gate.rep_in.dim, dtype=torch.float64)
    torch.testing.assert_close(gate(x), strict(x) + gate.free.weight * F.silu(x[:, 2:]))
    torch.nn.init.ones_(gate.free.weight)
    assert defect(gate, gate.rep_in, rep) > 1e-2


def test_gate_product_is_the_formula():
    rep = (3 * Scalar + 2 * V + T(2))(SO(3))
    gate = Gate(rep)
    x = torch.randn(2, 5, gate.rep_in.dim)
    gates, scalars, matrix = x[..., :3].sigmoid(), x[..., 3:6], x[..., 12:]
    vectors = [x[..., 6 + 3 * i : 9 + 3 * i] * gates[..., i : i + 1] for i in range(2)]
    torch.testing.assert_close(gate(x), torch.cat([F.silu(scalars), *vectors, matrix * gates[..., 2:]], -1))


def test_the_gradient_of_a_gate_that_is_compiled_scatters_nothing():
    """Compiled, additions by index are atomic, one number at a time, for which threads wait."""
    gate = Gate(component_major((2 * Scalar + 2 * V)(SO(3))))
    gradient = torch.func.grad(lambda x: gate.samples_last(x, None).square().sum())
    operations = {str(node.target) for node in make_fx(gradient)(torch.ones(10, 3)).graph.nodes}
    assert any("sigmoid_backward" in name for name in operations)
    assert not any(by_index in name for name in operations for by_index in ("index_add", "index_put", "scatter_add"))


@pytest.mark.parametrize("rep", [V(SO(3)), (Scalar + Pseudoscalar)(S(3)), V(D(4))], ids=str)
def test_a_pointwise_activation_on_what_it_would_break_is_refused(rep):
    with pytest.raises(ValueError, match="use Gate"):
        Pointwise(rep)


def test_a_pointwise_activation_on_permutations():
    rep = (2 * V + Scalar)(S(4)) + regular(S(4))
    assert defect(Pointwise(rep), rep, rep) < 1e-14


@pytest.mark.parametrize(
    "layer, dim",
    [(Gate((V + 2 * Scalar)(SO(3))), 6), (Pointwise(V(Z(3))), 3), (Bilinear((2 * V + V * V)(SO(3))), 15),
     (InvariantNormaliser(Scalar(SO(2))), 1)],
)  # fmt: skip
def test_features_of_another_size_are_refused(layer, dim):
    for n in (dim + 3, dim * 3):
        with pytest.raises(ValueError, match=rf"inputs of shape \(2, {n}\): the last axis must have {dim} entries"):
            layer(torch.ones(2, n))
    assert layer(torch.ones(2, dim)).isfinite().all()


# -- bilinear layers --------------------------------------------------------------------------------------------------

BILINEAR = [
    (O(3), 4 * Scalar + 3 * V + 2 * T(2) + T(3)),
    (SO(3), 4 * Scalar + V * (3 * Scalar) + 2 * T(2)),
    (Sp(1), 3 * Scalar + 2 * V + 2 * V.T + T(1, 1) + T(2)),
    (SO13(), 3 * Scalar + 2 * V + V.T + T(1, 1) + T(0, 2)),
    (O(2), 2 * Scalar + 2 * Pseudoscalar + 2 * V + V * Pseudoscalar),
    (D(4), 2 * Scalar + V + Pseudoscalar + T(2)),
    (S(3), 2 * Scalar + 2 * V + T(2)),
]


@pytest.mark.parametrize("G, rep", BILINEAR, ids=[str(G) for G, _ in BILINEAR])
def test_the_bilinear_layer_is_equivariant(G, rep):
    layer = Bilinear(rep(G), generator=generator())
    for dtype, tolerance in TOLERANCE.items():
        assert defect(layer.to(dtype), rep(G), rep(G), dtype) < tolerance


def by_definition(layer, x):
    """The bilinear layer with one matrix per sample, copy and pair; its maps are checked to be whole copies of a part."""
    parts, y = layer.rep.blocks(), x.clone()
    weights = layer.weights_of_each(layer.assemble()[0])
    order = torch.arange(layer.rep.dim) if layer.order is None else layer.order
    rows = dict(zip(layer.map_sizes, order[layer.maps].split(list(layer.map_sizes.values())), strict=True))
    for k, own in zip(layer.contractions, weights, strict=True):
        own = own.reshape(k.maps, -1, own.shape[1])
        own = own if k.weights_first else own.mT
        index = rows[k.matrix].view(-1, k.maps).T
        index = index if k.weights_first else index.unflatten(1, (k.dim_in, k.dim_out)).mT.flatten(1)
        copies = parts[k.map][1][:, list(k.coordinates)].tolist()
        assert all(copy in copies for copy in index.tolist()) and len(index.unique(dim=0)) == k.maps
        M = x[:, index].view(len(x), k.maps, k.dim_out, k.dim_in)
        terms = torch.einsum("noi,bnxy,biy->box", own, M, x[:, parts[k.into][1]])
        y = y.index_add(1, parts[k.out][1].flatten(), terms.flatten(1))
    return y


@pytest.mark.parametrize("G, rep", BILINEAR, ids=[str(G) for G, _ in BILINEAR])
def test_the_bilinear_layer_is_the_sum_of_its_contractions(G, rep):
    """Values and gradients, against the definition, in float64."""
    layer = Bilinear(rep(G), generator=generator()).double()
    n = sum(k.num_weights for k in layer.contractions)
    assert layer.equivariant.weight.numel() == n == sum(k.outs * k.maps * k.ins for k in contractions(rep(G)))
    x = torch.randn(5, layer.rep.dim, dtype=torch.float64, generator=generator(1), requires_grad=True)
    y, expected = layer(x), by_definition(layer, x)
    assert (expected - x).norm() > 1e-3 * x.norm()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(layer(x.mT.contiguous().mT), y)  # whatever the layout in memory
    torch.testing.assert_close(layer(2 * x) - 2 * x, 4 * (y - x))
    grad = torch.randn(y.shape, dtype=torch.float64, generator=generator(2))
    inputs = (x, layer.equivariant.weight)
    found, wanted = (torch.autograd.grad(out, inputs, grad) for out in (y, expected))
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        layer.equivariant.weight[0] += 1.0  # the comparison sees a single weight
    assert not torch.allclose(layer(x), expected)


@pytest.mark.parametrize(("maps", "products"), [(None, 12), (1, 5), (3, 12), (4, 14), (5, 15), (9, 15)])
def test_n_maps_make_products_of_all_pairs_of_n_vectors(maps, products):
    """Of five vectors: with m maps 5 m products, of which m (m - 1) / 2 are the same twice."""
    rep = (20 * T(0) + 5 * T(1))(O(3))
    layer = Bilinear(rep, maps=maps, generator=generator(0)).double()
    x = torch.randn(60, rep.dim, generator=generator(1), dtype=torch.float64)
    (scalars,) = (index.flatten() for part, index in rep.blocks() if part.dim == 1)
    assert torch.linalg.matrix_rank((layer(x) - x)[:, scalars], rtol=1e-10) == products


def test_without_maps_there_is_no_bilinear_layer():
    with pytest.raises(ValueError, match=r"maps=0: give a number of at least 1, or None for as many as a part has"):
        Bilinear((2 * T(0) + 2 * T(1))(O(3)), maps=0)


def test_nothing_to_contract_is_refused():
    with pytest.raises(ValueError, match="leave the bilinear layer out"):
        Bilinear((3 * Scalar)(SO(3)))


def test_orders_of_contraction_give_the_same():
    """The cheaper order is chosen per contraction; both occur, and the result does not depend on the layout."""
    G = SO(3)
    natural, major = (6 * Scalar + 4 * V + 2 * T(2))(G), (6 * Scalar + V * (4 * Scalar) + T(2) * (2 * Scalar))(G)
    a, b = Bilinear(natural, generator=generator(3)).double(), Bilinear(major, generator=generator(3)).double()
    assert {k.weights_first for k in a.contractions} == {True, False}
    torch.testing.assert_close(a.equivariant.weight, b.equivariant.weight)
    x = torch.randn(4, natural.dim, dtype=torch.float64)
    to_major = torch.empty(natural.dim, dtype=torch.int64)
    for (_, i), (_, j) in zip(natural.blocks(), major.blocks(), strict=True):
        to_major[j.flatten()] = i.flatten()
    torch.testing.assert_close(b(x[:, to_major]), a(x)[:, to_major])
