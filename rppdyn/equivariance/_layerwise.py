r"""Layers in which a network loses its symmetry: the equivariance error as a sum of contributions of the layers.

A network is a graph of layers in the order of computation; a chain is the simplest. Let :math:`y_0 = x`, let :math:`y_i` be the
value of layer i and :math:`\rho_i` act on it. Compute the layers up to i, transform each value that later layers read by its
own action, and compute the rest:

.. math:: T_i(g) = \rho_N(g)^{-1} F_i(\rho_j(g) y_j : j \le i)

goes from :math:`\rho_N(g)^{-1} f(\rho_0(g) x)` at i = 0 to :math:`f(x)` at i = N, and two neighbours are equal if the layer
between them is equivariant. So :math:`C_i = T_{i-1} - T_i` are the contributions of the layers: they add up to the error end to
end. Their derivatives at the identity are :math:`C_i = J_i L f_i`, the published decomposition of the Lie derivative: for a
layer with inputs :math:`p_1, p_2, \dots` (a residual sum has two),

.. math:: L f_i = \sum_k \partial_k f_i\, d\rho_{p_k} y_{p_k} - d\rho_i\, y_i,

and :math:`J_i` is the derivative of the output by :math:`y_i` along all paths. (With :math:`e_i` the velocity of :math:`y_i`
under the transformed input less :math:`d\rho_i y_i`, the chain rule is :math:`e_i = \sum_k \partial_k f_i\, e_{p_k} + L f_i`.)

A contribution is a vector in the space of the output. Contributions of different layers may cancel: their sizes don't add up,
but the vectors do, and so do their *shares*, :math:`\langle C_i, L\rangle / \langle L, L\rangle` with L the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Float, Inexact
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance._lie import (
    Action,
    Flow,
    act,
    check_actions,
    check_finite,
    derivative,
    generator_names,
    inverse,
    lie_derivative,
    tangents,
)
from rppdyn.equivariance._tracing import (
    INPUT,
    Layer,
    ancestors,
    is_one_layer,
    layer_values,
    output_action,
    trace_layers,
)
from rppdyn.nn import MLP, RPPEMLP, gated
from rppdyn.reps import Rep

Hidden = Flow | Mapping[str, Action | None]

DEFAULT_KEY = "*"
"""The key of ``hidden`` for layers without a key of their own; its action is a flow."""


@dataclass(frozen=True)
class KnownLayer(Layer):
    """A layer whose inputs, and the action of the symmetry on its output, are known."""

    action: Action
    inputs: tuple[str, ...]


def layers_of(
    network: Callable[[Tensor], Tensor] | Sequence[Layer],
    rep_out: Action,
    hidden: Hidden | None = None,
    x: Tensor | None = None,
) -> list[KnownLayer]:
    """The layers of a network whose hidden actions are known, in the order of computation.

    * ``RPPEMLP`` and ``EMLP`` are split into linear layers, bilinear layers and gates, whose representations are known.
    * Other modules of torch are traced by ``torch.fx`` if ``hidden`` is given, with residual sums and tokens
      (:mod:`rppdyn.equivariance._tracing` defines the layers). Modules that ``hidden`` names are one layer each.
    * How the hidden layers of ``MLP`` and of other modules transform is not known: ``hidden`` says it. A layer without an
      action is joined with each layer that reads it, and the joined layer is named ``a + b``. Without ``hidden`` all layers are
      joined, and only the end-to-end value remains. Any action may be assumed: the attribution depends on it, the end-to-end
      value does not.
    * Sequences of :class:`Layer` are taken as they are, and any other callable is one layer.

    Args:
        rep_out: the action on the network's output.
        hidden: for layers by name, the action on the output, or None to take a module as one layer. Or a flow of images, from
            which the actions on feature maps, tokens and vectors follow (:mod:`rppdyn.equivariance._tracing`). A mapping may
            contain such a flow under the key "*".
        x: inputs of the network, on which a module is traced.
    Raises:
        ValueError: no layer has a name given in ``hidden``, a layer reads a later one, a representation belongs to another
            group than ``rep_out``, or a module can't be traced.
    """
    named = {} if hidden is None or isinstance(hidden, Flow) else dict(hidden)
    flow = hidden if isinstance(hidden, Flow) else named.pop(DEFAULT_KEY, None)
    if flow is not None and not isinstance(flow, Flow):
        raise ValueError(f"hidden[{DEFAULT_KEY!r}] is {flow}: give a flow of images, or name each layer")
    layers = _resolve_inputs(_split_network(network, None if hidden is None else tuple(named), x))
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
    if flow is not None and x is None:  # without inputs to trace layouts on, the flow acts on all layers
        layers = [replace(layer, action=layer.action or flow) for layer in layers]
    return _join_unknown(layers, flow, x)


def _split_network(
    network: Callable[[Tensor], Tensor] | Sequence[Layer], whole: tuple[str, ...] | None, x: Tensor | None
) -> list[Layer]:
    """The layers of a network; torch modules are traced if `whole`, the names of modules to take as one layer, is given."""
    if isinstance(network, RPPEMLP):
        return _blocks_and_head(network, known=not isinstance(network, MLP))
    if isinstance(network, nn.Module) and whole is not None and x is not None and not is_one_layer(network):
        layers = trace_layers(network, x, whole)
    elif isinstance(network, nn.Sequential):
        layers = [Layer(name, child, kind=type(child).__name__) for name, child in network.named_children()]
    elif isinstance(network, Sequence):
        layers = list(network)
    else:
        layers = [Layer("f", network)]
    if not layers:
        raise ValueError("a network of no layers: give at least one")
    return layers


def _resolve_inputs(layers: list[Layer]) -> list[Layer]:
    names: list[str] = [INPUT]
    resolved = []
    for layer in layers:
        inputs = (names[-1],) if layer.inputs is None else tuple(layer.inputs)
        if layer.name in names:
            raise ValueError(f"two layers are called {layer.name!r} (the input is called {INPUT!r}): rename one")
        if missing := [name for name in inputs if name not in names]:
            raise ValueError(f"layer {layer.name} reads {missing[0]!r}: it must come before, among {', '.join(names)}")
        names.append(layer.name)
        resolved.append(replace(layer, inputs=inputs))
    return resolved


def _blocks_and_head(network: RPPEMLP, known: bool) -> list[Layer]:
    """The layers, with weights assembled once for all calls; norms and constant inputs are folded into linear ones."""
    layers: list[Layer] = []
    *hidden, head = network.assemble()
    linear = lambda weights: lambda x: F.linear(x, *weights)  # noqa: E731
    for i, (block, rep, (weights, *_)) in enumerate(zip(network.blocks, network.hidden, hidden, strict=True)):
        action, with_gates = (rep, gated(rep)) if known else (None, None)
        linear_action = block.bilinear.rep_in if known and block.bilinear is not None else with_gates
        layers.append(Layer(f"blocks.{i}.linear", linear(weights), linear_action))
        if block.bilinear is not None:
            layers.append(Layer(f"blocks.{i}.bilinear", block.bilinear, with_gates))
        layers.append(Layer(f"blocks.{i}.gate", block.gate, action))
    return [*layers, Layer("head", linear(head))]


@torch.no_grad()
def _join_unknown(layers: list[Layer], flow: Flow | None, x: Tensor | None) -> list[KnownLayer]:
    """Join layers without an action to each layer that reads them; with a flow, actions are derived at inputs x first."""
    known: dict[str, KnownLayer] = {}
    pending: dict[str, Layer] = {}
    actions: dict[str, Action] = {} if flow is None else {INPUT: flow}
    values: dict[str, Tensor] = {} if x is None else {INPUT: x}
    for layer in layers:
        whole = _compose(layer, pending) if pending else layer
        action, inputs = layer.action, whole.inputs or ()
        if flow is not None and x is not None:
            y = whole(*(values[name] for name in inputs))
            if action is None and all(isinstance(actions[name], Flow) for name in inputs):
                flows = [a for name in inputs if isinstance(a := actions[name], Flow)]
                action = output_action(whole, [values[name] for name in inputs], flows, y, flow)
            values[layer.name] = y
        if action is None:
            pending[layer.name] = whole
            continue
        known[layer.name] = KnownLayer(whole.name, whole.function, action, inputs, whole.kind)
        actions[layer.name] = action
    names = {name: layer.name for name, layer in known.items()}
    joined = [replace(layer, inputs=tuple(names.get(n, n) for n in layer.inputs)) for layer in known.values()]
    return ancestors({layer.name: layer for layer in joined}, names[layers[-1].name])


def _compose(layer: Layer, pending: Mapping[str, Layer]) -> Layer:
    """A layer composed with the layers without an action that it reads, as a function of their inputs."""
    parts = {name: pending[name] for name in layer.inputs or () if name in pending}
    if not parts:
        return layer
    inputs: tuple[str, ...] = ()
    for name in layer.inputs or ():
        inputs += (parts[name].inputs or ()) if name in parts else (name,)
    inputs = tuple(dict.fromkeys(inputs))

    def function(*tensors: Tensor) -> Tensor:
        values = dict(zip(inputs, tensors, strict=True))
        for name, part in parts.items():
            values[name] = part(*(values[n] for n in part.inputs or ()))
        return layer(*(values[n] for n in layer.inputs or ()))

    several = [*parts.values(), layer]
    names = dict.fromkeys(name for part in several for name in part.name.split(" + "))
    kinds = dict.fromkeys(kind for part in several for kind in part.kind.split(" + ") if kind)
    return Layer(" + ".join(names), function, layer.action, inputs, " + ".join(kinds))


# -- attribution of the equivariance error to layers ---------------------------------------------------------------------------


Network = Callable[[Tensor], Tensor] | Sequence[Layer]


@dataclass(frozen=True)
class Attribution:
    r"""The contributions of N layers to the equivariance error, for each of D generators.

    Attributes:
        generators, layers: names of the two axes.
        norm: ``(D, N)``, the mean over inputs of :math:`\|C_i\|`, which the published figures show.
        squared_norm: ``(D, N)``, the mean over inputs of :math:`\|C_i\|^2`.
        standard_error: ``(D, N)``, of ``squared_norm``, from the random probes; zero for exact values.
        share: ``(D, N)``, the layer's signed share of the error; adds up to 1 over layers, nan without an error.
        total: ``(D, *batch, *out)``, the error end to end, computed with the whole network.
        contributions: ``(D, N, *batch, *out)``, the vectors :math:`C_i`; None from random probes.
        kinds: class names of modules, or names of functions, by layer.
    """

    generators: tuple[str, ...]
    layers: tuple[str, ...]
    norm: Float[Tensor, "D N"]
    squared_norm: Float[Tensor, "D N"]
    standard_error: Float[Tensor, "D N"]
    share: Float[Tensor, "D N"]
    total: Inexact[Tensor, "D ..."]
    contributions: Inexact[Tensor, "D N ..."] | None
    kinds: tuple[str, ...] = ()

    @property
    def residual(self) -> float:
        """Distance between the sum of the contributions and the total, relative to the total; nan for estimates.

        It is rounding, unless a part of the network has no derivative, or one-sided derivatives differ (ties in max-pooling).
        """
        if self.contributions is None:
            return float("nan")
        difference, size = (self.contributions.sum(1) - self.total).norm(), self.total.norm()
        return float(difference / size) if size > 0 else float(difference)

    def by_kind(self, generator: str) -> dict[str, float]:
        """Shares added up over the layers of each kind, the largest first."""
        shares: dict[str, float] = {}
        for kind, share in zip(self.kinds, self.share[self.generators.index(generator)].tolist(), strict=True):
            shares[kind] = shares.get(kind, 0.0) + share
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def largest(self, generator: str) -> str:
        """The layer with the largest contribution under a generator."""
        return self.layers[int(self.norm[self.generators.index(generator)].argmax())]

    def __str__(self) -> str:
        width = max(map(len, ("layer", *self.layers)))
        lines = [f"{'layer':{width}}" + "".join(f"  {g:>10} {'share':>7}" for g in self.generators)]
        for i, layer in enumerate(self.layers):
            cells = (f"  {self.norm[d, i]:10.2e} {self.share[d, i]:7.1%}" for d in range(len(self.generators)))
            lines.append(f"{layer:{width}}" + "".join(cells))
        return "\n".join(lines)


@torch.no_grad()
def layerwise_lie_derivative(
    network: Network,
    rep_in: Action,
    rep_out: Action,
    x: Inexact[Tensor, "batch ..."],
    *,
    hidden: Hidden | None = None,
    probes: int | None = None,
    generator: torch.Generator | None = None,
) -> Attribution:
    r"""Contribution of each layer to the Lie derivative, :math:`C_i = J_i L f_i`.

    Exact by default: one vector-Jacobian product per entry of the output, which serves all layers. If the output has more than
    N / 2 entries, or a layer has no reverse mode, Jacobian-vector products carry each layer's own Lie derivative to the output,
    N^2 / 2 of them for each generator. With ``probes``, one vector-Jacobian product per probe :math:`z \sim N(0, I)`,
    :math:`E (z^T C_i)^2 = \|C_i\|^2`, for deep networks of many outputs; sizes and shares are then estimates.

    Args:
        network: a network, which :func:`~rppdyn.equivariance.layers_of` splits, or a sequence of layers.
        rep_in, rep_out: representations of one group, or flows.
        x: a batch; every layer must act on each input by itself (``network.eval()`` with batch normalisation).
        hidden: how hidden layers transform, if the network does not know it; layers without an action are joined. For images,
            the flow itself, or ``{"*": flow, "name of a layer": its own action}``.
        probes: number of random probes (the published figures use 100), or None for the exact values.
        generator: generator of the probes; seed 0 if not given.
    Raises:
        ValueError: no continuous generator; or as :func:`~rppdyn.equivariance.layers_of` (for a module that can't
            be traced it names the node).
    Source: Finzi 2023, Eq. 4.6 and A.3.1.3.
    """
    graph = _graph(network, rep_in, rep_out, x, hidden)
    names = generator_names(rep_in)
    if isinstance(rep_in, Rep) and not names:
        raise ValueError(f"{rep_in.G} has no continuous generator: use layerwise_difference for its discrete ones")
    total = lie_derivative(_end_to_end(network, graph), rep_in, rep_out, x)
    check_finite(total, "the Lie derivative")
    if probes is not None:
        return _probe_attribution(graph, rep_in, x, names, total, probes, generator)

    defects, values = _defects(graph, rep_in, x)
    entries = values[-1][:1].numel()
    if 2 * entries <= len(graph) and not values[-1].is_complex():
        attribution = _attribution(names, graph, total, _reverse_contributions(graph, x, defects, entries))
        if attribution.residual < torch.finfo(x.dtype).eps ** 0.5:
            return attribution
    return _attribution(names, graph, total, _forward_contributions(graph, x, defects))


@torch.no_grad()
def layerwise_difference(
    network: Network,
    rep_in: Action,
    rep_out: Action,
    x: Inexact[Tensor, "batch ..."],
    *,
    elements: Sequence[Tensor] | Sequence[float] | None = None,
    hidden: Hidden | None = None,
) -> Attribution:
    r"""Contribution of each layer to :math:`\rho_{out}(g)^{-1} f(\rho_{in}(g) x) - f(x)`, for finite transformations.

    The discrete counterpart of :func:`layerwise_lie_derivative`, by telescoping through the layers.

    Args:
        elements: group elements ``(d, d)`` (times, for a flow); by default the group's discrete generators.
        network, rep_in, rep_out, x, hidden: as there.
    Raises:
        ValueError: no elements given and no discrete generators; or as :func:`layers_of`.
    """
    graph = _graph(network, rep_in, rep_out, x, hidden)
    if elements is not None:
        names = tuple(f"g{k}" for k in range(len(elements)))
    else:
        names = generator_names(rep_in, "discrete")
        elements = [] if isinstance(rep_in, Flow) else list(rep_in.G.discrete_generators)
    if not names:
        raise ValueError("no elements, and no discrete generators to take instead: give elements=[g, ...]")

    whole, contributions, totals = _end_to_end(network, graph), [], []
    values = layer_values(graph, {INPUT: x})
    actions: dict[str, Action] = {INPUT: rep_in} | {layer.name: layer.action for layer in graph}
    y = values[graph[-1].name]
    for g in elements:
        transformed: list[Tensor] = []  # the outputs T_i(g)
        for i in range(len(graph)):
            images = {name: act(actions[name], g, values[name]) for name in _names_read(graph, i)}
            *_, image = layer_values(graph[i:], images).values()
            transformed.append(act(rep_out, inverse(g), image))
        transformed.append(act(rep_out, inverse(g), act(rep_out, g, y)))
        contributions.append(torch.stack([T - T_next for T, T_next in pairwise(transformed)]))
        totals.append(act(rep_out, inverse(g), whole(act(rep_in, g, x))) - y)
    total = torch.stack(totals)
    check_finite(total, "the difference")
    return _attribution(names, graph, total, torch.stack(contributions))


def _graph(network: Network, rep_in: Action, rep_out: Action, x: Tensor, hidden: Hidden | None) -> list[KnownLayer]:
    check_actions(rep_in, rep_out, x)
    return layers_of(network, rep_out, hidden, x)


def _names_read(graph: list[KnownLayer], start: int) -> set[str]:
    """Names of the values that layers from ``start`` on read and earlier layers compute."""
    computed = {layer.name for layer in graph[start:]}
    return {name for layer in graph[start:] for name in layer.inputs} - computed


def _derivative_along(layer: KnownLayer, inputs: Sequence[Tensor], velocities: Sequence[Tensor]) -> Tensor:
    """The derivative of a layer along velocities of all its inputs."""
    if len(inputs) == 1:
        return derivative(layer, inputs[0], velocities[0])[1]
    sizes = [x[0].numel() for x in inputs]

    def function(entries: Tensor) -> Tensor:
        parts = entries.split(sizes, 1)
        return layer(*(part.to(x.dtype).view(x.shape) for part, x in zip(parts, inputs, strict=True)))

    packed = (torch.cat([v.flatten(1) for v in tensors], 1) for tensors in (inputs, velocities))
    return derivative(function, *packed)[1]


def _defects(graph: list[KnownLayer], rep_in: Action, x: Tensor) -> tuple[list[list[Tensor]], list[Tensor]]:
    """For each layer, its own Lie derivative along each generator, and its value."""
    values, velocities = {INPUT: x}, {INPUT: tangents(rep_in, x)}
    defects = []
    for layer in graph:
        inputs = [values[name] for name in layer.inputs]
        pairs = zip(*(velocities[name] for name in layer.inputs), strict=True)
        pushed = [_derivative_along(layer, inputs, velocity) for velocity in pairs]
        values[layer.name] = y = layer(*inputs)
        velocities[layer.name] = tangents(layer.action, y)
        defects.append([u - v for u, v in zip(pushed, velocities[layer.name], strict=True)])
    return defects, [values[layer.name] for layer in graph]


def _forward_contributions(
    graph: list[KnownLayer], x: Tensor, defects: list[list[Tensor]]
) -> Inexact[Tensor, "D N ..."]:
    """Contributions by forward mode: each layer's defect is carried through the layers behind it."""
    values = layer_values(graph, {INPUT: x})
    carried: list[dict[str, list[Tensor]]] = []  # for each layer, its defect's effect on the values that are read later
    for i, layer in enumerate(graph):
        inputs = [values[name] for name in layer.inputs]
        for effects in carried:
            if any(name in effects for name in layer.inputs):
                zeros = [[torch.zeros_like(v)] * len(defects[0]) for v in inputs]
                incoming = [effects.get(name, zero) for name, zero in zip(layer.inputs, zeros, strict=True)]
                effects[layer.name] = [_derivative_along(layer, inputs, v) for v in zip(*incoming, strict=True)]
        carried.append({layer.name: defects[i]})
        needed = _names_read(graph, i + 1) if i + 1 < len(graph) else {layer.name}
        carried = [{name: v for name, v in effects.items() if name in needed} for effects in carried]
    return torch.stack([torch.stack(effects[graph[-1].name]) for effects in carried], 1)


def _record_values(graph: list[KnownLayer], x: Tensor) -> list[Tensor]:
    """Values of the layers, with gradients."""
    with torch.enable_grad():
        _, *values = layer_values(graph, {INPUT: x.detach().clone().requires_grad_()}).values()
    return values


def _pull_back(nodes: list[Tensor], z: Tensor, defects: list[list[Tensor]]) -> Tensor:
    """``z^T C`` by generator, layer and input: ``(D, N, batch)``."""
    indices = [i for i, node in enumerate(nodes) if node.requires_grad]
    gradients = torch.autograd.grad(
        nodes[-1], [nodes[i] for i in indices], z, retain_graph=True, materialize_grads=True
    )
    columns = [z.new_zeros(len(defects[0]), len(z))] * len(nodes)
    for i, gradient in zip(indices, gradients, strict=True):
        columns[i] = torch.stack([(d * gradient).flatten(1).sum(1) for d in defects[i]])
    return torch.stack(columns, 1)


def _reverse_contributions(
    graph: list[KnownLayer], x: Tensor, defects: list[list[Tensor]], entries: int
) -> Inexact[Tensor, "D N ..."]:
    """Contributions by reverse mode: one gradient for each entry of the output."""
    nodes = _record_values(graph, x)
    y = nodes[-1]
    if not y.requires_grad:
        return torch.stack([torch.stack([torch.full_like(y, torch.nan) for _ in d]) for d in defects], 1)
    rows = torch.eye(entries, dtype=y.dtype, device=y.device)
    pulled = [_pull_back(nodes, row.expand(len(y), -1).view(y.shape), defects) for row in rows]
    return torch.stack(pulled, -1).unflatten(-1, y.shape[1:]) if y.ndim > 1 else torch.stack(pulled, -1)[..., 0]


def _end_to_end(network: Network, graph: list[KnownLayer]) -> Callable[[Tensor], Tensor]:
    return network if callable(network) else lambda x: layer_values(graph, {INPUT: x})[graph[-1].name]


def _attribution(names: tuple[str, ...], graph: list[KnownLayer], total: Tensor, contributions: Tensor) -> Attribution:
    vectors = contributions.flatten(3) if contributions.ndim > 3 else contributions[..., None]  # (D, N, batch, out)
    norm = torch.linalg.vector_norm(vectors, dim=-1)
    product = (vectors.conj() * vectors.sum(1, keepdim=True)).real.sum((-2, -1))
    sizes = norm.mean(-1), norm.square().mean(-1), torch.zeros_like(product)
    return _make_attribution(names, graph, sizes, product, total, contributions)


def _make_attribution(
    names: tuple[str, ...], graph: list[KnownLayer], sizes: tuple[Tensor, Tensor, Tensor], product: Tensor, total: Tensor,
    contributions: Tensor | None,
) -> Attribution:  # fmt: skip
    """The attribution, from norms, squared norms and their standard errors, and products with the sum over layers."""
    layers, kinds = zip(*((layer.name, layer.kind or layer.name) for layer in graph), strict=True)
    share = product / product.sum(-1, keepdim=True)
    return Attribution(names, layers, *sizes, share, total, contributions, kinds)


def _probe_attribution(
    graph: list[KnownLayer], rep_in: Action, x: Tensor, names: tuple[str, ...], total: Tensor, probes: int, generator
) -> Attribution:
    if probes < 2:
        raise ValueError(f"probes={probes}: give at least two, or None for exact values")
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    defects, _ = _defects(graph, rep_in, x)
    nodes = _record_values(graph, x)
    y = nodes[-1]
    if not y.requires_grad:
        raise ValueError(f"probes={probes}: the network's output carries no gradient; leave them out for exact values")
    projections = []
    for _ in range(probes):
        z = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        projections.append(_pull_back(nodes, z, defects))
    z_C = torch.stack(projections)  # (probes, D, N, batch)
    squares = z_C.square()
    product = (z_C * z_C.sum(2, keepdim=True)).sum((0, -1))
    sizes = squares.mean(0).sqrt().mean(-1), squares.mean((0, -1)), squares.mean(-1).std(0) / probes**0.5
    return _make_attribution(names, graph, sizes, product, total, None)
