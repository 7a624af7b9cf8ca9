"""Observations of real environments transform as derived: obs(g s) = g obs(s), with the simulator's own numbers."""

from __future__ import annotations

import warnings
from functools import cache

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv
from gymnasium.wrappers import FrameStackObservation, NormalizeObservation, RescaleObservation
from refusals import refused
from scipy.linalg import expm

from rppdyn.envs import symmetry_spec
from rppdyn.envs._model_symmetry import finite_element
from rppdyn.envs.derivation import derive, state_spaces
from rppdyn.envs.observation._action import notes, set_image_state, space_of
from rppdyn.envs.observation._recognition import compute_derived, keep_data, observation_of, recognise

ALL = "exclude_current_positions_from_observation"
ENVIRONMENTS = {
    "Hopper-v5": {},
    "HalfCheetah-v5": {ALL: False},
    "Walker2d-v5": {},
    "Walker2d-v4": {ALL: False},
    "Swimmer-v5": {ALL: False},
    "Swimmer-v4": {},
    "Ant-v5": {},
    "Ant-v4": {"use_contact_forces": True},
    "Humanoid-v5": {},
    "HumanoidStandup-v5": {"include_cinert_in_observation": False, "include_cfrc_ext_in_observation": False},
    "Reacher-v5": {},
    "Pusher-v5": {},
    "InvertedPendulum-v5": {},
    "InvertedDoublePendulum-v5": {},
}
# Symmetries that the models have to rounding, contact included.
EXACT = {
    "Walker2d-v5": {"leg swap"},
    "Swimmer-v5": {"left-right", "planar rotation"},
    "Ant-v5": {"left-right", "quarter turn", "yaw"},
    "Reacher-v5": {"left-right", "yaw"},
    "Pusher-v5": {"yaw"},
    "InvertedPendulum-v5": {"left-right"},
}
# Environments that state what they observe.
STRUCTURED = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5")
SOLVED = {"cfrc_ext", "qfrc_constraint"}  # forces, which a model that is not quite symmetric has not either


def make(env_id: str, **options) -> gym.Env:
    with warnings.catch_warnings():  # v4 is out of date, and says so
        warnings.simplefilter("ignore")
        env = gym.make(env_id, disable_env_checker=True, **options)
    env.reset(seed=0)
    if env_id not in EXACT:
        return env
    option = env.unwrapped.model.opt
    option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    option.tolerance, option.iterations, option.ls_tolerance, option.ls_iterations = 0.0, 100, 1e-14, 100
    return env


@cache
def made(env_id: str):
    """An environment after some steps, its observation and its model's symmetries."""
    env = make(env_id, **ENVIRONMENTS[env_id])
    rng = np.random.default_rng(0)
    for _ in range(3 if env_id.startswith("Inverted") else 30):  # a pendulum would fall to its joint's limit
        env.unwrapped.step(rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32))
    symmetries = {s.name: s for s in derive(env.unwrapped.model).symmetries}
    return env, observation_of(env), symmetries


def images(observation, symmetry, n: int = 5):
    """Observations (n, d) in states, and in their images under the symmetry or an element of it."""
    model, data = observation.model, observation.data
    element = finite_element(symmetry, 0.6) if symmetry.is_continuous else symmetry
    rng, image = np.random.default_rng(2), mujoco.MjData(model)
    before, after, contacts = [], [], 0
    with keep_data(model, data):
        for _ in range(n):
            data.ctrl[:] = rng.uniform(-0.3, 0.3, model.nu)
            mujoco.mj_step(model, data, 5)
            compute_derived(model, data)
            contacts += data.ncon
            before.append(observation.read())
            with keep_data(model, data):
                mujoco.mj_copyData(image, model, data)
                set_image_state(model, observation.quantities, data, image, element)
                compute_derived(model, image)
                mujoco.mj_copyData(data, model, image)
                after.append(observation.read())
    return np.array(before), np.array(after), contacts


def matrix_of(space, symmetry) -> np.ndarray:
    return expm(0.6 * np.array(space.lie_algebra[0])) if symmetry.is_continuous else space.generator(0)


def solved(observation, space) -> np.ndarray:
    """Which features are forces that the constraint solver finds."""
    home = [field.key for field in observation.quantities for _ in field.entries]
    found = np.zeros(space.feature_dim, dtype=bool)
    for i, source in enumerate(observation.sources):
        found[list(space.encoding.features_of(i))] = any(home[column] in SOLVED for column, _ in source.terms)
    return found


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_observation_of_the_image_is_the_image_of_the_observation(env_id):
    """Mirrors undo themselves, a whole turn is none, and what is no inertia tensor transforms orthogonally."""
    _, observation, symmetries = made(env_id)
    assert symmetries and not observation.unexplained and not observation.constant
    for name, symmetry in symmetries.items():
        space = space_of(observation, [symmetry])
        plain, one = np.array(["inertia" not in entry.name for entry in space.features]), np.eye(space.feature_dim)
        for m in map(np.array, space.discrete_generators):
            order = 4 if "quarter turn" in name else 2
            assert np.abs(np.linalg.matrix_power(m, order) - one).max() < 1e-9 and np.abs(m @ m.T - one).max() < 1e-9
        for m in map(np.array, space.lie_algebra):
            assert np.abs(m + m.T)[np.ix_(plain, plain)].max() < 1e-9
            assert np.abs(expm(2 * np.pi * m) - one).max() < 1e-9
        before, after, contacts = images(observation, symmetry)
        expected, seen = space.encode(before) @ matrix_of(space, symmetry).T, space.encode(after)
        defect = np.abs(expected - seen) / (1 + np.abs(seen))
        if not env_id.startswith("Pusher") or name == "yaw":  # the halves of Pusher's arm differ in shape
            forces = solved(observation, space)
            assert defect[:, ~forces].max() < 1e-11, name
            if name in EXACT.get(env_id, ()) and name != "yaw":  # a turned pyramid of friction is another one
                assert defect[:, forces].max(initial=0.0) < 1e-7, name
        if env_id in ("Ant-v5", "Humanoid-v5", "Pusher-v5"):
            assert contacts


# -- what is recognised -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", STRUCTURED)
def test_agrees_with_the_stated_structure(env_id):
    """Gymnasium says of most v5 environments how many numbers of which array they observe, in order."""
    env, observation, _ = made(env_id)
    home = [field.key for field in observation.quantities for _ in field.entries]
    structure = env.unwrapped.observation_structure
    stated = [key for key, n in structure.items() if not key.startswith("skipped") for _ in range(n)]
    assert [home[source.terms[0][0]] for source in observation.sources] == stated


def test_names_and_units():
    reacher, ant = ([tuple(entry[:3]) for entry in made(env_id)[1].entries] for env_id in ("Reacher-v5", "Ant-v5"))
    assert reacher[-2:] == [("fingertip x - target x", "", "m"), ("fingertip y - target y", "", "m")]
    assert ant[:2] == [("torso z", "root", "m"), ("torso orientation w", "root", "1")]


@pytest.mark.parametrize("unit", [1.0, 1e-9])
def test_small_entries_are_checked_in_their_own_unit(unit):
    """Twice as much once time runs is no multiple of a velocity, however small the unit."""
    model = make("InvertedPendulum-v5").unwrapped.model
    data = mujoco.MjData(model)
    found = recognise(model, data, lambda: unit * np.r_[data.qvel[0], data.qvel[1] * (1 + (data.time > 0))])
    assert found.sources[0] is not None and found.sources[1] is None


def test_clipping_is_seen():
    _, observation, symmetries = made("Ant-v5")
    assert [source.is_clipped for source in observation.sources] == [False] * 27 + [True] * 78
    assert {(s.low, s.high) for s in observation.sources[27:]} == {(-1.0, 1.0)}

    def notes_on(*names):
        chosen = [symmetries[name] for name in names]
        return notes(observation, chosen, space_of(observation, chosen))

    assert notes_on("left-right") == ()
    (note,) = notes_on("left-right", "yaw")
    assert note.startswith("52 of the entries 27-103 are clipped and mixed by yaw")
    _, walker, _ = made("Walker2d-v5")
    assert {(s.low, s.high) for s in walker.sources} == {(-np.inf, np.inf), (-10.0, 10.0)}


def test_the_environment_is_left_as_it_was():
    env = make("Ant-v5")
    env.step(env.action_space.sample())
    data = env.unwrapped.data
    keys = ("qpos", "qvel", "xpos", "cfrc_ext", "qacc_warmstart", "sensordata", "ctrl", "xfrc_applied")
    before = {key: np.copy(getattr(data, key)) for key in keys}
    space_of(observation_of(env), derive(env.unwrapped.model).symmetries)
    assert all(np.array_equal(before[key], getattr(data, key)) for key in keys)


# -- observations of one's own ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ant():
    env = make("Ant-v5")
    model, data = env.unwrapped.model, env.unwrapped.data
    for _ in range(40):
        env.unwrapped.step(np.zeros(8))
    return model, data, {s.name: s for s in derive(model).symmetries}


def holds(observation, symmetries) -> float:
    """The largest defect of an observation over the symmetries, each by itself."""
    worst = 0.0
    for symmetry in symmetries:
        space = space_of(observation, [symmetry])
        before, after, _ = images(observation, symmetry)
        expected = space.encode(before) @ matrix_of(space, symmetry).T
        worst = max(worst, np.abs(expected - space.encode(after)).max())
    return worst


def test_a_legged_robots_usual_observation(ant):
    """Gravity and velocities in the body's axes, scaled, joints against a pose, the last controls; in single precision."""
    model, data, symmetries = ant
    pose = np.array([0.0, 0.7, 0.0, -0.7, 0.0, -0.7, 0.0, 0.7])

    def observe():
        X = data.xmat[1].reshape(3, 3)
        parts = (X.T @ [0, 0, -1], 0.25 * data.qvel[3:6], 2 * (X.T @ data.qvel[:3]), data.qpos[7:] - pose)
        return np.concatenate([*parts, 0.05 * data.qvel[6:], np.clip(data.ctrl, -5, 5)]).astype(np.float32)

    observation = recognise(model, data, observe)
    assert observation.unexplained == () and observation.constant == ()
    names = [entry.name for entry in observation.entries]
    assert names[0] == "-torso orientation R[2,0]" and names[3] == "0.25 torso angular velocity x"
    assert names[6] == "2 torso own velocity x" and names[10] == "ankle_1 position - 0.7"
    assert holds(observation, symmetries.values()) < 1e-5
    mirrored = space_of(observation, [symmetries["left-right"], symmetries["quarter turn"]])
    assert set(np.unique(np.abs(mirrored.discrete_generators))) == {0, 1} and not any(mirrored.origin)


def test_what_is_no_quantity_is_fitted(ant):
    """Lengths, a count of contacts and forces on the feet have no field; entries observed twice do no harm."""
    model, data, symmetries = ant
    feet = [4, 7, 10, 13]

    def observe():
        lengths = np.linalg.norm(data.xpos[feet] - data.xpos[1], axis=1)
        forces = np.linalg.norm(data.cfrc_ext[feet], axis=1)
        twice = np.concatenate([data.qpos[2:7], data.qpos[2:7]])
        return np.concatenate([lengths, [np.linalg.norm(data.qvel[:3]), data.ncon, 7.0], forces, twice])

    observation = recognise(model, data, observe)
    assert observation.unexplained == (0, 1, 2, 3, 4, 5, 7, 8, 9, 10) and observation.constant == (6,)
    assert holds(observation, symmetries.values()) < 1e-6
    space = space_of(observation, [symmetries["quarter turn"]])
    cycle = space.generator(0)[7:11, 7:11]
    assert (np.linalg.matrix_power(cycle, 4) == np.eye(4)).all() and not (cycle @ cycle == np.eye(4)).all()
    yaw = [symmetries["yaw"]]
    assert [note[:9] for note in notes(observation, yaw, space_of(observation, yaw))] == ["Entries 6", "Entries 0"]


def test_contacts_that_a_robot_in_the_air_lacks_are_fitted():
    """Flags of an ant that starts in the air, from forces and from the list of contacts; none of a foot that never touches."""
    env = gym.make("Ant-v5").unwrapped
    model, data, feet = env.model, env.data, [4, 7, 10, 13]
    symmetries = {s.name: s for s in derive(model).symmetries}

    def observe(forces: bool):
        touched = np.linalg.norm(data.cfrc_ext, axis=1) > 1
        if not forces:
            touched[:] = False
            touched[model.geom_bodyid[data.contact.geom.ravel()]] = True
        return np.concatenate([data.qvel, touched[feet].astype(float)])

    for forces, name, legs in ((True, "quarter turn", [3, 0, 1, 2]), (False, "left-right", [3, 2, 1, 0])):
        observation = recognise(model, data, lambda forces=forces: observe(forces))
        assert observation.unexplained == (14, 15, 16, 17)
        assert np.array_equal(space_of(observation, [symmetries[name]]).generator(0)[14:, 14:], np.eye(4)[legs])
    never = recognise(model, data, lambda: np.append(data.qvel, float(np.abs(data.cfrc_ext).max() > 500)))
    with refused("entry 14 ", "did not vary in simulated states", "own spec"):
        space_of(never, [symmetries["left-right"]])


def test_refusals_name_the_entry(ant):
    model, data, symmetries = ant
    for observe, name, *parts in (
        (lambda d: d.qvel[[0, 2]], "yaw", "entry 0 (torso velocity x) is not observed in full"),
        (lambda d: d.qpos[[4, 5, 6, 3]], "left-right", "entry 0 ", "part of a quaternion"),
        (lambda d: np.array([d.qvel[0] ** 3]), "yaw", "entry 0 of the observation is none"),
        (lambda d: np.clip(d.qvel[6:], -1, 5), "left-right", "clipped to [-1, 5]"),
        (lambda d: d.xpos, "left-right", "vector of finite numbers"),
        (lambda d: {"state": d.qpos}, "left-right", "dictionary of state"),
        (lambda d: d.qpos + np.random.default_rng().normal(size=15), "left-right", "two different"),
    ):
        with refused(*parts):
            space_of(recognise(model, data, lambda observe=observe: observe(data)), [symmetries[name]])
    observation = recognise(model, data, lambda: data.qvel[[0, 2]])
    assert space_of(observation, [symmetries["left-right"]]).generator(0).tolist() == [[1, 0], [0, 1]]


def test_a_robot_without_hinges():
    """Two arms on ball joints: every position is part of a quaternion or a place."""
    arm = '<body pos="0 {0} 0"><joint type="ball"/><geom type="capsule" fromto="0 0 0 0 {0} 0" size=".05"/></body>'
    body = f'<body pos="0 0 1"><freejoint/><geom size=".1"/>{arm.format(0.2)}{arm.format(-0.2)}</body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    observation = recognise(model, data, lambda: np.concatenate([data.qpos, data.qvel]))
    (mirror,) = [s for s in derive(model).symmetries if s.name == "left-right"]
    space = space_of(observation, [mirror])
    assert space.quaternions == (3, 7, 11) and holds(observation, [mirror]) < 1e-12
    assert state_spaces(model, [mirror])["qpos"].discrete_generators[0] == tuple(
        row[:30] for row in space.discrete_generators[0][:30]
    )


class Talkative(Walker2dEnv):
    """A subclass that observes more."""

    def _get_obs(self):
        return np.concatenate([super()._get_obs(), self.data.subtree_com[1], 2 * self.data.actuator_force])


def test_a_subclass():
    env = Talkative()
    env.observation_space = gym.spaces.Box(-np.inf, np.inf, (26,))
    env.reset(seed=0)
    observation = observation_of(env)
    assert [entry.name for entry in observation.entries][17:21] == [
        "world subtree's centre of mass x", "world subtree's centre of mass y", "world subtree's centre of mass z",
        "2 thigh_joint force",
    ]  # fmt: skip
    symmetries = {s.name: s for s in derive(env.model).symmetries}
    assert holds(observation, [symmetries["leg swap"]]) < 1e-9


def test_wrappers():
    env = make("Walker2d-v5")
    symmetries = [s for s in derive(env.unwrapped.model).symmetries if s.name == "leg swap"]
    plain = space_of(observation_of(env), symmetries)
    with pytest.raises(ValueError, match=r"shape \(2, 17\).*take off the wrapper"):
        observation_of(FrameStackObservation(env, 2))
    with pytest.raises(ValueError, match="two different observations"):
        observation_of(NormalizeObservation(env))
    with pytest.raises(ValueError, match="no Gymnasium MuJoCo environment"):
        observation_of(gym.make("CartPole-v1"))
    env.unwrapped.observation_space = gym.spaces.Box(-10.0, 10.0, (17,), np.float64)
    scaled = observation_of(RescaleObservation(env.unwrapped, np.float64(-1.0), np.float64(1.0)))
    assert scaled.entries[0].name == "0.1 rootz position" and scaled.sources[8].high == 1.0
    assert space_of(scaled, symmetries).discrete_generators == plain.discrete_generators


class Divided(Walker2dEnv):
    """Observes positions and velocities by name."""

    def __init__(self):
        super().__init__()
        space = gym.spaces.Box(-np.inf, np.inf, (9,))
        self.observation_space = gym.spaces.Dict({"positions": space, "velocities": space})

    def _get_obs(self):
        return {"positions": self.data.qpos.copy(), "velocities": self.data.qvel.copy()}


def test_a_dictionary_is_refused_behind_a_wrapper_too():
    """It was made an array of, which is a TypeError."""
    for env in (Divided(), gym.wrappers.TransformReward(Divided(), lambda reward: 2 * reward)):
        with refused("Divided is a dictionary of positions, velocities; flatten it"):
            observation_of(env)


class Sought(Walker2dEnv):
    """A goal that each episode draws, first set by a reset; one entry, and a height that is shown relative to it."""

    def __init__(self, observed: bool = True, **options):
        self.observed, self.random = observed, None
        super().__init__(**options)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (19,))

    def reset_model(self):
        self.goal, self.steps = self.np_random.uniform(-1, 1), 3.0
        self.model.body_mass[1] = self.np_random.uniform(3, 4)
        self.random = self.random or self.np_random
        return super().reset_model()

    def _get_obs(self):
        shown = self.goal if self.observed else 0.5
        return np.concatenate([super()._get_obs(), [shown, self.data.qpos[1] - shown * self.steps]])


def test_what_an_episode_draws_into_an_attribute_is_refused():
    env = Sought()
    with refused("Sought: resets draw observation[17], observation[18] outside", "mocap", "mirror_spec"):
        symmetry_spec(env, symmetry="leg swap")
    assert not hasattr(env, "goal") and env._np_random is None and env.random is None
    env.reset(seed=3)
    goal, random, mass, state = env.goal, env.np_random, env.model.body_mass[1], env.np_random.bit_generator.state
    with refused("observation[17]"):
        symmetry_spec(env, symmetry="leg swap")
    assert (goal, mass) == (env.goal, env.model.body_mass[1]) and random is env.np_random is env.random
    assert state == random.bit_generator.state
    hidden = symmetry_spec(Sought(observed=False), symmetry="leg swap")  # never reset, and drawn masses do no harm
    assert hidden.obs.entries[18].name == "rootz position - 1.5"


class Placed(Walker2dEnv):
    """A place that each episode writes into the model."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (18,))

    def reset_model(self):
        self.model.body_pos[1, 0] = self.np_random.uniform(-1, 1)
        return super().reset_model()

    def _get_obs(self):
        return np.append(super()._get_obs(), self.data.xpos[1, 0])


def test_what_an_episode_draws_into_the_model_is_refused():
    with refused("Placed: resets draw observation[17]"):
        symmetry_spec(Placed(), symmetry="leg swap")
