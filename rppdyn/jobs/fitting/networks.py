"""The configured networks of a fit, one for each seed, and all of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from rppdyn.errors import is_out_of_memory
from rppdyn.groups import Group
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.config.fit import FitConfig, NetworkConfig
from rppdyn.nn import EMLP, MLP, RPPEMLP, Stack
from rppdyn.nn.hidden import component_major
from rppdyn.priors import learn_variances
from rppdyn.reps import Rep

__all__ = ["build_network", "build_stack", "stack_of", "under_group", "widest"]

Made = TypeVar("Made")


def under_group(text: str | None, make: Callable[[Group | None], Made]) -> Made:
    """What is made of a task with the group that its configuration names; a refusal of the group names the key."""
    group = None if text is None else notation.group(text, "task.group")
    try:
        return make(group)
    except ValueError as error:
        if not str(error).startswith("group="):
            raise
        raise ConfigError(f"task.{error}") from error


def build_network(
    config: NetworkConfig,
    rep_in: Rep,
    rep_out: Rep,
    seed: int,
    output_scale: float = 1.0,
    symmetries: Sequence[str] | None = None,
) -> RPPEMLP:
    """The configured network with initial weights of a seed.

    Args:
        output_scale: multiplies those of the last layer.
        symmetries: names of the generators of a symmetry spec's group, which a chain may be written in.
    """
    options: dict[str, Any] = dict(
        output_scale=output_scale,
        hidden=_hidden(config.hidden, rep_in.G),
        num_layers=config.num_layers,
        architecture=config.architecture,
        activation=config.activation or "swish",
        bilinear=config.bilinear,
        bilinear_maps=config.bilinear_maps,
        generator=torch.Generator().manual_seed(seed),
    )
    if config.kind == "mlp":
        return MLP(rep_in, rep_out, rep_in.G, free_variance=config.free, **options)
    options["equivariant_variance"] = config.equivariant_variance
    if config.kind == "emlp":
        return EMLP(rep_in, rep_out, rep_in.G, **options)
    if config.groups is not None:
        options.pop("equivariant_variance")
        remedy = ", or give task.group the chain's first" if symmetries is None else ""
        groups = notation.chain(config.groups, rep_in.G, symmetries or (), remedy)
        options |= dict(groups=groups, variances=config.variances)
        return RPPEMLP(rep_in, rep_out, **options)
    options |= dict(free_variance=config.free, parametrisation=config.parametrisation)
    return RPPEMLP(rep_in, rep_out, rep_in.G, **options)


def _hidden(hidden: int | str | list, G: Group) -> Any:
    if isinstance(hidden, list):
        return [_hidden(layer, G) for layer in hidden]
    if isinstance(hidden, str):
        return component_major(notation.representation("model.hidden", hidden, G))
    return hidden


def widest(hidden: int | str | list, G: Group) -> int:
    """The inputs of the layer that has most of those between hidden ones and the last."""
    layers = [_hidden(layer, G) for layer in (hidden if isinstance(hidden, list) else [hidden])]
    return max(layer if isinstance(layer, int) else layer.dim for layer in layers)


def build_stack(
    config: FitConfig,
    rep_in: Rep,
    rep_out: Rep,
    output_scale: float = 1.0,
    symmetries: Sequence[str] | None = None,
    plain: bool = False,
) -> Stack:
    """A member for each seed; other arguments are those of :func:`build_network`.

    Args:
        plain: whether networks are plain whatever is configured, since no symmetry was found for them.
    Raises:
        ConfigError: their weights don't fit in memory.
    """
    model = replace(config.model, kind="mlp", free_variance=config.model.free or 1.0) if plain else config.model
    try:
        nets = [build_network(model, rep_in, rep_out, seed, output_scale, symmetries) for seed in config.all_seeds]
        return stack_of(config, nets)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"model.hidden={config.model.hidden}, {len(config.all_seeds)} of them: the weights don't fit in memory; give fewer "
            "channels"
        ) from error


def stack_of(config: FitConfig, nets: Sequence[nn.Module]) -> Stack:
    """Networks as one; their prior variances are parameters where they are learned."""
    if config.objective == "marginal_likelihood":
        for net in nets:
            learn_variances(net, config.marginal_likelihood.curvature)
    stack = Stack(nets)
    return stack.to(device=device_of(config.device), dtype=getattr(torch, config.dtype))
