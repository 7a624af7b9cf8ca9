"""Mirrored batches under the signatures and layouts of Isaac Lab, mjlab and holosoma, without the simulators."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from forked import run_code
from mjlab_robots import mjlab_model

from rppdyn.envs import compiled_terms, mirror_spec, symmetry_spec
from rppdyn.envs._spec import Entry, Space, SymmetrySpec
from rppdyn.envs.terms import step_terms
from rppdyn.groups import D, Group, Z
from rppdyn.integrations import isaac_lab, mjlab, rsl_rl
from rppdyn.integrations.augmentation import SpaceImages, group_elements
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
    steps = next(iter(step_terms(terms, states=3)))
    before, after = split(terms, steps.outcome.obs), split(terms, steps.images.obs)
    observed, acted = augment(env=None, obs=before, actions=torch.as_tensor(steps.actions))
    for name in before:
        torch.testing.assert_close(observed[name], torch.cat([before[name], after[name]]), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        acted[3:], torch.as_tensor(steps.elements.transform("action", steps.actions)), atol=1e-12, rtol=0
    )
    for obs_type in before:  # the older calls: one tensor and its type
        torch.testing.assert_close(augment(None, before[obs_type], None, obs_type)[0], observed[obs_type])
    assert augment(env=None, obs=None, actions=None) == (None, None)


def test_mjlabs_layout():
    """Groups "actor" and "critic" of the Go1, whose tensor dictionaries keep their type."""
    feet = ["FR", "FL", "RR", "RL"]
    actor = ["base_linear_velocity", "projected_gravity", "joint_positions", "joint_velocities", "last_action",
             "commands"]  # fmt: skip
    critic = [*actor, {"term": "foot_contacts", "feet": feet}, {"term": "foot_forces", "feet": feet}]
    terms = compiled_terms(mjlab_model("go1"), {"actor": actor, "critic": critic}, symmetry="left-right")
    steps = next(iter(step_terms(terms, states=2)))
    tensordict = pytest.importorskip("tensordict")
    before = tensordict.TensorDict(split(terms, steps.outcome.obs), batch_size=[2])
    found, _ = mjlab.data_augmentation(terms.spec)(obs=before)
    assert isinstance(found, tensordict.TensorDict) and found.batch_size == torch.Size([4])
    torch.testing.assert_close(found["critic"][2:], split(terms, steps.images.obs)["critic"], atol=1e-7, rtol=0)


class Groups:
    """Like a TensorDict: it iterates over the rows of its batch, and `in` asks for keys()."""

    def __init__(self, parts, batch_size, device=None):
        self.parts, self.batch_size, self.device = parts, batch_size, device

    def items(self):
        return self.parts.items()

    def __iter__(self):
        return iter([{name: x[i] for name, x in self.items()} for i in range(self.batch_size[0])])

    def __contains__(self, name):
        raise NotImplementedError("use key in keys()")


def test_a_container_that_iterates_over_its_batch():
    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity"], "critic": ["base_linear_velocity"]})
    before = {"actor": torch.randn(3, 3), "critic": torch.randn(3, 3), "camera": torch.randn(3, 1, 2, 2)}
    augment = rsl_rl.data_augmentation(terms.spec, images={"camera": -1})
    found, _ = augment(obs=Groups(before, torch.Size([3])))
    assert isinstance(found, Groups) and found.batch_size == torch.Size([6])
    for name, x in augment(obs=before)[0].items():
        torch.testing.assert_close(found.parts[name], x)


def test_holosomas_layout():
    """Terms sorted by name, histories by time, groups one after the other."""
    gait = {"term": "foot_clocks", "label": "sin_phase", "feet": HANDS, "offsets": [0, 0.5]}
    actor = ["base_angular_velocity", "joint_positions", "last_action", "projected_gravity", gait]
    groups = {"actor_obs": {"terms": actor, "history": 4, "stack": "time"}, "critic_obs": ["base_linear_velocity"]}
    terms = compiled_terms(CRAWLER, groups)
    steps = next(iter(step_terms(terms, states=3)))
    utils = SymmetryUtils(terms.spec)
    before, after = torch.as_tensor(steps.outcome.obs), torch.as_tensor(steps.images.obs)
    found = utils.augment_observations(before, None, ["actor_obs", "critic_obs"])
    torch.testing.assert_close(found, torch.cat([before, after]), atol=1e-9, rtol=0)
    acted = utils.augment_actions(torch.as_tensor(steps.actions))
    torch.testing.assert_close(
        acted[3:], torch.as_tensor(steps.elements.transform("action", steps.actions)), atol=1e-12, rtol=0
    )
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
    images, elements = SpaceImages(spec.obs, spec.group), group_elements(spec.group)
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
    with pytest.raises(ValueError, match="unlisted='drop' must be 'refuse' or 'keep'"):
        isaac_lab.data_augmentation(terms.spec, unlisted="drop")
    with pytest.raises(ValueError, match="observation group 'critic': 2 numbers where the symmetry acts on 3"):
        augment(obs={"critic": torch.zeros(1, 2)})
    yaw = symmetry_spec(CRAWLER, observation=["base_height"], symmetry="yaw")
    with pytest.raises(ValueError, match=r"is infinite.* choose symmetries that are finite"):
        isaac_lab.data_augmentation(yaw)
    four = symmetry_spec(gym.make("Ant-v5").unwrapped.model, observation=["base_height"], symmetry="quarter turn")
    with pytest.raises(ValueError, match="appends one mirror image"):
        SymmetryUtils(four)


def spec_of(group: Group) -> SymmetrySpec:
    """Observations and actions that the group's matrices act on."""
    matrices = [g.numpy() for g in group.discrete_generators]
    space = Space([Entry(f"x{i}") for i in range(group.d)], matrices)
    return SymmetrySpec("Toy-v0", group, space, space)


@pytest.mark.parametrize("group", [D(4), Z(4), D(3)], ids=str)  # the last is no group of signed permutations
def test_all_finite_groups(group):
    """The images under the elements, each once, of any device's dtype."""
    spec, x = spec_of(group), torch.randn(3, group.d)
    _, acted = rsl_rl.data_augmentation(spec)(actions=x)
    assert acted.shape == (3 * group.order, group.d) and acted.dtype == x.dtype
    expected = torch.stack([x.double() @ g.T for g in group.elements()])
    distances = torch.cdist(acted.double().reshape(group.order, -1), expected.reshape(group.order, -1))
    assert (distances < 1e-5).sum(0).tolist() == (distances < 1e-5).sum(1).tolist() == [1] * group.order


def by_name(augment):
    """As Isaac Lab and rsl_rl do it."""
    module, _, name = f"{augment.__module__}:{augment.__name__}".partition(":")
    return getattr(importlib.import_module(module), name)


def by_cloudpickle(augment):
    cloudpickle = pytest.importorskip("cloudpickle")
    return pickle.loads(cloudpickle.dumps(augment))


@pytest.mark.parametrize("again", [by_name, by_cloudpickle, lambda f: pickle.loads(pickle.dumps(f)), copy.deepcopy])
def test_an_augmentation_is_found_again(again):
    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity"], "critic": ["joint_positions"]})
    assert rsl_rl.data_augmentation is isaac_lab.data_augmentation is mjlab.data_augmentation
    augment = rsl_rl.data_augmentation(terms.spec, groups={"teacher": "critic"}, unlisted="keep")
    obs = {"policy": torch.randn(2, 3), "teacher": torch.randn(2, 6), "rnd_state": torch.randn(2, 5)}
    augment(obs=obs)  # and used before
    want, found = augment(obs=obs, actions=obs["teacher"]), again(augment)(obs=obs, actions=obs["teacher"])
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_another_process_finds_it_by_name(tmp_path):
    augment = isaac_lab.data_augmentation(spec_of(D(3)))
    code = f"""
import importlib, json, torch
f = getattr(importlib.import_module({augment.__module__!r}), {augment.__name__!r})
print(json.dumps(f(actions=torch.tensor([[1.0, 2.0]]))[1].tolist()))
"""
    run_code(code, folder=tmp_path)
    said = (tmp_path / "out").read_text()
    assert json.loads(said) == augment(actions=torch.tensor([[1.0, 2.0]]))[1].tolist()
    with pytest.raises(AttributeError, match="damaged"):
        getattr(importlib.import_module(augment.__module__), augment.__name__[:-9])


def test_holosomas_methods_go_to_worker_processes():
    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity"]})
    utils, x = SymmetryUtils(terms.spec), torch.randn(2, 3)
    want = utils.mirror_xz_plane(x, None, ["actor"])
    for again in (pickle.loads(pickle.dumps(utils)), copy.deepcopy(utils)):
        assert torch.equal(again.mirror_xz_plane(x, None, ["actor"]), want)


def test_groups_that_no_symmetry_acts_on():
    """They are repeated as they are, where the user says so; with a spec of one observation, too."""
    x, state = torch.randn(2, 3), torch.randn(2, 3)
    spec = mirror_spec(
        "Toy-v0", obs_permutation=[1, 0, 2], obs_signs=[1, 1, -1], action_permutation=[0], action_signs=[1]
    )
    found, _ = rsl_rl.data_augmentation(spec, unlisted="keep")(obs={"policy": x, "rnd_state": state})
    assert torch.equal(found["rnd_state"], torch.cat([state, state]))
    assert torch.equal(found["policy"], torch.cat([x, x[:, [1, 0, 2]] * torch.tensor([1, 1, -1])]))
    with pytest.raises(ValueError, match=r"group 'rnd_state': 5 numbers .* unlisted=.keep."):
        rsl_rl.data_augmentation(spec)(obs={"policy": x, "rnd_state": torch.randn(2, 5)})
    with pytest.raises(ValueError, match="none of the groups obs is one of the spec's, policy, actor, critic"):
        rsl_rl.data_augmentation(spec, unlisted="keep")(obs={"obs": x})


@pytest.mark.parametrize("stack", ["term", "time"])
def test_histories_of_whole_steps(stack):
    """(n, steps, entries) is the same as the flat history, in the order of its layout."""
    names = ["projected_gravity", "joint_positions"]
    flat = compiled_terms(CRAWLER, {"policy": {"terms": names, "history": 4, "stack": stack}}, symmetry="left-right")
    step = compiled_terms(CRAWLER, {"policy": names}, symmetry="left-right")
    x = torch.randn(2, 4, 9)
    found = isaac_lab.data_augmentation(flat.spec)(obs={"policy": x})[0]["policy"]
    torch.testing.assert_close(found, isaac_lab.data_augmentation(step.spec)(obs={"policy": x})[0]["policy"])
    flatten = {
        "time": lambda x: x.flatten(1),
        "term": lambda x: torch.cat([p.flatten(1) for p in x.split([3, 6], 2)], 1),
    }
    same = isaac_lab.data_augmentation(flat.spec)(obs={"policy": flatten[stack](x)})[0]["policy"]
    assert torch.equal(same, flatten[stack](found))
    with pytest.raises(ValueError, match="a history of 3 steps of 9 entries"):
        isaac_lab.data_augmentation(flat.spec)(obs={"policy": x[:, 1:]})


def test_pictures_of_a_camera_are_reversed_along_the_axis_that_is_given():
    spec = mirror_spec(
        "Toy-v0", obs_permutation=[1, 0, 2], obs_signs=[1, 1, -1], action_permutation=[1, 0], action_signs=[1, 1]
    )
    augment = rsl_rl.data_augmentation(spec, images={"camera": -1}, unlisted="keep")
    obs = {"policy": torch.randn(2, 3), "camera": torch.rand(2, 3, 4, 5), "rnd_state": torch.randn(2, 7)}
    for f in (
        augment,
        pickle.loads(pickle.dumps(augment)),
        getattr(importlib.import_module(augment.__module__), augment.__name__),
    ):
        found, _ = f(obs=obs)
        assert torch.equal(found["camera"], torch.cat([obs["camera"], obs["camera"].flip(-1)]))
        assert torch.equal(found["rnd_state"], obs["rnd_state"].repeat(2, 1))
        assert torch.equal(found["policy"][2:], obs["policy"][:, [1, 0, 2]] * torch.tensor([1, 1, -1]))
    with pytest.raises(ValueError, match="reversed by one mirror image"):
        rsl_rl.data_augmentation(symmetry_spec("Ant-v5", symmetry="D4"), images={"camera": -1})
