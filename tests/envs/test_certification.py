"""The simulator's verdict: right specs pass at rounding, every wrong one is found out."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from ant import OPTIONS, ant_spec
from gymnasium.envs.mujoco import MujocoEnv
from mutants import EXACT, joint_mutants
from refusals import refused
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.envs import Certificate, certify, make_env, mirror_spec, symmetry_spec
from rppdyn.envs._simulator import BareSimulator, Outcome, Simulator, tight_solver
from rppdyn.envs.certification._certificate import APPROXIMATE_BELOW, EXACT_BELOW, Defect, model_digest
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.envs.certification._evidence import Elements, SimulatedSteps
from rppdyn.envs.derivation import derive, symmetrise

exact_env = pytest.mark.parametrize("env_id", EXACT)

# What stepping the simulator found: verdicts on dynamics and reward, and the range of the median defect of a step.
FOUND = {
    "InvertedPendulum-v5": ("exact", "exact", (0, 1e-14)),
    "InvertedDoublePendulum-v5": ("approximate", "exact", (1e-7, 1e-5)),
    "Swimmer-v5": ("exact", "exact", (0, 0)),
    "Walker2d-v5": ("exact", "exact", (0, 1e-14)),
    "HalfCheetah-v5": ("approximate", "broken", (0.1, 0.4)),
    "Hopper-v5": ("broken", "broken", (1.2, 3.0)),
}
every_env = pytest.mark.parametrize("env_id", FOUND)


def elements(spec, k: int = 0) -> Elements:
    return Elements.of_generator(spec, k, np.random.default_rng(0))


@pytest.fixture(scope="module")
def certificates():
    few, many = (
        dict(n_states=80, n_resets=200),
        dict(n_states=150, n_resets=2000),
    )  # its reset is off by a sixth of its width
    return {env_id: certify(env_id, **many if env_id == "InvertedPendulum-v5" else few) for env_id in FOUND}


@every_env
def test_verdicts(certificates, env_id):
    (report,) = certificates[env_id].generators
    dynamics, reward, (low, high) = FOUND[env_id]
    assert (report.dynamics_verdict, report.reward_verdict) == (dynamics, reward)
    assert low <= report.state.median <= high and low <= report.observation.median <= high
    assert (env_id in EXACT) == (report.dynamics_verdict == "exact")
    if env_id in EXACT:
        assert report.state.max < 1e-11 and report.observation.max < 1e-11


@pytest.mark.parametrize(("env_id", "verdict"), [("Ant-v5", "exact"), ("Reacher-v5", "exact"), ("Hopper-v5", "broken")])
def test_verdict_does_not_depend_on_the_seed(env_id, verdict):
    assert certify(env_id, n_states=20, seed=1, n_resets=20).dynamics_verdict == verdict


@every_env
def test_termination_and_reset(certificates, env_id):
    """InvertedPendulum's limit and reset are about hinge = 0, its mirror 0.0017 rad from there; all others agree."""
    (report,) = certificates[env_id].generators
    if env_id == "InvertedPendulum-v5":
        assert report.termination_verdict == "approximate" and 0 < report.termination < 0.05
        assert report.reset_verdict == "not invariant" and report.reset.coordinate == "hinge position"
    elif env_id == "Hopper-v5":
        assert report.termination_verdict != "exact"
        assert report.reset_verdict == "no difference found"
    else:
        assert report.termination == 0
        assert report.reset_verdict == "no difference found"


@exact_env
def test_every_joint_mutant_is_found(env_id):
    """One joint's sign or one pair of joints wrong, consistently in all spaces: never exact."""
    spec = symmetry_spec(env_id)
    mutants = {name: mutant for name, mutant in joint_mutants(spec) if mutant != spec}
    assert len(mutants) > 1 and (env_id != "Swimmer-v5" or "joint sign of slider2" in mutants)  # Finzi 2023, Table A.10
    with open_simulator(env_id) as simulator:
        evidence = SimulatedSteps.visit(simulator, 20, np.random.default_rng(0))
        survivors = [name for name, mutant in mutants.items() if evidence.verdict(elements(mutant)) == "exact"]
        assert evidence.verdict(elements(spec)) == "exact"
    assert survivors == []


def test_double_pendulum_constraint_force_at_the_end_of_the_rail():
    """The entry that random actions never reach: the force at the limit of the slider, odd like the slider."""
    spec = symmetry_spec("InvertedDoublePendulum-v5")
    simulator = Simulator(gym.make("InvertedDoublePendulum-v5"))
    simulator.reset(np.random.default_rng(0))
    simulator.env.set_state(np.array([1.0, 0.05, -0.02]), np.array([0.5, 0.0, 0.1]))
    state, action = simulator.get(), np.array([0.3])
    evidence = SimulatedSteps(simulator, state[None], action[None], simulator.steps(state[None], action[None]))
    original, image = simulator.step(state, action), Outcome(*(x[0] for x in evidence.images(elements(spec))))
    assert abs(original.next_obs[8]) > 1
    assert np.allclose(image.next_obs, spec.obs.transform(spec.obs.generator(0), original.next_obs), rtol=0, atol=1e-5)


def test_double_pendulum_is_spoiled_by_its_gravity():
    env = gym.make("InvertedDoublePendulum-v5")
    assert env.unwrapped.model.opt.gravity[0] == 1e-5
    env.unwrapped.model.opt.gravity[0] = 0.0
    assert certify(env, n_states=40, n_resets=20).dynamics_verdict == "exact"


@pytest.mark.parametrize(("options", "is_exact"), [
    (dict(actuator_scale={"leg_joint": 0.5}), False), (dict(exclude_current_positions_from_observation=False), True),
])  # fmt: skip
def test_options_of_the_environment_count(options, is_exact):
    (report,) = certify(make_env("Walker2d-v5", **options), n_states=30, n_resets=20).generators
    assert (report.dynamics_verdict == "exact") == is_exact == (report.state.median < 1e-2)


def test_leaves_the_environment_as_it_was():
    def rollout(disturb):
        env = make_env("Walker2d-v5")
        env.reset(seed=3)
        env.action_space.seed(3)
        trace = []
        for t in range(40):
            if disturb and t == 5:
                certify(disturb(env), n_states=20, n_resets=20)
            obs, reward, terminated, *_ = env.step(env.action_space.sample())
            trace.append((*obs, reward))
            if terminated:
                trace.append(env.reset()[0])
        return np.concatenate([np.ravel(x) for x in trace])

    undisturbed = rollout(None)
    for disturb in (lambda env: env, lambda env: DummyVecEnv([lambda: env])):
        assert np.array_equal(rollout(disturb), undisturbed)


def test_same_seed_same_certificate():
    assert certify("Swimmer-v5", n_states=20, n_resets=20) == certify("Swimmer-v5", n_states=20, n_resets=20)


def test_table_and_dictionary(certificates):
    for env_id, certificate in certificates.items():
        table, data = certificate.table(), json.loads(json.dumps(certificate.to_dict()))
        assert env_id in table and "reward" in table and "termination" in table and "support" in table
        assert max(map(len, table.splitlines())) <= 120
        spec = symmetry_spec(env_id)
        (report,) = data["generators"]
        assert set(report["components"]) == {*spec.obs_names, *spec.qpos.names, *spec.qvel.names}
        assert data["verdict"] == {"dynamics": certificate.dynamics_verdict, "reward": certificate.reward_verdict}
        assert Certificate.from_dict(data) == certificate
        assert ("worst" in table) == (certificate.dynamics_verdict != "exact")
    with refused("lacks the key 'solver'"):
        Certificate.from_dict({key: value for key, value in data.items() if key != "solver"})


def test_thresholds():
    values = np.array([0.0] * 96 + [1.0] * 4)
    assert Defect.from_values(values).verdict == "exact" and Defect.from_values(values).share == 0.04
    assert Defect.from_values(np.full(100, 2 * EXACT_BELOW)).verdict == "approximate"
    assert Defect.from_values(np.full(100, APPROXIMATE_BELOW)).verdict == "broken"
    unknown = Defect.from_values(np.full(100, np.nan))
    assert (unknown.share, unknown.verdict) == (1.0, "broken")


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: certify("CartPole-v1"), ("CartPole", "MuJoCo")),
    (lambda: certify("CartPole-v1", symmetry_spec("Hopper-v5")), ("CartPole", "MuJoCo")),
    (lambda: certify("Hopper-v5", symmetry_spec("Swimmer-v5")), ("Swimmer-v5", "action", "(3,)")),
    (lambda: certify("Hopper-v5", replace(symmetry_spec("Hopper-v5"), qvel=None)), ("qpos and qvel",)),
    (lambda: certify("Hopper-v5", n_states=3), ("n_states=3", "20")),
    (lambda: certify("Hopper-v5", n_resets=3), ("n_resets=3", "20")),
    (lambda: certify("Hopper-v5", solver="fast"), ("'fast'", "tight")),
    (lambda: certify("nowhere.xml"), ("nowhere.xml", "no model file")),
    (lambda: certify(3), ("int", "model file")),
    (lambda: certify("Nothing-v5", symmetry_spec("Hopper-v5")), ("Nothing",)),
    (lambda: Certificate.from_dict({}), ("format None",)), (lambda: Certificate.from_dict([]), ("format None",)),
])  # fmt: skip
def test_errors(call, parts):
    with refused(*parts):
        call()


def test_stepping_a_restored_state_is_a_continuation():
    """The comparison is fair: stepping from a stored state is bit for bit what the rollout did."""
    simulator = Simulator(gym.make("Walker2d-v5"))
    rng = np.random.default_rng(0)
    states = zip(*simulator.rollout_states(50, rng, stride=1, horizon=100), strict=True)
    spec = mujoco.mjtState.mjSTATE_FULLPHYSICS
    for (state, action), (following, _) in pairwise(states):
        simulator.step(state, action)
        now = np.empty(mujoco.mj_stateSize(simulator.model, spec))
        mujoco.mj_getState(simulator.model, simulator.data, now, spec)
        simulator.set(following)
        then = np.empty_like(now)
        mujoco.mj_getState(simulator.model, simulator.data, then, spec)
        if then[0] > 0 and now[0] == then[0]:  # time; a reset lies between the others
            assert np.array_equal(now, then)


# -- groups of several generators, continuous ones, contact, support -----------------------------------------------------


@pytest.fixture(scope="module")
def ant():
    spec = ant_spec("left-right", "quarter turn", "published", "yaw")
    return certify(gym.make("Ant-v5", **OPTIONS), spec, n_states=100, n_resets=20)


def test_ant_is_exact_and_the_published_leg_cycle_is_not(ant):
    """Yaw is exact but for a tail in contact: the cone of friction has corners, and turns of the world change what slips."""
    reports = {report.name: report for report in ant.generators}
    for name in ("left-right", "quarter turn"):
        assert reports[name].dynamics_verdict == reports[name].reward_verdict == "exact"
        assert reports[name].state.max < 1e-11 and reports[name].observation.max < 1e-11
    assert reports["published"].dynamics_verdict == "broken"
    assert reports["published"].state.median == pytest.approx(2.8, rel=0.2)
    yaw = ant.generators[-1]
    assert yaw.name == "yaw" and yaw.state.median < 1e-14 and yaw.reward_verdict == "broken"
    assert yaw.free["state"].max < 1e-11 < 1e-5 < yaw.contact["state"].max


def test_support_tells_maps_that_no_data_can_refute(ant, certificates):
    """Ankles keep their signs in nearly all states, so that the leg cycle without ankle signs maps outside of the data."""
    share = {report.name: report.support.share for report in ant.generators}
    assert share["left-right"] > 0.85 and share["quarter turn"] > 0.85
    assert share["published"] < 0.1
    assert ant.generators[2].support.worst.startswith("ankle") and ant.generators[2].support.outside > 0.9
    assert certificates["Walker2d-v5"].generators[0].support.share > 0.85


def test_a_rollout_starts_at_the_defect_of_a_step_and_grows(certificates, ant):
    walker, cheetah = (certificates[env_id].generators[0] for env_id in ("Walker2d-v5", "HalfCheetah-v5"))
    assert walker.rollout[0] < 1e-13 and cheetah.rollout[0] > 0.05
    assert len(walker.rollout) == 50 and certificates["Swimmer-v5"].generators[0].growth is None
    assert ant.generators[0].rollout[-1] > 10 * ant.generators[0].rollout[0] and ant.generators[0].growth > 1


def test_contact_is_told_apart(certificates):
    (report,) = certificates["Walker2d-v5"].generators
    assert 0 < report.n_contact < 80 and set(report.contact) == set(report.free) == {"state", "observation", "reward"}
    before_v5 = gym.make("Walker2d-v5", xml_file="walker2d.xml")  # foot frictions 0.9 and 1.9
    (old,) = certify(before_v5, n_states=40, n_resets=20).generators
    assert old.dynamics_verdict == "approximate"
    assert old.free["state"].p95 < 1e-11 < 1e-3 < old.contact["state"].p95


def test_a_symmetry_that_fails_in_contact_alone_is_not_exact(certificates):
    exact, wrong = Defect(0.0, 0.0, 1.0, 0.04), Defect(0.0, 0.5, 1.0, 0.4)
    (report,) = certificates["Swimmer-v5"].generators
    report = replace(report, n_states=1000, state=exact, contact={"state": wrong}, n_contact=30)
    assert report.dynamics_verdict == "approximate"
    assert replace(report, n_contact=3).dynamics_verdict == "exact"  # too few for a percentile


def test_a_double_turn_and_a_quaternions_sign_do_not_count():
    """Differences are taken between features: the image of a quaternion may come out with the other sign."""
    spec = ant_spec("quarter turn")
    with open_simulator(gym.make("Ant-v5", **OPTIONS)) as simulator:
        evidence = SimulatedSteps.visit(simulator, 20, np.random.default_rng(0))
        m = evidence.images(elements(spec))
        flipped = m.next_qpos.copy()
        flipped[:, 3:7] *= -1
        assert evidence.verdict(elements(spec), m._replace(next_qpos=flipped)) == "exact"
        flipped[:, 3] *= -1
        assert evidence.verdict(elements(spec), m._replace(next_qpos=flipped)) != "exact"


# -- bare models and solvers ---------------------------------------------------------------------------------------------

TWO_LEGS = """
<mujoco><worldbody><geom type="plane" size="5 5 .1"/>
<body pos="0 0 .5"><freejoint name="root"/><geom type="box" size=".2 .1 .05"/>
<body pos="0 .1 0"><joint name="left" axis="0 1 0" range="-60 60" limited="true"/>
  <geom type="capsule" fromto="0 .05 0 0 .05 -.3" size=".03"/></body>
<body pos="0 -.1 0"><joint name="right" axis="0 1 0" range="-60 60" limited="true"/>
  <geom type="capsule" fromto="0 -.05 0 0 -.05 -.3" size=".03"/></body>
</body></worldbody><actuator><motor joint="left" gear="5" ctrllimited="true" ctrlrange="-1 1"/>
<motor joint="right" gear="{gear}" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""


def two_legs(tmp_path, gear: int = 5) -> str:
    """The file of a robot, whose right leg may be weaker."""
    (tmp_path / f"legs{gear}.xml").write_text(TWO_LEGS.format(gear=gear))
    return str(tmp_path / f"legs{gear}.xml")


def test_a_bare_model_has_dynamics_only(tmp_path):
    spec = symmetry_spec(two_legs(tmp_path), symmetry="left-right")
    certificate = certify(two_legs(tmp_path), spec, n_states=60)
    (report,) = certificate.generators
    assert report.dynamics_verdict == "exact" and 0 < report.n_contact < 60
    assert report.observation is report.reward is report.termination is report.reset.p_value is None
    assert certificate.table().count("not defined") >= 4
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    assert certify(two_legs(tmp_path, gear=4), spec, n_states=40).dynamics_verdict == "approximate"


def test_a_bare_simulator_stays_within_ranges(tmp_path):
    simulator = BareSimulator(mujoco.MjModel.from_xml_path(two_legs(tmp_path)))
    low, high = simulator.action_bounds
    assert (low == -1).all() and (high == 1).all() and simulator.substeps == 10
    starts = simulator.reset_states(50, np.random.default_rng(0))[0]
    assert np.abs(starts[:, 7:]).max() <= np.deg2rad(60) and starts[:, 7:].std() > 0.03
    assert np.allclose(np.linalg.norm(starts[:, 3:7], axis=1), 1)


def test_tight_solver_is_put_back():
    model = gym.make("Humanoid-v5").unwrapped.model
    before = model_digest(model)
    with pytest.raises(RuntimeError), tight_solver(model):
        assert model.opt.tolerance < 1e-12 and model_digest(model) != before
        raise RuntimeError
    assert model_digest(model) == before
    assert certify("Swimmer-v5", n_states=20, n_resets=20, solver="tight").solver == "tight"


def test_a_humanoid_with_equal_sides_is_exact_under_a_tight_solver():
    """Armature and stiffness of its sides differ; made equal, what is left is the stock solver's tolerance."""
    env = gym.make("Humanoid-v5")
    model, spec = env.unwrapped.model, symmetry_spec(env)
    even = symmetrise(model, derive(model)["left-right"])
    (stock,), (tight,) = (certify(even, spec, n_states=20, solver=s).generators for s in ("stock", "tight"))
    assert stock.dynamics_verdict == "approximate" and 1e-8 < stock.contact["state"].median < 1e-5
    assert stock.free["state"].median < 1e-12
    assert tight.dynamics_verdict == "exact" and tight.state.max < 1e-11


# -- steps that are none of the dynamics ---------------------------------------------------------------------------------

FLIPPERS = """
<mujoco><option timestep="0.01"/><worldbody><body name="torso" pos="0 0 1"><freejoint/><geom type="box" size=".1 .1 .05"/>
<geom type="sphere" pos=".2 0 .1" size=".05"/><geom type="sphere" pos="-.1 0 -.1" size=".03"/>
<body name="l" pos="0 .1 0"><joint name="l" axis="1 0 0" damping=".1" armature="{0}"/>
  <geom type="capsule" fromto="0 0 0 0 .2 0" size=".02" mass="{1}"/></body>
<body name="r" pos="0 -.1 0"><joint name="r" axis="-1 0 0" damping=".1" armature=".01"/>
  <geom type="capsule" fromto="0 0 0 0 -.2 0" size=".02" mass=".05"/></body>
</body></worldbody><actuator>
<motor name="l" joint="l" ctrllimited="true" ctrlrange="-{2} {2}"/>
<motor name="r" joint="r" ctrllimited="true" ctrlrange="-{2} {2}"/></actuator></mujoco>
"""


def flippers(armature: float = 0.01, mass: float = 0.05, torque: float = 1.0) -> mujoco.MjModel:
    """A free body with two flippers; the left one may differ."""
    return mujoco.MjModel.from_xml_string(FLIPPERS.format(armature, mass, torque))


def test_steps_that_mujoco_reset_are_left_out(capfd, tmp_path, monkeypatch):
    """Torques too strong in one state of two, or in all; MuJoCo's own log is kept out of the folder and the terminal."""
    monkeypatch.chdir(tmp_path)
    model = flippers(torque=1e9)
    with refused("model: no verdict", "of 40 steps", "unstable, MuJoCo reset it: bad acceleration", "--control-scale"):
        certify(model, symmetry_spec(model, symmetry="left-right"), n_states=40)
    weak = certify(model, symmetry_spec(model, symmetry="left-right"), n_states=40, control_scale=1e-9)
    assert weak.dynamics_verdict == "exact" and "controls at 1e-09" in weak.table()
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # unstable all the same
    with refused("no verdict", "bad acceleration"):
        certify(model, symmetry_spec(model, symmetry="left-right"), n_states=40)
    with refused("control_scale=2"):
        certify(model, symmetry_spec(model, symmetry="left-right"), control_scale=2)
    model = flippers(torque=1e6)
    certificate = certify(model, symmetry_spec(model, symmetry="left-right"), n_states=100)
    (report,) = certificate.generators
    assert report.dynamics_verdict != "broken" and report.state.max < 1e-10
    ((what, count),) = report.left_out.items()
    assert "bad acceleration" in what and 20 < count < 80 and report.n_states == 100 - count
    line = next(line for line in certificate.table().splitlines() if "left out" in line)
    assert f"{count} of 100 steps" in line
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


class Fails(gym.Wrapper):
    """Gives nan as a reward where the pole leans to one side, or always."""

    def __init__(self, env, above: float):
        super().__init__(env)
        self.above = above

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, np.nan if obs[1] > self.above else reward, *rest


def test_numbers_that_are_not_finite_are_left_out():
    env = gym.make("InvertedPendulum-v5")
    (report,) = certify(Fails(env, 0.1), n_states=40, n_resets=20).generators
    assert report.dynamics_verdict == report.reward_verdict == "exact"
    assert set(report.left_out) == {"the reward is not finite"}
    with refused("no verdict, for 0 of 40 steps", "40 the reward is not finite"):
        certify(Fails(env, -10.0), n_states=40, n_resets=20)
    holes = gym.wrappers.TransformObservation(
        env, lambda o: np.where(abs(o[1]) > 0.1, np.nan, o), env.observation_space
    )
    (report,) = certify(holes, symmetry_spec(env), n_states=40, n_resets=20).generators
    assert report.dynamics_verdict == "exact" and set(report.left_out) == {"an observation is not finite"}


# -- every symmetry of a model -------------------------------------------------------------------------------------------


def test_every_symmetry_of_a_nearly_symmetric_robot_with_what_spoils_it():
    model = flippers(armature=0.012, mass=0.051)
    certificate = certify(model, n_states=20)
    names = derive(model).names
    assert certificate.generators[0].name == "left-right" and certificate.dynamics_verdict == "approximate"
    assert [report.name for report in certificate.reports] == list(names) and len(names) > 1
    for report in certificate.reports:
        assert report.deviations == tuple(map(str, derive(model)[report.name].deviations))
    table = certificate.table()
    assert "joint l has armature 0.012, joint r 0.01" in table and "body l has mass" in table
    assert all(f"{name}: dynamics" in table for name in names)
    assert max(map(len, table.splitlines())) <= 100
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    (named,) = certify(model, symmetry_spec(model, symmetry="left-right"), n_states=20).reports
    assert named == certificate.generators[0]
    even = certify(flippers(), n_states=20)  # the default symmetry stands first, and alone in the verdict
    assert [report.name for report in even.generators] == ["left-right"]
    assert even.dynamics_verdict == "exact" and even.generators[0].deviations == ()
    assert {other.dynamics_verdict for other in even.others} != {"exact"}


def test_lines_on_deviations(certificates):
    """Without effect, spoiling, many, and none of a symmetry that is not derived from the model."""
    pendulum, hopper = certificates["InvertedPendulum-v5"], certificates["Hopper-v5"]
    # The pole's range is about zero, the mirror about its tilt; the pole falls before it is there.
    assert "differs in the model, without effect here" in pendulum.table() and "spoiled by" in hopper.table()
    many = replace(hopper.generators[0], deviations=tuple(f"geom {i} has size 1, geom {i} 2" for i in range(9)))
    table = replace(hopper, generators=(many,)).table()
    assert "geom 3 has" in table and "geom 4 has" not in table and "and 5 more parameters" in table
    minus = dict(obs_permutation=range(4), obs_signs=[-1] * 4, action_permutation=[0], action_signs=[1])
    spec = mirror_spec("InvertedPendulum-v5", **minus, qpos_permutation=[0, 1], qpos_signs=[-1, -1])
    by_hand = certify("InvertedPendulum-v5", spec, n_states=20, n_resets=20)
    assert by_hand.generators[0].deviations is None and "spoiled" not in by_hand.table()


def test_a_robot_without_a_symmetry_is_said_to_have_none():
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="a" axis="1 2 3"/><geom size=".1" pos=".3 .1 .2"/>'
        '<body pos=".1 .5 .2"><joint axis="3 1 -2" type="slide"/><geom type="box" size=".1 .2 .3" pos=".5 .1 .1"/></body>'
        '</body></worldbody><actuator><motor joint="a"/></actuator></mujoco>'
    )
    with refused("no symmetry of model was found", "mirror_spec"):
        certify(model, n_states=20)


# -- what an episode draws, and what a state holds beside positions --------------------------------------------------------


class Ball(MujocoEnv):
    """A ball on slides along x and y and a target, a mocap body, both mirrored exactly by y -> -y."""

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 50}  # noqa: RUF012
    XML = (
        '<mujoco><option timestep="0.01"/><worldbody><body name="ball"><geom size=".1" mass="1"/>'
        '<joint name="x" type="slide" axis="1 0 0" damping="1"/><joint name="y" type="slide" axis="0 1 0" damping="1"/></body>'
        '<body name="goal" mocap="true"><geom size=".05" contype="0" conaffinity="0"/></body></worldbody>'
        '<actuator><motor joint="x" gear="9"/><motor joint="y" gear="9"/></actuator></mujoco>'
    )
    speed = 0.0

    def __init__(self, folder, actions: int = 2):
        (folder / "ball.xml").write_text(self.XML)
        super().__init__(str(folder / "ball.xml"), 2, observation_space=gym.spaces.Box(-np.inf, np.inf, self.size))
        self.action_space = gym.spaces.Box(-1, 1, (actions,))

    size = (4,)

    def _get_obs(self):
        return np.concatenate([self.data.qpos, self.data.qvel])

    def step(self, action):
        self.do_simulation(np.append(0.3, action)[-2:], self.frame_skip)  # a single action is the second control
        distance = np.linalg.norm(self.data.qpos - self.data.mocap_pos[0, :2])
        return self._get_obs(), -float(distance + abs(self.data.qvel[0] - self.speed)), False, False, {}

    def reset_model(self):
        self.set_state(self.np_random.uniform(-0.1, 0.1, 2), self.init_qvel)
        return self._get_obs()


class RandomBall(Ball):
    """Strengths of motors and a speed to go at are drawn anew in each episode."""

    size = (5,)

    def _get_obs(self):
        return np.append(super()._get_obs(), self.speed)

    def reset_model(self):
        self.model.actuator_gear[:, 0] = self.np_random.uniform(5, 15)
        self.speed = self.np_random.uniform(0, 1)
        return super().reset_model()


class GoalBall(Ball):
    """The target is drawn in each episode, and observed."""

    size = (6,)

    def _get_obs(self):
        return np.concatenate([super()._get_obs(), self.data.mocap_pos[0, :2]])

    def reset_model(self):
        self.data.mocap_pos[0, :2] = self.np_random.uniform(-1, 1, 2)
        return super().reset_model()


FEW = dict(n_states=30, n_resets=20)


def flip(n: int, *negative: int) -> dict[str, list]:
    """Arguments of `mirror_spec` for n entries of the observation, some of which change their sign."""
    return dict(obs_permutation=list(range(n)), obs_signs=[-1 if i in negative else 1 for i in range(n)])


FLIP_BALL = dict(qpos_permutation=[0, 1], qpos_signs=[1, -1], action_permutation=[0, 1], action_signs=[1, -1])


def test_states_and_images_are_stepped_under_the_same_draw(tmp_path):
    """Each episode is symmetric to rounding; strengths and speeds of two episodes differ."""
    env = RandomBall(tmp_path)
    (report,) = certify(env, mirror_spec("Ball", **flip(5, 1, 3), **FLIP_BALL), **FEW).generators
    assert report.dynamics_verdict == report.reward_verdict == "exact"
    assert max(report.state.max, report.observation.max, *report.rollout) < 1e-12


def test_poses_of_mocap_bodies_are_mirrored(tmp_path):
    env = GoalBall(tmp_path)
    spec = symmetry_spec(env, symmetry="left-right")
    (report,) = certify(env, spec, **FEW).generators
    assert report.dynamics_verdict == report.reward_verdict == "exact" and report.observation.max < 1e-12
    turned = certify(env, symmetry_spec(env, symmetry="yaw"), **FEW)
    assert turned.dynamics_verdict == "exact" and turned.generators[0].observation.max < 1e-9
    wrong = mirror_spec("Ball", **flip(6, 1, 3), **FLIP_BALL)
    assert certify(env, wrong, **FEW).dynamics_verdict == "broken"
    both = FLIP_BALL | dict(action_signs=[-1, 1])
    with refused("Ball: the mocap bodies", "no derived symmetry", "joint"):
        certify(env, mirror_spec("Ball", **flip(6, 1, 3, 5), **both), **FEW)


def test_an_action_need_not_be_the_controls(tmp_path):
    """A constant drives one motor, and the action the other."""
    env = Ball(tmp_path, actions=1)
    with refused("Ball", "actions of shape (1,)", "2 controls", "mirror_spec"):
        symmetry_spec(env, symmetry="left-right")
    with refused("2 controls", "mirror_spec"):
        certify(env, **FEW)
    spec = mirror_spec("Ball", **flip(4, 1, 3), **FLIP_BALL | dict(action_permutation=[0], action_signs=[-1]))
    (report,) = certify(env, spec, **FEW).generators
    assert report.dynamics_verdict == report.reward_verdict == "exact"
