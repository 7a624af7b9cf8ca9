r"""Invariants of groups that are self-adjoint in other coordinates: rotations in skewed or scaled axes, lattice symmetries.

The method finds maps :math:`P_f`, one for each factor f, in whose coordinates the generated algebra is closed under conjugate
transposition. Of all groups similar to a given one, the self-adjoint ones have the shortest generators (Kempf & Ness 1979;
Richardson & Slodowy 1990): with direct sums over the factors, :math:`A_i = \oplus_f A_{if}` and likewise :math:`h_k`, the
function

.. math:: \Phi(P) = \tfrac12 \log\det_{ij} \langle P^{-1} A_i P, P^{-1} A_j P\rangle
    + \tfrac12 \sum_k \log |P^{-1} h_k P|^2 + \log |P^{-1} h_k^{-1} P|^2

is convex along :math:`P e^{tX}`, X Hermitian, and its minima are such coordinates, if the group has any (compact, classical
and Lorentz groups have, unipotent ones have not). Then :math:`v = (\otimes_f P_f)\, v'` for invariants :math:`v'` in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rppdyn.basis._basis import DenseSubspace, InvariantSubspace
from rppdyn.basis._isotypic import adjoint_map
from rppdyn.basis._problem import (
    MAX_ITERATIVE_BYTES,
    Array,
    BasisCertificate,
    Factor,
    NotCertified,
    Problem,
    chain_apply,
)

MAX_COMMUTATOR_ENTRIES = 5e6  # as many take a fifth of a second per step (SO(16) has 4 million)
MAX_STEPS = 40  # of Newton's method
MAX_STEP_NORM = 1.0  # spectral norm of X
MAX_CONDITION = 1e6  # condition of a P from which on the function has no minimum
MIN_CURVATURE_SHARE = 1e-9  # of the largest; smaller curvatures are zero, of maps that commute with the group
ROUNDING_GRADIENT = 1e-6  # norm of a gradient below which one more Newton step reaches rounding
MAX_HALVINGS = 30  # of a step

Maps = dict[Factor, Array]


@lru_cache(maxsize=64)
def self_adjoint_coordinates(factors: tuple[Factor, ...]) -> Maps | None:
    """P for each of the distinct factors of one group, in whose coordinates the generated algebra is self-adjoint.

    None if the algebra is self-adjoint already, if no P is found, or if the factors are too large to search. P's condition
    squared magnifies rounding of generators: general axes are found up to a condition of about 100, units up to more.
    """
    unknowns, numbers = sum(f.dim * (f.dim + 1) // 2 for f in factors), sum(f.dim**2 for f in factors)
    count = len(factors[0].lie) + 2 * len(factors[0].discrete)
    if count * unknowns * numbers > MAX_COMMUTATOR_ENTRIES or adjoint_map(factors) is not None:
        return None
    maps = {f: np.eye(f.dim, dtype=f.lie.dtype) for f in factors}
    with suppress(np.linalg.LinAlgError):
        for _ in range(MAX_STEPS):
            has_converged = _improve(maps) < ROUNDING_GRADIENT
            if max(np.linalg.cond(p) for p in maps.values()) > MAX_CONDITION:
                return None
            if has_converged:
                _improve(maps)
                break
        return None if adjoint_map([_change_coordinates(f, p) for f, p in maps.items()]) is None else maps
    return None


def solve_similar(
    problem: Problem, solve: Callable[[Problem], tuple[InvariantSubspace, BasisCertificate]]
) -> tuple[DenseSubspace, BasisCertificate] | None:
    """Invariants by `solve` in self-adjoint coordinates, or None if these are not needed or not found.

    The certificate's rank gap is that of the self-adjoint coordinates: a change of coordinates keeps the rank.

    Raises:
        NotCertified: `solve` does, or the basis would not fit in memory.
    """
    maps = self_adjoint_coordinates(tuple(dict.fromkeys(problem.factors)))
    if maps is None:
        return None
    adjoint = {f: _change_coordinates(f, p) for f, p in maps.items()}
    basis, certificate = solve(replace(problem, factors=tuple(adjoint[f] for f in problem.factors)))
    if (needed := 4 * problem.dim * basis.rank * basis.itemsize) > MAX_ITERATIVE_BYTES:
        raise NotCertified(
            f"no certified basis of {problem.name}: its dimension {problem.dim} and its rank {basis.rank} need {needed} bytes "
            f"to be carried to its own coordinates, more than {MAX_ITERATIVE_BYTES}; give skew-symmetric or orthogonal "
            "generators"
        )
    q = np.zeros((problem.dim, 0), problem.dtype)
    if basis.rank:
        q = np.linalg.qr(chain_apply([maps[f] for f in problem.factors], basis.dense().numpy()))[0]
    orthonormality = float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).max(initial=0.0))
    strategy = f"{certificate.strategy}+similar"
    return DenseSubspace(q), BasisCertificate(problem.residual(q), orthonormality, certificate.rank_gap, strategy)


def _change_coordinates(factor: Factor, p: Array) -> Factor:
    inverse = np.linalg.inv(p)
    return Factor(inverse @ factor.lie @ p, inverse @ factor.discrete @ p)


def _improve(maps: Maps) -> float:
    r"""Improve the maps by one step of Newton's method, at most `MAX_STEP_NORM` long; returns the gradient's norm before it.

    With an orthonormal basis :math:`E_i` of the Lie algebra in the current coordinates, and matrices S, T with entries
    :math:`\langle E_i, [E_j, X] \rangle` and :math:`\langle [E_i, X], [E_j, X] \rangle`, the Lie algebra's part of the
    function is tr S + tr T - tr S^2 to second order in X. A discrete element of unit norm contributes the same, with itself as
    the only E.
    """
    factors = [_change_coordinates(f, p) for f, p in maps.items()]
    dims = [f.dim for f in factors]
    units = [_hermitian_units(f.dim, f.lie.dtype.kind == "c") for f in factors]
    _, sigma, vh = np.linalg.svd(_flatten_elements([f.lie for f in factors]), full_matrices=False)
    lie = vh[sigma > 1e-10 * sigma.max(initial=0.0)]  # an orthonormal basis of the Lie algebra
    rows = _flatten_elements([np.concatenate([f.discrete, np.linalg.inv(f.discrete)]) for f in factors])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    lie_brackets, brackets = _commutators(lie, dims, units), _commutators(rows, dims, units)
    s = lie_brackets @ lie.conj().T  # (J, U, I)
    t = np.einsum("jus,js->uj", brackets, rows.conj()).real
    gradient = np.einsum("juj->u", s).real + t.sum(1)
    hessian = 2 * (_inner(lie_brackets) + _inner(brackets) - _inner(s) - t @ t.T)

    values, vectors = np.linalg.eigh(hessian)
    curved = values > MIN_CURVATURE_SHARE * values[-1]
    step = -vectors[:, curved] @ ((vectors.T @ gradient)[curved] / values[curved])
    norm = max(float(np.linalg.norm(x, 2)) for x in _exponents(step, units))
    step *= min(1.0, MAX_STEP_NORM / max(norm, 1e-300))
    value = _value(lie, rows, dims, _exponents(0 * step, units))
    rounding = np.finfo(float).eps * (lie.size + rows.size)
    for _ in range(MAX_HALVINGS):
        if _value(lie, rows, dims, _exponents(step, units)) <= value + rounding:
            break
        step /= 2
    for f, x in zip(maps, _exponents(step, units), strict=True):
        maps[f] = maps[f] @ _exp(x)
    return float(np.linalg.norm(gradient))


def _inner(c: Array) -> Array:
    """Real inner products (U, U) of the slices of (J, U, S)."""
    rows = c.transpose(1, 0, 2).reshape(c.shape[1], c.shape[0] * c.shape[2])
    return (rows @ rows.conj().T).real


def _value(lie: Array, elements: Array, dims: Sequence[int], exponents: Sequence[Array]) -> float:
    """The function after a step, up to a constant; without a step it is zero to rounding."""
    p, inverse = [_exp(x) for x in exponents], [_exp(-x) for x in exponents]
    a, h = (
        _flatten_elements([m @ g @ n for m, g, n in zip(inverse, _blocks(rows, dims), p, strict=True)])
        for rows in (lie, elements)
    )
    return float(np.linalg.slogdet(a @ a.conj().T)[1] / 2 + np.log(np.linalg.norm(h, axis=1)).sum())


def _flatten_elements(elements: Sequence[Array]) -> Array:
    """Elements on all factors, (J, n, n) each, as rows of numbers."""
    return np.concatenate([g.reshape(len(g), g.shape[1] ** 2) for g in elements], axis=1)


def _blocks(rows: Array, dims: Sequence[int]) -> list[Array]:
    """The inverse of `_flatten_elements`: the elements on each factor."""
    parts = np.split(rows, np.cumsum([n * n for n in dims])[:-1], axis=1)
    return [part.reshape(-1, n, n) for part, n in zip(parts, dims, strict=True)]


def _hermitian_units(n: int, complex_: bool) -> Array:
    """An orthonormal basis of the Hermitian matrices."""
    i, j = np.triu_indices(n)
    units = np.zeros((len(i), n, n))
    units[np.arange(len(i)), i, j] = 0.5**0.5
    units = (units + units.transpose(0, 2, 1)) * np.where(i == j, 0.5**0.5, 1.0)[:, None, None]
    if not complex_:
        return units
    k = np.flatnonzero(i != j)
    skew = np.triu(units[k]) - np.tril(units[k])
    return np.concatenate([units, 1j * skew])


def _commutators(rows: Array, dims: Sequence[int], units: Sequence[Array]) -> Array:
    """[E_j, X_u] for all elements and units, (J, U, S); a unit acts on its own factor."""
    commutators = np.zeros((len(rows), sum(map(len, units)), rows.shape[1]), np.result_type(rows, *units))
    u = s = 0
    for g, unit in zip(_blocks(rows, dims), units, strict=True):
        bracket = g[:, None] @ unit - unit @ g[:, None]
        commutators[:, u : u + len(unit), s : s + unit[0].size] = bracket.reshape(len(g), len(unit), unit[0].size)
        u, s = u + len(unit), s + unit[0].size
    return commutators


def _exponents(x: Array, units: Sequence[Array]) -> list[Array]:
    """X of each factor."""
    parts = np.split(x, np.cumsum([len(unit) for unit in units])[:-1])
    return [np.tensordot(part, unit, 1) for part, unit in zip(parts, units, strict=True)]


def _exp(x: Array) -> Array:
    """The exponential of a Hermitian matrix."""
    values, vectors = np.linalg.eigh(x)
    return (vectors * np.exp(values)) @ vectors.conj().T
