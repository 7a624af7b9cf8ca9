r"""Invariants and symmetry-adapted bases through isotypic decomposition; the theory is in `decomposition`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rppdyn.basis.basis import IsotypicSubspace, SharedType, unit_matrices
from rppdyn.basis.decomposition import Ambiguous, adjoint_map, decompose
from rppdyn.basis.problem import ZERO, BasisCertificate, Factor, NotCertified, Problem, generators_of

if TYPE_CHECKING:
    from rppdyn.reps import Rep

MAX_HALF = 3000  # an eigenproblem of this size takes about ten seconds on two cores
ROUNDING = 3e-14  # of a residual, for each dimension of the larger half
KINDS = {1: "real", 2: "complex", 4: "quaternionic"}


def halves(dims: Sequence[int]) -> tuple[int, int]:
    """Place to cut the factors into (out, in), and the larger of the two dimensions."""
    costs = [max(math.prod(dims[:s]), math.prod(dims[s:])) for s in range(1, len(dims) + 1)]
    s = int(np.argmin(costs)) + 1
    return s, costs[s - 1]


def solve_isotypic(problem: Problem) -> tuple[IsotypicSubspace, BasisCertificate] | None:
    """Invariants of out (x) in as the maps from the dual of `in` to `out`, or None where the strategy does not apply.

    It applies when the generated algebra is self-adjoint and the larger half has at most `MAX_HALF` dimensions.

    Raises:
        NotCertified: no draw of random elements separated the irreducible types.
    """
    cut, size = halves(problem.dims)
    if size > MAX_HALF:
        return None
    theta = adjoint_map(list(dict.fromkeys(problem.factors)))
    if theta is None:
        return None
    table: dict[bytes, int] = {}
    factors: list[Factor] = []

    def place(f: Factor) -> int:
        if f.digest not in table:
            table[f.digest] = len(factors)
            factors.append(f)
        return table[f.digest]

    one = Factor(np.zeros((problem.num_lie, 1, 1), problem.dtype), np.ones((problem.num_discrete, 1, 1), problem.dtype))
    out_site = tuple(place(f) for f in problem.factors[:cut])
    in_site = tuple(place(f.dual) for f in problem.factors[cut:]) or (place(one),)
    sites = (out_site,) if out_site == in_site else (out_site, in_site)
    try:
        parts = decompose(factors, sites, theta)
    except Ambiguous as e:
        raise NotCertified(
            f"no certified basis of {problem.name}: {e}; give the generators to full float64 precision, "
            "and none that nearly coincide"
        ) from None
    last = len(sites) - 1
    shared, residual = [], 0.0
    for k, t in enumerate(parts.types):
        if t.multiplicities[0] and t.multiplicities[last]:
            shared.append(
                SharedType(t.dim, t.units, t.starts[0], t.multiplicities[0], t.starts[last], t.multiplicities[last])
            )
            residual = max(residual, float(parts.residual[0, k, 0] + parts.residual[last, k, 1]))
    if residual > max(ZERO, ROUNDING * size):
        raise NotCertified(
            f"no certified basis of {problem.name}: a vector is invariant but for {residual:.1e}, neither rounding nor enough "
            "to leave it out (isotypic); give the generators to full float64 precision, and none that nearly coincide"
        )
    subspace = IsotypicSubspace(parts.u[0], parts.u[last], tuple(shared))
    return subspace, BasisCertificate(residual, 2 * parts.orthonormality, parts.gap, "isotypic")


@dataclass(frozen=True)
class IrreducibleType:
    """One irreducible type of a group, as far as the given representations contain it.

    Args:
        dim: dimension d of the type (real for real groups, complex for complex ones).
        kind: "real", "complex" or "quaternionic": the division algebra of maps that commute with it. Complex groups:
            always "real".
        multiplicities: how often each representation contains it.
        units: (u, d, d) float64, orthogonal; unit 0 is the identity; they span the maps commuting with the type (u =
            1, 2, 4).
        starts: first column of the type in each representation's U.
    """

    dim: int
    kind: str
    multiplicities: tuple[int, ...]
    units: Tensor
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Isotypic:
    """Symmetry-adapted bases of several representations of one group; see `isotypic`."""

    u: tuple[Tensor, ...]
    types: tuple[IrreducibleType, ...]
    certificate: BasisCertificate

    def map(self, out: int, in_: int, weights: Sequence[Tensor]) -> Tensor:
        """The equivariant map U_out (sum_k sum_u W_ku (x) unit_ku) U_in^H.

        Args:
            out, in_: indices into the representations.
            weights: per type, (units, multiplicity in out, multiplicity in in_).
        Returns:
            (dim_out, dim_in).
        """
        u_out, u_in = self.u[out], self.u[in_]
        core = torch.zeros(u_out.shape[0], u_in.shape[0], dtype=u_out.dtype)
        for t, w in zip(self.types, weights, strict=True):
            m, n = t.multiplicities[out], t.multiplicities[in_]
            if m and n:
                i, j = t.starts[out], t.starts[in_]
                block = torch.einsum("uab,ucd->acbd", w.to(core.dtype), t.units.to(core.dtype))
                core[i : i + m * t.dim, j : j + n * t.dim] = block.reshape(m * t.dim, n * t.dim)
        return u_out @ core @ u_in.mH


def isotypic(reps: Sequence[Rep]) -> Isotypic:
    r"""Symmetry-adapted bases of representations of one group, aligned with each other.

    For every representation s there is an orthogonal (unitary) U_s of shape (dim, dim) whose columns are ordered
    (type k, multiplicity a, component mu), such that for every group element

        U_s^H rho_s(g) U_s = direct sum over k of  I_{m_ks} (x) D_k(g),

    with the *same* matrices D_k in all representations. The equivariant maps are then exactly

        W = U_out ( sum_k sum_u W_ku (x) unit_ku ) U_in^H,        W_ku of shape (m_k,out , m_k,in),

    with one unit for real types, two (1, J) for complex, four for quaternionic ones. An orthonormal basis of the maps
    (in the Frobenius inner product) is obtained with W_ku = (elementary matrix) / sqrt(d_k).

    Args:
        reps: bound representations of one group; sums are allowed. The generated algebra must be closed under
            (conjugate) transposition.
    Returns:
        `Isotypic` with `u`, `types` (ordered by dimension) and a certificate.
    Raises:
        ValueError: no representation, several groups, or an algebra that is not self-adjoint (unipotent groups, say).
        NotCertified: the types could not be separated.

    Example:
        >>> import torch
        >>> from rppdyn.groups import SO
        >>> from rppdyn.reps import T
        >>> from rppdyn.basis import isotypic
        >>> G = SO(3)
        >>> x, y = (T(0) + 2 * T(1))(G), T(2)(G)
        >>> adapted = isotypic([x, y])
        >>> [(t.dim, t.kind, t.multiplicities) for t in adapted.types]
        [(1, 'real', (1, 1)), (3, 'real', (2, 1)), (5, 'real', (0, 1))]
        >>> weights = [torch.ones(len(t.units), t.multiplicities[1], t.multiplicities[0]) for t in adapted.types]
        >>> W = adapted.map(1, 0, weights)                       # from x to y
        >>> g = G.samples(1, generator=torch.Generator().manual_seed(0))[0]
        >>> bool(torch.allclose(W @ x.rho(g), y.rho(g) @ W, atol=1e-12))
        True
    """
    reps = list(reps)
    if not reps:
        raise ValueError("isotypic() was given no representation; pass at least one")
    if any(r.G != reps[0].G for r in reps):
        raise ValueError(f"isotypic() needs representations of one group, got {sorted({str(r.G) for r in reps})}")
    if empty := [str(r) for r in reps if not r.dim]:
        raise ValueError(f"isotypic() of {empty[0]}, which has no dimensions: leave it out")
    name = ", ".join(str(r) for r in reps)
    table: dict[bytes, int] = {}
    factors: list[Factor] = []
    sites: dict[tuple[int, ...], int] = {}
    plans: list[list[tuple[int, Tensor]]] = []
    for rep in reps:
        plan = []
        for block, index in rep.blocks():
            site = []
            for f in block.factors:
                factor = Factor(*generators_of(f))
                if factor.digest not in table:
                    table[factor.digest] = len(factors)
                    factors.append(factor)
                site.append(table[factor.digest])
            plan.append((sites.setdefault(tuple(site), len(sites)), index))
        plans.append(plan)
    largest = max(math.prod(factors[f].dim for f in site) for site in sites)
    if largest > MAX_HALF:
        raise ValueError(
            f"isotypic() of {name}: a block has dimension {largest}, more than {MAX_HALF}; use rep.solve()"
        )
    theta = adjoint_map(factors)
    if theta is None:
        raise ValueError(
            f"isotypic() of {name}: the generators of {reps[0].G} are not closed under transposition, so complete reducibility "
            "is not known; use rep.solve(), which needs none"
        )
    try:
        parts = decompose(factors, tuple(sites), theta)
    except Ambiguous as e:
        raise NotCertified(f"no certified decomposition of {name}: {e}") from None
    certificate = BasisCertificate(
        float(2 * parts.residual.max(initial=0.0)), 2 * parts.orthonormality, parts.gap, "isotypic"
    )
    certificate.check(name)

    dtype = torch.complex128 if parts.u[0].dtype.kind == "c" else torch.float64
    columns: list[list[Tensor]] = [[] for _ in reps]
    starts = [0] * len(reps)
    types = []
    for t in parts.types:
        multiplicities, first = [], tuple(starts)
        for r, (rep, plan) in enumerate(zip(reps, plans, strict=True)):
            count = 0
            for s, index in plan:
                width = t.multiplicities[s] * t.dim
                if not width:
                    continue
                part = torch.from_numpy(np.ascontiguousarray(parts.u[s][:, t.starts[s] : t.starts[s] + width]))
                placed = torch.zeros(len(index), rep.dim, width, dtype=dtype)
                placed[torch.arange(len(index))[:, None], index] = part
                columns[r].append(placed.permute(1, 0, 2).reshape(rep.dim, -1))
                count += t.multiplicities[s] * len(index)
            multiplicities.append(count)
            starts[r] += count * t.dim
        units = torch.from_numpy(np.stack([np.kron(np.eye(t.dim // t.units), unit) for unit in unit_matrices(t.units)]))
        types.append(IrreducibleType(t.dim, KINDS[t.units], tuple(multiplicities), units, first))
    return Isotypic(tuple(torch.cat(c, dim=1) for c in columns), tuple(types), certificate)
