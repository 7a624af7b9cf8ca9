"""Several networks of one shape trained and run as one: their parameters stacked along a leading axis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rppdyn.nn.assembling import Network
from rppdyn.nn.bilinear import Bilinear
from rppdyn.nn.coefficients import check_layouts
from rppdyn.nn.networks import Weights
from rppdyn.nn.pathways import NOT_TRAINED


class Stack(Network):
    r"""Networks that differ in their parameters alone: ten seeds, or the members of an ensemble.

    The parameters of all members are one tensor each, ``(members, ...)``, and no member's numbers depend on another's: one
    optimiser that works element by element (Adam) trains all. Layers take the leading axis as it is; what is done to the
    networks themselves, as assembling their weights, is ``torch.vmap`` over it.

    Everything else they share, bases and prior variances among it, but running means and variances of batch normalisation, of
    which each has its own. What is drawn at construction besides parameters (the pairs
    that a bilinear layer contracts) is the first member's: with indices of their own the members could not share a gather.

    Args:
        nets: networks of the same class, representations and layers; they are copied. :meth:`apply` and :meth:`gradient` call
            their methods of these names with weights that have the leading axis; :meth:`per_member` takes any module.
    Raises:
        ValueError: no networks, or one whose parameters have other names or shapes than the first one's, or whose buffers are
            others (of another group, say, or with other variances); inputs whose first axis is not the members.

    >>> from rppdyn.groups import SO2eR3
    >>> from rppdyn.nn import EMLP
    >>> from rppdyn.reps import V
    >>> nets = [EMLP(V, V, SO2eR3(), hidden=8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    >>> Stack(nets)(torch.ones(3, 5, 3)).shape
    torch.Size([3, 5, 3])
    """

    net: Any  # the first network; of what class, and what can be asked of it, is the user's affair

    def __init__(self, nets: Sequence[nn.Module]):
        super().__init__()
        if not nets:
            raise ValueError("a stack of no networks: give at least one")
        per_net = [dict(net.named_parameters()) for net in nets]
        shapes = {name: p.shape for name, p in per_net[0].items()}
        for index, (net, parameters) in enumerate(zip(nets, per_net, strict=True)):
            if {name: p.shape for name, p in parameters.items()} != shapes:
                raise ValueError(
                    f"network {index} has other parameters than the first: build all with the same arguments"
                )
            if net is not nets[0] and (other := _different_buffer(nets[0], net)):
                raise ValueError(
                    f"network {index} has another {other} than the first: build all with the same arguments"
                )
        self.members = len(nets)
        self.names = tuple(shapes)
        self.stacked = nn.ParameterList(torch.stack([ps[name].detach() for ps in per_net]) for name in self.names)
        self.net = copy.deepcopy(nets[0])  # whose parameters are put in place whenever it is used
        for name in self.names:
            module, leaf = _owner(self.net, name)
            del module._parameters[leaf]
            module.register_buffer(leaf, torch.empty(0), persistent=False)
        self.statistics = _statistics(nets[0])
        for i, name in enumerate(self.statistics):
            self.register_buffer(f"statistics_{i}", torch.stack([net.get_buffer(name) for net in nets]))

    def per_member(self, function: Callable[..., Any], *values: Float[Tensor, "members ..."]) -> Any:
        """The outputs of ``function`` for each member's network and its own values: tensors ``(members, ...)``.

        >>> # stack.per_member(negative_log_prior): (members,)
        >>> # stack.per_member(lambda net, x: net(x), x): (members, ...), of any module
        """
        names = (*self.names, *self.statistics)
        one = lambda ps, *own: call_with(self.net, dict(zip(names, ps, strict=True)), function, *own)  # noqa: E731
        return torch.vmap(one)((*self.stacked, *self._running), *values)

    @property
    def _running(self) -> list[Tensor]:
        """Statistics of batch normalisation, ``(members, ...)``; training changes them in place."""
        return [self.get_buffer(f"statistics_{i}") for i in range(len(self.statistics))]

    def assemble(self) -> Weights:
        """The weights of all members, ``(members, ...)`` each, beside the indices that they share; for :meth:`apply`."""
        return assembled(
            self.net, dict(zip((*self.names, *self.statistics), (*self.stacked, *self._running), strict=True))
        )

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        check_layouts(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _run(self, x: Float[Tensor, "members *batch in"], weights: Weights) -> Float[Tensor, "members *batch out"]:
        return self.net.apply(self._of_members(x), weights)

    def gradient(
        self, x: Float[Tensor, "members *batch in"], weights: Weights | None = None
    ) -> Float[Tensor, "members *batch in"]:
        """Each member's gradient by its own inputs, of networks with one output."""
        return self.net.gradient(self._of_members(x), self.assemble() if weights is None else weights)

    def forward(self, x: Float[Tensor, "members *batch in"]) -> Float[Tensor, "members *batch out"]:
        return self._run(x, self.assemble())

    def _of_members(self, x: Tensor) -> Tensor:
        """Inputs of a stack; others would be spread over its members."""
        if x.ndim < 2 or len(x) != self.members:
            raise ValueError(
                f"inputs of shape {tuple(x.shape)} to a stack of {self.members} networks: the first axis must be the members; "
                f"x.expand({self.members}, *x.shape) gives all the same"
            )
        return x

    def member(self, index: int) -> nn.Module:
        """A network of its own, with the parameters of one member."""
        net = copy.deepcopy(self.net)
        for name, parameters in zip(self.names, self.stacked, strict=True):
            module, leaf = _owner(net, name)
            del module._buffers[leaf]
            module.register_parameter(leaf, nn.Parameter(parameters[index].detach().clone()))
        for name, running in zip(self.statistics, self._running, strict=True):
            net.get_buffer(name).copy_(running[index])
        return net

    def part(self, members: slice) -> Stack:
        """A stack of some of the members, with copies of their parameters; it shares what this one's members share."""
        part = copy.deepcopy(self)
        part.stacked = nn.ParameterList(p.detach()[members].clone() for p in self.stacked)
        for i, running in enumerate(self._running):
            part.register_buffer(f"statistics_{i}", running[members].clone())
        part.members = len(part.stacked[0])
        return part

    def repeated(self, count: int) -> Stack:
        """So many copies of a stack's only member, whose parameters are views of one: for gradients of each datum."""
        assert self.members == 1
        part = copy.copy(self)
        part._modules = dict(self._modules)
        part.stacked = nn.ParameterList(p.detach().expand(count, *p.shape[1:]) for p in self.stacked)
        part._buffers = dict(self._buffers)
        for i, running in enumerate(self._running):
            part.register_buffer(f"statistics_{i}", running.expand(count, *running.shape[1:]))
        part.members = count
        return part

    def extra_repr(self) -> str:
        return f"{self.members} members"


def call_with(net: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *values: Tensor) -> Any:
    """Evaluate a function of a network, and of values, with these tensors for its parameters and buffers of these names."""
    named = {f"net.{name}": tensor for name, tensor in tensors.items()}
    return torch.func.functional_call(_Call(net, function), named, values, tie_weights=False)


class _Call(nn.Module):
    """A function of a network as a module, so that ``functional_call`` reaches the network's parameters."""

    def __init__(self, net: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.net, self.function = net, function

    def forward(self, *values: Tensor) -> Any:
        return self.function(self.net, *values)


def _different_buffer(first: nn.Module, net: nn.Module) -> str | None:
    """A buffer that two networks do not share, but for what is drawn at construction or each has of its own."""
    drawn = {f"{name}.maps" for name, module in first.named_modules() if isinstance(module, Bilinear)}
    drawn |= set(_statistics(first))
    ours, theirs = dict(first.named_buffers()), dict(net.named_buffers())
    for name in sorted((ours.keys() | theirs.keys()) - drawn):
        if name not in ours or name not in theirs or not _is_equal(ours[name], theirs[name]):
            return name
    return None


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape if one.is_meta else torch.equal(one, other)


def _statistics(net: nn.Module) -> tuple[str, ...]:
    """Names of the running means and variances of batch normalisation."""
    norms = [
        (name, module)
        for name, module in net.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    return tuple(f"{name}.{key}" for name, _ in norms for key in ("running_mean", "running_var"))


def _owner(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    module, _, leaf = name.rpartition(".")
    return net.get_submodule(module), leaf


# Assembled weights are nested lists and tuples of tensors, indices and None; weights are what has a gradient.


def assembled(net: Any, tensors: Mapping[str, Tensor]) -> Weights:
    """The weights of networks that differ from ``net`` in these tensors alone, which have a leading axis; so have weights."""
    form: list[Any] = []

    def weights(own: Mapping[str, Tensor]) -> list[Tensor]:
        form[:] = call_with(net, own, lambda net: net.assemble())
        return list(_weights(form))

    return _filled(form, iter(torch.vmap(weights)(dict(tensors))))


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _weights(form: Any) -> Iterator[Tensor]:
    if isinstance(form, list | tuple):
        for inner in form:
            yield from _weights(inner)
    elif _is_weight(form):
        yield form


def _filled(form: Any, weights: Iterator[Tensor]) -> Any:
    if isinstance(form, list | tuple):
        return type(form)(_filled(inner, weights) for inner in form)
    return next(weights) if _is_weight(form) else form


def weights_of(stack: Stack) -> list[nn.Parameter]:
    """A stack's parameters without the variances of its pathways and the units that follow them: what is trained."""
    named = zip(stack.names, stack.stacked, strict=True)
    return [p for name, p in named if name.rpartition(".")[2] not in NOT_TRAINED]
