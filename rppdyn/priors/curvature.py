"""Kronecker-factored Gauss-Newton curvature of every pathway of a network, from what its layers are given and give."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rppdyn.nn.curvature import Kronecker
from rppdyn.nn.networks import RPPEMLP, Weights
from rppdyn.nn.pathways import AffineMap, Pathway
from rppdyn.nn.stacking import Stack
from rppdyn.priors.likelihood import Likelihood

__all__ = ["Blocks", "PredictEach", "curvature", "gradient_curvature"]

Blocks = dict[tuple[str, str], list[Kronecker]]
"""Curvature by layer and pathway, as `rppdyn.nn.pathways.named_pathways` names them."""

PredictEach = Callable[[Stack, Weights | None, Any], Tensor]
"""Outputs ``(N, *out)`` of N data by a stack of as many networks, one for each, with weights that were assembled or None."""

Uses = dict[str, list[tuple[Tensor, Tensor]]]


def curvature(
    module: nn.Module,
    predict: Callable[[Any], Tensor],
    batches: Iterable[Any],
    likelihood: Likelihood,
    *,
    total: int | None = None,
    generator: torch.Generator | None = None,
) -> Blocks:
    r"""Curvature of the negative log-likelihood of all data, block by block: the generalised Gauss-Newton matrix

    .. math:: \sum_n J_n^T H_n J_n, \qquad H_n = \sum_s v_{ns} v_{ns}^T,

    without the blocks between pathways, and each pathway's own block in the Kronecker-factored form that the pathway gives
    it (:class:`~rppdyn.nn.curvature.Kronecker`). Layers that are used several times, along a rollout for instance, are treated
    like weights that are shared between places.

    Layers are watched while they run: each must be called as a module, once or more, with its input first (an `RPPEMLP`
    inside :class:`~rppdyn.nn.Chained`). Whether their parameters are frozen does not matter.

    Args:
        module: what contains the layers.
        predict: outputs ``(N, *out)`` of a batch, computed with the module's layers.
        batches: of inputs; empty ones are passed over.
        likelihood: of the outputs.
        total: number of data that the curvature is of, one or more; those in the batches if None.
        generator: draws one target for each datum from the likelihood, which costs one backward pass; without it there is one
            for each factor of the Hessian, as many as there are outputs.
    Returns:
        Factors of all pathways that have curvature, in float64, ``A`` a mean over data and ``G`` a sum over ``total`` of them.
    Raises:
        ValueError: there are no data, `predict` calls no layer with such pathways, or gradients are ruled out.
    """
    _check(total)
    sums: Blocks = {}
    count = 0
    for batch in batches:
        with torch.enable_grad(), _watched(module) as uses:
            outputs = predict(batch)
            if not uses:
                raise ValueError(
                    f"predict called no layer of {type(module).__name__} that has pathways with curvature: of an RPPEMLP, "
                    "predict with rppdyn.nn.Chained(net)"
                )
            if not len(outputs):
                continue
            factors = likelihood.factors(outputs.detach(), generator)
            found = [(name, x, y) for name, calls in uses.items() for x, y in calls]
            gradients = [_gradients(outputs, [y for *_, y in found], factor) for factor in factors]
        by_layer: Blocks = defaultdict(list)
        for (name, x, _), g in zip(found, zip(*gradients, strict=True), strict=True):
            _add_use(by_layer, name, module.get_submodule(name), x, torch.stack(g), len(uses[name]))
        for key, blocks in by_layer.items():
            _add(sums, key, blocks)
        count += len(outputs)
    scale = _scale(count, total)
    return {key: [b._replace(A=b.A / count, G=b.G * scale) for b in blocks] for key, blocks in sums.items()}


def gradient_curvature(
    net: RPPEMLP,
    predict: PredictEach,
    batches: Iterable[Any],
    likelihood: Likelihood,
    *,
    total: int | None = None,
    generator: torch.Generator | None = None,
) -> Blocks:
    r"""The same where weights enter in other ways than as maps of features, as those of a Hamiltonian enter its vector field.

    With gradients :math:`M_{ns}` of every datum, a pathway's block :math:`\sum \mathrm{vec}(M_{ns}) \mathrm{vec}(M_{ns})^T` is
    approximated by the Kronecker product that has the same partial traces, and so the same trace:
    :math:`A = \sum M^T M / \sum |M|^2`, :math:`G = \sum M M^T` (Ren & Goldfarb 2021). For a linear model with normal noise
    both functions are exact.

    Args:
        predict: outputs ``(N, *out)`` of a batch by a stack of as many copies of the network, one for each datum, with these
            weights (as `Stack.assemble` gives them).
    """
    _check(total)
    net = copy.deepcopy(net)
    net.fourier = None  # dense weights are what pathways contribute to
    sums: Blocks = {}
    count = 0
    for batch in batches:
        if not len(batch):
            continue
        with torch.no_grad():
            stack = Stack([net] * len(batch))
            weights = stack.assemble()
        layers = _leaves(net, weights)
        leaves = [w.requires_grad_() for own in layers.values() for w in own if w is not None]
        with torch.enable_grad():
            outputs = predict(stack, weights, batch)
            for factor in likelihood.factors(outputs.detach(), generator):
                gradients = iter(_gradients(outputs, leaves, factor))
                for name, (_, bias) in layers.items():
                    by_weight, by_bias = next(gradients), None if bias is None else next(gradients)
                    for pathway_name, pathway in _curved(net.get_submodule(name)):
                        _add(sums, (name, pathway_name), pathway.gradient_curvature(by_weight, by_bias))
        count += len(outputs)
    scale = _scale(count, total)
    return {key: [_normalised(b, scale) for b in blocks] for key, blocks in sums.items()}


def _check(total: int | None) -> None:
    if total is not None and not total >= 1:
        raise ValueError(f"total={total}: give a number of data, one or more, or None for those in the batches")
    if torch.is_inference_mode_enabled():
        raise ValueError("curvature needs gradients, which torch.inference_mode() rules out: call it outside of it")


def _scale(count: int, total: int | None) -> float:
    """What makes a sum over the data that were given one over ``total`` of them."""
    if not count:
        raise ValueError("curvature of no data: give one batch or more that is not empty")
    return 1.0 if total is None else total / count


def _leaves(net: RPPEMLP, weights: Weights) -> dict[str, AffineMap]:
    """The assembled weights of the layers that have pathways with curvature."""
    found = {"head": weights[-1]}
    for i, (linear, _, gate) in enumerate(weights[:-1]):
        found |= {f"blocks.{i}.linear": linear, f"blocks.{i}.gate": (gate, None)}
    return {name: own for name, own in found.items() if _curved(net.get_submodule(name))}


def _normalised(block: Kronecker, scale: float) -> Kronecker:
    """Of gradients: A divided by its trace, unless it is zero, and G multiplied."""
    assert isinstance(block.A, Tensor)
    traces = block.A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return block._replace(A=block.A / torch.where(traces > 0, traces, torch.ones_like(traces)), G=block.G * scale)


@contextmanager
def _watched(module: nn.Module) -> Iterator[Uses]:
    """Inputs and outputs of the layers that own pathways with curvature, in the order of their calls."""
    uses: Uses = defaultdict(list)
    hooks = []

    def watch(name: str, _: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
        if not y.requires_grad:  # nothing before it does, nor its own parameters: gradients by it begin here
            y = y.detach().requires_grad_()
        uses[name].append((args[0].detach(), y))
        return y

    for name, layer in module.named_modules():
        if _curved(layer):
            hooks.append(layer.register_forward_hook(partial(watch, name)))
    try:
        yield uses
    finally:
        for hook in hooks:
            hook.remove()


def _curved(layer: nn.Module) -> list[tuple[str, Pathway]]:
    children = layer.named_children()
    return [(name, p) for name, p in children if isinstance(p, Pathway) and p.has_curvature]


def _gradients(outputs: Tensor, of: list[Tensor], factor: Tensor) -> list[Tensor]:
    if not outputs.requires_grad:
        raise ValueError(
            "predict's outputs have no gradient by its layers': compute them without no_grad() and detach()"
        )
    found = torch.autograd.grad(outputs, of, factor, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(y) if g is None else g for y, g in zip(of, found, strict=True)]


def _add_use(sums: Blocks, name: str, layer: nn.Module, x: Tensor, g: Tensor, uses: int) -> None:
    """One call of a layer; G is a mean over calls, as it is over places."""
    for pathway_name, pathway in _curved(layer):
        with torch.no_grad():
            blocks = pathway.curvature(x, g)
            blocks = [b._replace(G=b.G / uses) for b in blocks] if uses > 1 else blocks
        _add(sums, (name, pathway_name), blocks)


def _add(sums: Blocks, key: tuple[str, str], blocks: list[Kronecker]) -> None:
    before = sums.get(key)
    sums[key] = (
        blocks
        if before is None
        else [a._replace(A=a.A + b.A, G=a.G + b.G) for a, b in zip(before, blocks, strict=True)]
    )
