"""Mirrored batches under the signatures and layouts of Isaac Lab, mjlab and holosoma, without the simulators."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from mjlab_robots import mjlab_model

from rppdyn.envs import compiled_terms, symmetry_spec
from rppdyn.envs.terms.certification import witnesses
from rppdyn.integrations import isaac_lab, mjlab
from rppdyn.integrations.augmentation import GroupImages, group_elements
from rppdyn.integrations.holosoma import SymmetryUtils

CRAWLER = Path(__file__).parents[2] / "docs" / "examples" / "crawler.xml"
HANDS = ["left_hand", "right_hand"]


def split(terms, rows) -> dict[str, torch.Tensor]:
    sizes = [size for _, size in terms.spec.observation_groups]
    parts = torch.as_tensor(rows).split(sizes, -1)
    return dict(zip((name for name, _ in terms.spec.observation_groups), parts, strict=True))


def test_isaac_labs_layout():
    """Groups "policy" and "critic", histories term by term, and the calls of its own symmetry functions."""
    policy = {"history": 3, "terms": ["base_angular_velocity", "projected_gravity", "joint_positions", "last_action"]}
    critic = ["base_linear_velocity", {"term": "height_scan", "ordering": "xy"}]
    terms = compiled_terms(CRAWLER, {"policy": policy, "critic": critic})
    augment = isaac_lab.data_augmentation(terms.spec)
    witness = next(iter(witnesses(terms, states=3)))
    before, after = split(terms, witness.before), split(terms, witness.after)
    observed, acted = augment(env=None, obs=before, actions=torch.as_tensor(witness.action))
    for name in before:
        torch.testing.assert_close(observed[name], torch.cat([before[name], after[name]]), atol=1e-9, rtol=0)
    torch.testing.assert_close(acted[3:], torch.as_tensor(witness.action_after), atol=1e-12, rtol=0)
    for obs_type in before:  # the older calls: one tensor and its type
        torch.testing.assert_close(augment(None, before[obs_type], None, obs_type)[0], observed[obs_type])
    assert augment(env=None, obs=None, actions=None) == (None, None)


def test_mjlabs_layout():
    """Groups "actor" and "critic" of the Go1, whose tensor dictionaries keep their type."""
    feet = ["FR", "FL", "RR", "RL"]
    actor = [
        "base_linear_velocity",
        "projected_gravity",
        "joint_positions",
        "joint_velocities",
        "last_action",
        "commands",
    ]
    critic = [*actor, {"term": "foot_contacts", "feet": feet}, {"term": "foot_forces", "feet": feet}]
    terms = compiled_terms(mjlab_model("go1"), {"actor": actor, "critic": critic}, symmetry="left-right")
    witness = next(iter(witnesses(terms, states=2)))
    tensordict = pytest.importorskip("tensordict")
    before = tensordict.TensorDict(split(terms, witness.before), batch_size=[2])
    found, _ = mjlab.data_augmentation(terms.spec)(obs=before)
    assert isinstance(found, tensordict.TensorDict) and found.batch_size == torch.Size([4])
    torch.testing.assert_close(found["critic"][2:], split(terms, witness.after)["critic"], atol=1e-7, rtol=0)


def test_holosomas_layout():
    """Terms sorted by name, histories by time, groups one after the other."""
    gait = {"term": "foot_clocks", "label": "sin_phase", "feet": HANDS, "offsets": [0, 0.5]}
    actor = ["base_angular_velocity", "joint_positions", "last_action", "projected_gravity", gait]
    groups = {"actor_obs": {"terms": actor, "history": 4, "stack": "time"}, "critic_obs": ["base_linear_velocity"]}
    terms = compiled_terms(CRAWLER, groups)
    witness = next(iter(witnesses(terms, states=3)))
    utils = SymmetryUtils(terms.spec)
    before, after = torch.as_tensor(witness.before), torch.as_tensor(witness.after)
    found = utils.augment_observations(before, None, ["actor_obs", "critic_obs"])
    torch.testing.assert_close(found, torch.cat([before, after]), atol=1e-9, rtol=0)
    acted = utils.augment_actions(torch.as_tensor(witness.action))
    torch.testing.assert_close(acted[3:], torch.as_tensor(witness.action_after), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="no observation group 'actor'"):
        utils.mirror_xz_plane(before, None, ["actor"])


@pytest.mark.parametrize("symmetry", [("left-right",), ("left-right", "front-back"), ("quarter turn", "left-right")])
def test_images_are_the_specs_under_every_element(symmetry):
    """Signed permutations, and quaternions by way of rotation matrices, about an origin, too."""
    model = gym.make("Ant-v5").unwrapped.model
    pose = {"hip_1": 0.1}
    spec = symmetry_spec(
        model, observation=["projected_gravity", "joint_positions", "quaternion"], symmetry=symmetry, default_pose=pose
    )
    x = torch.randn(5, spec.obs.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, -4:] /= x[:, -4:].norm(dim=1, keepdim=True)
    images, elements = GroupImages(spec.obs, spec.group), group_elements(spec.group)
    assert len(elements) == spec.group.order == images.order
    for k, g in enumerate(elements):
        expected, found = spec.transform_observation(g, x), images.image(x, k)
        same = torch.where((found[:, -4:] * expected[:, -4:]).sum(1, keepdim=True) < 0, -1.0, 1.0)  # q and -q are one
        torch.testing.assert_close(found[:, :-4], expected[:, :-4])
        torch.testing.assert_close(found[:, -4:] * same, expected[:, -4:])


def test_gradients_go_through_images_of_actions():
    augment = isaac_lab.data_augmentation(compiled_terms(CRAWLER, ["base_height"]).spec)
    actions = torch.zeros(2, 6, requires_grad=True)
    augment(actions=actions)[1].sum().backward()
    assert actions.grad is not None


def test_refusals():
    terms = compiled_terms(CRAWLER, {"actor": ["base_height"], "critic": ["projected_gravity"]})
    augment = isaac_lab.data_augmentation(terms.spec)
    with pytest.raises(ValueError, match="no observation group 'rnd_state'; it has actor, critic"):
        augment(obs={"rnd_state": torch.zeros(1, 1)})
    with pytest.raises(ValueError, match="2 numbers where the symmetry acts on 3"):
        augment(obs={"critic": torch.zeros(1, 2)})
    yaw = symmetry_spec(CRAWLER, observation=["base_height"], symmetry="yaw")
    with pytest.raises(ValueError, match="is infinite"):
        isaac_lab.data_augmentation(yaw)
    four = symmetry_spec(gym.make("Ant-v5").unwrapped.model, observation=["base_height"], symmetry="quarter turn")
    with pytest.raises(ValueError, match="appends one mirror image"):
        SymmetryUtils(four)
