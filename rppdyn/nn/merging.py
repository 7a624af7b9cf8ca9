"""Merge the pathways of a trained network into ordinary linear layers; a module of its own, since it knows every layer."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rppdyn.nn.bilinear import Bilinear
from rppdyn.nn.hidden import Gate
from rppdyn.nn.linear import RelaxedLinear
from rppdyn.nn.pathways import named_pathways
from rppdyn.nn.products import ChannelProducts

KNOWN = (RelaxedLinear, Gate, Bilinear, ChannelProducts)
"""Layers with pathways that become an ``nn.Linear`` or remain."""


def merge(net: nn.Module) -> nn.Module:
    """A copy that computes the same function, each relaxed layer one ``nn.Linear``; gates and bilinear layers remain.

    The result costs what an MLP of its width costs. The pathways of its linear layers are gone, and their priors with
    them; those of gates and bilinear layers remain.

    Raises:
        ValueError: naming a layer with pathways of another kind, such as those of images.
    """
    for name, *_ in named_pathways(net):
        if not isinstance(layer := net.get_submodule(name), KNOWN):
            raise ValueError(
                f"{name or 'the module'} is a {type(layer).__name__}, which no nn.Linear can take the place of: "
                "merge networks of RelaxedLinear alone"
            )
    if isinstance(net, RelaxedLinear):
        return _merged(net)
    merged = copy.deepcopy(net)
    linears: dict[nn.Module, nn.Linear] = {}  # a layer that is in two places stays one
    for parent in list(merged.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out what has been there before
            if isinstance(child, RelaxedLinear):
                if child not in linears:
                    linears[child] = _merged(child)
                setattr(parent, name, linears[child])
    return merged


def _merged(layer: RelaxedLinear) -> nn.Linear:
    with torch.no_grad():
        weight, bias = layer.assemble()
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
        linear.weight = nn.Parameter(weight.detach().clone())
        linear.bias = nn.Parameter(weight.new_zeros(len(weight)) if bias is None else bias.detach().clone())
    return linear.train(layer.training)
