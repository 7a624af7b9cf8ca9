"""Observation terms: certified in the simulator by the functions that compute them, and wrong maps caught there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from mjlab_robots import mjlab_model
from refusals import refused

from rppdyn.envs import SymmetrySpec, certify, compiled_terms, symmetry_spec
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.envs.certification._evidence import Comparison
from rppdyn.envs.terms import TERMS, parse_term, read_terms, step_terms
from rppdyn.envs.terms._robot import Robot
from rppdyn.envs.terms._simulator import TermsSimulator, _Image
from rppdyn.envs.terms._terms import FootClocks, Pseudovector, Vector
from rppdyn.settings import fields_of

CRAWLER = Path(__file__).parents[2] / "docs" / "examples" / "crawler.xml"
HANDS = ["left_hand", "right_hand"]
ANKLES = [f"{leg}_ankle_geom" for leg in ("left", "right", "third", "fourth")]

ACTOR = [
    "base_angular_velocity",
    "projected_gravity",
    {"term": "commands", "entries": ["forward", "lateral", "yaw", "height"], "scale": [2, 2, 0.25, 1]},
    {"term": "joint_positions", "scale": 0.5},
    {"term": "joint_velocities", "scale": 0.05},
    "last_action",
    {"term": "gait_phase", "feet": HANDS, "offsets": [0.25, 0.75]},
]
CRITIC = [
    {"term": "base_linear_velocity", "frame": "yaw"},
    {"term": "base_linear_velocity", "label": "world velocity", "frame": "world", "axes": "yz"},
    "euler_angles",
    {"term": "quaternion", "order": "xyzw"},
    "base_height",
    "joint_torques",
    {"term": "foot_contacts", "feet": HANDS},
    {"term": "foot_forces", "feet": HANDS, "frame": "foot"},
    {"term": "foot_forces", "label": "size of forces", "feet": HANDS, "norm": True},
    {"term": "foot_positions", "feet": HANDS},
    {"term": "foot_clocks", "feet": HANDS, "functions": ["sin", "cos", "phase"]},
    {"term": "height_scan", "size": [0.4, 0.2], "centre": [0.1, 0.0]},
    {"term": "image", "shape": [3, 4, 2], "layout": "chw"},
    {"term": "vector", "label": "wind"},
    {"term": "pseudovector", "label": "spin of a ball", "frame": "world"},
    {"term": "scalars", "label": "friction", "size": 2},
    "reference_joint_positions",
    "reference_joint_velocities",
    "anchor_position",
    "anchor_orientation",
    {"term": "body_positions", "bodies": HANDS},
    {"term": "body_orientations", "bodies": HANDS},
]
GROUPS = {"actor": {"terms": ACTOR, "history": 3}, "critic": CRITIC}


def crawler(observation=GROUPS, **options):
    return compiled_terms(CRAWLER, observation, **options)


def mutants(A: np.ndarray, rng: np.random.Generator, n: int):
    """Maps with one row negated, two rows exchanged, one row of another, or two columns exchanged."""
    for _ in range(n):
        M, (i, j) = A.copy(), rng.choice(len(A), 2, replace=False)
        match rng.integers(4):
            case 0:
                M[i] = -M[i]
            case 1:
                M[[i, j]] = M[[j, i]]
            case 2:
                M[i] = M[j]
            case 3:
                M[:, [i, j]] = M[:, [j, i]]
        yield M


TOLERANCE = 1e-6


def defects(steps, matrix=None) -> dict[str, float]:
    """Largest defect of each entry in a model that was made symmetric, of a map in place of the derived one."""
    elements = steps.elements if matrix is None else steps.elements.with_generator("obs", matrix)
    found = Comparison.of_space(elements, "obs", steps.outcome, steps.images)
    return {name: defect.max for name, defect in found.components.items()}


def is_certified(steps, matrix=None) -> bool:
    return max(defects(steps, matrix).values()) < TOLERANCE


def test_crawler_is_certified_and_its_mutants_are_caught():
    """Every kind of term is among them but the controls, which are an action."""
    assert set(TERMS) - {one if isinstance(one, str) else one["term"] for one in ACTOR + CRITIC} == {"controls"}
    compiled = crawler()
    (steps,) = step_terms(compiled, states=24)
    A = compiled.spec.check().obs.generator(0)
    assert is_certified(steps), defects(steps)
    values = np.concatenate([steps.outcome.obs, steps.images.obs])
    constant = np.ptp(values, axis=0) < 1e-9
    still = {name for name, one in zip(compiled.spec.obs_names, constant, strict=True) if one and "image" not in name}
    assert still == {f"critic: {hand} body_orientations R[2,0]" for hand in HANDS}  # no joint turns them so
    for mutant in mutants(A, np.random.default_rng(0), 25):
        without_effect = np.array_equal(mutant, A)
        unseen = constant[(mutant != A).any(1)].all()
        assert is_certified(steps, mutant) == (without_effect or unseen)


def test_a_certificate_of_terms_has_everything_that_the_simulator_says():
    """Where the model is exact its terms are, in contact or out of it; a task of terms has no reward and no reset."""
    certificate = certify(crawler(), n_states=20, solver="tight")
    (report,) = certificate.generators
    assert (
        report.state.verdict == report.observation.verdict == "exact" and report.reward is report.reset.p_value is None
    )
    assert report.n_contact and dict(report.components)["actor: projected_gravity y"].verdict == "exact"


def test_subclasses_of_a_task_s_vectors_are_mirrored_as_these():
    """The simulator looked maps up by the class itself, and multiplied a subclass's vector by an empty matrix."""

    class Push(Vector):
        pass

    class Spin(Pseudovector):
        pass

    (steps,) = step_terms(crawler([Push(label="push"), Spin(label="spin")]), states=3)
    assert is_certified(steps)


def test_the_clock_of_a_gait_of_seven_phases_is_exact():
    """Phases in multiples of 1/720 were tried, so that a gait of another order was off by 1e-3."""
    feet = {"feet": HANDS, "offsets": [0, 0.5]}
    compiled = crawler([{"term": "gait_phase", **feet}])
    simulator = TermsSimulator(compiled)
    simulator.terms = [FootClocks(feet=tuple(HANDS), offsets=(1 / 7, 0.0))]
    assert _Image(simulator, compiled.symmetries[0]).clock == pytest.approx(1 / 7, abs=1e-12)


def test_actions_move_the_image_as_the_spec_says():
    action = [{"term": "joint_positions", "joints": ["right.*", "left.*"], "scale": [0.1, 0.2, 0.3] * 2}]
    compiled = crawler(["last_action", "joint_velocities"], action=action)
    (steps,) = step_terms(compiled, states=3)
    assert is_certified(steps)
    wrong = steps.elements.with_generator("action", np.eye(6))
    with open_simulator(compiled) as simulator:
        states, actions = simulator.rollout_states(3, np.random.default_rng(0), stride=2, horizon=9)
        s = simulator.steps(states, actions)
        m = simulator.steps(simulator.mirror(steps.elements, states), wrong.transform("action", actions))
    assert Comparison.of_space(steps.elements, "qvel", s, m).verdict == "broken"
    assert compiled.spec.action_names[0].startswith("right_sweep")


def test_numbers_by_regular_expression():
    """Scales and offsets as Isaac Lab and mjlab write them are those in a list, of observations and of actions."""
    joints = crawler(["joint_positions"]).robot.joints
    scales = [0.5 if "lift" in joint else 0.25 if "sweep" in joint else 1.0 for joint in joints]
    patterns = {".*lift": 0.5, "(left|right)_sweep": 0.25}
    offsets, shifted = [0.1 if "lift" in joint else 0.0 for joint in joints], {".*lift": 0.1}

    def written(scale, offset):
        term = {"term": "joint_positions", "scale": scale}
        return crawler([term | {"offset": offset}, "last_action"], action=[term])

    one, two = written(scales, offsets), written(patterns, shifted)
    for a, b in zip(step_terms(one, states=2), step_terms(two, states=2), strict=True):
        np.testing.assert_array_equal(a.outcome.obs, b.outcome.obs)
        np.testing.assert_array_equal(a.images.next_obs, b.images.next_obs)
    np.testing.assert_array_equal(one.action.scales[0], two.action.scales[0])
    everywhere = written({".*": 0.5}, {".*": 0.0}).spec
    assert everywhere == written(0.5, 0.0).spec


@pytest.mark.parametrize("names", [("quarter turn", "left-right"), ("left-right", "yaw")])
def test_terms_under_turns(names):
    """Gymnasium's Ant: commands and quaternions mix; the scan and velocities are in the body's own axes."""
    model = gym.make("Ant-v5").unwrapped.model
    terms = [
        "base_linear_velocity", "base_angular_velocity", "projected_gravity", "commands", "joint_positions",
        "last_action", "quaternion", {"term": "height_scan", "size": [0.8, 0.8], "resolution": 0.2, "frame": "body"},
        {"term": "foot_contacts", "feet": ANKLES}, {"term": "foot_positions", "feet": ANKLES},
    ]  # fmt: skip
    compiled = compiled_terms(model, {"terms": terms, "history": 2, "stack": "time"}, symmetry=names)
    compiled.spec.check()
    found = list(step_terms(compiled, states=6))
    assert len(found) == len(names) and all(map(is_certified, found)), [defects(steps) for steps in found]


@pytest.mark.parametrize("name, feet, symmetry", [
    ("g1", ["left_foot", "right_foot"], ["left-right"]),
    ("go1", ["FR", "FL", "RR", "RL"], ["left-right", "front-back"]),
])  # fmt: skip
def test_robots_of_mjlab(name, feet, symmetry):
    offsets = [0.0, 0.5, 0.5, 0.0][: len(feet)]
    gait = {"term": "gait_phase", "feet": feet, "offsets": offsets}
    actor = {"terms": [*ACTOR[:6], gait], "history": 5}
    critic = ["base_linear_velocity", {"term": "foot_contacts", "feet": feet}, "height_scan"]
    compiled = compiled_terms(
        mjlab_model(name),
        {"actor": actor, "critic": critic},
        [{"term": "joint_positions", "scale": 0.25}],
        symmetry=symmetry,
    )
    found = list(step_terms(compiled, states=4))
    assert all(map(is_certified, found))
    if name == "g1":
        assert dict(compiled.spec.observation_groups) == {"actor": 5 * (10 + 3 * 29 + 2), "critic": 3 + 2 + 17 * 11}
        for mutant in mutants(compiled.spec.obs.generator(0), np.random.default_rng(1), 10):
            assert not is_certified(found[0], mutant)


def test_as_built_models_are_off_by_their_deviations_only():
    compiled = compiled_terms(mjlab_model("go1"), ACTOR[:2], symmetry="left-right")
    (report,) = certify(compiled, n_states=20).generators
    assert report.observation.verdict == "approximate" and report.deviations


def test_steps_that_the_simulator_does_not_mirror_are_left_out_and_counted():
    """The triangles of a height field have one diagonal, so contacts with it are not mirrored."""
    xml = CRAWLER.read_text()
    ground = "<hfield name='ground' nrow='20' ncol='20' size='5 5 .1 .1'/>"
    assert "<asset>" not in xml
    rough = xml.replace("<worldbody>", f"<asset>{ground}</asset><worldbody><geom type='hfield' hfield='ground'/>", 1)
    terms = compiled_terms(mujoco.MjModel.from_xml_string(rough), ["joint_positions", "base_angular_velocity"])
    (steps,) = step_terms(terms)
    assert is_certified(steps) and 0 < steps.left_out < 36
    (steps,) = step_terms(crawler(["joint_positions"]))
    assert steps.left_out == 0


def test_joints_in_any_order_and_in_two_terms():
    names = [f"{side}_{joint}" for joint in ("elbow", "sweep", "lift") for side in ("right", "left")]
    one = crawler([{"term": "joint_positions", "joints": names}]).spec.obs
    two = crawler([
        {"term": "joint_positions", "label": "odd", "joints": names[::2]},
        {"term": "joint_positions", "label": "even", "joints": names[1::2], "scale": 2.0},
    ]).spec.obs  # fmt: skip
    order = [0, 2, 4, 1, 3, 5]
    scale = np.diag([1.0, 1, 1, 2, 2, 2])
    expected = scale @ one.generator(0)[np.ix_(order, order)] @ np.linalg.inv(scale)
    np.testing.assert_array_equal(two.generator(0), expected)
    assert one.describe(0, 0) == "-[1]"  # the elbows' axes are parallel


def test_a_default_pose_that_the_mirror_does_not_keep_moves_the_fixed_point():
    compiled = crawler(["joint_positions"], default_pose={"left_lift": 0.2, "right_lift": 0.1})
    origin = dict(zip(compiled.spec.obs_names, compiled.spec.obs.origin, strict=True))
    assert origin["left_lift position"] != 0 and origin["left_sweep position"] == 0
    assert all(map(is_certified, step_terms(compiled, states=4)))
    symmetric = crawler(["joint_positions"], default_pose={"left_lift": 0.2, "right_lift": -0.2})
    assert symmetric.spec.obs.is_centred


def test_slices_of_terms():
    terms = [{"term": "joint_positions", "history": 2}, "base_height", {"term": "base_angular_velocity", "history": 2}]
    group = crawler(terms).groups[""]
    assert group.slices() == {
        "joint_positions": slice(0, 12),
        "base_height": slice(12, 13),
        "base_angular_velocity": slice(13, 19),
    }
    halves = [{"term": "joint_positions", "joints": [f"{side}.*"]} for side in ("left", "right")]
    with refused("two terms are called 'joint_positions'"):
        crawler([halves[0], "base_height", halves[1]]).groups[""].slices()


def test_groups_are_parts_of_the_spec_and_survive_json():
    spec = crawler().spec
    assert spec == SymmetrySpec.from_dict(spec.to_dict())
    actor, critic = spec.observation_group("actor"), spec.observation_group("critic")
    assert actor.obs.dim + critic.obs.dim == spec.obs.dim and critic.observation_groups == ()
    obs = np.random.default_rng(0).normal(size=(3, spec.obs.dim))
    g = spec.group.discrete_generators[0]
    parts = [
        p.transform_observation(g, o) for p, o in zip((actor, critic), np.split(obs, [actor.obs.dim], 1), strict=True)
    ]
    np.testing.assert_array_equal(spec.transform_observation(g, obs), np.concatenate(parts, 1))
    with refused("no observation group 'student'; known: actor, critic"):
        spec.observation_group("student")
    with refused("their sizes must add up"):
        replace(spec, observation_groups=(("actor", 2),))


def test_terms_from_yaml(tmp_path):
    file = tmp_path / "terms.yaml"
    terms = "- base_angular_velocity\n- {term: joint_positions, scale: 5e-1}\n"
    file.write_text(f"observation:\n{terms}symmetry: left-right\n")
    found = read_terms(file)
    options = dict(observation=found["observation"], symmetry="left-right")
    assert symmetry_spec(CRAWLER, **found) == symmetry_spec(CRAWLER, **options)
    file.write_text("observation: [base_height]\nactions: []\n")
    with pytest.raises(ValueError, match="unknown key 'actions'; known: observation"):
        read_terms(file)


FOUR = {"feet": HANDS, "offsets": [0, 0.3]}


@pytest.mark.parametrize("observation, options, message", [
    (["base_velocity"], {}, r"unknown observation term 'base_velocity' \(did you mean 'base_\w+_velocity'\?\)"),
    ([{"term": "height_scan", "spacing": 1}], {}, r"height_scan has no option 'spacing'"),
    ([{"term": "foot_contacts"}], {}, r"foot_contacts: feet is missing"),
    ([{"term": "joint_positions", "joints": ["left_swep"]}], {}, r"no joint 'left_swep' \(did you mean 'left_sweep'\?\)"),
    ([{"term": "joint_positions", "joints": ["left.*"]}], {}, r"puts 'right_sweep position' into 'left_sweep position'"),
    ([{"term": "joint_positions", "joints": ["left.*", "left_lift"]}], {}, r"joint 'left_lift' is named twice"),
    ([{"term": "height_scan", "centre": [0, 0.05]}], {}, r"left-right carries its point \(-0.8, 0.55\) to \(-0.8, -0.55\)"),
    ({"a": {"terms": ["base_height", {"term": "joint_positions", "history": 2}], "stack": "time"}}, {},
     r"histories of unequal lengths can't be stacked by time \(base_height 1, joint_positions 2\)"),
    ([{"term": "joint_positions", "joints": ["left.*"], "history": 2}, {"term": "joint_positions", "joints": ["right.*"]}], {},
     r"histories are of unequal lengths"),
    ([{"term": "gait_phase", **FOUR}], {}, r"left-right makes another gait of the offsets 0, 0.3"),
    ([{"term": "gait_phase", "feet": HANDS, "offsets": [0, 0.5], "functions": ["phase"]}], {}, r"observe its sine and cosine"),
    ([{"term": "foot_contacts", "feet": ["left_hand"]}], {}, r"carries 'left_hand' to 'right_hand'; add it to feet"),
    ([{"term": "base_height", "scale": [1, 2]}], {}, r"base_height has 2 numbers as scale and 1 entries"),
    ([{"term": "base_linear_velocity", "at": "left_hand"}], {}, r"carries what it is measured at to another place"),
    ([{"term": "height_scan", "size": [1000, 1000], "resolution": 0.001}], {}, r"1000001 times 1000001 points is too fine"),
    # These were let through: their dense matrices are of 26 GB and more.
    ([{"term": "height_scan", "size": [20, 20], "resolution": 0.1}], {}, r"201 times 201 points is too fine, at most 10000"),
    ([{"term": "image", "shape": [480, 640, 3]}], {}, r"480 times 640 pixels is too fine, at most 10000"),
    ([{"term": "scalars", "size": 10**5, "history": 10}], {}, r"of observation, of 1000000 numbers, takes 6.4e\+04 GB"),
    # The default pose was added first: numpy's own message, and one number for all joints.
    ([{"term": "joint_positions", "offset": [0.1, 0.2, 0.3]}], {}, r"joint_positions has 3 numbers as offset and 6 entries"),
    ([{"term": "joint_positions", "offset": [0.1]}], {}, r"joint_positions has 1 numbers as offset and 6 entries"),
    (["base_height"], {"default_pose": [1, 2]}, r"default pose of 2 numbers, the model has 6 joints"),
    (["base_height"], {"default_pose": "home"}, r"no keyframe 'home'"),
    (["base_height"], {"symmetry": ["left-right", 3]}, r"3"),
    (["base_height"], {"action": [{"term": "joint_positions", "joints": ["left.*", "right.*"]}, "joint_positions"]},
     r"action: 'left_sweep position' is moved twice"),
    (["base_height"], {"action": ["base_height"]}, r"base_height is nothing that a policy moves"),
    (["base_height"], {"base": "trunk"}, r"the model has no body 'trunk'"),
    ([], {}, r"observation has no terms"),
    ({"a": 3}, {}, r"observation group 'a' is 3; give a list of terms"),
    ([3], {}, r"observation term 3: give its name"),
    ([{"term": "joint_positions", "scale": {".*lift": 2, "left.*": 3}}], {}, r"scale: '.*lift' and 'left.*' both match 'left_"),
    ([{"term": "joint_positions", "scale": {".*hip": 2}}], {}, r"the model has no joint or entry '.*hip'"),
    ([{"term": "joint_positions", "scale": {".*lift": 0}}], {}, r"no scale of 0"),
    (["base_height"], {"action": [{"term": "joint_positions", "scale": {".*lift": 0}}]}, r"give 1, no 0"),
    ([{"term": "joint_positions", "joints": []}], {}, r"joint_positions shows no entry; name some"),
    ([{"term": "commands", "entries": []}], {}, r"commands shows no entry"),
    (["base_height"], {"action": 3}, r"action: 3 is no list of terms"),
    (["base_height"], {"symmetry": []}, r"symmetry=\[\]: give a name"),
    (["base_height"], {"symmetry": 3}, r"symmetry=3: give a name"),
    (["base_height"], {"default_pose": 3}, r"default pose 3: give angles"),
    (["base_height"], {"default_pose": {"left_lift": "up"}}, r"default pose: the angle 'up' is no finite number"),
])  # fmt: skip
def test_refusals(observation, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        crawler(observation, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", TERMS)
def test_options_of_a_wrong_type_are_refused_by_name(kind):
    values = {"feet": HANDS, "offsets": [0, 0.5], "shape": [2, 2], "bodies": HANDS}
    options = fields_of(TERMS[kind])
    needed = {key: values[key] for key, item in options.items() if item.is_required()}
    for option in options:
        with refused(kind, option):
            parse_term({"term": kind, **needed, option: {"x": {}}})
    with refused(kind, "history=1000000000", "1000"):
        parse_term({"term": kind, **needed, "history": 10**9})


def test_an_action_of_a_joint_that_nothing_moves_is_refused():
    """Motors, and tendons along joints, move theirs; a model without actuators is moved from outside."""
    body = "<worldbody><body name='b'><joint name='one' axis='0 1 0'/><joint name='two' axis='1 0 0'/>" \
           "<joint name='three' axis='0 0 1'/><geom size='.1'/></body></worldbody>"  # fmt: skip
    tendon = "<tendon><fixed name='t'><joint joint='two' coef='1'/></fixed></tendon>"
    actuators = "<actuator><motor joint='one'/><motor tendon='t'/></actuator>"
    for described, idle in ((tendon + actuators, {"three"}), (tendon, set())):
        robot = Robot(mujoco.MjModel.from_xml_string(f"<mujoco>{body}{described}</mujoco>"))
        assert robot.idle_joints == idle
    model = gym.make("Walker2d-v5").unwrapped.model
    with pytest.raises(ValueError, match="action: no actuator moves the joint 'rootx'; moved are thigh_joint"):
        symmetry_spec(model, observation=["joint_positions"], action=["joint_positions"], symmetry="leg swap")


def test_controls_of_servos_with_two_setpoints():
    """Names were read by the number of the control, beyond the last actuator."""
    arm = "<body pos='0 {1} 1'><joint name='{0}' axis='0 1 0'/><geom fromto='0 0 0 0 {1} -.3' size='.1' type='capsule'/></body>"
    servos = "".join(f"<pid name='{side} servo' joint='{side}' kp='2' kv='.1'/>" for side in ("left", "right"))
    motors = "<motor name='right motor' joint='right'/><motor joint='left'/>"
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{arm.format('left', 0.1)}{arm.format('right', -0.1)}</worldbody>"
        f"<actuator>{servos}{motors}</actuator></mujoco>"
    )
    action = symmetry_spec(model, observation=["joint_positions"], action=["controls"], symmetry="left-right").action
    names = ["left servo", "left servo", "right servo", "right servo", "right motor", "actuator 3"]
    assert [entry.name for entry in action.entries] == names
    assert np.abs(action.generator(0)).argmax(1).tolist() == [2, 3, 0, 1, 5, 4]


def test_terms_need_a_model():
    with refused("terms are of a MuJoCo model: give one"):
        symmetry_spec("CartPole-v1", observation=["base_height"])
    with refused("belong to observation="):
        symmetry_spec(CRAWLER, action=["controls"])


def test_euler_angles_under_a_quarter_turn_are_refused_and_a_half_turn_keeps_roll_and_pitch():
    model = gym.make("Ant-v5").unwrapped.model
    with pytest.raises(ValueError, match="observe projected_gravity, or a quaternion"):
        symmetry_spec(model, observation=["euler_angles"], symmetry="quarter turn")
    found = symmetry_spec(
        model, observation=[{"term": "euler_angles", "angles": ["roll", "pitch"]}], symmetry="half turn"
    )
    np.testing.assert_array_equal(found.obs.generator(0), -np.eye(2))


def test_a_level_frame_of_a_base_whose_second_axis_points_up():
    """The mirror keeps that axis and negates the third one; of the level frame it negates the second."""
    side = (
        '<body name="{0}" pos="0 0 {1}"><joint name="{0}" axis="0 0 1"/>'
        '<geom type="capsule" fromto="0 0 0 .05 -.3 0" size=".02"/></body>'
    )
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body name="base" pos="0 0 1" euler="90 0 0"><freejoint/><geom type="box" size=".2 .05 .1"/>'
        f'<geom size=".05" pos=".2 .05 0"/>{side.format("l", -0.1)}{side.format("r", 0.1)}</body></worldbody>'
        '<actuator><motor joint="l"/><motor joint="r"/></actuator></mujoco>'
    )
    terms = [{"term": f"base_{kind}_velocity", "frame": "yaw"} for kind in ("linear", "angular")]
    compiled = compiled_terms(model, terms, symmetry="left-right")
    assert np.array_equal(compiled.spec.obs.generator(0), np.diag([1, -1, 1, -1, 1, -1]))
    (steps,) = step_terms(compiled, states=10)
    assert is_certified(steps), defects(steps)


@pytest.mark.parametrize(
    "term", [{"term": "base_linear_velocity", "frame": "yaw"}, "height_scan"], ids=["velocity", "scan"]
)
def test_a_heading_has_no_quarter_turn(term):
    """It is the azimuth of the base's first axis; of a tilted base that of the second is not 90 degrees from it."""
    model = gym.make("Ant-v5").unwrapped.model
    with refused("quarter turn", "give frame: body"):
        compiled_terms(model, [term], symmetry="quarter turn")
    compiled_terms(model, [term], symmetry="left-right+half turn")
