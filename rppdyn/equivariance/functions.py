"""Functions whose symmetry can be measured: every trained thing gives its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn import RPPEMLP
from rppdyn.reps import Rep

Blocks = Mapping[str, Sequence[int]]


class MeasuredNetwork(NamedTuple):
    """A network inside a function whose hidden representations are known, and what it sees of the function's inputs."""

    module: RPPEMLP
    inputs: Callable[[Tensor], Tensor]


class MeasuredRollout(NamedTuple):
    """Initial states to trajectories over times (s), nan from where they diverged, and the states that tests begin at."""

    solve: Callable[[Tensor], Tensor]
    starts: Float[Tensor, "m dim"]
    times: Float[Tensor, " T"]


@dataclass(frozen=True)
class Function:
    """A function between spaces that one group acts on linearly.

    Attributes:
        name: "policy", "critics", "value", "regressor", "vector field", "change of the state" or "function".
        call: (n, rep_in.dim) to (n, rep_out.dim).
        inputs, outputs: names of the entries, with the indices of each.
        encode: raw observations and actions to inputs; actions have no entries where none are asked for. By default
            observations are the inputs.
        scale: the size of an output that counts as something, per entry; zero where nothing says.
        centred: whether the mean output over the states is taken off: a large constant would make anything look invariant.
        networks: the networks inside, by name.
        seed, samples, rollout: of a fit's member its seed, the inputs of its test data, and its rollouts where it has some.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    rep_in: Rep
    rep_out: Rep
    inputs: Blocks
    outputs: Blocks
    encode: Callable[[Tensor, Tensor], Tensor] = lambda observations, actions: observations
    scale: Tensor = field(default_factory=partial(torch.zeros, 1))
    centred: bool = False
    networks: Mapping[str, MeasuredNetwork] = field(default_factory=dict)
    seed: int = 0
    samples: Float[Tensor, "N dim"] = field(default_factory=partial(torch.zeros, 0, 0))
    rollout: MeasuredRollout | None = None


def index_blocks(parts: Mapping[str, int]) -> dict[str, list[int]]:
    """Indices of the coordinates of each part, from their sizes."""
    blocks, start = {}, 0
    for name, size in parts.items():
        blocks[name] = list(range(start, start + size))
        start += size
    return blocks


def measured_networks(
    name: str, module: nn.Module, inputs: Callable[[Tensor], Tensor], rep_in: Rep
) -> dict[str, MeasuredNetwork]:
    """The network whose layers are told apart, where it was built for this very symmetry."""
    return {name: MeasuredNetwork(module, inputs)} if isinstance(module, RPPEMLP) and module.rep_in == rep_in else {}
