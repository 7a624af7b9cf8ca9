"""Audits of maps of observations: wrong entries are named with their right values, right maps pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import compiled_terms
from rppdyn.envs.terms import audit

CRAWLER = Path(__file__).parents[2] / "docs" / "examples" / "crawler.xml"
TERMS = [
    "base_angular_velocity",
    "euler_angles",
    {"term": "gait_phase", "feet": ["left_hand", "right_hand"], "offsets": [0, 0.5]},
    {"term": "joint_positions", "history": 2},
]


@pytest.fixture(scope="module")
def terms():
    return compiled_terms(CRAWLER, TERMS)


def right(terms, x):
    return terms.spec.transform_observation(terms.spec.group.discrete_generators[0], x)


def test_the_derived_map_passes(terms):
    found = audit(lambda obs: right(terms, obs), terms, states=5, name="derived")
    assert found.is_right and found.worst < 1e-9 and "every entry is the derived one" in str(found)


def test_euler_angles_of_which_one_sign_flips_and_a_phase_that_is_not_shifted(terms):
    def mirror(obs):
        image = right(terms, obs).clone()
        image[:, 5] *= -1  # the yaw keeps its sign
        image[:, 6:8] = obs[:, 6:8]
        return torch.cat([obs, image])

    found = audit(mirror, terms, states=5)
    assert found.is_representation and not found.is_right
    assert [(w.index, w.found, w.right) for w in found.wrong] == [
        (5, "+[5]", "-[5]"), (6, "+[6]", "-[6]"), (7, "+[7]", "-[7]"),
    ]  # fmt: skip
    assert all(w.defect > 0.1 for w in found.wrong) and found.worst < 1e-9
    assert "euler_angles yaw" in found.table()


def test_a_map_that_is_no_involution(terms):
    def mirror(obs):
        image = right(terms, obs).clone()
        image[:, 8] *= -1
        return image

    found = audit(mirror, terms, states=5)
    assert not found.is_representation and "left-right twice is nothing: no, off by 2" in str(found)


def test_a_trainers_signature_and_actions(terms):
    g = terms.spec.group.discrete_generators[0]

    def augmentation(env, obs=None, actions=None, obs_type="policy"):
        if actions is not None:
            actions = torch.cat([actions, -terms.spec.transform_action(g, actions)])
        return (None if obs is None else torch.cat([obs, right(terms, obs)])), actions

    found = audit(augmentation, terms, states=5)
    assert {w.space for w in found.wrong} == {"action"} and len(found.wrong) == 6
    assert all(w.defect > 0.1 for w in found.wrong)


def test_elements_of_a_larger_group():
    import gymnasium as gym

    model = gym.make("Ant-v5").unwrapped.model
    terms = compiled_terms(model, ["projected_gravity", "joint_positions"], symmetry=["left-right", "front-back"])
    one, two = terms.spec.group.discrete_generators
    obs = lambda g, x: terms.spec.transform_observation(g, x)  # noqa: E731

    found = audit(lambda x: torch.cat([x, obs(one, x), obs(two, x), obs(one @ two, x)]), terms, states=3)
    assert found.is_right and found.elements == ("left-right", "front-back", "left-right and front-back")
    found = audit(lambda x: torch.cat([x, obs(one, x), obs(two, x), obs(two, x)]), terms, states=3)
    assert not found.is_right
    found = audit(lambda x: torch.cat([x, obs(two, x)]), terms, states=3)
    assert "the map leaves out left-right, left-right and front-back" in str(found)


def in_place(obs):
    obs[:, 1] *= -1
    return obs


@pytest.mark.parametrize("mirror, message", [
    (lambda obs: obs[:, 100], "raises IndexError for the observation (25, 20): index"),
    (lambda obs: sys.exit(), "raises SystemExit for the observation (25, 20); call it"),
    (lambda obs: obs[:, :3], "makes (25, 3) of the observation (25, 20)"),
    (lambda obs: None, "returns None for the observation (25, 20); return its image"),
    (lambda obs: "no numbers", "returns a str for"),
    (lambda obs: {"actor": obs}, "returns a dict for"),
    (lambda obs: [[1.0], [1.0, 2.0]], "returns a list of 2 for"),
    (lambda obs: obs * 1j, "returns a tensor of complex128 for"),
    (lambda env, obs, actions: obs, "a function of observations and actions returns both, observations first"),
    (lambda env, obs, actions: None, "returns None for the observation"),
    (lambda obs: obs**3, "no affine map"),
    (lambda obs: obs / 0, "not finite"),
    (in_place, "changes the observation that it is given, in place"),
])  # fmt: skip
def test_refusals(terms, mirror, message):
    with refused(message):
        audit(mirror, terms, states=1)


@pytest.mark.parametrize("kind", ["list of rows", "numbers", "NumPy", "sparse", "float32"])
def test_what_a_function_may_return(terms, kind):
    forms = {"list of rows": list, "numbers": torch.Tensor.tolist, "NumPy": torch.Tensor.numpy,
             "sparse": torch.Tensor.to_sparse, "float32": torch.Tensor.float}  # fmt: skip
    assert audit(lambda obs: forms[kind](right(terms, obs)), terms, states=1).is_right


def test_groups_that_a_trainers_function_leaves_out():
    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity"], "critic": ["base_height"]})
    with refused("the image of the observation lacks the group 'critic'"):
        audit(lambda env, obs, actions: ({"actor": obs["actor"]}, actions), terms, states=1)
    with refused("the image of the observation is None", "every group, actor, critic"):
        audit(lambda env, obs, actions: (None, actions), terms, states=1)


def test_quaternions_under_turns_are_refused():
    import gymnasium as gym

    terms = compiled_terms(gym.make("Ant-v5").unwrapped.model, ["quaternion"], symmetry="quarter turn")
    with pytest.raises(ValueError, match="act on the rotation matrix of the observation's quaternion"):
        audit(lambda x: x, terms)


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.yaml").write_text("- projected_gravity\n- base_linear_velocity\n")
    (tmp_path / "audited_map.py").write_text(
        "import torch\n"
        "def right(obs):\n    return obs * torch.tensor([1, -1, 1, 1, -1, 1])\n"
        "def wrong(obs):\n    return obs * torch.tensor([1, -1, 1, 1, 1, 1])\n"
        "def broken(obs):\n    raise KeyError('left')\n"
        "def still(actions):\n    return actions\n"
    )
    words = ["--model", str(CRAWLER), "--observation", "terms.yaml", "--states", "3"]
    assert main(["audit", "audited_map:right", *words]) == 0
    assert main(["audit", "audited_map:wrong", *words, "--actions", "audited_map:still", "--json", "found.json"]) == 1
    assert "base_linear_velocity y" in capsys.readouterr().out
    assert '"is_right": false' in (tmp_path / "found.json").read_text()
    for name, said in (("broken", "KeyError"), ("none", "no 'none'")):
        assert main(["audit", f"audited_map:{name}", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["audit", "audited_map", *words]) == 2
    assert "module:function" in capsys.readouterr().err
