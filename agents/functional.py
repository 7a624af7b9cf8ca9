"""Networks of one architecture, N at a time, as functions of N flat parameter vectors, with gradients of losses.

    functions = stacked(nets)                                # the critics of an agent, or the actors of ten
    weights = functions.weights(vectors, trained=True)       # (N, n); assembled once ...
    y = functions(x, weights)                                # ... for all passes, (N, B, i) -> (N, B, o)
    g, other = functions.gradient(loss, weights)             # (N, n), of loss(weights) -> (scalar, other)

Chains of linear layers and point-wise activations are one batched product per layer (`BatchedMLP`); other networks are applied
as one where their buffers are equal, else one after another (`ModuleNetworks`).
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from rppdyn.nn import RPPEMLP
from rppdyn.nn.hidden import Pointwise
from rppdyn.nn.pathways import NOT_TRAINED, named_pathways
from rppdyn.nn.stacking import assembled, call_with
from rppdyn.priors import negative_log_prior


def flat_view(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the vector that the tensors already lie on, in order and without gaps, or None."""
    first = tensors[0]
    address = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or tensor.dtype != first.dtype or not tensor.is_contiguous():
            return None
        address += tensor.nbytes
    size, start = (address - first.data_ptr()) // first.element_size(), first.storage_offset()
    if first.untyped_storage().nbytes() < (start + size) * first.element_size():
        return None  # neighbours by chance
    return first.detach().as_strided((size,), (1,), start)


def flatten_(tensors: Sequence[Tensor]) -> Tensor:
    """Make the tensors views of one vector, without changing their values, and return that vector.

    Nothing is copied where they already are, so calling this before every step costs a few microseconds. Loading a
    state dict, moving to another device or casting may take tensors apart again; the next call puts them together.
    """
    flat = flat_view(tensors)
    if flat is None:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        start = 0
        for tensor in tensors:
            tensor.data = flat[start : start + tensor.numel()].view(tensor.shape)
            start += tensor.numel()
    return flat


MOST_TIES = 16
"""Weights tied to one parameter up to which a compiled gradient gathers them; scattered, threads wait for each other."""


class Assembly:
    r"""The map from parameters to the dense weights of relaxed layers, in the dtype and on the device of a vector.

    Of N networks, vectors (N, n) hold the equivariant pathways' parameters :math:`\theta` of all layers first, then the free
    pathways' :math:`\phi`, the latter in the order of the dense tensors :math:`D = (W_1, b_1, W_2, \dots)`. A dense weight is a
    multiple of one tied parameter plus one of a free one, :math:`D_i = f_i \theta_{\pi(i)} + u_i \phi_i`.

    Args:
        index, factor: :math:`\pi` and f, (m,).
        tied: the number of tied parameters.
        unit: u, (m,), or (N, m) of networks that differ in it; None where there are no free parameters.
        shapes: (out, in) of the layers, each of which has a weight and a bias.
        like: has the dtype and the device.
    """

    def __init__(
        self,
        index: Tensor,
        factor: Tensor,
        tied: int,
        unit: Tensor | None,
        shapes: Sequence[tuple[int, int]],
        like: Tensor,
    ) -> None:
        self.shapes = [shape for m, n in shapes for shape in ((m, n), (m,))]
        self.tied, self.has_free = tied, unit is not None
        ends = list(accumulate(math.prod(shape) for shape in self.shapes))
        self.places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        # None for what there is not, or is 1 throughout
        self.index = index.to(like.device) if tied else None
        self.factor = factor.to(like) if tied and (factor != 1).any() else None
        self.unit = unit.to(like) if unit is not None and (unit != 1).any() else None
        self._ties = _ties(index, factor, tied, self.places, like) if tied else None

    @property
    def ties(self) -> list[_Tie | None] | None:
        """Ties of each dense tensor by itself, where that pays: torch.compile makes loops of them, over runs of neighbours."""
        return self._ties if torch.compiler.is_compiling() else None

    def dense(self, vectors: Tensor) -> list[Tensor]:
        """The dense tensors (N, *shape) of all layers: weight, bias, weight, ..."""
        if self.ties is None:
            flat = self._whole(vectors)
            parts = [flat[:, place] for place in self.places]
        else:
            parts = [self._part(vectors, place, tie) for place, tie in zip(self.places, self.ties, strict=True)]
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _whole(self, vectors: Tensor) -> Tensor:
        free = vectors[:, self.tied :]
        if self.index is None:
            return free if self.unit is None else free * self.unit
        shared = vectors[:, : self.tied].index_select(1, self.index)
        shared = shared if self.factor is None else shared.mul_(self.factor)
        if not self.has_free:
            return shared
        return shared.add_(free) if self.unit is None else shared.addcmul_(free, self.unit)

    def _part(self, vectors: Tensor, place: slice, tie: _Tie | None) -> Tensor:
        free = _times(vectors[:, self.tied :][:, place], self.unit, place) if self.has_free else None
        if tie is None:
            return vectors.new_zeros(len(vectors), place.stop - place.start) if free is None else free
        # in runs until the end, so that a compiled loop's inner one is a run, and contiguous
        shared = tie.gather(vectors[:, : self.tied])
        if self.factor is not None:
            shared = shared * tie.in_runs(self.factor[place])
        return (shared if free is None else shared + tie.in_runs(free)).flatten(1)

    def gradient(self, dense: Sequence[Tensor]) -> Tensor:
        """The gradient by the vectors from those by the dense tensors, each flattened, (N, m): the map transposed."""
        if self.ties is None:
            return self._whole_gradient(torch.cat(list(dense), 1))
        both = zip(self.ties, dense, self.places, strict=True)
        tied = [(tie.tied.start, tie.sum(_times(g, self.factor, place))) for tie, g, place in both if tie is not None]
        parts = [part for _, part in sorted(tied, key=itemgetter(0))]
        if self.has_free:
            parts += [_times(g, self.unit, place) for g, place in zip(dense, self.places, strict=True)]
        return torch.cat(parts, 1)

    def _whole_gradient(self, dense: Tensor) -> Tensor:
        free = dense if self.unit is None else dense * self.unit
        if self.index is None:
            return free
        scaled = dense if self.factor is None else dense * self.factor
        tied = dense.new_zeros(len(dense), self.tied).index_add_(1, self.index, scaled)
        return torch.cat([tied, free], 1) if self.has_free else tied


def _times(part: Tensor, numbers: Tensor | None, place: slice) -> Tensor:
    return part if numbers is None else part * numbers[..., place]


class _Tie(NamedTuple):
    """The tie between the weights of one dense tensor and a range of the parameters, in runs of neighbours.

    Attributes:
        tied: the range.
        run: the length of a run.
        runs: the run of parameters of each run of weights.
        back: the first run of weights of each run of parameters; then the second, with 1, or any, with 0, where there is none;
            and so on.
    """

    tied: slice
    run: int
    runs: Tensor
    back: list[tuple[Tensor, Tensor | None]]

    def gather(self, tied: Tensor) -> Tensor:
        """Gather the weights that are tied to parameters, in runs: (N, m / run, run)."""
        return self.in_runs(tied[:, self.tied]).index_select(1, self.runs)

    def in_runs(self, entries: Tensor) -> Tensor:
        """View entries (..., m) as (..., m / run, run)."""
        return entries.unflatten(-1, (-1, self.run))

    def sum(self, part: Tensor) -> Tensor:
        """Sum over all weights that are tied to a parameter, for each of the range."""
        runs = self.in_runs(part)
        first, *others = (runs.index_select(1, index) for index, _ in self.back)
        for (_, mask), other in zip(self.back[1:], others, strict=True):
            first = first + (other if mask is None else other * mask)
        return materialised(first).flatten(1)


def _ties(index: Tensor, factor: Tensor, tied: int, places: Sequence[slice], like: Tensor) -> list[_Tie | None] | None:
    """Ties by dense tensor, None where nothing ties it; None for all where a tensor has no tie, or too many are tied to one."""
    try:
        ties = [_tie(index[place], factor[place] != 0, like) for place in places]
    except _ScatteredError:
        return None
    ranges = sorted((tie.tied.start, tie.tied.stop) for tie in ties if tie is not None)
    is_whole = [start for start, _ in ranges] + [tied] == [0] + [stop for _, stop in ranges]
    return ties if is_whole else None


class _ScatteredError(Exception):
    """A range of parameters of which some have no weight, or too many."""


def _tie(index: Tensor, used: Tensor, like: Tensor) -> _Tie | None:
    if not used.any():
        return None
    first, last = int(index[used].min()), int(index[used].max())
    offset, count = torch.where(used, index - first, 0), last - first + 1
    run = _run(offset, count)
    runs, used = offset[::run] // run, used.view(-1, run).any(1)  # where a run is not used throughout, its factor is 0
    counts = runs[used].bincount(minlength=count // run)
    if not 0 < counts.min() <= counts.max() <= MOST_TIES:
        raise _ScatteredError
    order = torch.where(used, runs, count).argsort(stable=True)
    begins = counts.cumsum(0) - counts
    back: list[tuple[Tensor, Tensor | None]] = []
    for k in range(int(counts.max())):
        there = counts > k
        index = order[torch.where(there, begins + k, begins)].to(like.device)
        back.append((index, None if there.all() else there.unsqueeze(1).to(like)))
    return _Tie(slice(first, last + 1), run, runs.to(like.device), back)


def _run(index: Tensor, count: int) -> int:
    """The largest run: neighbours that are everywhere tied to neighbours, from a multiple of their number on."""
    for run in range(min(len(index), count), 1, -1):
        if len(index) % run == 0 and count % run == 0:
            heads = index[::run]
            if (heads % run == 0).all() and (index.view(-1, run) == heads.unsqueeze(1) + torch.arange(run)).all():
                return run
    return 1


class Prior(NamedTuple):
    r"""The negative log priors of N vectors, :math:`v^T \Lambda v / 2 + b`.

    Attributes:
        precision: the diagonal of :math:`\Lambda`, (N, n) or (1, n) where networks agree.
        constant: b, (N,).
    """

    precision: Tensor
    constant: Tensor

    def pull(self, vectors: Tensor) -> Tensor:
        r""":math:`\Lambda v`, the gradients."""
        return self.precision * vectors


Loss = Callable[[Any], tuple[Tensor, Any]]
"""From assembled weights to a scalar, a sum over networks, and tensors that are wanted besides."""


class Networks(ABC):
    """N networks as functions of N vectors of their trainable parameters.

    Buffers (bases, pairings) and frozen parameters stay with the networks: they never change during training.

    Args:
        nets: networks with the same arguments.
        names: the trainable parameters in the order of the vectors.

    Attributes:
        parameters: the trainable parameters of all networks, in the order of the flattened vectors.
    """

    def __init__(self, nets: Sequence[RPPEMLP], names: Sequence[str]) -> None:
        self.nets = list(nets)
        self.names = list(names)
        parameters = [dict(net.named_parameters()) for net in self.nets]
        self.parameters = [ps[name] for ps in parameters for name in self.names]
        self._shapes = [parameters[0][name].shape for name in self.names]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._pathways = [pathway for net in self.nets for _, _, pathway in named_pathways(net)]
        self._prior: tuple[Any, Prior] | None = None  # and what it was computed from

    @abstractmethod
    def weights(self, vectors: Tensor, trained: bool = False) -> Any:
        """Assemble the networks' weights at these parameters, (N, n); `trained` where gradients by them are wanted."""

    @abstractmethod
    def __call__(self, x: Tensor, weights: Any) -> Tensor:
        """The networks' outputs (N, B, o), each for inputs of its own, (N, B, i)."""

    @abstractmethod
    def gradient(self, loss: Loss, weights: Any) -> tuple[Tensor, Any]:
        """Return the gradient of a loss by the parameter vectors, (N, n), and what else the loss returns, without its history.

        Args:
            weights: weights that are `trained`; they serve one gradient.
        """

    @abstractmethod
    def prepare(self, like: Tensor) -> Hashable:
        """Do what can't be done while torch compiles, and return what compiled code depends on.

        Args:
            like: has the vectors' dtype and device.
        """

    def vectors(self) -> Tensor:
        """The parameters that the networks have, (N, n)."""
        flat = flat_view(self.parameters)
        if flat is None:
            flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        return flat.view(len(self.nets), -1)

    def current(self) -> Any:
        """The weights at the parameters that the networks have."""
        return self.weights(self.vectors())

    def prior(self) -> Prior:
        r"""The networks' negative log priors.

        Every pathway's coefficients are multiples of its parameters, and its prior is Gaussian.
        Computed anew where a variance was changed.
        """
        like, state = self.parameters[0], self._variances()
        if self._prior is None or self._prior[0] != state:
            vector, parts = torch.ones(sum(self._sizes), dtype=like.dtype, device=like.device), []
            for net in self.nets:
                value = lambda v, net=net: self._at(net, v, negative_log_prior)  # noqa: E731
                parts.append((torch.func.grad(value)(vector), value(torch.zeros_like(vector))))
            precision, constant = map(torch.stack, zip(*parts, strict=True))
            same = bool((precision == precision[0]).all())
            rows = slice(1) if same else slice(None)  # one row is read for all networks, which saves memory
            self._prior = state, Prior(precision[rows], constant)
        return self._prior[1]

    def _variances(self) -> tuple:
        """A key of the present variances and dtype, which differs where one was changed."""
        like = self.parameters[0]
        variances = [p.log_variance for p in self._pathways]
        return like.dtype, like.device, *((s.data_ptr(), s._version) for s in variances)

    def _at(self, net: nn.Module, vector: Tensor, function: Any) -> Any:
        """Evaluate a function of one of the networks with its parameters at a vector."""
        return call_with(net, self._named(vector), function)

    def _named(self, vectors: Tensor) -> dict[str, Tensor]:
        """The parameters in vectors (..., n), by name, (..., *shape)."""
        parts = zip(vectors.split(self._sizes, -1), self._shapes, strict=True)
        return {
            name: part.view(*part.shape[:-1], *shape) for name, (part, shape) in zip(self.names, parts, strict=True)
        }


def stacked(nets: Sequence[RPPEMLP]) -> Networks:
    """Stack networks with the same arguments, as functions of their parameter vectors."""
    return BatchedMLP.of(nets) or ModuleNetworks(nets)


def needs_copies(vectors: Tensor) -> bool:
    """Return whether weights that are parts of several vectors are to be copied, once.

    oneDNN, which takes products below the highest precision on a CPU, would copy them in each of their products.
    """
    return vectors.device.type == "cpu" and torch.get_float32_matmul_precision() != "highest"


def _is_of_variance(name: str) -> bool:
    return name.rpartition(".")[2].removesuffix("_exact") in NOT_TRAINED


def _trainable(net: nn.Module) -> list[str]:
    return [name for name, p in net.named_parameters() if p.requires_grad]


class ModuleNetworks(Networks):
    """Networks of any kind; those whose buffers are equal, drawn ones included but variances and units, are applied as one."""

    def __init__(self, nets: Sequence[RPPEMLP]) -> None:
        super().__init__(nets, _trainable(nets[0]))
        self._compared: tuple[tuple, bool] | None = None
        self._own: dict[str, list[Tensor]] = {}  # units of learned variances, which each network has of its own

    def prepare(self, like: Tensor) -> Hashable:
        return self._as_one(), *self._own

    def _as_one(self) -> bool:
        """Compare the buffers of all networks, anew where one was changed, as by loading a checkpoint."""
        if torch.compiler.is_compiling():
            assert self._compared is not None
            return self._compared[1]
        state = tuple((buffer.data_ptr(), buffer._version) for net in self.nets for buffer in net.buffers())
        if self._compared is None or self._compared[0] != state:
            # with duplicates: in float64 a unit is its own exact copy
            first, *others = buffers = [dict(net.named_buffers(remove_duplicate=False)) for net in self.nets]
            shared = [name for name in first if not _is_of_variance(name)]
            alike = (bs.keys() == first.keys() and all(torch.equal(first[n], bs[n]) for n in shared) for bs in others)
            self._compared = state, bool(others) and all(alike)
            self._own = self._units(buffers) if self._compared[1] else {}
        return self._compared[1]

    def _units(self, buffers: Sequence[dict[str, Tensor]]) -> dict[str, list[Tensor]]:
        """The units in which networks store their parameters, where these differ or, as parameters, may come to."""
        tensors = [dict(net.named_parameters()) | own for net, own in zip(self.nets, buffers, strict=True)]
        units = {name: [own[name] for own in tensors] for name in tensors[0] if name.endswith(".unit")}
        same = lambda us: not isinstance(us[0], nn.Parameter) and all(torch.equal(us[0], u) for u in us)  # noqa: E731
        return {name: us for name, us in units.items() if not same(us)}

    def weights(self, vectors: Tensor, trained: bool = False) -> tuple[Tensor, list]:
        """The vectors, and the weights of all networks as one, or those of each."""
        if torch.compiler.is_compiling():  # a gradient is then one of a function of the vectors
            return vectors, self._assembled(vectors)
        with torch.set_grad_enabled(trained):
            vectors = vectors.detach().requires_grad_(trained)
            return vectors, self._assembled(vectors)

    def _assembled(self, vectors: Tensor) -> list:
        if self._as_one():
            own = {name: torch.stack(units) for name, units in self._own.items()}
            return assembled(self.nets[0], self._named(vectors) | own)
        pairs = zip(self.nets, vectors.unbind(), strict=True)
        return [self._at(net, vector, lambda net: net.assemble()) for net, vector in pairs]

    def __call__(self, x: Tensor, weights: tuple[Tensor, list]) -> Tensor:
        _, parts = weights
        if self._as_one():
            return self.nets[0].apply(x, parts)
        return torch.stack([net.apply(x, w) for net, x, w in zip(self.nets, x, parts, strict=True)])

    def gradient(self, loss: Loss, weights: tuple[Tensor, list]) -> tuple[Tensor, Any]:
        vectors, _ = weights
        if torch.compiler.is_compiling():
            return torch.func.grad(lambda vectors: loss(self.weights(vectors)), has_aux=True)(vectors)
        with torch.enable_grad():
            value, other = loss(weights)
            (gradient,) = torch.autograd.grad(value, vectors)
        return gradient, tree_map(Tensor.detach, other)


class _NoMapError(Exception):
    """An assembly that is not one multiple of a tied parameter plus one of a free one."""


class BatchedMLP(Networks):
    r"""Chains of relaxed linear layers and an activation, all networks in one batched product per layer.

    An `Assembly` puts weights together from their vectors, and takes gradients by weights apart.

    Attributes:
        copied: the answer of `needs_copies`, for torch.compile, which can't ask it.
    """

    copied = False

    def __init__(self, nets: Sequence[RPPEMLP]) -> None:
        trainable = _trainable(nets[0])
        tied = [name for name in trainable if ".equivariant." in name]
        super().__init__(nets, [*tied, *(name for name in trainable if name not in tied)])
        self.activation = nets[0].activation
        exact = copy.deepcopy(nets[0]).cpu().double()
        layers = _linear(exact.assemble())
        self._layers = [(len(weight), weight.shape[1]) for weight, _ in layers]
        if any(bias is None for _, bias in layers):
            raise _NoMapError
        self._tied = sum(self._sizes[: len(tied)])
        self._index, self._factor = self._weight_map(exact, self._tied)
        self._unit, self._units_at = self._units(), self._variances()
        self._assemblies: dict[tuple, Assembly] = {}

    @classmethod
    def of(cls, nets: Sequence[RPPEMLP]) -> BatchedMLP | None:
        """Stack networks whose weights are each a multiple of a tied parameter plus one of a free one; None for others."""
        for net in nets:
            if not isinstance(net, RPPEMLP):
                return None
            if any(block.bilinear is not None or not isinstance(block.gate, Pointwise) for block in net.blocks):
                return None
        try:
            return cls(nets)
        except _NoMapError:
            return None

    def _weight_map(self, exact: nn.Module, tied: int) -> tuple[Tensor, Tensor]:
        """Find which tied parameter each dense weight has, and its factor, by assembling in double precision."""
        n = sum(self._sizes)
        is_tied = torch.arange(n) < tied
        assembled = lambda v: _flat(self._at(exact, v, lambda net: net.assemble()))  # noqa: E731
        with torch.no_grad():
            factor, unit = assembled(is_tied.double()), assembled((~is_tied).double())
            numbered = assembled(torch.arange(1, n + 1, dtype=torch.float64) * is_tied)
            index = torch.where(factor == 0, 0, numbered / factor - 1).round().long()
            if not (index.ge(0).all() and index.lt(max(tied, 1)).all() and n - tied in (0, len(unit))):
                raise _NoMapError
            v = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            expected = factor * v[index] if tied else torch.zeros_like(factor)
            if n > tied:
                expected = expected + unit * v[tied:]
            weights = assembled(v)
        if not torch.allclose(weights, expected, rtol=1e-12, atol=1e-12):
            raise _NoMapError
        return index, factor

    def assembly(self, like: Tensor) -> Assembly:
        """The map in a vector's dtype and on its device."""
        key = like.dtype, like.device
        if key not in self._assemblies:
            unit = self._unit if self._tied < sum(self._sizes) else None
            self._assemblies[key] = Assembly(self._index, self._factor, self._tied, unit, self._layers, like)
        return self._assemblies[key]

    def _units(self) -> Tensor:
        """The units that free parameters are stored in, in float64; one row for each network where they differ."""
        units = torch.stack([self._units_of(net) for net in self.nets])
        return units[0] if (units == units[0]).all() else units

    def _units_of(self, net: nn.Module) -> Tensor:
        parts = []
        for name, size in zip(self.names, self._sizes, strict=True):
            if ".equivariant." not in name:
                pathway = net.get_submodule(name.rpartition(".")[0])
                unit = getattr(pathway, "unit_exact", getattr(pathway, "unit", None))  # whatever it is cast to since
                parts.append(torch.ones(size).double() if unit is None else unit.detach().double().cpu().expand(size))
        return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])

    def prior(self) -> Prior:
        """The networks' negative log priors; units follow variances."""
        self._follow_variances()
        return super().prior()

    def current(self) -> list[Tensor]:
        self._follow_variances()
        return super().current()

    def _follow_variances(self) -> None:
        """Make the map anew where variances, and with them units, were changed."""
        now = self._variances()
        if now != self._units_at:
            self._assemblies.clear()
            self._unit, self._units_at = self._units(), now

    def prepare(self, like: Tensor) -> Hashable:
        self._follow_variances()
        self.copied = needs_copies(like)
        unit = self.assembly(like).unit
        return self.copied, None if unit is None else unit.shape

    def weights(self, vectors: Tensor, trained: bool = False) -> list[Tensor]:
        """Weight, bias, weight, ... of all networks."""
        dense = self.assembly(vectors).dense(vectors)
        if self.copied if torch.compiler.is_compiling() else needs_copies(vectors):
            dense = [part.contiguous() for part in dense]
        return dense

    def __call__(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        for k, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
            x = torch.baddbmm(bias.unsqueeze(1), self.activation(x) if k else x, weight.mT)
        return x

    def gradient(self, loss: Loss, weights: list[Tensor]) -> tuple[Tensor, Any]:
        if torch.compiler.is_compiling():
            gradients, other = torch.func.grad(loss, has_aux=True)(weights)
        else:
            with torch.enable_grad():
                leaves = [weight.detach().requires_grad_() for weight in weights]
                value, other = loss(leaves)
                gradients = torch.autograd.grad(value, leaves)
            other = tree_map(Tensor.detach, other)
        return self.assembly(weights[0]).gradient([gradient.flatten(1) for gradient in gradients]), other


def _linear(weights: list) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of a chain's layers, from what its `assemble` returns."""
    *hidden, head = weights
    return [*(linear for linear, _, _ in hidden), head]


def _flat(weights: list) -> Tensor:
    return torch.cat([t.reshape(-1) for pair in _linear(weights) for t in pair])


def materialised(x: torch.Tensor) -> torch.Tensor:
    """The tensor, which torch.compile is to compute once and in its own shape, on a CPU, and not wherever it is used.

    It does so before as_strided, which takes memory. Elsewhere, where it would be another kernel, that is left to torch.
    """
    return x.as_strided(x.shape, x.stride()) if x.device.type == "cpu" else x
