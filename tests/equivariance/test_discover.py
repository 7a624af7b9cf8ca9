"""Symmetries that are found: of exact fields, of fields that break them by degrees, of maps that have none."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from registry import generator

from rppdyn.equivariance import block_family, discover, lie_derivative
from rppdyn.equivariance._discover import describe_generator
from rppdyn.groups import GL, SO, Group, U, Z
from rppdyn.nn import EMLP
from rppdyn.reps import Scalar, T, V
from rppdyn.tasks import Pendulum


def axis(found):
    """The axis of a turn in space."""
    (A,) = found.generators
    return torch.nn.functional.normalize(torch.stack([A[2, 1], A[0, 2], A[1, 0]]), dim=0)


def degrees(a, b):
    return math.degrees(math.asin(min(1.0, float(torch.linalg.cross(a, b / b.norm()).norm()))))


def in_pendulum(family, count=200, **parameters):
    pendulum = Pendulum(**parameters)
    rep = pendulum.rep(family)
    return discover(pendulum.vector_field, rep, rep, pendulum.initial_state(count, generator()))


@pytest.mark.parametrize(("family", "wind"), [(GL(3), 0.0), (GL(3), 0.3), (SO(3), 0.01)], ids=str)
def test_wind_on_equal_masses_tilts_the_axis(family, wind):
    found = in_pendulum(family, wind=wind)
    force = wind * torch.tensor([-8.0, -5.0, 0.0]).double() - torch.tensor([0.0, 0.0, 1.0]).double()
    assert found.verdict == "exact" and len(found.generators) == 1
    assert found.spectrum[0] < 1e-12 and found.spectrum[1] > 0.1
    assert degrees(axis(found), force) < 1e-10
    angle = math.degrees(math.acos(abs(float(axis(found)[2]))))
    assert angle == pytest.approx(math.degrees(math.atan(89**0.5 * wind)), abs=1e-6)


def test_unequal_masses_break_it_by_degrees():
    defects = [in_pendulum(SO(3), wind=wind, m2=2).spectrum[0] for wind in (0.0, 0.003, 0.01, 0.03, 0.1)]
    assert defects[0] < 1e-12 and all(a < b for a, b in pairwise(defects))
    found = in_pendulum(GL(3), wind=0.01, m2=2)
    assert found.verdict == "approximate" and 0.03 < found.defect < 0.06
    assert degrees(axis(found), torch.tensor([0.0, 0.0, 1.0]).double()) < 10


def test_a_whole_algebra():
    """The square of a vector is left by all turns; a vector times its length commutes with them."""
    x = torch.randn(60, 4, dtype=torch.float64, generator=generator())
    for f, rep in ((lambda x: x.square().sum(1, keepdim=True), Scalar), (lambda x: x * x.norm(dim=1, keepdim=True), V)):
        found = discover(f, V(GL(4)), rep(GL(4)), x)
        assert found.verdict == "exact" and len(found.generators) == 6 and found.closure < 1e-12
        assert (found.generators + found.generators.mT).abs().max() < 1e-12  # so(4)
        assert found.generators.flatten(1).norm(dim=1).allclose(torch.tensor(2**0.5).double())
        rebuilt = torch.einsum("ki,iab->kab", found.coefficients, GL(4).lie_algebra)
        assert torch.allclose(rebuilt, found.generators)
        assert V(found.group).equivariant_basis().shape[1] == 0 and T(2)(found.group).equivariant_basis().shape[1] == 1


def test_all_of_a_family():
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator())
    found = discover(lambda x: 2 * x, V(GL(3)), V(GL(3)), x)
    assert found.verdict == "exact" and len(found.generators) == 9 and found.unfelt == 0
    assert "which is all of it" in str(found)
    invariants = discover(lambda x: x.square().sum(1, keepdim=True), V(SO(3)), Scalar(SO(3)), x)
    assert invariants.verdict == "exact" and len(invariants.generators) == 3 and invariants.unfelt == 0


def test_what_f_leaves_out_is_said():
    """Of the length in a plane, turns about z are a symmetry; what changes z alone only says that z is left out."""
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator())
    found = discover(lambda x: x[:, :2].norm(dim=1, keepdim=True), V(GL(3)), Scalar(GL(3)), x)
    assert len(found.generators) == 4 and found.unfelt == 3
    assert "3 of which change nothing that the function depends on" in str(found)


def test_inputs_that_the_family_does_not_move_are_no_discovery():
    """A function of scalars alone has all symmetries; beside a part that has none, they don't make one up."""
    x = torch.randn(60, 5, dtype=torch.float64, generator=generator())
    rep = V(GL(3)) + 2 * Scalar(GL(3))
    with pytest.raises(ValueError, match=r"does not depend on what GL\(3\) moves, so everything is a symmetry"):
        discover(lambda x: x[:, 3:].sin(), rep, (2 * Scalar)(GL(3)), x)
    mixing = torch.randn(3, 20, dtype=torch.float64, generator=generator())
    rough = lambda x: torch.cat([(x[:, :3] @ mixing).tanh() @ mixing.mT, 100 * x[:, 3:]], 1)  # noqa: E731
    assert discover(rough, rep, rep, x).verdict == "none"


def test_blocks_by_names():
    """Turns of the positions and of the momenta, each by their own matrix, or by one; the pendulum has the latter."""
    pendulum = Pendulum(wind=0.1)
    z = pendulum.initial_state(200, generator())
    rep = block_family(pendulum.parts, list(pendulum.parts))
    found = discover(pendulum.vector_field, rep, rep, z)
    assert found.verdict == "exact" and len(found.generators) == 1
    own = block_family(pendulum.parts, ["x_1", "x_2"], ["p_1", "p_2"])
    found = discover(pendulum.vector_field, own, own, z)
    (A,) = found.generators
    assert found.verdict == "exact" and torch.allclose(A[:3, :3], A[3:, 3:], atol=1e-9)
    assert A[:3, 3:].abs().max() == 0 and own.G.d == 6
    for lists, words in [([], "no block is moved"), ([["y"]], "there is no block 'y'"),
                         ([["x_1"], ["x_1"]], "named twice")]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            block_family(pendulum.parts, *lists)
    with pytest.raises(ValueError, match="a has 1, b has 2 entries"):
        block_family({"a": 1, "b": 2}, ["a", "b"])


@pytest.mark.parametrize("seed", range(2))
def test_none(seed):
    """A random map has no symmetry, and nothing is reported."""
    g = generator(seed)
    first, second = torch.randn(3, 20, generator=g).double(), torch.randn(20, 3, generator=g).double()
    x = torch.randn(100, 3, dtype=torch.float64, generator=g)
    found = discover(lambda x: (x @ first).tanh() @ second, V(GL(3)), V(GL(3)), x)
    assert found.verdict == "none" and len(found.generators) == 0
    assert found.group.lie_algebra.shape[0] == 0
    assert "no symmetry in GL(3)" in str(found)


def test_a_network_has_the_symmetry_it_was_built_with():
    net = EMLP(2 * V, V, SO(3), hidden=32, generator=generator()).double()
    x = torch.randn(40, 6, dtype=torch.float64, generator=generator())
    found = discover(net, 2 * V(GL(3)), V(GL(3)), x)
    assert found.verdict == "exact" and len(found.generators) == 3 and found.closure < 1e-9
    x = x.float()
    assert discover(net.float(), 2 * V(GL(3)), V(GL(3)), x).verdict == "exact"


def test_defects_are_those_of_lie_derivatives():
    """In a family of one direction the defect is that of its Lie derivative, by its definition."""
    x = torch.randn(30, 2, dtype=torch.float64, generator=generator())
    f, rep = lambda x: x + 0.3 * x[:, :1].abs(), V(SO(2))
    found = discover(f, rep, rep, x)
    (A,) = SO(2).lie_algebra
    (broken,) = lie_derivative(f, rep, rep, x)
    second = f(x) @ A.mT
    first = broken + second
    expected = broken.norm() / (first.square().sum() + second.square().sum()).sqrt()
    assert float(found.spectrum[0]) == pytest.approx(float(expected), rel=1e-10)


TWICE = V(Group("twice", lie_algebra=[[[0, 1.0], [-1, 0]], [[0, 2.0], [-2, 0]]]))
SAME = lambda x: x  # noqa: E731
BAD = {
    "no generators": (SAME, V(Z(3)), V(Z(3)), (9, 3), "has no continuous generators"),
    "complex": (SAME, V(U(2)), V(U(2)), (9, 2), "is complex"),
    "too few states": (SAME, V(GL(3)), V(GL(3)), (2, 3), "2 states are too few for 9 generators"),
    "constant": (lambda x: torch.ones(len(x), 1).double(), V(GL(2)), Scalar(GL(2)), (9, 2), "f is constant"),
    "no action": (SAME, (3 * Scalar)(SO(3)), (3 * Scalar)(SO(3)), (9, 3), "move none of the states"),
    "dependent generators": (SAME, TWICE, TWICE, (9, 2), "1 of the 2 generators of twice are sums of others"),
    "another group": (SAME, V(GL(3)), V(SO(3)), (9, 3), "belongs to"),
    "sizes": (SAME, V(GL(3)), V(GL(3)), (9, 4), "has 4 components"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    f, rep_in, rep_out, shape, words = BAD[case]
    x = torch.randn(*shape, dtype=torch.float64, generator=generator())
    with pytest.raises(ValueError, match=words):
        discover(f, rep_in, rep_out, x)
    if case == "sizes":
        x = x[:, :3]
        with pytest.raises(ValueError, match=r"3 of the 9 directions of .* move none of the states"):
            discover(f, rep_in, rep_out, torch.cat([x, x, -x, x + 1]) * torch.tensor([1.0, 1.0, 0.0]))
        x[4, 0] = torch.nan
        with pytest.raises(ValueError, match=r"^1 of 9 states have entries that are not finite"):
            discover(f, rep_in, rep_out, x)


def test_generators_that_do_not_close_make_no_group():
    """Of the turns about x and y alone, which are no algebra, the third is asked for."""
    x = torch.randn(40, 3, dtype=torch.float64, generator=generator())
    found = discover(lambda x: x.square().sum(1, keepdim=True), V(SO(3)), Scalar(SO(3)), x)
    with pytest.raises(ValueError, match="2 generators are no Lie algebra"):
        _ = replace(found, generators=found.generators[:2], coefficients=found.coefficients[:2], closure=1.0).group


@pytest.mark.parametrize(
    ("generator", "kind"),
    [
        ([[0, -1], [1, 0]], "a rotation"), ([[0, -1, 0], [1, 0, 0], [0, 0, 0]], "a rotation"),
        ([[1, 0], [0, 1]], "a scaling, of all axes alike"), ([[1, 0], [0, 2]], "a scaling, of some axes more than of others"),
        ([[0, 1], [1, 0]], "a boost"), ([[1, 0], [0, -1]], "a boost"), ([[0, 1], [0, 0]], "a shear"),
        ([[1, -1], [1, 1]], "a rotation with a scaling"), ([[0, -2], [1, 0]], "a mixture of rotation, scaling and shear"),
        ([[0, -1.02], [1, 0.01]], "a rotation"), ([[3.0]], "a scaling, of all axes alike"),
    ],
)  # fmt: skip
def test_a_generator_in_words(generator, kind):
    assert describe_generator(torch.tensor(generator).double()) == kind
