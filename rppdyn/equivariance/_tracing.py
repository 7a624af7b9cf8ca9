r"""Torch modules as graphs of layers, by ``torch.fx``, and the actions of image transformations on the layers' values.

Values are feature maps, tokens, flattened maps and vectors. For each, :class:`Placed` records which entries belong to which
pixels, and moves them as the flow moves images:

* **Rearranged entries** (reshape, permute, flatten, a class token in front) take their pixels with them, so that such a layer
  loses nothing. A trial with labelled entries finds this for any function.
* **Layers that keep the sizes of the axes along which pixels lie** (pointwise maps, linear maps of channels, normalisation,
  attention, sums) keep the pixels, whatever happens to the channels. On a flattened map only pointwise layers do.
* **Patches** whose pixels became channels, and were then mixed, are pixels of a coarser image.
* **Maps of another resolution** (strides, pooling) are images of that resolution.
* **Vectors** (after a mean over places, a class token, a linear map of a flattened map) have the trivial action.

For other values (windows folded into the batch, attention scores written out) no action is known, and layers are joined with
those that read them.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jaxtyping
import torch
from jaxtyping import Float, Int
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

from rppdyn.equivariance._lie import Action, Flow, TrivialFlow

INPUT = "input"
"""The name of a network's input."""

GRAPH_TOLERANCE = 1e-3  # largest relative difference between a module and its graph; a larger one means a lost part


@dataclass(frozen=True)
class Layer:
    """A node of the graph: a function, and the action of the symmetry on its output (None if unknown).

    Attributes:
        name: path of a traced module; for a function, the calling module's path and the function's name. A second call ends
            in ``_1``.
        inputs: names of the layers whose values it reads, "input" for the network's input; None for the layer before.
        kind: its name in summaries: the module's class, "strided" before it for strided convolutions, or the function's name.
    """

    name: str
    function: Callable[..., Tensor]
    action: Action | None = None
    inputs: tuple[str, ...] | None = None
    kind: str = ""

    def __call__(self, *inputs: Tensor) -> Tensor:
        # clones, since a layer that works in place would change the values that other layers read
        return self.function(*(x.clone() for x in inputs))


L = TypeVar("L", bound=Layer)


def layer_values(layers: Iterable[Layer], known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values by name: known ones such as the input's, then those of layers, each of which reads values before its own."""
    values = dict(known)
    for layer in layers:
        values[layer.name] = layer(*(values[name] for name in layer.inputs or ()))
    return values


def trace_layers(network: nn.Module, x: Tensor, whole: Collection[str] = ()) -> list[Layer]:
    """Trace a module: its layers in the order of computation; the last one's value is the output.

    Modules of ``torch.nn`` are one layer each, and so are modules of this package without ``is_composite``. Values of layers
    are floating-point tensors. Other values (sizes, masks, tuples) are computed inside the layers that read them; sizes are
    those of ``x``.

    Args:
        whole: paths of modules to take as one layer.
    Raises:
        ValueError: the module can't be traced, is in training mode with layers that then mix inputs, returns more than one
            tensor, or its graph computes something else; the message names the node.
    """
    for name, module in network.named_modules():
        if module.training and (isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)):
            raise ValueError(f"{name or 'it'} ({_class(module)}) is in training mode, in which it is random or mixes inputs: "
                             "call network.eval() first")  # fmt: skip
    graph = _trace(network, whole)
    interpreter = _interpret(network, graph, x)
    *nodes, output = graph.nodes
    if not isinstance(result := output.args[0], fx.Node) or not _is_layer(interpreter.env.get(result)):
        raise ValueError(
            f"{_class(network)} returns {_describe_output(output.args[0])}: attribution is of one tensor; wrap it in a module "
            "that returns that"
        )
    layers, names = _layers(network, nodes, interpreter)
    needed = ancestors(layers, names[result])
    _check_values(network, needed, graph, x)
    return needed


def is_one_layer(module: nn.Module) -> bool:
    """Check whether a module is one layer: of ``torch.nn``, sequences aside, or of this package unless it ``is_composite``."""
    if type(module).__module__.startswith("rppdyn."):
        return not getattr(module, "is_composite", False)
    return fx.Tracer().is_leaf_module(module, "")


class _Tracer(fx.Tracer):
    """A tracer that records in which module tracing failed."""

    def __init__(self, whole: Collection[str]):
        super().__init__()
        self.whole, self.failed = whole, ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.whole or is_one_layer(m)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise


@contextmanager
def _without_shape_checks() -> Iterator[None]:
    """Switch off jaxtyping's checks of shapes, which traced values don't have."""
    disabled = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", disabled)


def _trace(network: nn.Module, whole: Collection[str]) -> fx.Graph:
    tracer = _Tracer(whole)
    try:
        with _without_shape_checks():
            return tracer.trace(network)
    except Exception as error:  # a forward method may raise anything when given a proxy
        last = next(reversed(tracer.graph.nodes), None) if hasattr(tracer, "graph") else None
        path = tracer.failed
        where = f"{path!r} ({_class(network.get_submodule(path))})" if path else _class(network)
        after = f", after the node {last.name!r}" if last is not None else ""
        remedy = f"hidden={{{path!r}: None, ...}} takes it as one layer" if path else "give a sequence of Layers"
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{where} can't be traced{after}: {line}; {remedy}") from error


def _interpret(network: nn.Module, graph: fx.Graph, x: Tensor) -> fx.Interpreter:
    """An interpreter of the graph, whose `env` has the value of each node at x."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    interpreter = fx.Interpreter(fx.GraphModule(network, graph), garbage_collect_values=False)
    with torch.no_grad():
        for extra in placeholders[1:]:
            if not extra.args:
                raise ValueError(
                    f"{_class(network)} takes a second input, {extra.name!r}: wrap it in a module that takes one"
                )
        interpreter.run(x.clone())
    return interpreter


def _layers(
    network: nn.Module, nodes: list[fx.Node], interpreter: fx.Interpreter
) -> tuple[dict[str, Layer], dict[fx.Node, str]]:
    """Layers by name, in order, and the names of the nodes that are layers."""
    modules, values = dict(network.named_modules()), interpreter.env
    names: dict[fx.Node, str] = {}
    needs: dict[fx.Node, tuple[str, ...]] = {}  # the layers on which a node's value depends
    layers: dict[str, Layer] = {}
    calls: Counter[str] = Counter()
    for node in nodes:
        if node.op == "placeholder":
            if not names:
                names[node], needs[node] = INPUT, (INPUT,)
            continue
        value = values[node]
        if node.op == "get_attr" or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            continue  # a constant
        read = [name for n in node.all_input_nodes for name in needs.get(n, ())]
        if not read:
            continue  # it depends on sizes alone
        inputs = tuple(dict.fromkeys(read))
        if not _is_layer(value):
            needs[node] = inputs
            continue
        base, kind = _name_node(node, names, modules)
        name = f"{base}_{calls[base]}" if calls[base] else base
        calls[base] += 1
        layers[name] = Layer(name, _function(interpreter, node, inputs, names, needs), None, inputs, kind)
        names[node], needs[node] = name, (name,)
    return layers, names


def _function(
    interpreter: fx.Interpreter,
    node: fx.Node,
    inputs: tuple[str, ...],
    names: dict[fx.Node, str],
    needs: dict[fx.Node, tuple[str, ...]],
) -> Callable[..., Tensor]:
    """A node as a function of the layers that it depends on. Nodes in between that are no layers are computed inside it."""
    inner: set[fx.Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        n = stack.pop()
        if n not in inner and n not in names and n in needs:
            inner.add(n)
            stack += n.all_input_nodes
    inner_nodes = [n for n in node.graph.nodes if n in inner]
    read = {n for m in (*inner_nodes, node) for n in m.all_input_nodes} - inner
    constants = {n: interpreter.env[n] for n in read if n not in names}
    layers = {n: names[n] for n in read if n in names}

    def function(*tensors: Tensor) -> Tensor:
        by_name = dict(zip(inputs, tensors, strict=True))
        interpreter.env = constants | {n: by_name[name] for n, name in layers.items()}
        for n in inner_nodes:
            interpreter.env[n] = interpreter.run_node(n)
        return interpreter.run_node(node)

    return function


def _name_node(node: fx.Node, names: Collection[fx.Node], modules: dict[str, nn.Module]) -> tuple[str, str]:
    """The name and kind of a node; an entry of a tuple has those of the module that returns the tuple."""
    source = node.args[0] if node.args else None
    is_entry = node.target is operator.getitem and isinstance(source, fx.Node) and source.op == "call_module"
    if is_entry and source not in names:
        node = cast(fx.Node, source)
    if node.op == "call_module":
        path = str(node.target)
        kind = type(modules[path]).__name__
        is_strided = "Conv" in kind and any(step > 1 for step in tree_leaves(getattr(modules[path], "stride", 1)))
        return path, f"strided {kind}" if is_strided else kind
    function = str(getattr(node.target, "__name__", node.target))
    path = next(reversed(node.meta.get("nn_module_stack", {})), "")
    return f"{path}.{function}" if path else function, function


def _is_layer(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def ancestors(layers: Mapping[str, L], output: str) -> list[L]:
    """The layers that the output depends on."""
    needed, stack = set(), [output]
    while stack:
        name = stack.pop()
        if name not in needed and name != INPUT:
            needed.add(name)
            stack += layers[name].inputs or ()
    return [layer for name, layer in layers.items() if name in needed]


@torch.no_grad()
def _check_values(network: nn.Module, layers: list[Layer], graph: fx.Graph, x: Tensor) -> None:
    """Refuse a graph that computes something else than its module, because it lost operations in place, randomness or state."""
    *_, actual = layer_values(layers, {INPUT: x}).values()
    expected = network(x.clone())
    if not (actual - expected).norm() <= GRAPH_TOLERANCE * expected.norm():
        silent = [n.name for n in graph.nodes if n.op != "output" and not n.users and n.op != "placeholder"]
        where = f"the node {silent[0]!r}, whose value nobody reads" if silent else "random numbers or state"
        raise ValueError(
            f"the graph of {_class(network)} computes something else than the module, because of {where}: write it without "
            "operations in place or randomness"
        )


def _class(module: nn.Module) -> str:
    return type(module).__name__


def _describe_output(output: Any) -> str:
    if isinstance(output, fx.Node):
        return f"the value of {output.name!r}, which is no tensor of floating-point numbers"
    return f"a {type(output).__name__}"


# -- layouts of images in values of layers -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed(Flow):
    """A flow of images on tensors ``(batch, *shape)`` in which entry ``index[c, i, j]`` is channel c at row i, column j.

    Entries outside of all pixels stay fixed.

    Args:
        index: index of the flattened entries.
    """

    flow: Flow
    shape: tuple[int, ...]
    index: Int[Tensor, "channels rows columns"]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the flow."""
        return self.flow.name

    def __call__(self, x: Float[Tensor, "batch ..."], t: Tensor | float) -> Float[Tensor, "batch ..."]:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"{self.name} acts on (batch, {', '.join(map(str, self.shape))}) here, not {tuple(x.shape)}"
            )
        index = self.index.to(x.device)
        entries = x.flatten(1)
        image = self.flow(entries[:, index], t)
        return entries.index_copy(1, index.flatten(), image.flatten(1)).view_as(x)


def tokens(flow: Flow, rows: int, columns: int, channels: int, *, before: int = 0) -> Placed:
    """The action on tokens ``(batch, before + rows * columns, channels)``; the first ``before`` tokens are no pixels.

    >>> from rppdyn.equivariance import images
    >>> tokens(images.rotation(), 7, 7, 64, before=1).shape      # one class token
    (50, 64)
    """
    places = torch.cat([torch.full((before,), -1), torch.arange(rows * columns)])
    return _place_pixels(flow, places[:, None].expand(-1, channels), (rows, columns))


def output_action(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], actions: Sequence[Flow], output: Tensor, flow: Flow
) -> Flow | None:
    """The action on a layer's output, by the rules of this module's docstring; None if none applies.

    Args:
        function, inputs, output: the layer, its inputs at some images and its output there.
        actions: the actions on the inputs.
        flow: flow of images.
    """
    layouts = [_layout(action, x, flow) for action, x in zip(actions, inputs, strict=True)]
    if not any(layout is not None for layout in layouts):
        return TrivialFlow(flow.name)
    if len(output) != len(inputs[0]) or output.ndim < 2:
        return None
    grids = {layout.index.shape[1:] for layout in layouts if layout is not None}
    if len(grids) == 1 and (rearranged := _track_entries(function, inputs, layouts, flow)) is not None:
        return rearranged
    flows: list[Flow] = []
    for x, layout in zip(inputs, layouts, strict=True):
        if layout is not None and (candidate := _keep_pixels(function, inputs, x, layout, output)) is not None:
            if not any(_equal_flows(candidate, known) for known in flows):
                flows.append(candidate)
    if flows:
        return flows[0] if len(flows) == 1 else None
    return TrivialFlow(flow.name) if output.ndim == 2 else None


def _layout(action: Flow, x: Tensor, flow: Flow) -> Placed | None:
    """The layout of pixels in ``x``; None if it has at most one pixel."""
    if isinstance(action, Placed):
        return action
    if isinstance(action, TrivialFlow) or x.ndim != 4 or x.shape[2] * x.shape[3] == 1:
        return None
    return Placed(flow, tuple(x.shape[1:]), torch.arange(x[0].numel()).view(x.shape[1:]))


def _places(layout: Placed) -> Int[Tensor, "..."]:
    """The pixel of each entry, -1 for entries outside of all pixels."""
    places = torch.full((math.prod(layout.shape),), -1)
    count = layout.index.shape[1] * layout.index.shape[2]
    places[layout.index.flatten(1)] = torch.arange(count)
    return places.view(layout.shape)


def _place_pixels(flow: Flow, places: Int[Tensor, "..."], grid: Sequence[int]) -> Placed:
    """The action on entries given the pixel of each (-1 for none); every channel has all pixels."""
    order = places.flatten().argsort(stable=True)
    order = order[int((places < 0).sum()) :]
    return Placed(flow, tuple(places.shape), order.view(grid[0], grid[1], -1).permute(2, 0, 1))


def _simplify(action: Placed) -> Flow:
    """Return the flow itself if the layout is that of feature maps."""
    in_order = bool((action.index.flatten() == torch.arange(action.index.numel())).all())
    return action.flow if in_order and action.shape == tuple(action.index.shape) else action


def _equal_flows(a: Flow, b: Flow) -> bool:
    if isinstance(a, Placed) and isinstance(b, Placed):
        return a.shape == b.shape and torch.equal(a.index, b.index)
    return type(a) is type(b)


def _track_entries(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], layouts: Sequence[Placed | None], flow: Flow
) -> Flow | None:
    """The action on the output of a function that only rearranges entries and adds constants; None for other functions."""
    generator = torch.Generator().manual_seed(0)
    sources, total = [], sum(x.numel() for x in inputs)
    for _ in range(2):
        # distinct in single precision too, unlike normal numbers, from -8 to 8, in no regular distances
        drawn = torch.randperm(total, generator=generator) + 0.25 + torch.rand(total, generator=generator).double() / 2
        parts = (16 * drawn / total - 8).split([x.numel() for x in inputs])
        labels = [part.view(x.shape).to(x) for part, x in zip(parts, inputs, strict=True)]
        sorted_labels, order = torch.cat([label[0].flatten() for label in labels]).sort()
        out = function(*(label.clone() for label in labels))
        at = torch.searchsorted(sorted_labels, out[0].flatten().contiguous()).clamp_max(len(order) - 1)
        is_label = sorted_labels[at] == out[0].flatten()
        sources.append((torch.where(is_label, order[at], -1), out[0]))
    (source, value), (second_source, second_value) = sources
    if not torch.equal(source, second_source) or not bool((source >= 0).any()):
        return None
    fixed = source < 0
    if not torch.equal(value.flatten()[fixed], second_value.flatten()[fixed]):
        return None
    # for each entry of all inputs: its channel, numbered over inputs, and its pixel
    channel, place, channels = [], [], 0
    for x, layout in zip(inputs, layouts, strict=True):
        size = x[0].numel()
        channels_of = torch.full((size,), -1)
        if layout is not None:
            count = layout.index.shape[0]
            channels_of[layout.index.flatten(1)] = torch.arange(channels, channels + count)[:, None]
            place.append(_places(layout).flatten())
            channels += count
        else:
            place.append(torch.full((size,), -1))
        channel.append(channels_of)
    grid = next(layout.index.shape[1:] for layout in layouts if layout is not None)
    pixels = grid[0] * grid[1]
    keep = (~fixed).cpu() & (torch.cat(place)[source.cpu()] >= 0)
    entries = keep.nonzero().flatten()
    if not len(entries):
        return TrivialFlow(flow.name)
    key = torch.cat(channel)[source.cpu()[entries]] * pixels + torch.cat(place)[source.cpu()[entries]]
    order = key.argsort(stable=True)
    present, counts = key.unique(return_counts=True)
    if len(present) % pixels or not bool((counts == counts[0]).all()):
        return None
    if not torch.equal(present.view(-1, pixels) % pixels, torch.arange(pixels).expand(len(present) // pixels, -1)):
        return None
    index = entries[order].view(-1, *grid, int(counts[0])).permute(0, 3, 1, 2).reshape(-1, *grid)
    return _simplify(Placed(flow, tuple(value.shape), index))


def _keep_pixels(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], x: Tensor, layout: Placed, output: Tensor
) -> Flow | None:
    """The action on an output whose axes for pixels are those of the input, or a coarser grid; None for other outputs."""
    places, grid = _places(layout), layout.index.shape[1:]
    if output.ndim != x.ndim:
        return None
    shape = output.shape[1:]
    axes = [a for a in range(places.ndim) if not bool((places == places.narrow(a, 0, 1)).all())]
    channel_axes = [a for a in range(places.ndim) if a not in axes]
    along = places
    for a in channel_axes:
        along = along.narrow(a, 0, 1)
    if all(shape[a] == places.shape[a] for a in axes):
        # whether channels, perhaps a single one, lie along the axes of pixels
        mixed = int((along >= 0).sum()) > grid[0] * grid[1] or not channel_axes
        if mixed and not _is_pointwise(function, inputs, x):
            return _coarse(places, grid, shape, layout.flow)
        return _simplify(_place_pixels(layout.flow, along.expand(shape), grid))
    if (patches := _coarse(places, grid, shape, layout.flow)) is not None:
        return patches
    if len(axes) == 2 and [places.shape[a] for a in axes] == list(grid):
        rows, columns = (shape[a] for a in axes)
        if rows * columns == 1:
            return TrivialFlow(layout.name)
        coarse = torch.arange(rows * columns).view([shape[a] if a in axes else 1 for a in range(len(shape))])
        return _simplify(_place_pixels(layout.flow, coarse.expand(shape), (rows, columns)))
    return None


def _coarse(places: Int[Tensor, "..."], grid: Sequence[int], shape: Sequence[int], flow: Flow) -> Flow | None:
    """The action on an output with axes for patches, if the pixels of a patch lie beside one another as channels."""
    if bool((places < 0).any()):
        return None
    row, column = places // grid[1], places % grid[1]
    for size in range(2, max(grid) + 1):
        if any(side % size for side in grid):
            continue
        coarse = [side // size for side in grid]
        # patches lie along two axes, by their rows and columns, or along one axis, row by row
        numbers = (row // size, column // size, row // size * coarse[1] + column // size)
        axes = [_axis(number, shape) for number in numbers]
        along = [
            None if a is None else torch.arange(shape[a]).view([-1 if b == a else 1 for b in range(len(shape))])
            for a in axes
        ]
        rows, columns, both = along
        if rows is not None and columns is not None and axes[0] != axes[1]:
            both = rows * coarse[1] + columns
        if both is not None:
            return _simplify(_place_pixels(flow, both.expand(tuple(shape)), coarse))
    return None


def _axis(number: Int[Tensor, "..."], shape: Sequence[int]) -> int | None:
    """The axis along which ``number`` counts 0, 1, ..., if the output has it at the same size; None if there is none."""
    for a, size in enumerate(number.shape):
        along = torch.arange(size).view([-1 if b == a else 1 for b in range(number.ndim)])
        if size == shape[a] and size > 1 and bool((number == along).all()):
            return a
    return None


def _is_pointwise(function: Callable[..., Tensor], inputs: Sequence[Tensor], x: Tensor) -> bool:
    """Check whether one entry of an input changes no other entry of the output."""
    y = function(*(v.clone() for v in inputs))
    entry = x[0].numel() // 2
    changed = x.clone()
    changed[0].view(-1)[entry] += 1 + changed[0].view(-1)[entry].abs()
    changed_y = function(*(changed if v is x else v.clone() for v in inputs))
    changed_entries = (y - changed_y)[0].flatten().nonzero().flatten()
    return bool((changed_entries == entry).all())
