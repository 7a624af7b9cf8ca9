"""A network as a chain of layers, each with the action of the symmetry on its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance.actions import Action, Flow
from rppdyn.nn import MLP, RPPEMLP, RelaxedLinear, gated
from rppdyn.reps import Rep

__all__ = ["KnownLayer", "Layer", "layers_of"]

Hidden = Flow | Mapping[str, Action]


@dataclass(frozen=True)
class Layer:
    """One link of a chain: a function, and how the symmetry acts on its output (None where nobody says)."""

    name: str
    function: Callable[[Tensor], Tensor]
    action: Action | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x.clone())  # a layer that works in place would change what the others are judged on


@dataclass(frozen=True)
class KnownLayer(Layer):
    """A layer of which somebody has said how the symmetry acts on its output."""

    action: Action


def layers_of(
    network: Callable[[Tensor], Tensor] | Sequence[Layer], rep_out: Action, hidden: Hidden | None = None
) -> list[KnownLayer]:
    """The layers of a network whose hidden actions are known.

    * ``RPPEMLP`` and ``EMLP`` come apart into linear layers, bilinear layers and gates: their representations are known.
    * ``MLP`` and ``torch.nn.Sequential`` come apart too, but nothing says how their hidden layers transform: ``hidden`` may.
      Where it does not, neighbours are one layer, named ``a + b``; without it all of them are, which leaves the end-to-end
      value. Any representation may be supposed, and the attribution depends on it; the end-to-end value does not.
    * Sequences of :class:`Layer` are taken as they are, and any other callable is one layer.

    Args:
        rep_out: the action on the network's output.
        hidden: by layer, the action on its output; or one flow that acts on the output of every layer (feature maps).
    Raises:
        ValueError: no layer has a name given in ``hidden``, or a representation belongs to another group than ``rep_out``.
    """
    layers = _apart(network)
    if isinstance(hidden, Flow):
        layers = [replace(layer, action=hidden) for layer in layers]
    else:
        names = [layer.name for layer in layers]
        for name in hidden or {}:
            if name not in names[:-1]:
                raise ValueError(f"hidden names {name!r}, and the hidden layers are {', '.join(names[:-1]) or 'none'}")
        layers = [replace(layer, action=(hidden or {}).get(layer.name, layer.action)) for layer in layers]
    layers[-1] = replace(layers[-1], action=rep_out)
    for layer in layers:
        if isinstance(layer.action, Rep) and isinstance(rep_out, Rep) and layer.action.G != rep_out.G:
            raise ValueError(
                f"layer {layer.name} transforms under {layer.action.G} and the output under {rep_out.G}: measure with "
                "representations of the network's own group"
            )
    return _joined(layers)


def _apart(network: Callable[[Tensor], Tensor] | Sequence[Layer]) -> list[Layer]:
    if isinstance(network, RPPEMLP):
        return _blocks_and_head(network, known=not isinstance(network, MLP))
    if isinstance(network, nn.Sequential):
        layers = [Layer(name, child) for name, child in network.named_children()]
    elif isinstance(network, Sequence):
        layers = list(network)
    else:
        layers = [Layer("f", network)]
    if not layers:
        raise ValueError("a network of no layers: give at least one")
    return layers


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


def _joined(layers: list[Layer]) -> list[KnownLayer]:
    """Layers without an action become one with the next layer that has one."""
    joined: list[KnownLayer] = []
    pending: list[Layer] = []
    for layer in layers:
        pending.append(layer)
        if layer.action is not None:
            name, function = (layer.name, layer.function) if len(pending) == 1 else _composed(pending)
            joined.append(KnownLayer(name, function, layer.action))
            pending = []
    return joined


def _composed(parts: list[Layer]) -> tuple[str, Callable[[Tensor], Tensor]]:
    def function(x: Tensor) -> Tensor:
        for layer in parts:
            x = layer(x)
        return x

    return " + ".join(layer.name for layer in parts), function
