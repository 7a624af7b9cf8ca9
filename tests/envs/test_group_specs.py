"""Symmetries of one's own by which entries are vectors, in Python and YAML."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import SymmetrySpec, certify, file_spec, group_spec
from rppdyn.groups import D, O, Z
from rppdyn.integrations import augmentation

NAMES = ("turn", "mirror")
LEGS = {"turn": {"permutation": [3, 0, 1, 2]}, "mirror": {"permutation": [1, 0, 3, 2], "signs": [-1] * 4}}
PLANE = {"vector": [[0, 1], [2, 3]], "pseudoscalar": [4], "scalar": [5]}
QUADRUPED = {"permuted": [{"entries": [0, 1, 2, 3], **LEGS}]}


class Field(gym.Env):
    """A point that is pushed in the plane; observations are its position and velocity, rewards are its distance."""

    observation_space, action_space = Box(-9, 9, (4,), np.float64), Box(-1, 1, (2,), np.float64)
    pull = 0.0

    def __init__(self, pull: float = 0.0):
        self.pull, self.state = pull, np.zeros(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=4)
        return self.state.copy(), {}

    def step(self, action):
        x, v = np.split(self.state, 2)
        self.state = np.concatenate([x + 0.1 * v, v + 0.1 * np.asarray(action) + np.array([self.pull, 0])])
        return self.state.copy(), -float(self.state[:2] @ self.state[:2]), False, False, {}

    def simulator_state(self):
        return {"state": self.state}

    def restore_simulator_state(self, data):
        self.state = np.array(data["state"])


SQUARE = dict(group="D(4)", generators=list(NAMES), obs={"vector": [[0, 1], [2, 3]]}, action={"vector": [[0, 1]]})


def test_images_by_hand():
    spec = group_spec("Mine-v0", D(4), generators=NAMES, obs=PLANE, action=QUADRUPED)
    assert spec.generator_names == NAMES
    turn, mirror = spec.group.discrete_generators
    y = np.arange(1.0, 7)
    assert spec.transform_observation(turn, y).tolist() == [-2, 1, -4, 3, 5, 6]
    assert spec.transform_observation(mirror, y).tolist() == [-1, 2, -3, 4, -5, 6]
    assert spec.transform_action(turn, y[:4]).tolist() == [4, 1, 2, 3]
    assert spec.transform_action(mirror, y[:4]).tolist() == [-2, -1, -4, -3]
    cyclic = group_spec("Mine-v0", "Z(4)", obs={"vector": [[0, 1]], "scalar": [2]}, action={"cycle": [[0, 1, 2, 3]]})
    (turn,) = cyclic.group.discrete_generators
    assert cyclic.generator_names == ("quarter turn",)
    assert cyclic.transform_observation(turn, y[:3]).tolist() == [-2, 1, 3]
    assert cyclic.transform_action(turn, y[:4]).tolist() == [4, 1, 2, 3]
    ring = group_spec("Mine-v0", O(2), obs={"vector": [[0, 1]], "pseudoscalar": [2]}, action={"vector": [[0, 1]]})
    assert ring.obs.lie_algebra and SymmetrySpec.from_dict(json.loads(json.dumps(ring.to_dict()))) == ring
    for n in (3, 5, 6):
        assert group_spec("Mine-v0", Z(n), obs={"vector": [[0, 1]]}, action={"scalar": [0]}).group.order == n


def test_the_same_from_yaml_python_and_names(tmp_path):
    path = tmp_path / "square.yaml"
    path.write_text(yaml.safe_dump(SQUARE))
    named = dict(SQUARE, obs={"vector": [["observation[0]", "observation[1]"]], "scalar": "rest"})
    spec = file_spec(Field(), path)
    assert spec.obs.discrete_generators == group_spec("Field", **SQUARE).obs.discrete_generators
    path.write_text(yaml.safe_dump(named))
    assert file_spec(Field(), path).obs.generator(0)[2:, 2:].tolist() == np.eye(2).tolist()


def test_a_file_of_entries_is_no_symmetry_of_a_model(tmp_path):
    """Its observation space was asked for, which a model lacks."""
    (tmp_path / "square.yaml").write_text(yaml.safe_dump(SQUARE))
    robot = tmp_path / "robot.xml"
    robot.write_text("<mujoco><worldbody><body><joint/><geom size='.1'/></body></worldbody></mujoco>")
    with refused("square.yaml", "a model has none", "environment"):
        file_spec(str(robot), tmp_path / "square.yaml")


def test_it_is_certified_and_augments(tmp_path, monkeypatch, capsys):
    spec = group_spec("Field", **SQUARE)
    exact = certify(Field(), spec, n_states=20, n_resets=20)
    assert [g.name for g in exact.generators] == list(NAMES)
    assert exact.dynamics_verdict == "exact" == exact.reward_verdict
    assert certify(Field(0.3), spec, n_states=20, n_resets=20).dynamics_verdict == "broken"
    obs, actions = torch.randn(3, 4), torch.randn(3, 2)
    found = augmentation.data_augmentation(spec)(env=None, obs=obs, actions=actions)
    assert found[0].shape == (24, 4) and found[1].shape == (24, 2)
    gym.register("Field-v0", Field)
    (tmp_path / "square.yaml").write_text(yaml.safe_dump(SQUARE))
    assert main(["certify", "Field-v0", "--spec", str(tmp_path / "square.yaml"), "--states", "20"]) == 0
    assert "mirror" in capsys.readouterr().out
    gym.registry.pop("Field-v0")


class Closed(gym.Env):
    observation_space, action_space = Box(-9, 9, (4,)), Box(-1, 1, (2,))


def test_what_would_make_it_possible_to_certify_is_named():
    with refused("Closed", "simulator_state()", "restore_simulator_state"):
        certify(Closed(), group_spec("Closed", **SQUARE))
    with refused("Closed", "symmetry_spec", "spec="):
        certify(Closed())


@pytest.mark.parametrize(("changes", "parts"), [
    (dict(group="D(4"), ("'D(4'", "for example D(4)")), (dict(group="Q(4)"), ("'Q(4)'", "known")),
    (dict(qvel={"vector": [[0, 1]]}), ("qvel has no effect without qpos",)),
    (dict(generators=["turn"]), ("1 names", "2 generators")), (dict(obs={"vektor": [[0, 1]]}), ("vektor", "vector")),
    (dict(obs={"vector": [0, 1]}), ("vector", "[0]", "2 entries")),
    (dict(obs={"vector": [[0, 1], [1, 2]]}), ("[1]", "2 parts")), (dict(obs={"vector": [[0, 2]]}), ("[1]", "no part")),
    (dict(obs={"vector": [["x", "y"]]}), ("'x'",)), (dict(obs={"vector": [[-1, 0]]}), ("-1",)),
    (dict(obs={"vector": 3}), ("vector=3", "list")), (dict(obs={"cycle": [[0, 1]]}), ("cycle", "permuted")),
    (dict(obs={"scalar": "rest"}), ("scalar=rest", "names")), (dict(obs=None), ("vector",)),
    (dict(obs={"permuted": [{"entries": [0], "twist": {}}]}), ("twist", "turn, mirror")),
    (dict(obs={"permuted": [{"entries": [0, 1], "turn": {"permutation": [0]}}]}), ("permutation", "give 2")),
    (dict(obs={"permuted": [{"entries": [0, 1], "turn": [1, 0]}]}), ("turn", "permutation")),
    (dict(obs={"permuted": [{"entries": [0, 1, 2], "turn": {"permutation": [1, 2, 0]}}]}), ("relation",)),
])  # fmt: skip
def test_bad_parts_are_refused_in_a_line(changes, parts):
    with refused("Mine-v0", *parts):
        group_spec("Mine-v0", **SQUARE | changes)
