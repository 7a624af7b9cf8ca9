"""Symmetry-adapted bases: generators become block-diagonal with the same irreducible blocks in every representation."""

from __future__ import annotations

import pytest
import torch
from registry import GALILEI, SHEAR, generator

from rppdyn.basis import isotypic, solve
from rppdyn.groups import O13, SL, SO, SU, D, DkeR3, O, O2eR3, S, Sp, U, Z
from rppdyn.reps import Pseudoscalar, Scalar, T, V, regular

GROUPS = [Z(4), S(4), D(5), O(2), O(3), SL(2), Sp(2), SU(2), U(2), O13(), DkeR3(3)]
PAIRS = {
    "hidden": (3 * Scalar + 2 * V + V * V, V + Scalar),
    "dual": (V.T * V + Scalar, 2 * V + V.T),
    "interleaved": ((V + Scalar) * (V + 2 * Scalar), V),
    "odd": (Pseudoscalar + V * V, V * V),
}


@pytest.mark.parametrize("G", GROUPS, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_generators_become_block_diagonal_and_aligned(G, name):
    reps = [r(G) for r in PAIRS[name]]
    adapted = isotypic(reps)
    irreducible = {}
    for s, (rep, u) in enumerate(zip(reps, adapted.u, strict=True)):
        eye = torch.eye(rep.dim, dtype=u.dtype)
        assert (u.mH @ u - eye).abs().max() <= 1e-12
        assert sum(t.dim * t.multiplicities[s] for t in adapted.types) == rep.dim
        for i, a in enumerate([*rep.lie_generators, *rep.discrete_generators]):
            rotated = u.mH @ a @ u
            left = torch.zeros_like(rotated)
            for k, t in enumerate(adapted.types):
                for copy in range(t.multiplicities[s]):
                    cut = slice(t.starts[s] + copy * t.dim, t.starts[s] + (copy + 1) * t.dim)
                    left[cut, cut] = irreducible.setdefault((i, k), rotated[cut, cut])
            assert (rotated - left).abs().max() <= 1e-10 * max(1.0, float(a.norm()))
    for (_, k), block in irreducible.items():
        for unit in adapted.types[k].units.to(block.dtype):
            assert (block @ unit - unit @ block).abs().max() <= 1e-10


@pytest.mark.parametrize("G", GROUPS, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_maps_are_all_the_equivariant_ones(G, name):
    x, y = (r(G) for r in PAIRS[name])
    adapted = isotypic([x, y])
    count = sum(len(t.units) * t.multiplicities[0] * t.multiplicities[1] for t in adapted.types)
    basis = solve(x >> y)
    assert count == basis.rank
    weights = [
        torch.randn(len(t.units), t.multiplicities[1], t.multiplicities[0], dtype=basis.dtype, generator=generator(1))
        for t in adapted.types
    ]
    w = adapted.map(1, 0, weights)
    norm = sum(t.dim * float(a.norm()) ** 2 for t, a in zip(adapted.types, weights, strict=True)) ** 0.5
    assert float(w.norm()) == pytest.approx(norm, rel=1e-10)  # elementary weights over sqrt(d) are orthonormal
    flat = w.reshape(-1)
    assert (basis.project(flat) - flat).norm() <= 1e-9 * max(norm, 1e-300)


@pytest.mark.parametrize("G, kinds", [
    (SO(2), [(1, "real"), (2, "complex")]),
    (Z(4), [(1, "real"), (2, "complex")]),
    (D(5), [(1, "real"), (2, "real")]),
    (SO(3), [(1, "real"), (3, "real"), (5, "real")]),
    (U(2), [(1, "real"), (2, "real"), (3, "real")]),
], ids=str)  # fmt: skip
def test_kinds(G, kinds):
    found = {(t.dim, t.kind) for t in isotypic([(Scalar + V + V * V.T)(G)]).types}
    assert set(kinds) <= found


@pytest.mark.parametrize("G", [Z(4), Z(5), S(3), D(4), D(5), S(4)], ids=str)
def test_regular_representation_holds_each_type_as_often_as_its_dimension(G):
    adapted = isotypic([regular(G)])
    for t in adapted.types:
        assert t.multiplicities[0] * len(t.units) == t.dim
    assert sum(t.dim * t.multiplicities[0] for t in adapted.types) == G.order


@pytest.mark.parametrize("G", [SO(3), O(2), O2eR3(), SU(2)], ids=str)
def test_generators_that_move_nothing_leave_the_check_of_the_others_whole(G):
    """The scale of their constraint is 0, and 0 / 0 would be a residual that no bound refuses."""
    adapted = isotypic([(3 * Scalar)(G)])
    assert [(t.dim, t.multiplicities) for t in adapted.types] == [(1, (3,))]
    assert (adapted.u[0].mH @ adapted.u[0] - torch.eye(3)).abs().max() <= 1e-12


def test_refusals():
    with pytest.raises(ValueError, match="at least one"):
        isotypic([])
    with pytest.raises(ValueError, match="one group"):
        isotypic([V(SO(3)), V(SO(2))])
    for G in (SHEAR, GALILEI):
        with pytest.raises(ValueError, match=r"not closed under transposition.*rep\.solve"):
            isotypic([V(G)])
    assert isotypic([T(2)(O(3)), V(O(3))]) is not None
