"""From the scaled coefficients of an equivariant basis to the dense tensor that they describe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from rppdyn.basis import Basis


class ExactBuffers(nn.Module):
    """A module whose structural constants survive ``float()``, ``half()`` and ``double()`` without rounding.

    ``register_exact("values", t)`` keeps ``values_exact`` in float64, saved in the state dict, and derives ``values`` in
    the module's dtype, which is what forward passes read. Casting to float32 and back, or building in float32 and
    calling ``double()``, therefore loses nothing: ``net.double()`` is equivariant to 1e-12.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, str | None] = {}

    def register_exact(self, name: str, value: Tensor, *, working_copy: bool = True) -> None:
        """Keep ``value`` in float64; with ``working_copy``, under ``<name>_exact`` beside a cast one under ``name``."""
        exact = value.detach().to(torch.float64)
        if working_copy:
            self.register_buffer(f"{name}_exact", exact)
            self.register_buffer(name, exact.to(torch.get_default_dtype()), persistent=False)
            self._exact[f"{name}_exact"] = name
        else:
            self.register_buffer(name, exact)
            self._exact[name] = None

    def drop_exact(self, name: str) -> Tensor:
        """Keep ``name`` no longer, neither in float64 nor cast; returns what it was in float64."""
        buffer = f"{name}_exact" if f"{name}_exact" in self._exact else name
        working, value = self._exact.pop(buffer), self.get_buffer(buffer)
        del self._buffers[buffer]
        if working is not None:
            del self._buffers[working]
        return value

    def _apply(self, fn, recurse=True):
        exact = {name: self.get_buffer(name) for name in self._exact if name in self._buffers}
        super()._apply(fn, recurse)
        for name, value in exact.items():
            self._buffers[name] = value.to(self.get_buffer(name).device)  # moved like the others, but not cast
        self._derive()
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._derive()

    def _derive(self) -> None:
        for name, working in self._exact.items():
            if working is not None:
                exact, old = self.get_buffer(name), self.get_buffer(working)
                self._buffers[working] = exact.to(device=old.device, dtype=old.dtype)


# -- from the scaled coefficients of an equivariant basis to the dense tensor that they describe -------------------------------


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
    with signs or zero rows, a gather and a product; otherwise gather, product and ``index_add`` over the non-zero
    entries. All three are plain torch operations, so autograd, ``vmap`` and ``torch.compile`` apply; measured against
    sparse CSR products, scatter_add, a loop over blocks and a custom backward they were the fastest that worked under all
    three (``benchmarks/layers.py --assembly``).

    Parameters run over the basis vectors of a block first and over its copies inside, the other way round than the solver's
    coefficients, so that gathers read runs of neighbours and a group convolution's parameters are ``k`` whole matrices.

    Args:
        basis: a solved basis (``rep.solve()``).
        shape: shape of the dense tensor, whose row-major vector the basis describes.
    """

    scale: Tensor
    scale_exact: Tensor
    index: Tensor
    rows: Tensor
    cols: Tensor
    values: Tensor
    values_exact: Tensor

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
            spread = (
                torch.arange(self.size) % self.rank
            )  # where there is no entry: sums of zeros into one place take long
            index = spread.scatter_(0, rows, cols)
            factor = values.new_zeros(self.size).scatter_(0, rows, values)
            self.form = "gather" if (factor == 1).all() else "signed gather"
            self.register_buffer("index", index)
            if self.form == "signed gather":
                self.register_exact("values", factor)
        else:
            self.form = "sparse" if len(rows) else "zero"
            if self.form == "sparse":
                order = (rows * self.rank + cols).argsort(stable=True)
                self.register_buffer("rows", rows[order])
                self.register_buffer("cols", cols[order])
                self.register_exact("values", values[order])

    def forward(self, theta: Float[Tensor, " rank"], onto: Float[Tensor, "..."] | None = None) -> Float[Tensor, "..."]:
        """The dense tensor, added to ``onto`` where that is given."""
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


def _copies_inside(basis: Basis) -> Tensor:
    """New position of each coefficient of a basis: (copy, basis vector) of each block becomes (basis vector, copy)."""
    positions, start = [torch.zeros(0, dtype=torch.int64)], 0
    for block in basis.blocks:
        copies = len(block.index)
        rank = block.basis.rank
        positions.append(start + torch.arange(rank * copies).view(rank, copies).T.flatten())
        start += rank * copies
    return torch.cat(positions)
