"""On which entries of input and output a symmetry is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Inexact
from torch import Tensor

from rppdyn.equivariance.actions import act, check_finite
from rppdyn.equivariance.error import FLOOR, check_inputs, differences, sampled_elements
from rppdyn.reps import Rep

__all__ = ["error_by_input", "error_by_output"]

ROUNDING = 100
"""Errors below this many machine epsilons of the output are rounding, and nothing explains them."""

Blocks = Sequence[str] | Mapping[str, Sequence[int]]
"""One name per entry (as a symmetry spec's ``feature_names``, ``action_names``), or the indices of each named block."""


@torch.no_grad()
def error_by_output(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    blocks: Blocks,
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    r"""The error of each block of the output, 0 (equivariant) to 1.

    .. math:: \sum |a_k - b_k| / \sum (|a_k| + |b_k|), \quad a = \rho_{out}(g) f(x), b = f(\rho_{in}(g) x)

    where sums are over inputs, elements and the entries k of the block. A block that stays zero is nan: vacuous.
    ``elements`` may be given as for :func:`equivariance_error`.

    Raises:
        ValueError: names that are not one per entry, indices out of range, or what :func:`equivariance_error` refuses.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    indices = _indices(blocks, rep_out, "output")
    sums = torch.zeros(2, rep_out.dim, dtype=torch.float64)
    for g in sampled_elements(rep_in.G, len(x), n_samples, generator, elements):
        moved = f(act(rep_in, g, x))
        check_finite(moved, "f(g x)")
        sums += differences(act(rep_out, g, y), moved).sum(1)
    difference, size = sums
    floor = FLOOR * float(size.mean())
    parts = {name: (float(difference[i].sum()), float(size[i].sum())) for name, i in indices.items()}
    return {name: d / s if s > floor * len(indices[name]) else float("nan") for name, (d, s) in parts.items()}


@torch.no_grad()
def error_by_input(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    blocks: Blocks,
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    r"""The share of the error that vanishes when a block of the input is held at a symmetric value.

    The value is the mean over inputs, projected onto the invariants, at which the block says nothing about the symmetry. The
    group must keep the block to itself, so a block is first completed by all entries that the group mixes with it (the left
    leg's by the right leg's); blocks that become the same are reported as one, named ``a, b``. 1 means that the error lives
    on this block alone, 0 that it does not matter, less than 0 that its variation hides an error. Blocks may act together, so
    shares need not add up to 1. All are nan where the error is rounding.

    Raises:
        ValueError: as :func:`error_by_output`.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    elements = sampled_elements(rep_in.G, len(x), n_samples, generator, elements)
    moves = [(_move(rep_in, g), _move(rep_out, g)) for g in elements]

    def error(inputs: Tensor) -> float:
        here = f(inputs.clone())
        pairs = ((move_out(here), f(move_in(inputs))) for move_in, move_out in moves)
        return sum(float(torch.linalg.vector_norm((a - b).double(), dim=-1).sum()) for a, b in pairs)

    neutral = rep_in.solve().project(x.mean(0).to(rep_in.dtype).cpu()).to(x)
    component = rep_in.components
    names: dict[tuple[int, ...], list[str]] = {}
    for name, index in _indices(blocks, rep_in, "input").items():
        touched = component[index].unique()
        names.setdefault(tuple(torch.isin(component, touched).nonzero()[:, 0].tolist()), []).append(name)
    whole, shares = error(x), {}
    rounding = ROUNDING * torch.finfo(y.dtype).eps * len(elements) * float(torch.linalg.vector_norm(y, dim=-1).sum())
    for completed, group in names.items():
        held = x.clone()
        held[:, list(completed)] = neutral[list(completed)]
        shares[", ".join(group)] = float("nan") if whole <= rounding else 1 - error(held) / whole
    return shares


def _move(rep: Rep, g: Tensor) -> Callable[[Tensor], Tensor]:
    """The action of an element; one for all inputs has its matrix made once."""
    if len(g) > 1:
        return lambda x: act(rep, g, x)
    matrix = rep.rho(g[0].to(rep.G.dtype)).mT
    return lambda x: x @ matrix.to(x)


def _indices(blocks: Blocks, rep: Rep, what: str) -> dict[str, Tensor]:
    if isinstance(blocks, Mapping):
        found = {name: torch.as_tensor(list(index), dtype=torch.int64) for name, index in blocks.items()}
    elif len(blocks) != rep.dim or len(set(blocks)) != len(blocks):
        raise ValueError(f"{len(set(blocks))} different names for an {what} of {rep.dim} entries: give one for each")
    else:
        found = {name: torch.tensor([i]) for i, name in enumerate(blocks)}
    for name, index in found.items():
        if not len(index) or index.min() < 0 or index.max() >= rep.dim:
            raise ValueError(f"block {name!r} has indices {index.tolist()} of an {what} of {rep.dim} entries")
    return found
