"""Which part is at fault, from logged transitions: planted faults are named, and intact robots raise no alarm."""

from __future__ import annotations

import copy
import json

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from refusals import refused

from rppdyn.agents import played_episodes, random_policy
from rppdyn.cli import main
from rppdyn.envs import Episode, find_fault, make_env
from rppdyn.envs._simulator import BareSimulator
from rppdyn.envs.certification._faults import _parameters


def logged(name: str, change=None, steps: int = 800, seed: int = 0) -> list[Episode]:
    env = make_env(name, monitor=False)
    if change is not None:
        model = env.unwrapped.model
        change(model)
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return list(played_episodes(env, random_policy(env.action_space, seed), steps=steps, seed=seed))


def noisy(episodes: list[Episode], scale: float) -> list[Episode]:
    rng = np.random.default_rng(0)
    spread = scale * np.concatenate([e.observations for e in episodes]).std(0)
    seen = [e.observations + spread * rng.standard_normal(e.observations.shape) for e in episodes]
    return [Episode(one, e.actions, e.rewards) for one, e in zip(seen, episodes, strict=True)]


def scaled(field: str, i: int, factor: float):
    def change(model) -> None:
        getattr(model, field)[i] *= factor
        if field == "body_mass":
            model.body_inertia[i] *= factor

    return change


def friction(i: int, torque: float):
    def change(model) -> None:
        model.dof_frictionloss[i] = torque

    return change


@pytest.mark.parametrize(
    ("change", "part", "parameter", "size"),
    [
        (scaled("actuator_gear", 4, 0.8), "actuator of leg_left_joint", "gear", -0.2),
        (scaled("actuator_gear", 4, -1.0), "actuator of leg_left_joint", "gear", -2.0),  # the wrong way round
        (scaled("actuator_gear", 4, 0.0), "actuator of leg_left_joint", "gear", -1.0),
        (scaled("body_mass", 3, 1.3), "body leg", "mass", 0.3),
        (scaled("dof_damping", 6, 1.3), "joint thigh_left_joint", "damping", 0.3),
        (friction(5, 5.0), "joint foot_joint", "friction", 0.05),  # of the motor's 100 Nm
    ],
)
def test_the_part_and_the_size_of_a_fault_are_named(change, part, parameter, size):
    report = find_fault("Walker2d-v5", logged("Walker2d-v5", change), n_states=60)
    fault = report.fault
    assert (fault.part, fault.parameter) == (part, parameter)
    assert fault.change == pytest.approx(size, abs=1e-3) and fault.share > 0.99 > report.suspects[1].share
    assert f"at fault: {part}, {parameter}" in report.table()


def test_a_weak_servo_is_named_by_its_gains_and_a_missing_spring_by_nothing():
    leg = """<body pos="0 {y} 0"><joint name="{n}" axis="0 1 0" damping=".1" armature=".01"/>
    <geom type="capsule" fromto="0 0 0 0 {y} -.3" size=".03"/></body>"""
    servos = "".join(f'<position joint="{n}" kp="20" kv="1" ctrlrange="-1 1"/>' for n in "lr")
    legs = leg.format(n="l", y=0.1) + leg.format(n="r", y=-0.1)
    text = f"""<mujoco><worldbody><body pos="0 0 .5"><freejoint/><geom size=".1"/>{legs}</body></worldbody>
    <actuator>{servos}</actuator></mujoco>"""
    sound, weak, sprung = (mujoco.MjModel.from_xml_string(text) for _ in range(3))
    weak.actuator_gainprm[0] *= 0.7
    weak.actuator_biasprm[0] *= 0.7
    sprung.jnt_stiffness[1:] = 3, 5

    def log(model):
        simulator, rng = BareSimulator(model), np.random.default_rng(0)
        simulator.reset(rng)
        seen, actions = [np.concatenate(simulator.coordinates())], rng.uniform(-1, 1, (120, 2))
        for action in actions:
            simulator.advance(action)
            seen.append(np.concatenate(simulator.coordinates()))
        return [Episode(np.array(seen), actions, np.zeros(len(actions)))]

    report = find_fault(sound, log(weak), n_states=60)
    assert (report.fault.part, report.fault.parameter) == ("actuator of l", "gains")
    assert report.fault.change == pytest.approx(-0.3, abs=1e-3)
    report = find_fault(sound, log(sprung), n_states=60)
    assert report.residual > 1e-3 and report.fault is None and "no part explains it" in report.table()


def test_an_intact_robot_raises_no_alarm_with_noise_or_without():
    episodes = logged("Ant-v5", steps=300)
    report = find_fault("Ant-v5", episodes, n_states=60)
    assert report.fault is None and report.residual < 1e-6 and "no part is at fault" in report.table()
    assert find_fault("Ant-v5", noisy(episodes, 1e-2), n_states=60).fault is None


def test_a_fault_that_the_noise_does_not_hide():
    episodes = logged("Walker2d-v5", scaled("actuator_gear", 0, 0.8))
    fault = find_fault("Walker2d-v5", noisy(episodes, 1e-3), n_states=60).fault
    assert fault.part == "actuator of thigh_joint" and fault.change == pytest.approx(-0.2, abs=0.02)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    words = ("--random", "--steps", "800", "--name", "test/weak-v0")
    assert main(["collect", "env=Walker2d-v5", "env.actuator_scale.leg_joint=0.8", *words]) == 0
    file = tmp_path / "found.json"
    assert main(["certify", "Walker2d-v5", "--from", "test/weak-v0", "--states", "60", "--json", str(file)]) == 0
    assert "at fault: actuator of leg_joint, gear -20.0 %" in capsys.readouterr().out
    assert json.loads(file.read_text())["fault"] == "actuator of leg_joint: gear"


def test_what_says_nothing_of_the_state_is_refused():
    episodes = logged("Walker2d-v5")
    with refused("the log's observations have 17 entries", "those of the robot 105"):
        find_fault("Ant-v5", episodes)
    with refused("Reacher-v5", "lacks the velocity of joint target_x"):
        find_fault("Reacher-v5", episodes)
    with refused("at least 50 are needed"):
        find_fault("Walker2d-v5", [Episode(e.observations * 1e6, e.actions, e.rewards) for e in episodes])
    model = copy.deepcopy(gym.make("Walker2d-v5").unwrapped.model)
    with refused("those of the robot 18"):
        find_fault(model, episodes)


@pytest.mark.parametrize("words", [
    ("--rank",), ("--symmetry", "leg swap"), ("--figure", "a.png"), ("--variant", "published"), ("--solver", "tight"),
    ("--control-scale", "0.5"),
])  # fmt: skip
def test_a_log_goes_with_no_certificate(words, capsys):
    """Variant, solver and scale of controls were ignored."""
    assert main(["certify", "Walker2d-v5", "--from", "a/b-v0", *words]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "--from a/b-v0" in error and words[0] in error


def test_a_weak_muscle_has_less_force_and_the_same_ranges():
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="j"/><geom size=".1"/></body></worldbody><actuator>'
        '<muscle joint="j" lengthrange="-1 1" force="50"/></actuator></mujoco>'
    )
    (gains,) = [p for p in _parameters(model) if p.name == "gains"]
    weak = gains.apply(model, -0.5)
    for name in ("actuator_gainprm", "actuator_biasprm"):
        one, other = getattr(model, name)[0], getattr(weak, name)[0]
        assert other[2] == 25 and np.array_equal(np.delete(one, [2, 3]), np.delete(other, [2, 3]))


def test_motors_beside_a_servo_with_two_setpoints():
    """Parts were numbered as the controls: the last had no actuator."""
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="j"/><geom size=".1"/></body></worldbody><actuator>'
        '<pid name="servo" joint="j" kp="2" kv=".1"/><motor name="motor" joint="j" gear="3" ctrlrange="-2 2"/>'
        "</actuator></mujoco>"
    )
    servo, motor, friction = [p for p in _parameters(model) if p.name in ("gains", "gear", "friction")]
    assert (servo.part, motor.part) == ("actuator servo", "actuator motor")
    assert motor.apply(model, -0.5).actuator_gear[:, 0].tolist() == [1, 1.5]
    weak = servo.apply(model, -0.5)
    assert np.array_equal(weak.actuator_gainprm[0], model.actuator_gainprm[0] / 2)
    assert np.array_equal(weak.actuator_biasprm[0], model.actuator_biasprm[0] / 2)
    assert friction.unit == 3 * 2 + 1
