"""What breaks a symmetry in motion: planted faults come first, and what has no effect comes last."""

from __future__ import annotations

import copy

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import diagnose
from rppdyn.envs._model_symmetry import Deviation
from rppdyn.envs.certification._doctor import Diagnosis, Finding


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


def unlimited(model):
    model.jnt_limited[5] = 0


def force_limited(model):
    model.actuator_forcelimited[3], model.actuator_forcerange[3] = 1, (-0.2, 0.2)


@pytest.mark.parametrize("change", [unlimited, force_limited])
def test_a_limit_that_one_partner_lacks_becomes_boths(walker, change):
    """Its range is no mean with the 0 0 of a partner without one."""
    model = copy.deepcopy(walker)
    change(model)
    found = diagnose(model, n_states=30)
    assert found.symmetry == "leg swap" and found.repaired < 1e-12 < 1e-3 < found.defect
    assert [finding.share for finding in found.findings] == pytest.approx([1.0] * len(found.findings))


def test_what_no_mean_repairs_has_no_share_and_comes_first():
    leg = """<body pos="0 {y} 0"><joint name="{n}" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 {y} -.3" size=".03"/></body>"""
    legs = leg.format(n="l", y=0.1) + leg.format(n="r", y=-0.1)
    motors = "".join(f'<motor joint="{n}" ctrlrange="-1 1"/>' for n in "lr")
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><body pos="0 0 .6"><freejoint/><geom size=".2 .1 .05" type="box"/>{legs}</body></worldbody>
        <equality><joint joint1="l"/></equality><actuator>{motors}</actuator></mujoco>"""
    )
    model.actuator_gear[0, 0] = 1.1
    found = diagnose(model, "left-right", n_states=30)
    first, second = found.table().splitlines()[2:]
    assert first.startswith("unknown") and "equality 0" in first and "gear" in second
    assert found.repaired > 1e-3


def test_an_intact_robot_has_nothing_to_repair_and_unknown_names_are_said(walker):
    with refused("no discrete symmetry of the model deviates", "left-right"):
        diagnose("Ant-v5", n_states=30)
    with refused("rppdyn/WindyPendulum-v0 has no MuJoCo model"):
        diagnose("rppdyn/WindyPendulum-v0")
    with refused("no parameter deviates from left-right", "nothing to repair"):  # was an IndexError
        diagnose("Ant-v5", "left-right", n_states=30)
    with refused("symmetry='yaw': no discrete symmetry of the model", "leg swap"):
        diagnose(walker, "yaw")


@pytest.mark.parametrize("share, end", [(np.nan, "and 2 more"), (0.25, "and 2 more, none above 25.0 %")])
def test_the_end_of_a_table_names_the_next_share_only_if_it_is_known(share, end):
    """It said "none above unknown"."""
    deviation = Deviation("joint left", "joint right", "armature", "1", "2", 0.5)
    table = Diagnosis("left-right", 0.1, 0.0, (Finding(deviation, share),) * 14).table()
    assert table.splitlines()[-1] == end


def test_on_the_command_line(capsys):
    assert main(["certify", "Humanoid-v5", "--states", "20", "--rank"]) == 0
    out = capsys.readouterr().out
    ranked = out[out.index("left-right: a step is off by") :].splitlines()
    assert "joint right_knee has stiffness 0, joint left_knee 1" in ranked[2]
