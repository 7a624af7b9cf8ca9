"""Channel-wise products: equivariant, all that the group has, and no wider than the layer they are given."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest
import torch
from registry import generator

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SL, SO, SO13, D, Group, O, S, SO2eR3, SO13p, Sp, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, Bilinear, ChannelProducts
from rppdyn.nn._hidden import MIN_PRODUCT_CHANNELS, component_major, missing_types, operand_types, tensor_rank
from rppdyn.reps import Pseudoscalar, Scalar, T, V

# (group, dimension of the operands, how many products are scalars, and how many are vectors), by hand. Everywhere a scalar
# times a scalar, and a scalar times a vector in both orders and all the ways in which vectors are turned into vectors.
PRODUCTS = [
    (SO(2), 3, 3, 4),  # u . v and the area of u and v; vectors turned by a right angle, too
    (O(2), 3, 2, 2),
    (SO(3), 4, 2, 3),  # and the cross product
    (O(3), 4, 2, 2),
    (O(5), 6, 2, 2),
    # a vector is (plane, z). Scalars: s t, s z', z t, z z', u . v, area. Vectors along z: these six; in the plane: each of
    # s u', u t, z u', u z' as it is and turned by a right angle
    (SO2eR3(), 4, 6, 14),
    (SO13p(), 5, 2, 2),
    (SO13(), 5, 2, 2),
    (Sp(2), 5, 2, 2),
    (SL(2), 3, 2, 2),  # the area turns vectors into covectors
    (SL(3), 7, 3, 3),  # with covectors: their pairing with vectors in both orders; the cross product of two is a vector
]


@pytest.mark.parametrize("G, dim, scalars, vectors", PRODUCTS, ids=[str(p[0]) for p in PRODUCTS])
def test_all_products_are_there(G, dim, scalars, vectors):
    assert sum(t.dim for t in operand_types(Scalar(G))) == dim
    layer = ChannelProducts((20 * Scalar + 20 * V)(G), channels=2, generator=generator())
    assert {target.dim: target.rank for target in layer.targets} == {1: scalars, G.d: vectors}


def by_definition(layer, x):
    """One product at a time, from the solver's own bases."""
    k, n = layer.channels, layer.rep.dim
    types = operand_types(layer.rep)
    operand = reduce(add, types)
    hidden = layer.hidden
    y, start, z = x[:, :n].clone(), 0, x[:, n:]
    u, v = [], []
    for t in types:
        both, z = z[:, : 2 * k * t.dim].view(len(x), t.dim, 2, k), z[:, 2 * k * t.dim :]
        u.append(both[:, :, 0])
        v.append(both[:, :, 1])
    u, v = torch.cat(u, 1), torch.cat(v, 1)
    weight = layer.equivariant.weight
    for part, index in hidden.blocks():
        Q = (operand * operand >> part).solve().canonical().dense()
        if not Q.shape[1]:
            continue
        P = Q.view(part.dim, operand.dim, operand.dim, -1) * part.dim**0.5
        w = weight[start : start + len(index) * P.shape[-1] * k].view(len(index), P.shape[-1], k)
        for m, rows in enumerate(index):
            terms = torch.einsum("pijb,nic,njc,bc->np", P, u, v, w[m])
            y = y.index_add(1, n - hidden.dim + rows, terms)
        start += w.numel()
    return y


@pytest.mark.parametrize("G", [SO(3), SL(3), SO2eR3(), SO(2)], ids=str)
@pytest.mark.parametrize("layout", [lambda rep: rep, component_major], ids=["copy by copy", "component-major"])
def test_the_layer_is_the_sum_of_its_products(G, layout):
    hidden = layout((4 * Scalar + 3 * V + (T(2) if G.d == 3 and G.is_orthogonal else Scalar))(G))
    layer = ChannelProducts(hidden, channels=3, generator=generator()).double()
    x = torch.randn(5, layer.rep_in.dim, generator=generator(2), dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_definition(layer, x), rtol=1e-12, atol=1e-12)
    assert (layer(x) - x[:, : layer.rep.dim]).abs().mean() > 0.01


@pytest.mark.parametrize("G", [O(2), SO(3), SO13p(), O(5), SL(3)], ids=str)
@pytest.mark.parametrize("width", [24, 384])
def test_a_width_is_the_rows_of_a_linear_layer_unless_operands_are_more_than_half(G, width):
    net = EMLP(2 * V, Scalar, G, hidden=width, num_layers=2, bilinear="channelwise")
    rows = [block.linear.rep_out.dim for block in net.blocks]
    assert (width == 24) == (max(rows) > width) and min(rows) > 0.9 * width
    assert all(block.bilinear.channels >= MIN_PRODUCT_CHANNELS for block in net.blocks)
    assert all(net.blocks[1].gate.rep_in.dim <= width for block in net.blocks)


def test_ranks_of_hidden_tensors_are_those_of_the_output():
    rank = lambda *reps: max(tensor_rank(rep) for rep in EMLP(*reps, SO(3), hidden=100, bilinear="channelwise").hidden)  # noqa: E731
    assert [rank(V, Scalar), rank(V, T(2)), rank(T(2), V), rank(Scalar, Scalar)] == [1, 2, 1, 1]


def test_they_are_the_default_of_infinite_groups_where_a_width_has_room():
    def kinds(G, cls=EMLP, **options):
        return {type(block.bilinear) for block in cls(2 * V, Scalar, G, num_layers=1, **options).blocks}

    assert kinds(SO(3), hidden=64) == kinds(SO13p(), RPPEMLP, hidden=64) == {ChannelProducts}
    assert kinds(SO(3), hidden=8) == {Bilinear}
    assert kinds(SO(3), hidden=64, bilinear="published") == kinds(SO(3), hidden=64, bilinear=None) == {Bilinear}
    assert kinds(D(4), hidden=64, architecture="tensor") == {Bilinear}
    assert kinds(SO(3), MLP, hidden=64) == {type(None)}


def test_the_published_network_has_tensors_of_its_width():
    net = EMLP(2 * V, T(2), SO(3), hidden=64, bilinear="published")
    assert net.hidden[0].dim == 64 and max(tensor_rank(rep) for rep in net.hidden) == 2


def test_types_that_scalars_and_vectors_lack_are_carried_and_made():
    """As of a planar arm, whose torques a reflection turns."""
    G, x = O(2), torch.randn(6, 5, dtype=torch.float64, generator=generator(3))
    rep_in, sign = (2 * V + Pseudoscalar)(G), Pseudoscalar(G)
    vectors = (2 * V)(G)
    assert [rep.dim for rep in missing_types(vectors, sign, 1)] == [1] and missing_types(vectors, vectors, 1) == ()
    assert missing_types(vectors, sign, 2) == ()  # matrices of the plane have it
    assert [rep.dim for rep in missing_types(rep_in, vectors, 2)] == [1]  # but in the input, it multiplies
    net = EMLP(rep_in, sign, G, hidden=48, num_layers=2, bilinear="channelwise", generator=generator()).double()
    assert net.hidden[0].dim < 48 and equivariance_error(net, rep_in, sign, x, n_samples=3).mean < 1e-12
    still = x * torch.tensor([1, 1, 1, 1, 0])  # from the area between two vectors alone
    for inputs in (x, still):
        assert net(inputs).std() > 1e-3
    assert (net(x) - net(still)).abs().min() > 1e-6
    with pytest.raises(ValueError, match="lets nothing through"):
        EMLP(rep_in, sign, G, hidden=20 * Scalar + 20 * V, num_layers=1, bilinear="channelwise")


@pytest.mark.parametrize("G", [SO(2), O(3), SO13p()], ids=str)
def test_a_matrix_of_the_input_acts_on_vectors(G):
    """Antisymmetric and symmetric traceless parts, too, which are no products of scalars and vectors of the input."""
    net = EMLP(V + T(2), V, G, hidden=64, num_layers=1, generator=generator()).double()
    n, d = 12, G.d
    x, m = (torch.randn(n, k, dtype=torch.float64, generator=generator(1)) for k in (d, d * d))
    eye = torch.eye(d, dtype=torch.float64)
    for part in (
        m - m.view(n, d, d).mT.flatten(1),
        torch.outer(torch.ones(n), (eye[:1].mT @ eye[1:2]).flatten()).double(),
    ):
        with_part = net(torch.cat([x, m + part], 1))
        assert (with_part - net(torch.cat([x, m], 1))).norm() > 1e-3 * with_part.norm()
    reps = net.rep_in, net.rep_out
    assert equivariance_error(net, *reps, torch.cat([x, m], 1), n_samples=3).mean < 1e-11


def test_types_of_the_input_that_do_not_reach_the_output_are_named(recwarn):
    """Narrow layers see only sums of rows and columns of a matrix of pairs."""
    EMLP(V + T(2), V, S(5), hidden=80, num_layers=1)
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"types of dimension 5, 6 in the input T1 \+ T2 of S\(5\) don't reach the output"
    ):
        EMLP(V + T(2), V, S(5), hidden=64, num_layers=1)


@pytest.mark.parametrize(
    ("group", "rep_out", "narrow", "wide", "zeros"),
    [
        (SO(3), T(2), 32, 64, "5 of the 9"),
        (S(5), T(2), 64, 128, "11 of the 25"),
        (SL(2), T(1, 1), 24, 128, "3 of the 4"),
    ],
)
def test_outputs_that_are_always_zero_are_counted(group, rep_out, narrow, wide, zeros, recwarn):
    """Narrow hidden layers have scalars and vectors alone, and of a matrix only the trace is left."""
    EMLP(2 * V, rep_out, group, hidden=wide, num_layers=1)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=f"{zeros} numbers of the output .* are always zero"):
        net = EMLP(2 * V, rep_out, group, hidden=narrow, num_layers=1, generator=torch.Generator().manual_seed(0))
    outputs = net(torch.randn(100, 2 * group.d, generator=torch.Generator().manual_seed(1))).detach()
    rank = torch.linalg.matrix_rank(outputs, rtol=1e-4)
    assert rank <= net.rep_out.dim - int(zeros.split()[0])


def test_finite_groups_with_regular_representations_have_none():
    assert all(block.bilinear is None for block in EMLP(V, V, Z(4), hidden=32, bilinear="channelwise").blocks)


def test_what_has_no_products_goes_without_or_is_refused():
    scaling, hidden = Group("Scaling", lie_algebra=[torch.eye(2)]), 4 * T(3)
    assert RPPEMLP(V, V, scaling, hidden=hidden, num_layers=1, bilinear="channelwise").blocks[0].bilinear is None
    with pytest.raises(ValueError, match=r"Scaling has no product of scalars and vectors that ends in T\(?3"):
        ChannelProducts(hidden(scaling), channels=2)
    assert MLP(V, V, SO(3), hidden=8).blocks[0].bilinear is None
    with pytest.raises(ValueError, match="bilinear='channelwise' needs the equivariant pathway"):
        MLP(V, V, SO(3), hidden=8, bilinear="channelwise")
