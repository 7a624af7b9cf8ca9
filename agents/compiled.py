"""Gradient updates by torch.compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from rppdyn.agents.functional import Perceptrons
from rppdyn.agents.update import State, UpdateConfig, step_
from rppdyn.nn.compiling import compiled


class CompiledUpdate:
    """`update_`, in which torch.compile leaves the matrix products and one operation for all that is between two of them.

    The first call compiles, and so does one with other shapes or settings; the learning rate may change without. Networks are
    `Perceptrons`: what goes through autograd can't be compiled.
    """

    def __init__(self) -> None:
        self._step = compiled(step_, fullgraph=True, dynamic=False)

    def __call__(
        self, state: State, batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig
    ) -> dict[str, Tensor]:
        like = state["actor"]
        for networks in (config.actors, config.critics):
            if isinstance(networks, Perceptrons):
                networks.assembly(like)  # makes tables at the first call
        rate = torch.as_tensor(config.learning_rate, dtype=like.dtype)
        with torch.no_grad():
            priors = config.actors.prior(), config.critics.prior()
            return self._step(state, batch, noise, dataclasses.replace(config, learning_rate=rate), priors)
