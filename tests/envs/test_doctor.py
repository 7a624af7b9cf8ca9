"""What breaks a symmetry in motion: planted faults come first, and what has no effect comes last."""

from __future__ import annotations

import copy

import gymnasium as gym
import mujoco
import pytest
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import diagnose


@pytest.fixture(scope="module")
def walker():
    return gym.make("Walker2d-v5").unwrapped.model


def test_the_weak_motor_is_first_and_repairing_everything_repairs_it(walker):
    model = copy.deepcopy(walker)
    model.actuator_gear[3, 0] *= 0.9  # thigh_left_joint's
    model.dof_damping[5] *= 1.05  # foot_joint's, which hardly matters
    found = diagnose(model, n_states=30)
    assert found.symmetry == "leg swap" and found.repaired < 1e-12 < 1e-3 < found.defect
    first, second = found.findings
    assert "thigh" in first.deviation.element and first.deviation.parameter == "gear" and first.share > 0.9
    assert second.deviation.parameter == "damping" and second.share < 0.1
    assert "90.0" not in found.table() and "gear" in found.table().splitlines()[2]


@pytest.mark.parametrize("part", ["body_mass", "actuator_gear"])
def test_single_faults(walker, part):
    model = copy.deepcopy(walker)
    array = getattr(model, part)
    array[len(array) - 2] *= 1.3  # leg_left, its joint or its motor
    mujoco.mj_setConst(model, mujoco.MjData(model))
    found = diagnose(model, n_states=30)
    one = found.findings[0]
    assert "leg_left" in one.deviation.element + one.deviation.partner and one.share == pytest.approx(1.0, abs=1e-6)


def test_an_intact_robot_has_nothing_to_repair_and_unknown_names_are_said(walker):
    with refused("no discrete symmetry of the model deviates", "left-right"):
        diagnose("Ant-v5", n_states=30)
    with refused("rppdyn/WindyPendulum-v0 has no MuJoCo model"):
        diagnose("rppdyn/WindyPendulum-v0")
    with refused("symmetry='yaw': no discrete symmetry of the model", "leg swap"):
        diagnose(walker, "yaw")


def test_on_the_command_line(capsys):
    assert main(["certify", "Humanoid-v5", "--states", "20", "--rank"]) == 0
    out = capsys.readouterr().out
    ranked = out[out.index("left-right: a step is off by") :].splitlines()
    assert "joint right_knee has stiffness 0, joint left_knee 1" in ranked[2]
