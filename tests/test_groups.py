"""Groups: closed forms of the catalogue, products, samples, identity by content."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from registry import CATALOGUE, GROUPS, generator

import rppdyn.groups
from rppdyn.groups import O13, SL, SO, SU, D, DkeR3, Group, O, RubiksCube, S, SO2eR3, SO13p, Sp, Trivial, U, Z

DIMENSIONS = {SO(4): 6, SL(3): 8, Sp(2): 10, SU(3): 8, U(2): 4, SO13p(): 6, O(3): 3, S(5): 0}


@pytest.mark.parametrize("G", GROUPS, ids=str)
def test_lie_algebra_closes_under_brackets_and_conjugation(G):
    A = G.lie_algebra
    assert A.shape[1:] == (G.d, G.d) == G.discrete_generators.shape[1:] and len(A) + len(G.discrete_generators)
    assert len(A) == DIMENSIONS.get(G, len(A))
    if not len(A):
        return
    brackets = (A[:, None] @ A[None] - A[None] @ A[:, None]).reshape(-1, G.d**2)
    conjugates = [(h @ A @ torch.linalg.inv(h)).reshape(-1, G.d**2) for h in G.discrete_generators]
    rows = torch.cat([brackets, *conjugates])
    # The algebra is real: a unitary group's is not closed under multiplication by i.
    rows, basis = (torch.cat([x.real, x.imag], 1) if x.is_complex() else x for x in (rows, A.reshape(len(A), -1)))
    projection = rows @ torch.linalg.pinv(basis) @ basis
    torch.testing.assert_close(projection, rows, atol=1e-12, rtol=0)
    assert torch.linalg.matrix_rank(basis) == len(A)


def _invariant_form(G: Group, form: torch.Tensor, conjugate=False):
    g = G.samples(8, generator())
    torch.testing.assert_close((g.mH if conjugate else g.mT) @ form @ g, form.expand_as(g), atol=1e-9, rtol=0)


def test_elements_keep_the_form_that_defines_the_group():
    eye = torch.eye(4, dtype=torch.float64)
    J = torch.cat([torch.cat([0 * eye, eye], 1), torch.cat([-eye, 0 * eye], 1)])
    metric = torch.diag(torch.tensor([1.0, -1, -1, -1]).double())
    for G in (SO(4), O(4)):
        _invariant_form(G, eye)
    for G in (SO13p(), O13()):
        _invariant_form(G, metric)
    _invariant_form(Sp(4), J)
    for G in (U(4), SU(4)):
        _invariant_form(G, eye.to(torch.complex128), conjugate=True)
    for G in (SO(4), SL(4), SU(4), Sp(2), SO13p()):
        det = torch.linalg.det(G.samples(8, generator()))
        torch.testing.assert_close(det, torch.ones_like(det), atol=1e-9, rtol=0)
    # Negative controls: reflections, phases and time reversal are in the larger groups only.
    assert (torch.linalg.det(O(4).samples(32, generator())) < 0).any()
    assert (torch.linalg.det(U(4).samples(32, generator())) - 1).abs().max() > 0.1
    assert (O13().samples(32, generator())[:, 0, 0] < 0).any() and (SO13p().samples(32, generator())[:, 0, 0] > 0).all()


@pytest.mark.parametrize(
    ("G", "order"),
    [(Z(5), 5), (S(3), 6), (S(4), 24), (D(3), 6), (D(4), 8), (DkeR3(6), 12), (Trivial(3), 1), (SO(1), 1), (O(1), 2)],
    ids=str,
)
def test_order_of_finite_groups(G, order):
    assert G.order == order == len(G.elements())
    torch.testing.assert_close(G.elements()[0], torch.eye(G.d, dtype=torch.float64))


def test_groups_that_are_large_or_not_finite_are_not_enumerated():
    for G in (S(5), RubiksCube(), SO(3)):
        assert G.order is None
        with pytest.raises(ValueError, match="use samples"):
            G.elements()
    for matrix in (0.5 * torch.eye(2), [[0.0, 0.5], [0.5, 0]]):  # whose powers shrink to zero
        assert Group("shrinking", discrete_generators=[matrix]).order is None


def test_lists_of_python_numbers_keep_double_precision():
    c, s = math.cos(2 * math.pi / 3), math.sin(2 * math.pi / 3)
    G = Group("Z3", discrete_generators=[[[c, -s], [s, c]]])
    assert G.discrete_generators[0, 1, 0].item() == s and G.order == 3
    phase = Group("phase", lie_algebra=[[[complex(0, math.pi)]]])
    assert phase.dtype == torch.complex128 and phase.lie_algebra.item() == complex(0, math.pi)
    assert Group("Z3", discrete_generators=G.discrete_generators.tolist()) == G


def test_rubiks_cube_turns():
    turns = RubiksCube("puzzle").discrete_generators
    eye = torch.eye(48, dtype=torch.float64)
    assert turns.shape == (6, 48, 48)
    for turn in turns:
        assert torch.linalg.matrix_power(turn, 4).equal(eye) and not torch.linalg.matrix_power(turn, 2).equal(eye)
        assert turn.diagonal().sum() == 48 - 20
    # R U R' U' has order six, and opposite faces commute: known facts about the cube.
    assert all((turns[a] @ turns[a + 1]).equal(turns[a + 1] @ turns[a]) for a in range(0, 6, 2))
    commutator = turns[0] @ turns[2] @ turns[0].T @ turns[2].T
    powers = [torch.linalg.matrix_power(commutator, k).equal(eye) for k in range(1, 7)]
    assert powers == [False] * 5 + [True]
    # As published, corner facets go to corner facets, of any cubie.
    corners = (torch.tensor([0, 2, 5, 7])[None] + 8 * torch.arange(6)[:, None]).flatten()
    images = RubiksCube().discrete_generators.argmax(1)
    assert all(set(image[corners].tolist()) == set(corners.tolist()) for image in images)


def test_samples_are_reproducible_and_uniform():
    for G in (SO(3), S(5), Z(4)):
        assert G.samples(4, generator(3)).equal(G.samples(4, generator(3)))
        assert not G.samples(4, generator(3)).equal(G.samples(4, generator(4)))
    counts = S(3).samples(6000, generator()).reshape(-1, 9).unique(dim=0, return_counts=True)[1]
    assert len(counts) == 6 and (counts > 850).all()
    before = torch.get_rng_state()
    SO(3).samples(2, generator())
    assert torch.get_rng_state().equal(before)


def test_identity_is_content_not_name():
    first = Group("rotation", lie_algebra=[[[0, -1.0, 0], [1, 0, 0], [0, 0, 0]]])
    second = Group("rotation", lie_algebra=[[[0, 0, 0], [0, 0, -1.0], [0, 1, 0]]])
    assert first != second
    assert first == SO2eR3() and hash(first) == hash(SO2eR3())
    assert Z(2) != Z(2) * Trivial(1)


@pytest.mark.parametrize("G", GROUPS, ids=str)
def test_survives_pickle_and_copies(G):
    for other in (pickle.loads(pickle.dumps(G)), copy.copy(G), copy.deepcopy(G)):
        assert other == G and hash(other) == hash(G) and repr(other) == repr(G) and other.factors == G.factors


def test_is_read_to_the_cpu_whatever_the_default_device_is():
    data = pickle.dumps(O(3) * Z(2))
    with torch.device("meta"):
        assert pickle.loads(data) == O(3) * Z(2)


def test_is_immutable():
    G = SO(3)
    with pytest.raises(AttributeError, match="immutable"):
        G.d = 4
    with pytest.raises(AttributeError, match="immutable"):
        del G.d
    G.lie_algebra.zero_()
    assert G == SO(3) and G.lie_algebra.any()


def test_direct_products_and_kinds_of_groups():
    G = SO(3) * Z(2)
    assert G.d == 5 and G.factors == (SO(3), Z(2)) and (G * S(3)).factors == (SO(3), Z(2), S(3))
    g = G.samples(6, generator())
    assert not g[:, :3, 3:].any() and not g[:, 3:, :3].any()
    assert Z(4).is_permutation and S(3).is_permutation and RubiksCube().is_permutation
    assert D(4).is_signed_permutation and not D(4).is_permutation and not D(3).is_signed_permutation
    assert not SO(3).is_permutation and SO(3).is_orthogonal and SU(2).is_orthogonal and U(2).is_complex
    assert not SL(2).is_orthogonal and not Sp(1).is_orthogonal and not SO13p().is_orthogonal


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group("mine"), "has no generators"),
        (lambda: Group("mine", lie_algebra=torch.zeros(1, 2, 3)), r"shape \(1, 2, 3\)"),
        (lambda: Group("mine", lie_algebra=[torch.eye(2)], discrete_generators=[torch.eye(3)]), "same size"),
        (lambda: Group("mine", discrete_generators=torch.zeros(1, 2, 2)), r"discrete_generators\[0\] is singular"),
        (lambda: Group("mine", discrete_generators=torch.full((1, 2, 2), math.nan)), "not finite"),
        (lambda: RubiksCube("solved"), "'published' or 'puzzle'"),
        *((lambda make=make: make(0), "at least") for make in (SO, O, Z, S, D, SL, Sp, U, SU, DkeR3, Trivial)),
    ],
)
def test_errors_name_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_every_group_exported_is_in_the_registry():
    made = {type(G).__name__: G for G in CATALOGUE}
    names = {G.name.split("(")[0] for G in CATALOGUE}
    exported = set(rppdyn.groups.__all__) - {"Group", "MAX_ORDER", "is_signed_permutation"}
    assert made and exported == names
