"""Which features of a strict network depend on its input: representations without a common part let nothing through."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from rppdyn.nn.gate import Gate, Pointwise
from rppdyn.nn.linear import RelaxedLinear
from rppdyn.nn.pathways import EquivariantPathway
from rppdyn.reps import Rep

if TYPE_CHECKING:
    from rppdyn.nn.networks import RPPEMLP

__all__ = ["check_bottlenecks"]


def check_bottlenecks(net: RPPEMLP) -> None:
    """Refuse a strict network whose output can't depend on its input, and warn where parts of the output can't.

    A layer between representations without a common part has no equivariant map but zero, whatever is learned. From the
    input to the output, the non-zero entries of the linear maps are followed. Products are taken to reach all features, unless
    what they are made of is invariant.

    Raises:
        ValueError: naming the first layer that lets nothing through, with its representations.
    """
    depends = torch.ones(net.rep_in.dim, dtype=torch.bool)
    is_invariant = False  # whatever is computed from here on
    for name, layer in net.layers():
        if isinstance(layer, RelaxedLinear):
            if not layer.equivariant_pathways or layer.free is not None:
                return
            widest = layer.equivariant_pathways[-1]
            is_invariant = is_invariant or not (depends & _moved(widest.rep_in)).any()
            depends = _through(widest, depends)
            if not depends.any():
                of = "" if widest.weight is None else "what depends on the input in "
                raise ValueError(
                    f"{name} lets nothing through: no equivariant map but zero leads from {of}{layer.rep_in} to "
                    f"{layer.rep_out} of {widest.rep_in.G}. Give hidden layers parts that input and output share, such as "
                    "those of an integer width, or the layers a free pathway (RPPEMLP)"
                )
        elif isinstance(layer, Gate):
            depends = depends[-layer.rep.dim :]
        elif not isinstance(layer, Pointwise):  # a bilinear layer of any kind
            rep = cast(Rep, layer.rep)
            depends = _invariants(_restricted(rep, net)) if is_invariant else torch.ones(rep.dim, dtype=torch.bool)
    constant = [str(part) for part, index in net.rep_out.blocks() if not depends[index].any(1).all()]
    if constant:
        warnings.warn(
            f"parts {', '.join(constant)} of the output {net.rep_out} of {net.group} don't depend on the input: no equivariant "
            "map but zero leads to them from what does in the last hidden layer; give it such parts, or the network a free "
            "pathway (RPPEMLP)",
            stacklevel=3,
        )


def _restricted(rep: Rep, net: RPPEMLP) -> Rep:
    """To the smallest group under which the network is equivariant."""
    G = net.blocks[0].linear.equivariant_pathways[-1].rep_in.G
    return rep if G == rep.G else rep.restrict(G)


def _moved(rep: Rep) -> Bool[Tensor, " dim"]:
    """The coordinates on which the group acts."""
    moved = torch.ones(rep.dim, dtype=torch.bool)
    for part, index in rep.blocks():
        if part.is_trivial:
            moved[index] = False
    return moved


def _invariants(rep: Rep) -> Bool[Tensor, " dim"]:
    """The coordinates in which an invariant vector may differ from zero."""
    return torch.zeros(rep.dim, dtype=torch.bool).index_fill_(0, rep.solve().sparse()[0], True)


def _through(pathway: EquivariantPathway, depends: Bool[Tensor, " in"]) -> Bool[Tensor, " out"]:
    rows, _, values = pathway.weight_map.entries()
    size_out, size_in = pathway.weight_map.shape
    rows = rows[values != 0].cpu()
    rows = rows[depends[rows % size_in]]
    return torch.zeros(size_out, dtype=torch.bool).index_fill_(0, rows // size_in, True)
