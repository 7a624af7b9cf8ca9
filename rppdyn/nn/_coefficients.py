"""Buffers that casts do not round, and the map from scaled coefficients of an equivariant basis to a dense tensor."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from rppdyn.basis import Basis


def on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """Let a module's constructor compute on the CPU, and move the module to torch's default device at its end.

    Solving bases and drawing weights need numbers, which `torch.device("meta")` does not have.
    """

    @functools.wraps(init)
    def construct(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        device = torch.get_default_device()
        if device.type == "cpu":
            return init(self, *args, **kwargs)
        with torch.device("cpu"):
            init(self, *args, **kwargs)
        self.to(device)

    return construct


def _fill_parts(module: nn.Module, _: Any) -> None:
    """Move constants that were built on meta to the weights' device, once ``load_state_dict(assign=True)`` gave weights one."""
    tensors = [*module.parameters(), *module.buffers()]
    devices = [t.device for t in tensors if not t.is_meta]
    for part in module.modules() if 0 < len(devices) < len(tensors) else ():
        if isinstance(part, ExactBuffers):
            part._buffers |= {k: v.to(devices[0]) for k, v in part._constants.items() if part.get_buffer(k).is_meta}
            part._derive()


class ExactBuffers(nn.Module):
    """A module whose constants survive ``float()``, ``half()`` and ``double()`` without rounding, and stay out of state dicts.

    ``register_exact("values", t)`` keeps ``values_exact`` in float64, saved in the state dict, and derives ``values`` in
    the module's dtype, which is what forward passes read. Casting to float32 and back, or building in float32 and
    calling ``double()``, therefore loses nothing: ``net.double()`` is equivariant to 1e-12.

    ``register_constant`` does the same for tensors that follow from the module's arguments: bases, pairings, indices. A state
    dict does not hold them. It holds the ``layout`` of ``register_layout`` instead: the representations in words, and numbers
    that differ where the constants differ. Weights of another layout are refused. State dicts of earlier versions hold the
    constants themselves: these are compared, and coefficients of another basis of the same space are converted on loading.
    """

    words = "of other representations"
    hint = ""
    """Advice that ends the message which refuses weights of another layout."""
    basis_names: tuple[str, ...] = ()
    """Names of the constants that make up a basis, as in state dicts of earlier versions."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = on_cpu(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_fill_parts)
        self._exact: dict[str, str | None] = {}
        self._constants: dict[str, Tensor] = {}

    def register_exact(self, name: str, value: Tensor, *, working_copy: bool = True, persistent: bool = True) -> None:
        """Keep ``value`` in float64; with ``working_copy``, under ``<name>_exact`` beside a cast one under ``name``."""
        exact = value.detach().to(torch.float64)
        self.register_buffer(f"{name}_exact" if working_copy else name, exact, persistent=persistent)
        if working_copy:
            self.register_buffer(name, exact.to(torch.get_default_dtype()), persistent=False)
        self._exact[f"{name}_exact" if working_copy else name] = name if working_copy else None

    def register_constant(self, name: str, value: Tensor | None, *, working_copy: bool = True) -> None:
        """Keep a tensor that follows from the module's arguments; floating-point ones as by :meth:`register_exact`."""
        if value is None:
            self.register_buffer(name, None, persistent=False)
        elif value.is_floating_point():
            self.register_exact(name, value, working_copy=working_copy, persistent=False)
            buffer = f"{name}_exact" if working_copy else name
            self._constants[buffer] = self.get_buffer(buffer)
        else:
            self.register_buffer(name, value, persistent=False)
            self._constants[name] = value

    def register_layout(self, words: str, numbers: Iterable[float]) -> None:
        """Put the layout into the state dict, as the bytes of a text."""
        line = LAYOUT_SEPARATOR.join([words, *(f"{x:.10g}" for x in numbers)])
        self._constants["layout"] = torch.tensor(list(line.encode()), dtype=torch.uint8)
        self.register_buffer("layout", self._constants["layout"])

    def take_layout(self) -> list[float]:
        """Remove the layout and return its numbers, for the layout of a network that this module is a part of."""
        del self._buffers["layout"]
        return _read_layout(self._constants.pop("layout"))[1]

    def drop_exact(self, name: str) -> Tensor:
        """Remove ``name``, exact and working copy; returns the exact one."""
        buffer = f"{name}_exact" if f"{name}_exact" in self._exact else name
        working, value = self._exact.pop(buffer), self.get_buffer(buffer)
        self._constants.pop(buffer, None)
        del self._buffers[buffer]
        if working is not None:
            del self._buffers[working]
        return value

    def _apply(self, fn, recurse=True):
        exact = {name: self.get_buffer(name) for name in self._exact if name in self._buffers} | self._constants
        super()._apply(fn, recurse)
        for name, value in exact.items():
            device = self.get_buffer(name).device
            if not value.is_meta or device.type == "meta":  # what was on meta comes with a state dict
                self._buffers[name] = value.to(device)  # moved like the others, but not cast
        self._derive()
        return self

    def check_layout(self, state_dict: Mapping[str, Tensor], prefix: str) -> None:
        """Refuse the state dict of another layout; constants that an earlier version saved are compared."""
        layout, where = self._constants.get("layout"), prefix.rstrip(".") or type(self).__name__
        words, numbers = (self.words, None) if layout is None else _read_layout(layout)
        saved = state_dict.get(f"{prefix}layout")
        if numbers is not None and saved is not None:
            saved_words, saved_numbers = _read_layout(saved)
            if not _are_close(saved_numbers, numbers):
                raise ValueError(
                    f"{where} is {words}, and the state dict has weights of {saved_words}: give it to a network with these "
                    "representations, in this order"
                )
        names = {*self._constants, *self.basis_names}
        if not self.takes_constants({name: t for name in names if (t := state_dict.get(prefix + name)) is not None}):
            raise ValueError(
                f"{where} is {words}, and the state dict has weights of another layout, by the basis that it holds: give it to "
                "a network with the representations that it was saved from"
            )

    def takes_constants(self, saved: Mapping[str, Tensor]) -> bool:
        """Check whether constants of an earlier version's state dict equal this module's."""
        return all(
            t.shape == self._constants[name].shape
            and bool(torch.allclose(t.double().cpu(), self._constants[name].double()))
            for name, t in saved.items()
            if name != "layout"
        )

    def saved_basis(self, state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The tensors of a basis in a state dict of an earlier version; empty for a newer one."""
        return {name: state_dict[prefix + name] for name in self.basis_names if prefix + name in state_dict}

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self.check_layout(state_dict, prefix)
        for name in {*self._constants, *self.basis_names}:
            state_dict.pop(prefix + name, None)
        if (layout := self._buffers.get("layout")) is not None:
            state_dict[f"{prefix}layout"] = layout
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._derive()

    def _derive(self) -> None:
        for name, working in self._exact.items():
            exact = self.get_buffer(name)
            if working is not None and not exact.is_meta:
                old = self.get_buffer(working)
                self._buffers[working] = exact.to(device=exact.device if old.is_meta else old.device, dtype=old.dtype)


LAYOUT_SEPARATOR = "\n"
LAYOUT_TOLERANCE = 1e-6
"""Largest difference between numbers of one layout, relative and absolute."""


def check_layouts(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str = "") -> None:
    """Refuse a state dict in which any part of a module has another layout, before any part is loaded."""
    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, ExactBuffers)]
    try:
        for name, part in parts:
            part.check_layout(state_dict, f"{prefix}{name}." if name else prefix)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *{part.hint: None for _, part in parts if part.hint}])) from None


def _read_layout(line: Tensor) -> tuple[str, list[float]]:
    words, *numbers = bytes(line.tolist()).decode().split(LAYOUT_SEPARATOR)
    return words, [float(x) for x in numbers]


def _are_close(first: Sequence[float], second: Sequence[float]) -> bool:
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=LAYOUT_TOLERANCE, abs_tol=LAYOUT_TOLERANCE)
        for a, b in zip(first, second, strict=True)
    )


def layout_number(values: Tensor, *places: Tensor) -> float:
    """A fingerprint of values at places (indices, one tensor per axis): the sum of the values, each weighted by its place."""
    weights = (torch.cos(math.sqrt(k + 2) * p.double() + k) for k, p in enumerate(places))
    return float(functools.reduce(torch.mul, weights, values.double()).sum())


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

    Where no row has more than one entry and all entries are ``1`` (orbits of permutations) the product is one gather; with
    signs or zero rows, a gather and a product; otherwise gather, product and ``index_add`` over the non-zero entries. Autograd,
    ``vmap`` and ``torch.compile`` apply to all three, which were faster than sparse CSR products, scatter_add and a loop over
    blocks (``benchmarks/layers.py --assembly``). Gathers have a gradient that gathers, too (:class:`TiedGather`).

    Parameters run over the basis vectors of a block first and over its copies inside, the other way round than the solver's
    coefficients, so that gathers read runs of neighbours and a group convolution's parameters are ``k`` whole matrices.

    Args:
        basis: a solved basis (``rep.solve()``).
        shape: shape of the dense tensor, whose row-major vector the basis describes.
    """

    basis_names = ("scale_exact", "index", "rows", "cols", "values_exact")

    scale: Tensor
    scale_exact: Tensor
    index: Tensor
    rows: Tensor
    cols: Tensor
    values: Tensor
    values_exact: Tensor
    index_of_runs: Tensor
    ties: Tensor | None

    def __init__(self, basis: Basis, shape: Sequence[int]):
        super().__init__()
        self.words = f"a map of {basis.rep} of {basis.rep.G}"
        self.shape = tuple(shape)
        self.size = math.prod(self.shape)
        self.rank = basis.rank
        rows, cols, values = basis.canonical().sparse()
        cols = _copies_inside(basis)[cols]
        values = values.to(torch.float64)
        leverage = values.new_zeros(self.size).index_add_(0, rows, values**2)
        scale = values.new_zeros(self.rank).index_add_(0, cols, values**2 * leverage[rows]).rsqrt()
        values = values * scale[cols]
        rounded = values.round()
        if len(values) and (values - rounded).abs().max() < 1e-12:
            values = rounded  # orbits: exactly +-1, so that tied weights are equal to the last bit
        order = (rows * self.rank + cols).argsort(stable=True)
        self.number = layout_number(values, rows, cols)
        rows, cols, values = rows[order], cols[order], values[order]
        # the map from parameters to the tensor, in the form that is fastest
        self.register_constant("scale", scale)
        if len(rows) and len(rows.unique()) == len(rows):
            # rows without an entry are spread over the parameters: sums into one place take long
            spread = torch.arange(self.size) % self.rank
            factor = values.new_zeros(self.size).scatter_(0, rows, values)
            self.form = "gather" if (factor == 1).all() else "signed gather"
            index = spread.scatter_(0, rows, cols)
            self.register_constant("index", index)
            self.run = _longest_run(index, self.rank)
            runs, used = index[:: self.run] // self.run, (factor != 0).view(-1, self.run).any(1)
            self.register_constant("index_of_runs", runs)
            self.register_constant("ties", _ties(runs, used, self.rank // self.run))
            if self.form == "signed gather":
                self.register_constant("values", factor)
        else:
            self.form = "sparse" if len(rows) else "zero"
            if self.form == "sparse":
                self.register_constant("rows", rows)
                self.register_constant("cols", cols)
                self.register_constant("values", values)

    def forward(
        self, theta: Float[Tensor, "*members rank"], onto: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "..."]:
        """The dense tensor, added to ``onto`` where that is given; several members' have a leading axis."""
        shape = (*theta.shape[:-1], *self.shape)
        if self.form == "sparse":
            entries = theta.index_select(-1, self.cols) * self.values
            size = (*theta.shape[:-1], self.size)
            base = theta.new_zeros(size) if onto is None else onto.expand(shape).reshape(size)
            return base.index_add(-1, self.rows, entries).view(shape)
        if self.form == "zero":
            return theta.new_zeros(shape) if onto is None else onto
        runs = theta.view(*theta.shape[:-1], -1, self.run)
        is_learned = theta.requires_grad and torch.is_grad_enabled() and not torch.jit.is_tracing()
        # not in forward mode, for which TiedGather would need a jvp, and torch.compile refuses those
        if self.ties is not None and is_learned and torch.autograd.forward_ad._current_level < 0:
            runs = TiedGather.apply(runs, self.index_of_runs, self.ties)
        else:
            runs = runs.index_select(-2, self.index_of_runs)
        # in runs until the end, so that the inner loop of compiled code is one contiguous run
        if self.form == "signed gather":
            runs = runs.mul_(self.values.view(-1, self.run))
        if onto is not None:
            runs = runs + onto.expand(shape).reshape(runs.shape)
        return runs.view(shape)

    def takes_constants(self, saved: Mapping[str, Tensor]) -> bool:
        """Check whether a saved basis spans the same maps: coefficients of another basis of them can be converted."""
        if not saved:
            return True
        rows, cols, values, scale = _saved_entries(saved)
        if len(scale) != self.rank or (len(rows) and (rows.max() >= self.size or cols.max() >= self.rank)):
            return False
        theta = torch.cos(torch.arange(self.rank)).double() / scale
        w = torch.zeros(self.size, dtype=torch.float64).index_add_(0, rows, values * theta[cols])
        inside = self.transpose(w.to(self.scale_exact.device)).square().sum().cpu()
        return bool(torch.isclose(w.square().sum(), inside, rtol=LAYOUT_TOLERANCE))

    def from_saved(self, saved: Mapping[str, Tensor], theta: Tensor) -> Tensor:
        """Convert parameters (*members, rank) in a saved basis to those of this one, for the same dense tensor."""
        saved_entries, entries = _saved_entries(saved), _saved_entries(self._constants)
        if all(a.shape == b.shape and torch.allclose(a, b) for a, b in zip(saved_entries, entries, strict=True)):
            return theta
        rows, cols, values, _ = (t.to(theta.device) for t in saved_entries)
        dense = torch.zeros(*theta.shape[:-1], self.size, dtype=torch.float64, device=theta.device)
        dense.index_add_(-1, rows, theta.double()[..., cols] * values)
        each = [self.theta(tensor.to(self.scale_exact)) for tensor in dense.view(-1, self.size)]
        return torch.stack(each).view_as(theta).to(theta)

    def beta(self, theta: Float[Tensor, "*members rank"]) -> Float[Tensor, "*members rank"]:
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
        rows, cols, values = self.entries()
        exact = dense.reshape(-1).to(self.scale_exact)
        beta = exact.new_zeros(self.rank).index_add(0, cols, exact.index_select(0, rows) * values)
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


def _saved_entries(saved: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, columns, values and scales of a saved basis, on the CPU."""
    tensors = {name: t.detach().cpu() for name, t in saved.items()}
    scale = tensors.get("scale_exact", torch.zeros(0)).double()
    if "rows" in tensors:
        return tensors["rows"], tensors["cols"], tensors["values_exact"].double(), scale
    cols = tensors.get("index", torch.zeros(0, dtype=torch.int64))
    values = tensors.get("values_exact", torch.ones(len(cols))).double()
    rows = values.nonzero().squeeze(1)
    return rows, cols[rows], values[rows], scale


MAX_TIES = 16
"""Most weights per parameter whose gradients are gathered; with more they are scattered, and compiled threads wait in turn."""


class TiedGather(torch.autograd.Function):
    r"""Gather weights from the parameters that they are tied to, with a gradient that gathers, too.

    Torch's own gradient of a gather scatters, one addition after the other. Where at most k weights are tied to each parameter
    it is a sum of k gathers, :math:`\bar\theta_j = \sum_{i=1}^k \bar w_{t_i(j)}`. For a parameter with fewer weights
    :math:`t_i(j)` is the place of a weight that is always zero, and its gradient with it. Parameters and weights come in runs
    of neighbours (the copies of a representation), so that inner loops are contiguous.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        theta: Float[Tensor, "*members rank run"], index: Int[Tensor, " runs"], ties: Int[Tensor, "k rank"]
    ) -> Float[Tensor, "*members runs run"]:
        return theta.index_select(-2, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        first, *rest = ctx.saved_tensors[0].unbind()
        total = gradient.index_select(-2, first)
        for index in rest:
            total += gradient.index_select(-2, index)
        if total.device.type == "cpu":  # as_strided needs the sum in memory: it is computed once, and in runs
            total = total.as_strided(total.shape, total.stride())
        return total, None, None


TiedGather.forward.__signature__ = inspect.signature(TiedGather.forward)  # type: ignore[attr-defined]  # torch asks at each call


def _longest_run(index: Tensor, rank: int) -> int:
    """The largest r such that each aligned run of r weights is tied to an aligned run of r parameters."""
    for run in range(min(len(index), rank), 1, -1):
        if len(index) % run == 0 and rank % run == 0:
            heads = index[::run]
            if (heads % run == 0).all() and (index.view(-1, run) == heads.unsqueeze(1) + torch.arange(run)).all():
                return run
    return 1


def _ties(runs: Tensor, used: Tensor, count: int) -> Tensor | None:
    """The runs of weights tied to each run of parameters, (k, count), filled up to k with an unused run.

    None where k is more than `MAX_TIES`, or where no run is unused and filling up is needed.
    """
    counts = runs[used].bincount(minlength=count)
    k = int(counts.max()) if count else 0
    if not 0 < k <= MAX_TIES or (counts.min() < k and used.all()):
        return None
    order = torch.where(used, runs, count).argsort(stable=True)  # by parameter; unused ones at the end
    places = (counts.cumsum(0) - counts) + torch.arange(k).unsqueeze(1)
    return torch.where(torch.arange(k).unsqueeze(1) < counts, order[places.clamp(max=len(order) - 1)], order[-1])


def _copies_inside(basis: Basis) -> Tensor:
    """New position of each coefficient of a basis: (copy, basis vector) of each block becomes (basis vector, copy)."""
    positions, start = [torch.zeros(0, dtype=torch.int64)], 0
    for block in basis.blocks:
        copies, rank = len(block.index), block.basis.rank
        positions.append(start + torch.arange(rank * copies).view(rank, copies).T.flatten())
        start += rank * copies
    return torch.cat(positions)
