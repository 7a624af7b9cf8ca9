"""Symmetry specs as data and as group actions; none of these tests steps a simulator."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from handwritten import ROBOTS
from mutants import EXACT, joint_mutants
from refusals import refused
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.envs import Entry, Space, SymmetrySpec, certify, make_env, mirror_spec, symmetry_spec
from rppdyn.envs._catalogue import KNOWN_ENVIRONMENTS, symmetry_choices, symmetry_specs
from rppdyn.envs._making import load_model
from rppdyn.envs._mirror import PUBLISHED
from rppdyn.envs.derivation import derive
from rppdyn.groups import SO, D, S
from rppdyn.reps import V

every_env = pytest.mark.parametrize(
    "env_id", sorted({*KNOWN_ENVIRONMENTS} - {"HumanoidStandup-v5"})
)  # Humanoid's spaces

every_planar_robot = pytest.mark.parametrize("env_id", ROBOTS)
derived = functools.cache(symmetry_spec)


@every_planar_robot
def test_derived_specs_are_those_written_by_hand(env_id):
    """Indices, signs, names, units and fixed points, from the documentation of the tasks and not from the code."""
    robot, spec = ROBOTS[env_id], derived(env_id)
    assert [s.name for s in spec.symmetries] == [robot.mirror.name]
    for key, expected in {**robot.state(), "obs": robot.space(robot.observed(robot.hidden))}.items():
        found = getattr(spec, key)
        assert found.entries == expected.entries
        assert found.discrete_generators == expected.discrete_generators
        assert np.allclose(found.origin, expected.origin, rtol=1e-12, atol=0)


@every_env
def test_contract_of_a_derived_spec(env_id):
    """It matches model and environment, is a representation, is plain data, and its table names every entry."""
    env = gym.make(env_id)
    model = env.unwrapped.model
    spec = derived(env_id).check()
    assert symmetry_spec(env) == spec
    assert env.observation_space.shape == (spec.obs.dim,) and env.action_space.shape == (spec.action.dim,)
    assert spec.feature_dim == len(spec.feature_names)
    joints = [model.joint(i).name for i in range(model.njnt)]
    assert [e.joint for e in spec.action.entries] == [joints[j] for j in model.actuator_trnid[:, 0]]
    assert {entry.unit for entry in spec.action.entries} <= {"N m", "N"}
    for space in (spec.qpos, spec.qvel):
        assert list(dict.fromkeys(e.joint for e in space.entries)) == joints
    for space in (spec.obs, spec.action, spec.qpos, spec.qvel):
        assert "" not in space.names and len(set(space.names)) == space.dim
    for rep, dim in ((spec.obs_rep, spec.obs.feature_dim), (spec.action_rep, spec.action.dim)):
        assert rep.dim == dim and rep.is_orthogonal and rep.dtype == torch.float64
    assert spec.action_rep.is_signed_permutation and spec.obs_rep.G == spec.action_rep.G

    data = spec.to_dict()
    assert json.loads(json.dumps(data)) == data
    for copied in (SymmetrySpec.from_dict(data), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert copied == spec and hash(copied) == hash(spec) and copied.digest == spec.digest
        assert copied.obs_rep == spec.obs_rep
    with pytest.raises(AttributeError):
        spec.env_id = "other"

    lines = spec.table().splitlines()
    for entry in (*spec.obs.features, *spec.action.entries):
        assert any(entry.name in line and entry.unit in line for line in lines)
    assert any(line.startswith(f"{spec.symmetries[0].name}: dynamics {spec.symmetries[0].verdict}") for line in lines)


GROUPS = {
    ("Ant-v5", None): (8, 0), ("Ant-v5", "Z4"): (4, 0), ("Ant-v5", "yaw"): (None, 1), ("Humanoid-v5", None): (2, 0),
    ("Humanoid-v5", "both"): (None, 1), ("Swimmer-v5", "planar rotation"): (None, 1), ("Reacher-v5", None): (None, 1),
    ("Walker2d-v5", "leg swap"): (2, 0),
}  # fmt: skip


@pytest.mark.parametrize(("env_id", "symmetry"), GROUPS)
def test_choices_of_a_group(env_id, symmetry):
    spec = symmetry_spec(env_id, symmetry=symmetry)
    order, dimension = GROUPS[env_id, symmetry]
    assert spec.group.order == order and len(spec.group.lie_algebra) == dimension
    default = next(iter(symmetry_choices(env_id)))
    assert (symmetry in (None, default)) == (spec == derived(env_id))


STATED = {
    "InvertedPendulum-v5": ("exact", True), "InvertedDoublePendulum-v5": ("approximate", True), "Swimmer-v5": ("exact", True),
    "Walker2d-v5": ("exact", True), "HalfCheetah-v5": ("approximate", False), "Hopper-v5": ("broken", False),
    "Ant-v5": ("exact", True), "Humanoid-v5": ("approximate", True), "HumanoidStandup-v5": ("approximate", True),
    "Reacher-v5": ("exact", True), "Pusher-v5": ("broken", False),
}  # fmt: skip


def test_stock_specs_state_what_was_found(monkeypatch):
    """The verdicts that come with the package are found by the digests of today's model and spec."""
    monkeypatch.setattr("rppdyn.envs._catalogue.find_certificate", lambda *_: None)  # none of the user's own
    assert set(STATED) == set(KNOWN_ENVIRONMENTS)
    for env_id, verdicts in STATED.items():
        for stated in symmetry_spec(env_id).symmetries:
            assert (stated.verdict, stated.reward_symmetric) == verdicts
    changed = gym.make("Walker2d-v5")
    changed.unwrapped.model.actuator_gear[0] *= 0.9
    assert {s.verdict for s in symmetry_spec(changed).symmetries} == {"not certified"}


def test_symmetries_by_their_own_names():
    by_name = symmetry_spec("Ant-v5", symmetry="left-right + quarter turn")
    assert set(by_name.generator_names) == {"left-right", "quarter turn"} and by_name.group.order == 8
    assert symmetry_spec("Ant-v5", symmetry=["left-right"]) == symmetry_spec("Ant-v5", symmetry="left-right")


def test_a_model_observes_its_positions_and_velocities():
    model = gym.make("Walker2d-v5").unwrapped.model
    spec = symmetry_spec(model, symmetry="leg swap")
    assert spec.obs_names == (*spec.qpos.names, *spec.qvel.names)
    assert spec.qpos == symmetry_spec("Walker2d-v5").qpos


@pytest.mark.parametrize("env_id", [f"{task}-v5" for task in PUBLISHED])
def test_published_variants_are_representations(env_id):
    published, own = symmetry_spec(env_id, variant="published").check(), derived(env_id)
    same = env_id in ("Walker2d-v5", "Hopper-v5")
    assert (published.obs == own.obs and published.action == own.action) == same


def test_what_was_published_of_three_robots():
    """The text's Table A.10 and the code: Swimmer keeps its lateral velocity, Ant cycles legs, Humanoid swaps x and y."""
    swimmer = symmetry_spec("Swimmer-v5", variant="published")
    assert np.diag(swimmer.obs.generator(0)).tolist() == [-1, -1, -1, 1, 1, -1, -1, -1]
    ant = symmetry_spec("Ant-v5", variant="published")
    (g,) = ant.group.discrete_generators
    action = np.arange(8.0)
    names = ant.action_names
    image = dict(zip(names, ant.transform_action(g, action), strict=True))
    assert image["hip_2 torque"] == names.index("hip_1 torque") and image["ankle_1 torque"] == names.index(
        "ankle_4 torque"
    )
    humanoid = symmetry_spec("Humanoid-v5", variant="published")
    velocity = [humanoid.qvel.names.index(f"torso velocity {c}") for c in "xyz"]
    assert humanoid.qvel.generator(0)[np.ix_(velocity, velocity)].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


@every_planar_robot
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_acts_as_the_group_and_round_trips(env_id, kind):
    spec = derived(env_id)
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(3, 5, spec.obs.dim)), rng.normal(size=(5, spec.action.dim)).astype(np.float32)
    convert = torch.from_numpy if kind == "torch" else np.asarray
    obs, action = convert(obs), convert(action)
    identity, g = spec.group.elements()
    close = dict(rtol=0, atol=1e-15)

    assert np.allclose(spec.transform_observation(identity, obs), obs, **close)
    mirrored = spec.transform_observation(g, obs)
    assert type(mirrored) is type(obs) and mirrored.dtype == obs.dtype and mirrored.shape == obs.shape
    assert not np.allclose(mirrored, obs)
    assert np.allclose(spec.transform_observation(g, mirrored), obs, **close)
    assert np.allclose(mirrored, spec.obs.transform(spec.obs.generator(0), np.asarray(obs)), **close)
    # spec.encode(g . obs) = obs_rep(g) spec.encode(obs), DESIGN.md
    rho = spec.obs_rep.rho(g).numpy()
    assert np.allclose(spec.encode(mirrored), np.asarray(spec.encode(obs)) @ rho.T, **close)
    assert np.allclose(spec.decode(spec.encode(obs)), obs, **close)

    image = spec.transform_action(g, action)
    assert type(image) is type(action) and image.dtype == action.dtype
    assert (spec.transform_action(g, image) == action).all()
    # one element for each member of a batch
    several = spec.group.elements()[[0, 1, 1, 0, 1]]
    batched = spec.transform_action(several, action)
    assert (batched[[0, 3]] == action[[0, 3]]).all() and (batched[[1, 2, 4]] == image[[1, 2, 4]]).all()


def test_specs_differ():
    specs = [derived(env_id) for env_id in KNOWN_ENVIRONMENTS]
    specs += [mutant for env_id in EXACT for _, mutant in joint_mutants(derived(env_id))]
    assert len(set(specs)) == len(specs) == len({spec.digest for spec in specs})


# -- a user's own spec ------------------------------------------------------------------------------------------------


def test_mirror_spec_of_a_users_own():
    lists = dict(obs_permutation=[1, 0, 2], obs_signs=[-1, -1, 1], action_permutation=[0], action_signs=[-1])
    spec = mirror_spec("Mine-v0", **lists, obs_names=["left", "right", "height"], obs_origin=[0.0, 0.0, 0.0]).check()
    g = spec.group.discrete_generators[0]
    assert spec.transform_observation(g, np.array([1.0, 2.0, 3.0])).tolist() == [-2.0, -1.0, 3.0]
    assert "left" in spec.table()


def test_continuous_groups_and_centres():
    """Nothing in a spec is special to mirrors: SO(2) on a planar point about (1, 0)."""
    G = SO(2)
    lie = G.lie_algebra.tolist()
    plane = Space((Entry("x"), Entry("y")), lie_algebra=lie, origin=(1.0, 0.0))
    spec = SymmetrySpec("Point-v0", G, obs=plane, action=Space((Entry("fx"), Entry("fy")), lie_algebra=lie)).check()
    assert SymmetrySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    g = G.samples(4, generator=torch.Generator().manual_seed(0))
    obs = np.random.default_rng(0).normal(size=(4, 2))
    turned = spec.transform_observation(g, obs)
    assert np.allclose(np.linalg.norm(turned - [1, 0], axis=1), np.linalg.norm(obs - [1, 0], axis=1))
    assert np.allclose(spec.transform_observation(torch.linalg.inv(g), turned), obs)
    assert torch.allclose(spec.action_rep.rho(g), V(G).rho(g))


def test_decode_and_encode_keep_float32_and_gradients():
    spec = symmetry_spec("InvertedPendulum-v5")
    obs = torch.zeros(2, 4, requires_grad=True)
    features = spec.encode(obs)
    assert features.dtype == torch.float32 and features[0, 1].item() == pytest.approx(0.001 / 0.6, rel=1e-5)
    features.sum().backward()
    assert (obs.grad == 1).all()


def test_whole_numbers_are_observations_too():
    spec = symmetry_spec("InvertedPendulum-v5")
    (g,) = spec.group.discrete_generators
    for obs in (np.zeros((2, 4), int), torch.zeros((2, 4), dtype=torch.int64), np.zeros((2, 4), np.float16)):
        image = spec.transform_observation(g, obs)
        assert float(image[1, 1]) == pytest.approx(-0.002 / 0.6, rel=1e-3)
        assert float(spec.transform_action(g, obs[:, :1] + 1)[0, 0]) == -1.0


# -- errors: one line that names the thing, the value and the remedy --------------------------------------------------


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: derived("Walker2d-v5").encode([0.0] * 17), ("Walker2d-v5", "observation", "list", "array or a tensor")),
    (lambda: derived("Walker2d-v5").transform_action(np.eye(3), np.zeros(6)), ("(3, 3)", "(2, 2)", "Z(2)")),
    (lambda: symmetry_spec("Ant-v9000"), ("'Ant-v9000'",)),
    (lambda: symmetry_spec(gym.make("CartPole-v1")), ("CartPole-v1", "mirror_spec")),
    (lambda: symmetry_spec("no_robot.xml"), ("'no_robot.xml'", "MJCF")),
    (lambda: symmetry_spec(3), ("int", "environment id")),
    (lambda: symmetry_spec("Ant-v5", symmetry="up-down"), ("Ant-v5", "'up-down'", "D4", "left-right", "yaw")),
    (lambda: symmetry_spec("Ant-v5", variant="corrected"), ("'corrected'", "'derived'", "'published'")),
    (lambda: symmetry_spec("Reacher-v5", variant="published"), ("Reacher-v5", "Humanoid")),
    (lambda: symmetry_spec("Swimmer-v5", symmetry="planar rotation", variant="published"),
     ("Swimmer-v5", "'planar rotation'", "leave one out")),
    (lambda: replace(derived("Hopper-v5"), obs=Space(derived("Hopper-v5").obs.entries)), ("obs has 0 discrete",)),
    (lambda: Space((Entry("a"),), (((1.0, 2.0),),)), ("(1, 1)",)),
    (lambda: derived("Hopper-v5").encode(np.zeros((2, 12))), ("(2, 12)", "11")),
    (lambda: derived("Hopper-v5").transform_action(np.eye(2), torch.zeros(4)), ("(4,)", "3")),
    (lambda: SymmetrySpec.from_dict(derived("Hopper-v5").to_dict() | {"format": 99}), ("99", "reads 2")),
    (lambda: SymmetrySpec.from_dict({k: v for k, v in derived("Hopper-v5").to_dict().items() if k != "qvel"}), ("qvel",)),
])  # fmt: skip
def test_errors(call, parts):
    with refused(*parts):
        call()


ARM = """
<robot name="arms">
  <link name="base"/>
  {links}
  {joints}
</robot>
"""
LINK = """<link name="{0}"><inertial><origin xyz="0 0 0.5"/><mass value="1"/>
  <inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="{0} shoulder" type="revolute"><parent link="base"/><child link="{0}"/><origin xyz="0 {1} 0"/>
  <axis xyz="1 0 0"/><limit lower="-1" upper="1" effort="5" velocity="3"/></joint>"""


def test_joints_of_an_urdf_file_have_motors(tmp_path):
    """Such files name no actuators; efforts are limits of torques."""
    sides = {"left": 0.3, "right": -0.3}
    links, joints = (
        "".join(part.format(*side) for side in of)
        for part, of in ((LINK, [(side,) for side in sides]), (JOINT, sides.items()))
    )
    (tmp_path / "arms.urdf").write_text(ARM.format(links=links, joints=joints))
    model = load_model(tmp_path / "arms.urdf")
    assert model.actuator_ctrlrange.tolist() == [[-5, 5], [-5, 5]] and model.actuator_ctrllimited.all()
    spec = symmetry_spec(str(tmp_path / "arms.urdf"))
    assert spec.action_names == ("left shoulder torque", "right shoulder torque")
    assert certify(tmp_path / "arms.urdf", n_states=20).dynamics_verdict == "exact"
    assert np.array_equal(spec.transform_action(spec.group.discrete_generators[0].numpy(), np.array([1.0, 0])), [0, -1])


def arms_with(tmp_path, **mimics: str) -> Path:
    """A file of three arms, each of which may mimic another."""
    sides = {"left": 0.3, "right": -0.3, "middle": 0.0}
    joints = "".join(
        JOINT.format(side, y).replace("</joint>", f"{mimics.get(side, '')}</joint>") for side, y in sides.items()
    )
    (tmp_path / "arms.urdf").write_text(ARM.format(links="".join(map(LINK.format, sides)), joints=joints))
    return tmp_path / "arms.urdf"


@pytest.mark.parametrize(("mimics", "actuated"), [
    (dict(right='<mimic joint="left shoulder"/>'), ["left shoulder", "middle shoulder"]),
    (dict(right='<mimic joint="left shoulder" multiplier="-2" offset="0.1"/>'), ["left shoulder", "middle shoulder"]),
    (dict(left='<mimic joint="right shoulder"/>'), ["right shoulder", "middle shoulder"]),
    (dict(left='<mimic joint="right shoulder"/>', right='<mimic joint="middle shoulder"/>'), ["middle shoulder"]),
    (dict(left='<mimic joint="right shoulder"/>', right='<mimic joint="left shoulder"/>'), "left shoulder"),
    (dict(left='<mimic joint="left shoulder"/>'), "left shoulder"),
    (dict(left='<mimic joint="elbow"/>'), "left shoulder"),
    (dict(left="<mimic/>"), "arms.urdf"),
    (dict(left='<mimic joint="right shoulder" multiplier="half"/>'), "arms.urdf"),
])  # fmt: skip
def test_joints_that_mimic_another_follow_it_and_have_no_motor(tmp_path, mimics, actuated):
    path = arms_with(tmp_path, **mimics)
    if isinstance(actuated, str):
        with refused(actuated, "mimic"):
            load_model(path)
        return
    model = load_model(path)
    assert [model.actuator(i).name for i in range(model.nu)] == actuated
    data = mujoco.MjData(model)
    for _ in range(200):
        data.ctrl[0] = 0.5
        mujoco.mj_step(model, data)
    for name, mimic in mimics.items():
        numbers = dict(re.findall(r'(\w+)="([^"]*)"', mimic))
        expected = (
            float(numbers.get("offset", 0)) + float(numbers.get("multiplier", 1)) * data.joint(numbers["joint"]).qpos
        )
        assert np.allclose(data.joint(f"{name} shoulder").qpos, expected, atol=0.05)


def test_a_path_of_a_ros_package_is_refused_with_its_remedy(tmp_path):
    mesh = '<collision><geometry><mesh filename="package://arms/meshes/a.stl"/></geometry></collision></link>'
    path = arms_with(tmp_path)
    path.write_text(path.read_text().replace("</link>", mesh, 1))
    with refused("arms.urdf", "package://", "relative to the file"):
        load_model(path)


def test_changed_environments():
    """Another model under the same name brings its own symmetry; what can't be explained is refused."""
    stacked = gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(gym.make("Hopper-v5"), 2))
    with refused("Hopper-v5"):
        symmetry_spec(stacked)
    hopper = Path(gym.envs.mujoco.__file__).parent / "assets" / "hopper.xml"
    changed = gym.make("Walker2d-v5", xml_file=str(hopper))
    with refused("env.symmetry=", "front-back"):
        symmetry_spec(changed)
    with refused("published"):
        symmetry_spec(changed, variant="published")
    assert symmetry_spec(changed, symmetry="front-back").qpos == symmetry_spec("Hopper-v5").qpos


LEG = """<body pos="{x} {y} 0" euler="0 0 {turn}"><joint name="yaw{i}" axis="0 0 1" range="-40 40"/>
<geom type="capsule" fromto="0 0 0 .12 0 0" size=".02"/><body pos=".12 0 0"><joint name="knee{i}" axis="0 1 0" range="-60 60"/>
<geom type="capsule" fromto="0 0 0 .1 0 -.12" size=".02"/></body></body>"""
MOTORS = """<motor joint="yaw{i}" ctrlrange="-1 1"/><motor joint="knee{i}" ctrlrange="-1 1"/>"""


def many_legs(path, n: int) -> str:
    """The file of a robot of n equal legs."""
    places = [(i, 360 / n * i) for i in range(n)]
    legs = "".join(
        LEG.format(i=i, turn=a, x=0.15 * np.cos(np.deg2rad(a)), y=0.15 * np.sin(np.deg2rad(a))) for i, a in places
    )
    path.write_text(
        '<mujoco><worldbody><geom type="plane" size="9 9 .1"/><body name="torso" pos="0 0 .3"><freejoint/>'
        f'<geom type="cylinder" size=".15 .04"/>{legs}</body></worldbody>'
        f"<actuator>{''.join(MOTORS.format(i=i) for i in range(n))}</actuator></mujoco>"
    )
    return str(path)


def test_another_robot_in_a_task_has_its_own_symmetries(tmp_path):
    options = dict(include_cfrc_ext_in_observation=False, frame_skip=2)
    env = gym.make("Ant-v5", xml_file=many_legs(tmp_path / "robot.xml", 3), **options)
    spec = symmetry_spec(env)
    assert spec.group.order == 6 and set(spec.generator_names) <= set(derive(env.unwrapped.model).names)
    assert set(symmetry_choices(env)) == set(derive(env.unwrapped.model).names)
    assert symmetry_spec(DummyVecEnv([lambda: env])) == spec
    assert symmetry_specs(env)[0][0] == spec and len(symmetry_specs(env)[0]) > 1
    with refused("'quarter turn'"):
        symmetry_spec(env, symmetry="quarter turn")


@pytest.mark.filterwarnings("ignore:.*settotalmass")
@pytest.mark.parametrize("env_id", [f"{task}-v5" for task in ("Walker2d", "Ant", "Reacher")])
def test_the_default_of_a_task_is_of_its_own_model(tmp_path, env_id):
    """A stock file elsewhere is that model; with a weight on one side it is another, of which nothing is assumed."""
    stock = Path(gym.make(env_id).unwrapped.fullpath)
    model = mujoco.MjSpec.from_file(str(stock))
    copy = tmp_path / "copy.xml"
    copy.write_bytes(stock.read_bytes())
    assert symmetry_spec(gym.make(env_id, xml_file=str(copy))) == symmetry_spec(env_id)
    last = model.bodies[-3]
    last.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.03, 0, 0], pos=[0.05, 0.1, 0.07], mass=0.3)
    model.compile()
    (tmp_path / "own.xml").write_text(model.to_xml())
    env = gym.make(env_id, xml_file=str(tmp_path / "own.xml"))
    derivation = derive(env.unwrapped.model)
    if not any(not s.is_continuous and not s.deviations for s in derivation.symmetries):
        with refused("symmetry=", "env.symmetry=", derivation.names[0]):
            symmetry_spec(env)
    else:
        assert not any(derivation[name].deviations for name in symmetry_spec(env).generator_names)
    (one, *_) = derivation.names
    assert symmetry_spec(DummyVecEnv([lambda: env]), symmetry=one).generator_names == (one,)


@pytest.mark.parametrize(("changes", "part"), [
    (dict(obs_permutation=[0, 0]), "not a permutation"), (dict(obs_signs=[1]), "signs 1"),
    (dict(obs_signs=[1, 2]), "must be 1 or -1"), (dict(obs_signs=[1, -1]), "equal signs"),
    (dict(obs_names=["a"]), "1 names for 2"), (dict(obs_origin=[1.0]), "2 finite numbers"),
    (dict(verdict="perfect"), "'perfect'"), (dict(qpos_permutation=[0]), "signs 0"),
    (dict(qpos_signs=[1]), "qpos_signs has no effect without qpos_permutation"),
    (dict(qpos_permutation=[0], qpos_signs=[1], qvel_signs=[-1]), "qvel_signs has no effect without qvel_permutation"),
])  # fmt: skip
def test_bad_mirror_specs(changes, part):
    good = dict(obs_permutation=[1, 0], obs_signs=[1, 1], action_permutation=[0], action_signs=[1])
    mirror_spec("Mine-v0", **good)
    with refused(part):
        mirror_spec("Mine-v0", **good | changes)


@every_planar_robot
def test_documentation_shows_the_table(env_id):
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "symmetry-specs.md").read_text(encoding="utf-8")
    entries, _, _notes = derived(env_id).table().rpartition("\n\n")
    assert entries in page


def test_entries_of_a_space_may_be_names_alone():
    assert Space(["x", "vx"]).entries == (Entry("x"), Entry("vx"))
    assert Space([("x", "slider", "m")]).entries == (Entry("x", "slider", "m"),)
    for entry in (3, (), ("x", 3), "", ("a", "b", "c", True, "e")):
        with refused("of a space", "Entry(name, joint, unit)"):
            Space([entry])


def test_a_product_of_groups_comes_back_with_its_factors():
    """Layers choose points for these; agents and run folders keep specs as dictionaries."""
    spec = symmetry_spec(make_env("rppdyn/Swarm-v0"))
    copy = SymmetrySpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert copy == spec and copy.digest == spec.digest and copy.group.factors == spec.group.factors == (S(4), D(4))
    data = spec.to_dict()
    data["group"]["factors"].reverse()
    with refused("S(4) x D(4)", "other generators", "save the group again"):
        SymmetrySpec.from_dict(data)
    del data["group"]["factors"]  # as earlier versions wrote it, whose layers go on as they were built
    assert SymmetrySpec.from_dict(data).group.factors == (SymmetrySpec.from_dict(data).group,)
