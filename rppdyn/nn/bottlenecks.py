"""What of its input reaches a strict network's layers: representations without a common part let nothing through."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rppdyn.nn.bilinear import Bilinear
from rppdyn.nn.gate import Gate
from rppdyn.nn.linear import RelaxedLinear
from rppdyn.nn.pathways import EquivariantPathway

if TYPE_CHECKING:
    from rppdyn.nn.networks import RPPEMLP

__all__ = ["check_bottlenecks"]

Reached = tuple[Tensor, Tensor]
"""Two masks: features that depend on the input, and features that are not zero for every input, of biases alone, say."""


def check_bottlenecks(net: RPPEMLP) -> None:
    """Refuse a strict network whose output can't depend on its input, and warn where entries of it are always zero.

    A layer between representations without a common part has no equivariant map but zero, whatever is learned. Followed are
    the non-zero entries of all equivariant maps, from the input's features to the output's.

    Raises:
        ValueError: naming the first layer that lets nothing through, with its representations.
    """
    everything = torch.ones(net.rep_in.dim, dtype=torch.bool)
    reached: Reached = everything, everything
    for name, layer in net.layers():
        if isinstance(layer, RelaxedLinear):
            if layer.equivariant is None or layer.free is not None:
                return
            reached = _linear(layer.equivariant, reached)
            if not reached[0].any():
                of = "" if layer.equivariant.weight is None else "what depends on the input in "
                raise ValueError(
                    f"{name} lets nothing through: no equivariant map but zero leads from {of}{layer.rep_in} to "
                    f"{layer.rep_out} of {net.group}. Give hidden layers parts that input and output share, such as those of "
                    "an integer width, or the layers a free pathway (RPPEMLP)"
                )
        elif isinstance(layer, Bilinear):
            reached = _bilinear(layer, reached)
        elif isinstance(layer, Gate):
            reached = _gated(layer, reached)
    if not reached[1].all():
        zero = [str(part) for part, index in net.rep_out.blocks() if not reached[1][index].any(1).all()]
        warnings.warn(
            f"parts {', '.join(zero)} of the output {net.rep_out} of {net.group} are zero for every input: no equivariant map "
            "but zero leads to them from the last hidden layer; give it such parts, or the network a free pathway (RPPEMLP)",
            stacklevel=3,
        )


def _linear(pathway: EquivariantPathway, reached: Reached) -> Reached:
    rows, _, values = pathway.weight_map.entries()
    size_out, size_in = pathway.weight_map.shape
    rows = rows[values != 0].cpu()
    outs, ins = rows // size_in, rows % size_in

    def through(known: Tensor) -> Tensor:
        return torch.zeros(size_out, dtype=torch.bool).index_fill_(0, outs[known[ins]], True)

    depends, nonzero = map(through, reached)
    if pathway.bias_map is not None:
        rows, _, values = pathway.bias_map.entries()
        nonzero[rows[values != 0].cpu()] = True
    return depends, nonzero


def _bilinear(layer: Bilinear, reached: Reached) -> Reached:
    depends, nonzero = (known.clone() for known in reached)
    indices = [index for _, index in layer.rep.blocks()]
    before = [[known[index].any(0) for known in reached] for index in indices]  # of one copy, whichever it is
    for k in layer.contractions:
        (map_depends, map_nonzero), (in_depends, in_nonzero) = before[k.map], before[k.into]
        coordinates = torch.tensor(k.coordinates).view(k.dim_out, k.dim_in)
        moved = (map_depends[coordinates] & in_nonzero) | (map_nonzero[coordinates] & in_depends)
        depends[indices[k.out]] |= moved.any(1)
        nonzero[indices[k.out]] |= (map_nonzero[coordinates] & in_nonzero).any(1)
    return depends, nonzero


def _gated(layer: Gate, reached: Reached) -> Reached:
    depends, nonzero = reached
    gates = len(depends) - layer.rep.dim
    return depends[gates:] | (nonzero[gates:] & depends[:gates].any()), nonzero[gates:]
