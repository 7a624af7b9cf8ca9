r"""Solutions: an orthonormal basis as a list of blocks, each a subspace in the form of the strategy that solved it.

A subspace represents an orthonormal Q of shape (dim, rank), and stores it densely only if it is dense. Arrays are numpy,
as in the cache. Products are torch: differentiable, on their argument's device, in float64 or complex128.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from rppdyn.basis._problem import Array, BasisCertificate

if TYPE_CHECKING:
    from rppdyn.reps import Rep

MAX_BYTES = 2**30
"""Default limit in bytes of a dense basis."""

MAX_SPARSE_BYTES = 2**32
"""Limit in bytes of sparse entries, and of the dense entries among which they are searched."""

MIN_PIVOT_SHARE = 0.99
"""Length of a row, as a share of the longest, from which it counts as equally long: rounding must not choose between them."""

CANONICAL_ROUNDING = 1e-13
"""Entries of canonical basis vectors up to this size count as zero."""

ENTRY_BYTES = 24
"""Bytes of the row, column and value of a sparse entry."""


class InvariantSubspace(ABC):
    """An orthonormal basis Q (dim, rank), represented by its products."""

    kind: ClassVar[str]
    dim: int
    rank: int
    np_dtype: np.dtype

    @property
    def dtype(self) -> torch.dtype:
        """torch.float64 or torch.complex128."""
        return torch.complex128 if self.np_dtype.kind == "c" else torch.float64

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return self.np_dtype.itemsize

    @abstractmethod
    def matmul(self, beta: Tensor) -> Tensor:
        """Q beta for beta (rank, b): (dim, b)."""

    @abstractmethod
    def rmatmul(self, v: Tensor) -> Tensor:
        """Q^H v for v (dim, b): (rank, b)."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The arrays that determine the subspace, for the cache."""

    @cached_property
    def canonical(self) -> InvariantSubspace:
        """The same subspace with basis vectors that depend on it alone, so that coefficients are the same on every machine.

        Vectors from singular values or irreducible types are known up to a rotation, which depends on rounding and so on the
        processor. Here they are rows of the projector: the first of the longest remaining rows, made orthonormal one by one.
        """
        q = self.dense().numpy()
        remaining, rotation = q.copy(), np.zeros((self.rank, self.rank), q.dtype)
        for k in range(self.rank):
            lengths = np.linalg.norm(remaining, axis=1)
            row = remaining[np.argmax(lengths > MIN_PIVOT_SHARE * lengths.max())]
            rotation[:, k] = row.conj() / np.linalg.norm(row)
            remaining -= np.outer(remaining @ rotation[:, k], rotation[:, k].conj())
        q = q @ rotation
        q[np.abs(q) < CANONICAL_ROUNDING] = 0
        return DenseSubspace(q)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(a.nbytes for a in self.arrays().values())

    def dense(self) -> Tensor:
        """Q as a (dim, rank) tensor."""
        return self.matmul(torch.eye(self.rank, dtype=self.dtype))

    def sparse(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and values of Q's entries above rounding (1e-14), ordered by row.

        Raises:
            ValueError: the entries would not fit in memory.
        """
        if (needed := self.dim * self.rank * self.itemsize) > MAX_SPARSE_BYTES:
            raise ValueError(
                f"a basis of shape ({self.dim}, {self.rank}) takes {needed} bytes, more than {MAX_SPARSE_BYTES}; use a lower "
                "tensor power"
            )
        q = self.dense()
        rows, cols = torch.nonzero(q.abs() > 1e-14, as_tuple=True)
        return rows, cols, q[rows, cols]


class OrbitSubspace(InvariantSubspace):
    """Indicator vectors of signed orbits, scaled to length one.

    Args:
        labels: (dim,) int32, the orbit of every coordinate, -1 where invariants vanish.
        sign: (dim,) int8 or None for all +1.
        dtype: dtype of the answer.
    """

    kind = "orbits"

    @property
    def canonical(self) -> InvariantSubspace:
        """The subspace itself: orbits have one basis."""
        return self

    def __init__(self, labels: Array, sign: Array | None, dtype: np.dtype) -> None:
        self.labels, self.sign, self.np_dtype = labels, sign, np.dtype(dtype)
        self.dim = len(labels)
        self.rank = int(labels.max(initial=-1)) + 1

    @cached_property
    def sizes(self) -> Array:
        """Number of coordinates in each orbit."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.rank)

    @cached_property
    def _coo(self) -> tuple[Tensor, Tensor, Tensor]:
        rows = np.flatnonzero(self.labels >= 0)
        cols = self.labels[rows].astype(np.int64)
        values = (1 / np.sqrt(self.sizes))[cols]
        if self.sign is not None:
            values = values * self.sign[rows]
        return torch.from_numpy(rows), torch.from_numpy(cols), torch.from_numpy(values.astype(self.np_dtype))

    def matmul(self, beta: Tensor) -> Tensor:
        """Q beta for beta (rank, b): (dim, b)."""
        rows, cols, values = (t.to(beta.device) for t in self._coo)
        out = torch.zeros(self.dim, beta.shape[1], dtype=self.dtype, device=beta.device)
        return out.index_copy(0, rows, values[:, None] * beta.to(self.dtype)[cols])

    def rmatmul(self, v: Tensor) -> Tensor:
        """Q^H v for v (dim, b): (rank, b)."""
        rows, cols, values = (t.to(v.device) for t in self._coo)
        out = torch.zeros(self.rank, v.shape[1], dtype=self.dtype, device=v.device)
        return out.index_add(0, cols, values[:, None] * v.to(self.dtype)[rows])

    def dense(self) -> Tensor:
        """Q as a (dim, rank) tensor."""
        rows, cols, values = self._coo
        q = torch.zeros(self.dim, self.rank, dtype=self.dtype)
        q[rows, cols] = values
        return q

    def sparse(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and values of Q's non-zeros, ordered by row."""
        return self._coo

    def arrays(self) -> dict[str, Array]:
        """Labels and signs."""
        return {"labels": self.labels} | ({} if self.sign is None else {"sign": self.sign})


class DenseSubspace(InvariantSubspace):
    """An explicit matrix with orthonormal columns."""

    kind = "dense"

    def __init__(self, q: Array) -> None:
        self.q, self.np_dtype = np.ascontiguousarray(q), q.dtype
        self.dim, self.rank = q.shape

    @cached_property
    def _q(self) -> Tensor:
        return torch.from_numpy(self.q)

    def matmul(self, beta: Tensor) -> Tensor:
        """Q beta for beta (rank, b): (dim, b)."""
        return self._q.to(beta.device) @ beta.to(self.dtype)

    def rmatmul(self, v: Tensor) -> Tensor:
        """Q^H v for v (dim, b): (rank, b)."""
        return self._q.to(v.device).mH @ v.to(self.dtype)

    def dense(self) -> Tensor:
        """Q itself, a copy."""
        return self._q.clone()

    def arrays(self) -> dict[str, Array]:
        """Q."""
        return {"q": self.q}


def unit_matrices(count: int) -> Array:
    r"""Units of the endomorphism algebra in an adapted basis: (1, 1, 1) for R, (2, 2, 2) for C, (4, 4, 4) for H.

    For C the basis is (e, Je); for H it is (e, ie, je, ke) with the group acting by left multiplication, so that the
    maps commuting with it are right multiplications by 1, i, j, k.
    """
    if count == 1:
        return np.ones((1, 1, 1))
    if count == 2:
        return np.array([[[1.0, 0], [0, 1]], [[0, -1], [1, 0]]])
    right = [
        [(0, 1), (1, 1), (2, 1), (3, 1)],  # q -> q
        [(1, 1), (0, -1), (3, -1), (2, 1)],  # 1, i, j, k -> i, -1, -k, j
        [(2, 1), (3, 1), (0, -1), (1, -1)],  # -> j, k, -1, -i
        [(3, 1), (2, -1), (1, 1), (0, -1)],  # -> k, -j, i, -1
    ]
    units = np.zeros((4, 4, 4))
    for u, images in enumerate(right):
        for column, (row, sign) in enumerate(images):
            units[u, row, column] = sign
    return units


@dataclass(frozen=True)
class SharedType:
    """One irreducible type that occurs on both sides of a map, with the places of its columns in U_out and U_in."""

    dim: int
    units: int
    out_start: int
    out_mult: int
    in_start: int
    in_mult: int

    @property
    def rank(self) -> int:
        """Number of independent maps, out_mult * in_mult * units."""
        return self.out_mult * self.in_mult * self.units


class IsotypicSubspace(InvariantSubspace):
    r"""Maps W = U_out (sum_k sum_u W_ku (x) (I (x) unit_u)) U_in^H, flattened row-major.

    Coefficients are sqrt(d_k) W_ku[a, b], ordered (type, a, b, unit).

    Args:
        u_out: (n_out, n_out), columns ordered (type, multiplicity, component).
        u_in: (n_in, n_in), likewise.
        types: the types that occur on both sides, with the places of their columns.
    """

    kind = "isotypic"

    def __init__(self, u_out: Array, u_in: Array, types: tuple[SharedType, ...]) -> None:
        self.u_out, self.u_in, self.types = u_out, u_in, types
        self.np_dtype = u_out.dtype
        self.dim = len(u_out) * len(u_in)
        self.rank = sum(t.rank for t in types)

    def matmul(self, beta: Tensor) -> Tensor:
        """Q beta for beta (rank, b): (dim, b)."""
        u_out, u_in = (torch.from_numpy(u).to(beta.device) for u in (self.u_out, self.u_in))
        beta = beta.to(self.dtype)
        out = torch.zeros(beta.shape[1], len(u_out), len(u_in), dtype=self.dtype, device=beta.device)
        start = 0
        for t in self.types:
            b = beta[start : start + t.rank].reshape(t.out_mult, t.in_mult, t.units, -1)
            start += t.rank
            units = torch.from_numpy(unit_matrices(t.units)).to(b)
            c = t.dim // t.units
            # (b, columns of U_out, columns of U_in): sum over the components that the type's cells share
            left = u_out[:, t.out_start : t.out_start + t.out_mult * t.dim].reshape(-1, t.out_mult, c, t.units)
            right = u_in[:, t.in_start : t.in_start + t.in_mult * t.dim].reshape(-1, t.in_mult, c, t.units).conj()
            core = torch.einsum("pqus,umn->spmqn", b, units) / t.dim**0.5
            half = torch.einsum("ipcm,spmqn->sicqn", left, core)
            out = out + half.reshape(half.shape[0], half.shape[1], -1) @ right.permute(2, 1, 3, 0).reshape(
                -1, len(u_in)
            )
        return out.reshape(out.shape[0], -1).T

    def rmatmul(self, v: Tensor) -> Tensor:
        """Q^H v for v (dim, b): (rank, b)."""
        u_out, u_in = (torch.from_numpy(u).to(v.device) for u in (self.u_out, self.u_in))
        w = v.to(self.dtype).T.reshape(v.shape[1], len(u_out), len(u_in))
        parts = []
        for t in self.types:
            units = torch.from_numpy(unit_matrices(t.units)).to(w)
            c = t.dim // t.units
            left = u_out[:, t.out_start : t.out_start + t.out_mult * t.dim].conj()
            right = u_in[:, t.in_start : t.in_start + t.in_mult * t.dim]
            core = (left.T @ w @ right).reshape(-1, t.out_mult, c, t.units, t.in_mult, c, t.units)
            core = torch.diagonal(core, dim1=2, dim2=5).sum(-1)  # (b, p, m, q, n)
            parts.append((torch.einsum("spmqn,umn->pqus", core, units) / t.dim**0.5).reshape(t.rank, -1))
        return torch.cat(parts) if parts else v.new_zeros(0, v.shape[1], dtype=self.dtype)

    def dense(self) -> Tensor:
        """Q as a (dim, rank) tensor, filled a few columns at a time."""
        q = torch.empty(self.dim, self.rank, dtype=self.dtype)
        eye = torch.eye(self.rank, dtype=self.dtype)
        for s in range(0, self.rank, 32):
            q[:, s : s + 32] = self.matmul(eye[:, s : s + 32])
        return q

    def arrays(self) -> dict[str, Array]:
        """Both changes of basis and the table of types."""
        table = [[t.dim, t.units, t.out_start, t.out_mult, t.in_start, t.in_mult] for t in self.types]
        shared = {} if self.u_in is self.u_out else {"u_in": self.u_in}
        return {"u_out": self.u_out, "types": np.array(table, np.int64).reshape(-1, 6)} | shared


def from_arrays(kind: str, arrays: dict[str, Array], dtype: np.dtype) -> InvariantSubspace:
    """The subspace with these `arrays()`.

    Raises:
        ValueError: an unknown kind.
    """
    if kind == "orbits":
        return OrbitSubspace(arrays["labels"], arrays.get("sign"), dtype)
    if kind == "dense":
        return DenseSubspace(arrays["q"])
    if kind == "isotypic":
        types = tuple(SharedType(*map(int, row)) for row in arrays["types"])
        return IsotypicSubspace(arrays["u_out"], arrays.get("u_in", arrays["u_out"]), types)
    raise ValueError(f"subspace kind {kind!r} is none of 'orbits', 'dense', 'isotypic'")


@dataclass(frozen=True, eq=False)
class Block:
    """A distinct part of a representation, its invariants, and the coordinates of its copies.

    Args:
        rep: a product of leaves.
        basis: its invariants, with `rank`, `matmul`, `rmatmul`, `dense()` and `sparse()`.
        index: (multiplicity, rep.dim), the coordinates that each copy occupies.
    """

    rep: Rep
    basis: InvariantSubspace
    index: Int[Tensor, "multiplicity dim"]

    @property
    def multiplicity(self) -> int:
        """Number of copies."""
        return len(self.index)

    @property
    def rank(self) -> int:
        """Number of coefficients, multiplicity times the block's rank."""
        return self.multiplicity * self.basis.rank


class Basis:
    """Orthonormal basis Q (dim, rank) of the invariants of a representation; only `dense` forms it.

    Coefficients are ordered block after block, inside a block row-major over (copy, basis vector). Products accept
    vectors or matrices of columns, are differentiable, and return float64 (complex128 for complex groups).
    """

    def __init__(self, rep: Rep, blocks: tuple[Block, ...], certificate: BasisCertificate) -> None:
        self.rep, self.blocks, self.certificate = rep, blocks, certificate
        self.dim = rep.dim
        self.rank = sum(b.rank for b in blocks)
        self.dtype = torch.complex128 if rep.dtype.is_complex else torch.float64

    def __repr__(self) -> str:
        c = self.certificate
        return (
            f"Basis({self.rep}, dim={self.dim}, rank={self.rank}, strategy={c.strategy!r}, residual={c.residual:.1e})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(dim, rank)."""
        return self.dim, self.rank

    def _parts(self) -> Iterator[tuple[Block, slice]]:
        start = 0
        for block in self.blocks:
            yield block, slice(start, start + block.rank)
            start += block.rank

    def matmul(self, beta: Tensor) -> Tensor:
        """Q beta, (rank, ...) -> (dim, ...).

        Raises:
            ValueError: beta's first dimension is not the rank.
        """
        columns = self._columns(beta, self.rank, "rank")
        out = torch.zeros(self.dim, columns.shape[1], dtype=self.dtype, device=beta.device)
        for block, cut in self._parts():
            if not block.rank or not columns.shape[1]:
                continue
            m, n, r = block.multiplicity, block.basis.dim, block.basis.rank
            part = columns[cut].reshape(m, r, -1).transpose(0, 1).reshape(r, -1)
            v = block.basis.matmul(part).reshape(n, m, -1).transpose(0, 1).reshape(m * n, -1)
            out = out.index_copy(0, block.index.reshape(-1).to(beta.device), v)
        return out.reshape(self.dim, *beta.shape[1:])

    def rmatmul(self, v: Tensor) -> Tensor:
        """Q^H v, (dim, ...) -> (rank, ...).

        Raises:
            ValueError: v's first dimension is not the representation's.
        """
        columns = self._columns(v, self.dim, "dimension")
        parts = [columns.new_zeros(0, columns.shape[1])]
        for block, _ in self._parts():
            if block.rank and columns.shape[1]:
                m, n, r = block.multiplicity, block.basis.dim, block.basis.rank
                part = columns[block.index.to(v.device)].transpose(0, 1).reshape(n, -1)
                parts.append(block.basis.rmatmul(part).reshape(r, m, -1).transpose(0, 1).reshape(m * r, -1))
        return torch.cat(parts).reshape(self.rank, *v.shape[1:])

    def _columns(self, x: Tensor, size: int, name: str) -> Tensor:
        if x.ndim == 0 or x.shape[0] != size:
            raise ValueError(f"the basis of {self.rep} has {name} {size}, got a tensor of shape {tuple(x.shape)}")
        if x.is_complex() and not self.dtype.is_complex:
            raise ValueError(
                f"the basis of {self.rep} is real, got a complex tensor: give its real and imaginary parts"
            )
        return x.to(self.dtype).reshape(size, x.shape[1:].numel())

    def project(self, v: Tensor) -> Tensor:
        """Orthogonal projection Q Q^H v onto the invariants, (dim, ...) -> (dim, ...)."""
        return self.matmul(self.rmatmul(v))

    def sparse(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row indices, column indices and values of Q's non-zeros; each block's ordered by (copy, row).

        Raises:
            ValueError: the entries would not fit in memory.
        """
        entries = sum(b.multiplicity * len(self._block_sparse[id(b.basis)][0]) for b in self.blocks if b.rank)
        if (needed := entries * ENTRY_BYTES) > MAX_SPARSE_BYTES:
            raise ValueError(
                f"the basis of {self.rep} of {self.rep.G} has {entries} entries, in {needed} bytes, more than "
                f"{MAX_SPARSE_BYTES}; use a lower tensor power or fewer copies"
            )
        none = torch.zeros(0, dtype=torch.long)
        rows, cols, values = [none], [none], [torch.zeros(0, dtype=self.dtype)]
        for block, cut in self._parts():
            if block.rank:
                r, c, x = self._block_sparse[id(block.basis)]
                m = block.multiplicity
                rows.append(block.index[:, r].reshape(-1))
                cols.append((cut.start + block.basis.rank * torch.arange(m)[:, None] + c).reshape(-1))
                values.append(x.to(self.dtype).repeat(m))
        return torch.cat(rows), torch.cat(cols), torch.cat(values)

    @cached_property
    def _block_sparse(self) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
        return {id(b.basis): b.basis.sparse() for b in self.blocks if b.rank}

    def canonical(self) -> Basis:
        """The same invariants in a basis that depends on them alone (:attr:`InvariantSubspace.canonical`)."""
        return Basis(self.rep, tuple(replace(b, basis=b.basis.canonical) for b in self.blocks), self.certificate)

    def dense(self, max_bytes: int = MAX_BYTES) -> Tensor:
        """Q as a (dim, rank) tensor.

        Args:
            max_bytes: refuse a larger answer.
        Raises:
            ValueError: it names the representation, its shape, the bytes and the alternative.
        """
        size = self.dim * self.rank * (16 if self.dtype.is_complex else 8)
        if size > max_bytes:
            raise ValueError(
                f"the dense basis of {self.rep} of {self.rep.G} has shape ({self.dim}, {self.rank}) and {size} bytes, "
                f"more than max_bytes={max_bytes}; use the lazy rep.solve() (matmul, rmatmul, sparse, blocks), "
                "or raise the limit by rep.solve().dense(max_bytes=...)"
            )
        q = torch.zeros(self.dim, self.rank, dtype=self.dtype)
        for block, cut in self._parts():
            if block.rank:
                part = block.basis.dense().to(self.dtype)
                for copy, index in enumerate(block.index):
                    start = cut.start + copy * block.basis.rank
                    q[index, start : start + block.basis.rank] = part
        return q
