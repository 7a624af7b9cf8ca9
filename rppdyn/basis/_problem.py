r"""The constraints that a basis solves, by matrices of the tensor factors, and the certificate of a solution.

A block is a product of leaves F_1 (x) ... (x) F_n of one group. Its constraints are, for every Lie generator A_i and
every discrete generator h_k,

    drho(A_i) v = sum_f (I (x) drho_f(A_i) (x) I) v = 0
    (rho(h_k) - I) v = (rho_1(h_k) (x) ... (x) rho_n(h_k) - I) v = 0

(Finzi, Welling & Wilson 2021, Eq. 5 and 6). Only `Problem.stacked` forms a matrix of the product's dimension.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from rppdyn.errors import UserError

MAX_ITERATIVE_BYTES = 2**33
RESIDUAL_LIMIT = 1e-10
ORTHONORMALITY_LIMIT = 1e-12
RANK_GAP_LIMIT = 1e-6
ZERO = 1e-12
"""Relative singular values up to this are rounding. Values between it and `RANK_GAP_LIMIT` leave the rank undecided: generators
may not be given to full precision, or badly skewed axes may make vectors almost invariant."""


class NotCertified(UserError):
    """The invariants of a representation could not be told from near-invariants, so no basis is returned."""


@dataclass(frozen=True)
class BasisCertificate:
    """Evidence that a basis spans the invariants, no less and no more.

    Args:
        residual: largest |C_i q| over constraints i and basis vectors q, C_i scaled to (at most) unit norm.
        orthonormality: largest entry of |Q^H Q - I| in absolute value.
        rank_gap: how far the nearest vector outside the answer is from being invariant, relative to 1. Dense: the smallest
            singular value of the constraints that counts as non-zero, over the largest. Isotypic: the smallest of the
            eigenvalue gaps, link strengths and loop strengths (:mod:`rppdyn.basis._isotypic`). Iterative: the smallest
            non-zero singular value, by inverse iteration. Orbits: 1, since the rank is counted in integers.
        strategy: "orbits", "isotypic", "dense" or "iterative", with "similar" if taken in other coordinates; several, joined
            by "+", for a representation of several blocks.
    """

    residual: float
    orthonormality: float
    rank_gap: float
    strategy: str

    def check(self, name: str) -> BasisCertificate:
        """Return self if every limit holds.

        Raises:
            NotCertified: it names the representation, the number that fails and its limit.
        """
        for label, value, limit, ok in (
            ("residual", self.residual, RESIDUAL_LIMIT, self.residual <= RESIDUAL_LIMIT),
            ("orthonormality", self.orthonormality, ORTHONORMALITY_LIMIT, self.orthonormality <= ORTHONORMALITY_LIMIT),
            ("rank gap", self.rank_gap, RANK_GAP_LIMIT, self.rank_gap >= RANK_GAP_LIMIT),
        ):
            if not ok:
                raise NotCertified(
                    f"no certified basis of {name}: {label} {value:.2e} misses its limit {limit:.0e} ({self.strategy}); "
                    "give the generators to full float64 precision, and none that nearly coincide"
                )
        return self

    def to_dict(self) -> dict[str, float | str]:
        """Plain data, for the cache and for reports."""
        return asdict(self)

    @staticmethod
    def worst(parts: list[BasisCertificate]) -> BasisCertificate:
        """The certificate of an orthogonal direct sum: the worst number of each kind."""
        if not parts:
            return BasisCertificate(0.0, 0.0, 1.0, "orbits")
        return BasisCertificate(
            float(np.max([p.residual for p in parts])),  # nan if any is nan
            float(np.max([p.orthonormality for p in parts])),
            float(np.min([p.rank_gap for p in parts])),
            "+".join(sorted({s for p in parts for s in p.strategy.split("+")})),
        )


Array = np.ndarray


def as_numpy(x: Tensor) -> Array:
    """A tensor as an array; conjugate views, which numpy does not have, are copied."""
    return x.detach().resolve_conj().cpu().numpy()


def leaf_generators(leaf: Any) -> tuple[Array, Array]:
    """The generators' matrices (lie, discrete) on a leaf; a Lie matrix is set to zero if it is rounding of its generator."""
    lie, algebra = as_numpy(leaf.lie_generators), as_numpy(leaf.G.lie_algebra)
    is_nonzero = np.linalg.norm(lie, axis=(1, 2)) > ZERO * np.linalg.norm(algebra, axis=(1, 2))
    return np.where(is_nonzero[:, None, None], lie, 0), as_numpy(leaf.discrete_generators)


def chain_apply(matrices: Sequence[Array], v: Array) -> Array:
    """(M_1 (x) ... (x) M_n) v for square matrices M_i and columns v of shape (prod dims, b)."""
    columns = v.shape[1]
    after = v.shape[0] * columns
    before = 1
    for matrix in matrices:
        n = matrix.shape[0]
        after //= n
        v = np.matmul(matrix, v.reshape(before, n, after))
        before *= n
    return v.reshape(-1, columns)


@dataclass(frozen=True, eq=False)
class Factor:
    """One tensor factor of a block, given by its generators; equal if their bytes are equal.

    Args:
        lie: (D, n, n), drho of the group's Lie generators; real generators are float64, complex ones complex128.
        discrete: (M, n, n), rho of the group's discrete generators.
    """

    lie: Array
    discrete: Array

    @property
    def dim(self) -> int:
        """Dimension n of the factor."""
        return self.lie.shape[-1]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of shapes, dtypes and bytes of the generators."""
        h = hashlib.sha256()
        for a in (self.lie, self.discrete):
            h.update(f"{a.dtype.str}{a.shape}".encode())
            h.update(np.ascontiguousarray(a + 0.0).tobytes())  # + 0.0 makes -0.0 and 0.0 the same content
        return h.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def lie_norms(self) -> Array:
        """Spectral norms of the Lie generators, (D,)."""
        return np.linalg.norm(self.lie, 2, axis=(1, 2)) if len(self.lie) else np.zeros(0)

    @cached_property
    def discrete_norms(self) -> Array:
        """Spectral norms of the discrete generators, (M,)."""
        return np.linalg.norm(self.discrete, 2, axis=(1, 2)) if len(self.discrete) else np.zeros(0)

    @cached_property
    def units(self) -> float:
        """Largest ratio between units of two coordinates, in units in which the generators' entries are of similar size.

        Only coordinates that the generators connect in both directions are compared: others (a translation's) have free units.
        """
        sizes = np.concatenate([self.lie_norms, self.discrete_norms])
        generators = np.concatenate([self.lie, self.discrete])[sizes > 0]
        pattern = np.abs(generators / sizes[sizes > 0, None, None]).sum(0)
        label = connected_components(pattern != 0, connection="strong")[1]
        ratio = 1.0
        for k in range(label.max(initial=-1) + 1):
            block = pattern[np.ix_(label == k, label == k)]
            scaling = scipy.linalg.matrix_balance(block, permute=False, separate=True)[1][0]
            ratio = max(ratio, float(scaling.max() / scaling.min()))
        return ratio

    @cached_property
    def dual(self) -> Factor:
        """The dual factor: -drho^T and rho^-T; the factor itself if the two agree to rounding."""
        lie = -self.lie.transpose(0, 2, 1)
        discrete = np.linalg.inv(self.discrete).transpose(0, 2, 1) if len(self.discrete) else self.discrete
        tolerance = 1e-14 * np.abs(self.lie).max(initial=0.0)
        is_self_dual = np.abs(lie - self.lie).max(initial=0.0) <= tolerance
        is_self_dual &= np.allclose(discrete, self.discrete, rtol=0, atol=1e-14)
        return self if is_self_dual else Factor(lie, discrete)

    @cached_property
    def permutations(self) -> tuple[Array, Array] | None:
        """Images (M, n) and signs (M, n) of the coordinates if every discrete generator is a signed permutation, else None."""
        a = np.abs(self.discrete)
        monomial = ((a == 0) | (a == 1)).all() and (a.sum(1) == 1).all() and (a.sum(2) == 1).all()
        if not monomial or (np.iscomplexobj(self.discrete) and self.discrete.imag.any()):
            return None
        images = a.argmax(1)  # column i holds the image of coordinate i
        signs = np.take_along_axis(self.discrete.real, images[:, None], 1)[:, 0]
        return images, signs.astype(np.int8)


@dataclass(frozen=True, eq=False)
class Problem:
    """The invariants of a product of factors of one group.

    Args:
        factors: tensor factors in coordinate order (row-major); equal factors should be one object.
        name: the representation's name in messages.
        dtype: float64 or complex128, of the generators and of the answer.
    """

    factors: tuple[Factor, ...]
    name: str
    dtype: np.dtype

    @staticmethod
    def from_generators(
        generators: Iterable[tuple[Any, Any]], name: str = "a representation given by its generators"
    ) -> Problem:
        """A problem from (lie, discrete) pairs, one per tensor factor.

        Generators that are trivial on every factor, and one-dimensional factors on which all generators are trivial, are
        dropped.
        """
        pairs = []
        complex_ = False
        for lie, discrete in generators:
            lie, discrete = np.asarray(lie), np.asarray(discrete)
            complex_ |= np.iscomplexobj(lie) or np.iscomplexobj(discrete)
            pairs.append((lie, discrete))
        dtype = np.dtype(np.complex128 if complex_ else np.float64)
        pairs = [(a.astype(dtype), h.astype(dtype)) for a, h in pairs]
        keep_lie = np.zeros(pairs[0][0].shape[0], bool)
        keep_discrete = np.zeros(pairs[0][1].shape[0], bool)
        for a, h in pairs:
            keep_lie |= a.any((1, 2))
            keep_discrete |= (h != np.eye(h.shape[-1])).any((1, 2))
        by_digest: dict[bytes, Factor] = {}
        factors = []
        for a, h in pairs:
            f = Factor(np.ascontiguousarray(a[keep_lie]), np.ascontiguousarray(h[keep_discrete]))
            if f.dim == 1 and not f.lie.any() and (f.discrete == 1).all() and len(pairs) > 1:
                continue
            factors.append(by_digest.setdefault(f.digest, f))
        if not factors:
            factors = [Factor(np.zeros((0, 1, 1), dtype), np.zeros((0, 1, 1), dtype))]
        return Problem(tuple(factors), name, dtype)

    @staticmethod
    def from_rep(rep: Any) -> Problem:
        """The problem of one block, a `rppdyn.reps.Rep` that is a product of leaves."""
        return Problem.from_generators(map(leaf_generators, rep.factors), str(rep))

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of the factors."""
        return tuple(f.dim for f in self.factors)

    @cached_property
    def dim(self) -> int:
        """Dimension of the product."""
        return math.prod(self.dims)

    @property
    def num_lie(self) -> int:
        """Number of Lie generators that act."""
        return self.factors[0].lie.shape[0]

    @property
    def num_discrete(self) -> int:
        """Number of discrete generators that act."""
        return self.factors[0].discrete.shape[0]

    def key(self, version: int) -> str:
        """Content address: generators' bytes, structure, dtype, tolerances and format version."""
        limits = (RESIDUAL_LIMIT, ORTHONORMALITY_LIMIT, RANK_GAP_LIMIT, ZERO)
        h = hashlib.sha256(f"rppdyn basis {version} {self.dtype.str} {limits!r} {self.dims}".encode())
        for f in self.factors:
            h.update(f.digest)
        return h.hexdigest()

    @cached_property
    def scales(self) -> Array:
        """Upper bounds of the constraints' spectral norms, Lie generators first; (D + M,)."""
        lie = sum(f.lie_norms for f in self.factors)
        discrete = 1 + math.prod((f.discrete_norms for f in self.factors), start=np.ones(self.num_discrete))
        return np.concatenate([lie, discrete])

    def apply(self, i: int, v: Array, *, adjoint: bool = False) -> Array:
        """Constraint i (Lie generators first, then discrete), divided by its scale, on columns v of shape (dim, b)."""
        if i < self.num_lie:
            out = np.zeros_like(v)
            before, after = 1, v.size
            for f in self.factors:
                after //= f.dim
                a = f.lie[i].conj().T if adjoint else f.lie[i]
                if a.any():
                    out += np.matmul(a, v.reshape(before, f.dim, after)).reshape(v.shape)
                before *= f.dim
        else:
            k = i - self.num_lie
            out = chain_apply([f.discrete[k].conj().T if adjoint else f.discrete[k] for f in self.factors], v) - v
        return out / self.scales[i]

    def normal_apply(self, v: Array) -> Array:
        """C^H C v for the scaled, stacked constraint C."""
        out = np.zeros_like(v)
        for i in range(len(self.scales)):
            out += self.apply(i, self.apply(i, v), adjoint=True)
        return out

    def stacked(self) -> Array:
        """The scaled constraints as one matrix, ((D + M) * dim, dim)."""
        eye = np.eye(self.dim, dtype=self.dtype)
        rows = [self.apply(i, eye) for i in range(len(self.scales))]
        return np.concatenate(rows) if rows else np.zeros((0, self.dim), self.dtype)

    def residual(self, q: Array, chunk: int = 64) -> float:
        """Largest |C_i q_j| / (scale_i |q_j|) over constraints i and columns j; nan if any is nan."""
        largest = 0.0
        for start in range(0, q.shape[1], chunk):
            part = q[:, start : start + chunk]
            norms = np.linalg.norm(part, axis=0)
            for i in range(len(self.scales)):
                residuals = np.linalg.norm(self.apply(i, part), axis=0) / norms
                largest = float(residuals.max(initial=largest))  # keeps nan, which Python's max may drop
        return largest
