"""From the scaled coefficients of an equivariant basis to the dense tensor that they describe."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rppdyn.nn.buffers import ExactBuffers

if TYPE_CHECKING:
    from rppdyn.basis import Basis

__all__ = ["CoefficientMap"]


class CoefficientMap(ExactBuffers):
    r"""The linear map ``theta -> Q (s * theta)``, reshaped: scaled coefficients of a basis to a dense tensor.

    :math:`Q` is the orthonormal basis of the invariants, :math:`\beta = s\,\theta` its coefficients. An optimiser
    that moves each parameter by about the learning rate (Adam) would move a weight tied to ``k - 1`` others by only
    :math:`1/\sqrt k` of it if :math:`\beta` itself were stored, so the parameter is :math:`\theta_j = \beta_j / s_j`,

    .. math:: s_j = \Big(\sum_i Q_{ij}^2\, \ell_i\Big)^{-1/2}, \qquad \ell_i = \sum_j Q_{ij}^2,

    one over the root of the mean leverage of the weights that column ``j`` moves. For an orbit of ``k`` tied weights
    the leverage is ``1/k``: ``theta`` is their common value. Where several columns share weights (tensor
    representations) their joint movement has root mean square one. ``s`` is a known constant, so the prior on
    :math:`\beta` is exact.

    Where no row has more than one entry and all of them are ``1`` the product is one gather (orbits of permutations);
    with signs or zero rows, a gather and a product; otherwise, over the non-zero entries, gather, product and
    ``index_add``. All three are plain torch operations, so autograd, ``vmap`` and ``torch.compile`` apply. Outside of
    ``torch.func`` and the compiler the last is two sparse matrix products on a CPU, forward and backward, where torch has MKL:
    they take less than half the time (``benchmarks/layers.py --assembly``, also for other ways).

    Parameters run over the basis vectors of a block first and over its copies inside, the other way round than the solver's
    coefficients, so that gathers read runs of neighbours and a group convolution's parameters are ``k`` whole matrices.

    Args:
        basis: a solved basis (``rep.solve()``).
        shape: of the dense tensor, whose row-major vector the basis describes.
    """

    scale: Tensor
    scale_exact: Tensor
    index: Tensor
    rows: Tensor
    cols: Tensor
    values: Tensor
    values_exact: Tensor
    reached: Tensor
    by_column: Tensor
    values_by_column: Tensor

    def __init__(self, basis: Basis, shape: Sequence[int]):
        super().__init__()
        self.shape = tuple(shape)
        self.size = math.prod(self.shape)
        self.rank = basis.rank
        rows, cols, values = basis.sparse()
        cols = _copies_inside(basis)[cols]
        values = values.to(torch.float64)
        leverage = values.new_zeros(self.size).index_add_(0, rows, values**2)
        scale = values.new_zeros(self.rank).index_add_(0, cols, values**2 * leverage[rows]).rsqrt()
        values = values * scale[cols]
        rounded = values.round()
        if len(values) and (values - rounded).abs().max() < 1e-12:
            values = rounded  # orbits: exactly +-1, so that tied weights are equal to the last bit
        self.register_exact("scale", scale)
        if len(rows) and len(rows.unique()) == len(rows):
            index = torch.zeros(self.size, dtype=torch.int64).scatter_(0, rows, cols)
            factor = values.new_zeros(self.size).scatter_(0, rows, values)
            self.form = "gather" if (factor == 1).all() else "signed gather"
            self.register_buffer("index", index)
            if self.form == "signed gather":
                self.register_exact("values", factor)
        else:
            self.form = "sparse" if len(rows) else "zero"
            if self.form == "sparse":
                self.register_buffer("rows", rows)
                self.register_buffer("cols", cols)
                self.register_exact("values", values)
                self._compress()

    def _compress(self) -> None:
        """Sort the entries by row, and keep what sparse products want to know of them; rows that none reaches are left out."""
        order = (self.rows * self.rank + self.cols).argsort(stable=True)
        self.rows, self.cols, self.values_exact = self.rows[order], self.cols[order], self.values_exact[order]
        self.values = self.values_exact.to(self.values)
        reached, lengths = self.rows.unique_consecutive(return_counts=True)
        by_column = self.cols.argsort(stable=True)
        heights = torch.bincount(self.cols, minlength=self.rank)
        with warnings.catch_warnings():  # torch says once in a process that sparse matrices of compressed rows are new to it
            warnings.simplefilter("ignore")
            torch.empty(1, 1, layout=torch.sparse_csr)
        for name, index in (
            ("reached", reached),
            ("row_starts", _starts(lengths)),
            ("columns", self.cols.int()),
            ("by_column", by_column),
            ("column_starts", _starts(heights)),
            ("rows_by_column", self.rows[by_column].int()),
            ("values_by_column", self.values[by_column]),
        ):
            self.register_buffer(name, index, persistent=False)

    def _derive(self) -> None:
        super()._derive()
        if self.form == "sparse":
            self.values_by_column = self.values[self.by_column]

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        if self.form == "sparse":
            self._compress()

    def forward(self, theta: Float[Tensor, " rank"], onto: Float[Tensor, "..."] | None = None) -> Float[Tensor, "..."]:
        """The dense tensor, added to ``onto`` where that is given."""
        if self.form == "sparse" and self._has_products(theta):
            return _Product.apply(self, theta, onto)
        return self.plain(theta, onto)

    def _has_products(self, theta: Tensor) -> bool:
        return (
            not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and not torch._C._are_functorch_transforms_active()  # in which sparse products are unknown; of this no public name
            and theta.device.type == "cpu"
            and theta.dtype == self.values.dtype
            and theta.dtype in (torch.float32, torch.float64)
            and torch.backends.mkl.is_available()
        )

    def product(self, theta: Float[Tensor, " rank"]) -> Float[Tensor, " reached"]:
        """The rows that are not zero, by a sparse product, which autograd does not follow."""
        shape = len(self.reached), self.rank
        return _sparse(self.row_starts, self.columns, self.values, shape).mv(theta)

    def adjoint(self, dense: Float[Tensor, "..."]) -> Float[Tensor, " rank"]:
        """The transpose of the map, by a sparse product, which autograd does not follow."""
        shape = self.rank, self.size
        Q = _sparse(self.column_starts, self.rows_by_column, self.values_by_column, shape)
        return Q.mv(dense.reshape(-1))

    def plain(self, theta: Float[Tensor, " rank"], onto: Float[Tensor, "..."] | None = None) -> Float[Tensor, "..."]:
        """The same as the map itself, in plain operations."""
        if self.form == "sparse":
            entries = theta.index_select(0, self.cols) * self.values
            base = theta.new_zeros(self.size) if onto is None else onto.reshape(-1)
            return base.index_add(0, self.rows, entries).view(self.shape)
        if self.form == "zero":
            return theta.new_zeros(self.shape) if onto is None else onto
        dense = theta.index_select(0, self.index)
        dense = (dense if self.form == "gather" else dense * self.values).view(self.shape)
        return dense if onto is None else dense + onto

    def beta(self, theta: Float[Tensor, " rank"]) -> Float[Tensor, " rank"]:
        """The coefficients in the orthonormal basis."""
        return theta * self.scale

    def entries(self) -> tuple[Int[Tensor, " entries"], Int[Tensor, " entries"], Float[Tensor, " entries"]]:
        """Rows, columns and values, in float64, of the map from parameters to the dense tensor's vector, ``Q diag(s)``."""
        if self.form == "sparse":
            return self.rows, self.cols, self.values_exact
        if self.form == "zero":
            none = torch.zeros(0, dtype=torch.int64, device=self.scale.device)
            return none, none, self.scale_exact[none]
        rows = torch.arange(self.size, device=self.index.device)
        values = self.values_exact if self.form == "signed gather" else self.scale_exact.new_ones(self.size)
        return rows, self.index, values

    def transpose(self, dense: Float[Tensor, "..."]) -> Float[Tensor, " rank"]:
        """``Q^T`` applied to a dense tensor, in float64: the coefficients of the nearest tensor in the subspace."""
        exact = dense.reshape(-1).to(self.scale_exact)
        beta = exact.new_zeros(self.rank)
        if self.form == "sparse":
            beta = beta.index_add(0, self.cols, exact.index_select(0, self.rows) * self.values_exact)
        elif self.form != "zero":
            beta = beta.index_add(0, self.index, exact * self.values_exact if self.form == "signed gather" else exact)
        return beta / self.scale_exact

    def theta(self, dense: Float[Tensor, "..."]) -> Float[Tensor, " rank"]:
        """The parameters of the nearest tensor in the subspace."""
        return (self.transpose(dense.detach()) / self.scale_exact).to(dense.dtype)

    def initial_std(self, gain: int | float) -> Float[Tensor, " rank"]:
        r"""Standard deviations of ``theta`` that give each output coordinate a variance of about ``gain^2`` (LeCun).

        With independent :math:`\beta_j \sim N(0, \sigma_j^2)` and inputs of unit mean square, output ``i`` of a linear
        map has variance :math:`\sum_j \sigma_j^2 \sum_{r \in i} Q_{rj}^2`; :math:`\sigma_j^{-2}` is the number of
        coefficients that reach the outputs of column ``j``, per output coordinate.
        """
        rows, cols, values = self.entries()
        squares = (values / self.scale_exact[cols]) ** 2
        outputs = rows // (self.size // self.shape[0])
        reach = squares.new_zeros(self.shape[0]).index_add_(0, outputs, squares)
        per_column = squares.new_zeros(self.rank).index_add_(0, cols, squares * reach[outputs])
        return gain * per_column.rsqrt() / self.scale_exact

    def extra_repr(self) -> str:
        return f"{self.rank} -> {'x'.join(map(str, self.shape))}, {self.form}"


class _Product(torch.autograd.Function):
    """A map of form "sparse", added to a dense tensor or to none; linear, so its derivatives are itself and its transpose."""

    @staticmethod
    def forward(ctx, basis, theta, onto):
        ctx.basis, ctx.adds = basis, onto is not None
        base = theta.new_zeros(basis.size) if onto is None else onto.reshape(-1)
        return base.index_add(0, basis.reached, basis.product(theta)).view(basis.shape)

    @staticmethod
    def backward(ctx, gradient):
        again = torch.is_grad_enabled()
        theta = _Adjoint.apply(ctx.basis, gradient) if again else ctx.basis.adjoint(gradient)
        return None, theta, gradient if ctx.adds else None

    @staticmethod
    def jvp(ctx, _, theta, onto):
        return onto if theta is None else _Product.apply(ctx.basis, theta, onto)


class _Adjoint(torch.autograd.Function):
    """The transpose of :class:`_Product`."""

    @staticmethod
    def forward(ctx, basis, dense):
        ctx.basis = basis
        return basis.adjoint(dense)

    @staticmethod
    def backward(ctx, gradient):
        return None, _Product.apply(ctx.basis, gradient, None)

    @staticmethod
    def jvp(ctx, _, dense):
        return _Adjoint.apply(ctx.basis, dense)


def _sparse(starts: Tensor, others: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix of compressed rows, whose making takes microseconds."""
    return torch.sparse_csr_tensor(starts, others, values, shape, check_invariants=False)


def _starts(lengths: Int[Tensor, " n"]) -> Int[Tensor, " n+1"]:
    """Where runs of these lengths begin, and the end, in 32 bits, which sparse products read faster."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()


def _copies_inside(basis: Basis) -> Tensor:
    """New position of each coefficient of a basis: (copy, basis vector) of each block becomes (basis vector, copy)."""
    positions, start = [torch.zeros(0, dtype=torch.int64)], 0
    for block in basis.blocks:
        copies = len(block.index)
        rank = block.basis.rank
        positions.append(start + torch.arange(rank * copies).view(rank, copies).T.flatten())
        start += rank * copies
    return torch.cat(positions)
