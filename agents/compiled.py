"""Gradient updates by torch.compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rppdyn.agents.functional import Perceptrons
from rppdyn.agents.update import State, UpdateConfig, bias_corrections, step_
from rppdyn.nn.compiling import compiled

NUMBERS = ("learning_rate", "tau", "gamma", "noise_variance", "target_entropy")
"""What may change from update to update without compiling anew."""


class CompiledUpdate:
    """`update_`, in which torch.compile leaves the matrix products and one operation for all that is between two of them.

    The first call compiles, and so does one with batches of another size or with settings that are not among `NUMBERS`.
    Networks are `Perceptrons`: what goes through autograd can't be compiled.
    """

    def __init__(self) -> None:
        self._steps: dict[Any, Any] = {}  # by the batches' shape, since torch has a limit for each

    def __call__(
        self, state: State, batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig
    ) -> dict[str, Tensor]:
        like, shape = state["actor"], batch["rewards"].shape
        if shape not in self._steps:
            self._steps[shape] = compiled(step_, fullgraph=True, dynamic=False)
        for networks in (config.actors, config.critics):
            if isinstance(networks, Perceptrons):
                networks.assembly(like)  # makes tables at the first call
        numbers: dict[str, Any] = {name: torch.as_tensor(getattr(config, name), dtype=like.dtype) for name in NUMBERS}
        with torch.no_grad():
            priors = config.actors.prior(), config.critics.prior()
            corrections = bias_corrections(state, config)
            # of one shape, whose loops become one
            rows = {name: vectors.flatten(0, -2) for name, vectors in state.items()}
            return self._steps[shape](rows, batch, noise, dataclasses.replace(config, **numbers), priors, corrections)

    def __reduce__(self) -> tuple:
        return CompiledUpdate, ()  # what torch compiled stays here
