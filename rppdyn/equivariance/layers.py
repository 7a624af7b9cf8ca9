"""A network as a graph of layers, each with the action of the symmetry on its output; a chain is the simplest one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance.actions import Action, Flow
from rppdyn.equivariance.layouts import action_behind
from rppdyn.equivariance.tracing import INPUT, is_one_layer, traced_layers
from rppdyn.nn import MLP, RPPEMLP, RelaxedLinear, gated
from rppdyn.reps import Rep

__all__ = ["OTHERS", "KnownLayer", "Layer", "layers_of", "run_layers"]

Hidden = Flow | Mapping[str, Action | None]

OTHERS = "*"
"""The key of ``hidden`` for all layers that have none of their own; its action is a flow."""


@dataclass(frozen=True)
class Layer:
    """A node of the graph: a function, and how the symmetry acts on its output (None where nobody says).

    Attributes:
        inputs: names of the layers whose values it reads, "input" for the network's input; None for the layer before.
        kind: what it is called in summaries.
    """

    name: str
    function: Callable[..., Tensor]
    action: Action | None = None
    inputs: tuple[str, ...] | None = None
    kind: str = ""

    def __call__(self, *inputs: Tensor) -> Tensor:
        # a layer that works in place would change what the others are judged on
        return self.function(*(x.clone() for x in inputs))


@dataclass(frozen=True)
class KnownLayer(Layer):
    """A layer of which somebody has said how the symmetry acts on its output, and what it reads."""

    action: Action
    inputs: tuple[str, ...]


def layers_of(
    network: Callable[[Tensor], Tensor] | Sequence[Layer],
    rep_out: Action,
    hidden: Hidden | None = None,
    x: Tensor | None = None,
) -> list[KnownLayer]:
    """The layers of a network whose hidden actions are known, in the order of computation.

    * ``RPPEMLP`` and ``EMLP`` come apart into linear layers, bilinear layers and gates: their representations are known.
    * Other modules of torch are traced by ``torch.fx``, with residual sums and tokens, where ``hidden`` is given
      (:mod:`rppdyn.equivariance.tracing` says what one layer is). Modules that ``hidden`` names are one layer each.
    * Nothing says how the hidden layers of ``MLP`` and of other modules transform: ``hidden`` does. A layer without an action
      becomes one with each that reads it, named ``a + b``; without ``hidden`` all of them are, which leaves the end-to-end
      value. Any action may be supposed, and the attribution depends on it; the end-to-end value does not.
    * Sequences of :class:`Layer` are taken as they are, and any other callable is one layer.

    Args:
        rep_out: the action on the network's output.
        hidden: by layer, the action on its output, or None for a module that is one layer whatever is inside; or a flow of
            images, from which the actions on feature maps, tokens and vectors follow
            (:mod:`rppdyn.equivariance.layouts`). A mapping may have such a flow, too, under the key "*".
        x: inputs of the network, on which a module is traced.
    Raises:
        ValueError: no layer has a name given in ``hidden``, a layer reads one that is not before it, a representation belongs
            to another group than ``rep_out``, or a module can't be traced.
    """
    named = {} if hidden is None or isinstance(hidden, Flow) else dict(hidden)
    flow = hidden if isinstance(hidden, Flow) else named.pop(OTHERS, None)
    if flow is not None and not isinstance(flow, Flow):
        raise ValueError(f"hidden[{OTHERS!r}] is {flow}: give a flow of images, or name each layer")
    layers = _with_inputs(_apart(network, None if hidden is None else tuple(named), x))
    names = [layer.name for layer in layers]
    for name, action in named.items():
        if name not in (names if action is None else names[:-1]):
            raise ValueError(f"hidden names {name!r}, and the hidden layers are {', '.join(names[:-1]) or 'none'}")
    layers = [replace(layer, action=named.get(layer.name) or layer.action) for layer in layers]
    layers[-1] = replace(layers[-1], action=rep_out)
    for layer in layers:
        if isinstance(layer.action, Rep) and isinstance(rep_out, Rep) and layer.action.G != rep_out.G:
            raise ValueError(
                f"layer {layer.name} transforms under {layer.action.G} and the output under {rep_out.G}: measure with "
                "representations of the network's own group"
            )
    if flow is not None and x is None:  # as before there were layouts
        layers = [replace(layer, action=layer.action or flow) for layer in layers]
    return _joined(layers, flow, x)


def run_layers(layers: Sequence[KnownLayer], x: Tensor) -> Tensor:
    """The output of a graph of layers."""
    values = {INPUT: x}
    for layer in layers:
        values[layer.name] = layer(*(values[name] for name in layer.inputs))
    return values[layers[-1].name]


def _apart(
    network: Callable[[Tensor], Tensor] | Sequence[Layer], whole: tuple[str, ...] | None, x: Tensor | None
) -> list[Layer]:
    """The layers; of a module that knows no actions, by tracing where any are named."""
    if isinstance(network, RPPEMLP):
        return _blocks_and_head(network, known=not isinstance(network, MLP))
    if isinstance(network, nn.Module) and whole is not None and x is not None and not is_one_layer(network):
        layers = [Layer(t.name, t.function, None, t.inputs, t.kind) for t in traced_layers(network, x, whole)]
    elif isinstance(network, nn.Sequential):
        layers = [Layer(name, child, kind=type(child).__name__) for name, child in network.named_children()]
    elif isinstance(network, Sequence):
        layers = list(network)
    else:
        layers = [Layer("f", network)]
    if not layers:
        raise ValueError("a network of no layers: give at least one")
    return layers


def _with_inputs(layers: list[Layer]) -> list[Layer]:
    before: list[str] = [INPUT]
    resolved = []
    for layer in layers:
        inputs = (before[-1],) if layer.inputs is None else tuple(layer.inputs)
        if layer.name in before:
            raise ValueError(f"two layers are called {layer.name!r} (the input is called {INPUT!r}): rename one")
        if missing := [name for name in inputs if name not in before]:
            raise ValueError(f"layer {layer.name} reads {missing[0]!r}: it must come before, among {', '.join(before)}")
        before.append(layer.name)
        resolved.append(replace(layer, inputs=inputs))
    return resolved


def _blocks_and_head(network: RPPEMLP, known: bool) -> list[Layer]:
    layers: list[Layer] = []
    for i, (block, rep) in enumerate(zip(network.blocks, network.hidden, strict=True)):
        own, wide = (rep, gated(rep)) if known else (None, None)
        made = block.bilinear.rep_in if known and block.bilinear is not None else wide
        layers.append(Layer(f"blocks.{i}.linear", _linear(block.linear), made))
        if block.bilinear is not None:
            layers.append(Layer(f"blocks.{i}.bilinear", block.bilinear, wide))
        layers.append(Layer(f"blocks.{i}.gate", block.gate, own))
    return [*layers, Layer("head", _linear(network.head))]


def _linear(layer: RelaxedLinear | nn.Linear) -> Callable[[Tensor], Tensor]:
    """The layer with its weights assembled once, not at each of many calls."""
    weights = layer.assemble() if isinstance(layer, RelaxedLinear) else (layer.weight, layer.bias)
    return lambda x: F.linear(x, *weights)


@torch.no_grad()
def _joined(layers: list[Layer], flow: Flow | None, x: Tensor | None) -> list[KnownLayer]:
    """Layers without an action become one with each layer that reads them; a flow says which actions follow, at inputs x."""
    known: dict[str, KnownLayer] = {}
    pending: dict[str, Layer] = {}
    actions: dict[str, Action] = {} if flow is None else {INPUT: flow}
    values: dict[str, Tensor] = {} if x is None else {INPUT: x}
    for i, layer in enumerate(layers):
        whole = _composed(layer, pending) if pending else layer
        action, inputs = layer.action, whole.inputs or ()
        if flow is not None and x is not None:
            y = whole(*(values[name] for name in inputs))
            if action is None and all(isinstance(actions[name], Flow) for name in inputs):
                flows = [a for name in inputs if isinstance(a := actions[name], Flow)]
                action = action_behind(whole, [values[name] for name in inputs], flows, y, flow)
            values[layer.name] = y
        if action is None:
            pending[layer.name] = whole
            continue
        if i == len(layers) - 1 or any(layer.name in (other.inputs or ()) for other in layers[i + 1 :]):
            known[layer.name] = KnownLayer(whole.name, whole.function, action, inputs, whole.kind)
        actions[layer.name] = action
    shown = {name: layer.name for name, layer in known.items()}
    return [replace(layer, inputs=tuple(shown.get(n, n) for n in layer.inputs)) for layer in known.values()]


def _composed(layer: Layer, pending: Mapping[str, Layer]) -> Layer:
    """A layer with those that have no action among what it reads, as a function of what these read."""
    parts = {name: pending[name] for name in layer.inputs or () if name in pending}
    if not parts:
        return layer
    inputs = tuple(
        dict.fromkeys(
            n for name in layer.inputs or () for n in (parts[name].inputs if name in parts else (name,)) or ()
        )
    )

    def function(*tensors: Tensor) -> Tensor:
        given = dict(zip(inputs, tensors, strict=True))
        for name, part in parts.items():
            given[name] = part(*(given[n] for n in part.inputs or ()))
        return layer(*(given[n] for n in layer.inputs or ()))

    several = [*parts.values(), layer]
    names = dict.fromkeys(name for part in several for name in part.name.split(" + "))
    kinds = dict.fromkeys(kind for part in several for kind in part.kind.split(" + ") if kind)
    return Layer(" + ".join(names), function, layer.action, inputs, " + ".join(kinds))
