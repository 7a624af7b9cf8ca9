"""Mirrored transitions and the mirror loss, the baselines beside equivariant networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from legged import Legged, legged_spec, legged_states
from stepping import settings_of, stepped

from rppdyn.agents import SACUpdate
from rppdyn.agents._update import with_features
from rppdyn.agents.buffers import POOL_SIZE, GroupMatrices
from rppdyn.envs import symmetry_spec

WALKER = "Walker2d-v5"


def walker_spec(reward_symmetric: bool | None = True):
    """The leg swap with what is said of its reward, whatever has been certified on this machine."""
    spec = symmetry_spec(WALKER)
    return replace(spec, symmetries=[s._replace(reward_symmetric=reward_symmetric) for s in spec.symmetries])


GROUPS = {("quarter turn", "left-right"): 8, ("left-right", "yaw"): POOL_SIZE}


@pytest.mark.parametrize("names, count", GROUPS.items(), ids=lambda x: str(x))
def test_images_of_features_are_features_of_images(make_agent, names, count):
    agent = make_agent("rpp", Legged(), spec=legged_spec(*names)).learn(30)
    agent.policy.double()
    spec, features = agent.spec, agent.policy.features_extractor
    images = agent.sampler.images
    assert len(images) == count
    assert torch.equal(images.elements[0], torch.eye(spec.group.d, dtype=torch.float64))
    obs = torch.as_tensor(legged_states(100, np.random.default_rng(0)))
    actions = torch.as_tensor(np.random.default_rng(1).uniform(-1, 1, (100, 4)))
    index = images.draw(100, torch.Generator().manual_seed(0), identity=True)
    g = images.elements[index]
    expected = features(spec.transform_observation(g, obs))
    torch.testing.assert_close(images.map_features(index, features(obs)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        images.map_actions(index, actions), spec.transform_action(g, actions), rtol=0, atol=1e-12
    )


def test_elements_are_drawn_alike_and_continuous_groups_all_the_way_round():
    images = GroupMatrices(legged_spec("quarter turn", "left-right"), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    counts = images.draw(8000, generator, identity=True).bincount(minlength=8)
    assert counts.min() > 800 and counts.max() < 1200
    assert images.draw(8000, generator, identity=False).unique().tolist() == list(range(1, 8))
    g = GroupMatrices(legged_spec("yaw"), torch.empty(0)).elements
    angles = torch.atan2(g[:, 3, 2], g[:, 2, 2]).sort().values
    assert angles.diff().max() < 1.0 and angles[0] < -2.5 and angles[-1] > 2.5


def test_each_sampled_transition_is_one_of_the_buffer_or_its_mirror_image(make_agent):
    agent = make_agent("rpp", WALKER, spec=walker_spec(), augment=True).learn(60)
    spec, buffer, features = agent.spec, agent.replay_buffer, agent.policy.features_extractor
    (g,) = spec.group.discrete_generators

    def stored(transform_observation, transform_action):
        obs, after, actions = (
            torch.as_tensor(x[:60, 0]) for x in (buffer.observations, buffer.next_observations, buffer.actions)
        )
        columns = [
            features(transform_observation(obs)),
            features(transform_observation(after)),
            transform_action(actions),
        ]
        return torch.cat([*columns, torch.as_tensor(buffer.rewards[:60])], 1)

    pairs = torch.stack([
        stored(lambda o: o, lambda a: a),
        stored(lambda o: spec.transform_observation(g, o), lambda a: spec.transform_action(g, a)),
    ])  # fmt: skip
    batch = agent.sampler.sample(200)
    rows = torch.cat([batch["features"], batch["next_features"], batch["actions"], batch["rewards"][:, None]], 1)
    distance = (pairs[:, None] - rows[:, None]).abs().amax(-1)  # (2, 200, 60)
    assert distance.amin((0, 2)).max() < 1e-5
    mirrored = distance[1].amin(-1) < distance[0].amin(-1)
    assert 70 < mirrored.sum() < 130
    plain = make_agent("rpp", WALKER).learn(60)
    rows = with_features(plain.sampler.sample(200), plain.policy.features_extractor)
    assert "image_features" not in rows and plain.sampler._images is None


def test_the_mirror_loss_is_what_it_says_and_falls_for_a_plain_network(make_agent):
    agent = make_agent("mlp", WALKER, mirror_loss=4.0, learning_rate=1e-3, policy_kwargs=dict(output_scale=1.0)).learn(
        60
    )
    batch, update = agent.sampler.sample(64), SACUpdate([agent])
    batch |= {key: torch.zeros_like(batch["actions"]) for key in ("noise", "next_noise")}
    (g,) = agent.spec.group.discrete_generators
    here, there = (agent.actor.net(batch[key])[:, :6].tanh() for key in ("features", "image_features"))
    expected = (there - agent.spec.transform_action(g, here)).square().sum(-1).mean().detach()
    metrics = stepped(update, [batch], [settings_of(agent, 0.0)])
    assert expected > 0.01
    torch.testing.assert_close(metrics["mirror_loss"][0], expected)
    start = metrics["mirror_loss"].item()
    for _ in range(60):
        metrics = stepped(update, [batch], [settings_of(agent, 0.0)])
    assert metrics["mirror_loss"] < 0.3 * start


@pytest.mark.parametrize("spec", [None, legged_spec("left-right", "yaw")], ids=["leg swap", "yaw"])
def test_the_mirror_loss_of_an_equivariant_policy_is_zero(make_agent, spec):
    env = WALKER if spec is None else Legged()
    agent = make_agent("emlp", env, spec=spec, mirror_loss=4.0, policy_kwargs=dict(output_scale=1.0)).learn(40)
    agent.policy.double()  # before any update, whose optimiser would keep its precision
    agent.log_ent_coef.data = agent.log_ent_coef.data.double()
    batch = agent.sampler.sample(64)
    assert not torch.allclose(batch["features"], batch["image_features"])
    metrics = stepped(SACUpdate([agent]), [batch], [settings_of(agent, 0.0)])
    assert metrics["mirror_loss"] < 1e-20
