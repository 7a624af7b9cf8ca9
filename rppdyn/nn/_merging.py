"""Networks for inference: `merge` sums the pathways of each linear layer, `freeze` leaves few operations of plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.nn._bilinear import Bilinear
from rppdyn.nn._hidden import SWISH, AtPoints, Gate, Pointwise
from rppdyn.nn._linear import RelaxedLinear, check_size
from rppdyn.nn._networks import RPPEMLP, HiddenBlock
from rppdyn.nn._pathways import AffineMap, BreakingInputs, named_pathways
from rppdyn.nn._products import ChannelProducts

MERGEABLE_LAYERS = (RelaxedLinear, Gate, Bilinear, ChannelProducts)
"""Layers with pathways that `merge` turns into an ``nn.Linear`` (the first) or keeps."""


def merge(net: nn.Module) -> nn.Module:
    """A copy that computes the same function, each relaxed layer one ``nn.Linear``; gates and bilinear layers remain.

    The pathways of linear layers and their priors are gone; those of gates and bilinear layers remain. With point-wise
    activations the copy costs as much as an MLP of its width; for others there is :func:`freeze`.

    Raises:
        ValueError: naming a layer with pathways of another kind, such as those of images.
    """
    for name, _, pathway in named_pathways(net):
        layer = net.get_submodule(name)
        if not isinstance(pathway, BreakingInputs) and not isinstance(layer, MERGEABLE_LAYERS):
            raise ValueError(
                f"{name or 'the module'} is a {type(layer).__name__}, which no nn.Linear can take the place of: "
                "merge networks of RelaxedLinear alone"
            )
    return replace_modules(copy.deepcopy(net), RelaxedLinear, _merge_linear)


def freeze(net: nn.Module) -> nn.Module:
    """A copy for inference and export that computes the same function by few operations of torch, without gradients.

    A block with gates or channel-wise products is two affine maps, one product of operands and one gated linear unit
    (:class:`FrozenBlock`). Published bilinear layers, and gates beside an activation other than swish, remain as in
    :func:`merge`.

    Raises:
        ValueError: the reason of `merge`.
    """
    return replace_modules(merge(net), RPPEMLP, FrozenNetwork).requires_grad_(False)


def replace_modules(
    module: nn.Module, kinds: Any, replacement: Callable[[Any], nn.Module], visited: dict | None = None
) -> Any:
    """Replace a module, or its submodules, of these kinds, in place; one that stands in two places stays one module."""
    visited = {} if visited is None else visited
    if module not in visited:
        visited[module] = replacement(module) if isinstance(module, kinds) else module
        children = module._modules if visited[module] is module else {}  # named_children() leaves out repeated modules
        for name, child in children.items():
            if child is not None and (new := replace_modules(child, kinds, replacement, visited)) is not child:
                setattr(module, name, new)
    return visited[module]


@torch.no_grad()
def _merge_linear(layer: RelaxedLinear) -> nn.Linear:
    return _linear(*layer.assemble()).train(layer.training)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().clone())
    linear.bias = nn.Parameter(weight.new_zeros(len(weight)) if bias is None else bias.detach().clone())
    return linear


class FrozenNetwork(nn.Module):
    """The layers of a network, with weights assembled once."""

    def __init__(self, net: RPPEMLP):
        super().__init__()
        self.rep_in, self.rep_out = net.rep_in, net.rep_out
        with torch.no_grad():
            *hidden, head = net.assemble()
            blocks = [_freeze_block(block, *weights) for block, weights in zip(net.blocks, hidden, strict=True)]
        self.layers = nn.Sequential(*blocks, _linear(*head))

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        check_size(x, self.rep_in)
        if x.ndim == 2:
            return self.layers(x)
        return self.layers(x.reshape(-1, self.rep_in.dim)).view(*x.shape[:-1], self.rep_out.dim)


def _freeze_block(block: HiddenBlock, linear: AffineMap, bilinear: Tensor | None, free: Tensor | None) -> nn.Module:
    gate = block.gate
    if block.is_plain:
        return nn.Sequential(_linear(*linear), cast(Pointwise, gate).activation.module())
    layers = [layer.layer if isinstance(layer, AtPoints) else layer for layer in (gate, block.bilinear)]
    if isinstance(layers[0], Gate) and layers[0].activation is SWISH and not isinstance(layers[1], Bilinear):
        points = gate.points if isinstance(gate, AtPoints) else 1
        return FrozenBlock(layers[0], cast("ChannelProducts | None", layers[1]), points, linear, bilinear, free)
    merged = copy.deepcopy(block)
    merged.linear = _linear(*linear)  # type: ignore[assignment]
    return merged


class FrozenBlock(nn.Module):
    r"""``v sigmoid(h) + c swish(v)`` with ``(v, h) = A x + a + M (u_c x w_c)`` and operands ``u, w`` that are affine in ``x``.

    Each coordinate v has a row of its own for its gate h (v itself where the activation is point-wise), so that the gate is one
    gated linear unit without a gather.

    Args:
        points: the number of points; rows are the same at each.
        linear: weight and bias of the layer before gate and products.
        matrix: M, the matrix from products of operands, see :meth:`ChannelProducts.matrix`.
        free: c of the relaxed gate.
    """

    products: Tensor | None
    free: Tensor | None

    def __init__(
        self, gate: Gate, products: ChannelProducts | None, points: int, linear: AffineMap, matrix: Tensor | None,
        free: Tensor | None,
    ):  # fmt: skip
        super().__init__()
        weight, bias = linear
        n, gates, device = gate.rep.dim, gate.num_gates, weight.device
        order = torch.arange(gates + n, device=device) if gate.order is None else gate.order
        place = torch.arange(n, device=device) if gate.inverse is None else gate.inverse
        rows = torch.cat([order[gates + place], order[gate.gates[place]]])  # of the coordinates, then of their gates
        self.points, self.sizes = points, [2 * n]
        self.register_buffer("products", None)
        if products is not None and matrix is not None:
            d, k = products.operand_dim, products.channels
            matrix = matrix if products.inverse is None else matrix[products.inverse]
            self.products = matrix[rows].T.contiguous()
            operands = products.rep.dim + torch.arange(2 * d * k, device=device).view(d, 2, k).transpose(0, 1)
            rows = torch.cat([rows, operands.flatten()])
            self.sizes, self.operands = [2 * n, d * k, d * k], (d, k)
        weight = weight.unflatten(0, (-1, points))[rows].transpose(0, 1).flatten(0, 1)
        bias = None if bias is None else bias.view(-1, points)[rows].T.flatten()
        self.linear = _linear(weight, bias)
        self.register_buffer("free", None if free is None else free.detach().clone())

    def forward(self, x: Float[Tensor, "batch in"]) -> Float[Tensor, "batch out"]:
        y = self.linear(x)
        if self.points > 1:
            y = y.view(-1, sum(self.sizes))
        if self.products is not None:
            d, k = self.operands
            y, u, v = y.split(self.sizes, 1)
            pairs = u.view(-1, d, 1, k) * v.view(-1, 1, d, k)
            y = torch.addmm(y, pairs.view(-1, d * d * k), self.products)
        z = F.glu(y, 1)
        if self.free is not None:
            z = torch.addcmul(z, self.free, F.silu(y[:, : len(self.free)]))
        return z.view(-1, self.points * z.shape[1]) if self.points > 1 else z
