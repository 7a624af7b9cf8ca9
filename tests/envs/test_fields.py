"""Every quantity of mjData transforms as its field says: the simulator's own numbers, in states and in their images."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from rppdyn.envs._model_symmetry import finite_element
from rppdyn.envs.derivation import derive
from rppdyn.envs.observation._action import set_image_state
from rppdyn.envs.observation._quantities import quantities_of
from rppdyn.envs.observation._recognition import compute_derived, keep_data, simulate_states

# Two arms on ball joints, sensors of most types, a target that a mocap body carries, a sign that stands still.
TWO_ARMS = """
<mujoco>
  <option gravity="0 0 -9.81"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body name="sign" pos="1 .3 .5"><geom size=".05" contype="0" conaffinity="0"/></body>
    <body name="target" mocap="true" pos="1 0 .5"><geom size=".05" contype="0" conaffinity="0"/></body>
    <body name="torso" pos="0 0 .5">
      <freejoint name="root"/>
      <geom type="box" size=".2 .1 .3"/>
      <site name="imu" pos=".1 0 .1" euler="0 30 0"/>
      <body name="left_arm" pos="0 .1 .2"><joint name="left_shoulder" type="ball" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 0 .3 0" size=".03"/><site name="left_hand" pos="0 .3 .02" euler="10 20 30"/>
        <body name="left_finger" pos="0 .3 0"><joint name="left_bend" axis="1 0 0" range="-60 60"/>
          <geom type="capsule" fromto="0 0 0 0 .1 0" size=".02"/><site name="left_tip" pos="0 .1 0" size=".05"/></body>
      </body>
      <body name="right_arm" pos="0 -.1 .2"><joint name="right_shoulder" type="ball" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 0 -.3 0" size=".03"/><site name="right_hand" pos="0 -.3 .02" euler="-40 5 7"/>
        <body name="right_finger" pos="0 -.3 0"><joint name="right_bend" axis="1 0 0" range="-60 60"/>
          <geom type="capsule" fromto="0 0 0 0 -.1 0" size=".02"/><site name="right_tip" pos="0 -.1 0" size=".05"/></body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="right_motor" joint="right_bend" gear="3"/><motor name="left_motor" joint="left_bend" gear="3"/>
  </actuator>
  <sensor>
    <gyro site="imu"/><accelerometer site="imu"/><velocimeter site="imu"/>
    <force site="left_hand"/><force site="right_hand"/><torque site="right_hand"/><torque site="left_hand"/>
    <touch site="left_tip"/><touch site="right_tip"/>
    <framepos objtype="body" objname="right_arm"/><framepos objtype="body" objname="left_arm"/>
    <framequat objtype="body" objname="torso"/><framequat objtype="site" objname="imu"/>
    <framelinvel objtype="site" objname="imu"/><frameangvel objtype="xbody" objname="torso"/>
    <framelinacc objtype="site" objname="imu"/><frameangacc objtype="geom" objname="left_geom"/>
    <subtreecom body="torso"/><subtreelinvel body="torso"/><subtreeangmom body="torso"/>
    <jointpos joint="right_bend"/><jointpos joint="left_bend"/><jointvel joint="left_bend"/><jointvel joint="right_bend"/>
    <actuatorfrc actuator="left_motor"/><actuatorfrc actuator="right_motor"/><actuatorvel actuator="left_motor"/>
    <clock/><e_kinetic/>
  </sensor>
</mujoco>
""".replace('fromto="0 0 0 0 .3 0" size', 'name="left_geom" fromto="0 0 0 0 .3 0" size')

# The symmetries that are exact, by robot; that Pusher turns about a shoulder off the origin is why it is here.
ROBOTS = {
    "Ant-v5": ("left-right", "quarter turn", "yaw"),
    "Pusher-v5": ("yaw",),
    "Swimmer-v5": ("left-right", "planar rotation"),
    "two arms": ("left-right",),
}
SOLVED = {"qacc", "qfrc_constraint", "cfrc_ext", "cfrc_int", "cacc", "sensordata", "sensordata of joints and actuators"}


def tight(model: mujoco.MjModel) -> mujoco.MjModel:
    """Solve contacts to rounding, so that the solver's early stop is not taken for asymmetry."""
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model.opt.tolerance, model.opt.iterations = 0.0, 200
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-14, 100
    return model


@pytest.fixture(scope="module", params=ROBOTS)
def robot(request):
    """A model, its data in a state with contact, its fields and its symmetries; of continuous ones an element."""
    if request.param == "two arms":
        model = mujoco.MjModel.from_xml_string(TWO_ARMS)
    else:
        model = gym.make(request.param, disable_env_checker=True).unwrapped.model
    data = mujoco.MjData(tight(model))
    mujoco.mj_step(model, data, int(0.6 / model.opt.timestep))
    exact = [s for s in derive(model).symmetries if s.name in ROBOTS[request.param]]
    assert len(exact) == len(ROBOTS[request.param])
    return model, data, quantities_of(model), {s.name: finite_element(s, 0.7) if s.is_continuous else s for s in exact}


def defects(model, data, fields, symmetry, wrong=None, n: int = 6) -> dict[str, float]:
    """The largest defect of each field over states, relative to its largest number; fields are carried by `wrong`, if given."""
    image, size, worst = mujoco.MjData(model), dict.fromkeys([f.key for f in fields], 0.0), {}
    with keep_data(model, data):
        for _ in simulate_states(model, data, n):
            set_image_state(model, fields, data, image, symmetry)
            compute_derived(model, image)
            for field in fields:
                expected = field.encoding.encode(field.image(wrong or symmetry, field.read(data)))
                seen = field.encoding.encode(np.array(field.read(image)))
                size[field.key] = max(size[field.key], np.abs(seen).max())
                difference = np.nan_to_num(np.abs(expected - seen), nan=0.0 if wrong is None else np.inf)
                worst[field.key] = max(worst.get(field.key, 0.0), difference.max(initial=0.0))
    return {name: worst[name] / (size[name] or 1.0) for name in worst}


def test_every_field(robot):
    model, data, fields, symmetries = robot
    assert symmetries
    for name, symmetry in symmetries.items():
        for field, defect in defects(model, data, fields, symmetry).items():
            assert defect < (1e-6 if field in SOLVED else 1e-11), (name, field)


def lost(field, symmetry) -> set[str]:
    """Names of a field's entries that are the image of nothing."""
    rows = np.flatnonzero(np.isnan(field.act(symmetry)[0]).any(1))
    return {entry.name for i, entry in enumerate(field.entries) if set(field.encoding.features_of(i)) & set(rows)}


def test_every_number_has_an_image(robot):
    """But in the two-armed robot those of a geom's and an actuator's sensor without partner, and of a world with a sign."""
    model, _, fields, symmetries = robot
    without = {"sensor 16 x", "sensor 16 y", "sensor 16 z", "sensor 26"} if model.nsensor else set()
    for symmetry in symmetries.values():
        found = {name for field in fields for name in lost(field, symmetry)}
        assert without <= found
        assert all(model.nsensor and name.startswith("world subtree") for name in found - without)


def test_axes_of_sensors_need_not_be_mirrored():
    """The hands' axes are turned arbitrarily, and no signed permutation carries a force from one to the other."""
    model = mujoco.MjModel.from_xml_string(TWO_ARMS)
    field = next(field for field in quantities_of(model) if field.key == "sensordata")
    symmetry = next(s for s in derive(model).symmetries if s.name == "left-right")
    force = field.act(symmetry)[0][12:15, 9:12]
    assert np.allclose(force @ force.T, np.eye(3)) and np.abs(force - np.round(force)).max() > 0.1


def test_sensors_of_actuators_beside_some_with_two_controls():
    """They followed the control whose number is the actuator's; of one with two setpoints the action is unknown."""
    servos = "".join(f'<pid name="{side}_servo" joint="{side}_bend" kp="2" kv=".1"/>' for side in ("left", "right"))
    sensors = '<actuatorvel actuator="right_motor"/><actuatorfrc actuator="left_servo"/>'
    xml = TWO_ARMS.replace("<actuator>", f"<actuator>{servos}").replace("</sensor>", f"{sensors}</sensor>")
    model = mujoco.MjModel.from_xml_string(xml.replace('joint="right_bend" gear="3"', 'joint="right_bend" gear="-3"'))
    data = mujoco.MjData(tight(model))
    mujoco.mj_step(model, data, 50)
    assert list(model.actuator_ctrlnum) == [2, 2, 1, 1]
    (field,) = (field for field in quantities_of(model) if field.key == "sensordata of joints and actuators")
    symmetry = derive(model)["left-right"]
    assert lost(field, symmetry) == {f"sensor {model.nsensor - 1}"}
    assert defects(model, data, quantities_of(model), symmetry)[field.key] < 1e-6


WRONG = {
    "a pseudovector taken for a vector": (
        lambda s: replace(s, rotation=-s.rotation), "xpos,cvel,cfrc_ext,subtree_linvel"),
    "the bodies not exchanged": (
        lambda s: replace(s, bodies=tuple(range(len(s.bodies)))), "xpos,xmat,cinert,cvel,geom_xpos"),
    "a frame not turned": (
        lambda s: replace(s, frames=np.tile(np.eye(3), (len(s.bodies), 1, 1))), "xmat,xquat,own velocity,own angular velocity"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_show(mistake):
    """Negative control: the state is carried rightly, the fields by a wrong symmetry."""
    model = tight(gym.make("Ant-v5", disable_env_checker=True).unwrapped.model)
    data, fields = mujoco.MjData(model), quantities_of(model)
    mujoco.mj_step(model, data, int(0.6 / model.opt.timestep))
    right = derive(model)["left-right"]
    spoil, touched = WRONG[mistake]
    found = defects(model, data, fields, right, spoil(right), n=4)
    assert [name for name in touched.split(",") if found[name] < 1e-3] == []
