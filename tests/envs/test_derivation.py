"""Symmetries derived from MuJoCo models: what is found, what it does, what spoils it; none of these tests takes a step."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from handwritten import MIRRORS
from refusals import refused
from robots import derived, robot, step_defects, tighten

from benchmarks.survey import dm_control_models
from rppdyn.envs import symmetry_spec
from rppdyn.envs._making import load_model
from rppdyn.envs.derivation import derive, symmetrise
from rppdyn.envs.derivation._trees import Skeleton


def test_a_dead_actuator_spoils_a_mirror_no_more_than_a_weak_one():
    model = robot("gymnasium/walker2d_v5")
    model.actuator_gear[1] = 0
    assert any("leg_joint has gear 0" in str(d) for d in derive(model)["leg swap"].deviations)
    model.actuator_gear[:] = 0
    assert [symmetry.name for symmetry in derive(model).symmetries] == ["front-back", "leg swap"]


@pytest.mark.parametrize("arm", [0.0, 1.0])
def test_what_is_far_follows_the_unit_of_length(arm):
    """One body about a hinge, its centre of mass on the axis or an arm away."""

    def size(unit):
        inertial = f'<inertial pos="{arm * unit} 0 0" mass="1" diaginertia="1 1 1"/>'
        body = f'<body><joint/>{inertial}<geom size="{unit}" mass="0"/></body>'
        return Skeleton(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")).size

    for length in (1e-4, 1e3):
        assert size(length) == pytest.approx(length * size(1.0), rel=1e-6)


def test_arms_without_joints_say_which_reflection_is_left_right():
    """dm_control's boxhead stands turned by a quarter: its arms, geoms of one body, lie along the world's x axis."""
    (path,) = (path for path in dm_control_models() if path.stem == "boxhead")
    found = derive(load_model(path))
    assert not found["left-right"].deviations and found["left-right"].rotation[0, 0] == -1
    assert found["front-back"].deviations and found["front-back"].rotation[1, 1] == -1


@pytest.mark.parametrize("start", [(0, 0, 1), (0, 0, 37), (90, 0, 0), (10, 20, 30)])
def test_what_is_found_does_not_depend_on_the_pose_in_which_a_free_robot_starts(start):
    spec, quaternion = (
        mujoco.MjSpec.from_file(str(Path(gym.__file__).parent / "envs/mujoco/assets/ant.xml")),
        np.zeros(4),
    )
    mujoco.mju_euler2Quat(quaternion, np.radians(start), "XYZ")
    spec.worldbody.first_body().quat = quaternion
    model = spec.compile()
    turned, upright = derive(model), derived("gymnasium/ant")
    assert turned.names == upright.names
    for symmetry, same in zip(turned.symmetries, upright.symmetries, strict=True):
        assert not symmetry.deviations
        assert np.allclose(symmetry.controls, same.controls) and np.allclose(symmetry.frames, same.frames)
    assert step_defects(tighten(model), turned["left-right"], n=3).max() < 1e-9


def test_mirrors_lie_where_limbs_say_and_not_at_the_nearest_round_angle():
    legs = "".join(
        f"""<body euler="0 0 {angle}"><body pos=".3 0 0"><joint axis="0 1 0"/><geom size=".04" fromto="0 0 0 .3 0 -.2"
        type="capsule"/></body></body>""" for angle in (-58, 84)
    )  # fmt: skip
    body = f'<body pos="0 0 1"><freejoint/><geom size=".1"/>{legs}</body>'
    found = derive(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>"))
    assert found.names == ("mirror at 13 degrees", "yaw") and not found["mirror at 13 degrees"].deviations


def test_what_alone_keeps_a_robot_from_its_mirror_is_named():
    leg = """<body pos="0 {y} 0"><joint name="{n}" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 {y} -.3" size=".03"/></body>"""
    legs = leg.format(n="l", y=0.1) + leg.format(n="r", y=-0.1)

    def two_legs(actuators):
        body = f'<body><freejoint/><geom size=".2 .1 .05" type="box"/>{legs}</body>'
        return mujoco.MjModel.from_xml_string(
            f"<mujoco><worldbody>{body}</worldbody><actuator>{actuators}</actuator></mujoco>"
        )

    pair = '<motor name="l" joint="l"/><motor name="r" joint="r"/>'
    assert "left-right" in derive(two_legs(pair)).names and not derive(two_legs(pair)).unpaired
    model = two_legs(pair + '<motor name="gripper" joint="l"/>')
    found = derive(model)
    assert "left-right" not in found.names and found.unpaired == ("actuator gripper",)
    assert found.table().endswith("a mirror image fits its bodies, but actuator gripper has no partner in it")
    with refused("no symmetry 'left-right'", "but actuator gripper has no partner in it"):
        symmetry_spec(model, symmetry="left-right")


# -- what is found ----------------------------------------------------------------------------------------------------

FOUND = {
    "gymnasium/inverted_pendulum": ("left-right",),
    "gymnasium/inverted_double_pendulum": ("left-right",),
    "gymnasium/swimmer": ("left-right", "planar rotation"),
    "gymnasium/walker2d_v5": ("front-back", "leg swap"),
    "gymnasium/half_cheetah": ("front-back",),
    "gymnasium/hopper": ("front-back",),
    "gymnasium/ant": ("left-right", "front-back", "half turn", "quarter turn", "yaw"),
    "gymnasium/humanoid": ("left-right", "yaw"),
    "gymnasium/humanoidstandup": ("left-right", "yaw"),
    "gymnasium/reacher": ("left-right", "world quarter turn", "yaw"),
    "gymnasium/pusher_v5": ("left-right", "yaw"),
    "dm_control/acrobot": ("left-right",),
    "dm_control/ball_in_cup": ("left-right",),
    "dm_control/cartpole": ("left-right",),
    "dm_control/cheetah": ("front-back",),
    "dm_control/finger": (),
    "dm_control/fish": ("left-right", "yaw"),
    "dm_control/hopper": ("front-back",),
    "dm_control/humanoid": ("left-right", "yaw"),
    "dm_control/humanoid_CMU": ("left-right", "yaw"),
    "dm_control/manipulator": ("left-right",),
    "dm_control/point_mass": ("left-right", "front-back", "world quarter turn"),
    "dm_control/quadruped": ("left-right", "front-back", "quarter turn", "half turn", "world quarter turn", "yaw"),
    "dm_control/reacher": ("left-right", "yaw"),
    "dm_control/stacker": ("left-right", *(f"exchange of box{i} and box{i + 1}" for i in range(3))),
    "dm_control/walker": ("leg swap", "front-back"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name):
    found = derived(name)
    assert set(found.names) == set(FOUND[name])
    for s in found.symmetries:
        assert s.bodies[0] == 0
        if s.is_continuous:
            assert found.symmetries[-1] is s  # discrete ones stand first
            np.testing.assert_allclose(s.dofs, -s.dofs.T, atol=1e-12)
        else:
            for matrix in (s.rotation, s.dofs, s.joint_matrix, s.controls, s.activations, *s.frames):
                np.testing.assert_allclose(matrix @ matrix.T, np.eye(len(matrix)), atol=1e-9)
            np.testing.assert_allclose(np.linalg.det(s.frames), s.determinant, atol=1e-9)


# -- what it does, against a person's reading of the models -----------------------------------------------------------


@pytest.mark.parametrize("name", MIRRORS)
def test_as_typed_by_hand(name):
    found, expected = derived(f"gymnasium/{name}"), MIRRORS[name]
    model, s = found.model, found[expected.name]

    def matrix(joints):
        made = np.zeros((len(joints),) * 2)
        for i, joint in enumerate(joints):
            made[i, joints.index(expected.image(joint))] = expected.sign(joint)
        return made

    scalars = [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] >= 2]
    driven = [model.joint(int(j)).name for j in model.actuator_trnid[:, 0]]
    P, centre = matrix(scalars), np.array([expected.centre.get(j, 0.0) for j in scalars])
    np.testing.assert_array_equal(s.joint_matrix, P)
    np.testing.assert_allclose(s.joint_shift, centre - P @ centre, atol=1e-15)
    np.testing.assert_array_equal(s.controls, matrix(driven))
    np.testing.assert_array_equal(s.dofs[model.nv - len(P) :, model.nv - len(P) :], P)
    if model.nv > len(P):  # a free joint: y, and angular velocity about x and z, change sign
        np.testing.assert_array_equal(np.diag(s.dofs)[:6], [1, -1, 1, -1, 1, -1])


def test_quarter_turn_of_ant_moves_the_limbs_and_leaves_the_world():
    s = derived("gymnasium/ant")["quarter turn"]
    np.testing.assert_array_equal(s.rotation, np.eye(3))
    np.testing.assert_array_equal(s.frames[1], [[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    # Leg 1 (front left) goes to leg 2 (back left), and so on round; ankles 2 and 4 bend the other way.
    np.testing.assert_array_equal(s.joint_matrix[2:4, :2], np.diag([1, -1]))
    np.testing.assert_array_equal(s.joint_matrix[0:2, 6:8], np.diag([1, 1]))
    assert not s.deviations


# -- what spoils it ---------------------------------------------------------------------------------------------------


def spoilers(found, name):
    return {(d.element.split()[-1], d.parameter) for d in found[name].deviations}


def test_what_spoils_humanoids():
    (knee, hip) = derived("gymnasium/humanoid")["left-right"].deviations
    assert str(knee) == "joint right_knee has stiffness 0, joint left_knee 1" and knee.relative == 1
    assert str(hip) == "joint right_hip_y has armature 0.008, joint left_hip_y 0.01"
    assert hip.relative == pytest.approx(0.2)
    assert spoilers(derived("gymnasium/humanoidstandup"), "left-right") == {
        ("right_knee", "stiffness"),
        ("right_hip_y", "armature"),
        ("right_hip_y", "range"),
    }
    assert spoilers(derived("dm_control/humanoid"), "left-right") == {("right_hip_y", "range")}


def test_what_spoils_the_others():
    (gravity,) = derived("gymnasium/inverted_double_pendulum")["left-right"].deviations
    assert gravity.parameter == "gravity" and gravity.relative == pytest.approx(2e-5 / 9.81)
    assert spoilers(derived("gymnasium/walker2d"), "leg swap") == {("foot_geom", "friction")}  # before v5
    assert spoilers(derived("gymnasium/reacher"), "yaw") == {("target_x", "range")}
    assert {kind for _, kind in spoilers(derived("gymnasium/pusher_v5"), "left-right")} == {"range"}
    cheetah = spoilers(derived("gymnasium/half_cheetah"), "front-back")
    assert {("bshin", "stiffness"), ("bshin", "gear"), ("head", "pos"), ("bthigh", "mass")} <= cheetah
    assert ("foot_joint", "range") not in spoilers(derived("gymnasium/hopper"), "front-back")  # -45 to 45 degrees


def test_a_link_that_turns_about_the_vertical_only_may_be_lopsided():
    model = robot("gymnasium/pusher_v5")
    before = spoilers(derive(model), "left-right")
    pan, forearm = (model.body(f"r_{x}_link").id for x in ("shoulder_pan", "forearm"))
    model.body_ipos[pan] += [0.05, 0.07, 0.1]
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert spoilers(derive(model), "left-right") == before
    model.body_ipos[forearm, 1] += 0.01
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert ("r_forearm_link", "com") in spoilers(derive(model), "left-right")


@pytest.mark.parametrize(("field", "kind", "column", "value"), [
    ("dof_armature", "joint", None, 0.02), ("jnt_stiffness", "joint", None, 1.0), ("jnt_range", "joint", 0, -2.0),
    ("actuator_gear", "actuator", 0, 90.0), ("actuator_ctrlrange", "actuator", 1, 0.5), ("body_mass", "body", None, 2.0),
    ("body_ipos", "body", 2, 0.01), ("geom_friction", "geom", 0, 0.5), ("geom_size", "geom", 0, 0.05),
])  # fmt: skip
def test_a_changed_leg_is_named(field, kind, column, value):
    model = robot("gymnasium/walker2d_v5")
    assert not derive(model)["leg swap"].deviations
    name = {"joint": "leg_left_joint", "body": "leg_left", "geom": "leg_left_geom"}.get(kind)
    i = 4 if name is None else model.joint(name).dofadr[0] if "dof" in field else getattr(model, kind)(name).id
    getattr(model, field)[i if column is None else (i, column)] = value
    mujoco.mj_setConst(model, mujoco.MjData(model))
    (found,) = derive(model)["leg swap"].deviations
    assert found.parameter == {"body_ipos": "com"}.get(field, field.partition("_")[2])
    assert {found.element.split()[-1], found.partner.split()[-1]} & {"leg_left_joint", "leg_left", "leg_left_geom"}


def test_structure_that_differs_is_no_symmetry():
    model = robot("gymnasium/walker2d_v5")
    model.actuator_trnid[4, 0] = model.joint("foot_left_joint").id  # the left knee is driven no more
    assert "leg swap" not in derive(model).names
    model = robot("gymnasium/ant")
    model.jnt_axis[model.joint("ankle_1").id] = [0, 0, 1]
    assert derive(model).names == ("mirror at 45 degrees", "yaw")  # the plane that this leg lies in


PAIR = """<mujoco><asset><hfield name="l" nrow="3" ncol="3" size="{l}"/><hfield name="r" nrow="3" ncol="3" size="{r}"/></asset>
<worldbody><geom name="l" type="hfield" hfield="l" pos="0 5 -1"/><geom name="r" type="hfield" hfield="r" pos="0 -5 -1"/>
<body><freejoint/><geom size=".1"/>
<body name="l" pos="0 .3 0"><joint name="l" axis="1 0 0"/><geom size=".1"/><site name="l" pos="0 .1 0"/></body>
<body name="r" pos="0 -.3 0"><joint name="r" axis="-1 0 0"/><geom size=".1"/><site name="r" pos="0 -.1 0"/></body>
</body></worldbody><tendon>
<fixed name="l"><joint joint="l" coef="1"/></fixed><fixed name="r"><joint joint="r" coef="1"/></fixed></tendon>
<actuator>{motor}</actuator></mujoco>"""


@pytest.mark.parametrize("motor", ['<motor tendon="l"/>', '<motor site="l"/>', '<adhesion body="l" ctrlrange="0 1"/>'])
def test_a_motor_without_an_image_is_not_its_own(motor):
    both = PAIR.format(l="1 1 1 .1", r="1 1 1 .1", motor=motor + motor.replace('"l"', '"r"'))
    assert not derive(mujoco.MjModel.from_xml_string(both))["left-right"].deviations
    found = derive(mujoco.MjModel.from_xml_string(PAIR.format(l="1 1 1 .1", r="1 1 1 .1", motor=motor)))
    assert not any(s.bodies[2] == 3 for s in found.symmetries)
    assert all(np.isfinite(s.controls).all() for s in found.symmetries)


@pytest.mark.parametrize("size", ["2 2 1 .1", "1 1 1 .2"])
def test_flat_height_fields_of_unequal_sizes_deviate(size):
    found = derive(mujoco.MjModel.from_xml_string(PAIR.format(l="1 1 1 .1", r=size, motor="")))
    assert spoilers(found, "left-right") == {("l", "orientation")}


@pytest.mark.parametrize("y", ["gear='2'", "gainprm='2'", "gear='1'"])
def test_motors_that_mix_are_compared_with_each_other(y):
    slides = '<joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>'
    motors = f"<general name='mx' joint='x'/><general name='my' joint='y' {y}/>"
    found = derive(mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody><body>{slides}<geom size='.1'/></body></worldbody><actuator>{motors}</actuator></mujoco>"
    ))  # fmt: skip
    assert {kind for _, kind in spoilers(found, "yaw")} == {y.split("=")[0]} - ({"gear"} if "1" in y else set())


def test_symmetrise_with_a_constraint_of_joints_and_without_sites():
    """Constraints of joints have numbers of joints where those of welded sites have numbers of sites."""
    finger = "<body pos='0 {y} 0'><joint name='{n}' axis='{s} 0 0' damping='{d}'/><geom size='.1'/></body>"
    fingers = finger.format(y=0.3, n="left", s=1, d=1.0) + finger.format(y=-0.3, n="right", s=-1, d=1.2)
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody><body><freejoint/><geom size='.1'/>{fingers}</body></worldbody>"
        "<equality><joint joint1='left' joint2='right'/></equality></mujoco>"
    )
    symmetry = derive(model)["left-right"]
    assert [d.parameter for d in symmetry.deviations] == ["damping"]
    made = symmetrise(model, symmetry)
    assert not derive(made)["left-right"].deviations
    np.testing.assert_allclose(made.dof_damping[-2:], 1.1)


def test_symmetrise_takes_away_what_spoils():
    model = robot("gymnasium/humanoid")
    made = symmetrise(model, derived("gymnasium/humanoid")["left-right"])
    assert not derive(made)["left-right"].deviations
    assert made.dof_armature[made.joint("right_hip_y").dofadr[0]] == pytest.approx(0.009)
    assert made.joint("left_knee").stiffness == made.joint("right_knee").stiffness == 0.5
    assert model.joint("left_knee").stiffness == 1  # a copy
    np.testing.assert_array_equal(made.body_mass, model.body_mass)

    model = robot("gymnasium/half_cheetah")
    symmetry = derived("gymnasium/half_cheetah")["front-back"]
    made = symmetrise(model, symmetry)
    assert len(symmetry.deviations) > 30 and not derive(made)["front-back"].deviations
    assert made.body_mass.sum() == pytest.approx(model.body_mass.sum())


def test_one_deviation_is_repaired_alone():
    model = robot("gymnasium/walker2d_v5")
    leg = model.body("leg_left").id
    model.body_mass[leg] *= 1.2
    model.body_pos[leg, 2] -= 1e-3
    mujoco.mj_setConst(model, mujoco.MjData(model))
    symmetry = derive(model)["leg swap"]
    place = next(d for d in symmetry.deviations if d.parameter == "pos" and "body" in d.element)
    remaining = derive(symmetrise(model, symmetry, place))["leg swap"].deviations
    assert {d.parameter for d in symmetry.deviations} - {d.parameter for d in remaining} == {"pos"}
    assert "mass" in {d.parameter for d in remaining}


def test_errors_are_one_line_and_say_what_to_do():
    found = derived("gymnasium/humanoid")
    model = found.model
    for call, words in (
        (lambda: found["front-back"], ("'front-back'", "left-right, yaw")),
        (lambda: symmetrise(model, found["yaw"]), ("yaw", "discrete")),
        (lambda: symmetrise(robot("gymnasium/hopper"), found["left-right"]), ("left-right", "found")),
        (lambda: derive(mujoco.MjModel.from_xml_string("<mujoco/>")), ("no joints",)),
    ):
        with refused(*words):
            call()


def test_table_says_what_a_person_asks():
    text = str(derived("gymnasium/humanoid"))
    assert "joint right_knee has stiffness 0, joint left_knee 1" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["right_shoulder1"] == ["right_shoulder1", "-left_shoulder1", "stays"]
    assert rows["world"] == ["world", "x,", "-y,", "z", "turns", "about", "z"]
    pendulum = str(derived("gymnasium/inverted_pendulum"))
    assert "-hinge - 0.003333" in pendulum and "one parameter deviates" in pendulum
    assert max(map(len, str(derived("gymnasium/half_cheetah")).splitlines())) < 200
    assert str(derived("dm_control/finger")) == "no symmetry found"


LEGS = "".join(
    f'<body name="{n}" pos="0 {y} 0"><joint name="{n}" axis="0 1 0"/>'
    f'<geom type="capsule" fromto="0 0 0 0 {y} -.3" size=".03"/></body>'
    for n, y in (("l", 0.1), ("r", -0.1))
)


@pytest.mark.parametrize("where", ["world", "torso"])
def test_fixed_bodies_are_matched_by_their_places(where):
    """Two pillars beside a robot, or two ears on it: each is the other's image."""
    twins = "".join(f'<body pos=".1 {y} .1"><geom size=".03"/></body>' for y in (0.08, -0.08))
    on = {"world": "", "torso": "", where: twins}
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody>{on["world"]}<body pos="0 0 1"><freejoint/><geom type="box" size=".2 .1 .05"/>{on["torso"]}'
        f'{LEGS}</body></worldbody><actuator><motor joint="l"/><motor joint="r"/></actuator></mujoco>'
    )
    assert derive(model)["left-right"].deviations == ()


@pytest.mark.parametrize(
    "actuator",
    ['muscle lengthrange="-1 1" force="50"', 'motor ctrllimited="true" ctrlrange="0 1"'],
    ids=["muscles", "motors"],
)
def test_antagonists_are_each_others_images(actuator):
    """They pull one way each; the mirror of one is the other, and not its own negative."""
    pair = "".join(f'<{actuator} joint="j" gear="{gear}"/>' for gear in (1, -1))
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body pos="0 0 1"><joint name="j" axis="1 0 0" damping="1"/>'
        f'<geom type="capsule" fromto="0 0 0 0 0 -.5" size=".03"/></body></worldbody><actuator>{pair}</actuator></mujoco>'
    )
    found = derive(model)["left-right"]
    assert found.deviations == () and np.array_equal(found.controls, [[0, 1], [1, 0]])


def test_a_path_over_a_pulley_has_no_reverse():
    """The left branch counts whole and the right one a quarter."""
    sites = "".join(f'<site name="s{n}" pos="0 {y} 0"/>' for n, y in (("l", 0.1), ("r", -0.1)))
    world = "".join(f'<site name="w{n}" pos="0 {y} 2"/>' for n, y in (("l", 0.1), ("r", -0.1)))
    path = '<site site="wl"/><site site="sl"/><pulley divisor="4"/><site site="sr"/><site site="wr"/>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody>{world}<body pos="0 0 1"><freejoint/><geom type="box" size=".2 .1 .05"/>{sites}</body></worldbody>'
        f'<tendon><spatial name="t">{path}</spatial></tendon><actuator><motor tendon="t"/></actuator></mujoco>'
    )
    assert "left-right" not in derive(model).names or derive(model)["left-right"].deviations


def test_symmetrise_takes_tendons_of_a_robot_without_slides_and_hinges():
    """Three free bodies, held by tendons of unequal stiffness; there was no column of coefficients to divide by."""
    bodies = "".join(
        f'<body pos="{x} 0 1"><freejoint/><geom size=".1"/><site name="s{n}" pos="0 0 .1"/></body>'
        for n, x in enumerate((0, 1, -1))
    )
    tendons = "".join(
        f'<spatial name="t{n}" stiffness="{n}"><site site="s0"/><site site="s{n}"/></spatial>' for n in (1, 2)
    )
    motors = '<motor tendon="t1"/><motor tendon="t2" gear="3"/>'
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{bodies}</worldbody><tendon>{tendons}</tendon><actuator>{motors}</actuator></mujoco>"
    )
    mean = symmetrise(model, derive(model)["exchange of 2 and 3"])
    assert mean.tendon_stiffness.ravel()[:2].tolist() == [1.5, 1.5] and mean.actuator_gear[:, 0].tolist() == [2, 2]
    assert not derive(mean)["exchange of 2 and 3"].deviations


def test_motors_beside_servos_with_two_setpoints_are_matched_by_their_own_ranges():
    """The range of the control with the actuator's number was compared, so motors had the wrong partners."""
    motors = "".join(f'<motor name="{n}" joint="{n[0]}" ctrlrange="-{n[1]} {n[1]}"/>' for n in ("l1", "l2", "r2", "r1"))
    servos = "".join(f'<pid joint="{joint}" kp="2" kv=".1"/>' for joint in "lr")
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><body pos="0 0 1"><freejoint/><geom type="box" size=".2 .1 .05"/>{LEGS}</body></worldbody>'
        f"<actuator>{servos}{motors}</actuator></mujoco>"
    )
    found = derive(model)["left-right"]
    assert not found.deviations and np.abs(found.controls[4:, 4:]).argmax(1).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("counts", [(4, 3), (4, 4)])
def test_each_of_two_robots_has_its_own_turns(counts):
    """Only the smallest turn of all robots was kept, and two could have one name."""
    leg = """<body euler="0 0 {}"><body pos=".3 0 0"><joint axis="0 1 0"/>
    <geom size=".04" fromto="0 0 0 .3 0 -.2" type="capsule"/></body></body>"""
    robots = "".join(
        f'<body name="{name}" pos="{x} 0 1"><freejoint/><geom size=".1"/>'
        f"{''.join(leg.format(360 * k / count) for k in range(count))}</body>"
        for name, x, count in zip("ab", (0, 3), counts, strict=True)
    )
    found = derive(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{robots}</worldbody></mujoco>"))
    turns = ["half turn", "quarter turn"]
    turns += {3: ["turn by 2 pi/3"], 4: ["half turn (b)", "quarter turn (b)"]}[counts[1]]
    assert [name for name in found.names if "turn" in name] == turns
    assert all(np.allclose(found[name].frames[1], np.eye(3)) for name in turns[2:])  # the other's, which leave this one
