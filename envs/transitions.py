"""Data for transition models: chunks of episodes to train on, and long trajectories of other episodes to be judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.envs.episodes import Episode, EpisodeDataset
from rppdyn.envs.spec import SymmetrySpec

__all__ = ["Segments", "TransitionData", "draw_chunks", "hold_out", "transition_data"]

SPLIT_SEED = 0
"""Of the episodes held out: the same for every seed of a fit, so that seeds are compared on the same trajectories."""


@dataclass(frozen=True)
class Segments:
    """Segments of one length out of episodes: features, actions and rewards in float64.

    Attributes:
        states: ``(n, T + 1, features)``.
        actions: ``(n, T, m)``; action t leads from state t to t + 1.
        rewards: ``(n, T)``, of these steps.
    """

    states: Float[Tensor, "n T1 f"]
    actions: Float[Tensor, "n T m"]
    rewards: Float[Tensor, "n T"]

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class TransitionData:
    """A dataset's episodes parted: to train on, to choose by, and to be judged by; no episode is in two of them."""

    train: tuple[Episode, ...]
    validation: Segments
    test: Segments


def transition_data(
    dataset: EpisodeDataset, spec: SymmetrySpec, *, held_out: float, trajectories: int, length: int
) -> TransitionData:
    """Part a dataset by episodes.

    Args:
        spec: encodes observations.
        held_out: share of the episodes of at least ``length`` steps that go to the test, and as many again to validation.
        trajectories: how many of ``length`` steps are drawn from each of the two.
    Raises:
        ValueError: the held-out episodes hold fewer, or the spec is of another environment.
    """
    _check(dataset, spec)
    train, validation, test = hold_out(dataset, held_out, length)

    def draw(episodes: Sequence[Episode], what: str) -> Segments:
        too_few = lambda available: (  # noqa: E731
            f"its {len(episodes)} {what} episodes have {available} trajectories of {length} steps, not {trajectories}: give "
            f"task.trajectories={available}, a larger task.held_out, or collect more"
        )
        return _drawn(dataset, spec, episodes, trajectories, length, SPLIT_SEED, too_few)

    return TransitionData(train, draw(validation, "validation"), draw(test, "test"))


def hold_out(
    dataset: EpisodeDataset, share: float, length: int
) -> tuple[tuple[Episode, ...], tuple[Episode, ...], tuple[Episode, ...]]:
    """Episodes to train on, for validation and for the test. Held-out ones are drawn from those of at least ``length`` steps.

    Raises:
        ValueError: there are not three such episodes.
    """
    episodes = dataset.episodes
    long = [index for index, episode in enumerate(episodes) if len(episode) >= length]
    if len(long) < 3:
        raise ValueError(
            f"{dataset.name}: {len(long)} of {len(episodes)} episodes have {length} steps, and one each is needed for "
            "training, validation and test; collect more, or make task.length smaller"
        )
    count = max(1, round(share * len(long)))
    if 2 * count >= len(episodes):
        raise ValueError(
            f"{dataset.name}: task.held_out={share:g} twice leaves no episode to train on; make it smaller"
        )
    chosen = np.random.default_rng(SPLIT_SEED).permutation(long)[: 2 * count].tolist()
    taken = set(chosen)
    pick = lambda indices: tuple(episodes[i] for i in sorted(indices))  # noqa: E731
    return pick(set(range(len(episodes))) - taken), pick(chosen[:count]), pick(chosen[count:])


def draw_chunks(
    dataset: EpisodeDataset, spec: SymmetrySpec, episodes: Sequence[Episode], count: int, length: int, seed: int
) -> Segments:
    """Disjoint segments of ``length`` steps, drawn uniformly from all that the episodes can be cut into.

    Raises:
        ValueError: naming how many there are, if fewer.
    """
    too_few = lambda available: (  # noqa: E731
        f"its training episodes have {available} chunks of {length} steps, not {count}: give "
        f"task.train={available * length} at most, shorter chunks, or collect more"
    )
    return _drawn(dataset, spec, episodes, count, length, seed, too_few)


def _check(dataset: EpisodeDataset, spec: SymmetrySpec) -> None:
    sizes = dataset.episodes[0].observations.shape[1], dataset.episodes[0].actions.shape[1]
    if sizes != (spec.obs.dim, spec.action.dim):
        raise ValueError(
            f"{dataset.name} has observations and actions of {sizes[0]} and {sizes[1]} numbers, the symmetry spec of "
            f"{spec.env_id} is for {spec.obs.dim} and {spec.action.dim}"
        )


def _drawn(
    dataset: EpisodeDataset,
    spec: SymmetrySpec,
    episodes: Sequence[Episode],
    count: int,
    length: int,
    seed: int,
    too_few: Callable[[int], str],
) -> Segments:
    """Disjoint segments, drawn uniformly; ``too_few`` says of how many there are what is to be done."""
    rng = np.random.default_rng(seed)
    starts = _cuts(episodes, length, rng)
    if len(starts) < count:
        raise ValueError(f"{dataset.name}: {too_few(len(starts))}")
    return _segments(spec, episodes, [starts[i] for i in rng.permutation(len(starts))[:count]], length)


def _cuts(episodes: Sequence[Episode], length: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Beginnings of disjoint segments, (episode, step); where an episode has steps to spare the first begins at random."""
    starts: list[tuple[int, int]] = []
    for index, episode in enumerate(episodes):
        count, spare = divmod(len(episode), length)
        if count:
            first = int(rng.integers(spare + 1))
            starts += [(index, first + k * length) for k in range(count)]
    return starts


def _segments(
    spec: SymmetrySpec, episodes: Sequence[Episode], starts: Sequence[tuple[int, int]], length: int
) -> Segments:
    observations = np.stack([episodes[i].observations[t : t + length + 1] for i, t in starts])
    actions = np.stack([episodes[i].actions[t : t + length] for i, t in starts])
    rewards = np.stack([episodes[i].rewards[t : t + length] for i, t in starts])
    return Segments(spec.encode(torch.from_numpy(observations)), *map(torch.from_numpy, (actions, rewards)))
