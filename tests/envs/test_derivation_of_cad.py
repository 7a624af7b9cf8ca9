"""Robots as CAD programs export them: what decides their symmetry is their joints, whatever their masses say."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from rppdyn.envs.derivation import derive

HUMANOID = """<mujoco><compiler angle="radian"/><worldbody><geom type="plane" size="5 5 .1"/>
<body name="pelvis" pos="0 0 1"><{root}/><geom type="box" size=".08 .1 .06" mass="5"/>
 <body name="waist"><joint name="waist_yaw" axis="0 0 1"/>
 <inertial pos="-.01 0 .02" mass=".4" diaginertia=".001 .001 .001"/>
  <body name="torso" pos="0 0 .06"><joint name="waist_roll" axis="1 0 0" pos="0 0 .01"/>
 <joint name="waist_pitch" axis="0 1 0"/>
   <geom type="box" size=".08 .12 .2" pos="-.01 0 .2" mass="8"/>
   <body name="head" pos="0 0 .42"><joint name="neck" axis="0 0 1" range="-1 1"/>
 <geom type="sphere" pos=".03 0 .1" size=".1"/></body>
   {arms}</body></body>{legs}</body></worldbody>
<actuator>{motors}</actuator></mujoco>"""

ARM = """<body name="{s}_arm" pos="0 {y} .36"><joint name="{s}_shoulder_pitch" axis="0 1 0" range="-3 1"/>
<geom type="capsule" fromto="0 0 0 .03 {out} -.15" size=".03" mass="1"/>
<body name="{s}_upper" pos="0 {out} 0"><joint name="{s}_shoulder_roll" axis="1 0 0" range="{roll}"/>
<geom type="capsule" fromto="0 0 0 0 0 -.25" size=".03" mass="1"/>
<body name="{s}_forearm" pos="0 0 -.28"><joint name="{s}_elbow" axis="0 1 0"/>
 <geom type="capsule" fromto="0 0 0 .2 0 0" size=".03" mass=".7"/></body></body></body>"""

LEG = """<body name="{s}_thigh" pos="0 {y} -.06"><joint name="{s}_hip_roll" axis="1 0 0"/>
 <joint name="{s}_hip_pitch" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -.3" size=".05" mass="3"/>
<body name="{s}_shin" pos="0 0 -.35"><joint name="{s}_knee" axis="0 1 0" range="0 2"/>
 <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".04" mass="2"/>
<body name="{s}_foot" pos="0 0 -.35"><joint name="{s}_ankle" axis="0 1 0"/>
 <geom name="{s}_sole" type="box" size=".1 .04 .02" pos=".04 0 -.03" mass=".6"/></body></body></body>"""


def humanoid(root: str = "freejoint", sides: tuple[str, ...] = ("l", "r"), extra: str = "") -> mujoco.MjModel:
    """A robot with a waist, a head, arms and legs; `extra` is one more link on the left hand."""
    parts = {"l": ("", "0 3"), "r": ("-", "-3 0")}
    arms = "".join(ARM.format(s=s, y=f"{parts[s][0]}.15", out=f"{parts[s][0]}.05", roll=parts[s][1]) for s in sides)
    arms = arms.replace("</body>", f"{extra}</body>", 1)
    legs = "".join(LEG.format(s=s, y=f"{parts[s][0]}.1") for s in ("l", "r"))
    names = ["waist_yaw", "waist_roll", "waist_pitch", "neck"]
    names += [f"{s}_{j}" for s in sides for j in ("shoulder_pitch", "shoulder_roll", "elbow")]
    names += [f"{s}_{j}" for s in ("l", "r") for j in ("hip_roll", "hip_pitch", "knee", "ankle")]
    motors = "".join(f'<motor joint="{name}"/>' for name in names)
    return mujoco.MjModel.from_xml_string(HUMANOID.format(root=root, arms=arms, legs=legs, motors=motors))


FIXED = 'geom type="sphere" size=".01" mass="0"'  # stands in for the free joint


def quadruped(missing: str = "") -> mujoco.MjModel:
    """Four legs of three joints each, twice as long as it is wide."""
    legs = motors = ""
    for name, x, y in (("fl", ".2", ".06"), ("fr", ".2", "-.06"), ("rl", "-.2", ".06"), ("rr", "-.2", "-.06")):
        if name == missing:
            continue
        legs += f"""<body name="{name}_hip" pos="{x} {y} 0"><joint name="{name}_abduct" axis="1 0 0"/>
<geom type="sphere" size=".04" mass=".5"/><body name="{name}_thigh" pos="0 {y} 0">
 <joint name="{name}_hip" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass="1"/><body name="{name}_calf" pos="0 0 -.2">
<joint name="{name}_knee" axis="0 1 0"/>
 <geom name="{name}_shank" type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass=".2"/></body></body></body>"""
        motors += "".join(f'<motor joint="{name}_{j}"/>' for j in ("abduct", "hip", "knee"))
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><geom type="plane" size="5 5 .1"/><body name="trunk" pos="0 0 .5"><freejoint/>
<geom type="box" size=".25 .08 .05" mass="6"/><geom type="sphere" pos=".27 0 .02" size=".03"/>{legs}</body>
 </worldbody>
<actuator>{motors}</actuator></mujoco>"""
    )


ROBOTS = {"humanoid": humanoid, "fixed humanoid": lambda: humanoid(FIXED), "quadruped": quadruped}


def left_right(model: mujoco.MjModel):
    """The symmetry of this name, which exchanges what lies on the left with what lies on the right, without a shift."""
    found = derive(model)["left-right"]
    names = [model.body(b).name for b in range(model.nbody)]
    for name, image in zip(names, (names[b] for b in found.bodies), strict=True):
        mirrored = {"l": "r", "r": "l"}.get(name[0]) if name[1:2] == "_" else None
        if len(name.split("_")[0]) == 2:
            mirrored = name[0] + {"l": "r", "r": "l"}[name[1]]
        assert image == name if mirrored is None else image.startswith(mirrored), (name, image)
    np.testing.assert_array_equal(found.rotation, np.diag([1, -1, 1]))
    np.testing.assert_array_equal(found.joint_shift, 0)
    assert set(np.unique(np.abs(found.joint_matrix))) == {0, 1}
    return found


@pytest.fixture(scope="module", params=ROBOTS)
def robot(request):
    return request.param


def test_masses_inertias_and_geoms_off_are_deviations(robot):
    rng = np.random.default_rng(1)
    model = ROBOTS[robot]()
    assert not left_right(model).deviations
    bodies = np.flatnonzero(model.body_weldid > 0)
    model.body_mass[bodies] *= rng.uniform(0.7, 1.3, len(bodies))
    model.body_ipos[bodies] += rng.normal(scale=0.01, size=(len(bodies), 3))
    turns = np.array([1, 0, 0, 0]) + rng.normal(scale=0.1, size=(len(bodies), 4))
    model.body_iquat[bodies] = turns / np.linalg.norm(turns, axis=1)[:, None]
    model.geom_pos[1:] += rng.normal(scale=0.005, size=(model.ngeom - 1, 3))
    model.geom_size[1:] *= rng.uniform(0.8, 1.2, (model.ngeom - 1, 1))
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert {"mass", "com", "inertia", "pos", "size"} <= {d.parameter for d in left_right(model).deviations}


def test_joints_a_little_off_are_deviations_at_any_scale(robot):
    rng = np.random.default_rng(2)
    for offset in (1e-6, 1e-3):
        model = ROBOTS[robot]()
        jointed, hinges = model.body_jntnum > 0, model.jnt_type == 3
        model.body_pos[jointed] += rng.normal(scale=offset / np.sqrt(3), size=(jointed.sum(), 3))
        model.jnt_axis[hinges] += rng.normal(scale=offset, size=(hinges.sum(), 3))
        model.jnt_axis[:] /= np.linalg.norm(model.jnt_axis, axis=1)[:, None]
        assert {"pos", "axis"} <= {d.parameter for d in left_right(model).deviations}


def test_a_foot_of_another_shape_is_named():
    model = humanoid()
    model.geom_type[model.geom("l_sole").id] = mujoco.mjtGeom.mjGEOM_ELLIPSOID
    named = {d.element.split()[-1] for d in left_right(model).deviations}
    assert named == {"l_sole", "r_sole"}


def test_quadruped_keeps_both_mirrors_and_the_half_turn_when_its_trunk_is_lopsided():
    model = quadruped()
    model.body_ipos[model.body("trunk").id] += [0.01, 0.002, 0]
    model.body_pos[model.body("fl_hip").id] += [1e-4, -1e-4, 0]
    found = derive(model)
    assert found.names == ("left-right", "front-back", "half turn", "yaw")
    assert all(s.deviations for s in found.symmetries[:3])


@pytest.mark.parametrize("root", ["freejoint", FIXED])
@pytest.mark.parametrize("how", ["axis", "place", "arm", "link"])
def test_a_robot_of_another_structure_has_no_left_right(how, root):
    link = '<body pos=".2 0 0"><joint axis="0 1 0"/><geom type="sphere" size=".03"/></body>'
    model = humanoid(root, ("l",) if how == "arm" else ("l", "r"), link if how == "link" else "")
    if how == "axis":
        model.jnt_axis[model.joint("l_elbow").id] = [np.sin(np.radians(10)), np.cos(np.radians(10)), 0]
    elif how == "place":
        model.body_pos[model.body("waist").id, 1] = 0.1
    assert "left-right" not in derive(model).names


@pytest.mark.parametrize("how", ["axis", "leg"])
def test_a_quadruped_of_another_structure_has_no_left_right(how):
    model = quadruped("rl" if how == "leg" else "")
    if how == "axis":  # of both left hips, so that front and rear still are images of each other
        for name in ("fl_hip", "rl_hip"):
            model.jnt_axis[model.joint(name).id] = [0, np.cos(np.radians(10)), np.sin(np.radians(10))]
    assert "left-right" not in derive(model).names


def test_a_robot_that_faces_y_is_mirrored_in_x():
    model = humanoid()
    model.body_quat[1] = model.qpos0[3:7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    found = derive(model)["left-right"]
    np.testing.assert_array_equal(found.rotation, np.diag([-1, 1, 1]))
    assert found.bodies[model.body("l_arm").id] == model.body("r_arm").id and not found.joint_shift.any()
    model.jnt_axis[model.joint("l_elbow").id] = [np.sin(np.radians(10)), np.cos(np.radians(10)), 0]
    assert "left-right" not in derive(model).names


def test_a_knee_whose_zero_is_another_is_shifted_whatever_its_mass():
    model = humanoid()
    shin = model.body("l_shin").id
    model.body_quat[shin] = [np.cos(0.25), 0, np.sin(0.25), 0]  # bent by half a radian at zero
    model.body_ipos[shin] += [0.002, 0.001, 0]
    found = derive(model)["left-right"]
    joints = [model.joint(j).name for j in range(1, model.njnt)]
    shift = dict(zip(joints, found.joint_shift, strict=True))
    assert shift.pop("l_knee") == pytest.approx(-0.5) and shift.pop("r_knee") == pytest.approx(0.5)
    assert not any(shift.values())
    assert ("com" in {d.parameter for d in found.deviations}) and found.rotation[1, 1] == -1
