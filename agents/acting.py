"""What actors do at observations: several agents' at once, and nothing but the actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rppdyn.agents import gaussian
from rppdyn.agents.functional import Networks
from rppdyn.agents.networks import SymmetricFeatures


def acted(
    actors: Networks, weights: Any, observations: Tensor, noise: Tensor, extractors: Sequence[SymmetricFeatures],
    blocks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Actions in [-1, 1] of S agents, (S, B, m), sampled with the noise, (S, B, m), at raw observations (S, B, n).

    Args:
        weights: what `actors.weights` returned.
        extractors: of each agent; they take the features.
    """
    each = [extractor(seen) for extractor, seen in zip(extractors, observations.unbind(), strict=True)]
    return gaussian.action(actors(torch.stack(each), weights), noise, blocks)
