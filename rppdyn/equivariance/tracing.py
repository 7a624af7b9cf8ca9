"""A torch module as a graph of layers, by ``torch.fx``."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jaxtyping
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

INPUT = "input"
"""The name of a network's input."""

SAME = 1e-3  # relative; a graph that differs by more from its module has lost a part of it


@dataclass(frozen=True)
class TracedLayer:
    """A node of the graph.

    Attributes:
        name: the module's path, or the function's name behind the path of the module that calls it; a second call has ``_1``.
        kind: the module's class or the function's name; a convolution says that it is strided.
        function: function of the values of ``inputs``.
        inputs: names of layers before it, or ``INPUT``.
    """

    name: str
    kind: str
    function: Callable[..., Tensor]
    inputs: tuple[str, ...]


def traced_layers(network: nn.Module, x: Tensor, whole: Collection[str] = ()) -> list[TracedLayer]:
    """The layers of a module, in the order of computation; the last one's value is the output.

    Modules of ``torch.nn`` are one layer each, and so are those of this package that don't say otherwise. Layers have
    floating-point tensors for values. What is computed between them (sizes, masks, tuples) belongs to the layers that read it;
    sizes are those of ``x``.

    Args:
        whole: paths of modules that are taken as one layer, whatever is inside.
    Raises:
        ValueError: the module can't be traced, is in training mode with layers that then mix inputs, returns more than one
            tensor, or its graph computes something else; the node is named.
    """
    _check_mode(network)
    graph = _trace(network, whole)
    values = _values(network, graph, x)
    *nodes, output = graph.nodes
    if not isinstance(result := output.args[0], fx.Node) or not _is_layer(values.get(result)):
        raise ValueError(
            f"{_class(network)} returns {_described(output.args[0])}: attribution is of one tensor; wrap it in a module that "
            "returns that"
        )
    layers, names = _layers(network, nodes, values)
    ancestors = _ancestors(layers, names[result])
    _check_values(network, ancestors, graph, x)
    return ancestors


def is_one_layer(module: nn.Module) -> bool:
    """Check whether a module is one layer: of ``torch.nn``, sequences aside, or of this package unless it ``comes_apart``."""
    if type(module).__module__.startswith("rppdyn."):
        return not getattr(module, "comes_apart", False)
    return fx.Tracer().is_leaf_module(module, "")


class _Tracer(fx.Tracer):
    """Remembers in which module tracing failed."""

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
def _unchecked() -> Iterator[None]:
    """Without jaxtyping's checks of shapes: what is traced has none."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _trace(network: nn.Module, whole: Collection[str]) -> fx.Graph:
    tracer = _Tracer(whole)
    try:
        with _unchecked():
            return tracer.trace(network)
    except Exception as error:  # whatever a forward raises that is given a proxy
        last = next(reversed(tracer.graph.nodes), None) if hasattr(tracer, "graph") else None
        path = tracer.failed
        where = f"{path!r} ({_class(network.get_submodule(path))})" if path else _class(network)
        after = f", after the node {last.name!r}" if last is not None else ""
        remedy = f"hidden={{{path!r}: None, ...}} takes it as one layer" if path else "give a sequence of Layers"
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{where} can't be traced{after}: {line}; {remedy}") from error


def _values(network: nn.Module, graph: fx.Graph, x: Tensor) -> dict[fx.Node, Any]:
    """The value of each node at x."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    interpreter = fx.Interpreter(fx.GraphModule(network, graph), garbage_collect_values=False)
    with torch.no_grad():
        for extra in placeholders[1:]:
            if not extra.args:
                raise ValueError(
                    f"{_class(network)} takes a second input, {extra.name!r}: wrap it in a module that takes one"
                )
        interpreter.run(x.clone())
    return interpreter.env


def _layers(
    network: nn.Module, nodes: list[fx.Node], values: dict[fx.Node, Any]
) -> tuple[dict[str, TracedLayer], dict[fx.Node, str]]:
    """Layers by name, in order, and the name of each node that is one."""
    modules = dict(network.named_modules())
    names: dict[fx.Node, str] = {}
    needs: dict[fx.Node, tuple[str, ...]] = {}
    layers: dict[str, TracedLayer] = {}
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
        base, kind = _named(node, names, modules)
        name = f"{base}_{calls[base]}" if calls[base] else base
        calls[base] += 1
        layers[name] = TracedLayer(name, kind, _function(network, node, inputs, names, needs, values), inputs)
        names[node], needs[node] = name, (name,)
    return layers, names


def _function(
    network: nn.Module,
    node: fx.Node,
    inputs: tuple[str, ...],
    names: dict[fx.Node, str],
    needs: dict[fx.Node, tuple[str, ...]],
    values: dict[fx.Node, Any],
) -> Callable[..., Tensor]:
    """The node, and what is no layer before it, as a function of layers."""
    interpreter = fx.Interpreter(fx.GraphModule(network, node.graph), garbage_collect_values=False)
    order = {n: i for i, n in enumerate(node.graph.nodes)}
    before: set[fx.Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        n = stack.pop()
        if n not in before and n not in names and n in needs:
            before.add(n)
            stack += n.all_input_nodes
    between = sorted(before, key=order.__getitem__)
    read = {n for m in (*between, node) for n in m.all_input_nodes} - before
    constants = {n: values[n] for n in read if n not in names}
    known = {n: names[n] for n in read if n in names}

    def function(*tensors: Tensor) -> Tensor:
        by_name = dict(zip(inputs, tensors, strict=True))
        interpreter.env = constants | {n: by_name[name] for n, name in known.items()}
        for n in between:
            interpreter.env[n] = interpreter.run_node(n)
        return interpreter.run_node(node)

    return function


def _named(node: fx.Node, names: Collection[fx.Node], modules: dict[str, nn.Module]) -> tuple[str, str]:
    """The name and kind of a node; an entry of a tuple is called as what returns the tuple."""
    before = node.args[0] if node.args else None
    if (
        node.target is operator.getitem
        and isinstance(before, fx.Node)
        and before.op == "call_module"
        and before not in names
    ):
        node = before
    if node.op == "call_module":
        path = str(node.target)
        kind = type(modules[path]).__name__
        strided = "Conv" in kind and any(step > 1 for step in tree_leaves(getattr(modules[path], "stride", 1)))
        return path, f"strided {kind}" if strided else kind
    function = str(getattr(node.target, "__name__", node.target))
    path = next(reversed(node.meta.get("nn_module_stack", {})), "")
    return f"{path}.{function}" if path else function, function


def _is_layer(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _ancestors(layers: dict[str, TracedLayer], output: str) -> list[TracedLayer]:
    """Those that the output is computed from."""
    needed, stack = set(), [output]
    while stack:
        name = stack.pop()
        if name not in needed and name != INPUT:
            needed.add(name)
            stack += layers[name].inputs
    return [layer for name, layer in layers.items() if name in needed]


def _check_mode(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if module.training and (isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)):
            raise ValueError(f"{name or 'it'} ({_class(module)}) is in training mode, in which it is random or mixes inputs: "
                             "call network.eval() first")  # fmt: skip


@torch.no_grad()
def _check_values(network: nn.Module, layers: list[TracedLayer], graph: fx.Graph, x: Tensor) -> None:
    """Refuse a graph that has lost what was written in place."""
    values = {INPUT: x}
    for layer in layers:
        values[layer.name] = layer.function(*(values[name].clone() for name in layer.inputs))
    actual, expected = values[layers[-1].name] if layers else x, network(x.clone())
    if not (actual - expected).norm() <= SAME * expected.norm():
        silent = [n.name for n in graph.nodes if n.op != "output" and not n.users and n.op != "placeholder"]
        where = f"the node {silent[0]!r}, whose value nobody reads" if silent else "random numbers or state"
        raise ValueError(
            f"the graph of {_class(network)} computes something else than the module, because of {where}: write it without "
            "operations in place or randomness"
        )


def _class(module: nn.Module) -> str:
    return type(module).__name__


def _described(output: Any) -> str:
    if isinstance(output, fx.Node):
        return f"the value of {output.name!r}, which is no tensor of floating-point numbers"
    return f"a {type(output).__name__}"
