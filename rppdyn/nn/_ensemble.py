"""Several networks of one architecture as one: their parameters have a leading axis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rppdyn.nn._bilinear import Bilinear
from rppdyn.nn._coefficients import check_layouts
from rppdyn.nn._networks import Network, Weights
from rppdyn.nn._normalisation import BatchNorm
from rppdyn.nn._pathways import VARIANCE_PARAMETERS, BreakingInputs, named_pathways, pathway_path


class Ensemble(Network):
    r"""Networks that differ in their parameters alone: ten seeds, the critics of an agent, the members of a model.

    The parameters of all members are one tensor each, ``(members, ...)``, and no member's numbers depend on another's: one
    optimiser that works element by element (Adam) trains all. Layers assemble and apply weights with a leading axis.

    ``own=True`` copies the networks. ``own=False`` leaves them the owners: their trainable parameters become views of
    :attr:`flat`, ``(members, n)``. Training that vector trains the networks, which are saved and loaded as before.
    :meth:`restack_` follows changes that were made to them. Running statistics of their :class:`~rppdyn.nn.BatchNorm` become
    views of :attr:`running` in the same way, which is None without any.

    Each member has its own running statistics of batch normalisation, and its own prior variances and units of storage where
    these differ. Bases and all other buffers are shared. Published bilinear layers draw at construction which pairs they
    contract. An ensemble that owns its parameters takes the first member's pairs, so that members share one gather. Networks
    that own theirs keep their pairs; if these differ, the networks are applied one after another.

    Args:
        nets: networks of the same class, representations and layers; for :meth:`per_member` alone, any modules.
        own: whether parameters are the ensemble's.
    Raises:
        ValueError: no networks; parameters with other names or shapes than the first network's; other buffers (of another
            group, say, or with other variances); inputs whose first axis is not the members.

    >>> from rppdyn.groups import SO2eR3
    >>> from rppdyn.nn import EMLP
    >>> from rppdyn.reps import V
    >>> nets = [EMLP(V, V, SO2eR3(), hidden=8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    >>> Ensemble(nets)(torch.ones(3, 5, 3)).shape
    torch.Size([3, 5, 3])
    """

    net: Any  # a copy of the first network, whose parameters have the leading axis
    flat: Tensor
    running: Tensor | None = None

    def __init__(self, nets: Sequence[nn.Module], *, own: bool = True):
        super().__init__()
        if not nets:
            raise ValueError("an ensemble of no networks: give at least one")
        each = [dict(net.named_parameters()) for net in nets]
        shapes = {name: p.shape for name, p in each[0].items()}
        modules = dict(nets[0].named_modules())
        running = tuple(f"{name}.running" for name, module in modules.items() if isinstance(module, BatchNorm))
        per_member = _statistics_names(nets[0]) + (running if own else _variance_names(nets[0]))
        pairs = tuple(f"{name}.maps" for name, module in modules.items() if isinstance(module, Bilinear))  # drawn
        for index, (net, parameters) in enumerate(zip(nets, each, strict=True)):
            difference = _different_buffer(nets[0], net, {*per_member, *running, *pairs})
            difference = f"another {difference}" if difference else ""
            if {name: p.shape for name, p in parameters.items()} != shapes:
                difference = "other parameters"
            if difference:
                raise ValueError(f"network {index} has {difference} than the first: build all with the same arguments")
        self.members = len(nets)
        self.names = tuple(shapes)
        self.own = own
        self.statistics = per_member
        shared = {} if own else {id(buffer): buffer for buffer in nets[0].buffers()}
        self.net = copy.deepcopy(nets[0], shared)
        for name in self.names:
            stacked = nn.Parameter(torch.stack([ps[name].detach() for ps in each]), each[0][name].requires_grad)
            module, leaf = _owner(self.net, name)
            module._parameters[leaf] = stacked
        for name in self.statistics:
            module, leaf = _owner(self.net, name)
            module._buffers[leaf] = torch.stack([net.get_buffer(name) for net in nets])
        self._nets = [] if own else [list(nets)]  # in a list, so that torch does not register them as submodules
        self._seen: Any = None
        if not own:
            self.trainable = tuple(name for name in self.names if each[0][name].requires_grad)
            self.sizes = [shapes[name].numel() for name in self.trainable]
            self.shapes = [shapes[name] for name in self.trainable]
            # dictionaries and keys of the networks' tensors: looking these up by name would be an update's second largest work
            self._parameter_places = [_place(net, name, "_parameters") for net in nets for name in self.trainable]
            self._buffer_places = [_place(net, name, "_buffers") for net in nets for name in self.statistics]
            self._running_places = [_place(net, name, "_buffers") for net in nets for name in running]
            self.running_names = running
            self.running_sizes = [nets[0].get_buffer(name).numel() for name in running]
            self.as_one = all(torch.equal(nets[0].get_buffer(n), net.get_buffer(n)) for net in nets for n in pairs)
            self.restack_()

    # -- parameters ------------------------------------------------------------------------------------------------

    @property
    def stacked(self) -> list[Tensor]:
        """The parameters, ``(members, ...)`` each, in the order of :attr:`names`; those of a running ``functional_call``."""
        return [getattr(*_owner(self.net, name)) for name in self.names]

    @property
    def nets(self) -> list[Any]:
        """The networks that own the parameters; empty where the ensemble owns them."""
        return self._nets[0] if self._nets else []

    @property
    def parts(self) -> list[Tensor]:
        """The networks' own trainable parameters, in the order in which they lie on :attr:`flat`."""
        return [parameters[leaf] for parameters, leaf in self._parameter_places]

    def restack_(self) -> bool:
        """Follow the networks after ``load_state_dict`` or ``to``; False if all tensors were in place.

        Trainable parameters become views of one vector again, with the same values; variances and units are read anew.
        """
        parts = self.parts
        buffers = [tensors[leaf] for tensors, leaf in self._buffer_places]
        running = [tensors[leaf] for tensors, leaf in self._running_places]
        owned = [*parts, *running]
        seen = [p.data_ptr() for p in owned], [(b.data_ptr(), b._version) for b in buffers], parts[0].dtype
        if seen == self._seen:
            return False
        self.net.to(parts[0])
        self.flat = flatten_(parts).view(self.members, -1)
        for name, stacked in self.named(self.flat).items():
            self.net.get_parameter(name).data = stacked
        for name in self.statistics:
            module, leaf = _owner(self.net, name)
            module._buffers[leaf] = torch.stack([net.get_buffer(name) for net in self.nets])
        if running:
            self.running = flatten_(running).view(self.members, -1)
            for name, part in self._statistics_of(self.running).items():
                module, leaf = _owner(self.net, name)
                module._buffers[leaf] = part
        self._leaves = [self.net.get_parameter(name) for name in self.trainable] if self.as_one else parts
        self._seen = [p.data_ptr() for p in owned], *seen[1:]
        return True

    def gradient_by_parameters(self, value: Float[Tensor, ""]) -> Float[Tensor, "members n"]:
        """The gradient by :attr:`flat` of a value computed with weights from :meth:`assemble`; for ``own=False``."""
        gradients = torch.autograd.grad(value, self._leaves, materialize_grads=True)
        return torch.cat([g.reshape(self.members if self.as_one else 1, -1) for g in gradients], 1).view_as(self.flat)

    def named(self, vectors: Float[Tensor, "members n"]) -> dict[str, Tensor]:
        """The trainable parameters in vectors, by name, ``(members, ...)`` each."""
        parts = zip(self.trainable, vectors.split(self.sizes, 1), self.shapes, strict=True)
        return {name: part.view(len(vectors), *shape) for name, part, shape in parts}

    def _statistics_of(self, running: Float[Tensor, "members n"] | None) -> dict[str, Tensor]:
        if running is None:
            return {}
        return dict(zip(self.running_names, running.split(self.running_sizes, 1), strict=True))

    # -- weights ---------------------------------------------------------------------------------------------------

    def assemble(
        self, vectors: Float[Tensor, "members n"] | None = None, running: Float[Tensor, "members m"] | None = None
    ) -> Weights:
        """The weights of all members, ``(members, ...)`` each, beside the indices that they share; for :meth:`apply`.

        Args:
            vectors: with ``own=False``, parameters in the place of :attr:`flat`.
            running: with ``vectors``, statistics in the place of :attr:`running`.
        """
        is_flat = not (self.own or torch.compiler.is_compiling()) and vectors is self.flat
        if vectors is None or (is_flat and (running is None or running is self.running)):
            return self.net.assemble() if self.own or self.as_one else [net.assemble() for net in self.nets]
        assemble = lambda net: net.assemble()  # noqa: E731
        if self.as_one:
            return call_with(self.net, self.named(vectors) | self._statistics_of(running), assemble)
        each = zip(self.nets, self._member_tensors(vectors, running), strict=True)
        return [call_with(net, named, assemble) for net, named in each]

    def on_batch(
        self,
        x: Float[Tensor, "members batch in"],
        vectors: Float[Tensor, "members n"],
        running: Float[Tensor, "members m"],
    ) -> tuple[Float[Tensor, "members batch out"], Float[Tensor, "members m"]]:
        """Outputs with the statistics of each member's batch, and the new running statistics; arguments as of `assemble`."""
        x, on_batch = self._require_members(x), lambda net, x: net.on_batch(x)
        if self.as_one:
            return call_with(self.net, self.named(vectors) | self._statistics_of(running), on_batch, x)
        each = zip(self.nets, self._member_tensors(vectors, running), x, strict=True)
        outputs, updated = zip(*(call_with(net, named, on_batch, inputs) for net, named, inputs in each), strict=True)
        return torch.stack(outputs), torch.stack(updated)

    def hidden_weights(self, vectors: Float[Tensor, "members n"]) -> list[Float[Tensor, "members out in"]]:
        """The dense weights of the hidden layers, without normalisation, of these parameters."""
        weights = lambda net: [block.linear.assemble()[0] for block in net.blocks]  # noqa: E731
        return call_with(self.net, self.named(vectors), weights)

    def _member_tensors(self, vectors: Tensor, running: Tensor | None) -> list[dict[str, Tensor]]:
        named = self.named(vectors) | self._statistics_of(running)
        return [{name: part[i] for name, part in named.items()} for i in range(self.members)]

    def _run(self, x: Float[Tensor, "members *batch in"], weights: Weights) -> Float[Tensor, "members *batch out"]:
        if not (self.own or self.as_one):
            return torch.stack([net.apply(x, w) for net, x, w in zip(self.nets, x, weights, strict=True)])
        return self.net.apply(self._require_members(x), weights)

    def gradient(
        self, x: Float[Tensor, "members *batch in"], weights: Weights | None = None
    ) -> Float[Tensor, "members *batch in"]:
        """Each member's gradient by its own inputs, of networks with one output."""
        return self.net.gradient(self._require_members(x), self.assemble() if weights is None else weights)

    def _require_members(self, x: Tensor) -> Tensor:
        """Return inputs of shape (members, ...); refuse others, which broadcasting would spread over the members."""
        if x.ndim < 2 or len(x) != self.members:
            raise ValueError(
                f"inputs of shape {tuple(x.shape)} to an ensemble of {self.members} networks: the first axis must be the "
                f"members; x.expand({self.members}, *x.shape) gives all the same"
            )
        return x

    # -- members ---------------------------------------------------------------------------------------------------

    def per_member(self, function: Callable[..., Any], *values: Float[Tensor, "members ..."]) -> Any:
        """The outputs of ``function`` for each member's network and its own values: tensors ``(members, ...)``.

        ``ensemble.per_member(negative_log_prior)`` has shape ``(members,)``. With ``lambda net, x: net(x)`` and ``x`` it is
        the output of any module.
        """
        running = [self.net.get_buffer(name) for name in self.statistics]  # training changes them in place
        names = (*self.names, *self.statistics)
        evaluate = lambda ps, *inputs: call_with(self.net, dict(zip(names, ps, strict=True)), function, *inputs)  # noqa: E731
        return torch.vmap(evaluate)((*self.stacked, *running), *values)

    def member(self, index: int) -> nn.Module:
        """A network of its own, with the parameters of one member."""
        return self._select(lambda tensor: tensor.detach()[index].clone()).net

    def repeat(self, count: int) -> Ensemble:
        """Copies of an ensemble's only member, with views of its parameters: for the gradients of each datum."""
        assert self.members == 1
        part = self._select(lambda tensor: tensor.detach().expand(count, *tensor.shape[1:]))
        part.members = count
        return part

    def _select(self, select: Callable[[Tensor], Tensor]) -> Ensemble:
        """A copy of the ensemble with `select` applied to each tensor that has the leading axis; other tensors are shared."""
        memo = {id(tensor): tensor for tensor in (*self.net.parameters(), *self.net.buffers())}
        part = copy.copy(self)
        part._modules = {"net": copy.deepcopy(self.net, memo)}
        for name in self.names:
            module, leaf = _owner(part.net, name)
            old = module.get_parameter(leaf)
            module._parameters[leaf] = nn.Parameter(select(old), old.requires_grad)
        for name in self.statistics:
            module, leaf = _owner(part.net, name)
            module._buffers[leaf] = select(module.get_buffer(leaf))
        return part

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        # keys of earlier versions, whose parameters did not have their networks' names
        for key, names in (("stacked.{}", self.names), ("statistics_{}", self.statistics)):
            for i, name in enumerate(names):
                if (old := prefix + key.format(i)) in state_dict:
                    state_dict[f"{prefix}net.{name}"] = state_dict.pop(old)
        check_layouts(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.members} members"


def call_with(net: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *values: Tensor) -> Any:
    """``function(net, *values)``, with the network's parameters and buffers of these names replaced by ``tensors``."""
    named = {f"net.{name}": tensor for name, tensor in tensors.items()}
    return torch.func.functional_call(_Call(net, function), named, values, tie_weights=False)


class _Call(nn.Module):
    """A function of a network as a module, so that ``functional_call`` reaches the network's parameters."""

    def __init__(self, net: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.net, self.function = net, function

    def forward(self, *values: Tensor) -> Any:
        return self.function(self.net, *values)


def flatten_(tensors: Sequence[Tensor]) -> Tensor:
    """Make tensors views of one vector, without changing their values, and return that vector.

    Nothing is copied where they already lie on one, in order and without gaps. Loading a state dict, moving to another device
    or casting may take tensors apart again.
    """
    first, sizes = tensors[0], [tensor.numel() for tensor in tensors]
    starts = [0, *accumulate(sizes)]
    in_place = all(
        tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and tensor.storage_offset() == first.storage_offset() + start
        and tensor.is_contiguous()
        for tensor, start in zip(tensors, starts, strict=False)
    )
    if in_place:
        return first.detach().as_strided((starts[-1],), (1,), first.storage_offset())
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    for tensor, part in zip(tensors, flat.split(sizes), strict=True):
        tensor.data = part.view(tensor.shape)
    return flat


def _different_buffer(first: nn.Module, net: nn.Module, ignored: set[str]) -> str | None:
    """The name of the first buffer in which two networks differ, those in ``ignored`` aside."""
    expected, buffers = dict(first.named_buffers()), dict(net.named_buffers())
    for name in sorted((expected.keys() | buffers.keys()) - ignored):
        a, b = expected.get(name), buffers.get(name)
        if a is None or b is None or a.shape != b.shape or not (a.is_meta or torch.equal(a, b)):
            return name
    return None


def _statistics_names(net: nn.Module) -> tuple[str, ...]:
    """Names of the running means and variances of batch normalisation, and of constant inputs that are drawn."""
    norms = [name for name, m in net.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    drawn = [
        f"{name}.vector" for name, m in net.named_modules() if isinstance(m, BreakingInputs) and "vector" in m._buffers
    ]
    return (*(f"{name}.{key}" for name in norms for key in ("running_mean", "running_var")), *drawn)


def _variance_names(net: nn.Module) -> tuple[str, ...]:
    """Names of the prior variances and units of pathways, buffers that callbacks may change in each network by itself."""
    buffers = dict(net.named_buffers(remove_duplicate=False))  # in float64 a unit is its own exact copy
    names = [f"{pathway_path(layer, name)}.{leaf}" for layer, name, _ in named_pathways(net)
             for leaf in ("log_variance", "unit", "unit_exact")]  # fmt: skip
    return tuple(name for name in names if name in buffers and buffers[name] is not None)


def _place(net: nn.Module, name: str, kind: str) -> tuple[dict[str, Tensor], str]:
    module, leaf = _owner(net, name)
    return getattr(module, kind), leaf


def _owner(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    module, _, leaf = name.rpartition(".")
    return net.get_submodule(module), leaf


def weights_of(ensemble: Ensemble) -> list[Tensor]:
    """The parameters of an ensemble that are trained: all but its pathways' variances and the units that follow them."""
    named = zip(ensemble.names, ensemble.stacked, strict=True)
    return [p for name, p in named if name.rpartition(".")[2] not in VARIANCE_PARAMETERS]
