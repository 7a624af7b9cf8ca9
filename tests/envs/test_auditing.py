"""Audits of maps of observations: wrong entries are named with their right values, right maps pass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import SymmetrySpec, compiled_terms
from rppdyn.envs.terms import audit
from rppdyn.runs.files import write_json

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


def test_the_derived_map_passes_and_one_that_is_no_involution_does_not(terms):
    def no_involution(obs):
        image = right(terms, obs).clone()
        image[:, 8] *= -1
        return image

    found = audit(lambda obs: right(terms, obs), terms, states=5, name="derived")
    assert found.is_right and found.worst < 1e-9 and "every entry is the derived one" in str(found)
    found = audit(no_involution, terms.spec)
    assert not found.is_representation and "left-right twice is nothing: no, off by 2" in str(found)


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
        audit(mirror, terms.spec)


@pytest.mark.parametrize(
    "form", [list, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.to_sparse, torch.Tensor.float]
)
def test_what_a_function_may_return(terms, form):
    assert audit(lambda obs: form(right(terms, obs)), terms.spec).is_right


def test_groups_that_a_trainers_function_leaves_out():
    terms = compiled_terms(CRAWLER, {"actor": ["projected_gravity"], "critic": ["base_height"]})
    with refused("the image of the observation lacks the group 'critic'"):
        audit(lambda env, obs, actions: ({"actor": obs["actor"]}, actions), terms, states=1)
    with refused("the image of the observation is None", "every group, actor, critic"):
        audit(lambda env, obs, actions: (None, actions), terms, states=1)


def test_quaternions_under_turns_are_refused():
    terms = compiled_terms(gym.make("Ant-v5").unwrapped.model, ["quaternion"], symmetry="quarter turn")
    with refused("act on the rotation matrix of the observation's quaternion"):
        audit(lambda x: x, terms)


@pytest.fixture
def contract(tmp_path, monkeypatch):
    """A robot's contract in the working folder, and functions that keep it and break it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(CRAWLER, "robot.xml")
    observed = ["projected_gravity", {"term": "joint_positions", "scale": {"left.*": 2.0, "right.*": 2}}]
    compiled = compiled_terms("robot.xml", observed,
                              [{"term": "joint_positions", "scale": 0.25}], symmetry="left-right")  # fmt: skip
    write_json(tmp_path / "symmetry.json", compiled.spec.contract())
    image = compiled.spec.contract()["images"]["left-right"]["observation"]
    (tmp_path / "kept_map.py").write_text(
        "import torch\n"
        f"INDEX, SIGN = {image['index']}, torch.tensor({image['sign']})\n"
        "def right(obs):\n    return obs[:, INDEX] * SIGN\n"
        "def wrong(obs):\n    return obs * torch.tensor([1.0, -1.0] + [1.0] * (len(INDEX) - 2))\n"
        "def broken(obs):\n    raise KeyError('left')\n"
        "def still(actions):\n    return actions\n"
    )
    return tmp_path / "symmetry.json"


def test_a_map_beside_a_contract_or_a_list_of_terms(contract, capsys):
    """Without a model the entries alone are judged; with the model the simulator is asked, too."""
    words = ["--observation", "symmetry.json"]
    assert main(["audit", "kept_map:right", *words]) == 0
    assert "beside a contract" in (out := capsys.readouterr().out) and "every entry is the one of the contract" in out
    assert main(["audit", "kept_map:wrong", *words]) == 1
    assert (
        "left_sweep position" in (out := capsys.readouterr().out)
        and "projected_gravity" not in out.split("index", 1)[1]
    )
    assert main(["audit", "kept_map:right", *words, "--model", "robot.xml", "--states", "3"]) == 0
    assert "3 states in the simulator" in capsys.readouterr().out
    contract.with_name("terms.yaml").write_text("- projected_gravity\n- joint_positions\n")
    words = ["--model", "robot.xml", "--observation", "terms.yaml", "--states", "3"]
    assert main(["audit", "kept_map:right", *words, "--actions", "kept_map:still", "--json", "found.json"]) == 1
    assert " action " in capsys.readouterr().out and not json.loads(Path("found.json").read_text())["is_right"]
    for name, said in (
        ("kept_map:broken", "KeyError"),
        ("kept_map:none", "no 'none'"),
        ("kept_map", "module:function"),
    ):
        assert main(["audit", name, *words]) == 2
        assert said in capsys.readouterr().err


def test_a_contract_is_plain_data_with_terms_joints_images_and_digest(contract):
    data = json.loads(contract.read_text())
    assert data["terms"]["observation"]["terms"][1]["scale"] == {"left.*": 2.0, "right.*": 2}
    assert data["terms"]["action"] == [{"term": "joint_positions", "scale": 0.25}]
    spec = SymmetrySpec.from_dict(data)
    assert data["digest"] == spec.digest and data["joints"]["action"] == [e.joint for e in spec.action.entries]
    x, image = np.random.default_rng(0).normal(size=spec.obs.dim), data["images"]["left-right"]["observation"]
    there = spec.transform_observation(spec.group.discrete_generators[0], x)
    assert np.allclose(there, np.array(image["sign"]) * x[image["index"]] + image["shift"])
    again = compiled_terms(CRAWLER, **spec.terms).spec
    assert again.obs == spec.obs and again.terms == spec.terms


def edited(change):
    def edit(path, content):
        change(content)
        path.write_text(json.dumps(content))

    return edit


@pytest.mark.parametrize("harm, said", [
    (lambda path, _: path.unlink(), "No such file"),
    (lambda path, _: path.write_text("[1, 2]"), "list describes no symmetry spec"),
    (lambda path, _: path.write_bytes(b"\xff\xfe\x00"), "can't be read"),
    (edited(lambda data: data.update(format=99)), "format 99"),
    (edited(lambda data: data.pop("action")), "lacks the key 'action'"),
    (edited(lambda data: data.update(obs=3)), "damaged"),
    (edited(lambda data: data["obs"]["discrete_generators"][0][0].__setitem__(0, -1.0)), "digest is not that of its content"),
    (edited(lambda data: data["images"]["left-right"]["observation"]["sign"].__setitem__(0, -1.0)), "images is not"),
    (edited(lambda data: data["joints"]["action"].reverse()), "joints is not"),
])  # fmt: skip
def test_contracts_that_are_none(contract, harm, said, capsys):
    harm(contract, json.loads(contract.read_text()))
    assert main(["audit", "kept_map:right", "--observation", "symmetry.json", "--json", "found.json"]) == 2
    error = capsys.readouterr().err
    assert said in error and "symmetry.json" in error and len(error.splitlines()) == 1
    assert not contract.with_name("found.json").exists()


@pytest.mark.parametrize("before, after, said", [
    ('axis="0 0 -1"', 'axis="0 0 1"', "is no contract of robot.xml: '3 left_sweep position left_sweep"),
    ('left_elbow"', 'left_knee"', "'5 left_elbow position left_elbow"),
    ('"left_', '"port_', "no joint"),
    ("<mujoco", "<robot", "robot.xml"),
])  # fmt: skip
def test_a_model_that_has_changed_since(contract, before, after, said, capsys):
    robot = contract.with_name("robot.xml")
    assert before in robot.read_text()
    robot.write_text(robot.read_text().replace(before, after))
    words = ["audit", "kept_map:right", "--observation", "symmetry.json", "--model", "robot.xml"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_a_list_of_terms_needs_a_model_and_a_contract_is_of_one_symmetry(contract, capsys):
    assert main(["audit", "kept_map:right", "--observation", "terms.yaml"]) == 2
    assert "--model is missing" in capsys.readouterr().err
    assert main(["audit", "kept_map:right", "--observation", "symmetry.json", "--symmetry", "left-right"]) == 2
    assert "is of one symmetry" in capsys.readouterr().err


def test_the_script_for_a_repositorys_ci(tmp_path):
    """It audits each contract that git knows, with the words that it is given; its status is the worst of theirs."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "rppdyn"
    command.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *wrong*walker*) exit 1;; *broken*) exit 2;; esac\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def check(*words):
        script = CRAWLER.with_name("check_mirror.sh")
        done = subprocess.run(["sh", script, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "a walker").mkdir()
    for folder in (tmp_path, tmp_path / "a walker"):
        (folder / "symmetry.json").write_text("{}")
    status, said = check("m:right")
    assert status == 2 and "git knows no symmetry.json" in said[0]
    subprocess.run(["git", "add", "symmetry.json", "a walker"], cwd=tmp_path, check=True)
    status, said = check("m:right", "--model", "robot.xml")
    assert status == 0 and said[1] == "audit m:right --model robot.xml --observation a walker/symmetry.json"
    assert [check(name)[0] for name in ("m:wrong", "m:broken")] == [1, 2] and said[2] == "== symmetry.json"
