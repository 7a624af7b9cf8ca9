"""Chunks and held-out trajectories: uniform, disjoint, and never of one episode in two parts."""

import numpy as np
import pytest
import torch

from rppdyn.envs import Episode, symmetry_spec
from rppdyn.envs._episodes import EpisodeDataset, draw_chunks, transition_data

SPEC = symmetry_spec("InvertedPendulum-v5")


def dataset(*lengths: int) -> EpisodeDataset:
    """Episodes whose observations say which step of which episode they are."""
    episodes = []
    for index, length in enumerate(lengths):
        step = np.arange(length + 1.0)
        observations = np.stack([np.full(length + 1, float(index)), step, 0 * step, 0 * step], 1)
        episodes.append(Episode(observations, step[:-1, None] / 1000, np.zeros(length)))
    return EpisodeDataset("some/data-v0", SPEC.env_id, {}, tuple(episodes))


def origin(states: torch.Tensor) -> torch.Tensor:
    """Episode and step of each state."""
    return torch.from_numpy(SPEC.decode(states).numpy())[..., :2].round().to(torch.int64)


def test_no_episode_is_in_two_parts_and_segments_are_whole():
    data = transition_data(dataset(*[250] * 20), SPEC, held_out=0.1, trajectories=4, length=100)
    chunks = draw_chunks(dataset(*[250] * 20), SPEC, data.train, 300, 10, seed=1)
    parts = [origin(part.states) for part in (chunks, data.validation, data.test)]
    seen = [set(part[..., 0].flatten().tolist()) for part in parts]
    assert len(data.train) == 16 and len(seen[1]) == len(seen[2]) == 2
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    for part, drawn in zip(parts, (chunks, data.validation, data.test), strict=True):
        assert (part[..., 1].diff(dim=-1) == 1).all() and (part[..., 0].diff(dim=-1) == 0).all()
        torch.testing.assert_close(drawn.actions[..., 0], part[:, :-1, 1] / 1000.0, check_dtype=False)


def test_chunks_are_disjoint_and_cover_what_there_is_evenly():
    data = dataset(1000, 503, 9)
    steps = np.zeros((2, 1000))
    for seed in range(200):
        chunks = origin(draw_chunks(data, SPEC, data.episodes, 75, 10, seed).states[:, :-1])
        assert len(torch.unique(chunks.flatten(0, 1), dim=0)) == 750
        np.add.at(steps, (chunks[..., 0].numpy(), chunks[..., 1].numpy()), 1)
    assert steps[0].mean() == pytest.approx(100, rel=0.05)  # 75 of 150 chunks, 200 times
    assert steps[0].std() < 10 and steps[1, 10:490].std() < 12  # binomial: 7.1
    again = [draw_chunks(data, SPEC, data.episodes, 5, 10, seed=3).states for _ in range(2)]
    assert torch.equal(*again)


@pytest.mark.parametrize(
    "lengths, options, message",
    [
        ((300, 99, 99), {}, "1 of 3 episodes have 100 steps"),
        ((300,) * 3, dict(held_out=0.6), "leaves no episode to train on"),
        ((300,) * 8, dict(trajectories=5), "1 validation episodes have 3 trajectories of 100 steps, not 5"),
    ],
)
def test_too_few_episodes_are_said_so(lengths, options, message):
    with pytest.raises(ValueError, match=message):
        transition_data(dataset(*lengths), SPEC, **dict(held_out=0.1, trajectories=2, length=100) | options)


def test_too_few_chunks_and_another_environment_are_said_so():
    data = dataset(95, 9)
    with pytest.raises(ValueError, match=r"have 9 chunks of 10 steps, not 10: give task\.train=90 at most"):
        draw_chunks(data, SPEC, data.episodes, 10, 10, seed=0)
    with pytest.raises(ValueError, match=r"4 and 1 numbers, the symmetry spec of Swimmer-v5 is for 8 and 2"):
        transition_data(dataset(200, 200, 200), symmetry_spec("Swimmer-v5"), held_out=0.1, trajectories=1, length=10)
