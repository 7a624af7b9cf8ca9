"""Representations: the homomorphism property, the algebra, custom representations and their checks."""

from __future__ import annotations

import copy
import math
import pickle

import jaxtyping
import numpy as np
import pytest
import torch
from refusals import refused
from registry import FLIPS, KINDS, TYPES, generator

from rppdyn.groups import SL, SO, SO13, SU, D, DkeR3, Group, O, O2eR3, RubiksCube, S, SO2eR3, Sp, U, Z
from rppdyn.reps import Pseudoscalar, Rep, Scalar, T, V, regular


@pytest.mark.parametrize("G", KINDS, ids=str)
def test_is_a_homomorphism_and_drho_its_derivative(G):
    g, h = G.samples(3, generator()), G.samples(3, generator(1))
    for type_ in TYPES:
        rep = type_(G)
        rep.check()
        size = (rep.rho(g).abs().amax() * rep.rho(h).abs().amax()).item()
        torch.testing.assert_close(rep.rho(g @ h), rep.rho(g) @ rep.rho(h), atol=1e-10 * max(1, size), rtol=1e-9)
        for A in G.lie_algebra[:3]:
            exact = torch.func.jvp(rep.rho, (torch.eye(G.d, dtype=G.dtype),), (A,))[1]
            torch.testing.assert_close(rep.drho(A), exact, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("G", [S(3), O(3), SL(2), SU(2), SO(3) * Z(4)], ids=str)
def test_blocks_tile_the_coordinates(G):
    g = G.samples(2, generator())
    for type_ in TYPES:
        rep = type_(G)
        matrix, seen = rep.rho(g), torch.zeros_like(rep.rho(g))
        blocks = rep.blocks()
        assert len({block for block, _ in blocks}) == len(blocks)
        for block, index in blocks:
            for copy_ in index:
                torch.testing.assert_close(matrix[:, copy_][:, :, copy_], block.rho(g), atol=1e-12, rtol=1e-12)
                seen[:, copy_[:, None], copy_[None]] += 1
        torch.testing.assert_close(matrix * (seen == 0), torch.zeros_like(matrix))
        assert sum(index.numel() for _, index in blocks) == rep.dim


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_survives_pickle_and_copies(type_):
    for G in (SO(3), D(4), SU(2)):
        rep = type_(G)
        hash(rep), rep.lie_generators  # fill what is cached
        for other in (pickle.loads(pickle.dumps(rep)), copy.deepcopy(rep), type_(pickle.loads(pickle.dumps(G)))):
            assert other == rep and hash(other) == hash(rep) and repr(other) == repr(rep)
    assert pickle.loads(pickle.dumps(type_)) == type_


def test_algebra_of_dimensions_and_names():
    G = SO(3)
    rep = (5 * T(0) + 5 * T(1))(G)
    assert rep.dim == 20 and str(rep) == "5*T0 + 5*T1" and rep.terms == ((Scalar(G), 5), (V(G), 5))
    assert (V**3)(G) == T(3)(G) and (V**0)(G) == Scalar(G) and V(G) ** 2 == T(2)(G)
    assert (V(G) >> T(2)) == T(3)(G)
    assert (0 * V + T(2))(G) == T(2)(G) and (0 * V)(G).dim == 0
    assert sum([V(G), V(G)]) == 2 * V(G) == V(G) * 2
    assert 2 * (V + Scalar)(G) == (V + Scalar + V + Scalar)(G) != (2 * V + 2 * Scalar)(G)
    assert (V + 2 * Scalar)(G) * V == (T(2) + 2 * V)(G)


def test_duals_and_pseudoscalars():
    assert T(1, 1)(SO(3)) == T(2)(SO(3)) and V.T(O(2)) == V(O(2))
    assert T(1, 1)(Sp(1)) != T(2)(Sp(1)) and T(0, 1)(SU(2)) == V(SU(2)).T != V(SU(2))
    g = SU(2).samples(3, generator())
    torch.testing.assert_close(V(SU(2)).T.rho(g), g.conj())
    assert V(Sp(2)).T.T == V(Sp(2))
    g = O(3).samples(20, generator())
    assert {-1.0, 1.0} == set(Pseudoscalar(O(3)).rho(g).round().flatten().tolist())
    torch.testing.assert_close(Pseudoscalar(O(3)).rho(g).flatten(), torch.linalg.det(g))


def test_direct_products_lift():
    G1, G2 = SO(3), Z(4)
    total, product = V(G1) + V(G2), V(G1) * V(G2)
    assert total.G == G1 * G2 == product.G and (total.dim, product.dim) == (7, 12)
    g = total.G.samples(3, generator())
    torch.testing.assert_close(total.rho(g), g)
    torch.testing.assert_close(product.rho(g)[0], torch.kron(g[0, :3, :3], g[0, 3:, 3:]))
    assert (V(G1) + V(G1 * G2)).dim == 10
    with pytest.raises(ValueError, match="more than once"):
        V(G1) + V(G1 * G1)
    g = (G1 * G1).samples(2, generator())
    torch.testing.assert_close(V(G1).lift(G1 * G1, factor=1).rho(g), g[:, 3:, 3:])


def test_restriction():
    assert V(O(3)).restrict(SO2eR3()) == V(SO2eR3())
    assert (2 * Scalar + T(2))(O(3)).restrict(SO(3)) == (2 * Scalar + T(2))(SO(3))
    swapped = Rep.from_generators(O(3), O(3).lie_algebra, -O(3).discrete_generators)
    restricted = swapped.restrict(SO2eR3())
    restricted.check()
    torch.testing.assert_close(restricted.lie_generators, SO2eR3().lie_algebra)
    with pytest.raises(ValueError, match=r"lie_algebra\[1\]"):
        V(SO2eR3()).restrict(SO(3))
    with pytest.raises(ValueError, match=r"discrete_generators\[0\] is not an element"):
        V(D(3)).restrict(Group("quarter", discrete_generators=[[[0.0, -1], [1, 0]]]))
    # of groups that can't be enumerated: S(5), SO(3), SL(2)
    assert T(2)(S(5)).restrict(Z(5)) == T(2)(Z(5)) and V(O(3)).restrict(S(3)) == V(S(3))
    with pytest.raises(ValueError, match=r"O\(3\) is no subgroup of SO\(3\): discrete_generators\[0\]"):
        T(2)(SO(3)).restrict(O(3))
    with pytest.raises(ValueError, match=r"no subgroup of S\(5\): it is not a group of permutations"):
        V(S(5)).restrict(Group("minus", discrete_generators=[-torch.eye(5)]))
    with pytest.raises(ValueError, match=r"no subgroup of SL\(2\): discrete_generators\[0\]"):
        V(SL(2)).restrict(Group("doubled", discrete_generators=[2 * torch.eye(2)]))


def test_sizes_may_be_numpys_and_not_booleans(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # annotations say int
    assert Z(np.int64(3)) == Z(3) and T(np.int64(2))(SO(np.int32(3))) == T(2)(SO(3))
    for size in (True, 2.0):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            Z(size)


def test_signed_permutations_are_recognised():
    assert T(2)(FLIPS).is_signed_permutation and not V(FLIPS).is_permutation and abs(V(FLIPS)).is_permutation
    assert (V + Scalar)(S(4)).is_permutation and not V(SO(3)).is_signed_permutation
    assert Scalar(SO(3)).is_permutation and Scalar(SO(3)).is_trivial and not V(S(3)).is_trivial
    g = FLIPS.elements()
    rep = (V + 2 * T(2))(FLIPS)
    torch.testing.assert_close(abs(rep).rho(g), rep.rho(g).abs())
    with pytest.raises(ValueError, match="signed permutations"):
        abs(V(SO(3)))


@pytest.mark.parametrize("G", [Z(4), D(3), D(4), S(4), FLIPS], ids=str)
def test_regular_representation(G):
    rep = regular(G)
    rep.check()
    elements = G.elements()
    images = rep.rho(elements)
    assert rep.is_permutation and rep.dim == G.order
    # Character: the group's order at the identity, zero elsewhere.
    expected = torch.zeros(G.order, dtype=torch.float64)
    expected[0] = G.order
    torch.testing.assert_close(images.diagonal(dim1=1, dim2=2).sum(1), expected)
    # Coordinate 0 is the identity: g sends it to the coordinate of g.
    assert images[:, :, 0].argmax(1).tolist() == list(range(G.order))


def _square(g):
    return torch.einsum("ij,kl->ikjl", g, g).reshape(9, 9)


def test_representation_from_a_function():
    G = SO(3)
    scaled = lambda g: _square(g) * torch.linalg.det(g) ** 2 * torch.trace(g) / 3  # noqa: E731
    rep = Rep.from_function(G, 9, _square)
    torch.testing.assert_close(rep.drho(G.lie_algebra), T(2)(G).drho(G.lie_algebra))
    assert pickle.loads(pickle.dumps(rep)) == rep
    with pytest.raises(ValueError, match=r"lie_algebra\[0\]"):
        Rep.from_function(G, 9, scaled)
    with pytest.raises(ValueError, match="shape"):
        Rep.from_function(G, 8, _square)
    breaks_reflection = lambda g: g * torch.where(torch.linalg.det(g) > 0, 1.0, 2.0)  # noqa: E731
    with pytest.raises(ValueError, match=r"discrete_generators\[0\]"):
        Rep.from_function(O(3), 3, breaks_reflection)


def test_representation_from_generators():
    G = O(3)
    twisted = Rep.from_generators(G, G.lie_algebra, -G.discrete_generators)  # the axial vectors, V * Pseudoscalar
    twisted.check()
    g = G.samples(6, generator())
    torch.testing.assert_close(twisted.rho(g), (V * Pseudoscalar)(G).rho(g), atol=1e-7, rtol=1e-7)
    for lie, discrete, message in [
        (2 * G.lie_algebra, G.discrete_generators, r"\[lie_algebra\[0\], lie_algebra\[1\]\]"),
        (G.lie_algebra, 2 * G.discrete_generators, r"discrete_generators\[0\] breaks a relation"),
        (G.lie_algebra[:2], G.discrete_generators, r"shape \(2, 3, 3\)"),
        (None, None, "got none"),
    ]:
        with pytest.raises(ValueError, match=message):
            Rep.from_generators(G, lie, discrete)
    sign = Rep.from_generators(Z(4), None, [[[-1.0]]])
    assert sign.rho(Z(4).elements()).flatten().tolist() == [1, -1, 1, -1]
    with pytest.raises(ValueError, match=r"discrete_generators\[0\]"):
        Rep.from_generators(Z(3), None, [[[-1.0]]])
    with pytest.raises(ValueError, match="not an element"):
        sign.rho(2 * torch.eye(4, dtype=torch.float64))


def _given(rep):
    """The representation that forgets how it was made."""
    return Rep.from_generators(rep.G, rep.lie_generators, rep.discrete_generators)


@pytest.mark.parametrize("G", [S(5), S(3) * SO(3), SL(2), O(4), SO13(), U(2)], ids=str)
def test_images_of_elements_that_take_long_words(G):
    rep = (V * Pseudoscalar + Scalar)(G)
    given = _given(rep)
    g = G.samples(6, generator(3))
    torch.testing.assert_close(given.rho(g), rep.rho(g), atol=1e-7, rtol=1e-7)
    given.check()


@pytest.mark.parametrize("matrix", [[[2.0]], [[0.5]], [[2.0, 0], [0, 0.5]], [[1.0, 1], [0, 1]]], ids=str)
def test_infinite_discrete_groups_know_their_generators(matrix):
    h = torch.tensor(matrix, dtype=torch.float64)
    given = _given(V(Group("words", discrete_generators=[matrix])))
    torch.testing.assert_close(given.rho(torch.stack([h, h @ h @ h])), torch.stack([h, h @ h @ h]))
    angle = math.sin(2 * math.pi / 70), math.cos(2 * math.pi / 70)  # lists keep double precision
    turn = Rep.from_generators(Z(70), discrete_generators=[[[angle[1], -angle[0]], [angle[0], angle[1]]]])
    assert turn.discrete_generators[0, 1, 0] == angle[0]


def test_images_of_half_turns():
    half = torch.diag(torch.tensor([-1.0, -1.0, 1.0], dtype=torch.float64))
    for G in (SO(3), O(3), SO2eR3()):
        torch.testing.assert_close(_given(T(2)(G)).rho(half), T(2)(G).rho(half), atol=1e-9, rtol=0)
    for G in (SO(2), SL(2), Sp(1)):
        inversion = -torch.eye(2, dtype=torch.float64)
        torch.testing.assert_close(_given(V(G)).rho(inversion), inversion, atol=1e-9, rtol=0)
    assert _given(V(O(3))).restrict(DkeR3(2)).rho(half).allclose(half)


def test_elements_of_groups_too_large_to_search_are_refused_by_name():
    G = RubiksCube()
    rep = Rep.from_generators(G, None, G.discrete_generators)
    assert rep.equivariant_basis().shape == (48, 2)
    with pytest.raises(ValueError, match="from_function"):
        rep.rho(G.samples(1, generator()))


def test_images_of_the_covering_group_are_refused():
    with pytest.raises(ValueError, match=r"lie_algebra\[0\] .* full turn"):
        Rep.from_generators(SO(2), 0.5 * SO(2).lie_algebra)
    # spin one half, realified: the brackets hold, a turn by 2 pi gives -1
    sigma = torch.tensor([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]], dtype=torch.complex128)
    spin = -0.5j * sigma
    real = torch.cat([torch.cat([spin.real, -spin.imag], 2), torch.cat([spin.imag, spin.real], 2)], 1)
    signed = [s * real[k] for s, k in ((1, 2), (-1, 1), (1, 0))]  # SO(3) lists z, -y, x
    with pytest.raises(ValueError, match=r"lie_algebra\[0\] .* full turn"):
        Rep.from_generators(SO(3), signed)


def _phase(g):
    return torch.complex(g[:1, :1], g[1:, :1])


def _realified(g):
    x, y = g[0, 0].real, g[0, 0].imag
    return torch.stack([torch.stack([x, -y]), torch.stack([y, x])])


def test_functions_with_real_and_complex_values():
    with pytest.raises(ValueError, match="give a real form"):
        Rep.from_function(SO(2), 1, _phase)
    rep = Rep.from_function(U(1), 2, _realified)
    g = U(1).samples(3, generator())
    assert rep.rho(g).is_complex() and (rep * V(U(1)).T).rho(g).shape == (3, 2, 2)
    assert (V(U(1)) >> rep).equivariant_basis().shape == (2, 1)


def test_components_are_what_the_group_exchanges_or_mixes():
    mixing = V + Scalar + V  # about the vertical: (x, y), z, an invariant, and again
    assert mixing(SO2eR3()).components.tolist() == [0, 0, 1, 2, 3, 3, 4]
    assert mixing(SO(3)).components.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert (V + V)(Z(3)).components.tolist() == [0, 0, 0, 1, 1, 1]
    assert regular(D(4)).components.tolist() == [0] * 8 and Scalar(Z(3)).components.tolist() == [0]


def test_representations_are_immutable_and_equal_by_content():
    for G in (O(2), SO(2) * Z(3)):
        rep = (2 * V + V * V)(G)
        for change in (lambda rep=rep: rep.__delattr__("dim"), lambda rep=rep: rep.__setattr__("dim", 4)):
            with pytest.raises(AttributeError, match="immutable"):
                change()
        lie, discrete = rep.lie_generators.clone(), rep.discrete_generators.clone()
        rep.lie_generators.fill_(7)
        rep.discrete_generators.fill_(7)
        assert rep.lie_generators.equal(lie) and rep.discrete_generators.equal(discrete)
    rotation, other = (Group("R", lie_algebra=[A]) for A in SO(3).lie_algebra[:2])
    assert V(rotation) != V(other) and str(V(rotation)) == str(V(other))


def test_images_of_elements_leave_the_global_random_states_alone():
    """SciPy's logarithm draws from NumPy's: a run that is resumed would go on otherwise than the one that was not."""
    G = O2eR3()
    rep = Rep.from_generators(G, lie_algebra=G.lie_algebra, discrete_generators=G.discrete_generators)
    g = G.samples(50, generator())
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    assert torch.allclose(rep.rho(g), g, atol=1e-9)
    assert np.array_equal(np.random.get_state()[1], before[0]) and torch.equal(torch.get_rng_state(), before[1])  # noqa: NPY002


J = torch.tensor([[0.0, -1], [1, 0]], dtype=torch.float64)
QUARTER = torch.linalg.matrix_exp(math.pi / 2 * J)
HALF_TURN = Group("half turn", lie_algebra=SO(4).lie_algebra, discrete_generators=[-torch.eye(4, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("G", "lie", "discrete", "message"),
    [
        (Group("r", lie_algebra=[J, J]), [J, 2 * J], [], r"lie_algebra\[0\] depends linearly"),
        (Group("z", lie_algebra=[J, 0 * J]), [J, torch.eye(2)], [], r"lie_algebra\[1\] depends linearly"),
        (
            Group("c", lie_algebra=[J], discrete_generators=[QUARTER]),
            [J],
            [torch.eye(2)],
            r"discrete_generators\[0\] is a product of exponentials",
        ),
        (
            HALF_TURN,
            torch.zeros(6, 1, 1),
            [-torch.ones(1, 1)],
            r"discrete_generators\[0\] is a product of exponentials",
        ),
        (Group("p", lie_algebra=SO(3).lie_algebra[:2]), [J, 0 * J], [], r"give the group a basis of its whole Lie alg"),
    ],
    ids=["redundant", "zero", "quarter turn", "half turn", "not closed"],
)
def test_images_that_no_representation_has_are_refused(G, lie, discrete, message):
    with pytest.raises(ValueError, match=message):
        Rep.from_generators(G, lie, discrete or None)


def test_images_of_redundant_generators_that_agree_are_taken():
    Rep.from_generators(Group("r", lie_algebra=[J, 2 * J]), [3 * J, 6 * J]).check()
    G = Group("c", lie_algebra=[J], discrete_generators=[QUARTER])
    Rep.from_generators(G, [2 * J], [-torch.eye(2)]).check()
    Rep.from_generators(HALF_TURN, HALF_TURN.lie_algebra, HALF_TURN.discrete_generators).check()
    basis = torch.linalg.qr(torch.randn(6, 6, generator=generator(3)))[0]  # of planes that commute to single precision
    planes = [torch.zeros(6, 6) for _ in range(2)]
    for i, plane in enumerate(planes):
        plane[2 * i, 2 * i + 1], plane[2 * i + 1, 2 * i] = -1.0, 1.0
    torus = Group("torus", lie_algebra=[basis @ plane @ basis.mT for plane in planes])
    for images in (torus.lie_algebra, torch.zeros(2, 1, 1)):
        assert Rep.from_generators(torus, images).dim == len(images[0])
    boost = torch.linalg.matrix_exp(4 * SO13().lie_algebra[0])
    G = Group("boosted", lie_algebra=SO13().lie_algebra, discrete_generators=[boost])
    assert Rep.from_generators(G, G.lie_algebra, G.discrete_generators).dim == 4


def test_a_function_of_half_the_angle_is_refused():
    """A spinor: right near the identity, and two-valued."""

    def half(g):
        angle = torch.atan2(g[1, 0], g[0, 0]) / 2
        return torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])

    with pytest.raises(ValueError, match=r"differs from rho\(g1\) rho\(g2\)|full turn"):
        Rep.from_function(SO(2), 2, half)
    assert Rep.from_function(SO(2), 2, lambda g: g @ g).dim == 2


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e5])
def test_false_images_of_short_generators_are_refused(scale):
    """Brackets of generators are as short as their squares."""
    turns, mirror = SO(3).lie_algebra, torch.diag(torch.tensor([-1.0, 1, 1]))
    G = Group("turns", lie_algebra=scale * turns)
    assert Rep.from_generators(G, scale * turns) != V(G)  # as they are; equal in content, not in kind
    for images in (2 * scale * turns, scale * turns[[1, 0, 2]]):
        with refused("it breaks [lie_algebra[0], lie_algebra[1]]"):
            Rep.from_generators(G, images)
    with refused("rho(exp tA) differs from exp(t drho(A))"):
        Rep.from_function(G, 3, lambda g: 2 * g - torch.eye(3, dtype=g.dtype))
    O3 = Group("turns and a mirror", lie_algebra=scale * turns, discrete_generators=[mirror])
    with refused("discrete_generators[0] breaks the adjoint action"):
        Rep.from_generators(O3, scale * turns, [mirror.flip(0, 1)])


@pytest.mark.parametrize(
    ("matrices", "words"),
    [
        ([torch.eye(2), torch.eye(3)], ("shapes (2, 2) and (3, 3)", "one size")),
        ([[[1, 0], [0]]], ("no sequence of matrices",)),
        ([[[float("nan")]]], ("not finite",)),
    ],
)
def test_what_is_no_stack_of_matrices_is_said(matrices, words):
    with refused("discrete_generators", *words):
        Group("a", discrete_generators=matrices)
    with refused("discrete_generators", *words):
        Rep.from_generators(Z(2), discrete_generators=matrices)


def test_products_lift_in_any_order():
    A, B, C = SO(3), S(3), Z(2)
    rep = V(A) + V(A) * V(B) + V(A * B) + Pseudoscalar(A * B)
    G = B * C * A
    a, b, c = (H.samples(4, generator(i)) for i, H in enumerate((A, B, C)))
    before = torch.stack([torch.block_diag(*parts) for parts in zip(a, b, strict=True)])
    after = torch.stack([torch.block_diag(*parts) for parts in zip(b, c, a, strict=True)])
    lifted = rep.lift(G)
    lifted.check()
    torch.testing.assert_close(lifted.rho(after), rep.rho(before))
    assert rep.lift(G).lift(A * B * C) == rep.lift(A * B * C)
    assert (V(B * A) + V(A * B)).G == B * A
    with refused("is not a factor", "SO(3) x S(3)", "Z(2)"):
        V(A * C).lift(A * B)
    with refused("SO(3) is a factor more than once", "factor=i"):
        V(B * A).lift(A * B * C * A)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T(-1), "T(-1, 0)"),
        (lambda: V**-1, "V ** -1"),
        (lambda: -2 * V, "-2 * V"),
        (lambda: V(3), "called with a group"),
        (lambda: T(9)(Z(4)).equivariant_projector(), "project(v)"),
        (lambda: V**100, "V ** 100"),
        (lambda: T(10**9), "T(1000000000, 0)"),
        (lambda: ((V**50) ** 50)(SO(3)), "100 factors"),
        (lambda: (10**9 * (V + Scalar))(SO(3)), "2000000000 terms"),
        (lambda: ((V + Scalar) ** 30)(SO(3)).blocks(), "use a lower tensor power"),
        (lambda: math.prod([SO(3)] * 200, start=SO(3)), "a product of 33 groups"),
        (lambda: S(10**9), "S(1000000000)"),
        (lambda: SO(10**6), "SO(1000000)"),
        (lambda: D(10**40), "at least 1 and at most"),
    ],
)
def test_what_makes_no_sense_or_fits_in_no_memory_is_refused_at_once(make, words):
    with refused(words):
        make()
