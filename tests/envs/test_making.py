"""Environments with weakened actuators."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco import MujocoEnv
from refusals import refused

from rppdyn.envs import make_env
from rppdyn.envs._making import ScaledActuators, stock_env


def gears(env):
    return env.unwrapped.model.actuator_gear[:, 0].tolist()


def test_half_strength_actuator():
    env, stock = make_env("Walker2d-v5", actuator_scale={"leg_joint": 0.5}), make_env("Walker2d-v5")
    assert gears(env) == [100, 50, 100, 100, 100, 100]
    assert gears(stock) == [100] * 6  # another environment's model is untouched
    assert env.observation_space == stock.observation_space and env.action_space == stock.action_space
    assert env.unwrapped.dt == stock.unwrapped.dt
    obs = [e.reset(seed=0)[0] for e in (env, stock)]
    assert np.array_equal(*obs)
    # Half the strength is what halving that action does (up to the control cost in the reward).
    action = np.full(6, 0.5, dtype=np.float32)
    halved = action.copy()
    halved[1] *= 0.5
    assert np.array_equal(env.step(action)[0], stock.step(halved)[0])


def test_names_are_the_actuators_or_the_joints():
    for name in ("slide", "slider"):
        assert gears(make_env("InvertedPendulum-v5", actuator_scale={name: 0.5})) == [50]


def test_a_joint_is_all_of_its_actuators(tmp_path):
    """One of the two was scaled, silently."""
    stock = Path(gym.envs.mujoco.__file__).parent / "assets" / "inverted_pendulum.xml"
    robot = tmp_path / "two_motors.xml"
    second = '<motor name="second" joint="slider" gear="30" ctrlrange="-1 1"/></actuator>'
    robot.write_text(stock.read_text().replace("</actuator>", second))

    def scaled(**scale):
        return gears(make_env("InvertedPendulum-v5", actuator_scale=scale, xml_file=str(robot)))

    assert scaled(slider=0.5) == [50, 15] and scaled(slide=0.5) == [50, 30] and scaled(second=2) == [100, 60]
    with refused("twice"):
        scaled(slider=0.5, second=0.5)


def test_actuators_beside_one_with_several_controls_or_forces(tmp_path):
    """Actuators were numbered as the controls, and rows of gears as the actuators."""
    body = '<body><joint name="{0}" type="{1}"/><geom size=".1"/></body>'
    bodies = body.format("slide", "slide") + body.format("ball", "ball")
    (tmp_path / "robot.xml").write_text(
        f"<mujoco><worldbody>{bodies}</worldbody><actuator>"
        '<general name="turner" joint="ball" gaintype="so3" biastype="so3" gainprm="2" biasprm="0 -2 -.1"/>'
        '<pid name="servo" joint="slide" kp="2" kv=".1"/><motor name="pusher" joint="slide" gear="4"/></actuator></mujoco>'
    )
    space = gym.spaces.Box(-np.inf, np.inf, (9,))
    env = MujocoEnv(str(tmp_path / "robot.xml"), 5, observation_space=space)
    assert env.model.nu == 6
    ScaledActuators(env, {"pusher": 0.5, "servo": 0.25})
    assert gears(env) == [1, 1, 1, 0.25, 2]


def test_copies_stay_weakened():
    env = make_env("Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    bare = ScaledActuators(gym.make("Walker2d-v5"), {"leg_joint": 0.5})
    for again in (copy.deepcopy(env), pickle.loads(pickle.dumps(env)), gym.make(bare.spec)):
        assert gears(again) == gears(env) == gears(bare)


@pytest.mark.parametrize(("env_id", "options", "parts"), [
    ("Walker2d-v5", dict(actuator_scale={"knee": 0.5}), ("'knee'", "Walker2d-v5", "foot_left_joint")),
    ("Walker2d-v5", dict(actuator_scale={"leg_joint": -1}), ("leg_joint", "-1.0")),
    ("Walker2d-v5", dict(actuator_scale={"leg_joint": float("nan")}), ("leg_joint", "nan")),
    ("InvertedPendulum-v5", dict(actuator_scale={"slide": 0.5, "slider": 0.5}), ("twice",)),
    ("Walker3d-v5", {}, ("'Walker3d-v5'",)), ("Walker2d-v99", {}, ("Walker2d-v99",)),
    ("Walker2d-v5", dict(gravity=3), ("Walker2d-v5", "gravity")),
    ("Walker2d-v5", dict(frame_skip=-1), ("Walker2d-v5", "frame_skip=-1", "at least 1")),
    ("Walker2d-v5", dict(frame_skip=2.5), ("Walker2d-v5", "frame_skip=2.5", "integer")),
    ("CartPole-v1", dict(actuator_scale={"leg": 0.5}), ("CartPole-v1", "MuJoCo")),
])  # fmt: skip
def test_errors(env_id, options, parts):
    with refused(*parts):
        make_env(env_id, **options)


class Sized(gym.Env):
    """Needs a size, and can be reset where it is positive."""

    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))
    closed = 0

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        if self.size < 0:
            raise OverflowError("too small")
        return np.zeros(1, np.float32), {}

    def close(self):
        Sized.closed += 1


def test_what_an_environment_refuses_is_said_in_one_line():
    gym.register("Sized-v0", Sized)
    gym.register("Small-v0", Sized, kwargs={"size": -1})
    try:
        with refused("Sized-v0 can't be made: ", "size"):
            stock_env("Sized-v0")
        with refused("Sized-v0 can't be made or reset with size=-1: ", "test_making.py:", "OverflowError: too small"):
            stock_env("Sized-v0", size=-1)
        assert Sized.closed == 1
        assert stock_env("Sized-v0", size=1).unwrapped.size == 1
        with pytest.raises(OverflowError):  # of what nobody asked for, the error is the environment's own
            stock_env("Small-v0", disable_env_checker=True).reset()
    finally:
        del gym.registry["Sized-v0"], gym.registry["Small-v0"]


def test_packages_that_break_on_this_mujoco_name_versions_that_go_together(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "dm_control"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "dm_control").mkdir()
    (tmp_path / "dm_control" / "__init__.py").touch()
    (tmp_path / "dm_control" / "broken.py").write_text(
        "def make(**options):\n    raise AttributeError('flex_vertedge')\n"
    )
    gym.register("Broken-v0", entry_point="dm_control.broken:make")
    with refused(
        "Broken-v0", "dm_control", f"fails on mujoco {mujoco.__version__}", "flex_vertedge", "versions that go together"
    ):
        make_env("Broken-v0")
    gym.registry.pop("Broken-v0")
