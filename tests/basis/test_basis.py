"""Certificates, lazy products against the dense matrix, refusals, and agreement between strategies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from registry import GALILEI, KINDS, SHEAR, TYPES, generator

from rppdyn.basis import BasisCertificate, NotCertified, _solver, solve
from rppdyn.basis._isotypic import solve_isotypic
from rppdyn.basis._problem import Problem
from rppdyn.basis._solver import solve_dense, solve_iterative, solve_orbits, solve_problem
from rppdyn.groups import O13, SL, SO, SU, D, Group, O, S, SO13p, Sp, U, Z
from rppdyn.reps import Pseudoscalar, Rep, Scalar, T, V

MIXED = {
    "layer": (3 * T(0) + 2 * T(1) + T(2)) >> (T(0) + 2 * T(1)),
    "interleaved": (V + Scalar) * (V.T + 2 * Scalar),
    "pseudo": (Pseudoscalar + V) * (V + Pseudoscalar),
    "nothing": Pseudoscalar,
}
SOME = [SO(3), S(4), D(5), SU(2), Sp(1), SHEAR]


def randn(dim, *batch, dtype=torch.float64, seed=0):
    return torch.randn(dim, *batch, dtype=dtype, generator=generator(seed))


def turn(angle):
    c, s = np.cos(angle), np.sin(angle)
    return [[c, -s], [s, c]]


def constraint_residual(rep: Rep, q: torch.Tensor) -> float:
    """Largest residual of any generator, from the representation's own dense matrices."""
    worst = 0.0
    for a in rep.lie_generators:
        worst = max(worst, float((a @ q).norm(dim=0).max() / a.norm().clamp_min(1e-300))) if q.shape[1] else 0.0
    for h in rep.discrete_generators:
        worst = max(worst, float((h @ q - q).norm(dim=0).max())) if q.shape[1] else 0.0
    return worst


@pytest.mark.parametrize("G", KINDS, ids=str)
def test_residual_orthonormality_and_rank_of_every_registered_representation(G):
    for rep_type in TYPES:
        rep = rep_type(G)
        basis = rep.solve()
        q = basis.dense()
        assert q.shape == (rep.dim, basis.rank) == basis.shape
        assert q.dtype == (torch.complex128 if G.is_complex else torch.float64)
        assert constraint_residual(rep, q) <= 1e-10
        assert (q.mH @ q - torch.eye(basis.rank, dtype=q.dtype)).abs().max() <= 1e-12 if basis.rank else True
        basis.certificate.check(str(rep))
        # rank, by singular values of all constraints at once
        rows = [rep.lie_generators.reshape(-1, rep.dim)]
        rows.append((rep.discrete_generators - torch.eye(rep.dim, dtype=rep.dtype)).reshape(-1, rep.dim))
        sigma = torch.linalg.svdvals(torch.cat(rows))
        assert basis.rank == rep.dim - int((sigma > 1e-9 * sigma.max().clamp_min(1e-300)).sum()), rep


@pytest.mark.parametrize("G", SOME, ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_lazy_products_agree_with_the_dense_matrix(G, name):
    basis = MIXED[name](G).solve()
    q = basis.dense()
    for batch in ((), (3,), (2, 2), (0,)):
        beta, v = (randn(n, *batch, dtype=q.dtype) for n in (basis.rank, basis.dim))
        assert torch.allclose(basis.matmul(beta), torch.tensordot(q, beta, 1), atol=1e-12)
        assert torch.allclose(basis.rmatmul(v), torch.tensordot(q.mH, v, 1), atol=1e-12)
        assert torch.allclose(basis.project(v), torch.tensordot(q @ q.mH, v, 1), atol=1e-12)
    rows, cols, values = basis.sparse()
    dense = torch.zeros_like(q).index_put((rows, cols), values)
    assert torch.allclose(dense, q, atol=1e-14)
    assert len(set(zip(rows.tolist(), cols.tolist(), strict=True))) == len(rows)


@pytest.mark.parametrize("rep", [T(4)(SO(3)), T(4)(SU(2)), T(6)(SO(2)), T(6)(Sp(1))], ids=str)
def test_lazy_isotypic_products(rep):
    (block,) = rep.solve().blocks
    subspace = solve_isotypic(Problem.from_rep(block.rep))[0]
    q = subspace.dense()
    assert subspace.rank == rep.solve().rank
    beta, v = randn(subspace.rank, 2, dtype=q.dtype), randn(subspace.dim, 2, dtype=q.dtype)
    assert torch.allclose(subspace.matmul(beta), q @ beta, atol=1e-12)
    assert torch.allclose(subspace.rmatmul(v), q.mH @ v, atol=1e-12)
    if rep.G == SO(3):  # products are differentiable, in both forms
        assert torch.autograd.gradcheck(subspace.matmul, randn(3, 1).requires_grad_())
        basis = (V + Scalar)(SO(3)).solve()
        assert torch.autograd.gradcheck(basis.matmul, randn(basis.rank).requires_grad_())
        assert torch.autograd.gradcheck(basis.rmatmul, randn(basis.dim).requires_grad_())


def test_blocks_hold_the_basis_and_equal_ones_are_solved_once():
    basis = ((2 * T(1) + T(0)) >> (T(1) + T(0)))(SO(3)).solve()
    q, start = basis.dense(), 0
    for block in basis.blocks:
        part = block.basis.dense()
        for index in block.index:
            assert torch.equal(q[index, start : start + block.basis.rank], part)
            start += block.basis.rank
    assert start == basis.rank
    vectors = {id(block.basis) for block in basis.blocks if block.basis.dim == 3}  # T0 (x) T1 and T1 (x) T0
    assert vectors == {id(T(1)(SO(3)).solve().blocks[0].basis)}


# -- negative controls ------------------------------------------------------------------------------------------------


def test_a_random_vector_is_not_invariant_and_invariance_survives_group_elements():
    for G in (SO(3), S(4), O13(), SU(2)):
        rep = (T(2) >> T(2))(G) if G.name != "SU(2)" else (V >> V)(G)
        basis, g = rep.solve(), G.samples(4, torch.Generator().manual_seed(1))
        g = g[1] @ g[2] @ g[3]
        w = basis.matmul(randn(basis.rank, dtype=basis.dtype))
        v = randn(basis.dim, dtype=basis.dtype)
        rho = rep.rho(g)
        assert (rho @ w - w).norm() <= 1e-9 * rho.norm() * w.norm()
        assert (rho @ v - v).norm() > 1e-2 * v.norm()
        assert (basis.project(v) - v).norm() > 1e-2 * v.norm()


def test_certificate_refuses_each_bad_number():
    good = dict(residual=1e-15, orthonormality=1e-15, rank_gap=0.1, strategy="dense")
    BasisCertificate(**good).check("x")
    for bad in (dict(residual=2e-10), dict(orthonormality=2e-12), dict(rank_gap=1e-7), dict(residual=float("nan"))):
        with pytest.raises(NotCertified, match="no certified basis of x"):
            BasisCertificate(**(good | bad)).check("x")
    one, nans = BasisCertificate(**good), (BasisCertificate(**(good | {name: np.nan})) for name in list(good)[:3])
    for nan in nans:
        for parts in ([one, nan, one], [nan, one], [one, nan]):
            with pytest.raises(NotCertified):
                BasisCertificate.worst(parts).check("x")


SWAP, TURNS = S(3).discrete_generators[1], SO(3).lie_algebra


def swaps(angle):
    """Two permutations that coincide but for a tiny rotation."""
    rotation = torch.block_diag(torch.tensor(turn(angle), dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    return Group("near", discrete_generators=[SWAP, SWAP @ rotation])


NEAR = [(swaps(angle), k) for angle in (1e-7, 1e-9, 3e-11) for k in (2, 4)]
NEAR += [(Group("near", lie_algebra=[TURNS[0], TURNS[0] + 1e-8 * TURNS[1]]), k) for k in (2, 4)]
NEAR += [(Group("near", discrete_generators=[turn(angle)]), 6) for angle in (1e-6, 1e-9, np.pi / 3 * (1 + 1e-11))]


@pytest.mark.parametrize("G, k", NEAR)
def test_near_invariants_are_neither_taken_nor_left_out(G, k):
    with pytest.raises(NotCertified, match=rf"T{k}"):
        solve(T(k)(G), cache=False)


def test_differences_below_rounding_are_none():
    one = Group("one", discrete_generators=[SWAP])
    for k in (2, 4):
        assert solve(T(k)(swaps(3e-14)), cache=False).rank == solve(T(k)(one), cache=False).rank
    G = Group("turn", discrete_generators=[[[1, -1e-13], [1e-13, 1]]])
    assert [solve(T(n)(G), cache=False).rank for n in (2, 4, 6)] == [4, 16, 64]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_by_name():
    basis = T(7)(Z(4)).solve()
    with pytest.raises(ValueError, match=r"T7 of Z\(4\) has shape \(16384, 4096\) and 536870912 bytes.*rep\.solve\(\)"):
        basis.dense(max_bytes=2**20)
    wide = ((102 * T(0) + 34 * T(1) + 11 * T(2) + 3 * T(3))(SO(3)) >> (384 * T(0) + 384 * T(1))(SO(3))).solve()
    with pytest.raises(ValueError, match=r"rep\.solve"):
        wide.dense()
    assert wide.matmul(torch.ones(wide.rank, dtype=torch.float64)).shape == (wide.dim,)
    for rep in (T(30)(SO(3)), T(14)(S(5))):
        with pytest.raises(ValueError, match=rf"the basis of {rep} of .* {rep.dim} coordinates"):
            solve(rep)
    with pytest.raises(NotCertified, match="T15: its dimension 14348907"):
        solve(T(15)(SO(3)))
    basis = T(2)(SO(3)).solve()
    with pytest.raises(ValueError, match="T2 has rank 1"):
        basis.matmul(torch.ones(2))
    with pytest.raises(ValueError, match="T2 has dimension 9"):
        basis.rmatmul(torch.ones(8))
    with pytest.raises(ValueError, match="real and imaginary parts"):
        basis.project(torch.ones(9, dtype=torch.complex128))


# -- strategies -------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "SO(3) T4": T(4)(SO(3)),
    "O(3) T3": T(3)(O(3)),
    "S(4) T3": T(3)(S(4)),
    "D(4) T4": T(4)(D(4)),
    "D(5) T5": T(5)(D(5)),
    "Z(4) T3": T(3)(Z(4)),
    "SO(2) T6": T(6)(SO(2)),
    "Sp(2) T4": T(4)(Sp(2)),
    "SL(2) T(2,2)": T(2, 2)(SL(2)),
    "O13 T4": T(4)(O13()),
    "SU(2) T4": T(4)(SU(2)),
    "SU(3) T(2,2)": T(2, 2)(SU(3)),
    "U(2) T(2,2)": T(2, 2)(U(2)),
    "SO(3)xZ(4)": (V(SO(3)).lift(SO(3) * Z(4)) ** 2) * V(Z(4)).lift(SO(3) * Z(4)) ** 2,
    "shear T6": T(6)(SHEAR),
    "Galilei T4": T(4)(GALILEI),
    "Galilei T(2,2)": T(2, 2)(GALILEI),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_strategies_agree(name):
    problem = Problem.from_rep(PROBLEMS[name])
    q, reference = solve_dense(problem)
    reference.check(name)
    q = q.dense()
    found = [s(problem) for s in (solve_orbits, solve_isotypic, solve_iterative, solve_problem)]
    assert sum(f is not None for f in found) >= 2
    for subspace, certificate in filter(None, found):
        certificate.check(name)
        p = subspace.dense()
        assert subspace.rank == q.shape[1], certificate.strategy
        assert (p - q @ (q.mH @ p)).abs().max() <= 1e-9 if subspace.rank else True, certificate.strategy
        assert problem.residual(p.numpy()) <= 1e-10


@pytest.mark.parametrize(
    "rep, strategy",
    [
        (T(3)(S(5)), "orbits"),
        (T(2)(SO(3)), "dense"),
        (T(4)(SO(3)), "isotypic"),
        (T(4)(GALILEI), "dense"),
        ((T(0) + T(2) + T(4))(SO(3)), "dense+isotypic+orbits"),
    ],
    ids=str,
)
def test_the_problem_chooses_the_strategy(rep, strategy):
    assert solve(rep, cache=False).certificate.strategy == strategy


def test_blocks_that_are_too_large_for_singular_values_are_solved_by_iteration(monkeypatch):
    monkeypatch.setattr(_solver, "MAX_DENSE_DIM", 80)
    assert solve(T(4)(GALILEI), cache=False).certificate.strategy == "iterative"


def test_quaternionic_and_complex_types():
    """Unit quaternions act on R^4 with commutant H, rotations of the plane on R^2 with commutant C."""
    left = torch.zeros(3, 4, 4, dtype=torch.float64)  # multiplication by i, j, k from the left, on (1, i, j, k)
    for u, images in enumerate(
        [[(1, 1), (0, -1), (3, 1), (2, -1)], [(2, 1), (3, -1), (0, -1), (1, 1)], [(3, 1), (2, 1), (1, -1), (0, -1)]]
    ):
        for column, (row, sign) in enumerate(images):
            left[u, row, column] = sign
    assert torch.equal(left[0] @ left[1], left[2]) and torch.equal(left[1] @ left[0], -left[2])
    G = Group("H", lie_algebra=left)
    problem = Problem.from_rep((3 * V >> 2 * V)(G).blocks()[0][0])
    subspace, certificate = solve_isotypic(problem)
    certificate.check("H")
    assert subspace.rank == 4 and {t.units for t in subspace.types} == {4}
    # V (x) C is two copies of the spin-1/2 representation, whose k-th power has Catalan(k/2) invariants
    assert [solve(T(k)(G), cache=False).rank for k in (2, 3, 4, 6)] == [2**2 * 1, 0, 2**4 * 2, 2**6 * 5]
    assert solve(T(3)(SO(2)) >> T(3)(SO(2)), cache=False).rank == 20


def test_answers_are_repeatable():
    a, b = (solve(T(5)(O(3)) * V(O(3)), cache=False).dense() for _ in range(2))
    assert torch.equal(a, b)


THIRD = torch.tensor([np.exp(2j * np.pi / 3)])
COMPUTED = {  # generators that cancel in some products, but for what computing them has left
    "half turn": (turn(np.pi), T(2), 4),
    "half turn, four indices": (turn(np.pi), T(4), 16),
    "half turn, maps": (turn(np.pi), V >> V, 4),
    "half turn by the exponential": (torch.matrix_exp(np.pi * SO(2).lie_algebra)[0], T(2), 4),
    "four quarter turns": (torch.linalg.matrix_power(torch.tensor(turn(np.pi / 2)), 4), V, 2),
    "stretching": ([[49.0, 0.0], [0.0, 49.0]], V >> V, 4),
    "third of a phase, maps": (THIRD * torch.eye(3), V >> V, 9),
    "third of a phase": (THIRD * torch.eye(3), T(3), 27),
}


@pytest.mark.parametrize("generator, rep_type, rank", COMPUTED.values(), ids=list(COMPUTED))
def test_what_all_generators_leave_alone_but_for_rounding_is_invariant(generator, rep_type, rank):
    generator = torch.as_tensor(generator)
    G = Group("computed", discrete_generators=generator.to(torch.promote_types(generator.dtype, torch.float64))[None])
    for rep in (rep_type(G), rep_type(G).lift(G * Z(2))):
        basis = solve(rep, cache=False)
        assert basis.rank == rank and basis.certificate.rank_gap > 0.1


@pytest.mark.parametrize("n", [2, 3])
def test_a_lie_generator_whose_image_is_rounding_acts_on_nothing(n):
    """Its trace, in other axes, is 1e-17."""
    P = torch.eye(n) + 0.3 * randn(n, n, dtype=torch.complex128, seed=n)
    G = Group("skewed", lie_algebra=P @ SU(n).lie_algebra @ torch.linalg.inv(P))
    maps = (V + V.T + Scalar) >> (V * V + Pseudoscalar)
    assert solve(maps(G), cache=False).rank == solve(maps(SU(n)), cache=False).rank


@pytest.mark.parametrize("scale", [1e-10, 1e-4, 1e6])
def test_length_of_the_generators_does_not_matter(scale):
    shear, turns = (
        Group("scaled", lie_algebra=scale * torch.as_tensor(A, dtype=torch.float64))
        for A in ([[[0.0, 1], [0, 0]]], SO(3).lie_algebra)
    )
    assert [solve(T(k)(turns), cache=False).rank for k in range(1, 6)] == [0, 1, 1, 3, 6]
    assert V.T(shear) != V(shear) and not shear.is_orthogonal and turns.is_orthogonal
    identity = torch.eye(2, dtype=torch.float64).flatten()
    assert torch.allclose((V >> V)(shear).solve().project(identity), identity, atol=1e-12)
    assert V(turns).components.tolist() == [0, 0, 0]
    ours, theirs = (G.samples(3, generator()) for G in (turns, SO(3)))
    assert torch.allclose(ours, theirs, atol=1e-12)


def lorentz_in_units(c):
    """Of time in seconds and lengths in metres, where c is the speed of light."""
    D = torch.diag(torch.tensor([1, c, c, c], dtype=torch.float64))
    return Group(f"SO13p, c={c:g}", lie_algebra=D @ SO13p().lie_algebra @ torch.linalg.inv(D))


@pytest.mark.parametrize("c", [10.0, 1e3, 1e4, 1e6, 299792458.0])
def test_ranks_do_not_depend_on_units_or_are_refused(c):
    """Entries are c^2 apart: from c = 1e6 on the small ones are below rounding, and a basis without them would be certified."""
    G = lorentz_in_units(c)
    for k, rank in ((1, 0), (2, 1), (3, 0)):
        try:
            assert solve(T(k)(G), cache=False).rank == rank
        except NotCertified as error:
            assert c >= 1e3
            assert c < 1e5 or "in units in which entries are of like size" in str(error)


def test_units_of_translations_are_free():
    """SE(2): nothing leads back from the last coordinate, so lengths may be in any unit."""
    turn, *shifts = torch.zeros(3, 3, 3, dtype=torch.float64)
    turn[0, 1], turn[1, 0] = -1, 1
    for i, shift in enumerate(shifts):
        shift[i, 2] = 1
    for unit in (1, 1e9):
        G = Group("SE(2)", lie_algebra=[turn, *(unit * shift for shift in shifts)])
        assert [solve(rep(G), cache=False).rank for rep in (V, T(2), V.T, V >> V)] == [0, 2, 1, 1]
