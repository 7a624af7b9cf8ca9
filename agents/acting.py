"""What actors do at observations: several agents' at once, and nothing but the actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rppdyn.agents import gaussian
from rppdyn.agents.functional import Networks
from rppdyn.agents.networks import SymmetricFeatures


def acted(
    actors: Networks, vectors: Tensor, observations: Tensor, noise: Tensor, extractors: Sequence[SymmetricFeatures],
    blocks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Actions in [-1, 1] of S agents, (S, B, m), sampled with the noise, (S, B, m), at raw observations (S, B, n).

    Args:
        vectors: the actors' parameters, (S, n_pi).
        extractors: of each agent; they take the features.
    """
    each = [extractor(seen) for extractor, seen in zip(extractors, observations.unbind(), strict=True)]
    features = each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)
    return gaussian.action(actors(features, actors.weights(vectors)), noise, blocks)
