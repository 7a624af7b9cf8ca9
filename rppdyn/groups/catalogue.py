"""The catalogue of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from numbers import Integral

import torch
from torch import Tensor

from rppdyn.groups.group import Group


def _unit(d: int, i: int, j: int, dtype=torch.float64) -> Tensor:
    matrix = torch.zeros(d, d, dtype=dtype)
    matrix[i, j] = 1
    return matrix


def _permutation_matrix(images: Sequence[int]) -> Tensor:
    """The matrix that sends basis vector ``j`` to basis vector ``images[j]``."""
    matrix = torch.zeros(len(images), len(images), dtype=torch.float64)
    matrix[torch.tensor(images), torch.arange(len(images))] = 1
    return matrix


def _rotations(d: int) -> list[Tensor]:
    return [_unit(d, j, i) - _unit(d, i, j) for i, j in combinations(range(d), 2)]


MAX_FINITE, MAX_CONTINUOUS, MAX_ANGLES = 4096, 64, 10**6
"""Sizes up to which generators, one or two of a finite group and about n^2 of a continuous one, are quickly made."""


def _check_size(name: str, n: int, least: int = 1, most: int = MAX_CONTINUOUS) -> int:
    if not isinstance(n, Integral) or isinstance(n, bool) or not least <= n <= most:
        raise ValueError(f"{name}({n!r}): the size must be an integer of at least {least} and at most {most}")
    return n


def _group(name: str, lie: Sequence[Tensor], discrete: Sequence[Tensor], d: int) -> Group:
    """A catalogue group; one without any generators (SO(1), S(1)) gets the identity as its only one."""
    if not len(lie) and not len(discrete):
        discrete = [torch.eye(d, dtype=torch.float64)]
    return Group(name, lie_algebra=lie, discrete_generators=discrete)


def Trivial(d: int) -> Group:
    """The group of the identity alone, on ``d`` dimensions."""
    return _group(f"Trivial({d})", [], [], _check_size("Trivial", d, most=MAX_FINITE))


def Z(n: int) -> Group:
    """The cyclic group of order ``n``, as cyclic shifts of ``n`` coordinates."""
    _check_size("Z", n, most=MAX_FINITE)
    return _group(f"Z({n})", [], [_permutation_matrix([(i + 1) % n for i in range(n)])], n)


def S(n: int) -> Group:
    """The symmetric group, as all permutations of ``n`` coordinates (order n!)."""
    _check_size("S", n, most=MAX_FINITE)
    swap = [1, 0, *range(2, n)]
    cycle = [(i + 1) % n for i in range(n)]
    images = [] if n == 1 else [swap] if n == 2 else [swap, cycle]
    return _group(f"S({n})", [], [_permutation_matrix(image) for image in images], n)


def D(n: int) -> Group:
    """The dihedral group of order ``2n``, as the rotations and reflections of a regular polygon in the plane."""
    _check_size("D", n, most=MAX_ANGLES)
    return _group(f"D({n})", [], [_plane_rotation(2 * math.pi / n), torch.diag(torch.tensor([-1.0, 1.0]).double())], 2)


def _plane_rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    rotation = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    # Quarter turns are exact, so that D(4), say, is recognised as a group of signed permutations.
    return torch.where((rotation - rotation.round()).abs() < 1e-15, rotation.round(), rotation)


def SO(n: int) -> Group:
    """Rotations of R^n."""
    return _group(f"SO({n})", _rotations(_check_size("SO", n)), [], n)


def O(n: int) -> Group:
    """Rotations and reflections of R^n."""
    _check_size("O", n)
    reflection = torch.eye(n, dtype=torch.float64)
    reflection[0, 0] = -1
    return _group(f"O({n})", _rotations(n), [reflection], n)


def GL(n: int) -> Group:
    """All invertible real matrices: linear maps of R^n. The largest family in which a symmetry can be looked for."""
    _check_size("GL", n)
    reflection = torch.eye(n, dtype=torch.float64)
    reflection[0, 0] = -1
    return _group(f"GL({n})", [_unit(n, i, j) for i in range(n) for j in range(n)], [reflection], n)


def SL(n: int) -> Group:
    """Real matrices of determinant one: volume-preserving linear maps of R^n."""
    _check_size("SL", n)
    lie = [_unit(n, i, j) for i in range(n) for j in range(n) if i != j]
    lie += [_unit(n, i, i) - _unit(n, i + 1, i + 1) for i in range(n - 1)]
    return _group(f"SL({n})", lie, [], n)


def Sp(n: int) -> Group:
    """The real symplectic group on R^2n: linear canonical transformations of ``(q, p)``.

    With ``J = [[0, I], [-I, 0]]`` its Lie algebra is ``{A : A^T J + J A = 0}``, of dimension n(2n+1).
    """
    _check_size("Sp", n)
    d, lie = 2 * n, []
    for i in range(n):
        for j in range(n):
            lie.append(_unit(d, i, j) - _unit(d, n + j, n + i))
    for i in range(n):
        for j in range(i, n):
            upper, lower = _unit(d, i, n + j), _unit(d, n + i, j)
            if i != j:
                upper, lower = upper + _unit(d, j, n + i), lower + _unit(d, n + j, i)
            lie += [upper, lower]
    return _group(f"Sp({n})", lie, [], d)


def _special_unitary(n: int) -> list[Tensor]:
    c = torch.complex128
    lie = [1j * (_unit(n, i, i, c) - _unit(n, i + 1, i + 1, c)) for i in range(n - 1)]
    for i, j in combinations(range(n), 2):
        lie += [_unit(n, j, i, c) - _unit(n, i, j, c), 1j * (_unit(n, j, i, c) + _unit(n, i, j, c))]
    return lie


def SU(n: int) -> Group:
    """Unitary matrices of determinant one, complex, on C^n."""
    _check_size("SU", n, least=2)
    return _group(f"SU({n})", _special_unitary(n), [], n)


def U(n: int) -> Group:
    """Unitary matrices, complex, on C^n."""
    _check_size("U", n)
    return _group(f"U({n})", [1j * torch.eye(n, dtype=torch.complex128), *_special_unitary(n)], [], n)


def _lorentz_algebra() -> list[Tensor]:
    boosts = [_unit(4, 0, i) + _unit(4, i, 0) for i in (1, 2, 3)]
    rotations = [_unit(4, j, i) - _unit(4, i, j) for i, j in combinations((1, 2, 3), 2)]
    return boosts + rotations


_TIME_REVERSAL = (-1.0, 1.0, 1.0, 1.0)


def SO13p() -> Group:
    """The proper orthochronous Lorentz group, on ``(t, x, y, z)`` with metric diag(1, -1, -1, -1)."""
    return _group("SO13p", _lorentz_algebra(), [], 4)


def SO13() -> Group:
    """The proper Lorentz group: ``SO13p`` with the inversion of space and time."""
    return _group("SO13", _lorentz_algebra(), [-torch.eye(4, dtype=torch.float64)], 4)


def O13() -> Group:
    """The full Lorentz group: ``SO13`` with the reversal of time."""
    discrete = [-torch.eye(4, dtype=torch.float64), torch.diag(torch.tensor(_TIME_REVERSAL, dtype=torch.float64))]
    return _group("O13", _lorentz_algebra(), discrete, 4)


def SO2eR3() -> Group:
    """Rotations of R^3 about the z axis."""
    return _group("SO2eR3", [_unit(3, 1, 0) - _unit(3, 0, 1)], [], 3)


def O2eR3() -> Group:
    """Rotations of R^3 about the z axis and reflections in planes that hold it."""
    reflection = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    return _group("O2eR3", [_unit(3, 1, 0) - _unit(3, 0, 1)], [reflection], 3)


def DkeR3(k: int) -> Group:
    """Rotations of R^3 by multiples of 2 pi / k about the z axis and reflections in planes that hold it (order 2k)."""
    _check_size("DkeR3", k, most=MAX_ANGLES)
    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = _plane_rotation(2 * math.pi / k)
    reflection = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    return _group(f"DkeR3({k})", [], [turn, reflection], 3)


def RubiksCube(turns: str = "published") -> Group:
    """Permutations of the 48 facets of a Rubik's cube that move, generated by quarter turns of its six faces.

    Args:
        turns: ``"published"`` is the group that the literature's ranks (2, 6, 22 for T1, T2, T3) belong to. Its turns
            carry stickers from face to face without rotating them within the face, so it is *not* the group of the
            puzzle but a far larger one, which moves the 24 corner facets and the 24 edge facets independently.
            ``"puzzle"`` is the group of the puzzle, of order 43252003274489856000; its ranks are 2, 9, 51.
    Raises:
        ValueError: another value of ``turns``.
    Source: Finzi 2023, A.1.5.3 and the code published with it.
    """
    if turns not in ("published", "puzzle"):
        raise ValueError(f"RubiksCube(turns={turns!r}): choose 'published' or 'puzzle'")
    images = _puzzle_turns() if turns == "puzzle" else _published_turns()
    return _group("RubiksCube" if turns == "published" else "RubiksCube(puzzle)", [], images, 48)


def _puzzle_turns() -> list[Tensor]:
    """A facet is a cubie's position and an outward normal; a turn rotates both, for the cubies of one layer."""
    axes = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]

    def dot(u, v):
        return sum(a * b for a, b in zip(u, v, strict=True))

    def turn(axis, v):  # v rotated by 90 degrees about axis: (axis . v) axis + axis x v
        cross = tuple(axis[i - 2] * v[i - 1] - axis[i - 1] * v[i - 2] for i in range(3))
        return tuple(dot(axis, v) * a + c for a, c in zip(axis, cross, strict=True))

    cubies = [(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1)]
    facets = [(c, n) for n in axes for c in cubies if dot(c, n) == 1 and c != n]
    index = {facet: i for i, facet in enumerate(facets)}
    return [
        _permutation_matrix([index[turn(a, c), turn(a, n)] if dot(c, a) == 1 else i for i, (c, n) in enumerate(facets)])
        for a in axes
    ]


def _published_turns() -> list[Tensor]:
    """Facet ``8 * face + place``, faces Up, Front, Right, Back, Left, Down, places row by row without the centre.

    The turn of another face is that of Up after a renaming of the faces that brings it there and leaves places alone.
    """
    up = list(range(48))
    for place, target in enumerate([5, 3, 0, 6, 1, 7, 4, 2]):  # a quarter turn of the face itself
        up[place] = target
    for face, following in zip((1, 2, 3, 4), (2, 3, 4, 1), strict=True):  # the top rows of the faces around it
        for place in (0, 1, 2):
            up[8 * face + place] = 8 * following + place
    renamings = [  # where each face goes, the first entry being the face that turns
        (0, 1, 2, 3, 4, 5), (1, 5, 2, 0, 4, 3), (2, 1, 5, 3, 0, 4), (3, 0, 2, 5, 4, 1), (4, 1, 0, 3, 5, 2),
        (5, 3, 2, 1, 4, 0),
    ]  # fmt: skip
    turns = []
    for renaming in renamings:
        places = [8 * renaming[i // 8] + i % 8 for i in range(48)]
        images = [0] * 48
        for i in range(48):
            images[places[i]] = places[up[i]]
        turns.append(_permutation_matrix(images))
    return turns
