r"""The answer of the solver: an orthonormal basis known block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from rppdyn.basis.certificate import Certificate
from rppdyn.basis.subspace import MAX_SPARSE_BYTES, Subspace

if TYPE_CHECKING:
    from rppdyn.reps import Rep

MAX_BYTES = 2**30
ENTRY_BYTES = 24  # row, column and value


@dataclass(frozen=True, eq=False)
class Block:
    """A distinct part of a representation, its invariants, and where its copies are.

    Args:
        rep: a product of leaves.
        basis: its invariants, with `rank`, `matmul`, `rmatmul`, `dense()` and `sparse()`.
        index: (multiplicity, rep.dim), the coordinates that each copy occupies.
    """

    rep: Rep
    basis: Subspace
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
    """Orthonormal basis Q (dim, rank) of the invariants of a representation, never formed unless asked for.

    Coefficients are ordered block after block, inside a block row-major over (copy, basis vector). Products accept
    vectors or matrices of columns, are differentiable, and return float64 (complex128 for complex groups).
    """

    def __init__(self, rep: Rep, blocks: tuple[Block, ...], certificate: Certificate) -> None:
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
            if not block.rank:
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
            if block.rank:
                m, n, r = block.multiplicity, block.basis.dim, block.basis.rank
                part = columns[block.index.to(v.device)].transpose(0, 1).reshape(n, -1)
                parts.append(block.basis.rmatmul(part).reshape(r, m, -1).transpose(0, 1).reshape(m * r, -1))
        return torch.cat(parts).reshape(self.rank, *v.shape[1:])

    def _columns(self, x: Tensor, size: int, what: str) -> Tensor:
        if x.ndim == 0 or x.shape[0] != size:
            raise ValueError(f"the basis of {self.rep} has {what} {size}, got a tensor of shape {tuple(x.shape)}")
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
            ValueError: they would not fit in memory.
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

    def dense(self, max_bytes: int = MAX_BYTES) -> Tensor:
        """Q as a (dim, rank) tensor.

        Args:
            max_bytes: refuse a larger answer.
        Raises:
            ValueError: naming the representation, its shape, the bytes and what to use instead.
        """
        size = self.dim * self.rank * (16 if self.dtype.is_complex else 8)
        if size > max_bytes:
            raise ValueError(
                f"the dense basis of {self.rep} of {self.rep.G} has shape ({self.dim}, {self.rank}) and {size} bytes, "
                f"more than max_bytes={max_bytes}; use the lazy rep.solve() (matmul, rmatmul, sparse, blocks), "
                "or raise the limit by rep.solve().dense(max_bytes=...)"
            )
        q = torch.zeros(self.dim, self.rank, dtype=self.dtype)
        known: dict[int, Tensor] = {}
        for block, cut in self._parts():
            if block.rank:
                part = known.setdefault(id(block.basis), block.basis.dense().to(self.dtype))
                for copy, index in enumerate(block.index):
                    start = cut.start + copy * block.basis.rank
                    q[index, start : start + block.basis.rank] = part
        return q
